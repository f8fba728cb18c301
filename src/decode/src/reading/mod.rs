//! The definition of a reading in the native format: the only one, for every encoding.
//!
//! A source (`super::json::native`, `super::binary::native`) walks over one object and reports its
//! parts: objects with [`ReadingDecoder::open`], keys with [`ReadingDecoder::key`], values with
//! [`ReadingDecoder::take`]. It knows the encoding and no key. [`ReadingDecoder`] knows what each
//! key means and nothing about the encoding. The fast path of JSON (`super::json::template`)
//! repeats readings that were decoded here; it has the keys' meaning from [`Role`].
//!
//! **Life of a reading.** [`ReadingDecoder::begin`]; the source reports the object. Values go to
//! the builder immediately; everything else waits in [`Parts`], because the sensor may come last.
//! [`ReadingDecoder::finish`] commits the reading or returns the reason against it. A wrong reading
//! is still read to its end, because the next one begins there, and its first fault is kept. A good
//! reading allocates nothing: vectors are reused, and text is borrowed unless it has escapes or
//! comes in chunks.
//!
//! **Members** (docs/http.md has the same rules for senders):
//! - `sensor_id`: a text. Absent or null: the sensor of the topic.
//! - `ts`: a time ([`time`]) in the unit of `ts_unit`, if there is one. A value that carries its
//!   unit keeps it. Absent or null: the time of receipt.
//! - The names in `native.time` (`timestamp`, `time`, …): the time of a reading without `ts`, if
//!   they hold one ([`time::held`]); otherwise they are like other members. Of several, the first
//!   in the setting counts; one with a zone comes before one without. Only the end of the reading
//!   decides, so these members wait in [`ReadingDecoder::candidates`].
//! - `values`: an object of values. Absent or null: the members with other keys are the values.
//!   With `values` they are left out, before it and after it, and their faults do not count.
//! - `tags`: an object. Numbers and booleans become texts; an integer keeps all its digits.
//!
//! **Values.** Null counts as absent. Integers have 64 bits, doubles are finite, texts are UTF-8.
//! An object or array is flattened (`native.nested`): each scalar in it is a value, named by the
//! keys and indexes on its path, joined by `_`; an empty key adds nothing. An empty object or array
//! is left out. Another value that is not a scalar, such as bytes, is a fault in `values` and in
//! `tags`; as another member of the reading it is left out. Everything that is left out is counted
//! and named ([`LeftOut`]).
//!
//! **Keys.** A key that occurs twice in one object is a fault, and so are two fields or tags whose
//! stored names are equal ([`names::name`]), also after flattening. All open objects together have
//! at most [`KEYS_MAX`] keys.
//!
//! **Differences between the encodings** are those of their syntax, and a property test knows them
//! (`binary_props`). In JSON the whole reading is rejected if any text in it is not
//! UTF-8 or any literal is not JSON, such as `NaN`, because its parser finds that; in CBOR and
//! MessagePack an ignored value may be anything. Only JSON has integers without a limit, so only
//! there a tag can have one of more than 127 bits. And only in JSON a literal beyond the range of a
//! double, in the place of an object, is `invalid_json`: its parser ends there.

mod role;
mod values;

pub(super) use self::role::{Part, Role, not_an_object};
pub(super) use self::values::add_value;

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use self::values::{no_values, unusable};
use super::names::{self, excerpt};
use super::rejects::{Fault, LeftOut, Rejects};
use super::split::DEPTH_MAX;
use super::time::{Held, Origin, Stamp};
use super::token::{Simple, Token};
use super::{Context, RejectReason, TsUnit, template, time};
use config::{Native, Nested};
use model::{BatchBuilder, ValueRef};

/// Most keys in a reading, used or not. Keys are compared with each other, so the number must be
/// small. It is twice the most values, and more than any known gateway sends.
const KEYS_MAX: usize = 512;

/// Room for so many keys at first: a payload with a single reading then allocates once.
const KEYS_FIRST: usize = 16;

/// Longest path of a flattened value. More than a name may have, because there may be no value at
/// its end.
const PATH_BYTES_MAX: usize = 512;

/// An object whose members are being reported.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    part: Part,
    /// Where its keys start in [`ReadingDecoder::keys`].
    from: usize,
}

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
    /// The first member that looks like the time under a name that is not in `native.time`.
    likely_time: Option<Cow<'de, str>>,
}

/// Decodes consecutive readings into a builder.
pub(super) struct ReadingDecoder<'a, 'de> {
    cx: &'a Context<'a>,
    out: &'a mut BatchBuilder,
    parts: Parts<'de>,
    tags: Vec<(Cow<'de, str>, Cow<'de, str>)>,
    /// The keys of the open objects, with their hashes. Keys of flattened objects are the names of
    /// their fields.
    keys: Vec<(u64, Cow<'de, str>)>,
    /// Open objects and arrays.
    level: usize,
    /// Members that may be the time, with their index in `native.time`.
    candidates: Vec<(u8, Cow<'de, str>, Token<'de>)>,
    /// Members of the current reading that are not stored; the first [`KEYS_MAX`].
    unstored: Vec<Cow<'de, str>>,
    /// The number of the others.
    unnamed: usize,
    /// Those of the committed readings.
    left_out: LeftOut,
    /// For the sender, about the first committed reading whose time may have been overlooked.
    hint: Option<String>,
}

impl<'a, 'de> ReadingDecoder<'a, 'de> {
    pub(super) fn new(cx: &'a Context<'a>, out: &'a mut BatchBuilder) -> ReadingDecoder<'a, 'de> {
        ReadingDecoder {
            cx,
            out,
            parts: Parts::default(),
            tags: Vec::new(),
            keys: Vec::with_capacity(KEYS_FIRST),
            level: 0,
            candidates: Vec::new(),
            unstored: Vec::new(),
            unnamed: 0,
            left_out: LeftOut::default(),
            hint: None,
        }
    }

    /// Begins a reading, and drops one that was not committed.
    pub(super) fn begin(&mut self) {
        self.out.begin();
        self.parts = Parts::default();
        self.tags.clear();
        self.keys.clear();
        self.level = 0;
        self.candidates.clear();
        self.unstored.clear();
        self.unnamed = 0;
    }

    /// Reports the start of an object. Its members follow, then [`ReadingDecoder::close`].
    pub(super) fn open(&mut self, part: Part) -> Open {
        if part == Part::Values {
            // Members before `values` are not values after all.
            self.out.begin();
            self.parts.has_values = true;
            self.unstored.clear();
            self.unnamed = 0;
            let native = self.cx.native;
            let is_loose =
                |key: &str| Role::classify(Part::Reading, key, native) == Role::LooseValue;
            self.unstored.extend(
                self.keys
                    .iter()
                    .filter(|(_, key)| is_loose(key))
                    .map(|(_, key)| key.clone()),
            );
        }
        self.level += 1;
        Open {
            part,
            from: self.keys.len(),
        }
    }

    /// Reports the end of an object.
    pub(super) fn close(&mut self, object: Open) {
        if matches!(object.part, Part::Nested { .. }) && self.keys.len() == object.from {
            // It is empty. Its own name is the last key.
            self.leave_out();
        }
        self.keys.truncate(object.from);
        self.level = self.level.saturating_sub(1);
    }

    /// Reports the start of an object or array as a value. Its members or elements follow, then
    /// [`ReadingDecoder::close`]. `None`: it is not flattened; it must be skipped and reported as
    /// not a scalar.
    pub(super) fn nest(&mut self, role: Role) -> Option<Open> {
        let is_loose = match role {
            Role::Value => false,
            Role::LooseValue | Role::MaybeTime(_) if self.loose_counts() => true,
            _ => return None,
        };
        // The caller finds out how deep it is.
        if self.cx.native.nested != Nested::Flatten || self.level >= DEPTH_MAX {
            return None;
        }
        self.level += 1;
        Some(Open {
            part: Part::Nested { is_loose },
            from: self.keys.len(),
        })
    }

    /// Reports an element of an array, like [`ReadingDecoder::key`].
    pub(super) fn element(&mut self, array: Open, index: usize) -> Option<Role> {
        // An index cannot occur twice.
        self.keys.truncate(array.from);
        self.key(array, Cow::Owned(index.to_string()))
    }

    /// The name of a member of a flattened object, whose own name is the last key before it; `None`
    /// if it is too long.
    fn joined(&mut self, object: Open, key: Cow<'de, str>) -> Option<Cow<'de, str>> {
        let parent = object
            .from
            .checked_sub(1)
            .and_then(|at| self.keys.get(at))
            .map_or("", |(_, key)| key);
        if parent.is_empty() {
            return Some(key);
        }
        if key.is_empty() {
            return Some(Cow::Owned(parent.to_owned()));
        }
        // Not even built, because a long name at each level of a deep object would take quadratic
        // time.
        let bytes = parent.len() + 1 + key.len();
        if bytes <= PATH_BYTES_MAX {
            return Some(Cow::Owned([parent, "_", &key].concat()));
        }
        let fault = names::too_long(parent, bytes, names::bytes_max(self.cx.limits));
        match object.part {
            Part::Nested { is_loose: true } => drop(self.parts.loose_fault.get_or_insert(fault)),
            _ => self.fail(fault),
        }
        None
    }

    /// Whether members next to `values` are values so far.
    fn loose_counts(&self) -> bool {
        !self.parts.has_values && self.parts.loose_fault.is_none()
    }

    /// Reports a key. Returns the role of its value, which is reported next; `None`: the value must
    /// be skipped, because the reading is already known to be rejected.
    // As a call it costs 5 % of a reading in JSON that no template matches.
    #[inline(always)]
    pub(super) fn key(&mut self, object: Open, key: Cow<'de, str>) -> Option<Role> {
        if self.parts.fault.is_some() {
            return None;
        }
        let key = match object.part {
            Part::Nested { is_loose: true } if !self.loose_counts() => {
                return Some(Role::LooseValue);
            }
            Part::Nested { is_loose } => match self.joined(object, key) {
                Some(name) => name,
                None => return is_loose.then_some(Role::LooseValue),
            },
            _ => key,
        };
        let hash = xxh3_64(key.as_bytes());
        let twice = self.keys[object.from..]
            .iter()
            .any(|(h, k)| *h == hash && *k == key);
        if twice {
            self.refuse_key(
                object,
                Fault::new(
                    RejectReason::DuplicateKey,
                    format!("duplicate key {}", excerpt(&key)),
                ),
            )
        } else if self.keys.len() >= KEYS_MAX {
            self.refuse_key(
                object,
                Fault::new(
                    RejectReason::TooManyFields,
                    format!("more than {KEYS_MAX} keys"),
                ),
            )
        } else {
            let role = Role::classify(object.part, &key, self.cx.native);
            self.keys.push((hash, key));
            Some(role)
        }
    }

    /// Keeps the fault of a key. One in a member next to `values` counts only if there is no
    /// `values`.
    #[cold]
    fn refuse_key(&mut self, object: Open, fault: Fault) -> Option<Role> {
        if let Part::Nested { is_loose: true } = object.part {
            self.parts.loose_fault.get_or_insert(fault);
            return Some(Role::LooseValue);
        }
        self.fail(fault);
        None
    }

    /// Reports the value of the last key. For [`Role::Object`] this is only for values that are not
    /// objects.
    #[inline]
    pub(super) fn take(&mut self, role: Role, token: Token<'de>) {
        if matches!(role, Role::Value | Role::LooseValue) {
            self.note_likely_time(role, &token);
        }
        let result = match role {
            Role::Value => self.value(&token),
            Role::Tag => self.tag(token),
            Role::LooseValue => return self.loose(&token),
            Role::MaybeTime(_) if matches!(token, Token::NotScalar(_) | Token::NotUtf8) => {
                return self.loose(&token);
            }
            Role::MaybeTime(rank) => {
                let key = self
                    .keys
                    .last()
                    .map_or(Cow::Borrowed(""), |(_, key)| key.clone());
                self.candidates.push((rank, key, token));
                return;
            }
            Role::SensorId | Role::Time | Role::TimeUnit | Role::Object(_) => {
                self.take_other(role, token)
            }
        };
        if let Err(fault) = result {
            self.fail(fault);
        }
    }

    /// Notes the first member that looks like a time, in case the reading has none.
    fn note_likely_time(&mut self, role: Role, token: &Token<'de>) {
        // Other members have no key of their own.
        let has_key = role == Role::Value || self.level == 1 || self.loose_counts();
        if self.hint.is_none()
            && self.parts.likely_time.is_none()
            && has_key
            && let Some((_, key)) = self.keys.last()
            && time::is_likely(key, token, self.cx)
        {
            self.parts.likely_time = Some(key.clone());
        }
    }

    /// A member next to `values`.
    fn loose(&mut self, token: &Token<'de>) {
        if !self.loose_counts() {
            if self.parts.has_values && self.level == 1 {
                self.leave_out();
            }
        } else if !matches!(token, Token::NotScalar(_)) || self.cx.native.nested == Nested::Reject {
            self.parts.loose_fault = self.value(token).err();
        } else {
            self.leave_out();
        }
    }

    fn leave_out(&mut self) {
        if self.unstored.len() >= KEYS_MAX {
            self.unnamed += 1;
        } else if let Some((_, key)) = self.keys.last() {
            self.unstored.push(key.clone());
        }
    }

    /// The same for a value that is not stored as a value or tag.
    fn take_other(&mut self, role: Role, token: Token<'de>) -> Result<(), Fault> {
        match (role, token) {
            (_, Token::NotUtf8) => return Err(unusable(self.last_key(), &Token::NotUtf8)),
            (Role::SensorId, token) => self.parts.sensor_id = Some(token),
            (Role::Time, token) => self.parts.ts = Some(token),
            (Role::TimeUnit, token) => self.parts.ts_unit = unit(&token)?,
            // A null `values` or `tags` counts as absent.
            (Role::Object(part), token) if token != Token::Null => {
                return Err(not_an_object(part, token.kind()));
            }
            _ => {}
        }
        Ok(())
    }

    /// Reports a fault that only the source can see; the first one is kept.
    pub(super) fn fail(&mut self, fault: Fault) {
        self.parts.fault.get_or_insert(fault);
    }

    /// Commits the reading that was reported. `topic_counts` is false if its start was guessed:
    /// then the reading itself must name its sensor.
    pub(super) fn finish(&mut self, topic_counts: bool) -> Result<(), Fault> {
        let result = self.commit(topic_counts);
        match result {
            Ok(()) => {
                for name in &self.unstored {
                    self.left_out.add(name, 1);
                }
                if let Some(last) = self.unstored.last() {
                    self.left_out.add(last, self.unnamed);
                }
            }
            Err(_) => self.out.abort(),
        }
        result
    }

    /// Reports what the committed readings leave out, and the hint about them.
    pub(super) fn report(&mut self, rejects: &mut Rejects) {
        rejects.leave_out(std::mem::take(&mut self.left_out));
        if let Some(hint) = self.hint.take() {
            rejects.hint(hint);
        }
    }

    /// Drops the current reading.
    pub(super) fn abort(&mut self) {
        self.out.abort();
    }

    fn commit(&mut self, topic_counts: bool) -> Result<(), Fault> {
        if let Some(fault) = self.parts.fault.take() {
            return Err(fault);
        }
        let replaced = if self.candidates.is_empty() {
            None
        } else {
            self.choose_time()
        };
        let parts = &mut self.parts;
        if let Some(fault) = parts.loose_fault.take_if(|_| !parts.has_values) {
            return Err(fault);
        }
        let sensor_id = match &parts.sensor_id {
            Some(Token::Str(id)) => id,
            None | Some(Token::Null) => match self.cx.sensor_id.filter(|_| topic_counts) {
                Some(id) => id,
                None => {
                    return Err(Fault::new(
                        RejectReason::MissingSensorId,
                        "neither the payload nor the topic has a sensor_id",
                    ));
                }
            },
            Some(other) => {
                let detail = format!("sensor_id must be a text, not {}", other.kind());
                return Err(Fault::new(RejectReason::SensorIdNotText, detail));
            }
        };
        names::check_sensor_id(sensor_id, self.cx.limits)?;
        if self.out.value_count() == 0 {
            return Err(no_values(&self.unstored));
        }
        let (ts_ms, origin) = time::resolve(parts.ts.as_ref(), parts.ts_unit, self.cx)?;
        let stamp: Stamp = (
            ts_ms,
            replaced
                .filter(|_| origin == Origin::Receipt)
                .unwrap_or(origin),
        );
        names::commit(self.out, sensor_id, stamp, &self.tags, self.cx)?;
        if stamp.1 == Origin::Receipt
            && let Some(name) = self.parts.likely_time.take()
        {
            self.hint = Some(overlooked(&name));
        }
        Ok(())
    }

    /// Decides which member in `native.time` is the time; the others are values. Returns `Replaced`
    /// if one holds a time that cannot be used. If the sender reads the answer, such a time is the
    /// time of the reading, and rejects it.
    fn choose_time(&mut self) -> Option<Origin> {
        let mut candidates = std::mem::take(&mut self.candidates);
        let mut replaced = None;
        if self.parts.ts.as_ref().is_none_or(time::is_absent) {
            let unit = self.parts.ts_unit;
            let cx = self.cx;
            let held = |(_, _, token): &(u8, _, Token<'de>)| time::held(token, unit, cx);
            // One that can be used comes before one that cannot.
            let times = candidates.iter().enumerate().filter_map(|(at, candidate)| {
                let is_unusable = match held(candidate) {
                    Held::Time => false,
                    Held::TimeWithoutZone => true,
                    Held::Value => return None,
                };
                Some((is_unusable, candidate.0, at))
            });
            match times.min() {
                Some((true, ..)) if !cx.is_answered => replaced = Some(Origin::Replaced),
                Some((_, _, at)) => self.parts.ts = Some(candidates.remove(at).2),
                None => {}
            }
        }
        for (_, key, token) in candidates.drain(..) {
            if self.parts.has_values {
                self.unstored.push(key);
            } else if self.parts.loose_fault.is_none() {
                self.keys.push((0, key));
                self.parts.loose_fault = self.value(&token).err();
            }
        }
        self.candidates = candidates;
        replaced
    }

    /// The meaning of a text or number under a name in `native.time`, in a reading without `ts` and
    /// `ts_unit`.
    pub(super) fn is_time(&self, token: &Token<'de>) -> bool {
        time::held(token, None, self.cx) == Held::Time
    }

    /// The settings of the format.
    pub(super) fn native(&self) -> &'a Native {
        self.cx.native
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

    /// Commits a reading whose values were added one by one. `tags` holds the texts of its tags
    /// (see [`template::keyed`]). Returns `false`, and commits nothing, if the reading needs the
    /// full checks.
    pub(super) fn commit_like<'t>(
        &mut self,
        sensor_id: &str,
        ts: Option<&Token<'de>>,
        tags: &mut [(&'t str, &'t str)],
        keys: &'t [Box<str>],
    ) -> bool {
        let cx = self.cx;
        let limits = self.cx.limits;
        let Some(tags) = template::keyed(tags, keys, limits) else {
            return false;
        };
        let Ok((ts_ms, origin)) = time::resolve(ts, None, cx) else {
            return false;
        };
        if names::check_sensor_id(sensor_id, limits).is_err() {
            return false;
        }
        origin.commit(self.out, sensor_id, ts_ms, tags).is_ok()
    }

    /// The field schema of the last committed reading.
    pub(super) fn committed_schema(&self) -> u32 {
        self.out.committed_schema()
    }

    /// See [`BatchBuilder::reserve_like_last`].
    pub(super) fn reserve_like_last(&mut self, n: usize) {
        self.out.reserve_like_last(n);
    }

    fn last_key(&self) -> &str {
        self.keys.last().map_or("", |(_, key)| key)
    }
}

/// The hint for a reading with the time of receipt.
fn overlooked(name: &str) -> String {
    format!(
        "{} looks like the time, but the reading gets the time of receipt: send it as `ts`, or add \
         its name to native.time; for a nested member use a mapping, [formats.NAME]",
        excerpt(name)
    )
}

/// The unit in a member `ts_unit`.
fn unit(token: &Token<'_>) -> Result<Option<TsUnit>, Fault> {
    match token {
        Token::Null => Ok(None),
        Token::Str(name) => time::unit(name).map(Some),
        _ => Err(time::no_unit()),
    }
}
