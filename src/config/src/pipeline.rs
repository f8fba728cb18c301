//! The pipeline from a batch to the store, and the service around it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono_tz::Tz;
use model::Span;
use model::collections::OWN;
use serde_json::json;

use super::declare::settings;
use super::kinds::{Kind, choice, count, duration, flag, path, size, zone};
use super::reader::{Bad, wrong};
use super::tree::Node;
use super::units::{DAY, GIB, HOUR, KIB, MIB, MINUTE, MS, SECOND, TIB, parse_duration};
use super::{Secret, uri};

/// A command must stay below 16 MiB in total; the rest is for its parts besides statements.
const COMMAND_MAX_BYTES: u64 = 12 * MIB;
/// A document must stay below 16 MiB; summary, tags and BSON's array keys add to the readings.
const PAGE_MAX_BYTES: u64 = 8 * MIB;
/// MongoDB stores `expireAfterSeconds` in 32 bit, which is 24,855 days and a bit.
const RETENTION_MAX: Duration = DAY.saturating_mul(24_855);

settings! {
    pub struct Ingest, restart("the pipeline is built at startup") {
        /// When a sender is acknowledged: "journal" (after the journal's fdatasync), or "stored"
        /// (after MongoDB's majority write, without a journal).
        ack: AckMode = AckMode::Journal, choice(AckMode::NAMES);
        /// Bytes of the batches that may wait for the next stage, 1MiB to 2GiB. At the limit, or at
        /// 1024 batches, senders wait.
        // Admission counts its bytes in 32 bit.
        queue_max_bytes: u64 = 64 * MIB, size(MIB..=2 * GIB);
        /// For how long the header Idempotency-Key of HTTP requests is remembered, up to 30d, by the
        /// service's clock: a repeat of the request stores nothing, also readings without a time.
        /// 0s: the header has no effect. With ack = "stored" keys are forgotten at a restart.
        idempotency_for: Duration = DAY, duration(Duration::ZERO..=30 * DAY);
        /// Keys that are remembered, 100 to 10000000, about 150 bytes of memory each and 40 in
        /// journal.dir. Beyond, the sender with the most keys loses its oldest.
        idempotency_keys_max: u32 = 100_000, count(100..=10_000_000);
        /// A tag that records who sent a reading: the id of the sender's token. It replaces a tag
        /// of that name in the reading. Absent: not recorded. Tags belong to a page, or to the
        /// measurements of one write. So if several senders write one sensor within an hour, its
        /// readings can have the tag of another of them: let one token write each sensor.
        sender_tag: Option<Arc<str>> = None, tag_name().optional(), example("\"sender\"");
    }
}

model::closed_set! {
    /// When a sender is acknowledged.
    pub enum AckMode {
        /// After the journal's fdatasync.
        Journal => "journal",
        /// After the store's majority write; no journal.
        Stored => "stored",
    }
}

settings! {
    pub struct Store, restart("the store is opened and its collections are prepared at startup") {
        /// A secret if it contains a password: then prefer HOURBUCKET_STORE__URI or
        /// HOURBUCKET_STORE__URI_FILE. Its options w, journal, wtimeoutMS, readConcernLevel and
        /// readPreference have no effect: the service reads from the primary and writes with
        /// write_concern and MongoDB's journal. w=0 is refused.
        uri: Secret = Secret::new(LOCAL.to_owned()), uri();
        database: String = "hourbucket".to_owned(),
            Kind::new("database name, up to 63 bytes", database);
        /// Where readings are stored: "bucket" (in the hourly documents), "timeseries" (in the
        /// native time-series collection sensor_readings; the hourly documents hold the summaries),
        /// or "auto" (time-series if the server supports it, else bucket; the service finds out by
        /// creating the collection at startup). Another kind of collection with that name is an
        /// error and does not change the mode.
        mode: StoreMode = StoreMode::Auto, choice(StoreMode::NAMES);
        /// How long data is kept after the end of its bucket, up to 24855d; absent: forever. At
        /// least limits.past, because an older reading would be acknowledged and soon removed.
        /// Measurements in a time-series collection are kept one bucket.span longer, so that no
        /// summary counts removed measurements (above 17361d they are kept forever: the server
        /// accepts no longer time). A change or removal is applied to the collections at the next
        /// start, including data already stored.
        retention: Option<Duration> = None, duration(MINUTE..=RETENTION_MAX).optional(),
            example("\"730d\"");
        /// How long single readings are kept after the end of their bucket, if that is shorter than
        /// the retention of the buckets; absent: as long as the bucket. A bucket then loses its
        /// readings and keeps count, summary, times and tags. At least limits.past, because no
        /// other reading of such a bucket can be stored; less than store.retention. An import, too,
        /// accepts nothing older. Readings are removed about six hours later, by the clock of
        /// MongoDB: in buckets by the service, 25 pages per second or up to 500 if more become due,
        /// in a time-series collection by the server. All instances of a database need the same
        /// value.
        retention_readings: Option<Duration> = None, duration(MINUTE..=RETENTION_MAX).optional(),
            example("\"365d\"");
        /// "majority", or a number of members from 1 to 50. With less than a majority a failover
        /// can lose acknowledged readings.
        write_concern: String = "majority".to_owned(),
            Kind::new("`\"majority\"`, or a number of members, 1 to 50", write_concern)
                .schema(json!({ "type": ["string", "integer"] }));
        /// Time limit of one command. After it the command is cancelled, its outcome counts as
        /// unknown, and the stored state is read.
        timeout: Duration = 10 * SECOND, duration(10 * MS..=HOUR);
        /// Time limit for finding a server.
        connect_timeout: Duration = 5 * SECOND, duration(10 * MS..=10 * MINUTE);
        /// Connections; at least flush.commands_max.
        pool_max: u32 = 16, count(1..=1000);
        /// A wildcard index on the tags of sensor_buckets, for queries such as "all sensors of site
        /// north":
        ///   db.sensor_buckets.distinct("sensor_id", { "tags.site": "north" })
        /// It is built at the next start, which takes a while if there are many buckets, and
        /// dropped when this is false again. Every new page then costs one index entry for each of
        /// its tags; appending to a page costs nothing more.
        tags_index: bool = false, flag();
    }
}

model::closed_set! {
    /// How readings are stored.
    pub enum StoreMode {
        /// In the pages.
        Bucket => "bucket",
        /// In a native time-series collection.
        Timeseries => "timeseries",
        /// In a time-series collection if the server supports it, else in the pages.
        Auto => "auto",
    }
}

const SHARDS: &str = "the shards are created with it at startup";

settings! {
    pub struct Bucket, restart("the shards and the store are created with it at startup") {
        /// Time span of one bucket: a divisor of a day from "1m" to "1d". The first start records
        /// it in the database. After that it cannot be changed for this store.database, only for
        /// another one. It also sets the granularity of a time-series collection, which controls
        /// how much the server packs together: "seconds" (up to an hour) up to "1h", above that
        /// "minutes" (up to a day).
        span: Span = Span::HOUR, Kind::new("duration that divides a day, 1m to 1d", span);
        /// Readings in one page of a bucket, up to 10000, and their bytes, up to 8MiB. A full page
        /// is followed by another one. The cost of an append grows with what the page already
        /// holds.
        max_readings: u32 = 1000, count(1..=10_000);
        max_bytes: u64 = MIB, size(KIB..=PAGE_MAX_BYTES);
    }
}

settings! {
    pub struct Flush, restart(SHARDS) {
        /// The longest a reading waits in memory while MongoDB has capacity. Longer means fewer and
        /// larger writes.
        max_age: Duration = 15 * SECOND, duration(MS..=DAY);
        /// The same while MongoDB is busy with statements of few readings: then readings are held
        /// longer, so that several of a sensor share a statement. A value up to max_age turns it
        /// off.
        max_age_busy: Duration = 6 * MINUTE, duration(MS..=DAY);
        /// The same for ingest.ack = "stored", when senders wait for the write.
        linger: Duration = 5 * MS, duration(Duration::ZERO..=MINUTE);
        /// The most commands in flight, up to 256, and the size of one, up to 12MiB and 5000
        /// statements. Page writes that keep up have one in flight.
        commands_max: usize = 4, count(1..=256);
        command_max_bytes: u64 = 12 * MIB, size(64 * KIB..=COMMAND_MAX_BYTES);
        command_max_statements: usize = 5000, count(1..=5000);
        /// A bucket (one sensor's hour) that keeps failing while MongoDB answers for others is
        /// retried alone and named in /readyz. After this time, or once such buckets alone fill the
        /// memory, its readings become dead letters with the reason `quarantined`, which can be
        /// replayed.
        quarantine_after: Duration = 10 * MINUTE, duration(SECOND..=24 * HOUR);
    }
}

impl Flush {
    /// The longest that a reading may be held in memory before it is due.
    pub fn longest_age(&self) -> Duration {
        self.max_age_busy.max(self.max_age)
    }
}

settings! {
    pub struct Accumulate, restart(SHARDS) {
        /// Tasks that share the sensors; 0: one per core.
        shards: usize = 0, count(0..=1024);
        /// Memory for all open buckets. Near the limit, the buckets that are due next are written
        /// early; readings that arrive faster than that stay in the journal.
        max_bytes: u64 = 512 * MIB, size(MIB..=TIB);
        /// Sensors kept in memory.
        max_sensors: usize = 2_000_000, count(1..=100_000_000);
    }
}

settings! {
    pub struct Journal, restart("the journal is opened at startup") {
        /// Directory for acknowledged readings until MongoDB has them. Use a directory for this
        /// purpose alone, on a disk that survives the machine.
        dir: PathBuf = PathBuf::from("journal"), path();
        /// Buffer size while MongoDB is slow or down. When it is full, senders get 429 or wait. At
        /// least two segments. With MQTT not below 12MiB, for large dead letters. A message whose
        /// readings take about half of it is refused (HTTP: 413) or becomes a dead letter, because
        /// it might never fit.
        max_bytes: u64 = 16 * GIB, size(128 * KIB..=1024 * TIB);
        segment_bytes: u64 = 64 * MIB, size(64 * KIB..=4 * GIB);
        /// While messages keep arriving: how long a sync waits for more of them, so that many
        /// acknowledgements share one. A message over MQTT can wait twice, in its batch and in the
        /// journal. A sender that is alone with one message in flight is never delayed. "0s" turns it
        /// off. From "100ms" on every sync waits so long for what may come, to spare an SD card, and
        /// every sender waits for it; only 4 MiB are synced earlier.
        commit_delay: Duration = 2 * MS, duration(Duration::ZERO..=SECOND);
    }
}

settings! {
    pub struct Latest, restart("its tasks are started at startup") {
        /// Maintains sensor_latest, one document per sensor: { _id: sensor id, last_ts, values: {
        /// temp: { ts, value }, ... }, recent: [ newest readings, the latest last ] }. Late,
        /// repeated or replayed readings never move it back in time. One query returns the state of
        /// the whole fleet, db.sensor_latest.find(), another the sensors that have been silent for
        /// an hour:
        ///   db.sensor_latest.find({ last_ts: { $lt: new Date(Date.now() - 3600e3) } })
        /// With ingest.ack = "stored" it may be one interval old after a crash. With the journal,
        /// which then keeps the readings of one interval, nothing is lost. Documents of sensors
        /// that no longer report stay until an operator removes them.
        enabled: bool = false, flag();
        /// A sensor's document is written at most once in this time, up to 1h. Each write costs
        /// about as much as one to a page.
        interval: Duration = 10 * SECOND, duration(100 * MS..=HOUR);
        /// Readings in a document, up to 100; 0 keeps only the last values.
        recent: usize = 10, count(0..=100);
        /// Memory for unwritten state. Near the limit, the documents that are due next are written
        /// early; at the limit, intake waits.
        max_bytes: u64 = 128 * MIB, size(MIB..=TIB);
    }
}

settings! {
    pub struct Rollup, restart("its tasks are started and its collections prepared at startup") {
        /// Maintains sensor_days, one document per sensor and day: { _id: { sensor_id, day },
        /// sensor_id, day, tags, count, first_ts, last_ts, summary }, computed from the stored
        /// hours, and the view sensor_day_summaries with averages. A late reading updates its day
        /// too. After it was enabled for a database with data, `hourbucket init --rollup-from
        /// 2023-01-01` fills the past. With store.retention, hours must be kept at least 2d longer
        /// than limits.past.
        days: bool = false, flag();
        /// The time zone of the days, a name of the IANA database. Days have 23 or 25 hours when
        /// clocks change. It cannot be changed for a database that has days, and bucket.span must
        /// divide its offset from UTC.
        zone: Tz = Tz::UTC, zone();
        /// How long days are kept after their end, at least store.retention; absent: forever.
        retention: Option<Duration> = None, duration(DAY..=RETENTION_MAX).optional(),
            example("\"3650d\"");
        /// A day is computed between this and twice this long after its end, spread over the
        /// sensors. Until then queries compute it from its hours.
        settle: Duration = 10 * MINUTE, duration(100 * MS..=6 * HOUR);
        /// A day that has ended is computed again when no late reading of it has arrived for this
        /// time, or after ten times this.
        late: Duration = MINUTE, duration(100 * MS..=HOUR);
        /// Memory for days with changes: about 250 bytes for each sensor that reports today. Near
        /// the limit days are computed before they are due, at the limit intake waits for that.
        max_bytes: u64 = 256 * MIB, size(MIB..=TIB);
    }
}

settings! {
    pub struct Columns, restart("its tasks are started and its collections prepared at startup") {
        /// Maintains sensor_columns, the readings of a sensor and day in columns of about a byte a
        /// value, and sensor_day_hours, the rich summaries of its hours (docs/columns.md). They are
        /// computed as days are, with the zone, times and memory of [rollup], and updated by late
        /// readings. For a database with data, `hourbucket init --columns-from 2023-01-01` fills
        /// the past.
        enabled: bool = false, flag();
        /// How long columns and hours are kept after the end of their day; absent: forever.
        retention: Option<Duration> = None, duration(DAY..=RETENTION_MAX).optional(),
            example("\"3650d\"");
        /// Between two readings of a field that are further apart, its value counts as unknown: the
        /// time between them is not in covered_ms, integral and state_ms.
        gap_max: Duration = HOUR, duration(SECOND..=DAY);
    }
}

settings! {
    pub struct Sensors, restart("the shards and the read API are created with it at startup") {
        /// A sensor is silent if nothing of it has arrived for this long, whatever the time of its
        /// readings: hourbucket_sensors_silent, an alert, /v1/sensors?silent=true, the fleet page.
        /// Set it to a few times the interval of the slowest sensors, and the same in all
        /// instances. sensor_catalog has the last arrivals, so a restart forgets nothing. They are
        /// precise to a quarter of this (up to 1d): silence is recognised that much later, and an
        /// entry is updated that often, together with a page. With "1h" and 100,000 sensors that is
        /// 110 updates per second, about 0.7 % of a core of MongoDB.
        silent_after: Duration = DAY, duration(4 * SECOND..=366 * DAY);
        /// A sensor of which nothing has arrived for this long counts as taken out of use, no
        /// longer as silent.
        retired_after: Duration = 30 * DAY, duration(10 * SECOND..=36_500 * DAY);
    }
}

settings! {
    pub struct Enrich, restart("the registry reader is started at startup") {
        /// A registry of sensors in store.database, maintained by another application and only read
        /// here. The fields of a sensor's document become tags of its pages and measurements from
        /// the next write on. A tag in a message overrides the registry's. Absent: off.
        collection: Option<String> = None, Kind::new("collection name", collection).optional(),
            example("\"sensors\"");
        /// The field with the sensor's id (text, whole number or ObjectId), unique; dots for a
        /// nested one.
        id_field: String = "_id".to_owned(),
            Kind::new("field name", |node| path_of(node.text(), node));
        /// The fields that become tags (place.room as place_room); absent: all scalar ones at the
        /// top level. The limits of tags apply.
        fields: Vec<String> = vec![], Kind::new("list of field names", paths),
            example("[\"site\", \"place.room\"]");
        /// Changes are applied from a change stream as they happen. If there is none (standalone
        /// server, a view, missing rights), and after a failure, the whole registry is read again
        /// at this interval.
        interval: Duration = MINUTE, duration(100 * MS..=DAY);
        /// Sensors kept in memory, about 150 bytes each; further ones get no tags.
        max_sensors: usize = 1_000_000, count(1..=100_000_000);
    }
}

settings! {
    pub struct DeadLetters, restart("the collection is prepared and its task started at startup") {
        /// How long messages that could not be decoded are kept. Acknowledged readings that MongoDB
        /// refused are kept until they are replayed or purged.
        retention: Duration = 30 * DAY, duration(MINUTE..=RETENTION_MAX);
        /// Size of the collection, uncompressed, as MongoDB counts it. Above it the oldest messages
        /// are removed. Acknowledged readings that MongoDB refused count, but are never removed.
        max_bytes: u64 = GIB, size(16 * MIB..=1024 * TIB);
    }
}

settings! {
    pub struct Shutdown, restart("it is read only at startup") {
        /// Time limit for draining after SIGTERM. Readings that are not stored by then stay in the
        /// journal.
        deadline: Duration = 30 * SECOND, duration(100 * MS..=HOUR);
    }
}

settings! {
    /// Who was refused (credentials, connections), lost access, reached a quota, or queried with a
    /// token, with the address. The normal log has these events with the target "audit", ten lines
    /// a minute of each kind.
    pub struct Audit, reload() {
        /// Also writes them here, one JSON object per line, for tools that ban addresses. Created
        /// for its owner only, and opened again on SIGHUP, so that it can be rotated. A disk that
        /// is slow or full delays nothing: lines are dropped and counted.
        file: Option<PathBuf> = None, path().optional(),
            example("\"/var/log/hourbucket/audit.log\"");
        /// Lines of each kind of event per second in the file, up to 100000; beyond it, and beyond
        /// 120 a minute about one address, events are only counted.
        lines_per_second: u32 = 20, count(1..=100_000);
    }
}

settings! {
    pub struct Log, restart("the log is opened at startup") {
        /// off, error, warn, info, debug or trace. Add ",module=level" to set a module:
        /// "info,hourbucket::store=debug". The libraries for MongoDB and MQTT stay at warn unless
        /// they are named: "info,mongodb=debug".
        level: String = "info".to_owned(),
            Kind::new("filter: comma-separated levels", level), reload;
        /// "text" for people, "json" for one object per line; written to standard error.
        format: LogFormat = LogFormat::Text, choice(LogFormat::NAMES);
    }
}

model::closed_set! {
    /// How the log is written.
    pub enum LogFormat {
        /// For people.
        Text => "text",
        /// One JSON object per line.
        Json => "json",
    }
}

/// The name of a tag, as it is stored.
fn tag_name() -> Kind<Arc<str>> {
    Kind::new("name of a tag, up to 64 bytes", |node| {
        let advice = "write a name of 1 to 64 bytes, such as \"sender\", without . or $, not ts, \
            meta or _id";
        let is_valid = |name: &&str| {
            (1..=64).contains(&name.len())
                && !name.contains(['.', '$', '\0'])
                && !["ts", "meta", "_id"].contains(name)
        };
        let name = node.text().filter(is_valid).map(Arc::from);
        name.ok_or_else(|| wrong(node, advice))
    })
}

const LOCAL: &str = "mongodb://127.0.0.1:27017/?replicaSet=rs0";

/// A connection string, which no message repeats.
fn uri() -> Kind<Secret> {
    let schema = json!({ "type": "string", "pattern": "^mongodb([+]srv)?://" });
    let read = |node: &Node| match node.text() {
        Some("") => Err(Bad::new("empty", "write a text, or remove the key")),
        Some(text) => match uri::check_store(text) {
            Ok(()) => Ok(Secret::new(text.to_owned())),
            Err(what) => Err(Bad::new(
                what,
                "write mongodb://[user:password@]host[:port][,…]/[?options]",
            )),
        },
        None => Err(Bad::new(
            format!("expected a text, found {}", node.value.kind()),
            "write a text in quotes",
        )),
    };
    Kind::unwritten("text, a secret", schema, read)
        .written(|uri| toml::Value::String(uri::masked_store(uri.reveal())))
}

/// Accepts the names that every MongoDB accepts, including on Windows.
fn database(node: &Node) -> Result<String, Bad> {
    let advice = "write a name of up to 63 bytes without any of / \\ . \" $ * < > : | ? or spaces";
    let name = node.text().ok_or_else(|| wrong(node, advice))?;
    let forbidden = |c: char| "/\\.\"$*<>:|?".contains(c) || c.is_whitespace() || c.is_control();
    match name {
        "" => Err(wrong(node, advice)),
        "admin" | "local" | "config" => Err(Bad::new(
            format!("\"{name}\" is MongoDB's own database"),
            "write another name",
        )),
        _ if name.len() > 63 || name.contains(forbidden) => Err(wrong(node, advice)),
        _ => Ok(name.to_owned()),
    }
}

/// `majority`, or a number of members as a number or text.
fn write_concern(node: &Node) -> Result<String, Bad> {
    let advice = "write \"majority\", or a number of members from 1 to 50";
    let members = node.integer().or_else(|| node.text()?.parse().ok());
    match (node.text(), members) {
        (Some("majority"), _) => Ok("majority".to_owned()),
        (_, Some(0)) => Err(Bad::new(
            "with 0 MongoDB does not acknowledge writes",
            advice,
        )),
        (_, Some(n @ 1..=50)) => Ok(n.to_string()),
        _ => Err(wrong(node, advice)),
    }
}

fn span(node: &Node) -> Result<Span, Bad> {
    let advice =
        "write a divisor of a day from \"1m\" to \"1d\", such as \"15m\", \"1h\" or \"6h\"";
    let duration = node
        .text()
        .and_then(parse_duration)
        .ok_or_else(|| wrong(node, advice))?;
    let span = i64::try_from(duration.as_millis())
        .ok()
        .and_then(Span::from_ms);
    span.ok_or_else(|| {
        Bad::new(
            format!(
                "\"{}\" does not divide a day",
                node.text().unwrap_or_default()
            ),
            advice,
        )
    })
}

/// The name of the registry's collection: none of [`OWN`].
fn collection(node: &Node) -> Result<String, Bad> {
    let advice = "write the name of a collection in store.database, such as \"sensors\"";
    let name = node.text().ok_or_else(|| wrong(node, advice))?;
    if OWN.contains(&name) {
        return Err(Bad::new(
            format!("\"{name}\" is the name of a collection or view of hourbucket"),
            advice,
        ));
    }
    if name.is_empty()
        || name.len() > 120
        || name.starts_with("system.")
        || name.contains(['$', '\0'])
    {
        return Err(wrong(node, advice));
    }
    Ok(name.to_owned())
}

/// A field of a document, with dots for nested ones.
fn path_of(text: Option<&str>, node: &Node) -> Result<String, Bad> {
    let advice =
        "write the name of a field, with dots for a nested one, such as \"site\" or \"place.room\"";
    let good = |part: &str| !part.is_empty() && !part.starts_with('$') && !part.contains('\0');
    match text {
        Some(text) if text.split('.').all(good) => Ok(text.to_owned()),
        _ => Err(wrong(node, advice)),
    }
}

/// Fields, none of them inside another: the server would refuse a projection of both.
fn paths(node: &Node) -> Result<Vec<String>, Bad> {
    let advice = "write a list of fields, such as [\"site\", \"place.room\"]";
    let texts = node.texts().ok_or_else(|| wrong(node, advice))?;
    let paths = texts
        .iter()
        .map(|text| path_of(Some(text), node))
        .collect::<Result<Vec<_>, _>>()?;
    for (i, a) in paths.iter().enumerate() {
        let clash = |b: &String| a == b || b.starts_with(&format!("{a}."));
        if let Some(b) = paths
            .iter()
            .enumerate()
            .find(|(j, b)| *j != i && clash(b))
            .map(|(_, b)| b)
        {
            return Err(Bad::new(
                format!("\"{a}\" and \"{b}\" overlap"),
                "name each field once",
            ));
        }
    }
    Ok(paths)
}

/// A filter such as `info` or `info,store=debug`. A bare word that is not a level would
/// name a module and enable all of its events, so a misspelt level must be refused.
fn level(node: &Node) -> Result<String, Bad> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let advice =
        "write off, error, warn, info, debug or trace, followed by \",module=level\" as needed";
    let text = node.text().ok_or_else(|| wrong(node, advice))?;
    let good = text.split(',').map(str::trim).all(|part| {
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
        LEVELS.contains(&level.to_ascii_lowercase().as_str())
    });
    if !good || tracing_subscriber::EnvFilter::try_new(text).is_err() {
        return Err(wrong(node, advice));
    }
    Ok(text.to_owned())
}
