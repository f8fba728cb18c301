//! Man pages and shell completions, from the definition of the command line. They are committed in
//! `deploy/`, so that a package needs nothing but files; a test compares them.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use super::output::StandardOutput;

const NAME: &str = "hourbucket";

/// Prints the completion script of a shell.
///
/// # Errors
/// Those of standard output.
pub(super) fn completions(command: &Command, shell: Shell) -> io::Result<()> {
    // The generator panics if its writer fails.
    StandardOutput.write_all(&script(command, shell))?;
    StandardOutput.flush()
}

fn script(command: &Command, shell: Shell) -> Vec<u8> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut command.clone(), NAME, &mut script);
    script
}

/// Paths below the root of the repository, and contents.
///
/// # Errors
/// None, since it writes to memory.
pub(super) fn files(command: &Command) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut files = vec![];
    let mut built = command.clone();
    built.build();
    pages(&built, &mut files)?;
    for (shell, name) in [
        (Shell::Bash, "hourbucket.bash"),
        (Shell::Zsh, "_hourbucket"),
        (Shell::Fish, "hourbucket.fish"),
    ] {
        files.push((
            PathBuf::from("deploy/completions").join(name),
            script(command, shell),
        ));
    }
    Ok(files)
}

/// The page of a command and those of its subcommands.
fn pages(command: &Command, files: &mut Vec<(PathBuf, Vec<u8>)>) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(NAME);
    let mut page = vec![];
    Man::new(command.clone()).render(&mut page)?;
    files.push((PathBuf::from(format!("deploy/man/{name}.1")), page));
    let listed = |sub: &&Command| !sub.is_hide_set() && sub.get_name() != "help";
    command
        .get_subcommands()
        .filter(listed)
        .try_for_each(|sub| pages(sub, files))
}
