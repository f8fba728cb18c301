//! The comparison: runs common ways of writing, the lower bound ("floor") and hourbucket one after the other on the
//! same machine, each with its own MongoDB. Then compares the ratios with the targets of the project.

use std::path::Path;

use serde::Serialize;

use crate::Failure;
use crate::baseline::acknowledge::{self, Delivered};
use crate::baseline::{self, Outcome, Way, telegraf};
use crate::report::{Latency, Report};
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
    /// (d) at half of its rate
    GatewayHalf,
    /// (f) MQTT to a subscriber that only acknowledges
    Acknowledge,
    /// hourbucket over MQTT
    Fleet,
    /// (g) Telegraf, if it is on the path
    Telegraf,
    /// A million sensors
    Wide,
    /// A thousand sensors with as few readings per flush
    #[value(name = "wide-1k")]
    #[serde(rename = "wide-1k")]
    Wide1k,
    /// MongoDB unreachable for a minute
    Outage,
}

const ALL: [Part; 14] = [
    Part::Naive,
    Part::Arrival,
    Part::Sorted,
    Part::Pages,
    Part::Gateway,
    Part::GatewayLine,
    Part::GatewayTimeseries,
    Part::GatewayHalf,
    Part::Acknowledge,
    Part::Fleet,
    Part::Telegraf,
    Part::Wide,
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
        self.measured.map(|m| if self.at_least { m >= self.target } else { m <= self.target })
    }

    fn row(&self) -> String {
        let sign = if self.at_least { "≥" } else { "≤" };
        let (measured, met) = match (self.measured, self.met()) {
            (Some(m), Some(true)) => (short_number(m), "met".to_owned()),
            (Some(m), _) => (short_number(m), format!("**missed**, {} of it", short_number(m / self.target))),
            _ => ("-".into(), "not measured".into()),
        };
        format!("| {} | {sign} {} | {measured} | {met} |", self.what, self.target)
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
pub(crate) async fn compare(only: &[Part], short: bool, options: &Options) -> Result<Comparison, Failure> {
    let mut parts = vec![];
    for part in ALL.into_iter().filter(|part| only.is_empty() || only.contains(part)) {
        eprintln!("{}:", name(part));
        if part == Part::Telegraf && telegraf::binary().is_none() {
            eprintln!("  skipped: not on the path; set HOURBUCKET_TELEGRAF");
            continue;
        }
        let result = one(part, short, options).await.unwrap_or_else(|error| PartResult::Failed(error.to_string()));
        match &result {
            PartResult::Baseline(o) => eprintln!("  {:.0} readings/s", o.per_s()),
            PartResult::Acknowledge(d) | PartResult::Telegraf(d) => eprintln!("  {:.0} messages/s", d.per_s()),
            PartResult::Service(report) => report.lines().iter().for_each(|line| eprintln!("  {line}")),
            PartResult::Failed(why) => eprintln!("  failed: {why}"),
        }
        parts.push((part, result));
    }
    let targets = targets(&parts);
    Ok(Comparison { short, parts, targets })
}

fn name(part: Part) -> String {
    clap::ValueEnum::to_possible_value(&part).map(|value| value.get_name().to_owned()).unwrap_or_default()
}

async fn one(part: Part, short: bool, options: &Options) -> Result<PartResult, Failure> {
    let spec = |name: &str| run::find_spec(Path::new(name), short);
    let baseline = async |way| {
        let plan = run::plan(&spec("gateway")?);
        let outcome = baseline::run(way, &plan, if short { BASELINE_SHORT_S } else { BASELINE_S }).await?;
        Ok(PartResult::Baseline(outcome))
    };
    let service = async |spec: Spec| Ok(PartResult::Service(Box::new(run::run(&spec, options).await?)));
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
        Part::Gateway | Part::GatewayLine | Part::GatewayTimeseries => service(first_phase(&name(part))?).await,
        Part::GatewayHalf => service(spec("gateway")?).await,
        Part::Acknowledge => Ok(PartResult::Acknowledge(acknowledge::run(&spec("fleet")?)?)),
        Part::Telegraf => {
            let messages = if short { TELEGRAF_MESSAGES_SHORT } else { TELEGRAF_MESSAGES };
            Ok(PartResult::Telegraf(telegraf::run(&spec("fleet")?, messages).await?))
        }
        Part::Fleet | Part::Wide | Part::Wide1k | Part::Outage => service(spec(&name(part))?).await,
    }
}

/// The targets of the project, with the values measured by the parts.
fn targets(parts: &[(Part, PartResult)]) -> Vec<Target> {
    let result = |part: Part| parts.iter().find(|(p, _)| *p == part).map(|(_, result)| result);
    let baseline = |part| match result(part) {
        Some(PartResult::Baseline(outcome)) => Some(outcome),
        _ => None,
    };
    // A run that lost or duplicated a reading does not count.
    let service = |part| match result(part) {
        Some(PartResult::Service(report)) if report.check.problems.is_empty() => Some(report),
        _ => None,
    };
    let rate = |part| baseline(part).map(Outcome::per_s);
    let stored = |part| service(part).map(|r| r.stored_per_s());
    let cpu = |part| service(part).map(|r| r.per_million(r.used.service));
    let ratio = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
    let per_reading = |cpu_s: f64, readings: u64| cpu_s * 1e6 / readings as f64;
    let both = service(Part::Gateway).map(|r| r.per_million(r.used.service.plus(r.used.mongod)));
    let floor = baseline(Part::Pages).map(|o| per_reading(o.used.loadtest.cpu_s + o.used.mongod.cpu_s, o.readings));
    let series = service(Part::GatewayTimeseries).map(|r| r.per_million(r.used.mongod));
    let sorted = baseline(Part::Sorted).map(|o| per_reading(o.used.mongod.cpu_s, o.readings));
    let messages = match result(Part::Acknowledge) {
        Some(PartResult::Acknowledge(delivered)) => Some(delivered.per_s()),
        _ => None,
    };
    let idle = service(Part::Wide)
        .and_then(|r| Some(r.rss_settled_bytes?.saturating_sub(r.rss_begin_bytes) as f64 / f64::from(r.sensors)));
    let half = service(Part::GatewayHalf).and_then(|r| Some(r.phases.get(1)?.latency_ms.p99));
    let outage = service(Part::Outage).and_then(|r| r.phases.iter().find_map(|p| p.outage.as_ref()?.gone_after_s));
    let target = |what, at_least, target, measured| Target { what, at_least, target, measured };
    vec![
        target(
            "gateway, bucket mode: readings/s, times naive (a)",
            true,
            40.0,
            ratio(stored(Part::Gateway), rate(Part::Naive)),
        ),
        target(
            "gateway, bucket mode: CPU of service and mongod, times client and mongod of the floor (c)",
            false,
            2.0,
            ratio(both, floor),
        ),
        target("gateway, service CPU-s per million readings, NDJSON", false, 1.0, cpu(Part::Gateway)),
        target("gateway, service CPU-s per million readings, line protocol", false, 0.7, cpu(Part::GatewayLine)),
        target(
            "gateway, time-series mode: readings/s, times (b)",
            true,
            20.0,
            ratio(stored(Part::GatewayTimeseries), rate(Part::Arrival)),
        ),
        target(
            "gateway, time-series mode: mongod CPU, times that of sorted inserts (b2)",
            false,
            1.3,
            ratio(series, sorted),
        ),
        target(
            "fleet: messages/s, times the subscriber that only acknowledges (f)",
            true,
            0.9,
            ratio(service(Part::Fleet).map(|r| r.accepted_per_s()), messages),
        ),
        target("wide: resident bytes an idle sensor", false, 400.0, idle),
        target(
            "wide: service CPU a reading at 1,000,000 sensors, times that at 1,000",
            false,
            2.0,
            ratio(cpu(Part::Wide), cpu(Part::Wide1k)),
        ),
        target("gateway at half of its rate: ack p99, ms", false, 10.0, half),
        target("outage of 60 s at half rate: backlog gone after, s", false, 60.0, outage),
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
        let (_, PartResult::Service(report)) = self.parts.iter().find(|(part, _)| *part == Part::GatewayHalf)? else {
            return None;
        };
        let phase = report.phases.iter().find(|phase| phase.disk_ms.is_some())?;
        let (ack, disk) = (phase.latency_ms, phase.disk_ms?);
        let latency_text = |l: Latency| format!("{:.2} / {:.2} / {:.2}, at most {:.1}", l.p50, l.p99, l.p999, l.max);
        Some(format!(
            "\ngateway at half of its rate ({:.0}/s): acknowledged within p50 / p99 / p99.9 {} ms; on the same disk, at the \
             same time, 4 KiB written and synced within {} ms.",
            phase.rate.unwrap_or_default(),
            latency_text(ack),
            latency_text(disk)
        ))
    }

    /// The measurements and the targets, as Markdown.
    pub(crate) fn markdown(&self) -> Vec<String> {
        let mut lines = vec![
            "CPU-s are per million readings; *client* is the bare driver loop of a baseline, or the service.".to_owned(),
            String::new(),
            "| | readings/s | client CPU-s | mongod CPU-s | broker CPU-s | mongod written B/reading | statements/reading | ack p50 / p99 / p99.9 ms | peak MiB | stored once |".to_owned(),
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
            let why: String = why.lines().next().unwrap_or_default().chars().take(120).collect();
            format!("| {name} | failed: {} | | | | | | | | |", why.replace('|', "/"))
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
                "| {name}: mqtt_consumer to mongodb, an insert a reading | {:.0} | {:.3} | {:.3} | {:.3} | {:.0} | | | {:.0} | counted |",
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
            let broker = r.used.broker.map_or(String::new(), |b| format!("{:.3}", r.per_million(b)));
            let rate = if r.broker_decides() { r.accepted_per_s() } else { r.stored_per_s() };
            format!(
                "| {name}: hourbucket, {}, {} | {rate:.0} | {:.3} | {:.3} | {broker} | {:.0} | {:.5} | {p50:.2} / {p99:.2} / {p999:.2} | {:.0} | {} |",
                r.mode,
                r.format,
                r.per_million(r.used.service),
                r.per_million(r.used.mongod),
                r.used.mongod.written_bytes as f64 / r.readings.max(1) as f64,
                r.statements_per_reading(),
                mib(r.used.service.rss_peak_bytes),
                if r.check.problems.is_empty() { "yes" } else { "**NO**" }
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_missed_or_not_measured() {
        let target = |at_least, measured| Target { what: "x", at_least, target: 2.0, measured };
        assert_eq!(target(true, Some(2.5)).met(), Some(true));
        assert_eq!(target(true, Some(1.5)).met(), Some(false));
        assert_eq!(target(false, Some(1.5)).met(), Some(true));
        assert_eq!(target(false, None).met(), None);
        assert_eq!(target(false, Some(3.0)).row(), "| x | ≤ 2 | 3.00 | **missed**, 1.50 of it |");
        assert!(targets(&[]).iter().all(|t| t.met().is_none()));
    }

    #[test]
    fn a_run_that_lost_a_reading_has_no_speed() {
        let mut report = Report { readings: 10, stored_s: 1.0, ..Report::default() };
        let parts = |r: &Report| [(Part::Gateway, PartResult::Service(Box::new(r.clone())))];
        assert!(targets(&parts(&report))[2].measured.is_some());
        report.check.problems.push("one is missing".into());
        assert!(targets(&parts(&report))[2].measured.is_none());
    }
}
