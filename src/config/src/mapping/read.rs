//! Reads `[formats.NAME]`: first its own keys, which apply to every rule, then the rules.

use std::sync::Arc;

use chrono_tz::Tz;

use super::super::formats::FORMATS;
use super::super::reader::{Bad, Report, Section};
use super::super::tree::{Entries, Raw};
use super::place::{Each, Glob, Piece, Place, Source};
use super::rule_values::{
    EACH, GLOB, SOURCE, TEXTS, also, choice, conditions, fields, flag, ids, parsed, scalars,
    separator, source, sources, tags, text, time_unit, times, topics, values, zone,
};
use super::{
    Condition, FORMATS_MAX, FieldRule, Mapping, RULES_MAX, Rule, Scalar, Texts, TimeSource,
    TimeUnit, Values,
};

/// The keys of a rule; `None` if not set.
#[derive(Clone, Default)]
struct Keys {
    topics: Option<Vec<String>>,
    when: Option<Vec<Condition>>,
    skip: Option<bool>,
    each: Option<Vec<Each>>,
    filter: Option<Vec<Condition>>,
    id: Option<Vec<Source>>,
    time: Option<Vec<TimeSource>>,
    time_unit: Option<TimeUnit>,
    zone: Option<Tz>,
    unreadable_refuses: Option<bool>,
    values: Option<Values>,
    also: Option<Vec<(String, Vec<Place>)>>,
    field: Option<Vec<Source>>,
    prefix: Option<Source>,
    separator: Option<String>,
    level_separator: Option<String>,
    include: Option<Vec<Glob>>,
    exclude: Option<Vec<Glob>>,
    texts: Option<Texts>,
    none: Option<Vec<Scalar>>,
    tags: Option<Vec<(String, Vec<Source>)>>,
    fields: Option<Vec<FieldRule>>,
}

/// Reads every format.
pub(crate) fn read(root: &mut Section<'_>) -> Vec<Arc<Mapping>> {
    let found = root.named("formats");
    if found.len() > FORMATS_MAX {
        root.report.bad(
            "formats",
            Bad::new(
                format!("more than {FORMATS_MAX} formats"),
                "remove unused ones",
            ),
        );
        return Vec::new();
    }
    found
        .into_iter()
        .map(|(name, path, entries)| Arc::new(mapping(&name, path, entries, root.report)))
        .collect()
}

fn mapping(name: &str, path: String, entries: Entries, report: &mut Report) -> Mapping {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if name.is_empty() || name.len() > 64 || !name.bytes().all(good) {
        let advice = "use 1 to 64 letters, digits, _ and -";
        report.bad(
            &path,
            Bad::new(format!("`{name}` is not a valid name of a format"), advice),
        );
    } else if FORMATS.contains(&name) {
        report.bad(
            &path,
            Bad::new(
                format!("`{name}` is a built-in format"),
                "choose another name",
            ),
        );
    }
    let text = dump(&path, &entries);
    let mut s = Section::new(path.clone(), entries, report);
    let defaults = keys(&mut s);
    let found = s.sections("rules");
    if found.len() > RULES_MAX {
        let key = s.key("rules");
        s.report.bad(
            &key,
            Bad::new(
                format!("more than {RULES_MAX} rules"),
                "split them into several formats",
            ),
        );
    }
    let mut rules = Vec::with_capacity(found.len().max(1));
    let mut takes_all: Option<usize> = None;
    let has_no_rules = found.is_empty();
    for (i, (path, entries)) in found.into_iter().take(RULES_MAX).enumerate() {
        let mut section = Section::new(path.clone(), entries, s.report);
        let rule = keys(&mut section).over(&defaults).rule();
        section.end();
        check(&path, &rule, s.report);
        if let Some(first) = takes_all {
            let what = format!(
                "never reached: rule {first} matches every message, because it has no topic and no \
                 condition"
            );
            s.report
                .impossible(&[&path], what, "move it before that rule");
        }
        if rule.topics.is_empty() && rule.when.is_empty() {
            takes_all.get_or_insert(i);
        }
        rules.push(rule);
    }
    if has_no_rules {
        let rule = defaults.rule();
        check(&path, &rule, s.report);
        rules.push(rule);
    }
    s.end();
    Mapping {
        name: name.to_owned(),
        rules,
        text,
    }
}

impl Keys {
    /// These keys; a key that is not set is taken from `base`.
    fn over(self, base: &Keys) -> Keys {
        let base = base.clone();
        Keys {
            topics: self.topics.or(base.topics),
            when: self.when.or(base.when),
            skip: self.skip.or(base.skip),
            each: self.each.or(base.each),
            filter: self.filter.or(base.filter),
            id: self.id.or(base.id),
            time: self.time.or(base.time),
            time_unit: self.time_unit.or(base.time_unit),
            zone: self.zone.or(base.zone),
            unreadable_refuses: self.unreadable_refuses.or(base.unreadable_refuses),
            values: self.values.or(base.values),
            also: self.also.or(base.also),
            field: self.field.or(base.field),
            prefix: self.prefix.or(base.prefix),
            separator: self.separator.or(base.separator),
            level_separator: self.level_separator.or(base.level_separator),
            include: self.include.or(base.include),
            exclude: self.exclude.or(base.exclude),
            texts: self.texts.or(base.texts),
            none: self.none.or(base.none),
            tags: self.tags.or(base.tags),
            fields: self.fields.or(base.fields),
        }
    }

    fn rule(self) -> Rule {
        let with_unit = |t: TimeSource| TimeSource {
            unit: t.unit.or(self.time_unit),
            ..t
        };
        let mut rule = Rule {
            topics: self.topics.unwrap_or_default(),
            when: self.when.unwrap_or_default(),
            skip: self.skip.unwrap_or(false),
            each: self.each.unwrap_or_default(),
            filter: self.filter.unwrap_or_default(),
            id: self.id.unwrap_or_default(),
            time: self
                .time
                .unwrap_or_default()
                .into_iter()
                .map(with_unit)
                .collect(),
            zone: self.zone,
            unreadable_refuses: self.unreadable_refuses.unwrap_or(true),
            values: self.values.unwrap_or_else(|| {
                Values::At(vec![Place {
                    from_message: false,
                    steps: Vec::new(),
                }])
            }),
            also: self.also.unwrap_or_default(),
            field: self
                .field
                .unwrap_or_else(|| vec![Source::Joined(vec![Piece::Name("field".into(), None)])]),
            prefix: self.prefix,
            separator: self.separator.unwrap_or_else(|| "_".to_owned()),
            level_separator: self.level_separator.unwrap_or_else(|| "/".to_owned()),
            include: self.include.unwrap_or_default(),
            exclude: self.exclude.unwrap_or_default(),
            texts: self.texts.unwrap_or(Texts::Keep),
            none: self.none.unwrap_or_default(),
            tags: self.tags.unwrap_or_default(),
            fields: self.fields.unwrap_or_default(),
            used: Vec::new(),
        };
        rule.used = used(&rule);
        rule
    }
}

/// The flattened names of the places in `id`, `time` and `tags` that are inside the record.
fn used(rule: &Rule) -> Vec<String> {
    let times = rule.time.iter().map(|time| &time.source);
    let tags = rule
        .tags
        .iter()
        .filter(|(name, _)| name != "*")
        .flat_map(|(_, sources)| sources);
    let mut names = Vec::new();
    for source in rule.id.iter().chain(times).chain(tags) {
        let places: Vec<&Place> = match source {
            Source::Place(place) => vec![place],
            Source::Joined(pieces) => pieces.iter().filter_map(Piece::place).collect(),
        };
        let within = places
            .into_iter()
            .filter(|place| !place.from_message || rule.each.is_empty());
        names.extend(within.filter_map(|place| place.name(&rule.separator)));
    }
    names.sort();
    names.dedup();
    names
}

/// Reports impossible combinations within a rule.
fn check(path: &str, rule: &Rule, report: &mut Report) {
    let key = |name: &str| format!("{path}.{name}");
    let from_message = |place: &Place| place.from_message;
    if let Values::At(places) = &rule.values
        && places.iter().any(from_message)
        && !rule.each.is_empty()
    {
        report.impossible(
            &[&key("values")],
            "a place that begins with $ is the same for every record, but each record has its own \
             values",
            "write a place inside the record, which begins with /, or a table of names and places",
        );
    }
}

/// The keys that `[formats.NAME]` and its rules share.
fn keys(s: &mut Section<'_>) -> Keys {
    Keys {
        topics: s.parse("topic", topics),
        when: s.parse("when", conditions),
        skip: s.parse("skip", flag),
        each: s.parse("each", |node| parsed(node, EACH, Each::parse)),
        filter: s.parse("where", conditions),
        id: s.parse("id", ids),
        time: s.parse("time", times),
        time_unit: s.parse("time_unit", time_unit),
        zone: s.parse("zone", zone),
        unreadable_refuses: s.parse("time_unreadable", |node| {
            choice(node, &[("reject", true), ("receive", false)])
        }),
        values: s.parse("values", values),
        also: s.parse("also", also),
        field: s.parse("field", sources),
        prefix: s.parse("prefix", |node| source(text(node, SOURCE)?)),
        separator: s.parse("separator", separator),
        level_separator: s.parse("level_separator", separator),
        include: s.parse("include", |node| parsed(node, GLOB, Glob::parse)),
        exclude: s.parse("exclude", |node| parsed(node, GLOB, Glob::parse)),
        texts: s.parse("texts", |node| choice(node, TEXTS)),
        none: s.parse("none", scalars),
        tags: s.parse("tags", tags),
        fields: s.parse("fields", fields),
    }
}

/// Formats a mapping as TOML, with rules as sections.
fn dump(path: &str, entries: &Entries) -> String {
    let mut text = format!("[{path}]\n");
    let (rules, keys): (Vec<_>, Vec<_>) = entries.iter().partition(|(key, _)| *key == "rules");
    for (key, node) in keys {
        text += &format!("{key} = {}\n", node.to_toml());
    }
    for (_, node) in rules {
        let Raw::List(items) = &node.value else {
            continue;
        };
        for item in items {
            let Raw::Table(entries) = &item.value else {
                continue;
            };
            text += &format!("\n[[{path}.rules]]\n");
            for (key, node) in entries {
                text += &format!("{key} = {}\n", node.to_toml());
            }
        }
    }
    text
}
