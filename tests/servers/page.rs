//! The fleet page in headless Chromium shows what was sent. `page_client.py` checks the page; this
//! file starts the servers, and kills them on its request.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::mongod::{Mongod, python_packages, unique_database};
use crate::support::mosquitto::Mosquitto;
use crate::support::service::Service;
use crate::support::wait_until;
use net::access::hash_secret;

const SETTINGS: &str = "flush.max_age = \"200ms\"\n";

fn python_path() -> OsString {
    let browser = python_packages("HOURBUCKET_PLAYWRIGHT_PYTHONPATH", "playwright");
    std::env::join_paths([
        browser,
        python_packages("HOURBUCKET_PYTHONPATH", "paho-mqtt"),
    ])
    .unwrap()
}

/// The browser client; killed when it is dropped.
struct Client(Child);

impl Client {
    fn start(script: &str, arguments: &[&str]) -> Client {
        let chromium =
            std::env::var("HOURBUCKET_CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".to_owned());
        let mut command = Command::new("python3");
        command
            .arg(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(script))
            .args([&arguments[..1], &[chromium.as_str()], &arguments[1..]].concat())
            .env("PYTHONPATH", python_path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("no_proxy", "127.0.0.1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Client(command.spawn().expect("python3 must start"))
    }

    /// Executes the requests of the client until it has ended successfully.
    fn run(mut self, mut act: impl FnMut(&str)) {
        let mut errors = self.0.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            text
        });
        let mut input = self.0.stdin.take().unwrap();
        let mut printed = String::new();
        for line in BufReader::new(self.0.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok)
        {
            if let Some(what) = line.strip_prefix("DO ") {
                act(what);
                // If it has ended meanwhile, its exit code is the reason.
                let _ = input.write_all(b"done\n");
            }
            printed += &format!("{line}\n");
        }
        let status = self.0.wait().unwrap();
        let errors = errors.join().unwrap();
        assert!(
            status.success() && printed.ends_with("OK\n"),
            "{status}\n{printed}{errors}"
        );
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn settings<'a>(uri: &'a str, database: &'a str) -> [(&'static str, &'a str); 3] {
    [
        ("STORE__URI", uri),
        ("STORE__DATABASE", database),
        ("STORE__MODE", "bucket"),
    ]
}

#[test]
fn the_page_shows_what_was_sent() {
    let broker = Mosquitto::start("");
    let uri = Mongod::shared().uri();
    let database = unique_database("page");
    let text = format!(
        "{SETTINGS}[[mqtt]]\nurl = \"{}\"\nclient_id = \"page\"\n[[mqtt.subscriptions]]\n\
         filter = \"rooms/+\"\n\
         topic = \"rooms/{{sensor_id}}\"\nformat = \"json\"\n",
        broker.url()
    );
    let service = Service::start(&text, &settings(&uri, &database));
    service.wait_subscribed();
    Client::start(
        "tests/page_client.py",
        &["sent", &service.admin(), &service.http()],
    )
    .run(|what| panic!("{what}?"));
}

#[test]
fn the_page_asks_for_a_token_and_keeps_it_in_the_tab() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    std::fs::write(
        &tokens,
        format!(
            "[[tokens]]\nid = \"gw1\"\nsha256 = \"{}\"\n",
            hash_secret("secret")
        ),
    )
    .unwrap();
    let uri = Mongod::shared().uri();
    let database = unique_database("page_token");
    let text = format!(
        "{SETTINGS}http.tokens_file = {:?}\n",
        tokens.display().to_string()
    );
    let service = Service::start(&text, &settings(&uri, &database));
    let arguments = ["token", &service.admin(), &service.http(), "gw1.secret"];
    Client::start("tests/page_client.py", &arguments).run(|what| panic!("{what}?"));
}

#[test]
fn the_page_reports_an_outage_until_it_ends() {
    let mut mongod = Mongod::start();
    let uri = mongod.uri();
    let database = unique_database("page_away");
    let mut service = Service::start(SETTINGS, &settings(&uri, &database));
    let client = Client::start(
        "tests/page_client.py",
        &["away", &service.admin(), &service.http()],
    );
    client.run(|what| match what {
        "kill the store" => mongod.kill9(),
        "kill the service" => service.kill9(),
        "start both" => {
            mongod.restart();
            service.restart();
            wait_until("the store is reached", Duration::from_secs(60), || {
                let (_, text) = service.get_admin("/readyz")?;
                text.contains("\"reasons\":[]").then_some(())
            });
        }
        other => panic!("{other}?"),
    });
}

/// Takes six minutes; writes `docs/images`.
#[test]
#[ignore = "makes the pictures of the documentation"]
fn pictures() {
    let broker = Mosquitto::start("");
    let uri = Mongod::shared().uri();
    let database = unique_database("pictures");
    let text = format!(
        "[[mqtt]]\nurl = \"{}\"\nclient_id = \"hourbucket-1\"\n[[mqtt.subscriptions]]\n\
         filter = \"plant/#\"\n\
         topic = \"plant/{{hall}}/{{machine}}\"\nformat = \"json\"\n[sensors]\n\
         silent_after = \"2m\"\n",
        broker.url()
    );
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    service.wait_subscribed();
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images");
    let arguments = [
        "pictures",
        &service.admin(),
        &service.http(),
        &broker.port().to_string(),
        directory,
    ];
    Client::start("tests/page_pictures.py", &arguments).run(|what| panic!("{what}?"));
}
