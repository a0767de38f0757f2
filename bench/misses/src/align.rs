//! Finds out when, in the trace of one run, the faults of another run of the same program happened.
//!
//! Every fault of a run under Ebb is a touch, and almost all touches of pages that were out are in the trace. So the faults are
//! almost a subsequence of the trace. What both runs do exactly once for a page, its first touch and the end of its content,
//! gives fixed points.
//!
//! Between two of them programs do the same again and again, as when a collector goes through all objects, and one round looks
//! like the next. So each window of faults gets some places of the trace where most of its faults follow each other, and then
//! all windows together the places that fit best and are in order. Within its place a window is aligned by the longest common
//! subsequence.

use crate::trace::{Op, Trace};

/// What the two runs have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The first touch of a page.
    First(u32),
    /// A further touch.
    Again(u32),
    Gone(u32),
}

/// Faults that are aligned at a time.
const WINDOW: usize = 512;
/// Most places of the trace that are considered for a window.
const PLACES_MAX: usize = 24;
/// Faults that follow each other in more places than this do not say where a window belongs.
const COMMON: usize = 400;
/// If fewer faults of a window are found than this part, they are not there.
const FOUND_PART: usize = 4;
/// How far apart two faults in a row may be in the trace, in multiples of the mean.
const NEAR: u32 = 4;

/// For each mark its position in the trace, if one was found. Positions rise.
pub fn align(marks: &[Mark], trace: &Trace) -> Vec<Option<u32>> {
    let mut found = vec![None; marks.len()];
    let fixed = fixed_points(marks, trace);
    let (mut mark, mut at) = (0, 0);
    for (next_mark, next_at) in fixed.into_iter().chain([(marks.len(), trace.ops.len() as u32)]) {
        align_between(&marks[mark..next_mark], (at, next_at), trace, &mut found[mark..next_mark]);
        if let Some(place) = found.get_mut(next_mark) {
            *place = Some(next_at);
        }
        (mark, at) = (next_mark + 1, next_at + 1);
    }
    found
}

/// Marks that both runs have exactly once, as far as they are in the same order: the mark, and its position in the trace.
fn fixed_points(marks: &[Mark], trace: &Trace) -> Vec<(usize, u32)> {
    const MANY: u32 = u32::MAX - 1;
    const NONE: u32 = u32::MAX;
    let note = |places: &mut [u32], page: u32, at: u32| {
        if let Some(place) = places.get_mut(page as usize) {
            *place = if *place == NONE { at } else { MANY };
        }
    };
    let none = || vec![NONE; trace.pages];
    let (mut firsts, mut ends, mut alive) = (none(), none(), vec![false; trace.pages]);
    for (at, op) in trace.ops.iter().enumerate() {
        match op.get() {
            Op::Touch(page) => {
                if !std::mem::replace(&mut alive[page as usize], true) {
                    note(&mut firsts, page, at as u32);
                }
            }
            Op::Gone(page) => {
                alive[page as usize] = false;
                note(&mut ends, page, at as u32);
            }
        }
    }
    let (mut own_firsts, mut own_ends) = (none(), none());
    for (i, mark) in marks.iter().enumerate() {
        match *mark {
            Mark::First(page) => note(&mut own_firsts, page, i as u32),
            Mark::Gone(page) => note(&mut own_ends, page, i as u32),
            Mark::Again(_) => {}
        }
    }
    let mut pairs: Vec<(usize, u32)> = (own_firsts.iter().zip(&firsts))
        .chain(own_ends.iter().zip(&ends))
        .filter(|(own, other)| **own < MANY && **other < MANY)
        .map(|(own, other)| (*own as usize, *other))
        .collect();
    pairs.sort_unstable();
    let mut rising = Rising::default();
    for (mark, at) in &pairs {
        rising.offer(*mark, &[*at]);
    }
    rising.longest()
}

/// Finds the longest rising sequence of positions, one for each item at most (Hunt and Szymanski).
#[derive(Default)]
struct Rising {
    /// For each length the last position of the sequence of that length that ends first, and its link.
    ends: Vec<(u32, u32)>,
    /// Item, position and the link before.
    links: Vec<(usize, u32, u32)>,
}

impl Rising {
    /// Offers the positions of the next item, from the last to the first.
    fn offer(&mut self, item: usize, falling: &[u32]) {
        for at in falling {
            let len = self.ends.partition_point(|(end, _)| end < at);
            if self.ends.get(len).is_some_and(|(end, _)| end == at) {
                continue;
            }
            let before = if len == 0 { u32::MAX } else { self.ends[len - 1].1 };
            let link = self.links.len() as u32;
            self.links.push((item, *at, before));
            match self.ends.get_mut(len) {
                Some(end) => *end = (*at, link),
                None => self.ends.push((*at, link)),
            }
        }
    }

    fn longest(&self) -> Vec<(usize, u32)> {
        let mut link = self.ends.last().map_or(u32::MAX, |(_, link)| *link);
        let mut all = Vec::new();
        while let Some((item, at, before)) = self.links.get(link as usize) {
            all.push((*item, *at));
            link = *before;
        }
        all.reverse();
        all
    }
}

/// Aligns marks that lie between two fixed points, in the positions `from..to`.
fn align_between(marks: &[Mark], (from, to): (u32, u32), trace: &Trace, found: &mut [Option<u32>]) {
    if marks.len() <= WINDOW {
        for (i, touch) in longest_in(marks, (from, to), trace) {
            found[i] = Some(touch);
        }
        return;
    }
    // Half of what a window takes on average.
    let place_len = ((to - from) as usize * WINDOW / marks.len() / 2).max(64) as u32;
    let windows: Vec<&[Mark]> = marks.chunks(WINDOW).collect();
    let places = best_places(&windows, (from, to), place_len, trace);
    let mut at = from;
    for (i, window) in windows.iter().enumerate() {
        // A window ends where the next one begins that has a place.
        let next = places[i + 1..].iter().flatten().next();
        let end = next.map_or(to, |place| to.min(from + (place + 1) * place_len));
        let begin = places[i].map_or(at, |place| at.max((from + place * place_len).saturating_sub(place_len)));
        let longest = longest_in(window, (begin, end), trace);
        // A few are found anywhere.
        if longest.len() < window.len() / FOUND_PART {
            continue;
        }
        for (k, touch) in longest {
            found[i * WINDOW + k] = Some(touch);
            at = touch + 1;
        }
    }
}

/// For each window the place where it belongs, if it belongs anywhere: the places rise, and fit the windows best.
fn best_places(windows: &[&[Mark]], (from, to): (u32, u32), place_len: u32, trace: &Trace) -> Vec<Option<u32>> {
    let nr_places = ((to - from) / place_len) as usize + 1;
    let mut fits = vec![0.0f32; nr_places + 1];
    // For each place the best that ends there or before: how well it fits, and its last choice.
    let mut best = Prefixes { of: vec![(0.0, usize::MAX); nr_places + 1] };
    // Window, place, and the choice before.
    let mut choices: Vec<(usize, u32, usize)> = Vec::new();
    let mut places = Vec::new();
    // Two faults in a row are about this far apart.
    let near = (NEAR * place_len * 2 / WINDOW as u32).max(NEAR);
    for (i, window) in windows.iter().enumerate() {
        let mut touched = Vec::new();
        for pair in window.windows(2) {
            let [Mark::Again(page), Mark::Again(next)] = pair else { continue };
            pair_places((*page, *next), (from, to), (place_len, near), trace, &mut places);
            if places.is_empty() || places.len() > COMMON {
                continue;
            }
            let weight = 1.0 / places.len() as f32;
            for place in &places {
                if fits[*place] == 0.0 {
                    touched.push(*place);
                }
                fits[*place] += weight;
            }
        }
        // A window takes two places.
        let mut ranked: Vec<(f32, usize)> =
            touched.iter().map(|place| (fits[*place] + fits[place + 1], *place)).collect();
        ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        ranked.truncate(PLACES_MAX);
        let news: Vec<_> = ranked
            .iter()
            .map(|(fit, place)| {
                let (before, choice) = best.up_to(*place);
                (before + fit, *place, choice)
            })
            .collect();
        for (fit, place, before) in news {
            choices.push((i, place as u32, before));
            best.raise(place, (fit, choices.len() - 1));
        }
        touched.iter().for_each(|place| fits[*place] = 0.0);
    }
    let mut chosen = vec![None; windows.len()];
    let (_, mut choice) = best.up_to(nr_places - 1);
    while let Some((window, place, before)) = choices.get(choice) {
        chosen[*window] = Some(*place);
        choice = *before;
    }
    chosen
}

/// The places of the trace in which `next` is touched soon after `page`, each once.
fn pair_places(
    (page, next): (u32, u32),
    (from, to): (u32, u32),
    (place_len, near): (u32, u32),
    trace: &Trace,
    places: &mut Vec<usize>,
) {
    places.clear();
    let nexts = trace.touches_of(next);
    let touches = trace.touches_of(page);
    let mut after = nexts.partition_point(|at| *at < from);
    for at in &touches[touches.partition_point(|at| *at < from)..] {
        if *at >= to {
            break;
        }
        while nexts.get(after).is_some_and(|next| next <= at) {
            after += 1;
        }
        let place = ((at - from) / place_len) as usize;
        if nexts.get(after).is_some_and(|next| *next <= at + near) && places.last() != Some(&place) {
            places.push(place);
        }
    }
}

/// The best of what begins at place 0, for each place (a Fenwick tree).
struct Prefixes {
    of: Vec<(f32, usize)>,
}

impl Prefixes {
    /// The best at places up to and with `place`.
    fn up_to(&self, place: usize) -> (f32, usize) {
        let (mut best, mut at) = ((0.0, usize::MAX), place + 1);
        while at > 0 {
            if self.of[at].0 > best.0 {
                best = self.of[at];
            }
            at &= at - 1;
        }
        best
    }

    fn raise(&mut self, place: usize, to: (f32, usize)) {
        let mut at = place + 1;
        while at < self.of.len() {
            if to.0 > self.of[at].0 {
                self.of[at] = to;
            }
            at += at & at.wrapping_neg();
        }
    }
}

/// The longest common subsequence of these marks and the trace between two positions: marks and their positions.
fn longest_in(marks: &[Mark], (from, to): (u32, u32), trace: &Trace) -> Vec<(usize, u32)> {
    let mut rising = Rising::default();
    let mut falling = Vec::new();
    for (i, mark) in marks.iter().enumerate() {
        let Mark::Again(page) = mark else { continue };
        let touches = trace.touches_of(*page);
        let first = touches.partition_point(|touch| *touch < from);
        falling.clear();
        falling.extend(touches[first..].iter().take_while(|touch| **touch < to));
        falling.reverse();
        rising.offer(i, &falling);
    }
    rising.longest()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    /// A program that touches 500 pages in order and then at random.
    fn program() -> Trace {
        let mut state = 7;
        let first: Vec<u32> = (0..500).collect();
        let rest: Vec<u32> =
            (0..60_000).map(|_| (random(&mut state) % 500).min(random(&mut state) % 500) as u32).collect();
        Trace::from_ops(first.into_iter().chain(rest).map(Op::Touch))
    }

    /// The touches that LRU with 250 pages misses, and where they are.
    fn faults(trace: &Trace) -> Vec<(Mark, u32)> {
        let mut lru = crate::policies::named("LRU", trace, 250);
        let mut marks = Vec::new();
        for (at, op) in trace.ops.iter().enumerate() {
            let Op::Touch(page) = op.get() else { continue };
            if !lru.touch(page, at) {
                marks.push((if at < 500 { Mark::First(page) } else { Mark::Again(page) }, at as u32));
            }
        }
        marks
    }

    #[test]
    fn faults_are_found_where_they_happened() {
        let trace = program();
        let marks = faults(&trace);
        let found = align(&marks.iter().map(|(mark, _)| *mark).collect::<Vec<_>>(), &trace);
        let near =
            found.iter().zip(&marks).filter(|(found, (_, at))| found.is_some_and(|found| found.abs_diff(*at) < 64));
        assert!(near.count() * 100 > marks.len() * 99);
        assert!(found.iter().flatten().is_sorted());
    }

    #[test]
    fn faults_that_the_trace_does_not_have_lead_nobody_astray() {
        let trace = program();
        let mut marks = faults(&trace);
        let mut state = 1;
        for i in (0..marks.len()).step_by(10) {
            marks[i].0 = Mark::Again((random(&mut state) % 500) as u32);
        }
        let found = align(&marks.iter().map(|(mark, _)| *mark).collect::<Vec<_>>(), &trace);
        let near =
            found.iter().zip(&marks).filter(|(found, (_, at))| found.is_some_and(|found| found.abs_diff(*at) < 256));
        assert!(near.count() * 100 > marks.len() * 85);
    }
}
