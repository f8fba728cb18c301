//! The command `decode` without a format: tries all of them, and shows those that fit, the best
//! first.

use std::cmp::Reverse;
use std::io::{self, Write};

use super::decode::{Decode, DecodeOutput, DecodeRequest, run as decode};
use decode::{Format, Formats, sparkplug, unpadded};

/// Shown lines of the readings that a format would store.
const LINES_MAX: usize = 3;

/// How well a format fits; a larger one fits better. First whether nothing is rejected, then how
/// much the format says about itself, then the number of values.
type Fit = (bool, u8, usize);

/// A format that finds readings in a payload.
struct Candidate<'f> {
    format: &'f str,
    fit: Fit,
    output: DecodeOutput,
    /// What it would print.
    lines: Vec<u8>,
}

/// Prints for each format that finds readings a line `{"format", "readings", "values", "rejected"}`
/// and its first readings. Returns whether there is one.
///
/// # Errors
/// Errors of writing, and an invalid template or unit.
pub(super) fn run(
    request: DecodeRequest<'_>,
    payload: &[u8],
    out: &mut impl Write,
    settings: &Decode,
    received_at_ms: i64,
) -> io::Result<bool> {
    let found = candidates(request, payload, settings, received_at_ms)?;
    for Candidate {
        format,
        output,
        lines,
        ..
    } in &found
    {
        let DecodeOutput {
            readings,
            values,
            rejects,
            ..
        } = output;
        let head = serde_json::json!({ "format": format, "readings": readings, "values": values, "rejected": rejects });
        writeln!(out, "{head}")?;
        for line in lines
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .take(LINES_MAX)
        {
            out.write_all(line)?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    match found.first() {
        Some(best) => {
            eprintln!("hourbucket: the best fit is --format {}", best.format);
            if let Some(note) = settings.rejected_now(&best.output) {
                eprintln!("hourbucket: {note}");
            }
        }
        None => {
            let topic = if request.topic.is_none() {
                "; with --topic more formats can be tried"
            } else {
                ""
            };
            eprintln!(
                "hourbucket: no format finds a reading in it{topic}. --format NAME shows why not"
            );
        }
    }
    Ok(!found.is_empty())
}

fn candidates<'f>(
    request: DecodeRequest<'_>,
    payload: &[u8],
    settings: &'f Decode,
    received_at_ms: i64,
) -> io::Result<Vec<Candidate<'f>>> {
    let formats = &settings.formats;
    let with_topic = request.topic.map(|_| sparkplug::NAME);
    let mut found = vec![];
    for format in formats.names().into_iter().chain(with_topic) {
        let mut lines = vec![];
        let output = decode(
            DecodeRequest {
                format,
                quiet: true,
                ..request
            },
            payload,
            &mut lines,
            settings,
            received_at_ms,
        )?;
        if output.readings > 0 {
            let fit = (
                output.rejects == 0,
                class(format, formats, payload, request.topic),
                output.values,
            );
            found.push(Candidate {
                format,
                fit,
                output,
                lines,
            });
        }
    }
    // Stable, so that among equal ones the built-in format comes first.
    found.sort_by_key(|candidate| Reverse(candidate.fit));
    Ok(found)
}

/// How much a format says about itself: a vendor's topic or the members of its messages, then
/// formats with a syntax of their own, then those that take almost anything.
fn class(format: &str, formats: &Formats, payload: &[u8], topic: Option<&str>) -> u8 {
    let Ok(decoder) = formats.get(format) else {
        return 6;
    };
    let text = unpadded(payload);
    match decoder.built_in() {
        Some(Format::Senml | Format::SenmlCbor) => 5,
        Some(Format::Line) => 3,
        Some(Format::Json | Format::Cbor | Format::MessagePack) => 2,
        Some(Format::Ndjson) => 1,
        // A bare value; objects and arrays would be texts.
        Some(Format::Scalar) if !matches!(text.trim_ascii_start(), [b'{' | b'[', ..]) => 2,
        Some(Format::Scalar) => 0,
        None => match decoder.first_rule(payload, topic) {
            Some(rule) if rule.is_specific => 4,
            // The last rule of some profiles takes any object.
            Some(_) => 1,
            // OpenTelemetry.
            None => 5,
        },
    }
}

/// Advice for a payload of a vendor whose own format would store more of it, or at all.
pub(super) fn hint(
    request: DecodeRequest<'_>,
    printed: DecodeOutput,
    payload: &[u8],
    settings: &Decode,
    received_at_ms: i64,
) -> Option<String> {
    let format = settings.formats.get(request.format).ok()?.built_in()?;
    if !matches!(format, Format::Json | Format::Ndjson | Format::Scalar) {
        return None;
    }
    let of_vendor =
        |name: &str| format!("this looks like a message of {name}; try --format {name}");
    let found = candidates(
        DecodeRequest {
            template: None,
            ..request
        },
        payload,
        settings,
        received_at_ms,
    );
    // Without a topic a mapping does not identify the vendor; a member that only one vendor has
    // does.
    let best = found
        .ok()?
        .into_iter()
        .next()
        .filter(|best| best.fit.1 == 4 && best.format != request.format);
    match best {
        Some(best) => Some(of_vendor(best.format)),
        None if printed.readings == 0 && format == Format::Scalar => None,
        None => by_member(payload).map(of_vendor),
    }
}

fn by_member(payload: &[u8]) -> Option<&'static str> {
    let message: serde_json::Value = serde_json::from_slice(payload).ok()?;
    let has = |name: &str| message.get(name).is_some();
    let nested = message
        .as_object()?
        .values()
        .any(serde_json::Value::is_object);
    if has("linkquality") {
        return Some("zigbee2mqtt");
    }
    (has("Time") && (nested || has("TempUnit") || has("Uptime"))).then_some("tasmota")
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;

    fn defaults() -> Decode {
        Decode::from_config(&Config::default())
    }

    fn ranked(topic: Option<&str>, payload: &str) -> Vec<String> {
        let request = DecodeRequest {
            topic,
            ..DecodeRequest::default()
        };
        let settings = defaults();
        let found = candidates(request, payload.as_bytes(), &settings, 1_709_290_800_000).unwrap();
        found
            .iter()
            .map(|candidate| candidate.format.to_owned())
            .collect()
    }

    #[test]
    fn the_format_that_fits_best_comes_first() {
        let tasmota = r#"{"Time":"2024-03-01T10:00:00","ENERGY":{"Power":71,"Total":1.5}}"#;
        for (topic, payload, best) in [
            (Some("tele/attic/SENSOR"), tasmota, "tasmota"),
            (
                Some("zigbee2mqtt/attic"),
                r#"{"temperature":21.5,"linkquality":70}"#,
                "zigbee2mqtt",
            ),
            (Some("sensors/S1/temp"), "21.5", "scalar"),
            (Some("rooms/S1"), r#"{"temp":21.5}"#, "json"),
            (None, r#"{"sensor_id":"S1","temp":21.5}"#, "json"),
            (None, "weather,site=a temp=21.5", "line"),
            (
                None,
                r#"[{"n":"urn:dev:mac:1","u":"Cel","v":21.5}]"#,
                "senml",
            ),
            (
                None,
                r#"{"deviceInfo":{"devEui":"01"},"object":{"temp":1}}"#,
                "chirpstack-v4",
            ),
            (
                None,
                r#"{"fields":{"a":1},"name":"m","tags":{"host":"h"},"timestamp":1709290700}"#,
                "telegraf-json",
            ),
        ] {
            let found = ranked(topic, payload);
            assert_eq!(
                found.first().map(String::as_str),
                Some(best),
                "{payload}: {found:?}"
            );
        }
        assert_eq!(ranked(None, "\u{1}\u{2}"), [] as [&str; 0]);
        // A template with the field lets mappings for any message read a bare value too.
        let request = DecodeRequest {
            topic: Some("sensors/S1/temp"),
            template: Some("sensors/{sensor_id}/{field}"),
            ..DecodeRequest::default()
        };
        let settings = defaults();
        let found = candidates(request, b"21.5", &settings, 1_709_290_800_000).unwrap();
        assert_eq!(found[0].format, "scalar");
    }

    #[test]
    fn each_candidate_is_shown_with_what_it_would_store() {
        let mut out = vec![];
        let request = DecodeRequest {
            topic: Some("zigbee2mqtt/attic"),
            ..DecodeRequest::default()
        };
        let payload = br#"{"temperature":21.5}"#;
        assert!(run(request, payload, &mut out, &defaults(), 0).unwrap());
        let printed = String::from_utf8(out).unwrap();
        let mut lines = printed.lines();
        assert_eq!(
            lines.next(),
            Some(r#"{"format":"zigbee2mqtt","readings":1,"rejected":0,"values":1}"#)
        );
        assert_eq!(
            lines.next(),
            Some(r#"{"sensor_id":"attic","values":{"temperature":21.5},"tags":{}}"#)
        );
        assert!(
            !run(
                DecodeRequest::default(),
                b"\x01",
                &mut vec![],
                &defaults(),
                0
            )
            .unwrap()
        );
    }

    #[test]
    fn a_vendor_s_message_under_json_gets_a_hint() {
        let hinted = |topic, payload: &str| {
            let request = DecodeRequest {
                format: "json",
                topic,
                ..DecodeRequest::default()
            };
            let printed = DecodeOutput {
                readings: 1,
                ..DecodeOutput::default()
            };
            hint(request, printed, payload.as_bytes(), &defaults(), 0)
        };
        let tasmota = r#"{"Time":"2024-03-01T10:00:00","ENERGY":{"Power":71}}"#;
        assert!(hinted(None, tasmota).unwrap().contains("--format tasmota"));
        assert!(
            hinted(Some("tele/a/SENSOR"), tasmota)
                .unwrap()
                .contains("--format tasmota")
        );
        assert!(
            hinted(None, r#"{"temperature":1,"linkquality":70}"#)
                .unwrap()
                .contains("--format zigbee2mqtt")
        );
        assert_eq!(hinted(None, r#"{"sensor_id":"S","temp":1}"#), None);
    }
}
