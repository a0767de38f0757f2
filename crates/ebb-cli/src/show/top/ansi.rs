//! A terminal as ratatui draws to it, by the sequences of ECMA-48 and xterm that terminals understand, and its modes.
//!
//! ratatui's own back ends bring readers of keys and signals along, which `ebb top` has no use for: with crossterm, the command
//! would need twenty more crates.

use std::io::{self, Write};
use std::sync::Mutex;

use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};

use crate::base::sys::check;

/// The other screen, without a cursor; and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?1049l\x1b[?25h";

/// What is written to it goes to `out`.
pub struct Ansi<W> {
    out: W,
}

impl<W: Write> Ansi<W> {
    pub fn new(out: W) -> Self {
        Self { out }
    }

    /// Turns to the other screen.
    pub fn enter(&mut self) -> io::Result<()> {
        self.out.write_all(ENTER)?;
        self.out.flush()
    }

    /// Turns back to the screen that was there before.
    pub fn leave(&mut self) -> io::Result<()> {
        self.out.write_all(LEAVE)?;
        self.out.flush()
    }
}

/// The parameters that select a color: `plain` for the first of the sixteen, such as 30, and `bright` for the ninth.
fn color(out: &mut String, color: Color, plain: u8, bright: u8) {
    use std::fmt::Write;
    let _ = match color {
        Color::Reset => Ok(()),
        Color::Black => write!(out, ";{plain}"),
        Color::Red => write!(out, ";{}", plain + 1),
        Color::Green => write!(out, ";{}", plain + 2),
        Color::Yellow => write!(out, ";{}", plain + 3),
        Color::Blue => write!(out, ";{}", plain + 4),
        Color::Magenta => write!(out, ";{}", plain + 5),
        Color::Cyan => write!(out, ";{}", plain + 6),
        Color::Gray => write!(out, ";{}", plain + 7),
        Color::DarkGray => write!(out, ";{bright}"),
        Color::LightRed => write!(out, ";{}", bright + 1),
        Color::LightGreen => write!(out, ";{}", bright + 2),
        Color::LightYellow => write!(out, ";{}", bright + 3),
        Color::LightBlue => write!(out, ";{}", bright + 4),
        Color::LightMagenta => write!(out, ";{}", bright + 5),
        Color::LightCyan => write!(out, ";{}", bright + 6),
        Color::White => write!(out, ";{}", bright + 7),
        Color::Indexed(index) => write!(out, ";{};5;{index}", plain + 8),
        Color::Rgb(red, green, blue) => write!(out, ";{};2;{red};{green};{blue}", plain + 8),
    };
}

/// The sequence for how a cell looks, whatever the one before looked like.
fn look(cell: &Cell) -> String {
    const MODIFIERS: [(Modifier, char); 9] = [
        (Modifier::BOLD, '1'),
        (Modifier::DIM, '2'),
        (Modifier::ITALIC, '3'),
        (Modifier::UNDERLINED, '4'),
        (Modifier::SLOW_BLINK, '5'),
        (Modifier::RAPID_BLINK, '6'),
        (Modifier::REVERSED, '7'),
        (Modifier::HIDDEN, '8'),
        (Modifier::CROSSED_OUT, '9'),
    ];
    let mut out = "\x1b[0".to_owned();
    for (_, number) in MODIFIERS.iter().filter(|(modifier, _)| cell.modifier.contains(*modifier)) {
        out.extend([';', *number]);
    }
    color(&mut out, cell.fg, 30, 90);
    color(&mut out, cell.bg, 40, 100);
    out.push('m');
    out
}

impl<W: Write> Backend for Ansi<W> {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let (mut next, mut looks) = (None, String::new());
        for (x, y, cell) in content {
            // After a wide letter the next cell is not the next column, so the cursor is moved.
            if next != Some((x, y)) {
                write!(self.out, "\x1b[{};{}H", y + 1, x + 1)?;
            }
            let new = look(cell);
            if new != looks {
                self.out.write_all(new.as_bytes())?;
                looks = new;
            }
            self.out.write_all(cell.symbol().as_bytes())?;
            next = Some((x + 1, y));
        }
        if looks.is_empty() { Ok(()) } else { self.out.write_all(b"\x1b[0m") }
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25l")
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.out.write_all(b"\x1b[?25h")
    }

    /// The terminal is not asked: `ebb top` does not use the cursor.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        write!(self.out, "\x1b[{};{}H", y + 1, x + 1)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        self.out.write_all(match region {
            ClearType::All => b"\x1b[2J",
            ClearType::AfterCursor => b"\x1b[0J",
            ClearType::BeforeCursor => b"\x1b[1J",
            ClearType::CurrentLine => b"\x1b[2K",
            ClearType::UntilNewLine => b"\x1b[0K",
        })
    }

    fn size(&self) -> io::Result<Size> {
        Ok(window()?.columns_rows)
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        window()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The size of the terminal that standard output is.
fn window() -> io::Result<WindowSize> {
    // SAFETY: all zeroes are valid for it, and the kernel fills it as a whole.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        check(libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size))?;
        size
    };
    Ok(WindowSize {
        columns_rows: Size::new(size.ws_col, size.ws_row),
        pixels: Size::new(size.ws_xpixel, size.ws_ypixel),
    })
}

/// The modes of the terminal as they were found; none while they are so.
static FOUND: Mutex<Option<libc::termios>> = Mutex::new(None);

/// Takes keys as they come, unseen, and sends no signals for them. Does nothing if that is so already.
pub fn enter_raw_mode() -> io::Result<()> {
    let mut found = FOUND.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if found.is_some() {
        return Ok(());
    }
    // SAFETY: all zeroes are valid for it, and the kernel fills it as a whole.
    let before = unsafe {
        let mut modes: libc::termios = std::mem::zeroed();
        check(libc::tcgetattr(libc::STDOUT_FILENO, &raw mut modes))?;
        modes
    };
    let mut raw = before;
    // SAFETY: whole structures; the call changes the terminal alone.
    unsafe {
        libc::cfmakeraw(&raw mut raw);
        check(libc::tcsetattr(libc::STDOUT_FILENO, libc::TCSANOW, &raw const raw))?;
    }
    *found = Some(before);
    Ok(())
}

/// Puts the modes back. Does nothing if they are as they were found.
pub fn leave_raw_mode() -> io::Result<()> {
    let mut found = FOUND.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(before) = found.take() {
        // SAFETY: a whole structure.
        check(unsafe { libc::tcsetattr(libc::STDOUT_FILENO, libc::TCSANOW, &raw const before) })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(symbol: &'static str, fg: Color, modifier: Modifier) -> Cell {
        let mut cell = Cell::new(symbol);
        (cell.fg, cell.modifier) = (fg, modifier);
        cell
    }

    #[test]
    fn neighbours_that_look_alike_take_one_sequence() {
        let (plain, red) = (Cell::new("a"), cell("b", Color::LightRed, Modifier::BOLD | Modifier::REVERSED));
        let mut screen = Ansi::new(Vec::new());
        screen.draw([(0, 0, &plain), (1, 0, &plain), (2, 0, &red), (0, 4, &red)].into_iter()).unwrap();
        let drawn = String::from_utf8(screen.out).unwrap();
        assert_eq!(drawn, "\x1b[1;1H\x1b[0maa\x1b[0;1;7;91mb\x1b[5;1Hb\x1b[0m");
    }

    #[test]
    fn what_follows_a_wide_letter_is_placed_anew() {
        let (wide, plain) = (Cell::new("\u{4e2d}"), Cell::new("a"));
        let mut screen = Ansi::new(Vec::new());
        screen.draw([(0, 0, &wide), (2, 0, &plain)].into_iter()).unwrap();
        assert_eq!(String::from_utf8(screen.out).unwrap(), "\x1b[1;1H\x1b[0m\u{4e2d}\x1b[1;3Ha\x1b[0m");
    }

    #[test]
    fn colors_have_their_numbers() {
        let of = |fg| look(&cell("x", fg, Modifier::empty()));
        assert_eq!(of(Color::Reset), "\x1b[0m");
        assert_eq!(of(Color::Cyan), "\x1b[0;36m");
        assert_eq!(of(Color::White), "\x1b[0;97m");
        assert_eq!(of(Color::Indexed(200)), "\x1b[0;38;5;200m");
        assert_eq!(of(Color::Rgb(1, 2, 3)), "\x1b[0;38;2;1;2;3m");
        let mut back = Cell::new("x");
        back.bg = Color::LightBlue;
        assert_eq!(look(&back), "\x1b[0;104m");
    }

    #[test]
    fn nothing_to_draw_is_nothing_to_write() {
        let mut screen = Ansi::new(Vec::new());
        screen.draw(std::iter::empty()).unwrap();
        assert!(screen.out.is_empty());
    }
}
