//! The man pages and completions in `deploy/` are those of the command line. `UPDATE=1` writes
//! them.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn man_pages_and_completions_are_those_of_the_command_line() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let files = hourbucket::cli::generated_files().unwrap();
    let update = std::env::var_os("UPDATE").is_some();
    let mut wanted = BTreeSet::new();
    for (path, content) in &files {
        if update {
            std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            std::fs::write(root.join(path), content).unwrap();
        }
        let found = std::fs::read(root.join(path)).unwrap_or_default();
        assert!(
            found == *content,
            "{} is not up to date: UPDATE=1 tests/run.sh --test pure",
            path.display()
        );
        wanted.insert(root.join(path));
    }
    for folder in ["deploy/man", "deploy/completions"] {
        let found: BTreeSet<_> = std::fs::read_dir(root.join(folder))
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        let extra: Vec<_> = found.difference(&wanted).collect();
        assert!(extra.is_empty(), "no command has these pages: {extra:?}");
    }
    let text = |path: &str| String::from_utf8(std::fs::read(root.join(path)).unwrap()).unwrap();
    assert!(text("deploy/man/hourbucket.1").contains("/var/lib/hourbucket/journal"));
    assert!(text("deploy/man/hourbucket-tokens-add.1").contains("secret"));
    assert!(text("deploy/completions/hourbucket.bash").contains("dead-letters"));
}
