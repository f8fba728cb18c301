//! The configurations of the cases, and what is refused.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    config: InitConfig,
}

/// Writes the configuration of a command line, and loads it.
fn loaded(line: &[&str]) -> config::Config {
    let dir = tempfile::tempdir().unwrap();
    let in_dir = |name: &str| dir.path().join(name).display().to_string();
    let files = [in_dir("h.toml"), in_dir("tokens.toml"), in_dir("journal")];
    let given = [
        "--output",
        &files[0],
        "--tokens-file",
        &files[1],
        "--journal-dir",
        &files[2],
    ];
    let options = Line::try_parse_from([&["x"], line, &given].concat())
        .unwrap()
        .config;
    let write = || write(&options, &mut vec![], &mut vec![]);
    write().unwrap();
    assert!(
        matches!(write(), Err(InitError::Exists(_))),
        "nothing is overwritten"
    );
    config::load(Some(Path::new(&files[0])), std::iter::empty())
        .unwrap()
        .config
}

#[test]
fn each_case_is_a_valid_configuration_with_its_settings() {
    let config = loaded(&[
        "--case",
        "broker",
        "--broker",
        "mqtts://b.example",
        "--username",
        "u",
    ]);
    let rules = &config.mqtt[0].subscriptions[0];
    assert_eq!(
        (rules.filter.as_str(), rules.format.as_str()),
        ("sensors/+/+", "scalar")
    );
    assert!(!config.http.enabled && config.mqtt[0].username.as_deref() == Some("u"));
    let more = [
        "--topic",
        "zigbee2mqtt/#",
        "--format",
        "zigbee2mqtt",
        "--mongodb",
        "mongodb://u@m.example/?tls=true",
    ];
    let config = loaded(&[&["--case", "broker"][..], &more].concat());
    assert_eq!(config.mqtt[0].subscriptions[0].filter, "zigbee2mqtt/#");
    assert!(config.store.uri.reveal().contains("m.example"));
    let line = [
        "--case",
        "broker",
        "--topic",
        "telegraf/#",
        "--format",
        "line",
    ];
    let rules = &loaded(&line).mqtt[0].subscriptions[0];
    assert_eq!(
        (&*rules.filter, &*rules.topic),
        ("telegraf/#", "telegraf/#")
    );
    let config = loaded(&["--case", "http", "--listen", "127.0.0.1:9000"]);
    assert!(
        config.http.enabled
            && config.http.listen.port() == 9000
            && config.http.tokens_file.is_some()
    );
    let config = loaded(&["--case", "devices", "--topic", "site/{site}/{sensor_id#}"]);
    assert!(config.listen.mqtt.enabled && config.listen.mqtt.topics[0].filter == "site/+/#");
    assert!(
        loaded(&["--case", "lorawan", "--server", "ttn"])
            .http
            .enabled
    );
    let config = loaded(&["--case", "lorawan", "--broker", "mqtt://c.example"]);
    assert_eq!(config.mqtt[0].subscriptions[0].format, "chirpstack-v4");
}

#[test]
fn answers_that_make_no_configuration_are_refused() {
    let line = |line: &[&str]| {
        text(
            &Line::try_parse_from([&["x"], line].concat())
                .unwrap()
                .config,
        )
        .unwrap_err()
    };
    let password = "mongodb://u:geheim@m/";
    assert!(
        !line(&["--case", "http", "--mongodb", password])
            .to_string()
            .contains("geheim")
    );
    for format in ["scalar", "json", "cbor"] {
        let error = line(&["--case", "broker", "--topic", "a/+", "--format", format]).to_string();
        assert!(error.starts_with("a/+: no {sensor_id}"), "{error}");
    }
    assert!(matches!(line(&[]), InitError::NoCase));
}

#[test]
fn wrong_answers_leave_no_file_that_stops_the_next_try() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let output = path("h.toml");
    let tokens = path("tokens.toml");
    let try_with = |topic: &str| {
        let line = [
            "x",
            "--case",
            "devices",
            "--topic",
            topic,
            "--output",
            &output,
            "--tokens-file",
            &tokens,
        ];
        let options = Line::try_parse_from(line).unwrap().config;
        write(&options, &mut vec![], &mut vec![])
    };
    let error = try_with("a/{sensor_id}/{b}/{b}").unwrap_err();
    assert!(matches!(error, InitError::Invalid(_)), "{error}");
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    try_with("a/{sensor_id}/{b}").unwrap();
    // A tokens file that was there before stays.
    std::fs::remove_file(&output).unwrap();
    try_with("a/{sensor_id}/{b}/{b}").unwrap_err();
    assert!(Path::new(&tokens).exists() && !Path::new(&output).exists());
}

#[test]
fn the_token_is_not_part_of_a_configuration_on_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let in_dir = |name: &str| dir.path().join(name).display().to_string();
    let written = |output: &str, tokens: &str| {
        let line = [
            "x",
            "--case",
            "http",
            "--output",
            output,
            "--tokens-file",
            tokens,
        ];
        let options = Line::try_parse_from(line).unwrap().config;
        let mut out = vec![];
        let mut err = vec![];
        write(&options, &mut out, &mut err).unwrap();
        [out, err].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    let [out, err] = written("-", &in_dir("tokens.toml"));
    assert!(err.lines().nth(1).unwrap().starts_with("first."), "{err}");
    assert!(!out.contains("\nfirst.") && !out.starts_with("first."));
    let file = in_dir("h.toml");
    std::fs::write(&file, out).unwrap();
    config::load(Some(Path::new(&file)), std::iter::empty()).unwrap();
    // To a file, standard output has the token alone, for a script.
    let [out, _] = written(&in_dir("h2.toml"), &in_dir("tokens2.toml"));
    assert!(
        out.starts_with("first.") && out.lines().count() == 1,
        "{out}"
    );
}

#[test]
fn the_questions_fill_in_what_flags_leave_out() {
    let mut options = InitConfig::default();
    let mut asked = vec![];
    let answers = "carrier pigeon\nbroker\n\nmqtt://b\n\nf/{sensor_id}\n\n";
    ask_all(&mut options, &mut answers.as_bytes(), &mut asked).unwrap();
    assert_eq!(
        (options.case, options.broker.as_deref()),
        (Some(Case::Broker), Some("mqtt://b"))
    );
    assert_eq!(
        (options.topic.as_deref(), options.format.as_deref()),
        (Some("f/{sensor_id}"), Some("json"))
    );
    assert_eq!(options.username, None);
    assert!(
        String::from_utf8(asked)
            .unwrap()
            .contains("Who sends the readings?")
    );
}
