//! The baselines: common ways of writing, and the lower bound ("floor"). Each is a bare driver loop
//! with its own MongoDB, the same readings, the same write concern, and as many commands in flight
//! as hourbucket has.
//!
//! Commands are sent as raw BSON, which favors these clients over the usual documents and maps.
//! Each baseline runs for a number of seconds; then the stored readings are counted.

pub(crate) mod acknowledge;
mod bson;
pub(crate) mod other_stores;
pub(crate) mod telegraf;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mongodb::Database;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use serde::Serialize;

use self::bson::Writer;
use crate::Failure;
use crate::parts::mongod::Mongod;
use crate::plan::Plan;
use crate::report::Used;
use crate::usage;
use crate::values;

/// Commands in flight, the same number as `flush.commands_max`.
const WRITERS: u32 = 4;
/// Readings per page of the floor, and the approximate size of its commands.
const PAGE_READINGS: usize = 1000;
const COMMAND_BYTES: usize = 12 << 20;
const HOUR_MS: i64 = 3_600_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Way {
    /// One `$push` upsert per reading, in unordered commands of 1,000.
    Naive,
    /// One measurement per reading into a native collection, in commands of 1,000 in the order of
    /// arrival.
    Arrival,
    /// The same, sorted: 600 readings of a sensor together, in commands of 5 sensors.
    Sorted,
    /// Whole pages of 1,000 readings, encoded before the measurement starts.
    Pages,
}

impl Way {
    /// The description in the table of results.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Way::Naive => "one $push upsert a reading, 1,000 a command",
            Way::Arrival => "one measurement a reading, in order of arrival",
            Way::Sorted => "measurements sorted, 600 of a sensor together",
            Way::Pages => "whole pages of 1,000, encoded before; the floor",
        }
    }
}

/// The result of a baseline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    pub(crate) way: Way,
    pub(crate) readings: u64,
    pub(crate) statements: u64,
    pub(crate) seconds: f64,
    pub(crate) used: Used,
}

impl Outcome {
    pub(crate) fn per_s(&self) -> f64 {
        self.readings as f64 / self.seconds
    }
}

/// The readings as BSON, by sensor and round of the ring.
struct Source {
    plan: Plan,
    ids: Vec<String>,
    tags: Vec<Vec<u8>>,
    /// `{ts, <values>}` for pages, `{ts, meta, <values>}` for measurements; the time has the same
    /// offset in all.
    rounds: Vec<Vec<Vec<u8>>>,
}

/// Offset of the time: after the length, the type, and the name `ts`.
const TS_AT: usize = 4 + 1 + 3;

impl Source {
    fn new(plan: Plan, measurements: bool) -> Source {
        let mut ids = vec![];
        let mut all_tags = vec![];
        let mut rounds = vec![];
        for sensor in 0..plan.sensors {
            let id = values::id(sensor);
            let mut tags = Writer::new();
            values::tags(plan.seed, sensor)
                .iter()
                .for_each(|(name, value)| tags.str(name, value));
            let tags = tags.finish();
            let one = |values: &values::Values| {
                let mut w = Writer::new();
                w.date("ts", 0);
                if measurements {
                    w.document("meta");
                    w.str("sensor_id", &id);
                    w.whole("tags", &tags);
                    w.end();
                }
                for (field, value) in values::fields(sensor).iter().zip(values) {
                    match field.integer {
                        true => w.i64(field.name, i64::from(*value)),
                        false => w.double(field.name, values::double(*value, field)),
                    }
                }
                w.finish()
            };
            rounds.push(
                values::series(plan.seed, sensor, plan.ring as usize)
                    .iter()
                    .map(one)
                    .collect(),
            );
            ids.push(id);
            all_tags.push(tags);
        }
        Source {
            plan,
            ids,
            tags: all_tags,
            rounds,
        }
    }

    /// Copies the reading of a sensor and round into `into`, sets its time, and returns it.
    fn reading(&self, sensor: u32, round: u64, into: &mut Vec<u8>) -> i64 {
        let ts_ms = self.plan.ts_ms(sensor, round);
        into.clear();
        into.extend_from_slice(
            &self.rounds[sensor as usize][(round % u64::from(self.plan.ring)) as usize],
        );
        into[TS_AT..TS_AT + 8].copy_from_slice(&ts_ms.to_le_bytes());
        ts_ms
    }
}

/// The head of a command, up to its list.
fn command(kind: &str, collection: &str, list: &str) -> Writer {
    let mut w = Writer::new();
    w.str(kind, collection);
    w.bool("ordered", false);
    w.document("writeConcern");
    w.str("w", "majority");
    w.bool("j", true);
    w.end();
    w.array(list);
    w
}

/// Returns a writer's next command with its numbers of readings and statements; `None` at the end.
type Next = Box<dyn FnMut() -> Result<Option<(RawDocumentBuf, u64, u64)>, Failure> + Send>;

fn naive(source: Arc<Source>, lane: u32) -> Next {
    let mut message = 0u64;
    let mut bytes = vec![];
    Box::new(move || {
        let (group, round) = source.plan.at(lane, message);
        let sensors = source.plan.group(lane, group);
        message += 1;
        let mut w = command("update", "naive", "updates");
        let n = sensors.len() as u64;
        for (i, sensor) in sensors.enumerate() {
            let ts_ms = source.reading(sensor, round, &mut bytes);
            w.document(&i.to_string());
            w.document("q");
            w.str("sensor_id", &source.ids[sensor as usize]);
            w.date("bucket_start", ts_ms.div_euclid(HOUR_MS) * HOUR_MS);
            w.document("count");
            w.i32("$lt", PAGE_READINGS as i32);
            w.end();
            w.end();
            w.document("u");
            w.document("$push");
            w.whole("readings", &bytes);
            w.end();
            w.document("$inc");
            w.i32("count", 1);
            w.end();
            for (operator, field) in [("$min", "first_ts"), ("$max", "last_ts")] {
                w.document(operator);
                w.date(field, ts_ms);
                w.end();
            }
            w.document("$setOnInsert");
            w.whole("tags", &source.tags[sensor as usize]);
            w.end();
            w.end();
            w.bool("upsert", true);
            w.end();
        }
        Ok(Some((w.command()?, n, n)))
    })
}

fn arrival(source: Arc<Source>, lane: u32) -> Next {
    let mut message = 0u64;
    let mut bytes = vec![];
    Box::new(move || {
        let (group, round) = source.plan.at(lane, message);
        let sensors = source.plan.group(lane, group);
        message += 1;
        let mut w = command("insert", "native", "documents");
        let n = sensors.len() as u64;
        for (i, sensor) in sensors.enumerate() {
            source.reading(sensor, round, &mut bytes);
            w.whole(&i.to_string(), &bytes);
        }
        Ok(Some((w.command()?, n, n)))
    })
}

fn sorted(source: Arc<Source>, lane: u32) -> Next {
    const RUN: u64 = 600;
    let mut at = 0u64;
    let mut bytes = vec![];
    Box::new(move || {
        let sensors = source.plan.lane(lane);
        let mut w = command("insert", "native", "documents");
        let mut n = 0u64;
        for _ in 0..5 {
            let sensor = sensors.start + (at % sensors.len() as u64) as u32;
            let first = at / sensors.len() as u64 * RUN;
            at += 1;
            for round in first..first + RUN {
                source.reading(sensor, round, &mut bytes);
                w.whole(&n.to_string(), &bytes);
                n += 1;
            }
        }
        Ok(Some((w.command()?, n, n)))
    })
}

/// The pages of one command, encoded once. Each use advances their hours, so that every page is
/// new.
fn pages(source: Arc<Source>, lane: u32) -> Next {
    let sensors = source.plan.lane(lane);
    let mut w = command("insert", "pages", "documents");
    let mut bytes = vec![];
    let mut hours = vec![];
    let mut n = 0u64;
    for sensor in sensors {
        if w.len() > COMMAND_BYTES {
            break;
        }
        page(&source, sensor, n, &mut w, &mut bytes, &mut hours);
        n += 1;
    }
    let mut template = w.finish();
    let base = source.plan.base_ms;
    let mut turn = 0;
    Box::new(move || {
        for at in &hours {
            template[*at..*at + 8].copy_from_slice(&(base + turn * HOUR_MS).to_le_bytes());
        }
        turn += 1;
        let command = RawDocumentBuf::from_bytes(template.clone())?;
        Ok(Some((command, n * PAGE_READINGS as u64, n)))
    })
}

fn page(
    source: &Source,
    sensor: u32,
    n: u64,
    w: &mut Writer,
    bytes: &mut Vec<u8>,
    hours: &mut Vec<usize>,
) {
    let id = &source.ids[sensor as usize];
    w.document(&n.to_string());
    w.document("_id");
    w.str("sensor_id", id);
    hours.push(w.date("bucket_start", 0));
    w.i32("page", 0);
    w.end();
    w.i32("schema_version", 1);
    w.str("sensor_id", id);
    hours.push(w.date("bucket_start", 0));
    hours.push(w.date("bucket_end", 0));
    w.i32("page", 0);
    w.whole("tags", &source.tags[sensor as usize]);
    w.i32("count", PAGE_READINGS as i32);
    hours.push(w.date("first_ts", 0));
    hours.push(w.date("last_ts", 0));
    w.document("summary");
    for field in values::fields(sensor) {
        w.document(field.name);
        ["min", "max", "sum"]
            .iter()
            .for_each(|name| w.double(name, f64::from(sensor)));
        w.i32("count", PAGE_READINGS as i32);
        w.end();
    }
    w.end();
    w.array("readings");
    for round in 0..PAGE_READINGS as u64 {
        source.reading(sensor, round, bytes);
        w.whole(&round.to_string(), bytes);
    }
    w.end();
    w.end();
}

/// Creates the collection and the index for this way of writing.
async fn prepare(db: &Database, way: Way) -> Result<(), Failure> {
    let make = match way {
        Way::Naive => {
            let keys = doc! { "sensor_id": 1, "bucket_start": 1, "count": 1 };
            doc! { "createIndexes": "naive", "indexes": [{ "key": keys, "name": "bucket" }] }
        }
        Way::Arrival | Way::Sorted => {
            doc! { "create": "native", "timeseries": { "timeField": "ts", "metaField": "meta", "granularity": "seconds" } }
        }
        Way::Pages => {
            let keys = doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 };
            let zstd = doc! { "wiredTiger": { "configString": "block_compressor=zstd" } };
            db.run_command(doc! { "create": "pages", "storageEngine": zstd })
                .await?;
            doc! { "createIndexes": "pages", "indexes": [{ "key": keys, "name": "bucket" }] }
        }
    };
    db.run_command(make).await?;
    Ok(())
}

/// Runs a baseline for some seconds with its own MongoDB. The writers share the readings of `plan`.
pub(crate) async fn run(way: Way, plan: &Plan, seconds: f64) -> Result<Outcome, Failure> {
    let mongod = Mongod::start().await?;
    let db = mongod.client().await?.database("baseline");
    prepare(&db, way).await?;
    let plan = Plan {
        lanes: WRITERS.min(plan.sensors),
        ..plan.clone()
    };
    let source = Arc::new(Source::new(
        plan.clone(),
        matches!(way, Way::Arrival | Way::Sorted),
    ));
    let writers: Vec<Next> = (0..plan.lanes)
        .map(|lane| match way {
            Way::Naive => naive(source.clone(), lane),
            Way::Arrival => arrival(source.clone(), lane),
            Way::Sorted => sorted(source.clone(), lane),
            Way::Pages => pages(source.clone(), lane),
        })
        .collect();
    let used = || Used {
        mongod: mongod.usage(),
        loadtest: usage::of(std::process::id()).unwrap_or_default(),
        ..Used::default()
    };
    let readings = Arc::new(AtomicU64::new(0));
    let statements = Arc::new(AtomicU64::new(0));
    let before = used();
    let begun = Instant::now();
    let tasks: Vec<_> = writers
        .into_iter()
        .map(|next| {
            let db = db.clone();
            let readings = readings.clone();
            let statements = statements.clone();
            let until = begun + Duration::from_secs_f64(seconds);
            tokio::spawn(write(db, next, until, readings, statements))
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let after = used();
    let used = Used {
        mongod: after.mongod.since(before.mongod),
        loadtest: after.loadtest.since(before.loadtest),
        ..Used::default()
    };
    let outcome = Outcome {
        way,
        readings: readings.load(Ordering::Relaxed),
        statements: statements.load(Ordering::Relaxed),
        seconds,
        used,
    };
    count(&db, &outcome).await?;
    Ok(outcome)
}

async fn write(
    db: Database,
    mut next: Next,
    until: Instant,
    readings: Arc<AtomicU64>,
    statements: Arc<AtomicU64>,
) -> Result<(), Failure> {
    while Instant::now() < until {
        let Some((command, n, s)) = next()? else {
            break;
        };
        let reply = db.run_raw_command(command).await?;
        if reply.contains_key("writeErrors") || reply.contains_key("writeConcernError") {
            return Err(
                format!("MongoDB rejected a statement of the baseline: {reply}")
                    .chars()
                    .take(2000)
                    .collect::<String>()
                    .into(),
            );
        }
        readings.fetch_add(n, Ordering::Relaxed);
        statements.fetch_add(s, Ordering::Relaxed);
    }
    Ok(())
}

/// Checks that a baseline has stored exactly the readings that it reports.
async fn count(db: &Database, outcome: &Outcome) -> Result<(), Failure> {
    let stored = match outcome.way {
        Way::Arrival | Way::Sorted => {
            db.collection::<Document>("native")
                .count_documents(doc! {})
                .await?
        }
        way => {
            let name = if way == Way::Naive { "naive" } else { "pages" };
            let sum = doc! { "$group": { "_id": null, "n": { "$sum": "$count" } } };
            let mut cursor = db.collection::<Document>(name).aggregate([sum]).await?;
            match cursor.advance().await? {
                true => cursor
                    .deserialize_current()?
                    .get_i32("n")
                    .unwrap_or_default() as u64,
                false => 0,
            }
        }
    };
    match stored == outcome.readings {
        true => Ok(()),
        false => Err(format!(
            "{:?}: {} readings were written, {stored} are stored",
            outcome.way, outcome.readings
        )
        .into()),
    }
}
