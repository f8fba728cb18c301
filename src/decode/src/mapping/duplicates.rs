//! Duplicate keys in a message: which record each is in. The tree of a message cannot hold them, so
//! the parser lists the objects that have one.

use serde_json::Value;

use crate::RejectReason;
use crate::names::excerpt;
use crate::rejects::Fault;
use config::mapping::{EachStep, Step};

/// Objects with duplicate keys that are listed. With more, the whole message is rejected.
pub(super) const LISTED_MAX: usize = 100;

/// A key, or an index in an array.
#[derive(Debug)]
pub(super) enum Level {
    Key(String),
    Index(usize),
}

impl Level {
    /// Whether a step from `value` leads to this level.
    fn is(&self, step: &Step, value: &Value) -> bool {
        match (step, self) {
            (Step::Key { key, .. }, Level::Key(own)) => **key == **own,
            (Step::Key { index, .. }, Level::Index(own)) => *index == Some(*own),
            (Step::First, Level::Key(own)) => value
                .as_object()
                .is_some_and(|members| members.keys().next() == Some(own)),
            (Step::First, Level::Index(own)) => *own == 0,
        }
    }
}

/// An object that has a duplicate key.
#[derive(Debug)]
pub(super) struct Duplicate {
    key: String,
    /// Where the object is, from the innermost level to the outermost.
    path: Vec<Level>,
}

/// The objects with duplicate keys in one message.
#[derive(Debug, Default)]
pub(super) struct Duplicates(Vec<Duplicate>);

impl Duplicates {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds an object that was just parsed.
    pub(super) fn add(&mut self, key: String) {
        // One more than the limit, to see that it is exceeded.
        if self.0.len() <= LISTED_MAX {
            let path = Vec::new();
            self.0.push(Duplicate { key, path });
        }
    }

    /// Notes the level around the objects from index `from` on.
    #[inline]
    pub(super) fn enclose(&mut self, from: usize, level: impl Fn() -> Level) {
        for duplicate in &mut self.0[from..] {
            duplicate.path.push(level());
        }
    }

    /// The fault of the first one.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.0.first().map(|duplicate| fault(&duplicate.key))
    }

    /// The records of a message that have duplicate keys, with one such key of each. `each` leads
    /// from the message to its records.
    ///
    /// # Errors
    /// The fault of the message: a duplicate key is outside of its records, or there are too many.
    pub(super) fn in_records<'m>(
        &'m self,
        each: &[EachStep],
        message: &'m Value,
    ) -> Result<Vec<(&'m Value, &'m str)>, Fault> {
        let found = self.0.iter().map(|duplicate| {
            let record = duplicate.record(each, message);
            let record = record.filter(|_| self.0.len() <= LISTED_MAX);
            let record = record.ok_or_else(|| fault(&duplicate.key))?;
            Ok((record, duplicate.key.as_str()))
        });
        found.collect()
    }
}

impl Duplicate {
    /// The record around the object; `None` if it is in none.
    fn record<'m>(&self, each: &[EachStep], message: &'m Value) -> Option<&'m Value> {
        let mut levels = self.path.iter().rev();
        let mut value = message;
        for step in each {
            let level = levels.next()?;
            let is_on_path = match step {
                EachStep::One(step) => level.is(step, value),
                EachStep::All(_) => true,
            };
            if !is_on_path {
                return None;
            }
            value = match level {
                Level::Key(key) => value.get(key)?,
                Level::Index(index) => value.get(index)?,
            };
        }
        Some(value)
    }
}

pub(super) fn fault(key: &str) -> Fault {
    let detail = format!("duplicate key {}", excerpt(key));
    Fault::new(RejectReason::DuplicateKey, detail)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{PLAIN, rejected, run};
    use crate::RejectReason::DuplicateKey;

    #[test]
    fn a_duplicate_key_rejects_its_message() {
        for payload in [
            r#"{"id":"S","v":{"a":1,"a":2}}"#,
            r#"{"id":"S","v":{"a":1,"\u0061":1}}"#,
            r#"{"id":"S","id":"S","v":{"a":1}}"#,
            // Also in a part that the rule does not use.
            r#"{"id":"S","v":{"a":1},"x":[{"y":1,"y":1}]}"#,
            r#"{"id":"S","v":"{\"a\":1,\"a\":2}"}"#,
        ] {
            let rejects = rejected(PLAIN, None, payload);
            assert_eq!(rejects, [(0, DuplicateKey)], "{payload}");
        }
        let payload = r#"[{"id":"A","v":{"a":1,"a":2}},{"id":"B","v":{"a":1}}]"#;
        let (readings, rejects) = run(PLAIN, None, payload);
        assert_eq!(readings[0].sensor_id, "B");
        assert_eq!(rejects, [(0, DuplicateKey)]);
        let whole = "[formats.x]\nid = \"S\"\nwhen = [{ at = \"\", kind = \"array\" }]\n";
        let rejects = rejected(whole, None, r#"[{"a":1,"a":2}]"#);
        assert_eq!(rejects, [(0, DuplicateKey)]);
    }

    #[test]
    fn within_a_record_it_rejects_only_that() {
        let rule = "[formats.x]\nid = \"/id\"\neach = \"/r/*\"\nvalues = \"/v\"\n";
        let a = r#"{"id":"A","v":{"a":1}}"#;
        let c = r#"{"id":"C","v":{"a":1}}"#;
        let twice = r#"{"id":"B","v":{"a":1,"a":1}}"#;
        let (readings, rejects) = run(rule, None, format!(r#"{{"r":[{a},{twice},{c}]}}"#));
        let ids: Vec<_> = readings.iter().map(|r| r.sensor_id.as_str()).collect();
        assert_eq!((ids, rejects), (vec!["A", "C"], vec![(1, DuplicateKey)]));
        // Every record may use what is outside of them.
        for payload in [
            format!(r#"{{"x":1,"x":1,"r":[{a},{c}]}}"#),
            format!(r#"{{"x":{{"y":1,"y":1}},"r":[{a},{c}]}}"#),
            format!(r#"{{"r":[],"r":[{a}]}}"#),
            format!(r#"{{"r":{{"k":{a},"k":{c}}}}}"#),
            format!(r#"{{"r":[{},{a}]}}"#, vec![twice; 200].join(",")),
        ] {
            let rejects = rejected(rule, None, &payload);
            assert_eq!(rejects, [(0, DuplicateKey)], "{payload}");
        }
    }
}
