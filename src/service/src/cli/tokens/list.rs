//! The command `tokens list`: the rules of each entry, and when it was last used.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::error::{CommandError, KEY, io};
use net::access::{GrantDefaults, LAST_USED_FILE, LastUsed, Tokens};

/// When tokens were last used, from the files of all services; `None`, and a hint, if that is not
/// known.
pub(super) fn read_last_used(files: &[PathBuf], config: Option<&Path>) -> Option<LastUsed> {
    let files = match files {
        [] => {
            let loaded = config::load(config, config::environment());
            let unknown = |_| {
                eprintln!(
                    "hourbucket: when tokens were last used is unknown: the configuration is not \
                     valid"
                )
            };
            vec![
                loaded
                    .map_err(unknown)
                    .ok()?
                    .config
                    .journal
                    .dir
                    .join(LAST_USED_FILE),
            ]
        }
        files => files.to_vec(),
    };
    let mut newest: Option<LastUsed> = None;
    for file in files {
        match (LastUsed::load(&file), &mut newest) {
            (Ok(read), Some(newest)) => newest.merge(read),
            (Ok(read), None) => newest = Some(read),
            (Err(error), _) => {
                eprintln!(
                    "hourbucket: when tokens were last used is unknown: cannot read {}: {error}",
                    file.display()
                );
                return None;
            }
        }
    }
    newest
}

/// An entry as it is shown.
type Shown = serde_json::Map<String, Value>;

/// `all`: also names that were used and have no entry.
pub(super) fn list(
    path: &Path,
    json: bool,
    all: bool,
    last_used: Option<&LastUsed>,
) -> Result<Vec<String>, CommandError> {
    let text = std::fs::read_to_string(path).map_err(io("read", path))?;
    Tokens::parse(KEY, &text, path, &GrantDefaults::unlimited())?;
    let table: toml::Table = text.parse().map_err(|_| CommandError::Syntax)?;
    let entries = table
        .get("tokens")
        .and_then(toml::Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let of_entry = |entry: &toml::Table| -> Shown {
        // Everything but the hash.
        entry
            .iter()
            .filter(|(key, _)| *key != "sha256")
            .map(|(key, value)| (key.clone(), shown(value)))
            .collect()
    };
    let mut rows: Vec<Shown> = entries
        .iter()
        .filter_map(toml::Value::as_table)
        .map(of_entry)
        .collect();
    if let Some(last_used) = last_used.filter(|_| all) {
        let known: HashSet<String> = rows.iter().map(|row| id(row).to_owned()).collect();
        let without_entry = |id: &str| match json!({ "id": id, "entry": false }) {
            Value::Object(row) => Some(row),
            _ => None,
        };
        rows.extend(
            last_used
                .ids()
                .filter(|id| !known.contains(*id))
                .filter_map(without_entry),
        );
    }
    for row in &mut rows {
        let (key, time) = match last_used.map(|last_used| {
            last_used
                .find(id(row))
                .ok_or_else(|| last_used.unused_since())
        }) {
            None => ("last_used", None),
            Some(Ok(at)) => ("last_used", Some(at)),
            Some(Err(since)) => ("unused_since", Some(since)),
        };
        row.insert(key.to_owned(), time.into());
    }
    Ok(match json {
        true => vec![Value::from_iter(rows).to_string()],
        false => rows.iter().map(line).collect(),
    })
}

fn id(row: &Shown) -> &str {
    row.get("id").and_then(Value::as_str).unwrap_or_default()
}

fn line(row: &Shown) -> String {
    let part = |(key, value): (&String, &Value)| match value {
        Value::Null => format!("{key} = unknown"),
        value => format!("{key} = {value}"),
    };
    let parts: Vec<String> = row
        .iter()
        .filter(|(key, _)| *key != "id")
        .map(part)
        .collect();
    format!("{:24} {}", id(row), parts.join(", "))
}

fn shown(value: &toml::Value) -> Value {
    match value {
        toml::Value::Datetime(time) => time.to_string().into(),
        other => serde_json::to_value(other).unwrap_or_default(),
    }
}
