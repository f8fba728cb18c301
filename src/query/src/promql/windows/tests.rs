//! Windows from summaries against those of the samples.

use proptest::prelude::*;

use super::*;

const HOUR: i64 = 3_600_000;

/// The requests of `need`, by kind; for days, only what was loaded of them or of their hours.
type Asked = [usize; 3];

fn bucket(samples: &[Sample], (start_ms, end_ms): (i64, i64), is_day: bool) -> SummarisedBucket {
    let stats = of_samples(samples, (i64::MIN, i64::MAX)).unwrap();
    let first_ts_ms = samples[0].ts_ms;
    let last_ts_ms = samples[samples.len() - 1].ts_ms;
    SummarisedBucket {
        start_ms,
        end_ms,
        is_day,
        first_ts_ms,
        last_ts_ms,
        stats,
        edge: None,
        samples: None,
        readings_removed: false,
    }
}

/// Loads what `need` requests; a day that needs its samples is replaced by its hours.
fn load(
    mut of: SummarisedBucket,
    chunk: &[Sample],
    windows: &Windows,
    to: &mut Vec<SummarisedBucket>,
) -> Asked {
    let mut asked = [0; 3];
    loop {
        let need = of.need(windows);
        match need {
            Need::Samples if of.is_day => {
                for (more, n) in hours(chunk, windows, to).into_iter().zip(&mut asked) {
                    *n += more;
                }
                return asked;
            }
            Need::Samples => of.samples = Some(chunk.to_vec()),
            Need::Edge => {
                let start_ms = of.start_ms;
                of.edge = Some(
                    chunk
                        .iter()
                        .filter(|s| s.ts_ms == start_ms)
                        .map(|s| s.value)
                        .collect(),
                );
            }
            Need::Nothing => {}
        }
        asked[need as usize] += 1;
        if need == Need::Nothing {
            to.push(of);
            return asked;
        }
    }
}

fn hours(samples: &[Sample], windows: &Windows, to: &mut Vec<SummarisedBucket>) -> Asked {
    let mut asked = [0; 3];
    for chunk in samples.chunk_by(|a, b| a.ts_ms.div_euclid(HOUR) == b.ts_ms.div_euclid(HOUR)) {
        let start_ms = chunk[0].ts_ms.div_euclid(HOUR) * HOUR;
        let more = load(
            bucket(chunk, (start_ms, start_ms + HOUR), false),
            chunk,
            windows,
            to,
        );
        asked.iter_mut().zip(more).for_each(|(n, more)| *n += more);
    }
    asked
}

/// A zone whose days have 24, 23, 24 and 25 hours.
fn day_of(ts_ms: i64) -> (i64, i64) {
    let starts = [0, 24, 47, 71, 96].map(|h| ts_ms.div_euclid(96 * HOUR) * 96 * HOUR + h * HOUR);
    let day = starts.windows(2).find(|day| ts_ms < day[1]).unwrap();
    (day[0], day[1])
}

/// The buckets of a series: days if `has_day` of their number is set, else hours.
fn buckets(samples: &[Sample], windows: &Windows, has_day: u64) -> (Vec<SummarisedBucket>, Asked) {
    let mut all = vec![];
    let mut asked = [0; 3];
    for chunk in samples.chunk_by(|a, b| day_of(a.ts_ms) == day_of(b.ts_ms)) {
        let day = day_of(chunk[0].ts_ms);
        let more = match has_day >> (day.0 / HOUR / 23).rem_euclid(64) & 1 {
            0 => hours(chunk, windows, &mut all),
            _ => load(bucket(chunk, day, true), chunk, windows, &mut all),
        };
        asked.iter_mut().zip(more).for_each(|(n, more)| *n += more);
    }
    (all, asked)
}

fn naive(samples: &[Sample], windows: &Windows) -> Vec<Option<WindowStats>> {
    (0..windows.steps)
        .map(|step| of_samples(samples, windows.bounds(step)))
        .collect()
}

fn time() -> impl Strategy<Value = i64> {
    // On the full hour, next to it, on a quarter, or anywhere.
    prop_oneof![
        3 => (-30i64..100).prop_map(|h| h * HOUR),
        1 => (-30i64..100, -2i64..3).prop_map(|(h, ms)| h * HOUR + ms),
        2 => (-120i64..400).prop_map(|q| q * HOUR / 4),
        2 => -30 * HOUR..100 * HOUR,
        // On the edges of days.
        2 => (-30 * HOUR..100 * HOUR, -1i64..2).prop_map(|(ts_ms, ms)| day_of(ts_ms).0 + ms),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn windows_from_summaries_are_those_of_the_samples(
        times in prop::collection::btree_map(time(), -5i32..5, 0..200),
        first_end_ms in time(),
        step_ms in prop_oneof![Just(HOUR), Just(24 * HOUR), Just(HOUR / 4), 1..2 * HOUR, 20 * HOUR..26 * HOUR],
        range_ms in prop_oneof![
            Just(HOUR), Just(3 * HOUR), Just(24 * HOUR), Just(72 * HOUR), 1..5 * HOUR, 20 * HOUR..80 * HOUR,
        ],
        steps in 1usize..40,
        needs in any::<(bool, bool, bool)>(),
        has_day in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
    ) {
        let samples: Vec<Sample> =
            times.into_iter().map(|(ts_ms, v)| Sample { ts_ms, value: f64::from(v) }).collect();
        let (needs_sum, needs_min, needs_max) = needs;
        let windows = Windows { first_end_ms, step_ms, steps, range_ms, needs_sum, needs_min, needs_max };
        let (buckets, _) = buckets(&samples, &windows, has_day);
        prop_assert!(buckets.is_sorted_by_key(|bucket| bucket.start_ms));
        for (got, wanted) in answer(&windows, &buckets).into_iter().zip(naive(&samples, &windows)) {
            let only = |stats: Option<WindowStats>| stats.map(|s| (
                s.count, s.sum.to_bits() | u64::from(s.sum == 0.0) << 63,
                needs_min.then_some(s.min.to_bits()), needs_max.then_some(s.max.to_bits()),
            ));
            prop_assert_eq!(only(got), only(wanted));
        }
    }
}

/// Of any sizes, so that the readings on an edge may be much larger than all others.
fn size() -> impl Strategy<Value = f64> {
    prop_oneof![
        1 => Just(0.0),
        3 => (-12i32..18, 1.0..10.0).prop_map(|(digits, v): (i32, f64)| v * 10f64.powi(digits)),
        2 => 0.0..1.0,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sums_without_a_large_reading_on_the_edge_are_those_of_the_samples(
        times in prop::collection::btree_map(time(), size(), 0..200),
        first_end_ms in (-30i64..100).prop_map(|h| h * HOUR),
        step_ms in prop_oneof![Just(HOUR), Just(24 * HOUR)],
        range_ms in prop_oneof![Just(HOUR), Just(3 * HOUR), Just(24 * HOUR)],
        has_day in prop_oneof![Just(0), Just(u64::MAX)],
    ) {
        let samples: Vec<Sample> =
            times.into_iter().map(|(ts_ms, value)| Sample { ts_ms, value }).collect();
        let windows = Windows {
            first_end_ms, step_ms, steps: 20, range_ms, needs_sum: true, needs_min: false, needs_max: false,
        };
        let (buckets, _) = buckets(&samples, &windows, has_day);
        for (got, wanted) in answer(&windows, &buckets).into_iter().zip(naive(&samples, &windows)) {
            let only = |stats: Option<WindowStats>| stats.map_or((0, 0.0), |s| (s.count, s.sum));
            let ((count, sum), (wanted_count, wanted_sum)) = (only(got), only(wanted));
            prop_assert_eq!(count, wanted_count);
            prop_assert!((sum - wanted_sum).abs() <= 1e-9 * wanted_sum, "{} {}", sum, wanted_sum);
        }
    }
}

#[test]
fn an_hour_is_read_if_its_edge_hides_the_rest_and_only_then() {
    let windows = Windows {
        first_end_ms: HOUR,
        step_ms: HOUR,
        steps: 1,
        range_ms: HOUR,
        needs_sum: true,
        needs_min: false,
        needs_max: false,
    };
    let ask = |edge: f64, value: f64| {
        let values = std::iter::once(edge).chain(std::iter::repeat_n(value, 59));
        let samples: Vec<Sample> = (0..)
            .zip(values)
            .map(|(minute, value)| Sample {
                ts_ms: minute * 60_000,
                value,
            })
            .collect();
        let (found, [_, _, read]) = buckets(&samples, &windows, 0);
        let sum = answer(&windows, &found)[0].map(|stats| stats.sum);
        (sum.unwrap(), read)
    };
    assert_eq!(ask(1e17, 0.5), (29.5, 1));
    let (sum, read) = ask(1e9, 0.001);
    assert!((sum - 0.059).abs() < 1e-12 && read == 1, "{sum} {read}");
    for (edge, value) in [
        (0.0, 0.0),
        (22.5, 22.5),
        (-1e300, -1e300),
        (0.0, 1e17),
        (100.0, 0.1),
        (5000.0, 1.0),
    ] {
        let (sum, read) = ask(edge, value);
        let wanted = 59.0 * value;
        assert!(
            (sum - wanted).abs() <= 1e-12 * wanted.abs(),
            "{edge} {value} {sum}"
        );
        assert_eq!(read, 0, "{edge} {value}");
    }
    // The rest is zero: the summary cannot tell that from a loss.
    assert_eq!(ask(5.0, 0.0), (0.0, 1));
}

#[test]
fn whole_hours_need_no_reading_or_only_those_on_the_edge() {
    let windows = Windows {
        first_end_ms: 2 * HOUR,
        step_ms: HOUR,
        steps: 20,
        range_ms: HOUR,
        needs_sum: false,
        needs_min: true,
        needs_max: false,
    };
    let sample = |ts_ms: i64| Sample {
        ts_ms,
        value: (ts_ms % 7) as f64,
    };
    let off: Vec<Sample> = (0..24 * 60).map(|m| sample(m * 60_000 + 30_000)).collect();
    assert_eq!(buckets(&off, &windows, 0).1, [24, 0, 0]);
    let on: Vec<Sample> = (0..24 * 60)
        .map(|m| sample(m * 60_000 + i64::from(m % 60 != 0)))
        .collect();
    let (_, [_, edges, all]) = buckets(&on, &windows, 0);
    assert!(edges >= 20 && all <= 8, "{edges} {all}");
    let within = Windows {
        first_end_ms: 2 * HOUR + HOUR / 2,
        steps: 1,
        range_ms: 5 * HOUR / 2,
        ..windows
    };
    assert_eq!(
        buckets(&off, &within, 0).1[2],
        1,
        "only the hour that is cut"
    );
}

#[test]
fn whole_days_need_no_hour_or_only_those_that_are_cut() {
    let days = |first_end_ms: i64| Windows {
        first_end_ms,
        step_ms: 24 * HOUR,
        steps: 4,
        range_ms: 24 * HOUR,
        needs_sum: true,
        needs_min: false,
        needs_max: false,
    };
    let sample = |ts_ms: i64| Sample { ts_ms, value: 1.0 };
    // 96 hours from 1970 on, in days of 24, 23, 24 and 25. Windows of 24 hours contain the
    // first two, and cut the others.
    let off: Vec<Sample> = (0..96 * 60).map(|m| sample(m * 60_000 + 30_000)).collect();
    let (found, asked) = buckets(&off, &days(24 * HOUR), u64::MAX);
    assert_eq!(found.iter().filter(|bucket| bucket.is_day).count(), 2);
    assert_eq!(
        asked,
        [2 + 24 + 25, 0, 0],
        "two days, the hours of the others, and no reading"
    );
    // On the full hour: only the readings on the edges of windows.
    let on: Vec<Sample> = (0..96 * 60).map(|m| sample(m * 60_000)).collect();
    let (found, [_, edges, all]) = buckets(&on, &days(24 * HOUR), u64::MAX);
    assert_eq!(
        (found.iter().filter(|bucket| bucket.is_day).count(), all),
        (2, 0)
    );
    assert_eq!(edges, 4, "at 0, 24, 48 and 72 hours");
    // Cut within an hour.
    let (_, asked) = buckets(&off, &days(24 * HOUR + HOUR / 2), u64::MAX);
    assert_eq!(asked[2], 4, "one hour for each edge");
}

#[test]
fn a_mean_is_finite_although_the_sum_overflows() {
    let windows = |first_end_ms: i64, hours: i64| Windows {
        first_end_ms,
        step_ms: HOUR,
        steps: 1,
        range_ms: hours * HOUR,
        needs_sum: true,
        needs_min: false,
        needs_max: false,
    };
    let ask = |values: &[f64], every_ms: i64, windows: Windows, has_day: u64| {
        let samples: Vec<Sample> = (0..)
            .zip(values)
            .map(|(n, value)| Sample {
                ts_ms: n * every_ms,
                value: *value,
            })
            .collect();
        let stats = answer(&windows, &buckets(&samples, &windows, has_day).0)[0].unwrap();
        (stats.sum, stats.mean() / 1e308)
    };
    let is_near = |mean: f64, wanted: f64| (mean - wanted).abs() < 1e-12;
    for has_day in [0, u64::MAX] {
        // The sum of each hour is finite, that of all is not.
        let (sum, mean) = ask(&[0.5e308; 8], HOUR / 2, windows(4 * HOUR, 4), has_day);
        assert!(sum == f64::INFINITY && is_near(mean, 0.5), "{sum} {mean}");
        // Nor is that of an hour.
        let values = [-1e308, 1.0, 1.0, -1.5e308, -1.7e308, -1.7e308];
        let (sum, mean) = ask(&values, HOUR / 2, windows(3 * HOUR, 3), has_day);
        assert!(
            sum == f64::NEG_INFINITY && is_near(mean, -4.9 / 5.0),
            "{sum} {mean}"
        );
    }
    // Nor is that of an hour without the reading on its edge.
    let (sum, mean) = ask(&[1.5e308, -1e308, -1e308], 60_000, windows(HOUR, 1), 0);
    assert!(
        sum == f64::NEG_INFINITY && is_near(mean, -1.0),
        "{sum} {mean}"
    );
}

/// What the module says about two readings of one millisecond.
#[test]
fn a_summary_counts_two_readings_of_a_millisecond() {
    let stats = WindowStats {
        count: 3,
        sum: 6.0,
        overflow_mean: None,
        min: 1.0,
        max: 3.0,
    };
    let mut hour = SummarisedBucket {
        start_ms: HOUR,
        end_ms: 2 * HOUR,
        is_day: false,
        first_ts_ms: HOUR,
        last_ts_ms: HOUR + 9,
        stats,
        edge: Some(vec![1.0, 2.0]),
        samples: None,
        readings_removed: false,
    };
    let window = |end_ms: i64| Windows {
        first_end_ms: end_ms,
        step_ms: 1,
        steps: 1,
        range_ms: HOUR,
        needs_sum: true,
        needs_min: false,
        needs_max: false,
    };
    let counts = |hour: &SummarisedBucket, end_ms| {
        answer(&window(end_ms), std::slice::from_ref(hour))[0].map(|s| (s.count, s.sum))
    };
    assert_eq!(
        counts(&hour, HOUR + 9),
        Some((3, 6.0)),
        "the whole bucket: both"
    );
    assert_eq!(
        counts(&hour, 2 * HOUR),
        Some((1, 3.0)),
        "without the edge: neither"
    );
    assert_eq!(
        counts(&hour, HOUR),
        Some((1, 2.0)),
        "only the edge: the last one"
    );
    hour.samples = Some(vec![
        Sample {
            ts_ms: HOUR,
            value: 2.0,
        },
        Sample {
            ts_ms: HOUR + 9,
            value: 3.0,
        },
    ]);
    assert_eq!(counts(&hour, HOUR + 5), Some((1, 2.0)), "cut: the last one");
}

#[test]
fn a_removed_hour_answers_windows_that_cover_it_although_another_cuts_it() {
    let windows = Windows {
        first_end_ms: 2 * HOUR,
        step_ms: HOUR / 2,
        steps: 3,
        range_ms: 2 * HOUR,
        needs_sum: true,
        needs_min: false,
        needs_max: false,
    };
    // Readings of the first two hours; the first of each is on the full hour with `shift_ms` 0.
    let counts = |shift_ms: i64, left_from_ms: i64| {
        let samples: Vec<Sample> = (0..120)
            .map(|minute| Sample {
                ts_ms: minute * 60_000 + shift_ms,
                value: 1.0,
            })
            .collect();
        let hours = samples.chunks(60).zip([0, HOUR]).map(|(of_hour, start)| {
            let left = of_hour.iter().filter(|s| s.ts_ms >= left_from_ms);
            let left: Vec<Sample> = left.copied().collect();
            let edge = left.iter().filter(|s| s.ts_ms == start);
            let mut hour = bucket(of_hour, (start, start + HOUR), false);
            hour.edge = Some(edge.map(|s| s.value).collect());
            if hour.need(&windows) == Need::Samples {
                hour.readings_removed = left.len() < 60;
                hour.samples = Some(left);
            }
            assert_eq!(
                hour.samples.is_some(),
                start == 0,
                "only the first hour is cut"
            );
            hour
        });
        let hours: Vec<SummarisedBucket> = hours.collect();
        answer(&windows, &hours)
            .into_iter()
            .map(|stats| stats.map(|s| (s.count, s.sum)))
            .collect::<Vec<_>>()
    };
    let whole = |n: u64| Some((n, n as f64));
    // Ends at 2:00, 2:30 and 3:00, each with a range of two hours.
    assert_eq!(
        counts(30_000, i64::MAX),
        [whole(120), whole(60), whole(60)],
        "the second window has nothing of the hour that it cuts"
    );
    assert_eq!(counts(30_000, HOUR / 2), [whole(120), whole(90), whole(60)]);
    assert_eq!(
        counts(0, i64::MAX),
        [whole(120), whole(60), whole(60)],
        "the reading on an edge counts with its hour"
    );
    assert_eq!(counts(0, 0), [whole(119), whole(89), whole(59)]);
}
