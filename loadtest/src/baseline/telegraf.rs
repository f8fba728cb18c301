//! What people put between a broker and MongoDB today, where it is on the path: Telegraf, `mqtt_consumer` to `mongodb`.
//!
//! It gets fewer messages than the others: it stores each with an insert of its own.

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
/// It has given up, or something is lost, when nothing more was stored for so long.
const STILL_FOR: Duration = Duration::from_secs(30);

/// The program, if there is one.
pub(crate) fn binary() -> Option<PathBuf> {
    program("HOURBUCKET_TELEGRAF", "telegraf")
}

/// As its documentation advises for messages that must not be lost: QoS 1, a session that lasts, acknowledged when they are
/// written; its limits wide enough for batches of 1,000.
fn config(broker_port: u16, uri: &str) -> String {
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
"#
    )
}

/// Publishes `messages` of the scenario, and waits until all are stored.
pub(crate) async fn run(spec: &Spec, messages: u64) -> Result<Delivered, Failure> {
    let binary = binary().ok_or("no telegraf on the path; set HOURBUCKET_TELEGRAF")?;
    let (mongod, broker) = (Mongod::start().await?, Mosquitto::start()?);
    let mut telegraf = Process::new("telegraf");
    std::fs::write(telegraf.dir().join("telegraf.conf"), config(broker.port, &mongod.uri()))?;
    telegraf.spawn(Command::new(binary).args(["--config", "telegraf.conf"]));
    subscribed(&mut telegraf)?;
    let target = Target { transport: Transport::Mqtt, port: broker.port };
    let plan = run::plan(spec);
    let (mut lanes, _) = drive::prepare(spec, &plan, target);
    let pid = telegraf.pid();
    let used = || Used {
        service: usage::of(pid).unwrap_or_default(),
        mongod: mongod.usage(),
        broker: Some(broker.usage()),
        loadtest: usage::of(std::process::id()).unwrap_or_default(),
    };
    let (before, begun, progress, stop) = (used(), Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
    let throttle = Throttle { rate: None, seconds: None, readings: Some(messages), progress: &progress, stop: &stop };
    let driven = drive::phase(&mut lanes, &plan, target, spec.window, &throttle)?;
    let db = mongod.client().await?.database(DATABASE);
    all_stored(&db, driven.readings).await?;
    let (seconds, used) = (begun.elapsed().as_secs_f64(), used().since(&before));
    Ok(Delivered { readings: driven.readings, seconds, used })
}

fn subscribed(telegraf: &mut Process) -> Result<(), Failure> {
    let deadline = Instant::now() + READY_WITHIN;
    while !telegraf.log().contains("[inputs.mqtt_consumer] Connected") {
        if let Some(status) = telegraf.ended() {
            return Err(format!("telegraf has ended with {status}:\n{}", telegraf.log_tail()).into());
        }
        if Instant::now() > deadline {
            return Err(format!("telegraf does not connect within {READY_WITHIN:?}:\n{}", telegraf.log_tail()).into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // It says that it is connected, and subscribes then.
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

async fn all_stored(db: &Database, messages: u64) -> Result<(), Failure> {
    let (mut stored, mut grew) = (0, Instant::now());
    while stored < messages {
        let now = measurements(db).await?;
        if now > stored {
            (stored, grew) = (now, Instant::now());
        } else if grew.elapsed() > STILL_FOR {
            return Err(format!("telegraf has stored {stored} of {messages} readings and no more").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// As the collection counts them itself: a count of the documents would cost more than Telegraf.
async fn measurements(db: &Database) -> Result<u64, Failure> {
    let stats: Document = match db.run_command(doc! { "collStats": "mqtt_consumer" }).await {
        Ok(stats) => stats,
        // Telegraf makes it with the first message.
        Err(_) => return Ok(0),
    };
    let committed = stats.get_document("timeseries").ok().and_then(|t| t.get("numMeasurementsCommitted"));
    Ok(match committed {
        Some(Bson::Int64(n)) => *n as u64,
        Some(Bson::Int32(n)) => *n as u64,
        Some(Bson::Double(n)) => *n as u64,
        _ => 0,
    })
}
