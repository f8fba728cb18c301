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
pub(super) use read::read_formats;

use chrono_tz::Tz;

use super::declare::settings;
use super::kinds::{self, choice, flag, zone};
use super::reader::Bad;
use super::tree::Node;
use rule_values::{
    EACH, GLOB, SOURCE, also, conditions, fields, ids, parsed, scalars, separator, source, sources,
    tags, text, times, topics, values,
};

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

settings! {
    /// Mappings turn vendor JSON into readings. Define any number of formats, each with a name,
    /// used as format = "NAME" in a subscription, as POST /v1/readings?format=NAME and as POST
    /// /v1/hooks/NAME. To print the readings of a payload, run `hourbucket decode --format NAME
    /// --topic T < payload`. Built in, without an entry here: actility, aws-iot, azure-iot,
    /// chirpstack-v4, home-assistant-statestream, loriot, ruuvi-gateway, shelly-gen1, shelly-gen2,
    /// tasmota, telegraf-json, thingsboard-telemetry, ttn-v3, victron-venus and zigbee2mqtt
    /// (config/profiles/NAME.toml). A format of the same name here replaces the built-in one.
    ///
    /// A place is a JSON Pointer: "/rx/0/rssi" from the record, "$/gateway" from the whole message;
    /// "*" is the first member. A source is a place, or a text with {name} or {/place} in it
    /// ({/eui|lower}, |upper, |eui: eight bytes as hex), or a list of them: the first one present
    /// is used. Names in braces come from the topic templates and from `each`; all but sensor_id
    /// and field become tags. null, nan, none, unavailable, unknown and undefined are never values.
    /// Places and `each` continue inside a text that holds a JSON object or array, plain or in
    /// base64: with the id at "/payload/dev" it is found in the object, and in the text {"dev":
    /// "d7", "temp": 21.5}. As `values` such a text is the object or array.
    ///
    /// For several kinds of messages, use [[formats.example.rules]] with the same keys. The first
    /// rule that matches applies; keys that it does not set are inherited from above. A message
    /// that no rule matches is rejected.
    pub struct Rule, reload() {
        /// Restricts the format to messages of these topics, and names their levels; {sensor_id#}
        /// takes several levels. With it a subscription needs no topic.
        topics: Vec<String> = vec![], language("topic template, or a list of them", topics),
            named("topic"), example("[\"gateway/{site}/{sensor_id}/up\"]");
        /// Conditions on the message; all must be true. Keys of a condition, at least one: there =
        /// true or false, is = [...], not = [...], kind = object, array, text, number, bool or
        /// scalar, empty = true or false (an object, array or text without content). The elements
        /// of a top-level array are messages of their own (so each = "/*" visits the members of
        /// each element); with { at = "", kind = "array" } the array itself is the message.
        when: Vec<Condition> = vec![], language("list of conditions", conditions),
            example("[{ at = \"/type\", is = [\"uplink\"] }, { at = \"/data\", there = true }]");
        /// Matching messages carry no readings: they are neither stored nor rejected.
        skip: bool = false, flag();
        /// Where the records are; absent: the message is one record. A * or {name} matches every
        /// member; {name} captures its key.
        each: Vec<Each> = vec![],
            language("place, or a list of them", |node| parsed(node, EACH, Each::parse)),
            example("\"/data/tags/{sensor_id}\"");
        /// Conditions on a record. Other records are skipped.
        filter: Vec<Condition> = vec![], language("list of conditions", conditions),
            named("where"), example("[{ at = \"/ok\", not = [false] }]");
        /// The sensor's id; absent: {sensor_id}.
        id: Vec<Source> = vec![], language("source, or a list of them", ids),
            example("[\"{$/model}/{sensor_id}\", \"/id\"]");
        /// The first of these that is a time; `unit` is the unit of numbers: "s", "ms", "us" or
        /// "ns"; absent: by magnitude.
        time: Vec<TimeSource> = vec![],
            language("place, or a list in which one can be `{ at, unit }`", times),
            example("[{ at = \"/epoch\", unit = \"s\" }, \"/time\", \"$/received\"]");
        time_unit: Option<TimeUnit> = None, choice(TimeUnit::NAMES).optional(), example("\"ms\"");
        zone: Option<Tz> = None, zone().optional(), example("\"Europe/Berlin\"");
        /// If a time cannot be read, or over HTTP is that of an unset clock: "reject" the reading,
        /// or "receive": use the time of receipt, which hourbucket_readings_retimed_total counts.
        unreadable_refuses: bool = true, choice(&[("reject", true), ("receive", false)]),
            named("time_unreadable");
        /// A place, a list of places of which the first one present is used, or a table {
        /// temperature = "/t" }. Objects and arrays in it are flattened: wind_speed, rx[0]_rssi.
        /// Absent: all of the record except what id, time and tags use.
        values: Values = Values::whole_record(),
            language("place, a list of them, or a table", values),
            instead_of_default("`\"\"`, the whole record"), example("[\"/decoded\", \"\"]");
        /// Values besides those, stored only together with some of them; not flattened.
        also: Vec<(String, Vec<Place>)> = vec![], language("table of names and places", also),
            example("{ rssi = \"$/rx/0/rssi\", battery = \"$/battery\" }");
        /// The name of a value without a name, and a prefix for all names.
        field: Vec<Source> = vec![Source::Joined(vec![Piece::Name("field".into(), None)])],
            language("source, or a list of them", sources),
            instead_of_default("`\"{field}\"`"), example("\"{field}\"");
        prefix: Option<Source> = None,
            language("source", |node| source(text(node, SOURCE)?)).optional(),
            example("\"{$/port}\"");
        separator: String = "_".to_owned(), kinds::Kind::new("text, up to 8 bytes", separator);
        /// Replaces / if a name takes several levels of a topic.
        level_separator: String = "/".to_owned(),
            kinds::Kind::new("text, up to 8 bytes", separator);
        /// Globs over the names.
        include: Vec<Glob> = vec![],
            language("list of globs", |node| parsed(node, GLOB, Glob::parse)),
            example("[\"*\"]");
        exclude: Vec<Glob> = vec![],
            language("list of globs", |node| parsed(node, GLOB, Glob::parse)),
            example("[\"*_id\", \"seq\"]");
        /// Texts: "keep", "numbers" (numeric texts become numbers, except codes such as 0042),
        /// "only-numbers" (numeric texts become numbers, other texts are dropped), or "drop".
        texts: Texts = Texts::Keep, choice(Texts::NAMES);
        /// Further texts and numbers that are not values.
        none: Vec<Scalar> = vec![], language("list of texts and numbers", scalars),
            example("[\"error\", -1000]");
        /// A name and its source; "*" takes all members of an object.
        tags: Vec<(String, Vec<Source>)> = vec![], language("table of sources", tags),
            example("{ gateway = \"$/gateway\", \"*\" = \"/labels\" }");
        /// The first entry that matches applies. Its keys: rename (its * is what the * of match
        /// matched), type = "number", "bool" or "text", words = { OPEN = true }, none, scale and
        /// offset (value * scale + offset), tag = true, unless = "/place" (dropped if something is
        /// there).
        fields: Vec<FieldRule> = vec![], language("list of rules", fields),
            example(concat!(
                "[{ match = \"temp\", rename = \"temperature\", scale = 0.1 }, ",
                "{ match = \"door\", type = \"bool\" }]",
            ));
    }
}

/// A kind of the mapping language; the dump has its text as it was written.
fn language<T: 'static>(
    text: &'static str,
    read: impl Fn(&Node) -> Result<T, Bad> + 'static,
) -> kinds::Kind<T> {
    kinds::Kind::unwritten(text, serde_json::json!({}), read)
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

model::closed_set! {
    /// Unit of a numeric time.
    pub enum TimeUnit {
        /// Seconds.
        S => "s",
        /// Milliseconds.
        Ms => "ms",
        /// Microseconds.
        Us => "us",
        /// Nanoseconds.
        Ns => "ns",
    }
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

model::closed_set! {
    /// The kind of a JSON value.
    pub enum Kind {
        /// `{}`
        Object => "object",
        /// `[]`
        Array => "array",
        /// `""`
        Text => "text",
        /// A JSON number.
        Number => "number",
        /// `true` or `false`.
        Bool => "bool",
        /// Any of the last three.
        Scalar => "scalar",
    }
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

model::closed_set! {
    /// How values that are texts are treated if no entry of `fields` converts them.
    pub enum Texts {
        /// Keep them.
        Keep => "keep",
        /// Turn numeric texts into numbers and keep the others.
        Numbers => "numbers",
        /// Turn numeric texts into numbers and drop the others.
        OnlyNumbers => "only-numbers",
        /// Drop them.
        Drop => "drop",
    }
}

model::closed_set! {
    /// The target of `type`. A value that cannot be converted is dropped.
    pub enum Type {
        /// A number, also from a text; true is 1.
        Number => "number",
        /// A boolean, also from on/off, true/false, yes/no, open/closed, 1/0.
        Bool => "bool",
        /// A text.
        Text => "text",
    }
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
