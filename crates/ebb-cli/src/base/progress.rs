//! One line on the terminal that says how much is left to do.

use std::io::{IsTerminal, Write};

/// Shows a line while it lives; dropping it clears the line. Shows nothing if standard error is not a terminal.
pub struct Progress {
    what: &'static str,
    on_terminal: bool,
    shown: bool,
}

impl Progress {
    /// Progress of the command `what`.
    pub fn new(what: &'static str) -> Self {
        Self { what, on_terminal: std::io::stderr().is_terminal(), shown: false }
    }

    /// Shows how much is left.
    pub fn show(&mut self, left: &str) {
        if self.on_terminal {
            self.shown = true;
            // Keep it short: a line that wraps cannot be written over.
            self.write(&format!("\rebb: {}: {left}\x1b[K", self.what));
        }
    }

    /// Ignores errors: there is nobody to tell.
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
