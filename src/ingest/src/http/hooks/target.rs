//! Parses the URL of a hook: the format, and values that the body does not contain.
//!
//! `/v1/hooks/{format}?sensor_id=…&field=…&topic=…&ts_unit=…&token=…`. Other query parameters are
//! ignored (some senders add the event type), except for `GET`: there they are the values (`form`).
//! Pure.

use axum::extract::Query;
use axum::http::Uri;

use super::super::error::IngestError;
use super::super::pipeline::{DecodeOptions, Origin};
use config::Decoding;
use decode::{Context, Formats, Rejects, TsUnit, UnknownName};
use model::{BatchBuilder, Checks, DeadLetter, ReadingBatch};
use net::access::Grant;
use net::http::encoding::Encoding;
use telemetry::metrics::Source;

const PREFIX: &str = "/v1/hooks/";

/// The suffix that the sender of an `enableUrl` appends to a URL that already has a query.
const AWS_SUFFIX: &str = "/?confirmationToken=";

/// A parsed URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Target {
    format: String,
    sensor_id: Option<String>,
    field: Option<String>,
    topic: Option<String>,
    ts_unit: Option<TsUnit>,
    /// The id that a Shelly sends of itself: the sensor if there is no `sensor_id`.
    id: Option<String>,
}

fn pairs(uri: &Uri) -> Option<Vec<(String, String)>> {
    Query::<Vec<(String, String)>>::try_from_uri(uri)
        .ok()
        .map(|query| query.0)
}

/// The token in the query.
pub(super) fn token(uri: &Uri) -> Option<String> {
    let token = pairs(uri)?.into_iter().find(|(key, _)| key == "token")?.1;
    Some(
        token
            .split(AWS_SUFFIX)
            .next()
            .unwrap_or_default()
            .to_owned(),
    )
}

impl Target {
    /// The URL for bodies of this format and sensor.
    pub(crate) fn of_sensor(format: &str, sensor_id: String) -> Target {
        Target {
            format: format.to_owned(),
            sensor_id: Some(sensor_id),
            ..Target::default()
        }
    }

    pub(super) fn parse(format: &str, uri: &Uri) -> Result<Target, IngestError> {
        let known = "expected sensor_id, field, topic, token or ts_unit (one of s, ms, us, ns)";
        let error = |detail: String| IngestError::Query { detail, known };
        let mut target = Target {
            format: format.to_owned(),
            ..Target::default()
        };
        for (key, value) in
            pairs(uri).ok_or_else(|| error("not URL-encoded key=value pairs".to_owned()))?
        {
            match key.as_str() {
                "token" => {}
                "sensor_id" => target.sensor_id = Some(value),
                "field" => target.field = Some(value),
                "topic" => target.topic = Some(value),
                "ts_unit" => {
                    target.ts_unit = Some(
                        value
                            .parse()
                            .map_err(|e: UnknownName| error(e.to_string()))?,
                    )
                }
                "id" => target.id = target.id.or(Some(value)),
                _ => {}
            }
        }
        Ok(target)
    }

    /// How a body sent to this URL is decoded.
    pub(crate) fn decode_options(
        &self,
        formats: &Formats,
        encoding: Encoding,
    ) -> Result<DecodeOptions, IngestError> {
        let decoder = formats
            .get(&self.format)
            .map_err(|e| IngestError::NoFormat { advice: e.advice() })?;
        let ts_unit = self.ts_unit.or(decoder.ts_unit_usual());
        let Target {
            sensor_id,
            field,
            topic,
            id,
            ..
        } = self.clone();
        Ok(DecodeOptions {
            decoder,
            encoding,
            ts_unit,
            quoting: false,
            origin: Origin {
                topic,
                sensor_id: sensor_id.or(id),
                field,
                keeping: true,
                ..Origin::default()
            },
        })
    }

    /// The dead letter of a body of which something was rejected. One reject gives the reason, as
    /// for an MQTT message. An empty body leaves nothing to keep.
    pub(crate) fn dead_letter(
        &self,
        rejects: &Rejects,
        kept: Option<Vec<u8>>,
        received_at_ms: i64,
    ) -> Option<DeadLetter> {
        let body = kept.filter(|body| !body.is_empty())?;
        let (reason, detail) = rejects.foremost()?;
        let source = Source::Http.as_str();
        let topic = self.written();
        let reason = reason.as_str();
        Some(DeadLetter::keep(
            received_at_ms,
            source,
            topic,
            &body,
            reason,
            detail,
        ))
    }

    /// The URL without token and values: the `topic` of a dead letter.
    pub(crate) fn written(&self) -> String {
        let unit = self.ts_unit.map(|unit| match unit {
            TsUnit::S => "s",
            TsUnit::Ms => "ms",
            TsUnit::Us => "us",
            _ => "ns",
        });
        let sensor_id = self.sensor_id.as_deref().or(self.id.as_deref());
        let pairs = [
            ("sensor_id", sensor_id),
            ("field", self.field.as_deref()),
            ("topic", self.topic.as_deref()),
            ("ts_unit", unit),
        ];
        let mut written = format!("{PREFIX}{}", escaped(&self.format));
        let mut before = '?';
        for (key, value) in pairs {
            if let Some(value) = value {
                written.extend([before.to_string().as_str(), key, "=", &escaped(value)]);
                before = '&';
            }
        }
        written
    }

    /// The target of a dead letter by its `topic`; `None` if that is not the URL of a hook.
    pub(crate) fn read_back(written: &str) -> Option<Target> {
        let uri: Uri = written.parse().ok()?;
        let format = pairs(
            &format!("/?f={}", uri.path().strip_prefix(PREFIX)?)
                .parse()
                .ok()?,
        )?
        .pop()?
        .1;
        Target::parse(&format, &uri).ok()
    }

    /// Decodes a body that was kept, like one sent to this URL now, but with its receipt time.
    ///
    /// # Errors
    /// The format is unknown.
    pub(crate) fn decode_again(
        &self,
        body: &[u8],
        received_at_ms: i64,
        formats: &Formats,
        decoding: &Decoding,
    ) -> Result<(ReadingBatch, Rejects), IngestError> {
        let DecodeOptions {
            decoder,
            ts_unit,
            origin,
            ..
        } = self.decode_options(formats, Encoding::Identity)?;
        let sensor_id = origin.sensor_id.as_deref();
        let field = origin.field.as_deref();
        let cx = Context {
            ts_unit,
            sensor_id,
            field,
            ..Context::of_http(decoding, received_at_ms)
        };
        let mut out = BatchBuilder::new(cx.limits.fields_max);
        let fields_max = cx.limits.bucket_fields_max;
        Checks::default().apply(&mut out, fields_max, &decoding.ranges, received_at_ms);
        Grant::apply_forgotten(decoding.sender_tag.as_ref(), &mut out);
        let mut rejects = Rejects::new();
        decoder.decode(body, origin.topic.as_deref(), &cx, &mut out, &mut rejects);
        Ok((out.finish(), rejects))
    }
}

/// Percent-encodes text for a URL. Slashes and colons stay as they are: they are allowed there, and
/// easier to read.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
                escaped.push(char::from(byte));
            }
            _ => escaped += &format!("%{byte:02X}"),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(uri: &str) -> Target {
        let uri: Uri = uri.parse().unwrap();
        let format = uri.path().strip_prefix(PREFIX).unwrap().to_owned();
        Target::parse(&format, &uri).unwrap()
    }

    #[test]
    fn what_is_kept_of_a_url_leads_back_to_it_without_its_secrets() {
        let uri = "/v1/hooks/json?token=gw1.secret&sensor_id=S%261&topic=a/b%20c&ts_unit=ms&field=t&event=up";
        let here = target(uri);
        assert_eq!(
            here.written(),
            "/v1/hooks/json?sensor_id=S%261&field=t&topic=a/b%20c&ts_unit=ms"
        );
        assert_eq!(Target::read_back(&here.written()), Some(here));
        assert_eq!(
            target("/v1/hooks/json?hum=53&id=shellyht-1").written(),
            "/v1/hooks/json?sensor_id=shellyht-1"
        );
        assert_eq!(Target::read_back("/v1/hooks/a%20b").unwrap().format, "a b");
        assert_eq!(Target::read_back("fleet/S1"), None);
        assert_eq!(token(&uri.parse().unwrap()).as_deref(), Some("gw1.secret"));
        let aws = "/v1/hooks/json?token=gw1.secret/?confirmationToken=AYAD";
        assert_eq!(token(&aws.parse().unwrap()).as_deref(), Some("gw1.secret"));
    }
}
