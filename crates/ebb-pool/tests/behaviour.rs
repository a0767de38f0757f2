//! What the pool promises, one promise a test.
#![cfg(not(loom))]

mod support;

use ebb_pool::{BLOCK_BYTES, BLOCK_PAGES, Handle, OBJECT_MAX, PoolFull};
use support::Rig;

/// Objects of 2000 bytes in a block, header and rounding included.
const PER_BLOCK: u32 = 32;
const LEN: usize = 2000;

fn fill(rig: &Rig, owners: core::ops::Range<u32>) -> Vec<Handle> {
    owners.map(|owner| rig.put(owner, &[owner as u8; LEN]).unwrap()).collect()
}

fn free(rig: &Rig, owner: u32) {
    let handle = rig.table.claim(owner).unwrap().unwrap();
    rig.free(owner, handle);
}

#[test]
fn the_test_class_has_as_many_objects_as_the_tests_say() {
    let rig = Rig::new(4, 64);
    fill(&rig, 0..PER_BLOCK);
    assert_eq!(rig.pool.used_pages(), BLOCK_PAGES);
    fill(&rig, PER_BLOCK..PER_BLOCK + 1);
    assert_eq!(rig.pool.used_pages(), 2 * BLOCK_PAGES);
}

#[test]
fn the_longest_and_the_shortest_object_come_back() {
    let rig = Rig::new(4, 2);
    let long = rig.put(0, &[0xa5; OBJECT_MAX]).unwrap();
    let short = rig.put(1, &[0x5a]).unwrap();
    assert_eq!(rig.load(long), [0xa5; OBJECT_MAX]);
    assert_eq!(rig.load(short), [0x5a]);
}

#[test]
fn nothing_and_more_than_a_page_cannot_be_stored() {
    let rig = Rig::new(1, 1);
    assert_eq!(rig.pool.store(&rig.ledger, 0, &[]), Err(PoolFull::TooLarge));
    assert_eq!(rig.pool.store(&rig.ledger, 0, &[0; OBJECT_MAX + 1]), Err(PoolFull::TooLarge));
    assert_eq!(rig.pool.used_pages(), 0);
}

#[test]
fn a_store_without_budget_fails_and_leaves_no_trace() {
    let rig = Rig::new(2, 1);
    rig.ledger.set_left(0);
    assert_eq!(rig.put(0, &[1; LEN]), Err(PoolFull::Budget));
    assert_eq!(rig.pool.validate().unwrap().blocks, 0);
    rig.ledger.set_left(1);
    assert!(rig.put(0, &[1; LEN]).is_ok());
}

#[test]
fn without_budget_what_fits_into_blocks_in_use_is_still_stored() {
    let rig = Rig::new(2, 64);
    rig.ledger.set_left(1);
    fill(&rig, 0..PER_BLOCK);
    assert_eq!(rig.put(PER_BLOCK, &[1; LEN]), Err(PoolFull::Budget));
}

#[test]
fn a_full_arena_says_so() {
    let rig = Rig::new(2, 128);
    fill(&rig, 0..2 * PER_BLOCK);
    assert_eq!(rig.put(2 * PER_BLOCK, &[1; LEN]), Err(PoolFull::Arena));
}

#[test]
fn freeing_the_last_object_of_a_block_gives_the_block_back() {
    let rig = Rig::new(2, 2);
    fill(&rig, 0..2);
    free(&rig, 0);
    assert_eq!(rig.ledger.held_blocks(), 1);
    free(&rig, 1);
    assert_eq!(rig.ledger.held_blocks(), 0);
    assert_eq!(rig.pool.used_pages(), 0);
}

#[test]
fn a_block_can_change_its_class() {
    let rig = Rig::new(1, 2);
    fill(&rig, 0..1);
    free(&rig, 0);
    let handle = rig.put(1, &[7; 100]).unwrap();
    assert_eq!(rig.load(handle), [7; 100]);
}

#[cfg_attr(miri, ignore = "needs thousands of objects")]
#[test]
fn new_blocks_are_the_lowest_free_ones() {
    let rig = Rig::new(200, 8192);
    fill(&rig, 0..150 * PER_BLOCK);
    (64 * PER_BLOCK..65 * PER_BLOCK).for_each(|owner| free(&rig, owner));
    (3 * PER_BLOCK..4 * PER_BLOCK).for_each(|owner| free(&rig, owner));
    let handles = fill(&rig, 150 * PER_BLOCK..153 * PER_BLOCK);
    let first_of = |block: u64| Handle::from_bits(block * (BLOCK_BYTES as u64 / 8) + 1).unwrap();
    assert_eq!(handles[0], first_of(3));
    assert_eq!(handles[PER_BLOCK as usize], first_of(64));
    assert_eq!(handles[2 * PER_BLOCK as usize], first_of(150));
}

#[test]
fn stores_fill_the_fullest_block() {
    let rig = Rig::new(4, 256);
    fill(&rig, 0..3 * PER_BLOCK);
    (0..PER_BLOCK - 1).for_each(|owner| free(&rig, owner));
    free(&rig, PER_BLOCK);
    (2 * PER_BLOCK..2 * PER_BLOCK + 16).for_each(|owner| free(&rig, owner));
    let handle = fill(&rig, 200..201)[0];
    assert_eq!((handle.to_bits() - 1) * 8 / BLOCK_BYTES as u64, 1);
}

#[test]
fn compaction_empties_sparse_blocks_and_keeps_every_byte() {
    let rig = Rig::new(16, 1024);
    fill(&rig, 0..16 * PER_BLOCK);
    (0..16 * PER_BLOCK).filter(|owner| owner % 8 != 0).for_each(|owner| free(&rig, owner));
    assert_eq!(rig.pool.used_pages(), 16 * BLOCK_PAGES);
    assert_eq!(rig.pool.spare_pages(), 14 * BLOCK_PAGES);
    // Two blocks stay, and they need not be moved.
    let moved = rig.compact(usize::MAX);
    assert!((14 * PER_BLOCK as usize / 8..=16 * PER_BLOCK as usize / 8).contains(&moved), "{moved} moved");
    assert_eq!(rig.pool.used_pages(), 2 * BLOCK_PAGES);
    assert_eq!(rig.pool.spare_pages(), 0);
    rig.pool.validate().unwrap();
    for owner in (0..16 * PER_BLOCK).step_by(8) {
        assert_eq!(rig.load(rig.table.handle(owner).unwrap()), [owner as u8; LEN]);
    }
}

#[test]
fn compaction_moves_nothing_that_would_free_no_block() {
    let rig = Rig::new(4, 256);
    fill(&rig, 0..2 * PER_BLOCK);
    free(&rig, 0);
    free(&rig, PER_BLOCK);
    assert_eq!(rig.compact(usize::MAX), 0);
}

#[test]
fn compaction_moves_no_more_than_it_is_allowed() {
    let rig = Rig::new(4, 256);
    fill(&rig, 0..4 * PER_BLOCK);
    (0..4 * PER_BLOCK).filter(|owner| owner % 4 != 0).for_each(|owner| free(&rig, owner));
    assert_eq!(rig.compact(5), 5);
    rig.pool.validate().unwrap();
}

#[test]
fn small_compactions_add_up_to_a_whole_one() {
    let rig = Rig::new(16, 1024);
    fill(&rig, 0..16 * PER_BLOCK);
    (0..16 * PER_BLOCK).filter(|owner| owner % 3 != 0).for_each(|owner| free(&rig, owner));
    let moved: usize = (0..512).map(|_| rig.compact(1)).sum();
    assert_eq!(rig.pool.spare_pages(), 0, "after {moved} moves");
    rig.pool.validate().unwrap();
}

#[test]
fn an_object_with_a_claimed_owner_stays_and_the_others_move() {
    let rig = Rig::new(3, 256);
    fill(&rig, 0..3 * PER_BLOCK);
    (0..3 * PER_BLOCK).filter(|owner| owner % 4 != 0).for_each(|owner| free(&rig, owner));
    let claimed = rig.table.claim(0).unwrap();
    rig.compact(usize::MAX);
    assert_eq!(rig.table.handle(0), claimed);
    assert_eq!(rig.pool.used_pages(), 2 * BLOCK_PAGES);
    rig.table.publish(0, claimed);
    rig.compact(usize::MAX);
    assert_eq!(rig.pool.used_pages(), BLOCK_PAGES);
}

#[test]
fn a_freed_handle_names_nothing() {
    let rig = Rig::new(2, 3);
    let handles = fill(&rig, 0..3);
    free(&rig, 1);
    assert_eq!(rig.pool.object(handles[1]), None);
    assert!(rig.load(handles[1]).is_empty());
    assert!(!rig.pool.free(&rig.ledger, handles[1]));
    rig.pool.validate().unwrap();
}

#[cfg_attr(miri, ignore = "tries thousands of handles")]
#[test]
fn bits_that_are_no_handle_of_an_object_name_nothing() {
    let rig = Rig::new(2, 3);
    // The bytes of an object look like a live header at every place.
    let data: Vec<u8> = [1 | 16 << 2, 0, 0, 0, 9, 0, 0, 0].repeat(LEN / 8);
    rig.put(0, &data).unwrap();
    let named = (1..BLOCK_BYTES as u64 / 8 * 4)
        .filter_map(Handle::from_bits)
        .filter(|handle| rig.pool.object(*handle).is_some())
        .count();
    assert_eq!(named, 1);
}

#[test]
fn metadata_of_an_arena_is_a_small_part_of_it() {
    let arena = 16 << 30;
    assert!(ebb_pool::Pool::metadata_bytes(arena) < arena / 3000);
}
