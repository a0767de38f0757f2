//! The screen of `ebb top`: a line about all trees, the figures and graphs of the selected one, the table, and the keys.
//!
//! What has no room is left out in this order: columns, graphs, figures. Colours only repeat what text and attributes say.

use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::symbols::{bar, border};
use ratatui_core::terminal::Frame;
use ratatui_core::text::{Line, Span};
use ratatui_widgets::block::Block;
use ratatui_widgets::clear::Clear;
use ratatui_widgets::paragraph::{Paragraph, Wrap};
use ratatui_widgets::sparkline::{RenderDirection, Sparkline};

use crate::base::size::{fixed_bytes, fixed_count};
use crate::running::counters::PAGE_BYTES;
use crate::show::columns::{Column, Form, Of, named, percent, ratio};
use crate::show::top::graph;
use crate::show::top::view::{Order, Shown, View};
use crate::show::top::watch::{Picture, Point, Tree};

/// The smallest screen.
const WIDTH_MIN: u16 = 60;
const HEIGHT_MIN: u16 = 8;
/// From which height on there are figures of the selected tree, and graphs.
const HEIGHT_FIGURES: u16 = 12;
const HEIGHT_GRAPHS: u16 = 20;
/// From which width on there is a third graph.
const WIDTH_THIRD: u16 = 120;
/// Lines of figures.
const FIGURES: u16 = 5;

/// The columns, in the order in which they stand. Those with a number are there only if there is room, the lowest first.
const TABLE: [(&str, u8); 17] = [
    ("pid", 0),
    ("budget", 1),
    ("held", 0),
    ("free", 8),
    ("peak", 7),
    ("wanted", 0),
    ("resident", 0),
    ("shared", 6),
    ("staged", 4),
    ("pool", 0),
    ("cold", 0),
    ("ratio", 3),
    ("device", 0),
    ("swapped", 2),
    ("age", 5),
    ("faults/s", 0),
    ("stall", 0),
];
const NAME: &str = "TREE/COMMAND";
/// The narrowest and the widest column of names, and the widest gap between columns.
const NAME_MIN: usize = 14;
const NAME_MAX: usize = 48;
const GAP_MAX: usize = 3;

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looks {
    pub has_color: bool,
    /// Nothing but ASCII.
    pub is_ascii: bool,
}

impl Looks {
    fn color(self, color: Color) -> Style {
        if self.has_color { Style::new().fg(color) } else { Style::new() }
    }

    fn pick<T>(self, unicode: T, ascii: T) -> T {
        if self.is_ascii { ascii } else { unicode }
    }

    /// What says what something is.
    fn label(self) -> Style {
        if self.has_color { Style::new().fg(Color::Cyan) } else { Style::new() }
    }

    /// How bad it is that so much of the time goes to swap, in millionths.
    fn stall(self, millionths: u64) -> Style {
        match millionths {
            ..100_000 => Style::new(),
            100_000..400_000 => self.color(Color::Yellow).add_modifier(Modifier::BOLD),
            _ => self.color(Color::Red).add_modifier(Modifier::BOLD),
        }
    }

    /// `text` in at most `width` characters.
    fn cut(self, text: &str, width: usize) -> String {
        if text.chars().count() <= width {
            return text.to_owned();
        }
        let mut out: String = text.chars().take(width.saturating_sub(1)).collect();
        out.push_str(&self.pick("…", "~")[..self.pick("…".len(), 1)]);
        out
    }
}

/// What is drawn.
pub struct Screen<'a> {
    pub picture: &'a Picture,
    pub looks: Looks,
    /// What to say when there is no tree.
    pub nothing: &'a str,
}

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, view: &mut View, screen: &Screen<'_>) {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let said = format!("ebb top needs {WIDTH_MIN}x{HEIGHT_MIN}; this is {}x{}", area.width, area.height);
        return frame.render_widget(Paragraph::new(said).wrap(Wrap { trim: true }), area);
    }
    let lines = view.lines(screen.picture);
    let selected = view.settle(&lines);
    let looks = screen.looks;
    let mut next = area.y;
    let mut rows = |height: u16| {
        let rect = Rect::new(area.x, next, area.width, height);
        next += height;
        rect
    };
    frame.render_widget(summary(view, screen, area.width), rows(1));
    let tree = selected.map(|at| lines[at].tree);
    if area.height >= HEIGHT_FIGURES {
        let rect = rows(FIGURES);
        if let Some(tree) = tree {
            frame.render_widget(Paragraph::new(figures(tree, looks, area.width)), rect);
        }
    }
    if area.height >= HEIGHT_GRAPHS {
        let rect = rows(graphs_height(area.height));
        if let Some(tree) = tree {
            graphs(frame, tree, screen.picture.at_s, looks, rect);
        }
    }
    let layout = Layout::of(area.width as usize);
    view.columns.clone_from(&layout.columns.iter().map(|(column, _)| *column).collect());
    frame.render_widget(layout.headings(view, looks), rows(1));
    let room = area.bottom().saturating_sub(next + 1);
    let body = Rect::new(area.x, next, area.width, room);
    match selected {
        Some(at) => {
            view.scroll(at, lines.len(), room as usize);
            let shown = lines.iter().enumerate().skip(view.first).take(room as usize);
            let shown: Vec<Line<'_>> = shown.map(|(n, line)| layout.line(line, n == at, view.is_tree, looks)).collect();
            frame.render_widget(Paragraph::new(shown), body);
        }
        None => frame.render_widget(Paragraph::new(format!(" {}", screen.nothing)), body),
    }
    let keys = keys(view, looks, (view.first, room as usize, lines.len()), area.width);
    frame.render_widget(keys, Rect::new(area.x, area.bottom() - 1, area.width, 1));
    if view.has_help {
        help(frame, &layout, looks, area);
    }
}

fn graphs_height(height: u16) -> u16 {
    (height / 5 + 2).clamp(6, 12)
}

/// `left`, and `right` at the end of the line.
fn both_ends<'a>(mut left: Vec<Span<'a>>, right: Vec<Span<'a>>, width: u16) -> Line<'a> {
    let len = |spans: &[Span<'_>]| spans.iter().map(Span::width).sum::<usize>();
    let gap = (width as usize).saturating_sub(len(&left) + len(&right));
    left.push(Span::raw(" ".repeat(gap)));
    left.extend(right);
    Line::from(left)
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// `0.5 s`, `2 s`.
fn seconds(of: std::time::Duration) -> String {
    format!("{} s", of.as_secs_f64())
}

/// All trees together.
fn summary<'a>(view: &View, screen: &Screen<'a>, width: u16) -> Line<'a> {
    let picture = screen.picture;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let memory =
        format!("   held {}, wanted {}", fixed_bytes(picture.held_bytes()), fixed_bytes(picture.wanted_bytes()));
    let count = format!(
        "   {}, {}",
        plural(picture.trees.len(), "tree", "trees"),
        plural(picture.processes(), "process", "processes")
    );
    let pace = match view.is_paused {
        true => Span::styled(" PAUSED ", Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD)),
        false => Span::raw(format!("every {}", seconds(view.interval))),
    };
    let mut left = vec![Span::styled(" ebb top", bold.patch(screen.looks.label()))];
    let clock = Span::raw(format!("   {}", picture.clock));
    // The numbers matter more than how many there are, and that more than the time of day.
    let mut room = (width as usize).saturating_sub(left[0].width() + memory.len() + 2 + pace.width() + 1);
    if count.len() <= room {
        room -= count.len();
        left.push(Span::raw(count));
    }
    left.push(Span::raw(memory));
    let mut right = vec![pace];
    if clock.width() <= room {
        right.push(clock);
    }
    right.push(Span::raw(" "));
    both_ends(left, right, width)
}

/// A bar of `width` for a share of the whole.
fn gauge(share: f64, width: usize, looks: Looks) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    looks.pick("█", "#").repeat(full) + &looks.pick("░", ".").repeat(width - full)
}

/// A rate in at most five characters. What happens less often than once a second is not nothing.
fn rate(per_s: f64) -> String {
    if per_s > 0.0 && per_s < 9.95 { format!("{per_s:.1}") } else { fixed_count(per_s.round() as u64) }
}

/// A line that says which tree the figures below are of.
fn rule<'a>(tree: &Tree, looks: Looks, width: u16) -> Line<'a> {
    let (dim, line) = (Style::new().add_modifier(Modifier::DIM), looks.pick("─", "-"));
    let name = looks.cut(&tree.shown.label, width as usize / 2);
    let about = format!(" {} ", plural(tree.shown.rows.len(), "process", "processes"));
    let used = 2 + name.chars().count() + 1 + about.len() + 2;
    Line::from(vec![
        Span::styled(format!("{line} "), dim),
        Span::styled(name, looks.label().add_modifier(Modifier::BOLD)),
        Span::styled(format!(" {}", line.repeat((width as usize).saturating_sub(used))), dim),
        Span::raw(about),
        Span::styled(line.repeat(2), dim),
    ])
}

/// The figures of a tree.
fn figures<'a>(tree: &Tree, looks: Looks, width: u16) -> Vec<Line<'a>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let label = |text: &str| Span::styled(format!(" {text:<9} "), looks.label());
    let shown = &tree.shown;
    let totals = &tree.totals;
    let share = shown.held_bytes as f64 / shown.budget_bytes.max(1) as f64;
    let held = format!("{} of {}", fixed_bytes(shown.held_bytes), fixed_bytes(shown.budget_bytes));
    let rest = format!(
        " {:>4.0}%   peak {}   wanted {}",
        share * 100.0,
        fixed_bytes(shown.peak_bytes),
        fixed_bytes((totals.wanted + totals.outside) * PAGE_BYTES)
    );
    let used = 11 + held.len() + 2 + rest.len() + 1;
    let bar = gauge(share, (width as usize).saturating_sub(used).clamp(6, 60), looks);
    let first = vec![
        label("held"),
        Span::styled(held, bold),
        Span::raw("  "),
        Span::styled(bar, looks.color(Color::Blue)),
        Span::raw(rest),
    ];
    let stall = |millionths: Option<u64>| {
        let text = millionths.map_or_else(|| "-".to_owned(), |share| format!("{}%", percent(share)));
        Span::styled(format!("{text:>5}"), bold.patch(looks.stall(millionths.unwrap_or(0))))
    };
    let stalled = vec![
        label("stalled"),
        stall(shown.stalled_some),
        Span::raw(" some "),
        stall(shown.stalled_full),
        Span::raw(" full (last 10 s)   "),
        Span::styled(format!("{:.2}", tree.rates.waiting), bold),
        Span::raw(" threads wait on average"),
    ];
    let rates = &tree.rates;
    let mut faults = vec![label("faults/s")];
    let kinds = [
        (rates.pool, "pool"),
        (rates.device, "device"),
        (rates.staged, "staged"),
        (rates.first_touch, "new"),
        (rates.refaults, "refault"),
        (rates.ahead_hits, "ahead"),
    ];
    for (per_s, kind) in kinds {
        // On a narrow screen there is no room for what has never been swapped.
        if kind == "new" && width < 90 {
            continue;
        }
        let bar = if kind == "refault" { looks.pick("│ ", "| ") } else { "" };
        faults.push(Span::raw(bar));
        faults.push(Span::styled(format!("{:>5}", rate(per_s)), if per_s > 0.0 { bold } else { Style::new() }));
        faults.push(Span::raw(format!(" {kind} ")));
    }
    let hits = rates.ahead_hits + rates.ahead_misses;
    if hits > 0.0 && width >= 100 {
        faults.push(Span::raw(format!(" {:.0}% of what is read ahead is used", rates.ahead_hits / hits * 100.0)));
    }
    let compressed = totals.compressed();
    let mut swapped = vec![
        label("swapped"),
        Span::styled(format!("{:>5}", fixed_bytes(totals.swapped * PAGE_BYTES)), bold),
        Span::raw(format!(
            "   pool {} in {}",
            fixed_bytes(compressed.pages * PAGE_BYTES),
            fixed_bytes(compressed.bytes)
        )),
    ];
    if let Some(times) = compressed.ratio() {
        swapped.push(Span::raw(" ("));
        swapped.push(Span::styled(format!("{}x", ratio(times)), bold));
        swapped.push(Span::raw(")"));
    }
    swapped.push(Span::raw(format!(
        "   device {} in {}",
        fixed_bytes(totals.device.pages * PAGE_BYTES),
        fixed_bytes(totals.device.bytes)
    )));
    vec![rule(tree, looks, width), Line::from(first), Line::from(stalled), Line::from(faults), Line::from(swapped)]
}

/// A bar of eight steps without anything but ASCII.
const ASCII_BARS: bar::Set<'_> = bar::Set {
    empty: " ",
    one_eighth: " ",
    one_quarter: ".",
    three_eighths: ".",
    half: ":",
    five_eighths: ":",
    three_quarters: "#",
    seven_eighths: "#",
    full: "#",
};

const ASCII_BORDER: border::Set<'_> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// What was, and what it is called.
struct Graph<'a> {
    title: String,
    top: f64,
    /// The top as text.
    scale: String,
    value: &'a dyn Fn(&Point) -> f64,
    color: Color,
}

/// A round number that is not below `value`: 1, 2 or 5 times a power of ten, at least 10.
fn round_up(value: f64) -> f64 {
    let mut power = 10.0;
    while power * 10.0 <= value {
        power *= 10.0;
    }
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|top| *top >= value).unwrap_or(value)
}

/// The last minutes of a tree.
fn graphs(frame: &mut Frame<'_>, tree: &Tree, now_s: f64, looks: Looks, area: Rect) {
    let most = |value: fn(&Point) -> f64| tree.past.iter().map(value).fold(0.0, f64::max);
    let held: fn(&Point) -> f64 = |point| point.held_bytes as f64;
    let swapins: fn(&Point) -> f64 = |point| point.swapins;
    let top_held = most(held).max(tree.shown.budget_bytes as f64);
    let top_swapins = round_up(most(swapins));
    let held_title = if top_held > tree.shown.budget_bytes as f64 { "most" } else { "budget" };
    let graphs = [
        Graph {
            title: "held".to_owned(),
            top: top_held,
            scale: format!("{held_title} {}", fixed_bytes(top_held as u64)),
            value: &held,
            color: Color::Blue,
        },
        Graph {
            title: "faults/s, pool and device".to_owned(),
            top: top_swapins,
            scale: fixed_count(top_swapins as u64),
            value: &swapins,
            color: Color::Green,
        },
        Graph {
            title: "stalled, some".to_owned(),
            top: 1e6,
            scale: "100%".to_owned(),
            value: &|point| point.stalled_some as f64,
            color: Color::Magenta,
        },
    ];
    let count: u16 = if area.width >= WIDTH_THIRD { 3 } else { 2 };
    let (first_s, each) = (tree.past.front().map_or(now_s, |point| point.since_s), area.width / count);
    for (at, graph) in graphs.iter().take(count as usize).enumerate() {
        let x = area.x + at as u16 * each;
        let width = if at as u16 + 1 == count { area.right() - x } else { each };
        one_graph(frame, graph, tree, (first_s, now_s), looks, Rect { x, width, ..area });
    }
}

fn one_graph(frame: &mut Frame<'_>, graph: &Graph<'_>, tree: &Tree, times_s: (f64, f64), looks: Looks, area: Rect) {
    let (first_s, now_s) = times_s;
    let (span_s, span) = graph::span(first_s, now_s);
    let dim = Style::new().add_modifier(Modifier::DIM);
    let block = Block::bordered()
        .border_set(looks.pick(border::ROUNDED, ASCII_BORDER))
        .border_style(dim)
        .title_top(Line::styled(format!(" {} ", graph.title), Style::reset().patch(looks.label())).left_aligned())
        .title_top(Line::styled(format!(" {} ", graph.scale), Style::reset()).right_aligned())
        .title_bottom(Line::styled(format!(" {span} ago "), Style::reset()).left_aligned())
        .title_bottom(Line::styled(" now ", Style::reset()).right_aligned());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let columns = graph::columns(&tree.past, graph.value, (span_s, now_s), inner.width as usize);
    // In eighths of a character. Whatever there is, even if it is little, is one.
    let height = u64::from(inner.height) * 8;
    let eighths = columns.into_iter().map(|value| {
        value.map(|value| match value {
            ..=0.0 => 0,
            value => ((value / graph.top * height as f64).round() as u64).clamp(1, height),
        })
    });
    let line = Sparkline::default()
        .data(eighths.collect::<Vec<Option<u64>>>())
        .max(height)
        .direction(RenderDirection::LeftToRight)
        .bar_set(looks.pick(bar::NINE_LEVELS, ASCII_BARS))
        .absent_value_symbol(" ")
        .style(looks.color(graph.color));
    frame.render_widget(line, inner);
}

/// Which columns there are, and where.
struct Layout {
    name: usize,
    gap: usize,
    columns: Vec<(&'static Column, usize)>,
}

impl Layout {
    fn of(width: usize) -> Self {
        let wide = |name: &str| match name {
            "pid" => 7,
            _ => name.len().max(5),
        };
        // A blank at either side.
        let rest = |most: u8, gap: usize| {
            let columns = TABLE.iter().filter(|(_, at)| *at <= most).map(|(name, _)| wide(name) + gap);
            width.saturating_sub(2 + columns.sum::<usize>())
        };
        let most = (0..=8u8).rev().find(|most| rest(*most, 1) >= NAME_MIN).unwrap_or(0);
        let gap = (1..=GAP_MAX).rev().find(|gap| rest(most, *gap) >= NAME_MIN + 8).unwrap_or(1);
        let mut columns: Vec<(&'static Column, usize)> = TABLE
            .iter()
            .filter(|(_, at)| *at <= most)
            .filter_map(|(name, _)| Some((named(name)?, wide(name))))
            .collect();
        // On a narrow screen what has no room goes: the tiers first.
        for gone in ["cold", "resident", "device", "pid"] {
            let taken: usize = columns.iter().map(|(_, wide)| wide + gap).sum();
            if width < 2 + taken + NAME_MIN {
                columns.retain(|(column, _)| column.name != gone);
            }
        }
        let taken: usize = columns.iter().map(|(_, wide)| wide + gap).sum();
        Self { name: width.saturating_sub(2 + taken).min(NAME_MAX), gap, columns }
    }

    fn headings(&self, view: &View, looks: Looks) -> Line<'static> {
        let style = looks.label().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
        let arrow = match view.is_reversed {
            false => looks.pick("▼", "v"),
            true => looks.pick("▲", "^"),
        };
        let mut text = format!(" {NAME:<width$}", width = self.name);
        if view.order == Order::Name {
            let shown = format!("{NAME}{arrow}");
            text = format!(" {shown:<width$}", width = self.name);
        }
        for (column, width) in &self.columns {
            let is_order = view.order == Order::Column(column);
            let heading = format!("{}{}", if is_order { arrow } else { "" }, column.heading());
            text += &format!("{heading:>width$}", width = width + self.gap);
        }
        Line::styled(format!("{text} "), style)
    }

    fn line(&self, shown: &Shown<'_>, is_selected: bool, is_tree: bool, looks: Looks) -> Line<'static> {
        let name = match shown.row {
            None => {
                let (sign, count) = match shown.is_folded {
                    true => (looks.pick("▸", "+"), format!(" ({})", shown.tree.shown.rows.len())),
                    false => (looks.pick("▾", "-"), String::new()),
                };
                format!("{sign} {}{count}", shown.tree.shown.label)
            }
            Some(row) if is_tree => format!("   {}", row.command),
            Some(row) => format!("{} ({})", row.command, shown.tree.shown.label),
        };
        let name = looks.cut(&name, self.name);
        let base = match shown.row {
            None => Style::new().add_modifier(Modifier::BOLD),
            Some(_) => Style::new(),
        };
        let line = shown.line();
        let mut spans = vec![Span::raw(format!(" {name:<width$}", width = self.name))];
        for (column, width) in &self.columns {
            let value = (column.value)(&line);
            let text = match (column.name, shown.row) {
                ("pid", None) => shown.tree.shown.supervisor.to_string(),
                // A process has none of its own, and its tree stands above it.
                (_, Some(_)) if column.of == Of::Tree => String::new(),
                _ => value.text(Form::Fixed),
            };
            let style = match column.name {
                "stall" if !text.is_empty() => looks.stall(shown.tree.shown.stalled_some.unwrap_or(0)),
                _ => Style::new(),
            };
            spans.push(Span::styled(format!("{text:>width$}", width = width + self.gap), style));
        }
        spans.push(Span::raw(" "));
        let style = if is_selected { base.add_modifier(Modifier::REVERSED) } else { base };
        Line::from(spans).style(style)
    }
}

/// The keys, and which lines of how many are on the screen.
fn keys<'a>(view: &View, looks: Looks, (first, room, len): (usize, usize, usize), width: u16) -> Line<'a> {
    let bold = Style::new().add_modifier(Modifier::BOLD).patch(looks.label());
    let by = format!("sort: {}", view.order.name());
    let all = [
        ("q", "quit"),
        ("h", "help"),
        ("s", by.as_str()),
        ("r", "reverse"),
        ("t", if view.is_tree { "list" } else { "tree" }),
        (looks.pick("←→", "<- ->"), "fold"),
        ("p", if view.is_paused { "go on" } else { "pause" }),
        ("+-", "interval"),
    ];
    let right = if len > room { format!("{}-{} of {len} ", first + 1, (first + room).min(len)) } else { String::new() };
    let mut left = vec![Span::raw(" ")];
    let mut used = 1 + right.len();
    for (key, what) in all {
        used += key.chars().count() + what.len() + 3;
        if used > width as usize + 2 {
            break;
        }
        left.push(Span::styled(key.to_owned(), bold));
        left.push(Span::raw(format!(" {what}  ")));
    }
    both_ends(left, vec![Span::raw(right)], width)
}

/// What the keys do, and what the columns mean.
fn help(frame: &mut Frame<'_>, layout: &Layout, looks: Looks, area: Rect) {
    let arrows = looks.pick(["↑ ↓", "← →"], ["up down", "left right"]);
    let keys = [
        ("q, Esc, Ctrl-C".to_owned(), "quit"),
        (format!("{}, PgUp, PgDn", arrows[0]), "select a line: figures and graphs are of its tree"),
        (format!("{}, Enter", arrows[1]), "fold its tree, unfold it, one or the other"),
        ("s, S".to_owned(), "sort by the next column, by the one before; r reverses"),
        ("t".to_owned(), "processes below their trees, or all in one list"),
        ("p, Space".to_owned(), "pause and go on; look now"),
        ("+, -".to_owned(), "a longer, a shorter interval"),
    ];
    let key = |(keys, what): &(String, &str)| {
        Line::from(vec![
            Span::styled(format!(" {keys:<17}"), looks.label().add_modifier(Modifier::BOLD)),
            Span::raw((*what).to_owned()),
        ])
    };
    let mut lines: Vec<Line<'_>> = keys.iter().map(key).collect();
    lines.push(Line::raw(""));
    for (column, _) in layout.columns.iter().filter(|(column, _)| column.name != "pid") {
        let heading = Span::styled(format!(" {:<17}", column.heading()), looks.label());
        lines.push(Line::from(vec![heading, Span::raw(column.meaning.to_owned())]));
    }
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 3;
    let (width, height) = (width.min(area.width), (lines.len() as u16 + 2).min(area.height));
    let rect = Rect::new(area.x + (area.width - width) / 2, area.y + (area.height - height) / 2, width, height);
    frame.render_widget(Clear, rect);
    let block = Block::bordered()
        .border_set(looks.pick(border::ROUNDED, ASCII_BORDER))
        .title_top(Line::styled(" ebb top: any key goes back ", looks.label().add_modifier(Modifier::BOLD)));
    frame.render_widget(Paragraph::new(lines).block(block), rect);
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
