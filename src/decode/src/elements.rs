//! Walks over the elements of a payload in JSON: the elements of an array, a single object, or
//! objects behind each other. Native JSON, SenML and mappings share it, so that they treat a broken
//! payload alike.
//!
//! A format parses one element at a time, at the current position. So there is one pass, and what is
//! committed is never undone. A broken element rejects only itself: [`super::split`] finds the start
//! of the next one. A comma too many, a missing comma, a missing bracket and data behind the
//! elements are one reject each; the elements around it are kept. Every byte is read a bounded
//! number of times, for any payload.

use std::ops::Range;

use memchr::memchr;

use super::RejectReason;
use super::names::excerpt;
use super::rejects::Fault;
use super::split::{self, DEPTH_MAX, Extent, Within, skip_between, skip_space};

/// What a format does with the elements.
pub(super) trait Elements<'de> {
    /// What messages call an element.
    const WHAT: &'static str;
    /// What to do about a value that JSON cannot hold.
    const INSTEAD: &'static str = "send null or leave it out";

    /// Parses the element at the start of `bytes` and returns its length. Commits nothing.
    fn parse(&mut self, bytes: &'de [u8]) -> serde_json::Result<usize>;

    /// Commits the element that was just parsed, or rejects it. `guessed`: it follows a cut element
    /// and could be a fragment of that; then it must name its own sensor.
    fn commit(&mut self, place: Range<usize>, guessed: bool);

    /// Rejects the element at the current index.
    fn reject(&mut self, fault: Fault);

    /// Adds a reject for a fault before the element at the current index.
    fn reject_before(&mut self, fault: Fault);

    /// Commits the element at `at` without [`Elements::parse`], if it is like an earlier one and
    /// `ends` accepts its length, which it returns.
    fn take_like(&mut self, _at: usize, _ends: impl Fn(usize) -> bool) -> Option<usize> {
        None
    }

    /// Whether the element at the current index is beyond a limit; then it is counted and skipped.
    fn refuses(&mut self) -> bool {
        false
    }

    /// Called before the reject of an element that is not JSON. `cut`: its end is a guess.
    fn lose(&mut self, _element: &[u8], _cut: bool) {}

    /// The reason for an error of the parser.
    fn reason(_error: &str) -> RejectReason {
        RejectReason::InvalidJson
    }

    /// Whether the details of further rejects are not kept.
    fn is_full(&self) -> bool {
        false
    }
}

/// Walks over the elements of a payload.
pub(super) fn walk<'de, E: Elements<'de>>(bytes: &'de [u8], elements: &mut E) {
    let at = skip_space(bytes, 0);
    let mut walk = Walk { bytes, elements };
    match bytes.get(at) {
        None => walk.reject(RejectReason::EmptyPayload, || {
            "the payload is empty".to_owned()
        }),
        Some(b'[') => walk.array(at + 1),
        Some(b'{') => walk.stream(at),
        // Neither; the reject of the element names the type found.
        Some(_) => drop(walk.element(at, Within::Whole, false)),
    }
}

/// Reads the bytes from `at` on, which must be one element.
pub(super) fn only<'de, E: Elements<'de>>(bytes: &'de [u8], at: usize, elements: &mut E) {
    Walk { bytes, elements }.element(at, Within::Whole, false);
}

/// What an array has before the current position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Bracket,
    Comma,
    Element,
    /// An element that is not JSON, or skipped.
    Broken,
    /// The same, and cut: here is what seems to be the start of the next one.
    Cut,
}

struct Walk<'x, 'de, E> {
    bytes: &'de [u8],
    elements: &'x mut E,
}

impl<'de, E: Elements<'de>> Walk<'_, 'de, E> {
    fn array(&mut self, mut at: usize) {
        let what = E::WHAT;
        let mut before = Before::Bracket;
        loop {
            at = skip_space(self.bytes, at);
            match (self.bytes.get(at), before) {
                // The reject of the last element is enough.
                (None, Before::Cut) => return,
                (None, _) => {
                    return self.reject(RejectReason::InvalidJson, || {
                        format!(
                            "the array is not closed: the payload ends at byte {at}; send all of \
                             it, more {what}s may be missing"
                        )
                    });
                }
                (Some(b']'), _) => {
                    if before == Before::Comma {
                        self.reject(RejectReason::InvalidJson, || {
                            format!(
                                "expected a {what} after the last comma, at byte {at}; remove that \
                                 comma"
                            )
                        });
                    }
                    return self.behind(at + 1);
                }
                (Some(b','), Before::Bracket | Before::Comma) => {
                    self.reject(RejectReason::InvalidJson, || {
                        format!("expected a {what}, not a comma, at byte {at}; remove that comma")
                    });
                    at += 1;
                }
                (Some(b','), _) => (at, before) = (at + 1, Before::Comma),
                (Some(_), _) => {
                    if before == Before::Element {
                        let fault = self.fault(RejectReason::InvalidJson, || {
                            format!(
                                "expected a comma before the {what} at byte {at}; separate {what}s \
                                 by commas: {}",
                                near(self.bytes, at)
                            )
                        });
                        self.elements.reject_before(fault);
                    }
                    (at, before) = self.element(at, Within::Array, before == Before::Cut);
                }
            }
        }
    }

    fn behind(&mut self, at: usize) {
        let at = skip_space(self.bytes, at);
        if at < self.bytes.len() {
            self.unexpected(at..self.bytes.len(), "after the array");
        }
    }

    fn stream(&mut self, mut at: usize) {
        let bytes = self.bytes;
        let mut guessed = false;
        while at < bytes.len() {
            if bytes[at] == b'{' {
                let (end, ended) = self.element(at, Within::Stream, guessed);
                (at, guessed) = (skip_between(bytes, end), ended == Before::Cut);
            } else {
                let end = memchr(b'{', &bytes[at..]).map_or(bytes.len(), |n| at + n);
                self.unexpected(at..end, "next to the objects");
                (at, guessed) = (end, true);
            }
        }
    }

    fn unexpected(&mut self, place: Range<usize>, of: &str) {
        let text = &self.bytes[place.clone()];
        self.reject(RejectReason::TrailingData, || {
            format!(
                "unexpected data {of}, at byte {}; remove it, or send one array of all {}s: {}",
                place.start,
                E::WHAT,
                near(text, 0)
            )
        });
    }

    /// Rejects the element at the current index.
    fn reject(&mut self, reason: RejectReason, detail: impl FnOnce() -> String) {
        let fault = self.fault(reason, detail);
        self.elements.reject(fault);
    }

    /// A fault, whose detail is formatted only if it is kept.
    fn fault(&self, reason: RejectReason, detail: impl FnOnce() -> String) -> Fault {
        let is_full = self.elements.is_full();
        Fault::new(reason, if is_full { String::new() } else { detail() })
    }

    /// Reads the element at `at`. Returns where it ends, and how.
    fn element(&mut self, at: usize, within: Within, guessed: bool) -> (usize, Before) {
        let rest = &self.bytes[at..];
        if self.elements.refuses() {
            let extent = split::extent(rest, within);
            return (at + extent.end, ended(extent.guessed));
        }
        let ends = |n| rest.get(n..).is_some_and(|rest| may_end(rest, within));
        if !guessed && let Some(n) = self.elements.take_like(at, ends) {
            return (at + n, Before::Element);
        }
        let (error_at, error) = match self.elements.parse(rest) {
            Ok(n) if ends(n) => {
                self.elements.commit(at..at + n, guessed);
                return (at + n, Before::Element);
            }
            Ok(n) => (n, None),
            Err(e) => (offset(rest, &e), Some(e)),
        };
        let cut_at = error
            .as_ref()
            .and_then(|_| split::cut_within_string(rest, error_at, within));
        let extent = match cut_at {
            Some(end) => Extent {
                end,
                depth: 0,
                guessed: true,
            },
            None => split::extent(rest, within),
        };
        let is_cut = extent.guessed || error.as_ref().is_some_and(serde_json::Error::is_eof);
        let element = &rest[..extent.end];
        self.elements.lose(element, is_cut);
        self.broken(element, error_at, error.as_ref(), extent.depth);
        (at + extent.end, ended(is_cut))
    }

    /// Rejects an element that is not JSON, with the most specific reason. Without an error, the
    /// element itself was complete.
    fn broken(
        &mut self,
        element: &[u8],
        error_at: usize,
        error: Option<&serde_json::Error>,
        depth: usize,
    ) {
        let what = E::WHAT;
        if depth > DEPTH_MAX {
            return self.reject(RejectReason::TooDeep, || {
                format!("nested {depth} levels deep; at most {DEPTH_MAX} are allowed")
            });
        }
        if let Err(e) = std::str::from_utf8(element) {
            return self.reject(RejectReason::InvalidUtf8, || {
                format!("not UTF-8 at byte {} of the {what}", e.valid_up_to())
            });
        }
        let text = error.map_or_else(|| format!("unexpected data after the {what}"), text);
        let (reason, text) = match not_finite(element, error_at) {
            Some(word) => {
                let text = format!("{word} is not a number in JSON; {}", E::INSTEAD);
                (RejectReason::NotFinite, text)
            }
            None if text == "number out of range" => {
                let text = format!("a number is beyond the range of a double; {}", E::INSTEAD);
                (RejectReason::NotFinite, text)
            }
            None => (E::reason(&text), text),
        };
        self.reject(reason, || {
            let near = near(element, error_at);
            format!("{text} (byte {error_at} of the {what}: {near})")
        });
    }
}

fn ended(is_cut: bool) -> Before {
    if is_cut { Before::Cut } else { Before::Broken }
}

/// Whether an element may end before `rest`. In an array it may also end before the next object: the
/// array reports the missing comma.
fn may_end(rest: &[u8], within: Within) -> bool {
    match rest.get(skip_space(rest, 0)) {
        None => true,
        Some(b'{' | b',' | b']') => within != Within::Whole,
        // The stream reports what follows; the object itself is complete.
        Some(_) => within == Within::Stream,
    }
}

/// The offset in `bytes` at which the parser failed.
fn offset(bytes: &[u8], error: &serde_json::Error) -> usize {
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
pub(super) fn text(error: &serde_json::Error) -> String {
    let mut text = error.to_string();
    text.truncate(text.find(" at line ").unwrap_or(text.len()));
    text
}

/// The bytes around an offset, for people.
fn near(bytes: &[u8], at: usize) -> String {
    let part = &bytes[at.saturating_sub(12).min(bytes.len())..bytes.len().min(at + 28)];
    excerpt(&String::from_utf8_lossy(part))
}

/// The word NaN or Infinity if the parser failed there: by far the most frequent cause.
fn not_finite(bytes: &[u8], error_at: usize) -> Option<&'static str> {
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
