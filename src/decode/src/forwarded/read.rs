//! Reads a body, reading by reading.

use super::{Last, MAGIC, OTHER_SCHEMA, PER_ONE, REPEATS, SCHEMAS_MAX, SENSORS_MAX, kind};
use model::ValueRef;
use model::batch::NAMES_MAX;

/// Why a body is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidBody {
    #[error("not a body of an instance that forwards: it does not begin with \"HBF\"")]
    NotForwarded,
    #[error("a body of version {0}, which this version does not know; update this instance")]
    Version(u8),
    #[error("the {0} end too early")]
    Short(&'static str),
    #[error("there is more than what the readings use: {0}")]
    Rest(&'static str),
    #[error("a text among the {0} is not UTF-8")]
    Utf8(&'static str),
    #[error("the {0} refer to something that is not there")]
    NoSuch(&'static str),
    #[error("unknown kind of a value: {0}")]
    Kind(u8),
    #[error("a value is not finite")]
    NotFinite,
    #[error("there are more than {1} {0}")]
    TooMany(&'static str, usize),
}

/// A section, as far as it was not read.
#[derive(Debug, Clone, Copy)]
struct Section<'b> {
    rest: &'b [u8],
    what: &'static str,
}

impl<'b> Section<'b> {
    fn byte(&mut self) -> Result<u8, InvalidBody> {
        let (first, rest) = self
            .rest
            .split_first()
            .ok_or(InvalidBody::Short(self.what))?;
        self.rest = rest;
        Ok(*first)
    }

    /// More than 64 bits are cut off.
    fn varint(&mut self) -> Result<u64, InvalidBody> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(InvalidBody::Short(self.what))
    }

    fn signed(&mut self) -> Result<i64, InvalidBody> {
        let zigzag = self.varint()?;
        Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed())
    }

    fn index(&mut self, len: usize) -> Result<usize, InvalidBody> {
        let index = usize::try_from(self.varint()?).ok();
        index
            .filter(|index| *index < len)
            .ok_or(InvalidBody::NoSuch(self.what))
    }

    fn take(&mut self, bytes: u64) -> Result<&'b [u8], InvalidBody> {
        let bytes = usize::try_from(bytes).ok();
        let (taken, rest) = bytes
            .and_then(|bytes| self.rest.split_at_checked(bytes))
            .ok_or(InvalidBody::Short(self.what))?;
        self.rest = rest;
        Ok(taken)
    }

    fn text(&mut self) -> Result<&'b str, InvalidBody> {
        let bytes = self.varint()?;
        let bytes = self.take(bytes)?;
        std::str::from_utf8(bytes).map_err(|_| InvalidBody::Utf8(self.what))
    }

    fn limit(&self, len: usize, max: usize) -> Result<(), InvalidBody> {
        match len < max {
            true => Ok(()),
            false => Err(InvalidBody::TooMany(self.what, max)),
        }
    }

    fn section(&mut self, what: &'static str) -> Result<Section<'b>, InvalidBody> {
        self.what = what;
        let bytes = self.varint()?;
        let rest = self.take(bytes)?;
        Ok(Section { rest, what })
    }

    fn end(&self) -> Result<(), InvalidBody> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(InvalidBody::Rest(self.what)),
        }
    }
}

/// A sensor of a body.
#[derive(Debug)]
pub(super) struct Sensor<'b> {
    pub(super) id: &'b str,
    /// Not parsed, because most have none, and they could take much memory.
    tags: Section<'b>,
    /// The schema of its last reading.
    schema: Option<u32>,
    /// The values of that reading.
    last: Vec<Last>,
}

impl<'b> Sensor<'b> {
    pub(super) fn tags(&self) -> impl Iterator<Item = (&'b str, &'b str)> {
        let mut rest = self.tags;
        std::iter::from_fn(move || Some((rest.text().ok()?, rest.text().ok()?)))
    }
}

/// A body, and its current reading.
#[derive(Debug)]
pub(super) struct Body<'b> {
    names: Vec<&'b str>,
    schemas: Vec<Box<[u16]>>,
    sensors: Vec<Sensor<'b>>,
    heads: Section<'b>,
    times: Section<'b>,
    kinds: Section<'b>,
    numbers: Section<'b>,
    texts: Section<'b>,
    at: usize,
    /// The time of the current reading, in milliseconds since 1970.
    pub(super) ts_ms: i64,
    /// How many equal ones came before it.
    pub(super) repeat: u32,
}

impl<'b> Body<'b> {
    pub(super) fn parse(payload: &'b [u8]) -> Result<Body<'b>, InvalidBody> {
        let (magic, rest) = payload
            .split_first_chunk::<4>()
            .ok_or(InvalidBody::NotForwarded)?;
        if magic[..3] != MAGIC[..3] {
            return Err(InvalidBody::NotForwarded);
        }
        if *magic != MAGIC {
            return Err(InvalidBody::Version(magic[3]));
        }
        let mut all = Section { rest, what: "body" };
        let mut section = all.section("names")?;
        let mut names = vec![];
        while !section.rest.is_empty() {
            section.limit(names.len(), NAMES_MAX)?;
            names.push(section.text()?);
        }
        let mut section = all.section("schemas")?;
        let mut schemas = vec![];
        while !section.rest.is_empty() {
            section.limit(schemas.len(), SCHEMAS_MAX)?;
            let fields = section.varint()?;
            // Each takes a byte, so the count needs no limit.
            let fields = (0..fields).map(|_| Ok(section.index(names.len())? as u16));
            schemas.push(fields.collect::<Result<_, InvalidBody>>()?);
        }
        let mut section = all.section("sensors")?;
        let mut sensors = vec![];
        while !section.rest.is_empty() {
            section.limit(sensors.len(), SENSORS_MAX)?;
            let id = section.text()?;
            let tags = section.section("sensors")?;
            let mut checked = tags;
            while !checked.rest.is_empty() {
                checked.text()?;
                checked.text()?;
            }
            sensors.push(Sensor {
                id,
                tags,
                schema: None,
                last: vec![],
            });
        }
        let body = Body {
            names,
            schemas,
            sensors,
            heads: all.section("heads")?,
            times: all.section("times")?,
            kinds: all.section("kinds")?,
            numbers: all.section("numbers")?,
            texts: all.section("texts")?,
            at: usize::MAX,
            ts_ms: 0,
            repeat: 0,
        };
        all.what = "bytes behind the texts";
        all.end()?;
        Ok(body)
    }

    /// The sensor of the current reading.
    pub(super) fn sensor(&self) -> &Sensor<'b> {
        &self.sensors[self.at]
    }

    /// Reads the next reading, its values into `values`; `false` at the end.
    pub(super) fn read(
        &mut self,
        values: &mut Vec<(&'b str, ValueRef<'b>)>,
    ) -> Result<bool, InvalidBody> {
        values.clear();
        if self.heads.rest.is_empty() {
            let sections = [&self.times, &self.kinds, &self.numbers, &self.texts];
            sections.into_iter().try_for_each(Section::end)?;
            return Ok(false);
        }
        // The first reading comes after one of the sensor before the first.
        let step = self.heads.signed()?.wrapping_add(1);
        let at = (self.at as i64).wrapping_add(step);
        let no_sensor = InvalidBody::NoSuch(self.heads.what);
        self.at = usize::try_from(at).map_err(|_| no_sensor)?;
        let sensor = self.sensors.get_mut(self.at).ok_or(no_sensor)?;
        let flags = self.heads.byte()?;
        if flags & OTHER_SCHEMA != 0 {
            let schema = self.heads.index(self.schemas.len())?;
            sensor.schema = Some(schema as u32);
            sensor.last.clear();
            sensor.last.resize(self.schemas[schema].len(), Last::NONE);
        }
        let schema = sensor.schema.ok_or(InvalidBody::NoSuch(self.heads.what))?;
        let schema = &self.schemas[schema as usize];
        self.repeat = match flags & REPEATS {
            0 => 0,
            _ => u32::try_from(self.heads.varint()?)
                .map_err(|_| InvalidBody::NoSuch(self.heads.what))?,
        };
        self.ts_ms = self.ts_ms.wrapping_add(self.times.signed()?);
        for (name, last) in schema.iter().zip(&mut sensor.last) {
            let kind = self.kinds.byte()?;
            let value = match kind {
                0..=kind::DIGITS_MAX => {
                    let number = last.base(kind).wrapping_add(self.numbers.signed()?);
                    *last = Last { kind, number };
                    ValueRef::Double(number as f64 / PER_ONE[usize::from(kind)])
                }
                kind::DOUBLE => {
                    let bytes = self.texts.take(8)?.first_chunk();
                    let bits = bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
                    let value = f64::from_bits(bits);
                    if !value.is_finite() {
                        return Err(InvalidBody::NotFinite);
                    }
                    ValueRef::Double(value)
                }
                kind::INT => {
                    let number = last.base(kind).wrapping_add(self.numbers.signed()?);
                    *last = Last { kind, number };
                    ValueRef::Int(number)
                }
                kind::FALSE => ValueRef::Bool(false),
                kind::TRUE => ValueRef::Bool(true),
                kind::TEXT => {
                    let bytes = self.numbers.varint()?;
                    let bytes = self.texts.take(bytes)?;
                    let text = std::str::from_utf8(bytes);
                    ValueRef::Str(text.map_err(|_| InvalidBody::Utf8(self.texts.what))?)
                }
                other => return Err(InvalidBody::Kind(other)),
            };
            values.push((self.names[usize::from(*name)], value));
        }
        Ok(true)
    }
}
