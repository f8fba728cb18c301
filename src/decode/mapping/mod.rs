//! Applies `[formats.NAME]` to payloads; the language and its rules stand in [`crate::config::mapping`].
//!
//! `document` finds the messages in a payload, `place` looks things up in one, `record` makes a reading of a record and
//! `field` a value of a member. Everything is parsed at the start: a message costs its own parse into a tree and a look at
//! what the rule names, and nothing is looked up by the format's name.
//!
//! Limits: a message has at most [`document::MEMBERS_MAX`] members and 127 levels, a payload at most
//! `limits.batch_max_readings` readings, and each reading the limits of every other one. A fault in a record costs that
//! record; one in the JSON costs the message, and the following ones only where it cannot be seen where they begin.

mod document;
mod field;
mod place;
mod record;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use self::place::{Names, holds};
use super::quota::Quota;
use super::rejects::Fault;
use super::topic::TopicTemplate;
use super::{Context, Rejects, reasons};
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
        // The configuration has refused those that are none.
        let templates = |rule: &Rule| rule.topics.iter().filter_map(|text| TopicTemplate::parse(text).ok()).collect();
        Mapper { topics: spec.rules.iter().map(templates).collect(), spec }
    }

    pub(super) fn name(&self) -> &str {
        &self.spec.name
    }

    /// Whether the format takes what it needs to know from the topic itself.
    pub(super) fn has_topics(&self) -> bool {
        self.spec.has_topics()
    }

    /// Reads a payload.
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

/// The work on one payload.
struct Run<'a, 'c> {
    mapper: &'a Mapper,
    topic: Option<&'a str>,
    cx: &'a Context<'c>,
    out: &'a mut BatchBuilder,
    rejects: &'a mut Rejects,
    /// The next record's place, for rejects.
    index: usize,
    quota: Quota,
}

/// A rule and the message that it fits.
#[derive(Clone, Copy)]
struct Case<'r, 'm> {
    rule: &'r Rule,
    message: &'m Value,
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
        let hint = if needs_topic { "; some need the topic, and there is none" } else { "" };
        self.reject(Fault::new(reasons::NO_RULE, format!("no rule of the format {name} fits this message{hint}")));
    }

    fn records<'m>(&mut self, case: Case<'_, 'm>, mut names: Names<'m>) {
        let Case { rule, message } = case;
        if rule.each.is_empty() {
            return self.record(case, &names, message);
        }
        let Some(each) = rule.each.iter().find(|each| is_there(each, message)) else {
            let what = "no records: nothing is at the place that `each` says";
            return self.reject(Fault::new(reasons::NO_VALUES, what));
        };
        self.walk(case, &each.0, message, &mut names);
    }

    /// Goes down to the records; as deep as `each` has steps.
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
                    // The number is only made where somebody wants it.
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

/// Whether the records of this candidate are there: something at the place, or up to the first `*` a container.
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
