//! Runs a scenario: starts the parts, runs the phases, stops the service, and checks the store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::disk;
use crate::drive::{self, Lane, Target, Throttle};
use crate::parts::mongod::Mongod;
use crate::parts::mosquitto::Mosquitto;
use crate::parts::service::{Metrics, Service, scrape};
use crate::plan::{Plan, now_ms};
use crate::removal;
use crate::report::{self, OutageReport, PhaseReport, Report, Sample, Used};
use crate::spec::{Phase, Spec, Transport};
use crate::usage;
use crate::verify::{self, Known, Sent, Tamper};

/// Maximum number of rendered readings; values repeat after them.
const RENDERED_MAX: u32 = 1_000_000;
const RING_MAX: u32 = 250;
/// Interval of samples. A scrape costs the service some tens of microseconds.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);
/// Time limit until everything is accepted or stored.
const SETTLED_WITHIN: Duration = Duration::from_secs(900);
const HOUR_MS: i64 = 3_600_000;
pub(crate) const DATABASE: &str = "loadtest";

/// Options in addition to the scenario.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) binary: PathBuf,
    /// Additional environment variables of the service, without the prefix `HOURBUCKET_`.
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) tamper: Option<Tamper>,
    /// Whether to print progress.
    pub(crate) progress: bool,
}

/// The plan of a scenario that starts now.
pub(crate) fn plan(spec: &Spec) -> Plan {
    let now_ms = now_ms();
    Plan {
        seed: spec.seed,
        sensors: spec.sensors,
        batch: spec.batch,
        lanes: spec.connections,
        single_lanes: 0,
        ring: (RENDERED_MAX / spec.sensors).clamp(1, RING_MAX),
        base_ms: (now_ms / HOUR_MS + spec.begin_hour) * HOUR_MS,
        step_ms: spec.step_ms,
        shuffled: spec.shuffled,
    }
}

/// Where the readings are stored, as settings.
fn of_store(spec: &Spec, mongod: &Mongod) -> BTreeMap<String, String> {
    let settings = [
        ("STORE__URI", mongod.uri()),
        ("STORE__DATABASE", DATABASE.into()),
        ("STORE__MODE", spec.mode.clone()),
    ];
    settings.map(|(key, value)| (key.to_owned(), value)).into()
}

/// The running processes.
pub(crate) struct Rig {
    binary: PathBuf,
    pub(crate) mongod: Mongod,
    pub(crate) broker: Option<Mosquitto>,
    pub(crate) service: Service,
    /// The instance to which the service forwards.
    pub(crate) centre: Option<Service>,
    pub(crate) target: Target,
    /// Readings that were stored only to be removed.
    removable: u64,
}

impl Rig {
    pub(crate) async fn start(
        spec: &Spec,
        binary: &Path,
        more: &BTreeMap<String, String>,
    ) -> Result<Rig, Failure> {
        let mongod = Mongod::start().await?;
        let broker = (spec.transport == Transport::Mqtt)
            .then(Mosquitto::start)
            .transpose()?;
        let mut settings = spec.service.clone();
        settings.extend(more.clone());
        let mut set = |key: &str, value: String| {
            settings.entry(key.to_owned()).or_insert(value);
        };
        // Time is compressed: a run writes readings for many future hours.
        let future = "365d";
        set("LIMITS__FUTURE", future.into());
        let of_store = of_store(spec, &mongod);
        let centre = if spec.forward {
            let mut of_centre = of_store;
            of_centre.insert("LIMITS__FUTURE".into(), future.into());
            let centre = Service::start(binary, &of_centre)?;
            let url = format!("http://127.0.0.1:{}", centre.http_port);
            set("FORWARD__URL", url);
            Some(centre)
        } else {
            of_store
                .into_iter()
                .for_each(|(key, value)| set(&key, value));
            None
        };
        if let Some(broker) = &broker {
            set("MQTT__0__URL", format!("mqtt://127.0.0.1:{}", broker.port));
            set("MQTT__0__CLIENT_ID", "hourbucket-1".into());
            set("MQTT__0__SUBSCRIPTIONS__0__FILTER", "sensors/+".into());
            set(
                "MQTT__0__SUBSCRIPTIONS__0__TOPIC",
                "sensors/{sensor_id}".into(),
            );
            set("MQTT__0__SUBSCRIPTIONS__0__FORMAT", "json".into());
        }
        if spec.transport == Transport::DirectMqtt {
            set("LISTEN__MQTT__ENABLED", "true".into());
            set("LISTEN__MQTT__TOPICS__0__FILTER", "sensors/+".into());
            set(
                "LISTEN__MQTT__TOPICS__0__TOPIC",
                "sensors/{sensor_id}".into(),
            );
            set("LISTEN__MQTT__TOPICS__0__FORMAT", "json".into());
        }
        let service = Service::start(binary, &settings)?;
        let port = match (spec.transport, &broker) {
            (_, Some(broker)) => broker.port,
            (Transport::DirectMqtt, None) => service.mqtt_port,
            (_, None) => service.http_port,
        };
        Ok(Rig {
            binary: binary.to_owned(),
            mongod,
            broker,
            service,
            centre,
            target: Target {
                transport: spec.transport,
                port,
            },
            removable: 0,
        })
    }

    /// With the readings that were stored only to be removed.
    fn all_readings(&self, report: &Report) -> u64 {
        report.readings + self.removable
    }

    /// The instance that stores.
    fn storing(&self) -> &Service {
        self.centre.as_ref().unwrap_or(&self.service)
    }

    /// Resources used so far.
    pub(crate) fn used(&self) -> Used {
        Used {
            service: self.service.usage(),
            mongod: self.mongod.usage(),
            broker: self.broker.as_ref().map(Mosquitto::usage),
            centre: self.centre.as_ref().map(Service::usage),
            loadtest: usage::of(std::process::id()).unwrap_or_default(),
        }
    }
}

/// The samples so far, for the progress output and the outage.
#[derive(Default)]
struct Course {
    samples: Mutex<Vec<Sample>>,
    progress: AtomicU64,
    over: AtomicBool,
}

impl Course {
    /// Collects samples until `over`. Runs in a separate thread.
    fn watch(&self, admin_port: u16, pid: u32, begun: Instant, show: bool) {
        let mut printed_at = Instant::now();
        while !self.over.load(Ordering::Relaxed) {
            let acked = self.progress.load(Ordering::Relaxed);
            if let Ok(metrics) = scrape(admin_port) {
                let sample = Sample {
                    s: begun.elapsed().as_secs_f64(),
                    acked,
                    accepted: metrics.count("readings_accepted_total"),
                    settled: metrics.settled(),
                    rss_bytes: usage::of(pid).unwrap_or_default().rss_bytes,
                    accumulate_bytes: metrics.count("accumulate_bytes"),
                    journal_bytes: metrics.count("journal_bytes"),
                };
                if show && printed_at.elapsed() > Duration::from_secs(1) {
                    printed_at = Instant::now();
                    let Sample {
                        s, acked, settled, ..
                    } = sample;
                    eprintln!("  {s:6.1} s {acked:>12} acknowledged {settled:>12} stored");
                }
                lock(&self.samples).push(sample);
            }
            std::thread::sleep(SAMPLE_EVERY);
        }
    }

    fn last(&self) -> Sample {
        lock(&self.samples).last().cloned().unwrap_or_default()
    }
}

/// Stops the other threads however the run ends: the scope waits for its threads after a panic too.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(crate) async fn run(spec: &Spec, options: &Options) -> Result<Report, Failure> {
    let plan = plan(spec);
    let mut rig = Rig::start(spec, &options.binary, &options.settings).await?;
    let mut waited = Duration::ZERO;
    let (mut lanes, known) = drive::prepare(spec, &plan, |_| rig.target);
    let mut report = Report {
        scenario: spec.name.clone(),
        mode: spec.mode.clone(),
        format: format!("{:?}", spec.format).to_lowercase(),
        sensors: spec.sensors,
        batch: spec.batch,
        connections: spec.connections,
        ..Report::default()
    };
    let before = rig.used();
    report.rss_begin_bytes = before.service.rss_bytes;
    let course = Course::default();
    let begun = Instant::now();
    let admin_port = rig.storing().admin_port;
    let pid = rig.service.pid();
    std::thread::scope(|scope| {
        scope.spawn(|| course.watch(admin_port, pid, begun, options.progress));
        let _over = Over(&course.over);
        phases(
            spec,
            &plan,
            &mut rig,
            &mut lanes,
            &course,
            &mut report,
            &mut waited,
        )?;
        settle(spec, &rig, &mut report, begun)
    })?;
    let load = usage::of(std::process::id())
        .unwrap_or_default()
        .since(before.loadtest);
    let Rig {
        mongod,
        broker,
        service,
        centre,
        ..
    } = rig;
    let ended = service.terminate()?;
    let centre = centre.map(Service::terminate).transpose()?;
    report.accepted_s -= waited.as_secs_f64();
    report.stored_s = begun.elapsed().as_secs_f64()
        - waited.as_secs_f64()
        - idle_s(&report, spec, &ended.drain, waited);
    report.used = Used {
        service: ended.usage.since(before.service),
        mongod: mongod.usage().since(before.mongod),
        broker: broker
            .as_ref()
            .map(|b| b.usage().since(before.broker.unwrap_or_default())),
        centre: centre
            .as_ref()
            .map(|c| c.usage.since(before.centre.unwrap_or_default())),
        loadtest: load,
    };
    report.forward_requests = ended.metrics.count("forward_requests_total");
    report.forward_bytes = ended.metrics.count("forward_bytes_total");
    let stored = &centre.as_ref().unwrap_or(&ended).metrics;
    report.statements = stored.kinds("store_statements_total");
    report.conflicts = stored.count("store_conflicts_total");
    report.retries = stored.count("store_retries_total");
    report.duplicates = stored.count("readings_duplicate_total");
    report.course = std::mem::take(&mut *lock(&course.samples));
    check(&plan, &known, &lanes, &mongod, options.tamper, &mut report).await?;
    Ok(report)
}

/// Idle time of the service. If a scenario waits until everything is stored, `flush.max_age` passes,
/// and then `settle_seconds`; neither may count as time of the service.
fn idle_s(report: &Report, spec: &Spec, drain: &Duration, waited: Duration) -> f64 {
    match spec.settle_seconds {
        Some(_) => {
            (report.stored_s - waited.as_secs_f64() - report.accepted_s).max(0.0)
                + drain.as_secs_f64()
        }
        None => 0.0,
    }
}

fn phases(
    spec: &Spec,
    plan: &Plan,
    rig: &mut Rig,
    lanes: &mut [Lane],
    course: &Course,
    report: &mut Report,
    waited: &mut Duration,
) -> Result<(), Failure> {
    for phase in &spec.phases {
        if phase.quiet_first {
            *waited += until_stored(rig.storing(), rig.all_readings(report))?;
        }
        if let Some(readings) = phase.remove {
            let begun = Instant::now();
            let earlier = rig.all_readings(report);
            rig.removable += removal::store(rig.storing(), readings, earlier)?;
            *waited += begun.elapsed();
        }
        let reached = report
            .phases
            .first()
            .map_or(0.0, |first: &PhaseReport| first.lasting_per_s);
        // A short first phase may end before anything is stored.
        let rate = phase
            .rate
            .or(phase.share.map(|share| (share * reached).max(1.0)));
        if let Some(rate) = rate.filter(|rate| !(1.0..=1e9).contains(rate)) {
            return Err(format!(
                "phase {}: rate of {rate} readings/s is out of range",
                phase.name
            )
            .into());
        }
        let before = rig.used();
        let metrics_before = rig.service.metrics()?;
        let stop = AtomicBool::new(false);
        let of_store = of_store(spec, &rig.mongod);
        let removable = rig.removable;
        let binary = &rig.binary;
        let mongod = &mut rig.mongod;
        let (driven, outage, removal, disk) = std::thread::scope(|scope| {
            let over = Over(&stop);
            let disk = rate.map(|_| scope.spawn(|| disk::watch(&stop)));
            let outage = phase.outage_after.map(|after| {
                let stop = &stop;
                let phase = phase.clone();
                scope.spawn(move || self::outage(mongod, &phase, after, course, stop))
            });
            let removal = phase.remove.map(|_| {
                let (of_store, stop) = (&of_store, &stop);
                scope.spawn(move || removal::remove(binary, of_store, removable, stop))
            });
            let throttle = Throttle {
                rate,
                seconds: phase.seconds,
                readings: phase.readings,
                progress: &course.progress,
                stop: &stop,
            };
            let driven = drive::phase(lanes, plan, spec.window, &throttle);
            drop(over);
            (
                driven,
                outage.map(joined),
                removal.map(joined),
                disk.map(joined),
            )
        });
        let driven = driven?;
        report.acked_s += driven.seconds;
        report.readings += driven.readings;
        let acked_per_s = driven.readings as f64 / driven.seconds;
        let used = rig.used().since(&before);
        let metrics = rig.service.metrics()?;
        let more = |count: fn(&Metrics) -> u64| count(&metrics) - count(&metrics_before);
        let stored_per_s = match metrics.settled() {
            // The phase ended before a page was full: the rate of MongoDB is unknown.
            0 => f64::INFINITY,
            settled => settled as f64 / report.acked_s,
        };
        report.phases.push(PhaseReport {
            name: phase.name.clone(),
            readings: driven.readings,
            seconds: driven.seconds,
            acked_per_s,
            lasting_per_s: acked_per_s.min(stored_per_s),
            rate,
            again: driven.again,
            service_cpu_s: used.service.cpu_s,
            mongod_cpu_s: used.mongod.cpu_s,
            statements: more(|metrics| report::writes(&metrics.kinds("store_statements_total"))),
            syncs: more(|metrics| metrics.count("journal_sync_seconds_count")),
            latency_ms: driven.latencies.percentiles(),
            disk_ms: disk.transpose()?,
            outage: outage.transpose()?,
            removal: removal.transpose()?,
        });
    }
    Ok(())
}

pub(crate) fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Waits until this many readings are stored; returns the elapsed time.
pub(crate) fn until_stored(service: &Service, readings: u64) -> Result<Duration, Failure> {
    let begun = Instant::now();
    while service.metrics()?.settled() < readings {
        if begun.elapsed() > SETTLED_WITHIN {
            return Err(
                format!("{readings} readings are not stored after {SETTLED_WITHIN:?}").into(),
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(begun.elapsed())
}

/// Kills MongoDB, starts it again, and ends the phase when the backlog is stored.
fn outage(
    mongod: &mut Mongod,
    phase: &Phase,
    after: f64,
    course: &Course,
    stop: &AtomicBool,
) -> Result<OutageReport, Failure> {
    let waiting = |sample: &Sample| sample.accepted.saturating_sub(sample.settled);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let pause = |s: f64| std::thread::sleep(Duration::from_secs_f64(s));
    // The usual backlog is the maximum in the second half of the time before the kill. The first
    // half may contain the backlog of the previous phase.
    pause(after / 2.0);
    let first = lock(&course.samples).len();
    pause(after / 2.0);
    let usual = lock(&course.samples)[first..]
        .iter()
        .map(waiting)
        .max()
        .unwrap_or_default();
    let killed = Instant::now();
    mongod.kill9();
    pause(phase.outage_seconds);
    mongod.spawn()?;
    if !runtime.block_on(mongod.primary())? {
        return Err("another process took MongoDB's port during the outage".into());
    }
    let back = Instant::now();
    let mut report = OutageReport {
        away_s: killed.elapsed().as_secs_f64(),
        backlog: waiting(&course.last()),
        gone_after_s: None,
    };
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
        let last = course.last();
        if waiting(&last) <= usual {
            report.gone_after_s = Some(back.elapsed().as_secs_f64());
            stop.store(true, Ordering::Relaxed);
        }
    }
    Ok(report)
}

/// Waits until the service has accepted everything. With `settle_seconds` also until everything is
/// stored, and so long afterwards; then measures its memory.
fn settle(spec: &Spec, rig: &Rig, report: &mut Report, begun: Instant) -> Result<(), Failure> {
    let deadline = Instant::now() + SETTLED_WITHIN;
    let mut accepted = false;
    loop {
        let metrics = rig.service.metrics()?;
        if !accepted && metrics.count("readings_accepted_total") >= rig.all_readings(report) {
            accepted = true;
            report.accepted_s = begun.elapsed().as_secs_f64();
        }
        let is_over = spec.settle_seconds.is_none()
            || rig.storing().metrics()?.settled() >= rig.all_readings(report);
        if accepted && is_over {
            if let Some(seconds) = spec.settle_seconds {
                std::thread::sleep(Duration::from_secs(seconds));
                report.rss_settled_bytes = Some(rig.service.usage().rss_bytes);
                report.accumulate_settled_bytes =
                    Some(rig.service.metrics()?.count("accumulate_bytes"));
            }
            report.stored_s = begun.elapsed().as_secs_f64();
            return Ok(());
        }
        if Instant::now() > deadline {
            let now = metrics.count("readings_accepted_total");
            let all = report.readings;
            let stored = metrics.settled();
            return Err(format!(
                "timeout: of {all} readings {now} are accepted and {stored} stored"
            )
            .into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

async fn check(
    plan: &Plan,
    known: &Known,
    lanes: &[Lane],
    mongod: &Mongod,
    tamper: Option<Tamper>,
    report: &mut Report,
) -> Result<(), Failure> {
    let db = mongod.client().await?.database(DATABASE);
    if let Some(how) = tamper {
        verify::tamper(&db, how).await?;
    }
    let messages: Vec<u64> = lanes.iter().map(|lane| lane.acknowledged).collect();
    report.check = verify::check(
        &db,
        &Sent {
            plan,
            known,
            messages: &messages,
        },
    )
    .await?;
    Ok(())
}

/// The file, or the scenario with this name in `specs/`.
pub(crate) fn find_spec(name: &Path, short: bool) -> Result<Spec, Failure> {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("specs")
        .join(name)
        .with_extension("toml");
    Spec::read(if name.is_file() { name } else { &shipped }, short)
}
