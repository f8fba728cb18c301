//! Environment over file over default.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::error::{ConfigErrors, Problem};
use super::reader::Report;
use super::tree::{self, Entries};
use super::{Config, check, sections};

/// The file that is read where none is named; it may be missing.
pub const DEFAULT_PATH: &str = "config/hourbucket.toml";

/// A larger file is not one of ours (somebody named the wrong one).
const FILE_MAX_BYTES: u64 = 1024 * 1024;

/// A configuration and where it comes from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// The file that was read; `None` where the default one is missing.
    pub file: Option<PathBuf>,
    /// The names of the environment variables that set something.
    pub variables: Vec<String>,
}

/// The process's environment, as [`load`] wants it. Variables that are not Unicode cannot be ours and are left out.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Loads the configuration from `path` (or [`DEFAULT_PATH`]), with `env` over it. Reads the files that the settings
/// name where they hold a secret, and looks whether the others can be read; opens no connection.
///
/// # Errors
/// Everything that is wrong, at once. A named file that is missing is wrong; the default one is not.
pub fn load(path: Option<&Path>, env: impl Iterator<Item = (String, String)>) -> Result<Loaded, ConfigErrors> {
    let mut report = Report::default();
    let (mut entries, file) = read_file(path, &mut report);
    let (variables, bad) = tree::overlay(&mut entries, env);
    for variable in bad {
        let (what, advice) = (variable.what, variable.advice);
        report.problems.push(Problem { key: String::new(), origin: variable.name, what, advice });
    }
    let config = understand(entries, &mut report);
    if report.problems.is_empty() {
        return Ok(Loaded { config, file, variables });
    }
    Err(ConfigErrors { problems: report.problems })
}

/// Every key that can be set, such as `store.uri` and `mqtt.subscriptions.filter`, in the order of the shipped file. Those
/// of a format are named `formats.example`; its rules have the same ones.
pub fn known_keys() -> Vec<String> {
    one_of_each().known
}

/// What is known after every key was asked for.
pub(super) fn one_of_each() -> Report {
    let mut report = Report::default();
    let one_of_each = "[formats.example]\n[[mqtt]]\n[[mqtt.subscriptions]]\n[[listen.mqtt.topics]]";
    let one_of_each = tree::parse(&Rc::from(""), one_of_each).unwrap_or_default();
    sections::read(one_of_each, &mut report);
    report
}

impl Default for Config {
    /// What holds where nothing is set.
    fn default() -> Config {
        understand(Entries::new(), &mut Report::default())
    }
}

fn understand(entries: Entries, report: &mut Report) -> Config {
    let config = sections::read(entries, report);
    report.finish();
    check::combinations(&config, report);
    config
}

/// The file's settings and its path; nothing of either where it cannot be read, which the report says.
fn read_file(path: Option<&Path>, report: &mut Report) -> (Entries, Option<PathBuf>) {
    let used = path.unwrap_or(Path::new(DEFAULT_PATH));
    let name: Rc<str> = used.display().to_string().into();
    let mut wrong = |origin: String, what: String, advice: &str| {
        report.problems.push(Problem { key: String::new(), origin, what, advice: advice.to_owned() });
        (Entries::new(), None)
    };
    let mut text = String::new();
    let read = std::fs::File::open(used).and_then(|file| file.take(FILE_MAX_BYTES + 1).read_to_string(&mut text));
    match read {
        Err(e) if e.kind() == ErrorKind::NotFound && path.is_none() => return (Entries::new(), None),
        Err(e) => return wrong(name.to_string(), format!("cannot be read: {e}"), "name a readable file with --config"),
        Ok(n) if n as u64 > FILE_MAX_BYTES => {
            return wrong(name.to_string(), "larger than 1MiB".into(), "name a configuration file with --config");
        }
        Ok(_) => {}
    }
    match tree::parse(&name, &text) {
        Ok(entries) => (entries, Some(used.to_owned())),
        Err(e) => wrong(format!("{name}:{}", e.line), e.what, "correct the TOML of this line"),
    }
}
