//! The checks of one file: the paths that it names against the tables of `rules.rs`, and its form.

use crate::rules::{HOMES, IMPURE_PATHS, LAYERS, MAY_NAME, NOT_PURE, PURE};
use crate::source::Code;

pub(crate) const LINES_MAX: usize = 800;

/// Checks one file; `is_test` marks code that only tests use. One line per violation: file, line,
/// rule.
pub(crate) fn check(path: &str, text: &str, is_test: bool) -> Vec<String> {
    let mut found = shape(path, text);
    if !is_test && path.starts_with("src/") {
        let code = Code::read(path, text);
        found.extend(string_errors(&code.text).into_iter().map(|line| {
            format!("{path}:{line}: use a type that implements `Error` for errors, not a `String`")
        }));
        for (line, name) in &code.paths {
            let broken = [
                names(path, name),
                home(path, name),
                pure(path, name),
                layers(path, name),
            ];
            found.extend(
                broken
                    .into_iter()
                    .flatten()
                    .map(|rule| format!("{path}:{line}: `{name}`: {rule}")),
            );
        }
    }
    found
}

/// Rules for the form of every file, also of tests.
fn shape(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !text.starts_with("//!") {
        found.push(format!(
            "{path}:1: a file opens with `//!`, saying what it is for"
        ));
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        found.push(format!(
            "{path}:{lines}: more than {LINES_MAX} lines; it has become two things"
        ));
    }
    let packed = text.lines().enumerate().filter(|(_, line)| is_packed(line));
    found.extend(packed.map(|(i, _)| format!("{path}:{}: one `let` per line", i + 1)));
    found
}

/// Whether a line only packs several bindings into a tuple: `let (a, b) = (1, 2);`.
fn is_packed(line: &str) -> bool {
    let Some((names, values)) = line
        .trim()
        .strip_prefix("let (")
        .and_then(|rest| rest.split_once(") = ("))
    else {
        return false;
    };
    values.ends_with(");")
        && names
            .chars()
            .all(|c| c.is_alphanumeric() || "_, ".contains(c))
}

/// A stage names only the handle of the next stage.
fn names(path: &str, name: &str) -> Option<String> {
    let target = name.strip_prefix("crate::")?;
    let (module, rest) = target.split_once("::").unwrap_or((target, ""));
    let place = path.strip_prefix("src/")?.strip_suffix(".rs")?;
    let own = place.split('/').next()?;
    if module == own {
        return None;
    }
    let fits = |entry: &str| {
        place == entry
            || place
                .strip_prefix(entry)
                .is_some_and(|rest| rest.starts_with('/'))
    };
    let Some((_, allowed)) = MAY_NAME
        .iter()
        .filter(|(entry, _)| fits(entry))
        .max_by_key(|(entry, _)| entry.len())
    else {
        return Some(format!(
            "`{own}` is new: say in MAY_NAME of tests/architecture/rules.rs what it may name"
        ));
    };
    let is_allowed = |entry: &&str| match entry.split_once('(') {
        None => *entry == "*" || *entry == module,
        Some((of, ends)) => {
            let first = rest.split("::").next().unwrap_or("");
            of == module
                && ends
                    .trim_end_matches(')')
                    .split('|')
                    .any(|end| first.ends_with(end))
        }
    };
    (!allowed.iter().any(is_allowed))
        .then(|| format!("{own} may name of ours only: {}", allowed.join(", ")))
}

/// A lower layer does not name a higher one.
fn layers(path: &str, name: &str) -> Option<String> {
    LAYERS.iter().find_map(|(folder, parts)| {
        let inside = path
            .strip_prefix("src/")?
            .strip_prefix(folder)?
            .strip_prefix('/')?;
        let target = name
            .strip_prefix("crate::")?
            .strip_prefix(&folder.replace('/', "::"))?
            .strip_prefix("::")?;
        let layer = |part: &str| parts.iter().position(|l| *l == part).map_or(0, |n| n + 1);
        let part = inside.split(['/', '.']).next()?;
        let target = target.split("::").next()?;
        let is_above = part != "mod" && layer(target) > layer(part);
        is_above.then(|| format!("`{target}` is above: {}", parts.join(" < ")))
    })
}

/// A library, a metric macro, the environment and the clock each have their place.
fn home(path: &str, name: &str) -> Option<String> {
    let rule = HOMES
        .iter()
        .find(|rule| rule.paths.iter().any(|pattern| fits(name, pattern)))?;
    (!rule.homes.iter().any(|home| path.starts_with(home))).then(|| rule.why.to_owned())
}

/// Pure files hold no async, no IO, no clock.
fn pure(path: &str, name: &str) -> Option<String> {
    let is_pure = PURE.iter().any(|p| path.starts_with(p)) && !NOT_PURE.contains(&path);
    let is_impure = IMPURE_PATHS.iter().any(|pattern| fits(name, pattern));
    (is_pure && is_impure).then(|| "a pure file holds no async, no IO, no clock".to_owned())
}

/// The lines with a `Result` whose error is a `String`.
fn string_errors(text: &str) -> Vec<usize> {
    let found = text.match_indices("Result<").filter(|(at, name)| {
        let mut depth = 1;
        let mut before = ' ';
        let mut last = String::new();
        for c in text[at + name.len()..].chars() {
            match c {
                '<' | '(' | '[' => depth += 1,
                // Not the end of an arrow.
                '>' if before == '-' => {}
                '>' | ')' | ']' => depth -= 1,
                _ => {}
            }
            before = c;
            match (c, depth) {
                (_, 0) => break,
                (',', 1) => last.clear(),
                _ => last.push(c),
            }
        }
        matches!(last.trim(), "String" | "std::string::String")
    });
    found
        .map(|(at, _)| 1 + text[..at].matches('\n').count())
        .collect()
}

/// Whether a path begins with the pattern, or contains it anywhere if the pattern begins with `::`.
fn fits(name: &str, pattern: &str) -> bool {
    let framed = format!("::{name}::");
    match pattern.strip_prefix("::") {
        Some(_) => framed.contains(&format!("{pattern}::")),
        None => framed.starts_with(&format!("::{pattern}::")),
    }
}
