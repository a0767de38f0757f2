//! What a tree read from each of its devices, and what read-ahead there was good for.

use std::sync::atomic::Ordering::Relaxed;

use ebb::stats::Device;
use serde_json::{Value, json};

use crate::base::size::{human_count, human_ns};
use crate::base::text::printable;
use crate::running::counters::Counters;

/// A device's directory. Any process of the tree may have written anything.
fn directory(device: &Device) -> String {
    let bytes = device.dir();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    printable(&String::from_utf8_lossy(&bytes[..end]))
}

/// A line for each device.
pub fn lines(counters: &Counters) -> Vec<String> {
    let line = |device: &Device| {
        let reads = device.reads.load(Relaxed);
        format!(
            "ebb: device {} ({}): {} reads of {}; read ahead: {} pages used, {} not",
            directory(device),
            device.kind_name(),
            human_count(reads),
            human_ns(device.read_ns.load(Relaxed).checked_div(reads).unwrap_or(0)),
            human_count(device.readahead_hits.load(Relaxed)),
            human_count(device.readahead_misses.load(Relaxed)),
        )
    };
    counters.page().devices.iter().map(line).collect()
}

/// Likewise for `--stats`.
pub fn json(counters: &Counters) -> Value {
    let devices = counters.page().devices.iter().map(|device| {
        json!({
            "directory": directory(device),
            "kind": device.kind_name(),
            "reads": device.reads.load(Relaxed),
            "read_ns": device.read_ns.load(Relaxed),
            "readahead_hits": device.readahead_hits.load(Relaxed),
            "readahead_misses": device.readahead_misses.load(Relaxed),
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
        let said = lines(&counters);
        assert_eq!(
            said[0],
            format!(
                "ebb: device /mnt/a\\x1b[2J (hdd): 4 reads of {}; read ahead: 12 pages used, 3 not",
                human_ns(8_000_000)
            )
        );
        assert!(said[1].starts_with("ebb: device /b (ssd): 0 reads"), "{}", said[1]);
        let all = json(&counters);
        let expected = json!({
            "directory": "/mnt/a\\x1b[2J", "kind": "hdd", "reads": 4, "read_ns": 32_000_000,
            "readahead_hits": 12, "readahead_misses": 3,
        });
        assert_eq!((&all[0], &all[1]["kind"], all.as_array().map(Vec::len)), (&expected, &"ssd".into(), Some(2)));
    }
}
