//! Bounds: an ordered row of addresses that part a space, looked up by many threads while one moves them.
//!
//! Part `i` goes from bound `i` to bound `i + 1`, the last part to the end of the space. Bound 0 is 0. One thread at a time moves
//! a bound, by a single store, to a place between its neighbours. So each address is in exactly one part at any moment, and the
//! parts stay in their order.
//!
//! A look-up is a binary search that keeps the two bounds that it has compared. It read the lower one when that was not above the
//! address, and the upper one when that was. Let the lower one be read first. If the address was below the upper bound by then, it
//! was in the part at that moment. Otherwise the upper bound has moved beyond the address since, and the lower one was not above
//! the address even then, because it was below the upper one's old place. The other order is its mirror image. So the answer is
//! right for some moment of the search.

/// A part of the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Its number.
    pub index: usize,
    /// The first address in it.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
}

/// The part that has `addr`. There are `n` bounds, at least one; `bound` reads one of them, with acquire ordering.
#[inline]
pub fn look(n: usize, bound: impl Fn(usize) -> u64, addr: u64) -> Part {
    let mut part = Part { index: 0, start: 0, end: u64::MAX };
    let mut above = n;
    while above - part.index > 1 {
        let middle = part.index.midpoint(above);
        let at = bound(middle);
        if at <= addr {
            (part.index, part.start) = (middle, at);
        } else {
            (above, part.end) = (middle, at);
        }
    }
    part
}
