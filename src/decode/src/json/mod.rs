//! The native format in JSON: one object, an array of objects, or concatenated objects (NDJSON or
//! without separators).
//!
//! `elements` walks over the readings, and serde_json parses one at a time. A reading that the fast
//! way cannot parse is parsed again the exact way (see `native`).

mod native;
mod template;

use std::ops::Range;

use memchr::memchr;
use serde::de::{Error, IgnoredAny};

use self::template::Templates;
use super::elements::{self, Elements};
use super::quota::Quota;
use super::reading::ReadingDecoder;
use super::rejects::{Fault, Rejects};
use super::split::{self, DEPTH_MAX, Within, skip_between};
use super::{Context, RejectReason};
use model::BatchBuilder;

/// Decodes an object, an array, or concatenated objects.
pub(super) fn decode(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    let mut readings = Readings::new(payload, cx, out, rejects);
    elements::walk(payload, &mut readings);
    readings.close();
}

/// Decodes one object per line.
pub(super) fn decode_lines(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    let mut readings = Readings::new(payload, cx, out, rejects);
    let mut at = skip_between(payload, 0);
    if at == payload.len() {
        let what = "the payload is empty";
        readings.reject(Fault::new(RejectReason::EmptyPayload, what));
    }
    while at < payload.len() {
        let end = memchr(b'\n', &payload[at..]).map_or(payload.len(), |n| at + n);
        let begin = skip_between(&payload[..end], at);
        let text_end = begin + payload[begin..end].trim_ascii_end().len();
        at = end + 1;
        if begin == end {
            continue;
        }
        match readings.spanning(begin, text_end) {
            Some(document_end) => at = document_end,
            None => elements::only(&payload[..text_end], begin, &mut readings),
        }
    }
    readings.reject_spanning();
    readings.close();
}

/// The readings of a payload.
struct Readings<'a, 'de> {
    bytes: &'de [u8],
    decoder: ReadingDecoder<'a, 'de>,
    /// Templates of earlier readings; `None` if the context adds tags to each reading.
    templates: Option<Templates<'de>>,
    rejects: &'a mut Rejects,
    quota: Quota,
    /// The next reading's index.
    index: usize,
    spanning: Spanning,
}

/// Documents over several lines in a payload with one reading per line. They are rejected together:
/// a reject for each of their lines would hide the cause.
#[derive(Debug, Default)]
struct Spanning {
    /// The index of the first one.
    first: usize,
    count: usize,
    /// No further ones are looked for: a line was cut, and looking for its end again and again would
    /// take quadratic time.
    is_over: bool,
}

impl<'a, 'de> Readings<'a, 'de> {
    fn new(
        bytes: &'de [u8],
        cx: &'a Context<'a>,
        out: &'a mut BatchBuilder,
        rejects: &'a mut Rejects,
    ) -> Readings<'a, 'de> {
        let decoder = ReadingDecoder::new(cx, out);
        let templates = cx.tags.is_empty().then(|| Templates::new(bytes));
        Readings {
            bytes,
            decoder,
            templates,
            rejects,
            quota: Quota::new(cx.limits),
            index: 0,
            spanning: Spanning::default(),
        }
    }

    /// The end of the document at `at` if it does not end on its line. It counts as one element.
    fn spanning(&mut self, at: usize, line_end: usize) -> Option<usize> {
        let is_open = matches!(self.bytes[at..line_end], [.., b'{' | b'[' | b',']);
        if !is_open || self.spanning.is_over {
            return None;
        }
        let rest = &self.bytes[at..];
        let extent = split::extent(rest, Within::Stream);
        if at + extent.end <= line_end {
            return None;
        }
        let document = &rest[..extent.end];
        let is_whole = !extent.guessed && extent.depth <= DEPTH_MAX;
        if !is_whole || serde_json::from_slice::<IgnoredAny>(document).is_err() {
            self.spanning.is_over = true;
            return None;
        }
        if self.spanning.count == 0 {
            self.spanning.first = self.index;
        }
        self.spanning.count += 1;
        self.index += 1;
        Some(at + extent.end)
    }

    fn reject_spanning(&mut self) {
        let Spanning { first, count, .. } = self.spanning;
        if count > 0 {
            let detail = format!(
                "JSON documents over several lines ({count}); NDJSON has one object per line. Send \
                 them as JSON (application/json, format json), or without line breaks"
            );
            self.rejects
                .push_many(first, count, RejectReason::InvalidJson, detail);
        }
    }

    fn close(mut self) {
        self.decoder.report(self.rejects);
        self.quota.close("readings", self.rejects);
    }
}

impl<'de> Elements<'de> for Readings<'_, 'de> {
    const WHAT: &'static str = "reading";

    fn parse(&mut self, bytes: &'de [u8]) -> serde_json::Result<usize> {
        match native::read_reading(bytes, false, &mut self.decoder) {
            // The exact way cannot succeed with a truncated payload.
            Err(e) if !e.is_eof() => {}
            result => return result,
        }
        let n = native::read_reading(bytes, true, &mut self.decoder)?;
        // The exact way does not check the depth of the members that it skips.
        if split::extent(&bytes[..n], Within::Stream).depth > DEPTH_MAX {
            return Err(Error::custom("too deep"));
        }
        Ok(n)
    }

    fn commit(&mut self, place: Range<usize>, guessed: bool) {
        match self.decoder.finish(!guessed) {
            Ok(()) => {
                self.quota.took();
                // No reading follows the last one, so nothing is learned from it.
                let left = self.bytes.len() - place.end;
                if let Some(templates) = self.templates.as_mut().filter(|_| left > 0) {
                    self.decoder.reserve_like_last(left / place.len().max(1));
                    templates.learn(place, &self.decoder);
                }
            }
            Err(fault) => self.rejects.fault(self.index, fault),
        }
        self.index += 1;
    }

    fn reject(&mut self, fault: Fault) {
        self.rejects.fault(self.index, fault);
        self.index += 1;
    }

    fn reject_before(&mut self, fault: Fault) {
        self.rejects.fault(self.index, fault);
    }

    fn take_like(&mut self, at: usize, ends: impl Fn(usize) -> bool) -> Option<usize> {
        let used = self.templates.as_mut()?.take(at, &mut self.decoder, ends)?;
        self.quota.took();
        self.index += 1;
        Some(used)
    }

    fn refuses(&mut self) -> bool {
        let refuses = self.quota.refuses(self.index);
        self.index += usize::from(refuses);
        refuses
    }

    fn is_full(&self) -> bool {
        self.rejects.is_full()
    }
}
