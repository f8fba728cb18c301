//! How payloads are read: the names of the built-in formats, and the sections about readings of any
//! format and of each. Formats of the user, `[formats.NAME]`, are in [`mapping`](super::mapping).

use std::time::Duration;

use chrono::{DateTime, NaiveDate};
use chrono_tz::Tz;
use model::DAY_MS;
use toml::Value as Toml;

use super::declare::settings;
use super::kinds::{Kind, any_text, choice, count, duration, flag, text, texts, zone};
use super::reader::{Bad, wrong};
use super::tree::Node;
use super::units::{DAY, MINUTE};

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
/// The format of Sparkplug B.
pub const SPARKPLUG: &str = "sparkplug";

/// A hundred years: a wider time window is a mistake in the unit.
const WINDOW_MAX: Duration = DAY.saturating_mul(36_500);
/// 2001-01-01T00:00:00Z: clocks without a battery start in 1970, 1980 (GPS) or 2000, and count up
/// from there.
const UNSET_BEFORE_MS: i64 = 978_307_200_000;
/// Names in a list.
const NAMES_MAX: usize = 16;

settings! {
    pub struct Limits, reload() {
        /// The accepted time window: readings older or further ahead than this are rejected.
        past: Duration = 365 * DAY, duration(MINUTE..=WINDOW_MAX);
        future: Duration = 10 * MINUTE, duration(Duration::ZERO..=WINDOW_MAX);
        /// How old a reading may be if its sender says that it is an import, as `hourbucket import`
        /// does (`import=true`), up to store.retention.
        import_past: Duration = 7300 * DAY, duration(MINUTE..=WINDOW_MAX);
        // In milliseconds since 1970.
        /// A device time before this counts as an unset clock (1970, the GPS epoch, year 0 or 1).
        /// Over MQTT the reading gets the time of receipt, which hourbucket_readings_retimed_total
        /// counts. "0001-01-01" accepts every later time unchanged, for older history. (Not applied
        /// to line protocol and OTLP, whose agents have a clock.)
        unset_before_ms: i64 = UNSET_BEFORE_MS, date(), named("unset_before");
        /// The same over HTTP, where a sender can read the answer: "reject" (clock_not_set), or
        /// "receive" as over MQTT, for devices that post without a clock. Formats with
        /// time_unreadable = "receive" always do the latter.
        unset_over_http_refused: bool = true, choice(&[("reject", true), ("receive", false)]),
            named("unset_over_http");
        /// Time zone for times without one, by IANA name; absent: such times are rejected, but over
        /// MQTT replaced by the time of receipt if they are under a name of native.time. A format
        /// can set another one. A local time that occurs twice is read as the first of the two, so
        /// readings of both with equal values count as duplicates; a skipped one is read with the
        /// offset before the change.
        zone: Option<Tz> = None, zone().optional(), example("\"Europe/Berlin\"");
        /// Values of one reading, up to 255.
        fields_max: usize = 64, count(1..=255);
        /// Distinct field names of one sensor in one bucket, at least fields_max. A reading that
        /// adds more is rejected (bucket_fields): put ids, addresses and times into sensor_id, ts,
        /// tags or values, not into field names.
        bucket_fields_max: usize = 1024, count(1..=1_000_000);
        /// Bytes of a field or tag name, up to 255; of a sensor id, up to 1024; of a text value, up
        /// to 16384.
        name_max_bytes: usize = 128, count(1..=255);
        sensor_id_max_bytes: usize = 256, count(1..=1024);
        string_max_bytes: usize = 1024, count(1..=16_384);
        /// Tags of one reading, up to 64.
        tags_max: usize = 32, count(0..=64);
        /// Readings in one HTTP body or MQTT message.
        batch_max_readings: usize = 100_000, count(1..=10_000_000);
    }
}

settings! {
    pub struct Line, reload() {
        /// InfluxDB line protocol, over HTTP (/write, /api/v2/write, /api/v3/write_lp) and MQTT
        /// (format = "line"). The tag whose value is the sensor's id; the others stay tags. A line
        /// without this tag belongs to the sensor of its topic, or else to one named after its
        /// series: "cpu,cpu=cpu0,host=a", tags in order. For Telegraf, rely on the series (with
        /// "host", all CPUs of a host would be one sensor, and equal readings of two CPUs one
        /// reading); for ChirpStack use "dev_eui".
        sensor_id_tag: String = "sensor_id".to_owned(), text();
        /// Names fields measurement_field ("weather_temp"). Set it if one sensor sends several
        /// measurements with the same field name, as ChirpStack's devices do with "value":
        /// otherwise they become one field. Changing it later changes the field names.
        field_prefix: bool = false, flag();
    }
}

settings! {
    pub struct Native, reload() {
        /// The native format, in JSON, NDJSON, CBOR and MessagePack. What is done with an object or
        /// array as a value: "flatten" makes each scalar in it a field that is named by its path
        /// ("energy_power", "total_0"), "reject" rejects the reading, "leave-out" stores the rest
        /// of it (in an object `values` it rejects the reading). Whatever is left out is named in
        /// the answer and counted in hourbucket_values_left_out_total.
        nested: Nested = Nested::Flatten, choice(Nested::NAMES);
        /// Members of a reading without `ts` that are its time if they hold one, and values if not;
        /// the first of this list counts. A text is a time if it is written as one. A number is a
        /// time if it lies between limits.unset_before and a year from now, in the unit `ts_unit`
        /// or by magnitude: "t": 21.5 is a temperature.
        time: Vec<String> = owned(&["timestamp", "time", "datetime", "t", "@timestamp"]),
            Kind::new("list of names, up to 16", time_names);
    }
}

model::closed_set! {
    /// The treatment of an object or array as a value.
    pub enum Nested {
        /// Each scalar in it becomes a field, named by its path: `energy_power`, `total_0`.
        Flatten => "flatten",
        /// The reading is rejected.
        Reject => "reject",
        /// It is left out, and the response says so. In an object `values` it rejects the reading.
        LeaveOut => "leave-out",
    }
}

settings! {
    pub struct ScalarFormat, reload() {
        /// Bare values (format = "scalar"). "keep": a payload that is neither a number nor true or
        /// false is stored as text, such as "ON", but also "21,5" or a whole JSON object. "reject":
        /// it is rejected (not_a_number), and becomes a dead letter.
        texts_allowed: bool = true, choice(&[("keep", true), ("reject", false)]), named("texts");
        /// Whether "21,5" is the number 21.5.
        decimal_comma: bool = false, flag();
    }
}

impl Copy for ScalarFormat {}

settings! {
    pub struct Otlp, reload() {
        /// OpenTelemetry metrics (POST /v1/metrics, and format = "otlp" or "otlp-json"): one
        /// reading for each data point of a gauge or sum, with the metric's name as its field. The
        /// sensor's id is the first of these attributes that the point or its resource has.
        /// service.instance.id comes last, because some SDKs (Python's) choose a random one at each
        /// start, and each start would be another sensor; put it first if yours is stable. If there
        /// is none, it is sensor_id_default; if that is "", the point is rejected.
        sensor_id_attributes: Vec<String> = owned(&[
            "sensor_id", "device.id", "host.name", "service.name", "service.instance.id",
        ]), names();
        sensor_id_default: String = "unknown".to_owned(), any_text();
        /// The attributes of a data point become "tags", or with "sensor_id" also part of the
        /// sensor's id ("web-1,cpu=0"). Use "sensor_id" for metrics with several points at a time,
        /// such as one for each CPU or disk: with "tags" these are indistinguishable readings of
        /// one sensor. Changing it later changes the sensor ids.
        point_attributes: PointAttributes = PointAttributes::Tags, choice(PointAttributes::NAMES);
    }
}

settings! {
    pub struct RemoteWrite, reload() {
        /// Prometheus remote write (POST /api/v1/write): one field for each sample, with the
        /// metric's name. The sensor's id is made of the values of these labels, joined by "/", as
        /// far as the series has them. A series without any of them is rejected.
        sensor_id_labels: Vec<String> = owned(&["instance"]), names();
        /// The other labels become "tags", or with "sensor_id" also part of the sensor's id
        /// ("web-1,cpu=0"). Use "sensor_id" for metrics with several series per sensor, such as one
        /// for each CPU or disk: with "tags" these are indistinguishable readings of one sensor.
        /// Changing it later changes the sensor ids.
        other_labels: PointAttributes = PointAttributes::Tags, choice(PointAttributes::NAMES);
    }
}

model::closed_set! {
    /// How the attributes of a data point are used.
    pub enum PointAttributes {
        /// As tags of the sensor.
        Tags => "tags",
        /// As tags and as part of the sensor's id, so that each series is a sensor.
        SensorId => "sensor_id",
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn names() -> Kind<Vec<String>> {
    texts(
        "list of names, up to 16",
        "write a list of names, such as [\"host.name\", \"service.name\"], with at most 16 entries",
        NAMES_MAX,
        |name| !name.is_empty(),
    )
}

/// The start of a day, in milliseconds since 1970.
fn date() -> Kind<i64> {
    let schema = serde_json::json!({ "type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$" });
    let read = |node: &Node| {
        let advice = "write a date in quotes such as \"2001-01-01\"; \"0001-01-01\" accepts every \
            time unchanged";
        let date = node
            .text()
            .map(|text| NaiveDate::parse_from_str(text, "%Y-%m-%d"));
        match date {
            Some(Ok(date)) => Ok(i64::from(date.to_epoch_days()) * DAY_MS),
            _ => Err(wrong(node, advice)),
        }
    };
    Kind::unwritten("date", schema, read).written(|ms| {
        let date = DateTime::from_timestamp_millis(*ms).unwrap_or_default();
        Toml::String(date.format("%Y-%m-%d").to_string())
    })
}

/// The members that may hold the time; none of them has another meaning.
fn time_names(node: &Node) -> Result<Vec<String>, Bad> {
    const TAKEN: [&str; 5] = ["sensor_id", "ts", "ts_unit", "values", "tags"];
    let advice =
        "write a list of up to 16 other names, such as [\"timestamp\", \"time\"]; [] for none";
    let names = node
        .texts()
        .filter(|list| list.len() <= NAMES_MAX)
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
