//! Why a reading or a message is not taken: the closed list. Each is a metric label (`readings_rejected_total{reason}`),
//! part of the HTTP answer and the `reason` of a dead letter, so a name, once released, keeps its meaning.

/// Nothing in the payload but white space.
pub const EMPTY_PAYLOAD: &str = "empty_payload";
/// Bytes that are not UTF-8.
pub const INVALID_UTF8: &str = "invalid_utf8";
/// Not JSON: truncated, a wrong token, an array that is not closed.
pub const INVALID_JSON: &str = "invalid_json";
/// Not InfluxDB's line protocol: no field, a tag without value, a value that is none, a text that is not closed.
pub const INVALID_LINE: &str = "invalid_line";
/// Not protobuf, or another message than was announced.
pub const INVALID_PROTOBUF: &str = "invalid_protobuf";
/// Not CBOR: it ends within a value, or holds what RFC 8949 reserves. What follows in the payload is not read.
pub const INVALID_CBOR: &str = "invalid_cbor";
/// Not MessagePack: it ends within a value, or holds the byte that is never used. What follows is not read.
pub const INVALID_MSGPACK: &str = "invalid_msgpack";
/// JSON or CBOR, but against the rules of SenML: no array, a version or a label that forbids to use the pack, a name with
/// other characters, several values, or a base field of an earlier record that is wrong.
pub const INVALID_SENML: &str = "invalid_senml";
/// Not a message, or not a metric, of Sparkplug B.
pub const INVALID_SPARKPLUG: &str = "invalid_sparkplug";
/// Of Sparkplug B: the alias, or the type of the number, that only a birth tells, and no such birth is known.
pub const UNKNOWN_METRIC: &str = "unknown_metric";
/// Of Sparkplug B: what all births define takes more room than there is; the aliases of this one are not known.
pub const TOO_MANY_METRICS: &str = "too_many_metrics";
/// A value of a kind that is not stored: bytes, arrays, DataSets and Templates.
pub const UNSUPPORTED_TYPE: &str = "unsupported_type";
/// A value whose sender says that it is bad or stale.
pub const BAD_QUALITY: &str = "bad_quality";
/// Something stands after the end of the array or between the objects.
pub const TRAILING_DATA: &str = "trailing_data";
/// Nested deeper than 127 levels, which is also where serde_json ends.
pub const TOO_DEEP: &str = "too_deep";
/// JSON, but no object where a reading should stand.
pub const NOT_AN_OBJECT: &str = "not_an_object";
/// A scalar payload that holds NUL bytes: a binary format that nobody announced.
pub const BINARY_PAYLOAD: &str = "binary_payload";
/// The payload has more readings than `limits.batch_max_readings`; the ones beyond are counted, not read.
pub const TOO_MANY_READINGS: &str = "too_many_readings";
/// The batch is full of distinct field names ([`crate::model::batch::NAMES_MAX`]).
pub const TOO_MANY_FIELD_NAMES: &str = "too_many_field_names";
/// The sensor has used `limits.bucket_fields_max` different field names in the bucket of this reading, and it brings more.
pub const BUCKET_FIELDS: &str = "bucket_fields";
/// The topic of a message does not fit the subscription's template (given by the caller, not by a decoder).
pub const TOPIC_MISMATCH: &str = "topic_mismatch";
/// No rule of the configured format fits the message (see `[formats.NAME]`).
pub const NO_RULE: &str = "no_rule";

/// Neither the payload nor the topic names a sensor.
pub const MISSING_SENSOR_ID: &str = "missing_sensor_id";
/// The sensor id is an empty text.
pub const EMPTY_SENSOR_ID: &str = "empty_sensor_id";
/// The sensor id is a number, a boolean or nested: ids are texts, and 7, 7.0 and "7" must not become one sensor by chance.
pub const SENSOR_ID_NOT_TEXT: &str = "sensor_id_not_text";
/// The sensor id is longer than `limits.sensor_id_max_bytes`.
pub const SENSOR_ID_TOO_LONG: &str = "sensor_id_too_long";
/// The sensor id holds a NUL, which ends a text in too many tools behind us.
pub const SENSOR_ID_HAS_NUL: &str = "sensor_id_has_nul";
/// A scalar payload whose topic names no field.
pub const MISSING_FIELD: &str = "missing_field";

/// A key twice in one object, or two fields that have the same name once they are renamed.
pub const DUPLICATE_KEY: &str = "duplicate_key";
/// No value is left: none was sent, or only nulls.
pub const NO_VALUES: &str = "no_values";
/// An object or array where a value or a tag should stand.
pub const NESTED_VALUE: &str = "nested_value";
/// `values` or `tags` is not an object.
pub const WRONG_TYPE: &str = "wrong_type";
/// More values than `limits.fields_max`, or more keys than a reading can use.
pub const TOO_MANY_FIELDS: &str = "too_many_fields";
/// More tags than `limits.tags_max`, those of the topic counted.
pub const TOO_MANY_TAGS: &str = "too_many_tags";
/// The tags take more than 65,535 bytes together.
pub const TAGS_TOO_LONG: &str = "tags_too_long";
/// A field's or tag's name is longer than `limits.name_max_bytes`.
pub const NAME_TOO_LONG: &str = "name_too_long";
/// A text or a tag's value is longer than `limits.string_max_bytes`.
pub const STRING_TOO_LONG: &str = "string_too_long";
/// An integer beyond 64 bit signed.
pub const INTEGER_OUT_OF_RANGE: &str = "integer_out_of_range";
/// NaN, an infinity, or a number too large for a double.
pub const NOT_FINITE: &str = "not_finite";

/// A time that cannot be understood.
pub const BAD_TIMESTAMP: &str = "bad_timestamp";
/// Older than `limits.past`.
pub const TOO_OLD: &str = "too_old";
/// Further ahead than `limits.future`.
pub const TOO_FAR_AHEAD: &str = "too_far_ahead";

/// A data point of a histogram or summary: not a number, so there is no place for it.
pub const UNSUPPORTED_METRIC: &str = "unsupported_metric";
/// A good reading whose sender wanted all or nothing (`accept_partial=false`), and another one was bad.
pub const NOT_ALL_GOOD: &str = "not_all_good";
/// Of a message: longer than `mqtt.packet_max_bytes`, or `listen.mqtt.packet_max_bytes`.
pub const PAYLOAD_TOO_LARGE: &str = "payload_too_large";
/// Of a message: its topic belongs to no configured subscription (the broker's session may still have an old one), and on
/// `listen.mqtt` to no `[[listen.mqtt.topics]]`.
pub const NO_SUBSCRIPTION: &str = "no_subscription";
/// Of a message: its topic is longer than `listen.mqtt.topic_max_bytes`.
pub const TOPIC_TOO_LONG: &str = "topic_too_long";
/// Of a message: its subscription's `format` is not known to this version.
pub const UNKNOWN_FORMAT: &str = "unknown_format";
/// Of a hook: AWS IoT asks to confirm that it may post here; its payload says how.
pub const DESTINATION_CONFIRMATION: &str = "destination_confirmation";
/// Of a message with QoS 0: it came faster than it could be taken.
pub const QUEUE_FULL: &str = "queue_full";
/// Of a reading that the store refuses for good.
pub const STORE_REJECTED: &str = "store_rejected";

/// All of them, for the documentation, the metrics and the tests.
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
