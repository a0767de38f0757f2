//! What the user of `ebb top` has chosen: order, folds, the selected line. Keys change that, and nothing else.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::time::Duration;

use crate::running::trees::Inode;
use crate::show::columns::{Column, Line, named};
use crate::show::look::Row;
use crate::show::top::watch::{Picture, Tree};

/// The shortest and the longest time between two looks.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);
pub const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// The steps of `+` and `-`, in milliseconds.
const STEPS_MS: [u64; 9] = [250, 500, 1000, 2000, 3000, 5000, 10_000, 30_000, 60_000];

/// What the lines are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Name,
    Column(&'static Column),
}

impl Order {
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Column(column) => column.name,
        }
    }
}

/// A key, as far as the view knows keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Left,
    Right,
    Enter,
    Escape,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L.
    Redraw,
}

/// What is left to do after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    Draw,
    /// Look at once.
    Look,
    Quit,
    /// Stop as a job, until SIGCONT.
    Stop,
    /// Draw all of it anew.
    Redraw,
}

/// Which line is meant, from look to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub tree: Inode,
    /// None for the tree itself, or for its last line, that of processes without a number.
    pub process: Option<Option<i32>>,
}

/// A line of the table.
pub struct Shown<'a> {
    pub tree: &'a Tree,
    /// None for the line of the tree.
    pub row: Option<&'a Row>,
    pub mark: Mark,
    pub is_folded: bool,
}

impl<'a> Shown<'a> {
    pub fn line(&self) -> Line<'a> {
        match self.row {
            None => Line { shown: &self.tree.shown, row: None, totals: self.tree.totals },
            Some(row) => Line::of_process(&self.tree.shown, row),
        }
    }
}

/// The user's choices.
pub struct View {
    pub interval: Duration,
    pub order: Order,
    pub is_reversed: bool,
    /// Processes below their trees, and not all in one list.
    pub is_tree: bool,
    pub is_paused: bool,
    pub has_help: bool,
    folded: HashSet<Inode>,
    pub selected: Option<Mark>,
    /// The first line of the table that is on the screen.
    pub first: usize,
    /// How many lines there was room for.
    pub room: usize,
    /// The columns that were on the screen, to choose from.
    pub columns: Vec<&'static Column>,
}

impl View {
    pub fn new(interval: Duration) -> Self {
        Self {
            interval,
            order: named("held").map_or(Order::Name, Order::Column),
            is_reversed: false,
            is_tree: true,
            is_paused: false,
            has_help: false,
            folded: HashSet::new(),
            selected: None,
            first: 0,
            room: 1,
            columns: Vec::new(),
        }
    }

    fn compare(&self, one: (&Line<'_>, &str), other: (&Line<'_>, &str)) -> Ordering {
        let by_name = || one.1.cmp(other.1);
        let order = match self.order {
            Order::Name => by_name(),
            // The largest first.
            Order::Column(column) => {
                let number = |line| (column.value)(line).number();
                number(other.0).total_cmp(&number(one.0)).then_with(by_name)
            }
        };
        if self.is_reversed { order.reverse() } else { order }
    }

    /// The lines, in their order.
    pub fn lines<'a>(&self, picture: &'a Picture) -> Vec<Shown<'a>> {
        let mut trees: Vec<&Tree> = picture.trees.iter().collect();
        let pid = |row: &Row| row.pid.unwrap_or(i32::MAX);
        let process = |tree: &'a Tree, row: &'a Row| Shown {
            tree,
            row: Some(row),
            mark: Mark { tree: tree.id, process: Some(row.pid) },
            is_folded: false,
        };
        let sort = |rows: &mut Vec<Shown<'a>>| {
            rows.sort_by_cached_key(|shown| shown.row.map(pid));
            rows.sort_by(|one, other| {
                let name = |shown: &Shown<'a>| shown.row.map_or("", |row| row.command.as_str());
                self.compare((&one.line(), name(one)), (&other.line(), name(other)))
            });
        };
        if !self.is_tree {
            let mut rows: Vec<_> =
                trees.iter().flat_map(|tree| tree.shown.rows.iter().map(|row| process(tree, row))).collect();
            sort(&mut rows);
            return rows;
        }
        let line = |tree: &'a Tree| Shown {
            tree,
            row: None,
            mark: Mark { tree: tree.id, process: None },
            is_folded: self.folded.contains(&tree.id),
        };
        trees.sort_by(|one, other| {
            self.compare((&line(one).line(), &one.shown.label), (&line(other).line(), &other.shown.label))
        });
        let mut lines = Vec::new();
        for tree in trees {
            let of_tree = line(tree);
            let is_folded = of_tree.is_folded;
            lines.push(of_tree);
            if !is_folded {
                let mut rows: Vec<_> = tree.shown.rows.iter().map(|row| process(tree, row)).collect();
                sort(&mut rows);
                lines.extend(rows);
            }
        }
        lines
    }

    /// The place of the selected line. If that line has gone, the first one of its tree, or of all, is selected.
    pub fn settle(&mut self, lines: &[Shown<'_>]) -> Option<usize> {
        let at = self.selected.and_then(|mark| {
            let is_same = |shown: &Shown<'_>| shown.mark == mark;
            let is_of_tree = |shown: &Shown<'_>| shown.mark.tree == mark.tree;
            lines.iter().position(is_same).or_else(|| lines.iter().position(is_of_tree))
        });
        let at = at.or((!lines.is_empty()).then_some(0))?;
        self.selected = Some(lines[at].mark);
        Some(at)
    }

    /// Moves what is on the screen so that line `at` of `len` is there, with `room` lines.
    pub fn scroll(&mut self, at: usize, len: usize, room: usize) {
        self.room = room.max(1);
        self.first = self.first.min(len.saturating_sub(self.room));
        self.first = self.first.clamp((at + 1).saturating_sub(self.room), at);
    }

    fn select(&mut self, picture: &Picture, to: impl Fn(usize, usize) -> usize) {
        let lines = self.lines(picture);
        if let Some(at) = self.settle(&lines) {
            self.selected = Some(lines[to(at, lines.len() - 1).min(lines.len() - 1)].mark);
        }
    }

    fn fold(&mut self, picture: &Picture, folds: impl Fn(bool) -> bool) {
        let lines = self.lines(picture);
        if !self.is_tree || self.settle(&lines).is_none() {
            return;
        }
        let Some(Mark { tree, .. }) = self.selected else { return };
        if folds(self.folded.contains(&tree)) {
            self.folded.insert(tree);
            self.selected = Some(Mark { tree, process: None });
        } else {
            self.folded.remove(&tree);
        }
    }

    /// Orders by the next column to the right, or to the left.
    fn order_by_next(&mut self, step: usize) {
        let mut all = vec![Order::Name];
        all.extend(self.columns.iter().map(|column| Order::Column(column)));
        let at = all.iter().position(|order| *order == self.order).unwrap_or(0);
        self.order = all[(at + step) % all.len()];
        self.is_reversed = false;
    }

    fn step_interval(&mut self, is_longer: bool) {
        let now = self.interval.as_millis() as u64;
        let next = if is_longer {
            STEPS_MS.into_iter().find(|step| *step > now)
        } else {
            STEPS_MS.into_iter().rev().find(|step| *step < now)
        };
        self.interval = next.map_or(self.interval, Duration::from_millis);
    }

    pub fn press(&mut self, key: Key, picture: &Picture) -> Then {
        match key {
            Key::Interrupt => return Then::Quit,
            Key::Suspend => return Then::Stop,
            Key::Redraw => return Then::Redraw,
            // Any key leaves the help.
            _ if self.has_help => {
                self.has_help = false;
                return if key == Key::Char('q') { Then::Quit } else { Then::Draw };
            }
            _ => {}
        }
        let page = self.room;
        match key {
            Key::Char('q') | Key::Escape => return Then::Quit,
            Key::Char('h' | '?') => self.has_help = true,
            Key::Char('s' | '>') => {
                let all = self.columns.len() + 1;
                self.order_by_next(1 % all);
            }
            Key::Char('S' | '<') => self.order_by_next(self.columns.len()),
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            Key::Char('t') => self.is_tree = !self.is_tree,
            Key::Char('p') => {
                self.is_paused = !self.is_paused;
                return if self.is_paused { Then::Draw } else { Then::Look };
            }
            Key::Char('+') => self.step_interval(true),
            Key::Char('-') => self.step_interval(false),
            Key::Up | Key::Char('k') => self.select(picture, |at, _| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(picture, |at, _| at + 1),
            Key::PageUp => self.select(picture, |at, _| at.saturating_sub(page)),
            Key::PageDown => self.select(picture, |at, _| at + page),
            Key::Home | Key::Char('g') => self.select(picture, |_, _| 0),
            Key::End | Key::Char('G') => self.select(picture, |_, last| last),
            Key::Left => self.fold(picture, |_| true),
            Key::Right => self.fold(picture, |_| false),
            Key::Enter => self.fold(picture, |is_folded| !is_folded),
            Key::Char(' ') => return if self.is_paused { Then::Draw } else { Then::Look },
            Key::Char(_) | Key::Interrupt | Key::Suspend | Key::Redraw => {}
        }
        Then::Draw
    }
}
