//! Whether appends may use the gate of a page ([`super::pack`]).
//!
//! - **Sharded cluster:** no. A filter needs the shard key, not only `_id`.
//! - **Earlier versions** do not know gates. If one appends to a page, it leaves the gate open for
//!   the count before, and another instance's append could pass that does not expect the readings.
//!   But several instances are upgraded one after another. So in a database of an earlier version,
//!   gates are used by instances that start a day or more after the first service of a version that
//!   knows them ([`since`](super::schema::gates_since)); in a new one, at once.
//!
//! A process decides when it prepares the database, and keeps to it: what it believes of a page
//! includes its gate.

use std::sync::atomic::{AtomicBool, Ordering};

use mongodb::bson::Document;

use crate::store::mongo::hello::{is_mongos, server_ms};

/// Not before the server was asked.
#[derive(Debug, Default)]
pub(in crate::store::mongo) struct GateSupport(AtomicBool);

impl GateSupport {
    /// Notes what the server's reply to `hello` says about it, and since when they are used (ms
    /// since 1970, by the server's clock; `None`: not yet).
    pub(in crate::store::mongo) fn note(&self, hello: &Document, since_ms: Option<i64>) {
        let has_begun = match (since_ms, server_ms(hello)) {
            (Some(since_ms), Some(now_ms)) => since_ms <= now_ms,
            _ => false,
        };
        self.0
            .store(has_begun && !is_mongos(hello), Ordering::Release);
    }

    pub(in crate::store::mongo) fn are_used(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::{DateTime, doc};

    #[test]
    fn gates_are_used_from_their_time_on_and_never_on_a_cluster() {
        let gates = GateSupport::default();
        assert!(!gates.are_used(), "not asked yet");
        let now = DateTime::from_millis(1_000_000);
        let set = doc! { "setName": "rs0", "localTime": now };
        for (hello, since_ms, are_used) in [
            (set.clone(), Some(1_000_000), true),
            (set.clone(), Some(1_060_000), false),
            (set, None, false),
            (doc! { "localTime": now }, Some(5), true),
            (doc! { "msg": "isdbgrid", "localTime": now }, Some(5), false),
        ] {
            gates.note(&hello, since_ms);
            assert_eq!(gates.are_used(), are_used, "{hello}, {since_ms:?}");
        }
    }
}
