//! JWTs of keys that openssl makes, over HTTP, for reading and as password of mosquitto_pub: inside
//! and outside their scope, forged, expired, and after their key was removed.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::support::in_process::{InProcess, ask};
use crate::support::openssl::JwtKey;
use crate::support::raw_mqtt::{Raw, connect, disconnect_reason};
use hourbucket::app::Reloaded;
use net::access::hash_secret;

fn now_s() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// Good claims of `gw1`, with changes; null removes one.
fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "iss": "https://idp.example", "aud": ["hourbucket"], "sub": "gw1", "exp": now_s() + 600,
        "write": ["{id}-*"], "read": ["{id}-*"],
    });
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

/// A service that accepts JWTs of the keys in `keys.pem`.
async fn start(dir: &Path, more: &str) -> InProcess {
    crate::install_metrics();
    let jwt = format!(
        "[jwt]\nkeys_file = \"{}/keys.pem\"\nissuer = \"https://idp.example\"\n\
         audience = [\"hourbucket\"]\n\
         leeway = \"0s\"\n{more}",
        dir.display()
    );
    InProcess::start(dir, "", "", &jwt).await
}

fn reading(sensor: &str) -> String {
    json!({"sensor_id": sensor, "ts": now_s(), "n": fastrand::u32(..)}).to_string()
}

/// `mosquitto_pub` to `sensors/SENSOR/n` with this password.
async fn publish(rig: &InProcess, version: &str, sensor: &str, password: &str) -> Output {
    let port = rig.mqtt.port().to_string();
    let topic = format!("sensors/{sensor}/n");
    let arguments = [
        "-p", &port, "-V", version, "-q", "1", "-t", &topic, "-m", "7", "-u", "any", "-P", password,
    ];
    let mut command = Command::new("mosquitto_pub");
    command.args(arguments);
    let ran = tokio::task::spawn_blocking(move || command.output());
    ran.await
        .unwrap()
        .expect("mosquitto_pub is in the package mosquitto-clients")
}

#[tokio::test(flavor = "multi_thread")]
async fn jwts_of_every_kind_of_key_write_and_read_within_their_scope() {
    let dir = tempfile::tempdir().unwrap();
    let keys = ["RS256", "ES256", "EdDSA"].map(|alg| JwtKey::new(dir.path(), alg, alg));
    std::fs::write(
        dir.path().join("keys.pem"),
        keys.each_ref().map(JwtKey::public_pem).concat(),
    )
    .unwrap();
    let rig = start(dir.path(), "").await;
    let mut expected = vec![];
    for (n, key) in keys.iter().enumerate() {
        let jwt = key.issue(&claims(&json!({})));
        let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("anyone:{jwt}")));
        for (m, authorization) in [format!("Bearer {jwt}"), basic].iter().enumerate() {
            let own = format!("gw1-{n}{m}");
            let (status, body) = ask(
                rig.http,
                "POST",
                "/v1/readings",
                authorization,
                &reading(&own),
            )
            .await;
            assert_eq!(status, 200, "{body}");
            expected.push(own);
            let (status, body) = ask(
                rig.http,
                "POST",
                "/v1/readings",
                authorization,
                &reading("gw2-1"),
            )
            .await;
            assert!(status == 400 && body.contains("not_allowed"), "{body}");
        }
        for (m, version) in ["mqttv311", "mqttv5"].into_iter().enumerate() {
            let own = format!("gw1-mqtt{n}{m}");
            let done = publish(&rig, version, &own, &jwt).await;
            assert!(
                done.status.success(),
                "{version}: {}",
                String::from_utf8_lossy(&done.stderr)
            );
            expected.push(own);
        }
        let outside = publish(&rig, "mqttv5", "gw2-1", &jwt).await;
        assert!(
            String::from_utf8_lossy(&outside.stderr).contains("Not authorized"),
            "{outside:?}"
        );
    }
    expected.sort();
    assert_eq!(rig.stored(expected.len()).await, expected);
    let path = "/v1/sensors/gw1-00/hourly";
    let bearer = |changes: Value| format!("Bearer {}", keys[0].issue(&claims(&changes)));
    assert_eq!(
        ask(rig.admin, "GET", "/v1/sensors", "", "").await.0,
        401,
        "reading needs one"
    );
    assert_eq!(
        ask(rig.admin, "GET", path, &bearer(json!({})), "").await.0,
        200
    );
    let (status, body) = ask(rig.admin, "GET", path, &bearer(json!({"read": null})), "").await;
    assert!(
        status == 403 && body.contains("not_allowed"),
        "by default it reads nothing: {body}"
    );
    rig.end().await;
}

/// A JWT is refused over HTTP and MQTT: the status, the reason, and no part of the JWT in the
/// answer; and the return codes of MQTT 3.1.1 and 5.
async fn refused(
    rig: &InProcess,
    what: &str,
    jwt: &str,
    reason: &str,
    text: &str,
    codes: (u8, u8),
) {
    let bearer = format!("Bearer {jwt}");
    let (status, body) = ask(rig.http, "POST", "/v1/readings", &bearer, &reading("gw1-1")).await;
    assert_eq!(
        status,
        if what == "no scope" { 403 } else { 401 },
        "{what}: {body}"
    );
    let error: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(error["error"]["reason"], reason, "{what}");
    let detail = error["error"]["detail"].as_str().unwrap();
    assert!(detail.contains(text), "{what}: {detail}");
    assert!(
        jwt.split('.')
            .all(|part| part.len() < 4 || !body.contains(part)),
        "{what}: {body}"
    );
    if what != "no scope" {
        assert_eq!(
            ask(rig.admin, "GET", "/v1/sensors", &bearer, "").await.0,
            401,
            "{what}"
        );
    }
    for (protocol, code) in [(4, codes.0), (5, codes.1)] {
        let mut device = Raw::open(rig.mqtt.port()).await;
        device
            .send(&connect(protocol, "d", 60, Some(("any", jwt))))
            .await;
        let (first, body) = device.answer().await.unwrap();
        assert_eq!((first, body[1]), (0x20, code), "{what} {protocol}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_foreign_and_outdated_jwts_are_refused_and_told_why() {
    let dir = tempfile::tempdir().unwrap();
    let key = JwtKey::new(dir.path(), "a", "RS256");
    let other = JwtKey::new(dir.path(), "b", "RS256");
    std::fs::write(dir.path().join("keys.pem"), key.public_pem()).unwrap();
    let rig = start(dir.path(), "").await;
    let good = key.issue(&claims(&json!({})));
    let (head, signature) = good.rsplit_once('.').unwrap();
    let of = |changes: Value| key.issue(&claims(&changes));
    let unsigned = other.sign(&json!({"alg": "none"}), &claims(&json!({})));
    let (unsigned, _) = unsigned.rsplit_once('.').unwrap();
    let hs256 = key.sign(&json!({"alg": "HS256"}), &claims(&json!({})));
    let expired = of(json!({"exp": now_s() - 1}));
    let early = of(json!({"nbf": now_s() + 60}));
    let no_scope = of(json!({"write": []}));
    let huge = format!("{head}{}.{signature}", "A".repeat(9000));
    for (what, jwt, reason, text) in [
        ("expired", expired, "expired_token", "expired"),
        ("too early", early, "token_not_yet_valid", "not valid yet"),
        ("no scope", no_scope, "not_allowed", "write"),
    ] {
        refused(&rig, what, &jwt, reason, text, (5, 0x87)).await;
    }
    for (what, jwt, text) in [
        ("no expiry", of(json!({"exp": null})), "`exp` is required"),
        ("audience", of(json!({"aud": "x"})), "`aud`"),
        ("issuer", of(json!({"iss": "x"})), "`iss`"),
        ("other key", other.issue(&claims(&json!({}))), "signature"),
        ("none", format!("{unsigned}."), "malformed"),
        ("HMAC", hs256, "algorithm"),
        ("garbage", format!("{head}.%%%"), "malformed"),
        ("huge", huge, "8192"),
    ] {
        refused(&rig, what, &jwt, "invalid_jwt", text, (4, 0x86)).await;
    }
    let (_, page) = ask(rig.admin, "GET", "/metrics", "", "").await;
    assert!(
        page.contains("hourbucket_auth_failures_total{port=\"http\",reason=\"invalid_jwt\"}"),
        "{page}"
    );
    assert!(
        page.contains("hourbucket_auth_failures_total{port=\"listen.mqtt\",reason=\"jwt\"}"),
        "{page}"
    );
    rig.end().await;
}

/// Waits for DISCONNECT; returns its reason code and text, and when it came.
async fn cut(device: &mut Raw) -> (u8, String, Instant) {
    let (first, body) = device.answer().await.expect("DISCONNECT");
    assert_eq!(first, 0xe0);
    let (code, text) = disconnect_reason(&body);
    (code, text, Instant::now())
}

async fn open(rig: &InProcess, password: &str) -> Raw {
    let mut device = Raw::open(rig.mqtt.port()).await;
    device
        .send(&connect(5, "d", 60, Some(("any", password))))
        .await;
    let (first, body) = device.answer().await.unwrap();
    assert_eq!((first, body[1]), (0x20, 0), "accepted");
    device
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_with_its_jwt_and_after_its_key_was_removed() {
    let dir = tempfile::tempdir().unwrap();
    let first = JwtKey::new(dir.path(), "a", "ES256");
    let second = JwtKey::new(dir.path(), "b", "EdDSA");
    let keys = dir.path().join("keys.pem");
    std::fs::write(&keys, first.public_pem() + &second.public_pem()).unwrap();
    let tokens = dir.path().join("tokens.toml");
    std::fs::write(
        &tokens,
        format!(
            "[[tokens]]\nid = \"d1\"\nsha256 = \"{}\"\n",
            hash_secret("secret")
        ),
    )
    .unwrap();
    let rig = start(dir.path(), "").await;
    let ends = Instant::now() + Duration::from_secs(3);
    let mut short = open(
        &rig,
        &first.issue(&claims(&json!({"exp": now_s() + 3, "sub": "short"}))),
    )
    .await;
    let (code, text, at) = cut(&mut short).await;
    assert!(code == 0x87 && text.contains("expired"), "{code:x} {text}");
    assert!(
        at < ends + Duration::from_secs(2) && at + Duration::from_millis(1100) > ends,
        "{:?}",
        at - ends
    );

    let mut removed = open(&rig, &first.issue(&claims(&json!({})))).await;
    let mut kept = open(&rig, &second.issue(&claims(&json!({"sub": "gw2"})))).await;
    // A file with a fault changes nothing, and the log, /readyz and a metric say so.
    std::fs::write(
        &keys,
        "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n",
    )
    .unwrap();
    let Reloaded::Invalid(why) = rig.reload().await else {
        panic!("the file has a fault")
    };
    assert!(
        why.contains("jwt.keys_file") && why.contains("private key") && !why.contains("c2Vj"),
        "{why}"
    );
    let config = rig.readyz().await["config"].to_string();
    assert!(
        config.contains("invalid") && config.contains("jwt.keys_file"),
        "{config}"
    );
    let bearer = format!("Bearer {}", first.issue(&claims(&json!({}))));
    assert_eq!(
        ask(rig.http, "POST", "/v1/readings", &bearer, &reading("gw1-1"))
            .await
            .0,
        200,
        "the old keys"
    );

    std::fs::write(&keys, second.public_pem()).unwrap();
    let begun = Instant::now();
    assert!(matches!(rig.reload().await, Reloaded::Applied(_)));
    let (code, text, at) = cut(&mut removed).await;
    assert!(code == 0x87 && text.contains("revoked"), "{code:x} {text}");
    assert!(at - begun < Duration::from_secs(2), "{:?}", at - begun);
    assert_eq!(
        ask(rig.http, "POST", "/v1/readings", &bearer, &reading("gw1-2"))
            .await
            .0,
        401
    );
    kept.send(&[0xc0, 0]).await;
    assert_eq!(
        kept.answer().await,
        Some((0xd0, vec![])),
        "the connection of the other key stays"
    );
    rig.end().await;
}
