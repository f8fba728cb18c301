//! The documents of `sensor_columns` and `sensor_day_hours`:
//!
//! ```text
//! sensor_columns: { _id: { sensor_id, day, part }, schema_version, sensor_id, day, part, tags, count, first_ts, last_ts,
//!   ts: BinData, columns: { <field>: { kind, data: BinData, present: BinData?, ints: BinData?, dictionary: []?, others: [ { kind, … } ]? } },
//!   set: { id, parts, count }? }
//! sensor_day_hours: { _id: { sensor_id, day }, schema_version, sensor_id, day, tags, count, first_ts, last_ts, hours,
//!   fields: { <field>: { count: [], min: [], …, sketch: [ { bins: [], counts: [] } ]?, state_ms: { <state>: [] }, … } },
//!   fields_truncated? }
//! sensor_days: { …, fields: { <field>: { count, min, …, state_ms: { <state>: ms }, … } } }
//! ```
//!
//! `set` is there if the day has several parts. `others` has the values of other kinds than most
//! values of the field have. Each array of an hour's document has an entry for each bucket of the day;
//! where the field has no value, `count` is 0 and the others are null.

use std::collections::BTreeMap;
use std::sync::Arc;

use columns::{DayHours, Entry, EntryKind, FieldHour, Numbers, Part, Sketch, States};
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, Document, RawBsonRef, RawDocument, doc};

use crate::columns::{DayColumns, StoredHours};
use crate::days::SensorDay;
use crate::mongo::document::{entries, int, tags_document};
use crate::mongo::pack::SCHEMA_VERSION;
use model::Number;

/// The set that a part belongs to; of a day of one part there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartSet {
    /// Distinguishes it from other sets of the day.
    pub(super) id: i64,
    /// Number of parts.
    pub(super) parts: i32,
    /// Number of readings of all parts.
    pub(super) count: i64,
}

/// The document of a part.
pub(super) fn part_document(
    day: &SensorDay,
    columns: &DayColumns,
    (number, part): (i32, &Part),
    set: Option<PartSet>,
) -> Document {
    let start = DateTime::from_millis(day.day.start_ms);
    let fields = part.columns.iter();
    let fields: Document = fields
        .map(|(name, entries)| (name.to_string(), Bson::from(field_document(entries))))
        .collect();
    let mut document = doc! {
        "_id": { "sensor_id": &*day.sensor_id, "day": start, "part": number },
        "schema_version": SCHEMA_VERSION,
        "sensor_id": &*day.sensor_id,
        "day": start,
        "part": number,
        "tags": tags_document(&columns.tags),
        "count": i64::from(part.count),
        "first_ts": DateTime::from_millis(part.first_ts_ms),
        "last_ts": DateTime::from_millis(part.last_ts_ms),
        "ts": binary(&part.ts),
        "columns": fields,
    };
    if let Some(PartSet { id, parts, count }) = set {
        document.insert("set", doc! { "id": id, "parts": parts, "count": count });
    }
    document
}

fn binary(bytes: &[u8]) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: bytes.to_vec(),
    }
}

fn field_document(entries: &[Entry]) -> Document {
    let Some((most, others)) = entries.split_first() else {
        return Document::new();
    };
    let mut document = entry_document(most);
    if !others.is_empty() {
        let others = others.iter().map(entry_document);
        document.insert("others", others.collect::<Vec<_>>());
    }
    document
}

fn entry_document(entry: &Entry) -> Document {
    let kind = match &entry.kind {
        EntryKind::Double(_) => "double",
        EntryKind::Int => "int",
        EntryKind::Bool => "bool",
        EntryKind::Text(_) => "text",
    };
    let mut document = doc! { "kind": kind, "data": binary(&entry.data) };
    if let Some(present) = &entry.present {
        document.insert("present", binary(present));
    }
    match &entry.kind {
        EntryKind::Text(dictionary) => {
            document.insert("dictionary", dictionary);
        }
        EntryKind::Double(Some(ints)) => {
            document.insert("ints", binary(ints));
        }
        EntryKind::Double(None) | EntryKind::Int | EntryKind::Bool => {}
    }
    document
}

/// The number of a part, its set and the part; `None` if another program wrote the document.
pub(super) fn part_of(found: &RawDocument) -> Option<(i64, Option<PartSet>, Part)> {
    let number = |document: &RawDocument, name: &str| int(document.get(name).ok()??);
    let set = match found.get_document("set") {
        Ok(set) => Some(PartSet {
            id: number(set, "id")?,
            parts: i32::try_from(number(set, "parts")?).ok()?,
            count: number(set, "count")?,
        }),
        Err(_) => None,
    };
    let mut columns = BTreeMap::new();
    for element in found.get_document("columns").ok()? {
        let (name, field) = element.ok()?;
        let field = field.as_document()?;
        let mut entries = vec![entry_of(field)?];
        if let Ok(others) = field.get_array("others") {
            for other in others {
                entries.push(entry_of(other.ok()?.as_document()?)?);
            }
        }
        columns.insert(Arc::from(name.as_str()), entries);
    }
    let part = Part {
        count: u32::try_from(number(found, "count")?).ok()?,
        first_ts_ms: found.get_datetime("first_ts").ok()?.timestamp_millis(),
        last_ts_ms: found.get_datetime("last_ts").ok()?.timestamp_millis(),
        ts: found.get_binary("ts").ok()?.bytes.to_vec(),
        columns,
    };
    Some((number(found, "part")?, set, part))
}

fn entry_of(found: &RawDocument) -> Option<Entry> {
    let kind = match found.get_str("kind").ok()? {
        "double" => EntryKind::Double(found.get_binary("ints").ok().map(|b| b.bytes.to_vec())),
        "int" => EntryKind::Int,
        "bool" => EntryKind::Bool,
        "text" => {
            let dictionary = found.get_array("dictionary").ok()?.into_iter();
            let text = |text: Result<RawBsonRef<'_>, _>| Some(text.ok()?.as_str()?.to_owned());
            EntryKind::Text(dictionary.map(text).collect::<Option<_>>()?)
        }
        _ => return None,
    };
    let present = found.get_binary("present").ok();
    Some(Entry {
        kind,
        data: found.get_binary("data").ok()?.bytes.to_vec(),
        present: present.map(|bits| bits.bytes.to_vec()),
    })
}

/// The document of a day's hours.
pub(super) fn hours_document(day: &SensorDay, columns: &DayColumns, buckets: usize) -> Document {
    let start = DateTime::from_millis(day.day.start_ms);
    let (first_ms, last_ms) = columns
        .times()
        .unwrap_or((day.day.start_ms, day.day.start_ms));
    let fields = columns.hours.fields.iter();
    let fields: Document = fields
        .map(|(name, hours)| {
            (
                name.to_string(),
                Bson::from(field_hours_document(hours, buckets)),
            )
        })
        .collect();
    let mut document = doc! {
        "_id": { "sensor_id": &*day.sensor_id, "day": start },
        "schema_version": SCHEMA_VERSION,
        "sensor_id": &*day.sensor_id,
        "day": start,
        "tags": tags_document(&columns.tags),
        "count": columns.count() as i64,
        "first_ts": DateTime::from_millis(first_ms),
        "last_ts": DateTime::from_millis(last_ms),
        "fields": fields,
    };
    if columns.hours.is_truncated {
        document.insert("fields_truncated", true);
    }
    document
}

/// The name of an array of numbers, and its entry.
type Array = (&'static str, fn(&Numbers) -> Bson);

/// The array of sketches, of fields that have some.
const SKETCH: &str = "sketch";

/// What the arrays of a numeric field have of an hour. [`numbers_of`] reads them back.
const NUMBERS: [Array; 14] = [
    ("count", |n| integer(n.count as i64)),
    ("min", |n| number(n.min)),
    ("max", |n| number(n.max)),
    ("sum", |n| number(n.sum)),
    ("first", |n| number(n.first)),
    ("last", |n| number(n.last)),
    ("first_ts", |n| date(n.first_ts_ms)),
    ("last_ts", |n| date(n.last_ts_ms)),
    ("min_ts", |n| date(n.min_ts_ms)),
    ("max_ts", |n| date(n.max_ts_ms)),
    ("sum_sq", |n| Bson::Double(n.sum_sq)),
    ("increase", |n| Bson::Double(n.increase)),
    ("integral", |n| Bson::Double(n.integral)),
    ("covered_ms", |n| integer(n.covered_ms)),
];

fn sketch_document(sketch: &Sketch) -> Document {
    let bins = sketch.bins().map(|(bin, _)| Bson::Int32(bin));
    let counts = sketch.bins().map(|(_, count)| integer(count as i64));
    doc! { "bins": bins.collect::<Vec<_>>(), "counts": counts.collect::<Vec<_>>() }
}

fn number(number: Number) -> Bson {
    match number {
        Number::Int(v) => Bson::Int64(v),
        Number::Double(v) => Bson::Double(v),
    }
}

fn integer(n: i64) -> Bson {
    i32::try_from(n).map_or(Bson::Int64(n), Bson::Int32)
}

fn date(ms: i64) -> Bson {
    Bson::DateTime(DateTime::from_millis(ms))
}

/// The fields of a whole day.
pub(super) fn whole_document(columns: &DayColumns) -> Document {
    let fields = columns.whole.iter();
    let entry = |(name, field): (&Arc<str>, _)| (name.to_string(), whole_field(field).into());
    fields.map(entry).collect()
}

fn whole_field(field: &FieldHour) -> Document {
    let mut document = Document::new();
    if let Some(numbers) = &field.numbers {
        let entries = NUMBERS.map(|(name, of_numbers)| (name.to_owned(), of_numbers(numbers)));
        document.extend(entries);
        let sketch = numbers.sketch.as_ref().map(sketch_document);
        document.extend(sketch.map(|sketch| (SKETCH.to_owned(), sketch.into())));
    }
    if let Some(states) = &field.states {
        let lasted = states.state_ms.iter();
        let lasted: Document = lasted
            .map(|(state, ms)| (state_key(state), integer(*ms)))
            .collect();
        document.extend(doc! {
            "state_ms": lasted,
            "state_first_ts": date(states.first_ts_ms),
            "state_last_ts": date(states.last_ts_ms),
            "state_last": states.last.clone(),
        });
    }
    document
}

fn field_hours_document(hours: &[(usize, FieldHour)], buckets: usize) -> Document {
    let mut document = Document::new();
    // An entry for each bucket, where the hour has one.
    let array = |absent: Bson, entry: &dyn Fn(&FieldHour) -> Option<Bson>| {
        let mut array = vec![absent; buckets];
        for (at, hour) in hours.iter().filter(|(at, _)| *at < buckets) {
            if let Some(value) = entry(hour) {
                array[*at] = value;
            }
        }
        Bson::Array(array)
    };
    if hours.iter().any(|(_, hour)| hour.numbers.is_some()) {
        for (name, of_numbers) in NUMBERS {
            let absent = if name == "count" {
                Bson::Int32(0)
            } else {
                Bson::Null
            };
            document.insert(
                name,
                array(absent, &|hour| hour.numbers.as_ref().map(of_numbers)),
            );
        }
    }
    let sketch = |hour: &FieldHour| {
        let sketch = hour.numbers.as_ref()?.sketch.as_ref();
        sketch.map(|sketch| sketch_document(sketch).into())
    };
    if hours.iter().any(|(_, hour)| sketch(hour).is_some()) {
        document.insert(SKETCH, array(Bson::Null, &sketch));
    }
    if hours.iter().any(|(_, hour)| hour.states.is_some()) {
        let of_states = |entry: &dyn Fn(&States) -> Option<Bson>| {
            array(Bson::Null, &|hour| hour.states.as_ref().and_then(entry))
        };
        let mut names: Vec<&String> = hours
            .iter()
            .filter_map(|(_, hour)| hour.states.as_ref())
            .flat_map(|states| states.state_ms.keys())
            .collect();
        names.sort_unstable();
        names.dedup();
        let states = names.into_iter().map(|name| {
            let ms = of_states(&|states| states.state_ms.get(name).copied().map(integer));
            (state_key(name), ms)
        });
        document.insert("state_ms", states.collect::<Document>());
        document.insert(
            "state_first_ts",
            of_states(&|states| Some(date(states.first_ts_ms))),
        );
        document.insert(
            "state_last_ts",
            of_states(&|states| Some(date(states.last_ts_ms))),
        );
        document.insert(
            "state_last",
            of_states(&|states| states.last.clone().map(Bson::String)),
        );
    }
    document
}

/// MongoDB gives a meaning to dots and to a leading `$` in names, and NUL ends one: a text that has
/// them is written with `\u{…}` as Rust would, and a backslash doubled.
fn state_key(state: &str) -> String {
    let mut key = String::with_capacity(state.len());
    for (at, c) in state.chars().enumerate() {
        match c {
            '\\' => key.push_str("\\\\"),
            '\0' | '.' => key.extend(c.escape_unicode()),
            '$' if at == 0 => key.extend(c.escape_unicode()),
            _ => key.push(c),
        }
    }
    key
}

fn state_of(key: &str) -> String {
    let mut state = String::with_capacity(key.len());
    let mut rest = key;
    while let Some((before, after)) = rest.split_once('\\') {
        let (c, after) = [("u{0}", '\0'), ("u{2e}", '.'), ("u{24}", '$'), ("\\", '\\')]
            .into_iter()
            .find_map(|(escape, c)| Some((c, after.strip_prefix(escape)?)))
            .unwrap_or(('\\', after));
        state.push_str(before);
        state.push(c);
        rest = after;
    }
    state + rest
}

/// The hours of a day; `None` if another program wrote the document.
pub(super) fn hours_of(found: &RawDocument) -> Option<StoredHours> {
    let time = |name: &str| Some(found.get_datetime(name).ok()?.timestamp_millis());
    let mut fields = BTreeMap::new();
    for element in found.get_document("fields").ok()? {
        let (name, field) = element.ok()?;
        fields.insert(
            Arc::from(name.as_str()),
            field_hours_of(field.as_document()?),
        );
    }
    let tags = found.get_document("tags").map(entries).unwrap_or_default();
    Some(StoredHours {
        sensor_id: found.get_str("sensor_id").ok()?.into(),
        day_ms: time("day")?,
        tags,
        count: u64::try_from(int(found.get("count").ok()??)?).ok()?,
        times: (time("first_ts")?, time("last_ts")?),
        hours: DayHours {
            fields,
            is_truncated: found.get_bool("fields_truncated").unwrap_or(false),
        },
    })
}

/// The arrays of a field, by name.
type Arrays<'d> = BTreeMap<&'d str, Vec<RawBsonRef<'d>>>;

fn arrays_of(document: &RawDocument) -> Arrays<'_> {
    let mut arrays = Arrays::new();
    for (name, value) in document.into_iter().flatten() {
        let entries = value.as_array().map(|array| array.into_iter());
        let entries = entries.and_then(|entries| entries.collect::<Result<_, _>>().ok());
        arrays.extend(entries.map(|entries| (name.as_str(), entries)));
    }
    arrays
}

fn field_hours_of(field: &RawDocument) -> Vec<(usize, FieldHour)> {
    let arrays = arrays_of(field);
    let states = field
        .get_document("state_ms")
        .map(arrays_of)
        .unwrap_or_default();
    let buckets = arrays.values().map(Vec::len).max().unwrap_or_default();
    let hour = |at| {
        let hour = FieldHour {
            numbers: numbers_of(&arrays, at),
            states: states_of(&arrays, &states, at),
        };
        (hour != FieldHour::default()).then_some((at, hour))
    };
    (0..buckets).filter_map(hour).collect()
}

fn numbers_of(arrays: &Arrays<'_>, at: usize) -> Option<Numbers> {
    let entry = |name: &str| arrays.get(name)?.get(at).copied();
    let number = |name| match entry(name)? {
        RawBsonRef::Double(v) => Some(Number::Double(v)),
        RawBsonRef::Int64(v) => Some(Number::Int(v)),
        RawBsonRef::Int32(v) => Some(Number::Int(i64::from(v))),
        _ => None,
    };
    let double = |name| number(name).map(|n: Number| n.as_f64());
    let time = |name| Some(entry(name)?.as_datetime()?.timestamp_millis());
    let count = u64::try_from(int(entry("count")?)?).ok()?;
    Some(Numbers {
        count,
        min: number("min")?,
        max: number("max")?,
        sum: number("sum")?,
        first: number("first")?,
        last: number("last")?,
        first_ts_ms: time("first_ts")?,
        last_ts_ms: time("last_ts")?,
        min_ts_ms: time("min_ts")?,
        max_ts_ms: time("max_ts")?,
        sum_sq: double("sum_sq")?,
        increase: double("increase")?,
        integral: double("integral")?,
        covered_ms: int(entry("covered_ms")?)?,
        sketch: entry(SKETCH)
            .and_then(RawBsonRef::as_document)
            .and_then(sketch_of),
    })
}

fn sketch_of(found: &RawDocument) -> Option<Sketch> {
    let bins = found.get_array("bins").ok()?.into_iter();
    let counts = found.get_array("counts").ok()?.into_iter();
    let each = bins.zip(counts).map(|(bin, count)| {
        let bin = i32::try_from(int(bin.ok()?)?).ok()?;
        Some((bin, u64::try_from(int(count.ok()?)?).ok()?))
    });
    each.collect::<Option<Vec<_>>>().map(Sketch::of_bins)
}

fn states_of(arrays: &Arrays<'_>, states: &Arrays<'_>, at: usize) -> Option<States> {
    let entry = |name: &str| arrays.get(name)?.get(at).copied();
    let time = |name| Some(entry(name)?.as_datetime()?.timestamp_millis());
    let lasted = states
        .iter()
        .filter_map(|(key, ms)| Some((state_of(key), int(*ms.get(at)?)?)));
    Some(States {
        first_ts_ms: time("state_first_ts")?,
        last_ts_ms: time("state_last_ts")?,
        last: entry("state_last")
            .and_then(|last| last.as_str())
            .map(str::to_owned),
        state_ms: lasted.collect(),
    })
}

#[cfg(test)]
mod tests {
    use columns::{DayEncoder, FieldRule, HoursEncoder, Line, Weighting, Weightings};
    use model::{Day, RowFlags, Rows, SensorPatterns, ValueRef};
    use mongodb::bson::RawDocumentBuf;

    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    fn day() -> SensorDay {
        SensorDay {
            day: Day {
                start_ms: 0,
                end_ms: 24 * HOUR_MS,
            },
            sensor_id: "S1".into(),
        }
    }

    fn encoded(rows: &Rows) -> DayColumns {
        let weighting = Weighting {
            line: Line::Straight,
            gap_max_ms: HOUR_MS,
        };
        let sketched = SensorPatterns::parse(["t*"]).unwrap();
        let rule = FieldRule {
            line: Line::Straight,
            is_sketched: true,
        };
        let weightings = Weightings::new(weighting, [(sketched, rule)]);
        let mut hours = HoursEncoder::new((0..=24).map(|h| h * HOUR_MS).collect(), weightings);
        hours.add(rows);
        let mut encoder = DayEncoder::default();
        let mut parts = encoder.add(rows);
        parts.extend(encoder.finish());
        DayColumns {
            tags: [("site".to_owned(), "north".to_owned())].into(),
            parts,
            whole: BTreeMap::new(),
            hours: hours.finish(),
        }
    }

    fn rows() -> Rows {
        let mut rows = Rows::default();
        for (at, state) in ["on", "$off.", "\\u{0}\0", "on"].into_iter().enumerate() {
            let ts_ms = at as i64 * HOUR_MS / 2;
            let number = ValueRef::Double(7.5 - at as f64);
            let mixed = if at % 2 == 0 {
                number
            } else {
                ValueRef::Str(state)
            };
            let values = [
                ("count", ValueRef::Int(1 << (20 * at))),
                ("door", ValueRef::Bool(at > 1)),
                ("mixed", mixed),
                ("state", ValueRef::Str(state)),
                ("temp", number),
            ];
            rows.push_named(ts_ms, RowFlags::default(), &values[at % 2..]);
        }
        rows
    }

    #[test]
    fn a_part_comes_back_from_its_document() {
        let columns = encoded(&rows());
        let set = PartSet {
            id: 7,
            parts: 1,
            count: 4,
        };
        for set in [None, Some(set)] {
            let document = part_document(&day(), &columns, (3, &columns.parts[0]), set);
            let raw = RawDocumentBuf::try_from(&document).unwrap();
            assert_eq!(part_of(&raw), Some((3, set, columns.parts[0].clone())));
        }
    }

    #[test]
    fn hours_come_back_from_their_document() {
        let columns = encoded(&rows());
        let document = hours_document(&day(), &columns, 24);
        let fields = document.get_document("fields").unwrap();
        let temp = fields.get_document("temp").unwrap();
        assert_eq!(temp.get_array("increase").unwrap().len(), 24);
        assert_eq!(temp.get_array("count").unwrap()[5], Bson::Int32(0));
        assert_eq!(temp.get_array(SKETCH).unwrap().len(), 24);
        assert!(!fields.get_document("count").unwrap().contains_key(SKETCH));
        let raw = RawDocumentBuf::try_from(&document).unwrap();
        let stored = hours_of(&raw).unwrap();
        assert_eq!(stored.hours, columns.hours);
        assert_eq!((stored.count, stored.times), (4, (0, 3 * HOUR_MS / 2)));
        assert_eq!(stored.tags, columns.tags);
    }
}
