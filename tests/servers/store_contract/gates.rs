//! Appends through the gate of a page: they pass exactly if the page is as expected.

use super::*;
use model::GateSlot;

const A: GateSlot = GateSlot::A;
const B: GateSlot = GateSlot::B;

fn passes(sensor: &str, known_count: u32, slot: GateSlot, readings: &[Reading]) -> PageWrite {
    let kind = appends(known_count, Gate::Passes(slot));
    page(sensor, 0, kind, false, readings)
}

fn opens(sensor: &str, known_count: u32, readings: &[Reading]) -> PageWrite {
    page(
        sensor,
        0,
        appends(known_count, Gate::Opens),
        false,
        readings,
    )
}

/// The behaviour that both stores must have.
pub(super) async fn contract(store: &dyn Store) {
    let done = |count| PageWriteResult::Done { count };
    let all = temps(0..9);
    let new = page("gates", 0, PageKind::Create, false, &all[..1]);
    assert_eq!(write(store, new).await, done(1));
    for slot in [A, B] {
        assert_eq!(
            write(store, passes("gates", 1, slot, &all[1..2])).await,
            PageWriteResult::Conflict,
            "the page has no gate"
        );
        assert_eq!(
            write(store, passes("no page", 1, slot, &all[1..2])).await,
            PageWriteResult::Conflict
        );
    }
    assert!(load(store, "no page", false).await.is_empty());
    assert_eq!(write(store, opens("gates", 1, &all[1..2])).await, done(2));
    let mut slot = A;
    for n in 2..6 {
        let next = &all[n..=n];
        let n = n as u32;
        for wrong in [n - 1, n + 1] {
            let wrong = passes("gates", wrong, slot, next);
            assert_eq!(write(store, wrong).await, PageWriteResult::Conflict);
        }
        let other = passes("gates", n, slot.other(), next);
        assert_eq!(write(store, other).await, PageWriteResult::Conflict);
        let write_of = passes("gates", n, slot, next);
        // The same statement twice in a command, with others that are not refused.
        let both = [
            write_of.clone(),
            opens(&format!("beside {n}"), 7, next),
            write_of.clone(),
        ];
        let answers = store.write(&both).await.unwrap();
        assert_eq!(
            answers,
            [done(n + 1), done(1), PageWriteResult::Conflict],
            "{n}"
        );
        assert_eq!(write(store, write_of).await, PageWriteResult::Conflict);
        slot = slot.other();
    }
    let keys: Vec<_> = all[..6].iter().map(Reading::key).collect();
    let loaded = load(store, "gates", true).await;
    assert_eq!((loaded[0].count, &loaded[0].keys), (6, &keys));
    removed_by_others(store, &all).await;
}

/// A gate that is open is gone after each of these.
async fn removed_by_others(store: &dyn Store, all: &[Reading]) {
    for (sensor, gate, seal) in [
        ("compared", Gate::Closes, false),
        ("opened again", Gate::Opens, false),
        ("sealed", Gate::Closes, true),
    ] {
        let new = page(sensor, 0, PageKind::Create, false, &all[..1]);
        write(store, new).await;
        write(store, opens(sensor, 1, &all[1..2])).await;
        let more = if seal { &[] } else { &all[2..3] };
        let other = page(sensor, 0, appends(2, gate), seal, more);
        let count = 2 + more.len() as u32;
        assert_eq!(
            write(store, other).await,
            PageWriteResult::Done { count },
            "{sensor}"
        );
        for known in [2, 3] {
            let is_next = gate == Gate::Opens && known == 3;
            let stale = write(store, passes(sensor, known, A, &all[3..4])).await;
            assert_eq!(
                stale == PageWriteResult::Conflict,
                !is_next,
                "{sensor} {known}"
            );
        }
    }
}

/// Random statements of writers that are often wrong about the page have the same answers and leave
/// the same pages in both stores.
#[tokio::test(flavor = "multi_thread")]
async fn random_writers_get_the_same_answers_of_both_stores() {
    let seed = crate::support::setting("HOURBUCKET_SEED", fastrand::usize(..1_000_000));
    let mut random = fastrand::Rng::with_seed(seed as u64);
    let (mongo, database) = mongo("gates").await;
    let memory = MemoryStore::new();
    // Some are sealed early, by chance.
    let sensors: Vec<String> = (0..24).map(|n| format!("S{n}")).collect();
    let mut at = 0;
    let mut passed = 0;
    for round in 0..60 {
        let mut batch = vec![];
        for sensor in &sensors {
            let key = (sensor.clone(), START, 0);
            let stored = memory
                .pages()
                .pages
                .get(&key)
                .map(|page| (page.count, page.gate));
            for _ in 0..random.usize(1..4) {
                let (count, gate) = stored.unwrap_or((random.u32(0..3), None));
                let known = count.saturating_add_signed(random.i32(-1..3).min(1));
                let slot = gate.map_or(A, |(slot, _)| slot);
                let slot = if random.u8(0..5) == 0 {
                    slot.other()
                } else {
                    slot
                };
                let seal = random.u8(0..60) == 0;
                let kind = match random.u8(0..10) {
                    0 if stored.is_none() || random.bool() => PageKind::Create,
                    _ if seal => appends(known, Gate::Closes),
                    1 => appends(known, Gate::Closes),
                    2 | 3 => appends(known, Gate::Opens),
                    _ => appends(known, Gate::Passes(slot)),
                };
                let mut rows = temps(at..at + random.i64(1..3));
                at += 3;
                if random.u8(0..4) == 0 {
                    for row in &mut rows {
                        row.values = BTreeMap::from([("on".to_owned(), Value::Bool(true))]);
                    }
                }
                batch.push(page(sensor, 0, kind, seal, &rows));
            }
        }
        // As the flush stage does: one kind per command.
        batch.sort_by_key(|write| write.kind != PageKind::Create);
        let of_memory = memory.write(&batch).await.unwrap();
        let of_mongo = mongo.write(&batch).await.unwrap();
        for ((write, a), b) in batch.iter().zip(&of_memory).zip(&of_mongo) {
            let sensor = &write.sensor_id;
            let kind = write.kind;
            assert_eq!(a, b, "seed {seed}, round {round}, {sensor}: {kind:?}");
        }
        let has_passed = |(write, answer): &(&PageWrite, &PageWriteResult)| {
            matches!(
                write.kind,
                PageKind::Append {
                    gate: Gate::Passes(_),
                    ..
                }
            ) && matches!(answer, PageWriteResult::Done { .. })
        };
        passed += batch.iter().zip(&of_mongo).filter(has_passed).count();
    }
    assert!(
        passed > 50,
        "seed {seed}: {passed} appends have passed a gate"
    );
    for sensor in &sensors {
        let a = load(&memory, sensor, true).await;
        let b = load(&mongo, sensor, true).await;
        let of = |pages: &[LoadedPage]| -> Vec<_> {
            pages
                .iter()
                .map(|page| (page.count, page.sealed, page.keys.clone()))
                .collect()
        };
        assert_eq!(of(&a), of(&b), "seed {seed}: {sensor}");
    }
    database.drop().await.unwrap();
}

/// The stored page's gate.
async fn gate_of(database: &mongodb::Database, sensor: &str) -> Option<Document> {
    let pages = database.collection::<Document>("sensor_buckets");
    let found = pages.find_one(doc! { "sensor_id": sensor }).await.unwrap();
    found
        .unwrap()
        .get_document("gate")
        .map_or(None, |gate| Some(gate.clone()))
}

/// A page of three readings whose gate is open for the next append in slot B.
async fn with_gate(store: &MongoStore, sensor: &str, storage_mode: StorageMode) {
    let all = temps(0..3);
    for (n, write_of) in [
        page(sensor, 0, PageKind::Create, false, &all[..1]),
        opens(sensor, 1, &all[1..2]),
        passes(sensor, 2, A, &all[2..3]),
    ]
    .into_iter()
    .enumerate()
    {
        let write_of = PageWrite {
            storage_mode,
            ..write_of
        };
        let count = n as u32 + 1;
        assert_eq!(
            write(store, write_of).await,
            PageWriteResult::Done { count },
            "{sensor}"
        );
    }
}

async fn is_refused(store: &MongoStore, database: &mongodb::Database, sensor: &str) {
    assert_eq!(gate_of(database, sensor).await, None, "{sensor}");
    for slot in [A, B] {
        assert_eq!(
            write(store, passes(sensor, 3, slot, &temps(5..6))).await,
            PageWriteResult::Conflict,
            "{sensor}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn maintenance_removes_the_gate_of_a_page() {
    let (store, database) = mongo("gates_maintenance").await;
    with_gate(&store, "repaired", StorageMode::Bucket).await;
    let expected = doc! { "a": { "2": [i64::MAX] }, "b": { "3": [0i64] } };
    assert_eq!(gate_of(&database, "repaired").await, Some(expected));
    let pages = database.collection::<Document>("sensor_buckets");
    let wrong = doc! { "$set": { "summary.n.sum": 1_000_000i64 } };
    pages
        .update_one(doc! { "sensor_id": "repaired" }, wrong)
        .await
        .unwrap();
    let done =
        crate::reconcile::reconcile(&store, START.0, START.0 + HOUR, true, START.0 + HOUR).await;
    assert_eq!(done.repaired, 1, "{done:?}");
    is_refused(&store, &database, "repaired").await;

    with_gate(&store, "recomputed", StorageMode::TimeSeries).await;
    let measurement = doc! {
        "ts": mongodb::bson::DateTime::from_millis(START.0 + 9000), "meta": { "sensor_id": "recomputed" }, "n": 9i64,
    };
    let measurements = database.collection::<Document>("sensor_readings");
    measurements.insert_one(measurement).await.unwrap();
    let bucket = BucketKey {
        sensor_id: "recomputed".into(),
        start: START,
    };
    let request = LoadRequest {
        bucket,
        readings_from: None,
        doubt: true,
    };
    let loaded = found(store.load(&[request], None).await);
    assert_eq!(loaded[0].pages[0].count, 4);
    is_refused(&store, &database, "recomputed").await;

    let (store, database) = prepared(config::Store {
        mode: config::StoreMode::Bucket,
        retention_readings: Some(Duration::from_secs(86_400)),
        ..settings(&unique_database("gates_removed"))
    })
    .await;
    with_gate(&store, "removed", StorageMode::Bucket).await;
    let removed = store.remove_readings(START.0 + 10 * HOUR, 100).await;
    assert!(removed.unwrap().pages > 0);
    is_refused(&store, &database, "removed").await;
}
