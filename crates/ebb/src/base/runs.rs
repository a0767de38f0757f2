//! Neighbouring pages joined, so that one call serves a run of them.

use crate::base::PAGE;
use core::ops::Range;

/// Joins pages that are added in order of address, and hands each run of neighbours to `f`. Drop hands over the last run.
pub(crate) struct Runs<F: FnMut(Range<usize>)> {
    run: Range<usize>,
    f: F,
}

impl<F: FnMut(Range<usize>)> Runs<F> {
    /// No pages yet.
    pub(crate) fn new(f: F) -> Self {
        Self { run: 0..0, f }
    }

    /// Adds the page at `addr`.
    pub(crate) fn add(&mut self, addr: usize) {
        self.add_all(addr..addr + PAGE);
    }

    /// Adds all pages of a range.
    pub(crate) fn add_all(&mut self, range: Range<usize>) {
        if range.start != self.run.end {
            self.flush();
            self.run.start = range.start;
        }
        self.run.end = range.end;
    }

    fn flush(&mut self) {
        if !self.run.is_empty() {
            (self.f)(self.run.clone());
        }
    }
}

impl<F: FnMut(Range<usize>)> Drop for Runs<F> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs_of(pages: &[usize]) -> Vec<Range<usize>> {
        let mut seen = Vec::new();
        let mut runs = Runs::new(|run| seen.push(run.start / PAGE..run.end / PAGE));
        pages.iter().for_each(|page| runs.add(page * PAGE));
        drop(runs);
        seen
    }

    #[test]
    fn neighbours_are_joined_and_every_page_is_in_one_run() {
        assert!(runs_of(&[]).is_empty());
        assert_eq!(runs_of(&[0, 2]), [0..1, 2..3]);
        assert_eq!(runs_of(&[3, 4, 5, 7, 9, 10]), [3..6, 7..8, 9..11]);
    }
}
