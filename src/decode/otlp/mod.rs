//! Metrics of OpenTelemetry (OTLP), in protobuf or JSON: gauges and sums become readings, one for each data point.
//!
//! - field: the metric's name (`system.memory.usage` as `system_memory_usage`: names have no points), its value an integer
//!   or a double. Whether a sum is monotonic, and its temporality, are not kept.
//! - time: `timeUnixNano`; 0 is none, so the time of receipt.
//! - sensor: the first of `otlp.sensor_id_attributes` that the point or its resource has; else the topic's, else
//!   `otlp.sensor_id_default`. With `otlp.point_attributes = "sensor_id"` the point's attributes follow it.
//! - tags: the attributes of the point and of its resource, texts, numbers and booleans.
//! - a point with the flag for no recorded value is none. Points of histograms and summaries are rejected, each.
//!
//! `wire` is protobuf as such, `proto` and `json` read the two encodings, `points` makes readings. What is not
//! well-formed is rejected whole, as the specification has it, and gives no reading.

mod json;
mod points;
mod proto;
#[cfg(test)]
mod tests;
mod wire;

use self::points::Points;
use super::rejects::Rejects;
use super::{Context, reasons};
use crate::config::Otlp;
use crate::model::BatchBuilder;

/// Characters of a parser's message, which may quote what it has met.
const MESSAGE_CHARS_MAX: usize = 200;

/// How a request is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// `application/x-protobuf`
    Protobuf,
    /// `application/json`
    Json,
}

/// Reads an `ExportMetricsServiceRequest`. An empty one, and one of unknown members alone, gives neither readings nor
/// rejects.
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
        (Encoding::Protobuf, _) => proto::read(payload, &mut points)
            .map_err(|e| (reasons::INVALID_PROTOBUF, format!("no ExportMetricsServiceRequest: {}", e.0))),
        (Encoding::Json, Ok(text)) => json::read(text, &mut points)
            .map_err(|e| (reasons::INVALID_JSON, format!("no ExportMetricsServiceRequest: {}", message(&e)))),
        (Encoding::Json, Err(_)) => Err((reasons::INVALID_UTF8, "the body is not UTF-8".to_owned())),
    };
    match malformed {
        Ok(()) => points.finish(),
        Err((reason, detail)) => {
            out.rollback(mark);
            rejects.push(0, reason, detail);
        }
    }
}

fn message(error: &serde_json::Error) -> String {
    error.to_string().chars().take(MESSAGE_CHARS_MAX).collect()
}
