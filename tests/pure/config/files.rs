//! Files with secrets.

use std::path::Path;

use super::{DESIGN, Place, direct};

/// Sets the permissions of a file.
fn permit(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn files_with_secrets_that_others_can_read_are_named() {
    use std::os::unix::fs::{MetadataExt, chown};
    let place = Place::new();
    let broker = "key_file = \"client.key\"\ncert_file = \"client.pem\"\npassword_file";
    let tls = "cert_file = \"server.pem\"\nkey_file = \"server.key\"";
    let port = direct(&format!("tokens_file = \"tokens.toml\"\n{tls}"));
    let text = DESIGN
        .replacen("password_file", broker, 1)
        .replacen("mqtt://", "mqtts://", 1);
    let text = format!("{text}[http.tls]\n{tls}\n[admin.tls]\n{tls}\n{port}");
    let uri = place.file("uri", "mongodb://user:pass@db/");
    let exposed = || {
        let text = text.replacen("uri = \"mongodb://127.0.0.1:27017/?replicaSet=rs0\"", "", 1);
        let loaded = place.load(
            &text,
            &[("HOURBUCKET_STORE__URI_FILE", uri.to_str().unwrap())],
        );
        loaded
            .unwrap_or_else(|e| panic!("{text}\n{e}"))
            .exposed_secrets()
    };
    let keys = || {
        exposed()
            .iter()
            .map(|w| w.split(':').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let files = [
        "tokens.toml",
        "server.key",
        "client.key",
        "mqtt-password",
        "uri",
    ]
    .map(|name| place.0.path().join(name));
    // Certificates are public.
    ["server.pem", "client.pem"]
        .iter()
        .for_each(|name| permit(&place.0.path().join(name), 0o666));
    files.iter().for_each(|path| permit(path, 0o600));
    assert_eq!(exposed(), Vec::<String>::new());
    for (path, expected) in files.iter().zip([
        &["http.tokens_file", "listen.mqtt.tokens_file"][..],
        &[
            "http.tls.key_file",
            "admin.tls.key_file",
            "listen.mqtt.key_file",
        ],
        &["mqtt[0].key_file"],
        &["mqtt[0].password_file"],
        &["store.uri"],
    ]) {
        permit(path, 0o604);
        assert_eq!(keys(), expected);
        let [warning, ..] = &exposed()[..] else {
            panic!("a warning")
        };
        assert!(
            warning.contains(&format!("chmod 600 {}", path.display())) && warning.contains("0604"),
            "{warning}"
        );
        permit(path, 0o600);
    }
    // A file of root that the service reads through its group, as Kubernetes and Debian mount
    // secrets.
    permit(&files[0], 0o640);
    if std::fs::metadata(&files[0]).unwrap().uid() == 0 {
        assert_eq!(exposed(), Vec::<String>::new());
        permit(&files[0], 0o660);
        assert_eq!(keys().len(), 2, "the group may not write it");
        permit(&files[0], 0o640);
        chown(&files[0], Some(1), Some(1)).unwrap();
    }
    assert_eq!(keys(), ["http.tokens_file", "listen.mqtt.tokens_file"]);
}

#[test]
fn a_journal_that_others_can_read_is_named() {
    let place = Place::new();
    let dir = place.0.path().join("journal");
    let exposed = |more: &str| {
        place
            .good(&format!("journal.dir = {dir:?}\n{more}"), &[])
            .exposed_journal()
    };
    assert_eq!(exposed(""), None, "there is none yet");
    std::fs::create_dir(&dir).unwrap();
    permit(&dir, 0o755);
    for (name, mode) in [
        ("00000001.seg", 0o600),
        ("00000002.seg", 0o644),
        ("00000003.seg", 0o644),
    ] {
        permit(&place.file(&format!("journal/{name}"), ""), mode);
    }
    let warning = exposed("").unwrap();
    assert!(
        warning.contains("00000002.seg")
            && warning.contains(&format!("chmod -R o= {}", dir.display())),
        "{warning}"
    );
    assert_eq!(exposed("ingest.ack = \"stored\""), None);
    permit(&dir, 0o750);
    assert_eq!(exposed(""), None, "nobody else can enter it");
}

#[test]
fn a_password_file_is_read_again() {
    let place = Place::new();
    let broker = place.good(DESIGN, &[]).mqtt.remove(0);
    let now = || {
        broker
            .password_now()
            .map(|secret| secret.unwrap().reveal().to_owned())
    };
    assert_eq!(now().unwrap(), "from-file");
    place.file("mqtt-password", "rotated\n");
    assert_eq!(now().unwrap(), "rotated");
    place.file("mqtt-password", "");
    assert!(now().unwrap_err().to_string().contains("is empty"));
    let from_env = place
        .good(DESIGN, &[("HOURBUCKET_MQTT__0__PASSWORD", "env")])
        .mqtt
        .remove(0);
    assert_eq!(from_env.password_now().unwrap().unwrap().reveal(), "env");
}
