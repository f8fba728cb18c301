//! Resolves records against their bases, collects them, and builds readings at the end of the pack.
//! Only then it is known that nothing forbids processing the pack, and which names have several
//! units.

use std::borrow::Cow;
use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::record::{Label, Record};
use crate::binary::Item;
use crate::names::{self, excerpt};
use crate::quota::Quota;
use crate::reading::add_value;
use crate::rejects::{Fault, Rejects};
use crate::time::{Origin, Stamp};
use crate::token::Token;
use crate::{Context, RejectReason, TsUnit, time};
use model::{BatchBuilder, Number, ValueRef};

/// The newest supported version of SenML, which is also the default (RFC 8428 §4.4).
const VERSION: i128 = 10;
/// Times below this are relative to now (§4.5.3), in microseconds.
const RELATIVE_BELOW_US: i128 = (1 << 28) * 1_000_000;

/// The current value of a base field.
#[derive(Debug)]
enum Base<T> {
    Is(T),
    /// The record with this index had an invalid value.
    Lost(usize),
}

impl<T> Base<T> {
    /// Converts the value of the record with this index; the first fault is kept.
    fn take(given: Result<T, Fault>, index: usize, first: &mut Option<Fault>) -> Base<T> {
        match given {
            Ok(value) => Base::Is(value),
            Err(fault) => {
                first.get_or_insert(fault);
                Base::Lost(index)
            }
        }
    }

    fn get(&self, label: Label) -> Result<&T, Fault> {
        match self {
            Base::Is(value) => Ok(value),
            Base::Lost(index) => {
                let detail = format!(
                    "it depends on `{}`, which is invalid in record {index}",
                    label.name()
                );
                Err(bad(detail))
            }
        }
    }
}

/// A record's value.
#[derive(Debug)]
enum Value<'de> {
    Number(Number),
    Bool(bool),
    Text(Cow<'de, str>),
}

/// A record with bases applied.
#[derive(Debug)]
struct Resolved<'de> {
    index: usize,
    name: Cow<'de, str>,
    time: Stamp,
    unit: Option<Cow<'de, str>>,
    value: Option<Value<'de>>,
    sum: Option<Number>,
    /// Whether its name has several units.
    by_unit: bool,
}

/// A pack that is being read.
pub(super) struct Pack<'a, 'de> {
    cx: &'a Context<'a>,
    out: &'a mut BatchBuilder,
    rejects: &'a mut Rejects,
    base_name: Base<Cow<'de, str>>,
    /// The first base name of the pack.
    first_name: Option<Cow<'de, str>>,
    base_time_us: Base<i128>,
    base_unit: Base<Option<Cow<'de, str>>>,
    base_value: Base<Option<Number>>,
    base_sum: Base<Option<Number>>,
    records: Vec<Resolved<'de>>,
    /// The next record's index.
    index: usize,
    /// Why the pack is rejected as a whole, and the number of records that require it.
    refused: Option<Fault>,
    refusing: usize,
    quota: Quota,
}

impl<'a, 'de> Pack<'a, 'de> {
    pub(super) fn new(
        cx: &'a Context<'a>,
        out: &'a mut BatchBuilder,
        rejects: &'a mut Rejects,
    ) -> Pack<'a, 'de> {
        Pack {
            cx,
            out,
            rejects,
            base_name: Base::Is(Cow::Borrowed("")),
            first_name: None,
            base_time_us: Base::Is(0),
            base_unit: Base::Is(None),
            base_value: Base::Is(None),
            base_sum: Base::Is(None),
            records: Vec::new(),
            index: 0,
            refused: None,
            refusing: 0,
            quota: Quota::new(cx.limits),
        }
    }

    /// Rejects the record at the current index.
    pub(super) fn reject(&mut self, fault: Fault) {
        self.rejects.fault(self.index, fault);
        self.index += 1;
    }

    /// Adds a reject for a fault before the record at the current index.
    pub(super) fn reject_before(&mut self, fault: Fault) {
        self.rejects.fault(self.index, fault);
    }

    /// Marks all bases as lost: the record at the current index, which is about to be rejected, may
    /// have had unreadable base fields.
    pub(super) fn lose_bases(&mut self) {
        self.base_name = Base::Lost(self.index);
        self.base_time_us = Base::Lost(self.index);
        self.base_unit = Base::Lost(self.index);
        self.base_value = Base::Lost(self.index);
        self.base_sum = Base::Lost(self.index);
    }

    /// Adds the next record.
    pub(super) fn take(&mut self, record: &mut Record<'de>) {
        if let Err(fault) = understood(record) {
            self.refused.get_or_insert(fault);
            self.refusing += 1;
            self.index += 1;
            return;
        }
        let only_bases = record.is_only_bases();
        let bases = self.take_bases(record);
        let fault = record.take_fault().or(bases.err());
        if let Some(fault) = fault {
            return self.reject(fault);
        }
        if only_bases {
            self.index += 1;
            return;
        }
        if self.quota.refuses(self.index) {
            self.index += 1;
            return;
        }
        match self.resolve(record) {
            Ok(resolved) => {
                self.records.push(resolved);
                self.quota.took();
                self.index += 1;
            }
            Err(fault) => self.reject(fault),
        }
    }

    /// Ends the pack and commits its readings.
    pub(super) fn finish(mut self) {
        if let Some(fault) = self.refused {
            let n = self.records.len() + self.refusing + self.quota.beyond();
            self.rejects.push_many(0, n, fault.reason, fault.detail);
            return;
        }
        self.commit();
        self.quota.close("records", self.rejects);
    }

    /// Applies the record's base fields. They apply from this record on, even if the record has
    /// other faults.
    fn take_bases(&mut self, record: &mut Record<'de>) -> Result<(), Fault> {
        let mut first = None;
        let lost = self.index;
        if let Some(item) = record.take(Label::BaseName) {
            self.base_name = Base::take(text(Label::BaseName, item), lost, &mut first);
            if let (None, Base::Is(name)) = (&self.first_name, &self.base_name) {
                self.first_name = Some(name.clone());
            }
        }
        if let Some(item) = record.take(Label::BaseTime) {
            self.base_time_us = Base::take(micros(Label::BaseTime, &item), lost, &mut first);
        }
        if let Some(item) = record.take(Label::BaseUnit) {
            self.base_unit = Base::take(text(Label::BaseUnit, item).map(Some), lost, &mut first);
        }
        if let Some(item) = record.take(Label::BaseValue) {
            self.base_value =
                Base::take(number(Label::BaseValue, &item).map(Some), lost, &mut first);
        }
        if let Some(item) = record.take(Label::BaseSum) {
            self.base_sum = Base::take(number(Label::BaseSum, &item).map(Some), lost, &mut first);
        }
        first.map_or(Ok(()), Err)
    }

    fn resolve(&self, record: &mut Record<'de>) -> Result<Resolved<'de>, Fault> {
        let (value, sum) = self.values(record)?;
        let name = self.name(record)?;
        let unit = match record.take(Label::Unit) {
            Some(item) => Some(text(Label::Unit, item)?),
            None => self.base_unit.get(Label::BaseUnit)?.clone(),
        };
        if let Some(unit) = &unit {
            names::check_text("u", unit, self.cx.limits)?;
        }
        let own_us = record
            .take(Label::Time)
            .map_or(Ok(0), |item| micros(Label::Time, &item))?;
        let time = self.time(
            self.base_time_us
                .get(Label::BaseTime)?
                .saturating_add(own_us),
        )?;
        Ok(Resolved {
            index: self.index,
            name,
            time,
            unit,
            value,
            sum,
            by_unit: false,
        })
    }

    /// The record's value and sum, with their bases added. A missing sum, or a missing value of a
    /// record that has no sum either, counts as zero if there is a base (§4.5.4).
    fn values(
        &self,
        record: &mut Record<'de>,
    ) -> Result<(Option<Value<'de>>, Option<Number>), Fault> {
        let given = Label::VALUES.into_iter().filter(|label| record.has(*label));
        if given.count() > 1 {
            return Err(bad("more than one of v, vs, vb and vd"));
        }
        let plus = |base: &Option<Number>, own: Number| base.map_or(own, |base| base.plus(own));
        let mut value = None;
        for label in Label::VALUES {
            let Some(item) = record.take(label) else {
                continue;
            };
            value = Some(match label {
                Label::Value => {
                    let own = number(label, &item)?;
                    Value::Number(finite(
                        label,
                        plus(self.base_value.get(Label::BaseValue)?, own),
                    )?)
                }
                Label::BoolValue => match item {
                    Item::Bool(v) => Value::Bool(v),
                    other => return Err(wrong(label, "a boolean", &other)),
                },
                Label::DataValue => match item {
                    Item::Bytes(bytes) => Value::Text(URL_SAFE_NO_PAD.encode(bytes).into()),
                    other => Value::Text(text(label, other)?),
                },
                _ => Value::Text(text(label, item)?),
            });
        }
        if let Some(Value::Text(text)) = &value {
            names::check_text("value", text, self.cx.limits)?;
        }
        let base_sum = self.base_sum.get(Label::BaseSum)?;
        let sum = match record.take(Label::Sum) {
            Some(item) => {
                let own = number(Label::Sum, &item)?;
                Some(finite(Label::Sum, plus(base_sum, own))?)
            }
            None => {
                if value.is_none() {
                    let base = self.base_value.get(Label::BaseValue)?;
                    value = base.map(Value::Number);
                }
                *base_sum
            }
        };
        if value.is_none() && sum.is_none() {
            return Err(Fault::new(
                RejectReason::NoValues,
                "the record has none of v, vs, vb, vd and s, and no bv or bs applies to it",
            ));
        }
        Ok((value, sum))
    }

    fn name(&self, record: &mut Record<'de>) -> Result<Cow<'de, str>, Fault> {
        let base = self.base_name.get(Label::BaseName)?;
        let own = record
            .take(Label::Name)
            .map_or(Ok(Cow::Borrowed("")), |item| text(Label::Name, item))?;
        let name = match (&**base, &*own) {
            (_, "") => base.clone(),
            ("", _) => own,
            (base, own) => Cow::Owned([base, own].concat()),
        };
        if name.is_empty() && self.cx.sensor_id.is_none() {
            return Err(Fault::new(
                RejectReason::MissingSensorId,
                "the record has neither bn nor n, and the topic names no sensor",
            ));
        }
        if !name.is_empty() {
            check_name(&name)?;
        }
        if self.cx.sensor_id.is_none() {
            names::check_sensor_id(&name, self.cx.limits)?;
        }
        Ok(name)
    }

    fn time(&self, sum_us: i128) -> Result<Stamp, Fault> {
        match sum_us {
            0 => Ok((self.cx.received_at_ms, Origin::Receipt)),
            us if us < RELATIVE_BELOW_US => {
                let ms = us
                    .saturating_add(i128::from(self.cx.received_at_ms) * 1000)
                    .div_euclid(1000);
                Ok((time::accepted(ms, self.cx)?, Origin::Sender))
            }
            us => time::resolve(Some(&Token::integer(us)), Some(TsUnit::Us), self.cx),
        }
    }

    /// Builds readings from records with the same sensor and time, in the order of their first
    /// records.
    fn commit(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        mark_units(&mut records);
        let by_topic = self.cx.sensor_id.is_some();
        let sensor = |r: &'_ Resolved<'de>| if by_topic { 0..0 } else { 0..r.name.len() };
        let time = |r: &Resolved<'de>| r.time;
        records.sort_by(|a, b| {
            let sensors = a.name[sensor(a)].cmp(&b.name[sensor(b)]);
            sensors
                .then(time(a).cmp(&time(b)))
                .then(a.index.cmp(&b.index))
        });
        let same = |a: &Resolved<'de>, b: &Resolved<'de>| {
            time(a) == time(b) && (by_topic || a.name == b.name)
        };
        let mut groups: Vec<&[Resolved<'de>]> = records.chunk_by(same).collect();
        groups.sort_by_key(|group| group.first().map(|r| r.index));
        for group in groups {
            self.group(group);
        }
    }

    /// Commits records of one sensor and time as one reading, or as several if a field occurs twice
    /// or there are too many.
    fn group(&mut self, group: &[Resolved<'de>]) {
        self.out.begin();
        let mut reading: Vec<&Resolved<'de>> = Vec::new();
        let mut used: Vec<String> = Vec::new();
        for record in group {
            let fields = match self.fields(record) {
                Ok(fields) => fields,
                Err(fault) => {
                    self.rejects.fault(record.index, fault);
                    continue;
                }
            };
            let is_full = used.len() + fields.len() > self.cx.limits.fields_max;
            if !reading.is_empty()
                && (is_full || fields.iter().any(|(name, _)| used.contains(name)))
            {
                self.reading(&reading);
                reading.clear();
                used.clear();
            }
            reading.push(record);
            let added = fields.iter().try_for_each(|(name, value)| {
                add_value(self.out, name, *value, self.cx.limits.fields_max)
            });
            if let Err(fault) = added {
                self.out.begin();
                reject_all(self.rejects, &reading, &fault);
                reading.clear();
                used.clear();
            } else {
                used.extend(fields.into_iter().map(|(name, _)| name));
            }
        }
        self.reading(&reading);
    }

    /// The fields of a record, under their stored names.
    fn fields<'r>(&self, record: &'r Resolved<'de>) -> Result<Vec<(String, ValueRef<'r>)>, Fault> {
        let unit = record.unit.as_deref().filter(|_| record.by_unit);
        let own = self.own_name(record);
        let number = |v: &Number| match *v {
            Number::Int(v) => ValueRef::Int(v),
            Number::Double(v) => ValueRef::Double(v),
        };
        let mut fields = Vec::with_capacity(2);
        if let Some(value) = &record.value {
            let value = match value {
                Value::Number(v) => number(v),
                Value::Bool(v) => ValueRef::Bool(*v),
                Value::Text(v) => ValueRef::Str(v),
            };
            let name = match (own, unit) {
                ("", None) => "value".to_owned(),
                ("", Some(unit)) => unit.to_owned(),
                (own, None) => own.to_owned(),
                (own, Some(unit)) => format!("{own}_{unit}"),
            };
            fields.push((names::name(&name, self.cx)?.into_owned(), value));
        }
        if let Some(sum) = &record.sum {
            let name = match (own, unit) {
                ("", None) => "sum".to_owned(),
                ("", Some(unit)) => format!("sum_{unit}"),
                (own, None) => format!("{own}_sum"),
                (own, Some(unit)) => format!("{own}_{unit}_sum"),
            };
            fields.push((names::name(&name, self.cx)?.into_owned(), number(sum)));
        }
        Ok(fields)
    }

    /// The part of a record's name that names the field.
    fn own_name<'r>(&self, record: &'r Resolved<'de>) -> &'r str {
        let base = self.first_name.as_deref().unwrap_or_default();
        match self.cx.sensor_id {
            Some(_) => record.name.strip_prefix(base).unwrap_or(&record.name),
            None => "",
        }
    }

    /// Commits the reading whose values are in the builder.
    fn reading(&mut self, records: &[&Resolved<'de>]) {
        let Some(first) = records.first() else { return };
        let sensor_id = self.cx.sensor_id.unwrap_or(&first.name);
        // A unit describes the sensor only if all its values are of one quantity.
        let unit = records
            .iter()
            .filter(|r| !r.by_unit && self.own_name(r).is_empty())
            .find_map(|r| r.unit.clone());
        let tags: Vec<(Cow<'_, str>, Cow<'_, str>)> = unit
            .map(|unit| (Cow::Borrowed("u"), unit))
            .into_iter()
            .collect();
        let out = &mut *self.out;
        let committed = names::check_sensor_id(sensor_id, self.cx.limits)
            .and_then(|()| names::commit(out, sensor_id, first.time, &tags, self.cx));
        if let Err(fault) = committed {
            self.out.begin();
            reject_all(self.rejects, records, &fault);
        }
    }
}

fn reject_all(rejects: &mut Rejects, records: &[&Resolved<'_>], fault: &Fault) {
    for record in records {
        rejects.fault(record.index, fault.clone());
    }
}

/// Marks the records whose name has several units: they cannot share the field `value`.
fn mark_units(records: &mut [Resolved<'_>]) {
    let mut units: HashMap<&str, (&str, bool)> = HashMap::new();
    for record in records.iter() {
        if let Some(unit) = record.unit.as_deref() {
            let (first, several) = units.entry(&record.name).or_insert((unit, false));
            *several |= *first != unit;
        }
    }
    if units.values().all(|(_, several)| !several) {
        return;
    }
    let marks: Vec<bool> = records
        .iter()
        .map(|r| units.get(&*r.name).is_some_and(|(_, several)| *several))
        .collect();
    for (record, mark) in records.iter_mut().zip(marks) {
        record.by_unit = mark;
    }
}

/// Checks that nothing in a record forbids processing the pack (§4.4).
fn understood(record: &mut Record<'_>) -> Result<(), Fault> {
    if let Some(label) = record.mandatory() {
        let detail = format!("the pack requires support for the unknown label {label}");
        return Err(bad(detail));
    }
    match record.version() {
        None | Some(Item::Int(1..=VERSION)) => Ok(()),
        Some(Item::Int(v)) => Err(bad(format!(
            "bver is {v}; versions 1 to {VERSION} are supported"
        ))),
        Some(other) => Err(bad(format!(
            "bver must be a positive integer, not {}",
            other.name()
        ))),
    }
}

/// §4.5.1: `A-Z`, `a-z`, `0-9` and `-:./_`, starting with an alphanumeric character.
fn check_name(name: &str) -> Result<(), Fault> {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b':' | b'.' | b'/' | b'_');
    if name.bytes().all(good)
        && name
            .as_bytes()
            .first()
            .is_some_and(u8::is_ascii_alphanumeric)
    {
        return Ok(());
    }
    Err(bad(format!(
        "the name {} must begin with a letter or digit and contain only letters, digits and -:./_",
        excerpt(name)
    )))
}

fn bad(detail: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(RejectReason::InvalidSenml, detail)
}

fn wrong(label: Label, wanted: &str, item: &Item<'_>) -> Fault {
    let label = label.name();
    match item {
        Item::BadText => Fault::new(RejectReason::InvalidUtf8, format!("`{label}` is not UTF-8")),
        _ => Fault::new(
            RejectReason::WrongType,
            format!("`{label}` must be {wanted}, not {}", item.name()),
        ),
    }
}

fn text<'de>(label: Label, item: Item<'de>) -> Result<Cow<'de, str>, Fault> {
    match item {
        Item::Text(text) => Ok(text),
        other => Err(wrong(label, "a text", &other)),
    }
}

fn number(label: Label, item: &Item<'_>) -> Result<Number, Fault> {
    let out_of_range = || {
        let detail = format!("`{}` exceeds a signed 64-bit integer", label.name());
        Fault::new(RejectReason::IntegerOutOfRange, detail)
    };
    match item {
        Item::Int(v) => i64::try_from(*v)
            .map(Number::Int)
            .map_err(|_| out_of_range()),
        Item::HugeInt => Err(out_of_range()),
        Item::Double(v) => finite(label, Number::Double(*v)),
        other => Err(wrong(label, "a number", other)),
    }
}

fn finite(label: Label, v: Number) -> Result<Number, Fault> {
    let not_finite = || {
        Fault::new(
            RejectReason::NotFinite,
            format!("`{}` is not a finite number", label.name()),
        )
    };
    v.as_f64().is_finite().then_some(v).ok_or_else(not_finite)
}

/// A time in seconds, converted to microseconds: a double of today's seconds has a resolution of a
/// quarter of one.
fn micros(label: Label, item: &Item<'_>) -> Result<i128, Fault> {
    match item {
        Item::Int(v) => Ok(v.saturating_mul(1_000_000)),
        Item::Double(v) if v.is_finite() => Ok((v * 1e6).round() as i128),
        Item::Double(_) | Item::HugeInt => Err(Fault::new(
            RejectReason::BadTimestamp,
            format!("`{}` is not a time", label.name()),
        )),
        other => Err(wrong(label, "a number of seconds", other)),
    }
}
