//! Without tokens, only programs and pages of this machine may write, not the pages of other sites
//! in its browsers.

use super::readings::tokens_file;
use super::rig::{Request, Rig, post};
use crate::http::routes::{WRITE_V1, WRITE_V2, WRITE_V3};

const S1: &str = r#"{"sensor_id":"S1","ts":"2024-03-01T10:00:00Z","temp":22.5}"#;

/// Header fields of a request.
type Fields = &'static [(&'static str, &'static str)];

/// What a page of another site makes a browser send, and what reaches this port under another name
/// (DNS rebinding).
const FOREIGN_PAGES: [Fields; 7] = [
    &[("sec-fetch-site", "cross-site")],
    &[
        ("sec-fetch-site", "same-site"),
        ("origin", "http://localhost:3000"),
    ],
    &[("origin", "https://evil.example")],
    &[("origin", "http://localhost:3000")],
    &[("origin", "null")],
    &[
        ("origin", "http://evil.example"),
        ("sec-fetch-site", "same-origin"),
    ],
    &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
];
const FOREIGN_HOSTS: [Fields; 6] = [
    &[("host", "evil.example")],
    &[
        ("host", "evil.example:8080"),
        ("origin", "http://evil.example:8080"),
        ("sec-fetch-site", "same-origin"),
    ],
    &[("host", "localhost:1@evil.example")],
    &[("host", "localhost.evil.example")],
    &[("host", "")],
    &[("host", "localhost"), ("host", "evil.example")],
];
const OWN: [Fields; 8] = [
    &[],
    &[("host", "localhost:8080")],
    &[("host", "LOCALHOST")],
    &[("host", "10.0.0.1:8080")],
    &[("host", "[::1]:8080")],
    &[("sec-fetch-site", "none")],
    &[("origin", "http://localhost")],
    &[
        ("host", "127.0.0.1:8080"),
        ("origin", "http://127.0.0.1:8080"),
        ("sec-fetch-site", "same-origin"),
    ],
];

fn with(request: Request, fields: &[(&'static str, &'static str)]) -> Request {
    fields.iter().fold(request, |request, (name, value)| {
        request.header(name, *value)
    })
}

/// One request to each kind of route.
fn writes() -> Vec<Request> {
    let line = |target: &str| {
        post("a v=1")
            .to(target)
            .header("content-type", "text/plain")
    };
    let otlp = post("{}")
        .to("/v1/metrics")
        .header("content-type", "application/json");
    let hook = post(S1).to("/v1/hooks/json");
    let shelly = post("").method("GET").to("/v1/hooks/json?temp=1&id=S1");
    let thingsboard = post("{\"t\":1}").to("/api/v1/d1/telemetry");
    vec![
        post(S1),
        line(WRITE_V1),
        line(WRITE_V2),
        line(WRITE_V3),
        otlp,
        hook,
        shelly,
        thingsboard,
    ]
}

#[tokio::test]
async fn without_tokens_a_page_of_another_site_writes_nothing() {
    let mut rig = Rig::new(|_| {}).await;
    for fields in FOREIGN_PAGES.into_iter().chain(FOREIGN_HOSTS) {
        for request in writes() {
            let answer = with(request, fields).send(rig.addr).await;
            assert_eq!(answer.status, 403, "{fields:?}: {}", answer.text);
            assert!(answer.text.contains("http.tokens_file"), "{}", answer.text);
            assert!(!answer.text.contains("evil"), "{}", answer.text);
        }
        assert_eq!(
            with(post(S1), fields).send(rig.addr).await.reason(),
            "foreign_origin",
            "{fields:?}"
        );
        let other = with(post("").method("GET").to("/nothing"), fields)
            .send(rig.addr)
            .await;
        assert_eq!(other.status, 403, "on every path: {fields:?}");
    }
    rig.nothing_came();
    for fields in OWN {
        assert_eq!(
            rig.delivered(with(post(S1), fields)).await.0.status,
            200,
            "{fields:?}"
        );
    }
}

#[tokio::test]
async fn each_client_reads_why_it_was_refused_in_its_own_form() {
    let rig = Rig::new(|_| {}).await;
    for (target, key) in [
        (WRITE_V1, "error"),
        (WRITE_V2, "message"),
        (WRITE_V3, "error"),
    ] {
        let answer = post("a v=1")
            .to(target)
            .header("host", "host.docker.internal:8080")
            .send(rig.addr)
            .await;
        let text = answer.json()[key].as_str().unwrap_or_default().to_owned();
        assert!(
            answer.status == 403 && text.contains("http.allow_anonymous"),
            "{target}: {}",
            answer.text
        );
    }
}

/// As OTLP/HTTP wants it: a `google.rpc.Status` in the encoding of the request, with
/// PERMISSION_DENIED.
#[tokio::test]
async fn an_exporter_reads_why_it_was_refused_in_its_own_encoding() {
    let rig = Rig::new(|_| {}).await;
    let ask = |content_type: &'static str| {
        let request = post("x")
            .to("/v1/metrics")
            .header("content-type", content_type);
        request.header("host", "evil.example")
    };
    let answer = ask("application/json").send(rig.addr).await;
    assert_eq!(
        (answer.status, answer.json()["code"].as_i64()),
        (403, Some(7)),
        "{}",
        answer.text
    );
    assert!(
        answer.json()["message"]
            .as_str()
            .unwrap()
            .contains("http.tokens_file"),
        "{}",
        answer.text
    );
    let answer = ask("application/x-protobuf").send(rig.addr).await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (403, Some("application/x-protobuf"))
    );
    // Field 1, a varint: the code; field 2: the message.
    assert_eq!(&answer.body[..3], b"\x08\x07\x12");
}

#[tokio::test]
async fn a_port_open_to_all_is_reached_by_any_name_but_not_from_the_pages_of_others() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let mut rig = Rig::new(|cfg| (cfg.listen, cfg.allow_anonymous) = (everywhere, true)).await;
    rig.addr = std::net::SocketAddr::from(([127, 0, 0, 1], rig.addr.port()));
    for fields in FOREIGN_PAGES {
        let answer = with(post(S1).header("host", "localhost"), fields)
            .send(rig.addr)
            .await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (403, "foreign_origin"),
            "{fields:?}"
        );
    }
    rig.nothing_came();
    for fields in OWN.into_iter().chain([FOREIGN_HOSTS[0], FOREIGN_HOSTS[1]]) {
        assert_eq!(
            rig.delivered(with(post(S1), fields)).await.0.status,
            200,
            "{fields:?}"
        );
    }
}

/// A page shows `<img src="http://192.0.2.1:8080/v1/hooks/json?temp=1">`; without TLS the browser
/// adds no mark.
#[tokio::test]
async fn an_image_in_a_page_stores_nothing() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let mut rig = Rig::new(|cfg| (cfg.listen, cfg.allow_anonymous) = (everywhere, true)).await;
    rig.addr = std::net::SocketAddr::from(([127, 0, 0, 1], rig.addr.port()));
    let get = || {
        post("")
            .method("GET")
            .to("/v1/hooks/json?temp=1&sensor_id=S1")
    };
    let browser = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
        Chrome/140.0 Safari/537.36";
    let answer = get().header("user-agent", browser).send(rig.addr).await;
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (403, "foreign_origin"),
        "{}",
        answer.text
    );
    assert!(answer.text.contains("http.tokens_file"), "{}", answer.text);
    rig.nothing_came();
    for fields in [
        &[("user-agent", "Shelly/20230913-114008 (Shelly Plus H&T)")][..],
        &[],
        &[("user-agent", browser), ("sec-fetch-site", "none")],
    ] {
        assert_eq!(
            rig.delivered(with(get(), fields)).await.0.status,
            200,
            "{fields:?}"
        );
    }
}

#[tokio::test]
async fn with_tokens_the_token_alone_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(|cfg| cfg.tokens_file = Some(tokens_file(&dir))).await;
    for fields in FOREIGN_PAGES.into_iter().chain(FOREIGN_HOSTS) {
        let request = with(post(S1), fields);
        assert_eq!(
            request.clone().send(rig.addr).await.reason(),
            "no_token",
            "{fields:?}"
        );
        let (answer, _) = rig
            .delivered(request.header("authorization", "Bearer gw1.secret"))
            .await;
        assert_eq!(answer.status, 200, "{fields:?}");
    }
}
