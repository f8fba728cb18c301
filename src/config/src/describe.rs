//! Describes every key in the order of the file, for the reference, the shipped file and the names
//! that a mistake could mean.

use std::sync::Arc;

use super::Config;
use super::declare::{Key, List, Settings, Value, Visit, Visitor};
use super::mapping::{Mapping, Rule};

/// A section or a key.
pub(crate) enum Item {
    /// A section.
    Section {
        /// As in the file: `[journal]`, `[[mqtt]]`.
        header: String,
        text: &'static str,
        /// There is none by default.
        #[cfg_attr(not(test), allow(dead_code, reason = "a test writes the shipped file"))]
        is_example: bool,
    },
    /// A key.
    Key {
        /// Without list indexes: `mqtt.subscriptions.filter`.
        path: String,
        key: Key,
        /// Type and range.
        kind: String,
        /// As TOML; `None`: it is not set by default.
        default: Option<String>,
    },
}

/// All sections and keys. Keys of a format are those of `formats.example`; its rules have the same
/// ones.
pub(crate) fn items() -> Vec<Item> {
    let mut describe = Describe::default();
    Config::default().visit(&mut describe);
    describe.items
}

/// The keys of [`items`] with their defaults.
pub(crate) fn defaults() -> impl Iterator<Item = (String, Option<String>)> {
    items().into_iter().filter_map(|item| match item {
        Item::Key { path, default, .. } => Some((path, default)),
        Item::Section { .. } => None,
    })
}

/// Every key that can be set, such as `store.uri` and `mqtt.subscriptions.filter`, in the order of
/// the shipped file. Keys of a format are listed as `formats.example`; its rules have the same
/// ones.
pub fn known_keys() -> Vec<String> {
    defaults().map(|(path, _)| path).collect()
}

#[derive(Default)]
struct Describe {
    path: String,
    is_example: bool,
    items: Vec<Item>,
}

impl Describe {
    fn section(&mut self, path: String, header: String, text: &'static str, keys: Visit<'_>) {
        let above = std::mem::replace(&mut self.path, path);
        let at = self.items.len();
        self.items.push(Item::Section {
            header,
            text,
            is_example: self.is_example,
        });
        keys(self);
        // The file names no section that has no keys of its own.
        if matches!(self.items.get(at + 1), Some(Item::Section { .. })) {
            self.items.remove(at);
        }
        self.path = above;
    }

    fn example(&mut self, path: String, header: String, text: &'static str, keys: Visit<'_>) {
        let above = std::mem::replace(&mut self.is_example, true);
        self.section(path, header, text, keys);
        self.is_example = above;
    }
}

impl Visitor for Describe {
    fn key(&mut self, key: &Key, value: &mut dyn Value) {
        self.items.push(Item::Key {
            path: join(&self.path, key.name),
            key: key.clone(),
            kind: value.describe().to_owned(),
            default: value.write().map(|default| default.to_string()),
        });
    }

    fn section(&mut self, key: &Key, keys: Visit<'_>) {
        let path = join(&self.path, key.name);
        let header = format!("[{path}]");
        self.section(path, header, key.text, keys);
    }

    fn list(&mut self, key: &Key, list: &mut dyn List) {
        let path = join(&self.path, key.name);
        let header = format!("[[{path}]]");
        list.push();
        self.example(path, header, key.text, &mut |describe| {
            list.visit(0, describe);
        });
    }

    fn formats(&mut self, _: &Key, _: &mut Vec<Arc<Mapping>>) {
        let mut rule = Rule::default();
        let path = "formats.example".to_owned();
        let header = format!("[{path}]");
        self.example(path, header, rule.text(), &mut |describe| {
            rule.visit(describe)
        });
    }
}

/// A name below a path.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// A part of a text.
pub(crate) struct Paragraph {
    /// Wrapped lines; of an example, the lines as they are.
    pub(crate) lines: Vec<String>,
    pub(crate) is_example: bool,
    /// An empty line is before it.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test writes the shipped file"))]
    pub(crate) is_apart: bool,
}

/// The paragraphs of a declared text, wrapped at a width. Indented lines are an example.
pub(crate) fn paragraphs(text: &str, width: usize) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut is_apart = false;
    for line in text.lines() {
        let line = line.strip_prefix(' ').unwrap_or(line);
        let is_example = line.starts_with("  ");
        if line.is_empty() {
            is_apart = true;
            continue;
        }
        match found.last_mut() {
            Some(last) if !is_apart && last.is_example == is_example => {
                last.add(line.trim(), width);
            }
            _ => {
                let mut paragraph = Paragraph {
                    lines: vec![],
                    is_example,
                    is_apart,
                };
                paragraph.add(line.trim(), width);
                found.push(paragraph);
            }
        }
        is_apart = false;
    }
    found
}

impl Paragraph {
    fn add(&mut self, line: &str, width: usize) {
        if self.is_example {
            self.lines.push(line.to_owned());
            return;
        }
        for word in line.split_whitespace() {
            match self.lines.last_mut() {
                Some(last) if last.chars().count() + word.chars().count() < width => {
                    *last += " ";
                    *last += word;
                }
                _ => self.lines.push(word.to_owned()),
            }
        }
    }
}
