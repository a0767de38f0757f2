//! The text in which Prometheus and others read metrics: OpenMetrics 1.0, and Prometheus' own format 0.0.4 for node_exporter, which
//! reads no other from files.

use std::fmt::Write;

/// Which of the two formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    /// As HTTP calls it.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up, while what it is of lives.
    Counter,
}

/// A value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    Count(u64),
    /// Shown in seconds.
    Nanoseconds(u64),
}

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// A metric, and a sample for each set of labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    /// Without `_total`. Ends with the unit, if there is one.
    pub name: &'static str,
    pub kind: Kind,
    /// A sentence. It needs no escapes.
    pub help: &'static str,
    pub samples: Vec<(Labels, Number)>,
}

const UNITS: [&str; 2] = ["bytes", "seconds"];

impl Family {
    fn unit(&self) -> Option<&'static str> {
        UNITS.into_iter().find(|unit| self.name.rsplit_once('_').is_some_and(|(_, last)| last == *unit))
    }

    fn write(&self, format: Format, out: &mut String) {
        let Self { name, help, .. } = self;
        let (suffix, kind) = match self.kind {
            Kind::Gauge => ("", "gauge"),
            Kind::Counter => ("_total", "counter"),
        };
        // OpenMetrics names the family, the older format the samples.
        let described = if format == Format::OpenMetrics { "" } else { suffix };
        let _ = writeln!(out, "# TYPE {name}{described} {kind}");
        if let (Some(unit), Format::OpenMetrics) = (self.unit(), format) {
            let _ = writeln!(out, "# UNIT {name} {unit}");
        }
        let _ = writeln!(out, "# HELP {name}{described} {help}");
        for (labels, number) in &self.samples {
            let labels: Vec<String> =
                labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
            let value = match number {
                Number::Count(count) => count.to_string(),
                Number::Nanoseconds(ns) => format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000),
            };
            let _ = writeln!(out, "{name}{suffix}{{{}}} {value}", labels.join(","));
        }
    }
}

/// A label's value, as both formats want it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// All families that have samples.
pub fn text(families: &[Family], format: Format) -> String {
    let mut out = String::new();
    families.iter().filter(|family| !family.samples.is_empty()).for_each(|family| family.write(format, &mut out));
    if format == Format::OpenMetrics {
        out += "# EOF\n";
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> [Family; 3] {
        let of = |value: &str| vec![("tree", value.to_owned())];
        [
            Family {
                name: "ebb_stall_seconds",
                kind: Kind::Counter,
                help: "Time.",
                samples: vec![(of("a\"\\\n"), Number::Nanoseconds(1_000_000_020))],
            },
            Family { name: "ebb_none", kind: Kind::Gauge, help: "Nothing.", samples: Vec::new() },
            Family {
                name: "ebb_processes",
                kind: Kind::Gauge,
                help: "Processes.",
                samples: vec![(of("b"), Number::Count(3)), (of("c"), Number::Count(0))],
            },
        ]
    }

    #[test]
    fn openmetrics_describes_families_and_ends() {
        let expected = "# TYPE ebb_stall_seconds counter\n\
                        # UNIT ebb_stall_seconds seconds\n\
                        # HELP ebb_stall_seconds Time.\n\
                        ebb_stall_seconds_total{tree=\"a\\\"\\\\\\n\"} 1.000000020\n\
                        # TYPE ebb_processes gauge\n\
                        # HELP ebb_processes Processes.\n\
                        ebb_processes{tree=\"b\"} 3\n\
                        ebb_processes{tree=\"c\"} 0\n\
                        # EOF\n";
        assert_eq!(text(&families(), Format::OpenMetrics), expected);
        assert_eq!(text(&[], Format::OpenMetrics), "# EOF\n");
    }

    #[test]
    fn the_older_format_describes_samples() {
        let shown = text(&families(), Format::Prometheus);
        assert!(shown.starts_with("# TYPE ebb_stall_seconds_total counter\n# HELP ebb_stall_seconds_total Time.\n"));
        assert!(!shown.contains("# UNIT") && !shown.contains("# EOF"));
    }
}
