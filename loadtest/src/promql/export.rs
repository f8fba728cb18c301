//! Exports of the fleet from its columns, in each format: how much processor time and memory they take.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::Options;
use super::fleet::Fleet;
use super::servers::{Kind, Server};
use crate::Failure;
use crate::parts::command;

const ENDED_WITHIN: Duration = Duration::from_secs(1800);
const FORMATS: [&str; 3] = ["parquet", "csv", "ndjson"];
/// Readings per second of one core, and the most memory.
const PER_CORE_WANTED: f64 = 1e6;
const RSS_WANTED: u64 = 200 << 20;

#[derive(Debug, Clone, Serialize)]
struct Row {
    format: &'static str,
    seconds: f64,
    cpu_s: f64,
    mongod_cpu_s: f64,
    rss_peak_bytes: u64,
    bytes: u64,
}

/// The result of the run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Exported {
    fleet: Fleet,
    rows: Vec<Row>,
}

pub(crate) async fn run(options: &Options) -> Result<Exported, Failure> {
    let fleet = Fleet::new(options.sensors, options.days);
    let mut with_columns = Options {
        binary: options.binary.clone(),
        settings: options.settings.clone(),
        ..*options
    };
    for (key, value) in [
        ("COLUMNS__ENABLED", "true"),
        ("ROLLUP__SETTLE", "1s"),
        ("ROLLUP__LATE", "1s"),
    ] {
        with_columns.settings.insert(key.into(), value.into());
    }
    let server = Server::hourbucket(Kind::Bucket, "bucket", &with_columns).await?;
    tokio::task::block_in_place(|| {
        server.fill(&fleet)?;
        let export = |format| export(&server, &options.binary, &fleet, format);
        let rows = FORMATS.into_iter().map(export).collect::<Result<_, _>>()?;
        Ok(Exported { fleet, rows })
    })
}

fn export(
    server: &Server,
    binary: &Path,
    fleet: &Fleet,
    format: &'static str,
) -> Result<Row, Failure> {
    let arguments = [
        "-o",
        "out",
        "--from",
        "2000-01-01",
        "--to",
        "2100-01-01",
        "--format",
        format,
    ];
    let store = server.store();
    let mongod_before = server.mongod_cpu_s();
    let ended = command::run(
        binary,
        "export",
        &arguments,
        store.iter().map(|(key, value)| (*key, value.as_str())),
        ENDED_WITHIN,
    )?;
    ended.must_say(&format!("{} readings in", fleet.readings()))?;
    let files = std::fs::read_dir(ended.dir().join("out"))?;
    let sizes = files.map(|file| Ok(file?.metadata()?.len()));
    Ok(Row {
        format,
        seconds: ended.seconds,
        cpu_s: ended.used.cpu_s,
        mongod_cpu_s: server.mongod_cpu_s() - mongod_before,
        rss_peak_bytes: ended.used.rss_peak_bytes,
        bytes: sizes.sum::<std::io::Result<u64>>()?,
    })
}

impl Exported {
    pub(crate) fn markdown(&self) -> Vec<String> {
        let Fleet { sensors, days, .. } = self.fleet;
        let readings = self.fleet.readings() as f64;
        let mut lines = vec![
            format!(
                "`hourbucket export` of {readings} readings with two fields, {sensors} sensors and {days} days, from \
                 columns."
            ),
            String::new(),
            "| format | s | CPU-s | of mongod | readings per CPU-s | | peak MiB | | bytes per reading |".to_owned(),
            "|---|---|---|---|---|---|---|---|---|".to_owned(),
        ];
        let met = |is_met: bool| if is_met { "met" } else { "MISSED" };
        for row in &self.rows {
            let per_core = readings / row.cpu_s;
            lines.push(format!(
                "| {} | {:.1} | {:.1} | {:.1} | {:.0} | {} | {} | {} | {:.1} |",
                row.format,
                row.seconds,
                row.cpu_s,
                row.mongod_cpu_s,
                per_core,
                met(per_core >= PER_CORE_WANTED),
                row.rss_peak_bytes >> 20,
                met(row.rss_peak_bytes <= RSS_WANTED),
                row.bytes as f64 / readings
            ));
        }
        lines
    }
}
