//! Notes for each fault on a page that had left memory how large a resident set would have kept it.

use crate::space::Space;

/// Notes a fault on a page after whose eviction `distance` others left memory. As the tree would see it: if the process has
/// half of the tree's budget, the others hold as much again, and would have to grow likewise.
pub(crate) fn note(space: &Space, distance: usize) {
    let budget = &space.budget;
    let elsewhere = space.swap.pool_pages() + space.places.staging.staged();
    let needed = budget.charged().saturating_sub(elsewhere).saturating_add(distance);
    let (all, own) = (budget.limit() as u64, budget.expected().max(1) as u64);
    let of_tree = (needed as u64).saturating_mul(all.max(own)) / own;
    space.stats.reaches.note(of_tree as usize);
}

/// Likewise for a page that is still staged.
pub(crate) fn note_staged(space: &Space) {
    note(space, space.places.staging.staged());
}
