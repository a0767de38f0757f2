//! Blocks that one folio fills: they are stored by several threads together, and give their memory back as a whole.

use super::{BUNDLE_FRAMES, BUNDLES, Part, Staging};
use crate::memory::table::UNIT_PAGES;
use core::sync::atomic::Ordering;

impl Staging {
    /// Notes that one folio fills `block`. Call it before any page's state names a frame of the block.
    pub fn fill_whole(&self, block: u32) {
        self.fill(block, &[BUNDLE_FRAMES as u32; BUNDLES]);
        self.block(block).is_whole.store(1, Ordering::Relaxed);
    }

    /// True if the block of this frame was filled by one folio, and has not been free since.
    pub fn is_whole(&self, frame: u32) -> bool {
        self.block(frame / UNIT_PAGES as u32).is_whole.load(Ordering::Relaxed) != 0
    }

    /// Notes that some frames of the block of this frame have gone without the others: their memory is no longer one huge page.
    pub fn end_whole(&self, frame: u32) {
        self.block(frame / UNIT_PAGES as u32).is_whole.store(0, Ordering::Relaxed);
    }

    /// True if the part is a block that was filled by one folio.
    pub fn is_whole_part(&self, part: Part) -> bool {
        self.block(part.block()).is_whole.load(Ordering::Relaxed) != 0
    }

    /// Releases a drained block that was filled by one folio; returns how many pages that freed. If all of it has memory and `keep`
    /// takes it, nothing is dropped. Otherwise `drop` is told of each bundle that was dropped: its first frame, and how many of its
    /// frames had memory.
    pub fn release_whole(&self, part: Part, keep: impl FnOnce(u32) -> bool, mut drop: impl FnMut(u32, usize)) -> usize {
        let (b, block) = (self.block(part.block()), part.block());
        let is_full = b.filled.iter().all(|n| n.load(Ordering::Relaxed) as usize == BUNDLE_FRAMES);
        if is_full && b.unfit.load(Ordering::Relaxed) == 0 {
            // Counted first, because another thread may use the frames up at once.
            b.parts_left.fetch_add(BUNDLES as u32, Ordering::Relaxed);
            if keep(block) {
                self.end_part(block);
                return 0;
            }
            b.parts_left.fetch_sub(BUNDLES as u32, Ordering::Relaxed);
        }
        self.drop_frames(self.frame(block, 0), UNIT_PAGES);
        let mut freed = 0;
        for (bundle, filled) in b.filled.iter().enumerate() {
            let n = filled.swap(0, Ordering::Relaxed) as usize;
            drop(self.frame(block, bundle * BUNDLE_FRAMES), n);
            freed += n;
        }
        self.held.fetch_sub(freed as u64, Ordering::Relaxed);
        self.end_part(block);
        freed
    }

    /// Offers a part that is one folio to all threads that reclaim: they store it together. The caller has taken it out of the queue.
    /// False if it is none, or if they store another one.
    pub fn offer(&self, part: Part) -> bool {
        self.is_whole_part(part) && self.together.offer(part.block())
    }

    /// True if a folio is on offer of which some is not taken yet.
    pub fn has_offer(&self) -> bool {
        self.together.has_more()
    }

    /// Takes up to `n` frames of the folio on offer, for the calling thread to store. Its pages may have been stored meanwhile, and
    /// even its block filled again: only a page whose state names the frame, once it is claimed, is there.
    pub fn take_of_offer(&self, n: u32) -> Option<core::ops::Range<u32>> {
        let (block, frames) = self.together.take(n)?;
        Some(self.frame(block, frames.start as usize)..self.frame(block, 0) + frames.end)
    }

    /// Notes that some of a step that was taken of an offer could not be stored.
    pub fn fail_offer(&self, step: &core::ops::Range<u32>) {
        self.together.fail(step.start / UNIT_PAGES as u32);
    }

    /// Ends the calling thread's offer. True if nothing is known to have failed.
    pub fn end_offer(&self) -> bool {
        self.together.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::uapi;
    use crate::places::staging::tests::{is_free, with_block};
    use crate::protocols::gate::tests::alone;

    /// Small staging with a block that one folio fills.
    fn with_whole() -> (Staging, u32) {
        let (staging, block) = with_block([64; BUNDLES]);
        while staging.pop_oldest().is_some() {}
        staging.block(block).parts_left.store(0, Ordering::Relaxed);
        staging.held.store(0, Ordering::Relaxed);
        staging.fill_whole(block);
        staging.staged.store(0, Ordering::Relaxed);
        staging.enqueue(block);
        (staging, block)
    }

    #[test]
    fn a_block_that_a_folio_fills_goes_as_a_whole() {
        let (staging, block) = with_whole();
        assert!(staging.is_whole(staging.frame(block, 77)));
        let part = staging.pop_oldest().unwrap();
        assert!(staging.is_whole_part(part) && staging.pop_oldest().is_none(), "it is one part");
        let mut dropped = Vec::new();
        let freed = staging.release_whole(part, |_| false, |first, n| dropped.push((first, n)));
        assert_eq!(freed, UNIT_PAGES);
        let bundles = (0..BUNDLES).map(|bundle| (staging.frame(block, bundle * BUNDLE_FRAMES), BUNDLE_FRAMES));
        assert_eq!(dropped, bundles.collect::<Vec<_>>());
        assert!((0..UNIT_PAGES).all(|i| !uapi::is_mapped(staging.addr(staging.frame(block, i)))));
        assert!(is_free(&staging, block));
        assert_eq!(staging.held(), 0);
        // What fills it next need not be one.
        while staging.take() != Some(block) {}
        staging.fill(block, &[1; BUNDLES]);
        assert!(!staging.is_whole(staging.frame(block, 0)));
    }

    #[test]
    fn a_kept_folio_frees_its_block_when_all_of_it_is_gone() {
        let (staging, block) = with_whole();
        let part = staging.pop_oldest().unwrap();
        let freed = staging.release_whole(part, |kept| kept == block, |_, _| unreachable!("nothing is dropped"));
        assert_eq!((freed, staging.held()), (0, UNIT_PAGES));
        assert!(!is_free(&staging, block));
        staging.frames_left(staging.frame(block, 0), 500);
        assert!(!is_free(&staging, block));
        staging.drop_kept(staging.frame(block, 500), 12);
        assert!(is_free(&staging, block));
        assert_eq!(staging.held(), 0);
    }

    #[test]
    fn a_folio_of_which_a_part_is_gone_or_shared_is_not_kept() {
        let never = |_| panic!("it is offered");
        let (staging, block) = with_whole();
        staging.frames_taken(staging.frame(block, 9), 1);
        let part = staging.pop_oldest().unwrap();
        assert_eq!(staging.release_whole(part, never, |_, _| ()), UNIT_PAGES - 1);
        assert!(is_free(&staging, block));
        let (staging, block) = with_whole();
        staging.keep_no_more(&alone());
        let part = staging.pop_oldest().unwrap();
        assert_eq!(staging.release_whole(part, never, |_, _| ()), UNIT_PAGES);
        assert!(is_free(&staging, block));
    }
}
