//! Builds one reading in the native format from the values of a map, by the rules of `super::super::reading`, for
//! values that need no parsing. A property test checks that JSON and these formats agree (`tests/pure/decode_props.rs`).

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use super::{Head, Item, Items, Malformed, Source, Time};
use crate::decode::names::{self, excerpt};
use crate::decode::reading::add_value;
use crate::decode::rejects::Fault;
use crate::decode::split::DEPTH_MAX;
use crate::decode::token::Token;
use crate::decode::{Context, TsUnit, reasons, time};
use crate::model::{BatchBuilder, ValueRef};

/// Most keys in a reading, as in JSON.
const KEYS_MAX: usize = 512;

/// The parts of the current reading, except its values and tags.
#[derive(Default)]
struct Parts<'de> {
    sensor_id: Option<Item<'de>>,
    ts: Option<Item<'de>>,
    ts_unit: Option<TsUnit>,
    /// Whether there is an object `values`; then other members are not values.
    has_values: bool,
    fault: Option<Fault>,
    /// A fault in a member that is a value only if there is no `values`, which may still follow.
    loose_fault: Option<Fault>,
}

/// The objects of a reading.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Reading,
    Values,
    Tags,
}

/// Decodes consecutive readings into a builder.
pub(super) struct ReadingDecoder<'a, 'de> {
    cx: &'a Context<'a>,
    out: &'a mut BatchBuilder,
    parts: Parts<'de>,
    tags: Vec<(Cow<'de, str>, Cow<'de, str>)>,
    /// The keys of the open objects, with their hashes.
    keys: Vec<(u64, Cow<'de, str>)>,
}

impl<'a, 'de> ReadingDecoder<'a, 'de> {
    pub(super) fn new(cx: &'a Context<'a>, out: &'a mut BatchBuilder) -> ReadingDecoder<'a, 'de> {
        ReadingDecoder { cx, out, parts: Parts::default(), tags: Vec::new(), keys: Vec::new() }
    }

    /// Reads a map to its end. Commits nothing.
    ///
    /// # Errors
    /// The map is not well-formed. Other faults are kept for [`ReadingDecoder::finish`].
    pub(super) fn read<S: Source<'de>>(
        &mut self,
        items: &mut Items<'de, S>,
        len: Option<u64>,
    ) -> Result<(), Malformed> {
        self.out.begin();
        self.parts = Parts::default();
        self.tags.clear();
        self.keys.clear();
        self.object(items, len, Part::Reading)
    }

    /// Drops the values of the current reading.
    pub(super) fn abort(&mut self) {
        self.out.abort();
    }

    /// Commits the reading that [`ReadingDecoder::read`] read.
    pub(super) fn finish(&mut self) -> Result<(), Fault> {
        let result = self.commit();
        if result.is_err() {
            self.out.abort();
        }
        result
    }

    fn commit(&mut self) -> Result<(), Fault> {
        let parts = &mut self.parts;
        if let Some(fault) = parts.fault.take() {
            return Err(fault);
        }
        if let Some(fault) = parts.loose_fault.take_if(|_| !parts.has_values) {
            return Err(fault);
        }
        let sensor_id: &str = match &parts.sensor_id {
            Some(Item::Text(id)) => id,
            Some(Item::BadText) => return Err(not_utf8("sensor_id")),
            None | Some(Item::Null) => self.cx.sensor_id.ok_or_else(|| {
                Fault::new(reasons::MISSING_SENSOR_ID, "neither the payload nor the topic has a sensor_id")
            })?,
            Some(other) => {
                let detail = format!("sensor_id must be a text, not {}", other.name());
                return Err(Fault::new(reasons::SENSOR_ID_NOT_TEXT, detail));
            }
        };
        names::check_sensor_id(sensor_id, self.cx.limits)?;
        if self.out.value_count() == 0 {
            return Err(Fault::new(reasons::NO_VALUES, "the reading has no value other than null"));
        }
        let (ts_ms, receipt_time) = resolve(parts.ts.as_ref(), parts.ts_unit, self.cx)?;
        let out = &mut *self.out;
        names::commit(out, sensor_id, (ts_ms, receipt_time), &self.tags, self.cx)
    }

    fn fail(&mut self, fault: Fault) {
        self.parts.fault.get_or_insert(fault);
    }

    /// Records a key of the object whose keys start at `from`. Returns false if the reading is now rejected.
    fn remember(&mut self, from: usize, key: Cow<'de, str>) -> bool {
        let hash = xxh3_64(key.as_bytes());
        if self.keys[from..].iter().any(|(h, k)| *h == hash && *k == key) {
            self.fail(Fault::new(reasons::DUPLICATE_KEY, format!("duplicate key {}", excerpt(&key))));
        } else if self.keys.len() >= KEYS_MAX {
            self.fail(Fault::new(reasons::TOO_MANY_FIELDS, format!("more than {KEYS_MAX} keys")));
        } else {
            self.keys.push((hash, key));
        }
        self.parts.fault.is_none()
    }

    fn object<S: Source<'de>>(
        &mut self,
        items: &mut Items<'de, S>,
        len: Option<u64>,
        part: Part,
    ) -> Result<(), Malformed> {
        if part == Part::Values {
            // Members before `values` are not values after all.
            self.out.begin();
            self.parts.has_values = true;
        }
        let from = self.keys.len();
        let mut left = len;
        while items.more(&mut left)? {
            let wanted = match items.item()? {
                Item::Text(key) => self.parts.fault.is_none() && self.remember(from, key),
                Item::BadText => {
                    self.fail(not_utf8("a key"));
                    false
                }
                other => {
                    let detail = format!("a key must be a text, not {}", other.name());
                    self.fail(Fault::new(reasons::WRONG_TYPE, detail));
                    false
                }
            };
            let head = items.head()?;
            let inner = match self.keys.last() {
                Some((_, key)) if wanted && part == Part::Reading && *key == "values" => Some(Part::Values),
                Some((_, key)) if wanted && part == Part::Reading && *key == "tags" => Some(Part::Tags),
                _ => None,
            };
            match (inner, head) {
                (Some(inner), Head::Map(len)) => self.object(items, len, inner)?,
                _ => {
                    let item = items.finish(head)?;
                    let level = if part == Part::Reading { 1 } else { 2 };
                    if let Item::Nested(_, depth) = item
                        && level + depth > DEPTH_MAX
                    {
                        let detail = format!("nested {} levels deep; at most {DEPTH_MAX} are allowed", level + depth);
                        self.fail(Fault::new(reasons::TOO_DEEP, detail));
                    } else if wanted {
                        self.member(part, inner, item);
                    }
                }
            }
        }
        self.keys.truncate(from);
        Ok(())
    }

    /// Uses the value of the last recorded key. With `inner`, the value must be an object.
    fn member(&mut self, part: Part, inner: Option<Part>, item: Item<'de>) {
        let key = self.keys.last().map_or(Cow::Borrowed(""), |(_, key)| key.clone());
        let result = match (part, &*key) {
            (Part::Values, key) => self.value(key, &item),
            (Part::Tags, _) => self.tag(key, item),
            // A null `values` or `tags` counts as absent.
            (Part::Reading, key) if inner.is_some() => match item {
                Item::Null => Ok(()),
                _ => {
                    let detail = format!("`{key}` must be an object (a map), not {}", item.name());
                    Err(Fault::new(reasons::WRONG_TYPE, detail))
                }
            },
            (Part::Reading, "sensor_id") => {
                self.parts.sensor_id = Some(item);
                Ok(())
            }
            (Part::Reading, "ts") => {
                self.parts.ts = Some(item);
                Ok(())
            }
            (Part::Reading, "ts_unit") => self.ts_unit(&item),
            (Part::Reading, key) => {
                let counts = !self.parts.has_values && self.parts.loose_fault.is_none();
                if counts && !matches!(item, Item::Nested(..) | Item::Bytes(_) | Item::Other(_)) {
                    self.parts.loose_fault = self.value(key, &item).err();
                }
                Ok(())
            }
        };
        if let Err(fault) = result {
            self.fail(fault);
        }
    }

    fn value(&mut self, key: &str, item: &Item<'_>) -> Result<(), Fault> {
        let limits = self.cx.limits;
        let spoken;
        let value = match item {
            Item::Null => return Ok(()),
            Item::Bool(v) => ValueRef::Bool(*v),
            Item::Int(v) | Item::Time(Time::Seconds(v)) => ValueRef::Int(in_range(key, *v)?),
            Item::Double(v) | Item::Time(Time::SecondsDouble(v)) => ValueRef::Double(finite(key, *v)?),
            Item::Text(v) => {
                names::check_text(key, v, limits)?;
                ValueRef::Str(v)
            }
            // A value that is a time is stored as text, as it would be in JSON.
            Item::Time(Time::Nanos(v)) => {
                spoken = spoken_time(*v).ok_or_else(|| unusable(key, item))?;
                ValueRef::Str(&spoken)
            }
            _ => return Err(unusable(key, item)),
        };
        let name = names::name(key, limits)?;
        add_value(self.out, &name, value, limits.fields_max)
    }

    fn tag(&mut self, key: Cow<'de, str>, item: Item<'de>) -> Result<(), Fault> {
        let text = match item {
            Item::Null => return Ok(()),
            Item::Bool(v) => Cow::Borrowed(if v { "true" } else { "false" }),
            // As a text it has no range.
            Item::Int(v) | Item::Time(Time::Seconds(v)) => Cow::Owned(v.to_string()),
            Item::Double(v) | Item::Time(Time::SecondsDouble(v)) => Cow::Owned(format!("{:?}", finite(&key, v)?)),
            Item::Text(v) => v,
            Item::Time(Time::Nanos(v)) => Cow::Owned(spoken_time(v).ok_or_else(|| unusable(&key, &item))?),
            _ => return Err(unusable(&key, &item)),
        };
        names::add_tag(&mut self.tags, key, text, self.cx.limits)
    }

    fn ts_unit(&mut self, item: &Item<'_>) -> Result<(), Fault> {
        match item {
            Item::Null => Ok(()),
            Item::Text(name) => {
                self.parts.ts_unit = Some(time::unit(name)?);
                Ok(())
            }
            _ => Err(time::no_unit()),
        }
    }
}

/// The time of a reading. A time that carries its unit is in that unit, regardless of `ts_unit`.
fn resolve(ts: Option<&Item<'_>>, unit: Option<TsUnit>, cx: &Context<'_>) -> Result<(i64, bool), Fault> {
    let number = |v: i128, unit| match i64::try_from(v) {
        Ok(v) => time::resolve(Some(&Token::Int(v)), unit, cx),
        Err(_) => time::resolve(Some(&Token::BigInt(&v.to_string())), unit, cx),
    };
    let double = |v: f64, unit| {
        let token = if v.is_finite() { Token::Double(v) } else { Token::NotFinite("NaN or infinity") };
        time::resolve(Some(&token), unit, cx)
    };
    match ts {
        None | Some(Item::Null) => time::resolve(None, unit, cx),
        Some(Item::Text(text)) => time::resolve(Some(&Token::Str(Cow::Borrowed(text))), unit, cx),
        Some(Item::Int(v)) => number(*v, unit),
        Some(Item::Double(v)) => double(*v, unit),
        Some(Item::Time(time)) => {
            let unit = Some(time.unit());
            match *time {
                Time::Seconds(v) | Time::Nanos(v) => number(v, unit),
                Time::SecondsDouble(v) => double(v, unit),
            }
        }
        Some(Item::BadText) => Err(not_utf8("ts")),
        Some(other) => {
            let detail = format!("ts must be a text or a number, not {}", other.name());
            Err(Fault::new(reasons::BAD_TIMESTAMP, detail))
        }
    }
}

/// Formats as RFC 3339, to the millisecond.
fn spoken_time(nanos: i128) -> Option<String> {
    i64::try_from(nanos.div_euclid(1_000_000)).ok().and_then(time::to_rfc3339)
}

fn in_range(key: &str, v: i128) -> Result<i64, Fault> {
    i64::try_from(v).map_err(|_| {
        let detail = format!("{}: {v} exceeds a signed 64-bit integer", excerpt(key));
        Fault::new(reasons::INTEGER_OUT_OF_RANGE, detail)
    })
}

fn finite(key: &str, v: f64) -> Result<f64, Fault> {
    let not_finite = || Fault::new(reasons::NOT_FINITE, format!("{}: {v} is not a finite number", excerpt(key)));
    v.is_finite().then_some(v).ok_or_else(not_finite)
}

fn not_utf8(what: &str) -> Fault {
    Fault::new(reasons::INVALID_UTF8, format!("{what} is not UTF-8"))
}

fn unusable(key: &str, item: &Item<'_>) -> Fault {
    match item {
        Item::HugeInt => {
            let detail = format!("{}: the integer exceeds a signed 64-bit integer", excerpt(key));
            Fault::new(reasons::INTEGER_OUT_OF_RANGE, detail)
        }
        Item::BadText => not_utf8(&excerpt(key)),
        _ => Fault::new(reasons::NESTED_VALUE, format!("{} is {}; expected a value", excerpt(key), item.name())),
    }
}
