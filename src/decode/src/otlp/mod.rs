//! OpenTelemetry metrics (OTLP), in protobuf or JSON: each data point becomes a reading.
//!
//! - field: the metric's name (`system.memory.usage` becomes `system_memory_usage`: names contain
//!   no dots), its value an integer or a double. Monotonicity and temporality of sums are not
//!   stored.
//! - time: `timeUnixNano`; 0 means none, so the time of receipt is used.
//! - sensor: the first of `otlp.sensor_id_attributes` that the point or its resource has; else the
//!   topic's; else `otlp.sensor_id_default`. With `otlp.point_attributes = "sensor_id"` the point's
//!   attributes are appended.
//! - tags: the attributes of the point and of its resource, if they are texts, numbers or booleans.
//! - A point of a histogram or summary becomes the fields `NAME_count`, `NAME_sum`, `NAME_min` and
//!   `NAME_max`, as far as it has them. With `otlp.point_attributes = "sensor_id"` and explicit
//!   bounds, each bucket becomes a field `NAME_bucket` of its sensor with `le` in the id, as
//!   Prometheus has it. Other buckets and quantiles are left out, counted and reported.
//! - A point with the flag for no recorded value is skipped.
//!
//! `proto` and `json` read the two encodings, `points` builds readings. A malformed payload is
//! rejected as a whole, as the specification requires, and yields no reading.

mod json;
mod points;
mod proto;
#[cfg(test)]
mod tests;

use self::points::Points;
use super::rejects::Rejects;
use super::{Context, RejectReason};
use config::Otlp;
use model::BatchBuilder;

/// The encoding of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// `application/x-protobuf`
    Protobuf,
    /// `application/json`
    Json,
}

/// Decodes an `ExportMetricsServiceRequest`. An empty one, or one with only unknown members, yields
/// neither readings nor rejects.
pub(super) fn decode(
    encoding: Encoding,
    payload: &[u8],
    otlp: &Otlp,
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    let mark = out.mark();
    let mut points = Points::new(otlp, cx, out, rejects);
    let malformed = match (encoding, std::str::from_utf8(payload)) {
        (Encoding::Protobuf, _) => proto::read_request(payload, &mut points).map_err(|e| {
            (
                RejectReason::InvalidProtobuf,
                format!("not an ExportMetricsServiceRequest: {e}"),
            )
        }),
        (Encoding::Json, Ok(text)) => json::read_request(text, &mut points).map_err(|e| {
            (
                RejectReason::InvalidJson,
                format!("not an ExportMetricsServiceRequest: {}", json::message(&e)),
            )
        }),
        (Encoding::Json, Err(_)) => Err((
            RejectReason::InvalidUtf8,
            "the body is not UTF-8".to_owned(),
        )),
    };
    match malformed {
        Ok(()) => points.finish(matches!(payload.trim_ascii(), b"" | b"{}")),
        Err((reason, detail)) => {
            out.rollback(mark);
            rejects.push(0, reason, detail);
        }
    }
}
