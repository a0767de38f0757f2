//! The screen, cell by cell, on a terminal in memory.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui_core::backend::TestBackend;
use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Color, Modifier};
use ratatui_core::terminal::Terminal;

use super::{Looks, Screen, draw};
use crate::running::counters::Counters;
use crate::running::trees::Inode;
use crate::show::look::{Events, Figures, Idle, Row, Shown, Tier, What};
use crate::show::top::view::{Key, Then, View};
use crate::show::top::watch::{Picture, Point, Rates, Tree};

const COLOR: Looks = Looks { has_color: true, is_ascii: false };
const PLAIN: Looks = Looks { has_color: false, is_ascii: false };
const ASCII: Looks = Looks { has_color: false, is_ascii: true };

fn process(pid: i32, command: &str, mib: u64) -> Row {
    let tier = |name, pages, bytes| Tier { name, pages, bytes };
    let figures = Figures {
        wanted: mib * 256,
        charged: mib * 128,
        shared: 0,
        staged: 0,
        pool: mib * 16,
        faults: 5,
        age_ms: Some(1_500),
        tiers: [
            tier("hot", mib * 64, mib << 16),
            tier("cold", mib * 32, mib << 14),
            tier("device", mib * 32, mib << 16),
        ],
    };
    Row { pid: Some(pid), command: command.into(), what: What::Managed { figures, faults_per_s: mib } }
}

/// A tree of these processes, which held more and more of 64 MiB for a minute.
fn tree(label: &str, supervisor: i32, stalled_some: u64, rows: Vec<Row>) -> Tree {
    // Each file is another tree.
    let id = Inode::of_counters(&Counters::create().unwrap()).unwrap();
    let point = |at: u32| Point {
        since_s: f64::from(at) - 1.0,
        at_s: f64::from(at),
        held_bytes: u64::from(at) << 20,
        swapins: f64::from(at) * 3.0,
        stalled_some: u64::from(at) * 10_000,
    };
    let held_bytes = rows.iter().map(|row| row.held() * 4096).sum();
    let shown = Shown {
        show_ram_bytes: None,
        label: label.into(),
        name: None,
        supervisor,
        budget_bytes: 64 << 20,
        held_bytes,
        peak_bytes: 60 << 20,
        idle: Idle { period_ms: 0, out_bytes: 0, written_bytes: 0 },
        events: Events::default(),
        stalled_some: Some(stalled_some),
        stalled_full: Some(stalled_some / 2),
        rows,
    };
    let rates = Rates { pool: 1234.0, device: 12.0, staged: 0.0, refaults: 3.4, waiting: 1.25, ..Rates::default() };
    Tree { id, totals: shown.totals(), shown, rates, past: (1..=60).map(point).collect::<VecDeque<_>>() }
}

fn picture() -> Picture {
    let web = tree("web", 100, 123_400, vec![process(101, "python3", 80), process(102, "sh", 2)]);
    let job = tree("job", 200, 500_000, vec![process(201, "cc1plus", 40)]);
    Picture { at_s: 60.0, clock: "14:02:31".into(), trees: vec![job, web] }
}

fn view() -> View {
    View::new(Duration::from_secs(2))
}

fn buffer((width, height): (u16, u16), view: &mut View, picture: &Picture, looks: Looks) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let screen = Screen { picture, looks, nothing: "There is no tree." };
    terminal.draw(|frame| draw(frame, view, &screen)).unwrap();
    terminal.backend().buffer().clone()
}

fn lines_of(buffer: &Buffer) -> Vec<String> {
    let width = buffer.area.width as usize;
    let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    cells.chunks(width).map(|line| line.concat().trim_end().to_owned()).collect()
}

fn screen(size: (u16, u16), view: &mut View, picture: &Picture, looks: Looks) -> Vec<String> {
    lines_of(&buffer(size, view, picture, looks))
}

#[test]
fn a_screen_of_80_by_24_has_it_all() {
    let lines = screen((80, 24), &mut view(), &picture(), COLOR);
    let expected = [
        " ebb top   2 trees, 3 processes   held 61.0M, wanted 122M  every 2 s   14:02:31",
        "─ web ─────────────────────────────────────────────────────────── 2 processes ──",
        " held      41.0M of 64.0M  ████████████░░░░░░   64%   peak 60.0M   wanted 82.0M",
        " stalled   12.3% some 6.17% full (last 10 s)   1.25 threads wait on average",
        " faults/s   1234 pool    12 device     0 staged │   3.4 refault     0 ahead",
        " swapped   46.1M   pool 30.8M in 6.41M (4.80x)   device 10.2M in 5.12M",
        "╭ held ────────────────── budget 64.0M ╮╭ faults/s, pool and device ────── 200 ╮",
    ];
    assert_eq!(lines[..7], expected, "{lines:#?}");
    assert_eq!(lines[11], "╰ 1 min ago ────────────────────── now ╯╰ 1 min ago ────────────────────── now ╯");
    let table = [
        " TREE/COMMAND       PID ▼HELD WANTED RESIDENT  POOL  COLD DEVICE FAULTS/S STALL",
        " ▾ web              100 41.0M  82.0M    35.9M 5.12M 1.28M  5.12M       82 12.3%",
        "    python3         101 40.0M  80.0M    35.0M 5.00M 1.25M  5.00M       80",
        "    sh              102 1.00M  2.00M     896K  128K 32.0K   128K        2",
        " ▾ job              200 20.0M  40.0M    17.5M 2.50M  640K  2.50M       40 50.0%",
        "    cc1plus         201 20.0M  40.0M    17.5M 2.50M  640K  2.50M       40",
        "",
    ];
    assert_eq!(lines[12..19], table, "{lines:#?}");
    assert_eq!(lines[23], " q quit  h help  s sort: held  r reverse  t list  ←→ fold  p pause  +- interval");
    assert!(lines.iter().all(|line| line.chars().count() <= 80));
}

#[test]
fn graphs_grow_from_left_to_right() {
    let lines = screen((80, 24), &mut view(), &picture(), COLOR);
    let graph: Vec<String> = lines[7..11].iter().map(|line| line.chars().skip(1).take(38).collect()).collect();
    // 60 MiB of 64 at the end, from next to nothing.
    assert!(graph[0].starts_with(&" ".repeat(20)) && graph[0].ends_with(['▅', '▆']), "{graph:#?}");
    assert!(graph[3].ends_with("████████") && !graph[3].starts_with('█'), "{graph:#?}");
    let heights: Vec<usize> =
        (0..38).map(|at| graph.iter().filter(|line| line.chars().nth(at) != Some(' ')).count()).collect();
    assert!(heights.is_sorted() && heights[0] == 1 && heights[37] == 4, "{heights:?}");
}

#[test]
fn a_wide_screen_has_more_columns_and_a_third_graph() {
    let lines = screen((200, 50), &mut view(), &picture(), COLOR);
    assert!(lines[6].contains("╭ stalled, some ─") && lines[6].ends_with(" 100% ╮"), "{}", lines[6]);
    let headings: Vec<&str> = lines[18].split_whitespace().collect();
    let all = [
        "TREE/COMMAND",
        "PID",
        "BUDGET",
        "▼HELD",
        "FREE",
        "PEAK",
        "WANTED",
        "RESIDENT",
        "SHARED",
        "STAGED",
        "POOL",
        "COLD",
        "RATIO",
        "DEVICE",
        "SWAPPED",
        "AGE",
        "FAULTS/S",
        "STALL",
    ];
    assert_eq!(headings, all);
    let web: Vec<&str> = lines[19].split_whitespace().collect();
    assert_eq!(web[..8], ["▾", "web", "100", "64.0M", "41.0M", "23.0M", "60.0M", "82.0M"], "{}", lines[19]);
    let python: Vec<&str> = lines[20].split_whitespace().collect();
    assert_eq!(python[..4], ["python3", "101", "40.0M", "80.0M"], "a process has no budget: {}", lines[20]);
    assert!(lines[4].contains(" 0 new │"), "{}", lines[4]);
    assert!(lines.iter().all(|line| line.chars().count() <= 200));
}

#[test]
fn a_small_screen_leaves_out_graphs_then_figures_then_columns() {
    let mut view = view();
    let low = screen((80, 16), &mut view, &picture(), COLOR);
    assert!(low[2].starts_with(" held ") && low[6].starts_with(" TREE/COMMAND"), "{low:#?}");
    let lower = screen((80, 10), &mut view, &picture(), COLOR);
    assert!(lower[1].starts_with(" TREE/COMMAND") && lower[2].starts_with(" ▾ web"), "{lower:#?}");
    let least = screen((60, 8), &mut view, &picture(), COLOR);
    assert_eq!(
        least[..2],
        [
            " ebb top   held 61.0M, wanted 122M     every 2 s   14:02:31",
            " TREE/COMMAND         PID ▼HELD WANTED  POOL FAULTS/S STALL"
        ]
    );
    assert!(least.iter().all(|line| line.chars().count() <= 60));
    // The line that is selected is always there.
    view.press(Key::End, &picture());
    let few = screen((60, 8), &mut view, &picture(), COLOR);
    assert!(few[6].starts_with("    cc1plus"), "{few:#?}");
}

#[test]
fn a_screen_that_is_too_small_says_how_large_it_has_to_be() {
    assert_eq!(screen((40, 5), &mut view(), &picture(), COLOR)[0], "ebb top needs 60x8; this is 40x5");
    let tiny = screen((12, 4), &mut view(), &picture(), COLOR);
    assert_eq!(tiny, ["ebb top", "needs 60x8;", "this is 12x4", ""]);
    screen((1, 1), &mut view(), &picture(), COLOR);
}

#[test]
fn without_color_there_is_none_and_the_text_is_the_same() {
    let mut view = view();
    for size in [(80, 24), (200, 50), (60, 8)] {
        view.has_help = false;
        let colored = buffer(size, &mut view, &picture(), COLOR);
        let plain = buffer(size, &mut view, &picture(), PLAIN);
        assert_eq!(lines_of(&colored), lines_of(&plain));
        assert!(colored.content.iter().any(|cell| cell.fg != Color::Reset));
        assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
        view.has_help = true;
        let help = buffer(size, &mut view, &picture(), PLAIN);
        assert!(help.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    }
}

#[test]
fn how_bad_a_stall_is_shows_in_color_and_in_bold() {
    let buffer = buffer((80, 24), &mut view(), &picture(), COLOR);
    let style = |line: u16| buffer[(76, line)].style();
    assert_eq!((style(13).fg, style(16).fg), (Some(Color::Yellow), Some(Color::Red)));
    assert!(style(16).add_modifier.contains(Modifier::BOLD));
    let selected: Vec<bool> = (12..18).map(|line| buffer[(0, line)].modifier.contains(Modifier::REVERSED)).collect();
    assert_eq!(selected, [false, true, false, false, false, false]);
}

#[test]
fn ascii_is_nothing_but_ascii() {
    let mut view = view();
    for has_help in [false, true] {
        view.has_help = has_help;
        let lines = screen((200, 50), &mut view, &picture(), ASCII);
        assert!(lines.iter().all(|line| line.is_ascii()), "{lines:#?}");
    }
    view.has_help = false;
    let lines = screen((80, 24), &mut view, &picture(), ASCII);
    assert!(lines[2].contains("############......"), "{}", lines[2]);
    assert!(lines[10].contains("########|"), "{}", lines[10]);
    assert!(lines[13].starts_with(" - web "), "{}", lines[13]);
}

#[test]
fn keys_sort_fold_and_list() {
    let (mut view, picture) = (view(), picture());
    let names = |view: &mut View| {
        let lines = screen((80, 24), view, &picture, COLOR);
        let rows = lines[13..20]
            .iter()
            .filter_map(|line| line.split_whitespace().find(|word| word.len() > 1 && !"▾▸".contains(word)));
        rows.map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&mut view), "web python3 sh job cc1plus");
    view.press(Key::Char('r'), &picture);
    assert_eq!(names(&mut view), "job cc1plus web sh python3");
    view.press(Key::Char('s'), &picture);
    assert_eq!((names(&mut view).as_str(), view.order.name()), ("web python3 sh job cc1plus", "wanted"));
    // From the last one to the name, and back.
    while view.order.name() != "stall" {
        view.press(Key::Char('>'), &picture);
    }
    assert_eq!(names(&mut view), "job cc1plus web python3 sh");
    view.press(Key::Char('s'), &picture);
    assert_eq!((names(&mut view).as_str(), view.order.name()), ("job cc1plus web python3 sh", "name"));
    view.press(Key::Char('S'), &picture);
    assert_eq!(view.order.name(), "stall");
    view.press(Key::Home, &picture);
    view.press(Key::Left, &picture);
    assert_eq!(names(&mut view), "job web python3 sh");
    view.press(Key::Enter, &picture);
    assert_eq!(names(&mut view), "job cc1plus web python3 sh");
    view.press(Key::Char('t'), &picture);
    assert_eq!(names(&mut view), "cc1plus python3 sh");
}

#[test]
fn figures_are_of_the_selected_tree_and_stay_with_it() {
    let (mut view, mut picture) = (view(), picture());
    let of = |view: &mut View, picture: &Picture| screen((80, 24), view, picture, COLOR)[1].clone();
    assert!(of(&mut view, &picture).starts_with("─ web ─"));
    (0..3).for_each(|_| _ = view.press(Key::Down, &picture));
    assert!(of(&mut view, &picture).starts_with("─ job ─"));
    // A process of the tree, which ends.
    view.press(Key::Down, &picture);
    picture.trees[0].shown.rows.clear();
    assert!(of(&mut view, &picture).starts_with("─ job ─"));
    picture.trees.remove(0);
    assert!(of(&mut view, &picture).starts_with("─ web ─"));
    picture.trees.clear();
    let empty = screen((80, 24), &mut view, &picture, COLOR);
    assert_eq!((empty[13].as_str(), view.press(Key::Down, &picture)), (" There is no tree.", Then::Draw));
    assert!(empty[0].starts_with(" ebb top   0 trees, 0 processes "), "{}", empty[0]);
}

#[test]
fn help_lies_over_the_rest_until_a_key_and_fits() {
    let (mut view, picture) = (view(), picture());
    assert_eq!(view.press(Key::Char('h'), &picture), Then::Draw);
    let lines = screen((80, 24), &mut view, &picture, COLOR).join("\n");
    for word in
        ["any key goes back", "q, Esc, Ctrl-C", "fold its tree", "│ STALL  ", " waited in a fault │", "│ COLD  "]
    {
        assert!(lines.contains(word), "{word}: {lines}");
    }
    assert_eq!(view.press(Key::Char('x'), &picture), Then::Draw);
    assert!(!screen((80, 24), &mut view, &picture, COLOR).join("\n").contains("any key goes back"));
    view.press(Key::Char('?'), &picture);
    assert_eq!(view.press(Key::Interrupt, &picture), Then::Quit);
}

#[test]
fn keys_pause_and_change_the_pace() {
    let (mut view, picture) = (view(), picture());
    assert_eq!(view.press(Key::Char('p'), &picture), Then::Draw);
    assert!(screen((80, 24), &mut view, &picture, PLAIN)[0].contains(" PAUSED    14:02:31"));
    assert_eq!(view.press(Key::Char(' '), &picture), Then::Draw);
    assert_eq!(view.press(Key::Char('p'), &picture), Then::Look);
    view.press(Key::Char('-'), &picture);
    assert!(screen((80, 24), &mut view, &picture, PLAIN)[0].contains("every 1 s "));
    (0..20).for_each(|_| _ = view.press(Key::Char('-'), &picture));
    assert!(screen((80, 24), &mut view, &picture, PLAIN)[0].contains("every 0.25 s"));
    (0..20).for_each(|_| _ = view.press(Key::Char('+'), &picture));
    assert!(screen((80, 24), &mut view, &picture, PLAIN)[0].contains("every 60 s"));
    for (key, then) in [
        (Key::Char('q'), Then::Quit),
        (Key::Escape, Then::Quit),
        (Key::Suspend, Then::Stop),
        (Key::Redraw, Then::Redraw),
    ] {
        assert_eq!(view.press(key, &picture), then);
    }
}

#[test]
fn long_names_and_many_lines_have_their_place() {
    let name = "a-name-that-is-as-long-as-a-name-can-be-with-its-63-characters";
    let rows = (0..40).map(|at| process(1000 + at, "cc1plus-with-a-long-name", 1)).collect();
    let picture = Picture { at_s: 60.0, clock: "00:00:00".into(), trees: vec![tree(name, 4_194_304, 0, rows)] };
    let mut view = view();
    let lines = screen((80, 24), &mut view, &picture, COLOR);
    assert!(lines[13].starts_with(" ▾ a-name-that… 4194304 "), "{}", lines[13]);
    assert!(lines[14].starts_with("    cc1plus-wi…    1000 "), "{}", lines[14]);
    assert!(lines[23].ends_with("1-10 of 41"), "{}", lines[23]);
    view.press(Key::PageDown, &picture);
    let lines = screen((80, 24), &mut view, &picture, COLOR);
    assert!(lines[23].ends_with("2-11 of 41"), "{}", lines[23]);
    view.press(Key::End, &picture);
    assert!(screen((80, 24), &mut view, &picture, COLOR)[23].ends_with("32-41 of 41"));
    assert!(screen((80, 24), &mut view, &picture, ASCII)[22].starts_with("    cc1plus-w"));
}
