//! What a tree read from each of its devices, what read-ahead there was good for, and what it wrote to their directories.

use std::sync::atomic::Ordering::Relaxed;

use ebb::stats::{Device, Writes};
use serde_json::{Value, json};

use crate::base::size::{human_bytes, human_count, human_ns};
use crate::base::text::printable;
use crate::host::spill::short_writes;
use crate::running::counters::Counters;

/// What is known of a device.
pub struct Told {
    pub directory: String,
    pub kind: &'static str,
    pub reads: u64,
    pub read_ns: u64,
    pub readahead_hits: u64,
    pub readahead_misses: u64,
    /// What the tree wrote to the directory. Devices of two kinds in one directory share this, and the budget.
    pub written_bytes: u64,
    pub budget: Option<Writes>,
    /// The budget is spent.
    pub is_held: bool,
}

impl Told {
    fn of(counters: &Counters, device: &Device) -> Self {
        let bytes = device.dir();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let writes = counters.page().writes.find(&bytes[..end]);
        Self {
            // Any process of the tree may have written anything.
            directory: printable(&String::from_utf8_lossy(&bytes[..end])),
            kind: device.kind_name(),
            reads: device.reads.load(Relaxed),
            read_ns: device.read_ns.load(Relaxed),
            readahead_hits: device.readahead_hits.load(Relaxed),
            readahead_misses: device.readahead_misses.load(Relaxed),
            written_bytes: writes.map_or(0, |of| of.written()),
            budget: writes.and_then(|of| of.budget()),
            is_held: writes.is_some_and(|of| of.held_ns() > 0),
        }
    }
}

/// The devices, in the order in which the tree got them.
pub fn told(counters: &Counters) -> impl Iterator<Item = Told> {
    counters.page().devices.iter().map(|device| Told::of(counters, device))
}

/// A line for each device.
pub fn lines(counters: &Counters) -> Vec<String> {
    let line = |told: Told| {
        let of = told.budget.map_or(String::new(), |budget| format!(" of {}", short_writes(budget)));
        format!(
            "ebb: device {} ({}): {} reads of {}; read ahead: {} pages used, {} not; {} written{of}{}",
            told.directory,
            told.kind,
            human_count(told.reads),
            human_ns(told.read_ns.checked_div(told.reads).unwrap_or(0)),
            human_count(told.readahead_hits),
            human_count(told.readahead_misses),
            human_bytes(told.written_bytes),
            if told.is_held { ", which is spent" } else { "" },
        )
    };
    told(counters).map(line).collect()
}

/// Likewise for `--stats`.
pub fn json(counters: &Counters) -> Value {
    let devices = told(counters).map(|told| {
        json!({
            "directory": told.directory,
            "kind": told.kind,
            "reads": told.reads,
            "read_ns": told.read_ns,
            "readahead_hits": told.readahead_hits,
            "readahead_misses": told.readahead_misses,
            "written_bytes": told.written_bytes,
            "writes": told.budget.map(|writes| format!("{}/{}", writes.bytes(), writes.period().name())),
            "is_held": told.is_held,
        })
    });
    devices.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_is_a_line_and_an_object() {
        let counters = Counters::create().unwrap();
        let devices = &counters.page().devices;
        let place = devices.enter(b"/mnt/a\x1b[2J", 1);
        devices.enter(b"/b", 0);
        let device = devices.get(place).unwrap();
        device.reads.store(4, Relaxed);
        device.read_ns.store(32_000_000, Relaxed);
        device.readahead_hits.store(12, Relaxed);
        device.readahead_misses.store(3, Relaxed);
        let writes = &counters.page().writes;
        let allowance = writes.get(writes.enter(b"/b")).unwrap();
        allowance.begin(Writes::parse(b"262144/week").unwrap());
        assert!(allowance.take(64).is_some());
        let said = lines(&counters);
        assert_eq!(
            said[0],
            format!(
                "ebb: device /mnt/a\\x1b[2J (hdd): 4 reads of {}; read ahead: 12 pages used, 3 not; {} written",
                human_ns(8_000_000),
                human_bytes(0)
            )
        );
        assert!(said[1].starts_with("ebb: device /b (ssd): 0 reads"), "{}", said[1]);
        assert!(said[1].ends_with(&format!("; {} written of 256K/week, which is spent", human_bytes(256 << 10))));
        let all = json(&counters);
        let expected = json!({
            "directory": "/mnt/a\\x1b[2J", "kind": "hdd", "reads": 4, "read_ns": 32_000_000,
            "readahead_hits": 12, "readahead_misses": 3, "written_bytes": 0, "writes": null, "is_held": false,
        });
        let of_b = ["written_bytes", "writes", "is_held"].map(|name| all[1][name].clone());
        assert_eq!(of_b, [json!(262_144), json!("262144/week"), json!(true)]);
        assert_eq!((&all[0], &all[1]["kind"], all.as_array().map(Vec::len)), (&expected, &"ssd".into(), Some(2)));
    }
}
