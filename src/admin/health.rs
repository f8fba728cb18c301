//! What the stages know about themselves, for `/readyz`. The app hands each stage a share and lets it set its own part;
//! nothing here asks anybody, so reading it is cheap and never waits for a server that is away.
//!
//! Ready means: readings sent now would be taken. What is wrong but does not stop that (MongoDB away while the journal
//! takes the readings, a broker away) is listed among the reasons all the same; ready with reasons means degraded.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use chrono::{DateTime, SecondsFormat};
use serde::Serialize;

use crate::config::AckMode;
use crate::ingest::TlsStatus;

/// The state of the service, shared.
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
    stuck: bool,
    quarantine: Quarantine,
}

/// The buckets that the store keeps failing while it answers others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Quarantine {
    /// How many.
    pub count: usize,
    /// Those that have failed longest; not all of many.
    pub buckets: Vec<QuarantinedBucket>,
}

/// A quarantined bucket in [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QuarantinedBucket {
    /// Its sensor.
    pub sensor_id: String,
    /// Its first instant (RFC 3339).
    pub bucket_start: Option<String>,
    /// The last failure, in the store's words.
    pub reason: String,
    /// When it failed first (RFC 3339).
    pub since: Option<String>,
}

impl QuarantinedBucket {
    /// Both times in milliseconds since 1970.
    pub fn new(sensor_id: &str, bucket_start_ms: i64, reason: &str, since_ms: i64) -> QuarantinedBucket {
        let (sensor_id, reason) = (sensor_id.to_owned(), reason.to_owned());
        QuarantinedBucket { sensor_id, bucket_start: rfc3339(bucket_start_ms), reason, since: rfc3339(since_ms) }
    }
}

#[derive(Debug, Clone)]
struct Mode {
    mode: &'static str,
    reason: String,
    server_version: String,
}

#[derive(Debug, Clone, Default)]
struct StoreState {
    /// `None` until it has been asked once.
    ok: Option<bool>,
    error: Option<String>,
    last_ok_ms: Option<i64>,
}

#[derive(Debug, Clone, Default)]
struct BrokerState {
    connected: bool,
    detail: Option<String>,
}

/// What became of the settings since the start. Times in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfigState {
    /// When settings were last taken over.
    pub taken_over_ms: Option<i64>,
    /// The last time that they were read again (SIGHUP): when, what came of it, and why.
    pub reload: Option<(i64, &'static str, String)>,
}

/// How the journal stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct JournalState {
    /// Bytes on disk.
    pub bytes: u64,
    /// `journal.max_bytes`.
    pub max_bytes: u64,
    /// Whether it takes no more until the store has caught up or the disk has room.
    pub full: bool,
    /// Entries from the first that is not stored on.
    pub unstored_entries: u64,
    /// Entries of an earlier run that have been given out again …
    pub replayed: u64,
    /// … of this many; less means that the service is still replaying (and takes new readings meanwhile).
    pub replay_total: u64,
}

/// The answer of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether readings sent now would be taken.
    pub ready: bool,
    /// Why not, and what is wrong beside that.
    pub reasons: Vec<String>,
    /// `bucket` or `timeseries`; absent until the store was reached.
    pub mode: Option<&'static str>,
    /// Why that mode.
    pub mode_reason: Option<String>,
    /// MongoDB's version.
    pub server_version: Option<String>,
    /// The store.
    pub store: StoreReport,
    /// The brokers, by name.
    pub mqtt: Vec<BrokerReport>,
    /// Where readings are posted: scheme, address and port that the service listens on; absent where it does not.
    pub http: Option<String>,
    /// The journal; absent with `ack = "stored"`.
    pub journal: Option<JournalState>,
    /// The ports that speak TLS.
    pub tls: Vec<TlsReport>,
    /// The settings.
    pub config: ConfigReport,
    /// Buckets that the store keeps failing while it answers others; at most 20 of them.
    pub quarantine: Vec<QuarantinedBucket>,
}

/// A port that speaks TLS in [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TlsReport {
    /// The section of its settings.
    pub port: &'static str,
    /// When its certificate expires (RFC 3339).
    pub not_after: Option<String>,
    /// What is wrong.
    pub problem: Option<String>,
}

/// The settings in [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigReport {
    /// When settings were last taken over (RFC 3339).
    pub taken_over: Option<String>,
    /// The last time that they were read again, since the start.
    pub last_reload: Option<ReloadReport>,
}

/// A reload in [`ConfigReport`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReloadReport {
    /// When (RFC 3339).
    pub at: Option<String>,
    /// `applied`; `restart_needed`: in part, the rest has to wait for a restart; `invalid`: nothing was changed.
    pub result: &'static str,
    /// What was taken over and what was not, or why nothing was.
    pub detail: String,
}

/// The store in [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoreReport {
    /// Whether its last answer was good; `false` before the first.
    pub ok: bool,
    /// What its last failure was, while it lasts.
    pub error: Option<String>,
    /// When it last answered well (RFC 3339).
    pub last_ok: Option<String>,
}

/// One broker in [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BrokerReport {
    /// Host and port, as in the label of `mqtt_connected`.
    pub broker: String,
    /// Whether connected and subscribed.
    pub connected: bool,
    /// Why not, or what else there is to say.
    pub detail: Option<String>,
}

impl Health {
    /// The state of a service that has not started; `ack` decides what it means that the store is away.
    pub fn new(ack: AckMode) -> Health {
        Health { ack, state: RwLock::default() }
    }

    /// Everything is wired and taking.
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

    /// A part has failed for good; the first reason stays, since the later ones mostly follow from it.
    pub fn broken(&self, reason: impl Into<String>) {
        self.write().broken.get_or_insert_with(|| reason.into());
    }

    /// The mode of the store, why, and the server's version.
    pub fn mode(&self, mode: &'static str, reason: impl Into<String>, server_version: impl Into<String>) {
        self.write().mode = Some(Mode { mode, reason: reason.into(), server_version: server_version.into() });
    }

    /// The store answered well at `wall_ms` (milliseconds since 1970).
    pub fn store_ok(&self, wall_ms: i64) {
        self.write().store = StoreState { ok: Some(true), error: None, last_ok_ms: Some(wall_ms) };
    }

    /// The store did not answer, or not well. `error` must not hold its credentials.
    pub fn store_failed(&self, error: impl Into<String>) {
        let store = &mut self.write().store;
        (store.ok, store.error) = (Some(false), Some(error.into()));
    }

    /// Readings are taken by HTTP at `url`, for instance `http://0.0.0.0:8080`.
    pub fn http(&self, url: impl Into<String>) {
        self.write().http = Some(url.into());
    }

    /// Whether `broker` (host and port, without credentials) is connected, and a word about it.
    pub fn mqtt(&self, broker: &str, connected: bool, detail: Option<String>) {
        self.write().mqtt.insert(broker.to_owned(), BrokerState { connected, detail });
    }

    /// How the certificates of a port stand.
    pub fn tls(&self, status: TlsStatus) {
        self.write().tls.insert(status.port, status);
    }

    /// What became of the settings.
    pub fn config(&self, config: ConfigState) {
        self.write().config = config;
    }

    /// What became of the settings so far.
    pub fn config_state(&self) -> ConfigState {
        self.read().config.clone()
    }

    /// Acknowledged readings make no progress although the store answers, and what they wait for; `None`: they do.
    pub fn stalled(&self, why: Option<String>) {
        self.write().stalled = why;
    }

    /// Nothing is settled any more, and only a restart may help.
    pub fn stuck(&self, stuck: bool) {
        self.write().stuck = stuck;
    }

    /// Whether [`Health::stuck`] says so.
    pub fn is_stuck(&self) -> bool {
        self.read().stuck
    }

    /// The buckets that the store keeps failing.
    pub fn quarantine(&self, quarantine: Quarantine) {
        self.write().quarantine = quarantine;
    }

    /// How the journal stands.
    pub fn journal(&self, journal: JournalState) {
        self.write().journal = Some(journal);
    }

    /// Whether readings sent now would be taken.
    pub fn is_ready(&self) -> bool {
        self.report().ready
    }

    /// All of it, at one moment.
    pub fn report(&self) -> Report {
        let state = self.read();
        let (blocking, degraded) = (state.blocking(self.ack), state.degraded(self.ack));
        let (mode, mode_reason, server_version) = match &state.mode {
            Some(m) => (Some(m.mode), Some(m.reason.clone()), Some(m.server_version.clone())),
            None => (None, None, None),
        };
        let last_ok = state.store.last_ok_ms.and_then(rfc3339);
        let store = StoreReport { ok: state.store.ok == Some(true), error: state.store.error.clone(), last_ok };
        let broker = |(broker, b): (&String, &BrokerState)| BrokerReport {
            broker: broker.clone(),
            connected: b.connected,
            detail: b.detail.clone(),
        };
        let mqtt = state.mqtt.iter().map(broker).collect();
        let tls = |status: &TlsStatus| TlsReport {
            port: status.port,
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
        let reasons = blocking.into_iter().chain(degraded).collect();
        let (http, journal) = (state.http.clone(), state.journal);
        let quarantine = state.quarantine.buckets.clone();
        Report {
            ready,
            reasons,
            mode,
            mode_reason,
            server_version,
            store,
            mqtt,
            http,
            journal,
            tls,
            config,
            quarantine,
        }
    }

    // A poisoned lock means that a thread panicked while it set a field; each field is whole in itself.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A time as people and programs read it.
fn rfc3339(at_ms: i64) -> Option<String> {
    DateTime::from_timestamp_millis(at_ms).map(|at| at.to_rfc3339_opts(SecondsFormat::Millis, true))
}

impl State {
    /// Why no readings are taken.
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
        if self.journal.is_some_and(|j| j.full) {
            reasons.push("journal: full; readings are refused until the store has caught up".to_owned());
        }
        if ack == AckMode::Stored {
            reasons.extend(self.store_away());
        }
        reasons
    }

    /// What is wrong while readings are taken.
    fn degraded(&self, ack: AckMode) -> Vec<String> {
        let mut reasons = Vec::new();
        if ack == AckMode::Journal {
            reasons.extend(self.store_away().map(|r| format!("{r}; the journal keeps the readings")));
        }
        reasons.extend(self.stalled.clone());
        reasons.extend(self.quarantined());
        for (broker, state) in self.mqtt.iter().filter(|(_, state)| !state.connected) {
            let detail = state.detail.as_deref().unwrap_or("not connected");
            reasons.push(format!("mqtt {broker}: {detail}"));
        }
        for (port, problem) in self.tls.values().filter_map(|tls| Some((tls.port, tls.problem.as_ref()?))) {
            reasons.push(format!("tls {port}: {problem}"));
        }
        if let Some((_, "invalid", why)) = &self.config.reload {
            reasons.push(format!("config: not taken over, the settings before hold: {why}"));
        }
        reasons
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

    fn store_away(&self) -> Option<String> {
        match (self.store.ok, &self.store.error) {
            (Some(true), _) => None,
            (Some(false), Some(error)) => Some(format!("store: {error}")),
            _ => Some("store: not reached yet".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(ack: AckMode) -> Health {
        let health = Health::new(ack);
        health.started();
        health.store_ok(1_709_287_200_000);
        health
    }

    #[test]
    fn ready_only_between_start_and_stop() {
        let health = Health::new(AckMode::Journal);
        health.store_ok(0);
        assert_eq!((health.is_ready(), health.report().reasons), (false, vec!["starting".to_owned()]));
        health.started();
        assert_eq!((health.is_ready(), health.report().reasons), (true, vec![]));
        health.stopping();
        assert_eq!((health.is_ready(), health.report().reasons), (false, vec!["stopping".to_owned()]));
    }

    #[test]
    fn broken_stays_broken_with_its_first_reason() {
        let health = running(AckMode::Journal);
        health.broken("shard 3 panicked");
        health.broken("the channel is closed");
        assert!(!health.is_ready());
        assert_eq!(health.report().reasons, ["broken: shard 3 panicked; restart the service"]);
    }

    #[test]
    fn a_store_that_is_away_blocks_only_where_senders_wait_for_it() {
        for (ack, ready) in [(AckMode::Journal, true), (AckMode::Stored, false)] {
            let health = running(ack);
            health.store_failed("no primary");
            let report = health.report();
            assert_eq!(report.ready, ready);
            assert!(report.reasons[0].starts_with("store: no primary"), "{:?}", report.reasons);
            assert_eq!(report.store.last_ok.as_deref(), Some("2024-03-01T10:00:00.000Z"));
            assert!(!report.store.ok);
            health.store_ok(0);
            assert_eq!((health.is_ready(), health.report().store.error), (true, None));
        }
    }

    #[test]
    fn a_stall_and_quarantined_buckets_are_named_and_do_not_block() {
        let health = running(AckMode::Journal);
        health.stalled(Some("no progress".into()));
        let bucket = |id: &str| QuarantinedBucket::new(id, 1_709_287_200_000, "timeout", 1_709_287_260_000);
        health.quarantine(Quarantine { count: 3, buckets: vec![bucket("S1"), bucket("S2")] });
        let report = health.report();
        assert!(report.ready);
        let expected = "quarantine: the store keeps failing the bucket of sensor S1 at 2024-03-01T10:00:00.000Z and 2 \
                        others: timeout";
        assert_eq!(report.reasons, ["no progress", expected]);
        assert_eq!(report.quarantine[1].since.as_deref(), Some("2024-03-01T10:01:00.000Z"));
        health.stalled(None);
        health.quarantine(Quarantine::default());
        assert_eq!((health.report().reasons, health.report().quarantine), (vec![], vec![]));
    }

    #[test]
    fn a_full_journal_blocks_and_a_broker_that_is_away_does_not() {
        let health = running(AckMode::Journal);
        health.mqtt("b:1883", false, Some("connection refused".into()));
        assert_eq!(
            (health.is_ready(), health.report().reasons),
            (true, vec!["mqtt b:1883: connection refused".into()])
        );
        health.journal(JournalState { bytes: 9, max_bytes: 9, full: true, ..JournalState::default() });
        assert!(!health.is_ready());
        health.journal(JournalState { bytes: 1, max_bytes: 9, full: false, ..JournalState::default() });
        assert!(health.is_ready());
    }
}
