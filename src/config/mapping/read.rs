//! Reads `[formats.NAME]`: first its own keys, which apply to every rule, then the rules.

use std::fmt::Display;
use std::sync::Arc;

use chrono_tz::Tz;

use super::super::formats::FORMATS;
use super::super::reader::{Bad, Report, Section, one_of, wrong};
use super::super::topic::parse_template;
use super::super::tree::{Entries, Node, Raw};
use super::place::{Each, Glob, InvalidPlace, Piece, Place, Source};
use super::{
    Condition, FORMATS_MAX, FieldRule, Fraction, Kind, LIST_MAX, Mapping, RULES_MAX, Rule, Scalar,
    Texts, TimeSource, TimeUnit, Type, Values,
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
pub(in super::super) fn read(root: &mut Section<'_>) -> Vec<Arc<Mapping>> {
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

const SOURCE: &str = "write a place such as \"/device/id\" (or \"$/device/id\" from the message), \
    or a text with {name} or {/place} in it";
const PLACE: &str = "write a place such as \"/data/0\", or a list of them";
const EACH: &str = "write where the records are, such as \"/history/*\" or \"/tags/{sensor_id}\"";
const GLOB: &str =
    "write a list of globs over the fields' names, such as [\"temp*\", \"wifi_rssi\"]";
const CONDITION: &str = "write a list such as [{ at = \"/type\", is = [\"up\"] }, { at = \
    \"/object\", there = true }], with the keys at, there, is, not and kind";
const FIELDS: &str = "write a list such as [{ match = \"temp\", scale = 0.1 }], with the keys \
    match, rename, type, words, none, scale, offset, tag and unless";
const TEXTS: &[(&str, Texts)] = &[
    ("keep", Texts::Keep),
    ("numbers", Texts::Numbers),
    ("only-numbers", Texts::OnlyNumbers),
    ("drop", Texts::Drop),
];

fn text<'n>(node: &'n Node, advice: &str) -> Result<&'n str, Bad> {
    node.text().ok_or_else(|| wrong(node, advice))
}

fn flag(node: &Node) -> Result<bool, Bad> {
    node.flag()
        .ok_or_else(|| wrong(node, "write true or false"))
}

/// The nodes of a list; a single node counts as a list of one.
fn items<'n>(node: &'n Node, advice: &str) -> Result<Vec<&'n Node>, Bad> {
    let items = match &node.value {
        Raw::List(items) => items.iter().collect(),
        _ => vec![node],
    };
    if items.is_empty() || items.len() > LIST_MAX {
        return Err(Bad::new(
            format!("found a list of {} entries", items.len()),
            format!("{advice} (1 to {LIST_MAX})"),
        ));
    }
    Ok(items)
}

/// Parses a text or a list of texts.
fn parsed<T, E: Display>(
    node: &Node,
    advice: &str,
    parse: fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, Bad> {
    let read = |item: &Node| parse(text(item, advice)?).map_err(|what| Bad::new(what, advice));
    items(node, advice)?.into_iter().map(read).collect()
}

fn choice<T: Copy>(node: &Node, choices: &[(&str, T)]) -> Result<T, Bad> {
    let found = choices.iter().find(|(name, _)| node.text() == Some(name));
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| wrong(node, &one_of(choices.iter().map(|(name, _)| *name))))
}

fn topics(node: &Node) -> Result<Vec<String>, Bad> {
    parsed(
        node,
        "write a topic template such as \"gateway/{sensor_id}/up\", or a list of them",
        |text| parse_template(text).map(|_| text.to_owned()),
    )
}

fn source(text: &str) -> Result<Source, Bad> {
    Source::parse(text).map_err(|what| Bad::new(what, SOURCE))
}

fn sources(node: &Node) -> Result<Vec<Source>, Bad> {
    parsed(node, SOURCE, Source::parse)
}

fn ids(node: &Node) -> Result<Vec<Source>, Bad> {
    parsed(node, SOURCE, |text| match Source::parse(text)? {
        Source::Place(place) if place.steps.is_empty() => Err(InvalidPlace::WholeAsId),
        source => Ok(source),
    })
}

fn times(node: &Node) -> Result<Vec<TimeSource>, Bad> {
    let advice = "write a place such as \"/time\", or a list in which one can be { at = \"/ts\", \
        unit = \"s\" }";
    let read = |item: &Node| match &item.value {
        Raw::Table(_) => {
            let mut table = Table::of(item, advice)?;
            let at = table
                .get("at")
                .ok_or_else(|| Bad::new("`at` is missing", advice))?;
            let source = source(text(at, SOURCE)?)?;
            let unit = table.get("unit").map(time_unit).transpose()?;
            table.end().map(|()| TimeSource { source, unit })
        }
        _ => Ok(TimeSource {
            source: source(text(item, advice)?)?,
            unit: None,
        }),
    };
    items(node, advice)?.into_iter().map(read).collect()
}

fn time_unit(node: &Node) -> Result<TimeUnit, Bad> {
    choice(
        node,
        &[
            ("s", TimeUnit::S),
            ("ms", TimeUnit::Ms),
            ("us", TimeUnit::Us),
            ("ns", TimeUnit::Ns),
        ],
    )
}

/// A time zone by IANA name.
pub(in super::super) fn zone(node: &Node) -> Result<Tz, Bad> {
    let advice = "write a zone of the IANA database, such as \"Europe/Berlin\" or \"UTC\"";
    text(node, advice)?.parse().map_err(|_| wrong(node, advice))
}

fn separator(node: &Node) -> Result<String, Bad> {
    let advice = "write up to 8 bytes without `.`, `$` and NUL, such as \"_\" or \"/\"";
    let text = text(node, advice)?;
    if text.len() > 8 || text.contains(['.', '$', '\0']) {
        Err(wrong(node, advice))
    } else {
        Ok(text.to_owned())
    }
}

fn values(node: &Node) -> Result<Values, Bad> {
    let Raw::Table(entries) = &node.value else {
        return parsed(node, PLACE, Place::parse).map(Values::At);
    };
    if entries.is_empty() || entries.len() > LIST_MAX {
        return Err(Bad::new(
            format!("found a table of {} names", entries.len()),
            format!("write 1 to {LIST_MAX}"),
        ));
    }
    let read =
        |(name, node): (&String, &Node)| Ok((name.clone(), parsed(node, PLACE, Place::parse)?));
    entries
        .iter()
        .map(read)
        .collect::<Result<_, Bad>>()
        .map(Values::Named)
}

fn also(node: &Node) -> Result<Vec<(String, Vec<Place>)>, Bad> {
    match values(node)? {
        Values::Named(list) => Ok(list),
        Values::At(_) => Err(wrong(
            node,
            "write a table of names and places such as { rssi = \"/rxInfo/0/rssi\" }",
        )),
    }
}

fn tags(node: &Node) -> Result<Vec<(String, Vec<Source>)>, Bad> {
    let advice = "write a table such as { site = \"/location/site\", \"*\" = \"/labels\" }";
    let Raw::Table(entries) = &node.value else {
        return Err(wrong(node, advice));
    };
    if entries.len() > 64 {
        return Err(Bad::new("more than 64 tags", advice));
    }
    let read = |(name, node): (&String, &Node)| {
        let found = sources(node)?;
        if name == "*"
            && !found
                .iter()
                .all(|source| matches!(source, Source::Place(_)))
        {
            return Err(Bad::new("`*` accepts places only", advice));
        }
        Ok((name.clone(), found))
    };
    entries.iter().map(read).collect()
}

fn scalars(node: &Node) -> Result<Vec<Scalar>, Bad> {
    let advice = "write a list of texts and numbers, such as [\"error\", -1000]";
    items(node, advice)?
        .into_iter()
        .map(|item| scalar(item).ok_or_else(|| wrong(item, advice)))
        .collect()
}

fn scalar(node: &Node) -> Option<Scalar> {
    match &node.value {
        Raw::Text(text) => Some(Scalar::Text(text.clone())),
        Raw::Integer(n) => Some(Scalar::Int(*n)),
        Raw::Flag(flag) => Some(Scalar::Bool(*flag)),
        Raw::Fraction(_) => node.number().map(|n| Scalar::Fraction(Fraction(n))),
        _ => None,
    }
}

fn number(node: &Node) -> Result<Fraction, Bad> {
    let found = node.number().filter(|n| n.is_finite());
    found
        .map(Fraction)
        .ok_or_else(|| wrong(node, "write a number such as 0.1 or -40"))
}

fn conditions(node: &Node) -> Result<Vec<Condition>, Bad> {
    items(node, CONDITION)?.into_iter().map(condition).collect()
}

fn condition(node: &Node) -> Result<Condition, Bad> {
    const KINDS: &[(&str, Kind)] = &[
        ("object", Kind::Object),
        ("array", Kind::Array),
        ("text", Kind::Text),
        ("number", Kind::Number),
        ("bool", Kind::Bool),
        ("scalar", Kind::Scalar),
    ];
    let mut table = Table::of(node, CONDITION)?;
    let at = table
        .get("at")
        .ok_or_else(|| Bad::new("`at` is missing", CONDITION))?;
    let kinds = |node: &Node| {
        items(node, CONDITION)?
            .into_iter()
            .map(|item| choice(item, KINDS))
            .collect()
    };
    let condition = Condition {
        at: parsed(at, PLACE, Place::parse)?,
        there: table.get("there").map(flag).transpose()?,
        is: table
            .get("is")
            .map(scalars)
            .transpose()?
            .unwrap_or_default(),
        not: table
            .get("not")
            .map(scalars)
            .transpose()?
            .unwrap_or_default(),
        kinds: table
            .get("kind")
            .map(kinds)
            .transpose()?
            .unwrap_or_default(),
    };
    table.end()?;
    let is_checked = condition.there.is_some() || !condition.kinds.is_empty();
    if !is_checked && condition.is.is_empty() && condition.not.is_empty() {
        return Err(Bad::new(
            "the condition is without there, is, not and kind",
            CONDITION,
        ));
    }
    if condition.there == Some(false) && (!condition.is.is_empty() || !condition.kinds.is_empty()) {
        return Err(Bad::new(
            "a place that is not there has no value and no kind",
            CONDITION,
        ));
    }
    Ok(condition)
}

fn fields(node: &Node) -> Result<Vec<FieldRule>, Bad> {
    items(node, FIELDS)?.into_iter().map(field).collect()
}

fn field(node: &Node) -> Result<FieldRule, Bad> {
    const TYPES: &[(&str, Type)] = &[
        ("number", Type::Number),
        ("bool", Type::Bool),
        ("text", Type::Text),
    ];
    let mut table = Table::of(node, FIELDS)?;
    let matches = table
        .get("match")
        .ok_or_else(|| Bad::new("`match` is missing", FIELDS))?;
    let rule = FieldRule {
        matches: parsed(matches, GLOB, Glob::parse)?,
        rename: table
            .get("rename")
            .map(|node| text(node, FIELDS).map(str::to_owned))
            .transpose()?,
        kind: table
            .get("type")
            .map(|node| choice(node, TYPES))
            .transpose()?,
        words: table
            .get("words")
            .map(words)
            .transpose()?
            .unwrap_or_default(),
        none: table
            .get("none")
            .map(scalars)
            .transpose()?
            .unwrap_or_default(),
        scale: table.get("scale").map(number).transpose()?,
        offset: table.get("offset").map(number).transpose()?,
        tag: table.get("tag").map(flag).transpose()?.unwrap_or(false),
        unless: table
            .get("unless")
            .map(|node| parsed(node, PLACE, Place::parse))
            .transpose()?
            .unwrap_or_default(),
    };
    table.end()?;
    if rule.rename.as_ref().is_some_and(|to| to.contains('*'))
        && !rule.matches.iter().all(Glob::has_one_star)
    {
        return Err(Bad::new(
            "a * in `rename` refers to the one * of `match`, which must have exactly one and no ?",
            FIELDS,
        ));
    }
    if rule.scale.is_some_and(|scale| scale.0 == 0.0) {
        return Err(Bad::new(
            "a `scale` of 0 means that every value is the same",
            "use `exclude` to drop the field",
        ));
    }
    Ok(rule)
}

fn words(node: &Node) -> Result<Vec<(String, Scalar)>, Bad> {
    let advice = "write a table such as { OPEN = true, CLOSED = false }";
    let Raw::Table(entries) = &node.value else {
        return Err(wrong(node, advice));
    };
    if entries.len() > LIST_MAX {
        return Err(Bad::new(format!("more than {LIST_MAX} words"), advice));
    }
    let read = |(word, node): (&String, &Node)| {
        Ok((
            word.clone(),
            scalar(node).ok_or_else(|| wrong(node, advice))?,
        ))
    };
    entries.iter().map(read).collect()
}

/// An inline table whose keys are read one by one.
struct Table<'n> {
    entries: &'n Entries,
    taken: Vec<&'static str>,
    advice: &'static str,
}

impl<'n> Table<'n> {
    fn of(node: &'n Node, advice: &'static str) -> Result<Table<'n>, Bad> {
        match &node.value {
            Raw::Table(entries) => Ok(Table {
                entries,
                taken: Vec::new(),
                advice,
            }),
            _ => Err(wrong(node, advice)),
        }
    }

    fn get(&mut self, key: &'static str) -> Option<&'n Node> {
        self.taken.push(key);
        self.entries.get(key)
    }

    /// Reports unknown keys. Call it after every key has been read.
    fn end(self) -> Result<(), Bad> {
        match self
            .entries
            .keys()
            .find(|key| !self.taken.contains(&key.as_str()))
        {
            Some(key) => Err(Bad::new(format!("unknown key `{key}`"), self.advice)),
            None => Ok(()),
        }
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
