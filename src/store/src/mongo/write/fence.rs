//! The fence: every abandoned statement has ended, and its effects are visible, before stored data
//! is read again.
//!
//! The server may still execute a time-series statement whose response was lost, because it was
//! slow or cut off by the network. Its measurements would then appear after a load that did not see
//! them. Therefore:
//! - Every such command carries a comment with the id of its process and a number. Abandoned
//!   commands are remembered with their buckets.
//! - Before one of these buckets is loaded with `doubt`, the server is polled until it reports none
//!   of its statements as running, twice in a row and a moment apart (a command that was still in a
//!   socket has started by then). Other buckets do not wait.
//! - Then a document is written with majority write concern. Everything that the server applied
//!   before it precedes it in the oplog, and so is visible to later majority reads. A former
//!   primary that is cut off cannot get a majority for anything any more.
//!
//! If a time-series collection exists, startup waits in the same way for the statements of an
//! earlier process, including those for pages (the storage mode of a new bucket may have changed
//! with the process). It waits for every operation that writes to the two collections at that
//! moment. This includes writes of other instances, which end soon.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};

use crate::mongo::connection::Connection;
use crate::mongo::error::concern_error;
use model::BucketKey;
use model::collections::{BUCKETS, META, READINGS};

/// Interval between two polls of the running operations.
const PAUSE: Duration = Duration::from_millis(200);

/// Names the statements of this process and remembers the abandoned ones.
#[derive(Debug)]
pub(crate) struct Fence {
    process: u64,
    next: AtomicU64,
    given_up: Mutex<Vec<GivenUp>>,
}

/// A statement whose result no caller waits for any more.
#[derive(Debug)]
struct GivenUp {
    name: String,
    buckets: HashSet<BucketKey>,
}

impl Fence {
    pub(crate) fn new() -> Fence {
        Fence {
            process: fastrand::u64(..),
            next: AtomicU64::new(0),
            given_up: Mutex::default(),
        }
    }

    /// Returns the comment of a new statement.
    pub(crate) fn name(&self) -> String {
        format!(
            "hourbucket {:016x}-{}",
            self.process,
            self.next.fetch_add(1, Ordering::Relaxed)
        )
    }

    /// Names the statements on a bucket. They count as abandoned if the name is dropped before
    /// [`Named::over`].
    pub(crate) fn named(&self, bucket: BucketKey) -> Named<'_> {
        Named {
            fence: self,
            name: self.name(),
            bucket,
        }
    }

    /// Marks a statement as abandoned.
    pub(crate) fn gave_up(&self, name: String, buckets: impl Iterator<Item = BucketKey>) {
        self.lock().push(GivenUp {
            name,
            buckets: buckets.collect(),
        });
    }

    /// The abandoned statements that write this bucket.
    fn names(&self, bucket: &BucketKey) -> Vec<String> {
        self.lock()
            .iter()
            .filter(|g| g.buckets.contains(bucket))
            .map(|g| g.name.clone())
            .collect()
    }

    /// Whether an abandoned statement writes this bucket.
    pub(crate) fn covers(&self, bucket: &BucketKey) -> bool {
        self.lock().iter().any(|g| g.buckets.contains(bucket))
    }

    /// Waits until all statements that were abandoned before this call and write one of these
    /// buckets have ended and are visible.
    ///
    /// # Errors
    /// The server cannot be queried; then it is unknown whether they have ended.
    pub(crate) async fn wait(
        &self,
        connection: &Connection,
        buckets: impl Iterator<Item = &BucketKey>,
    ) -> mongodb::error::Result<()> {
        let names: BTreeSet<String> = buckets.flat_map(|bucket| self.names(bucket)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let list: Vec<&str> = names.iter().map(String::as_str).collect();
        let comments = doc! { "command.comment": { "$in": list } };
        let mut quiet = 0;
        while quiet < 2 {
            quiet = if running(connection, comments.clone()).await?.is_empty() {
                quiet + 1
            } else {
                0
            };
            if quiet < 2 {
                tokio::time::sleep(PAUSE).await;
            }
        }
        write_fence(connection).await?;
        self.lock().retain(|g| !names.contains(&g.name));
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<GivenUp>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of statements that a caller waits for.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    fence: &'a Fence,
    name: String,
    bucket: BucketKey,
}

impl Named<'_> {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// All of the statements have results.
    pub(crate) fn over(mut self) {
        self.name.clear();
    }
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            self.fence.gave_up(
                std::mem::take(&mut self.name),
                std::iter::once(self.bucket.clone()),
            );
        }
    }
}

/// Waits until the currently running writes, which an earlier process may have left, have ended and
/// are visible.
///
/// # Errors
/// The server cannot be asked; it is not known then.
pub(crate) async fn wait_for_earlier(connection: &Connection) -> mongodb::error::Result<()> {
    let collections = [BUCKETS, READINGS].map(|c| format!("{}.{c}", connection.db().name()));
    let ours = doc! { "ns": { "$in": &collections[..] }, "op": { "$in": ["insert", "update"] } };
    let mut earlier = running(connection, ours.clone()).await?;
    tokio::time::sleep(PAUSE).await;
    earlier.extend(running(connection, ours.clone()).await?);
    while !earlier.is_empty() {
        tokio::time::sleep(PAUSE).await;
        let still = running(connection, ours.clone()).await?;
        earlier.retain(|id| still.contains(id));
    }
    write_fence(connection).await
}

/// The ids of the running operations that match.
async fn running(connection: &Connection, matches: Document) -> mongodb::error::Result<Vec<Bson>> {
    // Listing one's own operations needs no privilege.
    let mut command = doc! { "currentOp": 1, "$ownOps": true };
    command.extend(matches);
    let admin = connection.db().client().database("admin");
    let reply = admin.run_command(command).await?;
    let list = reply
        .get_array("inprog")
        .map(Vec::as_slice)
        .unwrap_or_default();
    Ok(list
        .iter()
        .filter_map(|op| op.as_document()?.get("opid").cloned())
        .collect())
}

/// Writes the fence document with majority write concern.
async fn write_fence(connection: &Connection) -> mongodb::error::Result<()> {
    let update = doc! { "q": { "_id": "fence" }, "u": { "$inc": { "n": 1i64 } }, "upsert": true };
    // Independent of store.write_concern: the reads after the fence use majority read concern.
    let concern = connection.options().majority_document();
    let command = doc! { "update": META, "updates": [update], "writeConcern": concern };
    match concern_error(&connection.db().run_command(command).await?) {
        Some(error) => Err(mongodb::error::Error::custom(error)),
        None => Ok(()),
    }
}
