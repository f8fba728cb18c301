//! The MongoDB of every run and baseline: an empty replica set with one member.

use std::process::Command;
use std::time::{Duration, Instant};

use mongodb::Client;
use mongodb::bson::{Document, doc};

use super::process::Process;
use super::{STARTS_MAX, free_port, program};
use crate::Failure;
use crate::usage::{self, Usage};

const PRIMARY_WITHIN: Duration = Duration::from_secs(90);
const STOPPED_WITHIN: Duration = Duration::from_secs(120);
/// Size of WiredTiger's cache, the same for all runs.
const CACHE_GB: &str = "1";

/// A MongoDB, running or killed.
pub(crate) struct Mongod {
    port: u16,
    process: Process,
    /// Resources used by its earlier processes.
    before: Usage,
}

impl Mongod {
    /// Starts MongoDB and returns when it is primary.
    pub(crate) async fn start() -> Result<Mongod, Failure> {
        for _ in 0..STARTS_MAX {
            let mut mongod = Mongod {
                port: free_port(),
                process: Process::new("mongod"),
                before: Usage::default(),
            };
            mongod.spawn()?;
            if mongod.primary().await? {
                return Ok(mongod);
            }
        }
        Err(format!("mongod: port in use in {STARTS_MAX} attempts").into())
    }

    pub(crate) fn uri(&self) -> String {
        format!("mongodb://127.0.0.1:{}/?replicaSet=rs0", self.port)
    }

    /// Resources used by all its processes.
    pub(crate) fn usage(&self) -> Usage {
        usage::of(self.process.pid())
            .unwrap_or_default()
            .plus(self.before)
    }

    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        Ok(Client::with_uri_str(self.uri()).await?)
    }

    /// Stops it with SIGTERM, starts it again after `away`, and returns when it is primary.
    pub(crate) async fn restart(&mut self, away: Duration) -> Result<(), Failure> {
        self.before = self.usage();
        self.process.sigterm();
        self.process.wait(STOPPED_WITHIN);
        tokio::time::sleep(away).await;
        self.spawn()?;
        match self.primary().await? {
            true => Ok(()),
            false => Err("another process took MongoDB's port during the restart".into()),
        }
    }

    /// SIGKILL, to simulate a crash.
    pub(crate) fn kill9(&mut self) {
        self.before = self.usage();
        self.process.kill9();
    }

    /// Starts the process with its existing data. Does not wait.
    pub(crate) fn spawn(&mut self) -> Result<(), Failure> {
        let data = self.process.dir().join("data");
        std::fs::create_dir_all(&data)?;
        let binary = program("HOURBUCKET_MONGOD", "mongod")
            .ok_or("no mongod on the path; set HOURBUCKET_MONGOD")?;
        let mut command = Command::new(binary);
        command
            .args([
                "--bind_ip",
                "127.0.0.1",
                "--nounixsocket",
                "--replSet",
                "rs0",
                "--wiredTigerCacheSizeGB",
                CACHE_GB,
            ])
            .args(["--port", &self.port.to_string(), "--dbpath"])
            .arg(data);
        self.process.spawn(&mut command);
        Ok(())
    }

    /// Waits until it accepts writes; false if its port is in use.
    pub(crate) async fn primary(&mut self) -> Result<bool, Failure> {
        let uri = format!(
            "mongodb://127.0.0.1:{}/?directConnection=true&serverSelectionTimeoutMS=500",
            self.port
        );
        let client = Client::with_uri_str(uri).await?;
        let admin = client.database("admin");
        let deadline = Instant::now() + PRIMARY_WITHIN;
        let mut initiated = false;
        while Instant::now() < deadline {
            if let Some(status) = self.process.ended() {
                return match self.process.log().contains("Address already in use") {
                    true => Ok(false),
                    false => Err(format!(
                        "mongod exited with {status}:\n{}",
                        self.process.log_tail()
                    )
                    .into()),
                };
            }
            if let Ok(hello) = admin.run_command(doc! { "hello": 1 }).await {
                if hello.get_bool("isWritablePrimary").unwrap_or(false) {
                    return Ok(true);
                }
                if !initiated
                    && !hello.contains_key("setName")
                    && hello.contains_key("isreplicaset")
                {
                    let member = doc! { "_id": 0, "host": format!("127.0.0.1:{}", self.port) };
                    let set: Document = doc! { "_id": "rs0", "members": [member] };
                    initiated = admin
                        .run_command(doc! { "replSetInitiate": set })
                        .await
                        .is_ok();
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(format!(
            "mongod did not become primary within {PRIMARY_WITHIN:?}:\n{}",
            self.process.log_tail()
        )
        .into())
    }
}
