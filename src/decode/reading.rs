//! Decodes one reading in the native format, from parser events directly into the batch.
//!
//! Life of a reading: [`ReadingDecoder::attempt`] parses it. Values go to the builder immediately; everything else
//! waits in [`Parts`], because in JSON the sensor may come last. [`ReadingDecoder::finish`] commits it or returns the
//! reason against it. A reading that is valid JSON but wrong is still read to its end, and its first fault is kept:
//! only invalid JSON ends a parse. A good reading allocates nothing: vectors are reused, and text is borrowed unless it
//! has escapes.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use xxhash_rust::xxh3::xxh3_64;

use super::json::template::Simple;
use super::names::{self, excerpt};
use super::rejects::Fault;
use super::token::{KeySeed, Skip, Token, TokenSeed};
use super::{Context, TsUnit, reasons, template, time};
use crate::model::batch::BuildError;
use crate::model::{BatchBuilder, ValueRef};

/// Most keys in a reading, used or not. Keys are compared with each other, so the number must be small. It is twice the
/// most values, and more than any known gateway sends.
const KEYS_MAX: usize = 512;

/// The parsed parts of the current reading, except its values and tags.
#[derive(Default)]
struct Parts<'de> {
    sensor_id: Option<Token<'de>>,
    ts: Option<Token<'de>>,
    ts_unit: Option<TsUnit>,
    /// Whether there is an object `values`; then other members are not values.
    has_values: bool,
    fault: Option<Fault>,
    /// A fault in a member that is a value only if there is no `values`, which may still follow.
    loose_fault: Option<Fault>,
}

/// Decodes consecutive readings into a builder.
pub(super) struct ReadingDecoder<'a, 'de> {
    cx: &'a Context<'a>,
    out: &'a mut BatchBuilder,
    parts: Parts<'de>,
    tags: Vec<(Cow<'de, str>, Cow<'de, str>)>,
    /// The keys of the open objects, with their hashes.
    keys: Vec<(u64, Cow<'de, str>)>,
    exact: bool,
}

/// The objects of a reading.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Reading,
    Values,
    Tags,
}

impl<'a, 'de> ReadingDecoder<'a, 'de> {
    pub(super) fn new(cx: &'a Context<'a>, out: &'a mut BatchBuilder) -> ReadingDecoder<'a, 'de> {
        ReadingDecoder { cx, out, parts: Parts::default(), tags: Vec::new(), keys: Vec::new(), exact: false }
    }

    /// Parses the reading at the start of `bytes` and returns the number of bytes read. Commits nothing.
    ///
    /// # Errors
    /// The fault in the JSON; or, unless `exact`, that a number must be parsed the exact way (see [`super::token`]).
    pub(super) fn attempt(&mut self, bytes: &'de [u8], exact: bool) -> serde_json::Result<usize> {
        self.out.begin();
        self.parts = Parts::default();
        self.tags.clear();
        self.keys.clear();
        self.exact = exact;
        let mut parser = serde_json::Deserializer::from_slice(bytes);
        PartSeed { decoder: self, part: Part::Reading }.deserialize(&mut parser)?;
        Ok(parser.into_iter::<IgnoredAny>().byte_offset())
    }

    /// Commits the reading that [`ReadingDecoder::attempt`] parsed. `topic_counts` is false if the start of the reading
    /// was guessed: then the reading itself must name its sensor.
    pub(super) fn finish(&mut self, topic_counts: bool) -> Result<(), Fault> {
        let result = self.commit(topic_counts);
        if result.is_err() {
            self.out.abort();
        }
        result
    }

    fn commit(&mut self, topic_counts: bool) -> Result<(), Fault> {
        let parts = &mut self.parts;
        if let Some(fault) = parts.fault.take() {
            return Err(fault);
        }
        if let Some(fault) = parts.loose_fault.take_if(|_| !parts.has_values) {
            return Err(fault);
        }
        let sensor_id = match &parts.sensor_id {
            Some(Token::Str(id)) => id,
            None | Some(Token::Null) => match self.cx.sensor_id.filter(|_| topic_counts) {
                Some(id) => id,
                None => {
                    return Err(Fault::new(
                        reasons::MISSING_SENSOR_ID,
                        "neither the payload nor the topic has a sensor_id",
                    ));
                }
            },
            Some(_) => return Err(Fault::new(reasons::SENSOR_ID_NOT_TEXT, "sensor_id must be a string")),
        };
        names::check_sensor_id(sensor_id, self.cx.limits)?;
        if self.out.value_count() == 0 {
            return Err(Fault::new(reasons::NO_VALUES, "the reading has no value other than null"));
        }
        let (ts_ms, receipt_time) = time::resolve(parts.ts.as_ref(), parts.ts_unit, self.cx)?;
        names::commit(self.out, sensor_id, (ts_ms, receipt_time), &self.tags, self.cx)
    }

    /// Begins a reading with a known field schema: see [`super::template`]. Add its values with
    /// [`ReadingDecoder::next_value`] and commit it with [`ReadingDecoder::commit_like`].
    pub(super) fn begin_like(&mut self, schema: u32) {
        self.out.begin_like(schema);
    }

    /// Adds the value of the next field; `None` if the value needs the full checks.
    pub(super) fn next_value(&mut self, value: Simple<'de>) -> Option<()> {
        let value = match value {
            Simple::Int(v) => ValueRef::Int(v),
            Simple::Double(v) => ValueRef::Double(v),
            Simple::Bool(v) => ValueRef::Bool(v),
            Simple::Str(v) => ValueRef::Str(v),
        };
        let fits = !matches!(value, ValueRef::Str(v) if v.len() > self.cx.limits.string_max_bytes);
        fits.then(|| self.out.next_value(value))
    }

    /// Commits a reading whose values were added one by one. `tags` holds the texts of its tags (see
    /// [`template::keyed`]). Returns `false`, and commits nothing, if the reading needs the full checks.
    pub(super) fn commit_like<'t>(
        &mut self,
        sensor_id: &str,
        ts: Option<&Token<'de>>,
        tags: &mut [(&'t str, &'t str)],
        keys: &'t [Box<str>],
    ) -> bool {
        let (cx, limits) = (self.cx, self.cx.limits);
        let Some(tags) = template::keyed(tags, keys, limits) else { return false };
        let Ok((ts_ms, receipt_time)) = time::resolve(ts, None, cx) else { return false };
        if names::check_sensor_id(sensor_id, limits).is_err() {
            return false;
        }
        self.out.commit(sensor_id, ts_ms, receipt_time, tags).is_ok()
    }

    /// The field schema of the last committed reading.
    pub(super) fn committed_shape(&self) -> u32 {
        self.out.committed_shape()
    }

    /// Whether the last attempt was the exact one, which does not check the depth of skipped members.
    pub(super) fn was_exact(&self) -> bool {
        self.exact
    }

    /// Whether the reading is already known to be rejected, so that the rest need not be checked.
    fn failed(&self) -> bool {
        self.parts.fault.is_some()
    }

    fn fail(&mut self, fault: Fault) {
        self.parts.fault.get_or_insert(fault);
    }

    /// Records a key of the object whose keys start at `from`. Returns false if the reading is now rejected.
    fn remember(&mut self, from: usize, key: Cow<'de, str>) -> bool {
        let hash = xxh3_64(key.as_bytes());
        let twice = self.keys[from..].iter().any(|(h, k)| *h == hash && *k == key);
        if twice {
            self.fail(Fault::new(reasons::DUPLICATE_KEY, format!("duplicate key {}", excerpt(&key))));
        } else if self.keys.len() >= KEYS_MAX {
            self.fail(Fault::new(reasons::TOO_MANY_FIELDS, format!("more than {KEYS_MAX} keys")));
        } else {
            self.keys.push((hash, key));
        }
        !self.failed()
    }

    /// Reads the value of the last recorded key.
    fn member<A: MapAccess<'de>>(&mut self, part: Part, map: &mut A) -> Result<(), A::Error> {
        let token = TokenSeed { exact: self.exact };
        let key = self.keys.last().map_or("", |(_, key)| key);
        match (part, key) {
            (Part::Values, _) => {
                let token = map.next_value_seed(token)?;
                if let Err(fault) = self.value(&token) {
                    self.fail(fault);
                }
            }
            (Part::Tags, _) => {
                let token = map.next_value_seed(token)?;
                if let Err(fault) = self.tag(token) {
                    self.fail(fault);
                }
            }
            (Part::Reading, "values") => map.next_value_seed(PartSeed { decoder: self, part: Part::Values })?,
            (Part::Reading, "tags") => map.next_value_seed(PartSeed { decoder: self, part: Part::Tags })?,
            (Part::Reading, "sensor_id") => self.parts.sensor_id = Some(map.next_value_seed(token)?),
            (Part::Reading, "ts") => self.parts.ts = Some(map.next_value_seed(token)?),
            (Part::Reading, "ts_unit") => {
                let token = map.next_value_seed(token)?;
                self.ts_unit(&token);
            }
            (Part::Reading, _) => {
                let token = map.next_value_seed(token)?;
                let counts = !self.parts.has_values && self.parts.loose_fault.is_none();
                if counts && !matches!(token, Token::Nested(_)) {
                    self.parts.loose_fault = self.value(&token).err();
                }
            }
        }
        Ok(())
    }

    /// Adds a value under the last recorded key.
    fn value(&mut self, token: &Token<'de>) -> Result<(), Fault> {
        let limits = self.cx.limits;
        let key = self.keys.last().map_or("", |(_, key)| key);
        let value = match token {
            Token::Null => return Ok(()),
            Token::Bool(v) => ValueRef::Bool(*v),
            Token::Int(v) => ValueRef::Int(*v),
            Token::Double(v) => ValueRef::Double(*v),
            Token::Str(v) => {
                names::check_text(key, v, limits)?;
                ValueRef::Str(v)
            }
            Token::BigInt(_) | Token::NotFinite(_) | Token::Nested(_) => return Err(unusable(key, token)),
        };
        let name = names::name(key, limits)?;
        add_value(self.out, &name, value, limits.fields_max)
    }

    /// Adds a tag under the last recorded key.
    fn tag(&mut self, token: Token<'de>) -> Result<(), Fault> {
        let key = self.keys.last().map_or(Cow::Borrowed(""), |(_, key)| key.clone());
        let text = match token {
            Token::Null => return Ok(()),
            Token::Bool(v) => Cow::Borrowed(if v { "true" } else { "false" }),
            Token::Int(v) => Cow::Owned(v.to_string()),
            // Formatted with its decimal point, so that 1 and 1.0 differ.
            Token::Double(v) => Cow::Owned(format!("{v:?}")),
            Token::Str(v) => v,
            // As a text it has no range: serial numbers can be longer than 64 bits.
            Token::BigInt(literal) => Cow::Borrowed(literal),
            Token::NotFinite(_) | Token::Nested(_) => return Err(unusable(&key, &token)),
        };
        names::add_tag(&mut self.tags, key, text, self.cx.limits)
    }

    fn ts_unit(&mut self, token: &Token<'de>) {
        match token {
            Token::Null => {}
            Token::Str(name) => match time::unit(name) {
                Ok(unit) => self.parts.ts_unit = Some(unit),
                Err(fault) => self.fail(fault),
            },
            _ => self.fail(time::no_unit()),
        }
    }

    fn not_an_object(&mut self, part: Part, what: &str) {
        self.fail(match part {
            Part::Reading => Fault::new(reasons::NOT_AN_OBJECT, format!("a reading must be an object, not {what}")),
            Part::Values => Fault::new(reasons::WRONG_TYPE, format!("`values` must be an object, not {what}")),
            Part::Tags => Fault::new(reasons::WRONG_TYPE, format!("`tags` must be an object, not {what}")),
        });
    }
}

/// Adds a value to the builder's current reading, up to `fields_max`.
pub(super) fn add_value(
    out: &mut BatchBuilder,
    name: &str,
    value: ValueRef<'_>,
    fields_max: usize,
) -> Result<(), Fault> {
    let too_many = || Fault::new(reasons::TOO_MANY_FIELDS, format!("more than {fields_max} values"));
    if out.value_count() >= fields_max {
        return Err(too_many());
    }
    out.value(name, value).map_err(|e| match e {
        BuildError::DuplicateField => {
            Fault::new(reasons::DUPLICATE_KEY, format!("two fields have the same stored name {}", excerpt(name)))
        }
        BuildError::TooManyFields => too_many(),
        BuildError::TooManyNames => {
            let detail = format!("cannot store {}: too many distinct field names in one batch", excerpt(name));
            Fault::new(reasons::TOO_MANY_FIELD_NAMES, detail)
        }
        // Returned only when a whole reading is committed.
        BuildError::BucketFieldsFull(_) => too_many(),
    })
}

fn unusable(key: &str, token: &Token<'_>) -> Fault {
    let key = excerpt(key);
    match token {
        Token::BigInt(v) => {
            let detail = format!("{key}: {} exceeds a signed 64-bit integer", excerpt(v));
            Fault::new(reasons::INTEGER_OUT_OF_RANGE, detail)
        }
        Token::Nested(what) => Fault::new(reasons::NESTED_VALUE, format!("{key} is an {what}; expected a value")),
        Token::NotFinite(v) => {
            Fault::new(reasons::NOT_FINITE, format!("{key}: {} exceeds the range of a double", excerpt(v)))
        }
        _ => Fault::new(reasons::WRONG_TYPE, format!("{key} is not a value")),
    }
}

/// Parses one of the objects.
struct PartSeed<'x, 'a, 'de> {
    decoder: &'x mut ReadingDecoder<'a, 'de>,
    part: Part,
}

impl PartSeed<'_, '_, '_> {
    fn scalar<E: Error>(self, what: &str) -> Result<(), E> {
        self.decoder.not_an_object(self.part, what);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for PartSeed<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PartSeed<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a reading")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let PartSeed { decoder, part } = self;
        if part == Part::Values {
            // Members before `values` are not values after all.
            decoder.out.begin();
            decoder.parts.has_values = true;
        }
        let from = decoder.keys.len();
        while let Some(key) = map.next_key_seed(KeySeed)? {
            if !decoder.failed() && decoder.remember(from, key) {
                decoder.member(part, &mut map)?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        decoder.keys.truncate(from);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        self.decoder.not_an_object(self.part, "an array");
        Skip.visit_seq(seq)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        // A null `values` or `tags` counts as absent.
        if self.part == Part::Reading { self.scalar("null") } else { Ok(()) }
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.scalar("a boolean")
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.scalar("a number")
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.scalar("a number")
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.scalar("a number")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.scalar("a string")
    }
}
