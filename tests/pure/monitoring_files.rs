//! The files shipped for Grafana and Prometheus, without a server: the form of the dashboards, the
//! rules and their tests, and that metrics, alerts, runbooks and documentation name each other
//! completely. `tests/servers/monitoring.rs` runs all of it.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support::promql;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use crate::support::watch::{
    CONFIG, MONITORING, RULES, RUNBOOKS, dashboards, documented, path, promtool, queries, text,
};
use pipeline::accumulate::state::RejectCause;
use serde_json::Value;
use telemetry::catalog;

/// The alerts in the rules, each with its block of lines.
fn alerts() -> BTreeMap<String, String> {
    let rules = text(RULES);
    let blocks = rules.split("\n      - alert: ").skip(1);
    let alerts: BTreeMap<_, _> = blocks
        .map(|block| {
            (
                block.lines().next().unwrap().trim().to_owned(),
                block.to_owned(),
            )
        })
        .collect();
    assert!(
        alerts.len() > 20 && alerts.len() == rules.matches("alert:").count(),
        "{alerts:?}"
    );
    alerts
}

#[test]
fn promtool_accepts_the_rules() {
    for arguments in [&["check", "config", CONFIG][..], &["check", "rules", RULES]] {
        let (ok, printed) = promtool(arguments, "");
        assert!(ok && printed.contains("SUCCESS"), "{printed}");
    }
    let (ok, printed) = promtool(
        &["test", "rules", "deploy/prometheus/tests/hourbucket.yml"],
        "",
    );
    assert!(ok, "{printed}");
}

#[test]
fn every_alert_is_tested_firing_and_not_firing() {
    let tests = text("deploy/prometheus/tests/hourbucket.yml");
    let mut fires = BTreeSet::new();
    let mut rests = BTreeSet::new();
    for case in tests.split("\n  - name: ").skip(1) {
        let (title, rest) = case.split_once('\n').unwrap();
        let asked = rest.split("- alertname: ").nth(1).unwrap();
        let (name, asked) = asked.split_once('\n').unwrap();
        let fires_not = asked
            .split("exp_alerts:")
            .nth(1)
            .unwrap()
            .starts_with(" []");
        if fires_not && title.starts_with(&format!("\"{name} does not fire: ")) {
            rests.insert(name.to_owned());
        } else if !fires_not && title == format!("{name} fires") {
            fires.insert(name.to_owned());
        } else {
            panic!("«{title}» does not match its expectation for {name}");
        }
    }
    let all: BTreeSet<String> = alerts().into_keys().collect();
    assert_eq!(fires, all, "tests in which it fires");
    assert_eq!(rests, all, "tests in which it does not");
}

#[test]
fn every_alert_has_a_runbook() {
    let runbooks = text(RUNBOOKS);
    let sections: BTreeSet<&str> = runbooks
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    let alerts = alerts();
    assert_eq!(
        sections,
        alerts.keys().map(String::as_str).collect(),
        "sections of {RUNBOOKS}"
    );
    for (name, rule) in &alerts {
        for key in ["severity: ", "summary: ", "description: "] {
            assert!(rule.contains(key), "{name} has no {key}");
        }
        let url = format!(
            "runbook_url: https://hourbucket.example/{RUNBOOKS}#{}",
            name.to_lowercase()
        );
        assert!(rule.contains(&url), "{name} has no {url}");
        let section = runbooks
            .split(&format!("\n## {name}\n"))
            .nth(1)
            .unwrap()
            .split("\n## ")
            .next()
            .unwrap();
        for part in [
            "**Means.**",
            "**The sender sees.**",
            "**Find the cause.**",
            "**Do.**",
            "**Harmless when.**",
        ] {
            assert!(
                section.contains(part),
                "{RUNBOOKS}, {name}: {part} is missing"
            );
        }
        let severity = rule
            .split("severity: ")
            .nth(1)
            .unwrap()
            .split('}')
            .next()
            .unwrap();
        let listed = format!(
            "| [{name}](runbooks.md#{}) | {severity} |",
            name.to_lowercase()
        );
        assert!(
            text(MONITORING).contains(&listed),
            "{MONITORING} does not list {listed}"
        );
    }
}

#[test]
fn the_queries_of_the_documentation_name_existing_metrics() {
    let mut found = 0;
    for (place, expr) in documented() {
        // A name alone may also be a histogram as a whole.
        if catalog::METRICS.iter().any(|metric| metric.name == expr) {
            continue;
        }
        assert_eq!(unknown(&expr), [""; 0], "{place}: {expr}");
        found += 1;
    }
    assert!(found > 12, "{found} queries in {RUNBOOKS} and {MONITORING}");
}

/// Names that a query may use in addition to our own metrics.
const PROMETHEUS_OWN: [&str; 2] = ["up", "ALERTS"];
const EVERY_LABEL: [&str; 3] = ["instance", "job", "le"];

/// Unknown names in an expression: metrics that are not exported, and labels that they do not have.
fn unknown(expr: &str) -> Vec<String> {
    let found = promql::names(expr);
    let mut wrong = vec![];
    let mut labels = BTreeSet::from(EVERY_LABEL);
    for selector in &found.selectors {
        let name = selector.metric.as_str();
        if PROMETHEUS_OWN.contains(&name) {
            continue;
        }
        let Some(metric) = catalog::METRICS.iter().find(|metric| is_of(metric, name)) else {
            wrong.push(format!("the metric {name}"));
            continue;
        };
        labels.extend(metric.labels);
        let has = |label: &str| metric.labels.contains(&label) || EVERY_LABEL.contains(&label);
        wrong.extend(
            selector
                .matchers
                .iter()
                .filter(|(l, _)| !has(l))
                .map(|(l, _)| format!("the label {l} of {name}")),
        );
        for (label, value) in selector
            .matchers
            .iter()
            .filter(|(label, _)| label == "reason" && name.contains("rejected"))
        {
            let known = |reason: &str| {
                decode::RejectReason::ALL
                    .iter()
                    .any(|known| known.as_str() == reason)
                    || [RejectCause::Quarantined, RejectCause::ReadingsRemoved]
                        .iter()
                        .any(|cause| cause.as_str() == reason)
            };
            wrong.extend(
                value
                    .split('|')
                    .filter(|v| !known(v))
                    .map(|v| format!("{label}=\"{v}\" of {name}")),
            );
        }
    }
    wrong.extend(
        found
            .grouping
            .iter()
            .filter(|l| !labels.contains(l.as_str()))
            .map(|l| format!("grouping by {l}")),
    );
    wrong
}

/// Whether a series with this name belongs to the metric.
fn is_of(metric: &catalog::Metric, series: &str) -> bool {
    match metric.kind {
        catalog::Kind::Histogram => series
            .strip_prefix(metric.name)
            .is_some_and(|end| ["_bucket", "_sum", "_count"].contains(&end)),
        _ => series == metric.name,
    }
}

/// The expression in an alert's block.
fn expression(rule: &str) -> String {
    let after = rule.split("expr: ").nth(1).unwrap();
    let lines = after
        .lines()
        .take_while(|line| !line.trim_start().starts_with("for: ") && !line.contains("labels: {"));
    lines
        .map(|line| line.trim().trim_start_matches("|-"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn every_query_names_existing_metrics_and_every_metric_is_used() {
    let mut expressions: Vec<(String, String)> = alerts()
        .iter()
        .map(|(name, rule)| (name.clone(), expression(rule)))
        .collect();
    for (name, dashboard) in dashboards() {
        expressions.extend(
            queries(&dashboard)
                .into_iter()
                .map(|q| (format!("{name}, {}", q.panel), q.expr)),
        );
    }
    let wrong: Vec<String> = expressions
        .iter()
        .flat_map(|(place, expr)| {
            unknown(expr)
                .into_iter()
                .map(move |what| format!("{place}: {what}"))
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "there is no such thing:\n{}",
        wrong.join("\n")
    );
    let named: BTreeSet<String> = expressions
        .iter()
        .flat_map(|(_, expr)| promql::names(expr).selectors)
        .map(|s| s.metric)
        .collect();
    let unused = catalog::METRICS
        .iter()
        .filter(|metric| !named.iter().any(|series| is_of(metric, series)));
    let unused: Vec<&str> = unused.map(|metric| metric.name).collect();
    assert!(
        unused.is_empty(),
        "on no dashboard and in no alert: {unused:?}"
    );
}

#[test]
fn unknown_names_are_found() {
    for (expr, wrong) in [
        (
            "rate(hourbucket_nothing_total[5m])",
            "the metric hourbucket_nothing_total",
        ),
        (
            "hourbucket_ack_seconds",
            "the metric hourbucket_ack_seconds",
        ),
        (
            "hourbucket_ready_bucket",
            "the metric hourbucket_ready_bucket",
        ),
        ("sum by (broker) (hourbucket_ready)", "grouping by broker"),
        (
            "hourbucket_mqtt_connected{reason=\"x\"}",
            "the label reason of hourbucket_mqtt_connected",
        ),
        (
            "hourbucket_readings_rejected_total{reason=~\"too_old|too_new\"}",
            "reason=\"too_new\" of hourbucket_readings_rejected_total",
        ),
    ] {
        assert_eq!(unknown(expr), [wrong], "{expr}");
    }
    assert_eq!(
        unknown("sum by (source, le) (rate(hourbucket_ack_seconds_bucket{instance=\"a\"}[5m]))"),
        [""; 0]
    );
}

#[test]
fn the_dashboard_is_the_output_of_its_script() {
    let script = path("deploy/grafana/build.py");
    let output = Command::new("python3")
        .arg("-B")
        .arg(script)
        .arg("--check")
        .output()
        .expect("python3");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_dashboards_have_the_form_that_grafana_expects() {
    for (name, dashboard) in dashboards() {
        assert!(
            dashboard["uid"].is_string()
                && dashboard["title"].is_string()
                && dashboard["schemaVersion"] == 39
        );
        let variables: Vec<&str> = dashboard["templating"]["list"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v["name"].as_str().unwrap())
            .collect();
        let panels = dashboard["panels"].as_array().unwrap();
        let ids: BTreeSet<i64> = panels
            .iter()
            .map(|panel| panel["id"].as_i64().unwrap())
            .collect();
        assert_eq!(ids.len(), panels.len(), "{name}: ids");
        let mut titles = BTreeSet::new();
        let mut cells = BTreeSet::new();
        for panel in panels {
            let title = panel["title"].as_str().unwrap();
            assert!(titles.insert(title), "{name}: two panels «{title}»");
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(
                at("w") > 0 && at("h") > 0 && at("x") + at("w") <= 24,
                "{title}: beyond the 24 columns"
            );
            for cell in (at("x")..at("x") + at("w"))
                .flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
            {
                assert!(
                    cells.insert(cell),
                    "{name}: {title} overlaps another panel at {cell:?}"
                );
            }
            if panel["type"] != "row" {
                complete(&name, panel, &variables);
            }
        }
        for place in sources(&dashboard) {
            let known = place["uid"] == "${datasource}" || place["uid"] == "-- Grafana --";
            assert!(
                known,
                "{name}: a data source that is not the variable: {place}"
            );
        }
    }
}

/// Checks a panel that shows data.
fn complete(name: &str, panel: &Value, variables: &[&str]) {
    let title = panel["title"].as_str().unwrap();
    assert!(
        panel["description"].as_str().is_some_and(|d| d.len() > 10),
        "{name}, {title}: no description"
    );
    assert!(
        panel["fieldConfig"]["defaults"]["unit"].is_string(),
        "{name}, {title}: no unit"
    );
    assert!(
        panel.get("libraryPanel").is_none(),
        "{name}, {title}: a library panel"
    );
    let targets = panel["targets"].as_array().unwrap();
    let refs: BTreeSet<&str> = targets
        .iter()
        .map(|t| t["refId"].as_str().unwrap())
        .collect();
    assert!(
        !refs.is_empty() && refs.len() == targets.len(),
        "{name}, {title}: refId"
    );
    for target in targets {
        for used in target["expr"].as_str().unwrap().split('$').skip(1) {
            let variable = used
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap();
            let known = variables.contains(&variable) || variable == "__rate_interval";
            assert!(known, "{name}, {title}: the variable ${variable}");
        }
    }
    let alerts = alerts();
    for link in panel["links"].as_array().unwrap() {
        let url = link["url"].as_str().unwrap();
        let title = link["title"].as_str().unwrap();
        let alert = title.strip_prefix("Runbook: ").unwrap();
        assert!(
            alerts.contains_key(alert) && url.ends_with(&format!("#{}", alert.to_lowercase())),
            "{name}: {title}"
        );
    }
}

/// Every `datasource` in it.
fn sources(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(members) => members
            .iter()
            .flat_map(|(key, member)| {
                let own = (key == "datasource").then_some(member);
                own.into_iter().chain(sources(member))
            })
            .collect(),
        Value::Array(members) => members.iter().flat_map(sources).collect(),
        _ => vec![],
    }
}

/// `HOURBUCKET_WRITE_DOCS=1 cargo test --test pure monitoring_files::` writes the table.
#[test]
fn the_documentation_lists_every_metric() {
    let begin = "<!-- metrics: begin, made by tests/pure/monitoring_files.rs -->\n";
    let end = "<!-- metrics: end -->";
    let old = text(MONITORING);
    let (before, rest) = old
        .split_once(begin)
        .unwrap_or_else(|| panic!("{MONITORING} has no {begin}"));
    let (_, after) = rest
        .split_once(end)
        .unwrap_or_else(|| panic!("{MONITORING} has no {end}"));
    let new = format!("{before}{begin}{}{end}{after}", catalog::table());
    if std::env::var_os("HOURBUCKET_WRITE_DOCS").is_some() {
        std::fs::write(path(MONITORING), &new).unwrap();
    } else {
        assert!(
            old == new,
            "{MONITORING}: the table of metrics is old; HOURBUCKET_WRITE_DOCS=1 writes it"
        );
    }
}

#[test]
fn every_metric_is_described_as_prometheus_requires() {
    let mut names = BTreeSet::new();
    for metric in catalog::METRICS {
        assert!(names.insert(metric.name), "{} twice", metric.name);
        assert_eq!(
            metric.kind == catalog::Kind::Counter,
            metric.name.ends_with("_total"),
            "{}",
            metric.name
        );
        assert!(
            metric.help.ends_with('.') && !metric.help.contains('|') && !metric.unit.is_empty(),
            "{}",
            metric.name
        );
    }
}
