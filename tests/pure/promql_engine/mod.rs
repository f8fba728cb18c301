//! Compares the evaluation with Prometheus 3, value by value.
//!
//! `answers.jsonl` has the answers of Prometheus' engine v0.312.0 to the fixed queries. The engine
//! itself is a small Go program, `tests/promql_engine`. With it, random queries are compared as
//! well, and the answers are written again:
//!
//!     (cd tests/promql_engine && go build -o /tmp/promqlengine .)
//!     HOURBUCKET_PROMQL_ENGINE=/tmp/promqlengine HOURBUCKET_PROMQL_QUERIES=20000 UPDATE=1 \
//!         tests/run.sh --test pure promql_engine::

#![allow(clippy::unwrap_used, reason = "a test")]

mod data;
mod queries;
mod syntax_errors;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use query::promql::{self, QueryTime, SelectedSeries, Series, Stop, Value};
use serde_json::{Value as Json, json};

use self::data::{select, series};
use self::queries::{Asked, fixed, random};

const LOOKBACK_MS: i64 = 300_000;

fn file() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join("tests/pure/promql_engine/answers.jsonl")
}

/// Our answer in the form of the engine's.
fn ours(all: &[Series], asked: &Asked) -> Json {
    let step_ms = Some(asked.step_ms).filter(|step| *step > 0);
    let start_ms = asked.start_ms;
    let end_ms = asked.end_ms;
    let time = QueryTime {
        start_ms,
        end_ms,
        step_ms,
        lookback_ms: LOOKBACK_MS,
    };
    let query = match promql::parse(&asked.query) {
        Ok(query) => query,
        Err(error) => return json!({ "error": format!("parse: {error}") }),
    };
    let mut found: Vec<Vec<SelectedSeries>> = promql::requests(&query, time)
        .iter()
        .map(|request| select(all, request))
        .collect();
    let result = match promql::evaluate(&query, time, &mut found, 50_000_000, &Stop::default()) {
        Ok(evaluated) => evaluated.value,
        Err(error) => return json!({ "error": format!("exec: {error}") }),
    };
    let one = |value: f64| {
        vec![json!({ "labels": {}, "samples": [[start_ms.to_string(), text(value)]] })]
    };
    let kind = result.value_type().as_str();
    match result {
        Value::String(text) => json!({ "type": kind, "text": text }),
        Value::Scalar(value) => json!({ "type": kind, "series": one(value) }),
        Value::Vector(all) | Value::Matrix(all) => {
            let series = all.iter().map(|series| {
                let labels: BTreeMap<&str, &str> = series.labels.iter().collect();
                let samples = series
                    .samples
                    .iter()
                    .map(|s| json!([s.ts_ms.to_string(), text(s.value)]));
                json!({ "labels": labels, "samples": samples.collect::<Vec<_>>() })
            });
            match series.collect::<Vec<_>>() {
                none if none.is_empty() => json!({ "type": kind }),
                series => json!({ "type": kind, "series": series }),
            }
        }
    }
}

fn text(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else {
        value.to_string()
    }
}

fn number(json: &Json) -> f64 {
    json.as_str()
        .unwrap()
        .replace("Inf", "inf")
        .parse()
        .unwrap()
}

/// The last digits depend on the order of sums and on the library of elementary functions.
fn is_near(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-3)
}

fn entries(answer: &Json) -> Vec<(String, Vec<(String, f64)>)> {
    let sample = |s: &Json| (s[0].as_str().unwrap().to_owned(), number(&s[1]));
    let of = |series: &Json| {
        let samples = series["samples"]
            .as_array()
            .map(|all| all.iter().map(sample).collect())
            .unwrap_or_default();
        (series["labels"].to_string(), samples)
    };
    answer["series"]
        .as_array()
        .map(|all| all.iter().map(of).collect())
        .unwrap_or_default()
}

/// An error with the two series that it names in order: theirs may be in the order of a hash map.
fn in_order(error: &str) -> String {
    let named = error
        .split_once(": [")
        .and_then(|(before, rest)| Some((before, rest.split_once(']')?)));
    let Some((before, (series, after))) = named else {
        return error.to_owned();
    };
    let mut series: Vec<&str> = series
        .split_inclusive('}')
        .map(|one| one.trim_start_matches(", "))
        .collect();
    series.sort_unstable();
    format!("{before}: {series:?}{after}")
}

/// Why two answers differ; `None` if they do not.
fn difference(asked: &Asked, theirs: &Json, ours: &Json) -> Option<String> {
    if let (Some(theirs), Some(ours)) = (theirs["error"].as_str(), ours["error"].as_str()) {
        // The text of a parse error is the parser's own.
        let is_same =
            in_order(theirs) == in_order(ours) || (theirs.starts_with("parse") && !ours.is_empty());
        return (!is_same).then(|| format!("another error: {theirs}\n  ours: {ours}"));
    }
    if theirs["type"] != ours["type"]
        || theirs["text"] != ours["text"]
        || theirs["error"] != ours["error"]
    {
        return Some(format!("theirs {theirs}\n  ours {ours}"));
    }
    let mut a = entries(theirs);
    let mut b = entries(ours);
    // Equal values keep an order that may be that of a hash map within a subquery.
    let sorts = ["sort", "topk", "bottomk"]
        .iter()
        .any(|f| asked.query.starts_with(f));
    let is_ordered = asked.step_ms == 0 && sorts && !asked.query.contains('[');
    if !is_ordered {
        a.sort_by(|x, y| x.0.cmp(&y.0));
        b.sort_by(|x, y| x.0.cmp(&y.0));
    }
    let is_same = a.len() == b.len()
        && a.iter().zip(&b).all(|((la, sa), (lb, sb))| {
            la == lb
                && sa.len() == sb.len()
                && sa
                    .iter()
                    .zip(sb)
                    .all(|(x, y)| x.0 == y.0 && is_near(x.1, y.1))
        });
    (!is_same).then(|| format!("theirs {a:?}\n  ours {b:?}"))
}

struct Engine {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Engine {
    fn start(program: &str, all: &[Series]) -> Engine {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the engine starts");
        let series: Vec<Json> = all
            .iter()
            .map(|series| {
                let labels: BTreeMap<&str, &str> = series.labels.iter().collect();
                let samples: Vec<Json> = series
                    .samples
                    .iter()
                    .map(|s| json!([s.ts_ms, s.value]))
                    .collect();
                json!({ "labels": labels, "samples": samples })
            })
            .collect();
        writeln!(child.stdin.as_mut().unwrap(), "{}", Json::from(series)).unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Engine { child, answers }
    }

    fn ask(&mut self, asked: &Asked) -> Json {
        let Asked {
            query,
            start_ms,
            end_ms,
            step_ms,
        } = asked;
        let line = json!({
            "query": query, "start_ms": start_ms, "end_ms": end_ms, "step_ms": step_ms, "lookback_ms": LOOKBACK_MS,
        });
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).expect("an answer")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn report(differences: &[String], total: usize) {
    let shown = differences
        .iter()
        .take(20)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        differences.is_empty(),
        "{} of {total} queries differ:\n{shown}",
        differences.len()
    );
}

#[test]
fn the_fixed_queries_are_answered_as_by_prometheus() {
    let all = series();
    let fixed = fixed();
    assert!(fixed.len() >= 400, "{}", fixed.len());
    if let Some(program) = std::env::var_os("HOURBUCKET_PROMQL_ENGINE")
        && std::env::var_os("UPDATE").is_some()
    {
        let mut engine = Engine::start(&program.to_string_lossy(), &all);
        let lines = fixed
            .iter()
            .map(|asked| engine.ask(asked).to_string() + "\n");
        std::fs::write(file(), lines.collect::<String>()).unwrap();
    }
    let answers = std::fs::read_to_string(file()).unwrap();
    let answers: Vec<Json> = answers
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), fixed.len(), "write answers.jsonl again");
    let compare = |(asked, theirs): (&Asked, &Json)| {
        difference(asked, theirs, &ours(&all, asked)).map(|found| format!("{asked:?}\n  {found}"))
    };
    let differences: Vec<String> = fixed.iter().zip(&answers).filter_map(compare).collect();
    report(&differences, fixed.len());
}

#[test]
fn random_queries_are_answered_as_by_prometheus() {
    // Without the engine, that none of them fails on our side in a way that Prometheus' cannot.
    let number = |name: &str, usual: u64| {
        std::env::var(name)
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(usual)
    };
    let count = number("HOURBUCKET_PROMQL_QUERIES", 500);
    let seed = number("HOURBUCKET_PROMQL_SEED", 1);
    let all = series();
    let mut rng = fastrand::Rng::with_seed(seed);
    let program = std::env::var_os("HOURBUCKET_PROMQL_ENGINE");
    let mut engine = program.map(|program| Engine::start(&program.to_string_lossy(), &all));
    let mut differences = vec![];
    for _ in 0..count {
        let asked = random(&mut rng);
        let ours = ours(&all, &asked);
        assert!(
            !ours["error"]
                .as_str()
                .unwrap_or_default()
                .starts_with("parse"),
            "{asked:?}: {ours}"
        );
        if let Some(engine) = &mut engine {
            let theirs = engine.ask(&asked);
            differences.extend(
                difference(&asked, &theirs, &ours).map(|found| format!("{asked:?}\n  {found}")),
            );
        }
    }
    report(&differences, count as usize);
}

#[test]
fn label_values_that_grow_with_each_call_end_the_query() {
    // Each call doubles the value; unbounded, the last would write 2^60 bytes.
    for call in [
        "label_replace(EXPR, \"a\", \"$1$1\", \"a\", \"(.*)\")",
        "label_join(EXPR, \"a\", \"\", \"a\", \"a\")",
    ] {
        let begin = "label_replace(vector(1), \"a\", \"x\", \"\", \"\")".to_owned();
        let query = (0..60).fold(begin, |query, _| call.replace("EXPR", &query));
        let query = promql::parse(&query).unwrap();
        let time = QueryTime {
            start_ms: 0,
            end_ms: 0,
            step_ms: None,
            lookback_ms: 1,
        };
        let mut nothing: Vec<Vec<SelectedSeries>> = vec![];
        let error = promql::evaluate(&query, time, &mut nothing, 1000, &Stop::default());
        let error = error.unwrap_err();
        assert!(
            error.to_string().contains("64 MiB of label values"),
            "{error}"
        );
    }
}
