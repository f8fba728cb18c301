//! Permits of page writes and of others.

use std::pin::pin;

use futures_util::FutureExt;

use super::*;
use crate::store::memory::MemoryStore;

fn flusher(commands_max: usize) -> Flusher {
    let backoff = Backoff {
        min: Duration::from_millis(1),
        max: Duration::from_millis(1),
    };
    let store = Arc::new(MemoryStore::new());
    let flusher = Flusher::new(store, backoff, Span::HOUR, Arc::new(|_| {}));
    flusher.open(commands_max);
    flusher
}

/// The permit, if there is one without waiting.
fn now(permit: impl Future<Output = Permit>) -> Option<Permit> {
    pin!(permit).now_or_never()
}

#[test]
fn page_writes_that_keep_up_are_one_at_a_time_and_others_do_not_wait_for_them() {
    let flusher = flusher(4);
    let single = now(flusher.page_permit(false)).unwrap();
    assert!(
        now(flusher.page_permit(false)).is_none(),
        "one is in flight"
    );
    let others = [
        now(flusher.page_permit(true)).unwrap(),
        now(flusher.page_permit(true)).unwrap(),
        now(flusher.permit()).unwrap(),
    ];
    assert!(
        now(flusher.page_permit(true)).is_none(),
        "four are in flight"
    );
    drop(single);
    let single = now(flusher.page_permit(false)).unwrap();
    drop(others);
    assert!(
        now(flusher.page_permit(false)).is_none(),
        "one is in flight"
    );
    drop(single);
    assert!(now(flusher.page_permit(false)).is_some());
}

#[test]
fn one_command_at_a_time_is_enough_for_every_kind_of_write() {
    let flusher = flusher(1);
    let single = now(flusher.page_permit(false)).unwrap();
    assert!(now(flusher.page_permit(true)).is_none());
    assert!(now(flusher.permit()).is_none());
    drop(single);
    let other = now(flusher.permit()).unwrap();
    // A page write that waits for its second permit gives back the first one.
    assert!(now(flusher.page_permit(false)).is_none());
    drop(other);
    assert!(now(flusher.page_permit(false)).is_some());
}
