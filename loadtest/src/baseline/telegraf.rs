//! Telegraf between a broker and MongoDB (`mqtt_consumer` to `mongodb`), if it is on the path.
//!
//! By default it stores each message with a separate insert; with `write_batch`, which it has since
//! version 1.38, those of a batch with one.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};

use super::acknowledge::Delivered;
use crate::drive::{self, Target, Throttle};
use crate::parts::mongod::Mongod;
use crate::parts::mosquitto::Mosquitto;
use crate::parts::process::Process;
use crate::parts::program;
use crate::report::Used;
use crate::spec::{Spec, Transport};
use crate::{Failure, run, usage};

const DATABASE: &str = "loadtest";
const READY_WITHIN: Duration = Duration::from_secs(60);
/// If the number of stored readings does not grow for this long, readings are lost.
const STILL_FOR: Duration = Duration::from_secs(30);

/// The Telegraf binary, if it exists.
pub(crate) fn binary() -> Option<PathBuf> {
    program("HOURBUCKET_TELEGRAF", "telegraf")
}

/// As its documentation advises for messages that must not be lost: QoS 1, a persistent session,
/// and acknowledgement after the write. The limits allow batches of 1,000.
fn config(broker_port: u16, uri: &str, write_batch: bool) -> String {
    format!(
        r#"[agent]
interval = "1s"
flush_interval = "1s"
metric_batch_size = 1000
metric_buffer_limit = 100000
omit_hostname = true
[[inputs.mqtt_consumer]]
servers = ["tcp://127.0.0.1:{broker_port}"]
topics = ["sensors/+"]
qos = 1
persistent_session = true
client_id = "telegraf"
max_undelivered_messages = 10000
data_format = "json"
json_time_key = "ts"
json_time_format = "unix_ms"
[[outputs.mongodb]]
dsn = "{uri}&w=majority&journal=true"
database = "{DATABASE}"
granularity = "seconds"
write_batch = {write_batch}
"#
    )
}

/// Publishes `messages` of the scenario, and waits until all are stored.
pub(crate) async fn run(
    spec: &Spec,
    messages: u64,
    write_batch: bool,
) -> Result<Delivered, Failure> {
    let binary = binary().ok_or("no telegraf on the path; set HOURBUCKET_TELEGRAF")?;
    let mongod = Mongod::start().await?;
    let broker = Mosquitto::start()?;
    let mut telegraf = Process::new("telegraf");
    std::fs::write(
        telegraf.dir().join("telegraf.conf"),
        config(broker.port, &mongod.uri(), write_batch),
    )?;
    telegraf.spawn(Command::new(binary).args(["--config", "telegraf.conf"]));
    subscribed(&mut telegraf)?;
    let target = Target {
        transport: Transport::Mqtt,
        port: broker.port,
    };
    let plan = run::plan(spec);
    let (mut lanes, _) = drive::prepare(spec, &plan, |_| target);
    let pid = telegraf.pid();
    let used = || Used {
        service: usage::of(pid).unwrap_or_default(),
        mongod: mongod.usage(),
        broker: Some(broker.usage()),
        centre: None,
        loadtest: usage::of(std::process::id()).unwrap_or_default(),
    };
    let before = used();
    let begun = Instant::now();
    let progress = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let throttle = Throttle {
        rate: None,
        seconds: None,
        readings: Some(messages),
        progress: &progress,
        stop: &stop,
    };
    let driven = drive::phase(&mut lanes, &plan, spec.window, &throttle)?;
    let db = mongod.client().await?.database(DATABASE);
    all_stored(&db, driven.readings).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let used = used().since(&before);
    Ok(Delivered {
        readings: driven.readings,
        seconds,
        used,
    })
}

fn subscribed(telegraf: &mut Process) -> Result<(), Failure> {
    let deadline = Instant::now() + READY_WITHIN;
    while !telegraf.log().contains("[inputs.mqtt_consumer] Connected") {
        if let Some(status) = telegraf.ended() {
            return Err(format!("telegraf exited with {status}:\n{}", telegraf.log_tail()).into());
        }
        if Instant::now() > deadline {
            return Err(format!(
                "telegraf did not connect within {READY_WITHIN:?}:\n{}",
                telegraf.log_tail()
            )
            .into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // It logs the connection before it subscribes.
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

async fn all_stored(db: &Database, messages: u64) -> Result<(), Failure> {
    let mut stored = 0;
    let mut grew = Instant::now();
    while stored < messages {
        let now = measurements(db).await?;
        if now > stored {
            (stored, grew) = (now, Instant::now());
        } else if grew.elapsed() > STILL_FOR {
            return Err(format!("telegraf stored only {stored} of {messages} readings").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// The collection's own statistics: counting the documents would use more CPU time than Telegraf.
async fn measurements(db: &Database) -> Result<u64, Failure> {
    let stats: Document = match db.run_command(doc! { "collStats": "mqtt_consumer" }).await {
        Ok(stats) => stats,
        // Telegraf creates the collection with the first message.
        Err(_) => return Ok(0),
    };
    let committed = stats
        .get_document("timeseries")
        .ok()
        .and_then(|t| t.get("numMeasurementsCommitted"));
    Ok(match committed {
        Some(Bson::Int64(n)) => *n as u64,
        Some(Bson::Int32(n)) => *n as u64,
        Some(Bson::Double(n)) => *n as u64,
        _ => 0,
    })
}
