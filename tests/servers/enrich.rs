//! Tags from a registry collection, with the service and a real MongoDB; and the index that finds
//! sensors by tags.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::usage::cpu_s;
use crate::support::{block_on, wait_until};
use model::batch::Tags;
use model::summary::summarise;
use model::{BucketStart, Gate, PageKind, PageWrite, Reading, Rows, Span, StorageMode, Value};
use mongodb::bson::{Document, doc};
use mongodb::{Collection, Database};
use store::Store;
use store::mongo::{BUCKETS, MongoStore, OptionalIndexes, READINGS, TAGS_INDEX};

const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: i64 = 3_600_000;

/// A database with synchronous access.
struct Place {
    name: String,
}

impl Place {
    fn new(test: &str) -> Place {
        Place {
            name: unique_database(test),
        }
    }

    /// Runs an operation on the database.
    fn with<T>(&self, act: impl AsyncFnOnce(Database) -> T) -> T {
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        rt.block_on(async {
            let client = mongodb::Client::with_uri_str(Mongod::shared().uri())
                .await
                .unwrap();
            act(client.database(&self.name)).await
        })
    }

    fn service(&self, text: &str) -> Service {
        self.service_in("bucket", text)
    }

    fn service_in(&self, mode: &str, text: &str) -> Service {
        let text = format!(
            "[store]\nmode = \"{mode}\"\n[flush]\nmax_age = \"50ms\"\n[bucket]\nmax_readings = 2\n\
             {text}"
        );
        Service::start(
            &text,
            &[
                ("STORE__URI", &Mongod::shared().uri()),
                ("STORE__DATABASE", &self.name),
            ],
        )
    }

    /// The tags of each page of a sensor in the order of time, such as `site=north room=12`.
    fn tags(&self, sensor: &str) -> Vec<String> {
        let filter = doc! { "sensor_id": sensor };
        self.with(async |db| {
            let pages: Collection<Document> = db.collection(BUCKETS);
            let mut cursor = pages
                .find(filter)
                .sort(doc! { "bucket_start": 1, "page": 1 })
                .await
                .unwrap();
            let mut all = vec![];
            while cursor.advance().await.unwrap() {
                let page = cursor.deserialize_current().unwrap();
                let tags = page.get_document("tags").unwrap();
                let pairs: Vec<String> = tags
                    .iter()
                    .map(|(k, v)| format!("{k}={}", v.as_str().unwrap()))
                    .collect();
                all.push(pairs.join(" "));
            }
            all
        })
    }
}

/// Posts one reading and waits until it is stored.
fn post(service: &Service, sensor: &str, ts: i64, tags: &str) {
    let before = service.metrics().get("readings_accepted_total") as u64;
    let body = format!(
        "{{\"sensor_id\":\"{sensor}\",\"ts\":{ts},\"values\":{{\"n\":{ts}}},\"tags\":{{{tags}}}}}"
    );
    let (status, text) = service
        .post("/v1/readings", "application/json", body.as_bytes())
        .unwrap();
    assert_eq!(status, 200, "{text}");
    service.wait_settled(before + 1, PATIENCE);
}

fn wait_for(service: &Service, metric: &str, at_least: f64) {
    wait_until(metric, PATIENCE, || {
        (service.metrics().get(metric) >= at_least).then_some(())
    });
}

#[test]
fn a_registry_change_applies_to_the_next_page_and_no_older_one() {
    let place = Place::new("enrich_stream");
    place.with(async |db| {
        let sensors = db.collection::<Document>("sensors");
        let s1 =
            doc! { "_id": "S1", "site": "north", "model": "x", "deep": { "er": 1 }, "floor": 3 };
        sensors
            .insert_many([s1, doc! { "_id": "S2", "site": "west" }])
            .await
            .unwrap();
    });
    // Within the hour, only the change stream can report changes.
    let service = place.service("[enrich]\ncollection = \"sensors\"\ninterval = \"1h\"\n");
    let hour = now_ms() / HOUR * HOUR - 5 * HOUR;
    let own = "\"model\":\"own\"";
    post(&service, "S1", hour, own);
    assert_eq!(
        place.tags("S1"),
        ["floor=3 model=own site=north"],
        "tags of the message take precedence, also on the first page"
    );
    place.with(async |db| {
        let change = doc! { "$set": { "site": "south" }, "$unset": { "floor": 1 } };
        db.collection::<Document>("sensors")
            .update_one(doc! { "_id": "S1" }, change)
            .await
            .unwrap();
    });
    wait_for(&service, "registry_changes_total", 1.0);
    post(&service, "S1", hour + 1, own);
    assert_eq!(
        place.tags("S1"),
        ["floor=3 model=own site=north"],
        "appending changes no tags"
    );
    post(&service, "S1", hour + 2, own);
    let pages = ["floor=3 model=own site=north", "model=own site=south"];
    assert_eq!(place.tags("S1"), pages, "the next page of the same hour");
    place.with(async |db| {
        let sensors = db.collection::<Document>("sensors");
        sensors.delete_one(doc! { "_id": "S1" }).await.unwrap();
        sensors
            .insert_one(doc! { "_id": "S3", "site": "new" })
            .await
            .unwrap();
    });
    wait_for(&service, "registry_changes_total", 3.0);
    post(&service, "S1", hour + HOUR, own);
    assert_eq!(
        place.tags("S1"),
        [pages[0], pages[1], "model=own"],
        "removed from the registry, but known from its message"
    );
    post(&service, "S3", hour, "");
    assert_eq!(place.tags("S3"), ["site=new"]);
    assert_eq!(
        service.metrics().get("registry_loads_total"),
        1.0,
        "read completely once"
    );
    assert_eq!(service.metrics().get("registry_sensors"), 2.0);
}

#[test]
fn without_a_change_stream_the_registry_is_read_at_the_interval() {
    let place = Place::new("enrich_interval");
    place.with(async |db| {
        let place = doc! { "room": "12", "hall": "b" };
        let all = [
            doc! { "name": "S1", "site": "north", "place": place },
            doc! { "name": 7, "site": "seven" },
        ];
        db.collection::<Document>("devices")
            .insert_many(all)
            .await
            .unwrap();
        // A view has no change stream, and neither has a standalone server.
        db.run_command(doc! { "create": "fleet", "viewOn": "devices", "pipeline": [] })
            .await
            .unwrap();
    });
    let text = "[enrich]\ncollection = \"fleet\"\nid_field = \"name\"\n\
        fields = [\"site\", \"place.room\"]\n\
                interval = \"100ms\"\nmax_sensors = 2\n";
    let service = place.service(text);
    let hour = now_ms() / HOUR * HOUR - 5 * HOUR;
    post(&service, "S1", hour, "");
    post(&service, "7", hour, "");
    assert_eq!(
        (place.tags("S1"), place.tags("7")),
        (
            vec!["place_room=12 site=north".into()],
            vec!["site=seven".into()]
        )
    );
    place.with(async |db| {
        let devices = db.collection::<Document>("devices");
        let change = doc! { "$set": { "place.room": "14" } };
        devices
            .update_one(doc! { "name": "S1" }, change)
            .await
            .unwrap();
        devices
            .insert_one(doc! { "name": "third", "site": "beyond max_sensors" })
            .await
            .unwrap();
    });
    let loads = service.metrics().get("registry_loads_total");
    wait_for(&service, "registry_loads_total", loads + 2.0);
    post(&service, "S1", hour + HOUR, "");
    assert_eq!(
        place.tags("S1"),
        ["place_room=12 site=north", "place_room=14 site=north"]
    );
    assert_eq!(service.metrics().get("registry_left_out"), 1.0);
    let log = service.log();
    assert_eq!(
        log.matches("no change stream").count(),
        1,
        "logged once: {log}"
    );
    assert!(
        log.contains("enrich.max_sensors") && !log.contains("ERROR"),
        "{log}"
    );
}

#[test]
fn an_unclear_change_is_followed_by_a_complete_read() {
    let place = Place::new("enrich_unclear");
    place.with(async |db| {
        let all = [
            doc! { "name": "S1", "site": "north" },
            doc! { "name": "S2", "site": "west" },
        ];
        db.collection::<Document>("sensors")
            .insert_many(all)
            .await
            .unwrap();
    });
    let service = place
        .service("[enrich]\ncollection = \"sensors\"\nid_field = \"name\"\ninterval = \"100ms\"\n");
    let hour = now_ms() / HOUR * HOUR - 5 * HOUR;
    post(&service, "S1", hour, "");
    place.with(async |db| {
        let sensors = db.collection::<Document>("sensors");
        sensors.delete_one(doc! { "name": "S1" }).await.unwrap();
        sensors
            .update_one(doc! { "name": "S2" }, doc! { "$set": { "name": "S4" } })
            .await
            .unwrap();
    });
    wait_until("S1 and S2 are removed, S4 is known", PATIENCE, || {
        (service.metrics().get("registry_sensors") == 1.0).then_some(())
    });
    for sensor in ["S1", "S2", "S4"] {
        post(&service, sensor, hour + HOUR, "");
    }
    assert_eq!(place.tags("S1"), ["site=north", ""]);
    assert_eq!(
        (place.tags("S2"), place.tags("S4")),
        (vec![String::new()], vec!["site=west".into()])
    );
    // The collection is dropped and created again: the stream ends and is opened again.
    place.with(async |db| {
        db.collection::<Document>("sensors").drop().await.unwrap();
        db.collection::<Document>("sensors")
            .insert_one(doc! { "name": "S5", "site": "again" })
            .await
            .unwrap();
    });
    wait_until("S5 is known", PATIENCE, || {
        post(&service, "S5", hour + fastrand::i64(0..HOUR), "");
        place
            .tags("S5")
            .contains(&"site=again".to_owned())
            .then_some(())
    });
}

#[test]
fn measurements_have_the_tags_at_their_time() {
    let place = Place::new("enrich_series");
    place.with(async |db| {
        db.collection::<Document>("sensors")
            .insert_one(doc! { "_id": "S1", "site": "north" })
            .await
            .unwrap();
    });
    let service = place.service_in(
        "auto",
        "[enrich]\ncollection = \"sensors\"\ninterval = \"1h\"\n",
    );
    if !service
        .get_admin("/readyz")
        .unwrap()
        .1
        .contains("timeseries")
    {
        // MongoDB 4.4 has pages only.
        return;
    }
    let hour = now_ms() / HOUR * HOUR - 5 * HOUR;
    post(&service, "S1", hour, "");
    place.with(async |db| {
        let change = doc! { "$set": { "site": "south" } };
        db.collection::<Document>("sensors")
            .update_one(doc! { "_id": "S1" }, change)
            .await
            .unwrap();
    });
    wait_for(&service, "registry_changes_total", 1.0);
    post(&service, "S1", hour + 1, "");
    let sites = place.with(async |db| {
        let mut cursor = db
            .collection::<Document>(READINGS)
            .find(doc! {})
            .sort(doc! { "ts": 1 })
            .await
            .unwrap();
        let mut sites = vec![];
        while cursor.advance().await.unwrap() {
            let meta = cursor
                .deserialize_current()
                .unwrap()
                .get_document("meta")
                .unwrap()
                .clone();
            sites.push(
                meta.get_document("tags")
                    .unwrap()
                    .get_str("site")
                    .unwrap()
                    .to_owned(),
            );
        }
        sites
    });
    assert_eq!(sites, ["north", "south"]);
    assert_eq!(
        place.tags("S1"),
        ["site=north"],
        "the summary of the hour has the tags of its first reading"
    );
}

async fn store(database: &str, tags_index: bool) -> MongoStore {
    let uri = config::Secret::new(Mongod::shared().uri());
    let mode = config::StoreMode::Bucket;
    let settings = config::Store {
        uri,
        mode,
        database: database.into(),
        ..config::Config::default().store
    };
    let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
        .await
        .unwrap();
    store.with_latest_and_tags(OptionalIndexes {
        latest: false,
        tags_index,
    })
}

fn page(sensor: &str, hour: i64, site: &str) -> PageWrite {
    let mut rows = Rows::default();
    let values = [("n".to_owned(), Value::Int(1))].into();
    let ts_ms = hour * HOUR;
    let tags = Default::default();
    rows.push_reading(&Reading {
        sensor_id: sensor.into(),
        ts_ms,
        receipt_time: false,
        tags,
        values,
    });
    let mut tags = vec![4];
    tags.extend_from_slice(b"site");
    tags.extend_from_slice(&(site.len() as u16).to_le_bytes());
    tags.extend_from_slice(site.as_bytes());
    PageWrite {
        sensor_id: sensor.into(),
        start: BucketStart(hour * HOUR),
        page: 0,
        kind: PageKind::Create,
        storage_mode: StorageMode::Bucket,
        seal: false,
        tags: Some(Arc::new(Tags::from_canonical(&tags))),
        summary: summarise(&rows),
        rows: rows.into(),
        catalog: None,
    }
}

#[test]
fn sensors_of_a_site_are_found_by_the_index_which_follows_the_setting() {
    let place = Place::new("enrich_index");
    block_on(async {
        let store = store(&place.name, true).await;
        let made = store.prepare().await.unwrap().changes;
        assert!(
            made.iter().any(|line| line.contains(TAGS_INDEX)),
            "{made:?}"
        );
        let again = store.prepare().await.unwrap().changes;
        assert!(
            !again.iter().any(|line| line.contains(TAGS_INDEX)),
            "{again:?}"
        );
        let pages: Vec<_> = (0..300)
            .map(|i| {
                page(
                    &format!("S{}", i % 100),
                    i / 100,
                    if i % 10 == 0 { "north" } else { "south" },
                )
            })
            .collect();
        store.write(&pages).await.unwrap();
    });
    // The index that config/hourbucket.toml shows.
    place.with(async |db| {
        let query =
            doc! { "distinct": BUCKETS, "key": "sensor_id", "query": { "tags.site": "north" } };
        let found = db.run_command(query.clone()).await.unwrap();
        assert_eq!(found.get_array("values").unwrap().len(), 10);
        let explained = db
            .run_command(doc! { "explain": query, "verbosity": "executionStats" })
            .await
            .unwrap();
        let plan = explained
            .get_document("queryPlanner")
            .unwrap()
            .get_document("winningPlan")
            .unwrap()
            .to_string();
        assert!(
            plan.contains("IXSCAN") && plan.contains(TAGS_INDEX) && !plan.contains("COLLSCAN"),
            "{plan}"
        );
        let examined = explained
            .get_document("executionStats")
            .unwrap()
            .get_i32("totalDocsExamined")
            .unwrap();
        assert_eq!(examined, 30, "exactly the pages of the site");
    });
    block_on(async {
        let dropped = store(&place.name, false)
            .await
            .prepare()
            .await
            .unwrap()
            .changes;
        assert!(
            dropped.iter().any(|line| line.contains("dropped index")),
            "{dropped:?}"
        );
    });
    place.with(async |db| {
        let names = db
            .collection::<Document>(BUCKETS)
            .list_index_names()
            .await
            .unwrap();
        assert!(!names.iter().any(|name| name == TAGS_INDEX), "{names:?}");
    });
}

/// The cost of the index on tags, printed: microseconds of mongod for the creation of a page with
/// one tag, and for an append. `cargo test --test servers enrich::cost -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn cost_of_the_index_on_tags() {
    let pid = Mongod::shared().pid();
    let pages = 50_000;
    for index in [false, true, false, true] {
        let name = unique_database("enrich_cost");
        let (made, appended) = block_on(async {
            let store = store(&name, index).await;
            store.prepare().await.unwrap();
            let mut used = vec![];
            let append = PageKind::Append {
                known_count: 1,
                gate: Gate::Closes,
            };
            for kind in [PageKind::Create, append] {
                let site = |i: i64| format!("site {}", i % 100);
                let all: Vec<_> = (0..pages)
                    .map(|i| PageWrite {
                        kind,
                        ..page(&format!("S{i}"), i % 24, &site(i))
                    })
                    .collect();
                let before = cpu_s(pid);
                for writes in all.chunks(5000) {
                    store.write(writes).await.unwrap();
                }
                used.push((cpu_s(pid) - before) * 1e6 / pages as f64);
            }
            (used[0], used[1])
        });
        println!("index {index}: {made:.1} us per created page, {appended:.1} us per append");
    }
}
