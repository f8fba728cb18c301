//! `ExportMetricsServiceRequest` in JSON (OTLP specification, "JSON Protobuf Encoding"): lowerCamelCase names, unknown
//! ones ignored, integers of 64 bits as text or number, `null` as absent.
//!
//! Each level is cut out as a piece of text first and looked into afterwards, since what belongs to all parts of a message
//! (the resource, the metric's name) may stand behind them. The text is passed over some eight times so, and no tree of it
//! is ever built.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::Error;
use serde_json::value::RawValue;

use super::points::{Attributes, Number, Point, Points};

type Raw<'d> = Option<&'d RawValue>;

#[derive(serde::Deserialize)]
struct Text<'d>(#[serde(borrow)] Cow<'d, str>);

/// An object with some members cut out.
macro_rules! objects {
    ($($name:ident { $($member:ident: $key:literal),* })*) => {$(
        #[derive(Default, serde::Deserialize)]
        #[serde(default)]
        struct $name<'d> { $(#[serde(borrow, rename = $key)] $member: Raw<'d>),* }
    )*};
}

objects! {
    Request { resource_metrics: "resourceMetrics" }
    ResourceMetrics {
        resource: "resource", scope_metrics: "scopeMetrics", before_0_15: "instrumentationLibraryMetrics"
    }
    Resource { attributes: "attributes" }
    ScopeMetrics { metrics: "metrics" }
    Metric {
        name: "name", gauge: "gauge", sum: "sum", histogram: "histogram",
        exponential_histogram: "exponentialHistogram", summary: "summary"
    }
    Data { data_points: "dataPoints" }
    DataPoint {
        attributes: "attributes", time: "timeUnixNano", double: "asDouble", int: "asInt", flags: "flags"
    }
    KeyValue { key: "key", value: "value" }
    AnyValue { string: "stringValue", bool: "boolValue", int: "intValue", double: "doubleValue" }
}

/// Reads a request.
pub(super) fn read(payload: &str, points: &mut Points<'_>) -> Result<(), Error> {
    let request: Request<'_> = object(Some(serde_json::from_str(payload)?))?;
    each(request.resource_metrics, &mut |raw| {
        let metrics: ResourceMetrics<'_> = object(Some(raw))?;
        if metrics.before_0_15.is_some() {
            let what = "instrumentationLibraryMetrics is the shape of before OTLP 0.15; update the sender";
            return Err(Error::custom(what));
        }
        let (resource, mut attributes) = (object::<Resource<'_>>(metrics.resource)?, Attributes::default());
        read_attributes(resource.attributes, &mut attributes)?;
        each(metrics.scope_metrics, &mut |raw| {
            each(object::<ScopeMetrics<'_>>(Some(raw))?.metrics, &mut |raw| read_metric(raw, &attributes, points))
        })
    })
}

fn read_metric(raw: &RawValue, resource: &Attributes<'_>, points: &mut Points<'_>) -> Result<(), Error> {
    let metric: Metric<'_> = object(Some(raw))?;
    points.metric(&text(metric.name)?);
    for data in [metric.gauge, metric.sum].into_iter().flatten() {
        each(object::<Data<'_>>(Some(data))?.data_points, &mut |raw| {
            match read_point(raw) {
                Ok(point) => points.take(resource, &point),
                Err(error) => points.unreadable(&error),
            }
            Ok(())
        })?;
    }
    for (data, what) in [
        (metric.histogram, "a histogram"),
        (metric.exponential_histogram, "an exponential histogram"),
        (metric.summary, "a summary"),
    ] {
        let mut others = 0;
        each(object::<Data<'_>>(data)?.data_points, &mut |_| {
            others += 1;
            Ok(())
        })?;
        points.unsupported(what, others);
    }
    Ok(())
}

fn read_point(raw: &RawValue) -> Result<Point<'_>, Error> {
    let data: DataPoint<'_> = object(Some(raw))?;
    let mut point = Point { time_ns: unsigned(data.time)?, flags: unsigned(data.flags)?, ..Point::default() };
    if let Some(raw) = present(data.double) {
        point.value = Some(Number::Double(double(raw)?));
    }
    if let Some(raw) = present(data.int) {
        let int = unquoted(raw)?.parse().map_err(|_| Error::custom("asInt is no integer of 64 bits"))?;
        point.value = Some(Number::Int(int));
    }
    read_attributes(data.attributes, &mut point.attributes)?;
    Ok(point)
}

fn read_attributes<'d>(raw: Raw<'d>, into: &mut Attributes<'d>) -> Result<(), Error> {
    each(raw, &mut |raw| {
        let pair: KeyValue<'_> = object(Some(raw))?;
        let (key, value) = (text(pair.key)?, object::<AnyValue<'_>>(pair.value)?);
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

/// An absent one is empty. (A struct would also be read from an array.)
fn object<'d, T: Deserialize<'d> + Default>(raw: Raw<'d>) -> Result<T, Error> {
    match present(raw) {
        None => Ok(T::default()),
        Some(raw) if raw.get().starts_with('{') => serde_json::from_str(raw.get()),
        Some(_) => Err(Error::custom("an object should stand here")),
    }
}

fn text(raw: Raw<'_>) -> Result<Cow<'_, str>, Error> {
    match present(raw) {
        None => Ok(Cow::Borrowed("")),
        Some(raw) => serde_json::from_str::<Text<'_>>(raw.get()).map(|text| text.0),
    }
}

/// A number, which may be written as a text.
fn unquoted(raw: &RawValue) -> Result<Cow<'_, str>, Error> {
    if raw.get().starts_with('"') { text(Some(raw)) } else { Ok(Cow::Borrowed(raw.get())) }
}

/// Zero where it is absent. JavaScript's senders write times as numbers that are no integers to them.
fn unsigned(raw: Raw<'_>) -> Result<u64, Error> {
    let Some(raw) = present(raw) else { return Ok(0) };
    let literal = unquoted(raw)?;
    let rounded = || literal.parse::<f64>().ok().filter(|v| (0.0..1.8e19).contains(v)).map(|v| v as u64);
    literal.parse().ok().or_else(rounded).ok_or_else(|| Error::custom("a time or flags that are no integer of 64 bits"))
}

/// A number, or one of the texts `NaN`, `Infinity` and `-Infinity`.
fn double(raw: &RawValue) -> Result<f64, Error> {
    unquoted(raw)?.parse().map_err(|_| Error::custom("a double that is no number"))
}

/// Calls `f` with each element; an absent array has none.
fn each<'d>(raw: Raw<'d>, f: &mut dyn FnMut(&'d RawValue) -> Result<(), Error>) -> Result<(), Error> {
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
