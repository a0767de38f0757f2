//! What a run under Ebb did, on the time axis of the trace.

use crate::align::{self, Mark};
use crate::events::{Event, Out, SIZES, Was, Why};
use crate::policies::{self, Capacity};
use crate::trace::{Op, Trace};

/// Parts of the trace for which the capacity is known. Few, because each change costs an adaptive policy some of what it knows.
const PARTS: usize = 64;
/// The reasons for which pages come in ahead of a fault.
pub const AHEAD: [Why; 4] = [Why::Around, Why::Window, Why::Beside, Why::WillNeed];

/// Pages brought in that nobody waited for.
#[derive(Clone, Copy, Default, Debug)]
pub struct Brought {
    /// From the pool or a device.
    pub pages: u64,
    /// Of these, those that the program touched before they were stored again.
    pub used: u64,
    /// Pages that nobody had touched, and that nobody ever did before they went.
    pub zeros: u64,
    pub zeros_unused: u64,
}

/// What a run did.
pub struct Real {
    /// Demand faults, and pages of system calls, on pages in the pool or on a device.
    pub hard: u64,
    /// The same on staged pages.
    pub soft: u64,
    pub ahead: [Brought; AHEAD.len()],
    /// Pages that were unmapped: to staging, in place, clean. Of these, those that were needed again.
    pub out: [u64; 3],
    pub out_missed: [u64; 3],
    /// Pages that left memory for good or until their next use, and those of them that were used again, by the trace.
    pub stored: u64,
    pub stored_needed: u64,
    /// Pages present or staged, by position in the trace.
    pub capacity: Capacity,
    /// Mean of these pages, and of those present, from the first page that was unmapped on.
    pub mean_pages: f64,
    pub mean_present: f64,
    /// Mean pages in memory that came in ahead and were not used before they went.
    pub mean_unused: f64,
    /// Mean sizes from the first page that was unmapped on, by [`SIZES`].
    pub sizes: [f64; SIZES.len()],
    /// Marks, and those that have a place in the trace.
    pub marks: usize,
    pub aligned: usize,
    /// Hard faults at which LRU with as many pages had the page, by the way that the page went.
    pub lru_avoids: [u64; 3],
}

impl Real {
    /// Misses that the policy is to blame for: faults, and pages that came in ahead of a fault that would have come.
    pub fn misses(&self) -> u64 {
        self.hard + self.ahead.iter().map(|brought| brought.used).sum::<u64>()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    Present,
    Staged,
    Away,
}

#[derive(Clone, Copy)]
struct Page {
    place: Place,
    /// When it last came in from nowhere or from away, and the reason if nobody waited for it.
    since: u32,
    ahead: Option<(usize, Was)>,
    /// How it was unmapped last.
    how: Option<Out>,
}

const NEW: Page = Page { place: Place::Nowhere, since: 0, ahead: None, how: None };

/// The marks of a run, and for each event the number of marks up to it.
fn marks_of(events: &[Event]) -> (Vec<Mark>, Vec<u32>) {
    let (mut marks, mut up_to) = (Vec::new(), Vec::with_capacity(events.len()));
    let touch = |page, was| if was == Was::Untouched { Mark::First(page) } else { Mark::Again(page) };
    for event in events {
        match *event {
            Event::In { page, was, why: Why::Call | Why::Taken } => marks.push(touch(page, was)),
            Event::Fault { page, was } => marks.push(touch(page, was)),
            Event::Gone { page } => marks.push(Mark::Gone(page)),
            _ => {}
        }
        up_to.push(marks.len() as u32);
    }
    (marks, up_to)
}

/// The trace of a run in which few pages were mapped at a time.
pub fn trace_of(events: &[Event]) -> Trace {
    Trace::from_ops(events.iter().filter_map(|event| match *event {
        Event::In { page, why, .. } if !why.is_ahead() => Some(Op::Touch(page)),
        Event::Gone { page } => Some(Op::Gone(page)),
        _ => None,
    }))
}

/// For each event its position in the trace; and the numbers of marks, and of those that have a position.
fn positions(events: &[Event], trace: &Trace) -> (Vec<u32>, usize, usize) {
    let (marks, up_to) = marks_of(events);
    let found = align::align(&marks, trace);
    let mut last = 0;
    let up_to_mark = |found: &Option<u32>| {
        last = found.unwrap_or(last);
        last
    };
    let at_mark: Vec<u32> = found.iter().map(up_to_mark).collect();
    let at = |marks: &u32| (*marks as usize).checked_sub(1).map_or(0, |i| at_mark[i]);
    (up_to.iter().map(at).collect(), marks.len(), found.iter().flatten().count())
}

/// The first touch of a page from position `at` on, if it comes before the page is given up.
fn next_use(trace: &Trace, page: u32, at: u32) -> Option<u32> {
    let touches = trace.touches_of(page);
    let next = touches.partition_point(|touch| *touch < at);
    // If the page was given up in between, the touch before says that none follows.
    if next > 0 && trace.next_touch(touches[next - 1] as usize) == crate::trace::NEVER {
        return None;
    }
    touches.get(next).copied()
}

/// Follows a run, with the positions in the trace as time.
pub fn follow(events: &[Event], trace: &Trace) -> Real {
    let (at, marks, aligned) = positions(events, trace);
    let nr_pages = events.iter().filter_map(page_of).max().map_or(0, |page| page as usize + 1).max(trace.pages);
    let mut pages = vec![NEW; nr_pages];
    let mut real = Real {
        hard: 0,
        soft: 0,
        ahead: [Brought::default(); AHEAD.len()],
        out: [0; 3],
        out_missed: [0; 3],
        stored: 0,
        stored_needed: 0,
        capacity: Capacity { parts: Vec::new() },
        mean_pages: 0.0,
        mean_present: 0.0,
        mean_unused: 0.0,
        sizes: [0.0; SIZES.len()],
        marks,
        aligned,
        lru_avoids: [0; 3],
    };
    let mut sums = Sums::new(trace.ops.len());
    let mut missed_at = Vec::new();
    for (event, now) in events.iter().zip(&at) {
        sums.advance(*now);
        match *event {
            Event::In { page, was, why } => {
                let seen = &mut pages[page as usize];
                if was == Was::Swapped {
                    if let Some(how) = seen.how {
                        real.out_missed[how as usize] += 1;
                    }
                    if !why.is_ahead() {
                        real.hard += 1;
                    }
                    if let (Why::Call, Some(how)) = (why, seen.how) {
                        missed_at.push((page, *now, how));
                    }
                } else if was == Was::Staged && !why.is_ahead() {
                    real.soft += 1;
                }
                sums.present += (seen.place != Place::Present) as i64;
                sums.staged -= (seen.place == Place::Staged) as i64;
                seen.place = Place::Present;
                if was != Was::Staged {
                    let reason = AHEAD.iter().position(|ahead| *ahead == why);
                    (seen.since, seen.ahead) = (*now, reason.map(|reason| (reason, was)));
                }
                // Somebody used a staged page, so it was worth bringing in.
                if was == Was::Staged && !why.is_ahead() {
                    settle(&mut real, &mut sums, seen, true, *now);
                }
            }
            Event::Fault { page, was } => {
                let seen = &mut pages[page as usize];
                if let (Was::Swapped, Some(how)) = (was, seen.how) {
                    missed_at.push((page, *now, how));
                }
                // The first touch may be any of the pages that came in around it.
                if seen.ahead.is_some_and(|(_, was)| was == Was::Untouched) && seen.since == *now {
                    seen.ahead = None;
                }
            }
            Event::Out { page, how } => {
                let seen = &mut pages[page as usize];
                sums.is_short = true;
                real.out[how as usize] += 1;
                seen.how = Some(how);
                sums.present -= (seen.place == Place::Present) as i64;
                seen.place = Place::Staged;
                sums.staged += 1;
                if how != Out::Staged {
                    leave(&mut real, &mut sums, trace, (page, seen), *now);
                }
            }
            Event::Stored { page } => leave(&mut real, &mut sums, trace, (page, &mut pages[page as usize]), *now),
            Event::Gone { page } => {
                let seen = &mut pages[page as usize];
                let used = was_used(trace, page, seen.since, *now);
                settle(&mut real, &mut sums, seen, used, *now);
                sums.present -= (seen.place == Place::Present) as i64;
                sums.staged -= (seen.place == Place::Staged) as i64;
                *seen = NEW;
            }
            Event::Size { which, pages } => sums.size(which, pages),
        }
    }
    let end = trace.ops.len() as u32;
    sums.advance(end);
    for (page, seen) in pages.iter_mut().enumerate() {
        let used = was_used(trace, page as u32, seen.since, end);
        settle(&mut real, &mut sums, seen, used, end);
    }
    sums.into(&mut real);
    let has = lru_has(trace, &real.capacity);
    for (page, at, how) in missed_at {
        let is_touch = trace.ops.get(at as usize).is_some_and(|op| op.get() == Op::Touch(page));
        real.lru_avoids[how as usize] += (is_touch && has[at as usize]) as u64;
    }
    real
}

fn page_of(event: &Event) -> Option<u32> {
    match *event {
        Event::In { page, .. } | Event::Fault { page, .. } | Event::Out { page, .. } => Some(page),
        Event::Stored { page } | Event::Gone { page } => Some(page),
        Event::Size { .. } => None,
    }
}

fn was_used(trace: &Trace, page: u32, since: u32, until: u32) -> bool {
    next_use(trace, page, since).is_some_and(|touch| touch <= until)
}

/// A page leaves memory.
fn leave(real: &mut Real, sums: &mut Sums, trace: &Trace, (page, seen): (u32, &mut Page), now: u32) {
    sums.present -= (seen.place == Place::Present) as i64;
    sums.staged -= (seen.place == Place::Staged) as i64;
    seen.place = Place::Away;
    real.stored += 1;
    real.stored_needed += next_use(trace, page, now + 1).is_some() as u64;
    let used = was_used(trace, page, seen.since, now);
    settle(real, sums, seen, used, now);
}

/// Decides whether a page that came in ahead was used.
fn settle(real: &mut Real, sums: &mut Sums, seen: &mut Page, used: bool, now: u32) {
    let Some((reason, was)) = seen.ahead.take() else { return };
    let brought = &mut real.ahead[reason];
    match was {
        Was::Untouched => {
            (brought.zeros, brought.zeros_unused) = (brought.zeros + 1, brought.zeros_unused + !used as u64)
        }
        _ => (brought.pages, brought.used) = (brought.pages + 1, brought.used + used as u64),
    }
    if !used {
        sums.unused += (now - seen.since) as f64;
    }
}

/// For each position in the trace whether LRU with the same room has the page that is touched.
fn lru_has(trace: &Trace, capacity: &Capacity) -> Vec<bool> {
    let mut has = vec![false; trace.ops.len()];
    policies::replay("LRU", trace, capacity, |at, is_hit| has[at] = is_hit);
    has
}

/// Means over the time of the trace.
struct Sums {
    now: u32,
    len: usize,
    is_short: bool,
    present: i64,
    staged: i64,
    /// For each part, pages in memory times time, and time, from the first page that was unmapped on.
    parts: Vec<(f64, f64)>,
    time: f64,
    pages_time: f64,
    present_time: f64,
    unused: f64,
    sample: [f64; SIZES.len()],
    has_sample: bool,
    sizes_time: [f64; SIZES.len()],
    sampled_time: f64,
}

impl Sums {
    fn new(len: usize) -> Self {
        Self {
            now: 0,
            len,
            is_short: false,
            present: 0,
            staged: 0,
            parts: vec![(0.0, 0.0); PARTS.min(len.max(1))],
            time: 0.0,
            pages_time: 0.0,
            present_time: 0.0,
            unused: 0.0,
            sample: [0.0; SIZES.len()],
            has_sample: false,
            sizes_time: [0.0; SIZES.len()],
            sampled_time: 0.0,
        }
    }

    fn part_len(&self) -> usize {
        self.len.div_ceil(self.parts.len()).max(1)
    }

    fn advance(&mut self, to: u32) {
        let part_len = self.part_len();
        let pages = (self.present + self.staged) as f64;
        while self.now < to {
            let part = self.now as usize / part_len;
            let stop = to.min(((part + 1) * part_len) as u32);
            let time = (stop - self.now) as f64;
            if self.is_short {
                self.parts[part].0 += pages * time;
                self.parts[part].1 += time;
                self.time += time;
                self.pages_time += pages * time;
                self.present_time += self.present as f64 * time;
                if self.has_sample {
                    self.sampled_time += time;
                    for (sum, size) in self.sizes_time.iter_mut().zip(&self.sample) {
                        *sum += size * time;
                    }
                }
            }
            self.now = stop;
        }
    }

    fn size(&mut self, which: usize, pages: u64) {
        if let Some(size) = self.sample.get_mut(which) {
            *size = pages as f64;
            self.has_sample = which + 1 == SIZES.len() || self.has_sample;
        }
    }

    fn into(self, real: &mut Real) {
        let mean = |sum: f64, time: f64| if time > 0.0 { sum / time } else { 0.0 };
        // Before anything is unmapped, everything fits.
        let fits = |(pages, time): &(f64, f64)| if *time > 0.0 { (pages / time).ceil() as usize } else { self.len };
        real.capacity.parts = self.parts.iter().map(fits).collect();
        real.mean_pages = mean(self.pages_time, self.time);
        real.mean_present = mean(self.present_time, self.time);
        real.mean_unused = mean(self.unused, self.time);
        real.sizes = self.sizes_time.map(|sum| mean(sum, self.sampled_time));
    }
}
