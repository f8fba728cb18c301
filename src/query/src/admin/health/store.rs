//! The store's part of the health. Pure.
//!
//! Pings show whether the store can be reached. Each [`Ability`] has a state of its own, which its
//! requests alone determine: neither a ping nor a load ends a failure of writes. A failure ends
//! - when a request of the same kind succeeds;
//! - if readings wait for such requests: when everything that waited at the last failure is
//!   settled, that is, compared and found to be stored, or kept as dead letters. Nothing is sent
//!   then that could succeed.
//!
//! A load that fails for one bucket alone may be the last one for minutes, while the readings of
//! all others are stored. So a stored page ends a failure of loads that was not repeated within
//! [`QUIET_MS`].
//!
//! The first failure is logged, then one line in [`LOG_EVERY_MS`] with the number of failures, also
//! if requests succeed in between.

use std::collections::BTreeMap;

use super::report::{FailingReport, StoreReport, rfc3339};
use model::Now;
pub(super) use store::{Ability, Outcome, StoreError, StoreErrorKind};

/// How often failures of one kind of request are logged.
const LOG_EVERY_MS: u64 = 60_000;
/// Longer than the time between two attempts (`flush.backoff_max`).
const QUIET_MS: u64 = 60_000;

/// The state of the store.
#[derive(Debug, Default)]
pub(super) struct StoreState {
    /// The last ping or success; `None` before the first.
    answers: Option<Result<(), PingError>>,
    last_ok_ms: Option<i64>,
    abilities: BTreeMap<Ability, Requests>,
    /// How long the oldest reading has waited that is not stored (ms).
    oldest_waiting_ms: Option<u64>,
}

#[derive(Debug)]
struct PingError {
    kind: StoreErrorKind,
    error: String,
}

/// The requests of one kind.
#[derive(Debug, Default)]
struct Requests {
    failing: Option<Failing>,
    /// When a failure was last logged (monotonic ms), and the failures since then.
    logged_ms: Option<u64>,
    unlogged: u64,
}

#[derive(Debug)]
struct Failing {
    kind: StoreErrorKind,
    error: String,
    since: Now,
    /// The last failure, and the last one that is not of one bucket (monotonic ms).
    last_ms: u64,
    last_of_store_ms: u64,
    failures: u64,
    is_logged: bool,
}

/// A line for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreLogLine {
    /// The requests.
    pub ability: Ability,
    /// What happened.
    pub event: StoreLogEvent,
    /// Failures since the previous line about such requests, or since they began to fail.
    pub failures: u64,
    /// For how long they have been failing, in seconds.
    pub seconds: u64,
}

/// The event of a [`StoreLogLine`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLogEvent {
    /// They fail.
    Fail {
        /// The last error.
        error: String,
        /// How long the oldest reading has waited that is not stored, in seconds.
        oldest_waiting_seconds: Option<u64>,
    },
    /// One has succeeded.
    Succeed,
    /// None waits any longer.
    Settled,
}

/// Why readings cannot be stored now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    NotReached,
    Away,
    Refused,
    NotPrepared,
    NoWrites,
    NoLoads,
}

impl Trouble {
    /// In one sentence, without its end.
    pub(super) fn sentence(self) -> &'static str {
        match self {
            Trouble::NotReached => "MongoDB has not been reached yet",
            Trouble::Away => "MongoDB is away",
            Trouble::Refused => "MongoDB refuses the service's user (login or missing rights)",
            Trouble::NotPrepared => "MongoDB answers, but the database cannot be prepared",
            Trouble::NoWrites => "MongoDB answers, but stores no readings",
            Trouble::NoLoads => "MongoDB answers, but stored buckets cannot be loaded",
        }
    }

    fn from_kind(kind: StoreErrorKind, or: Trouble) -> Trouble {
        match kind {
            StoreErrorKind::Network | StoreErrorKind::NoPrimary => Trouble::Away,
            StoreErrorKind::Unauthorized => Trouble::Refused,
            _ => or,
        }
    }
}

impl StoreState {
    /// The result of a ping.
    pub(super) fn pinged(&mut self, result: Result<(), &StoreError>, now: Now) {
        match result {
            Ok(()) => self.answered(now),
            Err(error) => {
                self.answers = Some(Err(PingError {
                    kind: error.kind(),
                    error: error.to_string(),
                }));
            }
        }
    }

    fn answered(&mut self, now: Now) {
        self.answers = Some(Ok(()));
        self.last_ok_ms = Some(now.wall_ms);
    }

    /// The outcome of a request.
    pub(super) fn requested(
        &mut self,
        ability: Ability,
        outcome: Outcome<'_>,
        now: Now,
    ) -> Option<StoreLogLine> {
        let oldest = self.oldest_waiting_ms.map(|ms| ms / 1000);
        match outcome {
            Outcome::Success => {
                self.answered(now);
                if ability == Ability::WritePages {
                    self.end_of_quiet_loads(now);
                }
                let requests = self.abilities.get_mut(&ability)?;
                requests.ended(ability, StoreLogEvent::Succeed, now)
            }
            Outcome::Failure(error) => {
                let requests = self.abilities.entry(ability).or_default();
                let failing = requests.failed(error, now);
                failing.last_of_store_ms = now.mono_ms;
                requests.line(ability, oldest, now)
            }
            Outcome::OfOne(error) => {
                let requests = self.abilities.get_mut(&ability)?;
                requests.failing.as_ref()?;
                requests.failed(error, now);
                requests.line(ability, oldest, now)
            }
        }
    }

    fn end_of_quiet_loads(&mut self, now: Now) {
        let is_quiet =
            |failing: &mut Failing| now.mono_ms.saturating_sub(failing.last_of_store_ms) > QUIET_MS;
        if let Some(loads) = self.abilities.get_mut(&Ability::LoadBuckets) {
            loads.failing.take_if(is_quiet);
        }
    }

    /// How long the oldest reading has waited that is not stored (ms); `None` if all are stored.
    /// Returns a line for each kind of request whose failure this ends.
    pub(super) fn waiting(&mut self, oldest_ms: Option<u64>, now: Now) -> Vec<StoreLogLine> {
        self.oldest_waiting_ms = oldest_ms;
        let oldest_since_ms = oldest_ms.map(|ms| now.mono_ms.saturating_sub(ms));
        let is_settled = |failing: &Failing| oldest_since_ms.is_none_or(|at| at > failing.last_ms);
        self.abilities
            .iter_mut()
            .filter(|(ability, _)| ability.holds_readings())
            .filter(|(_, requests)| requests.failing.as_ref().is_some_and(is_settled))
            .filter_map(|(ability, requests)| requests.ended(*ability, StoreLogEvent::Settled, now))
            .collect()
    }

    fn failing(&self) -> impl Iterator<Item = (Ability, &Failing)> {
        self.abilities
            .iter()
            .filter_map(|(ability, requests)| Some((*ability, requests.failing.as_ref()?)))
    }

    /// Why readings cannot be stored now; `None` if they can.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        if let Some(Err(ping)) = &self.answers {
            return Some(Trouble::from_kind(ping.kind, Trouble::Away));
        }
        // In this order: what comes first also prevents what follows.
        let failing = |(ability, failing): (Ability, &Failing)| {
            let own = match ability {
                Ability::Prepare => Trouble::NotPrepared,
                Ability::WritePages => Trouble::NoWrites,
                Ability::LoadBuckets => Trouble::NoLoads,
                _ => return None,
            };
            Some(Trouble::from_kind(failing.kind, own))
        };
        let not_reached = || self.answers.is_none().then_some(Trouble::NotReached);
        self.failing().find_map(failing).or_else(not_reached)
    }

    /// The reasons why readings cannot be stored now.
    pub(super) fn essential_reasons(&self) -> Vec<String> {
        let mut reasons = match &self.answers {
            Some(Err(ping)) => vec![format!("store: {}", ping.error)],
            _ => self.reasons(true),
        };
        if reasons.is_empty() && self.answers.is_none() {
            reasons.push("store: not reached yet".to_owned());
        }
        if let Some(first) = reasons.first_mut()
            && let Some(ms) = self.oldest_waiting_ms
        {
            let waited = format!("; the oldest reading has waited for {} s", ms / 1000);
            first.push_str(&waited);
        }
        reasons
    }

    /// The reasons why something besides the readings is not stored. While the store cannot be
    /// reached, that alone is the reason.
    pub(super) fn other_reasons(&self) -> Vec<String> {
        match &self.answers {
            Some(Err(_)) => vec![],
            _ => self.reasons(false),
        }
    }

    /// One reason per error: an outage has the same error in all requests.
    fn reasons(&self, essential: bool) -> Vec<String> {
        let mut errors: Vec<&str> = vec![];
        let mut reasons = vec![];
        for (ability, failing) in self.failing() {
            let is_known = errors.contains(&&*failing.error);
            errors.push(&failing.error);
            if ability.is_essential() == essential && !is_known {
                let requests = ability.requests();
                reasons.push(format!("store: {requests} fail: {}", failing.error));
            }
        }
        reasons
    }

    /// The requests that fail besides those that readings need, for a sentence.
    pub(super) fn others_that_fail(&self) -> Option<String> {
        let names: Vec<_> = self
            .failing()
            .filter(|(ability, _)| !ability.is_essential())
            .map(|(ability, _)| ability.requests())
            .collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    pub(super) fn report(&self) -> StoreReport {
        let first = |(ability, failing): (Ability, &Failing)| {
            ability.is_essential().then(|| failing.error.clone())
        };
        let error = match &self.answers {
            Some(Err(ping)) => Some(ping.error.clone()),
            _ => self.failing().find_map(first),
        };
        let failing = |(ability, failing): (Ability, &Failing)| FailingReport {
            requests: ability.as_str(),
            error: failing.error.clone(),
            since: rfc3339(failing.since.wall_ms),
            failures: failing.failures,
        };
        StoreReport {
            ok: self.trouble().is_none(),
            error,
            last_ok: self.last_ok_ms.and_then(rfc3339),
            failing: self.failing().map(failing).collect(),
            oldest_waiting_seconds: self.oldest_waiting_ms.map(|ms| ms / 1000),
        }
    }
}

impl Requests {
    fn failed(&mut self, error: &StoreError, now: Now) -> &mut Failing {
        self.unlogged += 1;
        let failing = self.failing.get_or_insert_with(|| Failing {
            kind: error.kind(),
            error: String::new(),
            since: now,
            last_ms: 0,
            last_of_store_ms: 0,
            failures: 0,
            is_logged: false,
        });
        failing.kind = error.kind();
        failing.error = error.to_string();
        failing.last_ms = now.mono_ms;
        failing.failures += 1;
        failing
    }

    /// The line about a failure, if one is due.
    fn line(&mut self, ability: Ability, oldest: Option<u64>, now: Now) -> Option<StoreLogLine> {
        let is_due = |at_ms: u64| now.mono_ms.saturating_sub(at_ms) >= LOG_EVERY_MS;
        let failing = self.failing.as_mut()?;
        if !self.logged_ms.is_none_or(is_due) {
            return None;
        }
        self.logged_ms = Some(now.mono_ms);
        failing.is_logged = true;
        Some(StoreLogLine {
            ability,
            event: StoreLogEvent::Fail {
                error: failing.error.clone(),
                oldest_waiting_seconds: oldest,
            },
            failures: std::mem::take(&mut self.unlogged),
            seconds: failing.seconds(now),
        })
    }

    /// Ends a failure; the log has its end if it has its beginning.
    fn ended(&mut self, ability: Ability, event: StoreLogEvent, now: Now) -> Option<StoreLogLine> {
        let failing = self.failing.take()?;
        failing.is_logged.then(|| StoreLogLine {
            ability,
            event,
            failures: std::mem::take(&mut self.unlogged),
            seconds: failing.seconds(now),
        })
    }
}

impl Failing {
    fn seconds(&self, now: Now) -> u64 {
        now.mono_ms.saturating_sub(self.since.mono_ms) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mono_ms: u64) -> Now {
        let wall_ms = 1_709_287_200_000 + mono_ms as i64;
        Now { wall_ms, mono_ms }
    }

    fn disk_full() -> StoreError {
        StoreError::Unknown {
            kind: StoreErrorKind::Command,
            detail: "OutOfDiskSpace (14031)".to_owned(),
        }
    }

    /// A store that has stored a page, and fails to store another at `ms`.
    fn failing(ability: Ability, ms: u64) -> StoreState {
        let mut store = StoreState::default();
        store.requested(ability, Outcome::Success, at(0));
        store.requested(ability, Outcome::Failure(&disk_full()), at(ms));
        store
    }

    #[test]
    fn only_a_stored_page_ends_a_failure_of_writes() {
        let mut store = failing(Ability::WritePages, 1000);
        for ms in 1001..1010 {
            store.waiting(Some(ms - 900), at(ms));
            store.pinged(Ok(()), at(ms));
            store.requested(Ability::LoadBuckets, Outcome::Success, at(ms));
            store.requested(Ability::WriteDeadLetters, Outcome::Success, at(ms));
            let report = store.report();
            assert!(!report.ok, "{ms}");
            assert_eq!(
                report.error.as_deref(),
                Some("command: OutOfDiskSpace (14031)")
            );
        }
        store.requested(Ability::WritePages, Outcome::Success, at(2000));
        assert_eq!((store.report().ok, store.report().error), (true, None));
    }

    #[test]
    fn the_reason_names_the_error_and_the_oldest_waiting_reading() {
        let mut store = failing(Ability::WritePages, 1000);
        store.waiting(Some(75_400), at(76_000));
        assert_eq!(
            store.essential_reasons(),
            [
                "store: writes of readings fail: command: OutOfDiskSpace (14031); the oldest \
                 reading has waited for 75 s"
            ]
        );
        let report = store.report();
        assert_eq!(report.oldest_waiting_seconds, Some(75));
        let [failing] = &report.failing[..] else {
            panic!("{report:?}")
        };
        assert_eq!((failing.requests, failing.failures), ("write", 1));
        assert_eq!(failing.since.as_deref(), Some("2024-03-01T10:00:01.000Z"));
    }

    #[test]
    fn a_failure_ends_when_all_that_waited_then_is_settled() {
        for ability in [Ability::WritePages, Ability::LoadBuckets] {
            let mut store = failing(ability, 1000);
            // The oldest arrived at 900, before the failure.
            assert!(store.waiting(Some(1100), at(2000)).is_empty());
            assert!(!store.report().ok);
            let settled = store.waiting(Some(900), at(2000));
            assert_eq!(settled[0].event, StoreLogEvent::Settled);
            assert!(store.report().ok);
            let mut store = failing(ability, 1000);
            assert_eq!(store.waiting(None, at(2000)).len(), 1);
        }
        // No reading waits for these.
        for ability in [Ability::Prepare, Ability::UpdateCatalog] {
            let mut store = failing(ability, 1000);
            assert!(store.waiting(None, at(2000)).is_empty());
            assert_eq!(store.report().failing.len(), 1);
        }
    }

    #[test]
    fn one_bucket_that_has_failed_before_does_not_begin_a_failure_and_may_continue_one() {
        for ability in [Ability::WritePages, Ability::LoadBuckets] {
            let mut store = StoreState::default();
            store.pinged(Ok(()), at(0));
            store.requested(ability, Outcome::OfOne(&disk_full()), at(1));
            assert!(store.report().ok);
            store.requested(ability, Outcome::Failure(&disk_full()), at(2));
            store.requested(ability, Outcome::OfOne(&disk_full()), at(3));
            assert_eq!(store.report().failing[0].failures, 2);
        }
    }

    #[test]
    fn a_stored_page_ends_a_failure_of_loads_that_only_one_bucket_repeats() {
        let mut store = failing(Ability::LoadBuckets, 1000);
        for ms in (2000..=61_000).step_by(1000) {
            store.requested(Ability::LoadBuckets, Outcome::OfOne(&disk_full()), at(ms));
            store.requested(Ability::WritePages, Outcome::Success, at(ms));
            assert!(!store.report().ok, "{ms}");
        }
        store.requested(Ability::WritePages, Outcome::Success, at(61_001));
        assert!(store.report().ok);
    }

    #[test]
    fn the_first_failure_is_logged_and_then_one_line_a_minute_with_the_number() {
        let mut store = StoreState::default();
        let mut lines = vec![];
        // Two minutes of a failure every 10 ms, with loads that succeed in between.
        for ms in (0..120_000).step_by(10) {
            lines.extend(store.requested(
                Ability::WritePages,
                Outcome::Failure(&disk_full()),
                at(ms),
            ));
            lines.extend(store.requested(Ability::LoadBuckets, Outcome::Success, at(ms)));
        }
        let numbers: Vec<_> = lines.iter().map(|l| (l.failures, l.seconds)).collect();
        assert_eq!(numbers, [(1, 0), (6000, 60)]);
        let end = store.requested(Ability::WritePages, Outcome::Success, at(120_000));
        let end = end.unwrap();
        assert_eq!(
            (end.event, end.failures, end.seconds),
            (StoreLogEvent::Succeed, 5999, 120)
        );
    }

    #[test]
    fn failures_between_successes_are_two_lines_a_minute() {
        let mut store = StoreState::default();
        let mut lines = 0;
        for ms in (0..180_000).step_by(10) {
            let outcome = Outcome::Failure(&disk_full());
            lines += usize::from(
                store
                    .requested(Ability::WritePages, outcome, at(ms))
                    .is_some(),
            );
            lines += usize::from(
                store
                    .requested(Ability::WritePages, Outcome::Success, at(ms))
                    .is_some(),
            );
        }
        assert_eq!(lines, 6);
    }

    #[test]
    fn an_outage_is_one_reason() {
        let mut store = StoreState::default();
        let away = StoreError::NotApplied {
            kind: StoreErrorKind::NoPrimary,
            detail: "no server".to_owned(),
        };
        for ability in [
            Ability::WritePages,
            Ability::LoadBuckets,
            Ability::WriteDeadLetters,
        ] {
            store.requested(ability, Outcome::Failure(&away), at(0));
        }
        assert_eq!(store.essential_reasons().len(), 1);
        assert_eq!(store.other_reasons(), [] as [String; 0]);
        assert_eq!(store.trouble(), Some(Trouble::Away));
        store.pinged(Err(&away), at(1));
        assert_eq!(store.essential_reasons(), ["store: no_primary: no server"]);
    }
}
