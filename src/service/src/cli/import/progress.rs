//! The progress of an import on standard error.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use config::write_duration;

/// Intervals between lines, on a terminal and elsewhere.
const EVERY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

pub(super) struct Progress {
    name: String,
    /// Of the content, in bytes or rows; `None`: unknown.
    pub(super) size: Option<u64>,
    terminal: bool,
    since: Instant,
    drawn: Option<Instant>,
    /// The count at the start, from earlier runs.
    before: Option<u64>,
}

impl Progress {
    pub(super) fn new(path: &Path, size: Option<u64>) -> Progress {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let terminal = std::io::stderr().is_terminal();
        Progress {
            name,
            size,
            terminal,
            since: Instant::now(),
            drawn: None,
            before: None,
        }
    }

    /// Draws the progress, not too often. `offset`: how much of the content is done.
    pub(super) fn draw(&mut self, offset: u64, accepted: u64) {
        let before = *self.before.get_or_insert(accepted);
        let every = if self.terminal { EVERY.0 } else { EVERY.1 };
        if self.drawn.unwrap_or(self.since).elapsed() < every {
            return;
        }
        self.drawn = Some(Instant::now());
        let share = match self.size {
            Some(size) => format!(
                "{:3} %",
                (offset * 100).checked_div(size).unwrap_or(100).min(100)
            ),
            None => format!("{} MiB", offset >> 20),
        };
        let rate = (accepted - before) as f64 / self.since.elapsed().as_secs_f64().max(0.001);
        let line = format!(
            "{}: {share}, {accepted} readings, {rate:.0} readings/s",
            self.name
        );
        let mut out = std::io::stderr().lock();
        let _ = if self.terminal {
            write!(out, "\r{line}\x1b[K")
        } else {
            writeln!(out, "{line}")
        };
        let _ = out.flush();
    }

    /// Says why nothing moves.
    pub(super) fn wait(&self, why: &str, pause: Duration) {
        let end = if self.terminal { "\r" } else { "" };
        let pause = write_duration(pause);
        eprintln!("{end}{}: waiting {pause}: {why}", self.name);
    }

    pub(super) fn end(&self) {
        if self.terminal && self.drawn.is_some() {
            eprintln!();
        }
    }
}
