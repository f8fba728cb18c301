//! Forwarding with real processes: edges without MongoDB, a centre with it, and an uplink that is cut.
//! What the edges acknowledged is stored once.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use net::access::hash_secret;

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::proxy::{Direction, Proxy};
use crate::support::service::Service;
use crate::support::stored;
use crate::support::{setting, wait_until};

const PATIENCE: Duration = Duration::from_secs(120);
/// The settings of each edge.
const EDGE: &str =
    "limits.past = \"36500d\"\n[forward]\nlinger = \"50ms\"\nbatch_max_bytes = \"16KiB\"\n";

fn port(service: &Service) -> u16 {
    let url = service.http();
    url.rsplit(':').next().unwrap().parse().unwrap()
}

fn centre(database: &str, settings: &str) -> Service {
    centre_on(Mongod::shared(), database, settings)
}

fn centre_on(mongod: &Mongod, database: &str, settings: &str) -> Service {
    let text = format!("flush.max_age = \"200ms\"\n{settings}");
    let uri = mongod.uri();
    Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", database)],
    )
}

fn edge(url: &str) -> Service {
    Service::start(EDGE, &[("FORWARD__URL", url)])
}

/// Waits until an edge has nothing left to send.
fn wait_sent(edge: &Service) {
    wait_until("the edge has sent everything", PATIENCE, || {
        let report = readyz(edge)?;
        (report["journal"]["unstored_entries"] == 0).then_some(())
    });
}

fn readyz(service: &Service) -> Option<serde_json::Value> {
    let (_, text) = service.get_admin("/readyz")?;
    serde_json::from_str(&text).ok()
}

/// Runs a command of the binary in the directory of an edge: exit code, and what it prints.
fn run(edge: &Service, url: &str, arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
        .args(arguments)
        .current_dir(edge.dir())
        .args(["--config", "hourbucket.toml"])
        .env("HOURBUCKET_FORWARD__URL", url)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (
        output.status.code().expect("it ends by itself"),
        text.into_owned(),
    )
}

/// Readings by sensor and value: how many must be stored, and how many more may be.
#[derive(Default)]
struct Sent(BTreeMap<(String, i64), (u32, u32)>);

/// Sends readings to the edges, and breaks the line and the processes meanwhile.
struct Storm {
    random: fastrand::Rng,
    mongod: Mongod,
    centre: Service,
    proxies: Vec<Proxy>,
    edges: Vec<Service>,
    sent: Sent,
    next: i64,
}

impl Storm {
    /// One body: readings with a time, without one, and equal ones without one.
    fn post(&mut self, edge: usize) {
        let mut body = String::new();
        let mut counts = BTreeMap::new();
        for _ in 0..self.random.usize(1..80) {
            self.next += 1;
            let sensor = format!("edge{edge}-{}", self.random.u8(..20));
            let (time, copies) = match self.random.u8(..10) {
                0..5 => (
                    format!("\"ts\":{},", now_ms() - self.random.i64(0..100_000)),
                    1,
                ),
                5..8 => (String::new(), 1),
                _ => (String::new(), self.random.usize(2..4)),
            };
            for _ in 0..copies {
                body += &format!("{{\"sensor_id\":\"{sensor}\",{time}\"n\":{}}}\n", self.next);
            }
            counts.insert((sensor, self.next), copies as u32);
        }
        let answer = self.edges[edge].post("/v1/readings", "application/x-ndjson", body.as_bytes());
        let is_acknowledged = matches!(answer, Some((200, _)));
        for (key, copies) in counts {
            let count = self.sent.0.entry(key).or_default();
            match is_acknowledged {
                true => count.0 += copies,
                false => count.1 += copies,
            }
        }
    }

    fn break_something(&mut self) {
        let edge = self.random.usize(..self.edges.len());
        let proxy = &self.proxies[edge];
        match self.random.u8(..60) {
            0..4 => proxy.cut(),
            4 => proxy.withhold_answers_to(b"POST /v1/readings"),
            5 => proxy.stop(Some(Direction::ToServer)),
            6 => proxy.stop(Some(Direction::ToClient)),
            7..12 => {
                proxy.answer_again();
                proxy.stop(None);
            }
            12 => self.edges[edge].restart(),
            13 => self.centre.restart(),
            _ => {}
        }
    }

    fn run(&mut self, readings: usize, kills: usize) {
        let mut kills_left = kills;
        while self.sent.0.len() < readings {
            let edge = self.random.usize(..self.edges.len());
            self.post(edge);
            self.break_something();
            // At least so many, whatever the dice say.
            if kills_left > 0
                && self.sent.0.len() > (kills - kills_left + 1) * readings / (kills + 1)
            {
                match kills_left % 3 {
                    0 => self.centre.restart(),
                    1 => self.mongod.restart(),
                    _ => self.edges[edge].restart(),
                }
                self.proxies[edge].cut();
                kills_left -= 1;
            }
        }
        for proxy in &self.proxies {
            proxy.answer_again();
            proxy.stop(None);
            proxy.cut();
        }
        self.edges.iter().for_each(wait_sent);
        self.centre.wait_settled(1, PATIENCE);
    }

    fn compare(&self, database: &str) {
        let mut found: BTreeMap<(String, i64), u32> = BTreeMap::new();
        for ((sensor, _, n), times) in stored::readings(&self.mongod.uri(), database) {
            *found.entry((sensor, n)).or_default() += times;
        }
        let mut wrong = vec![];
        for (key, (sure, maybe)) in &self.sent.0 {
            let times = found.remove(key).unwrap_or_default();
            if times < *sure || times > sure + maybe {
                wrong.push((key, *sure, *maybe, times));
            }
        }
        let some = &wrong[..wrong.len().min(10)];
        assert!(
            wrong.is_empty(),
            "{} are wrong (sent, maybe, stored): {some:?}",
            wrong.len()
        );
        assert!(found.is_empty(), "{} were never sent", found.len());
    }
}

fn storm(test: &str, mode: &str, readings: usize, kills: usize) {
    let database = unique_database(test);
    let mongod = Mongod::start();
    let centre = centre_on(&mongod, &database, &format!("store.mode = \"{mode}\"\n"));
    let proxies: Vec<_> = (0..2).map(|_| Proxy::start(port(&centre))).collect();
    let edges = proxies.iter().map(|proxy| edge(&proxy.http())).collect();
    let mut storm = Storm {
        random: fastrand::Rng::with_seed(setting("HOURBUCKET_TEST_SEED", 59)),
        mongod,
        centre,
        proxies,
        edges,
        sent: Sent::default(),
        next: 0,
    };
    let begun = Instant::now();
    storm.run(readings, kills);
    println!("{readings} readings in {:?}", begun.elapsed());
    storm.compare(&database);
}

#[test]
fn two_edges_lose_nothing_and_double_nothing() {
    storm("forward_bucket", "bucket", 3000, 4);
}

#[test]
fn two_edges_lose_nothing_and_double_nothing_in_a_time_series() {
    storm("forward_series", "timeseries", 2000, 2);
}

#[test]
#[ignore = "a million readings take many minutes"]
fn a_million_readings_of_two_edges() {
    storm("forward_million", "bucket", 1_000_000, 40);
}

#[test]
#[ignore = "an outage of more than a minute"]
fn after_an_outage_the_newest_readings_can_go_first() {
    let database = unique_database("forward_newest");
    let mongod = Mongod::start();
    let centre = centre_on(&mongod, &database, "store.mode = \"bucket\"\n");
    let proxy = Proxy::start(port(&centre));
    let settings = format!("{EDGE}order = \"newest\"\nrate_max = \"40KiB\"\n");
    let edge = Service::start(&settings, &[("FORWARD__URL", &proxy.http())]);
    proxy.stop(Some(Direction::ToServer));
    let mut random = fastrand::Rng::with_seed(7);
    let mut sent: BTreeMap<(String, i64), (u32, u32)> = BTreeMap::new();
    let mut post = |edge: &Service, sensor: &str, lines: i64| {
        let mut body = String::new();
        for _ in 0..lines {
            let n = random.i64(0..1 << 50);
            sent.insert((sensor.to_owned(), n), (1, 0));
            body += &format!("{{\"sensor_id\":\"{sensor}\",\"n\":{n}}}\n");
        }
        let answer = edge.post("/v1/readings", "application/x-ndjson", body.as_bytes());
        assert_eq!(answer.expect("an answer").0, 200);
    };
    for i in 0..100 {
        post(&edge, &format!("old{}", i % 10), 1000);
    }
    std::thread::sleep(Duration::from_secs(62));
    post(&edge, "new", 1);
    proxy.stop(None);
    proxy.cut();
    wait_until("the new reading is there", PATIENCE, || {
        let (status, _) = centre.get_admin("/v1/sensors/new")?;
        (status == 200).then_some(())
    });
    let left = readyz(&edge).unwrap()["journal"]["unstored_entries"].as_u64();
    assert!(left > Some(10), "{left:?} entries are left");
    wait_sent(&edge);
    let centre = Storm {
        random: fastrand::Rng::new(),
        mongod,
        centre,
        proxies: vec![proxy],
        edges: vec![edge],
        sent: Sent(sent),
        next: 0,
    };
    centre.centre.wait_settled(1, PATIENCE);
    centre.compare(&database);
}

#[test]
fn a_chain_of_two_edges_passes_on_what_it_gets() {
    let database = unique_database("forward_chain");
    let centre = centre(&database, "store.mode = \"bucket\"\n");
    let proxy = Proxy::start(port(&centre));
    let mut middle = edge(&proxy.http());
    let site = edge(&middle.http());
    let same = "{\"sensor_id\":\"s\",\"n\":7,\"tags\":{\"site\":\"north\"}}\n";
    let post = |body: &str| {
        let answer = site.post("/v1/readings", "application/x-ndjson", body.as_bytes());
        let (status, text) = answer.expect("an answer");
        assert_eq!(status, 200, "{text}");
    };
    post(&same.repeat(3));
    post("{\"sensor_id\":\"s\",\"ts\":1700000000123,\"n\":8}\n");
    wait_sent(&site);
    proxy.stop(Some(Direction::ToClient));
    post(&same.replace('7', "9").repeat(2));
    wait_sent(&site);
    // The centre may have it, and the middle does not know.
    middle.restart();
    proxy.stop(None);
    wait_sent(&middle);
    centre.wait_settled(1, PATIENCE);
    let mut counts: BTreeMap<i64, u32> = BTreeMap::new();
    for ((_, ts_ms, n), times) in stored::readings(&Mongod::shared().uri(), &database) {
        *counts.entry(n).or_default() += times;
        assert_eq!(n == 8, ts_ms == 1_700_000_000_123);
    }
    assert_eq!(counts, BTreeMap::from([(7, 3), (8, 1), (9, 2)]));
}

#[test]
fn an_edge_says_what_is_wrong_keeps_rejects_and_has_no_store() {
    let database = unique_database("forward_rejects");
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    let token = |rules: &str| {
        let hash = hash_secret("secret");
        let text = format!("[[tokens]]\nid = \"site\"\nsha256 = \"{hash}\"\n{rules}\n");
        std::fs::write(&tokens, text).unwrap();
    };
    token("");
    let settings = format!("store.mode = \"bucket\"\nhttp.tokens_file = {:?}\n", tokens);
    let centre = centre(&database, &settings);
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, "site.wrong").unwrap();
    let path = token_file.display().to_string();
    let url = centre.http();
    let edge = Service::start(
        EDGE,
        &[("FORWARD__URL", &url), ("FORWARD__TOKEN_FILE", &path)],
    );
    let body = "{\"sensor_id\":\"a\",\"ts\":1700000000000,\"n\":1}\n\
                {\"sensor_id\":\"b\",\"ts\":1700000000000,\"n\":2}\nnot json\n";
    let answer = edge.post("/v1/readings", "application/x-ndjson", body.as_bytes());
    assert!(answer.expect("an answer").1.contains("\"accepted\":2"));
    let says = |what: &str| {
        wait_until(what, PATIENCE, || {
            let report = readyz(&edge)?;
            let is_said =
                report["ready"] == true && report["forward"]["error"].as_str()?.contains(what);
            is_said.then_some(())
        });
    };
    says("status 401");
    std::fs::write(&token_file, "site.secret").unwrap();
    says("status 403");
    token("forward = true\nwrite = [\"a\"]");
    centre.sighup();
    wait_sent(&edge);
    centre.wait_settled(1, PATIENCE);
    // It is brought up to date every second.
    wait_until("the centre takes readings", PATIENCE, || {
        (readyz(&edge)?["forward"]["ok"] == true).then_some(())
    });
    let metrics = edge.metrics();
    assert_eq!(metrics.get("forward_rejected_total"), 1.0);
    assert_eq!(metrics.get("forward_readings_total"), 1.0);
    let command = |arguments: &[&str]| {
        let all = [arguments, &[]].concat();
        run(&edge, &url, &all)
    };
    let (code, text) = command(&["dead-letters", "list"]);
    assert!(
        code == 0 && text.contains("\"reason\":\"not_allowed\"") && text.contains("\\\"n\\\":2"),
        "{text}"
    );
    let (code, text) = command(&["reconcile"]);
    assert!(
        code == 2 && text.contains(&format!("forwards its readings to {url}")),
        "{text}"
    );
    let (status, text) = edge.get_admin("/v1/sensors").unwrap();
    assert!(
        status == 404 && text.contains("forwards its readings to"),
        "{text}"
    );
    token("forward = true");
    centre.sighup();
    let replay = ["dead-letters", "replay", "--reason", "not_allowed"];
    std::fs::write(
        edge.dir().join("hourbucket.toml"),
        format!("{EDGE}token_file = {path:?}\n"),
    )
    .unwrap();
    let (code, text) = command(&replay);
    assert!(
        code == 0 && text.contains("1 of 1 dead letters replayed"),
        "{text}"
    );
    assert_eq!(command(&["dead-letters", "list"]), (0, String::new()));
    let (code, text) = command(&["check"]);
    assert!(code == 0 && text.contains("takes readings"), "{text}");
    centre.wait_settled(2, PATIENCE);
    let stored = stored::readings(&Mongod::shared().uri(), &database);
    stored::exactly_once(
        &stored,
        [("a", 1), ("b", 2)].map(|(s, n)| (s.to_owned(), 1_700_000_000_000, n)),
    );
}
