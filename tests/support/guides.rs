//! The guides as the tests read them: fenced blocks, with the words after the opening fence.
//!
//! ```text
//! ```sh run                  commands that a test runs in order, as if typed into one shell
//! ```toml run                the configuration of the service for these commands
//! ```js run bucket index=X   a mongosh example; `bucket` or `timeseries`: only in that mode; `index`: it must use X
//! ```json output             the output of the previous block; `…` matches any text
//! ```text output             the same, line by line
//! ```

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A fenced block.
#[derive(Debug, Clone)]
pub struct Block {
    /// File and line of the opening fence.
    pub at: String,
    /// The language and the words after it.
    pub info: Vec<String>,
    /// The text inside.
    pub text: String,
    /// The output block that follows directly.
    pub output: Option<Box<Block>>,
}

impl Block {
    /// Whether the opening fence has this word.
    pub fn has(&self, word: &str) -> bool {
        self.info.iter().any(|w| w == word)
    }

    /// Whether the opening fence begins with these words: `is("sh", "run")`.
    pub fn is(&self, language: &str, word: &str) -> bool {
        self.info.first().is_some_and(|w| w == language) && self.has(word)
    }
}

/// The root of the repository.
pub fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Reads a file of the repository.
///
/// # Panics
/// The file does not exist.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The blocks of a text; an output is attached to its block.
///
/// # Panics
/// A fence is not closed, or an output has no block.
pub fn blocks(name: &str, text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = vec![];
    let mut open: Option<Block> = None;
    for (n, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => {
                let info = info.split_whitespace().map(str::to_owned).collect();
                open = Some(Block {
                    at: format!("{name}:{}", n + 1),
                    info,
                    text: String::new(),
                    output: None,
                });
            }
            (Some(_), Some(_)) => {
                let block = open.take().expect("the block is open");
                if block.has("output") {
                    let of = found
                        .last_mut()
                        .unwrap_or_else(|| panic!("{}: an output without a block", block.at));
                    of.output = Some(Box::new(block));
                } else {
                    found.push(block);
                }
            }
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{name}: a fence is not closed: {open:?}");
    found
}

/// Compares `actual` with the expected output.
///
/// # Panics
/// They differ; the message has both.
#[track_caller]
pub fn compare(output: &Block, actual: &str) {
    if output.info[0] == "json" {
        let wanted: Value =
            serde_json::from_str(&output.text).unwrap_or_else(|e| panic!("{}: {e}", output.at));
        let got: Value = serde_json::from_str(actual)
            .unwrap_or_else(|e| panic!("{}: got {actual:?}: {e}", output.at));
        assert!(
            fits(&wanted, &got),
            "{}: the guide says\n{wanted}\nand it is\n{got}",
            output.at
        );
        return;
    }
    let wanted = output.text.trim_end();
    let got = actual.trim_end();
    let fit = wanted.lines().count() == got.lines().count()
        && wanted
            .lines()
            .zip(got.lines())
            .all(|(w, g)| text_fits(w, g));
    assert!(
        fit,
        "{}: the guide says\n{wanted}\nand it is\n{got}",
        output.at
    );
}

fn fits(wanted: &Value, got: &Value) -> bool {
    match (wanted, got) {
        (Value::Object(w), Value::Object(g)) => {
            w.len() == g.len()
                && w.iter()
                    .all(|(key, value)| g.get(key).is_some_and(|g| fits(value, g)))
        }
        (Value::Array(w), Value::Array(g)) => {
            w.len() == g.len() && w.iter().zip(g).all(|(w, g)| fits(w, g))
        }
        (Value::String(w), Value::String(g)) => text_fits(w, g),
        (Value::Number(w), Value::Number(g)) => w.as_f64() == g.as_f64(),
        _ => wanted == got,
    }
}

/// `…` matches any text.
fn text_fits(wanted: &str, got: &str) -> bool {
    let Some((before, after)) = wanted.split_once('…') else {
        return wanted == got;
    };
    got.len() >= before.len() + after.len() && got.starts_with(before) && got.ends_with(after)
}

/// All Markdown files for users: the guides and the files next to the code.
pub fn pages() -> Vec<String> {
    let mut found = vec![];
    for folder in ["", "docs", "loadtest", "deploy", "tests", "config"] {
        collect(
            &root().join(folder),
            folder == "deploy" || folder == "docs",
            &mut found,
        );
    }
    found.sort();
    found.dedup();
    found
}

fn collect(folder: &Path, deep: bool, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && deep {
            collect(&path, deep, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            let relative = path.strip_prefix(root()).expect("below the root");
            found.push(relative.to_string_lossy().into_owned());
        }
    }
}
