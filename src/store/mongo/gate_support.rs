//! Whether appends may use the gate of a page ([`super::pack`]).
//!
//! - **Sharded cluster:** no. A filter needs the shard key, not only `_id`.
//! - **Earlier versions** do not know gates. If one appends to a page, it leaves the gate open for
//!   the count before, and another instance's append could pass that does not expect the readings.
//!   But several instances are upgraded one after another. So in a database of an earlier version,
//!   gates are used from a day after the first start of a version that knows them
//!   ([`since`](super::schema::gates_since)); in a new one, at once.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mongodb::bson::Document;

use crate::store::mongo::hello::{is_mongos, server_ms};

/// From when on appends may use gates; never until the server was asked.
#[derive(Debug, Default)]
pub(in crate::store::mongo) struct GateSupport(Mutex<Option<Instant>>);

impl GateSupport {
    /// Notes what the server's reply to `hello` says about it, and the time since which they are
    /// used (ms since 1970, by the server's clock).
    pub(in crate::store::mongo) fn note(&self, hello: &Document, since_ms: i64) {
        let from = server_ms(hello)
            .filter(|_| !is_mongos(hello))
            .and_then(|now_ms| {
                let wait_ms = u64::try_from(since_ms.saturating_sub(now_ms)).unwrap_or(0);
                Instant::now().checked_add(Duration::from_millis(wait_ms))
            });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = from;
    }

    pub(in crate::store::mongo) fn are_used(&self) -> bool {
        let from = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        from.is_some_and(|from| from <= Instant::now())
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
        for (hello, since_ms, are_used) in [
            (doc! { "setName": "rs0", "localTime": now }, 1_000_000, true),
            (
                doc! { "setName": "rs0", "localTime": now },
                1_060_000,
                false,
            ),
            (doc! { "localTime": now }, 5, true),
            (doc! { "msg": "isdbgrid", "localTime": now }, 5, false),
        ] {
            gates.note(&hello, since_ms);
            assert_eq!(gates.are_used(), are_used, "{hello}, {since_ms}");
        }
    }
}
