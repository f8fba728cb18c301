//! Enforces the rules of docs/design.md, section 5, that Cargo cannot express, by reading the source
//! text: where a library may be used, which files are pure, which layer of the store may name which,
//! that each binding has a line.
//!
//! The text is read without a parser: comments, literals and test modules are blanked out, `use`
//! trees are expanded into single paths, and every rule is a condition on paths. A path that a
//! macro composes is not found; the rules are for mistakes, not against intent.

#![allow(clippy::unwrap_used, reason = "what a helper cannot do fails the test")]

#[path = "architecture/checks.rs"]
mod checks;
#[path = "architecture/checks_tests.rs"]
mod checks_tests;
#[path = "architecture/glossary.rs"]
mod glossary;
#[path = "architecture/links.rs"]
mod links;
#[path = "architecture/rules.rs"]
mod rules;
#[path = "architecture/source.rs"]
mod source;
#[path = "architecture/visibility.rs"]
mod visibility;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use checks::check;
use glossary::Glossary;
use source::test_modules;

/// The crate with what tests use in place of a database, a disk and a clock.
const TESTKIT: &str = "tests/testkit";

/// Every `.rs` file below a directory: path from the root, and text.
fn files(dir: &str) -> Vec<(String, String)> {
    fn walk(root: &Path, dir: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                walk(root, &path, found);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let name = path
                    .strip_prefix(root)
                    .unwrap()
                    .to_string_lossy()
                    .replace('\\', "/");
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut found = Vec::new();
    walk(root, &root.join(dir), &mut found);
    found.sort();
    found
}

#[test]
fn the_code_keeps_the_rules() {
    let mut all = files("src");
    assert!(
        all.iter().any(|(path, _)| path.starts_with("src/model/")),
        "the sources were not found"
    );
    let is_test = test_only(&all);
    all.extend(files("tests"));
    let broken: Vec<String> = all
        .iter()
        .filter(|(path, _)| !path.contains("/benches/"))
        .flat_map(|(path, text)| check(path, text, is_test(path)))
        .collect();
    assert!(
        broken.is_empty(),
        "docs/design.md, section 5 is broken:\n{}",
        broken.join("\n")
    );
}

/// A file that no program declares is never compiled, and its tests never run.
#[test]
fn every_test_file_belongs_to_a_program() {
    for program in ["pure", "parts", "servers", "simulation"] {
        let dir = format!("tests/{program}/");
        let files = files(&dir);
        let (_, main) = files
            .iter()
            .find(|(path, _)| path.ends_with("/main.rs"))
            .expect("a main.rs");
        let steps = if program == "simulation" {
            &files
                .iter()
                .find(|(path, _)| path.ends_with("/steps.rs"))
                .unwrap()
                .1
        } else {
            main
        };
        for (path, _) in &files {
            let name = path[dir.len()..]
                .split(['/', '.'])
                .next()
                .unwrap_or_default();
            let declared = |text: &str| text.lines().any(|line| line == format!("mod {name};"));
            assert!(
                name == "main" || declared(main) || declared(steps),
                "{path} is in no program; add `mod {name};` to {dir}main.rs"
            );
        }
    }
}

#[test]
fn test_modules_in_files_of_their_own_are_found() {
    let text = "//! X.\nmod real;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\n\
        pub(crate) mod model_check;\n#[cfg(test)]\nmod inline {}\n";
    assert_eq!(
        test_modules("src/flush/mod.rs", text),
        ["src/flush/tests", "src/flush/model_check"]
    );
    assert_eq!(
        test_modules("src/flush/retry.rs", text),
        ["src/flush/retry/tests", "src/flush/retry/model_check"]
    );
    assert_eq!(
        test_modules("src/lib.rs", text),
        ["src/tests", "src/model_check"]
    );
}

/// Whether a file is compiled for tests only, by its path.
fn test_only(sources: &[(String, String)]) -> impl Fn(&str) -> bool + use<> {
    let modules: BTreeSet<String> = sources
        .iter()
        .flat_map(|(path, text)| test_modules(path, text))
        .collect();
    move |path| modules.iter().any(|prefix| path.starts_with(prefix))
}

fn glossary() -> Glossary {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/glossary.md");
    Glossary::read(&fs::read_to_string(path).unwrap())
}

#[test]
fn every_type_of_the_glossary_exists() {
    let mut all = files("src");
    all.extend(files(TESTKIT));
    let found = glossary().missing_types(&all);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_is_public_is_used_by_another_crate() {
    let is_user = |path: &str| {
        !path.starts_with("src/") && !path.starts_with(TESTKIT) || path.contains("/benches/")
    };
    let (users, sources): (Vec<_>, Vec<_>) = ["src", "tests", "fuzz/src"]
        .into_iter()
        .flat_map(files)
        .partition(|(path, _)| is_user(path));
    let found = visibility::unused_public(&sources, &users);
    assert!(
        found.is_empty(),
        "make them `pub(crate)`:\n{}",
        found.join("\n")
    );
}

/// Cargo accepts it anywhere; a product that links it has a second store.
#[test]
fn the_testkit_is_only_a_dev_dependency() {
    let src = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    for entry in fs::read_dir(src).unwrap() {
        let path = entry.unwrap().path().join("Cargo.toml");
        let manifest = fs::read_to_string(&path).unwrap();
        let product = manifest.split("[dev-dependencies]").next().unwrap();
        assert!(!product.contains("testkit"), "{}", path.display());
    }
}

/// Files that use retired words: these rules.
const RETIRED_WORDS_ALLOWED: &str = "tests/architecture";

#[test]
fn no_retired_word_is_used_in_the_source() {
    let glossary = glossary();
    let mut all: Vec<_> = ["src", "tests", "loadtest"]
        .into_iter()
        .flat_map(files)
        .collect();
    all.retain(|(path, _)| !path.starts_with(RETIRED_WORDS_ALLOWED));
    let found: Vec<String> = all
        .iter()
        .flat_map(|(path, text)| glossary.check_words(path, text))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_glossary_rules_can_fail() {
    let glossary =
        Glossary::read("| term | meaning | `Ack` |\n## Retired words\n| `door`, `letter` | x |\n");
    let file = |text: &str| [("src/ack.rs".to_owned(), text.to_owned())];
    assert!(glossary.missing_types(&file("pub struct Ack;")).is_empty());
    assert!(glossary.missing_types(&file("pub struct Ack2;"))[0].contains("no type `Ack`"));
    for text in [
        "let door = 1;",
        "// The doors.",
        "fn open_door() {}",
        "struct BackDoor;",
        "/// A letter.",
    ] {
        assert_eq!(glossary.check_words("src/ack.rs", text).len(), 1, "{text}");
    }
    for text in [
        "let a = \"the door\";",
        "let indoor = 1;",
        "// A dead letter.",
        "struct DeadLetter;",
        "fn dead_letters() {}",
    ] {
        assert!(
            glossary.check_words("src/ack.rs", text).is_empty(),
            "{text}"
        );
    }
}

#[test]
fn links_and_references_of_the_documents_resolve() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let text = |name: &str| fs::read_to_string(root.join("docs").join(name)).unwrap();
    let mut found: Vec<String> = ["architecture.md", "design.md", "glossary.md"]
        .into_iter()
        .flat_map(|name| links::broken_links(root, name, &text(name)))
        .collect();
    let cites = |(path, _): &(String, String)| !path.starts_with("tests/architecture");
    let sources = files("src").into_iter().chain(files("tests")).filter(cites);
    found.extend(
        sources
            .flat_map(|(path, source)| links::broken_sections(&text("design.md"), &path, &source)),
    );
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_broken_link_or_reference_is_found() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let check = |line: &str| links::broken_links(root, "x.md", line);
    assert!(
        check("[`Ack`](../src/model/src/ack.rs), [`app`](../src/service/src/app/mod.rs)")
            .is_empty()
    );
    assert!(check("[`Ack`](../src/gone.rs)")[0].contains("docs/x.md:1: there is no file"));
    assert!(
        check("a\n[`Nack`](../src/model/src/ack.rs)")[0]
            .contains("docs/x.md:2: `src/model/src/ack.rs` does not declare `Nack`")
    );
    let design = "# Design\n## 2. Identity\n";
    let cite = |number: u32| {
        links::broken_sections(
            design,
            "a.rs",
            &format!("// See docs/design.md, section {number}."),
        )
    };
    assert!(cite(2).is_empty());
    assert!(cite(3)[0].contains("a.rs:1: docs/design.md has no section 3"));
}
