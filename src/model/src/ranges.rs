//! Plausible ranges (`[[ranges]]`): which values of a field a sensor can have. Checked before a
//! reading is journaled, for every protocol, when [`BatchBuilder`](crate::BatchBuilder) commits it.
//! Pure; shared by all threads that decode.
//!
//! **Why here.** What is acknowledged is stored, and a replay of the journal must store the same
//! again. So the decision is made before the journal, where the sender can still be told, and not in
//! the shard, which knows the last value of a field but must not drop what was acknowledged. The
//! builder sees each reading of each format under its stored names, and costs one comparison where
//! no range exists.
//!
//! **A value** is compared with the first rule whose patterns match its sensor and field, as a
//! number; booleans and texts never are. [`RangeAction`] is what happens to a value outside.
//!
//! **Changes.** With [`ChangeMax`] a value is also compared with the last plausible one of its field
//! with an earlier time, in [`LastValues`]. So neither the first value of a field nor a reading that
//! is later than its successors is compared. The allowed change grows with the time between the
//! two, and is the whole of `by` up to one `per`. So a value that has really changed is accepted
//! after some time, whatever it is.
//!
//! **Redelivery.** A sender that sends a spike again must get the same answer, though the last
//! value may be later than the spike by now. So values that changed too much are remembered, with
//! their times.
//!
//! **Limits.** [`LastValues`] has about [`ENTRIES_MAX`] fields of sensors, 28 MiB, and as many
//! spikes. Beyond it the ones that were not used for longest are forgotten, and their next value is
//! not compared. So it is after a restart; and each instance compares what it receives.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::sensor_patterns::SensorPatterns;
use crate::value::ValueRef;

/// Fields of sensors whose last value is known.
const ENTRIES_MAX: usize = 1 << 20;
/// Number of locks, so that decoding threads rarely contend.
const STRIPES: usize = 16;
/// Of one generation of a stripe.
const GENERATION_MAX: usize = ENTRIES_MAX / STRIPES / 2;
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

/// How far a value may change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangeMax {
    /// By so much, at least 0.
    pub by: f64,
    /// In this time.
    pub per: Duration,
}

/// Limits are finite.
impl Eq for ChangeMax {}

impl ChangeMax {
    fn allows(self, before: Last, now: Last) -> bool {
        let elapsed_ms = now.ts_ms.abs_diff(before.ts_ms) as f64;
        let periods = elapsed_ms / self.per.as_millis() as f64;
        (now.value - before.value).abs() <= self.by * periods.max(1.0)
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
    /// How far it may change; as in the configuration.
    pub change: Option<(ChangeMax, Arc<str>)>,
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

/// The last plausible value of a field.
#[derive(Debug, Clone, Copy)]
struct Last {
    ts_ms: i64,
    value: f64,
}

/// The last values of all fields, and the values that changed too much. A clone shares them.
#[derive(Debug, Clone)]
pub struct LastValues(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Random, so that no sender can prepare colliding names.
    seed: u64,
    stripes: [Mutex<Stripe>; STRIPES],
}

#[derive(Debug, Default)]
struct Stripe {
    last: Generations<Last>,
    spikes: Generations<()>,
}

/// Entries by their hash, in two generations: recently used, and older.
#[derive(Debug)]
struct Generations<T> {
    young: HashTable<(u64, T)>,
    old: HashTable<(u64, T)>,
}

impl<T> Default for Generations<T> {
    fn default() -> Generations<T> {
        Generations {
            young: HashTable::new(),
            old: HashTable::new(),
        }
    }
}

impl<T: Copy> Generations<T> {
    fn get(&self, key: u64) -> Option<T> {
        let is_it = |entry: &(u64, T)| entry.0 == key;
        let found = self.young.find(key, is_it).or(self.old.find(key, is_it));
        found.map(|(_, entry)| *entry)
    }

    fn put(&mut self, key: u64, entry: T) {
        if let Some(found) = self.young.find_mut(key, |entry| entry.0 == key) {
            found.1 = entry;
            return;
        }
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert_unique(key, (key, entry), |entry| entry.0);
    }
}

impl Default for LastValues {
    fn default() -> LastValues {
        LastValues(Arc::new(Inner {
            seed: RandomState::new().hash_one(0),
            stripes: Default::default(),
        }))
    }
}

impl LastValues {
    fn key(&self, sensor_id: &str, field: &str) -> u64 {
        let sensor = xxh3_64_with_seed(sensor_id.as_bytes(), self.0.seed);
        xxh3_64_with_seed(field.as_bytes(), sensor)
    }

    fn with<R>(&self, key: u64, work: impl FnOnce(&mut Stripe) -> R) -> R {
        let stripe = &self.0.stripes[(key >> 8) as usize % STRIPES];
        work(&mut stripe.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A value outside of its range, for the sender.
#[derive(Debug, Clone, PartialEq)]
pub struct Implausible {
    rule: usize,
    ranges: Ranges,
    field: Box<str>,
    value: f64,
    why: Why,
    is_rejected: bool,
}

/// What a value breaks.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Why {
    /// It is outside of `min` and `max`.
    Outside,
    /// It is too far from this value, so many milliseconds before it.
    Changed(f64, u64),
    /// The same value with the same time was too far from the last one.
    ChangedBefore,
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
        let RangeRule {
            min, max, change, ..
        } = self.rule();
        let Implausible { field, value, .. } = self;
        write!(f, "{field} is {value}")?;
        let by = change.as_ref().map_or("", |(_, text)| &**text);
        match (self.why, min, max) {
            (Why::Changed(before, ms), ..) => {
                let seconds = ms as f64 / 1000.0;
                write!(f, ", {seconds} s after {before}; it may change by {by}")?;
            }
            (Why::ChangedBefore, ..) => write!(f, " once more; it may change by {by}")?,
            (Why::Outside, Some(min), Some(max)) => write!(f, "; the range is {min} to {max}")?,
            (Why::Outside, Some(min), None) => write!(f, "; the range begins at {min}")?,
            (Why::Outside, None, Some(max)) => write!(f, "; the range ends at {max}")?,
            (Why::Outside, None, None) => {}
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
    last: LastValues,
    /// For each name of the batch so far: the rules whose fields match.
    rules: Vec<Box<[usize]>>,
    /// The last values if the present reading is committed.
    pending: Vec<(u64, Last)>,
    /// What the present reading breaks.
    found: Vec<Implausible>,
}

impl RangeGuard {
    /// A guard for a batch; `None` if there are no rules.
    pub fn new(ranges: &Ranges, last: &LastValues) -> Option<RangeGuard> {
        (!ranges.0.is_empty()).then(|| RangeGuard {
            ranges: ranges.clone(),
            last: last.clone(),
            rules: vec![],
            pending: vec![],
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
        ts_ms: i64,
    ) -> Verdict {
        self.pending.clear();
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
            let Err(why) = self.judge(rule, sensor_id, name, Last { ts_ms, value }) else {
                continue;
            };
            self.found.push(Implausible {
                rule,
                ranges: ranges.clone(),
                field: name.clone(),
                value,
                why,
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

    /// Compares a value with its rule.
    fn judge(&mut self, rule: usize, sensor_id: &str, field: &str, now: Last) -> Result<(), Why> {
        let rule = &self.ranges.0[rule];
        if !rule.contains(now.value) {
            return Err(Why::Outside);
        }
        let Some((change, _)) = &rule.change else {
            return Ok(());
        };
        let key = self.last.key(sensor_id, field);
        // Under another rule it may be no spike.
        let spike = [now.ts_ms as u64, now.value.to_bits(), change.by.to_bits()]
            .into_iter()
            .fold(key, |hash, part| {
                xxh3_64_with_seed(&part.to_le_bytes(), hash)
            });
        let before = self.last.with(key, |stripe| match stripe.last.get(key) {
            Some(before) if before.ts_ms < now.ts_ms => {
                if change.allows(before, now) {
                    return Ok(Some(before));
                }
                stripe.spikes.put(spike, ());
                let after_ms = now.ts_ms.abs_diff(before.ts_ms);
                Err(Why::Changed(before.value, after_ms))
            }
            before => match stripe.spikes.get(spike) {
                Some(()) => Err(Why::ChangedBefore),
                None => Ok(before),
            },
        })?;
        if before.is_none_or(|before| before.ts_ms < now.ts_ms) {
            self.pending.push((key, now));
        }
        Ok(())
    }

    /// The present reading is committed: its plausible values are the last ones now.
    pub(crate) fn commit(&mut self, found: &mut Vec<Implausible>) {
        for (key, last) in self.pending.drain(..) {
            self.last.with(key, |stripe| stripe.last.put(key, last));
        }
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
            change: None,
            action,
        }
    }

    fn changing(by: f64, seconds: u64, action: RangeAction) -> RangeRule {
        let per = Duration::from_secs(seconds);
        RangeRule {
            change: Some((ChangeMax { by, per }, "some".into())),
            ..rule("temp", action)
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

        /// Whether each value of `temp` is plausible at its second.
        fn plausible(&self, values: &[(i64, f64)]) -> Vec<bool> {
            let one = |(second, value): &(i64, f64)| {
                let values = [("temp", Value::Double(*value))];
                self.send(&[(second * 1000, &values)])[0].is_ok()
            };
            values.iter().map(one).collect()
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

    #[test]
    fn a_value_may_change_by_so_much_in_the_time_since_the_last_one() {
        let rig = Rig::new([changing(10.0, 60, RangeAction::Reject)]);
        let found = rig.plausible(&[
            (0, 20.0),    // the first
            (10, 30.0),   // 10 within a minute
            (20, 41.0),   // 11
            (30, 25.0),   // compared with 30
            (150, 45.0),  // 20 in two minutes
            (151, -39.0), // 84
            (900, -39.0), // as far, in twelve minutes
        ]);
        assert_eq!(found, [true, true, false, true, true, false, true]);
        // A value outside of the range is never the last one.
        assert_eq!(rig.plausible(&[(901, 86.0), (902, -40.0)]), [false, true]);
    }

    #[test]
    fn a_late_reading_is_not_compared_and_a_repeated_spike_is_one_again() {
        let rig = Rig::new([changing(10.0, 60, RangeAction::Reject)]);
        let batch = [(0, 20.0), (10, 60.0), (20, 21.0), (30, 22.0)];
        assert_eq!(rig.plausible(&batch), [true, false, true, true]);
        assert_eq!(
            rig.plausible(&batch),
            [true, false, true, true],
            "sent again"
        );
        // Late, but never compared before.
        assert_eq!(rig.plausible(&[(5, 50.0), (31, 23.0)]), [true, true]);
        // With a wider rule it is none.
        let wide = Rig {
            ranges: [changing(50.0, 60, RangeAction::Reject)]
                .into_iter()
                .collect(),
            ..rig
        };
        assert_eq!(wide.plausible(&batch), [true; 4]);
    }

    #[test]
    fn a_rejected_reading_leaves_no_last_value() {
        let other = RangeRule {
            fields: SensorPatterns::parse(["humid"]).unwrap(),
            ..rule("humid", RangeAction::Reject)
        };
        let rig = Rig::new([changing(10.0, 60, RangeAction::Reject), other]);
        let bad = [("temp", Value::Int(60)), ("humid", Value::Int(1000))];
        let good = [("temp", Value::Int(20)), ("humid", Value::Int(50))];
        let stored = rig.send(&[(1, &bad), (2, &good)]);
        assert_eq!(
            stored.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [false, true]
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut all = Generations::default();
        for key in 0..5 * GENERATION_MAX as u64 {
            all.put(key, key);
        }
        assert!(all.young.len() + all.old.len() <= 2 * GENERATION_MAX);
        let newest = 5 * GENERATION_MAX as u64 - 1;
        assert_eq!((all.get(newest), all.get(0)), (Some(newest), None));
    }
}
