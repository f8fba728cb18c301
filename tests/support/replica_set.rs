//! A replica set of three members on loopback, whose members can be stepped down, killed and
//! started again.
//!
//! Members end and return between two checks, so no connection is kept: every command is sent over
//! a new connection to one member.

use std::process::Command;
use std::time::{Duration, Instant};

use mongodb::Client;
use mongodb::bson::{Document, doc};

use super::mongod::binary;
use super::process::Process;
use super::{block_on, free_port, wait_until};

/// For everything that the set does by itself; generous, because two cores may be busy.
const WITHIN: Duration = Duration::from_secs(90);

/// Attempts with other ports, if another process takes a port first.
const STARTS_MAX: u32 = 5;

struct Member {
    port: u16,
    process: Process,
}

/// A running set. Members are named by their index.
pub struct ReplicaSet {
    members: Vec<Member>,
}

impl ReplicaSet {
    /// Starts three members and returns when one is primary and the others are secondaries. A
    /// primary that has ended, or that has no majority, is replaced after `election` (MongoDB's
    /// default is 10 s).
    ///
    /// # Panics
    /// There is no mongod, or no primary in time.
    pub fn start(election: Duration) -> ReplicaSet {
        let mut set = ReplicaSet {
            members: (0..3).map(|_| Member::start()).collect(),
        };
        let hosts = set
            .members
            .iter()
            .zip(0..)
            .map(|(m, id)| doc! { "_id": id, "host": m.host() });
        // Several heartbeats per election timeout, so that a returning member is found soon (the
        // default is 2 s).
        let election_ms = election.as_millis() as i32;
        let heartbeat_ms = (election_ms / 5).min(500);
        let config = doc! {
            "_id": "rs0",
            "members": hosts.collect::<Vec<_>>(),
            "settings": { "electionTimeoutMillis": election_ms, "heartbeatIntervalMillis": heartbeat_ms },
        };
        set.ask(0, doc! { "replSetInitiate": config })
            .expect("the set is initiated");
        // Avoids the wait for the first election. Refused until the other members know the set.
        wait_until("the first primary", WITHIN, || {
            set.ask(0, doc! { "replSetStepUp": 1 }).ok()
        });
        set.wait_primary();
        (0..3).for_each(|i| set.wait_member(i));
        set
    }

    /// The URI for a client.
    pub fn uri(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(Member::host).collect();
        format!("mongodb://{}/?replicaSet=rs0", hosts.join(","))
    }

    /// The URI for a direct connection to this member.
    pub fn direct_uri(&self, i: usize) -> String {
        format!(
            "mongodb://{}/?directConnection=true&serverSelectionTimeoutMS=1000",
            self.members[i].host()
        )
    }

    /// The log of a member (JSON lines).
    pub fn log(&self, i: usize) -> String {
        self.members[i].process.log()
    }

    /// Waits for a primary that the others follow, and returns its index.
    pub fn wait_primary(&mut self) -> usize {
        let deadline = Instant::now() + WITHIN;
        loop {
            let hellos: Vec<Option<Document>> = (0..3).map(|i| self.hello(i)).collect();
            let primary = hellos.iter().position(|h| is(h, "isWritablePrimary"));
            if let Some(i) = primary {
                let host = self.members[i].host();
                // A member that was cut off may still report itself as primary: a majority must
                // agree.
                let agree = |h: &&Option<Document>| {
                    h.as_ref()
                        .is_some_and(|h| h.get_str("primary").is_ok_and(|p| p == host))
                };
                if hellos.iter().filter(agree).count() >= 2 {
                    return i;
                }
            }
            assert!(
                Instant::now() < deadline,
                "no primary within {WITHIN:?}: {hellos:#?}\n{}",
                self.log_tails()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether this member takes writes now.
    pub fn is_primary(&mut self, i: usize) -> bool {
        is(&self.hello(i), "isWritablePrimary")
    }

    /// Waits until a member is primary or secondary.
    pub fn wait_member(&mut self, i: usize) {
        let deadline = Instant::now() + WITHIN;
        loop {
            let hello = self.hello(i);
            if is(&hello, "isWritablePrimary") || is(&hello, "secondary") {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "member {i} is not back within {WITHIN:?}\n{}",
                self.log_tails()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Makes the primary step down normally; it is not a candidate for some seconds.
    pub fn step_down(&self, primary: usize) {
        let command = doc! { "replSetStepDown": 6, "secondaryCatchUpPeriodSecs": 5 };
        self.ask(primary, command)
            .unwrap_or_else(|error| panic!("member {primary} does not step down: {error}"));
    }

    /// Sends SIGKILL, like a crash; returns when the process has ended.
    pub fn kill9(&mut self, i: usize) {
        self.members[i].process.kill9();
    }

    /// Starts a member again without waiting for it.
    pub fn restart_in_background(&mut self, i: usize) {
        self.members[i].process.kill9();
        self.members[i].spawn();
    }

    /// Sends a command to the `admin` database of one member.
    ///
    /// # Errors
    /// The member does not answer, or refuses.
    pub fn ask(&self, i: usize, command: Document) -> mongodb::error::Result<Document> {
        let uri = self.direct_uri(i);
        block_on(async move {
            Client::with_uri_str(uri)
                .await?
                .database("admin")
                .run_command(command)
                .await
        })
    }

    fn hello(&mut self, i: usize) -> Option<Document> {
        // A killed member is not waited for.
        if self.members[i].process.ended().is_some() {
            panic!(
                "member {i} has ended by itself:\n{}",
                self.members[i].process.log_tail()
            );
        }
        self.members[i]
            .process
            .runs()
            .then(|| self.ask(i, doc! { "hello": 1 }).ok())
            .flatten()
    }

    fn log_tails(&self) -> String {
        self.members
            .iter()
            .map(|m| m.process.log_tail())
            .collect::<Vec<_>>()
            .join("\n--\n")
    }
}

fn is(hello: &Option<Document>, what: &str) -> bool {
    hello
        .as_ref()
        .is_some_and(|h| h.get_bool(what).unwrap_or(false))
}

impl Member {
    /// Starts a member that is not in a set yet, and returns when it answers.
    fn start() -> Member {
        for _ in 0..STARTS_MAX {
            let mut member = Member {
                port: free_port(),
                process: Process::new("mongod"),
            };
            member.spawn();
            if member.answers() {
                return member;
            }
        }
        panic!("mongod found its port taken {STARTS_MAX} times");
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn spawn(&mut self) {
        let data = self.process.dir().join("data");
        std::fs::create_dir_all(&data).expect("a data directory");
        self.process.spawn(
            Command::new(binary())
                .args([
                    "--replSet",
                    "rs0",
                    "--bind_ip",
                    "127.0.0.1",
                    "--nounixsocket",
                    "--oplogSize",
                    "256",
                ])
                .args([
                    "--wiredTigerCacheSizeGB",
                    "0.25",
                    "--port",
                    &self.port.to_string(),
                    "--dbpath",
                ])
                .arg(data),
        );
    }

    /// Waits until it answers; `false` if its port was taken.
    fn answers(&mut self) -> bool {
        let deadline = Instant::now() + WITHIN;
        loop {
            if let Some(status) = self.process.ended() {
                let log = self.process.log_tail();
                assert!(
                    log.contains("Address already in use"),
                    "mongod has ended with {status}:\n{log}"
                );
                return false;
            }
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            assert!(
                Instant::now() < deadline,
                "mongod does not answer:\n{}",
                self.process.log_tail()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
