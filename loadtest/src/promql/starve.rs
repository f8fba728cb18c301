//! Cheap queries beside four viewers who repeat an expensive one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::fleet::Fleet;
use super::servers::{Kind, Server};
use super::{Options, QUERIES, percentile};
use crate::Failure;

const VIEWERS: usize = 4;
const SECONDS: u64 = 60;
const SECONDS_SHORT: u64 = 5;

/// What is asked beside them, as path, and how long an answer may take at the 99th percentile.
const CHEAP: [(&str, &str, f64); 4] = [
    ("1+1", "query?query=1%2B1", 50.0),
    ("label values", "label/site/values", 300.0),
    (
        "one sensor's day",
        "query_range?query=temp%7Bsensor_id%3D%22S7%22%7D&start=START&end=END&step=300",
        300.0,
    ),
    (
        "last value of each sensor",
        "query?query=temp&time=END",
        1000.0,
    ),
];

#[derive(Debug, Clone, Serialize)]
struct Row {
    query: &'static str,
    beside: usize,
    answers: usize,
    median_ms: f64,
    p99_ms: f64,
    target_ms: f64,
}

/// The result of the run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Starved {
    fleet: Fleet,
    rows: Vec<Row>,
    /// Expensive queries that were answered meanwhile.
    expensive: u64,
    peak_bytes: u64,
}

pub(crate) async fn run(options: &Options) -> Result<Starved, Failure> {
    let fleet = Fleet::new(options.sensors, options.days);
    let server = Server::hourbucket(Kind::Bucket, "bucket", options).await?;
    tokio::task::block_in_place(|| {
        server.fill(&fleet)?;
        let mut rows = vec![];
        let mut expensive = 0;
        for beside in [0, VIEWERS] {
            let (more, answered) = measure(&server, &fleet, beside, options.short)?;
            rows.extend(more);
            expensive += answered;
        }
        Ok(Starved {
            fleet,
            rows,
            expensive,
            peak_bytes: server.peak_bytes(),
        })
    })
}

fn measure(
    server: &Server,
    fleet: &Fleet,
    beside: usize,
    short: bool,
) -> Result<(Vec<Row>, u64), Failure> {
    let expensive = QUERIES[QUERIES.len() - 1].path(fleet);
    let stop = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let seconds = if short { SECONDS_SHORT } else { SECONDS };
    let rows = std::thread::scope(|scope| {
        for _ in 0..beside {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match server.get(&expensive) {
                        Ok(_) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => eprintln!("  {error}"),
                    }
                }
            });
        }
        let rows = cheap(server, fleet, beside, Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
        rows
    });
    Ok((rows?, answered.into_inner()))
}

/// Asks the cheap queries in turn for some time.
fn cheap(
    server: &Server,
    fleet: &Fleet,
    beside: usize,
    time: Duration,
) -> Result<Vec<Row>, Failure> {
    let end_s = fleet.end_ms / 1000;
    let mut took = vec![vec![]; CHEAP.len()];
    let begun = Instant::now();
    while begun.elapsed() < time {
        for ((_, path, _), took) in CHEAP.iter().zip(&mut took) {
            let path = path
                .replace("START", &(end_s - 86_400).to_string())
                .replace("END", &end_s.to_string());
            let asked = Instant::now();
            server.get(&path)?;
            took.push(asked.elapsed().as_secs_f64() * 1000.0);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let row = |((query, _, target_ms), mut took): (&(&'static str, _, f64), Vec<f64>)| Row {
        query,
        beside,
        answers: took.len(),
        median_ms: percentile(&mut took, 0.5),
        p99_ms: percentile(&mut took, 0.99),
        target_ms: *target_ms,
    };
    Ok(CHEAP.iter().zip(took).map(row).collect())
}

impl Starved {
    pub(crate) fn markdown(&self) -> Vec<String> {
        let Fleet { sensors, days, .. } = self.fleet;
        let mut lines = vec![
            format!(
                "Cheap queries beside {VIEWERS} viewers who repeat `temp` of {sensors} sensors over \
                 {days} days by 30 min; {} such answers meanwhile, at most {} MiB in the service.",
                self.expensive,
                self.peak_bytes >> 20
            ),
            String::new(),
            "| query | beside | answers | median ms | p99 ms | target ms | |".to_owned(),
            "|---|---|---|---|---|---|---|".to_owned(),
        ];
        for row in &self.rows {
            let is_met = if row.p99_ms <= row.target_ms {
                "met"
            } else {
                "MISSED"
            };
            lines.push(format!(
                "| {} | {} | {} | {:.1} | {:.1} | {:.0} | {is_met} |",
                row.query, row.beside, row.answers, row.median_ms, row.p99_ms, row.target_ms
            ));
        }
        lines
    }
}
