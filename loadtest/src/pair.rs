//! Compares before and after a change: runs the first phase of a scenario alternately with two
//! binaries or two settings, so that other load on the machine affects both. Reports the medians
//! and their ratio.

use std::path::Path;

use serde::Serialize;

use crate::Failure;
use crate::report::Report;
use crate::run::{self, Options};

/// A figure of a run: its name, its value, and its number of decimals.
type Figure = (&'static str, fn(&Report) -> f64, usize);

/// The compared figures.
const FIGURES: [Figure; 6] = [
    (
        "service CPU-s per million",
        |r| r.per_million(r.used.service),
        3,
    ),
    (
        "mongod CPU-s per million",
        |r| r.per_million(r.used.mongod),
        3,
    ),
    ("acknowledged/s", Report::acked_per_s, 0),
    ("stored/s", Report::stored_per_s, 0),
    (
        "ack p99, ms",
        |r| r.phases.first().map_or(0.0, |p| p.latency_ms.p99),
        1,
    ),
    (
        "peak MiB",
        |r| r.used.service.rss_peak_bytes as f64 / f64::from(1 << 20),
        0,
    ),
];

/// Figures of the runs with one binary.
#[derive(Debug, Default, Serialize)]
struct Runs(Vec<[f64; FIGURES.len()]>);

/// The runs of both binaries.
#[derive(Debug, Serialize)]
pub(crate) struct Pair {
    scenario: String,
    before: Runs,
    after: Runs,
}

/// Runs the scenario `rounds` times with each binary.
///
/// # Errors
/// A run failed, or lost or duplicated a reading.
pub(crate) async fn run(
    spec: &Path,
    short: bool,
    [before, after]: [Options; 2],
    rounds: usize,
) -> Result<Pair, Failure> {
    let mut spec = run::find_spec(spec, short)?;
    spec.phases.truncate(1);
    let mut pair = Pair {
        scenario: spec.name.clone(),
        before: Runs::default(),
        after: Runs::default(),
    };
    for round in 0..rounds {
        let mut turns = [(&before, &mut pair.before), (&after, &mut pair.after)];
        // Alternates the order, because the second run finds the machine in another state.
        if round % 2 == 1 {
            turns.reverse();
        }
        for (options, runs) in turns {
            let report = run::run(&spec, options).await?;
            if let Some(problem) = report.check.problems.first() {
                return Err(format!("{}: {problem}", options.binary.display()).into());
            }
            eprintln!(
                "  {}: {:.3} CPU-s",
                options.binary.display(),
                report.per_million(report.used.service)
            );
            runs.0.push(FIGURES.map(|(_, figure, _)| figure(&report)));
        }
    }
    Ok(pair)
}

impl Runs {
    /// Minimum, median and maximum of a figure.
    fn spread(&self, figure: usize) -> [f64; 3] {
        let mut values: Vec<f64> = self.0.iter().map(|run| run[figure]).collect();
        values.sort_by(f64::total_cmp);
        match values[..] {
            [] => [0.0; 3],
            [least, ..] => [
                least,
                (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0,
                values[values.len() - 1],
            ],
        }
    }
}

impl Pair {
    /// The medians and their ratio, as Markdown.
    pub(crate) fn markdown(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "`pair {}`, {} runs with each in turns; median (least to largest).",
                self.scenario,
                self.before.0.len()
            ),
            String::new(),
            "| | before | after | after / before |".to_owned(),
            "|---|---|---|---|".to_owned(),
        ];
        for (i, (name, _, decimals)) in FIGURES.into_iter().enumerate() {
            let before = self.before.spread(i);
            let after = self.after.spread(i);
            let cell = |[least, median, most]: [f64; 3]| {
                format!("{median:.decimals$} ({least:.decimals$} to {most:.decimals$})")
            };
            lines.push(format!(
                "| {name} | {} | {} | {:.2} |",
                cell(before),
                cell(after),
                after[1] / before[1]
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_and_its_ratio_are_printed() {
        let runs = |values: &[f64]| Runs(values.iter().map(|v| [*v; FIGURES.len()]).collect());
        let pair = Pair {
            scenario: "x".into(),
            before: runs(&[4.0, 1.0, 2.0]),
            after: runs(&[1.0, 3.0]),
        };
        assert_eq!(pair.before.spread(0), [1.0, 2.0, 4.0]);
        assert_eq!(pair.after.spread(0), [1.0, 2.0, 3.0]);
        let lines = pair.markdown();
        assert_eq!(
            lines[4],
            "| service CPU-s per million | 2.000 (1.000 to 4.000) | 2.000 (1.000 to 3.000) | 1.00 |"
        );
        assert_eq!(lines.len(), 4 + FIGURES.len());
    }
}
