//! Permits of page writes and of others, and what requests report of the store.

use std::pin::pin;
use std::sync::Mutex;

use futures_util::FutureExt;

use super::*;
use model::{BucketKey, DeadLetter};
use testkit::memory_store::{Fault, MemoryStore, Verdict};

fn flusher(commands_max: usize) -> Flusher {
    let backoff = Backoff {
        min: Duration::from_millis(1),
        max: Duration::from_millis(1),
    };
    let store = Arc::new(MemoryStore::new());
    let flusher = Flusher::new(store, backoff, Span::HOUR, Arc::new(|_, _| {}));
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

/// A flusher, its store, and what it reports.
#[allow(clippy::type_complexity, reason = "a test")]
fn reporting() -> (
    Flusher,
    Arc<MemoryStore>,
    impl Fn() -> Vec<(Ability, &'static str)>,
) {
    let backoff = Backoff {
        min: Duration::from_millis(1),
        max: Duration::from_millis(1),
    };
    let store = Arc::new(MemoryStore::new());
    let reported = Arc::new(Mutex::new(vec![]));
    let on_store: OnStoreOutcome = {
        let reported = reported.clone();
        Arc::new(move |ability, outcome| {
            let outcome = match outcome {
                Outcome::Success => "success",
                Outcome::Failure(_) => "failure",
                Outcome::OfOne(_) => "of one",
            };
            reported.lock().unwrap().push((ability, outcome));
        })
    };
    let flusher = Flusher::new(store.clone(), backoff, Span::HOUR, on_store);
    flusher.open(4);
    (flusher, store, move || {
        std::mem::take(&mut *reported.lock().unwrap())
    })
}

fn fault(store: &MemoryStore, fault: Fault) {
    store.set_script(Box::new(move || (fault, Duration::ZERO)));
}

#[tokio::test]
async fn a_load_reports_loads_and_a_mark_that_it_needs_is_a_write() {
    let (flusher, store, reported) = reporting();
    let request = LoadRequest {
        bucket: BucketKey {
            sensor_id: "s".into(),
            start: BucketStart(0),
        },
        readings_from: None,
        doubt: false,
    };
    let load = async || {
        let permit = flusher.permit_in(Lane::Load).await;
        let _ = flusher.load(permit, std::slice::from_ref(&request)).await;
    };
    fault(&store, Fault::LostAfter);
    load().await;
    assert_eq!(reported(), [(Ability::WritePages, "failure")]);
    fault(&store, Fault::None);
    load().await;
    assert_eq!(reported(), [(Ability::LoadBuckets, "success")]);
    assert!(!flusher.page_writes_fail());
}

#[tokio::test]
async fn dead_letters_report_their_own_writes_and_one_that_is_repeated_begins_nothing() {
    let (flusher, store, reported) = reporting();
    let dead_letter = DeadLetter {
        received_at_ms: 0,
        source: "http".into(),
        topic: String::new(),
        payload: vec![],
        reason: "bad_json".into(),
        detail: String::new(),
    };
    let one = [dead_letter];
    for (verdict, lane, outcome) in [
        (Verdict::Fails, Lane::Write, Some("failure")),
        (Verdict::Fails, Lane::Retry, Some("of one")),
        (Verdict::Refuses, Lane::Write, None),
        (Verdict::Takes, Lane::Write, Some("success")),
    ] {
        store.set_judge(Box::new(move |_| verdict));
        let _ = flusher.write_dead_letters(lane, &one).await;
        let expected: Vec<_> = outcome
            .map(|outcome| (Ability::WriteDeadLetters, outcome))
            .into_iter()
            .collect();
        assert_eq!(reported(), expected, "{verdict:?}");
    }
}
