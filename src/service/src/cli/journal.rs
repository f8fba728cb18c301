//! The command `journal`: lists its contents, and saves the readable part of a damaged one.

use std::process::ExitCode;

use clap::Subcommand;

use super::check;
use super::disk;
use super::output::{fail, maintenance_failed, print_line};
use config::Config;

#[derive(Subcommand)]
pub(super) enum JournalCommand {
    /// List segments and damage; makes no changes
    Inspect,
    /// Move damaged segments aside and keep their readable contents; the service must be stopped
    Salvage,
}

pub(super) fn run(command: &JournalCommand, config: &Config) -> ExitCode {
    let dir = &disk::absolute(&config.journal.dir);
    match command {
        JournalCommand::Inspect => match journal::inspect(&journal::fs::RealFs, dir) {
            Ok(report) => {
                print_line(&check::describe(&report));
                if report.is_sound() {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                }
            }
            Err(error) => fail(error),
        },
        JournalCommand::Salvage => match journal::salvage(&journal::fs::RealFs, dir) {
            Ok(salvaged) => {
                print_line(&check::describe_salvage(&salvaged));
                if salvaged.lost.is_empty() && salvaged.unreadable.is_empty() {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                }
            }
            Err(error) => maintenance_failed(error),
        },
    }
}
