//! Plausible ranges (`[[ranges]]`): which values of a field a sensor can have. Checked before a
//! reading is journaled, for every protocol, when [`BatchBuilder`](crate::BatchBuilder) commits it.
//! Pure; shared by all threads that decode.
//!
//! **Why here.** What is acknowledged is stored, and a replay of the journal must store the same
//! again. So the decision is made before the journal, where the sender can still be told. The builder
//! sees each reading of each format under its stored names, and costs one comparison where no range
//! exists.
//!
//! **A value** is compared with the first rule whose patterns match its sensor and field, as a
//! number; booleans and texts never are. [`RangeAction`] is what happens to a value outside.

use std::fmt;
use std::sync::Arc;

use crate::sensor_patterns::SensorPatterns;
use crate::value::ValueRef;

/// Added to the name of a field whose value is kept apart.
const SUFFIX: &str = "_implausible";
/// The longest name that a record can hold.
const NAME_MAX_BYTES: usize = 255;

crate::closed_set! {
    /// What happens to a value outside of its range.
    pub enum RangeAction {
        /// Its reading is rejected.
        Reject => "reject",
        /// The rest of its reading is stored.
        LeaveOut => "leave-out",
        /// It is stored under another name, so outside of the summary of its field.
        KeepApart => "keep-apart",
    }
}

/// One entry of `[[ranges]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct RangeRule {
    /// The sensors.
    pub sensors: SensorPatterns,
    /// The fields, by their stored names.
    pub fields: SensorPatterns,
    /// The patterns of the fields: a label of a metric.
    pub label: Arc<str>,
    /// The least value.
    pub min: Option<f64>,
    /// The greatest value.
    pub max: Option<f64>,
    /// What happens to other values.
    pub action: RangeAction,
}

/// Limits are finite.
impl Eq for RangeRule {}

impl RangeRule {
    fn contains(&self, value: f64) -> bool {
        self.min.is_none_or(|min| value >= min) && self.max.is_none_or(|max| value <= max)
    }
}

/// All rules, in the order in which they are tried. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ranges(Arc<[RangeRule]>);

impl FromIterator<RangeRule> for Ranges {
    fn from_iter<I: IntoIterator<Item = RangeRule>>(rules: I) -> Ranges {
        Ranges(rules.into_iter().collect())
    }
}

impl Ranges {
    /// In the order in which they are tried.
    pub fn rules(&self) -> &[RangeRule] {
        &self.0
    }
}

/// A value outside of its range, for the sender.
#[derive(Debug, Clone, PartialEq)]
pub struct Implausible {
    rule: usize,
    ranges: Ranges,
    field: Box<str>,
    value: f64,
    is_rejected: bool,
}

impl Implausible {
    /// The rule that it breaks.
    pub fn rule(&self) -> &RangeRule {
        &self.ranges.0[self.rule]
    }

    /// The field, by its stored name.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The name under which the value is stored, unless its reading has such a field or it is too
    /// long.
    pub fn apart(&self) -> String {
        format!("{}{SUFFIX}", self.field)
    }

    /// Whether the whole reading was rejected.
    pub fn is_rejected(&self) -> bool {
        self.is_rejected
    }
}

impl fmt::Display for Implausible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RangeRule { min, max, .. } = self.rule();
        let Implausible { field, value, .. } = self;
        write!(f, "{field} is {value}")?;
        match (min, max) {
            (Some(min), Some(max)) => write!(f, "; the range is {min} to {max}")?,
            (Some(min), None) => write!(f, "; the range begins at {min}")?,
            (None, Some(max)) => write!(f, "; the range ends at {max}")?,
            (None, None) => {}
        }
        write!(f, " (ranges[{}])", self.rule)
    }
}

/// What a reading becomes.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// It stays as it is.
    Plausible,
    /// It is rejected.
    Rejected,
    /// The values at these positions are left out, or stored under this name.
    Changed(Vec<(usize, Option<Box<str>>)>),
}

/// Checks one batch while it is built.
#[derive(Debug)]
pub struct RangeGuard {
    ranges: Ranges,
    /// For each name of the batch so far: the rules whose fields match.
    rules: Vec<Box<[usize]>>,
    /// What the present reading breaks.
    found: Vec<Implausible>,
}

impl RangeGuard {
    /// A guard for a batch; `None` if there are no rules.
    pub fn new(ranges: &Ranges) -> Option<RangeGuard> {
        (!ranges.0.is_empty()).then(|| RangeGuard {
            ranges: ranges.clone(),
            rules: vec![],
            found: vec![],
        })
    }

    /// Checks a reading. `names` are those of the batch so far, `fields` those of the reading.
    pub(crate) fn check<'v>(
        &mut self,
        names: &[Box<str>],
        fields: &[u16],
        values: impl Iterator<Item = ValueRef<'v>>,
        sensor_id: &str,
    ) -> Verdict {
        self.found.clear();
        let ranges = self.ranges.clone();
        let rules = ranges.rules();
        for name in &names[self.rules.len()..] {
            let matching = |(i, rule): (usize, &RangeRule)| rule.fields.matches(name).then_some(i);
            let found = rules.iter().enumerate().filter_map(matching).collect();
            self.rules.push(found);
        }
        let mut changed = vec![];
        for (position, (field, value)) in fields.iter().zip(values).enumerate() {
            let mut candidates = self.rules[usize::from(*field)].iter();
            let rule = candidates.find(|rule| rules[**rule].sensors.matches(sensor_id));
            let (Some(&rule), Some(value)) = (rule, value.num()) else {
                continue;
            };
            let name = &names[usize::from(*field)];
            let value = value.as_f64();
            if rules[rule].contains(value) {
                continue;
            }
            self.found.push(Implausible {
                rule,
                ranges: ranges.clone(),
                field: name.clone(),
                value,
                is_rejected: false,
            });
            match rules[rule].action {
                RangeAction::Reject => {
                    self.found.drain(..self.found.len() - 1);
                    return Verdict::Rejected;
                }
                RangeAction::LeaveOut => changed.push((position, None)),
                RangeAction::KeepApart => {
                    let apart = self.found.last().map(Implausible::apart);
                    let apart = apart.filter(|name| name.len() <= NAME_MAX_BYTES);
                    changed.push((position, apart.map(Box::from)));
                }
            }
        }
        match changed.is_empty() {
            true => Verdict::Plausible,
            false => Verdict::Changed(changed),
        }
    }

    /// The present reading is committed.
    pub(crate) fn commit(&mut self, found: &mut Vec<Implausible>) {
        found.append(&mut self.found);
    }

    /// Why the present reading is rejected.
    pub(crate) fn take_refusal(&mut self) -> Option<Implausible> {
        self.found.pop().map(|found| Implausible {
            is_rejected: true,
            ..found
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchBuilder, BuildError, Checks};
    use crate::value::Value;
    use std::collections::BTreeMap;

    fn rule(fields: &str, action: RangeAction) -> RangeRule {
        RangeRule {
            sensors: SensorPatterns::parse(["*"]).unwrap(),
            fields: SensorPatterns::parse([fields]).unwrap(),
            label: fields.into(),
            min: Some(-40.0),
            max: Some(85.0),
            action,
        }
    }

    struct Rig {
        checks: Checks,
        ranges: Ranges,
    }

    impl Rig {
        fn new(rules: impl IntoIterator<Item = RangeRule>) -> Rig {
            Rig {
                checks: Checks::default(),
                ranges: rules.into_iter().collect(),
            }
        }

        /// What is stored of the readings of a batch, or why not.
        fn send(
            &self,
            readings: &[(i64, &[(&str, Value)])],
        ) -> Vec<Result<BTreeMap<String, Value>, String>> {
            let mut out = BatchBuilder::new(8);
            self.checks.apply(&mut out, 100, &self.ranges, 0);
            let mut errors = vec![];
            for (ts_ms, values) in readings {
                out.begin();
                for (name, value) in *values {
                    out.value(name, value.as_ref()).unwrap();
                }
                errors.push(match out.commit("S1", *ts_ms, false, &[]) {
                    Ok(()) => None,
                    Err(BuildError::OutOfRange) => Some(out.refuse_out_of_range()),
                    Err(error) => panic!("{error:?}"),
                });
            }
            let batch = out.finish();
            let mut stored = batch.to_readings().into_iter().map(|one| one.values);
            let result = |error: Option<String>| match error {
                None => Ok(stored.next().unwrap()),
                Some(error) => Err(error),
            };
            errors.into_iter().map(result).collect()
        }
    }

    fn values(all: &[(&str, Value)]) -> BTreeMap<String, Value> {
        all.iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect()
    }

    #[test]
    fn each_action_does_what_it_says() {
        let spike = [("temp", Value::Double(-127.0)), ("humid", Value::Int(60))];
        let good = [("temp", Value::Int(85)), ("humid", Value::Int(61))];
        let sent: &[(i64, &[(&str, Value)])] = &[(1, &spike), (2, &good), (3, &spike)];
        let humid = [("humid", Value::Int(60))];
        let apart = [
            ("humid", Value::Int(60)),
            ("temp_implausible", Value::Double(-127.0)),
        ];
        for (action, becomes) in [
            (
                RangeAction::Reject,
                Err("temp is -127; the range is -40 to 85 (ranges[0])".to_owned()),
            ),
            (RangeAction::LeaveOut, Ok(values(&humid))),
            (RangeAction::KeepApart, Ok(values(&apart))),
        ] {
            let stored = Rig::new([rule("temp", action)]).send(sent);
            assert_eq!(stored, [becomes.clone(), Ok(values(&good)), becomes]);
        }
    }

    #[test]
    fn only_numbers_are_compared_and_the_first_rule_of_a_field_decides() {
        let narrow = RangeRule {
            max: Some(30.0),
            min: None,
            ..rule("temp_room", RangeAction::LeaveOut)
        };
        let rig = Rig::new([narrow, rule("temp*", RangeAction::Reject)]);
        let texts = [
            ("temp", Value::Str("-127".into())),
            ("temp_on", Value::Bool(true)),
        ];
        let room = [("temp_room", Value::Int(-127)), ("temp", Value::Int(31))];
        let hot = [("temp_room", Value::Int(31)), ("temp", Value::Int(31))];
        let other = [("temp_other", Value::Int(86)), ("temp", Value::Int(31))];
        let stored = rig.send(&[(1, &texts), (2, &room), (3, &hot), (4, &other)]);
        let left = [("temp", Value::Int(31))];
        let other = "temp_other is 86; the range is -40 to 85 (ranges[1])";
        let expected = [
            Ok(values(&texts)),
            Ok(values(&room)),
            Ok(values(&left)),
            Err(other.to_owned()),
        ];
        assert_eq!(stored, expected);
    }

    #[test]
    fn a_reading_of_which_nothing_is_left_is_rejected() {
        let alone = [("temp", Value::Int(100))];
        let stored = Rig::new([rule("temp", RangeAction::LeaveOut)]).send(&[(1, &alone)]);
        assert!(
            stored[0]
                .as_ref()
                .is_err_and(|text| text.contains("temp is 100"))
        );
    }

    #[test]
    fn a_field_that_the_sender_has_named_so_stays() {
        let both = [
            ("temp", Value::Int(100)),
            ("temp_implausible", Value::Int(1)),
        ];
        let stored = Rig::new([rule("temp", RangeAction::KeepApart)]).send(&[(1, &both)]);
        assert_eq!(stored, [Ok(values(&both[1..]))]);
    }

    #[test]
    fn readings_like_an_earlier_one_keep_its_schema() {
        let rig = Rig::new([rule("temp", RangeAction::LeaveOut)]);
        let mut out = BatchBuilder::new(8);
        rig.checks.apply(&mut out, 100, &rig.ranges, 0);
        out.begin();
        out.value("temp", ValueRef::Int(-127)).unwrap();
        out.value("humid", ValueRef::Int(1)).unwrap();
        out.commit("S1", 1, false, &[]).unwrap();
        let schema = out.committed_schema();
        for (ts_ms, temp) in [(2, 20), (3, 200), (4, 21)] {
            out.begin_like(schema);
            out.next_value(ValueRef::Int(temp));
            out.next_value(ValueRef::Int(ts_ms));
            out.commit("S1", ts_ms, false, &[]).unwrap();
            assert_eq!(out.committed_schema(), schema);
        }
        assert_eq!(out.take_implausible().len(), 2);
        let batch = out.finish();
        let readings = batch.to_readings();
        let temps = readings.iter().map(|reading| reading.values.get("temp"));
        let int = Value::Int;
        let expected = [None, Some(&int(20)), None, Some(&int(21))];
        assert_eq!(temps.collect::<Vec<_>>(), expected);
    }
}
