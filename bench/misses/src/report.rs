//! Compares a run with the policies, as one line of JSON.

use crate::events::{self, Numbers, SIZES};
use crate::policies::{self, Capacity, ONLINE, OPTIMUM};
use crate::real::{self, AHEAD, Real};
use std::path::Path;

/// Compares the run whose records are in `real` with the policies on the trace whose records are in `trace`.
pub fn compare(trace: &Path, real: &Path) -> Result<String, String> {
    let mut numbers = Numbers::default();
    let mut read = |path: &Path| events::read(path, &mut numbers).map_err(|e| format!("{}: {e}", path.display()));
    let (trace, events) = (real::trace_of(&read(trace)?), read(real)?);
    if trace.ops.is_empty() {
        return Err("the trace is empty: was the agent built with the feature `events`?".to_owned());
    }
    let real = real::follow(&events, &trace);
    let size = |name| SIZES.iter().position(|size| *size == name).map_or(0.0, |i| real.sizes[i]);
    // If nothing but pages and the pool took memory.
    let more = (size("limit") - size("pool")) / real.mean_pages.max(1.0);
    let mut line = Json::default();
    line.number("touches", trace.nr_touches() as f64);
    line.number("pages", trace.pages as f64);
    line.number("marks", real.marks as f64);
    line.number("aligned", real.aligned as f64);
    line.number("hard", real.hard as f64);
    line.number("soft", real.soft as f64);
    line.number("misses", real.misses() as f64);
    line.number("stored", real.stored as f64);
    line.number("stored_needed", real.stored_needed as f64);
    line.number("mean_pages", real.mean_pages);
    line.number("mean_present", real.mean_present);
    line.number("mean_unused", real.mean_unused);
    ahead(&mut line, &real);
    for (i, how) in ["staged", "in_place", "clean"].iter().enumerate() {
        line.number(&format!("out_{how}"), real.out[i] as f64);
        line.number(&format!("out_{how}_missed"), real.out_missed[i] as f64);
        line.number(&format!("lru_avoids_{how}"), real.lru_avoids[i] as f64);
    }
    for (name, pages) in SIZES.iter().zip(real.sizes) {
        line.number(&format!("size_{name}"), pages);
    }
    let count = |name: &str, capacity: &Capacity| policies::misses(name, &trace, capacity) as f64;
    for name in ONLINE.iter().chain([&OPTIMUM]) {
        line.number(name, count(name, &real.capacity));
    }
    let room = real.capacity.times(more.max(1.0));
    line.number("room", more);
    for name in ["LRU", OPTIMUM] {
        line.number(&format!("{name} with room"), count(name, &room));
    }
    Ok(line.end())
}

fn ahead(line: &mut Json, real: &Real) {
    for (why, brought) in AHEAD.iter().zip(real.ahead) {
        let name = format!("{why:?}").to_lowercase();
        line.number(&format!("ahead_{name}"), brought.pages as f64);
        line.number(&format!("ahead_{name}_used"), brought.used as f64);
        line.number(&format!("zeros_{name}"), brought.zeros as f64);
        line.number(&format!("zeros_{name}_unused"), brought.zeros_unused as f64);
    }
}

/// An object of numbers.
#[derive(Default)]
struct Json {
    text: String,
}

impl Json {
    fn number(&mut self, name: &str, value: f64) {
        let comma = if self.text.is_empty() { "{" } else { ", " };
        self.text += &format!("{comma}\"{name}\": {}", (value * 1000.0).round() / 1000.0);
    }

    fn end(self) -> String {
        self.text + "}"
    }
}
