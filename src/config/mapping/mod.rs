//! `[formats.NAME]`: the language that says where in a vendor's JSON the readings are. Parsed here once, with everything
//! that can be wrong told by its key; `decode::mapping` applies it.
//!
//! **A message** is one JSON document: an object, an element of a top-level array, one of several documents one after
//! another; or a payload that is no JSON (`21.5`, `ON`), which counts as one scalar. The **rules** of a format are tried in
//! order on each message, and the first that fits says what becomes of it: its `topic` must fit (a rule with a topic never
//! fits where no topic is known, as over HTTP), and all of `when` must hold. A message that no rule fits is rejected, so that
//! a wrong mapping is seen; what is known to carry no readings gets a rule with `skip = true`. Keys that stand in
//! `[formats.NAME]` itself hold for every rule that has not the same key, and without `rules` they are the only rule.
//!
//! A rule splits the message into **records** (`each`; else the message is the one record) and leaves out those for which
//! `where` does not hold. Each record gives one reading:
//!
//! - `id`, `time` and `tags` are *sources*: a place, or a text with `{name}` and `{/place}` in it, or a list of which the
//!   first counts that is there.
//! - `values` is a place, a list of places (the first that is there), or a table of names and places. An object or array
//!   found there is flattened: the names of its members joined by `separator`, elements of arrays as `[0]`. A text that
//!   holds a JSON object, plain or in base64, counts as that object. A scalar is one value, named by `field`.
//! - `include` and `exclude` are globs over these names; `fields` renames, scales and converts what they match.
//!
//! **A place** is a JSON Pointer (RFC 6901) from the record, or with `$` before it from the message; `*` as a step is the
//! first member. In `each`, `*` is every member and `{name}` too, which keeps the member's key: `/data/tags/{sensor_id}`.
//! **Names in braces** are those of the topic template, of `each` and of the subscription's template; `sensor_id` and
//! `field` have their meaning, the others become tags.
//!
//! **Non-values** never become a value: null, the words nan, null, none, unavailable, unknown and undefined, and what
//! `none` lists. A record in which no value is left is no reading and no error; one in which the place of the values is
//! missing is an error.

mod place;
pub(super) mod profiles;
mod read;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use chrono_tz::Tz;

pub use place::{Each, EachStep, Filter, Glob, Piece, Place, Source, Step};
pub(super) use read::{read, zone};

/// Formats in one configuration, rules in a format, and entries in any list of a rule: config, not data, so generous.
const FORMATS_MAX: usize = 256;
const RULES_MAX: usize = 64;
const LIST_MAX: usize = 256;

/// `[formats.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Its name.
    pub name: String,
    /// In the order in which they are tried; at least one.
    pub rules: Vec<Rule>,
    /// As TOML, for the dump.
    pub(super) text: String,
}

/// One rule; see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `topic`: templates, one of which must fit; empty: any message.
    pub topics: Vec<String>,
    /// `when`: what must hold of the message.
    pub when: Vec<Condition>,
    /// `skip`: the message carries no readings.
    pub skip: bool,
    /// `each`: where the records are, the first that is there; empty: the message is one.
    pub each: Vec<Each>,
    /// `where`: what must hold of a record, or it is left out.
    pub filter: Vec<Condition>,
    /// `id`: of the sensor; empty: what the templates call `sensor_id`.
    pub id: Vec<Source>,
    /// `time`, the first that is one.
    pub time: Vec<TimeSource>,
    /// `zone` of times that say none; absent: that of the subscription, or of `limits.zone`.
    pub zone: Option<Tz>,
    /// `time_unreadable`: a time that cannot be understood, or has no zone, refuses the reading (the default), or gives
    /// it the time of receipt.
    pub unreadable_refuses: bool,
    /// `values`
    pub values: Values,
    /// `field`: the name of a value that has none of its own.
    pub field: Vec<Source>,
    /// `prefix` of every value's name; nothing where it is not there.
    pub prefix: Option<Source>,
    /// `separator` between the parts of a name.
    pub separator: String,
    /// `level_separator`: what stands for `/` where a name in braces takes several levels of a topic.
    pub level_separator: String,
    /// `include`; empty: all.
    pub include: Vec<Glob>,
    /// `exclude`
    pub exclude: Vec<Glob>,
    /// `texts`: what becomes of values that are texts.
    pub texts: Texts,
    /// `none`: more non-values.
    pub none: Vec<Scalar>,
    /// `tags`: name and source; the name `*` stands for objects whose scalar members all become tags.
    pub tags: Vec<(String, Vec<Source>)>,
    /// `fields`, the first that matches.
    pub fields: Vec<FieldRule>,
}

/// `values`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Values {
    /// The first of these that is there.
    At(Vec<Place>),
    /// Each name from the first of its places that is there.
    Named(Vec<(String, Vec<Place>)>),
}

/// A candidate for the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeSource {
    /// Where it is.
    pub source: Source,
    /// The unit of a number; `None`: `time_unit`, or by magnitude.
    pub unit: Option<TimeUnit>,
}

/// Unit of a number that stands for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
}

/// What must hold of the first of these places that is there (a null counts as not there).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `at`
    pub at: Vec<Place>,
    /// `there`: whether anything is.
    pub there: Option<bool>,
    /// `is`: one of these.
    pub is: Vec<Scalar>,
    /// `not`: none of these (it need not be there).
    pub not: Vec<Scalar>,
    /// `kind`: one of these.
    pub kinds: Vec<Kind>,
}

/// What a JSON value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `{}`
    Object,
    /// `[]`
    Array,
    /// `""`
    Text,
    /// A number.
    Number,
    /// true or false.
    Bool,
    /// Any of the last three.
    Scalar,
}

/// A text, number or truth value as it stands in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scalar {
    /// A text.
    Text(String),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Fraction(Fraction),
    /// true or false.
    Bool(bool),
}

/// A finite number of the configuration; equal where the bits are.
#[derive(Debug, Clone, Copy)]
pub struct Fraction(pub f64);

impl PartialEq for Fraction {
    fn eq(&self, other: &Fraction) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Fraction {}

/// What becomes of values that are texts and that no entry of `fields` converts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Texts {
    /// They stay.
    Keep,
    /// Those that are numbers become numbers, the others stay.
    Numbers,
    /// They are left out, but for those that are numbers, which become numbers.
    OnlyNumbers,
    /// They are left out.
    Drop,
}

/// What `type` makes of a value; one that it cannot convert is no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A number, also out of a text; true is 1.
    Number,
    /// true or false, also out of on/off, true/false, yes/no, open/closed, 1/0.
    Bool,
    /// A text.
    Text,
}

/// An entry of `fields`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRule {
    /// `match`: the flattened names.
    pub matches: Vec<Glob>,
    /// `rename`; a `*` in it is what the one `*` of the glob has matched.
    pub rename: Option<String>,
    /// `type`
    pub kind: Option<Type>,
    /// `words`: texts that stand for other values.
    pub words: Vec<(String, Scalar)>,
    /// `none`: more non-values of these fields.
    pub none: Vec<Scalar>,
    /// `scale`: the number is multiplied by it.
    pub scale: Option<Fraction>,
    /// `offset`: and this is added.
    pub offset: Option<Fraction>,
    /// `tag`: it is a tag and no value.
    pub tag: bool,
}

impl Mapping {
    /// Whether a rule reads the topic itself, so that a subscription needs no template.
    pub fn has_topics(&self) -> bool {
        self.rules.iter().any(|rule| !rule.topics.is_empty())
    }

    /// Rules whose id is the same text for every message: all devices would be one sensor. Counted from 0.
    pub(super) fn constant_ids(&self) -> impl Iterator<Item = usize> {
        let constant = |rule: &Rule| !rule.skip && rule.id.iter().any(Source::is_constant);
        self.rules.iter().enumerate().filter(move |(_, rule)| constant(rule)).map(|(i, _)| i)
    }
}

/// The mapping of a name: the configuration's own, or the shipped profile.
pub fn find(formats: &[Arc<Mapping>], name: &str) -> Option<Arc<Mapping>> {
    formats.iter().chain(profiles::all()).find(|mapping| mapping.name == name).cloned()
}

/// The formats in a text, and what is wrong with it; for tests of other modules.
#[cfg(test)]
pub(crate) use profiles::parse as parse_formats;

/// The shipped profiles, in the order of their names.
pub fn shipped() -> &'static [Arc<Mapping>] {
    profiles::all()
}
