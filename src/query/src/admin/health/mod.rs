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
    BrokerReport, ConfigReport, FailingReport, JournalState, QuarantinedBucket, ReloadReport,
    Report, StoreReport, TlsReport,
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
        self.read().stopping
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
        self.read().config.clone()
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
        self.read().stuck
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
        let state = self.read();
        let blocking = state.blocking(self.ack);
        let degraded = state.degraded(self.ack);
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
        let reasons: Vec<String> = blocking.into_iter().chain(degraded).collect();
        // Each reason has a sentence of its own; one that has none speaks for itself.
        let summary = reasons
            .first()
            .map(|first| state.summary(self.ack).unwrap_or_else(|| first.clone()));
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
    fn read(&self) -> RwLockReadGuard<'_, State> {
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

impl State {
    /// Problems that prevent readiness.
    fn blocking(&self, ack: AckMode) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Some(broken) = &self.broken {
            reasons.push(format!("broken: {broken}; restart the service"));
        }
        if self.stopping {
            reasons.push("stopping".to_owned());
        } else if !self.started {
            reasons.push("starting".to_owned());
        }
        let journal = self.journal.as_ref();
        if let Some(journal) = journal.filter(|j| j.full) {
            reasons.push(match &journal.disk_error {
                Some(error) => format!(
                    "journal: full, its disk refuses writes: {error}; readings are rejected until it \
                     takes them"
                ),
                None => "journal: full (journal.max_bytes); readings are rejected until the store \
                         has caught up"
                    .to_owned(),
            });
        }
        if let Some(seconds) = journal.and_then(|j| j.hangs_seconds) {
            reasons.push(format!(
                "journal: its disk has not completed a write for {seconds} s; readings are not \
                 acknowledged until it does"
            ));
        }
        if ack == AckMode::Stored {
            reasons.extend(self.store.essential_reasons());
        }
        reasons
    }

    /// Problems that do not prevent readiness.
    fn degraded(&self, ack: AckMode) -> Vec<String> {
        let mut reasons = Vec::new();
        if ack == AckMode::Journal {
            let essential = self.store.essential_reasons();
            reasons.extend(
                essential
                    .into_iter()
                    .map(|reason| format!("{reason}; the journal keeps the readings")),
            );
        }
        reasons.extend(self.store.other_reasons());
        reasons.extend(
            self.collections
                .as_ref()
                .map(|why| format!("collections: {why}")),
        );
        reasons.extend(self.stalled.clone());
        reasons.extend(self.rollup.clone());
        reasons.extend(self.quarantined());
        reasons.extend(
            self.store_rejects
                .as_ref()
                .map(|why| format!("store: {why}")),
        );
        for (broker, state) in self.mqtt.iter().filter(|(_, state)| !state.connected) {
            let detail = state.detail.as_deref().unwrap_or("not connected");
            reasons.push(format!("mqtt {broker}: {detail}"));
        }
        for (port, problem) in self
            .tls
            .values()
            .filter_map(|tls| Some((tls.port, tls.problem.as_ref()?)))
        {
            reasons.push(format!("tls {port}: {problem}"));
        }
        if let Some(why) = self.config.invalid() {
            reasons.push(format!(
                "config: reload failed, the previous settings stay in effect: {why}"
            ));
        }
        reasons
    }

    /// The worst problem in one sentence, for people; `None` if none is known that has one.
    fn summary(&self, ack: AckMode) -> Option<String> {
        let journal = self.journal.clone().unwrap_or_default();
        let room = match journal.lasts_seconds {
            Some(seconds) => format!("room for {}", about(seconds)),
            None => "with room for more".to_owned(),
        };
        let away = self
            .mqtt
            .values()
            .filter(|broker| !broker.connected)
            .count();
        let summary = if self.broken.is_some() {
            "A part of the service has failed; it accepts no readings until it is restarted."
                .to_owned()
        } else if self.stopping {
            "The service is stopping.".to_owned()
        } else if !self.started {
            "The service is starting.".to_owned()
        } else if let Some(error) = &journal.disk_error {
            format!(
                "The journal's disk refuses writes ({error}): readings are refused, and their \
                 senders send them again."
            )
        } else if journal.full {
            "The journal is full: readings are refused, and their senders send them again, until \
             MongoDB has caught up."
                .to_owned()
        } else if journal.hangs_seconds.is_some() {
            "The journal's disk does not answer: readings are not acknowledged, and their senders \
             send them again."
                .to_owned()
        } else if let Some(trouble) = self.store.trouble() {
            let trouble = trouble.sentence();
            match ack {
                AckMode::Journal => {
                    format!("{trouble}; readings are kept in the journal, {room}.")
                }
                AckMode::Stored => {
                    format!("{trouble}: readings are refused, and their senders send them again.")
                }
            }
        } else if self.collections.is_some() {
            "A collection in MongoDB was dropped or replaced while the service runs.".to_owned()
        } else if self.stalled.is_some() && self.quarantine.count == 0 {
            let kept = match ack {
                AckMode::Journal => format!("they are kept in the journal, {room}"),
                AckMode::Stored => "they are not acknowledged until they are".to_owned(),
            };
            format!("MongoDB answers, but readings are not being stored; {kept}.")
        } else if away > 0 {
            let of = self.mqtt.len();
            format!(
                "{away} of {of} MQTT brokers cannot be reached or refuse a subscription: messages \
                 do not arrive."
            )
        } else if self.quarantine.count > 0 {
            format!(
                "MongoDB keeps failing {} buckets; all others are stored.",
                self.quarantine.count
            )
        } else if let Some(others) = self.store.others_that_fail() {
            format!("MongoDB stores readings, but these requests fail: {others}.")
        } else if self.store_rejects.is_some() {
            "MongoDB rejects readings because of their content; they are kept as dead letters."
                .to_owned()
        } else if self.tls.values().any(|tls| tls.problem.is_some()) {
            "The TLS files of a port need attention: a certificate or a revocation list.".to_owned()
        } else if self.rollup.is_some() {
            "Readings are stored, but the daily summaries are behind.".to_owned()
        } else if self.config.invalid().is_some() {
            "The new settings are invalid; the previous ones stay in effect.".to_owned()
        } else {
            return None;
        };
        Some(summary)
    }

    fn quarantined(&self) -> Option<String> {
        let first = self.quarantine.buckets.first()?;
        let start = first.bucket_start.as_deref().unwrap_or("an unknown time");
        let others = match self.quarantine.count {
            0 | 1 => String::new(),
            n => format!(" and {} others", n - 1),
        };
        Some(format!(
            "quarantine: the store keeps failing the bucket of sensor {} at {start}{others}: {}",
            first.sensor_id, first.reason
        ))
    }
}
