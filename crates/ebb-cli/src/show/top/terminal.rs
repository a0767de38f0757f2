//! The terminal of `ebb top`: its modes, what is written to it, and the keys and signals that arrive meanwhile.
//!
//! Whatever ends `ebb top`, the terminal is left as it was found: by `Drop`, by the hook of a panic, and before the process stops or
//! dies of a signal. Signals are held and taken one by one, so none of them comes in the middle of a frame.
//!
//! Keys are read here, because a reader that waits for the end of a sequence waits for ever if it has none, and must notice when
//! the terminal hangs up.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ratatui_core::layout::{Position, Rect};
use ratatui_core::terminal::Frame;

use crate::base::interrupt::{Event, Interrupts};
use crate::base::sys::{self, check};
use crate::show::top::ansi::{Ansi, enter_raw_mode, leave_raw_mode};
use crate::show::top::keys;
use crate::show::top::view::Key;

/// Signals that end `ebb top`.
const DEADLY: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
/// Signals that it takes note of, beside the deadly ones. SIGTTOU comes when modes change while another job has the terminal; held back,
/// it lets that happen.
const OTHERS: [libc::c_int; 4] = [libc::SIGTSTP, libc::SIGCONT, libc::SIGWINCH, libc::SIGTTOU];
/// How long a terminal may take nothing before keys and signals are looked at again.
const STUCK_MS: libc::c_int = 1000;
/// How long after an Escape the rest of a sequence may come.
const REST: Duration = Duration::from_millis(50);

/// What arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrived {
    Keys(Vec<Key>),
    /// A signal to die of.
    Death(libc::c_int),
    /// Somebody asked to stop until SIGCONT.
    Stop,
    /// The terminal has another size, or others have written there.
    Changed,
    /// There is no terminal any more.
    HungUp,
    Nothing,
}

/// Writes to the terminal without waiting for it longer than [`STUCK_MS`]: then, and when a signal arrives, it fails with `WouldBlock`.
struct Out {
    file: File,
    signals: Rc<Interrupts>,
}

impl Out {
    fn open(signals: Rc<Interrupts>) -> io::Result<Self> {
        // Another description of the same terminal, because the flag is for all who share one.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = match OpenOptions::new().write(true).custom_flags(flags).open("/proc/self/fd/1") {
            Ok(file) => file,
            // The terminal is another user's, as after su(1).
            Err(_) => sys::raise_descriptor(&io::stdout(), 3)?.into(),
        };
        Ok(Self { file, signals })
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.file.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            let poll = |fd, events| libc::pollfd { fd, events, revents: 0 };
            let mut both = [poll(self.file.as_raw_fd(), libc::POLLOUT), poll(self.signals.as_raw_fd(), libc::POLLIN)];
            // SAFETY: the array is whole, and its length given.
            check(unsafe { libc::poll(both.as_mut_ptr(), both.len() as libc::nfds_t, STUCK_MS) })?;
            if both[0].revents == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The terminal, in raw mode and on its other screen.
pub struct Terminal {
    /// Never dropped: that would complain to a terminal that has hung up, and panic because nobody takes the complaint.
    inner: ManuallyDrop<ratatui_core::terminal::Terminal<Ansi<BufWriter<Out>>>>,
    signals: Rc<Interrupts>,
    keys: File,
    /// Bytes that are no key yet.
    pending: Vec<u8>,
}

impl Terminal {
    pub fn open() -> io::Result<Self> {
        let keys: File = match io::stdin().is_terminal() {
            true => sys::raise_descriptor(&io::stdin(), 3)?.into(),
            false => OpenOptions::new().read(true).custom_flags(libc::O_NOCTTY).open("/dev/tty")?,
        };
        // In the background this stops the process, as it should.
        enter_raw_mode()?;
        let opened = Self::begin(keys);
        if opened.is_err() {
            leave();
        }
        opened
    }

    fn begin(keys: File) -> io::Result<Self> {
        let signals = Rc::new(Interrupts::hold_these(DEADLY.into_iter().chain(OTHERS))?);
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            leave();
            before(info);
        }));
        let out = BufWriter::with_capacity(1 << 16, Out::open(Rc::clone(&signals))?);
        let mut inner = ratatui_core::terminal::Terminal::new(Ansi::new(out))?;
        if inner.size()?.area() == 0 {
            let why = "it says that it has no lines or no columns (`stty rows 24 cols 80` sets them)";
            return Err(io::Error::other(why));
        }
        inner.backend_mut().enter()?;
        let mut terminal = Self { inner: ManuallyDrop::new(inner), signals, keys, pending: Vec::new() };
        terminal.forget()?;
        Ok(terminal)
    }

    /// Draws a frame. What a terminal does not take in time is written with the next one.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        match self.inner.draw(draw) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Draws all of the next frame, whatever the terminal seems to show.
    pub fn forget(&mut self) -> io::Result<()> {
        // Not `clear`, which asks the terminal where the cursor is, and waits for the answer.
        let cleared = self.inner.size().and_then(|size| self.inner.resize(Rect::from((Position::ORIGIN, size))));
        match cleared {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    /// Waits until something arrives, at most until `until`.
    pub fn wait(&mut self, until: Instant) -> io::Result<Arrived> {
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up: less than a millisecond must not be none.
        match self.signals.wait(&self.keys, Some(left + Duration::from_micros(999)))? {
            Event::Signal(signal) if DEADLY.contains(&signal) => Ok(Arrived::Death(signal)),
            Event::Signal(libc::SIGTSTP) => Ok(Arrived::Stop),
            Event::Signal(libc::SIGCONT) => {
                // Somebody else may have changed the modes meanwhile.
                self.again()?;
                Ok(Arrived::Changed)
            }
            Event::Signal(libc::SIGWINCH) => Ok(Arrived::Changed),
            Event::Signal(_) | Event::Nothing => Ok(Arrived::Nothing),
            Event::Message => self.read(),
        }
    }

    fn read(&mut self) -> io::Result<Arrived> {
        let mut bytes = [0; 256];
        match self.keys.read(&mut bytes) {
            Ok(0) => return Ok(Arrived::HungUp),
            Ok(len) => self.pending.extend_from_slice(&bytes[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(Arrived::HungUp),
        }
        let mut keys = keys::take(&mut self.pending, false);
        if !self.pending.is_empty() && !self.has_more() {
            keys.extend(keys::take(&mut self.pending, true));
        }
        Ok(Arrived::Keys(keys))
    }

    /// Whether the rest of a sequence comes soon.
    fn has_more(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.keys.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one whole structure.
        unsafe { libc::poll(&raw mut poll, 1, REST.as_millis() as libc::c_int) == 1 }
    }

    /// Stops until SIGCONT: the whole job if a key asked for that, else this process alone.
    pub fn stop(&mut self, is_by_key: bool) -> io::Result<()> {
        if sys::is_ignored(libc::SIGTSTP) {
            return Ok(());
        }
        self.end();
        let stop = sys::signals([libc::SIGTSTP, libc::SIGTTOU]);
        sys::change_mask(libc::SIG_UNBLOCK, &stop);
        // SAFETY: sends a signal to this process, or to its group.
        unsafe { libc::kill(if is_by_key { 0 } else { libc::getpid() }, libc::SIGTSTP) };
        // Continued in the background, it stops here once more.
        let began = enter_raw_mode();
        sys::change_mask(libc::SIG_BLOCK, &stop);
        began.and_then(|()| self.again())
    }

    fn again(&mut self) -> io::Result<()> {
        leave_raw_mode()?;
        enter_raw_mode()?;
        self.inner.backend_mut().enter()?;
        self.forget()
    }

    /// Gives the terminal back.
    fn end(&mut self) {
        // What is written last must come after what the terminal has not taken yet.
        let _ = self.inner.backend_mut().leave();
        let _ = leave_raw_mode();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.end();
        self.signals.release();
    }
}

/// Gives the terminal back, whoever has it.
fn leave() {
    let _ = Ansi::new(io::stdout()).leave();
    let _ = leave_raw_mode();
}
