//! Why a reading or a message is rejected: the closed list. Each reason is a metric label
//! (`readings_rejected_total{reason}`), part of the HTTP answer and the `reason` of a dead letter.
//! So a released name keeps its meaning.

model::closed_set! {
    /// Why a reading or a message is rejected.
    pub enum RejectReason {
        /// The payload is empty or only white space.
        EmptyPayload => "empty_payload",
        /// The payload is compressed. Only bodies over HTTP are decompressed, once.
        Compressed => "compressed",
        /// The bytes are not UTF-8.
        InvalidUtf8 => "invalid_utf8",
        /// Not JSON: truncated, an invalid token, an unclosed array.
        InvalidJson => "invalid_json",
        /// Not InfluxDB line protocol: no field, a tag without a value, an invalid value, an
        /// unclosed text.
        InvalidLine => "invalid_line",
        /// Not protobuf, or a different message than announced.
        InvalidProtobuf => "invalid_protobuf",
        /// Not CBOR: it ends inside a value, or uses encodings that RFC 8949 reserves. The rest of
        /// the payload is not read.
        InvalidCbor => "invalid_cbor",
        /// Not MessagePack: it ends inside a value, or contains the unused byte 0xc1. The rest is
        /// not read.
        InvalidMsgpack => "invalid_msgpack",
        /// JSON or CBOR, but against the rules of SenML: not an array, a version or a label that
        /// forbids processing the pack, a name with other characters, several values, or an invalid
        /// base field in an earlier record.
        InvalidSenml => "invalid_senml",
        /// Not a Sparkplug B message or metric.
        InvalidSparkplug => "invalid_sparkplug",
        /// Sparkplug B: only a birth defines the alias, or the type of the number, and no such
        /// birth is known.
        UnknownMetric => "unknown_metric",
        /// Sparkplug B: the definitions in all births exceed the memory limit, so the aliases of
        /// this one are unknown.
        TooManyMetrics => "too_many_metrics",
        /// A value of a type that is not stored: bytes, arrays, DataSets and Templates.
        UnsupportedType => "unsupported_type",
        /// A value that its sender marks as bad or stale.
        BadQuality => "bad_quality",
        /// Not a body of an instance that forwards, or one of a version that this instance does not
        /// know.
        InvalidBatch => "invalid_batch",
        /// Data after the end of the array or between the objects.
        TrailingData => "trailing_data",
        /// Nested deeper than 127 levels, which is also the limit of serde_json.
        TooDeep => "too_deep",
        /// JSON, but not an object where a reading is expected.
        NotAnObject => "not_an_object",
        /// A scalar payload with NUL bytes: probably a binary format that is not configured.
        BinaryPayload => "binary_payload",
        /// The payload has more readings than `limits.batch_max_readings`; further ones are
        /// counted, but not read.
        TooManyReadings => "too_many_readings",
        /// The batch is full of distinct field names ([`model::batch::NAMES_MAX`]).
        TooManyFieldNames => "too_many_field_names",
        /// The sensor already uses `limits.bucket_fields_max` distinct field names in the bucket of
        /// this reading, and the reading adds more.
        BucketFields => "bucket_fields",
        /// The sender's token, certificate or JWT does not allow it to write this sensor.
        NotAllowed => "not_allowed",
        /// The topic of a message does not match the subscription's template (the caller reports
        /// this, not a decoder).
        TopicMismatch => "topic_mismatch",
        /// No rule of the configured format matches the message (see `[formats.NAME]`).
        NoRule => "no_rule",
        /// Neither the payload nor the topic names a sensor.
        MissingSensorId => "missing_sensor_id",
        /// The sensor id is an empty text.
        EmptySensorId => "empty_sensor_id",
        /// The sensor id is a number, a boolean or nested. Ids are texts, so that 7, 7.0 and "7" do
        /// not become one sensor by accident.
        SensorIdNotText => "sensor_id_not_text",
        /// The sensor id is longer than `limits.sensor_id_max_bytes`.
        SensorIdTooLong => "sensor_id_too_long",
        /// The sensor id contains a NUL, which ends a text in too many downstream tools.
        SensorIdHasNul => "sensor_id_has_nul",
        /// A scalar payload whose topic names no field.
        MissingField => "missing_field",
        /// A duplicate key in one object, or two fields with the same name after renaming.
        DuplicateKey => "duplicate_key",
        /// No value is left: none was sent, or only nulls.
        NoValues => "no_values",
        /// An object or array where a value or a tag is expected.
        NestedValue => "nested_value",
        /// `values` or `tags` is not an object.
        WrongType => "wrong_type",
        /// More values than `limits.fields_max`, or more keys than a reading can use.
        TooManyFields => "too_many_fields",
        /// More tags than `limits.tags_max`, including those of the topic.
        TooManyTags => "too_many_tags",
        /// The tags exceed 65,535 bytes in total.
        TagsTooLong => "tags_too_long",
        /// A field or tag name is longer than `limits.name_max_bytes`.
        NameTooLong => "name_too_long",
        /// A text or a tag's value is longer than `limits.string_max_bytes`.
        StringTooLong => "string_too_long",
        /// A scalar payload that is not a number or boolean, with `scalar.texts = "reject"`.
        NotANumber => "not_a_number",
        /// An integer outside of signed 64 bit.
        IntegerOutOfRange => "integer_out_of_range",
        /// A value outside of its range (`[[ranges]]`) whose action is `reject`, or of which nothing
        /// else is left.
        OutOfRange => "out_of_range",
        /// NaN, an infinity, or a number too large for a double.
        NotFinite => "not_finite",
        /// A time that cannot be parsed.
        BadTimestamp => "bad_timestamp",
        /// A time before `limits.unset_before`: the clock of the sender is not set.
        ClockNotSet => "clock_not_set",
        /// No time in a reading of an import (`import=true`), or one for which the time of receipt
        /// would be used.
        MissingTimestamp => "missing_timestamp",
        /// Older than `limits.past`; in an import, than `limits.import_past` or a retention of
        /// `[store]`.
        TooOld => "too_old",
        /// Further ahead than `limits.future`.
        TooFarAhead => "too_far_ahead",
        /// A native histogram of remote write, which is not a number and cannot be stored.
        UnsupportedMetric => "unsupported_metric",
        /// A good reading that is rejected because another one is bad and its sender requested all
        /// or nothing (`accept_partial=false`).
        NotAllGood => "not_all_good",
        /// A message that is longer than `mqtt.packet_max_bytes`, or
        /// `listen.mqtt.packet_max_bytes`, or whose decoded readings take more bytes than the
        /// journal accepts together.
        PayloadTooLarge => "payload_too_large",
        /// A message whose topic matches no configured subscription (the broker's session may still
        /// hold an old one), or on `listen.mqtt` no `[[listen.mqtt.topics]]`.
        NoSubscription => "no_subscription",
        /// A message whose topic is longer than `listen.mqtt.topic_max_bytes`.
        TopicTooLong => "topic_too_long",
        /// A message whose subscription has a `format` that this version does not have.
        UnknownFormat => "unknown_format",
        /// A hook request of AWS IoT for confirmation that it may post here; its payload has the
        /// instructions.
        DestinationConfirmation => "destination_confirmation",
        /// A message with QoS 0 that arrived while the queue was full.
        QueueFull => "queue_full",
        /// A reading that the store refuses permanently.
        StoreRejected => "store_rejected",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::RejectReason;

    /// `InvalidUtf8` as `invalid_utf8`.
    fn snake_case(variant: &str) -> String {
        let mut name = String::new();
        for (i, c) in variant.char_indices() {
            if c.is_ascii_uppercase() && i > 0 {
                name.push('_');
            }
            name.push(c.to_ascii_lowercase());
        }
        name
    }

    #[test]
    fn all_lists_each_variant_once_in_order() {
        let positions: Vec<usize> = RejectReason::ALL
            .iter()
            .map(|reason| *reason as usize)
            .collect();
        assert_eq!(positions, (0..RejectReason::ALL.len()).collect::<Vec<_>>());
        // The file declares each variant on a separate line.
        let declared = include_str!("reasons.rs")
            .lines()
            .filter(|line| line.contains(" => \""));
        assert_eq!(declared.count(), RejectReason::ALL.len());
    }

    #[test]
    fn each_name_is_unique_and_belongs_to_its_variant() {
        let names: BTreeSet<&str> = RejectReason::ALL
            .iter()
            .map(|reason| reason.as_str())
            .collect();
        assert_eq!(names.len(), RejectReason::ALL.len());
        for reason in RejectReason::ALL {
            let name = reason.as_str();
            assert!(
                name.bytes()
                    .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_')),
                "{name}"
            );
            assert_eq!(
                (name, reason.to_string().as_str()),
                (snake_case(&format!("{reason:?}")).as_str(), name)
            );
        }
    }
}
