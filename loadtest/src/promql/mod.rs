//! PromQL: thirteen queries over a month of a fleet, asked of hourbucket in both modes, of
//! Prometheus, and of VictoriaMetrics if it is there, alternately and over the same readings; and
//! cheap queries beside four expensive ones that never end. Exports of the same fleet are measured
//! too.
//!
//! ```text
//!  fleet ──(line protocol, remote write)──> servers ──> queries, one server after the other ──> table
//! ```
//!
//! The answers of hourbucket must be those of Prometheus. VictoriaMetrics has other rules for some
//! functions, so its answers are only counted.

pub(crate) mod export;
mod fleet;
mod servers;
pub(crate) mod starve;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;

use self::fleet::Fleet;
use self::servers::{Kind, Server};
use crate::Failure;

const MINUTE_S: i64 = 60;
const HOUR_S: i64 = 60 * MINUTE_S;
const DAY_S: i64 = 24 * HOUR_S;

/// Each query is asked so often of each server.
const RUNS: usize = 15;
const RUNS_SHORT: usize = 3;

/// A query: its text, and how long before the end of the readings it begins, with its step; both
/// without a step for an instant query. `None`: the whole time.
struct Query {
    what: &'static str,
    text: &'static str,
    range: Option<(Option<i64>, i64)>,
}

const fn range(what: &'static str, text: &'static str, span_s: Option<i64>, step_s: i64) -> Query {
    Query {
        what,
        text,
        range: Some((span_s, step_s)),
    }
}

const fn instant(what: &'static str, text: &'static str) -> Query {
    Query {
        what,
        text,
        range: None,
    }
}

const QUERIES: [Query; 13] = [
    range(
        "one sensor, avg by hour, month",
        "avg_over_time(temp{sensor_id=\"S7\"}[1h])",
        None,
        HOUR_S,
    ),
    range(
        "avg of each sensor by hour, day",
        "avg_over_time(temp[1h])",
        Some(DAY_S),
        HOUR_S,
    ),
    range(
        "sum by site of rate, 6 h by minute",
        "sum by (site) (rate(energy_total[5m]))",
        Some(6 * HOUR_S),
        MINUTE_S,
    ),
    instant("topk of max over a day", "topk(5, max_over_time(temp[1d]))"),
    range(
        "quantile by tag, day by 5 min",
        "quantile by (site) (0.9, temp)",
        Some(DAY_S),
        5 * MINUTE_S,
    ),
    instant("last value of each sensor", "temp"),
    range(
        "max by site, week by hour",
        "max by (site) (max_over_time(temp[1h]))",
        Some(7 * DAY_S),
        HOUR_S,
    ),
    range(
        "sum of rate, day by minute",
        "sum(rate(energy_total[5m]))",
        Some(DAY_S),
        MINUTE_S,
    ),
    range(
        "subquery, day by hour",
        // Not an hour: Prometheus 2 counts the step at its start too.
        "max_over_time(avg_over_time(temp{site=\"site-3\"}[10m])[59m:5m])",
        Some(DAY_S),
        HOUR_S,
    ),
    range(
        "one sensor raw, 6 h by minute",
        "temp{sensor_id=\"S7\"}",
        Some(6 * HOUR_S),
        MINUTE_S,
    ),
    range(
        "sum of rate over 4 min, month by hour",
        "sum(rate(energy_total[4m]))",
        None,
        HOUR_S,
    ),
    range(
        "quantile of a day, month by day",
        "quantile_over_time(0.9, temp[1d])",
        None,
        DAY_S,
    ),
    range("temp of all, month by 30 min", "temp", None, 30 * MINUTE_S),
];

impl Query {
    /// The path and the parameters.
    fn path(&self, fleet: &Fleet) -> String {
        let text: String = self
            .text
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        let end_s = fleet.end_ms / 1000;
        match self.range {
            None => format!("query?query={text}&time={end_s}&nocache=1"),
            Some((span_s, step_s)) => {
                // A day less than all, so that the first window of a day is whole.
                let whole_s = (fleet.days - 1) * DAY_S;
                let start_s = end_s - span_s.unwrap_or(whole_s).min(whole_s);
                format!(
                    "query_range?query={text}&start={start_s}&end={end_s}&step={step_s}&nocache=1"
                )
            }
        }
    }
}

/// The numbers of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
struct Answer {
    series: usize,
    samples: usize,
    sum: f64,
}

impl Answer {
    fn of(text: &str) -> Result<Answer, Failure> {
        let answer: Value = serde_json::from_str(text)?;
        let mut found = Answer::default();
        let result = answer["data"]["result"].as_array();
        for series in result.ok_or("an answer without a result")? {
            found.series += 1;
            let one = std::slice::from_ref(&series["value"]);
            for pair in series["values"].as_array().map_or(one, Vec::as_slice) {
                let number = pair[1].as_str().and_then(|text| text.parse::<f64>().ok());
                found.samples += 1;
                found.sum += number.ok_or("a sample without a number")?;
            }
        }
        Ok(found)
    }

    /// Sums of floats differ in the last digits, because their order does.
    fn equals(&self, other: &Answer) -> bool {
        self.series == other.series
            && self.samples == other.samples
            && (self.sum - other.sum).abs() <= 1e-7 * self.sum.abs()
    }
}

/// How a server answers a query.
#[derive(Debug, Clone, Serialize)]
struct Row {
    query: &'static str,
    server: &'static str,
    median_ms: f64,
    p95_ms: f64,
    /// CPU seconds of the server's processes for each answer.
    cpu_s: f64,
    answer: Answer,
}

/// The result of the run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    fleet: Fleet,
    rows: Vec<Row>,
    /// Answers that differ.
    problems: Vec<String>,
}

/// Options in addition to the fleet.
pub(crate) struct Options {
    pub(crate) binary: PathBuf,
    pub(crate) settings: BTreeMap<String, String>,
    pub(crate) sensors: u32,
    pub(crate) days: i64,
    /// Few runs, to see that everything works.
    pub(crate) short: bool,
}

pub(crate) async fn run(options: &Options) -> Result<Report, Failure> {
    let fleet = Fleet::new(options.sensors, options.days);
    let mut report = Report {
        fleet,
        rows: vec![],
        problems: vec![],
    };
    let mut servers = vec![];
    for kind in Kind::ALL {
        match Server::start(kind, options).await? {
            Some(server) => {
                let begun = Instant::now();
                tokio::task::block_in_place(|| server.fill(&fleet))?;
                let took = begun.elapsed();
                eprintln!(
                    "  {}: {} readings in {took:.0?}",
                    kind.name(),
                    fleet.readings()
                );
                servers.push(server);
            }
            None => eprintln!("  {} is not there: left out", kind.name()),
        }
    }
    let runs = if options.short { RUNS_SHORT } else { RUNS };
    for query in &QUERIES {
        let rows = tokio::task::block_in_place(|| ask(&servers, query, &fleet, runs))?;
        report.problems.extend(differences(&rows));
        report.rows.extend(rows);
    }
    Ok(report)
}

/// Asks all servers alternately.
fn ask(servers: &[Server], query: &Query, fleet: &Fleet, runs: usize) -> Result<Vec<Row>, Failure> {
    let path = query.path(fleet);
    let mut took = vec![vec![]; servers.len()];
    let mut rows: Vec<Row> = vec![];
    for run in 0..=runs {
        for (i, server) in servers.iter().enumerate() {
            let cpu_s = server.cpu_s();
            let begun = Instant::now();
            let text = server.get(&path)?;
            let ms = begun.elapsed().as_secs_f64() * 1000.0;
            let cpu_s = server.cpu_s() - cpu_s;
            // The first answer of each is not measured.
            if run == 0 {
                rows.push(Row {
                    query: query.what,
                    server: server.kind.name(),
                    median_ms: 0.0,
                    p95_ms: 0.0,
                    cpu_s: 0.0,
                    answer: Answer::of(&text)?,
                });
            } else {
                took[i].push(ms);
                rows[i].cpu_s += cpu_s / runs as f64;
            }
        }
    }
    for (row, took) in rows.iter_mut().zip(&mut took) {
        row.median_ms = percentile(took, 0.5);
        row.p95_ms = percentile(took, 0.95);
    }
    Ok(rows)
}

/// Sorts the values.
fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len().saturating_sub(1) as f64 * share).round() as usize;
    values.get(place).copied().unwrap_or(f64::NAN)
}

fn differences(rows: &[Row]) -> Vec<String> {
    let wanted = rows
        .iter()
        .find(|row| row.server == Kind::Prometheus.name())
        .or(rows.first());
    let Some(wanted) = wanted else {
        return vec![];
    };
    let is_compared = |row: &&Row| row.server != Kind::VictoriaMetrics.name();
    rows.iter()
        .filter(is_compared)
        .filter(|row| !row.answer.equals(&wanted.answer))
        .map(|row| {
            format!(
                "{}, {}: {:?} instead of {:?}",
                row.query, row.server, row.answer, wanted.answer
            )
        })
        .collect()
}

impl Report {
    pub(crate) fn sound(&self) -> bool {
        self.problems.is_empty()
    }

    pub(crate) fn markdown(&self) -> Vec<String> {
        let Fleet { sensors, days, .. } = self.fleet;
        let mut lines = vec![
            format!(
                "PromQL: {sensors} sensors with two fields, one reading a minute for {days} days; \
                 median / p95 in ms, CPU-s for each answer."
            ),
            String::new(),
        ];
        let first = |row: &&Row| {
            self.rows
                .first()
                .is_some_and(|first| first.query == row.query)
        };
        let servers: Vec<&str> = self
            .rows
            .iter()
            .filter(first)
            .map(|row| row.server)
            .collect();
        lines.push(format!("| query | {} |", servers.join(" | ")));
        lines.push(format!("|---|{}", "---|".repeat(servers.len())));
        for rows in self.rows.chunk_by(|a, b| a.query == b.query) {
            let cells = rows
                .iter()
                .map(|row| format!("{:.1} / {:.1}, {:.3}", row.median_ms, row.p95_ms, row.cpu_s));
            let query = rows.first().map_or("", |row| row.query);
            lines.push(format!(
                "| {query} | {} |",
                cells.collect::<Vec<_>>().join(" | ")
            ));
        }
        let sums = servers.iter().map(|server| {
            let of_server = self.rows.iter().filter(|row| row.server == *server);
            format!("{:.1}", of_server.map(|row| row.median_ms).sum::<f64>())
        });
        lines.push(format!(
            "| sum of medians | {} |",
            sums.collect::<Vec<_>>().join(" | ")
        ));
        lines.push(String::new());
        lines.extend(
            self.problems
                .iter()
                .map(|problem| format!("WRONG: {problem}")),
        );
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_added_up_and_compared() {
        let range = r#"{"data":{"result":[{"values":[[1,"2"],[2,"3.5"]]},{"values":[[1,"1"]]}]}}"#;
        let answer = Answer::of(range).unwrap();
        let wanted = Answer {
            series: 2,
            samples: 3,
            sum: 6.5,
        };
        assert!(answer.equals(&wanted), "{answer:?}");
        let instant = r#"{"data":{"result":[{"value":[1,"2"]}]}}"#;
        assert_eq!(Answer::of(instant).unwrap().samples, 1);
        assert!(Answer::of(r#"{"error":"x"}"#).is_err());
        assert_eq!(percentile(&mut [3.0, 1.0, 2.0], 0.5), 2.0);
    }
}
