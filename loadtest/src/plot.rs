//! Plots the course of a run as SVG: readings acknowledged and stored per second, and memory; of a
//! soak, more by minute.

use std::fmt::Write;
use std::path::Path;

use crate::Failure;
use crate::report::{Report, Sample};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 260.0;
/// Margins for the axis labels and the title.
const LEFT: f64 = 90.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 30.0;
const COLOURS: [&str; 3] = ["#1f77b4", "#d62728", "#2ca02c"];

/// Name and points of a line.
pub(crate) type Line = (&'static str, Vec<(f64, f64)>);

/// Lines over the same time.
pub(crate) struct Chart {
    pub(crate) title: String,
    /// The unit of the time.
    pub(crate) unit: &'static str,
    pub(crate) lines: Vec<Line>,
}

/// Writes the plots of a run to the output directory.
pub(crate) fn save(out: &Path, report: &Report) -> Result<(), Failure> {
    let rates = vec![
        ("acknowledged/s", rate(&report.course, |s| s.acked)),
        ("stored/s", rate(&report.course, |s| s.settled)),
    ];
    let mib = |of: fn(&Sample) -> u64| -> Vec<(f64, f64)> {
        report
            .course
            .iter()
            .map(|s| (s.s, of(s) as f64 / f64::from(1 << 20)))
            .collect()
    };
    let memory = vec![
        ("resident MiB", mib(|s| s.rss_bytes)),
        ("open buckets MiB", mib(|s| s.accumulate_bytes)),
        ("journal MiB", mib(|s| s.journal_bytes)),
    ];
    std::fs::create_dir_all(out)?;
    for (what, lines) in [("rate", rates), ("memory", memory)] {
        let title = format!(
            "{}, {} mode, {}",
            report.scenario, report.mode, report.format
        );
        let text = svg(&[Chart {
            title,
            unit: "s",
            lines,
        }]);
        std::fs::write(out.join(format!("{}-{what}.svg", report.scenario)), text)?;
    }
    Ok(())
}

/// The rate of a counter between consecutive samples.
fn rate(course: &[Sample], of: fn(&Sample) -> u64) -> Vec<(f64, f64)> {
    let pairs = course.windows(2).filter(|pair| pair[1].s > pair[0].s);
    pairs
        .map(|p| {
            (
                p[1].s,
                of(&p[1]).saturating_sub(of(&p[0])) as f64 / (p[1].s - p[0].s),
            )
        })
        .collect()
}

/// The charts below each other.
pub(crate) fn svg(charts: &[Chart]) -> String {
    let height = HEIGHT * charts.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\"><rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n"
    );
    for (i, chart) in charts.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">", HEIGHT * i as f64);
        draw(chart, &mut out);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn draw(chart: &Chart, out: &mut String) {
    let Chart { title, unit, lines } = chart;
    let points = || lines.iter().flat_map(|(_, points)| points);
    let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max).max(1e-9);
    let x_max = most(|p| p.0);
    let y_max = round_up(most(|p| p.1));
    let right = WIDTH - 20.0;
    let bottom = HEIGHT - BOTTOM;
    let x = |value: f64| LEFT + value / x_max * (right - LEFT);
    let y = |value: f64| bottom - value / y_max * (bottom - TOP);
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{title}</text>"
    );
    for part in 0..=4 {
        let value = y_max * f64::from(part) / 4.0;
        let s = x_max * f64::from(part) / 4.0;
        let at_y = y(value);
        let at_x = x(s);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at_y:.1}H{right}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>\
             <text x=\"{at_x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{s:.1} {unit}</text>",
            LEFT - 6.0,
            at_y + 4.0,
            thousands(value),
            HEIGHT - 10.0
        );
    }
    for (i, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let path: String = points
            .iter()
            .map(|(px, py)| format!("{:.1},{:.1} ", x(*px), y(*py)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
             <text x=\"{:.0}\" y=\"34\" fill=\"{colour}\">{name}</text>",
            LEFT + 150.0 * i as f64
        );
    }
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|m| m * power)
        .into_iter()
        .find(|candidate| *candidate >= value)
        .unwrap_or(value)
}

fn thousands(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.2}")
    } else if value < 1e4 {
        format!("{value:.0}")
    } else {
        format!("{:.0}k", value / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_holds_all_lines_within_its_frame() {
        let lines = vec![
            ("a", vec![(0.0, 0.0), (10.0, 730.0)]),
            ("b", vec![(5.0, 100.0)]),
        ];
        let text = svg(&[Chart {
            title: "t".into(),
            unit: "s",
            lines,
        }]);
        assert_eq!(text.matches("<polyline").count(), 2);
        assert!(
            text.contains(&format!("{:.1},{:.1} ", LEFT, HEIGHT - BOTTOM)),
            "the origin: {text}"
        );
        assert!(text.contains("1000") && text.trim_end().ends_with("</svg>"));
        assert_eq!(
            (round_up(730.0), round_up(0.3), round_up(2.0)),
            (1000.0, 0.5, 2.0)
        );
    }
}
