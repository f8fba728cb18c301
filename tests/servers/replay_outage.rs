//! `hourbucket dead-letters replay` whose MongoDB goes away.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Stdio};
use std::time::Duration;

use model::{DeadLetter, Span};
use mongodb::bson::{Document, doc};
use store::Store;
use store::mongo::MongoStore;

use crate::support::fleet::now_ms;
use crate::support::mongod::Mongod;
use crate::support::{block_on, wait_until};

const DATABASE: &str = "replay_outage";
const DEAD_LETTERS: i64 = 20_000;
const PATIENCE: Duration = Duration::from_secs(120);

fn keep_dead_letters(uri: &str) {
    let settings = config::Store {
        uri: config::Secret::new(uri.to_owned()),
        database: DATABASE.to_owned(),
        ..config::Config::default().store
    };
    let at_ms = now_ms() - 600_000;
    let dead_letter = |n| {
        let payload = format!("{{\"sensor_id\":\"S{n}\",\"ts\":{at_ms},\"v\":{n}}}");
        let topic = "/v1/hooks/json".to_owned();
        DeadLetter::keep(
            at_ms,
            "http",
            topic,
            payload.as_bytes(),
            "too_old",
            "as it was",
        )
    };
    let all: Vec<DeadLetter> = (0..DEAD_LETTERS).map(dead_letter).collect();
    block_on(async {
        let month = Duration::from_secs(30 * 86_400);
        let store = MongoStore::new(&settings, Span::HOUR, month).await.unwrap();
        store.prepare().await.unwrap();
        for some in all.chunks(1000) {
            store.write_dead_letters(some).await.unwrap();
        }
    });
}

fn are_fewer(uri: &str) -> bool {
    block_on(async {
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        let dead = client
            .database(DATABASE)
            .collection::<Document>("dead_letters");
        dead.count_documents(doc! {}).await.unwrap() < DEAD_LETTERS as u64
    })
}

#[test]
fn a_replay_ends_if_mongodb_goes_away() {
    let mut mongod = Mongod::start();
    let uri = mongod.uri();
    keep_dead_letters(&uri);
    let dir = tempfile::tempdir().unwrap();
    let settings = "shutdown.deadline = \"1s\"\nstore.mode = \"bucket\"\n";
    std::fs::write(dir.path().join("hourbucket.toml"), settings).unwrap();
    let mut replay = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
        .args(["dead-letters", "replay", "--config", "hourbucket.toml"])
        .current_dir(dir.path())
        .env("HOURBUCKET_STORE__URI", &uri)
        .env("HOURBUCKET_STORE__DATABASE", DATABASE)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it replays", PATIENCE, || are_fewer(&uri).then_some(()));
    mongod.kill9();
    let code = wait_until("it ends", PATIENCE, || {
        replay.try_wait().unwrap().map(|status| status.code())
    });
    assert_eq!(code, Some(2));
}
