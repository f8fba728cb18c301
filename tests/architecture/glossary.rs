//! Compares the source with `docs/glossary.md`: each type that is listed there
//! exists, and no retired word is used in an identifier or a comment.

use std::collections::BTreeSet;

use super::source::Code;

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

    /// The types that are listed and declared in none of these files (path and text).
    pub(crate) fn missing_types(&self, files: &[(String, String)]) -> Vec<String> {
        let declared: BTreeSet<String> = files
            .iter()
            .flat_map(|(path, text)| types(&Code::read(path, text).text))
            .collect();
        let gone = self.types.difference(&declared);
        gone.map(|name| format!("docs/glossary.md: there is no type `{name}`"))
            .collect()
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

/// The names of the types that a file declares, without literals and comments.
fn types(code: &str) -> Vec<String> {
    let is_keyword = |word: &str| ["struct", "enum", "trait", "type"].contains(&word);
    let words: Vec<&str> = code
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    words
        .windows(2)
        .filter(|pair| is_keyword(pair[0]))
        .map(|pair| pair[1].to_owned())
        .collect()
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
