//! `ebb metrics`: what `ebb ps` shows, and the counters of each tree, for Prometheus and others that read its formats.
//!
//! Names and labels are documented in `docs/usage.md`. Those of a tree are sums over its processes, dead ones included where they
//! count events; those of a process are gone with it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use ebb::stats::Shared;

use crate::base::exposition::{Family, Format, Kind, Labels, Number, text};
use crate::base::failure::Failure;
use crate::base::http::{Address, Answer, Listener};
use crate::base::name::Target;
use crate::base::sys;
use crate::running::counters::PAGE_BYTES;
use crate::running::process;
use crate::running::trees::{self, Access, RunningTree};
use crate::show::look::{Content, Events, Faults, Row, Shown, What, shown};
use crate::show::reads;

/// Where the metrics go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Standard output, once.
    Output,
    /// Whoever asks there.
    Listen(Address),
    /// A file in this directory, once.
    Directory(PathBuf),
}

/// What to tell, and whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// The trees; all if empty.
    pub targets: Vec<Target>,
    pub to: Destination,
}

/// The file for node_exporter, which reads `*.prom`.
const FILE: &str = "ebb.prom";
const PATH: &str = "/metrics";

/// A tree, as it is shown, and its counters.
struct Told<'a> {
    shown: Shown,
    page: &'a Shared,
    devices: Vec<reads::Told>,
}

/// The families, filled tree by tree.
struct Families(Vec<Family>);

impl Families {
    fn add(&mut self, name: &'static str, kind: Kind, help: &'static str, labels: Labels, number: Number) {
        match self.0.iter_mut().find(|family| family.name == name) {
            // A tree can say anything, also the same twice, and parsers refuse that.
            Some(family) if family.samples.iter().any(|(known, _)| *known == labels) => {}
            Some(family) => family.samples.push((labels, number)),
            None => self.0.push(Family { name, kind, help, samples: vec![(labels, number)] }),
        }
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, labels: Labels, value: u64) {
        self.add(name, Kind::Gauge, help, labels, Number::Count(value));
    }

    fn counter(&mut self, name: &'static str, help: &'static str, labels: Labels, value: u64) {
        self.add(name, Kind::Counter, help, labels, Number::Count(value));
    }

    fn time(&mut self, name: &'static str, help: &'static str, labels: Labels, ns: u64) {
        self.add(name, Kind::Counter, help, labels, Number::Nanoseconds(ns));
    }

    fn tree(&mut self, told: &Told<'_>) {
        let of = |more: &[(&'static str, &str)]| {
            let own = [("tree", told.shown.label.clone()), ("pid", told.shown.supervisor.to_string())];
            own.into_iter().chain(more.iter().map(|(label, value)| (*label, (*value).to_owned()))).collect::<Labels>()
        };
        self.gauge(
            "ebb_budget_bytes",
            "What all processes of the tree may hold together.",
            of(&[]),
            told.shown.budget_bytes,
        );
        self.gauge("ebb_held_bytes", "What they hold or have been granted.", of(&[]), told.shown.held_bytes);
        self.gauge("ebb_held_peak_bytes", "The largest amount they held so far.", of(&[]), told.shown.peak_bytes);
        if let Some(bytes) = told.shown.show_ram_bytes {
            const SHOWN: &str = "The size of RAM that the programs are shown, where that is not the true one.";
            self.gauge("ebb_shown_ram_bytes", SHOWN, of(&[]), bytes);
        }
        self.memory(told, &of);
        self.events(told.page, &told.shown.events, &of);
        for device in &told.devices {
            let of = |more: &[(&'static str, &str)]| {
                let place: [(&'static str, &str); 2] = [("directory", &device.directory), ("kind", device.kind)];
                of(&place.into_iter().chain(more.iter().copied()).collect::<Vec<_>>())
            };
            self.counter("ebb_device_reads", "Reads from the device.", of(&[]), device.reads);
            self.time("ebb_device_read_seconds", "Time that threads waited for them.", of(&[]), device.read_ns);
            const AHEAD: &str = "Pages read ahead from the device, by whether somebody used them.";
            self.counter("ebb_device_readahead_pages", AHEAD, of(&[("result", "used")]), device.readahead_hits);
            self.counter("ebb_device_readahead_pages", AHEAD, of(&[("result", "unused")]), device.readahead_misses);
        }
        // Devices of two kinds in one directory share this.
        for device in &told.devices {
            const WRITTEN: &str = "Bytes written to a directory of devices.";
            let labels = of(&[("directory", &device.directory)]);
            self.counter("ebb_device_written_bytes", WRITTEN, labels, device.written_bytes);
        }
    }

    /// What the processes hold, by kind, and what the tiers do.
    fn memory(&mut self, told: &Told<'_>, of: &impl Fn(&[(&'static str, &str)]) -> Labels) {
        let totals = told.shown.totals();
        told.shown.rows.iter().for_each(|row| self.process(row, of));
        const PROCESSES: &str = "Processes that hold memory of the budget, by whether Ebb manages them.";
        self.gauge("ebb_processes", PROCESSES, of(&[("managed", "yes")]), totals.managed);
        self.gauge("ebb_processes", PROCESSES, of(&[("managed", "no")]), totals.others);
        self.gauge("ebb_wanted_bytes", "Memory with content, wherever that is.", of(&[]), totals.wanted * PAGE_BYTES);
        const STATES: &str = "RAM of managed processes: reached without a fault, unmapped but not compressed yet, or taken \
                              by compressed pages.";
        let states = [("resident", totals.resident), ("staged", totals.staged), ("pool", totals.pool)];
        for (state, pages) in states {
            self.gauge("ebb_memory_bytes", STATES, of(&[("state", state)]), pages * PAGE_BYTES);
        }
        const SWAPPED: &str = "What memory would take in RAM whose content is compressed or in a file.";
        self.gauge("ebb_swapped_bytes", SWAPPED, of(&[]), totals.swapped * PAGE_BYTES);
        const SHARED: &str = "What of ebb_memory_bytes is shared since a fork, and counts for another process, too.";
        self.gauge("ebb_shared_bytes", SHARED, of(&[]), totals.shared * PAGE_BYTES);
        self.gauge(
            "ebb_unmanaged_bytes",
            "Memory of processes that Ebb does not manage.",
            of(&[]),
            totals.outside * PAGE_BYTES,
        );
        for (tier, Content { pages, bytes }) in totals.tiers() {
            const CONTENT: &str = "What the pages in a tier would take in memory.";
            self.gauge("ebb_tier_content_bytes", CONTENT, of(&[("tier", tier)]), pages * PAGE_BYTES);
            self.gauge("ebb_tier_bytes", "What they take there.", of(&[("tier", tier)]), bytes);
        }
    }

    fn process(&mut self, row: &Row, of: &impl Fn(&[(&'static str, &str)]) -> Labels) {
        let Some(pid) = row.pid.map(|pid| pid.to_string()) else { return };
        let of = || of(&[("process", pid.as_str()), ("command", row.command.as_str())]);
        if let What::Managed { figures, .. } = &row.what {
            const WANTED: &str = "Memory of the process with content, wherever that is.";
            self.gauge("ebb_process_wanted_bytes", WANTED, of(), figures.wanted * PAGE_BYTES);
            const SWAPPED: &str = "Memory of the process whose content is compressed or in a file.";
            self.gauge("ebb_process_swapped_bytes", SWAPPED, of(), figures.swapped() * PAGE_BYTES);
            self.counter("ebb_process_faults", "Faults of the process that Ebb served.", of(), figures.faults);
        }
        self.gauge("ebb_process_held_bytes", "What the process holds of the budget.", of(), row.held() * PAGE_BYTES);
    }

    /// What has happened in the tree.
    fn events(&mut self, page: &Shared, events: &Events, of: &impl Fn(&[(&'static str, &str)]) -> Labels) {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let bytes = |pages: u64| pages.saturating_mul(PAGE_BYTES);
        const FAULTS: &str = "Faults by what they found: nothing yet, a staged page, one in the pool, one in a file, a \
                              clean page to be written to, or a page that another thread had just brought in.";
        for (kind, count) in events.faults() {
            self.counter("ebb_faults", FAULTS, of(&[("kind", kind)]), count);
        }
        const COLD: &str = "Of the faults in the pool, those on pages in its cold tier.";
        self.counter("ebb_cold_faults", COLD, of(&[]), events.faults_cold);
        const OUT: &str = "Memory that was swapped out, by where to.";
        for (to, pages) in events.swapped_out() {
            self.counter("ebb_swapped_out_bytes", OUT, of(&[("to", to)]), bytes(pages));
        }
        const BACK: &str = "Memory that went on from the pool to a file.";
        self.counter("ebb_written_back_bytes", BACK, of(&[]), bytes(events.writeback_pages));
        const STALL: &str = "Time that threads of the programs lost to swap, in all threads.";
        self.time("ebb_stall_seconds", STALL, of(&[("cause", "fault")]), events.fault_ns);
        self.time("ebb_stall_seconds", STALL, of(&[("cause", "reclaim")]), events.reclaim_ns);
        const WAITING: &str =
            "Time in which at least one thread of the programs waited in a fault: some of the kernel's PSI.";
        self.time("ebb_pressure_waiting_seconds", WAITING, of(&[]), events.some_ns);
        const BACKGROUND: &str = "Processor time of Ebb's background threads.";
        self.time("ebb_background_seconds", BACKGROUND, of(&[]), get(&page.background_ns));
        const UNREADABLE: &str = "Pages that could not be brought back when somebody needed them.";
        self.counter("ebb_unreadable_pages", UNREADABLE, of(&[]), get(&page.unreadable_pages));
        const FAILED: &str = "Writes that a device did not take, for a reason other than lack of space.";
        self.counter("ebb_device_write_errors", FAILED, of(&[]), get(&page.device_write_errors));
    }
}

/// The families of these trees.
fn families(all: &[Told<'_>]) -> Vec<Family> {
    let mut families = Families(Vec::new());
    all.iter().for_each(|told| families.tree(told));
    families.0
}

fn told(tree: &RunningTree) -> Told<'_> {
    let shown = shown(tree, &Faults::look(tree));
    Told { shown, page: tree.counters.page(), devices: reads::told(&tree.counters).collect() }
}

/// The metrics of the trees that `targets` name, as they are now.
fn page(targets: &[Target], format: Format, missing: Missing) -> Result<String, Failure> {
    // As for `ebb ps`: what dead processes held is taken back first.
    let running = |targets| trees::running(Path::new(process::PROC), Access::Change, targets);
    let all = match missing {
        Missing::Fails => trees::select(running(targets)?, targets)?,
        Missing::Ended => trees::those(running(&[])?, targets),
    };
    Ok(text(&families(&all.iter().map(told).collect::<Vec<_>>()), format))
}

/// What it means that a tree is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// It was named by mistake.
    Fails,
    /// It has ended or is yet to come: there is nothing to tell of it.
    Ended,
}

/// Writes the file in one step: who reads it sees the old one or the new one.
fn write_file(directory: &Path, text: &str) -> Result<(), Failure> {
    let fails = |error: std::io::Error| {
        let what = format!("--textfile {}", directory.display());
        Failure::ebb(
            what,
            error,
            "give a directory that `ebb` may write to, such as that of node_exporter's textfile collector",
        )
    };
    let temporary = directory.join(format!(".{FILE}.{}", std::process::id()));
    // One that is there belongs to a process that has ended, or is a trap.
    let _ = std::fs::remove_file(&temporary);
    let written = std::fs::File::create_new(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&temporary, directory.join(FILE)));
    written.map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        fails(error)
    })
}

/// Tells the metrics once, or until it is ended. The text to print.
pub fn report(metrics: &Metrics) -> Result<String, Failure> {
    let Metrics { targets, to } = metrics;
    match to {
        Destination::Output => page(targets, Format::OpenMetrics, Missing::Fails),
        Destination::Directory(directory) => {
            write_file(directory, &page(targets, Format::Prometheus, Missing::Ended)?)?;
            Ok(String::new())
        }
        Destination::Listen(address) => {
            let listener = Listener::bind(address).map_err(|error| {
                let what = match address {
                    Address::Inet(address) => format!("--listen {address}"),
                    Address::Unix(path) => format!("--listen unix:{}", path.display()),
                };
                Failure::ebb(what, error, "give an address of this machine that is free")
            })?;
            sys::complain(&format!("ebb: metrics at {}", listener.url(PATH)));
            listener.serve(PATH, || match page(targets, Format::OpenMetrics, Missing::Ended) {
                Ok(body) => Answer { status: "200 OK", content_type: Format::OpenMetrics.content_type(), body },
                Err(failure) => Answer {
                    status: "503 Service Unavailable",
                    content_type: "text/plain; charset=utf-8",
                    body: format!("{failure}\n"),
                },
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::counters::Counters;
    use crate::show::look::{Figures, Idle, Tier};

    fn web() -> Shown {
        let tier = |name, pages, bytes| Tier { name, pages, bytes };
        let figures = Figures {
            wanted: 1000,
            charged: 500,
            shared: 20,
            staged: 10,
            pool: 100,
            faults: 7,
            age_ms: None,
            tiers: [tier("hot", 300, 400_000), tier("cold", 0, 0), tier("device", 5, 20_480)],
        };
        Shown {
            label: "web".into(),
            name: Some("web".into()),
            supervisor: 7,
            budget_bytes: 64 << 20,
            held_bytes: 54 << 20,
            peak_bytes: 60 << 20,
            show_ram_bytes: None,
            idle: Idle { period_ms: 0, out_bytes: 0, written_bytes: 0 },
            events: Events::default(),
            stalled_some: Some(125_000),
            stalled_full: None,
            rows: vec![
                Row { pid: Some(8), command: "a\"b".into(), what: What::Managed { figures, faults_per_s: 1 } },
                Row { pid: None, command: "(others)".into(), what: What::Others { pages: 3 } },
            ],
        }
    }

    #[test]
    fn a_tree_its_processes_and_its_devices_are_told() {
        let counters = Counters::create().unwrap();
        let page = counters.page();
        page.faults_pool.store(9, Relaxed);
        page.faults_cold.store(2, Relaxed);
        page.fault_ns.store(1_500_000_000, Relaxed);
        // An instant is two million cycles, of 1 ns each.
        page.ns_per_cycle.store(1 << 20, Relaxed);
        page.stalls.note(0, 5 << 21);
        page.devices.get(page.devices.enter(b"/d", 1)).unwrap().reads.store(4, Relaxed);
        let all = [Told {
            shown: Shown { events: Events::of(page), show_ram_bytes: Some(3 << 30), ..web() },
            page,
            devices: reads::told(&counters).collect(),
        }];
        let said = text(&families(&all), Format::OpenMetrics);
        for line in [
            "ebb_budget_bytes{tree=\"web\",pid=\"7\"} 67108864",
            "ebb_processes{tree=\"web\",pid=\"7\",managed=\"yes\"} 1",
            "ebb_processes{tree=\"web\",pid=\"7\",managed=\"no\"} 1",
            "ebb_memory_bytes{tree=\"web\",pid=\"7\",state=\"resident\"} 1597440",
            "ebb_swapped_bytes{tree=\"web\",pid=\"7\"} 2457600",
            "ebb_unmanaged_bytes{tree=\"web\",pid=\"7\"} 12288",
            "ebb_tier_bytes{tree=\"web\",pid=\"7\",tier=\"hot\"} 400000",
            "ebb_process_held_bytes{tree=\"web\",pid=\"7\",process=\"8\",command=\"a\\\"b\"} 1966080",
            "ebb_faults_total{tree=\"web\",pid=\"7\",kind=\"pool\"} 9",
            "ebb_cold_faults_total{tree=\"web\",pid=\"7\"} 2",
            "ebb_stall_seconds_total{tree=\"web\",pid=\"7\",cause=\"fault\"} 1.500000000",
            "ebb_pressure_waiting_seconds_total{tree=\"web\",pid=\"7\"} 0.010485760",
            "ebb_shown_ram_bytes{tree=\"web\",pid=\"7\"} 3221225472",
            "ebb_device_reads_total{tree=\"web\",pid=\"7\",directory=\"/d\",kind=\"hdd\"} 4",
        ] {
            assert!(said.lines().any(|said| said == line), "{line}: {said}");
        }
        let without = [Told { shown: web(), page, devices: Vec::new() }];
        assert!(!text(&families(&without), Format::OpenMetrics).contains("ebb_shown_ram_bytes"));
        // Each family once, with all its samples.
        assert_eq!(said.matches("# TYPE ebb_faults ").count(), 1);
    }

    #[test]
    fn a_file_is_written_whole_and_a_directory_that_is_none_is_said() {
        let directory = tempfile::tempdir().unwrap();
        write_file(directory.path(), "one\n").unwrap();
        write_file(directory.path(), "two\n").unwrap();
        let names: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [FILE]);
        assert_eq!(std::fs::read_to_string(directory.path().join(FILE)).unwrap(), "two\n");
        let failure = write_file(&directory.path().join("none"), "x").unwrap_err().to_string();
        assert!(failure.contains("--textfile") && failure.contains("No such file"), "{failure}");
    }
}
