//! Executes README and guides: links resolve, commands print the shown output, settings are
//! accepted, and the queries of docs/mongodb.md return the promised results in both modes, with the
//! promised index.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "a test that prints"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::guides::{self, Block};
use crate::support::mongod::{Mongod, python_packages, tools, unique_database};
use crate::support::mosquitto::Mosquitto;
use crate::support::service::Service;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

// ---- links

/// The text without fenced and indented blocks and without inline code.
fn prose(text: &str) -> Vec<String> {
    let mut fenced = false;
    let lines = text.lines().filter(|line| {
        let fence = line.starts_with("```");
        fenced ^= fence;
        !fenced && !fence && !line.starts_with("    ")
    });
    lines
        .map(|line| line.split('`').step_by(2).collect::<Vec<_>>().join("`"))
        .collect()
}

/// The anchors of a page, as GitHub derives them from its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fenced ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let keep = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
        let slug: String = heading
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| keep(*c))
            .collect();
        let slug = slug.replace(' ', "-");
        let n = times.entry(slug.clone()).or_default();
        found.insert(if *n == 0 { slug } else { format!("{slug}-{n}") });
        *n += 1;
    }
    found
}

/// The targets of `[text](target)` in a line.
fn targets(line: &str) -> Vec<&str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .collect()
}

/// The broken links of a page.
fn broken(page: &str, text: &str) -> Vec<String> {
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let mut wrong = vec![];
    for target in prose(text).iter().flat_map(|line| targets(line)) {
        if target.starts_with("http://") || target.starts_with("https://") {
            continue;
        }
        let (path, anchor) = target
            .split_once('#')
            .map_or((target, None), |(path, anchor)| (path, Some(anchor)));
        let file = if path.is_empty() {
            guides::root().join(page)
        } else {
            guides::root().join(folder).join(path)
        };
        if !file.exists() {
            wrong.push(format!("{page}: {target}: no such file"));
        } else if let Some(anchor) = anchor {
            let there =
                std::fs::read_to_string(&file).is_ok_and(|text| anchors(&text).contains(anchor));
            if !there {
                wrong.push(format!("{page}: {target}: no such heading"));
            }
        }
    }
    wrong
}

#[test]
fn links_resolve() {
    let pages = guides::pages();
    assert!(pages.iter().any(|p| p == "docs/mongodb.md"), "{pages:?}");
    let wrong: Vec<String> = pages
        .iter()
        .flat_map(|page| broken(page, &guides::read(page)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The check itself finds broken links.
    let text = "# A `b` heading!\n\n[x](#a-b-heading) [y](nowhere.md) `[z](q.md)`\n\n    [code](w.md)\n[v](#c)\n";
    assert_eq!(anchors(text), BTreeSet::from(["a-b-heading".to_owned()]));
    assert_eq!(
        broken("docs/none.md", text)
            .iter()
            .filter(|w| w.contains("no such file"))
            .count(),
        3
    );
    assert_eq!(
        broken(
            "README.md",
            "[a](docs/mongodb.md#no-such) [b](docs/mongodb.md#queries)"
        )
        .len(),
        1
    );
}

// ---- settings

/// Every configuration in a guide is accepted, except for files that it names.
#[test]
fn settings_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let mut n = 0;
    for page in guides::pages() {
        for block in guides::blocks(&page, &guides::read(&page)) {
            if block.info.first().is_none_or(|w| w != "toml") || block.has("tokens") {
                continue;
            }
            let file = dir.path().join("hourbucket.toml");
            std::fs::write(&file, &block.text).unwrap();
            if let Err(problems) = config::load(Some(&file), std::iter::empty()) {
                // A named certificate does not exist here; everything else must be valid.
                let printed = problems.to_string();
                let others = printed
                    .lines()
                    .skip(1)
                    .filter(|line| !line.contains("No such file"))
                    .count();
                assert_eq!(others, 0, "{}: {printed}", block.at);
            }
            n += 1;
        }
    }
    assert!(n >= 3, "{n} configurations were found");
}

/// The guide lists exactly the existing reasons.
#[test]
fn reasons_are_listed() {
    let text = guides::read("docs/http.md");
    let table = text.split_once("## Why a reading is rejected").unwrap().1;
    let rows = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<&str> = rows.collect();
    assert_eq!(
        listed,
        decode::RejectReason::ALL
            .iter()
            .map(|reason| reason.as_str())
            .collect()
    );
}

// ---- commands

/// Runs the `sh run` blocks of a page in one shell, against a service with its `toml run` blocks as
/// configuration.
fn run_commands(page: &str) {
    let blocks = guides::blocks(page, &guides::read(page));
    let broker = Mosquitto::start("");
    let settings = [
        ("STORE__URI", &*Mongod::shared().uri()),
        ("STORE__DATABASE", &unique_database("guide")),
    ];
    let config: String = blocks
        .iter()
        .filter(|b| b.is("toml", "run"))
        .map(|b| b.text.as_str())
        .collect();
    let config = config.replace("mqtt://127.0.0.1:1883", &broker.url());
    let service = Service::start(&format!("flush.max_age = \"200ms\"\n{config}"), &settings);
    if config.contains("[[mqtt]]") {
        service.wait_subscribed();
    }
    let commands: Vec<&Block> = blocks.iter().filter(|b| b.is("sh", "run")).collect();
    assert!(!commands.is_empty(), "{page} has no commands");
    let outputs = shell(&service, &broker, &settings, &commands);
    for (block, printed) in commands.iter().zip(outputs) {
        if let Some(output) = &block.output {
            guides::compare(output, &printed);
        }
    }
    let metrics = service.wait_settled(1, PATIENCE);
    assert_eq!(
        metrics.get("dead_letters_total"),
        0.0,
        "a message of {page} was not understood:\n{}",
        service.log()
    );
}

/// In place of a wait for the default `flush.max_age`: until everything accepted is stored, however
/// slow the machine is.
const UNTIL_STORED: &str = "until curl -sS 127.0.0.1:8081/metrics | awk '\
    /^hourbucket_readings_accepted_total/ { accepted += $NF } \
    /^hourbucket_readings_(stored|duplicate)_total/ { stored += $NF } \
    END { exit !(accepted > 0 && accepted == stored) }'; do sleep 0.1; done\n";

fn shell(
    service: &Service,
    broker: &Mosquitto,
    settings: &[(&str, &str)],
    commands: &[&Block],
) -> Vec<String> {
    let mut script = String::from("set -euo pipefail\n");
    let http = service.http().replace("http://", "");
    let admin = service.admin().replace("http://", "");
    for block in commands {
        let text = block
            .text
            .replace("sleep 15\n", UNTIL_STORED)
            .replace("127.0.0.1:8080", &http)
            .replace("127.0.0.1:8081", &admin);
        let text = text.replace(
            "mosquitto_pub ",
            &format!("mosquitto_pub -p {} ", broker.port()),
        );
        script.push_str(&format!(
            "printf '\\n@@@@\\n'; echo '--- {}' >&2\n{text}\n",
            block.at
        ));
    }
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_hourbucket"));
    let path = format!(
        "{}:{}",
        binary.parent().unwrap().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut command = Command::new("bash");
    command
        .arg("-c")
        .arg(script)
        .current_dir(service.dir())
        .env("PATH", path)
        .env("no_proxy", "127.0.0.1")
        .env("HOURBUCKET_HTTP__LISTEN", &http);
    // As on a user's machine: the configuration in the default place, and the URI in the
    // environment.
    std::fs::create_dir_all(service.dir().join("config")).unwrap();
    std::fs::copy(
        service.dir().join("hourbucket.toml"),
        service.dir().join("config/hourbucket.toml"),
    )
    .unwrap();
    command.envs(
        settings
            .iter()
            .map(|(key, value)| (format!("HOURBUCKET_{key}"), *value)),
    );
    if commands.iter().any(|block| block.text.contains("duckdb")) {
        let packages = python_packages("HOURBUCKET_DUCKDB_PYTHONPATH", "duckdb");
        command.env("PYTHONPATH", packages);
    }
    let done = command.output().expect("bash");
    let printed = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{printed}\n{errors}");
    let outputs: Vec<String> = printed
        .split("\n@@@@\n")
        .skip(1)
        .map(str::to_owned)
        .collect();
    assert_eq!(outputs.len(), commands.len(), "{printed}");
    outputs
}

#[test]
fn commands_of_the_readme() {
    run_commands("README.md");
}

#[test]
fn commands_of_the_http_guide() {
    run_commands("docs/http.md");
}

#[test]
fn commands_of_the_guide_to_care() {
    run_commands("docs/care.md");
}

#[test]
fn commands_of_the_mqtt_guide() {
    run_commands("docs/mqtt.md");
}

#[test]
fn commands_of_the_export_guide() {
    run_commands("docs/export.md");
}

#[test]
fn commands_of_the_forwarding_guide() {
    let page = "docs/forwarding.md";
    let blocks = guides::blocks(page, &guides::read(page));
    let dir = tempfile::tempdir().unwrap();
    for block in blocks.iter().filter(|b| b.is("sh", "centre")) {
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_hourbucket"));
        let text = block
            .text
            .replace("hourbucket ", &format!("{} ", binary.display()));
        let done = Command::new("bash")
            .args(["-ec", &text])
            .current_dir(dir.path())
            .status();
        assert!(done.expect("bash").success(), "{text}");
    }
    let path = |name: &str| format!("{:?}", dir.path().join(name));
    let uri = Mongod::shared().uri();
    let centre = Service::start(
        &format!(
            "flush.max_age = \"200ms\"\nhttp.tokens_file = {}\n",
            path("tokens.toml")
        ),
        &[
            ("STORE__URI", &uri),
            ("STORE__DATABASE", &unique_database("guide_forward")),
        ],
    );
    let here = |text: &str| {
        text.replace("https://centre.example:8080", &centre.http())
            .replace("\"forward-token\"", &path("forward-token"))
    };
    let config: String = blocks
        .iter()
        .filter(|b| b.is("toml", "run"))
        .map(|b| here(&b.text))
        .collect();
    let edge = Service::start(&config, &[]);
    let broker = Mosquitto::start("");
    let commands: Vec<&Block> = blocks.iter().filter(|b| b.is("sh", "run")).collect();
    let outputs = shell(&edge, &broker, &[], &commands);
    for (block, printed) in commands.iter().zip(outputs) {
        if let Some(mut output) = block.output.clone() {
            output.text = here(&output.text);
            guides::compare(&output, &printed);
        }
    }
    centre.wait_settled(1, PATIENCE);
}

// ---- queries

/// `HOURBUCKET_MONGOSH`, else the download of `tests/run.sh`; `None` if it could not be downloaded.
fn mongosh() -> Option<PathBuf> {
    match std::env::var_os("HOURBUCKET_MONGOSH") {
        Some(none) if none == "none" => return None,
        Some(named) => return Some(named.into()),
        None => {}
    }
    let entries = std::fs::read_dir(tools())
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let found = entries
        .map(|path| path.join("mongosh"))
        .find(|path| path.is_file());
    let none = || {
        panic!(
            "no mongosh in {}: run tests/run.sh once, it gets one",
            tools().display()
        )
    };
    Some(found.unwrap_or_else(none))
}

/// The readings of the examples in docs/mongodb.md, as NDJSON.
fn example_data() -> String {
    let start = 1_709_287_200_000_i64; // 2024-03-01T10:00:00Z
    let minute = |n: i64| start + n * 60_000;
    let first = (0..120).filter(|n| !(80..100).contains(n)).map(|n| {
        let temp = (2000 + 5 * n) as f64 / 100.0;
        json!({ "sensor_id": "S1", "ts": minute(n), "values": { "temp": temp, "humid": 60 }, "tags": { "site": "north" } })
    });
    let second = (0..12).map(|n| {
        let temp = if n % 2 == 0 { 18.0 } else { 18.5 };
        json!({ "sensor_id": "S2", "ts": minute(n * 10), "values": { "temp": temp }, "tags": { "site": "south" } })
    });
    first
        .chain(second)
        .map(|reading| format!("{reading}\n"))
        .collect()
}

/// The script for mongosh: each block as it is, with the value of the last statement printed, and
/// its plan if an index is promised.
fn script(examples: &[&Block]) -> String {
    let mut script = String::from(
        "function show(what, value) {\n\
         if (value && typeof value.toArray === 'function' && !Array.isArray(value)) value = \
         value.toArray();\n\
         print('@@ ' + what + ' ' + EJSON.stringify(value === undefined ? null : value));\n}\n",
    );
    for (n, block) in examples.iter().enumerate() {
        let lines: Vec<&str> = block.text.lines().collect();
        let last = lines
            .iter()
            .rposition(|line| line.starts_with("db.") || line.starts_with("where."));
        let Some(last) = last else {
            script.push_str(&block.text);
            continue;
        };
        let before = lines[..last].join("\n");
        let expression = lines[last..].join("\n");
        script.push_str(&format!("{before}\nshow('answer {n}', {expression})\n"));
        if index_of(block).is_some() {
            script.push_str(&format!(
                "show('plan {n}', {expression}.explain('queryPlanner'))\n"
            ));
        }
    }
    script
}

fn index_of(block: &Block) -> Option<&str> {
    block
        .info
        .iter()
        .find_map(|word| word.strip_prefix("index="))
}

/// All values of a key, at any depth.
fn values_of<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                if let Some(text) = value.as_str().filter(|_| name == key) {
                    found.push(text);
                }
                values_of(value, key, found);
            }
        }
        Value::Array(all) => all.iter().for_each(|value| values_of(value, key, found)),
        _ => {}
    }
}

fn uses_index(block: &Block, plan: &Value) {
    let wanted = index_of(block).unwrap();
    let mut stages = vec![];
    let mut indexes = vec![];
    values_of(plan, "stage", &mut stages);
    values_of(plan, "indexName", &mut indexes);
    let used = stages.contains(&wanted) || indexes.contains(&wanted);
    assert!(
        used && !stages.contains(&"COLLSCAN"),
        "{}: {wanted} is not used: {stages:?} {indexes:?}\n{plan}",
        block.at
    );
}

/// The examples in one mode, with pages of 25 readings, so that a query that ignores the further
/// pages fails.
fn queries(mode: &str) {
    let Some(mongosh) = mongosh() else {
        eprintln!("NOT RUN: there is no mongosh here (HOURBUCKET_MONGOSH = none)");
        return;
    };
    let uri = Mongod::shared().uri();
    let database = unique_database("queries");
    let text = "flush.max_age = \"200ms\"\nbucket.max_readings = 25\nlimits.past = \"20000d\"\n\
        store.retention = \"20000d\"\n\
                store.tags_index = true\n[latest]\nenabled = true\ninterval = \"200ms\"\n";
    let settings = [
        ("STORE__URI", uri.as_str()),
        ("STORE__DATABASE", &database),
        ("STORE__MODE", mode),
    ];
    let mut service = Service::start(text, &settings);
    let (status, answer) = service
        .post(
            "/v1/readings",
            "application/x-ndjson",
            example_data().as_bytes(),
        )
        .unwrap();
    assert_eq!(status, 200, "{answer}");
    service.wait_settled(112, PATIENCE);
    assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());

    let page = guides::read("docs/mongodb.md");
    let blocks = guides::blocks("docs/mongodb.md", &page);
    let of_mode = |b: &&Block| {
        b.is("js", "run") && (b.has(mode) || !(b.has("bucket") || b.has("timeseries")))
    };
    let examples: Vec<&Block> = blocks.iter().filter(of_mode).collect();
    let file = service.dir().join("examples.js");
    std::fs::write(&file, script(&examples)).unwrap();
    let uri = uri.replace("/?", &format!("/{database}?"));
    let done = Command::new(mongosh)
        .args(["--quiet", &uri, "--file"])
        .arg(&file)
        .env("HOME", service.dir())
        .output();
    let done = done.expect("mongosh");
    let printed = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{printed}\n{errors}");

    let mut compared = BTreeSet::new();
    for line in printed.lines() {
        let mut words = line.splitn(4, ' ').skip(1);
        let (Some(what), Some(n), Some(value)) = (words.next(), words.next(), words.next()) else {
            panic!("{line}")
        };
        let block = examples[n.parse::<usize>().unwrap_or_else(|_| panic!("{line}"))];
        match (what, &block.output) {
            ("plan", _) => uses_index(block, &serde_json::from_str(value).unwrap()),
            (_, Some(output)) => guides::compare(output, value),
            (_, None) => continue,
        }
        compared.insert((what.to_owned(), n.to_owned()));
    }
    let promised = examples
        .iter()
        .map(|b| usize::from(b.output.is_some()) + usize::from(index_of(b).is_some()));
    assert_eq!(compared.len(), promised.sum::<usize>(), "{printed}");
    assert!(compared.len() > 20, "{printed}");
}

#[test]
fn queries_in_bucket_mode() {
    queries("bucket");
}

#[test]
fn queries_in_timeseries_mode() {
    queries("timeseries");
}
