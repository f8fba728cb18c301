//! Runs a command of hourbucket to its end, and measures it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::process::Process;
use crate::Failure;
use crate::usage::{self, Usage};

/// A command that has ended well.
pub(crate) struct Ended {
    /// Its directory is there until it is dropped.
    process: Process,
    /// From its start until its end.
    pub(crate) seconds: f64,
    pub(crate) used: Usage,
}

impl Ended {
    /// Checks that it has said this.
    ///
    /// # Errors
    /// It has not; with what it has said.
    pub(crate) fn must_say(&self, text: &str) -> Result<(), Failure> {
        let said = self.process.log();
        match said.contains(text) {
            true => Ok(()),
            false => Err(format!("expected \"{text}\" from hourbucket:\n{said}").into()),
        }
    }

    /// Where it ran.
    pub(crate) fn dir(&self) -> &Path {
        self.process.dir()
    }
}

/// Runs `hourbucket NAME ARGUMENTS` in a directory of its own, with these settings (variables without
/// `HOURBUCKET_`).
///
/// # Errors
/// It runs longer than `within`, or fails.
pub(crate) fn run<'s>(
    binary: &Path,
    name: &'static str,
    arguments: &[&str],
    settings: impl IntoIterator<Item = (&'s str, &'s str)>,
    within: Duration,
) -> Result<Ended, Failure> {
    let mut process = Process::new(name);
    std::fs::write(process.dir().join("hourbucket.toml"), "")?;
    let mut command = Command::new(binary.canonicalize()?);
    let variables = settings.into_iter();
    command
        .args([name, "--config", "hourbucket.toml"])
        .args(arguments)
        .envs(variables.map(|(key, value)| (format!("HOURBUCKET_{key}"), value)));
    let begun = Instant::now();
    process.spawn(&mut command);
    let used = usage::until_ended(process.pid(), within, || {});
    let seconds = begun.elapsed().as_secs_f64();
    let used = used.ok_or_else(|| format!("hourbucket {name} takes too long"))?;
    let status = process.wait(Duration::from_secs(10));
    if !status.success() {
        let said = process.log();
        return Err(format!("hourbucket {name} exited with {status}:\n{said}").into());
    }
    Ok(Ended {
        process,
        seconds,
        used,
    })
}
