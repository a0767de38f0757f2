//! A run as a page for a browser: one file that needs no other, with the plots drawn as SVG.

use std::fmt::Write;
use std::time::Duration;

use crate::base::size::human_bytes;
use crate::run::record::{KINDS, Moment, Record};
use crate::running::counters::PAGE_BYTES;

/// What the page says beside the plots.
pub struct About<'a> {
    pub name: &'a str,
    pub command: String,
    /// How the program ended.
    pub end: String,
    pub wall: Duration,
    /// The figures at the top: a name and a value.
    pub figures: Vec<(&'static str, String)>,
    /// What `ebb run` prints in the end.
    pub summary: Vec<String>,
    /// What other budgets would do, as a table for a terminal.
    pub advice: Option<String>,
}

/// Size of a plot, in units that the browser stretches to the width and the height that it has. What is written at the axes is no part
/// of the picture, so that it stays legible on a small screen.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 200.0;
/// Steps between the lines across a plot, about.
const STEPS: f64 = 4.0;
/// Most steps along the axis of time, and the steps that there are, in seconds. Beyond, a step is a number of days.
const TIMES: f64 = 5.0;
const TIME_STEPS: [f64; 17] = [
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
    4.0 * 3600.0,
    12.0 * 3600.0,
];
const DAY: f64 = 24.0 * 3600.0;

/// Values over time, and how they look.
struct Series {
    name: &'static str,
    class: &'static str,
    values: Vec<f64>,
}

/// What the numbers of a plot are.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    PerSecond,
    Percent,
}

impl Unit {
    /// The step between lines across the plot, if the largest value is `most`.
    fn step(self, most: f64) -> f64 {
        let scale = match self {
            Self::Percent => return 25.0,
            Self::PerSecond => 1.0,
            Self::Bytes => power_below(most.max(1.0), 1024.0),
        };
        let raw = (most / scale / STEPS).max(0.001);
        let power = if raw < 1.0 { 1.0 / power_below(1.0 / raw, 10.0) / 10.0 } else { power_below(raw, 10.0) };
        let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|nice| nice * power >= raw * 0.999).unwrap_or(10.0);
        nice * power * scale
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Bytes => human_bytes(value as u64).replace(".0 ", " "),
            Self::Percent => format!("{value:.0}%"),
            Self::PerSecond if value >= 1e6 => format!("{}M", value / 1e6),
            Self::PerSecond if value >= 1e3 => format!("{}k", value / 1e3),
            Self::PerSecond => format!("{value:.1}").replace(".0", ""),
        }
    }
}

/// The largest power of `base` that is not above `value`, which is at least 1. Without libm, of which nothing else here needs
/// anything.
fn power_below(value: f64, base: f64) -> f64 {
    let mut power = 1.0;
    while power * base <= value {
        power *= base;
    }
    power
}

/// Text between tags or in an attribute.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, letter| {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter if letter.is_control() && letter != '\n' => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
        out
    })
}

fn time_text(seconds: f64) -> String {
    match seconds {
        s if s >= 7200.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 120.0 => format!("{:.1} min", s / 60.0),
        s if s >= 10.0 => format!("{s:.0} s"),
        s => format!("{s:.1} s"),
    }
}

/// What is written along an axis of time that ends after so many seconds: a time, and its name.
fn time_marks(end: f64) -> Vec<(f64, String)> {
    let fits = |step: &f64| end / step <= TIMES;
    let step = TIME_STEPS.into_iter().find(fits).unwrap_or_else(|| (end / TIMES / DAY).ceil() * DAY);
    let text = |time: f64| match step {
        step if step < 1.0 => format!("{time:.1} s"),
        step if step < 60.0 => format!("{time:.0} s"),
        step if step < 3600.0 => format!("{:.0} min", time / 60.0),
        _ => format!("{:.0} h", time / 3600.0),
    };
    let times = (0..).map(|at| f64::from(at) * step).take_while(|time| *time <= end * 1.0001);
    times.map(|time| (time, text(time))).collect()
}

/// A plot: `stacked` series one upon the other, and `lines` above them.
fn plot(title: &str, unit: Unit, times: &[f64], stacked: &[Series], lines: &[Series]) -> String {
    let sums: Vec<f64> = (0..times.len()).map(|at| stacked.iter().map(|series| series.values[at]).sum()).collect();
    let values = sums.iter().chain(lines.iter().flat_map(|line| &line.values));
    let most = if let Unit::Percent = unit { 100.0 } else { values.fold(0.0, |most: f64, value| most.max(*value)) };
    let step = unit.step(most);
    let steps = (most / step).ceil().max(1.0);
    let end = times.last().copied().unwrap_or(0.0).max(0.001);
    let x = |time: f64| time / end * WIDTH;
    let y = |value: f64| HEIGHT - value / (steps * step) * HEIGHT;
    let mut out = format!("<section><h2>{title}</h2>\n<p class=\"legend\">");
    for (series, kind) in stacked.iter().map(|series| (series, "area")).chain(lines.iter().map(|line| (line, "line"))) {
        let _ = write!(out, "<span><i class=\"{kind} {}\"></i>{}</span> ", series.class, series.name);
    }
    let _ = write!(out, "</p>\n<div class=\"plot\" role=\"img\" aria-label=\"{title}\">");
    let mut grid = String::new();
    for at in 0..=steps as u32 {
        let value = f64::from(at) * step;
        let _ = write!(grid, "M0,{0:.1}H{WIDTH}", y(value));
        let up = 100.0 * f64::from(at) / steps;
        let _ = write!(out, "<span class=\"y\" style=\"bottom:{up:.1}%\">{}</span>", unit.text(value));
    }
    for (time, text) in time_marks(end) {
        let _ = write!(out, "<span class=\"x\" style=\"left:{:.1}%\">{text}</span>", 100.0 * time / end);
    }
    let _ = write!(
        out,
        "\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\"><path class=\"grid\" d=\"{grid}\"/>"
    );
    let mut below = vec![0.0; times.len()];
    for series in stacked {
        let above: Vec<f64> = below.iter().zip(&series.values).map(|(below, value)| below + value).collect();
        let forth = times.iter().zip(&above).map(|(time, value)| (x(*time), y(*value)));
        let back = times.iter().zip(&below).rev().map(|(time, value)| (x(*time), y(*value)));
        let _ = write!(out, "<path class=\"area {}\" d=\"{}Z\"/>", series.class, path(forth.chain(back)));
        below = above;
    }
    for line in lines {
        let points = times.iter().zip(&line.values).map(|(time, value)| (x(*time), y(*value)));
        let _ = write!(out, "<path class=\"line {}\" d=\"{}\"/>", line.class, path(points));
    }
    out + "</svg></div></section>\n"
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    points.enumerate().fold(String::new(), |mut out, (at, (x, y))| {
        let _ = write!(out, "{}{x:.1},{y:.1}", if at == 0 { 'M' } else { 'L' });
        out
    })
}

fn series(name: &'static str, class: &'static str, moments: &[Moment], of: impl Fn(&Moment) -> u64) -> Series {
    let values = moments.iter().map(|moment| of(moment).saturating_mul(PAGE_BYTES) as f64).collect();
    Series { name, class, values }
}

/// For each moment what `of` makes of the time since the one before it.
fn since(moments: &[Moment], of: impl Fn(&Moment, &Moment) -> f64) -> Vec<f64> {
    let rates = moments.windows(2).map(|pair| of(&pair[0], &pair[1]));
    std::iter::once(0.0).chain(rates).take(moments.len()).collect()
}

fn plots(moments: &[Moment]) -> String {
    let times: Vec<f64> = moments.iter().map(|moment| moment.at.as_secs_f64()).collect();
    let memory = plot(
        "Memory in RAM",
        Unit::Bytes,
        &times,
        &[
            series("resident", "resident", moments, |m| m.resident),
            series("about to leave", "staged", moments, |m| m.staged),
            series("compressed", "pool", moments, |m| m.pool),
        ],
        &[
            series("wanted", "wanted", moments, |m| m.wanted),
            series("budget", "budget", moments, |m| {
                m.budget.min(2 * moments.iter().map(|m| m.wanted).max().unwrap_or(0))
            }),
        ],
    );
    let away = plot(
        "Swapped out, as it was before compression",
        Unit::Bytes,
        &times,
        &[
            series("compressed", "pool", moments, |m| m.wanted.saturating_sub(m.resident + m.staged + m.on_device)),
            series("on a device", "device", moments, |m| m.on_device),
        ],
        &[],
    );
    const FAULTS: [(&str, &str); KINDS] =
        [("new page", "new"), ("about to leave", "staged"), ("compressed", "pool"), ("in a file", "device")];
    let kinds: Vec<Series> = FAULTS
        .iter()
        .enumerate()
        .map(|(kind, (name, class))| {
            let rate = |before: &Moment, now: &Moment| {
                let seconds = (now.at - before.at).as_secs_f64().max(1e-3);
                now.faults[kind].saturating_sub(before.faults[kind]) as f64 / seconds
            };
            Series { name, class, values: since(moments, rate) }
        })
        .collect();
    let faults = plot("Faults per second, by what they found", Unit::PerSecond, &times, &kinds, &[]);
    let stalled = since(moments, |before, now| {
        let (own, stall) = (now.own_ns - before.own_ns, now.stall_ns - before.stall_ns);
        if own + stall > 0.0 { 100.0 * stall / (own + stall) } else { 0.0 }
    });
    let stalls = [Series { name: "waiting for swap", class: "device", values: stalled }];
    memory + &away + &faults + &plot("Time of the program's threads", Unit::Percent, &times, &stalls, &[])
}

const STYLE: &str = "\
:root{color-scheme:light dark;--fg:#1b1f24;--bg:#fff;--soft:#6b7280;--grid:#e3e6ea;--card:#f5f6f8;--resident:#4477aa;\
--staged:#66ccee;--pool:#ccbb44;--device:#aa3377;--new:#bbbbbb;--wanted:#1b1f24;--budget:#ee6677}\
@media(prefers-color-scheme:dark){:root{--fg:#e6e8eb;--bg:#15181c;--soft:#9aa3ad;--grid:#2c3138;--card:#1e2227;\
--wanted:#e6e8eb}}\
body{margin:0 auto;max-width:60rem;padding:1.5rem;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}\
h1{font-size:1.5rem;margin:0}h2{font-size:1rem;margin:1.6rem 0 0}h1,p{overflow-wrap:anywhere}\
code,pre{font:13px/1.45 ui-monospace,monospace}code{display:block;max-height:7.3em;overflow-y:auto;white-space:pre-wrap}\
pre{background:var(--card);border-radius:6px;padding:.8rem;overflow-x:auto}.sub,.legend{color:var(--soft);margin:.2rem 0}\
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr));gap:.6rem;margin:1.2rem 0}\
dl div{background:var(--card);border-radius:6px;padding:.5rem .8rem}dt{color:var(--soft);font-size:.8rem}\
dd{margin:0;font-size:1.15rem;font-variant-numeric:tabular-nums}.legend span{margin-right:1rem;white-space:nowrap}\
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.35em;vertical-align:-.05em}\
.legend i.line{height:.2em;vertical-align:.25em}\
.plot{position:relative;height:11rem;margin:.7rem .8rem 3rem 4.2rem;font-size:.75rem;line-height:1;color:var(--soft);\
white-space:nowrap}.x,.y{position:absolute}.y{right:100%;margin:0 .6em -.5em 0}\
.x{top:100%;margin-top:.6em;transform:translateX(-50%)}svg{position:absolute;width:100%;height:100%;overflow:visible}\
svg path{vector-effect:non-scaling-stroke}.grid{stroke:var(--grid)}\
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.area{opacity:.85}\
.resident{fill:var(--resident);background:var(--resident)}.staged{fill:var(--staged);background:var(--staged)}\
.pool{fill:var(--pool);background:var(--pool)}.device{fill:var(--device);background:var(--device)}\
.new{fill:var(--new);background:var(--new)}.wanted{stroke:var(--wanted);background:var(--wanted)}\
.budget{stroke:var(--budget);background:var(--budget);stroke-dasharray:6 4}\
.cost span{display:block;white-space:pre-wrap;overflow-wrap:anywhere;padding-left:5ch;text-indent:-5ch}";

/// The page.
pub fn html(about: &About<'_>, record: &Record) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{name} under Ebb</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{name} under Ebb</h1>\n\
         <p class=\"sub\"><code>{}</code></p>\n<p class=\"sub\">{}; ran {}</p>\n<dl>",
        escaped(&about.command),
        escaped(&about.end),
        time_text(about.wall.as_secs_f64()),
        name = escaped(about.name),
    );
    for (name, value) in &about.figures {
        let _ = write!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escaped(value));
    }
    out.push_str("</dl>\n");
    match record.moments.as_slice() {
        [_, _, ..] => out.push_str(&plots(&record.moments)),
        _ => out.push_str("<p>The program ended before there was anything to plot.</p>\n"),
    }
    let cost: String = about.summary.iter().map(|line| format!("<span>{}</span>", escaped(line))).collect();
    let _ = writeln!(out, "<section><h2>What it cost</h2>\n<pre class=\"cost\">{cost}</pre></section>");
    if let Some(advice) = &about.advice {
        let text = escaped(advice);
        let _ = writeln!(out, "<section><h2>What other budgets would do</h2>\n<pre>{text}</pre></section>");
    }
    let _ = write!(out, "<p class=\"sub\">Ebb {}</p>\n</body>\n</html>\n", env!("CARGO_PKG_VERSION"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(n: u64) -> Vec<Moment> {
        let at = |i: u64| Moment {
            at: Duration::from_millis(i * 100),
            budget: 1000,
            wanted: 100 * i,
            resident: 50 * i,
            staged: i,
            pool: 10 * i,
            on_device: i,
            faults: [i * 10, i, i * 1000, 0],
            own_ns: i as f64 * 5e7,
            stall_ns: i as f64 * 5e7,
        };
        (0..n).map(at).collect()
    }

    fn about(name: &str) -> About<'_> {
        About {
            name,
            command: format!("{name} -x"),
            end: "ended with status 0".into(),
            wall: Duration::from_secs(3),
            figures: vec![("Budget", "64 MiB".into())],
            summary: vec!["ebb: a & b".into()],
            advice: None,
        }
    }

    #[test]
    fn a_page_has_its_plots_and_escapes_what_the_user_wrote() {
        let mut record = Record::default();
        record.moments = moments(30);
        let page = html(&about("<script>\"'\u{7}"), &record);
        assert_eq!(page.matches("<svg ").count(), 4);
        assert_eq!(page.matches("<path class=\"area").count(), 3 + 2 + 4 + 1);
        assert_eq!(page.matches("<path class=\"line").count(), 2);
        assert_eq!(page.matches("<i class=\"").count(), 3 + 2 + 4 + 1 + 2);
        assert!(!page.contains("<script>") && page.contains("&lt;script&gt;&quot;&#39;\u{fffd} under Ebb"));
        assert!(page.contains("ebb: a &amp; b") && !page.contains("NaN") && !page.contains("inf"));
        // Nothing is loaded from elsewhere.
        assert!(!page.contains("http") && !page.contains("url("));
    }

    #[test]
    fn half_of_the_time_is_half_of_the_plot() {
        let moments = moments(3);
        let stalled = since(&moments, |before, now| now.stall_ns - before.stall_ns);
        assert_eq!(stalled, [0.0, 5e7, 5e7]);
        let page = plots(&moments);
        assert!(page.contains(&format!("M0.0,200.0L500.0,{0:.1}L1000.0,{0:.1}L1000.0,200.0", HEIGHT / 2.0)), "{page}");
    }

    #[test]
    fn a_run_without_moments_says_so() {
        assert!(html(&about("x"), &Record::default()).contains("before there was anything to plot"));
    }

    #[test]
    fn lines_are_at_round_numbers() {
        let of = |unit: Unit, most| (unit.step(most), unit.text(unit.step(most)));
        assert_eq!(of(Unit::Bytes, 300.0 * 1048576.0), (100.0 * 1048576.0, "100 MiB".to_owned()));
        assert_eq!(of(Unit::Bytes, 1.3 * 1073741824.0).1, "512 MiB");
        assert_eq!(of(Unit::PerSecond, 180_000.0), (50_000.0, "50k".to_owned()));
        assert_eq!(of(Unit::PerSecond, 3.0), (1.0, "1".to_owned()));
        assert_eq!(of(Unit::Percent, 7.0).1, "25%");
    }

    #[test]
    fn marks_of_time_are_round_and_few() {
        let texts = |end: f64| time_marks(end).into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ");
        assert_eq!(texts(0.001), "0.0 s");
        assert_eq!(texts(0.35), "0.0 s 0.1 s 0.2 s 0.3 s");
        assert_eq!(texts(4.2), "0 s 1 s 2 s 3 s 4 s");
        assert_eq!(texts(140.0), "0 s 30 s 60 s 90 s 120 s");
        assert_eq!(texts(1000.0), "0 min 5 min 10 min 15 min");
        assert_eq!(texts(7200.0), "0 min 30 min 60 min 90 min 120 min");
        assert_eq!(texts(30.0 * 3600.0), "0 h 12 h 24 h");
        assert_eq!(texts(12.0 * DAY), "0 h 72 h 144 h 216 h 288 h");
    }
}
