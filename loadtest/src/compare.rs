//! The comparison: runs common ways of writing, the lower bound ("floor") and hourbucket one after
//! the other on the same machine, each with its own MongoDB. Then compares the ratios with the
//! targets of the project.

use std::path::Path;

use serde::Serialize;

use crate::Failure;
use crate::baseline::acknowledge::{self, Delivered};
use crate::baseline::{self, Outcome, Way, telegraf};
use crate::report::{Latency, PhaseReport, Report};
use crate::run::{self, Options};
use crate::spec::Spec;

/// Seconds per baseline.
const BASELINE_S: f64 = 10.0;
const BASELINE_SHORT_S: f64 = 0.5;
const TELEGRAF_MESSAGES: u64 = 20_000;
const TELEGRAF_MESSAGES_SHORT: u64 = 500;

/// The parts of the comparison, in the order of execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// (a) one $push upsert per reading
    Naive,
    /// (b) one measurement per reading, in order of arrival
    Arrival,
    /// (b2) measurements sorted, 600 of a sensor together
    Sorted,
    /// (c) whole pages
    Pages,
    /// (d) hourbucket, bucket mode, NDJSON
    Gateway,
    /// (d) with line protocol
    GatewayLine,
    /// (e) hourbucket, time-series mode
    GatewayTimeseries,
    /// (d) with line protocol, at half of its rate
    GatewayHalf,
    /// (d) with `ack = "stored"`
    GatewayStored,
    /// Devices on listen.mqtt, at full speed and at 10,000 messages/s
    DirectMqtt,
    /// (f) MQTT to a subscriber that only acknowledges
    Acknowledge,
    /// hourbucket over MQTT
    Fleet,
    /// (g) Telegraf, if it is on the path
    Telegraf,
    /// A million sensors
    Wide,
    /// The same in time-series mode
    WideTimeseries,
    /// A thousand sensors with as few readings per flush
    #[value(name = "wide-1k")]
    #[serde(rename = "wide-1k")]
    Wide1k,
    /// MongoDB unreachable for a minute
    Outage,
}

const ALL: [Part; 17] = [
    Part::Naive,
    Part::Arrival,
    Part::Sorted,
    Part::Pages,
    Part::Gateway,
    Part::GatewayLine,
    Part::GatewayTimeseries,
    Part::GatewayHalf,
    Part::GatewayStored,
    Part::DirectMqtt,
    Part::Acknowledge,
    Part::Fleet,
    Part::Telegraf,
    Part::Wide,
    Part::WideTimeseries,
    Part::Wide1k,
    Part::Outage,
];

/// The result of a part.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
enum PartResult {
    Baseline(Outcome),
    Acknowledge(Delivered),
    Telegraf(Delivered),
    Service(Box<Report>),
    /// The part could not be run; the comparison continues.
    Failed(String),
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Comparison {
    short: bool,
    parts: Vec<(Part, PartResult)>,
    pub(crate) targets: Vec<Target>,
}

/// A line of the project's table of targets.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Target {
    what: &'static str,
    /// Whether the target is a minimum instead of a maximum.
    at_least: bool,
    target: f64,
    /// Absent if a part was not run or failed.
    measured: Option<f64>,
}

impl Target {
    fn met(&self) -> Option<bool> {
        self.measured.map(|m| {
            if self.at_least {
                m >= self.target
            } else {
                m <= self.target
            }
        })
    }

    fn row(&self) -> String {
        let sign = if self.at_least { "≥" } else { "≤" };
        let (measured, met) = match (self.measured, self.met()) {
            (Some(m), Some(true)) => (short_number(m), "met".to_owned()),
            (Some(m), _) => (
                short_number(m),
                format!("**missed**, {} of it", short_number(m / self.target)),
            ),
            _ => ("-".into(), "not measured".into()),
        };
        format!(
            "| {} | {sign} {} | {measured} | {met} |",
            self.what, self.target
        )
    }
}

fn short_number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Runs the parts in `only`, or all if it is empty.
pub(crate) async fn compare(
    only: &[Part],
    short: bool,
    options: &Options,
) -> Result<Comparison, Failure> {
    let mut parts = vec![];
    for part in ALL
        .into_iter()
        .filter(|part| only.is_empty() || only.contains(part))
    {
        eprintln!("{}:", name(part));
        if part == Part::Telegraf && telegraf::binary().is_none() {
            eprintln!("  skipped: not on the path; set HOURBUCKET_TELEGRAF");
            continue;
        }
        let result = one(part, short, options)
            .await
            .unwrap_or_else(|error| PartResult::Failed(error.to_string()));
        match &result {
            PartResult::Baseline(o) => eprintln!("  {:.0} readings/s", o.per_s()),
            PartResult::Acknowledge(d) | PartResult::Telegraf(d) => {
                eprintln!("  {:.0} messages/s", d.per_s())
            }
            PartResult::Service(report) => {
                report.lines().iter().for_each(|line| eprintln!("  {line}"))
            }
            PartResult::Failed(why) => eprintln!("  failed: {why}"),
        }
        parts.push((part, result));
    }
    let targets = targets(&parts);
    Ok(Comparison {
        short,
        parts,
        targets,
    })
}

fn name(part: Part) -> String {
    clap::ValueEnum::to_possible_value(&part)
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

async fn one(part: Part, short: bool, options: &Options) -> Result<PartResult, Failure> {
    let spec = |name: &str| run::find_spec(Path::new(name), short);
    let baseline = async |way| {
        let plan = run::plan(&spec("gateway")?);
        let outcome = baseline::run(
            way,
            &plan,
            if short { BASELINE_SHORT_S } else { BASELINE_S },
        )
        .await?;
        Ok(PartResult::Baseline(outcome))
    };
    let service = async |spec: Spec| {
        Ok(PartResult::Service(Box::new(
            run::run(&spec, options).await?,
        )))
    };
    let first_phase = |name: &str| {
        let mut spec = spec(name)?;
        spec.phases.truncate(1);
        Ok::<_, Failure>(spec)
    };
    match part {
        Part::Naive => baseline(Way::Naive).await,
        Part::Arrival => baseline(Way::Arrival).await,
        Part::Sorted => baseline(Way::Sorted).await,
        Part::Pages => baseline(Way::Pages).await,
        Part::Gateway | Part::GatewayLine | Part::GatewayTimeseries => {
            service(first_phase(&name(part))?).await
        }
        Part::GatewayHalf => service(spec("gateway-line")?).await,
        Part::GatewayStored | Part::DirectMqtt | Part::WideTimeseries => {
            service(spec(&name(part))?).await
        }
        Part::Acknowledge => Ok(PartResult::Acknowledge(acknowledge::run(&spec("fleet")?)?)),
        Part::Telegraf => {
            let messages = if short {
                TELEGRAF_MESSAGES_SHORT
            } else {
                TELEGRAF_MESSAGES
            };
            Ok(PartResult::Telegraf(
                telegraf::run(&spec("fleet")?, messages).await?,
            ))
        }
        Part::Fleet | Part::Wide | Part::Wide1k | Part::Outage => service(spec(&name(part))?).await,
    }
}

/// The results of the parts, for the targets. A run that lost or duplicated a reading does not
/// count.
struct Results<'a>(&'a [(Part, PartResult)]);

impl Results<'_> {
    fn of(&self, part: Part) -> Option<&PartResult> {
        self.0
            .iter()
            .find(|(p, _)| *p == part)
            .map(|(_, result)| result)
    }

    fn baseline(&self, part: Part) -> Option<&Outcome> {
        match self.of(part) {
            Some(PartResult::Baseline(outcome)) => Some(outcome),
            _ => None,
        }
    }

    fn service(&self, part: Part) -> Option<&Report> {
        match self.of(part) {
            Some(PartResult::Service(report)) if report.check.problems.is_empty() => Some(report),
            _ => None,
        }
    }

    fn phase(&self, part: Part, n: usize) -> Option<&PhaseReport> {
        self.service(part)?.phases.get(n)
    }

    /// The phase of `wide` after its first minutes: the cost of a fleet that has been sending for
    /// some time.
    fn steady(&self, part: Part) -> Option<&PhaseReport> {
        self.service(part)?.phases.last()
    }

    /// Readings stored per second, times those of a baseline.
    fn times(&self, part: Part, baseline: Part) -> Option<f64> {
        Some(self.service(part)?.stored_per_s() / self.baseline(baseline)?.per_s())
    }

    /// CPU seconds of the service per million readings.
    fn cpu(&self, part: Part) -> Option<f64> {
        self.service(part).map(|r| r.per_million(r.used.service))
    }

    /// The same of MongoDB.
    fn mongod(&self, part: Part) -> Option<f64> {
        self.service(part).map(|r| r.per_million(r.used.mongod))
    }

    fn times_floor(&self) -> Option<f64> {
        let both = self
            .service(Part::Gateway)
            .map(|r| r.per_million(r.used.service.plus(r.used.mongod)))?;
        let floor = self.baseline(Part::Pages)?;
        Some(
            both / ((floor.used.loadtest.cpu_s + floor.used.mongod.cpu_s) * 1e6
                / floor.readings as f64),
        )
    }

    fn times_sorted_cpu(&self) -> Option<f64> {
        let sorted = self.baseline(Part::Sorted)?;
        Some(
            self.mongod(Part::GatewayTimeseries)?
                / (sorted.used.mongod.cpu_s * 1e6 / sorted.readings as f64),
        )
    }

    fn times_subscriber(&self) -> Option<f64> {
        match self.of(Part::Acknowledge) {
            Some(PartResult::Acknowledge(all)) => {
                Some(self.service(Part::Fleet)?.accepted_per_s() / all.per_s())
            }
            _ => None,
        }
    }

    fn idle_bytes(&self) -> Option<f64> {
        let wide = self.service(Part::Wide)?;
        Some(
            wide.rss_settled_bytes?.saturating_sub(wide.rss_begin_bytes) as f64
                / f64::from(wide.sensors),
        )
    }
}

/// The targets of the project, with the values measured by the parts.
fn targets(parts: &[(Part, PartResult)]) -> Vec<Target> {
    let of = Results(parts);
    let most = |what, target, measured| Target {
        what,
        at_least: false,
        target,
        measured,
    };
    let least = |what, target, measured| Target {
        what,
        at_least: true,
        target,
        measured,
    };
    let half = of.phase(Part::GatewayHalf, 1).map(|phase| phase.latency_ms);
    let slow = of.phase(Part::DirectMqtt, 1);
    let service_cpu = |phase: &PhaseReport| phase.per_million(phase.service_cpu_s);
    let mongod_cpu = |phase: &PhaseReport| phase.per_million(phase.mongod_cpu_s);
    let outage = of.service(Part::Outage).and_then(|r| {
        r.phases
            .iter()
            .find_map(|p| p.outage.as_ref()?.gone_after_s)
    });
    let wide = of.steady(Part::Wide);
    let wide_timeseries = of.steady(Part::WideTimeseries);
    let wide_times = wide
        .map(service_cpu)
        .zip(of.cpu(Part::Wide1k))
        .map(|(wide, narrow)| wide / narrow);
    vec![
        least(
            "gateway, bucket mode: readings/s, times naive (a)",
            40.0,
            of.times(Part::Gateway, Part::Naive),
        ),
        most(
            "gateway, bucket mode: CPU of service and mongod, times client and mongod of the floor \
             (c)",
            2.0,
            of.times_floor(),
        ),
        most(
            "gateway, service CPU-s per million readings, NDJSON",
            0.9,
            of.cpu(Part::Gateway),
        ),
        most(
            "gateway, service CPU-s per million readings, line protocol",
            0.7,
            of.cpu(Part::GatewayLine),
        ),
        least(
            "gateway, time-series mode: readings/s, times sorted inserts (b2)",
            0.9,
            of.times(Part::GatewayTimeseries, Part::Sorted),
        ),
        most(
            "gateway, time-series mode: mongod CPU, times that of sorted inserts (b2)",
            1.3,
            of.times_sorted_cpu(),
        ),
        most(
            "gateway-line at half of its rate: ack p99, ms",
            10.0,
            half.map(|ms| ms.p99),
        ),
        most(
            "gateway-line at half of its rate: ack p99.9, ms",
            50.0,
            half.map(|ms| ms.p999),
        ),
        least(
            "ack = stored: readings/s, times naive (a)",
            1.0,
            of.times(Part::GatewayStored, Part::Naive),
        ),
        most(
            "ack = stored: mongod CPU-s per million readings",
            130.0,
            of.mongod(Part::GatewayStored),
        ),
        most(
            "listen.mqtt, 10,000 messages/s: service CPU-s per million",
            20.0,
            slow.map(service_cpu),
        ),
        most(
            "listen.mqtt, 10,000 messages/s: ack p99, ms",
            10.0,
            slow.map(|phase| phase.latency_ms.p99),
        ),
        least(
            "fleet: messages/s, times the subscriber that only acknowledges (f)",
            0.95,
            of.times_subscriber(),
        ),
        most(
            "fleet: service CPU-s per million messages",
            8.0,
            of.cpu(Part::Fleet),
        ),
        most(
            "wide: mongod CPU-s per million readings, bucket mode",
            30.0,
            wide.map(mongod_cpu),
        ),
        most(
            "wide: mongod CPU-s per million readings, time-series mode",
            30.0,
            wide_timeseries.map(mongod_cpu),
        ),
        most(
            "wide: service CPU-s per million readings",
            5.0,
            wide.map(service_cpu),
        ),
        most(
            "wide: resident bytes an idle sensor",
            300.0,
            of.idle_bytes(),
        ),
        most(
            "wide: service CPU a reading at 1,000,000 sensors, times that at 1,000",
            2.0,
            wide_times,
        ),
        most(
            "outage of 60 s at half rate: backlog gone after, s",
            60.0,
            outage,
        ),
    ]
}

impl Comparison {
    /// Whether every part was run, and no reading was lost or duplicated.
    pub(crate) fn sound(&self) -> bool {
        self.parts.iter().all(|(_, result)| match result {
            PartResult::Service(report) => report.check.problems.is_empty(),
            PartResult::Failed(_) => false,
            _ => true,
        })
    }

    /// The reports of the scenarios, for their plots.
    pub(crate) fn reports(&self) -> impl Iterator<Item = &Report> {
        self.parts.iter().filter_map(|(_, result)| match result {
            PartResult::Service(report) => Some(&**report),
            _ => None,
        })
    }

    /// The disk latency at half of the rate: the lower bound of the acknowledgement latency.
    fn disk(&self) -> Option<String> {
        let (_, PartResult::Service(report)) = self
            .parts
            .iter()
            .find(|(part, _)| *part == Part::GatewayHalf)?
        else {
            return None;
        };
        let phase = report.phases.iter().find(|phase| phase.disk_ms.is_some())?;
        let ack = phase.latency_ms;
        let disk = phase.disk_ms?;
        let latency_text = |l: Latency| {
            format!(
                "{:.2} / {:.2} / {:.2}, at most {:.1}",
                l.p50, l.p99, l.p999, l.max
            )
        };
        Some(format!(
            "\ngateway at half of its rate ({:.0}/s): acknowledged within p50 / p99 / p99.9 {} ms; \
             on the same disk, at the same time, 4 KiB written and synced within {} ms.",
            phase.rate.unwrap_or_default(),
            latency_text(ack),
            latency_text(disk)
        ))
    }

    /// The measurements and the targets, as Markdown.
    pub(crate) fn markdown(&self) -> Vec<String> {
        let mut lines = vec![
            "CPU-s are per million readings; *client* is the bare driver loop of a baseline, or \
             the service."
                .to_owned(),
            String::new(),
            "| | readings/s | client CPU-s | mongod CPU-s | broker CPU-s | mongod written \
             B/reading | statements/reading | ack p50 / p99 / p99.9 ms | peak MiB | stored once |"
                .to_owned(),
            "|---|---|---|---|---|---|---|---|---|---|".to_owned(),
        ];
        lines.extend(self.parts.iter().map(|(part, result)| row(*part, result)));
        lines.push(String::new());
        lines.push("| what | target | measured | |".into());
        lines.push("|---|---|---|---|".into());
        lines.extend(self.targets.iter().map(Target::row));
        lines.extend(self.disk());
        lines
    }
}

fn row(part: Part, result: &PartResult) -> String {
    let name = name(part);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    match result {
        PartResult::Failed(why) => {
            let why: String = why
                .lines()
                .next()
                .unwrap_or_default()
                .chars()
                .take(120)
                .collect();
            format!(
                "| {name} | failed: {} | | | | | | | | |",
                why.replace('|', "/")
            )
        }
        PartResult::Baseline(o) => {
            let per = |x: f64| x / o.readings.max(1) as f64;
            format!(
                "| {name}: {} | {:.0} | {:.3} | {:.3} | | {:.0} | {:.5} | | {:.0} | counted |",
                o.way.about(),
                o.per_s(),
                per(o.used.loadtest.cpu_s) * 1e6,
                per(o.used.mongod.cpu_s) * 1e6,
                per(o.used.mongod.written_bytes as f64),
                per(o.statements as f64),
                mib(o.used.mongod.rss_peak_bytes),
            )
        }
        PartResult::Acknowledge(d) => {
            let broker = d.used.broker.unwrap_or_default();
            let broker_cpu = broker.cpu_s * 1e6 / d.readings.max(1) as f64;
            format!(
                "| {name} | {:.0} | | | {broker_cpu:.3} | | | | {:.0} | received |",
                d.per_s(),
                mib(broker.rss_peak_bytes)
            )
        }
        PartResult::Telegraf(d) => {
            let per = |x: f64| x * 1e6 / d.readings.max(1) as f64;
            let broker = d.used.broker.unwrap_or_default();
            format!(
                "| {name}: mqtt_consumer to mongodb, an insert a reading | {:.0} | {:.3} | {:.3} | \
                 {:.3} | {:.0} | | | {:.0} | counted |",
                d.per_s(),
                per(d.used.service.cpu_s),
                per(d.used.mongod.cpu_s),
                per(broker.cpu_s),
                d.used.mongod.written_bytes as f64 / d.readings.max(1) as f64,
                mib(d.used.service.rss_peak_bytes),
            )
        }
        PartResult::Service(r) => {
            let last = r.phases.last();
            let Latency { p50, p99, p999, .. } = last.map(|p| p.latency_ms).unwrap_or_default();
            let broker = r
                .used
                .broker
                .map_or(String::new(), |b| format!("{:.3}", r.per_million(b)));
            let rate = if r.broker_decides() {
                r.accepted_per_s()
            } else {
                r.stored_per_s()
            };
            let steady = last.filter(|_| matches!(part, Part::Wide | Part::WideTimeseries));
            let (about, service, mongod, statements) = match steady {
                Some(p) => (
                    ", after the first minutes",
                    p.per_million(p.service_cpu_s),
                    p.per_million(p.mongod_cpu_s),
                    p.statements_per_reading(),
                ),
                None => (
                    "",
                    r.per_million(r.used.service),
                    r.per_million(r.used.mongod),
                    r.statements_per_reading(),
                ),
            };
            format!(
                "| {name}: hourbucket, {}, {}{about} | {rate:.0} | {service:.3} | {mongod:.3} | \
                 {broker} | {:.0} | {statements:.5} | {p50:.2} / {p99:.2} / {p999:.2} | {:.0} | {} \
                 |",
                r.mode,
                r.format,
                r.used.mongod.written_bytes as f64 / r.readings.max(1) as f64,
                mib(r.used.service.rss_peak_bytes),
                if r.check.problems.is_empty() {
                    "yes"
                } else {
                    "**NO**"
                }
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_missed_or_not_measured() {
        let target = |at_least, measured| Target {
            what: "x",
            at_least,
            target: 2.0,
            measured,
        };
        assert_eq!(target(true, Some(2.5)).met(), Some(true));
        assert_eq!(target(true, Some(1.5)).met(), Some(false));
        assert_eq!(target(false, Some(1.5)).met(), Some(true));
        assert_eq!(target(false, None).met(), None);
        assert_eq!(
            target(false, Some(3.0)).row(),
            "| x | ≤ 2 | 3.00 | **missed**, 1.50 of it |"
        );
        assert!(targets(&[]).iter().all(|t| t.met().is_none()));
    }

    #[test]
    fn a_run_that_lost_a_reading_has_no_speed() {
        let mut report = Report {
            readings: 10,
            stored_s: 1.0,
            ..Report::default()
        };
        let parts = |r: &Report| [(Part::Gateway, PartResult::Service(Box::new(r.clone())))];
        assert!(targets(&parts(&report))[2].measured.is_some());
        report.check.problems.push("one is missing".into());
        assert!(targets(&parts(&report))[2].measured.is_none());
    }
}
