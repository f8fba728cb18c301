//! `hourbucket tokens list` shows when each token was last used, as the service has kept it over a
//! restart.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;
use std::time::Duration;

use net::access::hash_secret;
use serde_json::Value;

use crate::support::http_client::agent;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::wait_until;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn the_list_of_tokens_shows_the_last_use_by_senders_and_readers_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    let entry = |id: &str| {
        format!(
            "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n",
            hash_secret("secret")
        )
    };
    std::fs::write(&tokens, ["sender", "reader", "unused"].map(entry).concat()).unwrap();
    let uri = Mongod::shared().uri();
    let database = unique_database("last_used");
    let settings = [("STORE__URI", &*uri), ("STORE__DATABASE", &*database)];
    let mut service = Service::start(&format!("http.tokens_file = {tokens:?}\n"), &settings);
    let list = |service: &Service, of: &str| -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
            .args(["--config", of, "tokens", "list", "--json"])
            .env("HOURBUCKET_JOURNAL__DIR", service.dir().join("journal"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let json = String::from_utf8(output.stdout).unwrap();
        assert!(
            !json.contains("secret") && !json.contains(&hash_secret("secret")),
            "{json}"
        );
        serde_json::from_str(&json).unwrap()
    };
    let config = service.dir().join("hourbucket.toml").display().to_string();
    let before = list(&service, &config);
    assert!(
        before
            .as_array()
            .unwrap()
            .iter()
            .all(|token| token["last_used"].is_null()),
        "{before}"
    );

    let agent = agent();
    let send = |service: &Service, token: &str| {
        let request = agent
            .post(format!("{}/v1/readings", service.http()))
            .header("authorization", format!("Bearer {token}"))
            .header("content-type", "application/json");
        request
            .send(&br#"{"sensor_id":"S","n":1}"#[..])
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(
        (
            send(&service, "sender.secret"),
            send(&service, "unused.wrong")
        ),
        (200, 401)
    );
    let read = |token: &str| {
        let request = agent.get(format!("{}/v1/sensors", service.admin()));
        request
            .header("authorization", format!("Bearer {token}"))
            .call()
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(read("unused.wrong"), 401);
    wait_until("MongoDB has answered", PATIENCE, || {
        (read("reader.secret") == 200).then_some(())
    });
    assert_eq!(service.terminate(PATIENCE), 0);

    let used = list(&service, &config);
    let time = |list: &Value, at: usize| list[at]["last_used"].as_str().map(str::to_owned);
    assert!(
        time(&used, 0).is_some() && time(&used, 1).is_some(),
        "{used}"
    );
    assert!(
        used[2]["unused_since"].is_string() && used[2]["last_used"].is_null(),
        "{used}"
    );
    // Uses seen by one process are still known after the next one, which has seen another use.
    service.restart();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(send(&service, "sender.secret"), 200);
    assert_eq!(service.terminate(PATIENCE), 0);
    let later = list(&service, &config);
    assert!(time(&later, 0) > time(&used, 0), "{later}");
    assert_eq!((time(&later, 1), &later[2]), (time(&used, 1), &used[2]));
}
