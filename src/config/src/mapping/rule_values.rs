//! Parses the values of a rule's keys, such as a list of places or a condition.

use std::fmt::Display;

use super::super::kinds::{chosen, read_flag, read_number};
use super::super::reader::{Bad, wrong};
use super::super::topic::parse_template;
use super::super::tree::{Entries, Node, Raw};
use super::place::{Glob, InvalidPlace, Place, Source};
use super::{
    Condition, FieldRule, Fraction, Kind, LIST_MAX, Scalar, TimeSource, TimeUnit, Type, Values,
};

pub(super) const SOURCE: &str = "write a place such as \"/device/id\" (or \"$/device/id\" from \
    the message), or a text with {name} or {/place} in it";
const PLACE: &str = "write a place such as \"/data/0\", or a list of them";
pub(super) const EACH: &str =
    "write where the records are, such as \"/history/*\" or \"/tags/{sensor_id}\"";
pub(super) const GLOB: &str =
    "write a list of globs over the fields' names, such as [\"temp*\", \"wifi_rssi\"]";
const CONDITION: &str = "write a list such as [{ at = \"/type\", is = [\"up\"] }, { at = \
    \"/object\", there = true }], with the keys at, there, is, not, kind and empty";
const FIELDS: &str = "write a list such as [{ match = \"temp\", scale = 0.1 }], with the keys \
    match, rename, type, words, none, scale, offset, tag and unless";

pub(super) fn text<'n>(node: &'n Node, advice: &str) -> Result<&'n str, Bad> {
    node.text().ok_or_else(|| wrong(node, advice))
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
pub(super) fn parsed<T, E: Display>(
    node: &Node,
    advice: &str,
    parse: fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, Bad> {
    let read = |item: &Node| parse(text(item, advice)?).map_err(|what| Bad::new(what, advice));
    items(node, advice)?.into_iter().map(read).collect()
}

pub(super) fn topics(node: &Node) -> Result<Vec<String>, Bad> {
    parsed(
        node,
        "write a topic template such as \"gateway/{sensor_id}/up\", or a list of them",
        |text| parse_template(text).map(|_| text.to_owned()),
    )
}

pub(super) fn source(text: &str) -> Result<Source, Bad> {
    Source::parse(text).map_err(|what| Bad::new(what, SOURCE))
}

pub(super) fn sources(node: &Node) -> Result<Vec<Source>, Bad> {
    parsed(node, SOURCE, Source::parse)
}

pub(super) fn ids(node: &Node) -> Result<Vec<Source>, Bad> {
    parsed(node, SOURCE, |text| match Source::parse(text)? {
        Source::Place(place) if place.steps.is_empty() => Err(InvalidPlace::WholeAsId),
        source => Ok(source),
    })
}

pub(super) fn times(node: &Node) -> Result<Vec<TimeSource>, Bad> {
    let advice = "write a place such as \"/time\", or a list in which one can be { at = \"/ts\", \
        unit = \"s\" }";
    let read = |item: &Node| match &item.value {
        Raw::Table(_) => {
            let mut table = Table::from_node(item, advice)?;
            let source = table.required("at", |at| source(text(at, SOURCE)?))?;
            let unit = table.optional("unit", |node| chosen(node, TimeUnit::NAMES))?;
            table.end().map(|()| TimeSource { source, unit })
        }
        _ => Ok(TimeSource {
            source: source(text(item, advice)?)?,
            unit: None,
        }),
    };
    items(node, advice)?.into_iter().map(read).collect()
}

pub(super) fn separator(node: &Node) -> Result<String, Bad> {
    let advice = "write up to 8 bytes without `.`, `$` and NUL, such as \"_\" or \"/\"";
    let text = text(node, advice)?;
    if text.len() > 8 || text.contains(['.', '$', '\0']) {
        Err(wrong(node, advice))
    } else {
        Ok(text.to_owned())
    }
}

fn places(node: &Node) -> Result<Vec<Place>, Bad> {
    parsed(node, PLACE, Place::parse)
}

pub(super) fn values(node: &Node) -> Result<Values, Bad> {
    let Raw::Table(entries) = &node.value else {
        return places(node).map(Values::At);
    };
    if entries.is_empty() || entries.len() > LIST_MAX {
        return Err(Bad::new(
            format!("found a table of {} names", entries.len()),
            format!("write 1 to {LIST_MAX}"),
        ));
    }
    let read = |(name, node): (&String, &Node)| Ok((name.clone(), places(node)?));
    let named = entries.iter().map(read).collect::<Result<_, Bad>>();
    named.map(Values::Named)
}

pub(super) fn also(node: &Node) -> Result<Vec<(String, Vec<Place>)>, Bad> {
    match values(node)? {
        Values::Named(list) => Ok(list),
        Values::At(_) => Err(wrong(
            node,
            "write a table of names and places such as { rssi = \"/rxInfo/0/rssi\" }",
        )),
    }
}

pub(super) fn tags(node: &Node) -> Result<Vec<(String, Vec<Source>)>, Bad> {
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

pub(super) fn scalars(node: &Node) -> Result<Vec<Scalar>, Bad> {
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

pub(super) fn conditions(node: &Node) -> Result<Vec<Condition>, Bad> {
    items(node, CONDITION)?.into_iter().map(condition).collect()
}

fn condition(node: &Node) -> Result<Condition, Bad> {
    let mut table = Table::from_node(node, CONDITION)?;
    let kinds = |node: &Node| {
        let items = items(node, CONDITION)?.into_iter();
        items.map(|item| chosen(item, Kind::NAMES)).collect()
    };
    let condition = Condition {
        at: table.required("at", places)?,
        there: table.optional("there", read_flag)?,
        is: table.optional("is", scalars)?.unwrap_or_default(),
        not: table.optional("not", scalars)?.unwrap_or_default(),
        kinds: table.optional("kind", kinds)?.unwrap_or_default(),
        empty: table.optional("empty", read_flag)?,
    };
    table.end()?;
    let needs_value =
        !condition.is.is_empty() || !condition.kinds.is_empty() || condition.empty.is_some();
    if !needs_value && condition.there.is_none() && condition.not.is_empty() {
        return Err(Bad::new(
            "the condition is without there, is, not, kind and empty",
            CONDITION,
        ));
    }
    if needs_value && condition.there == Some(false) {
        return Err(Bad::new(
            "a place that is not there has no value and no kind",
            CONDITION,
        ));
    }
    Ok(condition)
}

pub(super) fn fields(node: &Node) -> Result<Vec<FieldRule>, Bad> {
    items(node, FIELDS)?.into_iter().map(field).collect()
}

fn field(node: &Node) -> Result<FieldRule, Bad> {
    let mut table = Table::from_node(node, FIELDS)?;
    let rename = |node: &Node| text(node, FIELDS).map(str::to_owned);
    let rule = FieldRule {
        matches: table.required("match", |node| parsed(node, GLOB, Glob::parse))?,
        rename: table.optional("rename", rename)?,
        kind: table.optional("type", |node| chosen(node, Type::NAMES))?,
        words: table.optional("words", words)?.unwrap_or_default(),
        none: table.optional("none", scalars)?.unwrap_or_default(),
        scale: table.optional("scale", read_number)?,
        offset: table.optional("offset", read_number)?,
        tag: table.optional("tag", read_flag)?.unwrap_or(false),
        unless: table.optional("unless", places)?.unwrap_or_default(),
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
        let value = scalar(node).ok_or_else(|| wrong(node, advice))?;
        Ok((word.clone(), value))
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
    fn from_node(node: &'n Node, advice: &'static str) -> Result<Table<'n>, Bad> {
        match &node.value {
            Raw::Table(entries) => Ok(Table {
                entries,
                taken: Vec::new(),
                advice,
            }),
            _ => Err(wrong(node, advice)),
        }
    }

    fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&'n Node) -> Result<T, Bad>,
    ) -> Result<Option<T>, Bad> {
        self.taken.push(key);
        self.entries.get(key).map(read).transpose()
    }

    fn required<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&'n Node) -> Result<T, Bad>,
    ) -> Result<T, Bad> {
        let found = self.optional(key, read)?;
        found.ok_or_else(|| Bad::new(format!("`{key}` is missing"), self.advice))
    }

    /// Reports unknown keys. Call it after every key has been read.
    fn end(self) -> Result<(), Bad> {
        let is_unknown = |key: &&String| !self.taken.contains(&key.as_str());
        match self.entries.keys().find(is_unknown) {
            Some(key) => Err(Bad::new(format!("unknown key `{key}`"), self.advice)),
            None => Ok(()),
        }
    }
}
