//! Reads every section. Each key has its default and its range here, and nowhere else.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::connections::{connections, http_times};
use super::proxies::http_proxies;
use super::reader::{Bad, Report, Section, wrong};
use super::tree::{Entries, Node};
use super::units::{DAY, GIB, HOUR, KIB, MIB, MINUTE, MS, SECOND, parse_duration};
use super::{
    Accumulate, AckMode, Admin, Audit, Bucket, Config, DeadLetters, Enrich, Flush, Http, Ingest,
    Journal, Latest, Limits, Log, LogFormat, Promql, Quota, Rollup, Secret, Sensors, Shutdown,
    Store, StoreMode, certificates, formats, jwt, listen, mapping, mqtt, tls, uri,
};
use chrono_tz::Tz;
use model::collections::OWN;
use model::{DAY_MS, Span};

/// A command must stay below 16 MiB in total; the rest is for its parts besides statements.
const COMMAND_MAX_BYTES: u64 = 12 * MIB;
/// A document must stay below 16 MiB; summary, tags and BSON's array keys add to the readings.
const PAGE_MAX_BYTES: u64 = 8 * MIB;
/// MongoDB stores `expireAfterSeconds` in 32 bit, which is 24,855 days and a bit.
const RETENTION_MAX: Duration = DAY.saturating_mul(24_855);
/// A hundred years: a wider time window is a mistake in the unit.
const WINDOW_MAX: Duration = DAY.saturating_mul(36_500);

/// 2001-01-01T00:00:00Z: clocks without a battery start in 1970, 1980 (GPS) or 2000, and count up
/// from there.
const UNSET_BEFORE_MS: i64 = 978_307_200_000;

/// Reads the whole tree. Problems are in the report afterwards.
pub(super) fn read(entries: Entries, report: &mut Report) -> Config {
    let mut root = Section::new(String::new(), entries, report);
    let formats;
    let config = Config {
        ingest: ingest(root.section("ingest")),
        quota: quota(root.section("quota")),
        jwt: jwt::read(root.section("jwt")),
        certificates: certificates::read(root.section("certificates")),
        http: http(root.section("http")),
        admin: admin(root.section("admin")),
        promql: promql(root.section("promql")),
        store: store(root.section("store")),
        bucket: bucket(root.section("bucket")),
        flush: flush(root.section("flush")),
        accumulate: accumulate(root.section("accumulate")),
        journal: journal(root.section("journal")),
        latest: latest(root.section("latest")),
        rollup: rollup(root.section("rollup")),
        sensors: sensors(root.section("sensors")),
        enrich: enrich(root.section("enrich")),
        limits: limits(root.section("limits")),
        line: formats::line(root.section("line")),
        native: formats::native(root.section("native")),
        scalar: formats::scalar(root.section("scalar")),
        otlp: formats::otlp(root.section("otlp")),
        remote_write: formats::remote_write(root.section("remote_write")),
        dead_letters: dead_letters(root.section("dead_letters")),
        shutdown: shutdown(root.section("shutdown")),
        audit: audit(root.section("audit")),
        log: log(root.section("log")),
        // A subscription names one of the formats, so they are read first.
        formats: {
            formats = mapping::read(&mut root);
            formats.clone()
        },
        mqtt: mqtt::read(&mut root, &formats),
        listen: listen::read(root.section("listen"), &formats),
    };
    root.end();
    config
}

fn ingest(mut s: Section<'_>) -> Ingest {
    let ingest = Ingest {
        ack: s.choice(
            "ack",
            AckMode::Journal,
            &[("journal", AckMode::Journal), ("stored", AckMode::Stored)],
        ),
        queue_max: s.count("queue_max", 1024, 1..=1_000_000),
        // Admission counts its bytes in 32 bit.
        queue_max_bytes: s.size("queue_max_bytes", 64 * MIB, MIB..=2 * GIB),
        sender_tag: s.tag_name("sender_tag").map(Arc::from),
    };
    s.end();
    ingest
}

fn quota(mut s: Section<'_>) -> Quota {
    const MOST: u64 = 1_000_000_000_000;
    let limit = |n: u64| (n > 0).then_some(n);
    let quota = Quota {
        readings_per_second: limit(s.count("readings_per_second", 0, 0..=MOST)),
        bytes_per_second: limit(s.size("bytes_per_second", 0, 0..=MOST)),
        burst: s.duration("burst", 10 * SECOND, SECOND..=HOUR),
        connections_max: Some(s.count("connections_max", 0, 0..=1_000_000)).filter(|n| *n > 0),
        requests_max: Some(s.count("requests_max", 64, 0..=65_536)).filter(|n| *n > 0),
        journal_share_percent: s.count("journal_share_percent", 25, 1..=100),
    };
    s.end();
    quota
}

fn http(mut s: Section<'_>) -> Http {
    let http = Http {
        enabled: s.flag("enabled", true),
        listen: s.address("listen", SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))),
        tokens_file: s.file("tokens_file"),
        allow_anonymous: s.flag("allow_anonymous", false),
        body_max_bytes: s.size("body_max_bytes", 8 * MIB, KIB..=512 * MIB),
        bodies_max_bytes: s.size("bodies_max_bytes", 128 * MIB, MIB..=64 * GIB),
        connections: connections(&mut s, 8192),
        proxies: http_proxies(&mut s),
        times: http_times(&mut s),
        body_timeout: s.duration("body_timeout", 30 * SECOND, MS..=HOUR),
        body_grace: s.duration("body_grace", 10 * SECOND, MS..=HOUR),
        body_rate_min: s.size("body_rate_min", 256, 0..=MIB),
        concurrency_max: s.count("concurrency_max", 256, 1..=65_536),
        queue_timeout: s.duration("queue_timeout", SECOND, MS..=10 * MINUTE),
        ack_timeout: s.duration("ack_timeout", MINUTE, MS..=HOUR),
        tls: tls::read(s.section("tls")),
    };
    s.end();
    http
}

fn admin(mut s: Section<'_>) -> Admin {
    let admin = Admin {
        listen: s.address("listen", SocketAddr::from((Ipv4Addr::LOCALHOST, 8081))),
        connections: connections(&mut s, 256),
        proxies: http_proxies(&mut s),
        times: http_times(&mut s),
        queries_max: s.count("queries_max", 8, 1..=1000),
        answers_max: s.count("answers_max", 64, 1..=10_000),
        tls: tls::read(s.section("tls")),
    };
    s.end();
    admin
}

fn promql(mut s: Section<'_>) -> Promql {
    let promql = Promql {
        lookback: s.duration("lookback", 5 * MINUTE, MS..=8760 * HOUR),
        timeout: s.duration("timeout", 30 * SECOND, MS..=HOUR),
        queries_max: s.count("queries_max", 4, 1..=1000),
        series_max: s.count("series_max", 200_000, 1..=100_000_000),
        samples_max: s.count("samples_max", 10_000_000, 1000..=10_000_000_000),
        slow: s.duration("slow", 10 * SECOND, MS..=HOUR),
    };
    s.end();
    promql
}

fn store(mut s: Section<'_>) -> Store {
    let modes = [
        ("bucket", StoreMode::Bucket),
        ("timeseries", StoreMode::Timeseries),
        ("auto", StoreMode::Auto),
    ];
    let store = Store {
        uri: store_uri(&mut s),
        database: s
            .parse("database", database)
            .unwrap_or_else(|| "hourbucket".to_owned()),
        mode: s.choice("mode", StoreMode::Auto, &modes),
        retention: s.duration_opt("retention", MINUTE..=RETENTION_MAX),
        retention_readings: s.duration_opt("retention_readings", MINUTE..=RETENTION_MAX),
        write_concern: s
            .parse("write_concern", write_concern)
            .unwrap_or_else(|| "majority".to_owned()),
        timeout: s.duration("timeout", 10 * SECOND, 10 * MS..=HOUR),
        connect_timeout: s.duration("connect_timeout", 5 * SECOND, 10 * MS..=10 * MINUTE),
        pool_max: s.count("pool_max", 16, 1..=1000),
        tags_index: s.flag("tags_index", false),
    };
    s.end();
    store
}

fn store_uri(s: &mut Section<'_>) -> Secret {
    let uri = s
        .secret("uri")
        .unwrap_or_else(|| Secret::new("mongodb://127.0.0.1:27017/?replicaSet=rs0".to_owned()));
    if let Err(what) = uri::check_store(uri.reveal()) {
        let key = s.key("uri");
        s.report.bad(
            &key,
            Bad::new(
                what,
                "write mongodb://[user:password@]host[:port][,…]/[?options]",
            ),
        );
    }
    uri
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

fn bucket(mut s: Section<'_>) -> Bucket {
    let bucket = Bucket {
        span: s.parse("span", span).unwrap_or(Span::HOUR),
        max_readings: s.count("max_readings", 1000, 1..=10_000),
        max_bytes: s.size("max_bytes", MIB, KIB..=PAGE_MAX_BYTES),
    };
    s.end();
    bucket
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

fn flush(mut s: Section<'_>) -> Flush {
    let flush = Flush {
        max_age: s.duration("max_age", 15 * SECOND, MS..=DAY),
        max_age_busy: s.duration("max_age_busy", 6 * MINUTE, MS..=DAY),
        linger: s.duration("linger", 5 * MS, Duration::ZERO..=MINUTE),
        commands_max: s.count("commands_max", 4, 1..=256),
        command_max_bytes: s.size("command_max_bytes", 12 * MIB, 64 * KIB..=COMMAND_MAX_BYTES),
        command_max_statements: s.count("command_max_statements", 5000, 1..=5000),
        backoff_min: s.duration("backoff_min", 50 * MS, MS..=10 * MINUTE),
        backoff_max: s.duration("backoff_max", 5 * SECOND, MS..=HOUR),
        quarantine_after: s.duration("quarantine_after", 600 * SECOND, SECOND..=24 * HOUR),
    };
    s.end();
    flush
}

fn accumulate(mut s: Section<'_>) -> Accumulate {
    let accumulate = Accumulate {
        shards: s.count("shards", 0, 0..=1024),
        max_bytes: s.size("max_bytes", 512 * MIB, MIB..=1024 * GIB),
        max_sensors: s.count("max_sensors", 2_000_000, 1..=100_000_000),
    };
    s.end();
    accumulate
}

fn journal(mut s: Section<'_>) -> Journal {
    let journal = Journal {
        dir: s
            .text("dir")
            .map_or_else(|| PathBuf::from("journal"), PathBuf::from),
        max_bytes: s.size("max_bytes", 16 * GIB, 128 * KIB..=1024 * 1024 * GIB),
        segment_bytes: s.size("segment_bytes", 64 * MIB, 64 * KIB..=4 * GIB),
        commit_delay: s.duration("commit_delay", 2 * MS, Duration::ZERO..=100 * MS),
    };
    s.end();
    journal
}

fn latest(mut s: Section<'_>) -> Latest {
    let latest = Latest {
        enabled: s.flag("enabled", false),
        interval: s.duration("interval", 10 * SECOND, 100 * MS..=HOUR),
        recent: s.count("recent", 10, 0..=100),
        max_bytes: s.size("max_bytes", 128 * MIB, MIB..=1024 * GIB),
    };
    s.end();
    latest
}

fn rollup(mut s: Section<'_>) -> Rollup {
    let rollup = Rollup {
        days: s.flag("days", false),
        zone: s.parse("zone", mapping::zone).unwrap_or(Tz::UTC),
        retention: s.duration_opt("retention", DAY..=RETENTION_MAX),
        settle: s.duration("settle", 10 * MINUTE, Duration::from_millis(100)..=6 * HOUR),
        late: s.duration("late", MINUTE, Duration::from_millis(100)..=HOUR),
        max_bytes: s.size("max_bytes", 256 * MIB, MIB..=1024 * GIB),
    };
    s.end();
    rollup
}

fn sensors(mut s: Section<'_>) -> Sensors {
    let sensors = Sensors {
        silent_after: s.duration("silent_after", DAY, 4 * SECOND..=366 * DAY),
        retired_after: s.duration("retired_after", 30 * DAY, 10 * SECOND..=36_500 * DAY),
    };
    s.end();
    sensors
}

fn enrich(mut s: Section<'_>) -> Enrich {
    let enrich = Enrich {
        collection: s.parse("collection", collection),
        id_field: s
            .parse("id_field", |node| path(node.text(), node))
            .unwrap_or_else(|| "_id".to_owned()),
        fields: s.parse("fields", paths).unwrap_or_default(),
        interval: s.duration("interval", MINUTE, 100 * MS..=DAY),
        max_sensors: s.count("max_sensors", 1_000_000, 1..=100_000_000),
    };
    s.end();
    enrich
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
fn path(text: Option<&str>, node: &Node) -> Result<String, Bad> {
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
        .map(|text| path(Some(text), node))
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

fn limits(mut s: Section<'_>) -> Limits {
    let limits = Limits {
        past: s.duration("past", 365 * DAY, MINUTE..=WINDOW_MAX),
        future: s.duration("future", 10 * MINUTE, Duration::ZERO..=WINDOW_MAX),
        import_past: s.duration("import_past", 7300 * DAY, MINUTE..=WINDOW_MAX),
        unset_before_ms: s.parse("unset_before", date).unwrap_or(UNSET_BEFORE_MS),
        unset_over_http_refused: s.choice(
            "unset_over_http",
            true,
            &[("reject", true), ("receive", false)],
        ),
        zone: s.parse("zone", mapping::zone),
        fields_max: s.count("fields_max", 64, 1..=255),
        bucket_fields_max: s.count("bucket_fields_max", 1024, 1..=1_000_000),
        name_max_bytes: s.count("name_max_bytes", 128, 1..=255),
        sensor_id_max_bytes: s.count("sensor_id_max_bytes", 256, 1..=1024),
        string_max_bytes: s.count("string_max_bytes", 1024, 1..=16_384),
        tags_max: s.count("tags_max", 32, 0..=64),
        batch_max_readings: s.count("batch_max_readings", 100_000, 1..=10_000_000),
    };
    s.end();
    limits
}

/// The start of a day, in milliseconds since 1970.
fn date(node: &Node) -> Result<i64, Bad> {
    let advice = "write a date in quotes such as \"2001-01-01\"; \"0001-01-01\" accepts every time \
        unchanged";
    let text = node.text().ok_or_else(|| wrong(node, advice))?;
    let date =
        chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d").map_err(|_| wrong(node, advice))?;
    Ok(i64::from(date.to_epoch_days()) * DAY_MS)
}

fn dead_letters(mut s: Section<'_>) -> DeadLetters {
    let dead_letters = DeadLetters {
        retention: s.duration("retention", 30 * DAY, MINUTE..=RETENTION_MAX),
        max_bytes: s.size("max_bytes", GIB, 16 * MIB..=1024 * 1024 * GIB),
    };
    s.end();
    dead_letters
}

fn shutdown(mut s: Section<'_>) -> Shutdown {
    let shutdown = Shutdown {
        deadline: s.duration("deadline", 30 * SECOND, 100 * MS..=HOUR),
    };
    s.end();
    shutdown
}

fn audit(mut s: Section<'_>) -> Audit {
    let audit = Audit {
        file: s.text("file").map(PathBuf::from),
        lines_per_second: s.count("lines_per_second", 20, 1..=100_000),
    };
    s.end();
    audit
}

fn log(mut s: Section<'_>) -> Log {
    let log = Log {
        level: s.parse("level", level).unwrap_or_else(|| "info".to_owned()),
        format: s.choice(
            "format",
            LogFormat::Text,
            &[("text", LogFormat::Text), ("json", LogFormat::Json)],
        ),
    };
    s.end();
    log
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
