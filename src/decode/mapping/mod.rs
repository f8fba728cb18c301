//! Applies `[formats.NAME]` to payloads; [`crate::config::mapping`] describes the language and its rules.
//!
//! `document` finds the messages in a payload, `place` looks up values in a message, `record` builds a reading from a
//! record, `field` a value from a member, and `tags` collects the reading's tags. Mappings are parsed at startup: a
//! message costs parsing it into a tree and looking up the places that the rule names, and no lookup by the format's
//! name.
//!
//! Limits: a message has at most [`document::MEMBERS_MAX`] members and 127 levels, a payload at most
//! `limits.batch_max_readings` readings, and each reading has the usual limits. A fault in a record rejects that
//! record. A fault in the JSON rejects the message, and also the following ones if their start cannot be found.

mod document;
mod field;
mod place;
mod record;
mod tags;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use self::place::{Names, holds};
use self::record::Case;
use super::quota::Quota;
use super::rejects::Fault;
use super::topic::TopicTemplate;
use super::{Context, RejectReason, Rejects};
use crate::config::mapping::{Each, EachStep, Mapping, Rule};
use crate::model::BatchBuilder;

/// A mapping, ready for use.
#[derive(Debug)]
pub(super) struct Mapper {
    spec: Arc<Mapping>,
    /// The topic templates of each rule.
    topics: Vec<Vec<TopicTemplate>>,
}

impl Mapper {
    pub(super) fn new(spec: Arc<Mapping>) -> Mapper {
        // The configuration has already refused invalid templates.
        let templates = |rule: &Rule| rule.topics.iter().filter_map(|text| TopicTemplate::parse(text).ok()).collect();
        Mapper { topics: spec.rules.iter().map(templates).collect(), spec }
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
        let mut run = Run { mapper: self, topic, cx, out, rejects, index: 0, quota: Quota::new(cx.limits) };
        document::read(payload, |message| match message {
            Ok(message) => run.message(&message),
            Err(fault) => run.reject(fault),
        });
        run.close();
    }
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
    fn message(&mut self, message: &Value) {
        let mapper = self.mapper;
        for (rule, templates) in mapper.spec.rules.iter().zip(&mapper.topics) {
            let captured = match (templates.is_empty(), self.topic) {
                (true, _) => None,
                (false, None) => continue,
                (false, Some(topic)) => match templates.iter().find_map(|template| template.capture(topic)) {
                    Some(captured) => Some(captured),
                    None => continue,
                },
            };
            if !rule.when.iter().all(|condition| holds(condition, message, message)) {
                continue;
            }
            if rule.skip {
                self.index += 1;
                return;
            }
            let names = Names::new(captured, &rule.level_separator, self.cx);
            return self.records(Case { rule, message }, names);
        }
        let name = mapper.name();
        let needs_topic = self.topic.is_none() && mapper.has_topics();
        let hint = if needs_topic { "; some rules need the topic, which is missing" } else { "" };
        self.reject(Fault::new(
            RejectReason::NoRule,
            format!("no rule of the format {name} matches this message{hint}"),
        ));
    }

    fn records<'m>(&mut self, case: Case<'_, 'm>, mut names: Names<'m>) {
        let Case { rule, message } = case;
        if rule.each.is_empty() {
            return self.record(case, &names, message);
        }
        let Some(each) = rule.each.iter().find(|each| is_there(each, message)) else {
            let what = "no records: nothing found at the place in `each`";
            return self.reject(Fault::new(RejectReason::NoValues, what));
        };
        self.walk(case, &each.0, message, &mut names);
    }

    /// Descends to the records; as deep as `each` has steps.
    fn walk<'m>(&mut self, case: Case<'_, 'm>, steps: &[EachStep], value: &'m Value, names: &mut Names<'m>) {
        let Some((step, rest)) = steps.split_first() else {
            return self.record(case, names, value);
        };
        match (step, value) {
            (EachStep::One(step), _) => {
                if let Some(value) = place::step(step, value) {
                    self.walk(case, rest, value, names);
                }
            }
            (EachStep::All(name), Value::Object(members)) => {
                for (key, value) in members {
                    names.push(name.as_deref(), Cow::Borrowed(key));
                    self.walk(case, rest, value, names);
                    names.pop(name.as_deref());
                }
            }
            (EachStep::All(name), Value::Array(elements)) => {
                for (i, value) in elements.iter().enumerate() {
                    // Formatted only if it is captured.
                    let key = if name.is_some() { Cow::Owned(i.to_string()) } else { Cow::Borrowed("") };
                    names.push(name.as_deref(), key);
                    self.walk(case, rest, value, names);
                    names.pop(name.as_deref());
                }
            }
            (EachStep::All(_), _) => {}
        }
    }

    fn record<'m>(&mut self, case: Case<'_, 'm>, names: &Names<'m>, record: &'m Value) {
        if self.quota.refuses(self.index) {
            self.index += 1;
            return;
        }
        let Case { rule, message } = case;
        if !rule.filter.iter().all(|condition| holds(condition, record, message)) {
            self.index += 1;
            return;
        }
        self.out.begin();
        match record::read(case, names, record, self.cx, self.out) {
            Ok(true) => self.quota.took(),
            Ok(false) => self.out.abort(),
            Err(fault) => {
                self.out.abort();
                return self.reject(fault);
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

/// Whether the records of this candidate are present: a value at the place, or a container at the first `*`.
fn is_there(each: &Each, message: &Value) -> bool {
    let mut value = message;
    for step in &each.0 {
        match step {
            EachStep::One(step) => match place::step(step, value) {
                Some(next) if !next.is_null() => value = next,
                _ => return false,
            },
            EachStep::All(_) => return value.is_object() || value.is_array(),
        }
    }
    true
}
