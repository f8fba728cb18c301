//! Tests of the mapping language: refused mappings with the key named, and the meaning of its
//! parts.

use std::sync::Arc;

use super::profiles::{names, parse, shipped};
use super::*;

/// The problems of a text, each with its key.
fn problems(text: &str) -> Vec<String> {
    parse("test", text).1
}

fn one(text: &str) -> Mapping {
    let (mut formats, problems) = parse("test", text);
    assert!(problems.is_empty(), "{text}\n{problems:#?}");
    assert_eq!(formats.len(), 1);
    Arc::unwrap_or_clone(formats.remove(0))
}

#[test]
fn every_profile_is_read_without_a_problem() {
    for ((name, text), mapping) in profiles::PROFILES.iter().zip(shipped()) {
        let (formats, problems) = parse(name, text);
        assert!(problems.is_empty(), "{name}: {problems:#?}");
        assert_eq!(formats.len(), 1, "{name} holds one format");
        assert_eq!(mapping.name, *name, "the file is named like its format");
        assert!(
            text.contains("[[mqtt.subscriptions]]"),
            "{name} shows how it is used"
        );
        assert!(mapping.constant_ids().next().is_none());
    }
    assert!(names().is_sorted() && names().count() == shipped().len());
}

#[test]
fn the_folder_has_no_profile_that_is_not_built_in() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/profiles");
    let mut found: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(
        found,
        names()
            .map(|name| format!("{name}.toml"))
            .collect::<Vec<_>>()
    );
}

#[test]
fn a_setting_that_cannot_work_is_refused_with_its_key() {
    for (line, key, part) in [
        ("id = \"a{\"", "id", "without its }"),
        ("id = \"}a\"", "id", "without its {"),
        ("id = \"\"", "id", "cannot be the id"),
        ("id = \"{a b}\"", "id", "letters"),
        ("id = \"{/a|hex}\"", "id", "|eui"),
        ("id = 5", "id", "write a place"),
        ("id = []", "id", "a list of 0"),
        ("time = \"/a~2\"", "time", "~0"),
        ("time = { unit = \"s\" }", "time", "`at` is missing"),
        ("time = { at = \"/a\", unti = \"s\" }", "time", "`unti`"),
        ("time = { at = \"/a\", unit = \"h\" }", "time", "\"ns\""),
        ("time_unit = \"min\"", "time_unit", "\"ms\""),
        ("zone = \"Europe/Bielefeld\"", "zone", "IANA"),
        (
            "time_unreadable = \"guess\"",
            "time_unreadable",
            "\"receive\"",
        ),
        ("values = \"data\"", "values", "does not begin with /"),
        ("values = \"/a/{b}\"", "values", "braces"),
        ("values = {}", "values", "0 names"),
        (
            "each = \"/a\"\nvalues = \"$/b\"",
            "values",
            "same for every record",
        ),
        ("each = \"$/a/*\"", "each", "does not begin with /"),
        ("each = \"/{ts}\"", "each", "none of ts"),
        ("topic = \"a/#/b\"", "topic", "the whole last level"),
        ("topic = \"{a#}/{b#}\"", "topic", "several"),
        ("when = [{ at = \"/a\" }]", "when", "without there"),
        ("when = [{ is = [1] }]", "when", "`at` is missing"),
        (
            "when = [{ at = \"/a\", there = false, is = [1] }]",
            "when",
            "not there",
        ),
        (
            "when = [{ at = \"/a\", there = false, empty = true }]",
            "when",
            "not there",
        ),
        (
            "when = [{ at = \"/a\", kind = \"list\" }]",
            "when",
            "\"array\"",
        ),
        ("separator = \".\"", "separator", "without `.`"),
        ("include = []", "include", "list of 0"),
        ("exclude = [\"\"]", "exclude", "1 to 255"),
        ("exclude = [\"*********\"]", "exclude", "more than 8"),
        ("texts = \"all\"", "texts", "\"numbers\""),
        ("tags = [\"a\"]", "tags", "a table"),
        ("tags = { \"*\" = \"{a}\" }", "tags", "places only"),
        ("fields = [{ scale = 2 }]", "fields", "`match` is missing"),
        (
            "fields = [{ match = \"a\", scale = 0 }]",
            "fields",
            "every value is the same",
        ),
        (
            "fields = [{ match = \"a\", scale = nan }]",
            "fields",
            "a number",
        ),
        (
            "fields = [{ match = \"a?*\", rename = \"b*\" }]",
            "fields",
            "the one * of",
        ),
        (
            "fields = [{ match = \"a\", colour = 1 }]",
            "fields",
            "`colour`",
        ),
        (
            "fields = [{ match = \"a\", words = { a = [1] } }]",
            "fields",
            "a table such as",
        ),
        ("tiem = \"/a\"", "tiem", "did you mean `formats.x.time`"),
    ] {
        let found = problems(&format!("[formats.x]\n{line}\n"));
        assert_eq!(found.len(), 1, "{line}: {found:#?}");
        assert!(
            found[0].contains(&format!("formats.x.{key}")),
            "{line}: {found:?}"
        );
        assert!(found[0].contains(part), "{line}: {found:?}");
    }
}

#[test]
fn all_mistakes_are_reported_together_also_those_of_rules() {
    let text = "[formats.json]\n[formats.\"a b\"]\n[[formats.c.rules]]\nid = 1\n\
        [[formats.c.rules]]\ntime = 2\n";
    let found = problems(text);
    let has = |part: &str| {
        assert!(
            found.iter().any(|problem| problem.contains(part)),
            "{part}: {found:#?}"
        )
    };
    has("`json` is a built-in format");
    has("`a b` is not a valid name");
    has("formats.c.rules[0].id");
    has("formats.c.rules[1].time");
    has("never reached: rule 0");
    assert_eq!(found.len(), 5);
}

#[test]
fn keys_of_the_format_hold_for_its_rules() {
    let mapping = one("[formats.x]\nseparator = \"/\"\ntime_unit = \"s\"\n\
         time = [\"/a\", { at = \"/b\", unit = \"ms\" }]\n\
         [[formats.x.rules]]\ntopic = \"a/{sensor_id}\"\n[[formats.x.rules]]\nseparator = \"-\"\n\
         time = \"/c\"\n");
    let [first, second] = &mapping.rules[..] else {
        panic!("{mapping:?}")
    };
    assert_eq!(
        (first.separator.as_str(), second.separator.as_str()),
        ("/", "-")
    );
    assert_eq!(
        first.time.iter().map(|t| t.unit).collect::<Vec<_>>(),
        [None, Some(TimeUnit::Ms)]
    );
    let units = (first.time_unit, second.time_unit);
    assert_eq!(units, (Some(TimeUnit::S), Some(TimeUnit::S)));
    assert!(mapping.has_topics() && second.topics.is_empty());
}

#[test]
fn an_id_that_is_always_the_same_is_found() {
    let mapping = one("[formats.x]\nid = [\"/a\", \"all\"]\n");
    assert_eq!(mapping.constant_ids().collect::<Vec<_>>(), [0]);
    let mapping = one("[formats.x]\nid = [\"/a\", \"b-{c}\"]\n");
    assert_eq!(mapping.constant_ids().count(), 0);
}

#[test]
fn globs_match() {
    for (glob, name, matches) in [
        ("temp", "temp", true),
        ("temp", "temp2", false),
        ("temp*", "temp", true),
        ("temp*", "temperature", true),
        ("*temp", "outside_temp", true),
        ("*_rssi", "rxInfo[0]_rssi", true),
        ("a*b*c", "aXbYbZc", true),
        ("a*b*c", "aXbYbZ", false),
        ("?x", "äx", true),
        ("?x", "x", false),
        ("*", "", true),
        ("a**b", "ab", true),
        ("*a*a*a*a*a*a*a*b", &"a".repeat(255), false),
        ("[0]", "[0]", true),
        ("A", "a", false),
    ] {
        assert_eq!(
            Glob::parse(glob).unwrap().matches(name),
            matches,
            "{glob} {name}"
        );
    }
    let glob = Glob::parse("BME280_*").unwrap();
    assert!(glob.has_one_star());
    assert_eq!(glob.star("BME280_Temperature"), "Temperature");
}

#[test]
fn places_are_json_pointers() {
    let key = |key: &str, index| Step::Key {
        key: key.into(),
        index,
    };
    let steps = |text: &str| Place::parse(text).unwrap().steps;
    assert_eq!(
        steps("/a~1b/m~0n/~01"),
        [key("a/b", None), key("m~n", None), key("~1", None)]
    );
    assert_eq!(
        steps("/rx/0/007/*"),
        [
            key("rx", None),
            key("0", Some(0)),
            key("007", None),
            Step::First
        ]
    );
    assert_eq!(steps("/"), [key("", None)]);
    assert_eq!(steps(""), []);
    assert!(
        Place::parse("$/a").unwrap().from_message && Place::parse("$").unwrap().steps.is_empty()
    );
}

#[test]
fn a_dumped_format_parses_again() {
    for (name, text) in profiles::PROFILES {
        let mapping = one(text);
        assert_eq!(one(&mapping.text), mapping, "{name}:\n{}", mapping.text);
    }
}
