//! One line on the terminal that says how much is left to do, while that lasts.

use std::io::{IsTerminal, Write};

/// Shows nothing where standard error is no terminal. The line goes when this does.
pub struct Progress {
    what: &'static str,
    on_terminal: bool,
    shown: bool,
}

impl Progress {
    /// Of the command `what`.
    pub fn new(what: &'static str) -> Self {
        Self { what, on_terminal: std::io::stderr().is_terminal(), shown: false }
    }

    /// Says what is left.
    pub fn show(&mut self, left: &str) {
        if self.on_terminal {
            self.shown = true;
            // Short, because a line that wraps cannot be written over.
            self.write(&format!("\rebb: {}: {left}\x1b[K", self.what));
        }
    }

    /// There is nobody to tell when that fails.
    fn write(&self, text: &str) {
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            self.write("\r\x1b[K");
        }
    }
}
