//! What time-series buckets need in addition to pages.

use std::time::Duration;

use mongodb::bson::RawDocumentBuf;
use mongodb::{Collection, Database};

use crate::mongo::document::from_primary;
use crate::mongo::limited::timed_out;
use crate::mongo::names::READINGS;
use crate::mongo::pack::CommandOptions;
use crate::mongo::snapshot::SnapshotReads;
use crate::mongo::write::command_size::CommandSize;
use crate::mongo::write::fence::Fence;

/// The state that time-series buckets need in addition to pages.
#[derive(Debug)]
pub(crate) struct TimeSeriesWriter {
    pub db: Database,
    pub options: CommandOptions,
    pub fence: Fence,
    pub(crate) command_size: CommandSize,
    pub(crate) snapshot_reads: SnapshotReads,
    /// `store.timeout`
    pub timeout: Duration,
}

impl TimeSeriesWriter {
    pub(crate) fn new(
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
    pub(crate) fn readings(&self) -> Collection<RawDocumentBuf> {
        let options = from_primary(self.snapshot_reads.concern());
        self.db.collection_with_options(READINGS, options)
    }

    /// Runs one step of a longer operation for at most `store.timeout`.
    pub(crate) async fn in_time<T>(
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
