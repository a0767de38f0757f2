//! Structures of unknown form: what in them looks like an address of managed memory is taken for one.
//!
//! A driver that meets a page that is out may have had an effect by then, so a call cannot simply be made again: what it may touch
//! must be there before the first try. Where that is, its structure says, in words that look like any others. To take a
//! number for an address costs that some pages come in; to overlook one costs an error that the program has not made.

use super::Dir::InOut;
use super::visit::{Buffer, Kind, PAGE_BYTES, ReadMemory, Visit};

/// Bytes behind an address that are brought in where nothing says how many there are.
pub(super) const WINDOW_BYTES: u64 = 64 << 10;
/// Numbers above this are no lengths.
const LENGTH_MAX: u32 = 16 << 20;
/// Words above this are addresses.
const LENGTH_END: u64 = 1 << 40;
/// Bytes of a structure that are looked at at a time, and of one that another points to.
const CHUNK_BYTES: usize = 512;
/// Addresses of one structure that are followed, and of one call.
const FOLLOWED_MAX: usize = 32;
const ADDRESSES_MAX: u32 = 512;
/// The part of the addresses that are left which one address may lead to, so that something is left for those behind it.
const FOLLOWED_PART: u32 = 4;
/// How far they lead: a list of messages with a buffer each, in a structure.
const DEPTH_MAX: u32 = 3;
/// Lower addresses are numbers: no program has memory there.
const ADDRESS_MIN: u64 = 0x1_0000;

/// Emits what the structure of `len` bytes at `addr` leads to, as `kind`.
pub(super) fn structure<M, F>(v: &mut Visit<'_, M, F>, addr: u64, len: u64, kind: Kind)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    from_depth(v, addr, len, kind, 1);
}

/// The same of a structure that leads no further: nothing but itself is looked at.
pub(super) fn flat<M, F>(v: &mut Visit<'_, M, F>, addr: u64, len: u64, kind: Kind)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    from_depth(v, addr, len, kind, DEPTH_MAX);
}

fn from_depth<M, F>(v: &mut Visit<'_, M, F>, addr: u64, len: u64, kind: Kind, depth: u32)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    // What is most likely needed first: one call pins no more than a part of the budget.
    for reach in [Reach::Page, Reach::Window, Reach::Longest] {
        level(v, Look { kind, reach, depth }, addr, len, &mut { ADDRESSES_MAX });
    }
}

/// The same for a command that may register memory, with a driver that pins it.
pub(super) fn command<M, F>(v: &mut Visit<'_, M, F>, addr: u64, len: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    for at in (0..len.saturating_sub(8)).step_by(8) {
        let Some([word, next]) = v.words(addr.wrapping_add(at)) else { break };
        pair(v, word, next);
    }
    structure(v, addr, len, Kind::Driver);
}

/// Two words of such a command, which may be the address and the length of what is to be registered: of a page and more, and
/// managed at both ends.
pub(super) fn pair<M, F>(v: &mut Visit<'_, M, F>, addr: u64, len: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    let is_range = |end| v.mem.may_be_managed(addr, 1) && v.mem.may_be_managed(end, 1);
    let last = addr.saturating_add(len).wrapping_sub(1);
    if addr >= ADDRESS_MIN && (PAGE_BYTES..LENGTH_END).contains(&len) && is_range(last) {
        v.emit(addr, len, InOut, Kind::Register);
    }
}

/// How much behind an address is brought in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Its page.
    Page,
    /// As much as most buffers have.
    Window,
    /// As much as the largest number of the structure says.
    Longest,
}

/// How a structure is looked at.
#[derive(Clone, Copy)]
struct Look {
    kind: Kind,
    reach: Reach,
    depth: u32,
}

fn level<M, F>(v: &mut Visit<'_, M, F>, look: Look, addr: u64, len: u64, left: &mut u32)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    let (mut followed, mut nr_followed) = ([0u64; FOLLOWED_MAX], 0);
    let window = match look.reach {
        Reach::Page => 1,
        Reach::Window => WINDOW_BYTES,
        Reach::Longest => longest(v, addr, len),
    };
    let is_more = look.reach != Reach::Longest || window > WINDOW_BYTES;
    // The two words before: a length is behind its address, or before it.
    let (mut second, mut first) = (0, 0);
    for_each_word(v, addr, len, |v, word| {
        let beside = [(second, word), (word, first)];
        (second, first) = (first, word);
        if *left == 0 || !is_address(v, word) {
            return;
        }
        *left -= 1;
        if is_more {
            v.emit(word, window, InOut, look.kind);
        }
        for (address, number) in beside.into_iter().filter(|_| look.reach == Reach::Longest) {
            // What looks like an address may be a length and what follows it.
            let len = number as u32;
            if len <= LENGTH_MAX
                && u64::from(len) > window.max(WINDOW_BYTES)
                && is_address(v, address)
                && is_address(v, number)
            {
                v.emit(address, len.into(), InOut, look.kind);
            }
        }
        let may_be_followed = v.mem.may_be_looked_at(word) || v.mem.is_on_stack(word);
        if may_be_followed
            && look.depth < DEPTH_MAX
            && nr_followed < FOLLOWED_MAX
            && !followed[..nr_followed].contains(&word)
        {
            followed[nr_followed] = word;
            nr_followed += 1;
            // At once: what comes later may not belong to the structure, and one call pins no more than a part of the budget. No
            // further than the page: what follows may be somebody else's.
            let len = (PAGE_BYTES - word % PAGE_BYTES).min(CHUNK_BYTES as u64);
            let share = *left / FOLLOWED_PART;
            let mut rest = share;
            level(v, Look { depth: look.depth + 1, ..look }, word, len, &mut rest);
            *left -= share - rest;
        }
    });
}

/// What the program may have memory at, which may be brought in.
fn is_address<M, F>(v: &Visit<'_, M, F>, word: u64) -> bool
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    (ADDRESS_MIN..1 << 47).contains(&word) && (v.mem.may_be_managed(word, 1) || v.mem.is_on_stack(word))
}

/// The largest number of the structure that may be the length of something, but for those that look like the lower half of an
/// address: [`level`] takes these for lengths of what is beside them.
fn longest<M, F>(v: &mut Visit<'_, M, F>, addr: u64, len: u64) -> u64
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    let mut longest = 0;
    for_each_word(v, addr, len, |v, word| {
        let number = word as u32;
        if number <= LENGTH_MAX && !is_address(v, word) {
            longest = longest.max(number);
        }
    });
    longest as u64
}

/// Calls `f` with the eight bytes at each multiple of four, those at the end filled up with zeros, as far as they can be read.
fn for_each_word<M, F>(v: &mut Visit<'_, M, F>, addr: u64, len: u64, mut f: impl FnMut(&mut Visit<'_, M, F>, u64))
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    let mut at = 0;
    while at < len {
        let mut bytes = [0u8; CHUNK_BYTES + 4];
        // Whole pages only: what lies behind may not be there.
        let in_page = PAGE_BYTES - addr.wrapping_add(at) % PAGE_BYTES;
        let n = (len - at).min(CHUNK_BYTES as u64).min(in_page) as usize;
        if !v.bytes(addr.wrapping_add(at), &mut bytes[..n]) {
            return;
        }
        // An address may lie across the end of what is read.
        let more = (len - at - n as u64).min(4) as usize;
        if more > 0 && !v.bytes(addr.wrapping_add(at + n as u64), &mut bytes[n..n + more]) {
            bytes[n..n + more].fill(0);
        }
        for word in (0..n).step_by(4) {
            let mut eight = [0u8; 8];
            let whole = (n + 4 - word).min(8);
            eight[..whole].copy_from_slice(&bytes[word..word + whole]);
            f(v, u64::from_ne_bytes(eight));
        }
        at += n as u64;
    }
}
