//! Arguments of execve: copies them to where no page is ever missing, with an environment in which Ebb goes on.
//!
//! The new program gets `LD_PRELOAD` with the agent and every `EBB_` variable of the contract, even if its parent
//! passes a cleaned environment. A variable that the parent set itself stays as it is, and so does a list that names
//! the agent.
//!
//! The agent comes last in the list. Other libraries in the list wrap functions of libc, and reach the next function of
//! that name from their own. So the program finds their functions, they find the agent's, and the agent makes the call.
//!
//! If the program's loader cannot load the agent ([`crate::kept::leaving`]), the program gets the list without it.

use crate::base::text::Line;
use crate::base::user;
use crate::kept::fds;
use core::cell::UnsafeCell;
use core::ops::Range;
use linux_raw_sys::errno as e;

/// Bytes for arguments and environment: more than twice what the kernel accepts. Little of it is ever touched.
pub const SCRATCH_BYTES: usize = 16 << 20;
/// Bytes for what is inherited.
const KEPT_BYTES: usize = 16 << 10;
const KEPT_MAX: usize = 32;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const PREFIX: &[u8] = b"EBB_";
const STATS_FD: &[u8] = b"EBB_STATS_FD=";
/// What the agent's file is called.
const AGENT_NAME: &[u8] = b"libebb_agent.so";

const E2BIG: i64 = -(e::E2BIG as i64);
const EFAULT: i64 = -(e::EFAULT as i64);

/// What every program in the tree inherits. The text comes last, so that a small process touches only as many pages as
/// it fills.
#[repr(C)]
pub struct Kept {
    used: usize,
    /// Where each variable begins and ends, without the NUL.
    vars: [(usize, usize); KEPT_MAX],
    count: usize,
    /// The agent's path.
    agent: (usize, usize),
    bytes: [u8; KEPT_BYTES],
}

/// There is more to keep than there is room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooMuch;

impl Kept {
    const fn new() -> Self {
        Self { bytes: [0; KEPT_BYTES], used: 0, vars: [(0, 0); KEPT_MAX], count: 0, agent: (0, 0) }
    }

    fn store(&mut self, text: &[u8]) -> Result<(usize, usize), TooMuch> {
        let (start, end) = (self.used, self.used + text.len());
        // A NUL follows: the bytes are zero already.
        if end >= self.bytes.len() {
            return Err(TooMuch);
        }
        self.bytes[start..end].copy_from_slice(text);
        self.used = end + 1;
        Ok((start, end))
    }

    /// Keeps a variable of the environment that the process came with, if it concerns Ebb.
    pub fn offer(&mut self, var: &[u8]) -> Result<(), TooMuch> {
        if let Some(list) = var.strip_prefix(PRELOAD) {
            // The program may have put other libraries before and after the agent.
            let is_agent = |path: &&[u8]| path.rsplit(|&c| c == b'/').next() == Some(AGENT_NAME);
            let last = entries(list).last().unwrap_or(list);
            self.agent = self.store(entries(list).find(is_agent).unwrap_or(last))?;
        } else if var.starts_with(PREFIX) && self.count < KEPT_MAX {
            self.vars[self.count] = self.store(var)?;
            self.count += 1;
        }
        Ok(())
    }

    fn agent(&self) -> &[u8] {
        &self.bytes[self.agent.0..self.agent.1]
    }

    /// The variables of the contract that are kept.
    pub fn vars(&self) -> impl Iterator<Item = &[u8]> {
        self.vars[..self.count].iter().map(|&(start, end)| &self.bytes[start..end])
    }
}

struct Global(UnsafeCell<Kept>);
// SAFETY: written before the process has a second thread, only read afterwards.
unsafe impl Sync for Global {}
static KEPT: Global = Global(UnsafeCell::new(Kept::new()));

/// The kept variables, for the constructor to fill in.
///
/// # Safety
/// Call only before a second thread exists.
pub unsafe fn kept_at_start() -> &'static mut Kept {
    // SAFETY: the caller's contract.
    unsafe { &mut *KEPT.0.get() }
}

/// The variables of the contract that are kept.
pub fn kept_vars() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: nobody writes to it any more.
    unsafe { &*KEPT.0.get() }.vars()
}

/// The counters' descriptor that this program inherited.
pub fn kept_stats_fd() -> Option<i32> {
    let number = kept_vars().find_map(|var| var.strip_prefix(STATS_FD))?;
    core::str::from_utf8(number).ok()?.parse().ok()
}

/// The agent's path, which a NUL follows.
pub fn kept_agent() -> &'static [u8] {
    // SAFETY: nobody writes to it any more.
    unsafe { &*KEPT.0.get() }.agent()
}

/// False if no variable that begins with this letter concerns Ebb.
pub fn concerns(first: u8) -> bool {
    first == PRELOAD[0] || first == PREFIX[0]
}

/// Bytes that an environment in which Ebb goes on takes in addition to the strings of `envp`. None if nothing is to be
/// changed. For a process whose memory the kernel can read by itself.
pub fn missing(envp: u64, takes_agent: bool) -> Result<Option<usize>, user::Fault> {
    // SAFETY: nobody writes to it any more.
    let kept = unsafe { &*KEPT.0.get() };
    let agent_bytes = PRELOAD.len() + kept.agent().len() + 2;
    let (mut n, mut seen, mut list_bytes, mut is_right) = (0, 0, 0, true);
    loop {
        let var = if envp == 0 { 0 } else { user::read::<u64>(envp + n as u64 * 8)? };
        if var == 0 {
            break;
        }
        n += 1;
        if !concerns(user::read::<u8>(var)?) {
            continue;
        }
        // Room for the longest name, and for the longest path that the agent can have.
        let mut text = [0u8; PATH_BYTES_MAX];
        let (text, is_whole) = match user::read_str(var, &mut text)? {
            Some(len) => (&text[..len], true),
            None => (&text[..], false),
        };
        if let Some(list) = text.strip_prefix(PRELOAD) {
            // The list is copied to be searched, and copied again if it changes.
            list_bytes += 2 * string_bytes(var)? + agent_bytes;
            is_right &= is_whole && lists(list, kept.agent()) == takes_agent;
        } else {
            seen += kept.vars().filter(|kept| same_name(kept, text)).count();
        }
    }
    if is_right && (list_bytes > 0 || !takes_agent) && seen >= kept.count {
        return Ok(None);
    }
    // The array begins at a multiple of 8 and ends with a null pointer.
    Ok(Some((n + KEPT_MAX + 3) * 8 + agent_bytes + list_bytes + 8))
}

/// Bytes of a variable that are looked at.
const PATH_BYTES_MAX: usize = 4096 + PRELOAD.len();

/// Bytes of a string, including its NUL.
fn string_bytes(at: u64) -> Result<usize, user::Fault> {
    let (mut bytes, mut piece) = (0, [0u8; 256]);
    loop {
        match user::read_str(at + bytes as u64, &mut piece)? {
            Some(len) => return Ok(bytes + len + 1),
            None => bytes += piece.len(),
        }
    }
}

/// Builds in `memory` the environment that [`missing`] measured: the program's own strings, where they are, and what
/// they lack. Returns the address of the new array, or an error of execve.
pub fn environment(memory: &mut [u8], envp: u64, takes_agent: bool) -> Result<u64, i64> {
    // SAFETY: nobody writes to it any more.
    let kept = unsafe { &*KEPT.0.get() };
    let n = count(envp)?;
    let mut s = Scratch { memory, used: 0 };
    let array = s.pointers(n + KEPT_MAX + 2)?;
    let mut filled = 0;
    let mut has_preload = false;
    let mut has = [false; KEPT_MAX];
    for i in 0..n {
        let mut value = user::read::<u64>(envp + i as u64 * 8).map_err(|_| EFAULT)?;
        let mut name = [0u8; NAME_BYTES_MAX];
        if concerns(user::read::<u8>(value).map_err(|_| EFAULT)?) {
            user::read_str(value, &mut name).map_err(|_| EFAULT)?;
        }
        if name.starts_with(PRELOAD) {
            has_preload = true;
            let (start, end) = s.string(value)?;
            let list = start + PRELOAD.len()..end;
            match preload(&mut s, list, kept.agent(), takes_agent)? {
                Preload::AsItIs => {}
                Preload::New(list) => value = list,
                Preload::Nothing => continue,
            }
        }
        for (seen, var) in has.iter_mut().zip(kept.vars()) {
            *seen |= same_name(var, &name);
        }
        s.set_pointer(array, filled, value);
        filled += 1;
    }
    if !has_preload && takes_agent {
        let value = s.add(&[PRELOAD, kept.agent()])?;
        s.set_pointer(array, filled, value);
        filled += 1;
    }
    for (seen, var) in has.iter().zip(kept.vars()) {
        if !seen {
            // In `Kept`, a NUL follows the variable.
            s.set_pointer(array, filled, var.as_ptr() as u64);
            filled += 1;
        }
    }
    Ok(s.address(array))
}

/// More bytes than any name of the contract has.
const NAME_BYTES_MAX: usize = 64;

/// Memory that is filled from the bottom up.
struct Scratch<'a> {
    memory: &'a mut [u8],
    used: usize,
}

impl Scratch<'_> {
    fn address(&self, at: usize) -> u64 {
        self.memory.as_ptr() as u64 + at as u64
    }

    /// Copies a string of the program's. Returns where it begins and ends, without its NUL.
    fn string(&mut self, from: u64) -> Result<(usize, usize), i64> {
        let at = self.used;
        match user::read_str(from, &mut self.memory[at..]) {
            Ok(Some(len)) => {
                self.used = at + len + 1;
                Ok((at, at + len))
            }
            Ok(None) => Err(E2BIG),
            Err(user::Fault) => Err(EFAULT),
        }
    }

    /// Adds a string made of `pieces`, and a NUL. Returns its address.
    fn add(&mut self, pieces: &[&[u8]]) -> Result<u64, i64> {
        let at = self.used;
        for piece in pieces.iter().copied().chain([&b"\0"[..]]) {
            self.put(piece)?;
        }
        Ok(self.address(at))
    }

    /// Adds bytes to a string that has no NUL yet.
    fn put(&mut self, piece: &[u8]) -> Result<(), i64> {
        let end = self.used + piece.len();
        self.memory.get_mut(self.used..end).ok_or(E2BIG)?.copy_from_slice(piece);
        self.used = end;
        Ok(())
    }

    /// Adds bytes that are already in this memory to a string that has no NUL yet.
    fn put_again(&mut self, bytes: Range<usize>) -> Result<(), i64> {
        let end = self.used + bytes.len();
        if end > self.memory.len() {
            return Err(E2BIG);
        }
        self.memory.copy_within(bytes, self.used);
        self.used = end;
        Ok(())
    }

    /// Makes room for `n` pointers, all null. The memory above `used` is not zero: strings are read in blocks.
    fn pointers(&mut self, n: usize) -> Result<usize, i64> {
        let at = self.used.next_multiple_of(8);
        let end = n.checked_mul(8).and_then(|bytes| at.checked_add(bytes)).ok_or(E2BIG)?;
        if end > self.memory.len() {
            return Err(E2BIG);
        }
        self.memory[at..end].fill(0);
        self.used = end;
        Ok(at)
    }

    fn set_pointer(&mut self, array: usize, i: usize, value: u64) {
        self.memory[array + i * 8..array + i * 8 + 8].copy_from_slice(&value.to_ne_bytes());
    }
}

/// Number of pointers before the null pointer that ends `array`. A null array has none, as in the kernel.
fn count(array: u64) -> Result<usize, i64> {
    let mut n = 0;
    while array != 0 && user::read::<u64>(array + n as u64 * 8).map_err(|_| EFAULT)? != 0 {
        n += 1;
        if n > SCRATCH_BYTES / 8 {
            return Err(E2BIG);
        }
    }
    Ok(n)
}

/// Copies path, arguments and environment into `memory`. Returns the three pointers for the kernel. `takes_agent` says
/// for the copied path whether that program gets the agent.
pub fn arguments(
    memory: &mut [u8],
    [path, argv, envp]: [u64; 3],
    takes_agent: impl FnOnce(u64) -> bool,
) -> Result<[u64; 3], i64> {
    // SAFETY: nobody writes to it any more.
    let kept = unsafe { &*KEPT.0.get() };
    let mut s = Scratch { memory, used: 0 };
    let (at, _) = s.string(path)?;
    let path = s.address(at);
    let takes_agent = takes_agent(path);
    let n = count(argv)?;
    let argv_at = s.pointers(n + 1)?;
    for i in 0..n {
        let from = user::read::<u64>(argv + i as u64 * 8).map_err(|_| EFAULT)?;
        let (at, _) = s.string(from)?;
        let value = s.address(at);
        s.set_pointer(argv_at, i, value);
    }
    let n = count(envp)?;
    let envp_at = s.pointers(n + KEPT_MAX + 2)?;
    let mut filled = 0;
    let mut has_preload = false;
    let mut has = [false; KEPT_MAX];
    for i in 0..n {
        let from = user::read::<u64>(envp + i as u64 * 8).map_err(|_| EFAULT)?;
        let (start, end) = s.string(from)?;
        let mut value = s.address(start);
        if s.memory[start..end].starts_with(PRELOAD) {
            has_preload = true;
            let list = start + PRELOAD.len()..end;
            match preload(&mut s, list, kept.agent(), takes_agent)? {
                Preload::AsItIs => {}
                Preload::New(list) => value = list,
                Preload::Nothing => continue,
            }
        }
        // The variable is as it was inherited. Another `ebb run` would name its own descriptor.
        let is_kept = kept.vars().any(|var| *var == s.memory[start..end]);
        if is_kept && s.memory[start..end].starts_with(STATS_FD) {
            value = stats_fd(&mut s)?;
        }
        for (seen, var) in has.iter_mut().zip(kept.vars()) {
            *seen |= same_name(var, &s.memory[start..end]);
        }
        s.set_pointer(envp_at, filled, value);
        filled += 1;
    }
    if !has_preload && takes_agent {
        let value = s.add(&[PRELOAD, kept.agent()])?;
        s.set_pointer(envp_at, filled, value);
        filled += 1;
    }
    for (seen, var) in has.iter().zip(kept.vars()) {
        if !seen {
            let value = if var.starts_with(STATS_FD) { stats_fd(&mut s)? } else { s.add(&[var])? };
            s.set_pointer(envp_at, filled, value);
            filled += 1;
        }
    }
    let (argv, envp) = (s.address(argv_at), s.address(envp_at));
    Ok([path, argv, envp])
}

/// Adds the variable that names the counters' descriptor, whose number may have changed since this program began.
fn stats_fd(s: &mut Scratch<'_>) -> Result<u64, i64> {
    let mut number = Line::new();
    number.num(fds::stats().max(0) as u64);
    s.add(&[STATS_FD, number.as_bytes()])
}

/// What becomes of an `LD_PRELOAD` variable.
#[derive(Debug, PartialEq, Eq)]
enum Preload {
    AsItIs,
    /// A new string, at this address in the scratch memory.
    New(u64),
    /// Nothing is left of the list.
    Nothing,
}

/// Makes `LD_PRELOAD` from the list at `list` of the scratch memory, with or without the agent as the program takes it.
fn preload(s: &mut Scratch<'_>, list: Range<usize>, agent: &[u8], takes_agent: bool) -> Result<Preload, i64> {
    if lists(&s.memory[list.clone()], agent) == takes_agent {
        return Ok(Preload::AsItIs);
    }
    let at = s.used;
    s.put(PRELOAD)?;
    let begin = s.used;
    let mut entry = list.start;
    while entry < list.end {
        let rest = &s.memory[entry..list.end];
        let bytes = rest.iter().position(is_between).unwrap_or(rest.len());
        if bytes > 0 && (takes_agent || rest[..bytes] != *agent) {
            if s.used > begin {
                s.put(b":")?;
            }
            s.put_again(entry..entry + bytes)?;
        }
        entry += bytes + 1;
    }
    if takes_agent {
        s.put(if s.used > begin { b":" } else { b"" })?;
        s.put(agent)?;
    }
    if s.used == begin {
        s.used = at;
        return Ok(Preload::Nothing);
    }
    s.put(b"\0")?;
    Ok(Preload::New(s.address(at)))
}

/// True for a byte that separates two paths for the loader.
fn is_between(byte: &u8) -> bool {
    *byte == b':' || *byte == b' '
}

/// The paths of a list.
fn entries(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(is_between).filter(|path| !path.is_empty())
}

/// True if `list` contains `path`.
fn lists(list: &[u8], path: &[u8]) -> bool {
    entries(list).any(|entry| entry == path)
}

/// True if two `NAME=value` have the same name.
fn same_name(a: &[u8], b: &[u8]) -> bool {
    let name = |var: &[u8]| var.iter().position(|&c| c == b'=').unwrap_or(var.len());
    let n = name(a);
    n == name(b) && a[..n] == b[..n]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_known_by_its_name_wherever_it_is_in_the_preload_list() {
        for list in [
            &b"LD_PRELOAD=/opt/libebb_agent.so:/lib/other.so"[..],
            b"LD_PRELOAD=/lib/other.so /opt/libebb_agent.so",
            b"LD_PRELOAD=/a.so:/opt/libebb_agent.so:/lib/notlibebb_agent.so",
        ] {
            let mut kept = Kept::new();
            assert_eq!(kept.offer(list), Ok(()));
            assert_eq!(kept.agent(), b"/opt/libebb_agent.so");
        }
    }

    #[test]
    fn only_variables_of_the_contract_are_kept() {
        let mut kept = Kept::new();
        for var in [&b"PATH=/bin"[..], b"EBB_RAM=1", b"HOME=/", b"EBB_SWAP=none"] {
            assert_eq!(kept.offer(var), Ok(()));
        }
        assert!(kept.vars().eq([&b"EBB_RAM=1"[..], b"EBB_SWAP=none"]));
    }

    #[test]
    fn a_variable_too_long_is_an_error() {
        let mut kept = Kept::new();
        let mut long = b"EBB_X=".to_vec();
        long.resize(KEPT_BYTES + 1, b'x');
        assert_eq!(kept.offer(&long), Err(TooMuch));
    }

    #[test]
    fn names_are_compared_whole() {
        assert!(same_name(b"EBB_RAM=1", b"EBB_RAM=2"));
        assert!(!same_name(b"EBB_RAM=1", b"EBB_RAMP=2"));
        assert!(!same_name(b"EBB_RAM=1", b"EBB_RA=2"));
    }

    #[test]
    fn a_preload_list_is_searched_by_entry() {
        assert!(lists(b"/a.so:/b.so", b"/b.so"));
        assert!(lists(b"/a.so /b.so", b"/b.so"));
        assert!(!lists(b"/a.so:/b.so.1", b"/b.so"));
    }

    /// What becomes of `list`; none if it stays as it is.
    fn preload_of(list: &[u8], takes_agent: bool) -> Option<Vec<u8>> {
        let mut memory = [0xffu8; 256];
        memory[..list.len()].copy_from_slice(list);
        let mut s = Scratch { memory: &mut memory, used: list.len() + 1 };
        let made = preload(&mut s, 0..list.len(), b"/agent.so", takes_agent).unwrap();
        match made {
            Preload::AsItIs => None,
            Preload::Nothing => Some(Vec::new()),
            Preload::New(_) => Some(s.memory[list.len() + 1..s.used].to_vec()),
        }
    }

    #[test]
    fn the_agent_is_put_after_a_programs_own_preload_list() {
        assert_eq!(preload_of(b"/x.so", true).unwrap(), b"LD_PRELOAD=/x.so:/agent.so\0");
        assert_eq!(preload_of(b"/x.so /y.so", true).unwrap(), b"LD_PRELOAD=/x.so:/y.so:/agent.so\0");
        assert_eq!(preload_of(b"", true).unwrap(), b"LD_PRELOAD=/agent.so\0");
        for list in [&b"/agent.so:/x.so"[..], b"/x.so /agent.so", b"/agent.so"] {
            assert_eq!(preload_of(list, true), None);
        }
    }

    #[test]
    fn the_agent_is_taken_out_and_nothing_else() {
        for list in
            [&b"/agent.so:/x.so:y.so"[..], b"/x.so:/agent.so y.so", b" /x.so:/agent.so::/agent.so:y.so:/agent.so"]
        {
            assert_eq!(preload_of(list, false).unwrap(), b"LD_PRELOAD=/x.so:y.so\0");
        }
        assert_eq!(preload_of(b"/agent.so", false).unwrap(), b"");
        assert_eq!(preload_of(b"/x.so", false), None);
    }

    #[test]
    fn an_array_of_pointers_begins_with_nothing_but_null() {
        let mut memory = [0xffu8; 64];
        let mut s = Scratch { memory: &mut memory, used: 3 };
        assert_eq!(s.pointers(2), Ok(8));
        assert_eq!(s.memory[8..24], [0; 16]);
    }

    #[test]
    fn a_full_scratch_is_an_error() {
        let mut memory = [0u8; 16];
        let mut s = Scratch { memory: &mut memory, used: 0 };
        assert_eq!(s.add(&[b"0123456789abcdef"]), Err(E2BIG));
        assert_eq!(s.pointers(usize::MAX / 8), Err(E2BIG));
    }
}
