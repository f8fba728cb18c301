//! The store's contract for the queries of the read API: pages, summaries, first readings of
//! buckets, and sensors.

use model::{BucketKey, BucketStart, PageKind, Reading, SensorId, Value};
use store::maintain::StoredPage;
use store::reading::{EdgeQuery, PageQuery, SensorQuery, SummaryQuery};
use store::{PageWriteResult, Store};

use super::{HOUR, START, append, page, reading, temps, write};

/// The pages of several sensors in one request, and the readings at the first millisecond of
/// buckets.
pub(super) async fn summaries_and_edges(store: &dyn Store) {
    let at = |ms: i64, n: i64| {
        reading(
            START.0 + ms,
            &[("n", Value::Int(n)), ("text", Value::Str("x".into()))],
        )
    };
    let first = [at(5, 2), at(0, 1), at(0, 3)];
    assert_eq!(
        write(store, page("E1", 0, PageKind::Create, true, &first)).await,
        PageWriteResult::Done { count: 3 }
    );
    let late = [at(9, 4), at(0, 5)];
    assert_eq!(
        write(store, page("E1", 1, PageKind::Create, false, &late)).await,
        PageWriteResult::Done { count: 2 }
    );
    let none = [at(1, 6)];
    assert_eq!(
        write(store, page("E2", 0, PageKind::Create, false, &none)).await,
        PageWriteResult::Done { count: 1 }
    );
    let sensor_ids: Vec<SensorId> = vec!["E1".into(), "E2".into(), "E3".into()];
    let from = START;
    let to_ms = START.0 + HOUR;
    let query = SummaryQuery {
        sensor_ids: sensor_ids.clone(),
        from,
        to_ms,
        fields: vec!["n".to_owned()],
    };
    let mut found = store.summaries(&query).await.unwrap();
    assert!(found.rest.is_empty());
    found
        .pages
        .sort_by_key(|(key, page)| (key.clone(), std::cmp::Reverse(page.page)));
    let shown = |(key, page): &(BucketKey, StoredPage)| {
        let n = page.summary["n"].unwrap();
        assert!(page.rows.is_empty() && key.start == START);
        (
            key.sensor_id.to_string(),
            page.count,
            page.first_ts_ms.unwrap() - START.0,
            n.sum.as_f64() as i64,
        )
    };
    let shown: Vec<_> = found.pages.iter().map(shown).collect();
    assert_eq!(
        shown,
        [
            ("E1".into(), Some(2), 0, 9),
            ("E1".into(), Some(3), 0, 6),
            ("E2".into(), Some(1), 1, 6)
        ]
    );
    let earlier = SummaryQuery {
        to_ms: START.0,
        ..query
    };
    assert!(store.summaries(&earlier).await.unwrap().pages.is_empty());

    let starts = vec![START, BucketStart(START.0 + HOUR)];
    let edges = store
        .edges(&EdgeQuery { sensor_ids, starts })
        .await
        .unwrap();
    assert_eq!(edges.keys().map(|id| &**id).collect::<Vec<_>>(), ["E1"]);
    let mut values: Vec<String> = edges["E1"]
        .iter()
        .map(|row| format!("{:?}", row.named().next()))
        .collect();
    values.sort();
    assert_eq!(
        values,
        [1, 3, 5].map(|n| format!("Some((\"n\", Int({n})))"))
    );
    assert!(edges["E1"].iter().all(|row| row.ts_ms == START.0));
}

/// A query of the read API: pages of a sensor.
pub(super) async fn pages(store: &dyn Store) {
    let all = temps(0..6);
    let mut next_hour = page(
        "read/1",
        0,
        PageKind::Create,
        false,
        &[reading(START.0 + HOUR, &[("n", Value::Int(9))])],
    );
    next_hour.start = BucketStart(START.0 + HOUR);
    let writes = [
        page("read/1", 0, PageKind::Create, true, &all[..4]),
        page("read/1", 1, PageKind::Create, false, &all[4..]),
        page("read/10", 0, PageKind::Create, false, &all[..1]),
        next_hour,
    ];
    // One command never has two pages of one bucket.
    for one in writes {
        assert!(matches!(
            write(store, one).await,
            PageWriteResult::Done { .. }
        ));
    }
    let question = PageQuery {
        sensor_id: "read/1".into(),
        from: START,
        to_ms: START.0 + 2 * HOUR,
        after: None,
        readings_from_ms: Some(i64::MIN),
    };
    let found = all_pages(store, &question).await;
    let places: Vec<_> = found
        .iter()
        .map(|(start, page)| ((start.0 - START.0) / HOUR, page.page, page.rows.len()))
        .collect();
    assert_eq!(
        places,
        [(0, 1, 2), (0, 0, 4), (1, 0, 1)],
        "by bucket, the last page of each first"
    );
    assert_eq!(
        found[1]
            .1
            .rows
            .iter()
            .map(|row| row.key())
            .collect::<Vec<_>>(),
        all[..4].iter().map(Reading::key).collect::<Vec<_>>()
    );
    assert_eq!((found[1].1.count, found[1].1.sealed), (Some(4), true));
    let one_hour = PageQuery {
        to_ms: START.0 + 1,
        ..question.clone()
    };
    assert_eq!(
        all_pages(store, &one_hour).await.len(),
        2,
        "a bucket that begins before the end counts"
    );
    let later = PageQuery {
        from: BucketStart(START.0 + HOUR),
        ..question.clone()
    };
    assert_eq!(all_pages(store, &later).await.len(), 1);
    let after = PageQuery {
        after: Some((START, 1)),
        ..question.clone()
    };
    assert_eq!(all_pages(store, &after).await.len(), 2);
    let heads = all_pages(
        store,
        &PageQuery {
            readings_from_ms: None,
            ..question.clone()
        },
    )
    .await;
    assert!(
        heads.len() == 3
            && heads
                .iter()
                .all(|(_, page)| page.rows.is_empty() && !page.summary.is_empty())
    );
    let late = PageQuery {
        readings_from_ms: Some(START.0 + 4000),
        ..question
    };
    let late: Vec<_> = all_pages(store, &late)
        .await
        .iter()
        .map(|(_, page)| (page.page, page.rows.len()))
        .collect();
    assert_eq!(
        late.first(),
        Some(&(1, 2)),
        "pages that end before that time are left out: {late:?}"
    );
}

/// All pages, with as many queries as necessary.
async fn all_pages(store: &dyn Store, question: &PageQuery) -> Vec<(BucketStart, StoredPage)> {
    let mut question = question.clone();
    let mut all = vec![];
    loop {
        let found = store.pages(&question).await.unwrap();
        all.extend(found.pages);
        match found.next {
            Some(next) => question.after = Some(next),
            None => return all,
        }
    }
}

/// Sensors in byte order over several pages; their newest state and their first bucket.
pub(super) async fn sensors(store: &dyn Store) {
    // As bytes: "list/A" < "list/A!" < "list/A/x" < "list/B" < "list/a" < "list/ä".
    let ids = [
        "list/ä", "list/a", "list/B", "list/A/x", "list/A!", "list/A",
    ];
    for id in ids {
        write(store, page(id, 0, PageKind::Create, false, &temps(0..3))).await;
    }
    let sorted = [
        "list/A", "list/A!", "list/A/x", "list/B", "list/a", "list/ä",
    ];
    for limit in [1, 2, 5, 100] {
        let mut listed = vec![];
        let mut after = None;
        loop {
            let question = SensorQuery {
                prefix: "list/".into(),
                after,
                limit,
            };
            let some = store.sensors(&question).await.unwrap();
            assert!(some.len() <= limit);
            let is_last = some.len() < limit;
            after = some.last().cloned();
            listed.extend(some);
            if is_last {
                break;
            }
        }
        assert_eq!(listed, sorted, "{limit} at a time");
    }
    let prefix = SensorQuery {
        prefix: "list/A".into(),
        after: None,
        limit: 10,
    };
    assert_eq!(store.sensors(&prefix).await.unwrap(), sorted[..3]);
    let asked = ["list/B", "unknown", "read/1"].map(SensorId::from);
    let newest = store.newest(&asked).await.unwrap();
    assert_eq!(newest[0].last_ts_ms, Some(START.0 + 2000));
    assert_eq!(newest[0].values["n"], (START.0 + 2000, Value::Int(2)));
    assert_eq!(
        (newest[1].last_ts_ms, newest[2].last_ts_ms),
        (None, Some(START.0 + HOUR))
    );
}

/// The last values are those of the newest readings, even if many late ones were appended after
/// them.
pub(super) async fn last_values(store: &dyn Store) {
    let at = |second: i64, fields: &[&str]| {
        let values: Vec<_> = fields.iter().map(|f| (*f, Value::Int(second))).collect();
        reading(START.0 + second * 1000, &values)
    };
    let first = [at(100, &["n", "m"]), at(99, &["n"])];
    let late: Vec<Reading> = (1..=25).map(|second| at(second, &["n", "m"])).collect();
    let newer = [at(101, &["k"])];
    // The late ones are the last twenty of the array, and all but one of them after the last write.
    let writes = [
        (
            page("last", 0, PageKind::Create, false, &first),
            [100, 100, 0],
        ),
        (append("last", 2, false, &late), [100, 100, 0]),
        (append("last", 27, false, &newer), [100, 100, 101]),
    ];
    for (one, expected) in writes {
        let kind = one.kind;
        assert!(matches!(
            write(store, one).await,
            PageWriteResult::Done { .. }
        ));
        let newest = store.newest(&["last".into()]).await.unwrap().remove(0);
        let shown = ["n", "m", "k"].map(|field| match newest.values.get(field) {
            Some((ts_ms, Value::Int(second))) if *ts_ms == START.0 + second * 1000 => *second,
            Some(other) => panic!("{field}: {other:?}"),
            None => 0,
        });
        assert_eq!(shown, expected, "{kind:?}");
        let last = expected.into_iter().max().unwrap();
        assert_eq!(newest.last_ts_ms, Some(START.0 + last * 1000), "{kind:?}");
    }
}
