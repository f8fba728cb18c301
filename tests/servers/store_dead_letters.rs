//! The store's contract for dead letters (`src/store/src/lib.rs`), of the memory store and a real
//! MongoDB: finding, evicting, refusal and expiry.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::TryStreamExt;
use model::{DeadLetter, Span};
use mongodb::bson::{Document, doc};
use store::mongo::MongoStore;
use store::reading::DeadLetterQuery;
use store::{DeadLetterWritten, Store};
use testkit::memory_store::MemoryStore;

use super::store_contract::{START, mongo, mongo_v44, prepared, settings};
use crate::support::mongod::{Mongod, unique_database};

/// Dead letters are found from the newest, each once, even if several were received in one
/// millisecond.
pub(super) async fn find_contract(store: &dyn Store, now_ms: i64) {
    let dead_letter = |received_at_ms, detail: &str| DeadLetter {
        received_at_ms,
        source: "http".into(),
        topic: "/v1/hooks/x".into(),
        payload: vec![1],
        reason: "read".into(),
        detail: detail.into(),
    };
    let all = [
        dead_letter(now_ms + 1, "a"),
        dead_letter(now_ms + 2, "b"),
        dead_letter(now_ms + 2, "c"),
        dead_letter(now_ms + 3, "d"),
    ];
    store.write_dead_letters(&all).await.unwrap();
    let question = DeadLetterQuery {
        reason: Some("read".into()),
        before: None,
        limit: 2,
        bytes_max: 1 << 20,
    };
    let first = store.find_dead_letters(&question).await.unwrap();
    let times: Vec<_> = first
        .iter()
        .map(|l| l.dead_letter.received_at_ms - now_ms)
        .collect();
    assert_eq!(times, [3, 2]);
    let rest = DeadLetterQuery {
        before: Some((now_ms + 2, 1)),
        limit: 10,
        ..question.clone()
    };
    let rest = store.find_dead_letters(&rest).await.unwrap();
    let mut details: Vec<_> = first
        .iter()
        .chain(&rest)
        .map(|l| l.dead_letter.detail.clone())
        .collect();
    details.sort();
    assert_eq!(details, ["a", "b", "c", "d"]);
    let other = DeadLetterQuery {
        reason: Some("nothing".into()),
        ..question
    };
    assert!(store.find_dead_letters(&other).await.unwrap().is_empty());
}

/// Dead letters are counted, and the oldest ones of senders are evicted first; those with
/// acknowledged readings are never evicted.
async fn evicts(store: &dyn Store) {
    let now = i64::try_from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis(),
    )
    .unwrap();
    let dead_letter = |source: &str, age_ms: i64, bytes: usize| {
        DeadLetter::keep(
            now - age_ms,
            source,
            format!("{source}/{age_ms}"),
            &vec![1; bytes],
            "evicted",
            "why",
        )
    };
    let bytes = || async { store.dead_letter_bytes().await.unwrap() };
    let left = || async {
        let question = DeadLetterQuery {
            limit: 100,
            bytes_max: 1 << 30,
            ..DeadLetterQuery::default()
        };
        let all = store.find_dead_letters(&question).await.unwrap();
        all.into_iter()
            .map(|l| l.dead_letter.topic)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (
            bytes().await,
            store.evict_dead_letters(1).await.unwrap().dead_letters
        ),
        (0, 0)
    );
    let all = [
        ("mqtt", 300),
        ("store", 900),
        ("http", 500),
        ("mqtt_direct", 400),
        ("store", 100),
        ("mqtt", 200),
    ];
    let all: Vec<DeadLetter> = all
        .into_iter()
        .map(|(source, age_ms)| dead_letter(source, age_ms, 100_000))
        .collect();
    assert_eq!(
        store.write_dead_letters(&all).await.unwrap(),
        [const { DeadLetterWritten::Done }; 6]
    );
    let before = bytes().await;
    assert!((600_000..620_000).contains(&before), "{before}");
    let gone = store.evict_dead_letters(110_000).await.unwrap();
    assert_eq!(
        (gone.dead_letters, gone.until_ms, gone.exhausted),
        (2, now - 400, false),
        "as many as have so many bytes"
    );
    assert_eq!(before - bytes().await, gone.bytes);
    assert_eq!(
        left().await,
        ["store/100", "mqtt/200", "mqtt/300", "store/900"]
    );
    let gone = store.evict_dead_letters(1).await.unwrap();
    assert_eq!(
        (gone.dead_letters, gone.until_ms),
        (1, now - 300),
        "no more than needed"
    );
    store
        .write_dead_letters(
            &(0..40)
                .map(|n| dead_letter("http", 1000 + n, 10))
                .collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    let mut dead_letters = 0;
    for _ in 0..100 {
        let gone = store.evict_dead_letters(u64::MAX).await.unwrap();
        dead_letters += gone.dead_letters;
        if gone.exhausted {
            break;
        }
    }
    assert_eq!(
        (dead_letters, left().await),
        (41, vec!["store/100".to_owned(), "store/900".to_owned()])
    );
    assert!(bytes().await > 200_000);
}

#[tokio::test]
async fn the_memory_store_evicts_the_oldest_dead_letters() {
    evicts(&MemoryStore::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mongodb_evicts_the_oldest_dead_letters() {
    evicts(&mongo("evicts").await.0).await;
    evicts(&mongo_v44("evicts_v44").await.0).await;
}

/// If a validator that an operator added refuses some dead letters, no other one is lost or stored
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_dead_letter_is_reported_and_the_others_are_stored() {
    for (store, db) in [mongo("refused").await, mongo_v44("refused_v44").await] {
        let validator = doc! { "topic": { "$nin": ["t/3", "t/700"] } };
        db.run_command(doc! { "collMod": "dead_letters", "validator": validator })
            .await
            .unwrap();
        let dead_letter =
            |n: i64| DeadLetter::keep(START.0 + n, "store", format!("t/{n}"), b"x", "r", "d");
        let answers = store
            .write_dead_letters(&(0..900).map(dead_letter).collect::<Vec<_>>())
            .await
            .unwrap();
        for (n, answer) in answers.iter().enumerate() {
            match answer {
                DeadLetterWritten::Done => assert!(![3, 700].contains(&n), "{n} is not stored"),
                DeadLetterWritten::Rejected { detail } => {
                    assert!(
                        [3, 700].contains(&n) && detail.contains("validation"),
                        "{n}: {detail}"
                    );
                }
            }
        }
        assert_eq!(
            db.collection::<Document>("dead_letters")
                .count_documents(doc! {})
                .await
                .unwrap(),
            898
        );
    }
}

/// Dead letters of senders expire, those with acknowledged readings do not.
#[tokio::test(flavor = "multi_thread")]
async fn only_dead_letters_of_senders_expire() {
    for mongod in [Mongod::shared(), Mongod::shared_v44()] {
        let settings = config::Store {
            uri: config::Secret::new(mongod.uri()),
            ..settings(&unique_database("expire"))
        };
        let (_, db) = prepared(settings.clone()).await;
        let indexes = || async {
            let found: Vec<_> = db
                .collection::<Document>("dead_letters")
                .list_indexes()
                .await
                .unwrap()
                .try_collect()
                .await
                .unwrap();
            let options = |i: mongodb::IndexModel| (i.options.clone().unwrap(), i.keys);
            found
                .into_iter()
                .map(options)
                .map(|(o, keys)| {
                    (
                        o.name.unwrap(),
                        keys,
                        o.expire_after,
                        o.partial_filter_expression,
                    )
                })
                .collect::<Vec<_>>()
        };
        let ttl = |s| Some(Duration::from_secs(s));
        let wanted = |s| {
            [
                ("_id_".to_owned(), doc! { "_id": 1 }, None, None),
                (
                    "letter_received".to_owned(),
                    doc! { "received_at": 1, "_id": 1 },
                    None,
                    None,
                ),
                (
                    "sender_letters_ttl".to_owned(),
                    doc! { "received_at": 1 },
                    ttl(s),
                    Some(doc! { "source": { "$lt": "store" } }),
                ),
            ]
        };
        assert_eq!(indexes().await, wanted(3600));
        let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(7200))
            .await
            .unwrap();
        assert!(
            store
                .prepare()
                .await
                .unwrap()
                .changes
                .concat()
                .contains("7200 s")
        );
        assert_eq!(
            indexes().await,
            wanted(7200),
            "the retention follows the setting"
        );
        assert!(
            store.prepare().await.unwrap().changes.is_empty(),
            "correct indexes are not changed"
        );
        // The index finds the oldest ones, even if many others are older.
        let find = doc! {
            "find": "dead_letters", "filter": { "source": { "$lt": "store" } }, "sort": { "received_at": 1 }, "limit": 5,
        };
        let plan = db
            .run_command(doc! { "explain": find, "verbosity": "queryPlanner" })
            .await
            .unwrap()
            .to_string();
        assert!(plan.contains("sender_letters_ttl"), "{plan}");
    }
}
