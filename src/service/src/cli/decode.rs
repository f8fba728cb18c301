//! Decodes one payload for the command `decode`, and prints its readings and rejects.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::json;

use config::{Config, Decoding, write_duration};
use decode::topic::{Captured, TopicTemplate};
use decode::{
    Context, Formats, RejectReason, Rejects, Renamed, TsUnit, sparkplug, stands_for_number, time,
};
use model::{BatchBuilder, Checks, ReadingBatch, ReadingRef, ValueRef, stored_name};

/// What payloads are decoded with.
pub(super) struct Decode {
    decoding: Decoding,
    pub(super) formats: Formats,
    /// `limits.past` and `limits.future` of the service.
    window: (Duration, Duration),
}

impl Decode {
    pub(super) fn from_config(config: &Config) -> Decode {
        let decoding = config.decoding();
        Decode {
            formats: Formats::new(&decoding),
            window: (decoding.limits.past, decoding.limits.future),
            decoding,
        }
    }

    /// Decodes readings of any age: samples may be old. The service rejects some of them now
    /// ([`Decode::rejected_now`]).
    pub(super) fn of_any_age(config: &Config) -> Decode {
        let century = Duration::from_secs(1000 * 365 * 24 * 3600);
        let mut settings = Decode::from_config(config);
        let limits = &mut settings.decoding.limits;
        (limits.past, limits.future) = (century, century);
        settings
    }

    /// A builder that checks values by `[[ranges]]`.
    fn builder(&self, received_at_ms: i64) -> BatchBuilder {
        let Decoding { limits, ranges, .. } = &self.decoding;
        let mut builder = BatchBuilder::new(limits.fields_max);
        let fields_max = limits.bucket_fields_max;
        Checks::default().apply(&mut builder, fields_max, ranges, received_at_ms);
        builder
    }

    /// The readings and rejects of one payload over HTTP, where `sensor_id` names the sensor of
    /// readings that name none.
    ///
    /// # Errors
    /// `InvalidInput` for an unknown format or unit.
    pub(super) fn readings(
        &self,
        request: DecodeRequest<'_>,
        sensor_id: Option<&str>,
        payload: &[u8],
        received_at_ms: i64,
    ) -> io::Result<(ReadingBatch, Rejects)> {
        let decoder = self.formats.get(request.format).map_err(invalid)?;
        let unit = request.ts_unit.map(str::parse::<TsUnit>).transpose();
        let cx = Context {
            ts_unit: unit.map_err(invalid)?.or(decoder.ts_unit_usual()),
            sensor_id,
            is_answered: true,
            ..Context::new(&self.decoding, received_at_ms)
        };
        let mut rejects = Rejects::new();
        let mut builder = self.builder(received_at_ms);
        decoder.decode(payload, request.topic, &cx, &mut builder, &mut rejects);
        Ok((builder.finish(), rejects))
    }

    fn with_times(
        &self,
        output: DecodeOutput,
        batch: &ReadingBatch,
        received_at_ms: i64,
    ) -> DecodeOutput {
        let (past, future) = self.window;
        let ms = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        let oldest = received_at_ms.saturating_sub(ms(past));
        let newest = received_at_ms.saturating_add(ms(future));
        let times = || batch.iter().map(|(_, reading)| reading.ts_ms);
        DecodeOutput {
            too_old: times().filter(|ts| *ts < oldest).count(),
            too_far_ahead: times().filter(|ts| *ts > newest).count(),
            ..output
        }
    }

    /// What the service would say to the times of the readings.
    pub(super) fn rejected_now(&self, output: &DecodeOutput) -> Option<String> {
        let (past, future) = self.window;
        let texts = [
            (output.too_old, "too_old, limits.past", past),
            (output.too_far_ahead, "too_far_ahead, limits.future", future),
        ]
        .into_iter()
        .filter(|(n, ..)| *n > 0)
        .map(|(n, why, limit)| format!("{n} ({why} = {})", write_duration(limit)))
        .collect::<Vec<_>>();
        (!texts.is_empty()).then(|| {
            format!(
                "the service would now reject readings because of their time: {}",
                texts.join(", ")
            )
        })
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
    /// Readings that the service would reject now, because of their time.
    pub(super) too_old: usize,
    pub(super) too_far_ahead: usize,
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
    let Decode {
        decoding, formats, ..
    } = settings;
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

    let renamed = Renamed::default();
    let mut rejects = Rejects::new();
    let mut builder = settings.builder(received_at_ms);
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
            renamed: Some(&renamed),
            ..Context::new(decoding, received_at_ms)
        };
        decoder.decode(payload, request.topic, &cx, &mut builder, &mut rejects);
    }
    rejects.note_ranges(&mut builder);
    let batch = builder.finish();
    let printed = show(&batch, &rejects, &renamed, out, request.quiet)?;
    Ok(settings.with_times(printed, &batch, received_at_ms))
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
    let renamed = Renamed::default();
    let cx = Context {
        renamed: Some(&renamed),
        ..Context::new(decoding, received_at_ms)
    };
    let mut rejects = Rejects::new();
    let mut builder = settings.builder(received_at_ms);
    let mut state = sparkplug::Sparkplug::new();
    if let Some(birth) = request.birth {
        for birth_topic in birth_topics(topic) {
            state.decode(&birth_topic, birth, &cx, &mut builder, &mut rejects);
        }
        builder = settings.builder(received_at_ms);
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
    rejects.note_ranges(&mut builder);
    let batch = builder.finish();
    let printed = show(&batch, &rejects, &renamed, out, request.quiet)?;
    Ok(settings.with_times(printed, &batch, received_at_ms))
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
    renamed: &Renamed,
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
             without a zone); they get the time of receipt (over HTTP, that of an unset clock is \
             rejected unless limits.unset_over_http or the format allows it)"
        );
    }
    let renamed = renamed.take();
    if !renamed.is_empty() && !quiet {
        let pairs = renamed
            .iter()
            .map(|name| format!("{name} as {}", stored_name(name)));
        eprintln!(
            "hourbucket: stored under another name, because a document cannot have this one: {}",
            pairs.collect::<Vec<_>>().join(", ")
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
    if !quiet {
        for hint in hints(batch, rejects) {
            eprintln!("hourbucket: hint: {hint}");
        }
    }
    let values = batch
        .iter()
        .map(|(_, reading)| reading.values().count())
        .sum();
    Ok(DecodeOutput {
        readings: batch.len(),
        rejects: rejects.total(),
        values,
        ..DecodeOutput::default()
    })
}

/// Those of the decoder, and one about numbers that are stored as texts.
fn hints(batch: &ReadingBatch, rejects: &Rejects) -> Vec<String> {
    let mut hints: Vec<String> = rejects
        .hints()
        .iter()
        .map(|hint| hint.to_string())
        .collect();
    let values = batch.iter().flat_map(|(_, reading)| reading.values());
    let mut names: Vec<&str> = values
        .filter(|(_, value)| matches!(value, ValueRef::Str(text) if stands_for_number(text)))
        .map(|(name, _)| batch.name(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    if let Some(first) = names.first() {
        let more = match names.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        hints.push(format!(
            "a number in quotes (`{first}`{more}), such as \"21.5\" or \"NaN\", is stored as a text and \
             enters no summary; send it without quotes, or use a mapping with texts = \"numbers\" \
             ([formats.NAME])"
        ));
    }
    hints
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
    let values = reading
        .values()
        .map(|(name, value)| format!("{}:{}", text(batch.name(name)), json!(value)));
    line += &format!(",\"values\":{{{}}}", values.collect::<Vec<_>>().join(","));
    let owned = reading.to_reading(batch);
    let tags = owned
        .tags
        .iter()
        .map(|(k, v)| format!("{}:{}", text(k), text(v)));
    line += &format!(",\"tags\":{{{}}}}}", tags.collect::<Vec<_>>().join(","));
    line
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
