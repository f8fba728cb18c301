//! The comparison: runs common ways of writing, the lower bound ("floor") and hourbucket one after
//! the other on the same machine, each with its own MongoDB. Then compares the ratios with the
//! targets of the project.

mod part;
mod table;
mod targets;

use std::path::Path;

use serde::Serialize;

use self::part::{ALL, PartResult, name};
use self::targets::Target;
use crate::Failure;
use crate::baseline::other_stores::{self, OtherStore};
use crate::baseline::{self, Way, acknowledge, telegraf};
use crate::latency::Latency;
use crate::report::Report;
use crate::run::{self, Options};
use crate::spec::Spec;

pub(crate) use self::part::Part;

/// Seconds per baseline.
const BASELINE_S: f64 = 10.0;
const BASELINE_SHORT_S: f64 = 0.5;
const TELEGRAF_MESSAGES: u64 = 20_000;
const TELEGRAF_BATCH_MESSAGES: u64 = 200_000;
const TELEGRAF_MESSAGES_SHORT: u64 = 500;

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Comparison {
    short: bool,
    parts: Vec<(Part, PartResult)>,
    pub(crate) targets: Vec<Target>,
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
        if let Some(missing) = missing(part) {
            eprintln!("  skipped: {missing} is not here; loadtest/others.sh gets it");
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
            PartResult::OtherStore(o) => eprintln!("  {:.0} readings/s", o.per_s()),
            PartResult::Service(report) => {
                report.lines().iter().for_each(|line| eprintln!("  {line}"))
            }
            PartResult::Failed(why) => eprintln!("  failed: {why}"),
        }
        parts.push((part, result));
    }
    let targets = targets::targets(&parts);
    Ok(Comparison {
        short,
        parts,
        targets,
    })
}

/// The program that a part needs and that is not here.
fn missing(part: Part) -> Option<&'static str> {
    let (name, program) = match part {
        Part::Telegraf | Part::TelegrafBatch => ("Telegraf", telegraf::binary()),
        Part::Questdb => ("QuestDB", OtherStore::Questdb.program()),
        Part::VictoriaMetrics => ("VictoriaMetrics", OtherStore::VictoriaMetrics.program()),
        _ => return None,
    };
    program.is_none().then_some(name)
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
        Part::Acknowledge => Ok(PartResult::Acknowledge(acknowledge::run(&spec("fleet")?)?)),
        Part::Questdb | Part::VictoriaMetrics => {
            let store = match part {
                Part::Questdb => OtherStore::Questdb,
                _ => OtherStore::VictoriaMetrics,
            };
            let ingested = other_stores::run(store, &spec("gateway-line")?)?;
            Ok(PartResult::OtherStore(ingested))
        }
        Part::Telegraf | Part::TelegrafBatch => {
            let write_batch = part == Part::TelegrafBatch;
            let messages = match (short, write_batch) {
                (true, _) => TELEGRAF_MESSAGES_SHORT,
                (_, true) => TELEGRAF_BATCH_MESSAGES,
                (_, false) => TELEGRAF_MESSAGES,
            };
            let delivered = telegraf::run(&spec("fleet")?, messages, write_batch).await?;
            Ok(PartResult::Telegraf(delivered))
        }
        Part::GatewayStored
        | Part::DirectMqtt
        | Part::DirectMqtt1k
        | Part::Quiet
        | Part::Fleet
        | Part::Wide
        | Part::WideTimeseries
        | Part::Wide1k
        | Part::Outage
        | Part::Remove
        | Part::Forward
        | Part::Site => service(spec(&name(part))?).await,
    }
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
            "CPU-s are per million readings; *client* is the bare driver loop of a baseline, the \
             service, or the other store; *written* is by that store or mongod."
                .to_owned(),
            String::new(),
        ];
        lines.extend(table::HEAD.map(str::to_owned));
        lines.extend(
            self.parts
                .iter()
                .map(|(part, result)| table::row(*part, result)),
        );
        lines.extend(table::answers(&self.parts));
        lines.extend(table::by_rate(&self.parts));
        lines.push(String::new());
        lines.push("| what | target | measured | |".into());
        lines.push("|---|---|---|---|".into());
        lines.extend(self.targets.iter().map(Target::row));
        lines.extend(self.disk());
        lines
    }
}
