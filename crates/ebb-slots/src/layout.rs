//! Where the parts of a device's metadata lie in the memory that the caller gives.
//!
//! Header, shards, cluster records, words. Records and words start on pages, so that a cluster's words are one page and
//! a device of many clusters commits memory as they come into use.

use crate::cluster::{CLUSTER_SLOTS, ClusterRecord, records_for};
use crate::device::{Header, ShardRecord};
use ebb_sync::AtomicU64;

/// The alignment that metadata memory must have: a page.
pub const METADATA_ALIGN: usize = 4096;

pub(crate) struct Layout {
    pub(crate) shards: usize,
    pub(crate) clusters: usize,
    pub(crate) words: usize,
    pub(crate) bytes: usize,
}

pub(crate) const fn nr_clusters(nr_slots: u32) -> u32 {
    nr_slots.div_ceil(CLUSTER_SLOTS)
}

impl Layout {
    pub(crate) const fn of(nr_slots: u32, shards: usize) -> Self {
        let shards_at = size_of::<Header>().next_multiple_of(align_of::<ShardRecord>());
        // Saturates for a number of shards that no memory could hold; init then finds the memory too small.
        let shards_end = shards_at.saturating_add(shards.saturating_mul(size_of::<ShardRecord>()));
        let clusters = page_end(shards_end);
        let words = page_end(clusters.saturating_add(records_for(nr_clusters(nr_slots)) * size_of::<ClusterRecord>()));
        let bytes = page_end(words.saturating_add(nr_slots as usize * size_of::<AtomicU64>()));
        Self { shards: shards_at, clusters, words, bytes }
    }
}

const fn page_end(offset: usize) -> usize {
    match offset.checked_next_multiple_of(METADATA_ALIGN) {
        Some(end) => end,
        None => usize::MAX,
    }
}

/// Bytes of metadata memory that a device of `nr_slots` slots and `shards` shards needs.
pub const fn metadata_bytes(nr_slots: u32, shards: usize) -> usize {
    Layout::of(nr_slots, shards).bytes
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_costs_its_word_and_less_than_a_tenth_of_a_byte() {
        let nr_slots = 1 << 24;
        let bytes = metadata_bytes(nr_slots, 64) as f64;
        assert!(bytes / f64::from(nr_slots) < 8.1);
    }

    #[test]
    fn a_device_costs_six_kibibytes_and_a_shard_a_cache_line_besides() {
        assert!(size_of::<Header>() <= 6 << 10);
        assert_eq!(size_of::<ShardRecord>(), 64);
    }

    #[test]
    fn the_parts_do_not_overlap() {
        let layout = Layout::of(u32::MAX, 3);
        assert!(size_of::<Header>() <= layout.shards);
        assert!(layout.shards + 3 * size_of::<ShardRecord>() <= layout.clusters);
        assert!(layout.clusters + nr_clusters(u32::MAX) as usize * size_of::<ClusterRecord>() <= layout.words);
        assert!(layout.words + u32::MAX as usize * 8 <= layout.bytes);
    }

    #[test]
    fn an_absurd_number_of_shards_saturates() {
        assert_eq!(metadata_bytes(1, usize::MAX), usize::MAX);
    }
}
