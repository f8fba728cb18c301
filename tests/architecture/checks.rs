//! The checks of one file: the paths that it names against the tables of `rules.rs`, and its form.

use crate::rules::{HOMES, IMPURE_PATHS, LAYERS, NOT_PURE, PURE};
use crate::source::Code;

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
            let broken = [home(path, name), pure(path, name), layers(path, name)];
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

/// A lower layer of `store/mongo` does not name a higher one.
fn layers(path: &str, name: &str) -> Option<String> {
    let inside = below(path, "store/mongo/")?;
    let (_, target) = name.strip_prefix("crate::")?.split_once("mongo::")?;
    let layer = |part: &str| LAYERS.iter().position(|l| *l == part).map_or(0, |n| n + 1);
    let part = inside.split(['/', '.']).next()?;
    let target = target.split("::").next()?;
    let is_above = part != "mod" && layer(target) > layer(part);
    is_above.then(|| format!("`{target}` is above: {}", LAYERS.join(" < ")))
}

/// A library, a metric macro, the environment and the clock each have their place.
fn home(path: &str, name: &str) -> Option<String> {
    let rule = HOMES
        .iter()
        .find(|rule| rule.paths.iter().any(|pattern| fits(name, pattern)))?;
    let is_home = rule.homes.iter().any(|home| below(path, home).is_some());
    (!is_home).then(|| rule.why.to_owned())
}

/// Pure files hold no async, no IO, no clock.
fn pure(path: &str, name: &str) -> Option<String> {
    let is_one_of = |places: &[&str]| places.iter().any(|place| below(path, place).is_some());
    let is_impure = IMPURE_PATHS.iter().any(|pattern| fits(name, pattern));
    (is_impure && is_one_of(PURE) && !is_one_of(NOT_PURE))
        .then(|| "a pure file holds no async, no IO, no clock".to_owned())
}

/// What follows a place in the path of a file, if the file is there.
fn below<'p>(path: &'p str, place: &str) -> Option<&'p str> {
    let inside = |path: &'p str| {
        path.match_indices(place)
            .find(|(at, _)| *at == 0 || path.as_bytes()[at - 1] == b'/')
            .map(|(at, _)| &path[at + place.len()..])
    };
    let (of, file) = path.strip_prefix("src/")?.split_once("/src/").unzip();
    match (of, file) {
        (Some(of), Some(file)) => inside(file).or_else(|| {
            let rest = place.strip_prefix(of)?.strip_prefix('/')?;
            file.strip_prefix(rest)
        }),
        _ => inside(path),
    }
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
