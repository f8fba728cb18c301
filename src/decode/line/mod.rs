//! InfluxDB's line protocol: `measurement[,tag=value…] field=value[,field=value…] [time]`, one reading a line.
//!
//! The sensor is the value of the tag that `line.sensor_id_tag` names, which is then no tag; without it, the topic's
//! sensor; without that, the series itself: measurement and sorted tags as `cpu,cpu=cpu0,host=a`, with `\` before each
//! `,`, `=` and `\` of a name, so that no two series can become one sensor. The other tags are tags.
//!
//! A line that is well-formed is read in one pass; its names and texts are borrowed from the payload unless they hold
//! escapes, so nothing is allocated for it. A line that is not costs itself alone: `scan::line_end` says where it ends,
//! which is a question only where a text in quotes goes over several lines.
//!
//! What InfluxDB refuses is refused: a tag without a value, a line without a field. What it takes on one of its ways is
//! taken: texts with line breaks, exponents without a sign, `=` in a tag's value, carriage returns, a byte order mark.

mod scan;
mod template;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use self::scan::{FIELD_KEY, MEASUREMENT, TAG_KEY, TAG_VALUE, Word};
use self::template::{Slot, Template};
use super::names::{self, excerpt};
use super::quota::Quota;
use super::reading::add_value;
use super::rejects::{Fault, Rejects};
use super::template::Templates;
use super::{Context, reasons, time};
use crate::model::{BatchBuilder, ValueRef};

/// Characters that a name in a sensor's id has a `\` before.
const ID_ESCAPED: [char; 3] = ['\\', ',', '='];

pub(super) fn decode(payload: &[u8], cx: &Context<'_>, out: &mut BatchBuilder, rejects: &mut Rejects) {
    let bytes = payload.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(payload);
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    match std::str::from_utf8(bytes) {
        Ok(text) => Walk::new(text, None, cx, out).run(rejects),
        Err(_) => Walk::new(&patched(bytes), Some(bytes), cx, out).run(rejects),
    }
}

/// The physical line of a payload that a reject's index names, without its end and at most `chars_max` characters of it.
pub fn quote_lines(payload: &[u8], indexes: impl Iterator<Item = usize>, chars_max: usize) -> Vec<String> {
    let mut lines = payload.split(|b| *b == b'\n').enumerate();
    let mut quoted = Vec::new();
    for index in indexes {
        let line = lines.by_ref().find(|(i, _)| *i == index).map_or(&b""[..], |(_, line)| line);
        // No character has more than four bytes; the rest of a long line need not be looked at.
        let head = &line[..line.len().min(chars_max.saturating_mul(4))];
        quoted.push(String::from_utf8_lossy(head.trim_ascii_end()).chars().take(chars_max).collect());
    }
    quoted
}

/// The text with a `?` for every byte that is no UTF-8, so that each line stands where it stood, and only those that hold
/// such a byte are lost.
fn patched(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    text
}

fn bad(detail: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(reasons::INVALID_LINE, detail)
}

/// Which line of the payload a place is in, from 0; counted on from the last one that was asked for, since most payloads
/// have no line to speak of.
#[derive(Debug, Default)]
struct LineNumbers {
    at: usize,
    line: usize,
}

impl LineNumbers {
    fn of(&mut self, bytes: &[u8], at: usize) -> usize {
        self.line += scan::newlines(&bytes[self.at..at]);
        self.at = at;
        self.line
    }
}

/// A walk over the lines of a payload.
struct Walk<'a, 't> {
    text: &'t str,
    /// The payload, where it is not UTF-8 throughout.
    original: Option<&'t [u8]>,
    cx: &'a Context<'a>,
    out: &'a mut BatchBuilder,
    /// Of the line at hand, like what follows; kept for their memory.
    tags: Vec<(Cow<'t, str>, Cow<'t, str>)>,
    sensor: Option<Cow<'t, str>>,
    measurement: Cow<'t, str>,
    /// Where a sensor's id, and a field's name with its prefix, are put together.
    id: String,
    name: String,
    /// What the lines look like, and where in the one at hand what a template leaves open stands.
    templates: Templates<Template>,
    slots: Vec<(Slot, usize, usize)>,
}

impl<'a, 't> Walk<'a, 't> {
    fn new(text: &'t str, original: Option<&'t [u8]>, cx: &'a Context<'a>, out: &'a mut BatchBuilder) -> Walk<'a, 't> {
        let (id, name) = (String::new(), String::new());
        let (templates, slots) = (Templates::default(), Vec::new());
        let mut walk = Walk {
            text,
            original,
            cx,
            out,
            tags: Vec::new(),
            sensor: None,
            measurement: "".into(),
            id,
            name,
            templates,
            slots,
        };
        // Those that get more tags than they have, or that must be looked at for bytes that are no text, are not compared.
        if original.is_some() || !cx.tags.is_empty() {
            walk.templates.give_up();
        }
        walk
    }

    fn run(&mut self, rejects: &mut Rejects) {
        let bytes = self.text.as_bytes();
        let mut quota = Quota::new(self.cx.limits);
        let (mut at, mut lines) = (0, LineNumbers::default());
        loop {
            let begin = scan::skip_blank(bytes, at);
            let end = match bytes.get(begin) {
                None => break,
                Some(b'\n') => begin,
                Some(b'#') => scan::newline(bytes, begin),
                Some(_) if quota.is_used_up() => {
                    quota.refuse(lines.of(bytes, begin));
                    scan::line_end(bytes, begin)
                }
                Some(_) => match self.reading(begin) {
                    Ok(end) => {
                        quota.took();
                        end
                    }
                    Err(fault) => {
                        self.out.abort();
                        let line = lines.of(bytes, begin);
                        let told = !rejects.is_full();
                        let detail = if told { format!("line {}: {}", line + 1, fault.detail) } else { String::new() };
                        rejects.push(line, fault.reason, detail);
                        scan::line_end(bytes, begin)
                    }
                },
            };
            at = end + 1;
        }
        quota.close_with(rejects, |n, from, max| {
            format!("line {}: {n} lines, from this one on, are beyond the {max} of one payload", from + 1)
        });
    }

    /// Takes the line at `begin` and gives its end, the place of its line break or of the end of the payload.
    fn reading(&mut self, begin: usize) -> Result<usize, Fault> {
        let (text, cx, out, id) = (self.text, self.cx, &mut *self.out, &mut self.id);
        if let Some(end) = self.templates.find(|template| template.fill(text, begin, cx, out, id)) {
            return Ok(end);
        }
        self.out.begin();
        self.tags.clear();
        self.slots.clear();
        self.sensor = None;
        let at = self.series(begin)?;
        let at = self.fields(at)?;
        let (ts_ms, receipt_time, end) = self.time(at)?;
        if self.original.is_some_and(|bytes| std::str::from_utf8(&bytes[begin..end]).is_err()) {
            return Err(Fault::new(reasons::INVALID_UTF8, "the line is not UTF-8"));
        }
        // Of the last one nothing needs to be known. The commit puts the tags into another order.
        let learns = self.templates.learns() && end < self.text.len();
        let keys = if learns { self.tags.iter().map(|(key, _)| key.clone()).collect() } else { Vec::new() };
        self.commit(ts_ms, receipt_time)?;
        if learns {
            self.learn(begin, keys);
        }
        Ok(end)
    }

    /// Keeps what the line at `begin` looked like, which was just committed and has these tags.
    fn learn(&mut self, begin: usize, keys: Vec<Cow<'t, str>>) {
        let limits = self.cx.limits;
        let stored = |raw: Cow<'t, str>| Some((raw.clone(), names::stored(raw, limits).ok()?));
        let keys = keys.into_iter().map(stored).collect::<Option<Vec<_>>>();
        let template = keys.and_then(|keys| {
            Template::of(&template::Line {
                text: self.text,
                begin,
                slots: &self.slots,
                measurement: &self.measurement,
                keys: &keys,
                sensor_tag: self.sensor.is_some(),
                topic: self.cx.sensor_id.is_some(),
                schema: self.out.committed_shape(),
            })
        });
        self.templates.learn(template);
    }

    /// Measurement and tags; gives the place behind them.
    fn series(&mut self, at: usize) -> Result<usize, Fault> {
        let (text, bytes) = (self.text, self.text.as_bytes());
        let word = Word::read(text, at, &MEASUREMENT);
        self.measurement = word.text(&MEASUREMENT);
        if word.raw.is_empty() {
            return Err(bad("the measurement is missing"));
        }
        let tags_max = self.cx.limits.tags_max.min(names::TAGS_MAX);
        let mut at = word.end;
        while bytes.get(at) == Some(&b',') {
            let key = Word::read(text, at + 1, &TAG_KEY);
            if bytes.get(key.end) != Some(&b'=') || key.raw.is_empty() {
                let detail = format!("behind {} a tag should follow, as name=value", excerpt(&text[word.start..at]));
                return Err(bad(detail));
            }
            let value = Word::read(text, key.end + 1, &TAG_VALUE);
            if value.raw.is_empty() {
                return Err(bad(format!("the tag {} has no value", excerpt(key.raw))));
            }
            at = value.end;
            let (begin, key, value) = (value.start, key.text(&TAG_KEY), value.text(&TAG_VALUE));
            if *key == *self.cx.line.sensor_id_tag {
                self.slots.push((Slot::Sensor, begin, at));
                if self.sensor.replace(value).is_some() {
                    return Err(twice(&key));
                }
            } else if self.tags.len() < tags_max {
                self.slots.push((Slot::Tag(self.tags.len() as u8), begin, at));
                self.tags.push((key, value));
            } else {
                return Err(names::too_many_tags(tags_max));
            }
        }
        Ok(at)
    }

    /// The fields, into the builder; gives the place behind them.
    fn fields(&mut self, at: usize) -> Result<usize, Fault> {
        let (text, bytes, limits) = (self.text, self.text.as_bytes(), self.cx.limits);
        let mut at = scan::skip_blank(bytes, at);
        if matches!(bytes.get(at), None | Some(b'\n')) {
            return Err(bad(format!("no field behind {}", excerpt(&self.measurement))));
        }
        loop {
            let key = Word::read(text, at, &FIELD_KEY);
            if bytes.get(key.end) != Some(&b'=') || key.raw.is_empty() {
                return Err(bad(format!("{} is no field; it should be name=value", excerpt(scan::rest(text, at)))));
            }
            let key_end = key.end;
            let key = key.text(&FIELD_KEY);
            let owned;
            let (value, end) = if bytes.get(key_end + 1) == Some(&b'"') {
                let (content, end) = scan::quoted(text, key_end + 1)
                    .ok_or_else(|| bad(format!("the text of {} is not closed, or goes on behind", excerpt(&key))))?;
                names::check_text(&key, &content, limits)?;
                owned = content;
                (ValueRef::Str(&owned), end)
            } else {
                let (literal, end) = scan::bare(text, key_end + 1);
                (scan::value(literal).map_err(|reason| unusable(reason, &key, literal))?, end)
            };
            let name: &str = if self.cx.line.field_prefix {
                self.name.clear();
                self.name.extend([&*self.measurement, "_", &key]);
                &self.name
            } else {
                &key
            };
            add_value(self.out, &names::name(name, limits)?, value, limits.fields_max)?;
            self.slots.push((Slot::Value, key_end + 1, end));
            if bytes.get(end) != Some(&b',') {
                return Ok(end);
            }
            at = end + 1;
        }
    }

    /// The time, whether it is that of receipt, and the end of the line.
    fn time(&mut self, at: usize) -> Result<(i64, bool, usize), Fault> {
        let bytes = self.text.as_bytes();
        let begin = scan::skip_blank(bytes, at);
        if matches!(bytes.get(begin), None | Some(b'\n')) {
            return Ok((self.cx.received_at_ms, true, begin));
        }
        let (literal, end) = scan::bare(self.text, begin);
        self.slots.push((Slot::Time, begin, end));
        let (ts_ms, receipt_time) = time::of_line(literal, self.cx)?;
        let end = scan::skip_blank(bytes, end);
        if matches!(bytes.get(end), None | Some(b'\n')) {
            return Ok((ts_ms, receipt_time, end));
        }
        Err(bad(format!("unexpected {} behind the time", excerpt(scan::rest(self.text, end)))))
    }

    fn commit(&mut self, ts_ms: i64, receipt_time: bool) -> Result<(), Fault> {
        let (cx, limits) = (self.cx, self.cx.limits);
        let id: &str = match (&self.sensor, cx.sensor_id) {
            (Some(tag), _) => tag,
            (None, Some(id)) => id,
            (None, None) => {
                self.tags.sort_unstable();
                write_id(&mut self.id, &self.measurement, &self.tags);
                &self.id
            }
        };
        names::check_sensor_id(id, limits).map_err(|fault| match fault.reason {
            reasons::SENSOR_ID_TOO_LONG if self.sensor.is_none() && cx.sensor_id.is_none() => {
                let detail = format!("{}; line.sensor_id_tag can name a tag to use instead", fault.detail);
                Fault::new(fault.reason, detail)
            }
            _ => fault,
        })?;
        for (key, value) in &mut self.tags {
            names::check_text(key, value, limits)?;
            *key = names::stored(std::mem::take(key), limits)?;
        }
        unique(&self.tags)?;
        let out = &mut *self.out;
        names::commit(out, id, (ts_ms, receipt_time), &self.tags, cx)
    }
}

/// A series as a sensor's id.
pub(super) fn write_id(id: &mut String, measurement: &str, tags: &[(Cow<'_, str>, Cow<'_, str>)]) {
    id.clear();
    push_escaped(id, measurement);
    for (key, value) in tags {
        id.push(',');
        push_escaped(id, key);
        id.push('=');
        push_escaped(id, value);
    }
}

/// Adds a name to a sensor's id.
fn push_escaped(id: &mut String, text: &str) {
    if !text.contains(ID_ESCAPED) {
        return id.push_str(text);
    }
    for c in text.chars() {
        if ID_ESCAPED.contains(&c) {
            id.push('\\');
        }
        id.push(c);
    }
}

/// Senders that follow InfluxDB's advice sort their tags, so that mostly one look is enough.
fn unique(tags: &[(Cow<'_, str>, Cow<'_, str>)]) -> Result<(), Fault> {
    if tags.is_sorted_by(|(a, _), (b, _)| a < b) {
        return Ok(());
    }
    let again = tags.iter().enumerate().find(|(i, (key, _))| tags[..*i].iter().any(|(k, _)| k == key));
    again.map_or(Ok(()), |(_, (key, _))| Err(twice(key)))
}

fn twice(key: &str) -> Fault {
    Fault::new(reasons::DUPLICATE_KEY, format!("the tag {} comes twice", excerpt(key)))
}

fn unusable(reason: &'static str, key: &str, literal: &str) -> Fault {
    let (key, literal) = (excerpt(key), excerpt(literal));
    let detail = match reason {
        reasons::INTEGER_OUT_OF_RANGE => {
            format!("{key}: {literal} is beyond 64 bit signed integers, the largest that MongoDB has")
        }
        reasons::NOT_FINITE => format!("{key}: {literal} is no finite number"),
        _ => format!("{key}: {literal} is neither a number, a boolean nor a text in quotes"),
    };
    Fault::new(reason, detail)
}
