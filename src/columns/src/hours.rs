//! Rich summaries: what can be asked of the hours of a day without their readings.
//!
//! A span is a half-open interval of time, in the product an hour (`bucket.span`). The spans of a day
//! are given as a list of bounds, so a day may have 23 or 25 hours, and a span any length.
//!
//! **Numbers.** Of the numeric values of a field in a span, in the order of columns
//! ([`super::order`]):
//!
//! | name | is |
//! |---|---|
//! | `count`, `min`, `max`, `sum` | of all values, the same as in the summary of a page with these readings |
//! | `min_ts`, `max_ts` | the first time of the minimum and of the maximum |
//! | `sum_sq` | the sum of the squared distances from the mean; `stddev = sqrt(sum_sq / count)` |
//! | `first`, `last`, `first_ts`, `last_ts` | the first and last sample, and their times |
//! | `increase` | the differences of neighbouring samples; of a smaller one, the sample itself |
//! | `integral` | the area under the line through the samples, value times milliseconds |
//! | `covered_ms` | the time that `integral` is over; `integral / covered_ms` is the time-weighted mean |
//! | `sketch` | only of fields that ask for it: a quantile sketch ([`super::sketch`]) of all values |
//!
//! Several values of one millisecond are one *sample*, the last of them, as in PromQL. A counter's
//! `increase` is that of Prometheus: a smaller sample means that a counter began again at zero. The line is
//! straight, or stays at a sample until the next one ([`Line`]). Between two samples further apart
//! than `gap_max_ms` there is none, and this time is not covered.
//!
//! **States.** Of booleans and texts: how long the field had each value (`state_ms`). A value lasts
//! until the next value of the field, of whatever kind, if that is within `gap_max_ms`. A boolean
//! counts as the text `true` or `false`. Values beyond the first [`STATES_MAX`] of a span, and those
//! longer than [`STATE_BYTES_MAX`], count together as [`OTHER_STATES`].
//!
//! **Joining.** A span contains only what is between two of its samples. [`FieldHour::merge`] joins two
//! neighbours and adds what is between the last sample of the one and the first of the other, so that
//! a merge over any number of spans is what one span of this length would be; spans without values are
//! skipped. What is an integer, a time, an extreme, or a sample is exact; `increase`, `integral` and
//! `sum` of doubles may differ in the last digits, since doubles are added in another order.
//!
//! **How exact `stddev` is.** Within a span the distances are taken from the first value, so the
//! relative error is near 1e-13 whatever the mean. A merge takes means from sums. Its relative error is
//! about `1e-14 * |mean| / stddev`: for 1e9 ± 1, 1e-6 at most. A plain sum of squares would have no
//! correct digit there.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::summary::Sum;
use model::{Number, Rows, SensorPatterns, ValueRef};

use super::order::sorted;
use super::sketch::Sketch;

/// Most states of a field in a span that are counted one by one.
pub(crate) const STATES_MAX: usize = 16;
/// The longest text that is a state of its own.
pub(crate) const STATE_BYTES_MAX: usize = 64;
/// The name of all other states.
pub(crate) const OTHER_STATES: &str = "…";
/// Most fields of a day times its spans: an entry takes up to 300 bytes of a document. With hours these
/// are 2,083 fields.
pub(crate) const FIELD_HOURS_MAX: usize = 50_000;
/// Most bins of the sketches of a day, each about 15 bytes of the document.
pub(crate) const SKETCH_BINS_MAX: usize = 50_000;

/// The line between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Straight from one to the other.
    Straight,
    /// At the first until the second.
    Step,
}

/// How a field is weighted by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weighting {
    /// The line between two samples.
    pub line: Line,
    /// Between two samples further apart (ms) there is no line.
    pub gap_max_ms: i64,
}

impl Weighting {
    /// The time between two samples, as far as it is covered.
    fn covered_ms(self, from_ms: i64, to_ms: i64) -> i64 {
        let ms = to_ms - from_ms;
        if ms <= self.gap_max_ms { ms } else { 0 }
    }
}

/// What is computed of the fields that a list of patterns selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldRule {
    /// The line between two samples.
    pub line: Line,
    /// Whether its numbers have a quantile sketch.
    pub is_sketched: bool,
}

/// How each field is weighted by time, and which have a sketch. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weightings {
    others: Weighting,
    /// The first list that selects a field counts.
    rules: Arc<[(SensorPatterns, FieldRule)]>,
    /// A sketch is made of others than the rules say.
    sketched: Option<Sketched>,
}

/// Fields that have a sketch whatever the rules say; no others do.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sketched {
    All,
    One(Arc<str>),
}

impl Weightings {
    /// `rules`: of the fields that a list of patterns selects; the first list counts.
    pub fn new(
        others: Weighting,
        rules: impl IntoIterator<Item = (SensorPatterns, FieldRule)>,
    ) -> Weightings {
        Weightings {
            others,
            rules: rules.into_iter().collect(),
            sketched: None,
        }
    }

    /// The same, with a sketch of this field; `None`: of each field.
    #[must_use]
    pub fn with_sketches(&self, field: Option<&str>) -> Weightings {
        let sketched = field.map_or(Sketched::All, |field| Sketched::One(field.into()));
        Weightings {
            sketched: Some(sketched),
            ..self.clone()
        }
    }

    fn rule(&self, field: &str) -> Option<FieldRule> {
        let mut rules = self.rules.iter();
        let found = rules.find(|(names, _)| names.matches(field));
        found.map(|(_, rule)| *rule)
    }

    /// The weighting of a field.
    pub(crate) fn weighting_of(&self, field: &str) -> Weighting {
        Weighting {
            line: self.rule(field).map_or(self.others.line, |rule| rule.line),
            ..self.others
        }
    }

    /// Whether the numbers of a field have a sketch.
    pub fn has_sketch(&self, field: &str) -> bool {
        match &self.sketched {
            Some(Sketched::All) => true,
            Some(Sketched::One(one)) => **one == *field,
            None => self.rule(field).is_some_and(|rule| rule.is_sketched),
        }
    }
}

impl From<Weighting> for Weightings {
    /// The same for all fields.
    fn from(of_all: Weighting) -> Weightings {
        Weightings::new(of_all, [])
    }
}

/// The numeric values of a field in a span.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    /// Number of values.
    pub count: u64,
    /// The smallest value.
    pub min: Number,
    /// The largest value.
    pub max: Number,
    /// The sum of the values.
    pub sum: Number,
    /// The first sample.
    pub first: Number,
    /// The last sample.
    pub last: Number,
    /// The time of the first sample (ms since 1970).
    pub first_ts_ms: i64,
    /// The time of the last sample (ms since 1970).
    pub last_ts_ms: i64,
    /// The first time of the smallest value (ms since 1970).
    pub min_ts_ms: i64,
    /// The first time of the largest value (ms since 1970).
    pub max_ts_ms: i64,
    /// The sum of the squared distances from the mean.
    pub sum_sq: f64,
    /// What a counter rose by, as Prometheus counts it, without extrapolation.
    pub increase: f64,
    /// The area under the line through the samples, in value times milliseconds.
    pub integral: f64,
    /// The time that `integral` is over.
    pub covered_ms: i64,
    /// All values by bin, if the field asks for it.
    pub sketch: Option<Sketch>,
}

/// The booleans and texts of a field in a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct States {
    /// The first time of the field, of whatever kind (ms since 1970).
    pub first_ts_ms: i64,
    /// The last time of the field, of whatever kind (ms since 1970).
    pub last_ts_ms: i64,
    /// The state at that time; `None` if it is a number.
    pub last: Option<String>,
    /// How long each state lasted (ms).
    pub state_ms: BTreeMap<String, i64>,
}

/// A field in a span.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FieldHour {
    /// Its numbers, if there are any.
    pub numbers: Option<Numbers>,
    /// Its states, if there are any.
    pub states: Option<States>,
}

/// The fields of a day by span.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DayHours {
    /// By name: the number of the span, and the field in it. Spans without a value are missing.
    pub fields: BTreeMap<Arc<str>, Vec<(usize, FieldHour)>>,
    /// There are more than [`FIELD_HOURS_MAX`]; fields are missing, the last by name.
    pub is_truncated: bool,
}

impl DayHours {
    /// Whether all numbers of this field, or of all fields, have a sketch.
    pub fn are_sketched(&self, field: Option<&str>) -> bool {
        let fields = self.fields.iter();
        let asked = fields.filter(|(name, _)| field.is_none_or(|field| ***name == *field));
        let hours = asked.flat_map(|(_, hours)| hours);
        let mut numbers = hours.filter_map(|(_, hour)| hour.numbers.as_ref());
        numbers.all(|numbers| numbers.sketch.is_some())
    }

    /// Removes the sketches of the last fields by name, if they have too many bins for a document.
    pub fn limit_sketches(&mut self) {
        let mut bins = 0;
        for hours in self.fields.values_mut() {
            let numbers = hours.iter().filter_map(|(_, hour)| hour.numbers.as_ref());
            let sketches = numbers.filter_map(|numbers| numbers.sketch.as_ref());
            bins += sketches.map(|sketch| sketch.bins().len()).sum::<usize>();
            if bins > SKETCH_BINS_MAX {
                let numbers = hours.iter_mut();
                let numbers = numbers.filter_map(|(_, hour)| hour.numbers.as_mut());
                numbers.for_each(|numbers| numbers.sketch = None);
            }
        }
    }

    /// The fields of the day as one span.
    pub fn whole(&self, weightings: &Weightings) -> BTreeMap<Arc<str>, FieldHour> {
        let whole = |(name, hours): (&Arc<str>, &Vec<(usize, FieldHour)>)| {
            let mut hours = hours.iter().map(|(_, hour)| hour);
            let first = hours.next()?.clone();
            let weighting = weightings.weighting_of(name);
            let all = hours.fold(first, |all, hour| all.merge(hour, weighting));
            Some((name.clone(), all))
        };
        self.fields.iter().filter_map(whole).collect()
    }
}

/// A sample: time and value.
type Sample = (i64, Number);

impl Numbers {
    /// Joins the numbers of a span with those of a later one.
    pub fn merge(&self, later: &Numbers, weighting: Weighting) -> Numbers {
        let mut merged = self.clone();
        merged.cross(
            (self.last_ts_ms, self.last),
            (later.first_ts_ms, later.first),
            weighting,
        );
        merged.increase += later.increase;
        merged.integral += later.integral;
        merged.covered_ms += later.covered_ms;
        if later.min.order(self.min).is_lt() {
            (merged.min, merged.min_ts_ms) = (later.min, later.min_ts_ms);
        }
        if later.max.order(self.max).is_gt() {
            (merged.max, merged.max_ts_ms) = (later.max, later.max_ts_ms);
        }
        let apart = later.mean() - self.mean();
        merged.count += later.count;
        // Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample
        // variances (1979).
        let weight = self.count as f64 * later.count as f64 / merged.count as f64;
        merged.sum_sq += later.sum_sq + apart * apart * weight;
        merged.sum = self.sum.plus(later.sum);
        (merged.last, merged.last_ts_ms) = (later.last, later.last_ts_ms);
        merged.sketch = merged
            .sketch
            .zip(later.sketch.as_ref())
            .map(|(mut all, later)| {
                all.merge(later);
                all
            });
        merged
    }

    /// The mean of the values.
    pub fn mean(&self) -> f64 {
        self.sum.as_f64() / self.count as f64
    }

    /// Adds what is between two neighbouring samples.
    fn cross(&mut self, from: Sample, to: Sample, weighting: Weighting) {
        let a = from.1.as_f64();
        let b = to.1.as_f64();
        // A counter that is smaller began again at zero.
        self.increase += if b < a { b } else { b - a };
        let ms = weighting.covered_ms(from.0, to.0);
        let height = match weighting.line {
            Line::Straight => 0.5 * a + 0.5 * b,
            Line::Step => a,
        };
        self.covered_ms += ms;
        self.integral += height * ms as f64;
    }
}

impl States {
    fn merge(&self, later: &States, weighting: Weighting) -> States {
        let mut merged = self.until(later.first_ts_ms, weighting);
        for (state, ms) in &later.state_ms {
            *merged.state_ms.entry(state.clone()).or_default() += ms;
        }
        merged.last_ts_ms = later.last_ts_ms;
        merged.last.clone_from(&later.last);
        merged
    }

    /// With the time from the last state to the next value.
    fn until(&self, next_ms: i64, weighting: Weighting) -> States {
        let mut longer = self.clone();
        if let Some(last) = &self.last {
            let ms = weighting.covered_ms(self.last_ts_ms, next_ms);
            *longer.state_ms.entry(last.clone()).or_default() += ms;
        }
        longer
    }
}

impl FieldHour {
    /// Joins a field of a span with the same field of a later span, between which it has no value.
    pub fn merge(&self, later: &FieldHour, weighting: Weighting) -> FieldHour {
        let numbers = match (&self.numbers, &later.numbers) {
            (Some(a), Some(b)) => Some(a.merge(b, weighting)),
            (a, b) => a.clone().or(b.clone()),
        };
        let states = match (&self.states, &later.states, &self.numbers, &later.numbers) {
            (Some(a), Some(b), ..) => Some(a.merge(b, weighting)),
            // Numbers end a state.
            (Some(a), None, _, Some(b)) => Some(States {
                last: None,
                last_ts_ms: b.last_ts_ms,
                ..a.until(b.first_ts_ms, weighting)
            }),
            (None, Some(b), Some(a), _) => Some(States {
                first_ts_ms: a.first_ts_ms,
                ..b.clone()
            }),
            (a, b, ..) => a.clone().or(b.clone()),
        };
        FieldHour { numbers, states }
    }
}

/// Computes the fields of a day by span.
#[derive(Debug)]
pub struct HoursEncoder {
    /// The starts of the spans, and the end of the last one.
    bounds: Vec<i64>,
    weightings: Weightings,
    fields: BTreeMap<Arc<str>, OpenField>,
}

impl HoursEncoder {
    /// `bounds`: the starts of the spans in order, and the end of the last one (ms since 1970).
    pub fn new(bounds: Vec<i64>, weightings: Weightings) -> HoursEncoder {
        HoursEncoder {
            bounds,
            weightings,
            fields: BTreeMap::new(),
        }
    }

    /// Adds readings in any order, none of them earlier than those of the call before (a bucket).
    /// Readings outside the spans do not count.
    pub fn add(&mut self, rows: &Rows) {
        let names = rows.fields().iter();
        let mut fields: Vec<OpenField> = names
            .map(|name| match self.fields.remove(name) {
                Some(field) => field,
                None => OpenField::new(
                    self.weightings.weighting_of(name),
                    self.weightings.has_sketch(name),
                ),
            })
            .collect();
        for row in sorted(rows) {
            let span = self.bounds.partition_point(|bound| *bound <= row.ts_ms);
            if (1..self.bounds.len()).contains(&span) {
                let values = row.values();
                values.for_each(|(field, value)| {
                    fields[field as usize].add(span - 1, row.ts_ms, value)
                });
            }
        }
        self.fields
            .extend(rows.fields().iter().cloned().zip(fields));
    }

    /// The fields of all spans.
    pub fn finish(self) -> DayHours {
        let spans = self.bounds.len().saturating_sub(1).max(1);
        let hours = self
            .fields
            .into_iter()
            .map(|(name, field)| (name, field.finish()));
        let mut fields: BTreeMap<_, _> = hours.filter(|(_, hours)| !hours.is_empty()).collect();
        let is_truncated = fields.len() > FIELD_HOURS_MAX / spans;
        while fields.len() > FIELD_HOURS_MAX / spans {
            fields.pop_last();
        }
        DayHours {
            fields,
            is_truncated,
        }
    }
}

/// A field while its values arrive.
#[derive(Debug)]
struct OpenField {
    weighting: Weighting,
    is_sketched: bool,
    hours: Vec<(usize, FieldHour)>,
    /// The number of the last span, and the field in it.
    open: Option<(usize, OpenHour)>,
}

/// A field in a span while its values arrive.
#[derive(Debug, Default)]
struct OpenHour {
    first_ts_ms: Option<i64>,
    numbers: Option<OpenNumbers>,
    states: Option<States>,
}

#[derive(Debug)]
struct OpenNumbers {
    /// All but the sums, and what is before the last sample.
    numbers: Numbers,
    /// The last sample but one.
    before: Option<Sample>,
    sum: Sum,
    /// The first value; the mean is the distance from it.
    origin: Number,
    mean: f64,
}

impl OpenField {
    fn new(weighting: Weighting, is_sketched: bool) -> OpenField {
        OpenField {
            weighting,
            is_sketched,
            hours: Vec::new(),
            open: None,
        }
    }

    fn add(&mut self, span: usize, ts_ms: i64, value: ValueRef<'_>) {
        if self.open.as_ref().is_some_and(|(open, _)| *open != span) {
            self.close();
        }
        let (_, hour) = self.open.get_or_insert_with(|| (span, OpenHour::default()));
        hour.add(ts_ms, value, self.weighting);
        if let Some((numbers, number)) = hour.numbers.as_mut().zip(value.num())
            && self.is_sketched
        {
            let sketch = numbers.numbers.sketch.get_or_insert_default();
            sketch.add(number.as_f64());
        }
    }

    fn close(&mut self) {
        let weighting = self.weighting;
        self.hours.extend(
            self.open
                .take()
                .map(|(span, hour)| (span, hour.finish(weighting))),
        );
    }

    fn finish(mut self) -> Vec<(usize, FieldHour)> {
        self.close();
        self.hours
    }
}

impl OpenHour {
    fn add(&mut self, ts_ms: i64, value: ValueRef<'_>, weighting: Weighting) {
        let first_ts_ms = *self.first_ts_ms.get_or_insert(ts_ms);
        let state = match value {
            ValueRef::Bool(true) => Some("true"),
            ValueRef::Bool(false) => Some("false"),
            ValueRef::Str(text) => Some(text),
            ValueRef::Double(_) | ValueRef::Int(_) => None,
        };
        if let Some(number) = value.num() {
            match &mut self.numbers {
                Some(numbers) => numbers.add(ts_ms, number, weighting),
                None => self.numbers = Some(OpenNumbers::new(ts_ms, number)),
            }
        }
        if state.is_some() && self.states.is_none() {
            self.states = Some(States {
                first_ts_ms,
                last_ts_ms: ts_ms,
                last: None,
                state_ms: BTreeMap::new(),
            });
        }
        if let Some(states) = &mut self.states {
            states.add(ts_ms, state, weighting);
        }
    }

    fn finish(self, weighting: Weighting) -> FieldHour {
        FieldHour {
            numbers: self.numbers.map(|numbers| numbers.finish(weighting)),
            states: self.states,
        }
    }
}

impl States {
    /// Adds the next value of the field.
    fn add(&mut self, ts_ms: i64, state: Option<&str>, weighting: Weighting) {
        if let Some(last) = &self.last {
            let ms = weighting.covered_ms(self.last_ts_ms, ts_ms);
            *self
                .state_ms
                .get_mut(last)
                .expect("each state has an entry") += ms;
        }
        self.last_ts_ms = ts_ms;
        self.last = state.map(|text| {
            let is_full = self.state_ms.len() >= STATES_MAX && !self.state_ms.contains_key(text);
            let is_other = is_full || text.len() > STATE_BYTES_MAX;
            let state = if is_other { OTHER_STATES } else { text };
            self.state_ms.entry(state.to_owned()).or_default();
            state.to_owned()
        });
    }
}

impl OpenNumbers {
    fn new(ts_ms: i64, value: Number) -> OpenNumbers {
        let mut open = OpenNumbers {
            numbers: Numbers {
                count: 1,
                min: value,
                max: value,
                sum: value,
                first: value,
                last: value,
                first_ts_ms: ts_ms,
                last_ts_ms: ts_ms,
                min_ts_ms: ts_ms,
                max_ts_ms: ts_ms,
                sum_sq: 0.0,
                increase: 0.0,
                integral: 0.0,
                covered_ms: 0,
                sketch: None,
            },
            before: None,
            sum: Sum::default(),
            origin: value,
            mean: 0.0,
        };
        open.sum.add(value);
        open
    }

    fn add(&mut self, ts_ms: i64, value: Number, weighting: Weighting) {
        self.sum.add(value);
        if ts_ms > self.numbers.last_ts_ms {
            self.settle(weighting);
            self.before = Some((self.numbers.last_ts_ms, self.numbers.last));
        }
        let numbers = &mut self.numbers;
        if self.before.is_none() {
            numbers.first = value;
        }
        (numbers.last, numbers.last_ts_ms) = (value, ts_ms);
        if value.order(numbers.min).is_lt() {
            (numbers.min, numbers.min_ts_ms) = (value, ts_ms);
        }
        if value.order(numbers.max).is_gt() {
            (numbers.max, numbers.max_ts_ms) = (value, ts_ms);
        }
        // Welford: Note on a method for calculating corrected sums of squares and products (1962).
        numbers.count += 1;
        let distance = difference(value, self.origin);
        let from_mean = distance - self.mean;
        self.mean += from_mean / numbers.count as f64;
        numbers.sum_sq += from_mean * (distance - self.mean);
    }

    /// Counts what is before the last sample, which no other of its millisecond can replace now.
    fn settle(&mut self, weighting: Weighting) {
        if let Some(before) = self.before {
            let last = (self.numbers.last_ts_ms, self.numbers.last);
            self.numbers.cross(before, last, weighting);
        }
    }

    fn finish(mut self, weighting: Weighting) -> Numbers {
        self.settle(weighting);
        self.numbers.sum = self.sum.total();
        self.numbers
    }
}

/// `a - b`, rounded once.
fn difference(a: Number, b: Number) -> f64 {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => (i128::from(a) - i128::from(b)) as f64,
        (a, b) => a.as_f64() - b.as_f64(),
    }
}
