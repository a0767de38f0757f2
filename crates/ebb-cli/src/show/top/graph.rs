//! The past of a tree as columns of a graph.

use std::collections::VecDeque;

use crate::show::top::watch::{HISTORY_S, Point};

/// Spans of time that a graph shows: what is known fills one of them.
const SPANS_S: [(f64, &str); 4] = [(60.0, "1 min"), (120.0, "2 min"), (300.0, "5 min"), (HISTORY_S, "10 min")];

/// The shortest span that what is known since `first_s` fits into: its length and name.
pub fn span(first_s: f64, now_s: f64) -> (f64, &'static str) {
    let known_s = now_s - first_s;
    SPANS_S.into_iter().find(|(span_s, _)| known_s <= *span_s).unwrap_or(SPANS_S[SPANS_S.len() - 1])
}

/// The largest value in each of `width` columns, which share `span_s` seconds up to now; none where nothing is known.
pub fn columns(
    past: &VecDeque<Point>,
    value: impl Fn(&Point) -> f64,
    (span_s, now_s): (f64, f64),
    width: usize,
) -> Vec<Option<f64>> {
    let mut out: Vec<Option<f64>> = vec![None; width];
    let column = |at_s: f64| (at_s - (now_s - span_s)) / span_s * width as f64;
    for point in past {
        let (from, to) = (column(point.since_s), column(point.at_s));
        if to <= 0.0 {
            continue;
        }
        // A point ends in the column where its time ends, and a very short one is in one column.
        let (from, to) = (from.max(0.0) as usize, (to.ceil() as usize).min(width));
        for column in out.iter_mut().take(to).skip(from.min(to.saturating_sub(1))) {
            *column = Some(column.unwrap_or(0.0).max(value(point)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(since_s: f64, at_s: f64, swapins: f64) -> Point {
        Point { since_s, at_s, held_bytes: 0, swapins, stalled_some: 0 }
    }

    #[test]
    fn points_fill_the_columns_of_their_time() {
        let past = VecDeque::from([point(0.0, 10.0, 1.0), point(10.0, 12.0, 5.0), point(12.0, 40.0, 2.0)]);
        let columns = columns(&past, |point| point.swapins, (60.0, 40.0), 6);
        assert_eq!(columns, [None, None, Some(1.0), Some(5.0), Some(2.0), Some(2.0)]);
    }

    #[test]
    fn what_is_older_than_the_span_is_left_out() {
        let past = VecDeque::from([point(0.0, 30.0, 9.0), point(30.0, 50.0, 2.0), point(50.0, 100.0, 3.0)]);
        let columns = columns(&past, |point| point.swapins, (60.0, 100.0), 6);
        assert_eq!(columns, [Some(2.0), Some(3.0), Some(3.0), Some(3.0), Some(3.0), Some(3.0)]);
    }

    #[test]
    fn a_point_of_no_time_is_still_a_column_and_no_width_is_none() {
        let past = VecDeque::from([point(60.0, 60.0, 9.0)]);
        assert_eq!(columns(&past, |point| point.swapins, (60.0, 60.0), 3), [None, None, Some(9.0)]);
        assert!(columns(&past, |point| point.swapins, (60.0, 60.0), 0).is_empty());
    }

    #[test]
    fn the_span_grows_with_what_is_known() {
        assert_eq!(
            [1.0, 60.0, 61.0, 299.0, 9_999.0].map(|known| span(0.0, known).1),
            ["1 min", "1 min", "2 min", "5 min", "10 min"]
        );
    }
}
