//! Enforces the dependency rules of docs/design.md, section 5, by reading the source text: which
//! modules may name which, where a library may be used, which files are pure, how long a file may
//! be, that each binding has a line, and that imports between files form no cycle. Parts that are
//! not written yet are skipped.
//!
//! The text is read without a parser: comments, literals and test modules are blanked out, `use`
//! trees are expanded into single paths, and every rule is a condition on paths. A path that a
//! macro composes is not found; the rules are for mistakes, not against intent.

#![allow(clippy::unwrap_used, reason = "what a helper cannot do fails the test")]

#[path = "architecture/cycles.rs"]
mod cycles;
#[path = "architecture/glossary.rs"]
mod glossary;
#[path = "architecture/links.rs"]
mod links;
#[path = "architecture/rules.rs"]
mod rules;
#[path = "architecture/source.rs"]
mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use glossary::Glossary;
use rules::{HOMES, IMPURE_PATHS, LAYERS, MAY_NAME, NOT_PURE, PURE};
use source::{Code, test_modules};

const LINES_MAX: usize = 1000;

/// Checks one file; `is_test` marks code that only tests use. One line per violation: file, line,
/// rule.
fn check(path: &str, text: &str, is_test: bool) -> Vec<String> {
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
            "`{own}` is new: say in MAY_NAME of tests/architecture.rs what it may name"
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(root, &root.join(dir), &mut found);
    found.sort();
    found
}

#[test]
fn the_code_keeps_the_rules() {
    let mut all = files("src");
    assert!(
        all.iter().any(|(path, _)| path == "src/model/mod.rs"),
        "the sources were not found"
    );
    let is_test = test_only(&all);
    all.extend(files("tests"));
    let broken: Vec<String> = all
        .iter()
        .flat_map(|(path, text)| check(path, text, is_test(path)))
        .collect();
    assert!(
        broken.is_empty(),
        "docs/design.md, section 5 is broken:\n{}",
        broken.join("\n")
    );
}

#[test]
fn no_files_name_each_other() {
    let found = cycles::cycles(&product_files());
    assert!(
        found.is_empty(),
        "{} import cycles:\n{}",
        found.len(),
        found.join("\n")
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

/// The violations of a made-up file.
fn broken(path: &str, body: &str) -> Vec<String> {
    check(path, &format!("//! Made up.\n{body}\n"), false)
}

#[test]
fn every_rule_can_fail() {
    for (path, body, rule) in [
        (
            "src/model/hour.rs",
            "use crate::config::Limits;",
            "model may name of ours only",
        ),
        (
            "src/model/hour.rs",
            "use super::super::config::Limits;",
            "model may name of ours only",
        ),
        ("src/ack.rs", "use crate::model::Now;", "ack may name"),
        (
            "src/decode/json.rs",
            "use crate::config::Config;",
            "decode may name",
        ),
        (
            "src/decode/json.rs",
            "use crate::{config, model};",
            "decode may name",
        ),
        (
            "src/journal/writer.rs",
            "use crate::route::Router;",
            "journal may name",
        ),
        (
            "src/route/mod.rs",
            "use crate::journal::Journal;",
            "journal(Follower|EntryKind)",
        ),
        (
            "src/accumulate/task.rs",
            "use crate::store::Store;",
            "accumulate may name",
        ),
        (
            "src/journal/writer.rs",
            "use crate::store::Store;",
            "journal may name",
        ),
        (
            "src/route/mod.rs",
            "use crate::{model::Now, flush::FlushHandle};",
            "route may name",
        ),
        (
            "src/accumulate/task.rs",
            "fn f() { crate::store::open(); }",
            "accumulate may name",
        ),
        (
            "src/flush/mod.rs",
            "use crate::accumulate::X;",
            "flush may name",
        ),
        (
            "src/store/memory.rs",
            "use crate::flush::X;",
            "store may name",
        ),
        (
            "src/ingest/http/mod.rs",
            "use crate::store::Store;",
            "ingest may name",
        ),
        ("src/admin.rs", "use crate::journal::X;", "admin may name"),
        (
            "src/telemetry/log.rs",
            "use crate::store::X;",
            "telemetry may name",
        ),
        ("src/brandnew.rs", "use crate::model::X;", "MAY_NAME"),
        ("src/app.rs", "use axum::Router;", "HTTP stays"),
        ("src/flush/mod.rs", "use tower::Service;", "HTTP stays"),
        (
            "src/ingest/mqtt/mod.rs",
            "use axum_server::Handle;",
            "HTTP stays",
        ),
        (
            "src/ingest/http/mod.rs",
            "use rumqttc_v4::Client;",
            "MQTT stays",
        ),
        ("src/app.rs", "fn f() { rumqttc_v5::x(); }", "MQTT stays"),
        (
            "src/ingest/mqtt/v5.rs",
            "use tokio_rustls::TlsConnector;",
            "ingest/tls",
        ),
        (
            "src/store/mongo/write/fence.rs",
            "use crate::store::mongo::read::load;",
            "`read` is above",
        ),
        (
            "src/store/mongo/bson.rs",
            "use super::schema::detect;",
            "`schema` is above",
        ),
        (
            "src/dead_letters/filter.rs",
            "use super::writer::DeadLetterWriter;",
            "`writer` is above",
        ),
        (
            "src/dead_letters/redecode.rs",
            "use crate::dead_letters::replay::replay;",
            "`replay` is above",
        ),
        (
            "src/dead_letters/filter.rs",
            "use crate::store::Store;",
            "dead_letters may name",
        ),
        (
            "src/dead_letters/writer/limit.rs",
            "use crate::ingest::http::X;",
            "dead_letters may name",
        ),
        (
            "src/dead_letters/writer/mod.rs",
            "use crate::store::mongo::MongoStore;",
            "dead_letters may name",
        ),
        (
            "src/dead_letters/redecode.rs",
            "use crate::app::Service;",
            "dead_letters may name",
        ),
        (
            "src/dead_letters/replay.rs",
            "use crate::journal::Journal;",
            "dead_letters may name",
        ),
        (
            "src/store/mongo/dead_letters.rs",
            "use crate::dead_letters::DeadLetters;",
            "store may name",
        ),
        (
            "src/accumulate/task.rs",
            "use crate::dead_letters::filter::line;",
            "accumulate may name",
        ),
        (
            "src/route/mod.rs",
            "use crate::flush::Flusher;",
            "route may name",
        ),
        (
            "src/flush/mod.rs",
            "use crate::dead_letters::DeadLetters;",
            "flush may name",
        ),
        (
            "src/ingest/mqtt/mod.rs",
            "use crate::dead_letters::redecode::Redecoded;",
            "ingest may name",
        ),
        ("src/store/mod.rs", "use mongodb::bson::Bson;", "BSON stay"),
        ("src/config/uri.rs", "use mongodb::Client;", "BSON stay"),
        (
            "src/journal/writer.rs",
            "fn f() { counter!(\"x\"); }",
            "typed function",
        ),
        (
            "src/journal/writer.rs",
            "fn f() { metrics::histogram!(\"x\"); }",
            "typed function",
        ),
        (
            "src/app.rs",
            "use std::{env, fmt};",
            "environment is read in config",
        ),
        (
            "src/main.rs",
            "fn f() { std::env::var(\"X\"); }",
            "environment is read in config",
        ),
        ("src/app.rs", "fn f() { chrono::Utc::now(); }", "wall clock"),
        (
            "src/journal/writer.rs",
            "fn f() { SystemTime::now(); }",
            "wall clock",
        ),
        ("src/model/hour.rs", "async fn f() {}", "pure file"),
        ("src/dead_letters/filter.rs", "async fn f() {}", "pure file"),
        (
            "src/dead_letters/redecode.rs",
            "use tokio::time;",
            "pure file",
        ),
        ("src/decode/json.rs", "fn f() { g().await; }", "pure file"),
        ("src/decode/json.rs", "use tokio::sync::mpsc;", "pure file"),
        (
            "src/accumulate/state.rs",
            "use std::{fs, fmt};",
            "pure file",
        ),
        (
            "src/accumulate/state_load.rs",
            "use std::net::IpAddr;",
            "pure file",
        ),
        (
            "src/flush/due.rs",
            "fn f() { Instant::now(); }",
            "pure file",
        ),
        ("src/flush/pack/size.rs", "use tokio::time;", "pure file"),
        (
            "src/flush/backoff.rs",
            "fn f() { std::time::Instant::now(); }",
            "pure file",
        ),
        ("src/ingest/mqtt/acks.rs", "use std::fs;", "pure file"),
        (
            "src/app.rs",
            "fn f() -> Result<(), String> {}",
            "not a `String`",
        ),
        (
            "src/cli/run.rs",
            "fn f() -> Result<fn() -> Vec<(u8, String)>,\n std::string::String> {}",
            "not a `String`",
        ),
        (
            "src/app.rs",
            "fn f() {\n    let (a, mut b) = (1, g(2));\n}",
            "one `let` per line",
        ),
        (
            "src/model/hour.rs",
            &"\n".repeat(LINES_MAX),
            "more than 1000",
        ),
        ("tests/long.rs", &"\n".repeat(LINES_MAX), "more than 1000"),
    ] {
        let found = broken(path, body);
        assert_eq!(found.len(), 1, "{path} {}: {found:#?}", body.trim());
        assert!(
            found[0].contains(rule) && found[0].starts_with(&format!("{path}:")),
            "{path}: {found:?}"
        );
    }
    let bare = check("src/app.rs", "// no inner comment\n", false);
    assert!(bare[0].contains("opens with `//!`"), "{bare:?}");
    assert_eq!(
        broken("src/app.rs", "\nuse std::env;")[0].split(':').nth(1),
        Some("3"),
        "the line is reported"
    );
}

#[test]
fn correct_code_is_accepted() {
    for (path, body) in [
        (
            "src/model/hour.rs",
            "use crate::model::Now; use super::ids::X; use std::fmt;",
        ),
        (
            "src/model/clock.rs",
            "fn f() { chrono::Utc::now(); tokio::time::Instant::now(); }",
        ),
        (
            "src/decode/json.rs",
            "use crate::config::Limits; use crate::model::X;",
        ),
        (
            "src/cli/decode.rs",
            "use std::io::Write; use crate::config::Config;",
        ),
        (
            "src/journal/writer.rs",
            "use crate::admission::Parcels; use tokio::fs; use std::fs::File;",
        ),
        (
            "src/journal/writer.rs",
            "use crate::telemetry::metrics; fn f() { metrics::received(1); }",
        ),
        (
            "src/flush/retry.rs",
            "use crate::store::Store; use tokio::time::Instant;",
        ),
        (
            "src/flush/retry.rs",
            "fn f() {\n    let (a, b): (u8, u8) = (1, 2);\n    let (a, b) = swap(a, b);\n}",
        ),
        (
            "src/ingest/http/mod.rs",
            "use axum::Router; use tower::Service;",
        ),
        ("src/ingest/mqtt/v5.rs", "use rumqttc_v5::Client;"),
        (
            "src/store/mongo/error.rs",
            "use mongodb::bson; use crate::store::Store;",
        ),
        ("src/config/load.rs", "fn f() { std::env::vars_os(); }"),
        (
            "src/app.rs",
            "fn f(a: Result<String, io::Error>) -> Result<Vec<Option<String>>, E<String>> {}",
        ),
        (
            "src/app.rs",
            "#[cfg(test)]\nmod tests { fn f() -> Result<(), String> {} }",
        ),
        (
            "src/app.rs",
            "use crate::{store, ingest, flush::X}; const V: &str = env!(\"CARGO_PKG_VERSION\");",
        ),
        (
            "src/model/hour.rs",
            "// use tokio::x;\n/* async /* std::fs */ */\n\
             const A: &str = \"tokio::x\"; // crate::store::X",
        ),
        (
            "src/model/hour.rs",
            "const A: &str = r#\"async \" std::fs\"#; fn f<'a>(c: &'a str) { c == '\"'; '\\''; }",
        ),
        (
            "src/model/hour.rs",
            "fn f() {}\n#[cfg(test)]\nmod tests { use tokio::x; fn f() { { async {} } } }\n\
             fn g() {}",
        ),
    ] {
        let found = broken(path, body);
        assert!(found.is_empty(), "{body}: {found:#?}");
    }
    let after = broken(
        "src/model/hour.rs",
        "#[cfg(test)]\nmod tests { fn f() { '}'; \"}\"; } }\nuse std::fs;",
    );
    assert_eq!(
        after.len(),
        1,
        "what follows a test module counts again: {after:?}"
    );
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

/// The files of `src` that are not compiled for tests only.
fn product_files() -> Vec<(String, String)> {
    let mut all = files("src");
    let is_test = test_only(&all);
    all.retain(|(path, _)| !is_test(path));
    all
}

fn glossary() -> Glossary {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/glossary.md");
    Glossary::read(&fs::read_to_string(path).unwrap())
}

#[test]
fn every_public_type_of_the_pipeline_is_in_the_glossary_and_no_other() {
    let found = glossary().check_types(&product_files());
    assert!(found.is_empty(), "{}", found.join("\n"));
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
    assert!(glossary.check_types(&file("pub struct Ack;")).is_empty());
    assert!(
        glossary.check_types(&file("pub struct Ack;\npub enum Door {}"))[0]
            .contains("src/ack.rs:2")
    );
    assert!(
        glossary.check_types(&file("pub(crate) struct Ack;"))[0].contains("no public type `Ack`")
    );
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let check = |line: &str| links::broken_links(root, "x.md", line);
    assert!(check("[`Ack`](../src/ack.rs), [`app`](../src/app/mod.rs)").is_empty());
    assert!(check("[`Ack`](../src/gone.rs)")[0].contains("docs/x.md:1: there is no file"));
    assert!(
        check("a\n[`Nack`](../src/ack.rs)")[0]
            .contains("docs/x.md:2: `src/ack.rs` does not declare `Nack`")
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
