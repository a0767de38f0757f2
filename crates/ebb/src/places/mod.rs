//! Where pages are that are not mapped: staging, the stock of frames, the swap space with its pool; and the buffers to work in.

pub(crate) mod frames;
pub(crate) mod inconsistency;
pub(crate) mod poolmem;
pub(crate) mod staging;
pub(crate) mod swapspace;
pub(crate) mod ways;
pub(crate) mod work;

use crate::base::uapi::Errno;
use frames::Stock;
use staging::Staging;
use ways::Ways;
use work::{Buffers, RunBuffers, Work};

/// Where a process has pages on their way.
pub struct Places {
    pub(crate) staging: Staging,
    pub(crate) stock: Stock,
    /// What each way in costs here.
    pub(crate) ways: Ways,
    pub(crate) work: Buffers<Work>,
    pub(crate) runs: RunBuffers,
}

impl Places {
    /// With this staging, and a stock for as many frames as it has.
    pub fn new(staging: Staging) -> Result<Self, Errno> {
        Ok(Self {
            stock: Stock::new(staging.nr_bundles())?,
            ways: Ways::default(),
            staging,
            work: Buffers::new()?,
            runs: RunBuffers::new()?,
        })
    }
}
