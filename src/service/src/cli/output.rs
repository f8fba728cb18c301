//! What a command prints, and its exit code if it fails.
//!
//! The reader of a pipe may close it when it has seen enough: that is not an error. Any other fault
//! of standard output, such as a full disk, is one: the exit code must not say that everything was
//! printed.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Of a failed command whose exit code 1 means that something differs or remains.
pub(super) const MAINTENANCE_FAILED: u8 = 2;

/// EX_CONFIG of sysexits.h: a service manager should not restart.
pub(super) const CONFIG_UNUSABLE: u8 = 78;

/// The first fault of [`print_line`].
static LOST: OnceLock<io::Error> = OnceLock::new();

pub(super) fn fail(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("hourbucket: {error}");
    ExitCode::FAILURE
}

pub(super) fn maintenance_failed(error: impl std::fmt::Display) -> ExitCode {
    fail(error);
    ExitCode::from(MAINTENANCE_FAILED)
}

/// Prints a line to standard output. A fault is reported at the end of the command ([`ended`]).
pub(super) fn print_line(line: &str) {
    if let Err(error) = writeln!(StandardOutput, "{line}") {
        let _ = LOST.set(error);
    }
}

/// The exit code of a command that has returned `code`: `failed` if a line could not be printed.
pub(super) fn ended(code: ExitCode, failed: u8) -> ExitCode {
    match LOST.get() {
        Some(error) => {
            fail(error);
            ExitCode::from(failed)
        }
        None => code,
    }
}

/// Prints a line now; returns whether it was read, or may be: `false` if the pipe is closed.
///
/// # Errors
/// Any other fault of standard output.
pub(super) fn print_if_read(line: &str) -> io::Result<bool> {
    match writeln!(io::stdout().lock(), "{line}") {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(named(error)),
    }
}

/// Standard output whose closed pipe takes everything.
pub(super) struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        without_closed(io::stdout().lock().write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        without_closed(io::stdout().lock().flush(), ())
    }
}

/// `done` in place of the error of a closed pipe.
fn without_closed<T>(result: io::Result<T>, done: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(done),
        // `write_all` repeats these.
        Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
        other => other.map_err(named),
    }
}

fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("standard output: {error}"))
}

/// Interval between progress lines without a terminal.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

/// Progress on standard error: a bar on a terminal, otherwise a line at intervals.
pub(super) struct Bar {
    terminal: bool,
    drawn: Option<Instant>,
}

impl Bar {
    const WIDTH: u64 = 30;

    pub(super) fn new() -> Bar {
        Bar {
            terminal: io::stderr().is_terminal(),
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
        let mut out = io::stderr().lock();
        let _ = if self.terminal {
            write!(out, "\r{line}\x1b[K")
        } else {
            writeln!(out, "{line}")
        };
        let _ = out.flush();
    }

    pub(super) fn end(&self) {
        if self.terminal && self.drawn.is_some() {
            let _ = writeln!(io::stderr().lock());
        }
    }
}
