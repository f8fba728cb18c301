//! `ExportMetricsServiceRequest` in protobuf. Field numbers are those of opentelemetry-proto 1.x,
//! `collector/metrics/v1`, `metrics/v1`, `resource/v1` and `common/v1`.
//!
//! Fields of a message can have any order. So data that concerns all parts (the resource, the
//! metric's name) is read first, in a separate pass.

use super::points::{Attributes, Distribution, Number, Point, Points};
use model::protobuf::{FieldValue, Fields, Malformed};

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidRequest {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("metrics in the format used before OTLP 0.15; update the sender")]
    BeforeOtlp0_15,
}

pub(super) fn read_request(payload: &[u8], points: &mut Points<'_>) -> Result<(), InvalidRequest> {
    for field in Fields::new(payload) {
        if let (1, resource_metrics) = field? {
            read_resource(resource_metrics.bytes()?, points)?;
        }
    }
    Ok(())
}

fn read_resource(bytes: &[u8], points: &mut Points<'_>) -> Result<(), InvalidRequest> {
    let mut resource = Attributes::default();
    for field in Fields::new(bytes) {
        match field? {
            (1, message) => attributes(message.bytes()?, 1, &mut resource)?,
            // `instrumentation_library_metrics` was removed in 0.15. Without this check an older
            // sender would get a success answer.
            (1000, _) => return Err(InvalidRequest::BeforeOtlp0_15),
            _ => {}
        }
    }
    for field in Fields::new(bytes) {
        if let (2, scope) = field? {
            for field in Fields::new(scope.bytes()?) {
                if let (2, metric) = field? {
                    read_metric(metric.bytes()?, &resource, points)?;
                }
            }
        }
    }
    Ok(())
}

fn read_metric(
    bytes: &[u8],
    resource: &Attributes<'_>,
    points: &mut Points<'_>,
) -> Result<(), Malformed> {
    let mut name = "";
    for field in Fields::new(bytes) {
        if let (1, text) = field? {
            name = text.text()?;
        }
    }
    points.metric(name);
    for field in Fields::new(bytes) {
        let (number, data) = field?;
        if !matches!(number, 5 | 7 | 9 | 10 | 11) {
            continue;
        }
        for field in Fields::new(data.bytes()?) {
            let (1, point) = field? else { continue };
            let bytes = point.bytes()?;
            match number {
                9 => points.distribution(resource, read_histogram(bytes)?, "buckets"),
                10 => points.distribution(resource, read_exponential(bytes)?, "buckets"),
                11 => points.distribution(resource, read_summary(bytes)?, "quantiles"),
                _ => points.take(resource, &read_point(bytes)?),
            }
        }
    }
    Ok(())
}

fn read_point(bytes: &[u8]) -> Result<Point<'_>, Malformed> {
    let mut point = Point::default();
    for field in Fields::new(bytes) {
        match field? {
            (3, time) => point.time_ns = time.fixed64()?,
            (4, double) => point.value = Some(Number::Double(double.double()?)),
            (6, int) => point.value = Some(Number::Int(int.fixed64()?.cast_signed())),
            (7, pair) => attribute(pair.bytes()?, &mut point.attributes)?,
            (8, flags) => point.flags = flags.varint()?,
            _ => {}
        }
    }
    Ok(point)
}

fn read_histogram(bytes: &[u8]) -> Result<Distribution<'_>, Malformed> {
    let mut point = Distribution::default();
    for field in Fields::new(bytes) {
        match field? {
            (3, time) => point.time_ns = time.fixed64()?,
            (4, count) => point.count = count.fixed64()?,
            (5, sum) => point.sum = Some(sum.double()?),
            // Packed, or one by one.
            (6, FieldValue::Bytes(counts)) => {
                let counts = counts.as_chunks().0.iter();
                point.counts.extend(counts.map(|c| u64::from_le_bytes(*c)));
            }
            (6, count) => point.counts.push(count.fixed64()?),
            (7, FieldValue::Bytes(bounds)) => {
                let bounds = bounds.as_chunks().0.iter();
                point.bounds.extend(bounds.map(|b| f64::from_le_bytes(*b)));
            }
            (7, bound) => point.bounds.push(bound.double()?),
            (9, pair) => attribute(pair.bytes()?, &mut point.attributes)?,
            (10, flags) => point.flags = flags.varint()?,
            (11, min) => point.min = Some(min.double()?),
            (12, max) => point.max = Some(max.double()?),
            _ => {}
        }
    }
    Ok(point)
}

fn read_exponential(bytes: &[u8]) -> Result<Distribution<'_>, Malformed> {
    let mut point = Distribution::default();
    for field in Fields::new(bytes) {
        match field? {
            (1, pair) => attribute(pair.bytes()?, &mut point.attributes)?,
            (3, time) => point.time_ns = time.fixed64()?,
            (4, count) => point.count = count.fixed64()?,
            (5, sum) => point.sum = Some(sum.double()?),
            (8 | 9, buckets) => {
                for field in Fields::new(buckets.bytes()?) {
                    match field? {
                        // Each varint ends with a byte below 0x80.
                        (2, FieldValue::Bytes(counts)) => {
                            point.parts += counts.iter().filter(|b| **b < 0x80).count()
                        }
                        (2, _) => point.parts += 1,
                        _ => {}
                    }
                }
            }
            (10, flags) => point.flags = flags.varint()?,
            (12, min) => point.min = Some(min.double()?),
            (13, max) => point.max = Some(max.double()?),
            _ => {}
        }
    }
    Ok(point)
}

fn read_summary(bytes: &[u8]) -> Result<Distribution<'_>, Malformed> {
    let mut point = Distribution::default();
    for field in Fields::new(bytes) {
        match field? {
            (3, time) => point.time_ns = time.fixed64()?,
            (4, count) => point.count = count.fixed64()?,
            (5, sum) => point.sum = Some(sum.double()?),
            (6, quantile) => {
                let mut at = 0.0;
                let mut value = 0.0;
                for field in Fields::new(quantile.bytes()?) {
                    match field? {
                        (1, v) => at = v.double()?,
                        (2, v) => value = v.double()?,
                        _ => {}
                    }
                }
                point.quantile(at, value);
            }
            (7, pair) => attribute(pair.bytes()?, &mut point.attributes)?,
            (8, flags) => point.flags = flags.varint()?,
            _ => {}
        }
    }
    Ok(point)
}

/// Reads the attributes of a message, which are in the field `number`.
fn attributes<'d>(
    bytes: &'d [u8],
    number: u32,
    into: &mut Attributes<'d>,
) -> Result<(), Malformed> {
    for field in Fields::new(bytes) {
        let (n, pair) = field?;
        if n == number {
            attribute(pair.bytes()?, into)?;
        }
    }
    Ok(())
}

fn attribute<'d>(pair: &'d [u8], into: &mut Attributes<'d>) -> Result<(), Malformed> {
    let mut key = "";
    let mut value = None;
    for field in Fields::new(pair) {
        match field? {
            (1, text) => key = text.text()?,
            (2, any) => {
                for field in Fields::new(any.bytes()?) {
                    value = Some(field?);
                }
            }
            _ => {}
        }
    }
    match value {
        Some((1, text)) => into.add(key, text.text()?),
        Some((2, FieldValue::Varint(v))) => into.add(key, if v == 0 { "false" } else { "true" }),
        Some((3, FieldValue::Varint(v))) => into.add(key, v.cast_signed().to_string()),
        Some((4, FieldValue::Fixed64(v))) => into.add(key, f64::from_bits(v).to_string()),
        // An array, a map, bytes, or nothing: these cannot be tags.
        _ => {}
    }
    Ok(())
}
