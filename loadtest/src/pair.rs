//! Compares before and after a change: runs a scenario alternately with two binaries or two settings,
//! so that other load on the machine affects both. Reports the medians and their ratio.

use std::path::Path;

use serde::Serialize;

use crate::Failure;
use crate::report::{PhaseReport, Report};
use crate::run::{self, Options};

/// A figure of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Figure {
    name: String,
    value: f64,
    decimals: usize,
}

impl Figure {
    fn new(name: impl Into<String>, value: f64, decimals: usize) -> Figure {
        Figure {
            name: name.into(),
            value,
            decimals,
        }
    }
}

/// The figures of the whole run, then those of each phase; without `each_phase` only its latency.
fn figures(report: &Report, each_phase: bool) -> Vec<Figure> {
    let mib = f64::from(1 << 20);
    let used = &report.used;
    let cpu_s = |process| report.per_million(process);
    let mut figures = vec![
        Figure::new("service CPU-s per million", cpu_s(used.service), 3),
        Figure::new("mongod CPU-s per million", cpu_s(used.mongod), 3),
        Figure::new("acknowledged/s", report.acked_per_s(), 0),
        Figure::new("stored/s", report.stored_per_s(), 0),
        Figure::new("peak MiB", used.service.rss_peak_bytes as f64 / mib, 0),
    ];
    for phase in &report.phases {
        figures.extend(phase_figures(phase, each_phase));
    }
    figures
}

fn phase_figures(phase: &PhaseReport, each_phase: bool) -> Vec<Figure> {
    let p99 = phase.latency_ms.p99;
    if !each_phase {
        return vec![Figure::new("ack p99, ms", p99, 1)];
    }
    let figure = |what: &str, value, decimals| {
        Figure::new(format!("{}: {what}", phase.name), value, decimals)
    };
    let cpu_s = |cpu_s| phase.per_million(cpu_s);
    vec![
        figure("service CPU-s per million", cpu_s(phase.service_cpu_s), 3),
        figure("mongod CPU-s per million", cpu_s(phase.mongod_cpu_s), 3),
        figure("acknowledged/s", phase.acked_per_s, 0),
        figure("ack p50, ms", phase.latency_ms.p50, 1),
        figure("ack p99, ms", p99, 1),
        figure("ack p99.9, ms", phase.latency_ms.p999, 1),
    ]
}

/// Figures of the runs with one binary.
#[derive(Debug, Default, Serialize)]
struct Runs(Vec<Vec<Figure>>);

/// The runs of both binaries.
#[derive(Debug, Serialize)]
pub(crate) struct Pair {
    scenario: String,
    before: Runs,
    after: Runs,
}

/// Runs the scenario `rounds` times with each binary: its first phase, or with `each_phase` all.
///
/// # Errors
/// A run failed, or lost or duplicated a reading.
pub(crate) async fn run(
    spec: &Path,
    short: bool,
    [before, after]: [Options; 2],
    rounds: usize,
    each_phase: bool,
) -> Result<Pair, Failure> {
    let mut spec = run::find_spec(spec, short)?;
    if !each_phase {
        spec.phases.truncate(1);
    }
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
            runs.0.push(figures(&report, each_phase));
        }
    }
    Ok(pair)
}

impl Runs {
    /// Minimum, median and maximum of a figure.
    fn spread(&self, figure: usize) -> [f64; 3] {
        let mut values: Vec<f64> = self.0.iter().map(|run| run[figure].value).collect();
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
    /// One figure of one run with each binary.
    pub(crate) fn single(scenario: &str, figure: &str, [before, after]: [f64; 2]) -> Pair {
        let run = |value| Runs(vec![vec![Figure::new(figure, value, 0)]]);
        Pair {
            scenario: scenario.to_owned(),
            before: run(before),
            after: run(after),
        }
    }

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
        let of_a_run = self.before.0.first().into_iter().flatten();
        for (i, figure) in of_a_run.enumerate() {
            let Figure { name, decimals, .. } = figure;
            let before = self.before.spread(i);
            let after = self.after.spread(i);
            let cell = |[least, median, most]: [f64; 3]| {
                let shown = |value| format!("{value:.decimals$}");
                format!("{} ({} to {})", shown(median), shown(least), shown(most))
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
        let run = |value: &f64| vec![Figure::new("cost", *value, 3), Figure::new("rate", 7.0, 0)];
        let runs = |values: &[f64]| Runs(values.iter().map(run).collect());
        let pair = Pair {
            scenario: "x".into(),
            before: runs(&[4.0, 1.0, 2.0]),
            after: runs(&[1.0, 3.0]),
        };
        assert_eq!(pair.before.spread(0), [1.0, 2.0, 4.0]);
        assert_eq!(pair.after.spread(0), [1.0, 2.0, 3.0]);
        let lines = pair.markdown();
        assert_eq!(
            lines[4..],
            [
                "| cost | 2.000 (1.000 to 4.000) | 2.000 (1.000 to 3.000) | 1.00 |",
                "| rate | 7 (7 to 7) | 7 (7 to 7) | 1.00 |"
            ]
        );
    }
}
