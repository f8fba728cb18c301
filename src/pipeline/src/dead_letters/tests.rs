//! Dead letters on the memory store, with paused time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::*;
use crate::flush::backoff::Backoff;
use model::OWN_SOURCE;
use model::ack::{AckOutcome, AckWaiter};
use telemetry::metrics::Source;
use testkit::memory_store::{Fault, MemoryStore, Verdict};

const MIB: usize = 1 << 20;
const LONG_ENOUGH: Duration = Duration::from_secs(120);

struct Rig {
    store: Arc<MemoryStore>,
    flusher: Flusher,
    dead: DeadLetters,
    task: JoinHandle<()>,
}

impl Rig {
    /// A task before a store that is not prepared yet.
    fn closed(stored_bytes_max: usize) -> Rig {
        let store = Arc::new(MemoryStore::new());
        let backoff = Backoff {
            min: Duration::from_secs(1),
            max: Duration::from_secs(1),
        };
        let flusher = Flusher::new(
            store.clone(),
            backoff,
            model::Span::HOUR,
            Arc::new(|_, _| {}),
        );
        let (dead, task) = DeadLetters::new(flusher.clone(), 64, stored_bytes_max as u64);
        Rig {
            store,
            flusher,
            dead,
            task: tokio::spawn(task),
        }
    }

    fn new(stored_bytes_max: usize) -> Rig {
        let rig = Rig::closed(stored_bytes_max);
        rig.flusher.open(1);
        rig
    }

    async fn send(&self, dead_letters: Vec<DeadLetter>) -> AckWaiter {
        let (ack, wait) = Ack::channel();
        self.dead.send_one(dead_letters, ack).await;
        wait
    }

    fn stored(&self) -> BTreeSet<String> {
        self.store
            .pages()
            .dead
            .iter()
            .map(|dead_letter| dead_letter.topic.clone())
            .collect()
    }
}

fn dead_letter(source: &str, n: i64, bytes: usize) -> DeadLetter {
    DeadLetter::keep(
        n,
        source,
        format!("{source}/{n}"),
        &vec![b'x'; bytes],
        "test",
        "why",
    )
}

fn names(source: &str, numbers: impl IntoIterator<Item = i64>) -> BTreeSet<String> {
    numbers
        .into_iter()
        .map(|n| format!("{source}/{n}"))
        .collect()
}

async fn outcome(wait: AckWaiter) -> Option<AckOutcome> {
    tokio::time::timeout(LONG_ENOUGH, wait.outcome()).await.ok()
}

#[test]
fn only_dead_letters_with_acknowledged_readings_are_outside_of_the_eviction_index() {
    for source in [
        Source::Mqtt,
        Source::MqttDirect,
        Source::Http,
        Source::Replay,
    ] {
        assert!(
            source.as_str() < OWN_SOURCE,
            "{}: neither expires nor is evicted",
            source.as_str()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn dead_letters_in_memory_are_bounded_in_bytes_while_the_store_is_unreachable() {
    let rig = Rig::closed(1 << 30);
    let sent = Arc::new(AtomicUsize::new(0));
    let dead = rig.dead.clone();
    let count = sent.clone();
    let (ack, wait) = Ack::channel();
    let sender = tokio::spawn(async move {
        for n in 0..40 {
            dead.send_one(vec![dead_letter("mqtt", n, MIB)], ack.clone())
                .await;
            count.fetch_add(1, Ordering::Relaxed);
        }
        ack.delivered();
    });
    tokio::time::sleep(LONG_ENOUGH).await;
    assert_eq!(
        sent.load(Ordering::Relaxed),
        IN_FLIGHT_BYTES_MAX / MIB - 1,
        "each has a little more than its payload"
    );
    rig.flusher.open(1);
    sender.await.unwrap();
    assert_eq!(outcome(wait).await, Some(AckOutcome::Delivered));
    assert_eq!(rig.stored().len(), 40);
    // One that is larger than all the room there is.
    let wait = rig
        .send((0..20).map(|n| dead_letter("http", n, MIB)).collect())
        .await;
    assert_eq!(outcome(wait).await, Some(AckOutcome::Delivered));
}

#[tokio::test(start_paused = true)]
async fn it_ends_even_if_the_store_was_never_prepared() {
    let Rig { dead, task, .. } = Rig::closed(1 << 30);
    tokio::time::sleep(LONG_ENOUGH).await;
    drop(dead);
    tokio::time::timeout(LONG_ENOUGH, task)
        .await
        .expect("nothing is left to do")
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_permit_is_held_while_it_waits() {
    let rig = Rig::new(1 << 30);
    rig.store
        .set_script(Box::new(|| (Fault::NotApplied, Duration::from_millis(1))));
    let wait = rig.send(vec![dead_letter("mqtt", 1, 10)]).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    for _ in 0..20 {
        let begun = Instant::now();
        drop(rig.flusher.permit().await);
        assert!(
            begun.elapsed() < Duration::from_millis(10),
            "{:?}",
            begun.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(97)).await;
    }
    rig.store
        .set_script(Box::new(|| (Fault::None, Duration::ZERO)));
    assert_eq!(outcome(wait).await, Some(AckOutcome::Delivered));
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_hangs_is_found_and_delays_no_other() {
    let rig = Rig::new(1 << 30);
    rig.store.set_judge(Box::new(|l| {
        if l.topic == "mqtt/321" {
            Verdict::Hangs
        } else {
            Verdict::Takes
        }
    }));
    let others = rig
        .send((0..300).map(|n| dead_letter("mqtt", n, 10)).collect())
        .await;
    let with_it = rig
        .send((300..900).map(|n| dead_letter("mqtt", n, 10)).collect())
        .await;
    let later = rig.send(vec![dead_letter("mqtt", 900, 10)]).await;
    assert_eq!(outcome(others).await, Some(AckOutcome::Delivered));
    assert_eq!(outcome(later).await, Some(AckOutcome::Delivered));
    assert_eq!(rig.stored(), names("mqtt", (0..=900).filter(|n| *n != 321)));
    let Rig {
        store, dead, task, ..
    } = rig;
    assert_eq!(store.pages().dead.len(), 900, "none is stored twice");
    drop(dead);
    let still = tokio::time::timeout(LONG_ENOUGH, with_it.outcome());
    assert!(
        still.await.is_err() && !task.is_finished(),
        "not acknowledged, and tried again"
    );
    store.set_judge(Box::new(|_| Verdict::Takes));
    tokio::time::timeout(LONG_ENOUGH, task)
        .await
        .expect("all is stored")
        .unwrap();
    assert_eq!(store.pages().dead.len(), 901);
}

#[tokio::test(start_paused = true)]
async fn a_large_refused_dead_letter_is_stored_in_part_and_marked() {
    let rig = Rig::new(1 << 30);
    rig.store.set_judge(Box::new(|l| {
        if l.payload.len() > MIB / 2 {
            Verdict::Refuses
        } else {
            Verdict::Takes
        }
    }));
    let wait = rig
        .send(vec![
            dead_letter("http", 1, 10),
            dead_letter("http", 2, MIB),
            dead_letter("http", 3, 10),
        ])
        .await;
    assert_eq!(outcome(wait).await, Some(AckOutcome::Delivered));
    let dead = rig.store.pages().dead.clone();
    let part = dead.iter().find(|l| l.topic == "http/2").unwrap();
    assert_eq!(
        (dead.len(), part.payload.len(), part.is_complete()),
        (3, CUT_BYTES, false)
    );
    assert_eq!(
        part.detail,
        "why; the store refused it in full: scripted refusal; the first 16384 of 1048576 bytes are \
         kept"
    );
}

#[tokio::test(start_paused = true)]
async fn refused_dead_letters_with_acknowledged_readings_are_never_dropped() {
    let rig = Rig::new(1 << 30);
    rig.store.set_judge(Box::new(|l| {
        if l.topic == "mqtt/0" {
            Verdict::Takes
        } else {
            Verdict::Refuses
        }
    }));
    let own = rig
        .send((0..2).map(|n| dead_letter(OWN_SOURCE, n, MIB)).collect())
        .await;
    let mut from_senders = vec![];
    for round in 0..30 {
        from_senders.push(
            rig.send(
                (0..20)
                    .map(|n| dead_letter("mqtt", 1 + round * 20 + n, CUT_BYTES))
                    .collect(),
            )
            .await,
        );
    }
    let good = rig.send(vec![dead_letter("mqtt", 0, 10)]).await;
    assert_eq!(
        outcome(good).await,
        Some(AckOutcome::Delivered),
        "it does not wait for those"
    );
    let first = outcome(from_senders.remove(0)).await;
    assert_eq!(
        first,
        Some(AckOutcome::Delivered),
        "given up: there are more than {RETRY_BYTES_MAX} bytes of them"
    );
    assert_eq!(
        outcome(from_senders.pop().unwrap()).await,
        None,
        "the last ones are still tried"
    );
    rig.store.set_judge(Box::new(|_| Verdict::Takes));
    assert_eq!(outcome(own).await, Some(AckOutcome::Delivered));
    let stored = rig.stored();
    assert!(
        names(OWN_SOURCE, 0..2).is_subset(&stored) && names("mqtt", 590..=600).is_subset(&stored)
    );
    assert!(!stored.contains("mqtt/1"));
    let whole = rig
        .store
        .pages()
        .dead
        .iter()
        .filter(|l| l.is_own())
        .all(|l| l.is_complete() && l.payload.len() == MIB);
    assert!(whole, "acknowledged readings are never cut");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_while_the_store_does_not_answer() {
    let rig = Rig::new(1 << 30);
    rig.store.set_judge(Box::new(|_| Verdict::Hangs));
    let wait = rig
        .send((0..12).map(|n| dead_letter("mqtt", n, MIB)).collect())
        .await;
    tokio::time::sleep(10 * LONG_ENOUGH).await;
    rig.store.set_judge(Box::new(|_| Verdict::Takes));
    assert_eq!(outcome(wait).await, Some(AckOutcome::Delivered));
    assert_eq!(rig.stored().len(), 12);
}

/// Sends more of a sender than fits into memory, to a collection that stores nothing. Returns how
/// many deliveries have found room after some time, and an own dead letter's acknowledgement.
async fn sent_to_a_collection_that(fails: Verdict, rig: &Rig) -> (usize, AckWaiter) {
    rig.store.set_judge(Box::new(move |_| fails));
    let own = rig.send(vec![dead_letter(OWN_SOURCE, 0, MIB)]).await;
    let found_room = Arc::new(AtomicUsize::new(0));
    let dead = rig.dead.clone();
    let count = found_room.clone();
    let sending = tokio::spawn(async move {
        for n in 0..60 {
            dead.send_one(vec![dead_letter("mqtt", n, MIB)], Ack::none())
                .await;
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    tokio::time::sleep(2 * LONG_ENOUGH).await;
    sending.abort();
    (found_room.load(Ordering::Relaxed), own)
}

#[tokio::test(start_paused = true)]
async fn a_collection_that_refuses_everything_does_not_stop_what_waits_behind() {
    let rig = Rig::new(1 << 30);
    let (found_room, own) = sent_to_a_collection_that(Verdict::Fails, &rig).await;
    assert_eq!(found_room, 60);
    rig.store.set_judge(Box::new(|_| Verdict::Takes));
    assert_eq!(outcome(own).await, Some(AckOutcome::Delivered));
    // Those of the sender may be stored after it.
    tokio::time::sleep(LONG_ENOUGH).await;
    let stored = rig.stored();
    assert!(stored.contains(&format!("{OWN_SOURCE}/0")) && stored.contains("mqtt/59"));
    assert!(!stored.contains("mqtt/9"), "the oldest are given up");
}

#[tokio::test(start_paused = true)]
async fn a_collection_that_does_not_answer_stops_others_only_if_no_page_is_written_either() {
    let rig = Rig::new(1 << 30);
    let (found_room, own) = sent_to_a_collection_that(Verdict::Hangs, &rig).await;
    assert!(found_room < 16, "{found_room}");
    rig.flusher.note_page_written();
    let (found_room, _) = sent_to_a_collection_that(Verdict::Hangs, &rig).await;
    assert_eq!(found_room, 60);
    rig.store.set_judge(Box::new(|_| Verdict::Takes));
    assert_eq!(outcome(own).await, Some(AckOutcome::Delivered));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_given_up_if_page_writes_fail_too() {
    let rig = Rig::new(1 << 30);
    rig.store
        .set_script(Box::new(|| (Fault::LostBefore, Duration::ZERO)));
    let permit = rig.flusher.permit().await;
    assert!(rig.flusher.write(permit, &mut []).await.is_err());
    rig.store
        .set_script(Box::new(|| (Fault::None, Duration::ZERO)));
    let (found_room, _) = sent_to_a_collection_that(Verdict::Fails, &rig).await;
    assert!(found_room < 16, "{found_room}");
}

#[tokio::test(start_paused = true)]
async fn the_oldest_dead_letters_of_senders_are_evicted_and_no_more_than_needed() {
    let rig = Rig::new(4 * MIB);
    // Not in the order of their receipt.
    for n in [5, 3, 9, 1, 7] {
        rig.send(vec![
            dead_letter("mqtt", n, MIB / 2),
            dead_letter(OWN_SOURCE, n, MIB / 20),
        ])
        .await;
    }
    tokio::time::sleep(LONG_ENOUGH).await;
    assert_eq!(rig.stored().len(), 10, "2.75 MiB are below the limit");
    rig.send((20..24).map(|n| dead_letter("http", n, MIB / 2)).collect())
        .await;
    tokio::time::sleep(LONG_ENOUGH).await;
    let kept = names(OWN_SOURCE, [1, 3, 5, 7, 9]).into_iter();
    let kept: BTreeSet<String> = kept
        .chain(names("mqtt", [5, 7, 9]))
        .chain(names("http", 20..24))
        .collect();
    assert_eq!(rig.stored(), kept);
    // Another instance has stored some, and this one nothing since.
    rig.store
        .pages()
        .dead
        .extend((30..34).map(|n| dead_letter("mqtt", n, MIB / 2)));
    tokio::time::sleep(LONG_ENOUGH).await;
    let bytes = rig.store.pages().dead_letter_bytes() as usize;
    assert!((3 * MIB..=4 * MIB).contains(&bytes), "{bytes}");
    assert!(names("mqtt", 30..34).is_subset(&rig.stored()));
}

#[tokio::test(start_paused = true)]
async fn many_small_dead_letters_are_evicted_as_fast_as_large_ones_arrive() {
    let rig = Rig::new(4 * MIB);
    rig.store
        .pages()
        .dead
        .extend((0..8000).map(|n| dead_letter("mqtt", n, 100)));
    for n in 0..40 {
        let wait = rig.send(vec![dead_letter("http", 10_000 + n, MIB)]).await;
        assert_eq!(outcome(wait).await, Some(AckOutcome::Delivered));
        let bytes = rig.store.pages().dead_letter_bytes() as usize;
        assert!(bytes <= 4 * MIB + BATCH_BYTES_MAX, "{bytes} after {n}");
    }
    tokio::time::sleep(LONG_ENOUGH).await;
    assert_eq!(
        rig.stored(),
        names("http", 10_037..10_040),
        "three of a little more than 1 MiB"
    );
}

#[tokio::test(start_paused = true)]
async fn acknowledged_readings_stay_when_they_alone_are_above_the_limit() {
    let rig = Rig::new(2 * MIB);
    rig.send((0..5).map(|n| dead_letter(OWN_SOURCE, n, MIB)).collect())
        .await;
    rig.send((0..5).map(|n| dead_letter("mqtt", n, 100)).collect())
        .await;
    tokio::time::sleep(LONG_ENOUGH).await;
    assert_eq!(rig.stored(), names(OWN_SOURCE, 0..5));
}

#[tokio::test(start_paused = true)]
async fn one_line_a_minute_reports_how_many_it_replaces() {
    let mut quiet = CountedLine::default();
    let mut written = vec![];
    for _ in 0..150 {
        written.extend(quiet.add(1));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(written, [1, 60, 60]);
}
