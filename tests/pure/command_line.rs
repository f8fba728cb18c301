//! The man pages and completions in `deploy/` are those of the command line. `UPDATE=1` writes
//! them.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

const NAME: &str = "hourbucket";

/// Paths below the root of the repository, and contents.
fn generated() -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = vec![];
    let mut command = hourbucket::cli::command_line();
    for (shell, name) in [
        (Shell::Bash, "hourbucket.bash"),
        (Shell::Zsh, "_hourbucket"),
        (Shell::Fish, "hourbucket.fish"),
    ] {
        let mut script = vec![];
        clap_complete::generate(shell, &mut command.clone(), NAME, &mut script);
        files.push((PathBuf::from("deploy/completions").join(name), script));
    }
    command.build();
    man_pages(&command, &mut files);
    files
}

/// The page of a command and those of its subcommands.
fn man_pages(command: &Command, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    let name = command.get_display_name().unwrap_or(NAME);
    let mut page = vec![];
    Man::new(command.clone()).render(&mut page).unwrap();
    files.push((PathBuf::from(format!("deploy/man/{name}.1")), page));
    let listed = |sub: &&Command| !sub.is_hide_set() && sub.get_name() != "help";
    let subcommands = command.get_subcommands().filter(listed);
    subcommands.for_each(|sub| man_pages(sub, files));
}

#[test]
fn man_pages_and_completions_are_those_of_the_command_line() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let files = generated();
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
