//! A real MongoDB: a replica set of one member, which majority writes and read concerns need.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mongodb::Client;
use mongodb::bson::{Document, doc};

use super::process::Process;
use super::{block_on, free_port};

/// From the start until it takes writes, recovery after a SIGKILL included; generous, two cores may be busy.
const PRIMARY_WITHIN: Duration = Duration::from_secs(90);

/// Another port is tried where somebody else was faster.
const STARTS_MAX: u32 = 5;

/// A running MongoDB, or one that was killed and can be [restarted](Mongod::restart).
pub struct Mongod {
    port: u16,
    process: Process,
}

impl Mongod {
    /// Starts one and returns when it is primary.
    ///
    /// # Panics
    /// There is no mongod, or it does not start.
    pub fn start() -> Mongod {
        for _ in 0..STARTS_MAX {
            let mut mongod = Mongod { port: free_port(), process: Process::new("mongod") };
            if mongod.run() {
                return mongod;
            }
        }
        panic!("mongod found its port taken {STARTS_MAX} times");
    }

    /// One for all tests of this binary; it ends with the binary. Each test takes a [database](unique_database) of its
    /// own, and none may kill it.
    pub fn shared() -> &'static Mongod {
        static SHARED: OnceLock<Mongod> = OnceLock::new();
        SHARED.get_or_init(Mongod::start)
    }

    /// For a client.
    pub fn uri(&self) -> String {
        format!("mongodb://127.0.0.1:{}/?replicaSet=rs0", self.port)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// SIGKILL, as a crash would be; returns when it is gone.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Starts it again on the same port with the same data, and returns when it is primary.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        self.kill9();
        assert!(self.run(), "port {} was taken by another process meanwhile", self.port);
    }

    /// Starts it without waiting until it is primary, as an outage that ends by itself.
    pub fn restart_in_background(&mut self) {
        self.kill9();
        self.spawn();
    }

    /// What it has logged (JSON lines).
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
        self.process.spawn(
            Command::new(binary())
                .args(["--replSet", "rs0", "--bind_ip", "127.0.0.1", "--nounixsocket"])
                .args(["--wiredTigerCacheSizeGB", "0.5", "--port", &self.port.to_string(), "--dbpath"])
                .arg(data),
        );
    }

    /// Starts it and waits until it is primary; false where its port was taken.
    fn run(&mut self) -> bool {
        self.spawn();
        let uri = format!("mongodb://127.0.0.1:{}/?directConnection=true&serverSelectionTimeoutMS=500", self.port);
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
                    // A member that was never initiated says so; one that was restarted has its set's name.
                    if !initiated && !hello.contains_key("setName") && hello.contains_key("isreplicaset") {
                        let members = vec![doc! { "_id": 0, "host": format!("127.0.0.1:{port}") }];
                        let set = doc! { "_id": "rs0", "members": members };
                        initiated = command(&client, doc! { "replSetInitiate": set }).await.is_some();
                    }
                }
                assert!(Instant::now() < deadline, "mongod is not primary in time:\n{}", process.log_tail());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    }
}

/// A name that no other test of this binary has, at most 38 bytes long.
pub fn unique_database(test: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let test: String = test.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(28).collect();
    format!("{test}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
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
    let tools = std::env::var_os("HOURBUCKET_TOOLS")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.tools")), PathBuf::from);
    let on_path = std::env::split_paths(&path).map(|dir| dir.join("mongod")).find(|file| file.is_file());
    let downloaded = std::fs::read_dir(&tools).into_iter().flatten().flatten();
    let downloaded = downloaded.map(|entry| entry.path().join("bin/mongod")).find(|file| file.is_file());
    on_path.or(downloaded).unwrap_or_else(|| {
        panic!("no mongod on the path or in {}: run tests/run.sh once, it gets one", tools.display())
    })
}
