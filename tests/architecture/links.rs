//! Compares the documents with the source: links to source files exist and contain the item that
//! they name, and references to sections of `docs/design.md` exist.

use std::fs;
use std::path::Path;

/// Broken links of the form ``[`item`](../src/file.rs)`` in one document of `docs/`; `root` is the
/// project's folder.
pub(crate) fn broken_links(root: &Path, document: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (at, start) in line.match_indices("](../") {
            let Some((path, _)) = line[at + start.len()..].split_once(')') else {
                continue;
            };
            let path = path.split('#').next().unwrap_or(path);
            let place = format!("docs/{document}:{}", number + 1);
            if !root.join(path).exists() {
                found.push(format!("{place}: there is no file `{path}`"));
            }
            let item = line[..at]
                .strip_suffix('`')
                .and_then(|before| before.rsplit_once("[`"))
                .map(|(_, item)| item);
            if let (Some(item), Ok(source)) = (item, fs::read_to_string(root.join(path)))
                && path.ends_with(".rs")
                && !declares(path, &source, item)
            {
                found.push(format!("{place}: `{path}` does not declare `{item}`"));
            }
        }
    }
    found
}

/// Whether a file declares an item, or is the module of this name.
fn declares(path: &str, source: &str, item: &str) -> bool {
    let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let kinds = [
        "fn",
        "struct",
        "enum",
        "trait",
        "type",
        "const",
        "static",
        "mod",
        "macro_rules!",
    ];
    let follows = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    module.rsplit('/').next() == Some(item)
        || kinds.iter().any(|kind| {
            let declared = format!("{kind} {item}");
            source
                .match_indices(&declared)
                .any(|(at, _)| follows(&source[at + declared.len()..]))
        })
}

/// References to sections of the design (`design.md, section 2`) that do not exist.
pub(crate) fn broken_sections(design: &str, path: &str, text: &str) -> Vec<String> {
    let numbers = |rest: &str| {
        rest.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
    };
    let has = |number: &str| {
        design
            .lines()
            .any(|line| line.starts_with(&format!("## {number}. ")))
    };
    let mut found = Vec::new();
    for (line_number, line) in text.lines().enumerate() {
        for rest in line.split("docs/design.md, section ").skip(1) {
            let number = numbers(rest);
            if !has(&number) {
                found.push(format!(
                    "{path}:{}: docs/design.md has no section {number}",
                    line_number + 1
                ));
            }
        }
    }
    found
}
