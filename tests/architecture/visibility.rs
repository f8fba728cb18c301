//! Finds public items that nothing outside their crate names. The compiler knows this only for items
//! that cannot be reached at all (`unreachable_pub`).

use std::collections::{BTreeMap, BTreeSet};

use super::source::Code;

/// Words before the name of an item that can be public.
const ITEMS: &[&str] = &["fn", "struct", "enum", "trait", "const", "static", "mod"];

/// The public items of the crates below `src/` whose name occurs in no other crate, no benchmark and
/// no program of `tests/` or `fuzz/`. A type may be public because a public function has it.
pub(crate) fn unused_public(
    sources: &[(String, String)],
    users: &[(String, String)],
) -> Vec<String> {
    let mut of_crate: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in sources {
        of_crate
            .entry(crate_of(path))
            .or_default()
            .extend(words(text));
    }
    let outside: BTreeSet<String> = users.iter().flat_map(|(_, text)| words(text)).collect();
    let mut found = Vec::new();
    for (path, text) in sources {
        let own = crate_of(path);
        let is_used = |name: &str| {
            let mut others = of_crate.iter().filter(|(other, _)| **other != own);
            outside.contains(name) || others.any(|(_, words)| words.contains(name))
        };
        let code = Code::read(path, text).text;
        for (number, line) in code.lines().enumerate() {
            if let Some((kind, name)) = public_item(line)
                && !is_used(name)
                && !matches!(kind, "struct" | "enum" | "trait")
            {
                found.push(format!(
                    "{path}:{}: `{name}` is public, and no other crate names it",
                    number + 1
                ));
            }
        }
    }
    found
}

/// `src/model/src/ids.rs` is of `model`.
fn crate_of(path: &str) -> &str {
    path.split('/').nth(1).unwrap_or_default()
}

/// Kind and name of the public item that a line declares.
fn public_item(line: &str) -> Option<(&str, &str)> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let words: Vec<&str> = rest.split_whitespace().take(4).collect();
    let at = words.iter().position(|word| ITEMS.contains(word))?;
    // `const fn` is a function.
    let at = if words.get(at + 1) == Some(&"fn") {
        at + 1
    } else {
        at
    };
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let name = words.get(at + 1)?.split(|c| !is_name(c)).next()?;
    (!name.is_empty()).then_some((words[at], name))
}

fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// The words of a file, without comments and literals.
fn words(text: &str) -> BTreeSet<String> {
    words_of(&Code::blanked(text)).map(str::to_owned).collect()
}

#[test]
fn a_public_item_that_no_other_crate_names_is_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let sources = [
        file(
            "src/a/src/lib.rs",
            "pub fn used() -> Made { lonely() }\npub fn lonely() -> Made {}\npub struct Made;\npub const fn seen() {}\n",
        ),
        file("src/b/src/lib.rs", "fn f() { a::used(); } // lonely\n"),
    ];
    let users = [file("tests/x.rs", "fn f() { a::seen(); \"lonely\"; }")];
    let found = unused_public(&sources, &users);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].starts_with("src/a/src/lib.rs:2: `lonely`"),
        "{found:#?}"
    );
}
