//! Reloads the settings with SIGHUP while readings arrive: what changes, what is refused, and that
//! nothing is lost.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support::raw_mqtt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::fleet::now_ms;
use crate::support::http_client::agent;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::mosquitto::{Mosquitto, publish_by_tool};
use crate::support::service::Service;
use crate::support::stored::{self, Stored};
use crate::support::{free_port, wait_until};
use net::access::hash_secret;

const PATIENCE: Duration = Duration::from_secs(60);

/// Status and text of a POST with a token.
fn post(agent: &ureq::Agent, url: &str, token: &str, body: &str) -> (u16, String) {
    try_post(agent, url, token, body).expect("an answer")
}

/// Like [`post`]; an error if the connection ended.
fn try_post(
    agent: &ureq::Agent,
    url: &str,
    token: &str,
    body: &str,
) -> Result<(u16, String), ureq::Error> {
    let request = agent.post(url).header("content-type", "application/json");
    let mut answer = request
        .header("authorization", format!("Bearer {token}"))
        .send(body)?;
    let text = answer.body_mut().read_to_string()?;
    Ok((answer.status().as_u16(), text))
}

/// A service with its own settings file and tokens file.
struct Rig {
    service: Service,
    settings: String,
    agent: ureq::Agent,
}

impl Rig {
    fn start(test: &str, more: &str) -> (Rig, String) {
        let uri = Mongod::shared().uri();
        let database = unique_database(test);
        let settings = format!(
            "[store]\nuri = \"{uri}\"\ndatabase = \"{database}\"\nmode = \"bucket\"\n[flush]\n\
             max_age = \"200ms\"\n{more}"
        );
        let service = Service::start(&settings, &[]);
        (
            Rig {
                service,
                settings,
                agent: agent(),
            },
            database,
        )
    }

    /// Writes the settings plus `text` to the file.
    fn write(&self, settings: &str) {
        std::fs::write(self.service.dir().join("hourbucket.toml"), settings).unwrap();
    }

    fn tokens(&self, tokens: &[(&str, &str)]) {
        let entry = |(id, secret): &(&str, &str)| {
            format!(
                "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n",
                hash_secret(secret)
            )
        };
        let text: String = tokens.iter().map(entry).collect();
        std::fs::write(self.service.dir().join("tokens.toml"), text).unwrap();
    }

    fn reloads(&self) -> f64 {
        self.service.metrics().get("config_reloads_total")
    }

    fn last(&self) -> serde_json::Value {
        let (_, text) = self.service.get_admin("/readyz").unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["config"]["last_reload"].clone()
    }

    /// Sends SIGHUP and waits for the result and its detail.
    fn reload(&self) -> (String, String) {
        let before = self.reloads();
        self.service.sighup();
        wait_until("the settings are read again", PATIENCE, || {
            (self.reloads() > before).then_some(())
        });
        let last = self.last();
        (
            last["result"].as_str().unwrap().to_owned(),
            last["detail"].as_str().unwrap().to_owned(),
        )
    }

    fn post(&self, path: &str, token: &str, body: &str) -> (u16, String) {
        post(
            &self.agent,
            &format!("{}{path}", self.service.http()),
            token,
            body,
        )
    }
}

/// Sends readings until it is stopped, each until it is acknowledged, with the token that is
/// currently valid.
fn sender(
    url: String,
    name: String,
    token: Arc<Mutex<&'static str>>,
    stop: Arc<AtomicBool>,
) -> std::thread::JoinHandle<Vec<Stored>> {
    std::thread::spawn(move || {
        let agent = agent();
        let mut sent = vec![];
        while !stop.load(Ordering::Relaxed) {
            let reading = (name.clone(), now_ms(), sent.len() as i64);
            let body = format!(
                "{{\"sensor_id\":\"{name}\",\"ts\":{},\"n\":{}}}",
                reading.1, reading.2
            );
            loop {
                let token = *token.lock().unwrap();
                match try_post(&agent, &format!("{url}/v1/readings"), token, &body) {
                    Ok((200, _)) => break,
                    // The token has just been replaced; the idle connection of the old one ended.
                    Ok((401, _)) => std::thread::sleep(Duration::from_millis(5)),
                    Err(_) if token == "gw1.one" => std::thread::sleep(Duration::from_millis(5)),
                    other => panic!("{other:?}"),
                }
            }
            sent.push(reading);
        }
        sent
    })
}

/// A mapping is added and changed; the next phase removes it.
fn a_mapping_is_added_and_changed(rig: &Rig, with_tokens: &str) {
    let hook = |scale: &str| {
        format!(
            "{with_tokens}[formats.own]\nid = \"/dev\"\nvalues = {{ n = \"/v\" }}\n\
             fields = [{{ match = \"n\", scale = {scale} }}]\n"
        )
    };
    let payload = |v: i64| format!("{{\"dev\":\"mapped\",\"v\":{v}}}");
    assert_eq!(
        rig.post("/v1/readings?format=own", "gw1.two", &payload(1))
            .0,
        400
    );
    for (v, scale) in [(1, "10"), (2, "100")] {
        rig.write(&hook(scale));
        let (result, detail) = rig.reload();
        assert_eq!(result, "applied");
        assert!(detail.contains("formats.own"), "{detail}");
        let (status, answer) = rig.post("/v1/readings?format=own", "gw1.two", &payload(v));
        assert_eq!(status, 200, "{answer}");
    }
}

/// Limits, and the size of bodies; the mapping is removed.
fn limits_are_applied(rig: &Rig, with_tokens: &str) {
    rig.write(&format!(
        "{with_tokens}body_max_bytes = 2000\n[limits]\nfields_max = 2\n"
    ));
    let (_, detail) = rig.reload();
    assert!(
        detail.contains("applied: formats.own, http.body_max_bytes, limits.fields_max"),
        "{detail}"
    );
    let (status, answer) = rig.post(
        "/v1/readings",
        "gw1.two",
        "{\"sensor_id\":\"wide\",\"a\":1,\"b\":2,\"c\":3}",
    );
    assert_eq!(
        (status, answer.contains("too_many_fields")),
        (400, true),
        "{answer}"
    );
    assert_eq!(
        rig.post("/v1/readings", "gw1.two", &" ".repeat(2001)).0,
        413
    );
}

/// Keys that need a restart are named, and the others are applied.
fn keys_that_need_a_restart_are_named(rig: &Rig, with_tokens: &str) {
    let elsewhere = with_tokens.replace("mongodb://127.0.0.1", "mongodb://zoe:geheim@127.0.0.9");
    rig.write(&format!(
        "{elsewhere}queue_timeout = \"2s\"\n[journal]\nmax_bytes = \"1GiB\"\n"
    ));
    let (result, detail) = rig.reload();
    assert_eq!(result, "restart_needed");
    assert!(
        detail.contains("http.queue_timeout")
            && detail.ends_with("restart needed for journal.max_bytes, store.uri"),
        "{detail}"
    );
    let log = rig.service.log();
    let line = log
        .lines()
        .find(|line| line.contains("store.uri") && line.contains("needs a restart"))
        .expect("a line");
    assert!(line.contains("the store is opened"), "{line}");
    assert!(
        !log.contains("geheim") && !log.contains("zoe"),
        "a secret is in the log"
    );
}

/// With any error nothing is changed, not even the valid keys.
fn an_error_changes_nothing(rig: &Rig, with_tokens: &str) {
    for wrong in [
        "[limits]\nfields_max = 3\npast = \"soon\"\n",
        "[limits]\nfields_max = 3\n[http.tls]\nkey_file = \"nowhere\"\n",
    ] {
        rig.write(&format!("{with_tokens}{wrong}"));
        let (result, detail) = rig.reload();
        assert_eq!(result, "invalid", "{detail}");
        assert!(
            detail.contains("limits.past (hourbucket.toml:")
                || detail.contains("http.tls.key_file"),
            "{detail}"
        );
    }
    rig.write(with_tokens);
    std::fs::write(
        rig.service.dir().join("tokens.toml"),
        "[[tokens]]\nid = \"gw1\"\nsha256 = \"geheim\"\n",
    )
    .unwrap();
    let (result, detail) = rig.reload();
    assert!(
        result == "invalid" && detail.contains("entry 1 (gw1)") && !detail.contains("geheim"),
        "{detail}"
    );
    assert_eq!(
        rig.post("/v1/readings", "gw1.two", "x").0,
        400,
        "the previous token is valid"
    );
    let (_, ready) = rig.service.get_admin("/readyz").unwrap();
    assert!(
        ready.contains("\"ready\":true") && ready.contains("the previous settings stay in effect"),
        "{ready}"
    );
}

#[test]
fn under_load_settings_are_applied_or_refused_and_nothing_is_lost() {
    let (rig, database) = Rig::start("reload", "");
    rig.tokens(&[("gw1", "one")]);
    let with_tokens = format!("{}[http]\ntokens_file = \"tokens.toml\"\n", rig.settings);
    rig.write(&with_tokens);
    let (result, detail) = rig.reload();
    assert_eq!(result, "applied", "{detail}");
    assert!(detail.contains("applied: http.tokens_file;"), "{detail}");

    let token = Arc::new(Mutex::new("gw1.one"));
    let stop = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..6)
        .map(|i| {
            sender(
                rig.service.http(),
                format!("s{i}"),
                token.clone(),
                stop.clone(),
            )
        })
        .collect();

    // Tokens: the old one is refused, the new one is valid.
    rig.tokens(&[("gw1", "two")]);
    assert_eq!(
        rig.post("/v1/readings", "gw1.one", "x").0,
        400,
        "nothing has been reloaded yet"
    );
    assert_eq!(rig.reload().0, "applied");
    assert_eq!(
        (
            rig.post("/v1/readings", "gw1.one", "x").0,
            rig.post("/v1/readings", "gw1.two", "x").0
        ),
        (401, 400)
    );
    *token.lock().unwrap() = "gw1.two";

    a_mapping_is_added_and_changed(&rig, &with_tokens);
    limits_are_applied(&rig, &with_tokens);
    keys_that_need_a_restart_are_named(&rig, &with_tokens);
    an_error_changes_nothing(&rig, &with_tokens);

    // Many reloads in a row; the last state of the files counts.
    rig.tokens(&[("gw1", "two"), ("gw2", "three")]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..5).for_each(|_| rig.service.sighup()));
        }
    });
    wait_until("the last of them", PATIENCE, || {
        (rig.post("/v1/readings", "gw2.three", "x").0 == 400).then_some(())
    });

    stop.store(true, Ordering::Relaxed);
    let sent: Vec<Stored> = senders
        .into_iter()
        .flat_map(|sender| sender.join().unwrap())
        .collect();
    assert!(sent.len() > 20, "{} readings are too few", sent.len());
    rig.service.wait_settled(sent.len() as u64 + 2, PATIENCE);
    let stored = stored::readings(&Mongod::shared().uri(), &database);
    let mapped: Vec<i64> = stored
        .keys()
        .filter(|(name, ..)| name == "mapped")
        .map(|(.., n)| *n)
        .collect();
    assert_eq!(mapped, [10, 200], "each by the mapping at its time");
    stored::exactly_once(
        &stored,
        sent.into_iter()
            .chain(stored.keys().filter(|(name, ..)| name == "mapped").cloned()),
    );
}

#[test]
fn the_log_level_changes_and_sighup_never_ends_the_service() {
    let (mut rig, _) = Rig::start("reload-log", "");
    rig.write(&format!("{}[log]\nlevel = \"error\"\n", rig.settings));
    assert_eq!(rig.reload().0, "applied");
    let before = rig.service.log();
    let slower = rig.settings.replace("200ms", "300ms");
    rig.write(&format!("{slower}[log]\nlevel = \"error\"\n"));
    assert_eq!(rig.reload().0, "restart_needed");
    assert_eq!(rig.service.log(), before, "the level is error");
    rig.write(&rig.settings);
    assert_eq!(rig.reload().0, "applied");
    assert_eq!(rig.service.terminate(PATIENCE), 0);
    assert!(
        rig.service.log()[before.len()..].contains("stopping"),
        "the level is info again"
    );
}

#[test]
fn a_tokens_file_that_others_can_read_is_warned_about_and_the_journal_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let (mut rig, _) = Rig::start("reload_modes", "");
    let permit = |name: &str, mode| {
        let path = rig.service.dir().join(name);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let journal = rig.service.dir().join("journal");
    assert_eq!(mode(&journal), 0o700);
    let files: Vec<_> = std::fs::read_dir(&journal)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(
        files.len() >= 2 && files.iter().all(|path| mode(path) == 0o600),
        "{files:?}"
    );

    rig.tokens(&[("gw1", "one")]);
    permit("tokens.toml", 0o644);
    let path = rig.service.dir().join("tokens.toml");
    rig.write(&format!("http.tokens_file = {path:?}\n{}", rig.settings));
    let warnings = || {
        rig.service
            .log()
            .matches("http.tokens_file: other users of this machine can read")
            .count()
    };
    assert_eq!(
        (warnings(), rig.reload().0.as_str(), warnings()),
        (0, "applied", 1)
    );
    permit("tokens.toml", 0o600);
    assert_eq!((rig.reload().0.as_str(), warnings()), ("applied", 1));
    assert_eq!(rig.service.terminate(PATIENCE), 0);
}

/// A device that has connected, or the code with which it was refused.
fn device(port: u16, name: &str, credentials: Option<(&str, &str)>) -> Result<TcpStream, u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
        .write_all(&raw_mqtt::connect(4, name, 60, credentials))
        .unwrap();
    let mut answer = [0; 4];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..3], [0x20, 2, 0], "a CONNACK");
    if answer[3] == 0 {
        Ok(socket)
    } else {
        Err(answer[3])
    }
}

/// Waits until the service has closed a connection: at most two seconds, as documented.
fn closed(device: &mut TcpStream) {
    let begun = std::time::Instant::now();
    assert_eq!(
        device.read(&mut [0; 4]).unwrap(),
        0,
        "it sends nothing more"
    );
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "it took {:?}",
        begun.elapsed()
    );
}

/// Publishes and waits for the acknowledgement.
fn publish(device: &mut TcpStream, payload: &str) {
    device
        .write_all(&raw_mqtt::publish(4, "in/d", payload, 1, 7))
        .unwrap();
    let mut answer = [0; 4];
    device.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [0x40, 2, 0, 7], "a PUBACK");
}

#[test]
fn connected_brokers_and_devices_use_the_new_mapping() {
    let broker = Mosquitto::start("");
    let port = free_port();
    let topic = "filter = \"in/#\"\ntopic = \"in/#\"\nformat = \"own\"\n";
    let more = format!(
        "[[mqtt]]\nurl = \"{}\"\nclient_id = \"reload\"\n[[mqtt.subscriptions]]\n{topic}\
         [listen.mqtt]\nenabled = true\nlisten = \"127.0.0.1:{port}\"\n[[listen.mqtt.topics]]\n\
         {topic}\
         [formats.own]\nid = \"/dev\"\nvalues = {{ n = \"/v\" }}\n\
         fields = [{{ match = \"n\", scale = 10 }}]\n",
        broker.url()
    );
    let (rig, database) = Rig::start("reload_mapping", &more);
    rig.service.wait_subscribed();
    let mut direct = device(port, "d", None).unwrap();
    let mut both = |v: i64| {
        publish_by_tool(
            broker.port(),
            "in/b",
            &format!("{{\"dev\":\"broker\",\"v\":{v}}}"),
            &[],
        );
        publish(&mut direct, &format!("{{\"dev\":\"device\",\"v\":{v}}}"));
        rig.service.wait_settled(v as u64 * 2, PATIENCE);
    };
    both(1);
    rig.write(&rig.settings.replace("scale = 10", "scale = 100"));
    let (result, detail) = rig.reload();
    assert!(
        result == "applied" && detail.contains("applied: formats.own;"),
        "{detail}"
    );
    both(2);

    // Broker and port stay until a restart, and so does the mapping, even if the file no longer has
    // them.
    let (store, _) = rig.settings.split_once("[[mqtt]]").unwrap();
    rig.write(store);
    let (result, detail) = rig.reload();
    assert!(
        result == "invalid" && detail.contains("formats.own was removed"),
        "{detail}"
    );
    both(3);
    let found = stored::readings(&Mongod::shared().uri(), &database);
    let of = |name: &str| {
        found
            .keys()
            .filter(|stored| stored.0 == name)
            .map(|(.., n)| *n)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (of("broker"), of("device")),
        (vec![10, 200, 300], vec![10, 200, 300])
    );
    assert_eq!(rig.service.metrics().get("mqtt_reconnects_total"), 0.0);
}

#[test]
fn devices_need_the_new_token_and_those_without_one_are_disconnected() {
    const WRONG: Option<u8> = Some(4);
    const NONE_GIVEN: Option<u8> = Some(5);
    let port = free_port();
    let section = format!("[listen.mqtt]\nenabled = true\nlisten = \"127.0.0.1:{port}\"\n");
    let topic = "[[listen.mqtt.topics]]\nfilter = \"in/+\"\ntopic = \"in/{sensor_id}\"\n\
        format = \"json\"\n";
    let (rig, _) = Rig::start("reload_devices", &format!("{section}{topic}"));
    let mut early = device(port, "early", None).expect("no token is needed yet");
    let code = |credentials| device(port, "new", credentials).err();

    rig.tokens(&[("gw1", "one")]);
    rig.write(&rig.settings.replace(
        &section,
        &format!("{section}tokens_file = \"tokens.toml\"\n"),
    ));
    let (result, detail) = rig.reload();
    assert!(
        result == "applied" && detail.contains("applied: listen.mqtt.tokens_file;"),
        "{detail}"
    );
    let one = Some(("gw1", "one"));
    let two = Some(("gw1", "two"));
    closed(&mut early);
    assert_eq!(
        (code(None), code(one), code(two)),
        (NONE_GIVEN, None, WRONG)
    );
    let mut held = device(port, "held", one).unwrap();

    rig.tokens(&[("gw1", "two")]);
    assert_eq!(code(one), None, "nothing has been reloaded yet");
    publish(&mut held, "{\"n\":1}");
    assert_eq!(rig.reload().0, "applied");
    closed(&mut held);
    assert_eq!((code(one), code(two)), (WRONG, None));
    let mut kept = device(port, "kept", two).unwrap();

    std::fs::write(
        rig.service.dir().join("tokens.toml"),
        "[[tokens]]\nid = \"gw1\"\n",
    )
    .unwrap();
    let (result, detail) = rig.reload();
    assert!(
        result == "invalid" && detail.contains("tokens.toml"),
        "{detail}"
    );
    assert_eq!(
        (code(one), code(two)),
        (WRONG, None),
        "the previous token is valid"
    );
    // A file that only adds rules keeps the connections whose tokens are still valid.
    rig.tokens(&[("gw1", "two"), ("gw2", "three")]);
    assert_eq!(rig.reload().0, "applied");
    publish(&mut kept, "{\"n\":2}");
    rig.service.wait_settled(2, PATIENCE);
    drop((early, held));
    wait_until("two connections are counted as revoked", PATIENCE, || {
        let metrics = rig.service.metrics();
        (metrics.labelled("mqtt_direct_disconnects_total", "reason", "revoked") == 2.0)
            .then_some(())
    });
}
