//! Builds one reading from one record: first its values, because a record without any is not a
//! reading, regardless of other faults; then the sensor, the time and the tags.

use std::borrow::Cow;

use serde_json::Value;

use super::field::Fields;
use super::place::{Around, Names, Part, find, find_open, scalar_text};
use crate::names::{self, Decoded, excerpt};
use crate::rejects::Fault;
use crate::time::{Found, Origin, Stamp};
use crate::{Context, RejectReason, TsUnit, UnsetClock, time};
use config::mapping::{Place, Rule, Source, TimeUnit, Values};
use model::BatchBuilder;

/// Limit on the members of an object that become tags. It leaves some more than a reading may have.
const LABELS_MAX: usize = 256;

/// A rule and the message that it matches.
#[derive(Clone, Copy)]
pub(super) struct Case<'r, 'm> {
    pub(super) rule: &'r Rule,
    /// Names of the members that are not values.
    pub(super) used: &'r [String],
    pub(super) message: Part<'m>,
    /// Records with a duplicate key, which is next to them.
    pub(super) ambiguous: &'r [(&'m Value, &'m str)],
}

/// Decodes a record into the builder's current reading, and commits it if a value is left.
pub(super) fn decode_record<'m>(
    case: Case<'_, 'm>,
    names: &Names<'m>,
    record: Part<'m>,
    cx: &Context<'_>,
    out: &mut BatchBuilder,
) -> Result<Decoded, Fault> {
    let Case { rule, message, .. } = case;
    let around = Around {
        names,
        record,
        message,
        cx,
    };
    let mut tags = Tags::default();
    let mut fields = Fields {
        rule,
        around,
        out,
        tags: &mut tags,
        used: &[],
    };
    values(case, around, &mut fields)?;
    also(rule, around, &mut fields)?;
    if out.value_count() == 0 {
        return Ok(Decoded::NoValue);
    }
    let sensor_id = match &rule.id[..] {
        [] if names.guessed && !names.has_key("sensor_id") => None,
        [] => names.get("sensor_id", cx).map(Cow::Borrowed),
        sources => around.text(sources.iter().filter(|source| names.may_identify(source))),
    };
    let sensor_id = sensor_id.ok_or_else(|| {
        let what = if names.guessed {
            "the message before this one is cut, and this one does not name its sensor"
        } else if rule.id.is_empty() {
            "neither the message nor its topic names the sensor"
        } else {
            "nothing found at the place in `id`"
        };
        Fault::new(RejectReason::MissingSensorId, what)
    })?;
    names::check_sensor_id(&sensor_id, cx.limits)?;
    let stamp = when(rule, around)?;
    labels(rule, around, &mut tags)?;
    if let Some(fault) = record.scope.take_fault() {
        return Err(fault);
    }
    names::commit(out, &sensor_id, stamp, tags.list(), cx)?;
    Ok(Decoded::Committed)
}

/// Adds the values to the reading.
fn values<'x>(
    case: Case<'x, '_>,
    around: Around<'_, '_>,
    fields: &mut Fields<'x, '_, '_>,
) -> Result<(), Fault> {
    let rule = case.rule;
    let prefix = rule
        .prefix
        .as_ref()
        .and_then(|source| around.source(source))
        .unwrap_or_default();
    let at = |place| Some((place, find_open(place, around.record, around.message)?));
    let missing = || {
        Fault::new(
            RejectReason::NoValues,
            "nothing found at the place in `values`",
        )
    };
    match &rule.values {
        Values::At(places) => {
            // A null at the place means "no value", which is not an error.
            let is_null = || places.iter().any(|place| is_null(place, around));
            let Some((place, value)) = places.iter().find_map(at) else {
                return if is_null() { Ok(()) } else { Err(missing()) };
            };
            if place.steps.is_empty() && prefix.is_empty() && rule.include.is_empty() {
                fields.used = case.used;
            }
            match value {
                Value::Object(_) | Value::Array(_) => fields.flatten(&prefix, value),
                _ => scalar(rule, around, &prefix, value, fields),
            }
        }
        Values::Named(list) => {
            let mut any = false;
            for (name, places) in list {
                let found = places.iter().find_map(|place| {
                    let value = find(place, around.record, around.message)?;
                    // Values of the message are read for every record, so large ones are not copied
                    // from it.
                    (!place.from_message || scalar_text(value).is_some()).then_some(value)
                });
                any |= found.is_some() || places.iter().any(|place| is_null(place, around));
                if let Some(value) = found {
                    fields.flatten(&rule.joined(&prefix, name), value)?;
                }
            }
            if any { Ok(()) } else { Err(missing()) }
        }
    }
}

/// Adds the values besides those of `values`. They are not measurements, so they alone do not make
/// a reading.
fn also(rule: &Rule, around: Around<'_, '_>, fields: &mut Fields<'_, '_, '_>) -> Result<(), Fault> {
    if fields.out.value_count() == 0 {
        return Ok(());
    }
    fields.used = &[];
    for (name, places) in &rule.also {
        let found = places
            .iter()
            .find_map(|place| find(place, around.record, around.message));
        if let Some(value) = found.filter(|value| scalar_text(value).is_some()) {
            fields.flatten(name, value)?;
        }
    }
    Ok(())
}

fn is_null(place: &Place, around: Around<'_, '_>) -> bool {
    let from = if place.from_message {
        around.message
    } else {
        around.record
    };
    from.at(&place.steps).is_some_and(Value::is_null)
}

/// A value without a name.
fn scalar(
    rule: &Rule,
    around: Around<'_, '_>,
    prefix: &str,
    value: &Value,
    fields: &mut Fields<'_, '_, '_>,
) -> Result<(), Fault> {
    let name = around.text(&rule.field).ok_or_else(|| {
        let what = "a value without a name: neither the topic nor the place in `field` has one";
        Fault::new(RejectReason::MissingField, what)
    })?;
    fields.flatten(&rule.joined(prefix, &name), value)
}

/// The time: the first candidate that is a time. An unreadable one counts only if there is no
/// other.
fn when(rule: &Rule, around: Around<'_, '_>) -> Result<Stamp, Fault> {
    let cx = around.cx;
    let mut unreadable = None;
    let mut unset = None;
    for candidate in &rule.time {
        let Some(token) = around.token(&candidate.source) else {
            continue;
        };
        let unit = candidate.unit.or(rule.time_unit);
        let unit = unit.map(|unit| match unit {
            TimeUnit::S => TsUnit::S,
            TimeUnit::Ms => TsUnit::Ms,
            TimeUnit::Us => TsUnit::Us,
            TimeUnit::Ns => TsUnit::Ns,
        });
        match time::of_token(&token, unit, rule.zone, cx) {
            Ok(Found::At(ms)) => return Ok((ms, Origin::Sender)),
            Ok(Found::Absent) => {}
            Ok(Found::Unset(ms)) => unset = unset.or(Some(ms)),
            Err(fault) if fault.reason == RejectReason::BadTimestamp => {
                unreadable.get_or_insert(fault);
            }
            Err(fault) => return Err(fault),
        }
    }
    match (unreadable, unset) {
        (Some(fault), _) if rule.unreadable_refuses => Err(fault),
        (_, Some(ms)) if rule.unreadable_refuses && cx.unset_clock == UnsetClock::Reject => {
            Err(time::clock_not_set(ms))
        }
        (None, None) => Ok((cx.received_at_ms, Origin::Receipt)),
        _ => Ok((cx.received_at_ms, Origin::Replaced)),
    }
}

/// Adds the tags: those of the rule, then the names captured by templates and `each`.
fn labels(rule: &Rule, around: Around<'_, '_>, tags: &mut Tags<'_>) -> Result<(), Fault> {
    let cx = around.cx;
    for (name, sources) in rule.tags.iter().filter(|(name, _)| name != "*") {
        if let Some(text) = around.text(sources) {
            tags.push(name, Cow::Owned(text.into_owned()), cx)?;
        }
    }
    for source in rule
        .tags
        .iter()
        .filter(|(name, _)| name == "*")
        .flat_map(|(_, sources)| sources)
    {
        let Source::Place(place) = source else {
            continue;
        };
        let Some(Value::Object(members)) = find_open(place, around.record, around.message) else {
            continue;
        };
        if members.len() > LABELS_MAX {
            let detail = format!(
                "{} members in the object of the tags {}",
                members.len(),
                excerpt("*")
            );
            return Err(Fault::new(RejectReason::TooManyTags, detail));
        }
        for (name, value) in members {
            if let Some(text) = scalar_text(value) {
                tags.push(name, Cow::Owned(text.into_owned()), cx)?;
            }
        }
    }
    for (name, text) in around.names.tags() {
        tags.push(name, Cow::Owned(text.to_owned()), cx)?;
    }
    Ok(())
}

/// The tags of a reading, under their stored names. For a duplicate name the first one is kept.
#[derive(Default)]
pub(super) struct Tags<'m> {
    list: Vec<(Cow<'m, str>, Cow<'m, str>)>,
}

impl<'m> Tags<'m> {
    pub(super) fn push(
        &mut self,
        name: &str,
        text: Cow<'m, str>,
        cx: &Context<'_>,
    ) -> Result<(), Fault> {
        names::check_text(name, &text, cx.limits)?;
        let name = names::name(name, cx)?;
        if self.list.iter().any(|(other, _)| *other == name) {
            return Ok(());
        }
        let max = cx.limits.tags_max.min(names::TAGS_MAX);
        if self.list.len() >= max {
            return Err(names::too_many_tags(max));
        }
        self.list.push((Cow::Owned(name.into_owned()), text));
        Ok(())
    }

    pub(super) fn list(&self) -> &[(Cow<'m, str>, Cow<'m, str>)] {
        &self.list
    }
}
