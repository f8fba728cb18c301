//! The tables of the dependency rules: docs/design.md, section 5.

/// Which of our modules a module may name, apart from itself. `x(A|B)` allows names of `x` that end
/// in `A` or `B` only; `*` allows all. The longest entry that matches a file counts.
pub(crate) const MAY_NAME: &[(&str, &[&str])] = &[
    ("lib", &["*"]),
    ("main", &["*"]),
    // The commands: each wires what it needs.
    ("cli", &["*"]),
    ("app", &["*"]),
    ("model", &[]),
    // The language alone; its callers pass the data.
    ("promql", &[]),
    ("ack", &[]),
    ("commit_delay", &[]),
    ("priority", &[]),
    ("config", &["model"]),
    ("telemetry", &["config", "model"]),
    ("shutdown", &["admission", "telemetry", "config", "model"]),
    ("admission", &["ack", "model"]),
    ("systemd", &["config(Manager)"]),
    (
        "access",
        &[
            "model",
            "admission(JournalAccount)",
            "config(Quota|Jwt|JwtAlgorithm|Certificates|ClientIdentity|parse_duration|parse_size)",
        ],
    ),
    (
        "ingest",
        &[
            "access",
            "decode",
            "admission",
            "ack",
            "commit_delay",
            "model",
            "config",
            "telemetry",
        ],
    ),
    (
        "decode",
        &[
            "model",
            "config(Limits|Line|Native|Nested|Otlp|PointAttributes|RemoteWrite|ScalarFormat)",
        ],
    ),
    (
        "decode/context",
        &[
            "model",
            "config(Config|Decoding|Limits|Line|Native|ScalarFormat)",
        ],
    ),
    (
        "decode/decoder",
        &["model", "config(Decoding|Otlp|RemoteWrite|mapping|nearest)"],
    ),
    ("decode/mapping", &["model", "config(mapping)"]),
    (
        "journal",
        &[
            "model",
            "ack",
            "admission",
            "commit_delay",
            "config",
            "telemetry",
        ],
    ),
    // The router pulls: it follows the journal, and pushes to the shards and to the dead letters'
    // task.
    (
        "route",
        &[
            "model",
            "ack",
            "admission",
            "journal(EntryKind|Follower|Position|SecondReader)",
            "accumulate(ShardBatch|ShardHandle|ShardClosed)",
            "dead_letters(DeadLetters)",
            "config",
            "telemetry",
        ],
    ),
    // The requests and results of a store pass through flush unchanged.
    (
        "accumulate",
        &[
            "model",
            "ack",
            "flush",
            "dead_letters(DeadLetters)",
            "latest(LatestHandle)",
            "rollup(RollupHandle|state)",
            "enrich(Registry)",
            "store(LoadResult|LoadRequest|LoadedBucket|StoreError|PageWriteResult)",
            "config",
            "telemetry",
        ],
    ),
    ("flush", &["model", "ack", "store", "config", "telemetry"]),
    (
        "latest",
        &[
            "model",
            "ack",
            "flush",
            "store(LatestWriteResult|StoreError|StoreErrorKind)",
            "telemetry",
        ],
    ),
    (
        "rollup",
        &[
            "model",
            "ack",
            "flush",
            "store(StoreError|days)",
            "telemetry",
        ],
    ),
    (
        "enrich",
        &["model", "store(registry|StoreError)", "config", "telemetry"],
    ),
    (
        "store",
        &[
            "model",
            "maintain",
            "dead_letters(filter)",
            "config",
            "telemetry",
        ],
    ),
    ("maintain", &["model"]),
    // It reads every place where a reading can be, and changes none.
    (
        "read",
        &[
            "model",
            "promql",
            "maintain(StoredPage|hour)",
            "accumulate(QueryHandle|UnstoredBucket|query|state)",
            "journal(JournalHandle)",
            "route(shard_of)",
            "rollup(RollupView)",
            "store(Store|StoreError|LoadedBucket|LoadedPage|reading|catalog|days|retention|summaries)",
            "config",
            "telemetry",
        ],
    ),
    // Both ports are served by the same code, which lives with the larger one.
    (
        "admin",
        &[
            "access",
            "decode(protobuf)",
            "ingest(http|shares|tls|TlsStatus)",
            "priority",
            "read",
            "promql",
            "store(reading|Ability|Outcome|StoreError|StoreErrorKind)",
            "telemetry",
            "config",
            "model",
        ],
    ),
    // The store uses the filter, so this names nothing that names the store.
    ("dead_letters", &["model", "maintain(report)"]),
    (
        "dead_letters/writer",
        &[
            "model",
            "ack",
            "flush",
            "store(DeadLetterWritten|Evicted|StoreError|StoreErrorKind)",
            "telemetry",
        ],
    ),
    (
        "dead_letters/redecode",
        &[
            "model",
            "decode",
            "ingest(http|mqtt)",
            "config",
            "telemetry(metrics)",
        ],
    ),
    // A second instance for a command.
    (
        "dead_letters/replay",
        &[
            "app",
            "ingest(mqtt)",
            "admission",
            "ack",
            "maintain",
            "shutdown",
            "store",
            "config",
            "model",
        ],
    ),
];

/// Folders with layers, and their parts (folders or files) from the lowest. A part may name itself,
/// those before it, and the unlisted parts of the folder, which all of them share.
pub(crate) const LAYERS: &[(&str, &[&str])] = &[
    ("store/mongo", &["write", "read", "schema", "maintenance"]),
    ("dead_letters", &["filter", "writer", "redecode", "replay"]),
];

/// A path (or its end, if it starts with `::`), and the only places where it may be used.
pub(crate) struct Home {
    pub(crate) paths: &'static [&'static str],
    pub(crate) homes: &'static [&'static str],
    pub(crate) why: &'static str,
}

pub(crate) const HOMES: &[Home] = &[
    Home {
        paths: &["axum", "tower", "axum_server"],
        homes: &["src/ingest/http", "src/admin"],
        why: "HTTP stays in ingest/http and admin",
    },
    Home {
        paths: &["rumqttc", "rumqttc_v4", "rumqttc_v5"],
        homes: &["src/ingest/mqtt", "src/ingest/listen"],
        why: "MQTT stays in ingest/mqtt and ingest/listen",
    },
    Home {
        paths: &["tokio_rustls", "rustls", "rustls_native_certs"],
        homes: &["src/ingest/tls"],
        why: "certificates are read and TLS is set up in ingest/tls",
    },
    Home {
        paths: &["jsonwebtoken", "ring::signature", "rustls_pki_types"],
        homes: &["src/access/jwt"],
        why: "JWTs and their keys stay in access/jwt",
    },
    Home {
        paths: &["mongodb", "bson"],
        homes: &["src/store/mongo"],
        why: "the driver and BSON stay in store/mongo",
    },
    Home {
        paths: &["::counter!", "::gauge!", "::histogram!"],
        homes: &["src/telemetry/metrics.rs"],
        why: "every metric is a typed function of telemetry/metrics.rs",
    },
    Home {
        paths: &["std::env"],
        homes: &["src/config/"],
        why: "the environment is read in config (config::environment)",
    },
    Home {
        paths: &["::Utc::now", "::Local::now", "::SystemTime::now"],
        homes: &["src/model/clock.rs"],
        why: "the wall clock is read in model/clock.rs; take a Now instead",
    },
];

/// Files without async, IO and clock: a path that begins with one of these, without the exceptions.
pub(crate) const PURE: &[&str] = &[
    "src/model/",
    "src/decode/",
    "src/maintain/",
    "src/promql/",
    "src/admin/health/store",
    "src/admin/prometheus/remote_read/request",
    "src/admin/prometheus/remote_read/response",
    "src/dead_letters/filter",
    "src/dead_letters/redecode",
    "src/commit_delay",
    "src/accumulate/arrivals",
    "src/accumulate/state",
    "src/flush/age",
    "src/flush/due",
    "src/flush/pack",
    "src/flush/backoff",
    "src/latest/state",
    "src/rollup/state",
    "src/read/hours",
    "src/read/merge",
    "src/enrich/registry",
    "src/ingest/connections/address_limits",
    "src/ingest/packet_fields",
    "src/ingest/proxy/forwarded",
    "src/ingest/proxy/header",
    "src/ingest/shares",
    "src/ingest/listen/codec",
    "src/ingest/listen/exchanges",
    "src/ingest/listen/frames",
    "src/ingest/listen/inflight",
    "src/ingest/listen/strict",
    "src/ingest/mqtt/acks",
    "src/ingest/mqtt/collect",
    "src/ingest/mqtt/losses",
    "src/ingest/mqtt/observe",
    "src/ingest/mqtt/reason",
    "src/ingest/mqtt/retained",
    "src/ingest/mqtt/subscribe",
    "src/ingest/mqtt/websocket",
    "src/ingest/mqtt/window",
];
pub(crate) const NOT_PURE: &[&str] = &["src/model/clock.rs"];
pub(crate) const IMPURE_PATHS: &[&str] = &[
    "async",
    "::await",
    "tokio",
    "std::fs",
    "std::net",
    "::Instant::now",
];
