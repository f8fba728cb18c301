//! Compares the source with `docs/glossary.md`: every public type of the pipeline is listed there,
//! every listed type exists, and no retired word is used in an identifier or a comment.

use std::collections::BTreeSet;

use super::source::Code;

/// The folders and files whose public types the glossary lists.
const PIPELINE: &[&str] = &[
    "src/accumulate/",
    "src/access/",
    "src/ack.rs",
    "src/admission.rs",
    "src/commit_delay.rs",
    "src/dead_letters/",
    "src/decode/",
    "src/enrich/",
    "src/flush/",
    "src/ingest/",
    "src/journal/",
    "src/latest/",
    "src/rollup/",
    "src/maintain/",
    "src/promql/",
    "src/model/",
    "src/read/",
    "src/route/",
    "src/store/",
];

/// Names of other libraries that contain a retired word.
const OTHERS: &[&str] = &["PoisonError"];

/// The contents of the glossary.
pub(crate) struct Glossary {
    types: BTreeSet<String>,
    retired: BTreeSet<String>,
}

impl Glossary {
    pub(crate) fn read(text: &str) -> Glossary {
        let (terms, retired) = text
            .split_once("## Retired words")
            .expect("the glossary lists retired words");
        let cells = |line: &str| line.split('|').map(str::to_owned).collect::<Vec<_>>();
        let types = terms
            .lines()
            .filter(|l| l.starts_with('|'))
            .filter_map(|l| cells(l).get(3).cloned());
        let words = retired
            .lines()
            .filter(|l| l.starts_with('|'))
            .filter_map(|l| cells(l).get(1).cloned());
        Glossary {
            types: types.flat_map(|c| quoted(&c)).collect(),
            retired: words.flat_map(|c| quoted(&c)).collect(),
        }
    }

    /// The violations of these files (path and text): public types that the glossary lacks, and
    /// listed types that do not exist.
    pub(crate) fn check_types(&self, files: &[(String, String)]) -> Vec<String> {
        let mut found = Vec::new();
        let mut public = BTreeSet::new();
        for (path, text) in files
            .iter()
            .filter(|(path, _)| PIPELINE.iter().any(|p| path.starts_with(p)))
        {
            for (line, name) in public_types(&Code::read(path, text).text) {
                if !self.types.contains(&name) {
                    found.push(format!(
                        "{path}:{line}: docs/glossary.md does not list the public type `{name}`"
                    ));
                }
                public.insert(name);
            }
        }
        let gone = self.types.difference(&public);
        found.extend(gone.map(|name| {
            format!("docs/glossary.md: there is no public type `{name}` in the pipeline")
        }));
        found
    }

    /// Retired words in one file, with their lines. Texts in quotes are not checked: they may be
    /// data.
    pub(crate) fn check_words(&self, path: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut before = String::new();
        for (number, line) in Code::without_literals(text).lines().enumerate() {
            for word in words(line) {
                let singular = word.strip_suffix('s').unwrap_or(&word);
                let is_retired = [word.as_str(), singular]
                    .into_iter()
                    .any(|w| self.retired.contains(w));
                // A dead letter keeps its name, also over the end of a line.
                if is_retired && !(singular == "letter" && before == "dead") {
                    found.push(format!(
                        "{path}:{}: `{word}` is retired, see docs/glossary.md",
                        number + 1
                    ));
                }
                before = word;
            }
        }
        found
    }
}

/// The texts in backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Names of `pub` types, with their lines; `pub(crate)` and narrower are not public.
fn public_types(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("pub ") else {
            continue;
        };
        for keyword in ["struct ", "enum ", "trait ", "type "] {
            if let Some(name) = rest.strip_prefix(keyword) {
                let name: String = name
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                found.push((number + 1, name));
            }
        }
    }
    found
}

/// The words of a line in lower case: identifiers are split at underscores and capitals.
fn words(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for name in line.split(|c: char| !c.is_alphanumeric() && c != '_') {
        if OTHERS.contains(&name) {
            continue;
        }
        let mut word = String::new();
        for c in name.chars() {
            if c == '_' || c.is_uppercase() {
                found.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
            }
            if c != '_' {
                word.extend(c.to_lowercase());
            }
        }
        found.extend((!word.is_empty()).then_some(word));
    }
    found
}
