//! Writes a body, reading by reading.

use std::collections::HashMap;

use super::{Last, MAGIC, OTHER_SCHEMA, PER_ONE, REPEATS, kind};
use model::batch::NAMES_MAX;
use model::protobuf::put_number;
use model::{ReadingBatch, ReadingRef, Tags, ValueRef};

/// Readings of a body: half of the usual `limits.batch_max_readings`, and fewer than the schemas and
/// sensors that a body may have.
const READINGS_MAX: usize = 50_000;
/// Up to here all integers are exact as doubles.
const EXACT_MAX: u64 = 1 << 53;

#[derive(Debug, Default)]
struct Sensor {
    schema: Option<u32>,
    last: Vec<Last>,
}

/// A body that is being written.
#[derive(Debug, Default)]
pub struct Encoder {
    names: HashMap<Box<str>, u32>,
    schemas: HashMap<Box<[u32]>, u32>,
    /// By id, a NUL, and the tags in canonical form.
    sensors: HashMap<Box<[u8]>, u32>,
    states: Vec<Sensor>,
    /// The schemas of the current batch in this body.
    of_batch: Vec<Option<u32>>,
    sections: Sections,
    at: i64,
    ts_ms: i64,
    len: usize,
    key: Vec<u8>,
}

#[derive(Debug, Default)]
struct Sections {
    names: Vec<u8>,
    schemas: Vec<u8>,
    sensors: Vec<u8>,
    heads: Vec<u8>,
    times: Vec<u8>,
    kinds: Vec<u8>,
    numbers: Vec<u8>,
    texts: Vec<u8>,
}

impl Sections {
    fn all(&self) -> [&Vec<u8>; 8] {
        [
            &self.names,
            &self.schemas,
            &self.sensors,
            &self.heads,
            &self.times,
            &self.kinds,
            &self.numbers,
            &self.texts,
        ]
    }
}

impl Encoder {
    /// An empty body.
    pub fn new() -> Encoder {
        Encoder {
            at: -1,
            ..Encoder::default()
        }
    }

    /// Number of readings.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no readings.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the body so far, without those that separate its sections.
    pub fn bytes(&self) -> usize {
        MAGIC.len() + self.sections.all().iter().map(|s| s.len()).sum::<usize>()
    }

    /// Whether the receiver takes this reading together with those before it. Any reading fits into an
    /// empty body.
    pub fn has_room(&self, batch: &ReadingBatch, reading: &ReadingRef<'_>) -> bool {
        self.names.len() + batch.schema(reading.schema).len() <= NAMES_MAX
            && self.len < READINGS_MAX
    }

    /// The readings that follow are of another batch.
    pub fn begin_batch(&mut self) {
        self.of_batch.clear();
    }

    /// Adds a reading of the current batch. `repeat`: how many equal readings came before it that are
    /// other readings.
    pub fn push(&mut self, batch: &ReadingBatch, reading: &ReadingRef<'_>, repeat: u32) {
        let schema = self.schema(batch, reading.schema);
        let at = self.sensor(reading);
        write_signed(&mut self.sections.heads, i64::from(at) - self.at - 1);
        self.at = i64::from(at);
        let sensor = &mut self.states[at as usize];
        let is_other = sensor.schema != Some(schema);
        let flags = if is_other { OTHER_SCHEMA } else { 0 } | if repeat > 0 { REPEATS } else { 0 };
        self.sections.heads.push(flags);
        if is_other {
            put_number(u64::from(schema), &mut self.sections.heads);
            sensor.schema = Some(schema);
            let fields = batch.schema(reading.schema).len();
            sensor.last.clear();
            sensor.last.resize(fields, Last::NONE);
        }
        if repeat > 0 {
            put_number(u64::from(repeat), &mut self.sections.heads);
        }
        let since_last_ms = reading.ts_ms.wrapping_sub(self.ts_ms);
        write_signed(&mut self.sections.times, since_last_ms);
        self.ts_ms = reading.ts_ms;
        for ((_, value), last) in reading.values().zip(&mut sensor.last) {
            self.sections.value(value, last);
        }
        self.len += 1;
    }

    /// The bytes of the body.
    pub fn finish(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(self.bytes() + 64);
        body.extend_from_slice(&MAGIC);
        for section in self.sections.all() {
            put_number(section.len() as u64, &mut body);
            body.extend_from_slice(section);
        }
        body
    }

    /// The index in this body of a schema of the current batch.
    fn schema(&mut self, batch: &ReadingBatch, schema: u32) -> u32 {
        let place = schema as usize;
        if let Some(Some(known)) = self.of_batch.get(place) {
            return *known;
        }
        let fields: Vec<u32> = batch
            .schema(schema)
            .iter()
            .map(|name| self.name(batch.name(*name)))
            .collect();
        let next = self.schemas.len() as u32;
        let index = match self.schemas.get(&fields[..]) {
            Some(known) => *known,
            None => {
                put_number(fields.len() as u64, &mut self.sections.schemas);
                for name in &fields {
                    put_number(u64::from(*name), &mut self.sections.schemas);
                }
                self.schemas.insert(fields.into(), next);
                next
            }
        };
        if self.of_batch.len() <= place {
            self.of_batch.resize(place + 1, None);
        }
        self.of_batch[place] = Some(index);
        index
    }

    fn name(&mut self, name: &str) -> u32 {
        let next = self.names.len() as u32;
        if let Some(known) = self.names.get(name) {
            return *known;
        }
        write_text(&mut self.sections.names, name);
        self.names.insert(name.into(), next);
        next
    }

    fn sensor(&mut self, reading: &ReadingRef<'_>) -> u32 {
        // An id contains no NUL.
        self.key.clear();
        self.key.extend_from_slice(reading.sensor_id_bytes());
        self.key.push(0);
        self.key.extend_from_slice(reading.tags);
        if let Some(known) = self.sensors.get(&self.key[..]) {
            return *known;
        }
        let next = self.states.len() as u32;
        let section = &mut self.sections.sensors;
        write_text(section, reading.sensor_id());
        let mut tags = vec![];
        for (key, value) in Tags::from_canonical(reading.tags).iter() {
            write_text(&mut tags, key);
            write_text(&mut tags, value);
        }
        put_number(tags.len() as u64, section);
        section.extend_from_slice(&tags);
        self.sensors.insert(self.key.as_slice().into(), next);
        self.states.push(Sensor::default());
        next
    }
}

impl Sections {
    fn value(&mut self, value: ValueRef<'_>, last: &mut Last) {
        let (kind, number) = match value {
            ValueRef::Double(v) => match in_digits(v, last.kind) {
                Some(found) => found,
                None => {
                    self.kinds.push(kind::DOUBLE);
                    return self.texts.extend_from_slice(&v.to_le_bytes());
                }
            },
            ValueRef::Int(v) => (kind::INT, v),
            ValueRef::Bool(v) => {
                return self.kinds.push(if v { kind::TRUE } else { kind::FALSE });
            }
            ValueRef::Str(v) => {
                self.kinds.push(kind::TEXT);
                put_number(v.len() as u64, &mut self.numbers);
                return self.texts.extend_from_slice(v.as_bytes());
            }
        };
        self.kinds.push(kind);
        write_signed(&mut self.numbers, number.wrapping_sub(last.base(kind)));
        *last = Last { kind, number };
    }
}

/// The double as digits behind the point and an integer, if exactly the same double is read back.
/// With as many digits as the last value, if they suffice: then the difference is small.
fn in_digits(value: f64, last: u8) -> Option<(u8, i64)> {
    let with = |digits: u8| {
        let per_one = PER_ONE[usize::from(digits)];
        let number = (value * per_one).round();
        let is_exact = number.abs() <= EXACT_MAX as f64;
        // -0.0 is not 0.
        let is_same = (number as i64 as f64 / per_one).to_bits() == value.to_bits();
        (is_exact && is_same).then_some((digits, number as i64))
    };
    let first = Some(last).filter(|last| *last <= kind::DIGITS_MAX);
    first
        .and_then(with)
        .or_else(|| (0..=kind::DIGITS_MAX).find_map(with))
}

fn write_signed(out: &mut Vec<u8>, value: i64) {
    put_number(((value << 1) ^ (value >> 63)).cast_unsigned(), out);
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    put_number(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}
