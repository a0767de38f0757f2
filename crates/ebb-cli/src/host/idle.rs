//! The idle period: what `--idle` says.

use std::ffi::OsStr;
use std::time::Duration;

use ebb::{IDLE_MS_MAX, IDLE_MS_MIN};

use crate::base::failure::Failure;

const REMEDY: &str = "write a time from 1s to 24h, such as 30s, 10m or 1.5h, or off";

/// Parses the value of `--idle`: milliseconds, and 0 for `off`.
pub fn parse(value: &OsStr) -> Result<u64, Failure> {
    if value.to_str().map(str::trim) == Some("off") {
        return Ok(0);
    }
    parse_ms("--idle", value, REMEDY)
}

/// Parses the value of another option, as a time of the same kind.
pub fn parse_time(option: &str, value: &OsStr) -> Result<Duration, Failure> {
    parse_ms(option, value, "write a time from 1s to 24h, such as 30s, 10m or 1.5h").map(Duration::from_millis)
}

fn parse_ms(option: &str, value: &OsStr, remedy: &str) -> Result<u64, Failure> {
    let text = value.to_string_lossy();
    let refused = |why: &str| Failure::ebb(format!("{option} {text}"), why, remedy);
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let is_number = number.starts_with(|c: char| c.is_ascii_digit()) && !number.ends_with('.');
    let number = number.parse::<f64>().ok().filter(|_| is_number);
    let number = number.ok_or_else(|| refused("this is not a time"))?;
    let unit_ms = match unit.trim_start() {
        "s" => 1000.0,
        "m" | "min" => 60_000.0,
        "h" => 3_600_000.0,
        "" => return Err(refused("the unit is missing")),
        other => return Err(refused(&format!("`{other}` is not a unit"))),
    };
    // Beyond what the type can say it is the largest value, which is too long.
    match (number * unit_ms).round() as u64 {
        ms if ms < IDLE_MS_MIN => Err(refused("it is shorter than a second")),
        ms if ms > IDLE_MS_MAX => Err(refused("it is longer than a day")),
        ms => Ok(ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let of = |text: &str| parse(OsStr::new(text));
        let ms = [("30s", 30_000), ("10m", 600_000), ("10min", 600_000), ("1h", 3_600_000), ("1.5h", 5_400_000)];
        ms.iter().for_each(|(text, ms)| assert_eq!(of(text), Ok(*ms), "{text}"));
        assert_eq!([of("1s"), of("24h"), of(" 2 m "), of("off")], [Ok(1000), Ok(86_400_000), Ok(120_000), Ok(0)]);
    }

    #[test]
    fn what_is_no_time_is_refused_in_one_line() {
        for (text, why) in [
            ("", "this is not a time"),
            ("soon", "this is not a time"),
            ("-5s", "this is not a time"),
            (".5m", "this is not a time"),
            ("1.s", "this is not a time"),
            ("1.2.3s", "this is not a time"),
            ("10", "the unit is missing"),
            ("10x", "`x` is not a unit"),
            ("500ms", "`ms` is not a unit"),
            ("1d", "`d` is not a unit"),
            ("0s", "it is shorter than a second"),
            ("0.9s", "it is shorter than a second"),
            ("25h", "it is longer than a day"),
            ("99999999999999999999999999h", "it is longer than a day"),
        ] {
            let said = parse(OsStr::new(text)).expect_err(text).to_string();
            assert_eq!(said, format!("ebb: --idle {text}: {why}; {REMEDY}"));
        }
    }
}
