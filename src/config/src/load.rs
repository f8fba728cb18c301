//! Merges environment over file over default.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::declare::Settings;
use super::describe::known_keys;
use super::error::{ConfigErrors, Problem};
use super::reader::{Reader, Report};
use super::tree::{self, Entries};
use super::{Config, check, suggest};

/// The file to read if none is named; it may be missing.
const DEFAULT_PATH: &str = "config/hourbucket.toml";

/// A larger file is not a configuration (the user named the wrong file).
const FILE_MAX_BYTES: u64 = 1024 * 1024;

/// A configuration and its sources.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// The file that was read; `None` if the default one is missing.
    pub file: Option<PathBuf>,
    /// Names of the environment variables that set a key.
    pub variables: Vec<String>,
    /// Keys whose value is in a file that a `…_FILE` variable names, and that file.
    pub(super) value_files: Vec<(String, PathBuf)>,
}

/// The process's environment in the form that [`load`] takes. Skips variables that are not Unicode:
/// none of the service's variables can be.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Loads the configuration from `path` (or [`DEFAULT_PATH`]), with `env` over it. Reads the files
/// that hold secrets and checks that the other files are readable. Opens no connection.
///
/// # Errors
/// All problems together. A missing file is a problem if it is named, but not if it is the default
/// one.
pub fn load(
    path: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Loaded, ConfigErrors> {
    load_into(Report::default(), path, env)
}

/// Like [`load`], for a command that creates the tokens file: a `tokens_file` need not exist.
pub fn load_for_new_tokens(
    path: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Loaded, ConfigErrors> {
    load_into(Report::for_new_tokens(), path, env)
}

fn load_into(
    mut report: Report,
    path: Option<&Path>,
    env: impl Iterator<Item = (String, String)>,
) -> Result<Loaded, ConfigErrors> {
    let (mut entries, file) = read_file(path, &mut report);
    let env: Vec<(String, String)> = env.collect();
    report.problems.extend(single_underscores(&env));
    let (variables, bad) = tree::overlay(&mut entries, env.into_iter());
    for variable in bad {
        let what = variable.what;
        let advice = variable.advice;
        report.problems.push(Problem {
            key: String::new(),
            origin: variable.name,
            what,
            advice,
        });
    }
    let config = understand(entries, &mut report);
    if report.problems.is_empty() {
        return Ok(Loaded {
            config,
            file,
            variables,
            value_files: report.value_files,
        });
    }
    Err(ConfigErrors {
        problems: report.problems,
    })
}

/// Variables that would set a key with `__` in place of `_`. Others without a `__` belong to other
/// programs.
fn single_underscores(env: &[(String, String)]) -> Vec<Problem> {
    let names: Vec<&String> = env
        .iter()
        .filter(|(name, value)| tree::is_without_dot(name) && !value.is_empty())
        .map(|(name, _)| name)
        .collect();
    if names.is_empty() {
        return vec![];
    }
    let known = known_keys();
    let problem = |name: &String| {
        Some(Problem {
            key: String::new(),
            origin: name.clone(),
            what: "not a setting: two underscores separate a section from its key".into(),
            advice: format!("write {}", suggest::for_variable(name, &known)?),
        })
    };
    names.into_iter().filter_map(problem).collect()
}

fn understand(entries: Entries, report: &mut Report) -> Config {
    let mut config = Config::default();
    Reader::read(String::new(), entries, report, &mut |reader| {
        config.visit(reader);
    });
    check::complete(&mut config, report);
    report.finish();
    check::combinations(&config, report);
    config
}

/// The file's settings and its path. Both are empty if the file is unreadable; the report then has
/// the reason.
fn read_file(path: Option<&Path>, report: &mut Report) -> (Entries, Option<PathBuf>) {
    let used = path.unwrap_or(Path::new(DEFAULT_PATH));
    let name: Rc<str> = used.display().to_string().into();
    let mut wrong = |origin: String, what: String, advice: &str| {
        report.problems.push(Problem {
            key: String::new(),
            origin,
            what,
            advice: advice.to_owned(),
        });
        (Entries::new(), None)
    };
    let mut text = String::new();
    let read = std::fs::File::open(used)
        .and_then(|file| file.take(FILE_MAX_BYTES + 1).read_to_string(&mut text));
    match read {
        Err(e) if e.kind() == ErrorKind::NotFound && path.is_none() => {
            return (Entries::new(), None);
        }
        Err(e) => {
            return wrong(
                name.to_string(),
                format!("cannot be read: {e}"),
                "name a readable file with --config",
            );
        }
        Ok(n) if n as u64 > FILE_MAX_BYTES => {
            return wrong(
                name.to_string(),
                "larger than 1MiB".into(),
                "name a configuration file with --config",
            );
        }
        Ok(_) => {}
    }
    match tree::parse(&name, &text) {
        Ok(entries) => (entries, Some(used.to_owned())),
        Err(e) => wrong(
            format!("{name}:{}", e.line),
            e.what,
            "correct the TOML of this line",
        ),
    }
}

/// A configuration file with this text.
#[cfg(test)]
pub(crate) fn loaded(text: &str) -> Result<Loaded, String> {
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    std::fs::write(file.path(), text).map_err(|error| error.to_string())?;
    load(Some(file.path()), std::iter::empty()).map_err(|errors| errors.to_string())
}
