//! Templates of JSON readings: see [`crate::template`].

use std::ops::Range;

use crate::decimal;
use crate::reading::{Part, ReadingDecoder, Role};
use crate::split::skip_space;
use crate::swar;
use crate::template::{self, Parts, TAGS_MAX};
use crate::token::{Simple, Token, is_zero_padded};
use config::Nested;

/// The variable part between two literal parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// The sensor id, a string.
    Sensor,
    /// The time, a string or a number.
    Time,
    /// The same under one of the names in `native.time`: it must hold a time.
    MaybeTime,
    /// A tag, a string; with its index among the stored tags, which are sorted by key.
    Tag(u8),
    /// A value: a number, a string or a boolean.
    Value,
    /// After the last literal part.
    End,
}

/// The layout of one reading.
#[derive(Debug)]
struct Template {
    parts: Parts<Slot>,
    tag_keys: Vec<Box<str>>,
    schema: u32,
}

#[derive(Debug)]
pub(super) struct Templates<'de> {
    payload: &'de [u8],
    /// The payload as text, set with the first template, so that UTF-8 is checked only once.
    text: &'de str,
    templates: template::Templates<Template>,
}

impl<'de> Templates<'de> {
    pub(super) fn new(payload: &'de [u8]) -> Templates<'de> {
        Templates {
            payload,
            text: "",
            templates: template::Templates::default(),
        }
    }

    /// Commits the reading at `at` if it matches a template and `ends` accepts its end. Returns its
    /// length in bytes. Returns `None`, and commits nothing, if the reading must be decoded in
    /// full.
    // Inside its callers, its loop has fewer registers: 1 % more instructions for each reading.
    #[inline(never)]
    pub(super) fn take(
        &mut self,
        at: usize,
        decoder: &mut ReadingDecoder<'_, 'de>,
        ends: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let text = self.text.get(at..)?;
        self.templates
            .find(|template| template.fill(text, decoder, &ends))
    }

    /// Learns the layout of the reading in `place`, which was just decoded and committed.
    pub(super) fn learn(&mut self, place: Range<usize>, decoder: &ReadingDecoder<'_, 'de>) {
        if !self.templates.learns() {
            return;
        }
        if self.text.is_empty() {
            match std::str::from_utf8(self.payload) {
                Ok(text) => self.text = text,
                Err(_) => return self.templates.give_up(),
            }
        }
        self.templates.learn(
            self.text
                .get(place)
                .and_then(|text| Scan::new(text, decoder).template()),
        );
    }
}

impl Template {
    fn fill<'de>(
        &self,
        text: &'de str,
        decoder: &mut ReadingDecoder<'_, 'de>,
        ends: &impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut at = 0;
        let mut sensor_id = None;
        let mut ts = None;
        let mut tags: [(&str, &str); TAGS_MAX] = [("", ""); TAGS_MAX];
        decoder.begin_like(self.schema);
        for (literal, slot) in self.parts.iter() {
            at = template::literal_end(text.as_bytes(), at, literal)?;
            if *slot == Slot::End {
                break;
            }
            let (token, end) = token(text, at)?;
            at = end;
            match (*slot, token) {
                (Slot::Sensor, Simple::Str(id)) => sensor_id = Some(id),
                (Slot::Time, value) => ts = Some(time_token(value)?),
                (Slot::MaybeTime, value) => {
                    ts = Some(time_token(value).filter(|token| decoder.is_time(token))?)
                }
                (Slot::Tag(place), Simple::Str(text)) => tags[usize::from(place)].1 = text,
                (Slot::Value, value) => decoder.next_value(value)?,
                _ => return None,
            }
        }
        (ends(at) && decoder.commit_like(sensor_id?, ts.as_ref(), &mut tags, &self.tag_keys))
            .then_some(at)
    }
}

fn time_token(value: Simple<'_>) -> Option<Token<'_>> {
    match value {
        Simple::Str(text) => Some(Token::Str(text.into())),
        Simple::Int(v) => Some(Token::Int(v)),
        Simple::Double(v) => Some(Token::Double(v)),
        Simple::Bool(_) => None,
    }
}

/// The token at `at` and its end; `None` if it is not in the usual notation (or not a token).
fn token(text: &str, at: usize) -> Option<(Simple<'_>, usize)> {
    let rest = text.as_bytes().get(at..)?;
    match rest.first()? {
        b'"' => {
            // Up to the closing quote, an escape or a control character. (The payload is UTF-8.)
            let n = swar::find(rest, 1, 0x20, [b'"', b'\\']);
            let is_closed = rest.get(n) == Some(&b'"');
            is_closed.then_some((Simple::Str(text.get(at + 1..at + n)?), at + n + 1))
        }
        b't' if rest.starts_with(b"true") => Some((Simple::Bool(true), at + 4)),
        b'f' if rest.starts_with(b"false") => Some((Simple::Bool(false), at + 5)),
        b'-' | b'0'..=b'9' => {
            let (value, n) = number(rest).or_else(|| double(rest))?;
            Some((value, at + n))
        }
        _ => None,
    }
}

/// A number of at most 18 digits without an exponent, and its length. A number with a decimal point
/// must be exact in [`decimal::exact`].
fn number(bytes: &[u8]) -> Option<(Simple<'_>, usize)> {
    let negative = bytes[0] == b'-';
    let begin = usize::from(negative);
    let (digits, at) = swar::digits(bytes, begin);
    let whole = at - begin;
    if whole == 0 || whole > 18 || (whole > 1 && bytes[begin] == b'0') {
        return None;
    }
    let next = bytes.get(at);
    if next != Some(&b'.') {
        // Not the end: an exponent or other characters follow. A minus zero is left to the exact
        // way.
        let ends = ends_number(next);
        let value = digits as i64;
        return (ends && !(negative && digits == 0))
            .then_some((Simple::Int(if negative { -value } else { value }), at));
    }
    let point = at + 1;
    let (decimals, at) = swar::digits(bytes, point);
    let fraction = at - point;
    if fraction == 0 || whole + fraction > 18 || !ends_number(bytes.get(at)) {
        return None;
    }
    let digits = digits * decimal::POWERS_OF_TEN[fraction] + decimals;
    if negative && digits == 0 {
        return None;
    }
    let value = decimal::exact(digits, fraction)?;
    Some((Simple::Double(if negative { -value } else { value }), at))
}

/// A double in any other notation, such as all seventeen digits that many programs print. It is
/// parsed like a literal that is read the exact way.
fn double(bytes: &[u8]) -> Option<(Simple<'static>, usize)> {
    let n = bytes
        .iter()
        .position(|b| !matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'))?;
    let literal = std::str::from_utf8(&bytes[..n]).ok()?;
    let unsigned = literal.strip_prefix('-').unwrap_or(literal);
    // What the library accepts and JSON does not.
    let begins_with_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let is_json = begins_with_digit(unsigned)
        && !is_zero_padded(unsigned)
        && unsigned
            .split_once('.')
            .is_none_or(|(_, rest)| begins_with_digit(rest));
    if !is_json || !ends_number(bytes.get(n)) {
        return None;
    }
    match Token::number(literal)? {
        Token::Double(v) => Some((Simple::Double(v), n)),
        _ => None,
    }
}

fn ends_number(next: Option<&u8>) -> bool {
    matches!(next, Some(b',' | b'}' | b']' | b' '))
}

/// Parses the layout of a reading that is known to be valid.
struct Scan<'b, 'x, 'a> {
    text: &'b str,
    decoder: &'x ReadingDecoder<'a, 'b>,
    at: usize,
    /// Start of the current literal part.
    from: usize,
    template: Template,
    sensor: bool,
    /// Whether `ts` or another member is the time.
    time: bool,
    values: bool,
    loose: bool,
    tags: Vec<(Box<str>, usize)>,
}

impl<'b, 'x, 'a> Scan<'b, 'x, 'a> {
    fn new(text: &'b str, decoder: &'x ReadingDecoder<'a, 'b>) -> Scan<'b, 'x, 'a> {
        let schema = decoder.committed_schema();
        let template = Template {
            parts: Parts::default(),
            tag_keys: vec![],
            schema,
        };
        let sensor = false;
        let time = false;
        let values = false;
        let loose = false;
        Scan {
            text,
            decoder,
            at: 0,
            from: 0,
            template,
            sensor,
            time,
            values,
            loose,
            tags: vec![],
        }
    }

    fn template(mut self) -> Option<Template> {
        self.object(Self::member)?;
        // With `values`, other members do not count; and the sensor of the topic is unknown here.
        if (self.values && self.loose) || !self.sensor || self.tags.len() > TAGS_MAX {
            return None;
        }
        self.part(Slot::End, self.at)?;
        let Scan {
            mut template,
            mut tags,
            ..
        } = self;
        tags.sort();
        let mut slots: Vec<&mut Slot> = template.parts.slots_mut().collect();
        for (place, (_, part)) in tags.iter().enumerate() {
            *slots[*part] = Slot::Tag(place as u8);
        }
        template.tag_keys = tags.into_iter().map(|(key, _)| key).collect();
        Some(template)
    }

    fn member(&mut self, key: &'b str) -> Option<()> {
        match Role::classify(Part::Reading, key, self.decoder.native()) {
            Role::SensorId => {
                self.sensor = true;
                self.slot(Slot::Sensor)
            }
            // Two of them, or one that is a value: decoded in full.
            Role::Time | Role::MaybeTime(_) if self.time => None,
            Role::Time => {
                self.time = true;
                self.slot(Slot::Time)
            }
            Role::MaybeTime(_) => {
                self.time = true;
                let (token, _) = token(self.text, self.at)?;
                time_token(token).filter(|token| self.decoder.is_time(token))?;
                self.slot(Slot::MaybeTime)
            }
            Role::TimeUnit => None,
            Role::Object(Part::Tags) => self.object(|scan, key| {
                // A renamed key would sort differently.
                let plain = !key.is_empty()
                    && !key.contains(['.', '$'])
                    && !matches!(key, "ts" | "meta" | "_id");
                scan.tags.push((key.into(), scan.template.parts.len()));
                scan.slot(Slot::Tag(0)).filter(|()| plain)
            }),
            Role::Object(_) => {
                self.values = true;
                self.object(|scan, _| scan.value())
            }
            Role::LooseValue | Role::Value | Role::Tag => {
                self.loose = true;
                self.value()
            }
        }
    }

    fn object(&mut self, mut member: impl FnMut(&mut Self, &'b str) -> Option<()>) -> Option<()> {
        self.literal(b'{')?;
        self.space();
        if self.text.as_bytes().get(self.at) == Some(&b'}') {
            self.at += 1;
            return Some(());
        }
        loop {
            self.space();
            let Some((Simple::Str(key), end)) = token(self.text, self.at) else {
                return None;
            };
            self.at = end;
            self.literal(b':')?;
            self.space();
            member(self, key)?;
            self.space();
            match self.text.as_bytes().get(self.at)? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Some(());
                }
                _ => return None,
            }
        }
    }

    /// A value, or those inside of it. Only a reading whose nested values are flattened is scanned
    /// to its end.
    fn value(&mut self) -> Option<()> {
        let flattens = self.decoder.native().nested == Nested::Flatten;
        let bytes = self.text.as_bytes();
        let inner = bytes.get(skip_space(bytes, self.at + 1));
        match (bytes.get(self.at)?, inner) {
            // An empty one is left out, which the decoder counts.
            (b'{', Some(b'}')) | (b'[', Some(b']')) if flattens => None,
            (b'{', _) if flattens => self.object(|scan, _| scan.value()),
            (b'[', _) if flattens => self.array(),
            _ => self.slot(Slot::Value),
        }
    }

    fn array(&mut self) -> Option<()> {
        self.literal(b'[')?;
        loop {
            self.space();
            self.value()?;
            self.space();
            if self.literal(b',').is_none() {
                return self.literal(b']');
            }
        }
    }

    fn slot(&mut self, slot: Slot) -> Option<()> {
        let (_, end) = token(self.text, self.at)?;
        self.part(slot, self.at)?;
        (self.at, self.from) = (end, end);
        Some(())
    }

    fn part(&mut self, slot: Slot, end: usize) -> Option<()> {
        self.template
            .parts
            .push(self.text.as_bytes().get(self.from..end)?, slot)
    }

    fn literal(&mut self, byte: u8) -> Option<()> {
        self.space();
        let is = self.text.as_bytes().get(self.at) == Some(&byte);
        self.at += usize::from(is);
        is.then_some(())
    }

    fn space(&mut self) {
        self.at = skip_space(self.text.as_bytes(), self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_the_fast_way_only_if_exact() {
        fn parsed(text: &str) -> Option<(Simple<'_>, &str)> {
            number(text.as_bytes()).map(|(value, n)| (value, &text[n..]))
        }
        assert_eq!(parsed("12,"), Some((Simple::Int(12), ",")));
        assert_eq!(
            parsed("-999999999999999999}"),
            Some((Simple::Int(-999_999_999_999_999_999), "}"))
        );
        assert_eq!(parsed("0 "), Some((Simple::Int(0), " ")));
        for v in [
            0.5f64,
            22.4,
            -0.001,
            54.99999,
            900719925474.25,
            0.1234567890123456,
            123456.7,
            1e-17,
        ] {
            let text = format!("{v:?}}}");
            if let Some((Simple::Double(parsed), _)) = parsed(&text) {
                assert_eq!(parsed.to_bits(), v.to_bits(), "{text}");
            } else {
                assert!(text.contains('e') || text.len() > 17, "{text}");
            }
        }
        for text in [
            "-0,",
            "-0.0,",
            "01,",
            "1.,",
            ".5,",
            "1e3,",
            "1.5e3,",
            "1234567890123456789,",
            "1",
            "1x",
            "-",
            "- 1,",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
        assert_eq!(
            parsed("9007199254740993.5,"),
            None,
            "its digits do not fit a double exactly"
        );
    }
}
