//! Measurements are read as of one point in time, with read concern `snapshot`.
//!
//! MongoDB stores many measurements of a sensor in one document, and an index finds it by its first
//! and last time. With another read concern a scan pauses every 10 ms or 1000 documents, and
//! between two batches. If a measurement is added to such a document meanwhile, its index key moves
//! forward, and the scan finds it again: all of its measurements are returned, or counted, twice.
//!
//! A snapshot contains only data that a majority has, like read concern `majority`. It needs
//! MongoDB 5.0, which the collection needs as well, and a replica set or a cluster. A standalone
//! server is read with `majority`. The server keeps a snapshot for 5 minutes by default, so reads
//! of the whole collection do not use one.

use std::sync::atomic::{AtomicBool, Ordering};

use mongodb::bson::Document;
use mongodb::options::ReadConcern;

use crate::mongo::hello::is_mongos;

/// `maxWireVersion` of MongoDB 5.0.
const WIRE_VERSION: i32 = 13;

/// Whether the server supports snapshots outside of transactions; unknown until it was asked.
#[derive(Debug, Default)]
pub(crate) struct SnapshotReads(AtomicBool);

impl SnapshotReads {
    /// Notes what the server's reply to `hello` says about it.
    pub(super) fn note(&self, hello: &Document) {
        self.0.store(supports(hello), Ordering::Relaxed);
    }

    /// The read concern for measurements.
    pub(super) fn concern(&self) -> ReadConcern {
        match self.0.load(Ordering::Relaxed) {
            true => ReadConcern::snapshot(),
            false => ReadConcern::majority(),
        }
    }
}

fn supports(hello: &Document) -> bool {
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
        let reads = SnapshotReads::default();
        assert_eq!(reads.concern(), ReadConcern::majority(), "not asked yet");
        for (hello, is_supported) in [
            (doc! { "setName": "rs0", "maxWireVersion": 17 }, true),
            (doc! { "msg": "isdbgrid", "maxWireVersion": 13 }, true),
            (doc! { "setName": "rs0", "maxWireVersion": 9 }, false),
            (doc! { "maxWireVersion": 17 }, false),
        ] {
            reads.note(&hello);
            let expected = match is_supported {
                true => ReadConcern::snapshot(),
                false => ReadConcern::majority(),
            };
            assert_eq!(reads.concern(), expected, "{hello}");
        }
    }
}
