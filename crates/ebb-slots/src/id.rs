//! The numbers of this crate, each a type of its own so that none is taken for another.

use crate::cluster::{CLUSTER_SLOTS, MAX_ORDER};

/// Offset of a slot in its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Slot(pub u32);

impl Slot {
    /// The cluster that the slot belongs to.
    #[inline]
    pub const fn cluster(self) -> ClusterId {
        ClusterId(self.0 / CLUSTER_SLOTS)
    }
}

/// Number of a cluster in its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ClusterId(pub u32);

impl ClusterId {
    /// The lowest slot of the cluster: a multiple of [`CLUSTER_SLOTS`].
    #[inline]
    pub const fn first_slot(self) -> Slot {
        Slot(self.0 * CLUSTER_SLOTS)
    }
}

/// log2 of a number of slots that belong together: 0..=[`MAX_ORDER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Order(u8);

impl Order {
    /// The order of single slots.
    pub const ZERO: Self = Self(0);

    /// None when a cluster does not hold a run of that order.
    #[inline]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= MAX_ORDER { Some(Self(order)) } else { None }
    }

    /// The largest order of which a run has at most `slots` slots. `slots` is at least 1.
    #[inline]
    pub const fn fitting(slots: usize) -> Self {
        let order = slots.ilog2();
        if order < MAX_ORDER as u32 { Self(order as u8) } else { Self(MAX_ORDER) }
    }

    /// The next smaller order; order 0 has none and stays.
    #[inline]
    pub const fn smaller(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The order as a number, 0 to [`MAX_ORDER`].
    #[inline]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// How many slots a run of this order has.
    #[inline]
    pub const fn slots(self) -> u32 {
        1 << self.0
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Every order, smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..=MAX_ORDER).map(Self)
    }
}

/// A swap entry: what a page state holds of a page that is swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The number that the caller gave the device.
    pub device: u8,
    /// The slot in that device.
    pub slot: Slot,
}

impl Entry {
    /// How many bits [`Self::to_bits`] may set, from bit 0 up.
    pub const BITS: u32 = 40;

    /// Device in bits 32-39, slot in bits 0-31.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        (self.device as u64) << 32 | self.slot.0 as u64
    }

    /// The entry that `bits` came from. Only 40 bits may be set.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        debug_assert!(bits >> Self::BITS == 0);
        Self { device: (bits >> 32) as u8, slot: Slot(bits as u32) }
    }
}

/// What a stored slot remembers of its eviction: a reading of the eviction clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Shadow(pub u32);

/// Whatever names the memory that holds a cached slot's content; the caller decides, 40 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Folio(u64);

impl Folio {
    /// How many bits the number of a folio may have.
    pub const BITS: u32 = 40;

    /// None when the number does not fit.
    #[inline]
    pub const fn new(number: u64) -> Option<Self> {
        if number >> Self::BITS == 0 { Some(Self(number)) } else { None }
    }

    /// The number that [`Self::new`] took.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Which current clusters an allocation uses. Any number will do: it is taken modulo the number of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Shard(pub usize);

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_packing_into_forty_bits() {
        let entry = Entry { device: 0xa5, slot: Slot(0xdead_beef) };
        assert_eq!(entry.to_bits(), 0xa5_dead_beef);
        assert_eq!(Entry::from_bits(entry.to_bits()), entry);
    }

    #[test]
    fn an_order_larger_than_a_cluster_is_refused() {
        assert_eq!(Order::new(MAX_ORDER).map(Order::slots), Some(CLUSTER_SLOTS));
        assert_eq!(Order::new(MAX_ORDER + 1), None);
    }

    #[test]
    fn the_order_that_fits_leaves_less_than_half_over() {
        let orders = [1, 2, 3, 4, 63, 64, 512, 5000].map(|slots| Order::fitting(slots).get());
        assert_eq!(orders, [0, 1, 1, 2, 5, 6, 9, 9]);
        assert_eq!([Order(0), Order(1), Order(9)].map(Order::smaller), [Order(0), Order(0), Order(8)]);
    }

    #[test]
    fn a_folio_of_more_than_forty_bits_is_refused() {
        assert_eq!(Folio::new((1 << 40) - 1).map(Folio::get), Some((1 << 40) - 1));
        assert_eq!(Folio::new(1 << 40), None);
    }
}
