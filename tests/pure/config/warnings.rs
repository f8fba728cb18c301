//! Settings that are accepted with a warning.

use super::{DESIGN, Place, subscribed};

#[test]
fn a_constant_sensor_id_is_a_warning() {
    let place = Place::new();
    let warnings = |text: &str| place.good(text, &[]).warnings();
    let [id] = &warnings(&subscribed(
        "own",
        None,
        "\n[formats.own]\nid = \"weather\"\n",
    ))[..] else {
        panic!("one")
    };
    assert!(
        id.contains("formats.own") && id.contains("one sensor"),
        "{id}"
    );
    let template = DESIGN.replacen("sensors/{sensor_id}/{field}", "{sensor_id}/+/{field}", 1);
    let [topic] = &warnings(&template)[..] else {
        panic!("one")
    };
    assert!(
        topic.contains("mqtt[0].subscriptions[0].topic") && topic.contains("`sensors`"),
        "{topic}"
    );
}

#[test]
fn unlikely_settings_are_a_warning() {
    let place = Place::new();
    let warnings = |from: &str, to: &str| place.good(&DESIGN.replacen(from, to, 1), &[]).warnings();
    assert_eq!(warnings("x", "x"), Vec::<String>::new());
    let [qos] = &warnings("qos = 1", "qos = 2")[..] else {
        panic!("one warning")
    };
    assert!(
        qos.starts_with("mqtt[0].subscriptions[0].qos = 2 is treated as 1"),
        "{qos}"
    );
    let shared = (
        "\"sensors/+/+\"",
        "\"$share/g/sensors/+/+\"\nretained = \"always\"",
    );
    let [retained] = &warnings(shared.0, shared.1)[..] else {
        panic!("one warning")
    };
    assert!(retained.contains("no effect"), "{retained}");
    let small = "max_bytes = \"11MiB\"\nsegment_bytes = \"1MiB\"";
    let [small] = &warnings("max_bytes = \"16GiB\"", small)[..] else {
        panic!("one warning")
    };
    assert!(small.contains("at least 12MiB"), "{small}");
    let text = DESIGN
        .replacen(shared.0, "\"$share/g/sensors/+/+\"", 1)
        .replace("clean_start = false", "clean_start = true");
    let [lost] = &place.good(&text, &[]).warnings()[..] else {
        panic!("one warning")
    };
    assert!(lost.contains("can be lost"), "{lost}");
}

#[test]
fn filters_that_overlap_are_a_warning() {
    let place = Place::new();
    let of = |filter: &str| {
        format!(
            "[[mqtt.subscriptions]]\nfilter = \"{filter}\"\ntopic = \"+/{{sensor_id}}\"\n\
             format = \"json\"\n"
        )
    };
    let broker = "[[mqtt]]\nurl = \"mqtt://b\"\nclient_id = \"c\"\n";
    let warnings = |filters: &[&str]| {
        let subscriptions: String = filters.iter().map(|filter| of(filter)).collect();
        place
            .good(&format!("{broker}{subscriptions}"), &[])
            .warnings()
    };
    assert_eq!(warnings(&["a/+", "b/+", "c/#"]), Vec::<String>::new());
    let [overlap] = &warnings(&["a/+", "b/+", "+/+"])[..] else {
        panic!("one warning")
    };
    assert!(
        overlap.starts_with("mqtt[0].subscriptions[2].filter and that of subscriptions[0]"),
        "{overlap}"
    );
}

#[test]
fn options_of_the_uri_without_effect_are_a_warning() {
    let place = Place::new();
    let warnings = |options: &str| {
        let text = format!("store.uri = \"mongodb://h/?{options}\"\n");
        place.good(&text, &[]).warnings()
    };
    assert_eq!(warnings("replicaSet=rs0&w=majority"), [""; 0]);
    let [replaced] = &warnings("readPreference=secondary&journal=false")[..] else {
        panic!("one warning")
    };
    assert!(
        replaced.contains("no effect: journal, readPreference;"),
        "{replaced}"
    );
}

#[test]
fn the_shipped_settings_have_no_warning() {
    let place = Place::new();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/hourbucket.toml");
    let shipped = std::fs::read_to_string(shipped).unwrap();
    for text in ["", &shipped] {
        assert_eq!(place.good(text, &[]).warnings(), [""; 0], "{text}");
    }
}

#[test]
fn forwarding_without_encryption_is_a_warning() {
    let place = Place::new();
    let warnings = |url: &str| {
        let text = format!("[forward]\nurl = \"{url}\"\n");
        place.good(&text, &[]).warnings()
    };
    for url in [
        "https://centre:8080",
        "http://localhost:8080",
        "http://[::1]:8080",
        "http://127.0.0.1",
    ] {
        assert_eq!(warnings(url), [""; 0], "{url}");
    }
    for url in [
        "http://centre:8080",
        "http://centre",
        "http://[2001:db8::1]:80",
    ] {
        assert!(warnings(url)[0].contains("unencrypted"), "{url}");
    }
}
