//! Finds the sites of this host's libc: the system calls by which a small process grows, starts threads, forks and
//! execs.
//!
//! A process under Ebb begins dormant (`ebb-agent`, `dormant`). A few `syscall` instructions of libc follow a
//! `mov eax, NUMBER`. The agent replaces these moves with jumps, and so notices that the process grows. Finding the
//! sites takes a decoder. So `ebb` finds them once, in the libc that it runs with itself, and hands every process the
//! table. A process uses the table if its libc has the same build ID. If anything is not as expected, there is no
//! table, and processes are managed from their start.
//!
//! Invariant: each site in the table is the first of two instructions, `mov eax, imm32` (5 bytes) and `syscall`. No
//! branch in their function leads into the middle of the first.

use std::ffi::CStr;
use std::fmt::Write;
use std::mem::size_of;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind};

/// Functions that must have a site, and its system call. They cover growth, threads, processes and programs. If a
/// function has no site, no table is made.
const REQUIRED: [(&CStr, i64); 6] = [
    (c"brk", libc::SYS_brk),
    (c"mmap", libc::SYS_mmap),
    (c"mremap", libc::SYS_mremap),
    (c"clone", libc::SYS_clone),
    (c"_Fork", libc::SYS_clone),
    (c"execve", libc::SYS_execve),
];
/// Another call that must have a site. The function that makes it has no public name, so only the call's number finds
/// it.
const HIDDEN: i64 = libc::SYS_clone3;
/// Bytes of `mov eax, imm32; syscall`.
const SITE_BYTES: usize = 7;
const PAGE_BYTES: u64 = 4096;
/// Most sites that an agent has room for.
const SITES_MAX: usize = 16;
/// Longest build ID.
const BUILD_ID_BYTES_MAX: usize = 32;

/// A library that is loaded in this process.
struct Library {
    base: u64,
    /// Start and end address of the executable segment.
    text: (u64, u64),
    unwind_header: u64,
    build_id: Vec<u8>,
}

impl Library {
    /// The bytes at an address of the library.
    ///
    /// # Safety
    /// The range lies in a part of the library that is mapped readable and never changes.
    unsafe fn bytes(&self, at: u64, len: usize) -> &'static [u8] {
        // SAFETY: the caller's contract; libc is never unloaded.
        unsafe { std::slice::from_raw_parts(at as *const u8, len) }
    }

    fn text(&self) -> &'static [u8] {
        // SAFETY: the executable segment is readable on x86-64, and nobody changes it now. If this process runs under
        // another `ebb`, the outer agent has patched it before this code runs.
        unsafe { self.bytes(self.text.0, (self.text.1 - self.text.0) as usize) }
    }

    /// Finds the function that holds `at` in the sorted table of `.eh_frame_hdr`. Returns its start, and the start of
    /// the next one.
    fn function(&self, at: u64) -> Option<(u64, u64)> {
        const VERSION: u8 = 1;
        /// Offsets relative to the header: four bytes, signed (`DW_EH_PE_datarel | DW_EH_PE_sdata4`). The count has
        /// four bytes, too.
        const TABLE_ENCODING: u8 = 0x3b;
        const COUNT_ENCODING: u8 = 0x03;
        const HEAD_BYTES: usize = 12;
        const ENTRY_BYTES: usize = 8;
        // SAFETY: the segment begins with this head.
        let head = unsafe { self.bytes(self.unwind_header, HEAD_BYTES) };
        if (head[0], head[2], head[3]) != (VERSION, COUNT_ENCODING, TABLE_ENCODING) {
            return None;
        }
        let count = u32::from_le_bytes(head[8..12].try_into().ok()?) as usize;
        // SAFETY: the table follows the head.
        let table = unsafe { self.bytes(self.unwind_header + HEAD_BYTES as u64, count * ENTRY_BYTES) };
        let start_of = |i: usize| {
            let offset = table[i * ENTRY_BYTES..][..4].try_into().map(i32::from_le_bytes).unwrap_or(0);
            self.unwind_header.wrapping_add_signed(offset as i64)
        };
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = (low + high) / 2;
            if start_of(middle) <= at { low = middle + 1 } else { high = middle }
        }
        let first = low.checked_sub(1)?;
        let end = if low < count { start_of(low) } else { self.text.1 };
        Some((start_of(first), end.min(self.text.1)))
    }
}

unsafe extern "C" fn on_library(info: *mut libc::dl_phdr_info, _: usize, out: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the loader passes a whole entry, and `out` is what `find_libc` passed.
    let (info, out) = unsafe { (&*info, &mut *out.cast::<Option<Library>>()) };
    // SAFETY: the loader's own string.
    let name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    if name.rsplit(|c| *c == b'/').next() != Some(b"libc.so.6") {
        return 0;
    }
    let mut this = Library { base: info.dlpi_addr, text: (0, 0), unwind_header: 0, build_id: Vec::new() };
    // SAFETY: the loader says how many headers there are.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers {
        let start = this.base + header.p_vaddr;
        match header.p_type {
            libc::PT_LOAD if header.p_flags & libc::PF_X != 0 => this.text = (start, start + header.p_filesz),
            libc::PT_GNU_EH_FRAME => this.unwind_header = start,
            libc::PT_NOTE => {
                // SAFETY: notes lie in the first segment, which is readable.
                let notes = unsafe { this.bytes(start, header.p_filesz as usize) };
                this.build_id.extend(build_id(notes).unwrap_or_default());
            }
            _ => {}
        }
    }
    *out = Some(this);
    1
}

/// Finds the build ID among the notes of a segment.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    let word = |bytes: &[u8], i: usize| bytes.get(i * 4..i * 4 + 4)?.try_into().ok().map(u32::from_le_bytes);
    loop {
        let (name, content, kind) = (word(notes, 0)? as usize, word(notes, 1)? as usize, word(notes, 2)?);
        let content_at = 12 + name.next_multiple_of(4);
        if kind == NT_GNU_BUILD_ID && notes.get(12..12 + name)? == b"GNU\0" {
            return notes.get(content_at..content_at + content);
        }
        notes = notes.get(content_at + content.next_multiple_of(4)..)?;
    }
}

fn find_libc() -> Option<Library> {
    let mut found: Option<Library> = None;
    // SAFETY: the callback runs for each loaded library during this call only, and `found` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(on_library), (&raw mut found).cast()) };
    found.filter(|l| l.text.0 != 0 && l.unwind_header != 0 && (1..=BUILD_ID_BYTES_MAX).contains(&l.build_id.len()))
}

fn symbol(name: &CStr) -> Option<u64> {
    // SAFETY: looks a name up.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as u64;
    (at != 0).then_some(at)
}

/// Finds the bytes of sites in `code`. Returns each site's system call and offset. The numbers of system calls fit in
/// two bytes.
fn candidates(code: &[u8]) -> impl Iterator<Item = (i64, usize)> {
    const MOV_EAX: u8 = 0xb8;
    /// The upper half of the number, and `syscall`. So one search finds all numbers.
    const COMMON: [u8; 4] = [0, 0, 0x0f, 0x05];
    memchr::memmem::find_iter(code, &COMMON).filter_map(|at| {
        let start = (at + COMMON.len()).checked_sub(SITE_BYTES)?;
        let number = u16::from_le_bytes([code[start + 1], code[start + 2]]);
        (code[start] == MOV_EAX).then_some((number.into(), start))
    })
}

/// Whether a jump may replace the first instruction at `site`. `code` is the whole function, which starts at address
/// `start`.
fn may_be_patched(code: &[u8], start: u64, site: u64, number: i64) -> bool {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let (mut is_site, mut is_call) = (false, false);
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return false;
        }
        let at = instruction.ip();
        if at == site {
            is_site = instruction.code() == Code::Mov_r32_imm32
                && instruction.op0_register() == iced_x86::Register::EAX
                && i64::from(instruction.immediate32()) == number
                && instruction.len() == SITE_BYTES - 2;
        } else if at == site + SITE_BYTES as u64 - 2 {
            is_call = instruction.code() == Code::Syscall;
        }
        let leads_to = (instruction.op_count() == 1 && instruction.op0_kind() == OpKind::NearBranch64)
            .then(|| instruction.near_branch_target());
        if leads_to.is_some_and(|to| (site + 1..site + SITE_BYTES as u64 - 2).contains(&to)) {
            return false;
        }
    }
    is_site && is_call
}

/// The sites of system call `number` among the `candidates`. None if one of them cannot be patched.
fn sites_of(library: &Library, candidates: &[(i64, usize)], number: i64) -> Option<Vec<u64>> {
    let text = library.text();
    let mut found = Vec::new();
    for (_, at) in candidates.iter().filter(|(its, _)| *its == number) {
        let site = library.text.0 + *at as u64;
        let (start, end) = library.function(site)?;
        let code = text.get((start - library.text.0) as usize..(end - library.text.0) as usize)?;
        if !may_be_patched(code, start, site, number) {
            return None;
        }
        found.push(site);
    }
    Some(found)
}

/// The table in the format of `EBB_SITES`: build ID, offset of `__errno_location`, and `NUMBER@OFFSET` of each site,
/// all in hexadecimal digits. None if this libc does not have the expected form.
pub fn table() -> Option<String> {
    let library = find_libc()?;
    let candidates: Vec<(i64, usize)> = candidates(library.text()).collect();
    let mut sites: Vec<(i64, u64)> = Vec::new();
    let mut numbers: Vec<i64> = REQUIRED.iter().map(|(_, number)| *number).chain([HIDDEN]).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        sites.extend(sites_of(&library, &candidates, number)?.into_iter().map(|site| (number, site)));
    }
    for (name, number) in REQUIRED {
        let (start, end) = library.function(symbol(name)?)?;
        if !sites.iter().any(|(n, site)| *n == number && (start..end).contains(site)) {
            return None;
        }
    }
    if !sites.iter().any(|(number, _)| *number == HIDDEN) {
        return None;
    }
    // fexecve and its like are noticed only at sites on pages that are patched anyway. Elsewhere, a site would cost
    // each process another page of memory.
    let is_free = |site: &u64| sites.iter().any(|(_, other)| other / PAGE_BYTES == site / PAGE_BYTES);
    let free: Vec<u64> = sites_of(&library, &candidates, libc::SYS_execveat)?.into_iter().filter(is_free).collect();
    sites.extend(free.into_iter().map(|site| (libc::SYS_execveat, site)));
    if sites.len() > SITES_MAX {
        return None;
    }
    let anchor = symbol(c"__errno_location")?;
    if !(library.text.0..library.text.1).contains(&anchor) {
        return None;
    }
    let mut text = String::with_capacity(size_of::<[u64; 64]>());
    for byte in &library.build_id {
        write!(text, "{byte:02x}").ok()?;
    }
    write!(text, ",{:x}", anchor - library.base).ok()?;
    for (number, site) in sites {
        write!(text, ",{number:x}@{:x}", site - library.base).ok()?;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xor edi, edi; mov eax, 12; syscall; ret
    const BRK: [u8; 10] = [0x31, 0xff, 0xb8, 12, 0, 0, 0, 0x0f, 0x05, 0xc3];

    #[test]
    fn a_plain_call_may_be_patched() {
        assert!(may_be_patched(&BRK, 0x1000, 0x1002, 12));
    }

    #[test]
    fn the_number_must_be_the_one_looked_for() {
        assert!(!may_be_patched(&BRK, 0x1000, 0x1002, 9));
    }

    #[test]
    fn bytes_within_another_instruction_are_no_site() {
        // mov rax, imm64 holds the same bytes.
        let code = [0x48, 0xb8, 0xb8, 12, 0, 0, 0, 0x0f, 0x05, 0xc3, 0xc3];
        assert!(!may_be_patched(&code, 0x1000, 0x1002, 12));
    }

    #[test]
    fn a_branch_into_the_first_instruction_forbids_it() {
        // jmp to the second byte of the mov
        let code = [&BRK[..], &[0xeb, (3i8 - 12) as u8]].concat();
        assert!(!may_be_patched(&code, 0x1000, 0x1002, 12));
    }

    #[test]
    fn a_branch_to_the_call_itself_is_harmless() {
        let code = [&BRK[..], &[0xeb, (7i8 - 12) as u8]].concat();
        assert!(may_be_patched(&code, 0x1000, 0x1002, 12));
    }

    #[test]
    fn candidates_are_told_from_other_calls_by_the_bytes_before() {
        // mov eax, 435; syscall; mov ecx, 12; syscall
        let other = [0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05, 0xb9, 12, 0, 0, 0, 0x0f, 0x05];
        let code = [&[0, 0, 0x0f, 0x05][..], &BRK, &other].concat();
        assert_eq!(candidates(&code).collect::<Vec<_>>(), [(12, 6), (435, 14)]);
    }

    #[test]
    fn a_build_id_is_found_among_other_notes() {
        let mut notes = vec![4, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, b'G', b'N', b'U', 0, 9, 0, 0, 0];
        notes.extend([4, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0, 0xab, 0xcd, 0, 0]);
        assert_eq!(build_id(&notes), Some(&[0xab, 0xcd][..]));
        assert_eq!(build_id(&notes[..20]), None);
    }

    #[test]
    fn the_table_of_this_hosts_libc_names_growth_threads_forks_and_programs() {
        let table = table().expect("glibc of a kind that is known");
        for number in [libc::SYS_brk, libc::SYS_mmap, libc::SYS_mremap, libc::SYS_clone3, libc::SYS_execve] {
            assert!(table.contains(&format!(",{number:x}@")), "{table}");
        }
    }
}
