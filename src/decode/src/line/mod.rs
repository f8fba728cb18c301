//! InfluxDB line protocol: `measurement[,tag=value…] field=value[,field=value…] [time]`, one
//! reading per line.
//!
//! The sensor is the value of the tag that `line.sensor_id_tag` names; this tag is then not stored
//! as a tag. If it is missing, the sensor comes from the topic. Otherwise the sensor is the series
//! itself: measurement and sorted tags as in `cpu,cpu=cpu0,host=a`, with `\` before each `,`, `=`
//! and `\` of a name, so that two series never become one sensor. The other tags are tags.
//!
//! A well-formed line is decoded in one pass. Its names and texts are borrowed from the payload
//! unless they contain escapes, so it allocates nothing. A malformed line rejects only itself:
//! `scan::line_end` finds its end, which is not obvious only if a quoted text spans several lines.
//!
//! The decoder rejects what InfluxDB rejects: a tag without a value, a line without a field. It
//! accepts what any of InfluxDB's parsers accepts: texts with line breaks, exponents without a
//! sign, `=` in a tag's value, carriage returns.

mod scan;
mod template;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use self::scan::{FIELD_KEY, MEASUREMENT, TAG_KEY, TAG_VALUE, Word};
use self::template::{Slot, Template};
use super::names::{self, excerpt};
use super::padding::unpadded;
use super::quota::Quota;
use super::reading::add_value;
use super::rejects::{Fault, LeftOut, Rejects};
use super::split::skip_between;
use super::template::Templates;
use super::time::{Origin, Stamp};
use super::{Context, RejectReason, time};
use model::{BatchBuilder, ValueRef};

/// Characters that are escaped with `\` in a sensor's id.
const ID_ESCAPED: [char; 3] = ['\\', ',', '='];

pub(super) fn decode(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    match std::str::from_utf8(payload) {
        Ok(text) => Walk::new(text, None, cx, out).run(rejects),
        Err(_) => Walk::new(&patched(payload), Some(payload), cx, out).run(rejects),
    }
}

/// The physical lines of a payload that the indexes of rejects name, without line ends, each cut
/// after `chars_max` characters.
pub fn quote_lines(
    payload: &[u8],
    indexes: impl Iterator<Item = usize>,
    chars_max: usize,
) -> Vec<String> {
    let mut lines = unpadded(payload).split(|b| *b == b'\n').enumerate();
    let mut quoted = Vec::new();
    for index in indexes {
        let line = lines
            .by_ref()
            .find(|(i, _)| *i == index)
            .map_or(&b""[..], |(_, line)| line);
        // A character has at most four bytes, so the rest of a long line is not needed.
        let head = &line[..line.len().min(chars_max.saturating_mul(4))];
        quoted.push(
            String::from_utf8_lossy(head.trim_ascii_end())
                .chars()
                .take(chars_max)
                .collect(),
        );
    }
    quoted
}

/// The text with a `?` for every byte that is not UTF-8. All lines keep their positions, and only
/// lines with such bytes are rejected.
fn patched(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '?'));
    }
    text
}

fn bad(detail: impl Into<Cow<'static, str>>) -> Fault {
    Fault::new(RejectReason::InvalidLine, detail)
}

/// Converts offsets to line numbers, from 0. Counting continues from the previous call, because
/// most payloads have no line to report.
#[derive(Debug, Default)]
struct LineNumbers {
    at: usize,
    line: usize,
}

impl LineNumbers {
    fn count_to(&mut self, bytes: &[u8], at: usize) -> usize {
        self.line += scan::newlines(&bytes[self.at..at]);
        self.at = at;
        self.line
    }
}

/// A walk over the lines of a payload.
struct Walk<'a, 't> {
    text: &'t str,
    /// The original payload, if it is not valid UTF-8.
    original: Option<&'t [u8]>,
    cx: &'a Context<'a>,
    out: &'a mut BatchBuilder,
    /// Data of the current line, like the next two; kept to reuse their memory.
    tags: Vec<(Cow<'t, str>, Cow<'t, str>)>,
    sensor: Option<Cow<'t, str>>,
    measurement: Cow<'t, str>,
    /// Buffers for composing a sensor's id, and a field's name with its prefix.
    id: String,
    name: String,
    /// Fields of the current line whose texts are too long to be stored.
    unstored: Vec<String>,
    /// Those of the committed lines.
    left_out: LeftOut,
    /// The templates of earlier lines, and the positions of the variable parts in the current line.
    templates: Templates<Template>,
    slots: Vec<(Slot, usize, usize)>,
}

impl<'a, 't> Walk<'a, 't> {
    fn new(
        text: &'t str,
        original: Option<&'t [u8]>,
        cx: &'a Context<'a>,
        out: &'a mut BatchBuilder,
    ) -> Walk<'a, 't> {
        let id = String::new();
        let name = String::new();
        let templates = Templates::default();
        let slots = Vec::new();
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
            unstored: Vec::new(),
            left_out: LeftOut::default(),
            templates,
            slots,
        };
        // Lines that get more tags from the context, or that must be checked for invalid UTF-8, do
        // not use templates.
        if original.is_some() || !cx.tags.is_empty() {
            walk.templates.give_up();
        }
        walk
    }

    fn run(&mut self, rejects: &mut Rejects) {
        let bytes = self.text.as_bytes();
        let mut quota = Quota::new(self.cx.limits);
        let mut at = 0;
        let mut lines = LineNumbers::default();
        loop {
            let begin = skip_between(bytes, at);
            let end = match bytes.get(begin) {
                None => break,
                Some(b'#') => scan::newline(bytes, begin),
                Some(_) if quota.is_used_up() => {
                    quota.refuse(lines.count_to(bytes, begin));
                    scan::line_end(bytes, begin)
                }
                Some(_) => match self.reading(begin) {
                    Ok(end) => {
                        quota.took();
                        end
                    }
                    Err(fault) => {
                        self.out.abort();
                        let line = lines.count_to(bytes, begin);
                        let is_listed = !rejects.is_full();
                        let detail = if is_listed {
                            format!("line {}: {}", line + 1, fault.detail)
                        } else {
                            String::new()
                        };
                        rejects.push(line, fault.reason, detail);
                        scan::line_end(bytes, begin)
                    }
                },
            };
            at = end + 1;
        }
        rejects.leave_out(std::mem::take(&mut self.left_out));
        quota.close_with(rejects, |n, from, max| {
            format!(
                "line {}: {n} lines, starting with this one, exceed the limit of {max} in one \
                payload",
                from + 1
            )
        });
    }

    /// Decodes the line at `begin`. Returns its end: the offset of its line break or the end of the
    /// payload.
    fn reading(&mut self, begin: usize) -> Result<usize, Fault> {
        let text = self.text;
        let cx = self.cx;
        let out = &mut *self.out;
        let id = &mut self.id;
        if let Some(end) = self
            .templates
            .find(|template| template.fill(text, begin, cx, out, id))
        {
            return Ok(end);
        }
        self.out.begin();
        self.tags.clear();
        self.slots.clear();
        self.unstored.clear();
        self.sensor = None;
        let at = self.series(begin)?;
        let at = self.fields(at)?;
        let (stamp, end) = self.time(at)?;
        if self
            .original
            .is_some_and(|bytes| std::str::from_utf8(&bytes[begin..end]).is_err())
        {
            return Err(Fault::new(
                RejectReason::InvalidUtf8,
                "the line is not UTF-8",
            ));
        }
        // No line follows the last one, so nothing is learned from it, and a template has a value
        // for each field. The keys are copied because the commit sorts the tags.
        let learns = self.templates.learns() && end < self.text.len() && self.unstored.is_empty();
        let keys = if learns {
            self.tags.iter().map(|(key, _)| key.clone()).collect()
        } else {
            Vec::new()
        };
        self.commit(stamp)?;
        for name in &self.unstored {
            self.left_out.add(name, 1);
        }
        if learns {
            self.out
                .reserve_like_last((text.len() - end) / (end + 1 - begin));
            self.learn(begin, keys);
        }
        Ok(end)
    }

    /// Keeps the template of the line at `begin`, which was just committed and has these tags.
    fn learn(&mut self, begin: usize, keys: Vec<Cow<'t, str>>) {
        let stored = |raw: Cow<'t, str>| Some((raw.clone(), names::stored(raw, self.cx).ok()?));
        let keys = keys.into_iter().map(stored).collect::<Option<Vec<_>>>();
        let template = keys.and_then(|keys| {
            Template::learn(&template::Line {
                text: self.text,
                begin,
                slots: &self.slots,
                measurement: &self.measurement,
                keys: &keys,
                sensor_tag: self.sensor.is_some(),
                topic: self.cx.sensor_id.is_some(),
                schema: self.out.committed_schema(),
            })
        });
        self.templates.learn(template);
    }

    /// Parses measurement and tags; returns the offset after them.
    fn series(&mut self, at: usize) -> Result<usize, Fault> {
        let text = self.text;
        let bytes = self.text.as_bytes();
        let word = Word::scan(text, at, &MEASUREMENT);
        self.measurement = word.text(&MEASUREMENT);
        if word.raw.is_empty() {
            return Err(bad("the measurement is missing"));
        }
        let tags_max = self.cx.limits.tags_max.min(names::TAGS_MAX);
        let mut at = word.end;
        while bytes.get(at) == Some(&b',') {
            let key = Word::scan(text, at + 1, &TAG_KEY);
            if bytes.get(key.end) != Some(&b'=') || key.raw.is_empty() {
                let detail = format!(
                    "after {} a tag is expected, as name=value",
                    excerpt(&text[word.start..at])
                );
                return Err(bad(detail));
            }
            let value = Word::scan(text, key.end + 1, &TAG_VALUE);
            if value.raw.is_empty() {
                return Err(bad(format!("the tag {} has no value", excerpt(key.raw))));
            }
            at = value.end;
            let begin = value.start;
            let key = key.text(&TAG_KEY);
            let value = value.text(&TAG_VALUE);
            if *key == *self.cx.line.sensor_id_tag {
                self.slots.push((Slot::Sensor, begin, at));
                if self.sensor.replace(value).is_some() {
                    return Err(twice(&key));
                }
            } else if self.tags.len() < tags_max {
                self.slots
                    .push((Slot::Tag(self.tags.len() as u8), begin, at));
                self.tags.push((key, value));
            } else {
                return Err(names::too_many_tags(tags_max));
            }
        }
        Ok(at)
    }

    /// Parses the fields into the builder; returns the offset after them. A text that is too long
    /// does not cost the numbers beside it: agents such as Home Assistant send whole states.
    fn fields(&mut self, at: usize) -> Result<usize, Fault> {
        let text = self.text;
        let bytes = self.text.as_bytes();
        let limits = self.cx.limits;
        let mut at = scan::skip_blank(bytes, at);
        if matches!(bytes.get(at), None | Some(b'\n')) {
            return Err(bad(format!(
                "no field after {}",
                excerpt(&self.measurement)
            )));
        }
        let mut too_long = None;
        loop {
            let key = Word::scan(text, at, &FIELD_KEY);
            if bytes.get(key.end) != Some(&b'=') || key.raw.is_empty() {
                return Err(bad(format!(
                    "{} is not a field; expected name=value",
                    excerpt(scan::rest(text, at))
                )));
            }
            let key_end = key.end;
            let key = key.text(&FIELD_KEY);
            let owned;
            let (value, end) = if bytes.get(key_end + 1) == Some(&b'"') {
                let (content, end) = scan::quoted(text, key_end + 1).ok_or_else(|| {
                    bad(format!(
                        "the text of {} is not closed, or followed by other characters",
                        excerpt(&key)
                    ))
                })?;
                owned = content;
                (ValueRef::Str(&owned), end)
            } else {
                let (literal, end) = scan::bare(text, key_end + 1);
                (
                    scan::value(literal).map_err(|reason| unusable(reason, &key, literal))?,
                    end,
                )
            };
            let name: &str = if self.cx.line.field_prefix {
                self.name.clear();
                self.name.extend([&*self.measurement, "_", &key]);
                &self.name
            } else {
                &key
            };
            let name = names::name(name, self.cx)?;
            let checked = match value {
                ValueRef::Str(text) => names::check_text(&name, text, limits),
                _ => Ok(()),
            };
            if let Err(fault) = checked {
                too_long.get_or_insert(fault);
                self.unstored.push(name.into_owned());
            } else {
                add_value(self.out, &name, value, limits.fields_max)?;
                self.slots.push((Slot::Value, key_end + 1, end));
            }
            if bytes.get(end) != Some(&b',') {
                return match too_long {
                    Some(fault) if self.out.value_count() == 0 => Err(fault),
                    _ => Ok(end),
                };
            }
            at = end + 1;
        }
    }

    /// Parses the time. Returns it and the end of the line.
    fn time(&mut self, at: usize) -> Result<(Stamp, usize), Fault> {
        let bytes = self.text.as_bytes();
        let begin = scan::skip_blank(bytes, at);
        if matches!(bytes.get(begin), None | Some(b'\n')) {
            return Ok(((self.cx.received_at_ms, Origin::Receipt), begin));
        }
        let (literal, end) = scan::bare(self.text, begin);
        self.slots.push((Slot::Time, begin, end));
        let ts_ms = time::of_line(literal, self.cx)?;
        let end = scan::skip_blank(bytes, end);
        if matches!(bytes.get(end), None | Some(b'\n')) {
            return Ok(((ts_ms, Origin::Sender), end));
        }
        Err(bad(format!(
            "unexpected {} after the time",
            excerpt(scan::rest(self.text, end))
        )))
    }

    fn commit(&mut self, stamp: Stamp) -> Result<(), Fault> {
        let cx = self.cx;
        let limits = self.cx.limits;
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
            RejectReason::SensorIdTooLong if self.sensor.is_none() && cx.sensor_id.is_none() => {
                let detail = format!(
                    "{}; set line.sensor_id_tag to use a tag instead",
                    fault.detail
                );
                Fault::new(fault.reason, detail)
            }
            _ => fault,
        })?;
        for (key, value) in &mut self.tags {
            names::check_text(key, value, limits)?;
            *key = names::stored(std::mem::take(key), self.cx)?;
        }
        unique(&self.tags)?;
        let out = &mut *self.out;
        names::commit(out, id, stamp, &self.tags, cx)
    }
}

/// Senders that follow InfluxDB's advice sort their tags, so one comparison per tag is usually
/// enough.
fn unique(tags: &[(Cow<'_, str>, Cow<'_, str>)]) -> Result<(), Fault> {
    if tags.is_sorted_by(|(a, _), (b, _)| a < b) {
        return Ok(());
    }
    let again = tags
        .iter()
        .enumerate()
        .find(|(i, (key, _))| tags[..*i].iter().any(|(k, _)| k == key));
    again.map_or(Ok(()), |(_, (key, _))| Err(twice(key)))
}

fn twice(key: &str) -> Fault {
    Fault::new(
        RejectReason::DuplicateKey,
        format!("duplicate tag {}", excerpt(key)),
    )
}

fn unusable(reason: RejectReason, key: &str, literal: &str) -> Fault {
    let key = excerpt(key);
    let literal = excerpt(literal);
    let detail = match reason {
        RejectReason::IntegerOutOfRange => {
            format!(
                "{key}: {literal} exceeds a signed 64-bit integer, the largest that MongoDB has"
            )
        }
        RejectReason::NotFinite => format!("{key}: {literal} is not a finite number"),
        _ => format!("{key}: {literal} is neither a number, a boolean nor a quoted text"),
    };
    Fault::new(reason, detail)
}

/// Writes a series as a sensor's id: measurement and tags as one text, with escapes, so that two
/// series never become one sensor.
pub(crate) fn write_id(id: &mut String, measurement: &str, tags: &[(Cow<'_, str>, Cow<'_, str>)]) {
    id.clear();
    push_escaped(id, measurement);
    for (key, value) in tags {
        id.push(',');
        push_escaped(id, key);
        id.push('=');
        push_escaped(id, value);
    }
}

/// Appends a name to a sensor's id.
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
