//! What a run did, as text for people and as JSON, computed from the counters that the managed processes shared.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ebb::stats::MAGIC;
use serde_json::{Map, Value, json};

use crate::base::end::End;
use crate::base::size::{human_bytes, human_count, human_ns};
use crate::base::sys;
use crate::run::page::{self, About};
use crate::run::record::Record;
use crate::run::supervise::Usage;
use crate::run::unmanaged::Unmanaged;
use crate::running::advice::Advice;
use crate::running::counters::{Counters, PAGE_BYTES};
use crate::show::{locks, reads};

/// How much a process grows before the agent begins to manage it: so many bytes, or this part (1 / 32) of the budget, whichever
/// is less (`docs/contract.md`).
const GROWTH_BYTES_MAX: u64 = 8 << 20;
const GROWTH_PART: u64 = 32;

/// A finished run.
pub struct Outcome<'a> {
    /// The file that was executed.
    pub file: &'a Path,
    pub arguments: Vec<String>,
    /// False if the program ran without Ebb, with --allow-unmanaged.
    pub managed: bool,
    pub end: End,
    pub usage: Usage,
    pub wall: Duration,
    pub counters: &'a Counters,
    /// Programs of the tree that could not be managed.
    pub unmanaged: Unmanaged,
}

/// The sum of counters. Saturates, because any process of the tree may have written any value.
fn total(counters: &[u64]) -> u64 {
    counters.iter().fold(0, |sum, counter| sum.saturating_add(*counter))
}

/// The size of so many pages, in bytes. Saturates likewise.
fn bytes_of(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_BYTES)
}

fn ratio(over: u64, under: u64) -> Option<f64> {
    (under > 0).then(|| over as f64 / under as f64)
}

/// Figures computed from the counters.
struct Derived {
    faults: u64,
    /// Time that the program's threads lost to swap by the clock, summed over the threads.
    swap_ns: u64,
    /// How long threads waited for devices, summed over the threads.
    device_ns: u64,
    out_pages: u64,
    file_pages: u64,
    pool_ratio: Option<f64>,
    squeeze_ratio: Option<f64>,
    pages_per_unmap: Option<f64>,
    /// For each tier: its name, the pages that ever came there, and the bytes that they took there.
    tiers: [(&'static str, u64, u64); 3],
}

impl Outcome<'_> {
    fn derived(&self) -> Derived {
        let page = self.counters.page();
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let faults =
            [&page.faults_first_touch, &page.faults_soft, &page.faults_pool, &page.faults_file, &page.faults_spurious];
        Derived {
            faults: total(&faults.map(get)),
            swap_ns: total(&[&page.fault_ns, &page.direct_reclaim_ns].map(get)),
            device_ns: page.devices.iter().fold(0, |sum: u64, device| sum.saturating_add(get(&device.read_ns))),
            out_pages: total(&[&page.out_pool_pages, &page.out_same_pages, &page.out_file_pages].map(get)),
            file_pages: total(&[&page.out_file_pages, &page.writeback_pages].map(get)),
            pool_ratio: ratio(get(&page.pool_in_bytes), get(&page.pool_out_bytes)),
            squeeze_ratio: ratio(get(&page.peak_wanted_bytes), get(&page.peak_held_bytes)),
            pages_per_unmap: ratio(get(&page.unmap_pages), get(&page.unmap_calls)),
            tiers: [
                ("hot", get(&page.out_pool_pages), get(&page.pool_out_bytes)),
                ("cold", get(&page.cooled_pages), get(&page.cooled_out_bytes)),
                ("device", total(&[&page.out_file_pages, &page.writeback_pages].map(get)), get(&page.file_bytes)),
            ],
        }
    }

    /// What the program is called in messages.
    pub fn name(&self) -> String {
        self.file.file_name().unwrap_or(self.file.as_os_str()).to_string_lossy().into_owned()
    }

    /// The summary: a few lines.
    pub fn summary(&self) -> Vec<String> {
        let page = self.counters.page();
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let name = self.name();
        let mut lines = Vec::new();
        if !self.managed {
            return lines;
        }
        if get(&page.processes) == 0 && page.has_begun.load(Relaxed) != 0 {
            let growth = GROWTH_BYTES_MAX.min(get(&page.ram_limit_bytes) / GROWTH_PART);
            let why = match self.unmanaged.line() {
                None => {
                    format!("no process needed more than {} of its own, so Ebb swapped nothing", human_bytes(growth))
                }
                Some(_) => "Ebb managed none of its processes".to_owned(),
            };
            lines.push(format!("ebb: {name}: {why}"));
        } else if get(&page.processes) == 0 {
            // The agent itself says why it refuses.
            if self.end != End::Exited(crate::base::failure::STATUS_EBB) {
                lines.push(format!(
                    "ebb: {name}: it ran without Ebb: the loader did not start the agent; \
                     see why with `LD_DEBUG=libs ebb run ...`"
                ));
            }
        } else {
            lines.extend(self.account(&name));
        }
        lines.extend(self.unmanaged.line());
        if let Some(error) = self.counters.error() {
            lines.push(format!("ebb: failed: {error}"));
        }
        lines
    }

    fn account(&self, name: &str) -> Vec<String> {
        let page = self.counters.page();
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        let count = |counter| human_count(get(counter));
        let derived = self.derived();
        let plural = |n: u64, one: &str, many: &str| format!("{} {}", human_count(n), if n == 1 { one } else { many });
        let (peak, budget) = (get(&page.peak_held_bytes), get(&page.ram_limit_bytes));
        let (peak_text, budget_text) = (human_bytes(peak), human_bytes(budget));
        // The budget was larger before, or memory that is not managed exceeded it.
        let held = if peak > budget {
            format!("held up to {peak_text}, budget {budget_text}")
        } else {
            format!("held up to {peak_text} of {budget_text}")
        };
        let shown = match get(&page.show_ram_bytes) {
            0 => String::new(),
            bytes => format!("; shown {} of RAM", human_bytes(bytes)),
        };
        let mut lines = vec![format!(
            "ebb: {name}: wanted up to {}, {held}; {}, {}{shown}",
            human_bytes(get(&page.peak_wanted_bytes)),
            plural(get(&page.processes), "process", "processes"),
            plural(get(&page.threads), "thread", "threads"),
        )];
        if derived.out_pages > 0 {
            let pool = derived.pool_ratio.map_or_else(
                || "pool unused".to_owned(),
                |ratio| format!("pool {ratio:.1}:1, up to {}", human_bytes(get(&page.peak_pool_bytes))),
            );
            lines.push(format!(
                "ebb: swapped out {}: {pool}; {} same-filled; {} to a file",
                human_bytes(bytes_of(derived.out_pages)),
                human_bytes(bytes_of(get(&page.out_same_pages))),
                human_bytes(bytes_of(derived.file_pages)),
            ));
        }
        let cooled = get(&page.cooled_pages);
        if cooled > 0 {
            lines.push(format!(
                "ebb: {} in the pool became cold: {} to {}, in {}; {} faults on cold pages",
                human_bytes(bytes_of(cooled)),
                human_bytes(get(&page.cooled_in_bytes)),
                human_bytes(get(&page.cooled_out_bytes)),
                human_ns(get(&page.cooling_ns)),
                human_count(get(&page.faults_cold)),
            ));
        }
        lines.push(format!(
            "ebb: {} faults: {} on new pages, {} on pages about to leave, {} on compressed ones, {} on ones in a file",
            human_count(derived.faults),
            count(&page.faults_first_touch),
            count(&page.faults_soft),
            count(&page.faults_pool),
            count(&page.faults_file),
        ));
        lines.push(format!(
            "ebb: swap cost {} of processor time in all threads and {} in the background, and waits of {} for devices; ran {}",
            human_ns(get(&page.fault_cpu_ns)),
            human_ns(get(&page.background_ns)),
            human_ns(derived.device_ns),
            human_ns(self.wall.as_nanos() as u64),
        ));
        let (beside, kernel) = (get(&page.peak_beside_bytes), get(&page.peak_kernel_bytes));
        if kernel > 0 {
            lines.push(format!(
                "ebb: memory that Ebb does not manage: up to {} (the first 8 MiB are not charged), and {} of page tables \
                 and kernel stacks (not charged)",
                human_bytes(beside),
                human_bytes(kernel),
            ));
        }
        lines
    }

    /// The run as a page for a browser. `cost` says what swap cost, if it was worth a word.
    pub fn page(&self, record: &Record, cost: Option<String>, has_device: bool) -> String {
        let page = self.counters.page();
        let bytes = |counter: &AtomicU64| human_bytes(counter.load(Relaxed));
        let name = self.name();
        let end = match self.end {
            End::Exited(status) => format!("Ended with status {status}"),
            End::Signaled(signal) | End::GivenUp(signal) => format!("Ended by signal {signal}"),
        };
        let stalled =
            record.curve.stalled().map_or_else(|| "unknown".to_owned(), |part| format!("{:.0}%", part * 100.0));
        let figures = vec![
            ("Wanted at most", bytes(&page.peak_wanted_bytes)),
            ("Held at most", bytes(&page.peak_held_bytes)),
            ("Budget", bytes(&page.ram_limit_bytes)),
            ("Time for swap", stalled),
            ("Faults", human_count(self.derived().faults)),
            ("Swapped out", human_bytes(bytes_of(self.derived().out_pages))),
        ];
        let advice = Advice { name: &name, curve: &record.curve, has_device, goal: None, lack: None };
        let about = About {
            name: &name,
            command: std::iter::once(self.file.display().to_string())
                .chain(self.arguments.clone())
                .collect::<Vec<_>>()
                .join(" "),
            end,
            wall: self.wall,
            figures,
            summary: self.summary().into_iter().chain(cost).collect(),
            advice: record.curve.seen().map(|_| advice.text()),
        };
        page::html(&about, record)
    }

    /// Every counter that is not zero, for `-v`.
    pub fn details(&self) -> Vec<String> {
        let mut lines = Vec::new();
        self.counters.page().for_each(|name, value| {
            if value != 0 && name != "magic" {
                lines.push(format!("ebb:   {name} {value}"));
            }
        });
        lines.push(format!(
            "ebb: swap table: {} bytes per slot at rest, {} in use, up to {} in all",
            ebb::SWAP_TABLE_REST_BYTES_PER_1000 as f64 / 1000.0,
            ebb::stats::SWAP_TABLE_BYTES_PER_SLOT,
            human_bytes(self.counters.page().peak_swap_table_bytes.load(Relaxed)),
        ));
        lines.extend(reads::lines(self.counters));
        lines.extend(locks::table(self.counters).lines().map(|line| format!("ebb: {line}")));
        lines
    }

    /// All counters, the figures computed from them, and what ran.
    pub fn json(&self) -> Value {
        let mut counters = Map::new();
        self.counters.page().for_each(|name, value| {
            if name != "magic" {
                counters.insert(name.to_owned(), value.into());
            }
        });
        let derived = self.derived();
        let (release, machine) = sys::kernel();
        let (code, signal) = match self.end {
            End::Exited(status) => (Some(status), None),
            End::Signaled(signal) | End::GivenUp(signal) => (None, Some(signal)),
        };
        json!({
            "versions": {
                "ebb": env!("CARGO_PKG_VERSION"),
                "counters": String::from_utf8_lossy(&MAGIC.to_be_bytes()),
                "kernel": release,
                "machine": machine,
            },
            "name": self.counters.name(),
            "program": { "file": self.file.to_string_lossy(), "arguments": self.arguments, "managed": self.managed },
            "exit": { "code": code, "signal": signal },
            "error": self.counters.error(),
            "usage": {
                "wall_ns": self.wall.as_nanos() as u64,
                "user_ns": self.usage.user_ns,
                "system_ns": self.usage.system_ns,
                "max_rss_bytes": self.usage.max_rss_bytes,
            },
            "derived": {
                "faults": derived.faults,
                "swap_ns": derived.swap_ns,
                "device_ns": derived.device_ns,
                "out_pages": derived.out_pages,
                "file_pages": derived.file_pages,
                "pool_ratio": derived.pool_ratio,
                "squeeze_ratio": derived.squeeze_ratio,
                "pages_per_unmap_call": derived.pages_per_unmap,
                "tiers": Value::Object(derived.tiers.into_iter().map(tier_json).collect()),
            },
            "show_ram_bytes": Some(self.counters.page().show_ram_bytes.load(Relaxed)).filter(|bytes| *bytes > 0),
            "unmanaged": self.unmanaged.json(),
            "counters": counters,
            "devices": reads::json(self.counters),
            "locks": locks::json(self.counters),
        })
    }
}

/// What ever came to a tier.
fn tier_json((name, pages, bytes): (&str, u64, u64)) -> (String, Value) {
    (name.to_owned(), json!({ "pages": pages, "content_bytes": bytes_of(pages), "bytes": bytes }))
}

/// Replaces the content of `file` with `value`.
pub fn write_json(file: &mut File, value: &Value) -> std::io::Result<()> {
    // A pipe or a terminal cannot seek, and has nothing to cut off.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
        file.rewind()?;
    }
    file.write_all(format!("{value:#}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb::stats::Shared;

    fn outcome(counters: &Counters) -> Outcome<'_> {
        Outcome {
            file: Path::new("/usr/bin/prog"),
            arguments: vec!["-x".to_owned()],
            managed: true,
            end: End::Exited(3),
            usage: Usage { user_ns: 5, system_ns: 6, max_rss_bytes: 7 },
            wall: Duration::from_secs(2),
            counters,
            unmanaged: Unmanaged::default(),
        }
    }

    fn busy() -> Counters {
        let counters = Counters::create().unwrap();
        let page = counters.page();
        page.processes.store(1, Relaxed);
        page.threads.store(3, Relaxed);
        page.ram_limit_bytes.store(64 << 20, Relaxed);
        page.peak_held_bytes.store(63 << 20, Relaxed);
        page.peak_wanted_bytes.store(252 << 20, Relaxed);
        page.out_pool_pages.store(1000, Relaxed);
        page.out_file_pages.store(24, Relaxed);
        page.pool_in_bytes.store(4_000_000, Relaxed);
        page.pool_out_bytes.store(1_000_000, Relaxed);
        page.peak_pool_bytes.store(1 << 20, Relaxed);
        page.faults_first_touch.store(5000, Relaxed);
        page.faults_pool.store(700, Relaxed);
        page.fault_ns.store(1_500_000_000, Relaxed);
        page.fault_cpu_ns.store(1_600_000_000, Relaxed);
        page.direct_reclaim_ns.store(500_000_000, Relaxed);
        counters
    }

    #[test]
    fn whatever_stands_in_the_area_is_told_in_one_line_each() {
        let counters = busy();
        let words = size_of::<Shared>() / 8;
        // SAFETY: all of the area, which is made of atomics for which any bytes are valid.
        let area =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(counters.page()).cast::<AtomicU64>(), words) };
        for value in [u64::MAX, 1 << 63, (1 << 63) - 1, 0x1b5b_324a_0a07_0d00, 0] {
            area.iter().for_each(|word| word.store(value, Relaxed));
            let outcome = outcome(&counters);
            let told = outcome.summary().into_iter().chain(outcome.details()).chain([outcome.json().to_string()]);
            told.for_each(|line| assert!(!line.contains(char::is_control), "{line:?}"));
            assert!(!counters.name().unwrap_or_default().contains(char::is_control));
            assert!((0..=1i64 << 50).contains(&counters.tree().sum().held));
        }
    }

    #[test]
    fn the_summary_tells_memory_pool_faults_and_time() {
        let counters = busy();
        assert_eq!(
            outcome(&counters).summary(),
            [
                "ebb: prog: wanted up to 252.0 MiB, held up to 63.0 MiB of 64.0 MiB; 1 process, 3 threads",
                "ebb: swapped out 4.0 MiB: pool 4.0:1, up to 1.0 MiB; 0 B same-filled; 96.0 KiB to a file",
                "ebb: 5,700 faults: 5,000 on new pages, 0 on pages about to leave, 700 on compressed ones, 0 on ones in a file",
                "ebb: swap cost 1.60 s of processor time in all threads and 0 ns in the background, and waits of 0 ns for devices; ran 2.00 s",
            ]
        );
    }

    #[test]
    fn a_budget_that_was_larger_before_is_told_as_the_last() {
        let counters = busy();
        counters.set_budget(32 << 20);
        let lines = outcome(&counters).summary();
        assert!(lines[0].contains(", held up to 63.0 MiB, budget 32.0 MiB; "), "{lines:?}");
    }

    #[test]
    fn the_summary_has_at_most_seven_lines() {
        let counters = busy();
        counters.page().peak_beside_bytes.store(12 << 20, Relaxed);
        counters.page().peak_kernel_bytes.store(3 << 20, Relaxed);
        counters.page().set_error(b"ebb: space: no memory; give it more");
        let mut outcome = outcome(&counters);
        outcome.unmanaged.add(Path::new("/usr/bin/sudo"));
        let lines = outcome.summary();
        assert_eq!(lines.len(), 7);
        assert!(
            lines[4].starts_with("ebb: memory that Ebb does not manage: up to 12.0 MiB (the first 8 MiB"),
            "{lines:?}"
        );
        assert!(lines[4].ends_with("and 3.0 MiB of page tables and kernel stacks (not charged)"), "{lines:?}");
        assert_eq!(lines[5], "ebb: not managed and not limited: sudo (up to 0 B, counted in the budget)");
        assert_eq!(lines[6], "ebb: failed: space: no memory; give it more");
    }

    #[test]
    fn a_program_that_the_agent_never_reached_is_told_so() {
        let counters = Counters::create().unwrap();
        let lines = outcome(&counters).summary();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("ebb: prog: it ran without Ebb: the loader did not start the agent"), "{lines:?}");
    }

    #[test]
    fn a_program_that_stays_small_is_told_so() {
        let counters = Counters::create().unwrap();
        counters.page().has_begun.store(1, Relaxed);
        for (budget, growth) in [(1 << 30, "8.0 MiB"), (64 << 20, "2.0 MiB")] {
            counters.page().ram_limit_bytes.store(budget, Relaxed);
            let line = format!("ebb: prog: no process needed more than {growth} of its own, so Ebb swapped nothing");
            assert_eq!(outcome(&counters).summary(), [line]);
        }
    }

    #[test]
    fn the_json_holds_every_counter_and_what_ended_the_program() {
        let counters = busy();
        let value = outcome(&counters).json();
        let mut names = 0;
        counters.page().for_each(|_, _| names += 1);
        assert_eq!(value["counters"].as_object().unwrap().len(), names - 1);
        assert_eq!(value["counters"]["faults_pool"], 700);
        assert_eq!(value["derived"]["pool_ratio"], 4.0);
        assert_eq!(value["exit"], json!({ "code": 3, "signal": null }));
        assert_eq!(value["versions"]["counters"].as_str().unwrap().as_bytes(), ebb::stats::MAGIC.to_be_bytes());
    }

    #[test]
    fn nothing_divides_by_zero() {
        let counters = Counters::create().unwrap();
        assert_eq!(outcome(&counters).json()["derived"]["pool_ratio"], Value::Null);
    }
}
