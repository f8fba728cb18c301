//! Tests of the report: what prevents readiness, what does not, and the words for it.

use super::*;
use ::store::StoreErrorKind;

/// 2024-03-01T10:00:00Z and `ms`.
fn at(ms: u64) -> Now {
    Now {
        wall_ms: 1_709_287_200_000 + ms as i64,
        mono_ms: 1_000_000 + ms,
    }
}

fn error(kind: StoreErrorKind, detail: &str) -> StoreError {
    let detail = detail.to_owned();
    StoreError::Unknown { kind, detail }
}

fn running(ack: AckMode) -> Health {
    let health = Health::new(ack);
    health.started();
    health.store_pinged(Ok(()), at(0));
    health
}

fn fails(health: &Health, ability: Ability, kind: StoreErrorKind) {
    let error = error(kind, "no");
    health.store_requested(ability, Outcome::Failure(&error), at(1));
}

#[test]
fn ready_only_between_start_and_stop() {
    let health = Health::new(AckMode::Journal);
    health.store_pinged(Ok(()), at(0));
    assert_eq!(
        (health.is_ready(), health.report().reasons),
        (false, vec!["starting".to_owned()])
    );
    health.started();
    assert_eq!((health.is_ready(), health.report().reasons), (true, vec![]));
    health.stopping();
    assert_eq!(
        (health.is_ready(), health.report().reasons),
        (false, vec!["stopping".to_owned()])
    );
}

#[test]
fn broken_stays_broken_with_its_first_reason() {
    let health = running(AckMode::Journal);
    health.broken("shard 3 panicked");
    health.broken("the channel is closed");
    assert!(!health.is_ready());
    assert_eq!(
        health.report().reasons,
        ["broken: shard 3 panicked; restart the service"]
    );
}

#[test]
fn a_store_that_is_away_blocks_only_where_senders_wait_for_it() {
    for (ack, ready) in [(AckMode::Journal, true), (AckMode::Stored, false)] {
        let health = running(ack);
        health.store_pinged(Err(&error(StoreErrorKind::NoPrimary, "no server")), at(9));
        let report = health.report();
        assert_eq!(report.ready, ready);
        assert!(
            report.reasons[0].starts_with("store: no_primary: no server"),
            "{:?}",
            report.reasons
        );
        assert_eq!(
            report.store.last_ok.as_deref(),
            Some("2024-03-01T10:00:00.000Z")
        );
        assert!(!report.store.ok);
        health.store_pinged(Ok(()), at(10));
        assert_eq!(
            (health.is_ready(), health.report().store.error),
            (true, None)
        );
    }
}

#[test]
fn the_summary_says_what_is_known_of_the_store_and_no_journal_where_there_is_none() {
    let kept = "; readings are kept in the journal.";
    let refused = ": readings are refused, and their senders send them again.";
    for (ack, end) in [(AckMode::Journal, kept), (AckMode::Stored, refused)] {
        let expect = |health: &Health, sentence: &str| {
            let summary = health.report().summary;
            assert_eq!(summary, Some(format!("{sentence}{end}")));
        };
        let health = Health::new(ack);
        health.started();
        expect(&health, "MongoDB has not been reached yet");
        let write = |kind| {
            let health = running(ack);
            fails(&health, Ability::WritePages, kind);
            health
        };
        let refuses = "MongoDB refuses the service's user (login or missing rights)";
        expect(&write(StoreErrorKind::Network), "MongoDB is away");
        expect(&write(StoreErrorKind::Unauthorized), refuses);
        let answers = "MongoDB answers, but stores no readings";
        expect(&write(StoreErrorKind::Command), answers);
        expect(&write(StoreErrorKind::Timeout), answers);
        let health = running(ack);
        health.store_pinged(Err(&error(StoreErrorKind::Unauthorized, "no user")), at(9));
        expect(&health, refuses);
        let health = running(ack);
        fails(&health, Ability::LoadBuckets, StoreErrorKind::Command);
        expect(
            &health,
            "MongoDB answers, but stored buckets cannot be loaded",
        );
        fails(&health, Ability::Prepare, StoreErrorKind::Command);
        expect(
            &health,
            "MongoDB answers, but the database cannot be prepared",
        );
        let health = running(ack);
        health.stalled(Some("stalled".to_owned()));
        let summary = health.report().summary.unwrap();
        assert_eq!(summary.contains("journal"), ack == AckMode::Journal);
    }
}

#[test]
fn other_writes_that_fail_are_named_and_do_not_block() {
    for ack in [AckMode::Journal, AckMode::Stored] {
        let health = running(ack);
        fails(&health, Ability::WriteDeadLetters, StoreErrorKind::Command);
        let report = health.report();
        assert!(report.ready && report.store.ok && report.store.error.is_none());
        assert_eq!(
            report.reasons,
            ["store: writes of dead letters fail: command: no"]
        );
        assert_eq!(
            report.summary.as_deref(),
            Some("MongoDB stores readings, but these requests fail: writes of dead letters.")
        );
        assert_eq!(report.store.failing[0].requests, "dead_letters");
    }
}

#[test]
fn settings_that_are_invalid_are_summarised_as_that_and_nothing_else_is() {
    let health = running(AckMode::Journal);
    health.config(ConfigState {
        reload: Some((0, "invalid", "line 3".to_owned())),
        ..ConfigState::default()
    });
    let report = health.report();
    assert!(report.reasons[0].contains("line 3"));
    assert!(report.summary.unwrap().contains("new settings are invalid"));
}

#[test]
fn a_dropped_collection_is_a_reason_and_does_not_block() {
    let health = running(AckMode::Journal);
    health.collections(Some("sensor_buckets was dropped".into()));
    let report = health.report();
    assert!(report.ready);
    assert_eq!(report.reasons, ["collections: sensor_buckets was dropped"]);
    assert!(report.summary.unwrap().contains("dropped or replaced"));
    health.collections(None);
    assert_eq!(health.report().summary, None);
}

#[test]
fn a_rollup_that_is_behind_is_summarised_as_that() {
    let health = running(AckMode::Journal);
    health.rollup(Some("rollup: a day has been due for 20 min".into()));
    let report = health.report();
    assert!(report.ready);
    assert_eq!(
        report.summary.as_deref(),
        Some("Readings are stored, but the daily summaries are behind.")
    );
}

#[test]
fn a_stall_and_quarantined_buckets_are_named_and_do_not_block() {
    let health = running(AckMode::Journal);
    health.stalled(Some("no progress".into()));
    let bucket =
        |id: &str| QuarantinedBucket::new(id, 1_709_287_200_000, "timeout", 1_709_287_260_000);
    health.quarantine(Quarantine {
        count: 3,
        buckets: vec![bucket("S1"), bucket("S2")],
    });
    let report = health.report();
    assert!(report.ready);
    let expected = "quarantine: the store keeps failing the bucket of sensor S1 at \
        2024-03-01T10:00:00.000Z and 2 others: timeout";
    assert_eq!(report.reasons, ["no progress", expected]);
    assert_eq!(
        report.summary.as_deref(),
        Some("MongoDB keeps failing 3 buckets while it stores others."),
        "the oldest reading is in one of them"
    );
    assert_eq!(
        report.quarantine[1].since.as_deref(),
        Some("2024-03-01T10:01:00.000Z")
    );
    health.stalled(None);
    health.quarantine(Quarantine::default());
    assert_eq!(
        (health.report().reasons, health.report().quarantine),
        (vec![], vec![])
    );
}

#[test]
fn rejects_of_the_store_are_a_reason_and_do_not_block() {
    let health = running(AckMode::Journal);
    health.store_rejects(Some("3 acknowledged readings were rejected".into()));
    let report = health.report();
    assert!(report.ready && report.store.ok);
    assert_eq!(
        report.reasons,
        ["store: 3 acknowledged readings were rejected"]
    );
    assert!(report.summary.unwrap().contains("dead letters"));
    health.store_rejects(None);
    assert_eq!(health.report().summary, None);
}

#[test]
fn the_room_of_the_journal_is_said_as_people_do() {
    let health = running(AckMode::Journal);
    fails(&health, Ability::WritePages, StoreErrorKind::NoPrimary);
    for (seconds, room) in [
        (Some(60), "room for about a minute."),
        (Some(3 * 86_400), "room for about 3 days."),
        (Some(400 * 86_400), "room for more than a year."),
        (None, "with room for more."),
    ] {
        health.journal(JournalState {
            lasts_seconds: seconds,
            ..JournalState::default()
        });
        let summary = health.report().summary.unwrap();
        assert!(summary.ends_with(room), "{summary}");
    }
}

#[test]
fn a_full_journal_blocks_and_a_broker_that_is_away_does_not() {
    let health = running(AckMode::Journal);
    health.mqtt("b:1883", false, Some("connection refused".into()));
    assert_eq!(
        (health.is_ready(), health.report().reasons),
        (true, vec!["mqtt b:1883: connection refused".into()])
    );
    health.journal(JournalState {
        bytes: 9,
        max_bytes: 9,
        full: true,
        ..JournalState::default()
    });
    assert!(!health.is_ready());
    health.journal(JournalState {
        bytes: 1,
        max_bytes: 9,
        full: false,
        ..JournalState::default()
    });
    assert!(health.is_ready());
}

#[test]
fn a_full_journal_says_whether_it_waits_for_the_store_or_for_its_disk() {
    let health = running(AckMode::Journal);
    let full = |disk_error: Option<&str>| {
        health.journal(JournalState {
            full: true,
            disk_error: disk_error.map(str::to_owned),
            ..JournalState::default()
        });
        let report = health.report();
        assert!(!report.ready);
        (report.reasons, report.summary.unwrap())
    };
    let (reasons, summary) = full(None);
    assert_eq!(
        reasons,
        ["journal: full (journal.max_bytes); readings are rejected until the store has caught up"]
    );
    assert!(summary.contains("until MongoDB has caught up"));
    let (reasons, summary) = full(Some("No space left on device (os error 28)"));
    assert_eq!(
        reasons,
        [
            "journal: full, its disk refuses writes: No space left on device (os error 28); readings are \
             rejected until it takes them"
        ]
    );
    assert!(!summary.contains("MongoDB") && summary.contains("No space left"));
}

#[test]
fn a_journal_whose_disk_does_not_answer_blocks() {
    let health = running(AckMode::Journal);
    let hangs = |hangs_seconds| {
        health.journal(JournalState {
            hangs_seconds,
            ..JournalState::default()
        });
        health.report()
    };
    let report = hangs(Some(12));
    assert!(!report.ready);
    assert_eq!(
        report.reasons,
        [
            "journal: its disk has not completed a write for 12 s; readings are not acknowledged \
             until it does"
        ]
    );
    assert!(report.summary.unwrap().contains("disk does not answer"));
    assert_eq!((hangs(None).ready, hangs(None).summary), (true, None));
}
