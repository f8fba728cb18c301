//! One bare value. Sensor and field come from the topic; the time is the time of receipt.
//!
//! People and small devices write these payloads, so numbers may be written as `+5`, `.5` or `007`.
//! A payload that is not clearly a number is a text: `21,5` must not become 215, nor `1_000` a
//! thousand. A text in quotes is a JSON string, and a number in it is a number. A payload that
//! means "no value" ([`is_no_value`], null) yields neither a reading nor a reject: an absent sensor
//! sends it repeatedly, and the message is not wrong.

use std::borrow::Cow;

use super::names::{self, Decoded};
use super::padding::unpadded;
use super::reading::add_value;
use super::rejects::{Fault, Rejects};
use super::time::Origin;
use super::token::{Token, is_no_value, is_number, is_zero_padded};
use super::{Context, RejectReason};
use config::ScalarFormat;
use model::{BatchBuilder, ValueRef};

pub(super) fn decode(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    out.begin();
    match reading(payload, cx, out) {
        Ok(Decoded::Committed) => {}
        Ok(Decoded::NoValue) => out.abort(),
        Err(fault) => {
            out.abort();
            rejects.fault(0, fault);
        }
    }
}

fn reading(payload: &[u8], cx: &Context<'_>, out: &mut BatchBuilder) -> Result<Decoded, Fault> {
    let limits = cx.limits;
    let missing = |reason, what| {
        Fault::new(
            reason,
            format!(
                "a bare value does not name its {what}, and nothing else does, such as the topic"
            ),
        )
    };
    let token = match value(payload)? {
        Token::Str(text) => written_by_a_person(text, cx.scalar)?,
        token => token,
    };
    let value = match &token {
        Token::Bool(v) => ValueRef::Bool(*v),
        Token::Int(v) => ValueRef::Int(*v),
        Token::Double(v) => ValueRef::Double(*v),
        Token::Str(v) => ValueRef::Str(v),
        _ => return Ok(Decoded::NoValue),
    };
    let sensor_id = cx
        .sensor_id
        .ok_or_else(|| missing(RejectReason::MissingSensorId, "sensor"))?;
    let field = cx
        .field
        .ok_or_else(|| missing(RejectReason::MissingField, "field"))?;
    names::check_sensor_id(sensor_id, limits)?;
    if let ValueRef::Str(text) = value {
        names::check_text(field, text, limits)?;
    }
    let name = names::name(field, cx)?;
    add_value(out, &name, value, limits.fields_max)?;
    names::commit(
        out,
        sensor_id,
        (cx.received_at_ms, Origin::Receipt),
        &[],
        cx,
    )?;
    Ok(Decoded::Committed)
}

/// Applies the settings for a payload that is not clearly a number.
fn written_by_a_person(text: Cow<'_, str>, settings: ScalarFormat) -> Result<Token<'_>, Fault> {
    if settings.decimal_comma
        && let Some((whole, fraction)) = text.trim().split_once(',')
        && !whole.contains('.')
        && let Ok(Some(token)) = number(&format!("{whole}.{fraction}"))
        && let Token::Double(v) = token
    {
        return Ok(Token::Double(v));
    }
    if settings.texts_allowed {
        return Ok(Token::Str(text));
    }
    let comma = if settings.decimal_comma {
        ""
    } else {
        "; scalar.decimal_comma = true reads `21,5` as 21.5"
    };
    let detail = format!(
        "{} is neither a number nor true or false (scalar.texts){comma}",
        names::excerpt(&text)
    );
    Err(Fault::new(RejectReason::NotANumber, detail))
}

/// A bare value as JSON, for a sender that puts values into a URL; null if it means "no value". A
/// number beyond all limits stays as it is written, so that the format of the reading rejects it.
pub fn bare_value_as_json(text: &str) -> String {
    let string = |text: &str| serde_json::Value::from(text).to_string();
    // The padding is whole characters.
    let text = std::str::from_utf8(unpadded(text.as_bytes())).unwrap_or(text);
    match value(text.as_bytes()) {
        // The member may be an id or a code, which `0042` is more likely than 42.
        Ok(Token::Int(_) | Token::Double(_)) if is_zero_padded(text.trim()) => string(text),
        Ok(Token::Int(v)) => v.to_string(),
        Ok(Token::Double(v)) => serde_json::Value::from(v).to_string(),
        Ok(Token::Bool(v)) => v.to_string(),
        Ok(Token::Str(text)) => string(&text),
        Ok(_) => "null".to_owned(),
        Err(fault) => match fault.reason {
            RejectReason::EmptyPayload => "null".to_owned(),
            RejectReason::NotFinite | RejectReason::IntegerOutOfRange
                if !is_zero_padded(text.trim()) =>
            {
                text.trim().trim_start_matches('+').to_owned()
            }
            _ => string(text),
        },
    }
}

/// Parses a bare value; null if it means "no value".
pub(super) fn value(payload: &[u8]) -> Result<Token<'_>, Fault> {
    let text = std::str::from_utf8(payload).map_err(|e| {
        Fault::new(
            RejectReason::InvalidUtf8,
            format!("not UTF-8 at byte {}", e.valid_up_to()),
        )
    })?;
    let text = text.trim();
    if text.is_empty() {
        return Err(Fault::new(
            RejectReason::EmptyPayload,
            "the payload is empty",
        ));
    }
    match number(text)? {
        Some(token) => return Ok(token),
        None if is_no_value(text) => return Ok(Token::Null),
        None => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if ["inf", "infinity"]
        .iter()
        .any(|word| unsigned.eq_ignore_ascii_case(word))
    {
        return Err(Fault::new(
            RejectReason::NotFinite,
            format!("{} is not a value", names::excerpt(text)),
        ));
    }
    match text {
        "true" => Ok(Token::Bool(true)),
        "false" => Ok(Token::Bool(false)),
        // Four bytes of a C struct can be valid UTF-8 by chance; the format of binary data must not
        // be guessed.
        _ if text.contains('\0') => Err(Fault::new(
            RejectReason::BinaryPayload,
            "the payload contains NUL bytes",
        )),
        _ => match quoted(text) {
            Some(inner) => Ok(match number(inner.trim()) {
                Ok(Some(Token::Int(v))) => Token::Int(v),
                Ok(Some(Token::Double(v))) => Token::Double(v),
                _ if inner.trim().is_empty() || is_no_value(inner.trim()) => Token::Null,
                // A number that is too large stays a text.
                _ => Token::Str(Cow::Owned(inner)),
            }),
            None => Ok(Token::Str(Cow::Borrowed(text))),
        },
    }
}

/// Parses a number; `None` if the text is not one.
fn number(text: &str) -> Result<Option<Token<'_>>, Fault> {
    if !is_number(text) {
        return Ok(None);
    }
    match Token::number(text) {
        Some(token @ (Token::Int(_) | Token::Double(_))) => Ok(Some(token)),
        Some(Token::BigInt(_)) => {
            let detail = format!("{} exceeds a signed 64-bit integer", names::excerpt(text));
            Err(Fault::new(RejectReason::IntegerOutOfRange, detail))
        }
        _ => {
            let detail = format!("{} exceeds the range of a double", names::excerpt(text));
            Err(Fault::new(RejectReason::NotFinite, detail))
        }
    }
}

/// The content of a JSON string.
fn quoted(text: &str) -> Option<String> {
    text.starts_with('"')
        .then(|| serde_json::from_str(text).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{limits, line};
    use crate::{Format, RejectReason, decode};
    use model::{ReadingBatch, Value};

    fn run(
        payload: &[u8],
        sensor_id: Option<&str>,
        field: Option<&str>,
    ) -> Result<(String, Value), Option<RejectReason>> {
        let limits = limits();
        let cx = Context {
            limits: &limits,
            line: &line(),
            received_at_ms: 7,
            ts_unit: None,
            sensor_id,
            field,
            tags: &[("site", "north"), ("floor", "2")],
            ..Context::usual()
        };
        let mut out = BatchBuilder::new(64);
        let mut rejects = Rejects::new();
        decode(Format::Scalar, payload, &cx, &mut out, &mut rejects);
        let batch: ReadingBatch = out.finish();
        if batch.is_empty() && rejects.is_empty() {
            return Err(None);
        }
        assert_eq!(batch.len() + rejects.total(), 1);
        match batch.to_readings().pop() {
            Some(r) => {
                assert_eq!(
                    (r.sensor_id.as_str(), r.ts_ms, r.receipt_time, r.tags.len()),
                    ("S1", 7, true, 2)
                );
                Ok(r.values.into_iter().next().unwrap())
            }
            None => Err(Some(rejects.list()[0].reason)),
        }
    }

    #[test]
    fn values_as_people_write_them() {
        let text = |t: &str| Ok(Value::Str(t.into()));
        for (payload, expected) in [
            (&b"21.5\n"[..], Ok(Value::Double(21.5))),
            (b"  21.5 ", Ok(Value::Double(21.5))),
            (b"21.5\0", Ok(Value::Double(21.5))),
            (b"21.5\n\0", Ok(Value::Double(21.5))),
            (b"\xEF\xBB\xBF21.5", Ok(Value::Double(21.5))),
            (b"\xEF\xBB\xBF", Err(Some(RejectReason::EmptyPayload))),
            (b"+21.5", Ok(Value::Double(21.5))),
            (b".5", Ok(Value::Double(0.5))),
            (b"-.5", Ok(Value::Double(-0.5))),
            (b"5.", Ok(Value::Double(5.0))),
            (b"1e3", Ok(Value::Double(1000.0))),
            (b"1e-400", Ok(Value::Double(0.0))),
            (b"22.0", Ok(Value::Double(22.0))),
            (b"22", Ok(Value::Int(22))),
            (b"+5", Ok(Value::Int(5))),
            (b"-0", Ok(Value::Int(0))),
            (b"007", Ok(Value::Int(7))),
            (b"9223372036854775807", Ok(Value::Int(i64::MAX))),
            (b"-9223372036854775808", Ok(Value::Int(i64::MIN))),
            (
                b"9223372036854775808",
                Err(Some(RejectReason::IntegerOutOfRange)),
            ),
            (
                b"123456789012345678901234567890",
                Err(Some(RejectReason::IntegerOutOfRange)),
            ),
            (b"1e999", Err(Some(RejectReason::NotFinite))),
            (b"nan", Err(None)),
            (b"NaN\n", Err(None)),
            (b"-nan", Err(None)),
            (b"unavailable", Err(None)),
            (b"Unknown", Err(None)),
            (b"None", Err(None)),
            (b"unknown command", text("unknown command")),
            (b"\"10\"", Ok(Value::Int(10))),
            (b"\" 21.5 \"", Ok(Value::Double(21.5))),
            (b"\"\\u00b0C\"", text("\u{b0}C")),
            (b"\"\"", Err(None)),
            (b"\"unavailable\"", Err(None)),
            (b"\"99999999999999999999\"", text("99999999999999999999")),
            (b"\"open", text("\"open")),
            (b"-Infinity", Err(Some(RejectReason::NotFinite))),
            (b"+inf", Err(Some(RejectReason::NotFinite))),
            (b"true", Ok(Value::Bool(true))),
            (b"false", Ok(Value::Bool(false))),
            (b"ON", text("ON")),
            (b"21,5", text("21,5")),
            (b"1_000", text("1_000")),
            (b"--1", text("--1")),
            (b".", text(".")),
            (b"e5", text("e5")),
            (b"1e", text("1e")),
            (b"0x10", text("0x10")),
            ("5 °C".as_bytes(), text("5 °C")),
            (b"", Err(Some(RejectReason::EmptyPayload))),
            (b"   \n", Err(Some(RejectReason::EmptyPayload))),
            (b"\0", Err(Some(RejectReason::EmptyPayload))),
            (b"null", Err(None)),
            (b"\x00\x00\xacA", Err(Some(RejectReason::InvalidUtf8))),
            (b"\x00\x00HB", Err(Some(RejectReason::BinaryPayload))),
        ] {
            let got = run(payload, Some("S1"), Some("temp")).map(|(name, value)| {
                assert_eq!(name, "temp");
                value
            });
            assert_eq!(got, expected, "{:?}", String::from_utf8_lossy(payload));
        }
        assert_eq!(
            run(&[b'x'; 1025], Some("S1"), Some("t")).unwrap_err(),
            Some(RejectReason::StringTooLong)
        );
    }

    #[test]
    fn the_topic_must_name_sensor_and_field() {
        assert_eq!(
            run(b"1", None, Some("temp")),
            Err(Some(RejectReason::MissingSensorId))
        );
        assert_eq!(
            run(b"1", Some("S1"), None),
            Err(Some(RejectReason::MissingField))
        );
        assert_eq!(
            run(b"1", Some(""), Some("temp")),
            Err(Some(RejectReason::EmptySensorId))
        );
        assert_eq!(
            run(b"1", Some(&"s".repeat(257)), Some("temp")),
            Err(Some(RejectReason::SensorIdTooLong))
        );
        assert_eq!(run(b"1", Some("S1"), Some("$a.b")).unwrap().0, "_a_b");
        assert_eq!(
            run(b"1", Some("S1"), Some(&"f".repeat(200))),
            Err(Some(RejectReason::NameTooLong))
        );
    }
}
