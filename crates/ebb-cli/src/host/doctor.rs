//! `ebb doctor`: shows every check of the host, as text or as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::host::checks::{self, Check, Status};

/// The report, and whether `ebb run` works here.
pub fn report(as_json: bool) -> (String, bool) {
    let checks = checks::checks();
    let works = checks.iter().all(|check| check.status != Status::Blocked);
    (if as_json { json_text(&checks, works) } else { text(&checks, works) }, works)
}

fn text(checks: &[Check], works: bool) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    let indent = " ".repeat(9 + width + 1);
    for check in checks {
        let _ = writeln!(out, "{:<8} {:<width$} {}", check.status.name(), check.name, check.found);
        if let Some(mechanism) = check.mechanism {
            let _ = writeln!(out, "{indent}uses: {mechanism}");
        }
        if let Some(remedy) = &check.remedy {
            let _ = writeln!(out, "{indent}remedy: {remedy}");
        }
    }
    let limited = checks.iter().filter(|check| check.status == Status::Limited).count();
    let _ = match (works, limited) {
        (true, 0) => writeln!(out, "\n`ebb run` works here."),
        (true, limited) => writeln!(out, "\n`ebb run` works here, with limitations ({limited} of the checks above)."),
        (false, _) => writeln!(out, "\n`ebb run` does not work here: fix what is blocked."),
    };
    out
}

fn json_text(checks: &[Check], works: bool) -> String {
    let checks: Vec<Value> = checks
        .iter()
        .map(|check| {
            json!({
                "name": check.name,
                "status": check.status.name(),
                "found": check.found,
                "mechanism": check.mechanism,
                "remedy": check.remedy,
            })
        })
        .collect();
    let report = json!({ "ebb": env!("CARGO_PKG_VERSION"), "works": works, "checks": checks });
    format!("{report:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(status: Status) -> Vec<Check> {
        vec![Check {
            name: "thing",
            status,
            found: "found".to_owned(),
            mechanism: Some("means"),
            remedy: Some("mend it".to_owned()),
        }]
    }

    #[test]
    fn the_text_names_status_means_and_remedy() {
        let text = text(&checks(Status::Blocked), false);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "blocked  thing found",
                "uses: means",
                "remedy: mend it",
                "",
                "`ebb run` does not work here: fix what is blocked."
            ]
        );
    }

    #[test]
    fn the_json_has_the_same() {
        let value: Value = serde_json::from_str(&json_text(&checks(Status::Limited), true)).unwrap();
        assert_eq!(value["works"], true);
        assert_eq!(value["checks"][0]["status"], "limited");
        assert_eq!(value["checks"][0]["remedy"], "mend it");
    }
}
