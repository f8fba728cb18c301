//! Decodes one payload for the command `decode`, and prints its readings and rejects.

use std::io::{self, Write};
use std::process::ExitCode;

use super::output::print_line;
use crate::config::{self, Config, Decoding};
use crate::decode::topic::{Captured, TopicTemplate};
use crate::decode::{Context, Formats, RejectReason, Rejects, TsUnit, sparkplug, time};
use crate::model::{BatchBuilder, ReadingBatch, ReadingRef, ValueRef};

/// What payloads are decoded with.
pub(super) struct Decode {
    decoding: Decoding,
    pub(super) formats: Formats,
}

impl Decode {
    pub(super) fn of(config: &Config) -> Decode {
        let decoding = config.decoding();
        Decode {
            formats: Formats::new(&decoding),
            decoding,
        }
    }
}

/// The payload's format and context.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DecodeRequest<'a> {
    /// The name of a format: built-in, a built-in mapping, or one of the configuration.
    pub(super) format: &'a str,
    /// Prints nothing besides the lines.
    pub(super) quiet: bool,
    /// A Sparkplug birth, decoded before the payload.
    pub(super) birth: Option<&'a [u8]>,
    /// The MQTT topic of the payload.
    pub(super) topic: Option<&'a str>,
    /// The subscription's template.
    pub(super) template: Option<&'a str>,
    /// The unit of numeric times.
    pub(super) ts_unit: Option<&'a str>,
}

/// Counts of the printed results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DecodeOutput {
    pub(super) readings: usize,
    /// Rejects, including those that were counted but not printed.
    pub(super) rejects: usize,
    /// All values in the readings.
    pub(super) values: usize,
}

/// Decodes one payload and writes a JSON line for each reading and each reject.
///
/// First each reading in the order of the payload, as `{"sensor_id", "ts", "values", "tags"}`; `ts`
/// is absent if it would be the time of receipt. Then each reject, as `{"reject": {"index",
/// "reason", "detail"}}`.
///
/// Without a `template`, default templates are tried on the topic. For a scalar these are
/// `+/{sensor_id}/{field}` (which covers `sensors/{sensor_id}/{field}`) and `{sensor_id}/{field}`.
/// For JSON, CBOR, MessagePack and mappings that do not read topics, the second level is the sensor
/// (`+/{sensor_id}/#`), unless the payload names one. Line protocol, SenML and OTLP name their
/// series themselves. A topic that does not match the given template is a reject, as in the
/// service. If no default template matches, none is used.
///
/// The limits of the configuration apply as in the service, including the time window: the caller
/// passes one as wide as it needs.
///
/// # Errors
/// `InvalidInput` for an unknown format or unit or an invalid template; otherwise errors of
/// writing.
pub(super) fn run(
    request: DecodeRequest<'_>,
    payload: &[u8],
    out: &mut impl Write,
    settings: &Decode,
    received_at_ms: i64,
) -> io::Result<DecodeOutput> {
    if request.format == sparkplug::NAME {
        return run_sparkplug(request, payload, out, settings, received_at_ms);
    }
    if payload.is_empty() {
        // As in an MQTT message: a sign-off, or a retained message that is cleared.
        return Ok(DecodeOutput::default());
    }
    let Decode { decoding, formats } = settings;
    let decoder = formats.get(request.format).map_err(invalid)?;
    let by_magnitude = request.ts_unit == Some("auto");
    let given = request.ts_unit.filter(|_| !by_magnitude);
    let unit = given
        .map(str::parse::<TsUnit>)
        .transpose()
        .map_err(invalid)?;
    let usual = decoder.usual_templates();
    let given = request.template.map(|t| [t]);
    let templates = given.as_ref().map_or(usual, |t| t.as_slice());
    let templates = templates
        .iter()
        .map(|t| TopicTemplate::parse(t))
        .collect::<Result<Vec<_>, _>>()
        .map_err(invalid)?;
    let captured = request
        .topic
        .and_then(|topic| templates.iter().find_map(|t| t.capture(topic)));

    let mut rejects = Rejects::new();
    let mut builder = BatchBuilder::new(decoding.limits.fields_max);
    if captured.is_none() && request.topic.is_some() && request.template.is_some() {
        rejects.push(
            0,
            RejectReason::TopicMismatch,
            "the topic does not match the template",
        );
    } else {
        let Captured {
            sensor_id,
            field,
            tags,
        } = captured.unwrap_or_default();
        let ts_unit = unit.or(decoder.ts_unit_usual().filter(|_| !by_magnitude));
        let cx = Context {
            ts_unit,
            sensor_id,
            field,
            tags: &tags,
            ..Context::of(decoding, received_at_ms)
        };
        decoder.decode(payload, request.topic, &cx, &mut builder, &mut rejects);
    }
    show(&builder.finish(), &rejects, out, request.quiet)
}

/// Decodes a single Sparkplug B message, after the given birth. A birth yields everything; data
/// with aliases is rejected if its birth is unknown.
fn run_sparkplug(
    request: DecodeRequest<'_>,
    payload: &[u8],
    out: &mut impl Write,
    settings: &Decode,
    received_at_ms: i64,
) -> io::Result<DecodeOutput> {
    let needs_topic = "format sparkplug needs --topic, such as spBv1.0/group/NDATA/node";
    let topic = request
        .topic
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, needs_topic))?;
    let decoding = &settings.decoding;
    let cx = Context::of(decoding, received_at_ms);
    let mut rejects = Rejects::new();
    let mut builder = BatchBuilder::new(decoding.limits.fields_max);
    let mut state = sparkplug::Sparkplug::new();
    if let Some(birth) = request.birth {
        for birth_topic in birth_topics(topic) {
            state.decode(&birth_topic, birth, &cx, &mut builder, &mut rejects);
        }
        builder.finish();
        let broken = rejects
            .list()
            .iter()
            .find(|reject| reject.reason == RejectReason::InvalidSparkplug);
        if let Some(reject) = broken {
            let what = format!("the birth cannot be decoded: {}", reject.detail);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        rejects.clear();
    }
    state.decode(topic, payload, &cx, &mut builder, &mut rejects);
    show(&builder.finish(), &rejects, out, request.quiet)
}

/// The topics of the births that may define the aliases of a message: of its node, then of its
/// device.
fn birth_topics(topic: &str) -> Vec<String> {
    let levels: Vec<&str> = topic.split('/').collect();
    let [namespace, group, _, node, device @ ..] = &levels[..] else {
        return vec![];
    };
    let of_node = format!("{namespace}/{group}/NBIRTH/{node}");
    let of_device = device
        .first()
        .map(|device| format!("{namespace}/{group}/DBIRTH/{node}/{device}"));
    std::iter::once(of_node).chain(of_device).collect()
}

fn show(
    batch: &ReadingBatch,
    rejects: &Rejects,
    out: &mut impl Write,
    quiet: bool,
) -> io::Result<DecodeOutput> {
    for (_, reading) in batch.iter() {
        writeln!(out, "{}", reading_line(batch, &reading))?;
    }
    for reject in rejects.list() {
        let line = serde_json::json!({ "index": reject.index, "reason": reject.reason.as_str(), "detail": reject.detail });
        writeln!(out, "{}", serde_json::json!({ "reject": line }))?;
    }
    out.flush()?;
    if batch.retimed() > 0 && !quiet {
        let n = batch.retimed();
        eprintln!(
            "hourbucket: {n} readings with a time that cannot be used (unset, unreadable, or \
             without a zone); they get the time of receipt"
        );
    }
    let left_out = rejects.left_out();
    if left_out.total() > 0 && !quiet {
        eprintln!(
            "hourbucket: left out, not stored ({}): {}",
            left_out.total(),
            left_out.names().join(", ")
        );
    }
    let values = batch
        .iter()
        .map(|(_, reading)| reading.values().count())
        .sum();
    Ok(DecodeOutput {
        readings: batch.len(),
        rejects: rejects.total(),
        values,
    })
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

fn reading_line(batch: &ReadingBatch, reading: &ReadingRef<'_>) -> String {
    let text = |t: &str| serde_json::Value::from(t).to_string();
    let mut line = format!("{{\"sensor_id\":{}", text(reading.sensor_id()));
    if !reading.receipt_time {
        // A time outside of the years of RFC 3339 is printed as a number.
        let ts = time::to_rfc3339(reading.ts_ms)
            .map_or_else(|| reading.ts_ms.to_string(), |ts| text(&ts));
        line += &format!(",\"ts\":{ts}");
    }
    let values = reading.values().map(|(name, value)| {
        let value = match value {
            ValueRef::Double(v) => serde_json::Value::from(v),
            ValueRef::Int(v) => v.into(),
            ValueRef::Bool(v) => v.into(),
            ValueRef::Str(v) => v.into(),
        };
        format!("{}:{value}", text(batch.name(name)))
    });
    line += &format!(",\"values\":{{{}}}", values.collect::<Vec<_>>().join(","));
    let owned = reading.to_reading(batch);
    let tags = owned
        .tags
        .iter()
        .map(|(k, v)| format!("{}:{}", text(k), text(v)));
    line += &format!(",\"tags\":{{{}}}}}", tags.collect::<Vec<_>>().join(","));
    line
}

/// The settings affect decoding, but an invalid default file must not prevent it. One given with
/// `--config` does.
pub(super) fn settings(path: Option<&std::path::Path>) -> Result<Config, config::ConfigErrors> {
    match config::load(path, config::environment()) {
        Ok(loaded) => Ok(loaded.config),
        Err(errors) if path.is_some() => Err(errors),
        Err(_) => {
            eprintln!(
                "hourbucket: invalid configuration (run `hourbucket check` for details); decoding \
                 with the defaults"
            );
            Ok(Config::default())
        }
    }
}

pub(super) fn list_formats(config: &Config) -> ExitCode {
    Formats::new(&config.decoding())
        .names()
        .into_iter()
        .for_each(print_line);
    // Not a format for messages in general, but `decode` accepts it.
    print_line(sparkplug::NAME);
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(
        format: &str,
        topic: Option<&str>,
        template: Option<&str>,
        payload: &str,
    ) -> (bool, Vec<String>) {
        let mut config = Config::default();
        config.limits.past = std::time::Duration::from_secs(100 * 365 * 86_400);
        config.limits.unset_before_ms = i64::MIN;
        let mut out = vec![];
        let request = DecodeRequest {
            format,
            topic,
            template,
            ..DecodeRequest::default()
        };
        let printed = run(
            request,
            payload.as_bytes(),
            &mut out,
            &Decode::of(&config),
            1_709_290_800_000,
        )
        .unwrap();
        (
            printed.readings > 0,
            String::from_utf8(out)
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect(),
        )
    }

    #[test]
    fn a_line_for_each_reading_and_each_reject() {
        let payload = r#"[{"sensor_id":"S\"1","ts":0,"values":{"b":1,"a":2.0,"c":true,"d":"x"},"tags":{"z":1,"y":"n"}},
            {"sensor_id":"S2","v":1},{"v":1}]"#;
        let (any, lines) = lines("json", None, None, payload);
        assert!(any);
        assert_eq!(
            lines,
            [
                r#"{"sensor_id":"S\"1","ts":"1970-01-01T00:00:00.000Z","values":{"b":1,"a":2.0,"c":true,"d":"x"},"tags":{"y":"n","z":"1"}}"#,
                r#"{"sensor_id":"S2","values":{"v":1},"tags":{}}"#,
                r#"{"reject":{"detail":"neither the payload nor the topic has a sensor_id","index":2,"reason":"missing_sensor_id"}}"#,
            ]
        );
        for line in lines {
            serde_json::from_str::<serde_json::Value>(&line).unwrap();
        }
    }

    #[test]
    fn topics_and_templates() {
        let sensor =
            |format, topic, template, payload| lines(format, topic, template, payload).1.remove(0);
        let line = r#"{"sensor_id":"S1","values":{"temp":1},"tags":{}}"#;
        assert_eq!(sensor("scalar", Some("sensors/S1/temp"), None, "1"), line);
        assert_eq!(sensor("scalar", Some("S1/temp"), None, "1"), line);
        assert_eq!(
            sensor("json", Some("sensors/S1"), None, r#"{"temp":1}"#),
            line
        );
        assert_eq!(
            sensor("ndjson", Some("tele/S1/SENSOR"), None, r#"{"temp":1}"#),
            line
        );
        assert_eq!(
            sensor(
                "json",
                Some("sensors/S9"),
                None,
                r#"{"sensor_id":"S1","temp":1}"#
            ),
            line
        );
        let line = r#"{"sensor_id":"cpu,host=a","ts":"1970-01-01T00:00:00.001Z","values":{"v":1.0},"tags":{"host":"a"}}"#;
        assert_eq!(
            sensor(
                "line",
                Some("telegraf/a/cpu"),
                None,
                "cpu,host=a v=1 1000000"
            ),
            line
        );
        assert!(
            sensor("line", Some("a/cpu"), Some("{sensor_id}/+"), "cpu v=1")
                .contains(r#""sensor_id":"a""#)
        );
        let tagged = r#"{"sensor_id":"S1","values":{"temp":1},"tags":{"site":"n"}}"#;
        assert_eq!(
            sensor(
                "scalar",
                Some("n/S1/temp"),
                Some("{site}/{sensor_id}/{field}"),
                "1"
            ),
            tagged
        );
        assert!(
            sensor("scalar", Some("x"), Some("a/{sensor_id}/{field}"), "1")
                .contains("topic_mismatch")
        );
        assert!(sensor("scalar", None, None, "1").contains("missing_sensor_id"));
        assert!(!lines("scalar", None, None, "1").0);
    }

    #[test]
    fn a_message_of_sparkplug_needs_its_topic() {
        let payload = "\u{12}\u{e}\n\u{1}v\u{18}\u{1}\u{70}\u{1}";
        let (any, printed) = lines("sparkplug", Some("spBv1.0/G/NDATA/N"), None, payload);
        assert!(
            !any && printed[0].contains("invalid_sparkplug"),
            "the metric is said to be longer than it is: {printed:?}"
        );
        let payload = "\u{12}\u{7}\n\u{1}v\u{18}\u{1}\u{70}\u{1}";
        let (any, printed) = lines("sparkplug", Some("spBv1.0/G/DDATA/N/D"), None, payload);
        let line = r#"{"sensor_id":"G/N/D","ts":"1970-01-01T00:00:00.001Z","values":{"v":true},"tags":{}}"#;
        assert!(any && printed == [line], "{printed:?}");
        let request = DecodeRequest {
            format: "sparkplug",
            ..DecodeRequest::default()
        };
        let error = run(
            request,
            b"",
            &mut vec![],
            &Decode::of(&Config::default()),
            0,
        )
        .unwrap_err();
        assert!(error.to_string().contains("--topic"));
    }

    #[test]
    fn a_wrong_format_or_template_is_an_error() {
        let mut out = vec![];
        let mut error = |format, template| {
            let request = DecodeRequest {
                format,
                topic: Some("a"),
                template,
                ..DecodeRequest::default()
            };
            run(request, b"1", &mut out, &Decode::of(&Config::default()), 0)
                .unwrap_err()
                .to_string()
        };
        let unknown = error("yaml", None);
        assert!(
            unknown.starts_with("unknown format `yaml`; expected one of json, ndjson"),
            "{unknown}"
        );
        assert!(error("zigbe2mqtt", None).contains("did you mean `zigbee2mqtt`?"));
        assert!(error("json", Some("a#")).contains("`#`"));
    }

    #[test]
    fn a_shipped_profile_needs_no_configuration() {
        let topic = Some("zigbee2mqtt/kitchen/motion");
        let (any, printed) = lines(
            "zigbee2mqtt",
            topic,
            None,
            r#"{"occupancy":true,"last_seen":1709290799000}"#,
        );
        assert!(any);
        assert_eq!(
            printed,
            [
                r#"{"sensor_id":"kitchen/motion","ts":"2024-03-01T10:59:59.000Z","values":{"occupancy":true},"tags":{}}"#
            ]
        );
        let (_, printed) = lines("zigbee2mqtt", None, None, r#"{"occupancy":true}"#);
        assert!(
            printed[0].contains("no_rule")
                && printed[0].contains("need the topic, such as zigbee2mqtt/{sensor_id#}"),
            "{printed:?}"
        );
    }

    #[test]
    fn the_unit_of_numbers_can_be_set() {
        let printed = |ts_unit| {
            let request = DecodeRequest {
                format: "json",
                ts_unit,
                ..DecodeRequest::default()
            };
            let mut out = vec![];
            let payload = br#"{"sensor_id":"S","ts":1709290799000,"v":1}"#;
            run(
                request,
                payload,
                &mut out,
                &Decode::of(&Config::default()),
                1_709_290_800_000,
            )
            .map_err(|e| e.to_string())?;
            Ok::<_, String>(String::from_utf8(out).unwrap())
        };
        assert!(printed(Some("ms")).unwrap().contains("10:59:59.000Z"));
        assert!(printed(Some("s")).unwrap().contains("too_far_ahead"));
        assert!(printed(Some("h")).unwrap_err().contains("s, ms, us or ns"));
    }

    #[test]
    fn the_unit_of_line_protocol_can_be_by_magnitude() {
        let printed = |ts_unit| {
            let request = DecodeRequest {
                format: "line",
                ts_unit,
                ..DecodeRequest::default()
            };
            let mut out = vec![];
            run(
                request,
                b"m v=1 1709290799",
                &mut out,
                &Decode::of(&Config::default()),
                1_709_290_800_000,
            )
            .unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(printed(None).contains("too_old"));
        assert!(printed(Some("auto")).contains("2024-03-01T10:59:59.000Z"));
    }

    #[test]
    fn a_birth_resolves_the_aliases_of_a_message() {
        // {name: "temp", alias: 7, datatype: Double, double_value: 1.0}, then {alias: 7,
        // double_value: 2.5}
        let metric = |head: &[u8], v: f64| {
            let metric = [head, &[0x69], &v.to_le_bytes()].concat();
            [&[0x12, metric.len() as u8][..], &metric, &[0x18, 0]].concat()
        };
        let birth = metric(b"\x0a\x04temp\x10\x07\x20\x0a", 1.0);
        let data = metric(b"\x10\x07", 2.5);
        for topic in ["spBv1.0/G/NDATA/N", "spBv1.0/G/DDATA/N/D"] {
            let decoded = |birth| {
                let request = DecodeRequest {
                    format: "sparkplug",
                    topic: Some(topic),
                    birth,
                    ..DecodeRequest::default()
                };
                let mut out = vec![];
                let printed = run(
                    request,
                    &data,
                    &mut out,
                    &Decode::of(&Config::default()),
                    1_709_290_800_000,
                );
                printed
                    .map(|_| String::from_utf8(out).unwrap())
                    .map_err(|e| e.to_string())
            };
            let alone = decoded(None).unwrap();
            assert!(
                alone.contains("unknown_metric") && !alone.contains("rebirth"),
                "{alone}"
            );
            assert!(
                decoded(Some(&birth))
                    .unwrap()
                    .contains(r#""values":{"temp":2.5}"#)
            );
            assert!(
                decoded(Some(b"\x12\x99"))
                    .unwrap_err()
                    .contains("the birth cannot be decoded")
            );
        }
    }

    #[test]
    fn details_are_escaped_once_and_compressed_payloads_are_named() {
        let (_, printed) = lines("json", Some("a/S"), None, r#"{"ts":"x\"y\n","v":1}"#);
        let line: serde_json::Value = serde_json::from_str(&printed[0]).unwrap();
        assert_eq!(
            line["reject"]["detail"],
            "ts `x\"y\u{240a}` is neither RFC 3339 nor a number"
        );
        let request = DecodeRequest {
            format: "json",
            ..DecodeRequest::default()
        };
        let mut out = vec![];
        run(
            request,
            b"\x1f\x8b\x08\0\0\0",
            &mut out,
            &Decode::of(&Config::default()),
            0,
        )
        .unwrap();
        let printed = String::from_utf8(out).unwrap();
        assert!(
            printed.contains("compressed") && printed.contains("gzip"),
            "{printed}"
        );
        assert!(
            lines("json", None, None, r#"{"v":nan}"#).1[0]
                .contains("NaN is not a number in JSON; send null")
        );
        assert!(lines("scalar", None, None, "1").1[0].contains("does not name its sensor"));
    }
}
