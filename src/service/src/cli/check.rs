//! `hourbucket check`: checks that everything the configuration names can be used, one line each.

use std::path::{Path, PathBuf};

use super::disk;
use super::finding::Finding;
use config::hardening::{ChecklistLine, Verdict};
use config::{AckMode, Config};
use ingest::mqtt;
use journal::{JournalError, Report, Salvaged, SegmentReport};
use model::{Clock, SystemClock};
use store::mongo::{MongoStore, StoreConfigError};

/// A problem that only this command looks for.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("{}", describe(.0))]
    Journal(Report),
    #[error("audit.file: {}: {source}; create this directory, writable for the service", parent.display())]
    Audit {
        parent: PathBuf,
        source: std::io::Error,
    },
}

/// Checks everything except the configuration itself, which the caller has loaded. Makes no
/// changes.
pub(super) async fn check(
    config: &Config,
    store: Result<MongoStore, StoreConfigError>,
) -> Vec<Finding> {
    let mut findings = check_store(store).await;
    for broker in &config.mqtt {
        let result = mqtt::check(broker).await.map_err(Box::from);
        findings.push(Finding {
            what: "mqtt".into(),
            result,
        });
    }
    if config.ingest.ack == AckMode::Journal {
        findings.extend(disk::check(&config.journal));
        findings.push(check_journal(&config.journal.dir).await);
    }
    findings.extend(check_credentials(config));
    let now_s = SystemClock::new().now().wall_ms / 1000;
    let ports = [
        ("http tls", config.http.enabled.then_some(&config.http.tls)),
        ("admin tls", Some(&config.admin.tls)),
    ];
    for (what, tls) in ports {
        if let Some(result) = tls.and_then(|tls| net::http::check_tls(tls, now_s)) {
            findings.push(Finding {
                what: what.into(),
                result: result.map_err(Box::from),
            });
        }
    }
    if let Some(result) = audit_directory(config) {
        findings.push(Finding {
            what: "audit".into(),
            result: result.map_err(Box::from),
        });
    }
    if config.listen.mqtt.enabled {
        let result = ingest::listen::check(&config.listen.mqtt, now_s);
        findings.push(Finding {
            what: "listen.mqtt".into(),
            result: result.map_err(Box::from),
        });
    }
    findings
}

async fn check_store(store: Result<MongoStore, StoreConfigError>) -> Vec<Finding> {
    let mut findings = vec![];
    let server = match store {
        Ok(store) => store.inspect().await.map_err(Box::from),
        Err(error) => Err(Box::from(error)),
    };
    match server {
        Ok((text, warnings)) => {
            findings.push(Finding {
                what: "store".into(),
                result: Ok(text),
            });
            let warning = |w: String| Finding {
                what: "store".into(),
                result: Ok(format!("warning: {w}")),
            };
            findings.extend(warnings.into_iter().map(warning));
        }
        Err(error) => findings.push(Finding {
            what: "store".into(),
            result: Err(error),
        }),
    }
    findings
}

async fn check_journal(dir: &Path) -> Finding {
    let path = disk::absolute(dir);
    if let Err(error) = disk::writable(dir) {
        return Finding {
            what: "journal".into(),
            result: Err(error.into()),
        };
    }
    let dir = dir.to_owned();
    let result =
        match tokio::task::spawn_blocking(move || journal::check(&journal::fs::RealFs, &dir)).await
        {
            Ok(Ok(report)) if report.is_sound() => {
                Ok(format!("{}: {}", path.display(), brief(&report)))
            }
            Ok(Ok(report)) => Err(CheckError::Journal(report).into()),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(error.into()),
        };
    Finding {
        what: "journal".into(),
        result,
    }
}

/// The tokens and the keys of JWTs.
fn check_credentials(config: &Config) -> Vec<Finding> {
    let mut findings = vec![];
    if let Some(path) = config
        .http
        .tokens_file
        .as_ref()
        .filter(|_| config.http.enabled)
    {
        let result = net::access::Tokens::load(
            "http.tokens_file",
            path,
            &net::access::GrantDefaults::unlimited(),
        );
        let result = result
            .map(|t| format!("{} tokens", t.len()))
            .map_err(Box::from);
        findings.push(Finding {
            what: "http tokens".into(),
            result,
        });
    }
    match net::access::Jwt::load(&config.jwt) {
        Ok(None) => {}
        Ok(Some(jwt)) => findings.push(Finding {
            what: "jwt".into(),
            result: Ok(format!("{} keys", jwt.len())),
        }),
        Err(error) => findings.push(Finding {
            what: "jwt".into(),
            result: Err(error.into()),
        }),
    }
    findings
}

/// Whether the directory of the audit file exists; the file itself is made at the start.
fn audit_directory(config: &Config) -> Option<Result<String, CheckError>> {
    let path = config.audit.file.as_ref()?;
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let found = std::fs::metadata(parent).map(|_| path.display().to_string());
    Some(found.map_err(|source| CheckError::Audit {
        parent: parent.to_owned(),
        source,
    }))
}

/// A line of the hardening checklist.
pub(super) fn hardening(line: &ChecklistLine) -> String {
    let ChecklistLine { key, goal, verdict } = line;
    let (word, more) = match verdict {
        Verdict::Good => ("good", ""),
        Verdict::NotNeeded => ("good", " (not needed with these settings)"),
        Verdict::Improve(remedy) => ("advice", remedy.as_str()),
        Verdict::Unknown(look) => ("look", *look),
    };
    let gap = if matches!(verdict, Verdict::Improve(_) | Verdict::Unknown(_)) {
        " "
    } else {
        ""
    };
    format!("{word:8} {:14} {key}: {goal}{gap}{more}", "hardening")
}

/// The journal in one line.
fn brief(report: &Report) -> String {
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
pub(super) fn describe_salvage(salvaged: &Salvaged) -> String {
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
