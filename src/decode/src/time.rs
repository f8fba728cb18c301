//! The time of a reading, in milliseconds since 1970. Finer parts are cut towards the past, also
//! before 1970.
//!
//! Accepts RFC 3339 and variants found in the field: a space or lower case instead of `T` and `Z`,
//! a comma before the fraction, no seconds, offsets as `+02:00`, `+0200` and `+02`, ISO 8601 basic
//! (`20240229T123456Z`). A time without an offset is in the configured zone; without a zone it is
//! rejected. Numbers are seconds, milliseconds, microseconds or nanoseconds, according to `ts_unit`
//! or by magnitude: each unit covers times up to the year 5138, and all but seconds only times
//! after March 1973.
//!
//! **A local time that occurs twice**, when clocks are set back, is read as the first of the two. A
//! skipped one, when clocks are set forward, is read with the offset before the change (RFC 5545
//! §3.3.5). The result is always the same, so that a repeated message is the same reading.
//!
//! **An unset clock** reports a time before `limits.unset_before`: seconds since the device started
//! (1970), the GPS epoch (1980), year 1 or 0. An empty text and a word such as `unknown` are not a
//! time. In both cases the time of receipt is used, but in place of an unset clock it is counted,
//! and over HTTP rejected ([`UnsetClock`]). There are two exceptions. Line protocol and OTLP come
//! from agents with a clock, and there a time in 1970 means a wrong `precision`. And a number with
//! an explicit unit may be a valid time in another unit. Both are rejected, or kept if
//! `limits.past` reaches that far.

use chrono::{Datelike, NaiveDate, Offset, TimeDelta, TimeZone};
use chrono_tz::Tz;

use super::names::excerpt;
use super::rejects::Fault;
use super::token::{Time, Token, is_no_value, is_number};
use super::{Context, RejectReason, TsUnit, UnsetClock};
use model::batch::BuildError;
use model::{BatchBuilder, DAY_MS};

/// 0000-01-01T00:00:00Z, less the largest offset: the earliest time of a clock that is not set. It
/// may show the year 1, or 0 if it sends only zeros.
const CLOCK_FROM_MS: i128 = -62_167_219_200_000 - DAY_MS as i128;

/// Where the time of a reading is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// The sender.
    Sender,
    /// Its receipt, because the sender gave none.
    Receipt,
    /// Its receipt, in place of a time that cannot be used.
    Replaced,
}

/// The time of a reading in milliseconds since 1970, and where it is from.
pub(super) type Stamp = (i64, Origin);

impl Origin {
    /// Commits a reading with this time.
    pub(super) fn commit(
        self,
        out: &mut BatchBuilder,
        sensor_id: &str,
        ts_ms: i64,
        tags: &[(&str, &str)],
    ) -> Result<(), BuildError> {
        out.commit(sensor_id, ts_ms, self != Origin::Sender, tags)?;
        if self == Origin::Replaced {
            out.note_retimed();
        }
        Ok(())
    }
}

/// A value in the place of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// A time within the window.
    At(i64),
    /// None: null, an empty text, a word such as `unknown`.
    Absent,
    /// The time of a clock that is not set.
    Unset(i64),
}

/// The time of a reading: the sender's, or that of its receipt.
pub(super) fn resolve(
    ts: Option<&Token<'_>>,
    unit: Option<TsUnit>,
    cx: &Context<'_>,
) -> Result<Stamp, Fault> {
    match ts.map_or(Ok(Found::Absent), |token| of_token(token, unit, None, cx))? {
        Found::At(ms) => Ok((ms, Origin::Sender)),
        Found::Absent => Ok((cx.received_at_ms, Origin::Receipt)),
        Found::Unset(ms) if cx.unset_clock == UnsetClock::Reject => Err(clock_not_set(ms)),
        Found::Unset(_) => Ok((cx.received_at_ms, Origin::Replaced)),
    }
}

/// Whether a token means no time, rather than a wrong one.
pub(super) fn is_absent(token: &Token<'_>) -> bool {
    match token {
        Token::Null => true,
        Token::Str(text) => text.trim().is_empty() || is_no_value(text),
        _ => false,
    }
}

/// The time in a token. For a text without an offset, `zone` overrides `limits.zone`.
pub(super) fn of_token(
    token: &Token<'_>,
    unit: Option<TsUnit>,
    zone: Option<Tz>,
    cx: &Context<'_>,
) -> Result<Found, Fault> {
    let unit = unit.or(cx.ts_unit);
    let ms = match token {
        _ if is_absent(token) => return Ok(Found::Absent),
        Token::Str(text) => {
            match parse(text) {
                Some(Parsed {
                    local_ms,
                    offset_minutes: Some(minutes),
                }) => Some(i128::from(local_ms - minutes * 60_000)),
                // Hours do not matter to a clock that is off by years.
                Some(Parsed {
                    local_ms,
                    offset_minutes: None,
                }) if is_unset(i128::from(local_ms), cx) => Some(i128::from(local_ms)),
                Some(Parsed {
                    local_ms,
                    offset_minutes: None,
                }) => match zone.or(cx.limits.zone) {
                    Some(zone) => in_zone(local_ms, zone).map(i128::from),
                    None => return Err(no_zone(text)),
                },
                None if is_number(text) => {
                    Token::number(text).and_then(|token| number_ms(&token, unit))
                }
                None => None,
            }
        }
        token => number_ms(token, unit),
    };
    let ms = ms.ok_or_else(|| bad(token))?;
    let is_set = |ms: i128| ms >= i128::from(cx.limits.unset_before_ms);
    let wrong_unit = unit.is_some() && !is_set(ms) && number_ms(token, None).is_some_and(is_set);
    if !wrong_unit && is_unset(ms, cx) {
        // Not before the year -1, so it fits.
        return Ok(Found::Unset(ms as i64));
    }
    accepted(ms, cx).map(Found::At)
}

/// The content of a member other than `ts` that may be the time of its reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    Time,
    /// A time without an offset, and no zone is configured.
    TimeWithoutZone,
    Value,
}

/// Whether a member that `native.time` does not name looks like the time of its reading: a text
/// that is written as a time, or a number that can be one under a name that says so.
pub(super) fn is_likely(name: &str, token: &Token<'_>, cx: &Context<'_>) -> bool {
    // Almost every value ends here, without the arithmetic of a time.
    const SECONDS_FROM: i64 = NUMBERS_FROM_MS / 1000;
    let is_written = match token {
        Token::Int(v) if *v >= SECONDS_FROM => false,
        Token::Double(v) if *v >= SECONDS_FROM as f64 => false,
        Token::Str(text) if text.starts_with(|c: char| c.is_ascii_digit()) => !is_number(text),
        Token::Time(_) => true,
        _ => return false,
    };
    held(token, None, cx) != Held::Value && (is_written || names_a_time(name))
}

/// Whether the name of a number says that it is a time: `date`, `lastSeen`, `sample_ts`.
fn names_a_time(name: &str) -> bool {
    const PARTS: [&str; 7] = [
        "time", "date", "stamp", "epoch", "seen", "created", "measured",
    ];
    const LAST_WORDS: [&str; 4] = ["ts", "tst", "dt", "at"];
    let lower = name.to_ascii_lowercase();
    let last = name.rsplit(|c: char| !c.is_alphanumeric()).next();
    let last = last.unwrap_or_default();
    // In `sampleTs` a capital begins a word.
    let bytes = last.as_bytes();
    let begin = (1..bytes.len())
        .rev()
        .find(|at| bytes[at - 1].is_ascii_lowercase() && bytes[*at].is_ascii_uppercase());
    let last = last.get(begin.unwrap_or(0)..).unwrap_or_default();
    PARTS.iter().any(|part| lower.contains(part))
        || LAST_WORDS
            .iter()
            .any(|word| last.eq_ignore_ascii_case(word))
}

/// How far ahead of its receipt a number may be a time.
const AHEAD_MAX_MS: i128 = 366 * DAY_MS as i128;
/// 2001-01-01T00:00:00Z. Smaller numbers are measurements, even if times before are accepted.
const NUMBERS_FROM_MS: i64 = 978_307_200_000;

/// Decides whether a member is the time of its reading: a text that is written as a time, or a
/// number between `limits.unset_before` and a year from now. Others are values.
pub(super) fn held(token: &Token<'_>, unit: Option<TsUnit>, cx: &Context<'_>) -> Held {
    let from = i128::from(cx.limits.unset_before_ms.max(NUMBERS_FROM_MS));
    let until = i128::from(cx.received_at_ms) + AHEAD_MAX_MS;
    let plausible = |token: &Token<'_>| match number_ms(token, unit.or(cx.ts_unit)) {
        Some(ms) if (from..=until).contains(&ms) => Held::Time,
        _ => Held::Value,
    };
    match token {
        Token::Str(text) => match parse(text) {
            Some(Parsed {
                local_ms,
                offset_minutes: None,
            }) if cx.limits.zone.is_none() && !is_unset(i128::from(local_ms), cx) => {
                Held::TimeWithoutZone
            }
            Some(_) => Held::Time,
            None if is_number(text) => {
                Token::number(text).map_or(Held::Value, |token| plausible(&token))
            }
            None => Held::Value,
        },
        // A time by its type.
        Token::Time(_) => Held::Time,
        token => plausible(token),
    }
}

/// Whether a time is that of a clock that is not set. No clock starts before the year 0; an earlier
/// time is an error.
fn is_unset(ms: i128, cx: &Context<'_>) -> bool {
    (CLOCK_FROM_MS..i128::from(cx.limits.unset_before_ms)).contains(&ms)
}

pub(super) fn clock_not_set(ms: i64) -> Fault {
    let detail = format!(
        "the time is {}, before limits.unset_before: the clock of the sender is not set; set it, send \
         no time, or set limits.unset_over_http",
        time_text(i128::from(ms))
    );
    Fault::new(RejectReason::ClockNotSet, detail)
}

/// Converts a local time in a zone to UTC, both in milliseconds since 1970. The module describes
/// times that occur twice or never.
pub fn in_zone(local_ms: i64, zone: Tz) -> Option<i64> {
    let local = chrono::DateTime::from_timestamp_millis(local_ms)?.naive_utc();
    if let Some(time) = zone.from_local_datetime(&local).earliest() {
        return Some(time.timestamp_millis());
    }
    // Skipped: use the offset before the change. The largest gap ever was a day (Samoa, 2011).
    let before = (1..=25).find_map(|hours| {
        let earlier = local.checked_sub_signed(TimeDelta::hours(hours))?;
        zone.from_local_datetime(&earlier).latest()
    })?;
    Some(local_ms - i64::from(before.offset().fix().local_minus_utc()) * 1000)
}

/// The time of a text as [`parse`] accepts it, in milliseconds since 1970; one without an offset is
/// in `zone`.
pub fn parse_in(text: &str, zone: Tz) -> Option<i64> {
    let Parsed {
        local_ms,
        offset_minutes,
    } = parse(text)?;
    match offset_minutes {
        Some(minutes) => Some(local_ms - minutes * 60_000),
        None => in_zone(local_ms, zone),
    }
}

/// Parses the unit in a member `ts_unit`.
pub(super) fn unit(name: &str) -> Result<TsUnit, Fault> {
    name.parse().map_err(|_| {
        let detail = format!(
            "unknown ts_unit {}; expected one of s, ms, us, ns",
            excerpt(name)
        );
        Fault::new(RejectReason::BadTimestamp, detail)
    })
}

/// The fault of a member `ts_unit` that is not a text.
pub(super) fn no_unit() -> Fault {
    Fault::new(
        RejectReason::BadTimestamp,
        "ts_unit must be one of s, ms, us, ns",
    )
}

/// Parses the time at the end of a line of line protocol. Without a unit it goes by magnitude, as
/// in InfluxDB 3: below 5e9 seconds, below 5e12 milliseconds, below 5e15 microseconds, else
/// nanoseconds.
pub(super) fn of_line(literal: &str, cx: &Context<'_>) -> Result<i64, Fault> {
    let v: i64 = literal.parse().map_err(|_| {
        let detail = format!("the time {} is not a 64-bit integer", excerpt(literal));
        Fault::new(RejectReason::BadTimestamp, detail)
    })?;
    of_line_number(v, cx)
}

/// The same for a parsed integer.
pub(super) fn of_line_number(v: i64, cx: &Context<'_>) -> Result<i64, Fault> {
    let by_magnitude = || match v.unsigned_abs() {
        v if v < 5_000_000_000 => TsUnit::S,
        v if v < 5_000_000_000_000 => TsUnit::Ms,
        v if v < 5_000_000_000_000_000 => TsUnit::Us,
        _ => TsUnit::Ns,
    };
    let ms = match cx.ts_unit.unwrap_or_else(by_magnitude) {
        // The common unit, without a 128-bit division.
        TsUnit::Ns => i128::from(v.div_euclid(1_000_000)),
        unit => integer_ms(i128::from(v), Some(unit)),
    };
    accepted(ms, cx)
}

/// Checks a time in nanoseconds since 1970 from an OpenTelemetry agent, like a time in line
/// protocol.
pub(super) fn of_unix_nanos(ns: u64, cx: &Context<'_>) -> Result<i64, Fault> {
    accepted(i128::from(ns / 1_000_000), cx)
}

/// Checks that an intended time is within the window.
pub(super) fn accepted(ms: i128, cx: &Context<'_>) -> Result<i64, Fault> {
    let received = i128::from(cx.received_at_ms);
    let past = cx.limits.past.as_millis() as i128;
    let future = cx.limits.future.as_millis() as i128;
    if ms < received - past {
        return Err(Fault::new(
            RejectReason::TooOld,
            format!(
                "the time is {}, older than limits.past (for an import, limits.import_past) allows",
                time_text(ms)
            ),
        ));
    }
    if ms > received + future {
        return Err(Fault::new(
            RejectReason::TooFarAhead,
            format!(
                "the time is {}, further ahead than limits.future allows",
                time_text(ms)
            ),
        ));
    }
    // The window can be configured wider than the range of an i64.
    i64::try_from(ms).map_err(|_| {
        let reason = if ms < 0 {
            RejectReason::TooOld
        } else {
            RejectReason::TooFarAhead
        };
        Fault::new(reason, format!("the time is {ms} ms from 1970"))
    })
}

fn time_text(ms: i128) -> String {
    let time = i64::try_from(ms).ok().and_then(to_rfc3339);
    time.unwrap_or_else(|| format!("{ms} ms from 1970"))
}

/// RFC 3339 with milliseconds and `Z`; `None` outside of the years 0 to 9999.
pub fn to_rfc3339(ms: i64) -> Option<String> {
    let time = chrono::DateTime::from_timestamp_millis(ms)?;
    (0..=9999)
        .contains(&time.year())
        .then(|| time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true))
}

fn no_zone(text: &str) -> Fault {
    let detail = format!(
        "the time {} has no offset; send one, or set limits.zone",
        excerpt(text)
    );
    Fault::new(RejectReason::BadTimestamp, detail)
}

fn bad(ts: &Token<'_>) -> Fault {
    let detail = match ts {
        Token::Str(text) => {
            format!(
                "the time {} is neither RFC 3339 nor a number",
                excerpt(text)
            )
        }
        Token::BigInt(digits) => format!("the time {} is not a time", excerpt(digits)),
        Token::NotFinite(literal) => format!("the time {} is not a time", excerpt(literal)),
        other => format!("the time must be a text or a number, not {}", other.kind()),
    };
    Fault::new(RejectReason::BadTimestamp, detail)
}

fn number_ms(token: &Token<'_>, unit: Option<TsUnit>) -> Option<i128> {
    match token {
        Token::Int(v) => Some(integer_ms(i128::from(*v), unit)),
        Token::BigInt(literal) => literal.parse().ok().map(|v| integer_ms(v, unit)),
        Token::Double(v) => Some(double_ms(*v, unit)),
        Token::Time(Time::Seconds(v)) => Some(integer_ms(i128::from(*v), Some(TsUnit::S))),
        Token::Time(Time::SecondsDouble(v)) => Some(double_ms(*v, Some(TsUnit::S))),
        Token::Time(Time::Ms(v)) => Some(i128::from(*v)),
        _ => None,
    }
}

fn integer_ms(v: i128, unit: Option<TsUnit>) -> i128 {
    match unit.unwrap_or_else(|| by_magnitude(v.unsigned_abs() as f64)) {
        TsUnit::S => v.saturating_mul(1000),
        TsUnit::Ms => v,
        TsUnit::Us => v.div_euclid(1000),
        TsUnit::Ns => v.div_euclid(1_000_000),
        TsUnit::Minute => v.saturating_mul(60_000),
        TsUnit::Hour => v.saturating_mul(3_600_000),
    }
}

fn double_ms(v: f64, unit: Option<TsUnit>) -> i128 {
    // 1709210096.789 is not exactly a double, and the nearest double may be below it. Rounding to
    // the microsecond restores the literal, because doubles of present-day seconds are a quarter of
    // a microsecond apart. Only then it is cut.
    let micros = match unit.unwrap_or_else(|| by_magnitude(v.abs())) {
        TsUnit::S => (v * 1e6).round(),
        TsUnit::Ms => (v * 1e3).round(),
        TsUnit::Us => v.floor(),
        TsUnit::Ns => (v / 1e3).floor(),
        TsUnit::Minute => (v * 60e6).round(),
        TsUnit::Hour => (v * 3600e6).round(),
    };
    // The cast saturates, far outside of every window.
    (micros as i128).div_euclid(1000)
}

fn by_magnitude(abs: f64) -> TsUnit {
    match abs {
        v if v < 1e11 => TsUnit::S,
        v if v < 1e14 => TsUnit::Ms,
        v if v < 1e17 => TsUnit::Us,
        _ => TsUnit::Ns,
    }
}

/// A time as written.
struct Parsed {
    /// The local time, as if it were UTC.
    local_ms: i64,
    /// East of Greenwich; `None` if there is no offset.
    offset_minutes: Option<i64>,
}

/// Parses `2024-03-01T10:00:00.123Z` and the variants in the module header; `None` for anything
/// else, including nonexistent days.
fn parse(text: &str) -> Option<Parsed> {
    let mut rest = Text(text.as_bytes());
    let year = rest.number(4)?;
    // ISO 8601 basic, without separators: only with a `T`, because other digits are a number.
    let is_basic = rest.one_of(b"-").is_none();
    let month = rest.number(2)?;
    if !is_basic {
        rest.one_of(b"-")?;
    }
    let day = rest.number(2)?;
    rest.one_of(if is_basic { b"Tt" } else { b"Tt " })?;
    let hour = rest.number(2).filter(|h| *h < 24)?;
    if !is_basic {
        rest.one_of(b":")?;
    }
    let minute = rest.number(2).filter(|m| *m < 60)?;
    let has_second = if is_basic {
        rest.0.first().is_some_and(u8::is_ascii_digit)
    } else {
        rest.one_of(b":").is_some()
    };
    let second = if has_second {
        rest.number(2).filter(|s| *s <= 60)?
    } else {
        0
    };
    let fraction_ms = if has_second && rest.one_of(b".,").is_some() {
        rest.fraction_ms()?
    } else {
        0
    };
    let offset_minutes = if rest.0.is_empty() {
        None
    } else {
        Some(rest.offset()?)
    };
    if !rest.0.is_empty() {
        return None;
    }
    let days = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day)?.to_epoch_days();
    // A leap second (RFC 3339 §5.7) counts as the following second, as in POSIX: times stay in
    // order. So does a second 60 elsewhere, because senders that round 59.9 to 60 are far more
    // frequent than leap seconds, and which minutes have one is announced half a year before.
    let whole_ms = i64::from(days) * DAY_MS + i64::from(hour * 3600 + minute * 60 + second) * 1000;
    // A fraction counts forward, also before 1970, so adding it to the whole seconds rounds down.
    Some(Parsed {
        local_ms: whole_ms + fraction_ms,
        offset_minutes,
    })
}

struct Text<'a>(&'a [u8]);

impl Text<'_> {
    fn one_of(&mut self, bytes: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        bytes.contains(first).then(|| {
            self.0 = rest;
            *first
        })
    }

    fn number(&mut self, digits: usize) -> Option<u32> {
        let (head, rest) = self.0.split_at_checked(digits)?;
        if !head.iter().all(u8::is_ascii_digit) {
            return None;
        }
        self.0 = rest;
        Some(head.iter().fold(0, |n, b| n * 10 + u32::from(b - b'0')))
    }

    /// At least one digit; digits after the third are cut.
    fn fraction_ms(&mut self) -> Option<i64> {
        let n = self.0.iter().take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at(n);
        self.0 = rest;
        let ms = (0..3).fold(0, |ms, i| {
            ms * 10 + digits.get(i).map_or(0, |b| i64::from(b - b'0'))
        });
        (n > 0).then_some(ms)
    }

    fn offset(&mut self) -> Option<i64> {
        let sign = match self.one_of(b"Zz+-")? {
            b'+' => 1,
            b'-' => -1,
            _ => return Some(0),
        };
        let hours = self.number(2).filter(|h| *h < 24)?;
        let colon = self.one_of(b":").is_some();
        let minutes = match self.number(2) {
            Some(m) => m,
            None if colon => return None,
            None => 0,
        };
        (minutes < 60).then(|| sign * i64::from(hours * 60 + minutes))
    }
}

#[cfg(test)]
#[path = "time_tests.rs"]
mod tests;
