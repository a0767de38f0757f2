//! What a [`Curve`] says about budgets, as a table for people and as JSON.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::base::failure::Failure;
use crate::base::size::{human_bytes, human_ns, short_bytes};
use crate::base::table;
use crate::running::counters::PAGE_BYTES;
use crate::running::curve::{Curve, Forecast, Lack, Outcome};

/// What is wanted of the advice.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    /// How many times as long the program may take.
    pub goal: Option<f64>,
    /// Where to write the advice as JSON.
    pub json: Option<PathBuf>,
}

impl Eq for Wish {}

/// Parses the value of `--goal`: `1.2x`, `1.2` or `20%`. The error says what is wrong.
pub fn parse_goal(text: &str) -> Result<f64, &'static str> {
    let text = text.trim();
    let number = |text: &str| text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
    let times = match text.strip_suffix('%') {
        Some(percent) => number(percent.trim_end()).map(|percent| 1.0 + percent / 100.0),
        None => number(text.strip_suffix(['x', 'X']).unwrap_or(text).trim_end()),
    };
    match times {
        None => Err("this is not a number"),
        Some(times) if times < 1.0 => Err("nothing takes less time than with RAM for everything"),
        Some(times) => Ok(times),
    }
}

/// Widest bar of the plot.
const BAR: usize = 24;
/// A bar is as long for this many times, and for more.
const BAR_TIMES: f64 = 4.0;

/// What was measured, and what was wished.
pub struct Advice<'a> {
    pub name: &'a str,
    pub curve: &'a Curve,
    pub has_device: bool,
    pub goal: Option<f64>,
    /// Why there are no forecasts, if there are none.
    pub lack: Option<Lack>,
}

fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_BYTES)
}

/// A budget as it is written after `--ram`, rounded up to whole MiB, or KiB where it is small.
pub fn ram(pages: u64) -> String {
    let (bytes, unit) = (bytes(pages), if bytes(pages) < 16 << 20 { 1 << 10 } else { 1 << 20 });
    short_bytes(bytes.next_multiple_of(unit))
}

impl Lack {
    /// The exit status of an `ebb advise -- PROGRAM` that has no forecast, if PROGRAM itself ended with 0.
    pub const STATUS: i32 = 124;

    /// For programs.
    fn word(self) -> &'static str {
        match self {
            Self::Unmanaged => "unmanaged",
            Self::Short => "too short",
            Self::Small => "too small",
        }
    }

    /// For people: what is wrong, and what to do.
    fn text(self) -> &'static str {
        match self {
            Self::Unmanaged => {
                "the program never had enough memory to be managed, or ended too soon; give it a longer input, or a larger one"
            }
            Self::Short => {
                "the run was too short to forecast from: it ended before half of what it wanted was tried; \
                 give it a longer input, or repeat its work"
            }
            Self::Small => {
                "the program is too small to forecast from: the smallest budget that was tried has room for it; \
                 give it a larger input"
            }
        }
    }
}

impl Outcome {
    fn text(self) -> String {
        match self {
            Self::Times(times) if times < 100.0 => format!("{times:.2}x"),
            Self::Times(times) => format!("{times:.0}x"),
            Self::More(times) => format!("> {}", Self::Times(times).text()),
            Self::Unknown => "unknown".to_owned(),
            Self::TooSmall => "too small".to_owned(),
        }
    }

    fn bar(self) -> String {
        let Self::Times(times) = self else { return String::new() };
        let part = ((times - 1.0) / (BAR_TIMES - 1.0)).clamp(0.0, 1.0);
        let len = (part * BAR as f64).round() as usize;
        format!("{}{}", "#".repeat(len), if times > BAR_TIMES { ">" } else { "" })
    }
}

impl Advice<'_> {
    /// A forecast for each tenth of what was wanted, the largest first.
    fn tenths(&self) -> Vec<(u64, Forecast)> {
        let wanted = self.curve.peak_wanted();
        let of = |tenth| (tenth * 10, self.curve.forecast(wanted * tenth / 10, self.has_device));
        (1..=10).rev().map(of).collect()
    }

    fn smallest(&self) -> Option<Forecast> {
        self.curve.smallest(self.goal.filter(|_| self.lack.is_none())?, self.has_device)
    }

    /// The table, and what it comes to.
    pub fn text(&self) -> String {
        if let Some(lack) = self.lack {
            return format!("{}: no advice: {}\n", self.name, lack.text());
        }
        let Some((lowest, highest, watched)) = self.curve.seen().filter(|_| self.curve.peak_wanted() > 0) else {
            return format!(
                "{}: no advice: the program never had enough memory to be managed, or ended too soon\n",
                self.name
            );
        };
        let mut text = format!(
            "{}: wanted up to {}; watched for {} while {} to {} of it were in RAM\n\n",
            self.name,
            human_bytes(bytes(self.curve.peak_wanted())),
            human_ns(watched.as_nanos() as u64),
            human_bytes(bytes(lowest)),
            human_bytes(bytes(highest)),
        );
        let headings = ["--ram", "OF WANTED", "TIME", "RESIDENT", "POOL", "DEVICE", ""];
        let mut lines = vec![headings.map(str::to_owned).to_vec()];
        for (percent, forecast) in self.tenths() {
            let is_told = forecast.outcome != Outcome::TooSmall;
            let size = |pages| if is_told { short_bytes(bytes(pages)) } else { "-".to_owned() };
            lines.push(vec![
                ram(forecast.ram),
                format!("{percent}%"),
                forecast.outcome.text(),
                size(forecast.resident),
                size(forecast.pool),
                size(forecast.on_device),
                forecast.outcome.bar(),
            ]);
        }
        text += &table::aligned(&lines, &[true, true, true, true, true, true, false]);
        text.push('\n');
        match self.curve.knee(self.has_device) {
            Some(knee) => {
                text += &format!(
                    "Knee: --ram {} ({}): more gains little, less costs much.\n",
                    ram(knee.ram),
                    knee.outcome.text()
                );
            }
            None => text += "Knee: none: no budget stands out.\n",
        }
        if let Some(goal) = self.goal {
            text += &match self.smallest() {
                Some(forecast) => format!(
                    "Goal: --ram {} is the smallest that keeps it within {goal:.2}x ({}).\n",
                    ram(forecast.ram),
                    forecast.outcome.text()
                ),
                None => format!("Goal: nothing that was measured keeps it within {goal:.2}x.\n"),
            };
        }
        text
    }

    /// The same, sizes in bytes.
    pub fn json(&self) -> Value {
        let forecast = |forecast: Forecast| {
            let (outcome, times) = match forecast.outcome {
                Outcome::Times(times) => ("measured", Some(times)),
                Outcome::More(times) => ("more", Some(times)),
                Outcome::Unknown => ("unknown", None),
                Outcome::TooSmall => ("too small", None),
            };
            json!({
                "ram_bytes": bytes(forecast.ram),
                "times": times,
                "outcome": outcome,
                "resident_bytes": bytes(forecast.resident),
                "pool_bytes": bytes(forecast.pool),
                "device_bytes": bytes(forecast.on_device),
            })
        };
        let (seen, knee) = (self.curve.seen(), self.curve.knee(self.has_device).filter(|_| self.lack.is_none()));
        let tenths = if self.lack.is_none() { self.tenths() } else { Vec::new() };
        json!({
            "name": self.name,
            "lack": self.lack.map(Lack::word),
            "wanted_bytes": bytes(self.curve.peak_wanted()),
            "watched_ns": seen.map(|(_, _, watched)| watched.as_nanos() as u64),
            "resident_bytes": seen.map(|(lowest, highest, _)| [bytes(lowest), bytes(highest)]),
            "stalled": self.curve.stalled(),
            "forecasts": tenths.into_iter().map(|(_, tenth)| forecast(tenth)).collect::<Vec<_>>(),
            "knee": knee.map(forecast),
            "goal": self.goal,
            "smallest": self.smallest().map(forecast),
        })
    }
}

/// Creates the file for the advice, before there is any.
pub fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| {
        Failure::ebb(format!("--json {}", path.display()), error, "name a file in a writable directory")
    })
}

impl Wish {
    /// Writes `advice` to a file that [`create`] made for it.
    pub fn write(&self, file: &mut File, advice: &Advice<'_>) -> Result<(), Failure> {
        file.write_all(format!("{:#}\n", advice.json()).as_bytes()).map_err(|error| {
            let path = self.json.as_deref().unwrap_or(Path::new(""));
            Failure::ebb(format!("--json {}", path.display()), error, "make room there, or name another file")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_multiples_or_percentages() {
        let goals = ["1.2x", "1.2", " 1.2 X", "20%", "20 %"].map(parse_goal);
        assert!(goals.iter().all(|goal| goal.is_ok_and(|goal| (goal - 1.2).abs() < 1e-9)), "{goals:?}");
        assert_eq!(["fast", "", "nan", "-1x", "infx"].map(parse_goal), [Err("this is not a number"); 5]);
        assert!(parse_goal("0.9x").is_err());
    }

    #[test]
    fn budgets_are_rounded_up_to_what_one_writes() {
        assert_eq!([257, 4096, 25_700, 262_144].map(ram), ["1M", "16M", "101M", "1G"].map(str::to_owned));
    }

    #[test]
    fn bars_are_as_long_as_the_loss() {
        let bar = |times| Outcome::Times(times).bar();
        assert_eq!((bar(1.0).len(), bar(2.5).len(), bar(4.0).len()), (0, BAR / 2, BAR));
        assert!(bar(9.0).ends_with("#>"));
        assert_eq!(Outcome::Unknown.bar(), "");
    }

    #[test]
    fn without_a_measurement_there_is_no_advice() {
        let advice = Advice { name: "x", curve: &Curve::default(), has_device: true, goal: Some(1.2), lack: None };
        assert!(advice.text().starts_with("x: no advice: "), "{}", advice.text());
        assert_eq!(advice.json()["knee"], Value::Null);
        for lack in [Lack::Unmanaged, Lack::Short, Lack::Small] {
            let advice = Advice { lack: Some(lack), ..advice };
            assert!(advice.text().starts_with("x: no advice: "), "{}", advice.text());
            let json = advice.json();
            assert_eq!((&json["lack"], &json["forecasts"]), (&json!(lack.word()), &json!([])));
        }
    }
}
