//! The way out: from a mapped page to staging, to the pool, to a device; and who reclaims when.

pub(crate) mod asking;
pub(crate) mod cold;
pub(crate) mod cooling;
pub(crate) mod faulty;
pub(crate) mod filter;
pub(crate) mod give_back;
pub(crate) mod group_reclaim;
pub(crate) mod in_place;
pub(crate) mod out_of_memory;
pub(crate) mod pageout;
pub(crate) mod publish;
pub(crate) mod reclaim;
pub(crate) mod shrink;
pub(crate) mod store;
pub(crate) mod swapout;
pub(crate) mod sweep;
pub(crate) mod unmap;
pub(crate) mod whole;
