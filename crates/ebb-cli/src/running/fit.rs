//! What first touches, misses in memory and misses on a device cost, told from how many of each there were in how much time: least
//! squares in which nothing costs less than nothing.

/// What processor time in faults goes to: first touches, misses in memory, and misses on a device.
pub const KINDS: usize = 3;

/// Sums for the plane of best fit: processor time in faults = the sum over all kinds of how many there were by what one costs.
#[derive(Debug, Clone, Default)]
pub struct Fit {
    products: [[f64; KINDS]; KINDS],
    by_time: [f64; KINDS],
}

impl Fit {
    /// Takes in that so many of each kind took so many nanoseconds.
    pub fn add(&mut self, counts: [f64; KINDS], stall_ns: f64) {
        for (i, count) in counts.iter().enumerate() {
            (0..KINDS).for_each(|j| self.products[i][j] += count * counts[j]);
            self.by_time[i] += count * stall_ns;
        }
    }

    /// What one of each kind costs, in nanoseconds; none is negative, and no miss on a device costs less than one in memory. Where the
    /// two come always in the same parts, that cannot be told, and all misses cost the same.
    pub fn costs(&self) -> [f64; KINDS] {
        let costs = self.best();
        let [_, near, file] = [0, 1, 2].map(|kind| self.products[kind][kind]);
        if near == 0.0 || file == 0.0 || costs[1] > 0.0 && costs[2] >= costs[1] {
            return costs;
        }
        let p = &self.products;
        let by_touch = p[0][1] + p[0][2];
        let all = Self {
            products: [[p[0][0], by_touch, 0.0], [by_touch, near + 2.0 * p[1][2] + file, 0.0], [0.0; KINDS]],
            by_time: [self.by_time[0], self.by_time[1] + self.by_time[2], 0.0],
        };
        let [touch, miss, _] = all.best();
        [touch, miss, miss]
    }

    /// Of all sets of kinds that may explain the time without the others, the costs of the one that explains most.
    fn best(&self) -> [f64; KINDS] {
        let explained = |costs: &[f64; KINDS]| -> f64 { costs.iter().zip(self.by_time).map(|(c, t)| c * t).sum() };
        (1..1 << KINDS)
            .filter_map(|set| self.solve(set))
            .filter(|costs| costs.iter().all(|cost| *cost >= 0.0))
            .max_by(|a, b| explained(a).total_cmp(&explained(b)))
            .unwrap_or_default()
    }

    /// The least squares if only kinds of the set cost something; none if they cannot be told from one another.
    fn solve(&self, set: u32) -> Option<[f64; KINDS]> {
        let kinds: Vec<usize> = (0..KINDS).filter(|kind| set & 1 << kind != 0).collect();
        let mut rows: Vec<Vec<f64>> = kinds
            .iter()
            .map(|i| kinds.iter().map(|j| self.products[*i][*j]).chain([self.by_time[*i]]).collect())
            .collect();
        for at in 0..rows.len() {
            let pivot = rows[at].clone();
            if pivot[at] <= 1e-6 * self.products[kinds[at]][kinds[at]] {
                return None;
            }
            for (_, row) in rows.iter_mut().enumerate().filter(|(i, _)| *i != at) {
                let times = row[at] / pivot[at];
                row.iter_mut().zip(&pivot).for_each(|(value, of_pivot)| *value -= times * of_pivot);
            }
        }
        let mut costs = [0.0; KINDS];
        kinds.iter().enumerate().for_each(|(i, kind)| costs[*kind] = rows[i][kinds.len()] / rows[i][i]);
        Some(costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_touches_are_told_from_misses() {
        let mut fit = Fit::default();
        for counts in [[1000.0, 10.0, 0.0], [10.0, 900.0, 3.0], [500.0, 500.0, 50.0], [0.0, 100.0, 100.0]] {
            fit.add(counts, 2.0 * counts[0] + 9.0 * counts[1] + 40.0 * counts[2]);
        }
        let costs = fit.costs();
        assert!(costs.iter().zip([2.0, 9.0, 40.0]).all(|(cost, real)| (cost - real).abs() < 0.01), "{costs:?}");
        // None of these costs less than nothing.
        fit.add([1_000_000.0, 0.0, 0.0], 0.0);
        assert!(fit.costs().iter().all(|cost| *cost >= 0.0) && fit.costs()[1] > 8.0, "{:?}", fit.costs());
        // Always three in memory to one on a device.
        let mut fit = Fit::default();
        fit.add([0.0, 300.0, 100.0], 4_000.0);
        fit.add([0.0, 600.0, 200.0], 8_000.0);
        assert_eq!(fit.costs(), [0.0, 10.0, 10.0]);
        let mut fit = Fit::default();
        fit.add([0.0, 100.0, 0.0], 700.0);
        assert_eq!(fit.costs(), [0.0, 7.0, 0.0]);
        assert_eq!(Fit::default().costs(), [0.0; 3]);
    }
}
