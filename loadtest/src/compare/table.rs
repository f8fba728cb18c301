//! The tables of measurements, as Markdown: a row per part, and a row per rate of the parts that
//! send to `listen.mqtt`.

use super::part::{Part, PartResult, name};
use crate::baseline::Outcome;
use crate::baseline::acknowledge::Delivered;
use crate::baseline::other_stores::{Ingested, OtherStore};
use crate::baseline::telegraf as telegraf_program;
use crate::latency::Latency;
use crate::report::{PhaseReport, Report};

/// The names of the columns, and the line below them.
pub(super) const HEAD: [&str; 2] = [
    "| | readings/s | client CPU-s | mongod CPU-s | broker CPU-s | written B/reading | \
     statements/reading | ack p50 / p99 / p99.9 ms | peak MiB | stored once |",
    "|---|---|---|---|---|---|---|---|---|---|",
];

/// The row of a part.
pub(super) fn row(part: Part, result: &PartResult) -> String {
    let name = name(part);
    match result {
        PartResult::Failed(why) => failed(&name, why),
        PartResult::Baseline(outcome) => baseline(&name, outcome),
        PartResult::Acknowledge(delivered) => acknowledge(&name, delivered),
        PartResult::Telegraf(delivered) => telegraf(part, &name, delivered),
        PartResult::OtherStore(ingested) => other_store(&name, ingested),
        PartResult::Service(report) => service(part, &name, report),
    }
}

/// The table of the parts that send to `listen.mqtt`, a row per phase; empty if none was run.
pub(super) fn by_rate(parts: &[(Part, PartResult)]) -> Vec<String> {
    let rows: Vec<String> = parts
        .iter()
        .filter_map(|(part, result)| match (part, result) {
            (Part::DirectMqtt | Part::DirectMqtt1k | Part::Quiet, PartResult::Service(report)) => {
                Some((name(*part), report))
            }
            _ => None,
        })
        .flat_map(|(name, report)| {
            let row = move |phase| rate(&name, report.connections, phase);
            report.phases.iter().map(row)
        })
        .collect();
    if rows.is_empty() {
        return vec![];
    }
    let head = [
        "",
        "Devices on `listen.mqtt`, one reading per message, by rate:",
        "",
        "| | connections | messages/s sent | acknowledged/s | service CPU-s | share of a core | \
         mongod CPU-s | messages per sync | ack p50 / p99 / p99.9 ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ];
    head.map(str::to_owned).into_iter().chain(rows).collect()
}

fn rate(name: &str, connections: u32, phase: &PhaseReport) -> String {
    let Latency { p50, p99, p999, .. } = phase.latency_ms;
    let sent = phase
        .rate
        .map_or("full speed".to_owned(), |per_s| format!("{per_s:.0}"));
    format!(
        "| {name} | {connections} | {sent} | {:.0} | {:.3} | {:.3} | {:.3} | {:.1} | {p50:.2} / \
         {p99:.2} / {p999:.2} |",
        phase.acked_per_s,
        phase.per_million(phase.service_cpu_s),
        phase.service_cpu_s / phase.seconds,
        phase.per_million(phase.mongod_cpu_s),
        phase.readings as f64 / phase.syncs.max(1) as f64,
    )
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn failed(name: &str, why: &str) -> String {
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

fn baseline(name: &str, o: &Outcome) -> String {
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

fn acknowledge(name: &str, d: &Delivered) -> String {
    let broker = d.used.broker.unwrap_or_default();
    let broker_cpu = broker.cpu_s * 1e6 / d.readings.max(1) as f64;
    format!(
        "| {name} | {:.0} | | | {broker_cpu:.3} | | | | {:.0} | received |",
        d.per_s(),
        mib(broker.rss_peak_bytes)
    )
}

fn telegraf(part: Part, name: &str, d: &Delivered) -> String {
    let inserts = match part {
        Part::TelegrafBatch => "an insert a batch",
        _ => "an insert a reading",
    };
    let per = |x: f64| x * 1e6 / d.readings.max(1) as f64;
    let broker = d.used.broker.unwrap_or_default();
    format!(
        "| {name}: mqtt_consumer to mongodb, {inserts} | {:.0} | {:.3} | {:.3} | {:.3} | \
         {:.0} | | | {:.0} | counted |",
        d.per_s(),
        per(d.used.service.cpu_s),
        per(d.used.mongod.cpu_s),
        per(broker.cpu_s),
        d.used.mongod.written_bytes as f64 / d.readings.max(1) as f64,
        mib(d.used.service.rss_peak_bytes),
    )
}

fn other_store(name: &str, o: &Ingested) -> String {
    let per = |x: f64| x / o.readings.max(1) as f64;
    let Latency { p50, p99, p999, .. } = o.latency_ms;
    format!(
        "| {name} | {:.0} | {:.3} | | | {:.0} | | {p50:.2} / {p99:.2} / {p999:.2} | {:.0} | \
         counted |",
        o.per_s(),
        per(o.used.cpu_s) * 1e6,
        per(o.used.written_bytes as f64),
        mib(o.used.rss_peak_bytes),
    )
}

/// The table of what an answer to a sender means, and of what all servers behind it use; empty if no
/// other program was run.
pub(super) fn answers(parts: &[(Part, PartResult)]) -> Vec<String> {
    let others = |part: &Part| {
        use Part::{Questdb, Telegraf, TelegrafBatch, VictoriaMetrics};
        matches!(part, Questdb | VictoriaMetrics | Telegraf | TelegrafBatch)
    };
    if !parts.iter().any(|(part, _)| others(part)) {
        return vec![];
    }
    let head = [
        "",
        "What an answer means, and what all servers use, the broker included. `gateway-line` and \
         the stores get the same bodies, `fleet` and Telegraf the same messages:",
        "",
        "| | the sender has an answer when the readings are | acknowledged/s | stored/s | CPU-s |",
        "|---|---|---|---|---|",
    ];
    let rows = parts.iter().filter_map(|(part, result)| {
        let (acknowledged, stored, cpu_s) = match result {
            PartResult::Service(r) => {
                let both = r.used.service.plus(r.used.mongod);
                let all = both.plus(r.used.broker.unwrap_or_default());
                (Some(r.acked_per_s()), r.stored_per_s(), r.per_million(all))
            }
            PartResult::OtherStore(o) => {
                let cpu_s = o.used.cpu_s * 1e6 / o.readings.max(1) as f64;
                (Some(o.acked_per_s), o.per_s(), cpu_s)
            }
            PartResult::Telegraf(d) => {
                let both = d.used.service.plus(d.used.mongod);
                let all = both.plus(d.used.broker.unwrap_or_default());
                (None, d.per_s(), all.cpu_s * 1e6 / d.readings.max(1) as f64)
            }
            _ => return None,
        };
        let acknowledged = acknowledged.map_or(String::new(), |per_s| format!("{per_s:.0}"));
        let means = meaning(*part)?;
        let name = name(*part);
        Some(format!(
            "| {name} | {means} | {acknowledged} | {stored:.0} | {cpu_s:.3} |"
        ))
    });
    let programs = [
        telegraf_program::binary(),
        OtherStore::Questdb.program(),
        OtherStore::VictoriaMetrics.program(),
    ];
    // Not all of them say their version, but loadtest/others.sh has it in the names.
    let programs: Vec<String> = programs
        .iter()
        .flatten()
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    let programs = format!("\nThe other programs: {}.", programs.join(", "));
    let head = head.map(str::to_owned).into_iter();
    head.chain(rows).chain([programs]).collect()
}

/// When a sender has its answer, with the settings of these runs. Of the other programs as they say
/// it themselves: `cairo.commit.mode` in QuestDB's server.conf, `-inmemoryDataFlushInterval` in
/// VictoriaMetrics' help, `max_undelivered_messages` in the README of Telegraf's mqtt_consumer.
fn meaning(part: Part) -> Option<&'static str> {
    Some(match part {
        Part::GatewayLine => {
            "on the disk: written to the journal and synced. A power failure loses none"
        }
        Part::Questdb => {
            "in the write-ahead log, in the page cache: nothing is synced (`nosync`). They survive \
             a crash of the process; a power failure loses the latest"
        }
        Part::VictoriaMetrics => {
            "in memory, and up to 5 s later in a file. A crash of the process loses these seconds"
        }
        Part::Fleet => {
            "in the broker's memory; the service acknowledges them to the broker when they are in \
             its journal, synced"
        }
        Part::Telegraf | Part::TelegrafBatch => {
            "in the broker's memory; Telegraf acknowledges them to the broker when MongoDB has \
             them on the disk (`w=majority&journal=true`)"
        }
        _ => return None,
    })
}

fn service(part: Part, name: &str, r: &Report) -> String {
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
    let about = match r.used.centre {
        Some(centre) => format!(
            ", forwarded in {:.2} bytes a reading to one with {:.3} CPU-s",
            r.forwarded_bytes(),
            r.per_million(centre)
        ),
        None => about.to_owned(),
    };
    format!(
        "| {name}: hourbucket, {}, {}{about} | {rate:.0} | {service:.3} | {mongod:.3} | {broker} | \
         {:.0} | {statements:.5} | {p50:.2} / {p99:.2} / {p999:.2} | {:.0} | {} |",
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
