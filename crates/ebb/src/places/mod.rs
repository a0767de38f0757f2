//! Where pages are that are not mapped: staging, the stock of frames, and the swap space with its pool. Also the
//! buffers to work in.

pub(crate) mod codecs;
pub(crate) mod fetches;
pub(crate) mod folios;
pub(crate) mod frames;
pub(crate) mod inconsistency;
pub(crate) mod poolmem;
pub(crate) mod staging;
pub(crate) mod swapspace;
pub(crate) mod ways;
pub(crate) mod work;

use crate::base::uapi::Errno;
use folios::Folios;
use frames::Stock;
use staging::{BUNDLES, Staging};
use ways::Ways;
use work::{RunBuffers, WorkBuffers};

/// Where a process keeps pages that are not mapped, and what it needs to move them.
pub struct Places {
    pub(crate) staging: Staging,
    pub(crate) stock: Stock,
    pub(crate) folios: Folios,
    /// What a page costs by each way in, in this process.
    pub(crate) ways: Ways,
    pub(crate) work: WorkBuffers,
    pub(crate) runs: RunBuffers,
}

impl Places {
    /// Makes the places around `staging`, with a stock that has room for all of its bundles.
    pub fn new(staging: Staging) -> Result<Self, Errno> {
        Ok(Self {
            stock: Stock::new(staging.nr_bundles())?,
            folios: Folios::new(staging.nr_bundles() / BUNDLES)?,
            ways: Ways::default(),
            staging,
            work: WorkBuffers::new()?,
            runs: RunBuffers::new()?,
        })
    }
}
