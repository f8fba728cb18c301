//! How payloads are read: the names of the built-in formats, and the sections `[line]`, `[native]`,
//! `[scalar]`, `[otlp]` and `[remote_write]`. Formats of the user, `[formats.NAME]`, are in
//! [`mapping`](super::mapping).

use super::reader::{Bad, Section, wrong};
use super::tree::Node;

/// The names of the built-in formats, which a format of the configuration cannot use: those of
/// `decode::Format` (add a new one in both places), and Sparkplug B, which the connection to a broker
/// decodes itself.
pub(super) const FORMATS: &[&str] = &[
    "json",
    "ndjson",
    "scalar",
    "line",
    "cbor",
    "msgpack",
    "senml",
    "senml-cbor",
    "otlp",
    "otlp-json",
    "remote-write",
    "remote-write-2",
    SPARKPLUG,
];
pub(super) const SPARKPLUG: &str = "sparkplug";

/// `[line]`: how InfluxDB line protocol is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// `sensor_id_tag`: the tag whose value is the sensor's id (default sensor_id). Without the
    /// tag, measurement and tags form the id.
    pub sensor_id_tag: String,
    /// `field_prefix`: fields are named `measurement_field` (default false).
    pub field_prefix: bool,
}

/// `[native]`: how the native format is read, in JSON, CBOR and MessagePack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Native {
    /// `nested`: the treatment of an object or array as a value (default flatten).
    pub nested: Nested,
    /// `time`: members that are the time of a reading without `ts` if they hold one; the first such
    /// of this list counts (default `timestamp`, `time`, `datetime`, `t`, `@timestamp`).
    pub time: Vec<String>,
}

/// The treatment of an object or array as a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nested {
    /// Each scalar in it becomes a field, named by its path: `energy_power`, `total_0`.
    Flatten,
    /// The reading is rejected.
    Reject,
    /// It is left out, and the response says so. In an object `values` it rejects the reading.
    LeaveOut,
}

/// `[scalar]`: how bare values are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScalarFormat {
    /// `texts`: whether a payload that is not a number or boolean is a text (default), or rejected.
    pub texts_allowed: bool,
    /// `decimal_comma`: whether `21,5` is the number 21.5 (default false).
    pub decimal_comma: bool,
}

/// `[otlp]`: how OpenTelemetry metrics are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Otlp {
    /// `sensor_id_attributes`: the first of these that a data point or its resource has is the
    /// sensor's id (default `sensor_id`, `device.id`, `host.name`, `service.name`,
    /// `service.instance.id`).
    pub sensor_id_attributes: Vec<String>,
    /// `sensor_id_default`: the id if none of these is present; if it is empty, such points are
    /// rejected (default `unknown`).
    pub sensor_id_default: String,
    /// `point_attributes` (default `tags`).
    pub point_attributes: PointAttributes,
}

/// How the attributes of a data point are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointAttributes {
    /// As tags of the sensor.
    Tags,
    /// As tags and as part of the sensor's id, so that each series is a sensor.
    SensorId,
}

/// `[remote_write]`: how samples of Prometheus remote write are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteWrite {
    /// `sensor_id_labels`: the values of those that a series has, joined by `/`, are the sensor's
    /// id (default `instance`).
    pub sensor_id_labels: Vec<String>,
    /// `other_labels` (default `tags`).
    pub other_labels: PointAttributes,
}

pub(super) fn line(mut s: Section<'_>) -> Line {
    let line = Line {
        sensor_id_tag: s
            .text("sensor_id_tag")
            .unwrap_or_else(|| "sensor_id".to_owned()),
        field_prefix: s.flag("field_prefix", false),
    };
    s.end();
    line
}

pub(super) fn native(mut s: Section<'_>) -> Native {
    let nested = [
        ("flatten", Nested::Flatten),
        ("reject", Nested::Reject),
        ("leave-out", Nested::LeaveOut),
    ];
    let usual = ["timestamp", "time", "datetime", "t", "@timestamp"];
    let native = Native {
        nested: s.choice("nested", Nested::Flatten, &nested),
        time: s
            .parse("time", time_names)
            .unwrap_or_else(|| usual.iter().map(|name| (*name).to_owned()).collect()),
    };
    s.end();
    native
}

/// The members that may hold the time; none of them has another meaning.
fn time_names(node: &Node) -> Result<Vec<String>, Bad> {
    const TAKEN: [&str; 5] = ["sensor_id", "ts", "ts_unit", "values", "tags"];
    let advice =
        "write a list of up to 16 other names, such as [\"timestamp\", \"time\"]; [] for none";
    let names = node
        .texts()
        .filter(|list| list.len() <= 16)
        .ok_or_else(|| wrong(node, advice))?;
    match names
        .iter()
        .find(|name| name.is_empty() || TAKEN.contains(&name.as_str()))
    {
        Some(name) => Err(Bad::new(
            format!("\"{name}\" cannot be such a name"),
            advice,
        )),
        None => Ok(names),
    }
}

pub(super) fn scalar(mut s: Section<'_>) -> ScalarFormat {
    let scalar = ScalarFormat {
        texts_allowed: s.choice("texts", true, &[("keep", true), ("reject", false)]),
        decimal_comma: s.flag("decimal_comma", false),
    };
    s.end();
    scalar
}

pub(super) fn otlp(mut s: Section<'_>) -> Otlp {
    let usual = [
        "sensor_id",
        "device.id",
        "host.name",
        "service.name",
        "service.instance.id",
    ];
    let places = [
        ("tags", PointAttributes::Tags),
        ("sensor_id", PointAttributes::SensorId),
    ];
    let otlp = Otlp {
        sensor_id_attributes: s
            .parse("sensor_id_attributes", texts)
            .unwrap_or_else(|| usual.iter().map(|name| (*name).to_owned()).collect()),
        sensor_id_default: s
            .text_or_empty("sensor_id_default")
            .unwrap_or_else(|| "unknown".to_owned()),
        point_attributes: s.choice("point_attributes", PointAttributes::Tags, &places),
    };
    s.end();
    otlp
}

pub(super) fn remote_write(mut s: Section<'_>) -> RemoteWrite {
    let places = [
        ("tags", PointAttributes::Tags),
        ("sensor_id", PointAttributes::SensorId),
    ];
    let remote_write = RemoteWrite {
        sensor_id_labels: s
            .parse("sensor_id_labels", texts)
            .unwrap_or_else(|| vec!["instance".to_owned()]),
        other_labels: s.choice("other_labels", PointAttributes::Tags, &places),
    };
    s.end();
    remote_write
}

/// A list of names.
fn texts(node: &Node) -> Result<Vec<String>, Bad> {
    let advice =
        "write a list of names, such as [\"host.name\", \"service.name\"], with at most 16 entries";
    let good = |list: &Vec<String>| list.len() <= 16 && list.iter().all(|name| !name.is_empty());
    node.texts().filter(good).ok_or_else(|| wrong(node, advice))
}
