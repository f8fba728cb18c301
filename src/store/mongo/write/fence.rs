//! The fence: what was given up is over, and seen, before anybody looks at what is stored.
//!
//! A time-series statement whose answer never came may still be carried out, by a server that was slow or by one that the
//! network had cut off, and then measurements would appear behind a load that has not seen them. So
//! - every such command carries a comment with the name of its process and a number, and those given up are remembered with
//!   their buckets;
//! - before one of these buckets is loaded in doubt, the server is asked until it runs none of its statements, twice in a
//!   row and a moment apart (what a socket still held has begun by then); other buckets do not wait;
//! - then a document is written with majority: whatever the server applied before it is in its log before it, and so is
//!   seen by majority reads after it. A former primary that is cut off cannot make anything of a majority any more.
//!
//! Where there is a time-series collection, the statements of an earlier process are waited for in the same way at the
//! start, those for pages too (the form of a new bucket may have changed with the process): whatever writes to the two
//! collections at that moment, other instances too, which are over in a moment.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};

use crate::model::BucketKey;
use crate::store::mongo::error::concern_error;
use crate::store::mongo::names::{BUCKETS, META, READINGS};
use crate::store::mongo::pack::{CommandOptions, WriteConcern};

/// Between two looks at what the server runs.
const PAUSE: Duration = Duration::from_millis(200);

/// What the statements of this process are called, and which of them nobody waits for any more.
#[derive(Debug)]
pub(in crate::store::mongo) struct Fence {
    process: u64,
    next: AtomicU64,
    given_up: Mutex<Vec<GivenUp>>,
}

/// A statement that nobody waits for any more.
#[derive(Debug)]
struct GivenUp {
    name: String,
    /// The buckets that it writes.
    buckets: HashSet<BucketKey>,
}

impl Fence {
    pub(in crate::store::mongo) fn new() -> Fence {
        Fence { process: fastrand::u64(..), next: AtomicU64::new(0), given_up: Mutex::default() }
    }

    /// The comment of a new statement.
    pub(in crate::store::mongo) fn name(&self) -> String {
        format!("hourbucket {:016x}-{}", self.process, self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// A name for statements on a bucket that are given up when it is dropped, unless they are [`Named::over`] by then.
    pub(in crate::store::mongo) fn named(&self, bucket: BucketKey) -> Named<'_> {
        Named { fence: self, name: self.name(), bucket }
    }

    /// Nobody waits for this one any more.
    pub(in crate::store::mongo) fn gave_up(&self, name: String, buckets: impl Iterator<Item = BucketKey>) {
        self.lock().push(GivenUp { name, buckets: buckets.collect() });
    }

    /// The statements that were given up and that write this bucket.
    fn names(&self, bucket: &BucketKey) -> Vec<String> {
        self.lock().iter().filter(|g| g.buckets.contains(bucket)).map(|g| g.name.clone()).collect()
    }

    /// Whether a statement that was given up writes this bucket.
    pub(in crate::store::mongo) fn covers(&self, bucket: &BucketKey) -> bool {
        self.lock().iter().any(|g| g.buckets.contains(bucket))
    }

    /// Waits until all that was given up before and writes one of these buckets is over and seen.
    ///
    /// # Errors
    /// The server cannot be asked; it is not known then.
    pub(in crate::store::mongo) async fn wait(
        &self,
        db: &Database,
        options: &CommandOptions,
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
            quiet = if running(db, comments.clone()).await?.is_empty() { quiet + 1 } else { 0 };
            if quiet < 2 {
                tokio::time::sleep(PAUSE).await;
            }
        }
        mark(db, options).await?;
        self.lock().retain(|g| !names.contains(&g.name));
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<GivenUp>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of statements that somebody waits for.
#[derive(Debug)]
pub(in crate::store::mongo) struct Named<'a> {
    fence: &'a Fence,
    name: String,
    bucket: BucketKey,
}

impl Named<'_> {
    pub(in crate::store::mongo) fn name(&self) -> &str {
        &self.name
    }

    /// All of them were answered.
    pub(in crate::store::mongo) fn over(mut self) {
        self.name.clear();
    }
}

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            self.fence.gave_up(std::mem::take(&mut self.name), std::iter::once(self.bucket.clone()));
        }
    }
}

/// Waits until what writes now, as an earlier process may have left it, is over and seen.
///
/// # Errors
/// The server cannot be asked; it is not known then.
pub(in crate::store::mongo) async fn wait_for_earlier(
    db: &Database,
    options: &CommandOptions,
) -> mongodb::error::Result<()> {
    let collections = [BUCKETS, READINGS].map(|c| format!("{}.{c}", db.name()));
    let ours = doc! { "ns": { "$in": &collections[..] }, "op": { "$in": ["insert", "update"] } };
    let mut earlier = running(db, ours.clone()).await?;
    tokio::time::sleep(PAUSE).await;
    earlier.extend(running(db, ours.clone()).await?);
    while !earlier.is_empty() {
        tokio::time::sleep(PAUSE).await;
        let still = running(db, ours.clone()).await?;
        earlier.retain(|id| still.contains(id));
    }
    mark(db, options).await
}

/// The ids of the operations that match.
async fn running(db: &Database, matches: Document) -> mongodb::error::Result<Vec<Bson>> {
    // One's own operations need no privilege to be seen.
    let mut command = doc! { "currentOp": 1, "$ownOps": true };
    command.extend(matches);
    let reply = db.client().database("admin").run_command(command).await?;
    let list = reply.get_array("inprog").map(Vec::as_slice).unwrap_or_default();
    Ok(list.iter().filter_map(|op| op.as_document()?.get("opid").cloned()).collect())
}

/// Writes the document of the fence with majority.
async fn mark(db: &Database, options: &CommandOptions) -> mongodb::error::Result<()> {
    let update = doc! { "q": { "_id": "fence" }, "u": { "$inc": { "n": 1i64 } }, "upsert": true };
    // Whatever store.write_concern is: the reads behind the fence are those of a majority.
    let concern = CommandOptions { write_concern: WriteConcern::Majority, ..options.clone() }.document();
    let command = doc! { "update": META, "updates": [update], "writeConcern": concern };
    match concern_error(&db.run_command(command).await?) {
        Some(error) => Err(mongodb::error::Error::custom(error)),
        None => Ok(()),
    }
}
