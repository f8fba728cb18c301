//! The read API with tokens: what each may read; and the answers while MongoDB does not answer.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use crate::support::http_client::agent;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use net::access::hash_secret;
use serde_json::{Value, json};

use super::read_api::prepared;

#[test]
fn tokens_protect_it_and_an_unreachable_store_is_reported_soon() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    std::fs::write(
        &tokens,
        format!(
            "[[tokens]]\nid = \"r\"\nsha256 = \"{}\"\n",
            hash_secret("secret")
        ),
    )
    .unwrap();
    let mut mongod = Mongod::start();
    let text = format!(
        "http.tokens_file = {:?}\nstore.connect_timeout = \"1s\"\n",
        tokens.display().to_string()
    );
    let uri = mongod.uri();
    let database = unique_database("read_tokens");
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    prepared(&service);
    let agent = agent();
    let ask = |path: &str, token: Option<&str>| -> (u16, Value) {
        let mut request = agent.get(format!("{}{path}", service.admin()));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut answer = request.call().unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (
            answer.status().as_u16(),
            serde_json::from_str(&text).unwrap_or(Value::Null),
        )
    };
    for path in [
        "/v1/sensors",
        "/v1/sensors/S/hourly",
        "/v1/sensors/S/readings",
        "/v1/fleet",
        "/v1/dead-letters",
    ] {
        for (token, reason) in [
            (None, "no_token"),
            (Some("r.wrong"), "invalid_token"),
            (Some("x"), "malformed_token"),
        ] {
            let (status, body) = ask(path, token);
            assert_eq!(
                (status, &body["error"]["reason"]),
                (401, &json!(reason)),
                "{path}"
            );
        }
        let (status, body) = ask(path, Some("r.secret"));
        match path.contains("/S/") {
            true => assert_eq!(
                (status, &body["error"]["reason"]),
                (404, &json!("unknown_sensor")),
                "{path}"
            ),
            false => assert_eq!(status, 200, "{path}"),
        }
    }
    for open in ["/metrics", "/livez", "/readyz", "/openapi.json"] {
        assert_eq!(ask(open, None).0, 200, "{open}");
    }
    mongod.kill9();
    for path in [
        "/v1/sensors",
        "/v1/sensors/S/hourly",
        "/v1/sensors/S/readings",
        "/v1/dead-letters",
    ] {
        let begun = Instant::now();
        let (status, body) = ask(path, Some("r.secret"));
        assert_eq!(status, 503, "{path}: {body}");
        assert!(
            ["store_away", "timed_out"].contains(&body["error"]["reason"].as_str().unwrap()),
            "{body}"
        );
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "{path} took {:?}",
            begun.elapsed()
        );
    }
    assert_eq!(
        ask("/v1/fleet", Some("r.secret")).0,
        200,
        "the fleet does not need the store"
    );
}

#[test]
fn a_token_reads_what_it_may_read() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    let token = |id: &str, rules: &str| {
        format!(
            "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n{rules}\n",
            hash_secret("secret")
        )
    };
    let all = [
        token("all", ""),
        token("a", "read = [\"{id}-*\"]"),
        token("none", "read = []"),
        token("mqtt", "via = [\"mqtt\"]"),
        token("old", "expires = 2020-01-01"),
        token("reader", "write = []"),
    ];
    std::fs::write(&tokens, all.concat()).unwrap();
    let text = format!("http.tokens_file = {:?}\n", tokens.display().to_string());
    let uri = Mongod::shared().uri();
    let database = unique_database("read_scopes");
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    prepared(&service);
    let agent = agent();
    let body = r#"[{"sensor_id":"a-1","v":1},{"sensor_id":"b-1","v":1}]"#;
    let url = format!("{}/v1/readings", service.http());
    let sent = agent
        .post(url)
        .header("authorization", "Bearer all.secret")
        .send(body)
        .unwrap();
    assert_eq!(sent.status(), 200);
    let ask = |path: &str, token: &str| -> (u16, Value) {
        let request = agent.get(format!("{}{path}", service.admin()));
        let mut answer = request
            .header("authorization", format!("Bearer {token}.secret"))
            .call()
            .unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (
            answer.status().as_u16(),
            serde_json::from_str(&text).unwrap_or(Value::Null),
        )
    };
    for (token, statuses) in [
        ("all", [200, 200, 200]),
        ("a", [200, 403, 403]),
        ("none", [403; 3]),
        ("mqtt", [403; 3]),
        ("old", [401; 3]),
    ] {
        for end in ["hourly", "readings"] {
            let status = |id: &str| ask(&format!("/v1/sensors/{id}/{end}"), token).0;
            assert_eq!(
                [status("a-1"), status("b-1")],
                statuses[..2],
                "{token} {end}"
            );
        }
        for path in ["/v1/fleet", "/v1/dead-letters"] {
            assert_eq!(ask(path, token).0, statuses[2], "{token} {path}");
        }
    }
    let sensors = |token: &str| {
        ask("/v1/sensors", token).1["sensors"]
            .as_array()
            .map(Vec::len)
    };
    assert_eq!(
        [
            sensors("all"),
            sensors("a"),
            sensors("none"),
            sensors("reader")
        ],
        [Some(2), Some(1), Some(0), Some(2)]
    );
    // A page that is full, or empty, does not name a sensor that may not be read.
    for (token, found) in [("a", 1), ("none", 0)] {
        let page = ask("/v1/sensors?limit=1", token).1;
        assert_eq!(
            (page["sensors"].as_array().map(Vec::len), &page["next"]),
            (Some(found), &Value::Null),
            "{token}"
        );
    }
    assert_eq!(
        ask("/v1/sensors/b-1/hourly", "a").1["error"]["reason"],
        json!("not_allowed")
    );
}
