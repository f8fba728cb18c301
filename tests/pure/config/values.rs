//! Values outside their limits.

use super::{DESIGN, Place, one_problem, one_problem_each};

#[test]
fn the_values_of_the_http_port_and_the_store_have_limits() {
    one_problem_each(&[
        (
            "listen = \"127.0.0.1:8080\"",
            "listen = \":8080\"",
            "http.listen",
            "0.0.0.0:8080",
        ),
        (
            "tokens_file = \"tokens.toml\"",
            "tokens_file = \"none.toml\"",
            "http.tokens_file",
            "cannot be read",
        ),
        (
            "body_max_bytes = 8388608",
            "body_max_bytes = \"1GiB\"",
            "http.body_max_bytes",
            "512MiB",
        ),
        (
            "mongodb://127",
            "http://user:geheim@127",
            "store.uri",
            "mongodb+srv://",
        ),
        (
            "database = \"hourbucket\"",
            "database = \"a.b\"",
            "store.database",
            "63 bytes",
        ),
        (
            "database = \"hourbucket\"",
            "database = \"admin\"",
            "store.database",
            "MongoDB's own",
        ),
        (
            "mode = \"auto\"",
            "mode = \"fast\"",
            "store.mode",
            "\"timeseries\" or \"auto\"",
        ),
        (
            "retention = \"365d\"",
            "retention = \"0s\"",
            "store.retention",
            "out of range",
        ),
        (
            "retention = \"365d\"",
            "retention = \"30000d\"",
            "store.retention",
            "24855d",
        ),
        (
            "retention = \"365d\"",
            "write_concern = 0",
            "store.write_concern",
            "majority",
        ),
        (
            "retention = \"365d\"",
            "pool_max = 0",
            "store.pool_max",
            "1 to 1000",
        ),
    ]);
}

#[test]
fn the_values_of_buckets_and_flushes_have_limits() {
    one_problem_each(&[
        ("span = \"1h\"", "span = \"2d\"", "bucket.span", "1m"),
        (
            "max_readings = 1000",
            "max_readings = 0",
            "bucket.max_readings",
            "10000",
        ),
        (
            "max_readings = 1000",
            "max_readings = \"1000\"",
            "bucket.max_readings",
            "not understood",
        ),
        (
            "max_readings = 1000",
            "max_readings = 1.5",
            "bucket.max_readings",
            "whole number",
        ),
        (
            "max_readings = 1000",
            "max_bytes = \"9MiB\"",
            "bucket.max_bytes",
            "8MiB",
        ),
        (
            "max_age = \"15s\"",
            "max_age = 15",
            "flush.max_age",
            "\"15s\"",
        ),
        (
            "max_age = \"15s\"",
            "command_max_bytes = \"13MiB\"",
            "flush.command_max_bytes",
            "12MiB",
        ),
        (
            "max_age = \"15s\"",
            "command_max_statements = 5001",
            "flush.command_max_statements",
            "5000",
        ),
    ]);
}

#[test]
fn the_values_of_readings_latest_and_enrichment_have_limits() {
    one_problem_each(&[
        (
            "future = \"10m\"",
            "fields_max = 256",
            "limits.fields_max",
            "255",
        ),
        (
            "future = \"10m\"",
            "sensor_id_max_bytes = 1025",
            "limits.sensor_id_max_bytes",
            "1024",
        ),
        (
            "future = \"10m\"",
            "string_max_bytes = 16385",
            "limits.string_max_bytes",
            "16384",
        ),
        ("future = \"10m\"", "tags_max = 65", "limits.tags_max", "64"),
        (
            "[limits]",
            "[latest]\nrecent = 101\n[limits]",
            "latest.recent",
            "from 0 to 100",
        ),
        (
            "[limits]",
            "[latest]\ninterval = \"2h\"\n[limits]",
            "latest.interval",
            "1h",
        ),
        (
            "[limits]",
            "[enrich]\nfields = \"site\"\n[limits]",
            "enrich.fields",
            "a list of fields",
        ),
        (
            "[limits]",
            "[enrich]\nfields = [\"a\", \"a.b\"]\n[limits]",
            "enrich.fields",
            "overlap",
        ),
        (
            "[limits]",
            "[enrich]\nid_field = \"$a\"\n[limits]",
            "enrich.id_field",
            "name of a field",
        ),
    ]);
}

#[test]
fn the_registry_is_none_of_our_collections() {
    use model::collections::OWN;
    for name in OWN {
        let text = format!("[enrich]\ncollection = \"{name}\"\n[limits]");
        one_problem_each(&[("[limits]", &text, "enrich.collection", "of hourbucket")]);
    }
}

#[test]
fn the_values_of_a_broker_have_limits() {
    one_problem_each(&[
        (
            "mqtt://127.0.0.1:1883",
            "tcp://127.0.0.1:1883",
            "mqtt[0].url",
            "mqtts://",
        ),
        (
            "mqtt://127.0.0.1:1883",
            "mqtt://zoe9:geheim@127.0.0.1:1883",
            "mqtt[0].url",
            "password_file",
        ),
        (
            "url = \"mqtt://127.0.0.1:1883\"",
            "",
            "mqtt[0].url",
            "missing",
        ),
        (
            "client_id = \"hourbucket-1\"",
            "client_id = \"\"",
            "mqtt[0].client_id",
            "256 characters",
        ),
        ("protocol = 5", "protocol = 3", "mqtt[0].protocol", "3.1.1"),
        (
            "password_file = \"mqtt-password\"",
            "password = \"geheim\"",
            "mqtt[0].password",
            "password_file",
        ),
        (
            "protocol = 5",
            "status_topic = \"a/#\"",
            "mqtt[0].status_topic",
            "without +",
        ),
        (
            "protocol = 5",
            "key_file = \"client.key\"",
            "mqtt[0].key_file",
            "cert_file",
        ),
    ]);
}

#[test]
fn the_values_of_a_subscription_have_limits() {
    one_problem_each(&[
        (
            "qos = 1",
            "retained = \"twice\"",
            "mqtt[0].subscriptions[0].retained",
            "\"always\"",
        ),
        (
            "qos = 1",
            "user_property_tags = [\"a.b\"]",
            "mqtt[0].subscriptions[0].user_property_tags",
            "letters",
        ),
        (
            "qos = 1",
            "user_property_tags = [\"ts\"]",
            "mqtt[0].subscriptions[0].user_property_tags",
            "use this name",
        ),
        (
            "qos = 1",
            "user_property_tags = [\"a\", \"a\"]",
            "mqtt[0].subscriptions[0].user_property_tags",
            "twice",
        ),
        (
            "qos = 1",
            "qos = 3",
            "mqtt[0].subscriptions[0].qos",
            "write 1",
        ),
        (
            "qos = 1",
            "ts_unit = \"min\"",
            "mqtt[0].subscriptions[0].ts_unit",
            "\"ns\"",
        ),
        (
            "\"sensors/+/+\"",
            "\"sensors/#/+\"",
            "mqtt[0].subscriptions[0].filter",
            "last level",
        ),
        (
            "\"sensors/+/+\"",
            "\"$share/g\"",
            "mqtt[0].subscriptions[0].filter",
            "$share/group/filter",
        ),
        (
            "\"sensors/{sensor_id}/{field}\"",
            "\"{a b}\"",
            "mqtt[0].subscriptions[0].topic",
            "letters",
        ),
        (
            "format = \"scalar\"",
            "format = \"scaler\"",
            "mqtt[0].subscriptions[0].format",
            "did you mean \"scalar\"",
        ),
        (
            "format = \"scalar\"",
            "",
            "mqtt[0].subscriptions[0].format",
            "missing",
        ),
    ]);
}

#[test]
fn a_span_is_any_divisor_of_a_day() {
    let place = Place::new();
    let with = |span: &str| DESIGN.replacen("span = \"1h\"", &format!("span = \"{span}\""), 1);
    for (span, minutes) in [
        ("1m", 1.0),
        ("90s", 1.5),
        ("15m", 15.0),
        ("1h", 60.0),
        ("1h30m", 90.0),
        ("6h", 360.0),
        ("24h", 1440.0),
        ("1d", 1440.0),
    ] {
        let ms = place.good(&with(span), &[]).bucket.span.ms();
        assert_eq!(ms as f64, minutes * 60_000.0, "{span}");
    }
    for span in ["59s", "30s", "7m", "5h", "25h", "2d", "0s"] {
        one_problem(&place, &with(span), "bucket.span", "divisor of a day");
    }
}

#[test]
fn times_and_zones_are_read_and_refused() {
    let place = Place::new();
    let with =
        |line: &str| DESIGN.replacen("future = \"10m\"", &format!("future = \"10m\"\n{line}"), 1);
    let limits = place
        .good(
            &with("unset_before = \"1990-06-01\"\nzone = \"Asia/Kolkata\""),
            &[],
        )
        .limits;
    assert_eq!(
        (limits.unset_before_ms, limits.zone.map(|zone| zone.name())),
        (644_198_400_000, Some("Asia/Kolkata"))
    );
    assert_eq!(
        place.good(DESIGN, &[]).limits.unset_before_ms,
        978_307_200_000
    );
    one_problem(
        &place,
        &with("unset_before = \"2001\""),
        "limits.unset_before",
        "a date in quotes",
    );
    one_problem(
        &place,
        &with("unset_before = 2001-01-01"),
        "limits.unset_before",
        "a date in quotes",
    );
    one_problem(&place, &with("zone = \"CEST\""), "limits.zone", "IANA");
    let zone = DESIGN.replacen("qos = 1", "qos = 1\nzone = \"Berlin\"", 1);
    one_problem(
        &place,
        &zone,
        "mqtt[0].subscriptions[0].zone",
        "Europe/Berlin",
    );
}

#[test]
fn an_empty_default_sensor_id_is_accepted() {
    let config = Place::new().good("[otlp]\nsensor_id_default = \"\"\n", &[]);
    assert_eq!(config.otlp.sensor_id_default, "");
    assert!(config.masked().contains("sensor_id_default = \"\""));
}
