//! Scans structures of unknown form: what looks like an address of managed memory in them is taken for one.
//!
//! A driver may have had an effect by the time it meets a page that is out, so a call cannot simply be repeated. What
//! the call may touch must be resident before the first try. Only the structure says where that is, in words that look
//! like any others. If a number is taken for an address, some pages come in for nothing. If an address is overlooked,
//! the program gets an error that it did not cause.

use super::Dir::InOut;
use super::visit::{Buffer, Kind, PAGE_BYTES, ReadMemory, Visit};

/// Bytes behind an address that are brought in if nothing says how many there are.
pub(super) const WINDOW_BYTES: u64 = 64 << 10;
/// Larger numbers are not lengths.
const LENGTH_MAX: u32 = 16 << 20;
/// In a pair, words from here on are addresses, not lengths.
const LENGTH_END: u64 = 1 << 40;
/// Bytes of a structure that are read at a time, and the most bytes of a structure that another points to.
const CHUNK_BYTES: usize = 512;
/// Addresses that are followed from one structure, and addresses in one call.
const FOLLOWED_MAX: usize = 32;
const ADDRESSES_MAX: usize = 512;
/// How many levels are followed: a structure, a list of messages, and a buffer for each.
const DEPTH_MAX: u32 = 3;
/// Lower words are numbers: no program has memory there.
const ADDRESS_MIN: u64 = 0x1_0000;

/// Emits what the structure of `len` bytes at `addr` leads to, as `kind`.
pub(super) fn structure<M, F>(v: &mut Visit<'_, M, F>, addr: u64, len: u64, kind: Kind)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    from_depth(v, addr, len, kind, 1);
}

/// Like [`structure`], but looks only at the structure itself, which leads no further.
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
    let mut found = Found { all: [Address::default(); ADDRESSES_MAX], n: 0 };
    collect(v, &mut found, depth, addr, len);
    // The most likely needs come first, because one call can pin only a part of the budget.
    for reach in [Reach::Page, Reach::Window, Reach::Beside, Reach::Longest] {
        for address in &found.all[..found.n] {
            let bytes = address.bytes(reach);
            if bytes > 0 {
                v.emit(address.at, bytes, InOut, kind);
            }
        }
    }
}

/// Like [`structure`], for a command that may register memory with a driver that pins it.
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

/// Emits two words of such a command for registration if they may be the address and length of a range: at least a page
/// long, and managed at both ends.
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

/// How much memory is brought in behind an address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Its page.
    Page,
    /// [`WINDOW_BYTES`], as much as most buffers have.
    Window,
    /// As many bytes as the number right behind the address, or right before it.
    Beside,
    /// As many bytes as the largest number in the structure that has the address.
    Longest,
}

/// An address in a structure, and numbers that may be its length.
#[derive(Clone, Copy, Default)]
struct Address {
    at: u64,
    beside: u32,
    longest: u32,
}

impl Address {
    /// Bytes to bring in; 0 if an earlier reach has brought them in.
    fn bytes(&self, reach: Reach) -> u64 {
        let above = |bytes: u32, before: u64| if u64::from(bytes) > before { bytes.into() } else { 0 };
        match reach {
            Reach::Page => 1,
            Reach::Window => WINDOW_BYTES,
            Reach::Beside => above(self.beside, WINDOW_BYTES),
            Reach::Longest => above(self.longest, WINDOW_BYTES.max(self.beside.into())),
        }
    }
}

/// The addresses that a call's structure leads to, those of each structure together.
struct Found {
    all: [Address; ADDRESSES_MAX],
    n: usize,
}

/// Collects the addresses in the structure of `len` bytes at `addr`, then those in what it leads to.
fn collect<M, F>(v: &mut Visit<'_, M, F>, found: &mut Found, depth: u32, addr: u64, len: u64)
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    let first = found.n;
    // The last two words, and where the address is whose length may be next.
    let (mut second, mut before) = (None, None);
    let mut number = 0;
    let mut longest = 0;
    for_each_word(v, addr, len, |v, word| {
        let length = if word as u32 <= LENGTH_MAX { word as u32 } else { 0 };
        // A length is right behind its address, even if it looks like the lower half of an address with what follows it.
        if let Some(i) = second {
            let address: &mut Address = &mut found.all[i];
            address.beside = address.beside.max(length);
        }
        let is_address = is_address(v, word);
        let mut this = None;
        if is_address && found.n < ADDRESSES_MAX {
            // Or right before it.
            found.all[found.n] = Address { at: word, beside: number, longest: 0 };
            this = Some(found.n);
            found.n += 1;
        }
        if !is_address {
            longest = longest.max(length);
        }
        (second, before) = (before, this);
        number = length;
    });
    let last = found.n;
    let (mut followed, mut nr_followed) = ([0u64; FOLLOWED_MAX], 0);
    for i in first..last {
        let address = &mut found.all[i];
        address.longest = longest;
        let at = address.at;
        let may_be_followed = v.mem.may_be_looked_at(at) || v.mem.is_on_stack(at);
        if may_be_followed && depth < DEPTH_MAX && nr_followed < FOLLOWED_MAX && !followed[..nr_followed].contains(&at)
        {
            followed[nr_followed] = at;
            nr_followed += 1;
        }
    }
    for &at in &followed[..nr_followed] {
        // Stop at the end of the page: what follows may belong to something else.
        let len = (PAGE_BYTES - at % PAGE_BYTES).min(CHUNK_BYTES as u64);
        collect(v, found, depth + 1, at, len);
    }
}

/// True if the program may have memory at `word` that can be brought in.
fn is_address<M, F>(v: &Visit<'_, M, F>, word: u64) -> bool
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    (ADDRESS_MIN..1 << 47).contains(&word) && (v.mem.may_be_managed(word, 1) || v.mem.is_on_stack(word))
}

/// Calls `f` with the eight bytes at each multiple of four, as far as they can be read. Fills bytes past the end with
/// zeros.
fn for_each_word<M, F>(v: &mut Visit<'_, M, F>, addr: u64, len: u64, mut f: impl FnMut(&mut Visit<'_, M, F>, u64))
where
    M: ReadMemory + ?Sized,
    F: FnMut(Buffer),
{
    let mut at = 0;
    while at < len {
        let mut bytes = [0u8; CHUNK_BYTES + 4];
        // Read only up to the end of the page: the next page may not exist.
        let in_page = PAGE_BYTES - addr.wrapping_add(at) % PAGE_BYTES;
        let n = (len - at).min(CHUNK_BYTES as u64).min(in_page) as usize;
        if !v.bytes(addr.wrapping_add(at), &mut bytes[..n]) {
            return;
        }
        // An address may extend past the end of what was read.
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
