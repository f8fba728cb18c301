//! What time-series buckets need in addition to pages.

use std::time::Duration;

use mongodb::bson::RawDocumentBuf;
use mongodb::{Collection, Database};

use crate::store::mongo::document::from_primary;
use crate::store::mongo::limited::timed_out;
use crate::store::mongo::names::READINGS;
use crate::store::mongo::pack::CommandOptions;
use crate::store::mongo::snapshot::SnapshotReads;
use crate::store::mongo::write::command_size::CommandSize;
use crate::store::mongo::write::fence::Fence;

/// The state that time-series buckets need in addition to pages.
#[derive(Debug)]
pub(in crate::store::mongo) struct TimeSeriesWriter {
    pub(in crate::store::mongo) db: Database,
    pub(in crate::store::mongo) options: CommandOptions,
    pub(in crate::store::mongo) fence: Fence,
    pub(in crate::store::mongo) command_size: CommandSize,
    pub(in crate::store::mongo) snapshot_reads: SnapshotReads,
    /// `store.timeout`
    pub(in crate::store::mongo) timeout: Duration,
}

impl TimeSeriesWriter {
    pub(in crate::store::mongo) fn new(
        db: &Database,
        options: CommandOptions,
        timeout: Duration,
    ) -> TimeSeriesWriter {
        TimeSeriesWriter {
            db: db.clone(),
            options,
            fence: Fence::new(),
            command_size: CommandSize::new(timeout),
            snapshot_reads: SnapshotReads::default(),
            timeout,
        }
    }

    /// The measurements, to be read on the primary as of one point in time.
    pub(in crate::store::mongo) fn readings(&self) -> Collection<RawDocumentBuf> {
        let options = from_primary(self.snapshot_reads.concern());
        self.db.collection_with_options(READINGS, options)
    }

    /// Runs one step of a longer operation for at most `store.timeout`.
    pub(in crate::store::mongo) async fn in_time<T>(
        &self,
        step: impl Future<Output = mongodb::error::Result<T>>,
    ) -> mongodb::error::Result<T> {
        match tokio::time::timeout(self.timeout, step).await {
            Ok(done) => done,
            Err(_) => Err(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                timed_out(self.timeout).to_string(),
            )
            .into()),
        }
    }
}
