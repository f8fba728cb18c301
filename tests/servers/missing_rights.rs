//! MongoDB refuses the service's user while it runs: rights that are revoked and granted again, and
//! a user that is dropped and created again. Real MongoDB with access control, the binary.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use crate::support::mongod::{Kind, Mongod, unique_database};
use crate::support::service::Service;
use crate::support::{block_on, wait_until};
use mongodb::Client;
use mongodb::bson::{Document, doc};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than two pings of the store.
const SEVERAL_PINGS: Duration = Duration::from_secs(12);
/// 2024-03-01T10:00:00Z
const START_MS: i64 = 1_709_287_200_000;
const ALL: [&str; 11] = [
    "find",
    "insert",
    "update",
    "remove",
    "createCollection",
    "createIndex",
    "collMod",
    "listCollections",
    "listIndexes",
    "dropCollection",
    "dropIndex",
];
const READ: [&str; 3] = ["find", "listCollections", "listIndexes"];

/// A service that has stored one reading, and whose user has a role that a test can change.
struct Rig {
    mongod: Mongod,
    db: String,
    service: Service,
}

impl Rig {
    fn start(test: &str) -> Rig {
        let mongod = Mongod::start_kind(Kind {
            users: true,
            ..Kind::default()
        });
        let db = unique_database(test);
        let role = doc! { "createRole": "ingest", "privileges": [on(&db, "", &ALL)], "roles": [] };
        run(&mongod, &db, role);
        add_user(&mongod, &db);
        let service = Service::start(
            "limits.past = \"20000d\"\nflush.max_age = \"500ms\"\n",
            &[
                ("STORE__URI", &mongod.uri_as("service")),
                ("STORE__DATABASE", &db),
                ("STORE__MODE", "bucket"),
            ],
        );
        service.write_lines(&format!("m,sensor_id=A v=1 {START_MS}"));
        service.wait_settled(1, PATIENCE);
        Rig {
            mongod,
            db,
            service,
        }
    }

    fn grant(&self, privileges: Vec<Document>) {
        let role = doc! { "updateRole": "ingest", "privileges": privileges };
        run(&self.mongod, &self.db, role);
    }

    fn readyz(&self) -> (String, Value) {
        let (_, text) = self.service.get_admin("/readyz").unwrap();
        let report = serde_json::from_str(&text).unwrap();
        (text, report)
    }

    fn wait_refused(&self) {
        wait_until("the state of the store", PATIENCE, || {
            self.readyz().1["store"]["error"]
                .as_str()
                .is_some_and(|error| error.starts_with("unauthorized: "))
                .then_some(())
        });
    }

    fn wait_without_reasons(&self) {
        wait_until("the state of the store", PATIENCE, || {
            (self.readyz().1["reasons"] == serde_json::json!([])).then_some(())
        });
    }
}

/// Runs a command as a user with all rights.
fn run(mongod: &Mongod, db: &str, command: Document) -> Document {
    let uri = mongod.uri();
    block_on(async {
        let client = Client::with_uri_str(&uri).await.unwrap();
        client.database(db).run_command(command).await.unwrap()
    })
}

fn on(db: &str, collection: &str, actions: &[&str]) -> Document {
    doc! { "resource": { "db": db, "collection": collection }, "actions": actions.to_vec() }
}

fn add_user(mongod: &Mongod, db: &str) {
    mongod.add_user("service", vec![doc! { "role": "ingest", "db": db }]);
}

/// Readings of many sensors and hours, whose names and values no other text contains.
fn secrets() -> String {
    let line = |i: i64| {
        let at_ms = START_MS + i * 1_800_000;
        format!("m,sensor_id=SECRET{} v={}.987654 {at_ms}", i % 5, 1000 + i)
    };
    (0..200).map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn refused_writes_are_reported_without_readings_until_they_succeed() {
    let rig = Rig::start("refused");
    rig.grant(vec![on(&rig.db, "", &READ)]);
    rig.service.write_lines(&secrets());
    rig.wait_refused();
    let end = Instant::now() + SEVERAL_PINGS;
    while Instant::now() < end {
        let (text, report) = rig.readyz();
        assert_eq!(
            report["store"]["ok"], false,
            "a ping does not end the refusal: {text}"
        );
        assert!(
            report["summary"].as_str().unwrap().contains("refuses"),
            "{text}"
        );
        assert!(text.contains("not authorized on "), "{text}");
        for content in ["SECRET", "987654", "signature", "documents:"] {
            assert!(!text.contains(content), "`{content}` is in {text}");
        }
        assert!(text.len() < 5000, "{text}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let log = rig.service.log();
    assert!(
        !log.contains("SECRET") && !log.contains("signature"),
        "{log}"
    );
    rig.grant(vec![on(&rig.db, "", &ALL)]);
    rig.service.wait_settled(201, PATIENCE);
    rig.wait_without_reasons();
}

#[test]
fn a_user_that_is_created_again_is_used_without_a_restart() {
    let rig = Rig::start("user");
    let drop = doc! { "dropUser": "service" };
    run(&rig.mongod, "admin", drop);
    add_user(&rig.mongod, &rig.db);
    rig.service.write_lines(&secrets());
    rig.service.wait_settled(201, PATIENCE);
    rig.wait_without_reasons();
}

#[test]
fn an_entry_of_the_catalogue_waits_for_the_rights() {
    let rig = Rig::start("entry");
    let mut privileges = vec![on(&rig.db, "", &READ)];
    for collection in ["sensor_buckets", "hourbucket_meta", "dead_letters"] {
        privileges.push(on(&rig.db, collection, &["insert", "update", "remove"]));
    }
    rig.grant(privileges);
    rig.service
        .write_lines(&format!("m,sensor_id=NEW v=1 {START_MS}"));
    rig.wait_refused();
    rig.grant(vec![on(&rig.db, "", &ALL)]);
    rig.service.wait_settled(2, PATIENCE);
    let find = doc! { "find": "sensor_catalog", "filter": { "_id": "NEW" } };
    let reply = run(&rig.mongod, &rig.db, find);
    let found = reply.get_document("cursor").unwrap();
    assert_eq!(
        found.get_array("firstBatch").unwrap().len(),
        1,
        "no restart was needed"
    );
}
