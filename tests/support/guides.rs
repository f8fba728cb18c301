//! The guides as the tests read them: their fenced blocks, with what stands behind the fence.
//!
//! ```text
//! ```sh run                  commands that a test runs, one after another as if typed into one shell
//! ```toml run                the configuration that the service is started with for them
//! ```js run bucket index=X   a mongosh example; `bucket` or `timeseries`: of that mode alone; `index`: it must use X
//! ```json output             what the block before it answers; `…` stands for any text
//! ```text output             the same, line by line
//! ```

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A fenced block.
#[derive(Debug, Clone)]
pub struct Block {
    /// Where: file and line of its fence.
    pub at: String,
    /// Its language and the words behind it.
    pub info: Vec<String>,
    /// What is in it.
    pub text: String,
    /// The block that follows at once and is its output.
    pub output: Option<Box<Block>>,
}

impl Block {
    /// Whether a word stands behind the fence.
    pub fn has(&self, word: &str) -> bool {
        self.info.iter().any(|w| w == word)
    }

    /// Whether it begins so: `is("sh", "run")`.
    pub fn is(&self, language: &str, word: &str) -> bool {
        self.info.first().is_some_and(|w| w == language) && self.has(word)
    }
}

/// The repository.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository.
///
/// # Panics
/// It is not there.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The blocks of a text; an output stands in the block that it is of.
///
/// # Panics
/// A fence that is not closed, or an output of nothing.
pub fn blocks(name: &str, text: &str) -> Vec<Block> {
    let mut found: Vec<Block> = vec![];
    let mut open: Option<Block> = None;
    for (n, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => {
                let info = info.split_whitespace().map(str::to_owned).collect();
                open = Some(Block { at: format!("{name}:{}", n + 1), info, text: String::new(), output: None });
            }
            (Some(_), Some(_)) => {
                let block = open.take().expect("it is open");
                if block.has("output") {
                    let of = found.last_mut().unwrap_or_else(|| panic!("{}: an output of nothing", block.at));
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

/// Whether `said` is what the output promises.
///
/// # Panics
/// It is not; both are shown.
#[track_caller]
pub fn compare(output: &Block, said: &str) {
    if output.info[0] == "json" {
        let wanted: Value = serde_json::from_str(&output.text).unwrap_or_else(|e| panic!("{}: {e}", output.at));
        let got: Value = serde_json::from_str(said).unwrap_or_else(|e| panic!("{}: got {said:?}: {e}", output.at));
        assert!(fits(&wanted, &got), "{}: the guide says\n{wanted}\nand it is\n{got}", output.at);
        return;
    }
    let (wanted, got) = (output.text.trim_end(), said.trim_end());
    let fit =
        wanted.lines().count() == got.lines().count() && wanted.lines().zip(got.lines()).all(|(w, g)| text_fits(w, g));
    assert!(fit, "{}: the guide says\n{wanted}\nand it is\n{got}", output.at);
}

fn fits(wanted: &Value, got: &Value) -> bool {
    match (wanted, got) {
        (Value::Object(w), Value::Object(g)) => {
            w.len() == g.len() && w.iter().all(|(key, value)| g.get(key).is_some_and(|g| fits(value, g)))
        }
        (Value::Array(w), Value::Array(g)) => w.len() == g.len() && w.iter().zip(g).all(|(w, g)| fits(w, g)),
        (Value::String(w), Value::String(g)) => text_fits(w, g),
        (Value::Number(w), Value::Number(g)) => w.as_f64() == g.as_f64(),
        _ => wanted == got,
    }
}

/// Where `…` stands, anything may.
fn text_fits(wanted: &str, got: &str) -> bool {
    let Some((before, behind)) = wanted.split_once('…') else { return wanted == got };
    got.len() >= before.len() + behind.len() && got.starts_with(before) && got.ends_with(behind)
}

/// Everything in Markdown that people read: the guides and what stands beside the code.
pub fn pages() -> Vec<String> {
    let mut found = vec![];
    for folder in ["", "docs", "loadtest", "deploy", "tests", "config"] {
        collect(&root().join(folder), folder == "deploy" || folder == "docs", &mut found);
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
