//! The parts of the comparison, and their results.

use serde::Serialize;

use crate::baseline::Outcome;
use crate::baseline::acknowledge::Delivered;
use crate::baseline::other_stores::Ingested;
use crate::report::Report;

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
    /// The same bodies to QuestDB, if there is one
    Questdb,
    /// The same bodies to VictoriaMetrics, if it is on the path
    VictoriaMetrics,
    /// (e) hourbucket, time-series mode
    GatewayTimeseries,
    /// (d) with line protocol, at half of its rate
    GatewayHalf,
    /// (d) with `ack = "stored"`
    GatewayStored,
    /// Devices on listen.mqtt, at full speed and at 10,000 messages/s
    DirectMqtt,
    /// The same over 1,000 connections
    #[value(name = "direct-mqtt-1k")]
    #[serde(rename = "direct-mqtt-1k")]
    DirectMqtt1k,
    /// Devices on listen.mqtt, at 10,000, 1,000 and 100 messages/s
    Quiet,
    /// (f) MQTT to a subscriber that only acknowledges
    Acknowledge,
    /// hourbucket over MQTT
    Fleet,
    /// (g) Telegraf, if it is on the path
    Telegraf,
    /// (g) with `write_batch`
    TelegrafBatch,
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
    /// A million readings removed beside a steady load
    Remove,
    /// The bodies of (d) to an instance that forwards them
    Forward,
    /// A hundred readings a second to an instance that forwards them
    Site,
}

pub(super) const ALL: [Part; 25] = [
    Part::Naive,
    Part::Arrival,
    Part::Sorted,
    Part::Pages,
    Part::Gateway,
    Part::GatewayLine,
    Part::Questdb,
    Part::VictoriaMetrics,
    Part::GatewayTimeseries,
    Part::GatewayHalf,
    Part::GatewayStored,
    Part::DirectMqtt,
    Part::DirectMqtt1k,
    Part::Quiet,
    Part::Acknowledge,
    Part::Fleet,
    Part::Telegraf,
    Part::TelegrafBatch,
    Part::Wide,
    Part::WideTimeseries,
    Part::Wide1k,
    Part::Outage,
    Part::Remove,
    Part::Forward,
    Part::Site,
];

/// The result of a part.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PartResult {
    Baseline(Outcome),
    Acknowledge(Delivered),
    Telegraf(Delivered),
    OtherStore(Ingested),
    Service(Box<Report>),
    /// The part could not be run; the comparison continues.
    Failed(String),
}

pub(super) fn name(part: Part) -> String {
    clap::ValueEnum::to_possible_value(&part)
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}
