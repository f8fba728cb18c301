//! The health of the service, for `/readyz`. The app gives each stage a handle, and the stage sets
//! its own part. Nothing here queries another component, so a report is cheap and never waits for
//! an unreachable server.
//!
//! Ready means that readings sent now are accepted. Problems that do not prevent this (MongoDB
//! unreachable while the journal accepts readings, a broker unreachable) are listed as reasons too:
//! ready with reasons means degraded.

mod report;
mod store;
#[cfg(test)]
mod tests;

pub use self::report::{
    BrokerReport, ConfigReport, FailingReport, ForwardReport, JournalState, QuarantinedBucket,
    ReloadReport, Report, StoreReport, TlsReport,
};
pub use self::store::{StoreLogEvent, StoreLogLine};

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::report::rfc3339;
use self::store::StoreState;
use config::AckMode;
use model::Now;
use net::tls::TlsStatus;
use store::{Ability, Outcome, StoreError};

/// The shared state of the service.
#[derive(Debug)]
pub struct Health {
    ack: AckMode,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    started: bool,
    stopping: bool,
    broken: Option<String>,
    http: Option<String>,
    mode: Option<Mode>,
    store: StoreState,
    mqtt: BTreeMap<String, BrokerState>,
    journal: Option<JournalState>,
    tls: BTreeMap<&'static str, TlsStatus>,
    config: ConfigState,
    stalled: Option<String>,
    rollup: Option<String>,
    collections: Option<String>,
    stuck: bool,
    quarantine: Quarantine,
    store_rejects: Option<String>,
    flush_age_ms: Option<u64>,
    forward: Option<ForwardReport>,
}

/// The buckets whose reads or writes keep failing while others succeed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Quarantine {
    /// All quarantined buckets; may be more than `buckets` has.
    pub count: usize,
    /// The buckets that have failed longest; limited in number.
    pub buckets: Vec<QuarantinedBucket>,
}

#[derive(Debug, Clone)]
struct Mode {
    mode: &'static str,
    reason: String,
    server_version: String,
}

#[derive(Debug, Clone, Default)]
struct BrokerState {
    connected: bool,
    detail: Option<String>,
}

/// The state of the settings since the start. Times are in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigState {
    /// When settings were last applied.
    pub taken_over_ms: Option<i64>,
    /// The last reload (SIGHUP): time, result, and detail.
    pub reload: Option<(i64, &'static str, String)>,
}

impl ConfigState {
    /// Why the last reload changed nothing; `None` if it did, or there was none.
    fn invalid(&self) -> Option<&str> {
        match &self.reload {
            Some((_, "invalid", why)) => Some(why),
            _ => None,
        }
    }
}

impl Health {
    /// The state of a service that has not started. With `ack = "stored"` an unreachable store
    /// prevents readiness.
    pub fn new(ack: AckMode) -> Health {
        Health {
            ack,
            state: RwLock::default(),
        }
    }

    /// All stages run, and readings are accepted.
    pub fn started(&self) {
        self.write().started = true;
    }

    /// The service is stopping.
    pub fn stopping(&self) {
        self.write().stopping = true;
    }

    /// Whether [`Health::stopping`] was called.
    pub fn is_stopping(&self) -> bool {
        self.state().stopping
    }

    /// A part has failed permanently. The first reason is kept, because later ones mostly follow
    /// from it.
    pub fn broken(&self, reason: impl Into<String>) {
        self.write().broken.get_or_insert_with(|| reason.into());
    }

    /// The storage mode, the reason for it, and the version of the server.
    pub fn mode(
        &self,
        mode: &'static str,
        reason: impl Into<String>,
        server_version: impl Into<String>,
    ) {
        self.write().mode = Some(Mode {
            mode,
            reason: reason.into(),
            server_version: server_version.into(),
        });
    }

    /// The result of a ping of the store. A success does not end a failure of other requests.
    pub fn store_pinged(&self, result: Result<(), &StoreError>, now: Now) {
        self.write().store.pinged(result, now);
    }

    /// The outcome of a request to the store. The texts of errors must not contain credentials.
    /// Returns a line for the log, if one is due.
    pub fn store_requested(
        &self,
        ability: Ability,
        outcome: Outcome<'_>,
        now: Now,
    ) -> Option<StoreLogLine> {
        self.write().store.requested(ability, outcome, now)
    }

    /// How long the oldest reading has waited that is not stored (ms); `None` if all are stored.
    /// Returns lines for the log.
    pub fn oldest_waiting(&self, ms: Option<u64>, now: Now) -> Vec<StoreLogLine> {
        self.write().store.waiting(ms, now)
    }

    /// The URL of HTTP ingest, such as `http://0.0.0.0:8080`.
    pub fn http(&self, url: impl Into<String>) {
        self.write().http = Some(url.into());
    }

    /// The state of `broker` (host and port, without credentials).
    pub fn mqtt(&self, broker: &str, connected: bool, detail: Option<String>) {
        self.write()
            .mqtt
            .insert(broker.to_owned(), BrokerState { connected, detail });
    }

    /// The state of a port's certificates.
    pub fn tls(&self, status: TlsStatus) {
        self.write().tls.insert(status.port.as_str(), status);
    }

    /// Replaces the state of the settings.
    pub fn config(&self, config: ConfigState) {
        self.write().config = config;
    }

    /// The state of the settings.
    pub fn config_state(&self) -> ConfigState {
        self.state().config.clone()
    }

    /// Why acknowledged readings make no progress although the store answers; `None` if they do.
    pub fn stalled(&self, why: Option<String>) {
        self.write().stalled = why;
    }

    /// Why the daily rollup is behind; `None` if it is not.
    pub fn rollup(&self, why: Option<String>) {
        self.write().rollup = why;
    }

    /// Which collections were dropped or replaced; `None` if none were.
    pub fn collections(&self, why: Option<String>) {
        self.write().collections = why;
    }

    /// Whether acknowledgements no longer complete, so that only a restart may help.
    pub fn stuck(&self, stuck: bool) {
        self.write().stuck = stuck;
    }

    /// The value set by [`Health::stuck`].
    pub fn is_stuck(&self) -> bool {
        self.state().stuck
    }

    /// Replaces the list of quarantined buckets.
    pub fn quarantine(&self, quarantine: Quarantine) {
        self.write().quarantine = quarantine;
    }

    /// Which readings the store rejected lately because of their content; `None` if it rejected
    /// none.
    pub fn store_rejects(&self, why: Option<String>) {
        self.write().store_rejects = why;
    }

    /// How old readings may get now before they are written.
    pub fn flush_age(&self, ms: u64) {
        self.write().flush_age_ms = Some(ms);
    }

    /// The instance that readings are sent to in place of a store.
    pub fn forward(&self, forward: ForwardReport) {
        self.write().forward = Some(forward);
    }

    /// Replaces the state of the journal.
    pub fn journal(&self, journal: JournalState) {
        self.write().journal = Some(journal);
    }

    /// Whether readings sent now are accepted.
    pub fn is_ready(&self) -> bool {
        self.report().ready
    }

    /// A consistent snapshot of all parts.
    pub fn report(&self) -> Report {
        let state = self.state();
        let blocking = state.blocking(self.ack);
        let (mode, mode_reason, server_version) = match &state.mode {
            Some(m) => (
                Some(m.mode),
                Some(m.reason.clone()),
                Some(m.server_version.clone()),
            ),
            None => (None, None, None),
        };
        let broker = |(broker, b): (&String, &BrokerState)| BrokerReport {
            broker: broker.clone(),
            connected: b.connected,
            detail: b.detail.clone(),
        };
        let mqtt = state.mqtt.iter().map(broker).collect();
        let tls = |status: &TlsStatus| TlsReport {
            port: status.port.as_str(),
            not_after: rfc3339(status.not_after_s.saturating_mul(1000)),
            problem: status.problem.clone(),
        };
        let reload = |(at_ms, result, detail): &(i64, &'static str, String)| ReloadReport {
            at: rfc3339(*at_ms),
            result,
            detail: detail.clone(),
        };
        let config = ConfigReport {
            taken_over: state.config.taken_over_ms.and_then(rfc3339),
            last_reload: state.config.reload.as_ref().map(reload),
        };
        let tls = state.tls.values().map(tls).collect();
        let ready = blocking.is_empty();
        let mut problems = blocking;
        problems.extend(state.degraded(self.ack));
        let summary = problems.first().map(|worst| worst.sentence.clone());
        let reasons = problems.into_iter().map(|problem| problem.reason).collect();
        let http = state.http.clone();
        let journal = state.journal.clone();
        let quarantine = state.quarantine.buckets.clone();
        Report {
            ready,
            summary,
            reasons,
            mode,
            mode_reason,
            server_version,
            store: state.store.report(),
            forward: state.forward.clone(),
            mqtt,
            http,
            journal,
            tls,
            config,
            quarantine,
            flush_age_ms: state.flush_age_ms,
        }
    }

    // A poisoned lock means that a thread panicked while it set a field. Each field is consistent
    // in itself.
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A duration as people say it.
fn about(seconds: u64) -> String {
    match seconds {
        0..120 => "about a minute".to_owned(),
        120..7200 => format!("about {} minutes", seconds / 60),
        7200..172_800 => format!("about {} h", seconds / 3600),
        172_800..31_536_000 => format!("about {} days", seconds / 86_400),
        _ => "more than a year".to_owned(),
    }
}

/// Something that is wrong. Its sentence says only what this problem shows, so that it is true
/// whatever else is wrong.
struct Problem {
    /// For `reasons`: the details, for an operator.
    reason: String,
    /// For `summary`, if no problem is worse: for people.
    sentence: String,
}

impl Problem {
    fn new(reason: impl Into<String>, sentence: impl Into<String>) -> Problem {
        Problem {
            reason: reason.into(),
            sentence: sentence.into(),
        }
    }
}

impl State {
    /// Problems that prevent readiness, the worst first.
    fn blocking(&self, ack: AckMode) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Some(broken) = &self.broken {
            problems.push(Problem::new(
                format!("broken: {broken}; restart the service"),
                "A part of the service has failed; it accepts no readings until it is restarted.",
            ));
        }
        if self.stopping {
            problems.push(Problem::new("stopping", "The service is stopping."));
        } else if !self.started {
            problems.push(Problem::new("starting", "The service is starting."));
        }
        let journal = self.journal.as_ref();
        if let Some(journal) = journal.filter(|j| j.full) {
            problems.push(match &journal.disk_error {
                Some(error) => Problem::new(
                    format!(
                        "journal: full, its disk refuses writes: {error}; readings are rejected \
                         until it takes them"
                    ),
                    format!(
                        "The journal's disk refuses writes ({error}): readings are refused, and \
                         their senders send them again."
                    ),
                ),
                None => Problem::new(
                    "journal: full (journal.max_bytes); readings are rejected until the store has \
                     caught up",
                    "The journal is full: readings are refused, and their senders send them again, \
                     until MongoDB has caught up.",
                ),
            });
        }
        if let Some(seconds) = journal.and_then(|j| j.hangs_seconds) {
            problems.push(Problem::new(
                format!(
                    "journal: its disk has not completed a write for {seconds} s; readings are not \
                     acknowledged until it does"
                ),
                "The journal's disk does not answer: readings are not acknowledged, and their \
                 senders send them again.",
            ));
        }
        if ack == AckMode::Stored
            && let Some(trouble) = self.store.trouble()
        {
            let sentence = format!(
                "{}: readings are refused, and their senders send them again.",
                trouble.sentence()
            );
            let reasons = self.store.essential_reasons().into_iter();
            problems.extend(reasons.map(|reason| Problem::new(reason, sentence.as_str())));
        }
        problems
    }

    /// Problems that do not prevent readiness, the worst first.
    fn degraded(&self, ack: AckMode) -> Vec<Problem> {
        let mut problems = Vec::new();
        problems.extend(self.forward_fails());
        if ack == AckMode::Journal
            && self.forward.is_none()
            && let Some(trouble) = self.store.trouble()
        {
            let sentence = format!(
                "{}; readings are kept in the journal{}.",
                trouble.sentence(),
                self.room()
            );
            let reasons = self.store.essential_reasons().into_iter();
            problems.extend(reasons.map(|reason| {
                let reason = format!("{reason}; the journal keeps the readings");
                Problem::new(reason, sentence.as_str())
            }));
        }
        problems.extend(self.collections.as_ref().map(|why| {
            Problem::new(
                format!("collections: {why}"),
                "A collection in MongoDB was dropped or replaced while the service runs.",
            )
        }));
        let quarantined = self.quarantined();
        problems.extend(self.stalled.as_ref().map(|why| {
            let sentence = match (&quarantined, ack) {
                (Some(quarantined), _) => quarantined.sentence.clone(),
                (None, AckMode::Journal) => format!(
                    "MongoDB answers, but some readings are not being stored; they are kept in the \
                     journal{}.",
                    self.room()
                ),
                (None, AckMode::Stored) => "MongoDB answers, but some readings are not being \
                    stored; they are not acknowledged until they are."
                    .to_owned(),
            };
            Problem::new(why, sentence)
        }));
        problems.extend(self.brokers_away());
        problems.extend(quarantined);
        if let Some(others) = self.store.others_that_fail() {
            let sentence = format!("MongoDB stores readings, but these requests fail: {others}.");
            let reasons = self.store.other_reasons().into_iter();
            problems.extend(reasons.map(|reason| Problem::new(reason, sentence.as_str())));
        }
        problems.extend(self.store_rejects.as_ref().map(|why| {
            Problem::new(
                format!("store: {why}"),
                "MongoDB rejects readings because of their content; they are kept as dead letters.",
            )
        }));
        problems.extend(self.tls.iter().filter_map(|(port, tls)| {
            Some(Problem::new(
                format!("tls {port}: {}", tls.problem.as_ref()?),
                "The TLS files of a port need attention: a certificate or a revocation list.",
            ))
        }));
        problems.extend(self.rollup.as_ref().map(|why| {
            Problem::new(
                why,
                "Readings are stored, but the daily summaries are behind.",
            )
        }));
        problems.extend(self.config.invalid().map(|why| {
            Problem::new(
                format!("config: reload failed, the previous settings stay in effect: {why}"),
                "The new settings are invalid; the previous ones stay in effect.",
            )
        }));
        problems
    }

    fn forward_fails(&self) -> Option<Problem> {
        let forward = self.forward.as_ref()?;
        let error = forward.error.as_ref()?;
        let url = &forward.url;
        let seconds = forward.failing_seconds.unwrap_or_default();
        Some(Problem::new(
            format!(
                "forward: {url} has taken no readings for {seconds} s: {error}; the journal keeps the \
                 readings"
            ),
            format!(
                "The centre ({url}) takes no readings; they are kept in the journal{}.",
                self.room()
            ),
        ))
    }

    /// The room of the journal, as the end of a sentence; empty while it is not known.
    fn room(&self) -> String {
        match self.journal.as_ref().map(|journal| journal.lasts_seconds) {
            Some(Some(seconds)) => format!(", room for {}", about(seconds)),
            Some(None) => ", with room for more".to_owned(),
            None => String::new(),
        }
    }

    fn brokers_away(&self) -> Vec<Problem> {
        let away = || self.mqtt.iter().filter(|(_, broker)| !broker.connected);
        let sentence = format!(
            "{} of {} MQTT brokers cannot be reached or refuse a subscription: messages do not \
             arrive.",
            away().count(),
            self.mqtt.len()
        );
        away()
            .map(|(broker, state)| {
                let detail = state.detail.as_deref().unwrap_or("not connected");
                Problem::new(format!("mqtt {broker}: {detail}"), sentence.as_str())
            })
            .collect()
    }

    fn quarantined(&self) -> Option<Problem> {
        let first = self.quarantine.buckets.first()?;
        let start = first.bucket_start.as_deref().unwrap_or("an unknown time");
        let others = match self.quarantine.count {
            0 | 1 => String::new(),
            n => format!(" and {} others", n - 1),
        };
        Some(Problem::new(
            format!(
                "quarantine: the store keeps failing the bucket of sensor {} at {start}{others}: {}",
                first.sensor_id, first.reason
            ),
            format!(
                "MongoDB keeps failing {} buckets while it stores others.",
                self.quarantine.count
            ),
        ))
    }
}
