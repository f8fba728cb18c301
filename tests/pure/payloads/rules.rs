//! How each family of payloads is decoded, and the samples with another result than the expected
//! one.

/// How samples are decoded; the first matching rule counts.
pub(super) struct Rule {
    /// The beginning and the end of the path.
    pub(super) begins: &'static str,
    pub(super) ends: &'static [&'static str],
    pub(super) format: &'static str,
    /// Topic templates of the subscription; the first that matches counts. None if the format reads
    /// topics itself.
    pub(super) templates: &'static [&'static str],
    /// `line.sensor_id_tag`, and `line.field_prefix` if it is not the default.
    pub(super) sensor_id_tag: &'static str,
    /// Whether everything must be as expected.
    pub(super) held: bool,
}

const fn rule(begins: &'static str, ends: &'static [&'static str], format: &'static str) -> Rule {
    Rule {
        begins,
        ends,
        format,
        templates: &[],
        sensor_id_tag: "sensor_id",
        held: false,
    }
}

/// A family, or a vendor in it, decoded by a mapping: a shipped profile, or one of
/// `tests/payloads/formats.toml`.
const fn mapped(begins: &'static str, format: &'static str) -> Rule {
    Rule {
        held: true,
        ..rule(begins, &[".json", ".ndjson", ".txt"], format)
    }
}

pub(super) const RULES: &[Rule] = &[
    mapped("01_zigbee2mqtt/", "zigbee2mqtt"),
    mapped("02_tasmota/", "tasmota"),
    mapped("03_shelly/gen1_", "shelly-gen1"),
    mapped("03_shelly/gen2_", "shelly-gen2"),
    Rule {
        sensor_id_tag: "dev_eui",
        held: true,
        ..rule("04_chirpstack_v4/influx", &[".lp"], "line")
    },
    mapped("04_chirpstack_v4/", "chirpstack-v4"),
    mapped("05_tts_v3/", "ttn-v3"),
    Rule {
        held: true,
        ..rule("06_senml/", &[".json"], "senml")
    },
    Rule {
        held: true,
        ..rule("06_senml/", &[".cbor.bin"], "senml-cbor")
    },
    Rule {
        held: true,
        ..rule("07_sparkplug_b/", &[".bin", ".json"], "sparkplug")
    },
    Rule {
        held: true,
        ..rule("08_influx_lp/", &[".lp"], "line")
    },
    mapped(
        "10_plain_esphome_ha/ha_statestream",
        "home-assistant-statestream",
    ),
    mapped("10_plain_esphome_ha/", "homes"),
    mapped("11_aws_azure/aws", "aws-iot"),
    mapped("11_aws_azure/azure", "azure-iot"),
    Rule {
        held: true,
        ..rule("12_otlp/", &[".json"], "otlp-json")
    },
    Rule {
        held: true,
        ..rule("12_otlp/", &[".bin"], "otlp")
    },
    mapped("13_ruuvi_victron_nodered/ruuvi", "ruuvi-gateway"),
    mapped("13_ruuvi_victron_nodered/victron", "victron-venus"),
    Rule {
        templates: &["sensors/{sensor_id}/{field}"],
        ..rule("14_malformed/con_scalar", &[".txt"], "scalar")
    },
    Rule {
        templates: &["+/{sensor_id}/#"],
        ..rule("14_malformed/", &[".json", ".txt", ".bin"], "json")
    },
    mapped("15_gateways_extra/tb_", "thingsboard-telemetry"),
    mapped("15_gateways_extra/milesight_gateway", "milesight-gateway"),
    mapped("15_gateways_extra/milesight", "milesight"),
    mapped("15_gateways_extra/loriot", "loriot"),
    mapped("15_gateways_extra/hono_loriot", "loriot"),
    mapped("15_gateways_extra/hono_multitech", "multitech"),
    mapped("15_gateways_extra/hono_kerlink", "kerlink"),
    mapped("15_gateways_extra/hono_orbiwise", "orbiwise"),
    mapped("15_gateways_extra/hono_objenious", "objenious"),
    mapped("15_gateways_extra/hono_ttn", "ttn-v2"),
    mapped("15_gateways_extra/rtl433", "rtl433"),
    mapped("15_gateways_extra/skt", "skt"),
    mapped("15_gateways_extra/", "boards"),
];

/// Samples with another result than the expected one, chosen for this reason.
pub(super) const CHOSEN: &[(&str, &str)] = &[
    (
        "03_shelly/gen1_em3_info_double_prefix.json",
        "all three phases give the same fields, not the first alone",
    ),
    (
        "04_chirpstack_v4/milesight_am102_undecoded.json",
        "no codec: the radio's values and the payload as text",
    ),
    (
        "04_chirpstack_v4/hono_v4.json",
        "no codec: dr and fPort too, as in docs_up.json",
    ),
    (
        "15_gateways_extra/tb_array_key_value.json",
        "ThingsBoard's telemetry has texts as well; they are kept",
    ),
    (
        "15_gateways_extra/loriot_gw_two_gateways.json",
        "rssi and snr of each gateway are kept, as in hono_loriot_gw.json",
    ),
    (
        "15_gateways_extra/hono_ttn_null_payload.json",
        "rssi and snr are kept, as in hono_ttn_v2.json",
    ),
    (
        "14_malformed/con_scalar_comma.txt",
        "a text stays a text: never 215",
    ),
    (
        "14_malformed/con_scalar_underscore.txt",
        "a text stays a text: never 1000",
    ),
    (
        "14_malformed/con_decimal_comma_string.json",
        "a text stays a text: never 215",
    ),
    (
        "14_malformed/con_duplicate_keys.json",
        "a repeated key is rejected, because it is unknown which one is meant",
    ),
    (
        "14_malformed/con_duplicate_time.json",
        "a repeated key is rejected, because it is unknown which one is meant",
    ),
    (
        "14_malformed/jts_y_object_duplicated_key.json",
        "a repeated key is rejected, because it is unknown which one is meant",
    ),
    (
        "14_malformed/con_two_objects_concatenated.json",
        "two readings, as the note allows",
    ),
    (
        "14_malformed/con_int_2_63.json",
        "an integer that BSON does not have is rejected in the native format",
    ),
    (
        "14_malformed/con_int_30_digits.json",
        "an integer that BSON does not have is rejected in the native format",
    ),
    (
        "14_malformed/con_nested_127.json",
        "the native format is flat; a mapping flattens",
    ),
    (
        "14_malformed/ts_negative_1900.json",
        "the NTP epoch is an unset clock",
    ),
    (
        "14_malformed/ts_ms_1972.json",
        "as seconds in the year 4707; either way not a time of today",
    ),
    (
        "14_malformed/ts_s_year_9999.json",
        "as milliseconds in 1978, a clock not set; either way not a time of today",
    ),
    (
        "14_malformed/ts_object.json",
        "a time that cannot be read rejects a reading of the native format",
    ),
    (
        "14_malformed/ts_iso_week.json",
        "a time that cannot be read rejects a reading of the native format",
    ),
    (
        "14_malformed/ts_iso_ordinal.json",
        "a time that cannot be read rejects a reading of the native format",
    ),
    (
        "14_malformed/ts_asctime.json",
        "a time that cannot be read rejects a reading of the native format",
    ),
    (
        "14_malformed/ts_go_rfc822.json",
        "a time that cannot be read rejects a reading of the native format",
    ),
    (
        "14_malformed/ts_us_12h.json",
        "a time that cannot be read rejects a reading of the native format",
    ),
    (
        "14_malformed/ts_slashes.json",
        "a time that cannot be read rejects a reading of the native format",
    ),
    ("06_senml/rfc8428_ex5.senml.json", SEVERAL_UNITS),
    ("06_senml/rfc8428_ex5.senml.cbor.bin", SEVERAL_UNITS),
    ("06_senml/rfc8428_ex7.senml.json", DATA_VALUE),
    ("06_senml/farshidtz_reference.senml.json", DATA_VALUE),
    ("06_senml/farshidtz_reference.senml.cbor.bin", DATA_VALUE),
    ("07_sparkplug_b/umh_NDATA_GAP.pb.bin", NAMED),
    ("07_sparkplug_b/umh_NDATA_WRAPAROUND.pb.bin", NAMED),
    ("07_sparkplug_b/umh_NDATA_BEFORE_BIRTH.pb.bin", NEVER_BORN),
    (
        "07_sparkplug_b/trap_int32_negative_no_datatype.pb.bin",
        NEVER_BORN,
    ),
    (
        "07_sparkplug_b/umh_NBIRTH_LARGE.pb.bin",
        "the sample's field is a sentence; 100 metrics come out",
    ),
    (
        "07_sparkplug_b/spec_NBIRTH.pb.bin",
        "bdSeq and Node Control/… are the protocol's, no measurements",
    ),
    (
        "08_influx_lp/iox_exp_without_sign.lp",
        "an exponent without a sign is accepted, as the sample's note advises",
    ),
    (
        "08_influx_lp/telegraf_uint_max.lp",
        "2^64-1 is rejected with a reason: BSON has no integer for it",
    ),
];

const SEVERAL_UNITS: &str =
    "one name with several units: each unit is a field of one reading (%RH, lon, lat, %EL)";
const DATA_VALUE: &str = "a data value is the field `value` too, as base64url text";

const NAMED: &str = "the field is Temperature, as defined by the previous birth";
const NEVER_BORN: &str = "an alias that no birth has defined is rejected, and a rebirth asked for";
