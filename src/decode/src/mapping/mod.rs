//! Applies `[formats.NAME]` to payloads; [`config::mapping`] describes the language and its
//! rules.
//!
//! `document` finds the messages in a payload, `embedded` those in the texts of a message, `place`
//! looks up values in a message, `record` builds a reading from a record, `field` a value from a member, and `tags` collects the reading's
//! tags. Mappings are parsed at startup: a message costs parsing it into a tree and looking up the
//! places that the rule names, and no lookup by the format's name.
//!
//! Limits: a message has at most [`document::MEMBERS_MAX`] members and 127 levels, a payload at
//! most `limits.batch_max_readings` readings, and each reading has the usual limits. A fault in a
//! record, also a duplicate key, rejects that record; a duplicate key outside of records rejects
//! the message. A fault in the JSON rejects the message; the one after a cut message must name its
//! own sensor.

mod document;
mod duplicates;
mod embedded;
#[cfg(test)]
mod embedded_tests;
mod field;
mod place;
mod record;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;

use self::document::{Found, Message};
use self::embedded::{Documents, Scope};
use self::place::{Names, Part, holds};
use self::record::Case;
use super::names::Decoded;
use super::quota::Quota;
use super::rejects::Fault;
use super::topic::{Captured, TopicTemplate};
use super::{Context, RejectReason, Rejects};
use config::mapping::{Condition, Each, EachStep, Mapping, Place, Rule, Source};
use model::BatchBuilder;

/// A mapping, ready for use.
#[derive(Debug)]
pub(super) struct Mapper {
    spec: Arc<Mapping>,
    /// What is computed from each of its rules.
    rules: Vec<Computed>,
    /// Whether a rule requires an array as the message.
    takes_arrays: bool,
}

/// What is computed from a rule once.
#[derive(Debug)]
struct Computed {
    topics: Vec<TopicTemplate>,
    /// Names of the members that `id`, `time` and `tags` use, which are therefore not values.
    used: Vec<String>,
}

impl Computed {
    fn new(rule: &Rule) -> Computed {
        // The configuration has already refused invalid templates.
        let topics = rule.topics.iter().map(|text| TopicTemplate::parse(text));
        Computed {
            topics: topics.filter_map(Result::ok).collect(),
            used: used(rule),
        }
    }
}

/// The flattened names of the places in `id`, `time` and `tags` that are inside the record.
fn used(rule: &Rule) -> Vec<String> {
    let times = rule.time.iter().map(|time| &time.source);
    let tags = rule.tags.iter().filter(|(name, _)| name != "*");
    let tags = tags.flat_map(|(_, sources)| sources);
    let mut names = vec![];
    for source in rule.id.iter().chain(times).chain(tags) {
        let places: Vec<&Place> = match source {
            Source::Place(place) => vec![place],
            Source::Joined(pieces) => pieces.iter().filter_map(place::in_piece).collect(),
        };
        let is_within = |place: &&Place| !place.from_message || rule.each.is_empty();
        let within = places.into_iter().filter(is_within);
        names.extend(within.filter_map(|place| place::flattened(place, &rule.separator)));
    }
    names
}

impl Mapper {
    pub(super) fn new(spec: Arc<Mapping>) -> Mapper {
        let takes_arrays = spec.rules.iter().any(Rule::takes_array);
        Mapper {
            rules: spec.rules.iter().map(Computed::new).collect(),
            spec,
            takes_arrays,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.spec.name
    }

    /// Whether the format reads topics itself.
    pub(super) fn has_topics(&self) -> bool {
        self.spec.has_topics()
    }

    pub(super) fn decode(
        &self,
        payload: &[u8],
        topic: Option<&str>,
        cx: &Context<'_>,
        out: &mut BatchBuilder,
        rejects: &mut Rejects,
    ) {
        let mut run = Run {
            mapper: self,
            topic,
            cx,
            out,
            rejects,
            index: 0,
            quota: Quota::new(cx.limits),
        };
        // A top-level array is one message if a rule requires that; otherwise each element is one.
        if self.takes_arrays
            && let Some(array) = document::whole_array(payload)
        {
            let documents = Documents::new();
            let scope = Scope::new(&documents);
            let part = Part::new(&array.value, &scope);
            if let Some((index, captured)) = self.rule(part, topic, true) {
                run.matched(&array, part, index, captured, false);
                return run.close();
            }
        }
        document::read_documents(payload, |found| match found {
            Found::Message { message, guessed } => run.message(&message, guessed),
            Found::Fault(fault) => run.reject(fault),
            Found::FaultBefore(fault) => run.rejects.fault(run.index, fault),
        });
        run.close();
    }
}

impl Mapper {
    /// The index of the first rule that matches a message, with what its topic template captures.
    /// `whole_array`: the message is a top-level array, and the rule must require that.
    fn rule<'t>(
        &'t self,
        message: Part<'_>,
        topic: Option<&'t str>,
        whole_array: bool,
    ) -> Option<(usize, Option<Captured<'t>>)> {
        let rules = self.spec.rules.iter().zip(&self.rules).enumerate();
        rules.into_iter().find_map(|(index, (rule, computed))| {
            if whole_array && !rule.takes_array() {
                return None;
            }
            let mut templates = computed.topics.iter();
            let captured = match (computed.topics.is_empty(), topic) {
                (true, _) => None,
                (false, topic) => Some(templates.find_map(|template| template.capture(topic?))?),
            };
            rule.when
                .iter()
                .all(|condition| holds(condition, message, message))
                .then_some((index, captured))
        })
    }
}

/// Topics that a reject lists.
const TOPICS_LISTED_MAX: usize = 4;

impl Mapper {
    /// The topics that rules for readings expect, for a message that none matches.
    fn expected_topics(&self, topic_is_missing: bool) -> String {
        let rules = self.spec.rules.iter().filter(|rule| !rule.skip);
        let mut topics: Vec<&str> = rules
            .flat_map(|rule| &rule.topics)
            .map(String::as_str)
            .collect();
        let total = topics.len();
        topics.truncate(TOPICS_LISTED_MAX);
        let more = if total > topics.len() {
            " and others"
        } else {
            ""
        };
        match (topics.is_empty(), topic_is_missing) {
            (true, _) => String::new(),
            (false, true) => format!(
                "; its rules need the topic, such as {}{more}",
                topics.join(", ")
            ),
            (false, false) => format!("; it expects the topics {}{more}", topics.join(", ")),
        }
    }

    /// The rule for the first message of a payload.
    pub(super) fn first_rule(&self, payload: &[u8], topic: Option<&str>) -> Option<FirstRule> {
        let mut found: Option<usize> = None;
        let rule = |message: &Message, whole_array| {
            let documents = Documents::new();
            let scope = Scope::new(&documents);
            let part = Part::new(&message.value, &scope);
            self.rule(part, topic, whole_array).map(|(index, _)| index)
        };
        let array = document::whole_array(payload).filter(|_| self.takes_arrays);
        if let Some(array) = array {
            found = rule(&array, true);
        }
        if found.is_none() {
            document::read_documents(payload, |message| {
                if let (None, Found::Message { message, .. }) = (found, message) {
                    found = rule(&message, false);
                }
            });
        }
        let index = found?;
        let rule = &self.spec.rules[index];
        let is_member =
            |condition: &Condition| condition.at.iter().any(|place| !place.steps.is_empty());
        let is_specific = !rule.topics.is_empty() || rule.when.iter().any(is_member);
        Some(FirstRule {
            number: index + 1,
            topics: rule.topics.clone(),
            skips: rule.skip,
            is_specific,
        })
    }
}

/// What `decode` reports about the rule that matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstRule {
    /// From 1, in the order of the format.
    pub number: usize,
    /// Its topics.
    pub topics: Vec<String>,
    /// Whether it says that the message has no readings.
    pub skips: bool,
    /// Whether it matches only some messages.
    pub is_specific: bool,
}

/// The state of decoding one payload.
struct Run<'a, 'c> {
    mapper: &'a Mapper,
    topic: Option<&'a str>,
    cx: &'a Context<'c>,
    out: &'a mut BatchBuilder,
    rejects: &'a mut Rejects,
    /// The next record's index, for rejects.
    index: usize,
    quota: Quota,
}

impl Run<'_, '_> {
    fn message(&mut self, message: &Message, guessed: bool) {
        let mapper = self.mapper;
        let documents = Documents::new();
        let scope = Scope::new(&documents);
        let part = Part::new(&message.value, &scope);
        if let Some((index, captured)) = mapper.rule(part, self.topic, false) {
            return self.matched(message, part, index, captured, guessed);
        }
        let name = mapper.name();
        let hint = mapper.expected_topics(self.topic.is_none());
        let what = format!("no rule of the format {name} matches this message{hint}");
        self.reject(part.fault_or(RejectReason::NoRule, what));
    }

    fn matched(
        &mut self,
        message: &Message,
        part: Part<'_>,
        index: usize,
        captured: Option<Captured<'_>>,
        guessed: bool,
    ) {
        let rule = &self.mapper.spec.rules[index];
        if rule.skip {
            self.index += 1;
            return;
        }
        let names = Names::new(captured, &rule.level_separator, self.cx, guessed);
        self.records(index, message, part, names);
    }

    fn records(&mut self, index: usize, message: &Message, part: Part<'_>, mut names: Names<'_>) {
        let mapper = self.mapper;
        let rule = &mapper.spec.rules[index];
        // Without `each` the message is the only record.
        let mut each = &[][..];
        if !rule.each.is_empty() {
            let Some(found) = rule.each.iter().find(|each| is_there(each, part)) else {
                let what = "no records: nothing found at the place in `each`";
                return self.reject(part.fault_or(RejectReason::NoValues, what));
            };
            each = &found.0;
        }
        match message.duplicates.in_records(each, part.value) {
            Ok(ambiguous) => {
                let case = Case {
                    rule,
                    used: &mapper.rules[index].used,
                    message: part,
                    ambiguous: &ambiguous,
                };
                self.walk(case, each, part, &mut names);
            }
            Err(fault) => self.reject(fault),
        }
    }

    /// Descends to the records; as deep as `each` has steps.
    fn walk(
        &mut self,
        case: Case<'_, '_>,
        steps: &[EachStep],
        part: Part<'_>,
        names: &mut Names<'_>,
    ) {
        let Some((step, rest)) = steps.split_first() else {
            return self.record(case, names, part);
        };
        let Part { value, scope } = part;
        // The first container was found before; this is one in a record of an outer `*`.
        let Some(value) = scope.open(value) else {
            let what = "a text on the path in `each` does not hold JSON";
            return self.reject(part.fault_or(RejectReason::NoValues, what));
        };
        match (step, value) {
            (EachStep::One(step), _) => {
                if let Some(value) = place::step(step, value) {
                    self.walk(case, rest, Part::new(value, scope), names);
                }
            }
            (EachStep::All(name), Value::Object(members)) => {
                for (key, value) in members {
                    let scope = &scope.inner();
                    names.push(name.as_deref(), key);
                    self.walk(case, rest, Part::new(value, scope), names);
                    names.pop(name.as_deref());
                }
            }
            (EachStep::All(name), Value::Array(elements)) => {
                for (i, value) in elements.iter().enumerate() {
                    let scope = &scope.inner();
                    names.push(name.as_deref(), &i);
                    self.walk(case, rest, Part::new(value, scope), names);
                    names.pop(name.as_deref());
                }
            }
            (EachStep::All(_), _) => {}
        }
    }

    fn record<'m>(&mut self, case: Case<'_, 'm>, names: &Names<'m>, record: Part<'m>) {
        if self.quota.refuses(self.index) {
            self.index += 1;
            return;
        }
        let Case {
            rule,
            message,
            ambiguous,
            ..
        } = case;
        if let Some((_, key)) = ambiguous
            .iter()
            .find(|(value, _)| std::ptr::eq(*value, record.value))
        {
            return self.reject(duplicates::fault(key));
        }
        if !rule
            .filter
            .iter()
            .all(|condition| holds(condition, record, message))
        {
            return match record.scope.take_fault() {
                Some(fault) => self.reject(fault),
                None => self.index += 1,
            };
        }
        self.out.begin();
        match record::decode_record(case, names, record, self.cx, self.out) {
            Ok(Decoded::Committed) => self.quota.took(),
            Ok(Decoded::NoValue) => {
                self.out.abort();
                if let Some(fault) = record.scope.take_fault() {
                    return self.reject(fault);
                }
            }
            Err(fault) => {
                self.out.abort();
                return self.reject(record.scope.take_fault().unwrap_or(fault));
            }
        }
        self.index += 1;
    }

    fn reject(&mut self, fault: Fault) {
        self.rejects.fault(self.index, fault);
        self.index += 1;
    }

    fn close(self) {
        self.quota.close("readings", self.rejects);
    }
}

/// Whether the records of this candidate are present: a value at the place, or a container at the
/// first `*`.
fn is_there(each: &Each, message: Part<'_>) -> bool {
    let mut value = message.value;
    for step in &each.0 {
        let Some(opened) = message.scope.open(value) else {
            return false;
        };
        match step {
            EachStep::One(step) => match place::step(step, opened) {
                Some(next) if !next.is_null() => value = next,
                _ => return false,
            },
            EachStep::All(_) => return opened.is_object() || opened.is_array(),
        }
    }
    true
}
