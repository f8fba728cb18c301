//! The size of a reading on disk in both modes, for one day of sensors at 1 Hz and of sensors that
//! send once a minute: the table of docs/mongodb.md. A measurement, not a test: `cargo test --test
//! servers storage:: -- --ignored --nocapture`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement, with figures"
)]

use crate::support;
use std::fmt::Write as _;
use std::time::Duration;

use crate::support::block_on;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use mongodb::bson::{Document, doc};

const DAY_MS: i64 = 86_400_000;
const MINUTE_MS: i64 = 60_000;

/// One day of a room's climate: two fields, with two and no decimals, which change slowly like real
/// sensor values.
struct Room(fastrand::Rng, f64, f64);

impl Room {
    fn line(&mut self, sensor: usize, ts: i64) -> String {
        self.1 += f64::from(self.0.i32(-5..=5)) / 100.0;
        self.2 += f64::from(self.0.i32(-1..=1));
        let temp = (self.1 * 100.0).round() / 100.0;
        format!(
            "{{\"sensor_id\":\"room-{sensor}\",\"ts\":{ts},\"temp\":{temp},\"humid\":{}}}\n",
            self.2
        )
    }
}

/// The size of the readings' collections on disk: data, indexes.
fn on_disk(uri: &str, database: &str) -> (i64, i64) {
    block_on(async {
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        client
            .database("admin")
            .run_command(doc! { "fsync": 1 })
            .await
            .unwrap();
        let db = client.database(database);
        let mut data = 0;
        let mut indexes = 0;
        for name in ["sensor_buckets", "sensor_readings"] {
            let stats: Document = db.run_command(doc! { "collStats": name }).await.unwrap();
            let number = |key: &str| {
                stats
                    .get(key)
                    .map_or(0, |v| v.as_i64().or(v.as_i32().map(i64::from)).unwrap_or(0))
            };
            data += number("storageSize");
            indexes += number("totalIndexSize");
        }
        (data, indexes)
    })
}

fn measure(mode: &str, what: &str, sensors: usize, every_ms: i64) {
    let mongod = Mongod::start();
    let database = unique_database("storage");
    // The service writes pages when they are full or at their age, as during a quiet day.
    let text = format!("store.mode = \"{mode}\"");
    let mut service = Service::start(
        &text,
        &[
            ("STORE__URI", &mongod.uri()),
            ("STORE__DATABASE", &database),
        ],
    );
    let start = (support::fleet::now_ms() / DAY_MS - 2) * DAY_MS;
    let mut rooms: Vec<Room> = (0..sensors)
        .map(|s| {
            Room(
                fastrand::Rng::with_seed(s as u64),
                20.0 + s as f64 / 10.0,
                50.0,
            )
        })
        .collect();
    let mut sent = 0u64;
    let mut body = String::new();
    for ts in (start..start + DAY_MS).step_by(every_ms as usize) {
        for (s, room) in rooms.iter_mut().enumerate() {
            write!(body, "{}", room.line(s, ts)).unwrap();
            sent += 1;
        }
        if body.len() > 1 << 20 || ts + every_ms >= start + DAY_MS {
            let (status, text) = service
                .post("/v1/readings", "application/x-ndjson", body.as_bytes())
                .unwrap();
            assert_eq!(status, 200, "{text}");
            body.clear();
        }
    }
    service.wait_settled(sent, Duration::from_secs(600));
    assert_eq!(service.terminate(Duration::from_secs(60)), 0);
    let (data, indexes) = on_disk(&mongod.uri(), &database);
    let each = |bytes: i64| bytes as f64 / sent as f64;
    println!(
        "| {what} | {mode} | {sent} | {:.1} | {:.2} | {:.1} |",
        each(data),
        each(indexes),
        each(data + indexes)
    );
}

#[test]
#[ignore = "a measurement of some minutes"]
fn bytes_a_reading_on_disk() {
    println!(
        "| one day of | mode | readings | data | indexes | bytes a reading |\n\
         |---|---|---|---|---|---|"
    );
    for (what, sensors, every_ms) in [
        ("20 sensors at 1 Hz", 20, 1000),
        ("1,000 sensors once a minute", 1000, MINUTE_MS),
    ] {
        for mode in ["bucket", "timeseries"] {
            measure(mode, what, sensors, every_ms);
        }
    }
}
