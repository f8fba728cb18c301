//! Made-up files: each rule can fail, and correct code is accepted.

use crate::checks::check;

/// The violations of a made-up file.
fn broken(path: &str, body: &str) -> Vec<String> {
    check(path, &format!("//! Made up.\n{body}\n"), false)
}

/// Each file breaks one rule, the named one.
fn assert_broken(cases: &[(&str, &str, &str)]) {
    for &(path, body, rule) in cases {
        let found = broken(path, body);
        assert_eq!(found.len(), 1, "{path} {}: {found:#?}", body.trim());
        assert!(
            found[0].contains(rule) && found[0].starts_with(&format!("{path}:")),
            "{path}: {found:?}"
        );
    }
}

#[test]
fn a_name_of_a_higher_layer_is_found() {
    assert_broken(&[
        (
            "src/store/mongo/write/fence.rs",
            "use crate::store::mongo::read::load;",
            "`read` is above",
        ),
        (
            "src/store/mongo/bson.rs",
            "use super::schema::detect;",
            "`schema` is above",
        ),
        (
            "src/store/src/mongo/read/load.rs",
            "use crate::mongo::maintenance::X;",
            "`maintenance` is above",
        ),
        (
            "src/store/src/mongo/read/load.rs",
            "use super::super::schema::X;",
            "`schema` is above",
        ),
    ]);
}

#[test]
fn a_library_the_environment_and_the_clock_outside_their_place_are_found() {
    assert_broken(&[
        ("src/app.rs", "use axum::Router;", "HTTP stays"),
        ("src/flush/mod.rs", "use tower::Service;", "HTTP stays"),
        (
            "src/ingest/mqtt/mod.rs",
            "use hyper_util::rt::TokioIo;",
            "HTTP stays",
        ),
        (
            "src/ingest/http/mod.rs",
            "use rumqttc_v4::Client;",
            "MQTT stays",
        ),
        ("src/app.rs", "fn f() { rumqttc_v5::x(); }", "MQTT stays"),
        (
            "src/ingest/mqtt/v5.rs",
            "use tokio_rustls::TlsConnector;",
            "net/tls",
        ),
        ("src/store/mod.rs", "use mongodb::bson::Bson;", "BSON stay"),
        ("src/config/uri.rs", "use mongodb::Client;", "BSON stay"),
        (
            "src/journal/writer.rs",
            "fn f() { counter!(\"x\"); }",
            "typed function",
        ),
        (
            "src/journal/writer.rs",
            "fn f() { metrics::histogram!(\"x\"); }",
            "typed function",
        ),
        (
            "src/app.rs",
            "use std::{env, fmt};",
            "environment is read in config",
        ),
        (
            "src/main.rs",
            "fn f() { std::env::var(\"X\"); }",
            "environment is read in config",
        ),
        ("src/app.rs", "fn f() { chrono::Utc::now(); }", "wall clock"),
        (
            "src/journal/writer.rs",
            "fn f() { SystemTime::now(); }",
            "wall clock",
        ),
    ]);
}

#[test]
fn async_and_io_in_a_pure_file_are_found() {
    assert_broken(&[
        ("src/model/hour.rs", "async fn f() {}", "pure file"),
        ("src/dead_letters/filter.rs", "async fn f() {}", "pure file"),
        ("src/ingest/redecode.rs", "use tokio::time;", "pure file"),
        ("src/decode/json.rs", "fn f() { g().await; }", "pure file"),
        ("src/decode/json.rs", "use tokio::sync::mpsc;", "pure file"),
        (
            "src/accumulate/state.rs",
            "use std::{fs, fmt};",
            "pure file",
        ),
        (
            "src/accumulate/state_load.rs",
            "use std::net::IpAddr;",
            "pure file",
        ),
        (
            "src/flush/due.rs",
            "fn f() { Instant::now(); }",
            "pure file",
        ),
        (
            "src/pipeline/src/flush/due.rs",
            "use tokio::time;",
            "pure file",
        ),
        ("src/model/src/hour.rs", "use tokio::time;", "pure file"),
        (
            "src/flush/backoff.rs",
            "fn f() { std::time::Instant::now(); }",
            "pure file",
        ),
        ("src/ingest/mqtt/acks.rs", "use std::fs;", "pure file"),
    ]);
}

#[test]
fn a_file_of_the_wrong_form_is_found() {
    assert_broken(&[
        (
            "src/app.rs",
            "fn f() -> Result<(), String> {}",
            "not a `String`",
        ),
        (
            "src/cli/run.rs",
            "fn f() -> Result<fn() -> Vec<(u8, String)>,\n std::string::String> {}",
            "not a `String`",
        ),
        (
            "src/app.rs",
            "fn f() {\n    let (a, mut b) = (1, g(2));\n}",
            "one `let` per line",
        ),
    ]);
    let bare = check("src/app.rs", "// no inner comment\n", false);
    assert!(bare[0].contains("opens with `//!`"), "{bare:?}");
    assert_eq!(
        broken("src/app.rs", "\nuse std::env;")[0].split(':').nth(1),
        Some("3"),
        "the line is reported"
    );
}

#[test]
fn correct_code_is_accepted() {
    for (path, body) in [
        (
            "src/model/hour.rs",
            "use crate::model::Now; use super::ids::X; use std::fmt;",
        ),
        (
            "src/model/clock.rs",
            "fn f() { chrono::Utc::now(); tokio::time::Instant::now(); }",
        ),
        (
            "src/decode/json.rs",
            "use crate::config::Limits; use crate::model::X;",
        ),
        (
            "src/cli/decode.rs",
            "use std::io::Write; use crate::config::Config;",
        ),
        (
            "src/journal/writer.rs",
            "use crate::admission::Parcels; use tokio::fs; use std::fs::File;",
        ),
        (
            "src/journal/writer.rs",
            "use crate::telemetry::metrics; fn f() { metrics::received(1); }",
        ),
        (
            "src/flush/retry.rs",
            "use crate::store::Store; use tokio::time::Instant;",
        ),
        (
            "src/flush/retry.rs",
            "fn f() {\n    let (a, b): (u8, u8) = (1, 2);\n    let (a, b) = swap(a, b);\n}",
        ),
        (
            "src/ingest/http/mod.rs",
            "use axum::Router; use tower::Service;",
        ),
        ("src/ingest/mqtt/v5.rs", "use rumqttc_v5::Client;"),
        ("src/ingest/src/mqtt/v5.rs", "use rumqttc_v5::Client;"),
        ("src/net/src/access/jwt/keys.rs", "use jsonwebtoken::X;"),
        ("src/model/src/clock.rs", "fn f() { chrono::Utc::now(); }"),
        (
            "src/store/mongo/error.rs",
            "use mongodb::bson; use crate::store::Store;",
        ),
        ("src/config/load.rs", "fn f() { std::env::vars_os(); }"),
        (
            "src/app.rs",
            "fn f(a: Result<String, io::Error>) -> Result<Vec<Option<String>>, E<String>> {}",
        ),
        (
            "src/app.rs",
            "#[cfg(test)]\nmod tests { fn f() -> Result<(), String> {} }",
        ),
        (
            "src/app.rs",
            "use crate::{store, ingest, flush::X}; const V: &str = env!(\"CARGO_PKG_VERSION\");",
        ),
        (
            "src/model/hour.rs",
            "// use tokio::x;\n/* async /* std::fs */ */\n\
             const A: &str = \"tokio::x\"; // crate::store::X",
        ),
        (
            "src/model/hour.rs",
            "const A: &str = r#\"async \" std::fs\"#; fn f<'a>(c: &'a str) { c == '\"'; '\\''; }",
        ),
        (
            "src/model/hour.rs",
            "fn f() {}\n#[cfg(test)]\nmod tests { use tokio::x; fn f() { { async {} } } }\n\
             fn g() {}",
        ),
    ] {
        let found = broken(path, body);
        assert!(found.is_empty(), "{body}: {found:#?}");
    }
    let after = broken(
        "src/model/hour.rs",
        "#[cfg(test)]\nmod tests { fn f() { '}'; \"}\"; } }\nuse std::fs;",
    );
    assert_eq!(
        after.len(),
        1,
        "what follows a test module counts again: {after:?}"
    );
}
