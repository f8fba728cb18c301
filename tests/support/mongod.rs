//! A real MongoDB: a replica set of one member, which majority writes and read concerns need. In
//! two versions, and on request with users or standalone.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mongodb::Client;
use mongodb::bson::{Document, doc};

use super::process::Process;
use super::{block_on, free_port};

/// From the start until it accepts writes, recovery after a SIGKILL included; generous, because two
/// cores may be busy.
const PRIMARY_WITHIN: Duration = Duration::from_secs(90);

/// Attempts with other ports, if another process takes a port first.
const STARTS_MAX: u32 = 5;

/// The first user of a server with users.
const ROOT: &str = "root";
/// The password of all users.
const PASSWORD: &str = "test-only";

/// The kind of server to start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kind {
    /// MongoDB 4.4, which has no time-series collections.
    pub v44: bool,
    /// With access control: only [`Mongod::uri`]'s user and the users that a test adds have access.
    pub users: bool,
    /// Not a replica set.
    pub standalone: bool,
    /// With fail points such as `failCommand`.
    pub fail_points: bool,
}

/// A running MongoDB, or a killed one that can be [restarted](Mongod::restart).
pub struct Mongod {
    kind: Kind,
    port: u16,
    process: Process,
}

impl Mongod {
    /// Starts a server and returns when it is primary.
    ///
    /// # Panics
    /// There is no mongod, or it does not start.
    pub fn start() -> Mongod {
        Mongod::start_kind(Kind::default())
    }

    /// The same with another kind of server.
    ///
    /// # Panics
    /// There is no such mongod, or it does not start.
    pub fn start_kind(kind: Kind) -> Mongod {
        for _ in 0..STARTS_MAX {
            let mut mongod = Mongod {
                kind,
                port: free_port(),
                process: Process::new("mongod"),
            };
            if mongod.run() {
                if kind.users {
                    mongod.add_root();
                }
                return mongod;
            }
        }
        panic!("mongod found its port taken {STARTS_MAX} times");
    }

    /// One server for all tests of this binary; it ends with the binary. Each test uses its own
    /// [database](unique_database), and no test may kill the server. `HOURBUCKET_TEST_MONGODB` (a
    /// port on 127.0.0.1) names a running server to use instead.
    pub fn shared() -> &'static Mongod {
        static SHARED: OnceLock<Mongod> = OnceLock::new();
        SHARED.get_or_init(|| {
            Mongod::running("HOURBUCKET_TEST_MONGODB").unwrap_or_else(Mongod::start)
        })
    }

    /// MongoDB 4.4, one server for all tests of this binary; `HOURBUCKET_TEST_MONGODB44` names a
    /// running one.
    pub fn shared_v44() -> &'static Mongod {
        static SHARED: OnceLock<Mongod> = OnceLock::new();
        SHARED.get_or_init(|| {
            let start = || {
                Mongod::start_kind(Kind {
                    v44: true,
                    ..Kind::default()
                })
            };
            Mongod::running("HOURBUCKET_TEST_MONGODB44").unwrap_or_else(start)
        })
    }

    /// The server whose port the variable names, such as a container with `--replSet rs0`. It is
    /// initiated if necessary, and left running.
    fn running(variable: &str) -> Option<Mongod> {
        let port = std::env::var(variable)
            .ok()
            .filter(|value| !value.is_empty())?;
        let port = port.parse().unwrap_or_else(|_| {
            panic!("{variable}={port} is not a port; set it to one on 127.0.0.1")
        });
        let mut mongod = Mongod {
            kind: Kind::default(),
            port,
            process: Process::new("mongod"),
        };
        mongod.primary();
        Some(mongod)
    }

    /// The URI for a client with all privileges.
    pub fn uri(&self) -> String {
        if self.kind.users {
            return self.uri_as(ROOT);
        }
        let set = if self.kind.standalone {
            "directConnection=true"
        } else {
            "replicaSet=rs0"
        };
        format!("mongodb://127.0.0.1:{}/?{set}", self.port)
    }

    /// The URI for a client with this user.
    pub fn uri_as(&self, user: &str) -> String {
        format!(
            "mongodb://{user}:{PASSWORD}@127.0.0.1:{}/?replicaSet=rs0",
            self.port
        )
    }

    /// Adds a user with roles such as `{ role: "readWrite", db: "x" }`.
    ///
    /// # Panics
    /// The server refuses it.
    pub fn add_user(&self, name: &str, roles: Vec<Document>) {
        self.create_user(&self.uri(), name, roles);
    }

    /// Creates the first user; a server without users lets a local client do that.
    fn add_root(&self) {
        let uri = format!("mongodb://127.0.0.1:{}/?replicaSet=rs0", self.port);
        self.create_user(&uri, ROOT, vec![doc! { "role": "root", "db": "admin" }]);
    }

    fn create_user(&self, uri: &str, name: &str, roles: Vec<Document>) {
        let create = doc! { "createUser": name, "pwd": PASSWORD, "roles": roles };
        block_on(async move {
            let client = Client::with_uri_str(uri).await.expect("a valid URI");
            client
                .database("admin")
                .run_command(create)
                .await
                .expect("a new user");
        });
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends SIGKILL, like a crash; returns when the process has ended.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Starts it again on the same port with the same data, and returns when it is primary.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        self.kill9();
        assert!(
            self.run(),
            "port {} was taken by another process meanwhile",
            self.port
        );
    }

    /// Starts it without waiting until it is primary, like an outage that ends by itself.
    pub fn restart_in_background(&mut self) {
        self.kill9();
        self.spawn();
    }

    /// Its log (JSON lines).
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Its process id, for /proc.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn spawn(&mut self) {
        let data = self.process.dir().join("data");
        std::fs::create_dir_all(&data).expect("a data directory");
        let binary = if self.kind.v44 {
            binary_v44()
        } else {
            binary()
        };
        let mut command = Command::new(binary);
        command
            .args([
                "--bind_ip",
                "127.0.0.1",
                "--nounixsocket",
                "--wiredTigerCacheSizeGB",
                "0.5",
            ])
            .args(["--port", &self.port.to_string(), "--dbpath"])
            .arg(data);
        if !self.kind.standalone {
            command.args(["--replSet", "rs0"]);
        }
        if self.kind.fail_points {
            command.args(["--setParameter", "enableTestCommands=1"]);
        }
        if self.kind.users {
            command.arg("--keyFile").arg(self.key_file());
        }
        self.process.spawn(&mut command);
    }

    /// The shared key of the members of a replica set with access control.
    fn key_file(&self) -> PathBuf {
        let path = self.process.dir().join("key");
        std::fs::write(&path, "aKeyOfATestServer").expect("a key file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .expect("a key file of our own");
        path
    }

    /// Starts it and waits until it is primary; `false` if its port was taken.
    fn run(&mut self) -> bool {
        self.spawn();
        self.primary()
    }

    /// Waits until it is primary, and initiates the set if that was never done; `false` if its port
    /// was taken.
    fn primary(&mut self) -> bool {
        let uri = format!(
            "mongodb://127.0.0.1:{}/?directConnection=true&serverSelectionTimeoutMS=500",
            self.port
        );
        let port = self.port;
        let process = &mut self.process;
        block_on(async move {
            let client = Client::with_uri_str(uri).await.expect("a valid URI");
            let deadline = Instant::now() + PRIMARY_WITHIN;
            let mut initiated = false;
            loop {
                if let Some(status) = process.ended() {
                    if process.log().contains("Address already in use") {
                        return false;
                    }
                    panic!("mongod has ended with {status}:\n{}", process.log_tail());
                }
                let hello = command(&client, doc! { "hello": 1 }).await;
                if let Some(hello) = hello {
                    if hello.get_bool("isWritablePrimary").unwrap_or(false) {
                        return true;
                    }
                    // A member that was never initiated reports this error; a restarted one has the
                    // name of its set.
                    if !initiated
                        && !hello.contains_key("setName")
                        && hello.contains_key("isreplicaset")
                    {
                        let members = vec![doc! { "_id": 0, "host": format!("127.0.0.1:{port}") }];
                        let set = doc! { "_id": "rs0", "members": members };
                        initiated = command(&client, doc! { "replSetInitiate": set })
                            .await
                            .is_some();
                    }
                }
                assert!(
                    Instant::now() < deadline,
                    "mongod is not primary in time:\n{}",
                    process.log_tail()
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    }
}

/// A unique name of at most 38 bytes. It contains the process id, because an external server keeps
/// the databases of earlier runs.
pub fn unique_database(test: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let test: String = test
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '_')
        .take(26)
        .collect();
    format!(
        "{test}_{:x}_{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

async fn command(client: &Client, command: Document) -> Option<Document> {
    client.database("admin").run_command(command).await.ok()
}

/// `HOURBUCKET_MONGOD`, else the one on the path, else the one that `tests/run.sh` has downloaded.
pub fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("HOURBUCKET_MONGOD") {
        return named.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path)
        .map(|dir| dir.join("mongod"))
        .find(|file| file.is_file());
    on_path.unwrap_or_else(|| downloaded(versions()[0], "HOURBUCKET_MONGOD"))
}

/// `HOURBUCKET_MONGOD44`, else MongoDB 4.4 that `tests/run.sh` has downloaded.
fn binary_v44() -> PathBuf {
    if let Some(named) = std::env::var_os("HOURBUCKET_MONGOD44") {
        return named.into();
    }
    let version = versions().into_iter().find(|v| v.starts_with("4.4."));
    downloaded(version.expect("a version 4.4"), "HOURBUCKET_MONGOD44")
}

/// The versions of MongoDB that `tests/tools/setup.sh` can download; the first is the usual one.
pub fn versions() -> Vec<&'static str> {
    let lines = include_str!("../tools/setup.sh").lines();
    lines
        .skip_while(|line| *line != "MONGODS=(")
        .skip(1)
        .map_while(|line| line.trim().strip_prefix('"')?.split(' ').next())
        .collect()
}

/// The download with this version.
fn downloaded(version: &str, variable: &str) -> PathBuf {
    let mongod = tools().join(format!("mongodb-{version}/bin/mongod"));
    assert!(
        mongod.is_file(),
        "no {}, and no {variable}: run tests/run.sh once, it gets one",
        mongod.display()
    );
    mongod
}

/// The directory of the downloads of `tests/run.sh`.
pub fn tools() -> PathBuf {
    let here = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.tools"));
    std::env::var_os("HOURBUCKET_TOOLS").map_or_else(here, PathBuf::from)
}

/// The directory of Python packages that the variable `named` names, else the download of
/// `tests/run.sh` with `package`.
pub fn python_packages(named: &str, package: &str) -> PathBuf {
    if let Some(directory) = std::env::var_os(named) {
        return directory.into();
    }
    let entries = std::fs::read_dir(tools().join("python"))
        .into_iter()
        .flatten()
        .flatten();
    let found = entries
        .map(|entry| entry.path())
        .find(|dir| dir.to_string_lossy().contains(package));
    found.unwrap_or_else(|| {
        panic!(
            "no {package} in {}: run tests/run.sh once, it gets one",
            tools().display()
        )
    })
}
