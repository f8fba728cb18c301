//! The configuration as the rest of the service uses it: checked, complete and with units in the
//! types.
//!
//! In: a file, the environment, defaults. Out: a [`Config`], or all problems with their keys; what a
//! reload applies ([`mod@reload`]); the reference and a masked dump.
//!
//! Invariants: a value that another crate sees was checked; a secret is a [`Secret`], which prints as
//! stars. What must not be here: what a setting does.
//!
//! [`load()`] merges environment over file over default. It reports all problems together, each
//! with its key.
//!
//! **File.** TOML, at the given path or `config/hourbucket.toml`, which may be missing. Relative
//! paths, on the command line and inside the file, are resolved against the working directory of
//! the process, not against the file. So `journal.dir` and `--config` mean the same as in a shell,
//! and moving the file moves no data.
//!
//! **Environment.** `HOURBUCKET_<SECTION>__<KEY>`, such as `HOURBUCKET_STORE__URI`; list elements
//! by number, such as `HOURBUCKET_MQTT__0__SUBSCRIPTIONS__0__FILTER`. The number after the last one
//! appends an element. The key's type determines how the text is parsed: `true`, `5000`, `15s`,
//! `512MiB`. A variable that ends in `_FILE` names a file that holds the value; its last line
//! ending is dropped (a key that itself ends in `_file`, such as `http.tokens_file`, keeps its
//! meaning). An empty variable counts as not set. With a double underscore, an unknown name is an
//! error. Without one, the name of a key is an error (`HOURBUCKET_STORE_URI`), and all others belong
//! to other tools and are ignored.

mod access;
mod check;
mod check_mqtt;
mod declare;
mod describe;
mod dump;
mod error;
mod fields;
mod formats;
mod forward;
mod kinds;
mod live;
mod load;
mod manager;
pub mod mapping;
mod mqtt;
mod permissions;
mod pipeline;
mod ports;
mod proxies;
mod ranges;
mod reader;
mod reference;
pub mod reload;
mod suggest;
mod topic;
mod tree;
mod units;
mod uri;
mod warnings;
#[cfg(test)]
mod written;

pub use access::{Certificates, ClientIdentity, Jwt, JwtAlgorithm, Quota};
pub use describe::known_keys;
pub use error::{ConfigErrors, Problem};
pub use fields::Field;
pub use formats::SPARKPLUG;
pub use formats::{Limits, Line, Native, Nested, Otlp, PointAttributes, RemoteWrite, ScalarFormat};
pub use forward::{Forward, ForwardCompression, ForwardOrder};
pub use kinds::Secret;
pub use live::{Live, Setter};
pub use load::load_for_new_tokens;
pub use load::{Loaded, environment, load};
pub use manager::{Manager, manager};
pub use mqtt::{Mqtt, MqttProtocol, Retained, Sparkplug, Subscription};
pub use pipeline::{
    Accumulate, AckMode, Audit, Bucket, Columns, DeadLetters, Enrich, Flush, Ingest, Journal,
};
pub use pipeline::{Latest, Log, LogFormat, Rollup, Sensors, Shutdown, Store, StoreMode};
pub use ports::{Admin, ClientAuth, Connections, Http, HttpTimes, Listen, ListenMqtt, Promql};
pub use ports::{Tls, TlsVersion};
pub use proxies::is_loopback;
pub use proxies::{Network, Proxies, ProxyHeader};
pub use ranges::{ChangePer, Range};
pub use reader::SecretFileError;
pub use reference::reference;
pub use suggest::nearest;
pub use topic::is_topic_filter;
pub use units::write_duration;
pub use units::{parse_duration, parse_size};

use std::sync::Arc;
use std::time::Duration;

use declare::{Formats, Section, Sections, settings};
use mapping::Mapping;
use model::ranges::Ranges;
use mqtt::BROKER;

settings! {
    /// All settings. The shipped `config/hourbucket.toml` shows each key with its default and a
    /// comment.
    pub struct Config, reload() {
        ingest: Ingest = Ingest::default(), Section;
        quota: Quota = Quota::default(), Section;
        jwt: Jwt = Jwt::default(), Section;
        certificates: Certificates = Certificates::default(), Section;
        http: Http = Http::default(), Section;
        admin: Admin = Admin::default(), Section;
        promql: Promql = Promql::default(), Section;
        store: Store = Store::default(), Section;
        forward: Forward = Forward::default(), Section;
        bucket: Bucket = Bucket::default(), Section;
        flush: Flush = Flush::default(), Section;
        accumulate: Accumulate = Accumulate::default(), Section;
        journal: Journal = Journal::default(), Section;
        latest: Latest = Latest::default(), Section;
        rollup: Rollup = Rollup::default(), Section;
        columns: Columns = Columns::default(), Section;
        sensors: Sensors = Sensors::default(), Section;
        enrich: Enrich = Enrich::default(), Section;
        limits: Limits = Limits::default(), Section;
        fields: Vec<Field> = vec![], Sections { new: Field::default, without: &[] },
            restart(fields::COMPUTED);
        ranges: Vec<Range> = vec![], Sections { new: Range::default, without: &[] };
        line: Line = Line::default(), Section;
        native: Native = Native::default(), Section;
        scalar: ScalarFormat = ScalarFormat::default(), Section;
        otlp: Otlp = Otlp::default(), Section;
        remote_write: RemoteWrite = RemoteWrite::default(), Section;
        dead_letters: DeadLetters = DeadLetters::default(), Section;
        shutdown: Shutdown = Shutdown::default(), Section;
        audit: Audit = Audit::default(), Section;
        log: Log = Log::default(), Section;
        // Sorted by name.
        formats: Vec<Arc<Mapping>> = vec![], Formats;
        sparkplug: Sparkplug = Sparkplug::default(), Section;
        mqtt: Vec<Mqtt> = vec![], Sections { new: Mqtt::default, without: &[] }, restart(BROKER);
        listen: Listen = Listen::default(), Section;
    }
}

/// The settings that decoding depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoding {
    /// `[limits]`
    pub limits: Limits,
    /// How old a reading of an import may be: `limits.import_past`, or less if it would soon be
    /// removed.
    pub import_past: Duration,
    /// `[[ranges]]`
    pub ranges: Ranges,
    /// `[line]`
    pub line: Line,
    /// `[formats.NAME]`
    pub formats: Vec<Arc<Mapping>>,
    /// `[native]`
    pub native: Native,
    /// `[scalar]`
    pub scalar: ScalarFormat,
    /// `[otlp]`
    pub otlp: Otlp,
    /// `[remote_write]`
    pub remote_write: RemoteWrite,
    /// `ingest.sender_tag`
    pub sender_tag: Option<Arc<str>>,
    /// Whether it takes what other instances forward: not if it sends that out of order.
    pub takes_forwarded: bool,
}

impl Config {
    /// `limits.import_past`, up to what `[store]` keeps: an older reading would be acknowledged and
    /// soon removed.
    fn import_past(&self) -> Duration {
        // Days and columns need all hours of a day.
        let margin = match self.rollup.days || self.columns.enabled {
            true => check::ROLLUP_MARGIN,
            false => Duration::ZERO,
        };
        let kept = self.store.retention.map(|kept| kept.saturating_sub(margin));
        // Once an hour's readings are removed, no more readings can be stored for it, unless columns
        // have them.
        let readings = self.store.retention_readings;
        let readings = readings.filter(|_| !self.columns.enabled);
        let kept = kept.into_iter().chain(readings);
        kept.fold(self.limits.import_past, Duration::min)
    }

    /// Copies the settings that decoding depends on.
    pub fn decoding(&self) -> Decoding {
        Decoding {
            limits: self.limits.clone(),
            import_past: self.import_past(),
            ranges: self.ranges.iter().filter_map(Range::rule).collect(),
            line: self.line.clone(),
            native: self.native.clone(),
            scalar: self.scalar,
            otlp: self.otlp.clone(),
            remote_write: self.remote_write.clone(),
            formats: self.formats.clone(),
            sender_tag: self.ingest.sender_tag.clone(),
            takes_forwarded: self.forward.order == ForwardOrder::Oldest,
        }
    }
}
