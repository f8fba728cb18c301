//! The getters of a section, one for each type of value: each checks the type and the range of a
//! key's value, and records both and the default for the reference.

use std::fmt::Display;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::reader::{Bad, PATH_ADVICE, Section, one_of, out_of_range, wrong};
use super::suggest::pattern;
use super::tree::Node;
use super::units::{parse_duration, parse_size, write_duration, write_size};
use model::SensorPatterns;

/// A text that `Debug` does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text itself, for the code that must send it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Section<'_> {
    /// Records the type and the default of a key, for the reference.
    fn describe(&mut self, key: &str, kind: impl Into<String>, default: Option<String>) {
        let path = pattern(&self.key(key));
        self.report.described.insert(path, (kind.into(), default));
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, key: &str, default: bool) -> bool {
        self.describe(key, "`true` or `false`", Some(default.to_string()));
        self.parse(key, |node| {
            node.flag()
                .ok_or_else(|| wrong(node, "write true or false"))
        })
        .unwrap_or(default)
    }

    /// A whole number.
    pub(super) fn count<T: TryFrom<u64> + Display>(
        &mut self,
        key: &str,
        default: T,
        range: RangeInclusive<u64>,
    ) -> T {
        let kind = format!("whole number, {} to {}", range.start(), range.end());
        self.describe(key, kind, Some(default.to_string()));
        self.parse(key, |node| {
            let advice = format!(
                "write a whole number from {} to {}",
                range.start(),
                range.end()
            );
            let n = node.integer().ok_or_else(|| wrong(node, &advice))?;
            let n = u64::try_from(n).ok().filter(|n| range.contains(n));
            n.and_then(|n| T::try_from(n).ok())
                .ok_or_else(|| out_of_range(node, &advice))
        })
        .unwrap_or(default)
    }

    /// A size in bytes: a number, or a text such as `512MiB`.
    pub(super) fn size(&mut self, key: &str, default: u64, range: RangeInclusive<u64>) -> u64 {
        let kind = format!(
            "size in bytes, {} to {}",
            write_size(*range.start()),
            write_size(*range.end())
        );
        self.describe(key, kind, Some(format!("\"{}\"", write_size(default))));
        self.parse(key, |node| {
            let least = write_size(*range.start());
            let most = write_size(*range.end());
            let advice = format!(
                "write a size from \"{least}\" to \"{most}\", such as 8388608, \"512MiB\" \
                    or \"10MB\""
            );
            let bytes = match node.integer() {
                Some(n) => u64::try_from(n).ok(),
                None => parse_size(node.text().ok_or_else(|| wrong(node, &advice))?),
            };
            let bytes = bytes.ok_or_else(|| wrong(node, &advice))?;
            if range.contains(&bytes) {
                Ok(bytes)
            } else {
                Err(out_of_range(node, &advice))
            }
        })
        .unwrap_or(default)
    }

    /// A duration such as `15s`; `None` if it is not set.
    pub(super) fn duration_opt(
        &mut self,
        key: &str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let kind = format!(
            "duration, {} to {}",
            write_duration(*range.start()),
            write_duration(*range.end())
        );
        self.describe(key, kind, None);
        self.parse(key, |node| {
            let least = write_duration(*range.start());
            let most = write_duration(*range.end());
            let advice = format!(
                "write a duration from \"{least}\" to \"{most}\", such as \"250ms\", \
                    \"15s\" or \"1h30m\""
            );
            let duration = node
                .text()
                .and_then(parse_duration)
                .ok_or_else(|| wrong(node, &advice))?;
            if range.contains(&duration) {
                Ok(duration)
            } else {
                Err(out_of_range(node, &advice))
            }
        })
    }

    /// A duration such as `15s`.
    pub(super) fn duration(
        &mut self,
        key: &str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let duration = self.duration_opt(key, range);
        let default_text = Some(format!("\"{}\"", write_duration(default)));
        if let Some(described) = self.report.described.get_mut(&pattern(&self.key(key))) {
            described.1 = default_text;
        }
        duration.unwrap_or(default)
    }

    /// A non-empty text.
    pub(super) fn text(&mut self, key: &str) -> Option<String> {
        self.describe(key, "text", None);
        self.parse(key, |node| match node.text() {
            Some("") => Err(Bad::new("empty", "write a text, or remove the key")),
            Some(text) => Ok(text.to_owned()),
            None => Err(wrong(node, "write a text in quotes")),
        })
    }

    /// A text that may be empty.
    pub(super) fn text_or_empty(&mut self, key: &str) -> Option<String> {
        self.describe(key, "text", None);
        self.parse(key, |node| {
            let text = node.text().map(str::to_owned);
            text.ok_or_else(|| wrong(node, "write a text in quotes"))
        })
    }

    /// The name of a tag, as it is stored.
    pub(super) fn tag_name(&mut self, key: &str) -> Option<String> {
        self.describe(key, "name of a tag, up to 64 bytes", None);
        self.parse(key, |node| {
            let advice = "write a name of 1 to 64 bytes, such as \"sender\", without . or $, not \
                ts, meta or _id";
            let is_valid = |name: &str| {
                (1..=64).contains(&name.len())
                    && !name.contains(['.', '$', '\0'])
                    && !["ts", "meta", "_id"].contains(&name)
            };
            let name = node.text().ok_or_else(|| wrong(node, advice))?;
            if is_valid(name) {
                Ok(name.to_owned())
            } else {
                Err(wrong(node, advice))
            }
        })
    }

    /// A non-empty text that no message repeats.
    pub(super) fn secret(&mut self, key: &str) -> Option<Secret> {
        self.describe(key, "text, a secret", None);
        self.parse(key, |node| match node.text() {
            Some(text) if !text.is_empty() => Ok(Secret::new(text.to_owned())),
            Some(_) => Err(Bad::new("empty", "write a text, or remove the key")),
            None => Err(Bad::new(
                format!("expected a text, found {}", node.value.kind()),
                "write a text in quotes",
            )),
        })
    }

    /// One of several names.
    pub(super) fn choice<T: Copy>(&mut self, key: &str, default: T, choices: &[(&str, T)]) -> T {
        let names: Vec<String> = choices
            .iter()
            .map(|(name, _)| format!("`\"{name}\"`"))
            .collect();
        self.describe(key, names.join(", "), None);
        self.parse(key, |node| {
            let found = choices.iter().find(|(name, _)| node.text() == Some(name));
            found
                .map(|(_, value)| *value)
                .ok_or_else(|| wrong(node, &one_of(choices.iter().map(|(name, _)| *name))))
        })
        .unwrap_or(default)
    }

    /// An address to listen on.
    pub(super) fn address(&mut self, key: &str, default: SocketAddr) -> SocketAddr {
        self.describe(key, "IP address and port", Some(format!("\"{default}\"")));
        self.parse(key, |node| {
            let advice = match node.text() {
                Some(text) if text.starts_with(':') => {
                    format!("write \"0.0.0.0{text}\" for all interfaces")
                }
                _ => "write an IP address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\""
                    .to_owned(),
            };
            node.text()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| wrong(node, &advice))
        })
        .unwrap_or(default)
    }

    /// A readable file. The path stays as it is, relative to the working directory.
    pub(super) fn file(&mut self, key: &str) -> Option<PathBuf> {
        self.describe(key, "path of a readable file", None);
        let may_be_missing = key == "tokens_file" && self.report.may_lack_tokens;
        self.parse(key, |node| {
            let path = PathBuf::from(
                node.text()
                    .ok_or_else(|| wrong(node, "write a path in quotes"))?,
            );
            match std::fs::File::open(&path).and_then(|file| file.metadata()) {
                Ok(found) if found.is_dir() => Err(Bad::new(
                    format!("{} is a directory", path.display()),
                    PATH_ADVICE,
                )),
                Ok(_) => Ok(path),
                Err(e) if may_be_missing && e.kind() == ErrorKind::NotFound => Ok(path),
                Err(e) => Err(unreadable(&path, &e)),
            }
        })
    }
}

/// Patterns in which `{id}` stands for the identity of a sender.
pub(super) fn patterns(node: &Node) -> Result<Vec<String>, Bad> {
    let advice =
        "write a list of patterns on sensor ids, such as [\"{id}\", \"{id}-*\"]; [] allows none";
    let texts = node.texts().ok_or_else(|| wrong(node, advice))?;
    SensorPatterns::parse(texts.iter().map(String::as_str))
        .map_err(|problem| Bad::new(problem, advice))?;
    Ok(texts)
}

fn unreadable(path: &Path, e: &std::io::Error) -> Bad {
    Bad::new(
        format!("{} cannot be read: {e}", path.display()),
        PATH_ADVICE,
    )
}
