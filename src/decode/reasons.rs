//! Why a reading or a message is rejected: the closed list. Each reason is a metric label
//! (`readings_rejected_total{reason}`), part of the HTTP answer and the `reason` of a dead letter. So a released name
//! keeps its meaning.

/// The payload is empty or only white space.
pub const EMPTY_PAYLOAD: &str = "empty_payload";
/// The bytes are not UTF-8.
pub const INVALID_UTF8: &str = "invalid_utf8";
/// Not JSON: truncated, an invalid token, an unclosed array.
pub const INVALID_JSON: &str = "invalid_json";
/// Not InfluxDB line protocol: no field, a tag without a value, an invalid value, an unclosed text.
pub const INVALID_LINE: &str = "invalid_line";
/// Not protobuf, or a different message than announced.
pub const INVALID_PROTOBUF: &str = "invalid_protobuf";
/// Not CBOR: it ends inside a value, or uses encodings that RFC 8949 reserves. The rest of the payload is not read.
pub const INVALID_CBOR: &str = "invalid_cbor";
/// Not MessagePack: it ends inside a value, or contains the unused byte 0xc1. The rest is not read.
pub const INVALID_MSGPACK: &str = "invalid_msgpack";
/// JSON or CBOR, but against the rules of SenML: not an array, a version or a label that forbids processing the pack, a
/// name with other characters, several values, or an invalid base field in an earlier record.
pub const INVALID_SENML: &str = "invalid_senml";
/// Not a Sparkplug B message or metric.
pub const INVALID_SPARKPLUG: &str = "invalid_sparkplug";
/// Sparkplug B: only a birth defines the alias, or the type of the number, and no such birth is known.
pub const UNKNOWN_METRIC: &str = "unknown_metric";
/// Sparkplug B: the definitions in all births exceed the memory limit, so the aliases of this one are unknown.
pub const TOO_MANY_METRICS: &str = "too_many_metrics";
/// A value of a type that is not stored: bytes, arrays, DataSets and Templates.
pub const UNSUPPORTED_TYPE: &str = "unsupported_type";
/// A value that its sender marks as bad or stale.
pub const BAD_QUALITY: &str = "bad_quality";
/// Data after the end of the array or between the objects.
pub const TRAILING_DATA: &str = "trailing_data";
/// Nested deeper than 127 levels, which is also the limit of serde_json.
pub const TOO_DEEP: &str = "too_deep";
/// JSON, but not an object where a reading is expected.
pub const NOT_AN_OBJECT: &str = "not_an_object";
/// A scalar payload with NUL bytes: probably a binary format that is not configured.
pub const BINARY_PAYLOAD: &str = "binary_payload";
/// The payload has more readings than `limits.batch_max_readings`; further ones are counted, but not read.
pub const TOO_MANY_READINGS: &str = "too_many_readings";
/// The batch is full of distinct field names ([`crate::model::batch::NAMES_MAX`]).
pub const TOO_MANY_FIELD_NAMES: &str = "too_many_field_names";
/// The sensor already uses `limits.bucket_fields_max` distinct field names in the bucket of this reading, and the
/// reading adds more.
pub const BUCKET_FIELDS: &str = "bucket_fields";
/// The topic of a message does not match the subscription's template (the caller reports this, not a decoder).
pub const TOPIC_MISMATCH: &str = "topic_mismatch";
/// No rule of the configured format matches the message (see `[formats.NAME]`).
pub const NO_RULE: &str = "no_rule";

/// Neither the payload nor the topic names a sensor.
pub const MISSING_SENSOR_ID: &str = "missing_sensor_id";
/// The sensor id is an empty text.
pub const EMPTY_SENSOR_ID: &str = "empty_sensor_id";
/// The sensor id is a number, a boolean or nested. Ids are texts, so that 7, 7.0 and "7" do not become one sensor by
/// accident.
pub const SENSOR_ID_NOT_TEXT: &str = "sensor_id_not_text";
/// The sensor id is longer than `limits.sensor_id_max_bytes`.
pub const SENSOR_ID_TOO_LONG: &str = "sensor_id_too_long";
/// The sensor id contains a NUL, which ends a text in too many downstream tools.
pub const SENSOR_ID_HAS_NUL: &str = "sensor_id_has_nul";
/// A scalar payload whose topic names no field.
pub const MISSING_FIELD: &str = "missing_field";

/// A duplicate key in one object, or two fields with the same name after renaming.
pub const DUPLICATE_KEY: &str = "duplicate_key";
/// No value is left: none was sent, or only nulls.
pub const NO_VALUES: &str = "no_values";
/// An object or array where a value or a tag is expected.
pub const NESTED_VALUE: &str = "nested_value";
/// `values` or `tags` is not an object.
pub const WRONG_TYPE: &str = "wrong_type";
/// More values than `limits.fields_max`, or more keys than a reading can use.
pub const TOO_MANY_FIELDS: &str = "too_many_fields";
/// More tags than `limits.tags_max`, including those of the topic.
pub const TOO_MANY_TAGS: &str = "too_many_tags";
/// The tags exceed 65,535 bytes in total.
pub const TAGS_TOO_LONG: &str = "tags_too_long";
/// A field or tag name is longer than `limits.name_max_bytes`.
pub const NAME_TOO_LONG: &str = "name_too_long";
/// A text or a tag's value is longer than `limits.string_max_bytes`.
pub const STRING_TOO_LONG: &str = "string_too_long";
/// An integer outside of signed 64 bit.
pub const INTEGER_OUT_OF_RANGE: &str = "integer_out_of_range";
/// NaN, an infinity, or a number too large for a double.
pub const NOT_FINITE: &str = "not_finite";

/// A time that cannot be parsed.
pub const BAD_TIMESTAMP: &str = "bad_timestamp";
/// Older than `limits.past`.
pub const TOO_OLD: &str = "too_old";
/// Further ahead than `limits.future`.
pub const TOO_FAR_AHEAD: &str = "too_far_ahead";

/// A data point of a histogram or summary, which is not a number and cannot be stored.
pub const UNSUPPORTED_METRIC: &str = "unsupported_metric";
/// A good reading that is rejected because another one is bad and its sender requested all or nothing
/// (`accept_partial=false`).
pub const NOT_ALL_GOOD: &str = "not_all_good";
/// A message that is longer than `mqtt.packet_max_bytes`, or `listen.mqtt.packet_max_bytes`.
pub const PAYLOAD_TOO_LARGE: &str = "payload_too_large";
/// A message whose topic matches no configured subscription (the broker's session may still hold an old one), or on
/// `listen.mqtt` no `[[listen.mqtt.topics]]`.
pub const NO_SUBSCRIPTION: &str = "no_subscription";
/// A message whose topic is longer than `listen.mqtt.topic_max_bytes`.
pub const TOPIC_TOO_LONG: &str = "topic_too_long";
/// A message whose subscription has a `format` that this version does not have.
pub const UNKNOWN_FORMAT: &str = "unknown_format";
/// A hook request of AWS IoT for confirmation that it may post here; its payload has the instructions.
pub const DESTINATION_CONFIRMATION: &str = "destination_confirmation";
/// A message with QoS 0 that arrived while the queue was full.
pub const QUEUE_FULL: &str = "queue_full";
/// A reading that the store refuses permanently.
pub const STORE_REJECTED: &str = "store_rejected";

/// All reasons, for the documentation, the metrics and the tests.
pub const ALL: &[&str] = &[
    EMPTY_PAYLOAD,
    INVALID_UTF8,
    INVALID_JSON,
    INVALID_LINE,
    INVALID_PROTOBUF,
    INVALID_CBOR,
    INVALID_MSGPACK,
    INVALID_SENML,
    INVALID_SPARKPLUG,
    UNKNOWN_METRIC,
    TOO_MANY_METRICS,
    UNSUPPORTED_TYPE,
    BAD_QUALITY,
    TRAILING_DATA,
    TOO_DEEP,
    NOT_AN_OBJECT,
    BINARY_PAYLOAD,
    TOO_MANY_READINGS,
    TOO_MANY_FIELD_NAMES,
    BUCKET_FIELDS,
    TOPIC_MISMATCH,
    NO_RULE,
    MISSING_SENSOR_ID,
    EMPTY_SENSOR_ID,
    SENSOR_ID_NOT_TEXT,
    SENSOR_ID_TOO_LONG,
    SENSOR_ID_HAS_NUL,
    MISSING_FIELD,
    DUPLICATE_KEY,
    NO_VALUES,
    NESTED_VALUE,
    WRONG_TYPE,
    TOO_MANY_FIELDS,
    TOO_MANY_TAGS,
    TAGS_TOO_LONG,
    NAME_TOO_LONG,
    STRING_TOO_LONG,
    INTEGER_OUT_OF_RANGE,
    NOT_FINITE,
    BAD_TIMESTAMP,
    TOO_OLD,
    TOO_FAR_AHEAD,
    UNSUPPORTED_METRIC,
    NOT_ALL_GOOD,
    PAYLOAD_TOO_LARGE,
    NO_SUBSCRIPTION,
    TOPIC_TOO_LONG,
    UNKNOWN_FORMAT,
    DESTINATION_CONFIRMATION,
    QUEUE_FULL,
    STORE_REJECTED,
];
