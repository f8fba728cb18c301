//! Settings that do not fit together.

use std::time::Duration;

use super::{DESIGN, Place, one_problem, one_problem_each};

#[test]
fn conflicting_settings_are_refused() {
    one_problem_each(&[
        (
            "127.0.0.1:8080\"\ntokens_file = \"tokens.toml\"",
            "0.0.0.0:8080\"",
            "http.listen",
            "allow_anonymous",
        ),
        (
            "tokens_file",
            "allow_anonymous = true\ntokens_file",
            "http.allow_anonymous",
            "anonymous",
        ),
        (
            "127.0.0.1:8081",
            "127.0.0.1:8080",
            "admin.listen",
            "another port",
        ),
        (
            "max_bytes = \"16GiB\"",
            "max_bytes = \"100MiB\"",
            "journal.max_bytes",
            "twice",
        ),
        (
            "max_age = \"15s\"",
            "commands_max = 17",
            "flush.commands_max",
            "store.pool_max",
        ),
        (
            "retention = \"365d\"",
            "retention = \"364d\"",
            "store.retention",
            "limits.past accepts readings up to 365d old",
        ),
        (
            "retention = \"365d\"",
            "retention_readings = \"364d\"",
            "store.retention_readings",
            "decrease limits.past to at most store.retention_readings",
        ),
        (
            "retention = \"365d\"",
            "retention = \"400d\"\nretention_readings = \"400d\"",
            "store.retention_readings",
            "less than store.retention",
        ),
        (
            "past = \"365d\"",
            "past = \"366d\"",
            "store.retention",
            "increase store.retention to at least limits.past",
        ),
    ]);
    let place = Place::new();
    let page = DESIGN.replace("max_readings = 1000", "max_bytes = \"2MiB\"");
    one_problem(
        &place,
        &page.replace("max_age = \"15s\"", "command_max_bytes = \"1MiB\""),
        "bucket.max_bytes",
        "fit",
    );
    place.good(
        "[http]\nlisten = \"0.0.0.0:8080\"\nallow_anonymous = true",
        &[],
    );
}

#[test]
fn conflicts_of_a_broker_and_its_subscriptions_are_refused() {
    let topic = "mqtt[0].subscriptions[0].topic";
    one_problem_each(&[
        (
            "{sensor_id}/{field}",
            "{sensor_id}/temp",
            topic,
            "no {field}",
        ),
        (
            "{sensor_id}/{field}",
            "{id}/{field}",
            topic,
            "no {sensor_id}",
        ),
        (
            "sensors/{sensor_id}",
            "sensor/{sensor_id}",
            topic,
            "level 1",
        ),
        (
            "{sensor_id}/{field}",
            "{sensor_id}/x/{field}",
            topic,
            "3 levels",
        ),
        ("username = \"…\"", "", "mqtt[0].password_file", "username"),
        (
            "clean_start = false",
            "ca_file = \"ca.pem\"",
            "mqtt[0].ca_file",
            "mqtts://",
        ),
        (
            "protocol = 5",
            "protocol = 4\nsession_expiry = \"1d\"",
            "mqtt[0].session_expiry",
            "3.1.1",
        ),
    ]);
    let place = Place::new();
    let broker = &DESIGN[DESIGN.find("[[mqtt]]").unwrap()..];
    one_problem(
        &place,
        &format!("{DESIGN}{broker}"),
        "mqtt[1].client_id",
        "same url and client_id",
    );
    let subscription = &DESIGN[DESIGN.find("[[mqtt.sub").unwrap()..];
    one_problem(
        &place,
        &format!("{DESIGN}{subscription}"),
        "mqtt[0].subscriptions[1].filter",
        "twice",
    );
    one_problem(
        &place,
        &DESIGN.replace(subscription, ""),
        "mqtt[0]",
        "subscriptions",
    );
    let two = DESIGN.replace("sensors/{sensor_id}/{field}", "sensor/{sensor_id}/x");
    assert_eq!(
        place.bad(&two, &[]).len(),
        2,
        "the second problem of a key is reported too"
    );
}

/// Sparkplug B: its own topics, all messages of a node, and commands that only a broker can
/// forward.
#[test]
fn a_subscription_to_sparkplug_needs_its_topics() {
    let place = Place::new();
    let sparkplug = DESIGN
        .replace("\"scalar\"", "\"sparkplug\"")
        .replace("sensors/{sensor_id}/{field}", "spBv1.0/#");
    let format = "mqtt[0].subscriptions[0].format";
    one_problem(
        &place,
        &sparkplug.replace("sensors/+/+", "+/+/+/+"),
        format,
        "spBv1.0/",
    );
    one_problem(
        &place,
        &sparkplug.replace("sensors/+/+", "$share/g/spBv1.0/#"),
        format,
        "shared",
    );
    let good = sparkplug.replace("sensors/+/+", "spBv1.0/#");
    assert_eq!(
        place.good(&good, &[]).mqtt[0].subscriptions[0].format,
        "sparkplug"
    );
    let usual = place.good(&good.replace("topic = \"spBv1.0/#\"", ""), &[]);
    assert_eq!(usual.mqtt[0].subscriptions[0].topic, "spBv1.0/#");
}

#[test]
fn a_missing_input_and_a_section_of_another_kind_are_refused() {
    let place = Place::new();
    one_problem(
        &place,
        "[http]\nenabled = false",
        "http.enabled",
        "no input is configured",
    );
    one_problem(&place, "[mqtt]\nurl = \"mqtt://x\"", "mqtt", "[[mqtt]]");
    one_problem(&place, "http = 5", "http", "[http]");
}

#[test]
fn retentions_that_do_not_fit_are_refused() {
    let place = Place::new();
    let short = DESIGN
        .replacen("past = \"365d\"", "past = \"30d\"", 1)
        .replacen("\"365d\"", "\"30d\"", 1);
    let kept = place.good(&short, &[]);
    assert_eq!(
        (kept.store.retention, kept.limits.past),
        (Some(kept.limits.past), Duration::from_secs(30 * 86_400))
    );
    let tiers = place.good(
        &DESIGN.replacen("\"365d\"", "\"730d\"\nretention_readings = \"365d\"", 1),
        &[],
    );
    let days = |n: u64| Duration::from_secs(n * 86_400);
    assert_eq!(
        (tiers.store.retention, tiers.store.retention_readings),
        (Some(days(730)), Some(days(365)))
    );
    assert_eq!(
        tiers.decoding().import_past,
        days(365),
        "an import has the same limit"
    );
    // Without `store.retention`, only the default of limits.past can conflict with it.
    one_problem(
        &place,
        "store.retention = \"30d\"",
        "store.retention",
        "365d old",
    );
}

#[test]
fn days_and_silence_have_limits() {
    let place = Place::new();
    for (more, key, part) in [
        ("zone = \"Mars/Base\"", "rollup.zone", "Europe/Berlin"),
        ("zone = \"Asia/Kolkata\"", "rollup.zone", "15m"),
        (
            "retention = \"900d\"",
            "rollup.retention",
            "remove it to keep days forever",
        ),
    ] {
        one_problem(
            &place,
            &format!("[rollup]\ndays = true\n{more}\n"),
            key,
            part,
        );
    }
    one_problem(
        &place,
        "bucket.span = \"1d\"\n[rollup]\ndays = true\n",
        "bucket.span",
        "at most \"12h\"",
    );
    let short = "store.retention = \"366d\"\n[rollup]\ndays = true\n";
    one_problem(&place, short, "store.retention", "at least 367d");
    place.good(
        "bucket.span = \"30m\"\n[rollup]\ndays = true\nzone = \"Asia/Kolkata\"\n",
        &[],
    );
    place.good(&short.replace("366d", "367d"), &[]);
    place.good(
        "store.retention = \"366d\"\n[rollup]\nzone = \"Asia/Kolkata\"\n",
        &[],
    );
    one_problem(
        &place,
        "[sensors]\nsilent_after = \"20d\"\n",
        "sensors.silent_after",
        "at least 40d",
    );
    place.good("[sensors]\nsilent_after = \"15d\"\n", &[]);
}
