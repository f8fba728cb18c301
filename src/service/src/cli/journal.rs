//! The command `journal`: lists its contents, and saves the readable part of a damaged one.

use std::process::ExitCode;

use clap::Subcommand;

use super::disk;
use super::output::{fail, maintenance_failed, print_line};
use config::Config;
use journal::{JournalError, Report, Salvaged, SegmentReport};

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
                print_line(&describe(&report));
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
                print_line(&describe_salvage(&salvaged));
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

/// The journal in one line.
pub(super) fn brief(report: &Report) -> String {
    if report.in_use {
        return "in use by a running hourbucket".into();
    }
    let sum = |f: fn(&SegmentReport) -> u64| report.segments.iter().map(f).sum::<u64>();
    let bytes = sum(|s| s.bytes);
    let readings = sum(|s| s.readings);
    let absent = match report.checkpoint {
        Some((first, end)) if report.segments.is_empty() && first < end => Some((first, end)),
        _ => None,
    };
    let state = match (report.is_sound(), sum(|s| s.unstored), absent) {
        _ if !report.other_format.is_empty() => "and segments of another format version, whose \
            readings may not be stored: keep the directory"
            .to_owned(),
        (false, n, _) => format!(
            "{n} of them not known to be stored; there is damage, so others may be lost: keep the \
             directory"
        ),
        // After damage to the latest checkpoint, the one before it may be older than the last
        // removal of a segment.
        (true, _, Some((first, end))) => format!(
            "entries {first}..{end} are in no segment and not known to be stored; if no file was \
             deleted by hand, they were stored shortly before the service was killed"
        ),
        (true, 0, None) => "all stored".to_owned(),
        (true, n, None) => format!(
            "{n} of them not known to be stored: keep the directory, and start hourbucket on it"
        ),
    };
    format!(
        "{} segments, {bytes} bytes, {readings} readings, {state}",
        report.segments.len()
    )
}

/// The journal in full: one line per segment and per problem.
pub(super) fn describe(report: &Report) -> String {
    let mut lines = vec![brief(report)];
    for s in &report.segments {
        let torn = s
            .cut
            .map(|cut| format!(", its last write is incomplete; the next start cuts off {cut}"));
        let torn = torn.unwrap_or_default();
        let path = s.path.display();
        let (first, end) = s.sequences;
        lines.push(format!(
            "{path}: {} bytes, entries {first}..{end}, {} readings ({} unstored), {} dead \
             letters{torn}",
            s.bytes, s.readings, s.unstored, s.dead_letters
        ));
    }
    lines.extend(
        report
            .problems
            .iter()
            .map(|damage| format!("damage: {damage}")),
    );
    for (path, fault) in report.other_format.iter().cloned() {
        lines.push(JournalError::Format { path, fault }.to_string());
    }
    // A salvage refuses segments of another version, which may be sound.
    if !report.problems.is_empty() && report.other_format.is_empty() {
        lines.push(
            "to repair: put missing segments back, or run `hourbucket journal salvage`, which \
             moves damaged segments aside, gives up what is missing, and keeps the rest"
                .into(),
        );
    }
    lines.join("\n")
}

/// The result of a salvage, one line per changed file and per range lost.
fn describe_salvage(salvaged: &Salvaged) -> String {
    let Salvaged {
        moved,
        unreadable,
        filled,
        lost,
    } = salvaged;
    if *salvaged == Salvaged::default() {
        return "no damage found; nothing was changed".into();
    }
    let moved = moved.iter().map(|path| {
        let nothing = if unreadable.contains(path) {
            ", without a valid header: nothing in it can be read"
        } else {
            ""
        };
        format!("moved aside: {}{nothing}", path.display())
    });
    let filled = filled
        .iter()
        .map(|path| format!("written in place of a missing segment: {}", path.display()));
    let lost = lost.iter().map(|(first, end)| match end - first {
        1 => format!("lost: entry {first}, unless it was stored before"),
        _ => format!(
            "lost: entries {first} to {}, unless they were stored before",
            end - 1
        ),
    });
    moved
        .chain(filled)
        .chain(lost)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use journal::{Damage, HeaderFault};

    #[test]
    fn all_stored_is_said_only_of_a_journal_whose_entries_are_all_stored() {
        assert!(describe(&Report::default()).contains("all stored"));
        let path = PathBuf::from("j/000000000001.seg");
        let fault = HeaderFault::Magic;
        let damaged = Report {
            problems: vec![Damage::Header { path, fault }],
            ..Report::default()
        };
        let without_segments = Report {
            checkpoint: Some((3, 9)),
            ..Report::default()
        };
        for (report, part) in [(damaged, "keep the directory"), (without_segments, "3..9")] {
            let text = describe(&report);
            assert!(!text.contains("all stored"), "{text}");
            assert!(text.contains(part), "{text}");
        }
        let stored = Report {
            checkpoint: Some((9, 9)),
            ..Report::default()
        };
        assert!(describe(&stored).contains("all stored"));
    }

    #[test]
    fn a_journal_of_a_newer_version_is_not_to_be_salvaged() {
        let path = PathBuf::from("j/000000000001.seg");
        let fault = HeaderFault::Version(9);
        let newer = Report {
            other_format: vec![(path, fault)],
            ..Report::default()
        };
        let text = describe(&newer);
        assert!(!text.contains("salvage"), "{text}");
        assert!(text.contains("unsupported format version 9"), "{text}");
        let remedy = "Run the version that wrote it until its journal is empty";
        assert!(text.contains(remedy), "{text}");
        assert!(!text.contains("damage"), "{text}");
    }

    #[test]
    fn a_salvage_that_moved_nothing_says_what_is_lost() {
        let path = PathBuf::from("j/000000000004.seg");
        let salvaged = Salvaged {
            filled: vec![path],
            lost: vec![(22, 29), (31, 32)],
            ..Salvaged::default()
        };
        let text = describe_salvage(&salvaged);
        assert!(!text.contains("no damage"), "{text}");
        assert!(text.contains("lost: entries 22 to 28, "), "{text}");
        assert!(text.contains("lost: entry 31, "), "{text}");
        assert!(text.contains("000000000004.seg"), "{text}");
        assert!(describe_salvage(&Salvaged::default()).contains("no damage"));
    }
}
