//! The command `decode`: prints the readings and rejects of a payload.

use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;

use super::output::{fail, print_line};
use crate::config::{self, Config};
use crate::decode::topic::{Captured, TopicTemplate};
use crate::decode::{Context, Formats, RejectReason, Rejects, TsUnit, sparkplug, time};
use crate::model::{BatchBuilder, Clock, ReadingBatch, ReadingRef, SystemClock, ValueRef};

/// The payload's format and context.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DecodeRequest<'a> {
    /// The name of a format: built-in, a built-in mapping, or one of the configuration.
    pub(super) format: &'a str,
    /// The MQTT topic of the payload.
    pub(super) topic: Option<&'a str>,
    /// The subscription's template.
    pub(super) template: Option<&'a str>,
    /// The unit of numeric times.
    pub(super) ts_unit: Option<&'a str>,
}

/// Counts of the printed results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DecodeOutput {
    pub(super) readings: usize,
    /// Rejects, including those that were counted but not printed.
    pub(super) rejects: usize,
}

/// Decodes one payload and writes a JSON line for each reading and each reject.
///
/// First each reading in the order of the payload, as `{"sensor_id", "ts", "values", "tags"}`; `ts` is absent if it
/// would be the time of receipt. Then each reject, as `{"reject": {"index", "reason", "detail"}}`.
///
/// Without a `template`, default templates are tried on the topic. For a scalar these are `+/{sensor_id}/{field}`
/// (which covers `sensors/{sensor_id}/{field}`) and `{sensor_id}/{field}`. For JSON, CBOR, MessagePack and mappings
/// that do not read topics, the second level is the sensor (`+/{sensor_id}/#`), unless the payload names one. Line
/// protocol, SenML and OTLP name their series themselves. A topic that does not match the given template is a reject,
/// as in the service. If no default template matches, none is used.
///
/// The limits of the configuration apply as in the service, including the time window: the caller passes one as wide as
/// it needs.
///
/// # Errors
/// `InvalidInput` for an unknown format or unit or an invalid template; otherwise errors of writing.
fn run(
    request: DecodeRequest<'_>,
    payload: &[u8],
    out: &mut impl Write,
    config: &Config,
    received_at_ms: i64,
) -> io::Result<DecodeOutput> {
    if request.format == sparkplug::NAME {
        return run_sparkplug(request.topic, payload, out, config, received_at_ms);
    }
    let decoder = Formats::new(&config.decoding()).get(request.format).map_err(invalid)?;
    let unit = request.ts_unit.map(str::parse::<TsUnit>).transpose().map_err(invalid)?;
    let usual = decoder.usual_templates();
    let given = request.template.map(|t| [t]);
    let templates = given.as_ref().map_or(usual, |t| t.as_slice());
    let templates =
        templates.iter().map(|t| TopicTemplate::parse(t)).collect::<Result<Vec<_>, _>>().map_err(invalid)?;
    let captured = request.topic.and_then(|topic| templates.iter().find_map(|t| t.capture(topic)));

    let mut rejects = Rejects::new();
    let mut builder = BatchBuilder::new(config.limits.fields_max);
    if captured.is_none() && request.topic.is_some() && request.template.is_some() {
        rejects.push(0, RejectReason::TopicMismatch, "the topic does not match the template");
    } else {
        let Captured { sensor_id, field, tags } = captured.unwrap_or_default();
        let (limits, line, ts_unit) = (&config.limits, &config.line, unit.or(decoder.ts_unit_usual()));
        let cx = Context { limits, line, received_at_ms, ts_unit, sensor_id, field, tags: &tags };
        decoder.decode(payload, request.topic, &cx, &mut builder, &mut rejects);
    }
    show(&builder.finish(), &rejects, out)
}

/// Decodes a single Sparkplug B message. A birth yields everything; data with aliases is rejected because its birth is
/// unknown.
fn run_sparkplug(
    topic: Option<&str>,
    payload: &[u8],
    out: &mut impl Write,
    config: &Config,
    received_at_ms: i64,
) -> io::Result<DecodeOutput> {
    let needs_topic = "format sparkplug needs --topic, such as spBv1.0/group/NDATA/node";
    let topic = topic.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, needs_topic))?;
    let (limits, line) = (&config.limits, &config.line);
    let cx = Context { limits, line, received_at_ms, ts_unit: None, sensor_id: None, field: None, tags: &[] };
    let (mut rejects, mut builder) = (Rejects::new(), BatchBuilder::new(limits.fields_max));
    sparkplug::Sparkplug::new().decode(topic, payload, &cx, &mut builder, &mut rejects);
    show(&builder.finish(), &rejects, out)
}

fn show(batch: &ReadingBatch, rejects: &Rejects, out: &mut impl Write) -> io::Result<DecodeOutput> {
    for (_, reading) in batch.iter() {
        writeln!(out, "{}", reading_line(batch, &reading))?;
    }
    for reject in rejects.list() {
        let line =
            serde_json::json!({ "index": reject.index, "reason": reject.reason.as_str(), "detail": reject.detail });
        writeln!(out, "{}", serde_json::json!({ "reject": line }))?;
    }
    out.flush()?;
    Ok(DecodeOutput { readings: batch.len(), rejects: rejects.total() })
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

fn reading_line(batch: &ReadingBatch, reading: &ReadingRef<'_>) -> String {
    let text = |t: &str| serde_json::Value::from(t).to_string();
    let mut line = format!("{{\"sensor_id\":{}", text(reading.sensor_id()));
    if !reading.receipt_time {
        // A time outside of the years of RFC 3339 is printed as a number.
        let ts = time::to_rfc3339(reading.ts_ms).map_or_else(|| reading.ts_ms.to_string(), |ts| text(&ts));
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
    let tags = owned.tags.iter().map(|(k, v)| format!("{}:{}", text(k), text(v)));
    line += &format!(",\"tags\":{{{}}}}}", tags.collect::<Vec<_>>().join(","));
    line
}

/// The settings affect decoding, but an invalid default file must not prevent it. One given with `--config` does.
pub(super) fn settings(path: Option<&std::path::Path>) -> Result<Config, config::ConfigErrors> {
    match config::load(path, config::environment()) {
        Ok(loaded) => Ok(loaded.config),
        Err(errors) if path.is_some() => Err(errors),
        Err(_) => {
            eprintln!(
                "hourbucket: invalid configuration (run `hourbucket check` for details); decoding with the defaults"
            );
            Ok(Config::default())
        }
    }
}

pub(super) fn list_formats(config: &Config) -> ExitCode {
    Formats::new(&config.decoding()).names().into_iter().for_each(print_line);
    // Not a format for messages in general, but `decode` accepts it.
    print_line(sparkplug::NAME);
    ExitCode::SUCCESS
}

pub(super) fn decode_stdin(request: DecodeRequest<'_>, mut config: Config) -> ExitCode {
    if std::io::stdin().is_terminal() {
        eprintln!("hourbucket: reading the payload from the terminal; end it with Ctrl-D");
    }
    let mut payload = vec![];
    if let Err(error) = std::io::stdin().lock().read_to_end(&mut payload) {
        return fail(format!("standard input: {error}"));
    }
    // Samples may be of any age; the limits for times apply only to the running service.
    let century = std::time::Duration::from_secs(1000 * 365 * 24 * 3600);
    (config.limits.past, config.limits.future) = (century, century);
    let received_at_ms = SystemClock::new().now().wall_ms;
    let mut out = std::io::stdout().lock();
    match run(request, &payload, &mut out, &config, received_at_ms) {
        Ok(printed) if printed.readings > 0 => ExitCode::SUCCESS,
        Ok(printed) => {
            if printed.rejects == 0 {
                eprintln!(
                    "hourbucket: no reading and no error: all values are null, nan, unavailable or similar, or the \
                     format skips this message"
                );
            }
            ExitCode::FAILURE
        }
        Err(error) => fail(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(format: &str, topic: Option<&str>, template: Option<&str>, payload: &str) -> (bool, Vec<String>) {
        let mut config = Config::default();
        config.limits.past = std::time::Duration::from_secs(100 * 365 * 86_400);
        config.limits.unset_before_ms = i64::MIN;
        let mut out = vec![];
        let request = DecodeRequest { format, topic, template, ts_unit: None };
        let printed = run(request, payload.as_bytes(), &mut out, &config, 1_709_290_800_000).unwrap();
        (printed.readings > 0, String::from_utf8(out).unwrap().lines().map(str::to_owned).collect())
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
        let sensor = |format, topic, template, payload| lines(format, topic, template, payload).1.remove(0);
        let line = r#"{"sensor_id":"S1","values":{"temp":1},"tags":{}}"#;
        assert_eq!(sensor("scalar", Some("sensors/S1/temp"), None, "1"), line);
        assert_eq!(sensor("scalar", Some("S1/temp"), None, "1"), line);
        assert_eq!(sensor("json", Some("sensors/S1"), None, r#"{"temp":1}"#), line);
        assert_eq!(sensor("ndjson", Some("tele/S1/SENSOR"), None, r#"{"temp":1}"#), line);
        assert_eq!(sensor("json", Some("sensors/S9"), None, r#"{"sensor_id":"S1","temp":1}"#), line);
        let line =
            r#"{"sensor_id":"cpu,host=a","ts":"1970-01-01T00:00:00.001Z","values":{"v":1.0},"tags":{"host":"a"}}"#;
        assert_eq!(sensor("line", Some("telegraf/a/cpu"), None, "cpu,host=a v=1 1000000"), line);
        assert!(sensor("line", Some("a/cpu"), Some("{sensor_id}/+"), "cpu v=1").contains(r#""sensor_id":"a""#));
        let tagged = r#"{"sensor_id":"S1","values":{"temp":1},"tags":{"site":"n"}}"#;
        assert_eq!(sensor("scalar", Some("n/S1/temp"), Some("{site}/{sensor_id}/{field}"), "1"), tagged);
        assert!(sensor("scalar", Some("x"), Some("a/{sensor_id}/{field}"), "1").contains("topic_mismatch"));
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
        let request = DecodeRequest { format: "sparkplug", ..DecodeRequest::default() };
        let error = run(request, b"", &mut vec![], &Config::default(), 0).unwrap_err();
        assert!(error.to_string().contains("--topic"));
    }

    #[test]
    fn a_wrong_format_or_template_is_an_error() {
        let mut out = vec![];
        let mut error = |format, template| {
            let request = DecodeRequest { format, topic: Some("a"), template, ts_unit: None };
            run(request, b"1", &mut out, &Config::default(), 0).unwrap_err().to_string()
        };
        let unknown = error("yaml", None);
        assert!(unknown.starts_with("unknown format `yaml`; expected one of json, ndjson"), "{unknown}");
        assert!(error("zigbe2mqtt", None).contains("did you mean `zigbee2mqtt`?"));
        assert!(error("json", Some("a#")).contains("`#`"));
    }

    #[test]
    fn a_shipped_profile_needs_no_configuration() {
        let topic = Some("zigbee2mqtt/kitchen/motion");
        let (any, printed) = lines("zigbee2mqtt", topic, None, r#"{"occupancy":true,"last_seen":1709290799000}"#);
        assert!(any);
        assert_eq!(
            printed,
            [r#"{"sensor_id":"kitchen/motion","ts":"2024-03-01T10:59:59.000Z","values":{"occupancy":true},"tags":{}}"#]
        );
        let (_, printed) = lines("zigbee2mqtt", None, None, r#"{"occupancy":true}"#);
        assert!(printed[0].contains("no_rule") && printed[0].contains("need the topic"), "{printed:?}");
    }

    #[test]
    fn the_unit_of_numbers_can_be_set() {
        let printed = |ts_unit| {
            let request = DecodeRequest { format: "json", ts_unit, ..DecodeRequest::default() };
            let mut out = vec![];
            let payload = br#"{"sensor_id":"S","ts":1709290799000,"v":1}"#;
            run(request, payload, &mut out, &Config::default(), 1_709_290_800_000).map_err(|e| e.to_string())?;
            Ok::<_, String>(String::from_utf8(out).unwrap())
        };
        assert!(printed(Some("ms")).unwrap().contains("10:59:59.000Z"));
        assert!(printed(Some("s")).unwrap().contains("too_far_ahead"));
        assert!(printed(Some("h")).unwrap_err().contains("s, ms, us or ns"));
    }
}
