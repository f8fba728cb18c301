//! Writes the files that are made of the declarations, besides the reference: the shipped file, and
//! the JSON Schema with which an editor completes and checks keys. The schema knows types, ranges
//! and names. What only the reader can check, such as combinations, it accepts.
//!
//! Tests: each file is up to date, and the schema accepts and refuses what the reader does.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::declare::{Key, List, Settings, Value, Visit, Visitor};
use super::describe::{Item, items, paragraphs};
use super::mapping::{Mapping, Rule};
use super::reference::WIDTH;
use super::{Config, load, reference};

/// The head of the shipped file.
const HEAD: &str = include_str!("reference/shipped.txt");

/// The shipped file: every key with its default, those without one commented out.
fn shipped() -> String {
    let mut out = HEAD.to_owned();
    let mut mark = "";
    for item in items() {
        match item {
            Item::Section {
                header,
                text,
                is_example,
            } => {
                mark = if is_example { "# " } else { "" };
                out.push('\n');
                comment(&mut out, text);
                let _ = writeln!(out, "{mark}{header}");
            }
            Item::Key { key, .. } if key.is_hidden => {}
            Item::Key { key, default, .. } => {
                comment(&mut out, key.text);
                let Key { name, example, .. } = key;
                let mark = example.map_or(mark, |_| "# ");
                let value = example.or(default.as_deref()).unwrap_or_default();
                let _ = writeln!(out, "{mark}{name} = {value}");
            }
        }
    }
    out
}

fn comment(out: &mut String, text: &str) {
    for paragraph in paragraphs(text, WIDTH) {
        if paragraph.is_apart {
            out.push_str("#\n");
        }
        let indent = if paragraph.is_example { "  " } else { "" };
        for line in paragraph.lines {
            let _ = writeln!(out, "# {indent}{line}");
        }
    }
}

/// The schema as JSON text.
fn schema() -> String {
    let mut schema = object(&mut |keys| Config::default().visit(keys));
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema["title"] = json!("hourbucket.toml");
    format!("{schema:#}\n")
}

/// The properties of a section. None is required, because the environment can set any.
#[derive(Default)]
struct Properties(Map<String, Json>);

/// The schema of a section.
fn object(keys: Visit<'_>) -> Json {
    let mut properties = Properties::default();
    keys(&mut properties);
    json!({ "type": "object", "properties": properties.0, "additionalProperties": false })
}

impl Properties {
    fn add(&mut self, key: &Key, mut schema: Json) {
        let paragraphs = paragraphs(key.text, usize::MAX).into_iter();
        let text: Vec<String> = paragraphs.map(|part| part.lines.join("\n")).collect();
        let text = text.join("\n\n");
        if !text.is_empty() {
            schema["description"] = json!(text);
        }
        self.0.insert(key.name.to_owned(), schema);
    }
}

impl Visitor for Properties {
    fn key(&mut self, key: &Key, value: &mut dyn Value) {
        if key.is_hidden {
            return;
        }
        let mut schema = value.schema();
        let default = value.write().filter(|_| !key.is_required);
        if let Some(default) = default.and_then(|default| serde_json::to_value(default).ok()) {
            schema["default"] = default;
        }
        self.add(key, schema);
    }

    fn section(&mut self, key: &Key, keys: Visit<'_>) {
        self.add(key, object(keys));
    }

    fn list(&mut self, key: &Key, list: &mut dyn List) {
        list.push();
        let items = object(&mut |keys| list.visit(0, keys));
        self.add(key, json!({ "type": "array", "items": items }));
    }

    fn formats(&mut self, key: &Key, _: &mut Vec<Arc<Mapping>>) {
        let rule = || object(&mut |keys| Rule::default().visit(keys));
        let mut format = rule();
        format["properties"]["rules"] = json!({ "type": "array", "items": rule() });
        let text = Rule::default().text();
        let key = Key {
            text,
            ..key.clone()
        };
        self.add(
            &key,
            json!({ "type": "object", "additionalProperties": format }),
        );
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

/// `UPDATE=1 cargo test -p config` writes them again.
#[test]
fn the_files_are_up_to_date() {
    for (name, text) in [
        ("docs/configuration.md", reference()),
        ("config/hourbucket.toml", shipped()),
        ("config/hourbucket.schema.json", schema()),
    ] {
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path(name), &text).unwrap();
        }
        let committed = std::fs::read_to_string(path(name)).unwrap_or_default();
        let mut lines = committed.lines().zip(text.lines()).enumerate();
        assert!(
            committed == text,
            "{name} is out of date; write it again with UPDATE=1 cargo test -p config. First: {:?}",
            lines.find(|(_, (a, b))| a != b)
        );
    }
}

/// What is wrong with a value by a schema, with its place: the part of draft 7 that the schema
/// uses. Any other keyword fails the test.
fn faults(schema: &Json, value: &Json, at: &str) -> Vec<String> {
    let Some(rules) = schema.as_object() else {
        return match schema {
            Json::Bool(true) => vec![],
            _ => vec![format!("{at}: not allowed")],
        };
    };
    let mut found = vec![];
    let below = |name: &str| format!("{at}/{name}");
    for (keyword, rule) in rules {
        let is_good = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" => true,
            "type" => {
                let is_type = |kind: &Json| match kind.as_str().unwrap() {
                    "string" => value.is_string(),
                    "integer" => value.is_i64() || value.is_u64(),
                    "number" => value.is_number(),
                    "boolean" => value.is_boolean(),
                    "array" => value.is_array(),
                    "object" => value.is_object(),
                    other => panic!("the type {other} is not tested"),
                };
                match rule {
                    Json::Array(kinds) => kinds.iter().any(is_type),
                    kind => is_type(kind),
                }
            }
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_i64().is_none_or(|n| n >= rule.as_i64().unwrap()),
            "maximum" => value.as_i64().is_none_or(|n| n <= rule.as_i64().unwrap()),
            "minLength" => value.as_str().is_none_or(|text| !text.is_empty()),
            "maxItems" => {
                let most = rule.as_u64().unwrap() as usize;
                value.as_array().is_none_or(|items| items.len() <= most)
            }
            "pattern" => {
                let pattern = regex::Regex::new(rule.as_str().unwrap()).unwrap();
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "anyOf" => {
                let mut any = rule.as_array().unwrap().iter();
                any.any(|rule| faults(rule, value, at).is_empty())
            }
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    found.extend(faults(rule, item, &below(&i.to_string())));
                }
                true
            }
            "properties" | "additionalProperties" => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    let known = rules.get("properties").and_then(|all| all.get(name));
                    let rule = match keyword.as_str() {
                        "properties" => known,
                        _ => Some(rule).filter(|_| known.is_none()),
                    };
                    if let Some(rule) = rule {
                        found.extend(faults(rule, member, &below(name)));
                    }
                }
                true
            }
            other => panic!("the keyword {other} is not tested"),
        };
        if !is_good {
            found.push(format!("{at}: {keyword}"));
        }
    }
    found
}

fn faults_of(text: &str) -> Vec<String> {
    let schema: Json = serde_json::from_str(&schema()).unwrap();
    let value: toml::Table = text.parse().unwrap();
    faults(&schema, &json!(value), "")
}

/// The shipped file with every commented-out key and section.
fn everything() -> String {
    let text = shipped();
    let is_setting = |line: &&str| {
        let name = line.split_once(" = ").map_or("[", |(name, _)| name);
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        line.ends_with(']') && line.starts_with('[')
            || !name.is_empty() && name.chars().all(is_name)
    };
    let lines = text
        .lines()
        .map(|line| line.strip_prefix("# ").unwrap_or(line));
    let lines: Vec<&str> = lines.filter(is_setting).collect();
    lines.join("\n")
}

#[test]
fn the_schema_accepts_the_shipped_file_and_the_profiles() {
    assert_eq!(faults_of(&shipped()), [""; 0]);
    let all = everything();
    assert!(all.contains("[[listen.mqtt.topics]]") && all.contains("user_property_tags = "));
    assert_eq!(faults_of(&all), [""; 0]);
    let profiles = std::fs::read_dir(path("config/profiles")).unwrap();
    let deployed = [
        "deploy/compose/hourbucket.toml",
        "deploy/kubernetes/base/hourbucket.toml",
    ];
    for file in profiles
        .map(|file| file.unwrap().path())
        .chain(deployed.map(path))
    {
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(faults_of(&text), [""; 0], "{}", file.display());
    }
    assert!(shipped().starts_with("#:schema ./hourbucket.schema.json\n"));
}

#[test]
fn the_schema_refuses_what_the_reader_refuses() {
    for (text, fault) in [
        ("htpp.enabled = true", "/htpp: not allowed"),
        ("http.lisetn = \"127.0.0.1:1\"", "/http/lisetn: not allowed"),
        (
            "http.body_max_bytes = \"8 megs\"",
            "/http/body_max_bytes: anyOf",
        ),
        ("http.body_max_bytes = 1", "/http/body_max_bytes: anyOf"),
        ("http.header_timeout = 10", "/http/header_timeout: type"),
        ("flush.max_age = \"15 sec\"", "/flush/max_age: pattern"),
        (
            "bucket.max_readings = 20000",
            "/bucket/max_readings: maximum",
        ),
        ("store.mode = \"fast\"", "/store/mode: enum"),
        ("store.tags_index = \"yes\"", "/store/tags_index: type"),
        ("[mqtt]\nurl = \"mqtt://b\"", "/mqtt: type"),
        (
            "[[mqtt]]\nurl = \"a\"\nclient_id = \"b\"\npassword = \"c\"",
            "/mqtt/0/password: not allowed",
        ),
        (
            "[[listen.mqtt.topics]]\nfilter = \"a\"\nformat = \"json\"\nqos = 1",
            "/listen/mqtt/topics/0/qos: not allowed",
        ),
        ("[formats.a]\nidd = \"/id\"", "/formats/a/idd: not allowed"),
        (
            "[[formats.a.rules]]\ntexts = \"all\"",
            "/formats/a/rules/0/texts: enum",
        ),
    ] {
        assert_eq!(faults_of(text), [fault], "{text}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        assert!(
            load(Some(file.path()), std::iter::empty()).is_err(),
            "{text}"
        );
    }
}
