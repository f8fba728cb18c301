//! `ExportMetricsServiceRequest` in JSON (OTLP specification, "JSON Protobuf Encoding"):
//! lowerCamelCase names, unknown members ignored, 64-bit integers as text or number, `null` as
//! absent. A name may also be written as in the `.proto` files (`time_unix_nano`), as parsers of
//! ProtoJSON accept it, although OTLP forbids it to senders.
//!
//! Each level is first cut out as raw text and then parsed, because data that concerns all parts of
//! a message (the resource, the metric's name) may come after them. So the text is scanned about
//! eight times, and no tree of it is ever built.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::Error;
use serde_json::value::RawValue;

use super::points::{Attributes, Distribution, Number, Point, Points};

/// The longest part of a parser's message to keep, because it may quote the payload.
const MESSAGE_CHARS_MAX: usize = 200;

type Raw<'d> = Option<&'d RawValue>;

#[derive(serde::Deserialize)]
struct Text<'d>(#[serde(borrow)] Cow<'d, str>);

/// An object with some members as raw text.
macro_rules! objects {
    ($($name:ident { $($member:ident: $key:literal $(or $proto:literal)?),* })*) => {$(
        #[derive(Default, serde::Deserialize)]
        #[serde(default)]
        struct $name<'d> {
            $(#[serde(borrow, rename = $key $(, alias = $proto)?)] $member: Raw<'d>),*
        }
    )*};
}

objects! {
    Request { resource_metrics: "resourceMetrics" or "resource_metrics" }
    ResourceMetrics {
        resource: "resource",
        scope_metrics: "scopeMetrics" or "scope_metrics",
        before_0_15: "instrumentationLibraryMetrics" or "instrumentation_library_metrics"
    }
    Resource { attributes: "attributes" }
    ScopeMetrics { metrics: "metrics" }
    Metric {
        name: "name", gauge: "gauge", sum: "sum", histogram: "histogram",
        exponential_histogram: "exponentialHistogram" or "exponential_histogram",
        summary: "summary"
    }
    Data { data_points: "dataPoints" or "data_points" }
    DataPoint {
        attributes: "attributes", time: "timeUnixNano" or "time_unix_nano",
        double: "asDouble" or "as_double", int: "asInt" or "as_int", flags: "flags"
    }
    DistributionPoint {
        attributes: "attributes", time: "timeUnixNano" or "time_unix_nano",
        count: "count", sum: "sum", min: "min", max: "max",
        bucket_counts: "bucketCounts" or "bucket_counts",
        bounds: "explicitBounds" or "explicit_bounds",
        positive: "positive", negative: "negative",
        quantiles: "quantileValues" or "quantile_values", flags: "flags"
    }
    Buckets { counts: "bucketCounts" or "bucket_counts" }
    Quantile { at: "quantile", value: "value" }
    KeyValue { key: "key", value: "value" }
    AnyValue {
        string: "stringValue" or "string_value", bool: "boolValue" or "bool_value",
        int: "intValue" or "int_value", double: "doubleValue" or "double_value"
    }
}

/// The start of a parser's message.
pub(super) fn message(error: &Error) -> String {
    error.to_string().chars().take(MESSAGE_CHARS_MAX).collect()
}

pub(super) fn read_request(payload: &str, points: &mut Points<'_>) -> Result<(), Error> {
    let request: Request<'_> = object(Some(serde_json::from_str(payload)?))?;
    each(request.resource_metrics, &mut |raw| {
        let metrics: ResourceMetrics<'_> = object(Some(raw))?;
        if metrics.before_0_15.is_some() {
            let what = "instrumentationLibraryMetrics is the format used before OTLP 0.15; update \
                the sender";
            return Err(Error::custom(what));
        }
        let resource = object::<Resource<'_>>(metrics.resource)?;
        let mut attributes = Attributes::default();
        read_attributes(resource.attributes, &mut attributes)?;
        each(metrics.scope_metrics, &mut |raw| {
            each(object::<ScopeMetrics<'_>>(Some(raw))?.metrics, &mut |raw| {
                read_metric(raw, &attributes, points)
            })
        })
    })
}

fn read_metric(
    raw: &RawValue,
    resource: &Attributes<'_>,
    points: &mut Points<'_>,
) -> Result<(), Error> {
    let metric: Metric<'_> = object(Some(raw))?;
    points.metric(&text(metric.name)?);
    for data in [metric.gauge, metric.sum].into_iter().flatten() {
        each(object::<Data<'_>>(Some(data))?.data_points, &mut |raw| {
            match read_point(raw) {
                Ok(point) => points.take(resource, &point),
                Err(error) => points.unreadable(&message(&error)),
            }
            Ok(())
        })?;
    }
    for (data, parts) in [
        (metric.histogram, "buckets"),
        (metric.exponential_histogram, "buckets"),
        (metric.summary, "quantiles"),
    ] {
        each(object::<Data<'_>>(data)?.data_points, &mut |raw| {
            match read_distribution(raw) {
                Ok(point) => points.distribution(resource, point, parts),
                Err(error) => points.unreadable(&message(&error)),
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn read_point(raw: &RawValue) -> Result<Point<'_>, Error> {
    let data: DataPoint<'_> = object(Some(raw))?;
    let mut point = Point {
        time_ns: unsigned(data.time)?,
        flags: unsigned(data.flags)?,
        ..Point::default()
    };
    if let Some(raw) = present(data.double) {
        point.value = Some(Number::Double(double(raw)?));
    }
    if let Some(raw) = present(data.int) {
        let int = unquoted(raw)?
            .parse()
            .map_err(|_| Error::custom("asInt is not a 64-bit integer"))?;
        point.value = Some(Number::Int(int));
    }
    read_attributes(data.attributes, &mut point.attributes)?;
    Ok(point)
}

/// Reads a point of any histogram or summary: their members have different names.
fn read_distribution(raw: &RawValue) -> Result<Distribution<'_>, Error> {
    let data: DistributionPoint<'_> = object(Some(raw))?;
    let optional = |raw| present(raw).map(double).transpose();
    let mut point = Distribution {
        time_ns: unsigned(data.time)?,
        flags: unsigned(data.flags)?,
        count: unsigned(data.count)?,
        sum: optional(data.sum)?,
        min: optional(data.min)?,
        max: optional(data.max)?,
        ..Distribution::default()
    };
    let positive = object::<Buckets<'_>>(data.positive)?;
    let negative = object::<Buckets<'_>>(data.negative)?;
    each(data.bucket_counts, &mut |raw| {
        point.counts.push(unsigned(Some(raw))?);
        Ok(())
    })?;
    each(data.bounds, &mut |raw| {
        point.bounds.push(double(raw)?);
        Ok(())
    })?;
    for counts in [positive.counts, negative.counts] {
        each(counts, &mut |_| {
            point.parts += 1;
            Ok(())
        })?;
    }
    each(data.quantiles, &mut |raw| {
        let quantile: Quantile<'_> = object(Some(raw))?;
        let number = |raw| present(raw).map_or(Ok(0.0), double);
        point.quantile(number(quantile.at)?, number(quantile.value)?);
        Ok(())
    })?;
    read_attributes(data.attributes, &mut point.attributes)?;
    Ok(point)
}

fn read_attributes<'d>(raw: Raw<'d>, into: &mut Attributes<'d>) -> Result<(), Error> {
    each(raw, &mut |raw| {
        let pair: KeyValue<'_> = object(Some(raw))?;
        let key = text(pair.key)?;
        let value = object::<AnyValue<'_>>(pair.value)?;
        if let Some(raw) = present(value.string) {
            into.add(key, text(Some(raw))?);
        } else if let Some(raw) = present(value.bool) {
            into.add(key, raw.get());
        } else if let Some(raw) = present(value.int) {
            into.add(key, unquoted(raw)?);
        } else if let Some(raw) = present(value.double) {
            into.add(key, double(raw)?.to_string());
        }
        Ok(())
    })
}

fn present(raw: Raw<'_>) -> Raw<'_> {
    raw.filter(|raw| raw.get() != "null")
}

/// Parses an object; an absent one is empty. (Checks for `{`, because serde would also parse a
/// struct from an array.)
fn object<'d, T: Deserialize<'d> + Default>(raw: Raw<'d>) -> Result<T, Error> {
    match present(raw) {
        None => Ok(T::default()),
        Some(raw) if raw.get().starts_with('{') => serde_json::from_str(raw.get()),
        Some(_) => Err(Error::custom("expected an object")),
    }
}

fn text(raw: Raw<'_>) -> Result<Cow<'_, str>, Error> {
    match present(raw) {
        None => Ok(Cow::Borrowed("")),
        Some(raw) => serde_json::from_str::<Text<'_>>(raw.get()).map(|text| text.0),
    }
}

/// The literal of a number, which may be written as a text.
fn unquoted(raw: &RawValue) -> Result<Cow<'_, str>, Error> {
    if raw.get().starts_with('"') {
        text(Some(raw))
    } else {
        Ok(Cow::Borrowed(raw.get()))
    }
}

/// Zero if absent. Senders in JavaScript write times as numbers with a fraction or exponent.
fn unsigned(raw: Raw<'_>) -> Result<u64, Error> {
    let Some(raw) = present(raw) else {
        return Ok(0);
    };
    let literal = unquoted(raw)?;
    let rounded = || {
        literal
            .parse::<f64>()
            .ok()
            .filter(|v| (0.0..1.8e19).contains(v))
            .map(|v| v as u64)
    };
    literal
        .parse()
        .ok()
        .or_else(rounded)
        .ok_or_else(|| Error::custom("time or flags are not a 64-bit integer"))
}

/// A number, or one of the texts `NaN`, `Infinity` and `-Infinity`.
fn double(raw: &RawValue) -> Result<f64, Error> {
    unquoted(raw)?
        .parse()
        .map_err(|_| Error::custom("a double is not a number"))
}

/// Calls `f` with each element; an absent array has none.
fn each<'d>(
    raw: Raw<'d>,
    f: &mut dyn FnMut(&'d RawValue) -> Result<(), Error>,
) -> Result<(), Error> {
    struct Elements<'f, 'd>(&'f mut dyn FnMut(&'d RawValue) -> Result<(), Error>);

    impl<'d> Visitor<'d> for Elements<'_, 'd> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'d>>(self, mut elements: A) -> Result<(), A::Error> {
            while let Some(element) = elements.next_element::<&'d RawValue>()? {
                (self.0)(element).map_err(A::Error::custom)?;
            }
            Ok(())
        }
    }

    match present(raw) {
        None => Ok(()),
        Some(raw) => serde_json::Deserializer::from_str(raw.get()).deserialize_seq(Elements(f)),
    }
}
