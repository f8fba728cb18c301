//! The tables of the rules for the source: docs/design.md, section 5. A place is a folder or file of
//! a crate, or the beginning of its name: `store/mongo` is all of src/store/src/mongo.

/// The parts of `store/mongo` (folders) from the lowest. A part may name itself, those before it,
/// and the unlisted parts, which all of them share.
pub(crate) const LAYERS: &[&str] = &["write", "read", "schema", "maintenance"];

/// A path (or its end, if it starts with `::`), and the only places where it may be used.
pub(crate) struct Home {
    pub(crate) paths: &'static [&'static str],
    pub(crate) homes: &'static [&'static str],
    pub(crate) why: &'static str,
}

pub(crate) const HOMES: &[Home] = &[
    Home {
        paths: &["axum", "tower", "hyper", "hyper_util"],
        homes: &["net/http", "ingest/http", "admin"],
        why: "HTTP stays in net/http, ingest/http and admin",
    },
    Home {
        paths: &["rumqttc", "rumqttc_v4", "rumqttc_v5"],
        homes: &["ingest/mqtt", "ingest/listen"],
        why: "MQTT stays in ingest/mqtt and ingest/listen",
    },
    Home {
        paths: &["tokio_rustls", "rustls", "rustls_native_certs"],
        homes: &["net/tls", "ingest/tls"],
        why: "certificates are read and TLS is set up in net/tls",
    },
    Home {
        paths: &["jsonwebtoken", "ring::signature", "rustls_pki_types"],
        homes: &["access/jwt"],
        why: "JWTs and their keys stay in access/jwt",
    },
    Home {
        paths: &["mongodb", "bson"],
        homes: &["store/mongo"],
        why: "the driver and BSON stay in store/mongo",
    },
    Home {
        paths: &["pco"],
        homes: &["columns/numbers.rs", "columns/lib.rs"],
        why: "pco stays in columns/numbers.rs; its error is part of that of columns",
    },
    Home {
        paths: &["::counter!", "::gauge!", "::histogram!"],
        homes: &["telemetry/catalog.rs"],
        why: "every metric is a typed function, declared in telemetry/metrics.rs",
    },
    Home {
        paths: &["std::env"],
        homes: &["config/"],
        why: "the environment is read in config (config::environment)",
    },
    Home {
        paths: &["::Utc::now", "::Local::now", "::SystemTime::now"],
        homes: &["model/clock.rs"],
        why: "the wall clock is read in model/clock.rs; take a Now instead",
    },
];

/// Places without async, IO and clock, apart from the exceptions.
pub(crate) const PURE: &[&str] = &[
    "model/",
    "columns/",
    "decode/",
    "maintain/",
    "promql/",
    "admin/health/store",
    "admin/prometheus/remote_read/request",
    "admin/prometheus/remote_read/response",
    "ingest/redecode",
    "dead_letters/filter",
    "store/dead_letter_filter",
    "commit_delay",
    "accumulate/arrivals",
    "accumulate/state",
    "forward/answer",
    "forward/equal",
    "forward/lane",
    "flush/age",
    "flush/due",
    "flush/backoff",
    "latest/state",
    "rollup/state",
    "read/hours",
    "read/merge",
    "query/lanes",
    "query/cost",
    "enrich/registry",
    "connections/address_limits",
    "ingest/packet_fields",
    "proxy/forwarded",
    "proxy/header",
    "shares.rs",
    "ingest/listen/codec",
    "ingest/listen/exchanges",
    "ingest/listen/frames",
    "ingest/listen/inflight",
    "ingest/listen/strict",
    "ingest/mqtt/acks",
    "ingest/mqtt/collect",
    "ingest/mqtt/losses",
    "ingest/mqtt/observe",
    "ingest/mqtt/reason",
    "ingest/mqtt/retained",
    "ingest/mqtt/subscribe",
    "ingest/mqtt/websocket",
    "ingest/mqtt/window",
];
pub(crate) const NOT_PURE: &[&str] = &["model/ack.rs", "model/clock.rs"];
pub(crate) const IMPURE_PATHS: &[&str] = &[
    "async",
    "::await",
    "tokio",
    "std::fs",
    "std::net",
    "::Instant::now",
];
