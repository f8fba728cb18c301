//! Progress on standard error: a bar on a terminal, otherwise a line at intervals.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Interval between progress lines without a terminal.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

pub(super) struct Bar {
    terminal: bool,
    drawn: Option<Instant>,
}

impl Bar {
    const WIDTH: u64 = 30;

    pub(super) fn new() -> Bar {
        Bar {
            terminal: std::io::stderr().is_terminal(),
            drawn: None,
        }
    }

    /// Draws it, not too often. `done` of a total, which may be an estimate.
    pub(super) fn draw(&mut self, (done, total): (u64, u64), text: impl FnOnce() -> String) {
        let every = if self.terminal {
            Duration::from_millis(100)
        } else {
            PROGRESS_EVERY
        };
        let last = done >= total;
        if !last && self.drawn.is_some_and(|drawn| drawn.elapsed() < every) {
            return;
        }
        self.drawn = Some(Instant::now());
        let total = total.max(done).max(1);
        let full = (done * Bar::WIDTH / total) as usize;
        let bar = format!(
            "{}{}",
            "#".repeat(full),
            ".".repeat(Bar::WIDTH as usize - full)
        );
        let line = format!("[{bar}] {:3} %  {}", done * 100 / total, text());
        let mut out = std::io::stderr().lock();
        let _ = if self.terminal {
            write!(out, "\r{line}\x1b[K")
        } else {
            writeln!(out, "{line}")
        };
        let _ = out.flush();
    }

    pub(super) fn end(&self) {
        if self.terminal && self.drawn.is_some() {
            let _ = writeln!(std::io::stderr().lock());
        }
    }
}
