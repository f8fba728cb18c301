//! The files that are shipped for Grafana and Prometheus, and the programs of Prometheus that check
//! them.

#![allow(clippy::unwrap_used, reason = "only tests use it")]
#![allow(
    unreachable_pub,
    dead_code,
    reason = "included by several tests, none of which uses all of it"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The shipped rules.
pub const RULES: &str = "deploy/prometheus/rules/hourbucket.yml";
/// The shipped configuration.
pub const CONFIG: &str = "deploy/prometheus/prometheus.yml";
/// The runbooks for the alerts.
pub const RUNBOOKS: &str = "docs/runbooks.md";
/// The documentation of the metrics.
pub const MONITORING: &str = "docs/monitoring.md";

/// The path of a file of the repository.
pub fn path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

/// Its text.
pub fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// `HOURBUCKET_PROMETHEUS` or `HOURBUCKET_PROMTOOL`, else the download of `tests/run.sh`, else by
/// name on the path.
pub fn program(name: &str) -> PathBuf {
    if let Some(named) = std::env::var_os(format!("HOURBUCKET_{}", name.to_uppercase())) {
        return named.into();
    }
    let tools = std::env::var_os("HOURBUCKET_TOOLS").map_or_else(|| path(".tools"), PathBuf::from);
    let mut entries: Vec<PathBuf> = fs::read_dir(tools)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    entries.retain(|dir| {
        dir.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("prometheus-")
    });
    entries
        .pop()
        .map_or_else(|| name.into(), |dir| dir.join(name))
}

/// Runs promtool in the repository with `input`; returns whether it succeeded, and its output.
pub fn promtool(arguments: &[&str], input: &str) -> (bool, String) {
    let mut child = Command::new(program("promtool"))
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("promtool: {e}; run tests/run.sh once, it gets one"));
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&printed).into_owned(),
    )
}

/// Every PromQL query in the documentation, with its place: text between backquotes or indented
/// text that names a metric.
pub fn documented() -> Vec<(String, String)> {
    let mut found = vec![];
    for file in [RUNBOOKS, MONITORING] {
        let text = text(file);
        // The table at the end is compared with the catalog as a whole.
        for line in text.split("<!-- metrics").next().unwrap().lines() {
            let spans: Vec<&str> = match line.strip_prefix("      ") {
                Some(code) => vec![code],
                None => line.split('`').skip(1).step_by(2).collect(),
            };
            let is_query = |span: &&str| span.contains("hourbucket_") || span.contains("process_");
            let queries = spans
                .into_iter()
                .filter(is_query)
                .filter(|span| !span.contains("process_*"));
            found.extend(queries.map(|query| (file.to_owned(), query.trim().to_owned())));
        }
    }
    found
}

/// Every shipped dashboard: file name and content.
pub fn dashboards() -> Vec<(String, Value)> {
    let mut found = vec![];
    for entry in fs::read_dir(path("deploy/grafana/dashboards")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let text = text(&format!("deploy/grafana/dashboards/{name}"));
        found.push((
            name.clone(),
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}")),
        ));
    }
    assert!(!found.is_empty());
    found
}

/// A query of a panel.
#[derive(Debug)]
pub struct Query {
    /// Title of its panel.
    pub panel: String,
    /// The expression in the panel.
    pub expr: String,
    /// Evaluated for one moment, not for a range.
    pub instant: bool,
}

/// Every query of a dashboard's panels and annotations with a Prometheus data source.
pub fn queries(dashboard: &Value) -> Vec<Query> {
    let is_prometheus = |panel: &&Value| panel["datasource"]["type"] == "prometheus";
    let annotations = dashboard["annotations"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .filter(is_prometheus);
    let annotations = annotations.map(|annotation| Query {
        panel: annotation["name"].as_str().unwrap().to_owned(),
        expr: annotation["expr"].as_str().unwrap().to_owned(),
        instant: false,
    });
    let panels = dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .filter(is_prometheus);
    panels
        .flat_map(|panel| {
            let title = panel["title"].as_str().unwrap().to_owned();
            panel["targets"]
                .as_array()
                .unwrap()
                .iter()
                .map(move |target| Query {
                    panel: title.clone(),
                    expr: target["expr"].as_str().unwrap().to_owned(),
                    instant: target["instant"] == true,
                })
        })
        .chain(annotations)
        .collect()
}
