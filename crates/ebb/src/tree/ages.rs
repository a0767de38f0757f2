//! Who gives up memory when the tree runs short: the process whose memory has been cold longest.
//!
//! User space has no accessed bit, but a process knows when one of its units last needed a fault, and what came back of
//! what it swept. It publishes how many of its pages were last seen in use how long ago; who runs short adds the time
//! since then, because a process that published nothing new may have used nothing. If it did use them, it finds that out
//! when it is asked: what it sweeps comes back, and is young in what it publishes next. That is the kernel's second
//! chance, with a histogram per process in place of one list for all (multi-generational LRU).

use super::{AGE_BASE_MS, AGES, Kind, Member, Page};
use crate::primitive::Ordering;
use core::sync::atomic::Ordering::Relaxed;

/// Fewer pages than these are not worth waking a process.
const WORTH_PAGES: u64 = 64;
/// For so long a process that had little to give is not asked again: the first time, and at most.
const DECLINED_MS: u64 = 100;
const DECLINED_MS_MAX: u64 = 5000;
/// A process that has not answered for so long is passed over: it may be stopped.
const SILENT_MS: u64 = 50;

/// The class of an age.
pub fn class_of(age_ms: u64) -> usize {
    let doublings = (age_ms / AGE_BASE_MS).checked_ilog2().map_or(0, |log| log as usize + 1);
    doublings.min(AGES - 1)
}

/// The least age of a class.
pub fn least_of(class: usize) -> u64 {
    if class == 0 { 0 } else { AGE_BASE_MS << (class - 1) }
}

/// Numbers of pages by age.
pub type Histogram = [u32; AGES];

impl Member {
    /// Publishes how old its pages are.
    pub fn publish_ages(&self, ages: &Histogram, now_ms: u64) {
        for (to, n) in self.ages.iter().zip(ages) {
            to.store(*n, Relaxed);
        }
        self.published_ms.store(now_ms.max(1), Ordering::Release);
    }

    /// At least how old its coldest pages are, as many of them as are worth asking for; none when it has not so many.
    pub fn coldest_ms(&self, now_ms: u64) -> Option<u64> {
        let charged = self.charged.load(Relaxed);
        if charged < WORTH_PAGES {
            return None;
        }
        let published = self.published_ms.load(Ordering::Acquire);
        if published == 0 {
            return Some(now_ms.saturating_sub(self.since_ms.load(Relaxed)));
        }
        let worth = (charged / 64).max(WORTH_PAGES);
        let mut sum = 0;
        let class = (0..AGES).rev().find(|class| {
            sum += u64::from(self.ages[*class].load(Relaxed));
            sum >= worth
        });
        class.map(|class| least_of(class) + now_ms.saturating_sub(published))
    }

    /// True when it was asked for memory long ago and has not answered.
    fn is_silent(&self, now_ms: u64) -> bool {
        let asked = self.asked_ms.load(Relaxed);
        self.ask_pages.load(Relaxed) > 0 && now_ms.saturating_sub(asked) > SILENT_MS
    }

    /// Asking it is worth while.
    fn answers(&self, now_ms: u64) -> bool {
        !self.is_silent(now_ms) && now_ms >= self.declined_until_ms.load(Relaxed)
    }

    /// It was asked, and has given so many pages of those it was asked for. Who had little is left alone for a while, longer
    /// each time; answers for how long it was last time.
    pub fn answer(&self, given: i64, now_ms: u64, last_ms: u64) -> u64 {
        let asked = self.ask_pages.swap(0, Ordering::SeqCst);
        if given * 4 >= asked {
            return 0;
        }
        let pause_ms = (2 * last_ms).clamp(DECLINED_MS, DECLINED_MS_MAX);
        self.declined_until_ms.store(now_ms + pause_ms, Relaxed);
        pause_ms
    }

    /// Asks it for `pages`; whoever calls this wakes it then, by [`Member::asked`].
    pub fn ask(&self, pages: i64, now_ms: u64) {
        if self.ask_pages.fetch_max(pages, Ordering::SeqCst) <= 0 {
            self.asked_ms.store(now_ms, Relaxed);
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
    }
}

impl Page {
    /// The member that is asked first, and at least how old its coldest pages are: of those that answer, and not `own`, and
    /// with at least `pages_min` pages, the one whose coldest pages are oldest.
    pub fn coldest(&self, own: Option<u32>, pages_min: u64, now_ms: u64) -> Option<(u32, u64)> {
        self.members()
            .filter(|(index, member)| Some(*index) != own && member.kind() == Kind::Managed)
            .filter(|(_, member)| member.charged.load(Relaxed) >= pages_min && member.answers(now_ms))
            .filter_map(|(index, member)| Some((index, member.coldest_ms(now_ms)?)))
            .max_by_key(|(_, age)| *age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_double() {
        assert_eq!([0, 31, 32, 63, 64, 127, 128].map(class_of), [0, 0, 1, 1, 2, 2, 3]);
        assert_eq!(class_of(u64::MAX), AGES - 1);
        assert!((0..AGES).all(|class| class_of(least_of(class)) == class));
    }
}
