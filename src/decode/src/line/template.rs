//! Templates of lines: see [`crate::template`].

use std::borrow::Cow;

use super::push_escaped;
use super::scan;
use crate::template::{Parts, TAGS_MAX, keyed, literal_end};
use crate::{Context, names, time};
use config::Limits;
use model::{BatchBuilder, ValueRef};

/// The variable part between two literal parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// The value of the tag that names the sensor.
    Sensor,
    /// The value of a tag, with its index in the line, or among the stored tags, which are sorted
    /// by key.
    Tag(u8),
    /// A field's value.
    Value,
    Time,
    /// After the last literal part.
    End,
}

/// The source of the sensor's id.
#[derive(Debug)]
enum Id {
    Tag,
    Topic,
    /// Measurement and tags: the text before each tag's value, in the order of the id, and the
    /// tag's index among the stored ones. (Values in slots are unescaped, so they contain no
    /// character that ends a word.)
    Series {
        begin: String,
        tags: Vec<(String, u8)>,
    },
}

/// The layout of one line.
#[derive(Debug)]
pub(super) struct Template {
    parts: Parts<Slot>,
    tag_keys: Vec<Box<str>>,
    id: Id,
    schema: u32,
}

/// A decoded line, the source of a template. `slots` are in order of position; a tag's slot holds
/// its index in `keys`.
pub(super) struct Line<'l, 't> {
    pub(super) text: &'t str,
    pub(super) begin: usize,
    pub(super) slots: &'l [(Slot, usize, usize)],
    pub(super) measurement: &'l str,
    /// Raw and stored names of the tags, in the order of the line.
    pub(super) keys: &'l [(Cow<'t, str>, Cow<'t, str>)],
    pub(super) sensor_tag: bool,
    pub(super) topic: bool,
    pub(super) schema: u32,
}

impl Template {
    /// The template of a line that was just committed; `None` if the line is too large.
    pub(super) fn learn(line: &Line<'_, '_>) -> Option<Template> {
        if line.keys.len() > TAGS_MAX {
            return None;
        }
        let mut stored: Vec<usize> = (0..line.keys.len()).collect();
        stored.sort_by(|a, b| line.keys[*a].1.cmp(&line.keys[*b].1));
        let place = |i: usize| stored.iter().position(|s| *s == i).unwrap_or_default() as u8;
        let mut parts = Parts::default();
        let mut at = line.begin;
        for &(slot, begin, end) in line.slots {
            let slot = match slot {
                Slot::Tag(i) => Slot::Tag(place(usize::from(i))),
                other => other,
            };
            parts.push(line.text.as_bytes().get(at..begin)?, slot)?;
            at = end;
        }
        parts.push(b"", Slot::End)?;
        let id = match (line.sensor_tag, line.topic) {
            (true, _) => Id::Tag,
            (false, true) => Id::Topic,
            (false, false) => {
                let mut by_raw: Vec<usize> = (0..line.keys.len()).collect();
                by_raw.sort_by(|a, b| line.keys[*a].0.cmp(&line.keys[*b].0));
                let before = |i: usize| {
                    let mut text = String::from(",");
                    push_escaped(&mut text, &line.keys[i].0);
                    (text + "=", place(i))
                };
                let mut begin = String::new();
                push_escaped(&mut begin, line.measurement);
                Id::Series {
                    begin,
                    tags: by_raw.into_iter().map(before).collect(),
                }
            }
        };
        let tag_keys = stored
            .into_iter()
            .map(|i| line.keys[i].1.as_ref().into())
            .collect();
        Some(Template {
            parts,
            tag_keys,
            id,
            schema: line.schema,
        })
    }

    /// Commits the line at `begin` if it matches this template, and returns its end. `series` is a
    /// buffer for an id.
    // Inside its callers, its loop has fewer registers.
    #[inline(never)]
    pub(super) fn fill(
        &self,
        text: &str,
        begin: usize,
        cx: &Context<'_>,
        out: &mut BatchBuilder,
        series: &mut String,
    ) -> Option<usize> {
        let bytes = text.as_bytes();
        let limits = cx.limits;
        let mut at = begin;
        let mut tags: [(&str, &str); TAGS_MAX] = [("", ""); TAGS_MAX];
        let mut sensor = None;
        let mut time = (cx.received_at_ms, true);
        out.begin_like(self.schema);
        for (literal, slot) in self.parts.iter() {
            at = literal_end(bytes, at, literal)?;
            match *slot {
                Slot::Sensor => {
                    (sensor, at) = tag_value(text, at).map(|(value, end)| (Some(value), end))?
                }
                Slot::Tag(place) => (tags[usize::from(place)].1, at) = tag_value(text, at)?,
                Slot::Value => {
                    let (value, end) = value(text, at, limits)?;
                    out.next_value(value);
                    at = end;
                }
                Slot::Time => {
                    let (v, end) = scan::integer(bytes, at)?;
                    time = (time::of_line_number(v, cx).ok()?, false);
                    at = end;
                }
                Slot::End => break,
            }
        }
        let end = scan::skip_blank(bytes, at);
        if !matches!(bytes.get(end), None | Some(b'\n')) {
            return None;
        }
        let tags = keyed(&mut tags, &self.tag_keys, limits)?;
        let id = match &self.id {
            Id::Tag => sensor?,
            Id::Topic => cx.sensor_id?,
            Id::Series { begin, tags: of_id } => {
                series.clear();
                series.push_str(begin);
                for (before, place) in of_id {
                    series.push_str(before);
                    push_escaped(series, tags[usize::from(*place)].1);
                }
                series
            }
        };
        names::check_sensor_id(id, limits).ok()?;
        out.commit(id, time.0, time.1, tags).ok()?;
        Some(end)
    }
}

/// A tag's value, if it has no escapes.
fn tag_value(text: &str, at: usize) -> Option<(&str, usize)> {
    let end = scan::plain_tag_value(text.as_bytes(), at)?;
    text.get(at..end)
        .filter(|value| !value.is_empty())
        .map(|value| (value, end))
}

/// A field's value, if it can be borrowed.
fn value<'t>(text: &'t str, at: usize, limits: &Limits) -> Option<(ValueRef<'t>, usize)> {
    if text.as_bytes().get(at) != Some(&b'"') {
        if let Some(simple) = scan::simple(text.as_bytes(), at) {
            return Some(simple);
        }
        let (literal, end) = scan::bare(text, at);
        return Some((scan::value(literal).ok()?, end));
    }
    match scan::quoted(text, at)? {
        (Cow::Borrowed(content), end) if content.len() <= limits.string_max_bytes => {
            Some((ValueRef::Str(content), end))
        }
        _ => None,
    }
}
