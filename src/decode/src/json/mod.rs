//! The native format in JSON: one object, an array of objects, or concatenated objects (NDJSON or
//! without separators).
//!
//! This module walks the array, and serde_json parses one element at a time at the current
//! position. So there is one pass, and committed readings are never undone. A broken element
//! rejects only itself: it is parsed again the exact way (see `native`). If it is not JSON at all,
//! [`super::split`] finds the start of the next one. Every byte is read a bounded number of times,
//! for any payload.

mod native;
mod template;

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr;
use serde::de::IgnoredAny;

use self::template::Templates;
use super::quota::Quota;
use super::reading::ReadingDecoder;
use super::rejects::Rejects;
use super::split::{self, DEPTH_MAX, Within, skip_between, skip_space};
use super::{Context, RejectReason};
use model::BatchBuilder;

/// Decodes an object, an array, or concatenated objects.
pub(super) fn decode(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    let bytes = &payload[skip_space(payload, 0)..];
    let mut walk = Walk::new(bytes, cx, out, rejects);
    match bytes.first() {
        None => walk
            .rejects
            .push(0, RejectReason::EmptyPayload, "the payload is empty"),
        Some(b'[') => walk.array(),
        Some(b'{') => walk.stream(),
        // Neither; the reject of the element names the type found.
        Some(_) => walk.line(0, bytes.len()),
    }
    walk.close();
}

/// Decodes one object per line.
pub(super) fn decode_lines(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    let bytes = &payload[skip_space(payload, 0)..];
    let mut walk = Walk::new(bytes, cx, out, rejects);
    if bytes.is_empty() {
        walk.rejects
            .push(0, RejectReason::EmptyPayload, "the payload is empty");
    }
    let mut at = 0;
    while at < bytes.len() {
        let end = memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |n| at + n);
        let begin = skip_between(&bytes[..end], at);
        let text_end = begin + bytes[begin..end].trim_ascii_end().len();
        at = end + 1;
        if begin == end {
            continue;
        }
        match walk.spanning(begin, text_end) {
            Some(document_end) => at = document_end,
            None => walk.line(begin, text_end),
        }
    }
    walk.reject_spanning();
    walk.close();
}

/// Where an element ended, and how.
struct Ended {
    at: usize,
    /// Whether the start of the next element is a guess.
    guessed: bool,
    /// Whether the element was not JSON.
    broken: bool,
}

/// A walk over the elements of a payload.
struct Walk<'a, 'de> {
    bytes: &'de [u8],
    decoder: ReadingDecoder<'a, 'de>,
    /// Templates of earlier readings; `None` if the context adds tags to each reading.
    templates: Option<Templates<'de>>,
    rejects: &'a mut Rejects,
    quota: Quota,
    /// The next element's index.
    index: usize,
    /// Whether the last element was read the exact way.
    exact: bool,
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

impl<'a, 'de> Walk<'a, 'de> {
    fn new(
        bytes: &'de [u8],
        cx: &'a Context<'a>,
        out: &'a mut BatchBuilder,
        rejects: &'a mut Rejects,
    ) -> Walk<'a, 'de> {
        let decoder = ReadingDecoder::new(cx, out);
        let templates = cx.tags.is_empty().then(|| Templates::new(bytes));
        Walk {
            bytes,
            decoder,
            templates,
            rejects,
            quota: Quota::new(cx.limits),
            index: 0,
            exact: false,
            spanning: Spanning::default(),
        }
    }

    fn array(&mut self) {
        let mut at = skip_space(self.bytes, 1);
        if self.bytes.get(at) == Some(&b']') {
            return self.trailing(at + 1);
        }
        let mut guessed = false;
        loop {
            if at == self.bytes.len() {
                self.reject(
                    RejectReason::InvalidJson,
                    "the array ends after a comma; expected a reading",
                );
                return;
            }
            let ended = self.element(at, Within::Array, guessed);
            guessed = ended.guessed;
            at = skip_space(self.bytes, ended.at);
            match self.bytes.get(at) {
                Some(b',') => at = skip_space(self.bytes, at + 1),
                Some(b']') => return self.trailing(at + 1),
                // A missing comma, or the guessed start of the next element.
                Some(_) => {}
                None => {
                    // If the last element is broken too, its reject is enough.
                    if !ended.broken {
                        self.reject(
                            RejectReason::InvalidJson,
                            "the array is not closed; more readings may be missing",
                        );
                    }
                    return;
                }
            }
        }
    }

    fn stream(&mut self) {
        let mut at = 0;
        let mut guessed = false;
        while at < self.bytes.len() {
            if self.bytes[at] == b'{' {
                let ended = self.element(at, Within::Stream, guessed);
                (at, guessed) = (skip_between(self.bytes, ended.at), ended.guessed);
            } else {
                let end = self.bytes[at..]
                    .iter()
                    .position(|b| *b == b'{')
                    .map_or(self.bytes.len(), |n| at + n);
                self.reject_trailing(at, end);
                (at, guessed) = (end, true);
            }
        }
    }

    fn trailing(&mut self, at: usize) {
        let at = skip_space(self.bytes, at);
        if at < self.bytes.len() {
            self.reject_trailing(at, self.bytes.len());
        }
    }

    fn reject_trailing(&mut self, at: usize, end: usize) {
        let text = &self.bytes[at..end];
        self.reject_with(RejectReason::TrailingData, || {
            format!("unexpected data at byte {at}: {}", near(text, 0))
        });
    }

    /// Rejects the element at the current index.
    fn reject(&mut self, reason: RejectReason, detail: impl Into<Cow<'static, str>>) {
        self.rejects.push(self.index, reason, detail);
        self.index += 1;
    }

    /// The same, with a detail that is formatted only if it is kept.
    fn reject_with(&mut self, reason: RejectReason, detail: impl FnOnce() -> String) {
        let detail = if self.rejects.is_full() {
            String::new()
        } else {
            detail()
        };
        self.reject(reason, detail);
    }

    /// Reads the reading at the start of `bytes`. Commits nothing.
    fn attempt(&mut self, bytes: &'de [u8], exact: bool) -> serde_json::Result<usize> {
        self.exact = exact;
        native::read(bytes, exact, &mut self.decoder)
    }

    /// Commits the reading that was just parsed, or rejects it.
    fn finish(&mut self, element: Range<usize>, guessed: bool) {
        match self.decoder.finish(!guessed) {
            Ok(()) => {
                self.quota.took();
                // No reading follows the last one, so nothing is learned from it.
                let left = self.bytes.len() - element.end;
                if let Some(templates) = self.templates.as_mut().filter(|_| left > 0) {
                    self.decoder.reserve_like_last(left / element.len().max(1));
                    templates.learn(element, &self.decoder);
                }
            }
            Err(fault) => self.rejects.fault(self.index, fault),
        }
        self.index += 1;
    }

    /// Accepts the reading at `at` if it matches the template of an earlier one and `ends` accepts
    /// its end.
    fn take_like(&mut self, at: usize, ends: impl Fn(usize) -> bool) -> Option<usize> {
        let used = self.templates.as_mut()?.take(at, &mut self.decoder, ends)?;
        self.quota.took();
        self.index += 1;
        Some(used)
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

    fn is_full(&mut self) -> bool {
        let full = self.quota.refuses(self.index);
        self.index += usize::from(full);
        full
    }

    fn close(mut self) {
        self.decoder.report(self.rejects);
        self.quota.close("readings", self.rejects);
    }

    /// Decodes one line, which must be one reading.
    fn line(&mut self, at: usize, end: usize) {
        if self.is_full() {
            return;
        }
        let bytes = self.bytes;
        let line = &bytes[at..end];
        if self.take_like(at, |used| used == line.len()).is_some() {
            return;
        }
        let mut result = self.attempt(line, false);
        if result.as_ref().is_err_and(may_be_exact) {
            result = self.attempt(line, true);
        }
        match result {
            Ok(used) if used == line.len() && self.depth_allowed(line) => {
                self.finish(at..end, false)
            }
            Ok(used) => self.broken(line, used, None, split::extent(line, Within::Stream).depth),
            Err(e) => self.broken(
                line,
                offset(line, &e),
                Some(&e),
                split::extent(line, Within::Stream).depth,
            ),
        }
    }

    /// Decodes one element of an array or stream, at `at`.
    fn element(&mut self, at: usize, within: Within, guessed: bool) -> Ended {
        let bytes = self.bytes;
        let rest = &bytes[at..];
        if self.is_full() {
            let extent = split::extent(rest, within);
            return Ended {
                at: at + extent.end,
                guessed: extent.guessed,
                broken: false,
            };
        }
        if let Some(b',' | b']') = rest.first() {
            self.reject(
                RejectReason::InvalidJson,
                "expected a reading between two commas, or after the last comma",
            );
            return Ended {
                at,
                guessed: false,
                broken: true,
            };
        }
        if !guessed && let Some(n) = self.take_like(at, |n| ends_well(&rest[n..], within)) {
            return Ended {
                at: at + n,
                guessed: false,
                broken: false,
            };
        }
        let mut result = self.attempt(rest, false);
        if let Err(e) = &result {
            if let Some(n) = split::cut_within_string(rest, offset(rest, e), within) {
                return self.cut(at, n, e);
            }
            if may_be_exact(e) {
                result = self.attempt(rest, true);
            }
        }
        let (error_at, error) = match result {
            Ok(n) if ends_well(&rest[n..], within) && self.depth_allowed(&rest[..n]) => {
                self.finish(at..at + n, guessed);
                return Ended {
                    at: at + n,
                    guessed: false,
                    broken: false,
                };
            }
            Ok(n) => (n, None),
            Err(e) => {
                let error_at = offset(rest, &e);
                if let Some(n) = split::cut_within_string(rest, error_at, within) {
                    return self.cut(at, n, &e);
                }
                (error_at, Some(e))
            }
        };
        let extent = split::extent(rest, within);
        self.broken(&rest[..extent.end], error_at, error.as_ref(), extent.depth);
        Ended {
            at: at + extent.end,
            guessed: extent.guessed,
            broken: true,
        }
    }

    /// Rejects an element that was cut inside a string, after `n` bytes.
    fn cut(&mut self, at: usize, n: usize, error: &serde_json::Error) -> Ended {
        self.broken(&self.bytes[at..at + n], n, Some(error), 0);
        Ended {
            at: at + n,
            guessed: true,
            broken: true,
        }
    }

    /// Whether the last parsed element is not too deep. The parser checks this, unless it skipped
    /// members the exact way.
    fn depth_allowed(&self, element: &[u8]) -> bool {
        !self.exact || split::extent(element, Within::Stream).depth <= DEPTH_MAX
    }

    /// Rejects an element that is not JSON, with the most specific reason. Without an error, the
    /// reading itself was complete.
    fn broken(
        &mut self,
        chunk: &[u8],
        error_at: usize,
        error: Option<&serde_json::Error>,
        depth: usize,
    ) {
        if depth > DEPTH_MAX {
            let detail = || format!("nested {depth} levels deep; at most {DEPTH_MAX} are allowed");
            return self.reject_with(RejectReason::TooDeep, detail);
        }
        if let Err(e) = std::str::from_utf8(chunk) {
            let detail = || format!("not UTF-8 at byte {} of the reading", e.valid_up_to());
            return self.reject_with(RejectReason::InvalidUtf8, detail);
        }
        if let Some(word) = not_finite(chunk, error_at) {
            let detail = || {
                format!(
                    "{word} is not a number in JSON; send null or leave it out (byte {error_at}: \
                     {})",
                    near(chunk, error_at)
                )
            };
            return self.reject_with(RejectReason::NotFinite, detail);
        }
        self.reject_with(RejectReason::InvalidJson, || {
            let error = error.map_or_else(|| "unexpected data after the reading".to_owned(), text);
            format!("{error} at byte {error_at}: {}", near(chunk, error_at))
        });
    }
}

/// Whether an element may end before `rest`. In an array it may also end before the next object: a
/// missing comma is tolerated.
fn ends_well(rest: &[u8], within: Within) -> bool {
    match rest.get(skip_space(rest, 0)) {
        None | Some(b'{') => true,
        Some(b',' | b']') => within == Within::Array,
        // The stream reports what follows; the object itself is complete.
        Some(_) => within == Within::Stream,
    }
}

/// Whether a second attempt, the exact way, can succeed; it cannot if the payload is truncated.
fn may_be_exact(error: &serde_json::Error) -> bool {
    !error.is_eof()
}

/// The offset in `bytes` at which the parser failed.
pub(super) fn offset(bytes: &[u8], error: &serde_json::Error) -> usize {
    let line = match error.line().saturating_sub(1) {
        0 => 0,
        lines => bytes
            .iter()
            .enumerate()
            .filter(|(_, b)| **b == b'\n')
            .nth(lines - 1)
            .map_or(0, |(i, _)| i + 1),
    };
    // Columns count from 1.
    (line + error.column().saturating_sub(1)).min(bytes.len())
}

/// The parser's message without line and column, which count from the element and not from the
/// payload.
fn text(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// The bytes around an offset, for people.
fn near(bytes: &[u8], at: usize) -> String {
    let part = &bytes[at.saturating_sub(12).min(bytes.len())..bytes.len().min(at + 28)];
    super::names::excerpt(&String::from_utf8_lossy(part))
}

/// The word NaN or Infinity if the parser failed there: by far the most frequent cause.
pub(super) fn not_finite(bytes: &[u8], error_at: usize) -> Option<&'static str> {
    let is_word = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'+');
    let head = bytes.get(..error_at)?;
    let begin = error_at
        - head
            .iter()
            .rev()
            .take(10)
            .take_while(|b| is_word(b))
            .count();
    let word: &[u8] = &bytes[begin..];
    let word = &word[..word.iter().take(10).take_while(|b| is_word(b)).count()];
    let word = word
        .strip_prefix(b"-")
        .or(word.strip_prefix(b"+"))
        .unwrap_or(word);
    ["NaN", "Infinity", "Inf"]
        .into_iter()
        .find(|w| word.eq_ignore_ascii_case(w.as_bytes()))
}
