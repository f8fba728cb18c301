//! `loadtest soak`: a steady load in real time over MQTT and HTTP together, for an hour or more.
//!
//! Half of the sensors publish through mosquitto, one reading per message; the other half belong to
//! gateways that POST batches. Each sensor has one reading per second. After a quarter of the time
//! the broker is restarted, after half of it MongoDB, and after three quarters the service reads a
//! changed configuration. Memory, open files, threads and lag are sampled every second and reported
//! per minute; at the end the store is checked as after any other run.

mod events;
mod report;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use events::Events;
pub(crate) use report::Soak;
use report::{Load, Second};

use crate::drive::{self, Lane, Target, Throttle};
use crate::parts::mongod::Mongod;
use crate::parts::service::Service;
use crate::plan::Plan;
use crate::run::{self, Over, Rig};
use crate::spec::{Format, Spec, Transport};
use crate::verify::{self, Checked, Known, Sent};
use crate::{Failure, usage};

const SENSORS: u32 = 10_000;
const SENSORS_SHORT: u32 = 400;
/// Half of them publish over MQTT.
const CONNECTIONS: u32 = 16;
/// Readings in a POST.
const BATCH: u32 = 125;
const WINDOW: u16 = 200;
const STEP_MS: i64 = 1000;
const MINUTE: Duration = Duration::from_secs(60);
/// With `--short`, a minute is this long, and there are so many.
const MINUTE_SHORT: Duration = Duration::from_secs(3);
const MINUTES_SHORT: u32 = 8;
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Limit until the service has accepted everything that the broker still holds.
const ACCEPTED_WITHIN: Duration = Duration::from_secs(600);

/// What to run, and how.
pub(crate) struct Options {
    pub(crate) binary: PathBuf,
    /// Additional environment variables of the service, without the prefix `HOURBUCKET_`.
    pub(crate) settings: BTreeMap<String, String>,
    /// `bucket` or `timeseries`.
    pub(crate) mode: String,
    pub(crate) minutes: u32,
    pub(crate) short: bool,
}

pub(crate) async fn run(options: &Options) -> Result<Soak, Failure> {
    let (minutes, minute) = match options.short {
        true => (MINUTES_SHORT, MINUTE_SHORT),
        false => (options.minutes, MINUTE),
    };
    let spec = spec(options);
    let rig = Rig::start(&spec, &options.binary, &options.settings).await?;
    let mut plan = Plan {
        single_lanes: CONNECTIONS / 2,
        ..run::plan(&spec)
    };
    let http = Target {
        transport: Transport::Http,
        port: rig.service.http_port,
    };
    let target_of = |lane| {
        if lane < plan.single_lanes {
            rig.target
        } else {
            http
        }
    };
    let (mut lanes, known) = drive::prepare(&spec, &plan, target_of);
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    plan.base_ms = now.as_secs() as i64 * STEP_MS;
    let before = rig.used();
    let Rig {
        mongod,
        broker,
        service,
        ..
    } = rig;
    let mut events = Events {
        mongod,
        broker: broker.ok_or("no broker")?,
        done: vec![],
    };
    let (loads, course) =
        load_with_events(&service, &mut events, &mut lanes, &plan, minutes, minute)?;
    let readings = loads.iter().map(|load| load.readings).sum();
    all_accepted(&service, readings)?;
    let used_by_test = usage::of(std::process::id())
        .unwrap_or_default()
        .since(before.loadtest);
    let ended = service.terminate()?;
    let Events {
        mongod,
        broker,
        done,
    } = events;
    let used = crate::report::Used {
        service: ended.usage.since(before.service),
        mongod: mongod.usage().since(before.mongod),
        broker: Some(broker.usage().since(before.broker.unwrap_or_default())),
        centre: None,
        loadtest: used_by_test,
    };
    let check = check_store(&mongod, &plan, &known, &lanes).await?;
    let duplicates = ended.metrics.count("readings_duplicate_total");
    Ok(Soak::new(
        &options.mode,
        minute,
        loads,
        course,
        done,
        used,
        duplicates,
        check,
    ))
}

fn spec(options: &Options) -> Spec {
    Spec {
        forward: false,
        name: format!("soak-{}", options.mode),
        about: String::new(),
        transport: Transport::Mqtt,
        format: Format::Ndjson,
        mode: options.mode.clone(),
        sensors: if options.short {
            SENSORS_SHORT
        } else {
            SENSORS
        },
        batch: BATCH,
        connections: CONNECTIONS,
        window: WINDOW,
        step_ms: STEP_MS,
        begin_hour: 0,
        shuffled: None,
        seed: 123,
        settle_seconds: None,
        phases: vec![],
        service: BTreeMap::new(),
    }
}

/// Sends the load while the events happen and the service is watched. Returns the load of each
/// minute, and the samples.
fn load_with_events(
    service: &Service,
    events: &mut Events,
    lanes: &mut [Lane],
    plan: &Plan,
    minutes: u32,
    minute: Duration,
) -> Result<(Vec<Load>, Vec<Second>), Failure> {
    let over = AtomicBool::new(false);
    let course = Mutex::new(vec![]);
    let begun = Instant::now();
    let loads = std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch(service, begun, &over, &course));
        let happening = scope.spawn(|| events.happen(service, begun, minute * minutes, &over));
        let stop = Over(&over);
        let loads = drive_minutes(lanes, plan, minutes, minute, &over);
        drop(stop);
        run::joined(watching)?;
        run::joined(happening)?;
        loads
    })?;
    let course = course
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok((loads, course))
}

/// Sends the load of each minute; ends early if `over` is set, because an event failed.
fn drive_minutes(
    lanes: &mut [Lane],
    plan: &Plan,
    minutes: u32,
    minute: Duration,
    over: &AtomicBool,
) -> Result<Vec<Load>, Failure> {
    let progress = AtomicU64::new(0);
    let throttle = Throttle {
        rate: Some(f64::from(plan.sensors) * 1e3 / STEP_MS as f64),
        seconds: Some(minute.as_secs_f64()),
        readings: None,
        progress: &progress,
        stop: over,
    };
    let mut loads = vec![];
    while loads.len() < minutes as usize && !over.load(Ordering::Relaxed) {
        let (mqtt, http) = lanes.split_at_mut(plan.single_lanes as usize);
        let (mqtt, http) = std::thread::scope(|scope| {
            let mqtt = scope.spawn(|| drive::phase(mqtt, plan, WINDOW, &throttle));
            let http = drive::phase(http, plan, WINDOW, &throttle);
            (run::joined(mqtt), http)
        });
        let mqtt = mqtt?;
        let http = http?;
        let load = Load {
            readings: mqtt.readings + http.readings,
            retries: mqtt.again + http.again,
            http_ms: http.latencies.percentiles(),
            mqtt_ms: mqtt.latencies.percentiles(),
        };
        eprintln!(
            "  minute {:>3}: {} readings, p99 {:.1} ms over HTTP, {:.1} ms to the broker",
            loads.len() + 1,
            load.readings,
            load.http_ms.p99,
            load.mqtt_ms.p99
        );
        loads.push(load);
    }
    Ok(loads)
}

/// Compares the store with what was acknowledged on the lanes.
async fn check_store(
    mongod: &Mongod,
    plan: &Plan,
    known: &Known,
    lanes: &[Lane],
) -> Result<Checked, Failure> {
    let messages: Vec<u64> = lanes.iter().map(|lane| lane.acknowledged).collect();
    let db = mongod.client().await?.database(run::DATABASE);
    let sent = Sent {
        plan,
        known,
        messages: &messages,
    };
    verify::check(&db, &sent).await
}

/// Samples the service until `over`.
fn watch(
    service: &Service,
    begun: Instant,
    over: &AtomicBool,
    course: &Mutex<Vec<Second>>,
) -> Result<(), Failure> {
    let mut next = begun;
    while !over.load(Ordering::Relaxed) {
        let ready = service.is_ready();
        let metrics = service.metrics()?;
        let used = service.usage();
        let second = Second {
            s: begun.elapsed().as_secs_f64(),
            ready,
            rss_bytes: used.rss_bytes,
            threads: used.threads,
            files: usage::open_files(service.pid()).unwrap_or_default(),
            cpu_s: used.cpu_s,
            waiting: metrics
                .count("readings_accepted_total")
                .saturating_sub(metrics.settled()),
            oldest_unstored_s: metrics.get("oldest_unstored_seconds"),
            mqtt_oldest_unacked_s: metrics.get("mqtt_oldest_unacked_seconds"),
        };
        course
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(second);
        next += SAMPLE_EVERY;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

/// Waits until the service has accepted everything that was acknowledged, by it or by the broker. A
/// message that the broker delivered twice counts as accepted twice, so this also waits until no
/// more are accepted.
fn all_accepted(service: &Service, readings: u64) -> Result<(), Failure> {
    let deadline = Instant::now() + ACCEPTED_WITHIN;
    let mut before = 0;
    loop {
        let accepted = service.metrics()?.count("readings_accepted_total");
        if accepted >= readings && accepted == before {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("timeout: of {readings} readings {accepted} are accepted").into());
        }
        before = accepted;
        std::thread::sleep(SAMPLE_EVERY * 2);
    }
}
