//! Walks with a stride: down the column of a matrix or a picture, through one field of large records, or backwards.
//!
//! Each row of such a walk is on a page of its own, and the rows are the same number of bytes apart. Two faults in a row as far
//! apart as the two before make a walk, and a fault of a walk may bring in the pages of the next rows. The bytes count, not the
//! pages: rows that are 3.6 pages apart are 3 or 4 pages apart.
//!
//! Walks page after page are `way_in::window`'s. The idea of a stride is that of the prefetchers of processors; *Leap* (Al Maruf and
//! Chowdhury, USENIX ATC 2020) has it for remote memory.

use crate::base::PAGE;
use crate::threads::steps::Steps;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicUsize};

/// Walks that a thread may be on at a time.
const WALKS: usize = 4;
/// Most rows that a fault brings in.
pub(crate) const ROWS_MAX: u32 = 16;
/// The longest stride, in bytes.
const STRIDE_MAX: usize = 1 << 20;
/// By how many bytes a row may begin elsewhere than the stride says: a line across the rows need not be straight.
const DRIFT_MAX: isize = 256;
/// How often a stride must come again, where most strides that came again did so only once.
const TIMES_MIN: u32 = 4;
/// Most bytes that a program touches at a time.
const WORD_MAX: usize = 64;
/// Rows that a walk may leave out: their pages were in memory.
const LEFT_OUT_MAX: u32 = 8;

/// A walk, or what may become one.
#[derive(Default)]
struct Walk {
    /// Where the last fault of the walk was.
    at: AtomicUsize,
    /// Bytes from row to row; 0 while there was only one fault.
    stride: AtomicIsize,
    /// How often the stride has come again.
    times: AtomicU32,
    /// Rows that the last fault brought in.
    rows: AtomicU32,
    /// Bytes from a row's beginning to its other page, as far as a fault showed it lately. Falls while none does.
    width: AtomicU32,
    /// The same, since the last fault on a new row; 0 if there was no such fault.
    beside: AtomicU32,
    /// When the walk last went on.
    seen: AtomicU32,
}

/// The rows that a walk comes to next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// Where the row before the first of them begins.
    pub(crate) at: usize,
    pub(crate) n: u32,
    pub(crate) stride: isize,
    /// Bytes that may be used in each row, beside the first.
    pub(crate) width: usize,
}

/// The walks with a stride that a thread is on. Only its own thread uses it.
#[derive(Default)]
pub struct Strides {
    walks: [Walk; WALKS],
    now: AtomicU32,
    /// How far such walks can be trusted to go on.
    steps: Steps,
}

/// A fault that belongs to a walk: so many rows after the last one, and so many bytes after the beginning of its row.
struct Step {
    rows: isize,
    beside: isize,
}

impl Walk {
    fn step_to(&self, addr: usize) -> Option<Step> {
        let (stride, before) = (self.stride.load(Relaxed), self.rows.load(Relaxed));
        if stride == 0 {
            return None;
        }
        let away = addr.wrapping_sub(self.at.load(Relaxed)) as isize;
        let length = stride.abs();
        let width_max = if before > 0 { (PAGE as isize).min(length / 2) } else { DRIFT_MAX };
        let rows = match stride > 0 {
            true => away.checked_add(DRIFT_MAX)?.div_euclid(length),
            false => width_max.checked_sub(away)?.div_euclid(length),
        };
        let most = if before > 0 { before + LEFT_OUT_MAX } else { 1 };
        if !(0..=most as isize).contains(&rows) || rows == 0 && before == 0 {
            return None;
        }
        let beside = away - rows * stride;
        (-DRIFT_MAX..=width_max).contains(&beside).then_some(Step { rows, beside })
    }
}

impl Strides {
    /// Notes a fault of the thread at `addr`, on a page that was not in memory. Returns what to bring in beside.
    pub(crate) fn note(&self, addr: usize) -> Option<Rows> {
        let now = self.now.load(Relaxed).wrapping_add(1);
        self.now.store(now, Relaxed);
        for walk in &self.walks {
            if let Some(step) = walk.step_to(addr) {
                walk.seen.store(now, Relaxed);
                return Some(self.go_on(walk, addr, step)).filter(|rows| rows.n > 0);
            }
        }
        self.begin(addr, now);
        None
    }

    /// A walk goes on at `addr`. Returns what to bring in.
    fn go_on(&self, walk: &Walk, addr: usize, Step { rows, beside }: Step) -> Rows {
        let (before, mut stride) = (walk.rows.load(Relaxed), walk.stride.load(Relaxed));
        let expected = walk.at.load(Relaxed).wrapping_add_signed(rows * stride);
        // Who goes on in a row comes to its other page at the beginning.
        let goes_on = addr / PAGE == expected / PAGE + 1 && addr % PAGE < WORD_MAX;
        let is_beside = beside > DRIFT_MAX || beside > 0 && goes_on;
        if rows > 0 && !is_beside {
            stride += beside / rows;
            walk.stride.store(stride, Relaxed);
        }
        if rows == 0 {
            // The row's other page: the next rows need theirs. Not for a page that comes again and again.
            let is_new = is_beside && walk.beside.swap(beside as u32, Relaxed) == 0;
            return Rows { at: addr, n: if is_new { before } else { 0 }, stride, width: 0 };
        }
        let times = walk.times.load(Relaxed).saturating_add(1);
        walk.times.store(times, Relaxed);
        // A fault on a row that should be in memory says nothing of the walk: there was no room for the page, or it went again.
        if times > 1 && rows > before as isize {
            self.steps.note(before.max(1), true);
        }
        let beside_now = if is_beside { beside as u32 } else { 0 };
        let width = walk.beside.swap(beside_now, Relaxed).max(beside_now).max(walk.width.load(Relaxed) / 4 * 3);
        walk.width.store(width, Relaxed);
        // A row with a width may be on two pages.
        let most = if width > 0 { ROWS_MAX / 2 } else { ROWS_MAX };
        let is_walk = times >= TIMES_MIN || self.steps.trusted(2) == 2;
        let came_ahead = rows <= before as isize;
        let n = if came_ahead && addr / PAGE == expected / PAGE {
            // It was gone before it was used.
            before / 2
        } else if came_ahead {
            // The row's other page did not come.
            before
        } else if is_walk {
            self.steps.trusted((2 * before).clamp(1, most))
        } else {
            0
        };
        walk.rows.store(n, Relaxed);
        let at = if is_beside { addr.wrapping_sub(beside as usize) } else { addr };
        walk.at.store(at, Relaxed);
        Rows { at, n, stride, width: width as usize }
    }

    /// A fault that belongs to no walk: it gives one that has not begun its stride, or takes the place of the oldest.
    fn begin(&self, addr: usize, now: u32) {
        let stride_of = |walk: &Walk| addr.wrapping_sub(walk.at.load(Relaxed)) as isize;
        let age = |walk: &&Walk| now.wrapping_sub(walk.seen.load(Relaxed));
        let is_recent = |walk: &&Walk| age(walk) <= WALKS as u32 && stride_of(walk).unsigned_abs() <= STRIDE_MAX;
        // The last one in reach, or none: page after page is not every second page.
        let last = self.walks.iter().filter(is_recent).min_by_key(age);
        let may_begin =
            |walk: &&Walk| walk.times.load(Relaxed) == 0 && !(0..PAGE as isize + DRIFT_MAX).contains(&stride_of(walk));
        let (walk, stride) = match last.filter(may_begin) {
            Some(walk) => (walk, stride_of(walk)),
            None => {
                let Some(oldest) = self.walks.iter().max_by_key(age) else { return };
                (oldest, 0)
            }
        };
        if walk.times.load(Relaxed) > 0 {
            self.steps.note(walk.rows.load(Relaxed).max(1), false);
        }
        walk.at.store(addr, Relaxed);
        walk.stride.store(stride, Relaxed);
        walk.times.store(0, Relaxed);
        walk.rows.store(0, Relaxed);
        walk.width.store(0, Relaxed);
        walk.beside.store(0, Relaxed);
        walk.seen.store(now, Relaxed);
    }

    /// Forgets the walks of a thread that has ended.
    pub(crate) fn reset(&self) {
        for walk in &self.walks {
            walk.stride.store(0, Relaxed);
            walk.times.store(0, Relaxed);
            walk.rows.store(0, Relaxed);
            walk.seen.store(0, Relaxed);
        }
        self.steps.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Faults of a program that touches these ranges, where every page that was not brought in takes one; and pages brought in.
    fn faults_of(strides: &Strides, touched: impl Iterator<Item = (usize, usize)>) -> (usize, usize) {
        let (mut present, mut ahead, mut faults) = (HashSet::new(), 0, 0);
        for (start, len) in touched {
            for page in start / PAGE..=(start + len - 1) / PAGE {
                if !present.insert(page) {
                    continue;
                }
                faults += 1;
                let addr = start.max(page * PAGE);
                let Some(rows) = strides.note(addr) else { continue };
                for row in 1..=rows.n as isize {
                    let at = rows.at.wrapping_add_signed(row * rows.stride);
                    ahead += (at / PAGE..=(at + rows.width) / PAGE).filter(|page| present.insert(*page)).count();
                }
            }
        }
        (faults, ahead)
    }

    /// A matrix of this many rows, each of which takes this many bytes: 3.6 pages.
    const ROWS: usize = 2000;
    const ROW: usize = 14_880;
    const BASE: usize = 1 << 30;

    fn column(from: usize, width: usize) -> impl Iterator<Item = (usize, usize)> {
        (0..ROWS).map(move |row| (BASE + row * ROW + from, width))
    }

    #[test]
    fn a_column_takes_few_faults_and_brings_in_little_else() {
        for (width, most) in [(1, ROWS / 12), (8, ROWS / 12), (300, ROWS / 6), (2000, ROWS / 4)] {
            let pages: HashSet<_> =
                column(100, width).flat_map(|(at, len)| at / PAGE..=(at + len - 1) / PAGE).collect();
            let (faults, ahead) = faults_of(&Strides::default(), column(100, width));
            assert!(faults < most, "{faults} faults of {width} bytes a row");
            assert!(faults + ahead < pages.len() * 11 / 10, "{faults} faults and {ahead} pages, {} used", pages.len());
        }
    }

    #[test]
    fn a_line_across_the_rows_and_two_lines_by_turns_are_walks() {
        let line = |step: usize| (0..ROWS).map(move |row| (BASE + row * ROW + row * step, 4));
        let (faults, _) = faults_of(&Strides::default(), line(5));
        assert!(faults < ROWS / 12, "{faults} faults");
        let far = 1 << 28;
        let both = line(3).zip(column(9000, 4)).flat_map(|(one, (at, len))| [one, (at + far, len)]);
        let (faults, _) = faults_of(&Strides::default(), both);
        assert!(faults < 2 * ROWS / 12, "{faults} faults of two lines");
    }

    #[test]
    fn a_walk_backwards_is_a_walk() {
        let (faults, ahead) =
            faults_of(&Strides::default(), (0..PAGE * ROWS / 8).rev().map(|word| (BASE + word * 8, 8)));
        assert!(faults < ROWS / 12 && ahead <= ROWS + ROWS_MAX as usize, "{faults} faults, {ahead} pages");
        // Forwards it is one of `way_in::window`.
        let (faults, ahead) = faults_of(&Strides::default(), (0..PAGE * ROWS / 8).map(|word| (BASE + word * 8, 8)));
        assert_eq!((faults, ahead), (ROWS, 0));
    }

    #[test]
    fn without_a_stride_little_comes_in() {
        let mut seed = 1_u64;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        // In so small a range by chance some are as far apart as the two before.
        let touched: Vec<_> = (0..100_000).map(|_| (BASE + random(4 << 20), 8)).collect();
        let mut strides = Strides::default();
        let ahead: u32 = touched.iter().filter_map(|(at, _)| strides.note(*at)).map(|rows| rows.n).sum();
        assert!(ahead < 1000, "{ahead} pages ahead of random touches");
        // Three rows here and there are no walk.
        strides = Strides::default();
        let short = (0..10_000).map(|_| BASE + random(64 << 20)).flat_map(|at| (0..3).map(move |row| at + row * ROW));
        let ahead: u32 = short.filter_map(|at| strides.note(at)).map(|rows| rows.n).sum();
        assert!(ahead < 100, "{ahead} pages ahead of walks of three rows");
    }

    #[test]
    fn a_page_that_comes_again_and_again_brings_in_nothing() {
        for beside in [0, 100, 1000, PAGE / 2] {
            let strides = Strides::default();
            column(0, 8).take(40).for_each(|(at, _)| {
                strides.note(at);
            });
            let again = BASE + 39 * ROW + beside;
            let ahead: u32 = (0..100).filter_map(|_| strides.note(again)).map(|rows| rows.n).sum();
            assert!(ahead <= 2 * ROWS_MAX, "{ahead} rows for one page, {beside} bytes beside its row");
        }
    }

    #[test]
    fn rows_that_go_before_they_are_used_make_the_window_small() {
        let strides = Strides::default();
        // Each row takes a fault, whatever was brought in.
        let rows: Vec<u32> = column(0, 8).map(|(at, _)| strides.note(at).map_or(0, |rows| rows.n)).collect();
        assert!(rows[100..].iter().sum::<u32>() < ROWS as u32, "{:?}", &rows[100..140]);
    }

    #[test]
    fn one_look_beside_a_row_is_forgotten() {
        let strides = Strides::default();
        let widths: Vec<usize> = (0..ROWS)
            .step_by(ROWS_MAX as usize + 1)
            .filter_map(|row| {
                let rows = strides.note(BASE + row * ROW)?;
                if row / 17 == 20 {
                    strides.note(BASE + row * ROW + 4000);
                }
                Some(rows.width)
            })
            .collect();
        assert!(widths.iter().any(|width| *width > 2000) && widths.last() == Some(&0), "{widths:?}");
    }

    #[test]
    fn a_thread_that_has_ended_leaves_nothing() {
        let strides = Strides::default();
        column(0, 8).take(100).for_each(|(at, _)| {
            strides.note(at);
        });
        strides.reset();
        assert_eq!(strides.note(BASE + 100 * ROW), None);
    }

    #[test]
    fn any_addresses_will_do() {
        let strides = Strides::default();
        for at in
            [0, usize::MAX, 1, isize::MAX as usize, 0, 1 << 12, 2 << 12, 3 << 12, usize::MAX, usize::MAX - 5000, 0]
        {
            strides.note(at);
        }
    }
}
