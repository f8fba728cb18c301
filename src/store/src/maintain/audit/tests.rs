//! Audits of constructed buckets.

use std::collections::BTreeMap;

use super::super::bucket::BucketMeasurements;
use super::*;
use model::{BucketKey, BucketStart, Reading, Rows, Value as V};

const HOUR: i64 = 3_600_000;

fn rows(readings: &[(i64, V)]) -> Rows {
    let mut rows = Rows::default();
    for (ts_ms, v) in readings {
        let values = BTreeMap::from([("t".to_owned(), v.clone())]);
        rows.push_reading(&Reading {
            sensor_id: "s".into(),
            ts_ms: *ts_ms,
            receipt_time: false,
            tags: BTreeMap::new(),
            values,
        });
    }
    rows
}

/// A page whose document matches its readings.
fn page(n: u32, sealed: bool, readings: &[(i64, V)]) -> StoredPage {
    let rows = rows(readings);
    let recomputed = Recomputed::from_rows([&rows]);
    StoredPage {
        page: n,
        storage_mode: StorageMode::Bucket,
        count: Some(recomputed.count as i64),
        sealed,
        first_ts_ms: Some(recomputed.first_ts_ms),
        last_ts_ms: Some(recomputed.last_ts_ms),
        summary: recomputed
            .fields
            .iter()
            .map(|(n, (s, _))| (n.clone(), Some(*s)))
            .collect(),
        tags: BTreeMap::new(),
        rows,
        unreadable: 0,
        readings_removed: false,
        was_converted: false,
    }
}

#[test]
fn the_summary_of_removed_readings_is_not_compared() {
    let removed = StoredPage {
        rows: Rows::default(),
        readings_removed: true,
        ..page(0, true, &doubles(0..60))
    };
    assert_eq!(
        kinds(&bucket(vec![
            removed.clone(),
            page(1, false, &doubles(60..90))
        ])),
        []
    );
    // What does not depend on readings is.
    assert_eq!(
        kinds(&bucket(vec![
            StoredPage {
                sealed: false,
                ..removed.clone()
            },
            page(1, false, &[])
        ]))[0]
            .1,
        "not_sealed"
    );
    assert_eq!(
        kinds(&bucket(vec![StoredPage {
            readings_removed: false,
            ..removed
        }]))[0]
            .1,
        "count"
    );
}

fn bucket(pages: Vec<StoredPage>) -> StoredBucket {
    let key = BucketKey {
        sensor_id: "s".into(),
        start: BucketStart(0),
    };
    StoredBucket {
        key,
        end_ms: HOUR,
        pages,
        measured: None,
    }
}

fn kinds(bucket: &StoredBucket) -> Vec<(Option<u32>, &'static str)> {
    audit(bucket)
        .iter()
        .map(|f| (f.page, f.kind.name()))
        .collect()
}

fn doubles(range: std::ops::Range<i64>) -> Vec<(i64, V)> {
    range
        .map(|i| (i * 1000, V::Double(i as f64 / 10.0)))
        .collect()
}

#[test]
fn a_correct_summary_has_no_finding_in_any_order_of_addition() {
    let mut sound = bucket(vec![
        page(0, true, &doubles(0..60)),
        page(1, false, &doubles(60..90)),
    ]);
    assert_eq!(kinds(&sound), []);
    let t = sound.pages[0]
        .summary
        .get_mut("t")
        .unwrap()
        .as_mut()
        .unwrap();
    t.sum = Number::Double((0..60).rev().map(|i| f64::from(i) / 10.0).sum());
    (t.min, t.max) = (Number::Int(0), Number::Double(5.9));
    assert_eq!(
        kinds(&sound),
        [],
        "0 and 0.0 are equal, and so are sums in another order"
    );
    let large = 1 << 53;
    let mut rounded = bucket(vec![page(0, false, &[(0, V::Int(large + 1))])]);
    let t = rounded.pages[0].summary.get_mut("t").unwrap();
    t.as_mut().unwrap().min = Number::Double(large as f64);
    assert_eq!(kinds(&rounded), [(Some(0), "summary")]);
    let cancels: Vec<(i64, V)> = [1e15, 0.3, -1e15, 0.1]
        .iter()
        .zip(0..)
        .map(|(v, i)| (i, V::Double(*v)))
        .collect();
    let mut cancels = bucket(vec![page(0, false, &cancels)]);
    cancels.pages[0]
        .summary
        .get_mut("t")
        .unwrap()
        .as_mut()
        .unwrap()
        .sum = Number::Double(0.4);
    assert_eq!(
        kinds(&cancels),
        [],
        "the tolerance depends on the absolute values, not on the result"
    );
    cancels.pages[0]
        .summary
        .get_mut("t")
        .unwrap()
        .as_mut()
        .unwrap()
        .sum = Number::Double(1e8);
    assert_eq!(kinds(&cancels), [(Some(0), "summary")]);
}

#[test]
fn an_overflowing_sum_is_not_a_finding() {
    let large: Vec<(i64, V)> = [1e308, 1e308, -1e308, -1e308]
        .iter()
        .zip(0..)
        .map(|(v, i)| (i, V::Double(*v)))
        .collect();
    let mut stored = bucket(vec![page(0, false, &large)]);
    for sum in [0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        stored.pages[0]
            .summary
            .get_mut("t")
            .unwrap()
            .as_mut()
            .unwrap()
            .sum = Number::Double(sum);
        assert_eq!(
            kinds(&stored),
            [],
            "{sum}, by the order in which `$inc` came"
        );
    }
    stored.pages[0]
        .summary
        .get_mut("t")
        .unwrap()
        .as_mut()
        .unwrap()
        .count = 3;
    assert_eq!(
        kinds(&stored),
        [(Some(0), "summary")],
        "the other parts of the summary are still compared"
    );
    // If no order of additions can overflow, a sum that is not finite is wrong.
    let mut wrong = bucket(vec![page(0, false, &doubles(0..3))]);
    for sum in [f64::INFINITY, f64::NAN] {
        wrong.pages[0]
            .summary
            .get_mut("t")
            .unwrap()
            .as_mut()
            .unwrap()
            .sum = Number::Double(sum);
        assert_eq!(kinds(&wrong), [(Some(0), "summary")], "{sum}");
        let stored = audit(&wrong)[0].kind.stored();
        assert!(
            stored["sum"].is_null() && stored["min"] == 0.0,
            "JSON cannot represent {sum}: {stored}"
        );
    }
}

#[test]
fn every_difference_of_a_page_is_found() {
    let ints: Vec<(i64, V)> = (0..5).map(|i| (i, V::Int(i))).collect();
    type Change = fn(&mut StoredPage);
    let changes: [(&str, Change); 9] = [
        ("count", |p| p.count = Some(6)),
        ("count", |p| p.count = None),
        ("first_ts", |p| p.first_ts_ms = Some(1)),
        ("last_ts", |p| p.last_ts_ms = None),
        ("summary", |p| {
            p.summary.get_mut("t").unwrap().as_mut().unwrap().sum = Number::Int(11)
        }),
        ("summary", |p| {
            p.summary.get_mut("t").unwrap().as_mut().unwrap().min = Number::Int(-1)
        }),
        ("summary", |p| {
            p.summary.get_mut("t").unwrap().as_mut().unwrap().count = 4
        }),
        ("summary", |p| p.summary.clear()),
        ("summary", |p| p.summary.extend([("u".into(), None)])),
    ];
    for (name, change) in changes {
        let mut broken = bucket(vec![page(0, false, &ints)]);
        change(&mut broken.pages[0]);
        assert_eq!(kinds(&broken), [(Some(0), name)]);
    }
}

#[test]
fn duplicates_foreign_data_gaps_and_missing_seals_are_found() {
    let mut broken = bucket(vec![
        page(0, true, &doubles(0..3)),
        page(2, false, &doubles(2..5)),
        {
            let mut last = page(3, false, &[(HOUR, V::Int(1)), (-1, V::Int(1))]);
            (last.unreadable, last.count) = (2, Some(4));
            last
        },
    ]);
    let expected = [
        (Some(1), "missing_page"),
        (Some(2), "possible_duplicates"),
        (Some(2), "not_sealed"),
        (Some(3), "outside_bucket"),
        (Some(3), "unreadable"),
    ];
    assert_eq!(kinds(&broken), expected);
    broken.measured = Some(BucketMeasurements {
        rows: rows(&doubles(0..2)),
        ..BucketMeasurements::default()
    });
    let leftover = audit(&broken).remove(0);
    assert_eq!(
        (leftover.page, leftover.kind.name(), leftover.kind.is_note()),
        (None, "leftover_measurements", true)
    );
    let empty = bucket(vec![
        StoredPage {
            first_ts_ms: Some(0),
            ..page(0, true, &[])
        },
        page(1, false, &doubles(0..2)),
    ]);
    assert_eq!(
        kinds(&empty),
        [],
        "sealing a page before its first reading leaves it empty"
    );
}

#[test]
fn a_page_in_time_series_mode_is_compared_with_its_measurements() {
    let readings = doubles(0..10);
    let head = StoredPage {
        storage_mode: StorageMode::TimeSeries,
        rows: Rows::default(),
        ..page(0, false, &readings)
    };
    let mut sound = bucket(vec![head.clone()]);
    sound.measured = Some(BucketMeasurements {
        rows: rows(&readings),
        ..BucketMeasurements::default()
    });
    assert_eq!(kinds(&sound), []);
    let with = |pages: Vec<StoredPage>, measured: &[(i64, V)]| {
        let measured = Some(BucketMeasurements {
            rows: rows(measured),
            ..BucketMeasurements::default()
        });
        kinds(&StoredBucket {
            measured,
            ..bucket(pages)
        })
    };
    let twice = [&readings[..], &readings[3..4]].concat();
    assert_eq!(
        with(vec![head.clone()], &twice),
        [
            (Some(0), "count"),
            (Some(0), "summary"),
            (None, "possible_duplicates")
        ]
    );
    assert_eq!(
        with(vec![head.clone()], &[]),
        [(None, "missing_measurements")]
    );
    assert_eq!(with(vec![], &readings), [(None, "no_document")]);
    assert_eq!(with(vec![], &[]), []);
    assert_eq!(
        with(vec![head, page(1, false, &doubles(10..12))], &readings),
        [(Some(1), "stray_page")]
    );
}

/// What is left must not replace the summary; a document that counts too many can be repaired.
#[test]
fn measurements_that_were_removed_are_not_taken_for_a_wrong_count() {
    let readings = doubles(0..10);
    let series = |readings: &[(i64, V)]| StoredPage {
        storage_mode: StorageMode::TimeSeries,
        rows: Rows::default(),
        ..page(0, false, readings)
    };
    let with = |document: StoredPage, there: &[(i64, V)]| {
        kinds(&StoredBucket {
            measured: Some(BucketMeasurements {
                rows: rows(there),
                ..BucketMeasurements::default()
            }),
            ..bucket(vec![document])
        })
    };
    let missing = [(None, "missing_measurements")];
    // The first ones; the last; one in the middle with the greatest value.
    assert_eq!(with(series(&readings), &readings[4..]), missing);
    assert_eq!(with(series(&readings), &readings[..8]), missing);
    let mut peak = readings.clone();
    peak[5].1 = V::Double(1e6);
    let others = [&peak[..5], &peak[6..]].concat();
    assert_eq!(with(series(&peak), &others), missing);
    let twice = [&readings[..], &readings[3..5]].concat();
    assert_eq!(
        with(series(&twice), &readings),
        [(Some(0), "count"), (Some(0), "summary")]
    );
}

#[test]
fn pages_in_time_series_mode_are_compared_with_their_measurements_together() {
    let readings = doubles(0..10);
    let series = |n, sealed, readings: &[(i64, V)]| StoredPage {
        storage_mode: StorageMode::TimeSeries,
        rows: Rows::default(),
        ..page(n, sealed, readings)
    };
    let with = |pages: Vec<StoredPage>| {
        let measured = Some(BucketMeasurements {
            rows: rows(&readings),
            ..BucketMeasurements::default()
        });
        kinds(&StoredBucket {
            measured,
            ..bucket(pages)
        })
    };
    let pages = || {
        vec![
            series(0, true, &readings[..4]),
            series(1, true, &readings[4..7]),
            series(2, false, &readings[7..]),
        ]
    };
    assert_eq!(with(pages()), []);
    // As a recomputation leaves it: the split of the counts has no meaning, and each field is in
    // one page only.
    let mut recomputed = pages();
    let all = series(0, true, &readings);
    recomputed[0].summary.clear();
    recomputed[1] = StoredPage {
        count: Some(3),
        page: 1,
        ..all
    };
    recomputed[2].summary.clear();
    assert_eq!(with(recomputed), []);
    assert_eq!(
        with(pages()[..2].to_vec()),
        [
            (Some(0), "count"),
            (Some(0), "last_ts"),
            (Some(0), "summary")
        ]
    );
    let mut open = pages();
    open[1].sealed = false;
    assert_eq!(with(open), [(Some(1), "not_sealed")]);
    let gap = |kinds: Vec<(Option<u32>, &'static str)>| kinds.contains(&(Some(1), "missing_page"));
    assert!(gap(with(vec![pages().remove(0), pages().remove(2)])));
}
