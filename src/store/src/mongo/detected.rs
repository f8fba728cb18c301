//! What this process knows about the server and its time-series collection. The preparation finds it
//! out; until then nothing is assumed.
//!
//! **Snapshots.** Measurements are read as of one point in time, with read concern `snapshot`.
//! MongoDB stores many measurements of a sensor in one document, and an index finds it by its first
//! and last time. With another read concern a scan pauses every 10 ms or 1000 documents, and
//! between two batches. If a measurement is added to such a document meanwhile, its index key moves
//! forward, and the scan finds it again: all of its measurements are returned, or counted, twice.
//!
//! A snapshot contains only data that a majority has, like read concern `majority`. It needs
//! MongoDB 5.0, which the collection needs as well, and a replica set or a cluster. A standalone
//! server is read with `majority`. The server keeps a snapshot for 5 minutes by default, so reads
//! of the whole collection do not use one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use mongodb::Collection;
use mongodb::bson::{Document, RawDocumentBuf};
use mongodb::options::ReadConcern;

use crate::mongo::connection::{Connection, is_mongos};
use crate::mongo::document::from_primary;
use crate::{StoreError, StoreErrorKind};
use config::StoreMode;
use model::StorageMode;
use model::collections::READINGS;

/// `maxWireVersion` of MongoDB 5.0.
const WIRE_VERSION: i32 = 13;

/// What is known about the server.
#[derive(Debug)]
pub(super) struct Detected {
    /// `store.mode`
    configured: StoreMode,
    /// The mode of new buckets; set by the first preparation, and never changed.
    chosen: OnceLock<StorageMode>,
    /// The time-series collection exists, even if new buckets do not use it.
    has_measurements: AtomicBool,
    /// Whether appends use the gates of pages ([`super::pack`]). Not on a sharded cluster, where a
    /// filter needs the shard key, not only `_id`.
    uses_gates: AtomicBool,
    /// Whether the server supports snapshots outside of transactions.
    has_snapshots: AtomicBool,
}

impl Detected {
    pub(super) fn new(configured: StoreMode) -> Detected {
        Detected {
            configured,
            chosen: OnceLock::new(),
            has_measurements: AtomicBool::new(false),
            uses_gates: AtomicBool::new(false),
            has_snapshots: AtomicBool::new(false),
        }
    }

    /// Notes what the server's reply to `hello` says about it.
    pub(super) fn note_server(&self, hello: &Document) {
        self.has_snapshots
            .store(supports_snapshots(hello), Ordering::Relaxed);
        self.uses_gates.store(!is_mongos(hello), Ordering::Release);
    }

    /// Notes the mode of new buckets; only the first one counts.
    pub(super) fn choose(&self, mode: StorageMode) {
        let _ = self.chosen.set(mode);
    }

    /// Notes that there is a time-series collection: another process may create it while this one
    /// runs, a conversion or an instance in time-series mode.
    pub(super) fn note_measurements(&self) {
        self.has_measurements.store(true, Ordering::Release);
    }

    /// `store.mode`
    pub(super) fn configured(&self) -> StoreMode {
        self.configured
    }

    /// Where the readings of new buckets are stored. Before the preparation: whether the
    /// configuration requires measurements.
    pub(super) fn storage_mode(&self) -> StorageMode {
        match (self.chosen.get(), self.configured) {
            (Some(mode), _) => *mode,
            (None, StoreMode::Timeseries) => StorageMode::TimeSeries,
            (None, _) => StorageMode::Bucket,
        }
    }

    pub(super) fn is_prepared(&self) -> bool {
        self.chosen.get().is_some()
    }

    /// Preparing determines where measurements are stored; before that, they would be missing from
    /// the result of a query.
    ///
    /// # Errors
    /// The collections are not prepared yet.
    pub(super) fn check_prepared(&self) -> Result<(), StoreError> {
        match self.is_prepared() {
            true => Ok(()),
            false => Err(StoreError::not_applied(
                StoreErrorKind::NotPrepared,
                "the service has not prepared its collections yet",
            )),
        }
    }

    /// Whether there is a time-series collection, which may hold measurements of any bucket.
    pub(super) fn has_measurements(&self) -> bool {
        self.is_prepared() && self.has_measurements.load(Ordering::Acquire)
    }

    pub(super) fn uses_gates(&self) -> bool {
        self.uses_gates.load(Ordering::Acquire)
    }

    /// The measurements, to be read on the primary as of one point in time.
    pub(super) fn measurements(&self, connection: &Connection) -> Collection<RawDocumentBuf> {
        let mut options = from_primary(self.read_concern());
        options.write_concern = Some(connection.options().write_concern.driver());
        connection.db().collection_with_options(READINGS, options)
    }

    /// That of measurements.
    fn read_concern(&self) -> ReadConcern {
        match self.has_snapshots.load(Ordering::Relaxed) {
            true => ReadConcern::snapshot(),
            false => ReadConcern::majority(),
        }
    }
}

fn supports_snapshots(hello: &Document) -> bool {
    let is_new = hello
        .get_i32("maxWireVersion")
        .is_ok_and(|version| version >= WIRE_VERSION);
    is_new && (is_mongos(hello) || hello.contains_key("setName"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::doc;

    #[test]
    fn a_standalone_or_older_server_has_no_snapshots() {
        let detected = Detected::new(StoreMode::Auto);
        assert_eq!(
            detected.read_concern(),
            ReadConcern::majority(),
            "not asked yet"
        );
        for (hello, is_supported) in [
            (doc! { "setName": "rs0", "maxWireVersion": 17 }, true),
            (doc! { "msg": "isdbgrid", "maxWireVersion": 13 }, true),
            (doc! { "setName": "rs0", "maxWireVersion": 9 }, false),
            (doc! { "maxWireVersion": 17 }, false),
        ] {
            detected.note_server(&hello);
            let expected = match is_supported {
                true => ReadConcern::snapshot(),
                false => ReadConcern::majority(),
            };
            assert_eq!(detected.read_concern(), expected, "{hello}");
        }
    }
}
