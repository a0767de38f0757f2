//! The line of JSON.

use crate::options::Options;
use crate::workload::{Outcome, Phase};
use std::fmt::Write;

/// An access that takes longer than this was no mere miss of the processor's caches.
const SLOW_NS: f64 = 1000.0;

fn per(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

fn ebb(phase: &Phase) -> String {
    if phase.counted.ebb.is_empty() {
        return "null".to_owned();
    }
    let moved = phase.counted.ebb.iter().filter(|(name, value)| *value != 0 && *name != "magic");
    format!("{{{}}}", moved.map(|(name, value)| format!("\"{name}\":{value}")).collect::<Vec<_>>().join(","))
}

fn filled(pages: usize, phase: &Phase) -> String {
    format!(
        "{{\"pages\":{pages},\"wall_ns\":{},\"cpu_ns\":{},\"ns_per_page\":{:.1},\"ebb\":{}}}",
        phase.wall_ns,
        phase.counted.cpu_ns,
        per(phase.wall_ns, pages as u64),
        ebb(phase)
    )
}

/// What a run found, on one line.
pub fn line(options: &Options, outcome: &Outcome) -> String {
    let Outcome { measured, accesses, latency, .. } = outcome;
    let counted = &measured.counted;
    let ns = |cycles: u64| (cycles as f64 * outcome.ns_per_cycle) as u64;
    let mut line = String::from("{");
    let mut put = |name: &str, value: String| {
        let separator = if line.len() > 1 { "," } else { "" };
        write!(line, "{separator}\"{name}\":{value}").expect("writing to a string");
    };
    put("workload", format!("\"{}\"", options.workload.name()));
    put("data", format!("\"{}\"", options.data.name()));
    put("threads", options.threads.to_string());
    put("processes", options.processes.to_string());
    put("mib", (options.pages / 256 * options.processes).to_string());
    put("accesses", accesses.to_string());
    put("wall_ns", measured.wall_ns.to_string());
    put("ns_per_access", format!("{:.1}", per(outcome.thread_ns, *accesses)));
    put("accesses_per_second", format!("{:.0}", *accesses as f64 * 1e9 / measured.wall_ns as f64));
    put("cpu_ns_per_access", format!("{:.1}", per(counted.cpu_ns, *accesses)));
    put("pages_in", counted.pages_in().to_string());
    put("pages_in_per_access", format!("{:.5}", per(counted.pages_in(), *accesses)));
    put("pages_staged_back", counted.ebb("staged_back_pages").to_string());
    put("slow_accesses", latency.above((SLOW_NS / outcome.ns_per_cycle) as u64).to_string());
    put("major_faults", counted.major_faults.to_string());
    put("minor_faults", counted.minor_faults.to_string());
    let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)];
    let mut latencies: Vec<_> =
        quantiles.iter().map(|(name, share)| format!("\"{name}\":{}", ns(latency.quantile(*share)))).collect();
    latencies.push(format!("\"max\":{}", ns(latency.max())));
    put("latency_ns", format!("{{{}}}", latencies.join(",")));
    put("fill_resident", filled(outcome.fill[0].0, &outcome.fill[0].1));
    put("fill_beyond", filled(outcome.fill[1].0, &outcome.fill[1].1));
    put("ebb", ebb(measured));
    put("verified_pages", outcome.verified.to_string());
    line.push('}');
    line
}
