//! The columns in which trees and processes are shown: their names, what they mean, and their values.
//!
//! A line is a process, or a tree with the sums over its processes. Of what only trees have, a process shows its tree's.

use crate::base::failure::Failure;
use crate::base::size::{fixed_bytes, fixed_count, short_bytes};
use crate::base::text::printable;
use crate::running::counters::PAGE_BYTES;
use crate::show::look::{Row, Shown, Totals, What};

/// Shown where there is no figure.
pub const NONE: &str = "-";

/// A line to show.
pub struct Line<'a> {
    pub shown: &'a Shown,
    /// None for the tree as a whole.
    pub row: Option<&'a Row>,
    /// Of the process, or of the tree.
    pub totals: Totals,
}

impl<'a> Line<'a> {
    pub fn of_tree(shown: &'a Shown) -> Self {
        Self { shown, row: None, totals: shown.totals() }
    }

    pub fn of_process(shown: &'a Shown, row: &'a Row) -> Self {
        let mut totals = Totals::default();
        totals.add(row);
        Self { shown, row: Some(row), totals }
    }

    /// What only managed processes have.
    fn managed(&self, value: Value) -> Value {
        if self.row.is_some() && self.totals.managed == 0 { Value::None } else { value }
    }

    fn pages(&self, pages: fn(&Totals) -> u64) -> Value {
        self.managed(Value::Bytes(pages(&self.totals) * PAGE_BYTES))
    }

    fn ratio(&self) -> Value {
        self.totals.compressed().ratio().map_or(Value::None, Value::Ratio)
    }

    fn age(&self) -> Value {
        let figures = |row: &Row| match &row.what {
            What::Managed { figures, .. } => figures.age_ms,
            What::Outside { .. } | What::Others { .. } => None,
        };
        self.row.and_then(figures).map_or(Value::None, Value::Ms)
    }

    fn is_managed(&self) -> Value {
        let said = if self.totals.managed > 0 { "yes" } else { "no" };
        self.row.map_or(Value::None, |_| Value::Text(said.to_owned()))
    }
}

/// What a line has in a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    None,
    Text(String),
    Bytes(u64),
    Count(u64),
    /// A process's number, which is never shortened.
    Pid(i32),
    Ms(u64),
    /// How many times smaller something got.
    Ratio(f64),
    /// A share in millionths.
    Share(u64),
    Off,
}

/// How values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `1.5G`: for people who read a table.
    Short,
    /// For programs: bytes, milliseconds.
    Plain,
    /// At most five characters wide, so that a table stands still while its figures change.
    Fixed,
}

/// `250ms`, `1.5s`, `3m`, `2h`.
pub fn short_age(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{}m", ms / 60_000),
        _ => format!("{}h", ms / 3_600_000),
    }
}

/// `3.2`, `0.04`, `57`: a share in per cent, to three digits and at most two after the point.
pub fn percent(millionths: u64) -> String {
    let percent = millionths as f64 / 1e4;
    match percent {
        ..9.995 => format!("{percent:.2}"),
        ..99.95 => format!("{percent:.1}"),
        _ => format!("{percent:.0}"),
    }
}

/// `3.81`, `12.5`, `512`.
pub fn ratio(ratio: f64) -> String {
    match ratio {
        ..9.995 => format!("{ratio:.2}"),
        ..99.95 => format!("{ratio:.1}"),
        _ => format!("{ratio:.0}"),
    }
}

impl Value {
    pub fn text(&self, form: Form) -> String {
        match (self, form) {
            (Self::None, _) => NONE.to_owned(),
            (Self::Off, _) => "off".to_owned(),
            (Self::Text(text), _) => text.clone(),
            (Self::Pid(pid), _) => pid.to_string(),
            (Self::Bytes(bytes), Form::Short) => short_bytes(*bytes),
            (Self::Bytes(bytes), Form::Fixed) => fixed_bytes(*bytes),
            (Self::Bytes(count) | Self::Count(count) | Self::Ms(count), Form::Plain) => count.to_string(),
            (Self::Count(count), Form::Short) => count.to_string(),
            (Self::Count(count), Form::Fixed) => fixed_count(*count),
            (Self::Ms(ms), Form::Short) => short_age(*ms),
            (Self::Ms(ms), Form::Fixed) => {
                if *ms < 10_000 {
                    short_age(*ms)
                } else {
                    short_age(*ms / 1000 * 1000)
                }
            }
            (Self::Ratio(times), Form::Plain) => ratio(*times),
            (Self::Ratio(times), _) => format!("{}x", ratio(*times)),
            (Self::Share(millionths), Form::Plain) => percent(*millionths),
            (Self::Share(millionths), _) => format!("{}%", percent(*millionths)),
        }
    }

    /// What it is sorted by: numbers by their size, above lines that have none.
    pub fn number(&self) -> f64 {
        match self {
            Self::None | Self::Text(_) => -1.0,
            Self::Off => 0.0,
            Self::Bytes(count) | Self::Count(count) | Self::Ms(count) | Self::Share(count) => *count as f64,
            Self::Pid(pid) => f64::from(*pid),
            Self::Ratio(ratio) => *ratio,
        }
    }
}

/// What has a value in a column of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    Tree,
    Process,
    Both,
}

/// A column.
#[derive(Debug)]
pub struct Column {
    pub name: &'static str,
    pub of: Of,
    /// Text is aligned to the left.
    pub is_text: bool,
    pub meaning: &'static str,
    pub value: fn(&Line<'_>) -> Value,
}

/// Columns are the same if they have one name.
impl PartialEq for Column {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Column {}

impl Column {
    pub fn heading(&self) -> String {
        self.name.to_uppercase()
    }
}

/// A column of numbers.
const fn number(name: &'static str, of: Of, meaning: &'static str, value: fn(&Line<'_>) -> Value) -> Column {
    Column { name, of, is_text: false, meaning, value }
}

/// A column of text.
const fn text(name: &'static str, of: Of, meaning: &'static str, value: fn(&Line<'_>) -> Value) -> Column {
    Column { is_text: true, ..number(name, of, meaning, value) }
}

/// All columns.
pub static COLUMNS: [Column; 27] = [
    text("tree", Of::Both, "the tree's name, or the PID of its `ebb run`", |line| {
        Value::Text(line.shown.label.clone())
    }),
    number("supervisor", Of::Tree, "the PID of its `ebb run`", |line| Value::Pid(line.shown.supervisor)),
    number("budget", Of::Tree, "what all its processes may hold together", |line| {
        Value::Bytes(line.shown.budget_bytes)
    }),
    number("held", Of::Both, "what it holds of the budget", |line| {
        Value::Bytes(line.row.map_or(line.shown.held_bytes, |row| row.held() * PAGE_BYTES))
    }),
    number("free", Of::Tree, "what is left of the budget", |line| Value::Bytes(line.shown.free_bytes())),
    number("peak", Of::Tree, "the largest amount it held so far", |line| Value::Bytes(line.shown.peak_bytes)),
    number("processes", Of::Tree, "how many processes hold memory of the budget", |line| {
        Value::Count(line.shown.rows.len() as u64)
    }),
    number("stall", Of::Tree, "share of the last 10 s in which a thread waited in a fault", |line| {
        line.shown.stalled_some.map_or(Value::None, Value::Share)
    }),
    number("idle", Of::Tree, "after how long memory leaves that nobody uses", |line| match line.shown.idle.period_ms {
        0 => Value::Off,
        ms => Value::Ms(ms),
    }),
    number("unused", Of::Tree, "what left because nobody used it", |line| Value::Bytes(line.shown.idle.out_bytes)),
    number("to-device", Of::Tree, "how much of that went on to a device", |line| {
        Value::Bytes(line.shown.idle.written_bytes)
    }),
    number("pid", Of::Process, "the number of the process", |line| {
        line.row.and_then(|row| row.pid).map_or(Value::None, Value::Pid)
    }),
    text("command", Of::Process, "its command", |line| {
        line.row.map_or(Value::None, |row| Value::Text(row.command.clone()))
    }),
    number("age", Of::Process, "how long, at least, its coldest memory has not been used", |line| line.age()),
    text("managed", Of::Process, "no: Ebb cannot manage it, or it is still too small", |line| line.is_managed()),
    number("wanted", Of::Both, "memory with content, wherever the content is", |line| {
        Value::Bytes((line.totals.wanted + line.totals.outside) * PAGE_BYTES)
    }),
    number("resident", Of::Both, "memory reached without a fault, and Ebb's own tables", |line| {
        Value::Bytes((line.totals.resident + line.totals.outside) * PAGE_BYTES)
    }),
    number("shared", Of::Both, "memory shared since a fork that counts for another process", |line| {
        line.pages(|of| of.shared)
    }),
    number("staged", Of::Both, "memory that is unmapped but not compressed yet", |line| line.pages(|of| of.staged)),
    number("pool", Of::Both, "memory that compressed pages take, hot and cold", |line| line.pages(|of| of.pool)),
    number("swapped", Of::Both, "memory whose content is compressed or in a file", |line| line.pages(|of| of.swapped)),
    number("hot", Of::Both, "what pages take that fast codecs compressed", |line| {
        line.managed(Value::Bytes(line.totals.hot.bytes))
    }),
    number("cold", Of::Both, "what pages take that a slower codec made smaller since", |line| {
        line.managed(Value::Bytes(line.totals.cold.bytes))
    }),
    number("device", Of::Both, "what pages take that were written to a device", |line| {
        line.managed(Value::Bytes(line.totals.device.bytes))
    }),
    number("ratio", Of::Both, "how many times smaller compressed pages got", |line| line.ratio()),
    number("faults", Of::Both, "faults so far, of the processes that run", |line| {
        line.managed(Value::Count(line.totals.faults))
    }),
    number("faults/s", Of::Both, "faults a second", |line| line.managed(Value::Count(line.totals.faults_per_s))),
];

/// The column with this name, in either case.
pub fn named(name: &str) -> Option<&'static Column> {
    COLUMNS.iter().find(|column| column.name.eq_ignore_ascii_case(name))
}

/// A column that a user asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub column: &'static Column,
    pub heading: String,
}

/// What `-o` was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    Help,
    Columns(Vec<Asked>),
}

/// Parses a comma list of names as ps(1) does: `NAME=HEADING` has another heading, and `NAME=` none.
pub fn parse(list: &str) -> Result<Wish, Failure> {
    if list == "help" {
        return Ok(Wish::Help);
    }
    let one = |part: &str| {
        let (name, heading) = part.split_once('=').map_or((part, None), |(name, heading)| (name, Some(heading)));
        let column = named(name.trim()).ok_or_else(|| unknown(name.trim()))?;
        Ok(Asked { column, heading: heading.map_or_else(|| column.heading(), printable) })
    };
    list.split(',').map(one).collect::<Result<_, _>>().map(Wish::Columns)
}

fn unknown(name: &str) -> Failure {
    let names = COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
    Failure::ebb(
        format!("-o {}", printable(name)),
        "there is no such column",
        format!("write a comma list of these: {names}; `ebb ps -o help` says what they mean"),
    )
}

/// The names of all columns, and what they mean.
pub fn help() -> String {
    let mut out = String::new();
    for (of, what) in [
        (Of::Both, "Of each tree, or of each process:"),
        (Of::Process, "Of each process:"),
        (Of::Tree, "Of each tree, which its processes repeat:"),
    ] {
        out += &format!("{}{what}\n", if out.is_empty() { "" } else { "\n" });
        for column in COLUMNS.iter().filter(|column| column.of == of) {
            out += &format!("  {:<11} {}\n", column.name, column.meaning);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_each_has_a_line_of_help() {
        let help = help();
        for (at, column) in COLUMNS.iter().enumerate() {
            assert!(!COLUMNS[..at].contains(column), "{}", column.name);
            let lines = help.lines().filter(|line| line.split_whitespace().next() == Some(column.name)).count();
            assert_eq!(lines, 1, "{}", column.name);
        }
        assert!(help.lines().all(|line| line.len() <= 100), "{help}");
    }

    #[test]
    fn a_list_names_columns_in_its_order_and_with_its_headings() {
        let Ok(Wish::Columns(asked)) = parse("pid, HELD=MEM,command=") else { panic!("refused") };
        let told: Vec<_> = asked.iter().map(|asked| (asked.column.name, asked.heading.as_str())).collect();
        assert_eq!(told, [("pid", "PID"), ("held", "MEM"), ("command", "")]);
        assert_eq!(parse("help"), Ok(Wish::Help));
    }

    #[test]
    fn a_name_that_is_none_is_told_those_that_are() {
        for (list, name) in [("pid,rss", "rss"), ("", ""), ("pid,,held", ""), ("\x1b[2J", "\\x1b[2J")] {
            let said = parse(list).unwrap_err().to_string();
            let begin =
                format!("ebb: -o {name}: there is no such column; write a comma list of these: tree, supervisor, ");
            assert!(said.starts_with(&begin) && said.contains(" faults/s; "), "{said}");
        }
    }

    #[test]
    fn values_fit_their_form() {
        let all = |value: Value| [Form::Short, Form::Plain, Form::Fixed].map(|form| value.text(form));
        assert_eq!(all(Value::Bytes(1500 << 10)), ["1.5M", "1536000", "1.46M"]);
        assert_eq!(all(Value::Ms(61_000)), ["1m", "61000", "1m"]);
        assert_eq!(all(Value::Count(123_456)), ["123456", "123456", "123k"]);
        assert_eq!(all(Value::Ratio(3.25)), ["3.25x", "3.25", "3.25x"]);
        assert_eq!(all(Value::Share(123_456)), ["12.3%", "12.3", "12.3%"]);
        assert_eq!(all(Value::None), ["-", "-", "-"]);
        assert_eq!([0, 99_940, 100_000, 999_600, 1_000_000].map(percent), ["0.00", "9.99", "10.0", "100", "100"]);
        for ms in [999, 9_999, 59_999, 3_599_000, 999 * 3_600_000] {
            assert!(Value::Ms(ms).text(Form::Fixed).len() <= 5, "{ms}");
        }
    }

    #[test]
    fn ages_are_short() {
        assert_eq!([0, 999, 1_550, 61_000, 7_200_000].map(short_age), ["0ms", "999ms", "1.5s", "1m", "2h"]);
    }
}
