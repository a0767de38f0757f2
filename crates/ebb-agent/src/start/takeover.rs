//! Which memory of a running process can be managed.
//!
//! `/proc/self/smaps` tells it. Taken over are
//!
//! * the heap and private anonymous mappings;
//! * the zeroed memory behind the data of programs and libraries (`.bss`);
//! * what the loader has relocated of their data, which is only read since;
//! * the variables of a program that has not begun.
//!
//! Left alone are
//!
//! * the stack, other data of files, and what libc has for itself;
//! * what is locked, grows down, has other pages than the usual, or belongs to a userfaultfd of the program's;
//! * the agent's own memory;
//! * what the kernel writes to by itself: the surroundings of the thread pointer (where libc has the robust list, the
//!   restartable sequence and the word to clear at the end), and the list and the word themselves, wherever they are.
//!
//! A program may have locked all future memory (mlockall) in a way that was not noticed. The kernel would then populate
//! each new mapping before Ebb can register it. So, as in a managed process, that wish has no effect from here on; what
//! is locked already stays locked.

use crate::base::here;
use crate::base::{calls, sequences};
use crate::dormant::{sites, state};
use crate::guard::device;
use core::ffi::CStr;
use core::mem::size_of;
use ebb::{Mapping, PAGE, PageMap, Space, Which, uapi};
use linux_raw_sys::general as g;

/// Bytes of text that are read at a time.
const TEXT_BYTES: usize = 64 << 10;
/// Most mappings that are looked at. Others stay as they are.
const MAPPINGS_MAX: usize = 1 << 14;
const BYTES: usize = TEXT_BYTES + MAPPINGS_MAX * size_of::<Entry>();
/// What lies around the thread pointer and may be known to the kernel, in bytes: static thread-local storage below it,
/// libc's descriptor of the thread above it.
const BELOW_BYTES: usize = 64 << 10;
const ABOVE_BYTES: usize = 8 << 10;
/// Zeroed memory behind a file's data is not worth a region if it has fewer bytes than this.
const ZEROED_BYTES_MIN: usize = 128 << 10;
/// Variables are not worth a copy if they have fewer bytes than the first, or more than the second.
const VARIABLES_BYTES_MIN: usize = 128 << 10;
const VARIABLES_BYTES_MAX: usize = 16 << 20;
/// The part of the budget that all variables together may take.
const VARIABLES_PART: usize = 32;
/// A library's relocated data is not worth a copy if it has fewer bytes than this.
const RELOCATED_BYTES_MIN: usize = 512 << 10;
/// A mapping with the thread's descriptor in it is left alone as a whole, unless it has more bytes than this. A small
/// process does not have much more.
const WHOLE_BYTES: usize = 16 << 20;

/// What was found, in a mapping of its own.
pub struct Found {
    at: *mut u8,
    count: usize,
    /// Whether no code of the program has run.
    fresh: bool,
    /// Whether the kernel uses the program's memory beside the program (io_submit). Then nothing can be taken over.
    is_used_by_kernel: bool,
    /// Whether the program has a ring for io_uring.
    pub has_ring: bool,
}

/// A mapping under construction.
#[derive(Clone, Copy, Default)]
struct Entry {
    mapping: Mapping,
    is_candidate: bool,
    /// What is taken over of it if it is a file's.
    file: OfFile,
    lock: Lock,
}

/// What is taken over of a mapping of a file.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum OfFile {
    #[default]
    No,
    /// What the loader has relocated, with the number of bytes that are the process's own. Only those are taken over.
    Relocated(usize),
    /// All variables of a program that has not begun.
    Variables,
}

/// How a mapping is locked.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Lock {
    #[default]
    None,
    All,
    /// Pages are locked only when they come in.
    OnFault,
}

impl Found {
    /// Reads which memory there is. `fresh`: no code of the program has run. None where /proc does not tell.
    pub fn read(fresh: bool) -> Option<Self> {
        let fd = uapi::open_read(c"/proc/self/smaps").ok()?;
        let found = uapi::map_for_now(BYTES).ok().map(|at| {
            let mut this = Self { at, count: 0, fresh, is_used_by_kernel: false, has_ring: false };
            if !this.read_from(fd) {
                this.count = 0;
            }
            this
        });
        uapi::close(fd);
        found
    }

    /// Reads the text at `fd`. False when it cannot be had.
    fn read_from(&mut self, fd: i32) -> bool {
        // SAFETY: the mapping begins with this much room for text, which nobody else uses.
        let text = unsafe { core::slice::from_raw_parts_mut(self.at, TEXT_BYTES) };
        let (mut used, mut entry, mut before) = (0, Entry::default(), Before::default());
        loop {
            let Ok(n) = uapi::read(fd, &mut text[used..]) else { return false };
            used += n;
            let mut rest = &text[..used];
            while let Some(end) = rest.iter().position(|&c| c == b'\n') {
                let line = &rest[..end];
                rest = &rest[end + 1..];
                match head(line) {
                    Some((start, end, flags, name)) => {
                        self.add(&entry);
                        entry = self.candidate(start, end, flags, name, before);
                        before = Before::of(start, end, flags, name);
                    }
                    None => detail(&mut entry, line),
                }
            }
            let left = rest.len();
            if n == 0 {
                self.add(&entry);
                return true;
            }
            if left == TEXT_BYTES {
                return false;
            }
            text.copy_within(used - left..used, 0);
            used = left;
        }
    }

    fn candidate(&mut self, start: usize, end: usize, flags: &[u8], name: &[u8], before: Before) -> Entry {
        self.is_used_by_kernel |= name.starts_with(b"/[aio]");
        self.has_ring |= name.starts_with(b"anon_inode:[io_uring]");
        let is_heap = name == b"[heap]";
        let is_anonymous = name.is_empty() || name.starts_with(b"[anon:");
        // A file's zeroed memory lies right behind its data.
        let is_zeroed = is_anonymous && start == before.end;
        let is_worth_it = !is_zeroed || (!before.is_libc && end - start >= ZEROED_BYTES_MIN);
        let file = self.of_file(start, end, flags, name, before);
        let is_candidate = file != OfFile::No || ((is_heap || is_anonymous) && is_worth_it);
        let is_private = flags.get(3) == Some(&b'p');
        let bit = |i: usize, letter, value| if flags.get(i) == Some(&letter) { value } else { 0 };
        let prot = bit(0, b'r', g::PROT_READ) | bit(1, b'w', g::PROT_WRITE) | bit(2, b'x', g::PROT_EXEC);
        let start = if is_heap { start.max((state::heap_start() as usize).next_multiple_of(PAGE)) } else { start };
        let mapping = Mapping { start, end, prot, ..Mapping::default() };
        Entry { mapping, is_candidate: is_candidate && is_private, file, lock: Lock::None }
    }

    /// What is taken over of a mapping if it is a file's.
    fn of_file(&self, start: usize, end: usize, flags: &[u8], name: &[u8], before: Before) -> OfFile {
        if !is_file(name) || is_libc(name) {
            return OfFile::No;
        }
        match flags {
            // The part with the dynamic section in it: once it is relocated, the loader protects it.
            b"r--p"
                if end - start >= RELOCATED_BYTES_MIN && is_image(start, end, flags, name) && is_nobody_elses(name) =>
            {
                OfFile::Relocated(0)
            }
            // The variables lie behind that part.
            b"rw-p"
                if self.fresh
                    && before.is_image
                    && before.sum == sum(name)
                    && (VARIABLES_BYTES_MIN..=VARIABLES_BYTES_MAX).contains(&(end - start))
                    && is_nobody_elses(name) =>
            {
                OfFile::Variables
            }
            _ => OfFile::No,
        }
    }

    fn add(&mut self, entry: &Entry) {
        let Mapping { keyed, dontfork, wipeonfork, dontdump, .. } = entry.mapping;
        let is_usual = !(keyed || dontfork || wipeonfork || dontdump);
        let is_worth_it = match entry.file {
            OfFile::No => true,
            OfFile::Relocated(bytes) => is_usual && bytes >= RELOCATED_BYTES_MIN,
            OfFile::Variables => is_usual,
        };
        let is_wanted = (entry.is_candidate && is_worth_it) || entry.lock != Lock::None;
        if is_wanted && entry.mapping.start < entry.mapping.end && self.count < MAPPINGS_MAX {
            // SAFETY: room for so many behind the text; page aligned, so aligned enough.
            unsafe { self.entries().add(self.count).write(*entry) };
            self.count += 1;
        }
    }

    fn entries(&self) -> *mut Entry {
        // SAFETY: the text is a part of the mapping.
        unsafe { self.at.add(TEXT_BYTES).cast() }
    }

    /// Locks again what was locked.
    fn lock_again(&self) {
        for i in 0..self.count {
            // SAFETY: written by `add`.
            let Entry { mapping, lock, .. } = unsafe { self.entries().add(i).read() };
            let flags = match lock {
                Lock::None => continue,
                Lock::All => 0,
                Lock::OnFault => g::MLOCK_ONFAULT,
            };
            let args = [mapping.start as u64, (mapping.end - mapping.start) as u64, flags as u64, 0, 0, 0];
            // SAFETY: locking changes no content.
            unsafe { calls::raw_syscall(g::__NR_mlock2 as u64, &args) };
        }
    }

    /// Makes `space` take over what was found. The caller must be on the agent's stack, in the only thread.
    pub fn take_over(self, space: &Space) {
        let own = here::own_range();
        let thread = thread_pointer() as usize;
        let robust = robust_list() as usize;
        let word = tid_address() as usize;
        let kept = [
            (self.at as usize, self.at as usize + BYTES),
            (own.0 as usize, own.1 as usize),
            (thread.saturating_sub(BELOW_BYTES), thread + ABOVE_BYTES),
            (robust, robust + size_of::<[u64; 3]>()),
            (word, word + size_of::<i32>()),
        ];
        // What a guest uses must stay in memory. So must what a driver has pinned, unless the kernel can be asked what
        // is pinned.
        let open = device::open_ones();
        let stays = open.guest || open.driver && !space.can_ask_for_pins();
        let mut room = space.limit_pages() * PAGE / VARIABLES_PART;
        if let Some(map) = PageMap::open().filter(|_| !self.is_used_by_kernel) {
            for i in 0..self.count {
                // SAFETY: written by `add`.
                let Entry { mapping, is_candidate, file, .. } = unsafe { self.entries().add(i).read() };
                let mapping = Mapping { kept: stays, fresh: self.fresh, ..mapping };
                if !is_candidate {
                    continue;
                }
                if file != OfFile::No {
                    let bytes = mapping.end - mapping.start;
                    let which = if file == OfFile::Variables { Which::All } else { Which::Own };
                    // Taking over variables brings in pages that nobody has written, too.
                    let fits = which == Which::Own || bytes <= room;
                    if which == Which::All && fits {
                        room -= bytes;
                    }
                    if fits && !stays && !kept.iter().any(|&(start, end)| start < mapping.end && end > mapping.start) {
                        space.take_over_file(&map, &mapping, which);
                    }
                    continue;
                }
                // The kernel may have joined the program's first mappings with the one of the thread's descriptor. To
                // the program they are one mapping, which mremap moves as a whole.
                let has_thread = (mapping.start..mapping.end).contains(&thread);
                if has_thread && mapping.end - mapping.start <= WHOLE_BYTES {
                    continue;
                }
                take_but(space, &map, mapping, &kept);
            }
        }
        // SAFETY: nobody refers to it any more.
        let _ = unsafe { uapi::munmap(self.at as usize, BYTES) };
    }
}

/// Undoes the program's wish that all future memory be locked. `found`: what memory there is, as far as that can be told.
pub fn unlock_future(found: Option<&Found>) {
    if ebb::is_future_locked() {
        // SAFETY: unlocking changes no content.
        unsafe { calls::raw_syscall(g::__NR_munlockall as u64, &[0; 6]) };
        if let Some(found) = found {
            found.lock_again();
        }
    }
}

/// Takes over the parts of a mapping that are outside the ranges in `kept`.
fn take_but(space: &Space, map: &PageMap, mapping: Mapping, kept: &[(usize, usize)]) {
    let (mut at, end) = (mapping.start, mapping.end);
    while at < end {
        // The kept range that comes first. Each kept range costs at most one more step.
        let pages = |&(start, end): &(usize, usize)| (start & !(PAGE - 1), end.next_multiple_of(PAGE));
        let meets = |range: &(usize, usize)| range.0 < end && range.1 > at;
        let next = kept.iter().map(pages).filter(meets).min();
        let stop = next.map_or(end, |(start, _)| start.max(at));
        space.take_over(map, &Mapping { start: at, end: stop, ..mapping });
        at = next.map_or(end, |(_, kept_end)| kept_end);
    }
}

/// The mapping before, if that was a file's.
#[derive(Clone, Copy, Default)]
struct Before {
    end: usize,
    is_libc: bool,
    is_image: bool,
    sum: u64,
}

impl Before {
    fn of(start: usize, end: usize, flags: &[u8], name: &[u8]) -> Self {
        let end_of_file = if is_file(name) { end } else { 0 };
        Self { end: end_of_file, is_libc: is_libc(name), is_image: is_image(start, end, flags, name), sum: sum(name) }
    }
}

/// Whether a mapping is the part of an image that the loader has protected, with the dynamic section in it.
fn is_image(start: usize, end: usize, flags: &[u8], name: &[u8]) -> bool {
    flags == b"r--p" && is_file(name) && sites::is_dynamic_within(start, end)
}

/// A sum that tells names apart.
fn sum(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &c| (sum ^ u64::from(c)).wrapping_mul(0x100_0000_01b3))
}

/// Whether the kernel certainly does not access the data of the file with this name on its own.
fn is_nobody_elses(name: &[u8]) -> bool {
    let mut path = [0u8; 512];
    let Some(room) = path.get_mut(..name.len()) else { return false };
    room.copy_from_slice(name);
    CStr::from_bytes_until_nul(&path).is_ok_and(|path| !sequences::may_have(path))
}

/// Whether a file is libc, the loader, or the agent, whose data is in use while Ebb works.
fn is_libc(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 4] = [b"libc.so", b"libc-", b"ld-", b"libebb_agent"];
    let file = name.rsplit(|&c| c == b'/').next().unwrap_or(name);
    NAMES.iter().any(|start| file.starts_with(start))
}

/// Whether a mapping's name is a file's.
fn is_file(name: &[u8]) -> bool {
    name.first() == Some(&b'/')
}

/// Parses the first line of a mapping: start, end, flags such as `rw-p`, and name.
fn head(line: &[u8]) -> Option<(usize, usize, &[u8], &[u8])> {
    let mut fields = line.splitn(6, |&c| c == b' ');
    let range = fields.next()?;
    let dash = range.iter().position(|&c| c == b'-')?;
    let number = |text: &[u8]| usize::from_str_radix(core::str::from_utf8(text).ok()?, 16).ok();
    let (start, end) = (number(&range[..dash])?, number(&range[dash + 1..])?);
    let flags = fields.next()?;
    let name = fields.nth(3).unwrap_or_default();
    let name = name.iter().position(|&c| c != b' ').map_or(&[][..], |first| &name[first..]);
    Some((start, end, flags, name))
}

/// Takes a further line of a mapping into account.
fn detail(entry: &mut Entry, line: &[u8]) {
    let mapping = &mut entry.mapping;
    let is_more_than_zero = |text: &[u8]| text.iter().any(|c| (b'1'..=b'9').contains(c));
    if line.strip_prefix(b"LazyFree:").is_some_and(is_more_than_zero) {
        // The program gave this memory up by MADV_FREE: the kernel may drop it at any time, and would not say so.
        entry.is_candidate = false;
    } else if let Some(huge) = line.strip_prefix(b"AnonHugePages:") {
        mapping.has_huge = is_more_than_zero(huge);
    } else if let Some(key) = line.strip_prefix(b"ProtectionKey:") {
        mapping.keyed = is_more_than_zero(key);
    } else if let (OfFile::Relocated(bytes), Some(text)) = (&mut entry.file, line.strip_prefix(b"Anonymous:")) {
        *bytes = kibibytes(text).unwrap_or(0) << 10;
    } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
        for flag in flags.split(|&c| c == b' ') {
            match flag {
                // A mapping that is locked as its pages come in has both flags, in this order.
                b"lo" | b"lf" => {
                    entry.lock = if flag == b"lf" { Lock::OnFault } else { Lock::All };
                    entry.is_candidate = false;
                }
                b"dc" => mapping.dontfork = true,
                b"wf" => mapping.wipeonfork = true,
                b"dd" => mapping.dontdump = true,
                b"mg" => mapping.mergeable = true,
                // Growing down, huge, device memory, droppable, guarded, userfaultfd, shadow stack,
                // sealed.
                b"gd" | b"ht" | b"io" | b"pf" | b"mm" | b"dp" | b"gu" | b"um" | b"uw" | b"ui" | b"sh" | b"ss"
                | b"sl" => entry.is_candidate = false,
                _ => {}
            }
        }
    }
}

/// The number in a further line, as in ` 128 kB`.
fn kibibytes(text: &[u8]) -> Option<usize> {
    let number = text.split(|&c| c == b' ').find(|word| !word.is_empty())?;
    core::str::from_utf8(number).ok()?.parse().ok()
}

/// The FS base, where libc's descriptor of the thread is.
fn thread_pointer() -> u64 {
    let at: u64;
    // SAFETY: reads a register; the kernel lets user space do so, or the process would not have been dormant.
    unsafe { core::arch::asm!("rdfsbase {}", out(reg) at, options(nomem, nostack, preserves_flags)) };
    at
}

/// Head of the list of robust locks, or 0.
fn robust_list() -> u64 {
    let (mut head, mut bytes) = (0u64, 0u64);
    let args = [0, &raw mut head as u64, &raw mut bytes as u64, 0, 0, 0];
    // SAFETY: the kernel writes the two words.
    let ret = unsafe { calls::raw_syscall(g::__NR_get_robust_list as u64, &args) };
    if ret == 0 { head } else { 0 }
}

/// The word that the kernel clears when the thread ends. 0 when the kernel does not tell: then the word is where libc has it.
fn tid_address() -> u64 {
    const PR_GET_TID_ADDRESS: u64 = 40;
    let mut at = 0u64;
    // SAFETY: the kernel writes one word.
    let ret =
        unsafe { calls::raw_syscall(g::__NR_prctl as u64, &[PR_GET_TID_ADDRESS, &raw mut at as u64, 0, 0, 0, 0]) };
    if ret == 0 { at } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_has_a_range_flags_and_perhaps_a_name() {
        let line = b"7f00-8000 rw-p 00000000 00:00 0 ";
        assert_eq!(head(line), Some((0x7f00, 0x8000, &b"rw-p"[..], &b""[..])));
        let line = b"5000-6000 r--p 00001000 fe:01 1234                       /usr/lib/a b.so";
        assert_eq!(head(line).map(|h| h.3), Some(&b"/usr/lib/a b.so"[..]));
    }

    #[test]
    fn what_libc_has_for_itself_is_known_by_its_file() {
        for name in [
            &b"/lib/x86_64-linux-gnu/libc.so.6"[..],
            b"/lib/ld-linux-x86-64.so.2",
            b"/lib/libc-2.31.so",
            b"/a/libebb_agent.so",
        ] {
            assert!(is_libc(name));
        }
        for name in [&b"/usr/lib/libcrypto.so.3"[..], b"/usr/bin/ld", b"", b"/lib/ld-x/a.so"] {
            assert!(!is_libc(name));
        }
    }

    #[test]
    fn what_is_the_process_s_own_is_counted_in_bytes() {
        let mut entry = Entry { file: OfFile::Relocated(0), ..Entry::default() };
        detail(&mut entry, b"Anonymous:         11576 kB");
        assert_eq!(entry.file, OfFile::Relocated(11576 << 10));
        let mut entry = Entry::default();
        detail(&mut entry, b"Anonymous:         11576 kB");
        assert_eq!(entry.file, OfFile::No);
    }

    #[test]
    fn a_detail_is_no_head() {
        for line in
            [&b"Size:                  4 kB"[..], b"VmFlags: rd wr mr mw me ac ", b"AnonHugePages:         0 kB"]
        {
            assert_eq!(head(line), None);
        }
    }

    #[test]
    fn flags_that_forbid_it_take_a_mapping_out() {
        let mut entry = Entry { is_candidate: true, ..Entry::default() };
        detail(&mut entry, b"VmFlags: rd wr mr mw me dc wf dd ac ");
        assert!(entry.is_candidate && entry.mapping.dontfork && entry.mapping.wipeonfork && entry.mapping.dontdump);
        detail(&mut entry, b"VmFlags: rd wr mr mw me lo ac ");
        assert!(!entry.is_candidate && entry.lock == Lock::All);
        detail(&mut entry, b"VmFlags: rd wr mr mw me lo ac lf ");
        assert!(entry.lock == Lock::OnFault);
    }

    #[test]
    fn huge_pages_and_keys_are_seen() {
        let mut entry = Entry::default();
        detail(&mut entry, b"AnonHugePages:      2048 kB");
        detail(&mut entry, b"ProtectionKey:         0");
        assert!(entry.mapping.has_huge && !entry.mapping.keyed);
    }
}
