//! `ebb top`: the trees that run under Ebb, and their processes, as they are now and were in the last minutes.
//!
//! It only looks. `watch` sees the trees, `view` knows what the user has chosen, `draw` draws both, and `terminal` has the terminal.

mod ansi;
mod batch;
mod draw;
mod graph;
mod keys;
mod lookout;

mod terminal;
mod view;
mod watch;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::base::end::{End, end_likewise};
use crate::base::failure::Failure;
use crate::base::name::Target;
use crate::base::text::printable;
use draw::{Looks, Screen};
use terminal::{Arrived, Terminal};
use view::{INTERVAL_MAX, INTERVAL_MIN, Then, View};
use watch::{Picture, Watch};

/// Time between the first two looks, from which the first rates are computed.
const FIRST: Duration = Duration::from_millis(200);

/// What to show, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Top {
    /// The trees; all if empty.
    pub targets: Vec<Target>,
    pub interval: Duration,
    /// How many frames; as many as there are if none.
    pub frames: Option<u64>,
    pub is_batch: bool,
    pub has_color: bool,
    pub is_ascii: bool,
}

impl Top {
    pub fn new() -> Self {
        let interval = Duration::from_secs(2);
        Self { targets: Vec::new(), interval, frames: None, is_batch: false, has_color: true, is_ascii: false }
    }
}

/// Parses the seconds between two looks.
pub fn parse_interval(text: &str) -> Result<Duration, Failure> {
    let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.filter(|interval| (INTERVAL_MIN..=INTERVAL_MAX).contains(interval)).ok_or_else(|| {
        Failure::ebb(format!("-d {}", printable(text)), "this is no interval", "write seconds, 0.1 to 3600: 2, 0.5")
    })
}

/// Parses how many frames there are to be.
pub fn parse_frames(text: &str) -> Result<u64, Failure> {
    text.parse().ok().filter(|frames| *frames > 0).ok_or_else(|| {
        Failure::ebb(format!("-n {}", printable(text)), "this is no number of frames", "write a number from 1 on")
    })
}

/// Shows the trees until the user quits. The exit status.
pub fn report(top: &Top) -> Result<i32, Failure> {
    if top.is_batch {
        return in_batch(top);
    }
    if !io::stdout().is_terminal() {
        return Err(Failure::ebb(
            "ebb top",
            "standard output is no terminal",
            "use `ebb ps --json` or `ebb metrics` for programs, or `ebb top --batch` for plain text",
        ));
    }
    let term = std::env::var("TERM").unwrap_or_default();
    if term.is_empty() || term == "dumb" {
        return Err(Failure::ebb(
            format!("TERM={term}"),
            "this terminal cannot move the cursor",
            "use `ebb top --batch` or `ebb ps`, or set TERM to what the terminal is",
        ));
    }
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let has_color = top.has_color && set("NO_COLOR").is_none();
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    // The console of Linux has few letters beyond those of ASCII.
    let is_ascii = top.is_ascii || term == "linux" || locale.as_deref().is_some_and(is_of_another_charset);
    on_terminal(top, Looks { has_color, is_ascii })
}

/// Whether a locale names another character set than UTF-8. C and POSIX name none.
fn is_of_another_charset(locale: &str) -> bool {
    let charset = locale.split_once('.').map(|(_, charset)| charset.split('@').next().unwrap_or(charset));
    charset.is_some_and(|charset| !["utf8", "utf-8"].contains(&charset.to_ascii_lowercase().as_str()))
}

fn in_batch(top: &Top) -> Result<i32, Failure> {
    let mut watch = Watch::begin(&top.targets)?;
    let mut out = io::stdout().lock();
    let mut pause = FIRST;
    for frame in 0..top.frames.unwrap_or(u64::MAX) {
        std::thread::sleep(pause);
        pause = top.interval;
        let gap = if frame == 0 { "" } else { "\n" };
        let text = format!("{gap}{}", batch::text(&watch.look()?));
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| Failure::ebb("standard output", error, "redirect it to a place that can be written"))?;
    }
    Ok(0)
}

/// What to say while there is no tree.
fn nothing(targets: &[Target]) -> String {
    match targets {
        [] => "No tree that you may see runs under Ebb. Start a program with `ebb run -- PROGRAM`.".to_owned(),
        targets => {
            let names: Vec<String> = targets.iter().map(Target::to_string).collect();
            format!("{}: ended. What starts again under the name is shown.", names.join(", "))
        }
    }
}

fn on_terminal(top: &Top, looks: Looks) -> Result<i32, Failure> {
    let mut watch = Watch::begin(&top.targets)?;
    std::thread::sleep(FIRST);
    let mut picture = watch.look()?;
    let failed = |error: io::Error| Failure::ebb("the terminal", error, "use `ebb top --batch`, or `ebb ps`");
    let mut terminal = Terminal::open().map_err(failed)?;
    let mut view = View::new(top.interval);
    let ended = until_quit(top, looks, &mut watch, &mut picture, &mut view, &mut terminal);
    // The terminal is given back before anybody says anything.
    drop(terminal);
    match ended {
        Ok(None) => Ok(0),
        Ok(Some(signal)) => Ok(end_likewise(End::Signaled(signal))),
        Err(Ended::Failed(failure)) => Err(failure),
        Err(Ended::Terminal(error)) => Err(failed(error)),
    }
}

/// Why it cannot go on.
enum Ended {
    Failed(Failure),
    Terminal(io::Error),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Terminal(error)
    }
}

/// Draws, and does what keys ask for. Returns the signal to die of, if there is one.
fn until_quit(
    top: &Top,
    looks: Looks,
    watch: &mut Watch,
    picture: &mut Picture,
    view: &mut View,
    terminal: &mut Terminal,
) -> Result<Option<libc::c_int>, Ended> {
    let nothing = nothing(&top.targets);
    let (mut looked, mut frames) = (Instant::now(), 1);
    loop {
        terminal.draw(|frame| draw::draw(frame, view, &Screen { picture, looks, nothing: &nothing }))?;
        // The last frame is not there to be looked at for long: programs count them.
        if top.frames.is_some_and(|most| frames >= most) {
            return Ok(None);
        }
        let mut is_due = false;
        match terminal.wait(if view.is_paused { looked + INTERVAL_MAX } else { looked + view.interval })? {
            Arrived::Death(signal) => return Ok(Some(signal)),
            Arrived::HungUp => return Ok(Some(libc::SIGHUP)),
            Arrived::Stop => terminal.stop(false)?,
            Arrived::Changed => terminal.forget()?,
            Arrived::Nothing => {}
            Arrived::Keys(keys) => {
                for key in keys {
                    match view.press(key, picture) {
                        Then::Draw => {}
                        Then::Look => is_due = true,
                        Then::Quit => return Ok(None),
                        Then::Stop => terminal.stop(true)?,
                        Then::Redraw => terminal.forget()?,
                    }
                }
            }
        }
        if is_due || !view.is_paused && looked.elapsed() >= view.interval {
            *picture = watch.look().map_err(Ended::Failed)?;
            (looked, frames) = (Instant::now(), frames + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_frames_are_numbers() {
        assert_eq!(parse_interval("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_interval("3600"), Ok(Duration::from_secs(3600)));
        for text in ["", "0", "0.09", "3601", "-1", "NaN", "inf", "1s"] {
            let said = parse_interval(text).unwrap_err().to_string();
            assert_eq!(said, format!("ebb: -d {text}: this is no interval; write seconds, 0.1 to 3600: 2, 0.5"));
        }
        assert_eq!(parse_frames("3"), Ok(3));
        for text in ["0", "-1", "x", ""] {
            assert!(parse_frames(text).unwrap_err().to_string().contains("this is no number of frames"), "{text}");
        }
    }

    #[test]
    fn only_a_locale_that_names_another_charset_is_one() {
        let of_others = ["de_DE.ISO-8859-1", "de_DE.ISO-8859-15@euro", "ja_JP.eucJP"];
        assert!(of_others.into_iter().all(is_of_another_charset));
        let utf8 = ["C", "POSIX", "C.UTF-8", "en_US.utf8", "de_DE.UTF-8@euro", "en_US"];
        assert!(!utf8.into_iter().any(is_of_another_charset));
    }
}
