//! Visits a call's arguments by its row.

use super::visit::{BUFFERS_MAX, Buffer, ReadMemory, Visit};
use super::{Row, special};

/// Like [`visit_row`], for a call whose row is not at hand.
#[cfg(test)]
pub fn for_each_buffer<M: ReadMemory + ?Sized>(nr: u64, args: &[u64; 6], mem: &M, f: &mut impl FnMut(Buffer)) {
    visit_row(super::row(nr), nr, args, mem, f);
}

/// Calls `f` with every range that system call `nr` with row `row` touches, given `args`.
pub fn visit_row<M: ReadMemory + ?Sized>(row: &Row, nr: u64, args: &[u64; 6], mem: &M, f: &mut impl FnMut(Buffer)) {
    let mut visit = Visit { mem, f, left: BUFFERS_MAX };
    for (arg, &value) in row.args().iter().zip(args) {
        visit.arg(*arg, value, args);
    }
    special::visit(&mut visit, row.special, nr, args);
}
