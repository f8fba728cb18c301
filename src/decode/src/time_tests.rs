//! Times: accepted notations and their results.

use std::borrow::Cow;

use super::*;
use crate::RejectReason;
use crate::tests::{bare, limits, line};
use config::Limits;

/// 2024-02-29T12:34:56Z
const T: i64 = 1_709_210_096_000;

fn resolved(token: Token<'_>, unit: Option<TsUnit>) -> Result<i64, RejectReason> {
    let mut limits = limits();
    limits.past = std::time::Duration::from_secs(60 * 60 * 24 * 365 * 5000);
    limits.future = limits.past;
    limits.unset_before_ms = i64::MIN;
    let line = line();
    let cx = Context {
        received_at_ms: T,
        ..bare(&limits, &line)
    };
    resolve(Some(&token), unit, &cx)
        .map(|(ms, receipt)| {
            assert_eq!(receipt, Origin::Sender);
            ms
        })
        .map_err(|f| f.reason)
}

#[test]
fn rfc3339_and_common_variants() {
    for (text, ms) in [
        ("2024-02-29T12:34:56Z", T),
        ("2024-02-29T12:34:56.789Z", T + 789),
        ("2024-02-29T12:34:56.7Z", T + 700),
        ("2024-02-29T12:34:56.7899999999999999999Z", T + 789),
        ("2024-02-29T12:34:56,789Z", T + 789),
        ("20240229T123456Z", T),
        ("20240229T123456.789Z", T + 789),
        ("20240229T143456+0200", T),
        ("20240229T1234Z", T - 56_000),
        ("2024-02-29t12:34:56z", T),
        ("2024-02-29 12:34:56Z", T),
        ("2024-02-29T14:34:56+02:00", T),
        ("2024-02-29T14:34:56+0200", T),
        ("2024-02-29T14:34:56+02", T),
        ("2024-02-29T12:34Z", T - 56_000),
        ("2024-02-29T09:04:56-03:30", T),
        ("2024-02-29T12:34:56-00:00", T),
        ("2024-03-01T00:04:56+11:30", T),
        ("1969-12-31T23:59:59.999Z", -1),
        ("1969-12-31T23:59:59.9999Z", -1),
        ("1900-01-01T00:00:00Z", -2_208_988_800_000),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
        ("2000-02-29T00:00:00Z", 951_782_400_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("2017-01-01T01:59:60.5+02:00", 1_483_228_800_500),
        ("2024-02-29T12:34:60Z", 1_709_210_100_000),
        ("20240229T123460Z", 1_709_210_100_000),
    ] {
        assert_eq!(
            resolved(Token::Str(Cow::Borrowed(text)), None),
            Ok(ms),
            "{text}"
        );
    }
}

#[test]
fn texts_that_are_not_a_time() {
    for text in [
        "now",
        "2024-02-29",
        "2024-02-29T12Z",
        "2024-02-29T12:34.5Z",
        "2024-02-29T12:34:56",
        "2024-02-29T12:34:56.Z",
        "2024-02-29T12:34:56Z ",
        "2024-02-29T12:34:56+2",
        "2024-02-29T12:34:56+02:",
        "2024-02-29T12:34:56+02:60",
        "2024-02-29T12:34:56+24:00",
        "2024-02-29T12:34:61Z",
        "2024-02-29T24:00:00Z",
        "2023-02-29T12:00:00Z",
        "2024-13-01T00:00:00Z",
        "2024-00-01T00:00:00Z",
        "+10000-01-01T00:00:00Z",
        "-0001-01-01T00:00:00Z",
        "2024-W09-4T12:34:56Z",
        "Thu Feb 29 12:34:56 2024",
        "29/02/2024 12:34:56",
        "inf",
        "1e",
        "0x10",
        "1_000",
    ] {
        assert_eq!(
            resolved(Token::Str(Cow::Borrowed(text)), None),
            Err(RejectReason::BadTimestamp),
            "{text}"
        );
    }
    for token in [
        Token::Bool(true),
        Token::NotScalar("an object"),
        Token::NotFinite("1e999"),
    ] {
        assert_eq!(resolved(token, None), Err(RejectReason::BadTimestamp));
    }
}

#[test]
fn numbers_by_unit_and_by_magnitude() {
    for (v, unit, ms) in [
        (0, None, 0),
        (-1, None, -1000),
        (1_709_210_096, None, T),
        (1_709_210_096_789, None, T + 789),
        (1_709_210_096_789_999, None, T + 789),
        (1_709_210_096_789_999_999, None, T + 789),
        (99_999_999_999, None, 99_999_999_999_000),
        (100_000_000_000, None, 100_000_000_000),
        (99_999_999_999_999, None, 99_999_999_999_999),
        (100_000_000_000_000, None, 100_000_000_000),
        (100_000_000_000_000_000, None, 100_000_000_000),
        (-100_000_000_001, None, -100_000_000_001),
        (-100_000_000_000_001, None, -100_000_000_001),
        (5, Some(TsUnit::Ms), 5),
        (-1, Some(TsUnit::Us), -1),
        (-1, Some(TsUnit::Ns), -1),
        (-1_000_001, Some(TsUnit::Ns), -2),
        (1_709_210_096, Some(TsUnit::Ms), 1_709_210_096),
    ] {
        assert_eq!(resolved(Token::Int(v), unit), Ok(ms), "{v} {unit:?}");
        assert_eq!(
            resolved(Token::Str(Cow::Owned(v.to_string())), unit),
            Ok(ms),
            "\"{v}\" {unit:?}"
        );
    }
    for (v, unit, ms) in [
        (1_709_210_096.0, None, T),
        (-0.0005, None, -1),
        (-1.5, None, -1500),
        (1_709_210_096_789.5, None, T + 789),
        (1.709210096e9, None, T),
        (0.5, Some(TsUnit::Ms), 0),
        (-0.5, Some(TsUnit::Ms), -1),
        (-0.5, Some(TsUnit::Ns), -1),
    ] {
        assert_eq!(resolved(Token::Double(v), unit), Ok(ms), "{v} {unit:?}");
    }
    // Every millisecond written as a decimal fraction of seconds yields that millisecond.
    for ms in (T..T + 2000).chain(-2000..2000) {
        let text = format!(
            "{}{}.{:03}",
            if ms < 0 { "-" } else { "" },
            ms.abs() / 1000,
            ms.abs() % 1000
        );
        assert_eq!(
            resolved(Token::Double(text.parse().unwrap()), None),
            Ok(ms),
            "{text}"
        );
    }
}

#[test]
fn far_away_is_refused_and_never_wraps() {
    for (token, reason) in [
        (Token::Int(i64::MAX), None),
        (Token::Int(i64::MAX), Some(TsUnit::S)),
        (Token::BigInt("99999999999999999999999".into()), None),
        (
            Token::BigInt("170141183460469231731687303715884105727".into()),
            Some(TsUnit::S),
        ),
        (Token::Double(f64::MAX), None),
    ]
    .map(|(token, unit)| (resolved(token, unit), unit))
    .into_iter()
    .filter(|(r, _)| *r != Ok(i64::MAX / 1_000_000))
    {
        assert_eq!(token, Err(RejectReason::TooFarAhead), "{reason:?}");
    }
    for token in [
        Token::Double(f64::MIN),
        Token::BigInt("-99999999999999999999999".into()),
        Token::Double(-1e20),
    ] {
        assert_eq!(resolved(token, Some(TsUnit::S)), Err(RejectReason::TooOld));
    }
    // 40 digits overflow even the 128-bit arithmetic.
    let long = "9".repeat(40);
    assert_eq!(
        resolved(Token::BigInt(long.into()), None),
        Err(RejectReason::BadTimestamp)
    );
}

#[test]
fn the_window_is_closed_at_both_ends() {
    let limits = limits();
    let line = line();
    let cx = Context {
        received_at_ms: T,
        ..bare(&limits, &line)
    };
    let past = limits.past.as_millis() as i64;
    let future = limits.future.as_millis() as i64;
    let at = |ms: i64| {
        resolve(Some(&Token::Int(ms)), Some(TsUnit::Ms), &cx)
            .map(|r| r.0)
            .map_err(|f| f.reason)
    };
    assert_eq!(at(T - past), Ok(T - past));
    assert_eq!(at(T - past - 1), Err(RejectReason::TooOld));
    assert_eq!(at(T + future), Ok(T + future));
    assert_eq!(at(T + future + 1), Err(RejectReason::TooFarAhead));
    assert_eq!(resolve(None, None, &cx).unwrap(), (T, Origin::Receipt));
    assert_eq!(
        resolve(Some(&Token::Null), None, &cx).unwrap(),
        (T, Origin::Receipt)
    );
}

#[test]
fn a_time_without_offset_belongs_to_the_zone_that_is_set() {
    let mut limits = limits();
    let line = line();
    limits.past = std::time::Duration::from_secs(60 * 60 * 24 * 365 * 30);
    limits.future = limits.past;
    let local = |text: &'static str, own: Option<Tz>, all: Option<Tz>| {
        let limits = Limits {
            zone: all,
            ..limits.clone()
        };
        let cx = Context {
            received_at_ms: T,
            ..bare(&limits, &line)
        };
        of_token(&Token::Str(Cow::Borrowed(text)), None, own, &cx)
    };
    let berlin = Some(Tz::Europe__Berlin);
    let utc = |text| match local(text, None, None) {
        Ok(Found::At(ms)) => ms,
        other => panic!("{text}: {other:?}"),
    };
    let fault = local("2024-02-29T12:34:56", None, None).unwrap_err();
    assert!(
        fault.reason == RejectReason::BadTimestamp && fault.detail.contains("limits.zone"),
        "{fault:?}"
    );
    for (text, zone, same) in [
        (
            "2024-02-29T12:34:56",
            Tz::Europe__Berlin,
            "2024-02-29T11:34:56Z",
        ),
        (
            "2024-07-29 12:34:56.5",
            Tz::Europe__Berlin,
            "2024-07-29T10:34:56.5Z",
        ),
        (
            "2024-02-29T12:34:56Z",
            Tz::Europe__Berlin,
            "2024-02-29T12:34:56Z",
        ),
        (
            "2024-02-29T12:34:56",
            Tz::Asia__Kolkata,
            "2024-02-29T07:04:56Z",
        ),
        // Occurs twice: the first. Skipped: with the offset before.
        (
            "2024-10-27T02:30:00",
            Tz::Europe__Berlin,
            "2024-10-27T00:30:00Z",
        ),
        (
            "2024-10-27T03:00:00",
            Tz::Europe__Berlin,
            "2024-10-27T02:00:00Z",
        ),
        (
            "2024-03-31T02:30:00",
            Tz::Europe__Berlin,
            "2024-03-31T01:30:00Z",
        ),
        (
            "2024-03-31T03:00:00",
            Tz::Europe__Berlin,
            "2024-03-31T01:00:00Z",
        ),
        (
            "2011-12-30T12:00:00",
            Tz::Pacific__Apia,
            "2011-12-30T22:00:00Z",
        ),
    ] {
        assert_eq!(
            local(text, Some(zone), None).unwrap(),
            Found::At(utc(same)),
            "{text}"
        );
        assert_eq!(
            local(text, None, Some(zone)).unwrap(),
            Found::At(utc(same)),
            "{text}"
        );
    }
    assert_eq!(
        local("2024-02-29T12:34:56", Some(Tz::UTC), berlin).unwrap(),
        Found::At(T),
        "the more specific zone applies"
    );
    assert_eq!(
        local("2024-02-29T23:59:60", berlin, None).unwrap(),
        Found::At(utc("2024-02-29T23:00:00Z")),
        "a second 60 is the next minute's first"
    );
}

#[test]
fn the_time_of_an_unset_clock_is_ignored() {
    let mut limits = limits();
    let line = line();
    let wide = |limits: &Limits, token: Token<'_>| {
        let cx = Context {
            received_at_ms: T,
            ..bare(limits, &line)
        };
        resolve(Some(&token), None, &cx).map_err(|fault| fault.reason)
    };
    let text = |text: &'static str| Token::Str(Cow::Borrowed(text));
    for token in [
        Token::Int(0),
        Token::Int(188),
        Token::Int(-2_208_988_800),
        Token::Double(1.61),
        Token::Int(315_964_800),
        Token::Int(978_307_199),
        text("0001-01-01T00:00:00Z"),
        text("0001-01-01T00:00:00+01:00"),
        text("0000-01-01T00:00:00Z"),
        text("0000-01-01T00:00:00+14:00"),
        text("1970-01-01T00:00:03Z"),
        text("2000-01-01T00:10:00+00:00"),
        text("1970-01-01T00:00:03"),
        text("19700101T000003"),
    ] {
        assert_eq!(
            wide(&limits, token.clone()),
            Ok((T, Origin::Replaced)),
            "{token:?}"
        );
    }
    for token in [text(""), text("  "), text("unavailable")] {
        assert_eq!(
            wide(&limits, token.clone()),
            Ok((T, Origin::Receipt)),
            "{token:?}"
        );
    }
    assert_eq!(
        wide(&limits, Token::Int(978_307_200)),
        Err(RejectReason::TooOld),
        "a set clock, but too old"
    );
    limits.past = std::time::Duration::from_secs(60 * 60 * 24 * 365 * 100);
    assert_eq!(
        wide(&limits, Token::Int(978_307_200)),
        Ok((978_307_200_000, Origin::Sender))
    );
    assert_eq!(
        wide(&limits, Token::Int(978_307_199)),
        Ok((T, Origin::Replaced)),
        "for any width of the window"
    );
    let in_unit = |v, unit| {
        let cx = Context {
            received_at_ms: T,
            ..bare(&limits, &line)
        };
        resolve(Some(&Token::Int(v)), Some(unit), &cx).map_err(|fault| fault.reason)
    };
    assert_eq!(in_unit(188, TsUnit::Ms), Ok((T, Origin::Replaced)));
    assert_eq!(
        in_unit(1_709_210_096, TsUnit::Ms),
        Ok((1_709_210_096, Origin::Sender)),
        "seconds, as somebody wrote the wrong unit"
    );
    limits.unset_before_ms = i64::MIN;
    assert_eq!(
        wide(&limits, Token::Int(0)),
        Ok((0, Origin::Sender)),
        "unless the setting allows it"
    );
}

#[test]
fn the_line_protocol_keeps_old_times_that_the_window_allows() {
    let mut limits = limits();
    let line = line();
    let at = |limits: &Limits, literal| {
        let cx = Context {
            received_at_ms: T,
            ..bare(limits, &line)
        };
        of_line(literal, &cx).map_err(|fault| fault.reason)
    };
    assert_eq!(
        at(&limits, "1"),
        Err(RejectReason::TooOld),
        "a wrong precision is more likely than an unset clock"
    );
    assert_eq!(at(&limits, "1000000000"), Err(RejectReason::TooOld));
    limits.past = std::time::Duration::from_secs(60 * 60 * 24 * 365 * 100);
    assert_eq!(at(&limits, "1"), Ok(1000));
}
