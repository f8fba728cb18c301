//! `[formats.NAME]`: the language that describes where a vendor's JSON holds readings. It is parsed
//! here once, and every problem is reported with its key. `decode::mapping` applies it.
//!
//! **A message** is one JSON document: an object, an element of a top-level array, or one of
//! several concatenated documents. So `each` never sees a top-level array: `each = "/*"` visits the
//! members of each element. Only for a rule with the condition `{ at = "", kind = "array" }` the
//! array itself is the message, if the rule matches. A payload that is not JSON (`21.5`, `ON`)
//! counts as one scalar. The **rules** of a format are tried in order on each message, and the
//! first match decides. A rule matches if its `topic` matches (a rule with a topic never matches if
//! the topic is unknown, as over HTTP) and all conditions in `when` are true. A message that no
//! rule matches is rejected, so that a wrong mapping is noticed. For messages that are known to
//! carry no readings, write a rule with `skip = true`. Keys in `[formats.NAME]` itself apply to
//! every rule that does not set them. Without `rules` they are the only rule.
//!
//! A rule splits the message into **records** (`each`; by default the message is the only record)
//! and skips those for which `where` is false. Each record yields one reading:
//!
//! - `id`, `time` and `tags` are *sources*: a place, or a text with `{name}` and `{/place}` in it,
//!   or a list of these, of which the first one present is used.
//! - `values` is a place, a list of places (the first one present is used), or a table of names and
//!   places. An object or array at the place is flattened: the names of its members are joined by
//!   `separator`, elements of arrays are written as `[0]`. A scalar is one value, named by `field`.
//!   If the record itself holds the values, members used by `id`, `time` and `tags` are not values.
//! - `include` and `exclude` are globs over these names; `fields` renames, scales and converts the
//!   values that it matches.
//!
//! **A place** is a JSON Pointer (RFC 6901) from the record, or with a leading `$` from the
//! message. The step `*` is the first member. In `each`, both `*` and `{name}` are every member,
//! and `{name}` also captures the member's key: `/data/tags/{sensor_id}`.
//!
//! **A text that holds JSON**, an object or array, is entered like that object or array by every
//! place and by `each`. It may be in base64 of either alphabet, with or without padding. At the
//! place of `values`, and of the tags `*`, the text counts as what it holds; elsewhere a text at
//! the end of a place stays a text, also for the conditions on it. **Names in braces** come
//! from the topic template, from `each` and from the subscription's template. `sensor_id` and
//! `field` have their meaning; the others become tags.
//!
//! **Non-values** never become values: null, the words nan, null, none, unavailable, unknown and
//! undefined, and the entries of `none`. A record in which no value is left is neither a reading
//! nor an error. A record without the place of the values is an error.

mod place;
pub(super) mod profiles;
mod read;
mod rule_values;
#[cfg(test)]
mod tests;

pub use place::{Each, EachStep, Filter, Glob, Piece, Place, Source, Step};
pub use profiles::parse as parse_formats;
pub use profiles::{find, shipped};
pub(super) use read::read;
pub(super) use rule_values::zone;

use chrono_tz::Tz;

/// Limits on formats in a configuration, rules in a format, and entries in any list of a rule. They
/// are generous because operators, not senders, write them.
const FORMATS_MAX: usize = 256;
const RULES_MAX: usize = 64;
const LIST_MAX: usize = 256;

/// `[formats.NAME]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The `NAME`.
    pub name: String,
    /// In the order in which they are tried; never empty.
    pub rules: Vec<Rule>,
    /// The format as TOML, for the dump.
    pub(super) text: String,
}

/// One rule; the module describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `topic`: templates, one of which must match; empty: any message.
    pub topics: Vec<String>,
    /// `when`: conditions on the message.
    pub when: Vec<Condition>,
    /// `skip`: the message carries no readings.
    pub skip: bool,
    /// `each`: paths to the records, of which the first one present is used; empty: the message is
    /// the record.
    pub each: Vec<Each>,
    /// `where`: conditions on a record; other records are skipped.
    pub filter: Vec<Condition>,
    /// `id`: of the sensor; empty: the `sensor_id` of the templates.
    pub id: Vec<Source>,
    /// `time`: the first that is a time is used.
    pub time: Vec<TimeSource>,
    /// `zone` for times without one; absent: the zone of the subscription, or of `limits.zone`.
    pub zone: Option<Tz>,
    /// `time_unreadable`: whether a time that cannot be parsed, or has no zone, rejects the reading
    /// (the default). Otherwise the reading gets the time of receipt.
    pub unreadable_refuses: bool,
    /// `values`
    pub values: Values,
    /// `also`: values besides those at `values`, by name.
    pub also: Vec<(String, Vec<Place>)>,
    /// `field`: the name of a value without a name.
    pub field: Vec<Source>,
    /// `prefix` of every value's name; empty if the source is not present.
    pub prefix: Option<Source>,
    /// `separator` between the parts of a name.
    pub separator: String,
    /// `level_separator`: replaces `/` if a name in braces takes several levels of a topic.
    pub level_separator: String,
    /// `include`; empty: all.
    pub include: Vec<Glob>,
    /// `exclude`
    pub exclude: Vec<Glob>,
    /// `texts`: how values that are texts are treated.
    pub texts: Texts,
    /// `none`: further non-values.
    pub none: Vec<Scalar>,
    /// `tags`: name and source. The name `*` takes objects and makes all of their scalar members
    /// tags.
    pub tags: Vec<(String, Vec<Source>)>,
    /// `fields`: the first match applies.
    pub fields: Vec<FieldRule>,
    /// Names of the members that `id`, `time` and `tags` use, which are therefore not values.
    pub used: Vec<String>,
}

/// `values`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Values {
    /// The first of these that is present.
    At(Vec<Place>),
    /// Each name from the first of its places that is present.
    Named(Vec<(String, Vec<Place>)>),
}

/// A candidate for the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeSource {
    /// Where the time is.
    pub source: Source,
    /// The unit of a number; `None`: `time_unit`, or by magnitude.
    pub unit: Option<TimeUnit>,
}

/// Unit of a numeric time.
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

/// A condition on the first of these places that is present (null counts as absent).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `at`
    pub at: Vec<Place>,
    /// `there`: whether anything must be present.
    pub there: Option<bool>,
    /// `is`: the value must be one of these.
    pub is: Vec<Scalar>,
    /// `not`: the value must be none of these (and may be absent).
    pub not: Vec<Scalar>,
    /// `kind`: the value must be of one of these kinds.
    pub kinds: Vec<Kind>,
    /// `empty`: whether the value is an object, array or text without content.
    pub empty: Option<bool>,
}

/// The kind of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `{}`
    Object,
    /// `[]`
    Array,
    /// `""`
    Text,
    /// A JSON number.
    Number,
    /// `true` or `false`.
    Bool,
    /// Any of the last three.
    Scalar,
}

/// A text, number or boolean of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scalar {
    /// A text.
    Text(String),
    /// A whole number.
    Int(i64),
    /// A number with a fraction or exponent.
    Fraction(Fraction),
    /// true or false.
    Bool(bool),
}

/// A finite number of the configuration. Equality compares bits.
#[derive(Debug, Clone, Copy)]
pub struct Fraction(pub f64);

impl PartialEq for Fraction {
    fn eq(&self, other: &Fraction) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Fraction {}

/// How values that are texts are treated if no entry of `fields` converts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Texts {
    /// Keep them.
    Keep,
    /// Turn numeric texts into numbers and keep the others.
    Numbers,
    /// Turn numeric texts into numbers and drop the others.
    OnlyNumbers,
    /// Drop them.
    Drop,
}

/// The target of `type`. A value that cannot be converted is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A number, also from a text; true is 1.
    Number,
    /// A boolean, also from on/off, true/false, yes/no, open/closed, 1/0.
    Bool,
    /// A text.
    Text,
}

/// An entry of `fields`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldRule {
    /// `match`: globs over the flattened names.
    pub matches: Vec<Glob>,
    /// `rename`; a `*` in it is what the one `*` of the glob matched.
    pub rename: Option<String>,
    /// `type`
    pub kind: Option<Type>,
    /// `words`: texts that mean other values.
    pub words: Vec<(String, Scalar)>,
    /// `none`: further non-values of these fields.
    pub none: Vec<Scalar>,
    /// `scale`: factor for the number.
    pub scale: Option<Fraction>,
    /// `offset`: added after scaling.
    pub offset: Option<Fraction>,
    /// `tag`: makes it a tag instead of a value.
    pub tag: bool,
    /// `unless`: the field is dropped if anything is present at one of these places.
    pub unless: Vec<Place>,
}

impl Rule {
    /// Joins two parts of a name, with the separator if both are present.
    pub fn joined<'n>(&self, prefix: &str, name: &'n str) -> std::borrow::Cow<'n, str> {
        if prefix.is_empty() {
            std::borrow::Cow::Borrowed(name)
        } else {
            format!("{prefix}{}{name}", self.separator).into()
        }
    }

    /// Whether a condition on the whole message names the kind `array`: then a top-level array is
    /// one message for this rule.
    pub fn takes_array(&self) -> bool {
        let is_whole =
            |condition: &Condition| condition.at.iter().any(|place| place.steps.is_empty());
        self.when
            .iter()
            .any(|condition| is_whole(condition) && condition.kinds.contains(&Kind::Array))
    }
}

impl Mapping {
    /// Whether a rule reads the topic itself, so that a subscription needs no template.
    pub fn has_topics(&self) -> bool {
        self.rules.iter().any(|rule| !rule.topics.is_empty())
    }

    /// Whether no rule names the sensor, so that the subscription must.
    pub(super) fn never_names_a_sensor(&self) -> bool {
        let names = |rule: &Rule| {
            let in_topic = |topic: &String| {
                topic
                    .split('/')
                    .any(|level| matches!(level, "{sensor_id}" | "{sensor_id#}"))
            };
            let in_each = |each: &Each| each.names().any(|name| name == "sensor_id");
            !rule.id.is_empty() || rule.topics.iter().any(in_topic) || rule.each.iter().any(in_each)
        };
        !self.rules.iter().any(|rule| !rule.skip && names(rule))
    }

    /// Rules (counted from 0) whose id is the same text for every message, so that all devices
    /// would be one sensor.
    pub(super) fn constant_ids(&self) -> impl Iterator<Item = usize> {
        let constant = |rule: &Rule| !rule.skip && rule.id.iter().any(Source::is_constant);
        self.rules
            .iter()
            .enumerate()
            .filter(move |(_, rule)| constant(rule))
            .map(|(i, _)| i)
    }
}
