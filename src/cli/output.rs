//! What a command prints, and its exit code if it fails.

use std::io::Write;
use std::process::ExitCode;

/// Of a failed command whose exit code 1 means that something differs or remains.
pub(super) const MAINTENANCE_FAILED: u8 = 2;

pub(super) fn fail(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("hourbucket: {error}");
    ExitCode::FAILURE
}

pub(super) fn maintenance_failed(error: impl std::fmt::Display) -> ExitCode {
    fail(error);
    ExitCode::from(MAINTENANCE_FAILED)
}

/// Prints a line to standard output. A closed pipe is not an error.
pub(super) fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
