//! Hours against naive ones. The values are multiples of an eighth, so sums of doubles are exact.

use model::summary::{by_name, summarise};
use model::{Number, SensorPatterns, Zone};

use super::*;
use crate::order::sorted;

const EIGHTH: f64 = 0.125;

fn weighting() -> impl Strategy<Value = Weighting> {
    let line = prop::sample::select(vec![Line::Straight, Line::Step]);
    let gap_max_ms = prop::sample::select(vec![i64::MAX, 20_000, 0]);
    (line, gap_max_ms).prop_map(|(line, gap_max_ms)| Weighting { line, gap_max_ms })
}

fn exact_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => (-5000i64..5000).prop_map(|n| Value::Double(n as f64 * EIGHTH)),
        4 => (-5000i64..5000).prop_map(Value::Int),
        1 => any::<bool>().prop_map(Value::Bool),
        1 => prop::sample::select(vec!["on", "off"]).prop_map(|t| Value::Str(t.into())),
    ]
}

fn exact_readings() -> impl Strategy<Value = Vec<Plain>> {
    let reading = (0i64..400, exact_value(), exact_value()).prop_map(|(ts, a, b)| Plain {
        ts_ms: ts * 500 - 20_000,
        flags: RowFlags::default(),
        values: vec![("a", a), ("b", b)],
    });
    prop::collection::vec(reading, 1..60)
}

fn hours(rows: &Rows, bounds: &[i64], weighting: Weighting) -> DayHours {
    let weightings = Weightings::from(weighting).with_sketches(None);
    let mut encoder = HoursEncoder::new(bounds.to_vec(), weightings);
    encoder.add(rows);
    encoder.finish()
}

/// The field's values of each time in a span, in the order of columns.
fn naive_values(rows: &Rows, field: &str, span: &[i64]) -> Vec<(i64, Value)> {
    let rows = sorted(rows).into_iter();
    rows.filter(|row| (span[0]..span[1]).contains(&row.ts_ms))
        .filter_map(|row| {
            Some((
                row.ts_ms,
                row.named().find(|(n, _)| *n == field)?.1.to_value(),
            ))
        })
        .collect()
}

/// The last value of each time.
fn last_of_each<T: Clone>(values: &[(i64, T)]) -> Vec<(i64, T)> {
    let groups = values.chunk_by(|a, b| a.0 == b.0);
    groups.map(|same| same[same.len() - 1].clone()).collect()
}

fn naive_numbers(values: &[(i64, Value)], weighting: Weighting) -> Option<Numbers> {
    let all: Vec<(i64, Number)> = values
        .iter()
        .filter_map(|(ts, v)| Some((*ts, v.as_ref().num()?)))
        .collect();
    let samples = last_of_each(&all);
    let first = *samples.first()?;
    let last = samples[samples.len() - 1];
    let extreme = |wins: fn(f64, f64) -> bool| {
        let better = |best: (i64, Number), next: &(i64, Number)| {
            if wins(next.1.as_f64(), best.1.as_f64()) {
                *next
            } else {
                best
            }
        };
        all.iter().fold(all[0], better)
    };
    let (min_ts_ms, min) = extreme(|a, b| a < b);
    let (max_ts_ms, max) = extreme(|a, b| a > b);
    // Exact: in eighths.
    let eighths: Vec<i128> = all
        .iter()
        .map(|(_, v)| (v.as_f64() / EIGHTH) as i128)
        .collect();
    let n = all.len() as i128;
    let sum: i128 = eighths.iter().sum();
    let squares: i128 = eighths.iter().map(|v| v * v).sum();
    let is_int = all.iter().all(|(_, v)| matches!(v, Number::Int(_)));
    let mut naive = Numbers {
        count: all.len() as u64,
        min,
        max,
        sum: if is_int {
            Number::Int(sum as i64 / 8)
        } else {
            Number::Double(sum as f64 * EIGHTH)
        },
        first: first.1,
        last: last.1,
        first_ts_ms: first.0,
        last_ts_ms: last.0,
        min_ts_ms,
        max_ts_ms,
        sum_sq: (n * squares - sum * sum) as f64 / n as f64 * EIGHTH * EIGHTH,
        increase: 0.0,
        integral: 0.0,
        covered_ms: 0,
        sketch: None,
    };
    let sketch = naive.sketch.get_or_insert_default();
    all.iter().for_each(|(_, value)| sketch.add(value.as_f64()));
    for pair in samples.windows(2) {
        let a = pair[0].1.as_f64();
        let b = pair[1].1.as_f64();
        naive.increase += if b < a { b } else { b - a };
        let ms = pair[1].0 - pair[0].0;
        if ms <= weighting.gap_max_ms {
            naive.covered_ms += ms;
            naive.integral += ms as f64
                * if weighting.line == Line::Step {
                    a
                } else {
                    (a + b) / 2.0
                };
        }
    }
    Some(naive)
}

fn naive_states(values: &[(i64, Value)], weighting: Weighting) -> Option<States> {
    let state = |value: &Value| match value {
        Value::Bool(v) => Some(v.to_string()),
        Value::Str(v) => Some(v.clone()),
        _ => None,
    };
    let first = values.first()?.0;
    let mut state_ms = std::collections::BTreeMap::new();
    for state in values.iter().filter_map(|(_, value)| state(value)) {
        state_ms.insert(state, 0);
    }
    let last = last_of_each(values);
    for pair in last.windows(2) {
        let ms = pair[1].0 - pair[0].0;
        if let Some(state) = state(&pair[0].1).filter(|_| ms <= weighting.gap_max_ms) {
            *state_ms.get_mut(&state)? += ms;
        }
    }
    let (last_ts_ms, value) = &last[last.len() - 1];
    (!state_ms.is_empty()).then(|| States {
        first_ts_ms: first,
        last_ts_ms: *last_ts_ms,
        last: state(value),
        state_ms,
    })
}

/// Equal, apart from the last digits of the squares.
fn assert_same(found: &FieldHour, naive: &FieldHour) {
    let mut found = found.clone();
    if let (Some(a), Some(b)) = (&mut found.numbers, &naive.numbers) {
        let scale = b.sum_sq.max(1e-9 * b.mean() * b.mean());
        assert!(
            (a.sum_sq - b.sum_sq).abs() <= 1e-12 * scale,
            "{} {}",
            a.sum_sq,
            b.sum_sq
        );
        a.sum_sq = b.sum_sq;
    }
    assert_eq!(&found, naive);
}

proptest! {
    #[test]
    fn hours_and_merges_are_what_readings_give(
        readings in exact_readings(),
        mut bounds in prop::collection::btree_set(-20_000i64..180_000, 2..8),
        weighting in weighting(),
    ) {
        let rows = rows(&readings);
        let bounds: Vec<i64> = std::mem::take(&mut bounds).into_iter().collect();
        let found = hours(&rows, &bounds, weighting);
        let whole_bounds = [bounds[0], bounds[bounds.len() - 1]];
        for field in ["a", "b"] {
            let naive = |span: &[i64]| {
                let values = naive_values(&rows, field, span);
                (!values.is_empty()).then(|| FieldHour {
                    numbers: naive_numbers(&values, weighting),
                    states: naive_states(&values, weighting),
                })
            };
            let spans = bounds.windows(2).map(naive).enumerate();
            let expected: Vec<_> = spans.filter_map(|(i, hour)| Some((i, hour?))).collect();
            let hours = found.fields.get(field).cloned().unwrap_or_default();
            prop_assert_eq!(hours.len(), expected.len());
            for ((i, hour), (j, naive)) in hours.iter().zip(&expected) {
                prop_assert_eq!(i, j);
                assert_same(hour, naive);
            }
            let merged = hours.into_iter().map(|(_, hour)| hour);
            let merged = merged.reduce(|all, hour| all.merge(&hour, weighting));
            match (merged, naive(&whole_bounds)) {
                (Some(merged), Some(naive)) => assert_same(&merged, &naive),
                (merged, naive) => prop_assert_eq!(merged, naive),
            }
        }
    }

    #[test]
    fn sums_are_those_of_a_page(readings in readings(60)) {
        let rows = rows(&readings);
        let mut in_order = Rows::default();
        sorted(&rows).iter().for_each(|row| in_order.push_row(row));
        let summary = by_name(in_order.fields(), &summarise(&in_order));
        let weighting = Weighting { line: Line::Straight, gap_max_ms: i64::MAX };
        let found = hours(&rows, &[i64::MIN, i64::MAX], weighting);
        let numbers = |name: &String| found.fields[&**name][0].1.numbers.clone();
        for (name, expected) in &summary {
            let numbers = numbers(name).expect("the page has numbers");
            // Kinds and bits.
            let bits = |n: Number| (matches!(n, Number::Int(_)), n.as_f64().to_bits());
            let found = [numbers.min, numbers.max, numbers.sum].map(bits);
            prop_assert_eq!(found, [expected.min, expected.max, expected.sum].map(bits));
            prop_assert_eq!(numbers.count, u64::from(expected.count));
        }
        let with_numbers = found.fields.values().filter(|hours| hours[0].1.numbers.is_some());
        prop_assert_eq!(with_numbers.count(), summary.len());
    }
}

#[test]
fn the_deviation_of_large_numbers_is_exact_in_a_span_and_close_after_merges() {
    let weighting = Weighting {
        line: Line::Straight,
        gap_max_ms: i64::MAX,
    };
    for (mean, within, merged_within) in
        [(0.0, 1e-13, 1e-13), (1e6, 1e-13, 1e-9), (1e9, 1e-13, 1e-6)]
    {
        let mut random = fastrand::Rng::with_seed(5);
        let values: Vec<f64> = (0..1440).map(|_| mean + 2.0 * random.f64() - 1.0).collect();
        let mut rows = Rows::default();
        for (minute, value) in (0..).zip(&values) {
            rows.push_named(
                minute * 60_000,
                RowFlags::default(),
                &[("v", Value::Double(*value).as_ref())],
            );
        }
        // Exact: the distances from `mean` are.
        let exact = |values: &[f64]| {
            let distances: Vec<f64> = values.iter().map(|v| v - mean).collect();
            let own_mean = distances.iter().sum::<f64>() / values.len() as f64;
            distances
                .iter()
                .map(|d| (d - own_mean).powi(2))
                .sum::<f64>()
        };
        let is_close = |found: f64, expected: f64, within: f64| {
            assert!(
                (found / expected - 1.0).abs() < within,
                "{mean}: {found} {expected}"
            );
        };
        let bounds: Vec<i64> = (0..=24).map(|hour| hour * 3_600_000).collect();
        let found = hours(&rows, &bounds, weighting);
        let spans = &found.fields["v"];
        for ((_, hour), values) in spans.iter().zip(values.chunks(60)) {
            is_close(hour.numbers.as_ref().unwrap().sum_sq, exact(values), within);
        }
        let merged = spans.iter().map(|(_, hour)| hour.clone());
        let merged = merged
            .reduce(|all, hour| all.merge(&hour, weighting))
            .unwrap();
        is_close(
            merged.numbers.unwrap().sum_sq,
            exact(&values),
            merged_within,
        );
    }
}

#[test]
fn a_day_of_25_hours_has_25_spans_and_readings_outside_do_not_count() {
    let zone: Zone = "Europe/Berlin".parse::<chrono_tz::Tz>().unwrap().into();
    let day = zone.day(1_729_987_200_000);
    assert_eq!(day.end_ms - day.start_ms, 25 * 3_600_000);
    let bounds: Vec<i64> = (0..=25)
        .map(|hour| day.start_ms + hour * 3_600_000)
        .collect();
    let mut rows = Rows::default();
    for minute in -60..26 * 60 {
        let ts_ms = day.start_ms + minute * 60_000;
        rows.push_named(
            ts_ms,
            RowFlags::default(),
            &[("n", Value::Int(minute).as_ref())],
        );
    }
    let weighting = Weighting {
        line: Line::Straight,
        gap_max_ms: i64::MAX,
    };
    let found = hours(&rows, &bounds, weighting);
    let counts = found.fields["n"]
        .iter()
        .map(|(span, hour)| (*span, hour.numbers.as_ref().unwrap().count));
    assert!(counts.eq((0..25).map(|span| (span, 60))));
    assert!(hours(&rows, &[], weighting).fields.is_empty());
}

#[test]
fn many_states_and_many_fields_are_bounded() {
    let mut rows = Rows::default();
    let long = "x".repeat(STATE_BYTES_MAX + 1);
    for i in 0..30 {
        let text = if i < 28 {
            format!("state {i:02}")
        } else {
            long.clone()
        };
        rows.push_named(
            i * 1000,
            RowFlags::default(),
            &[("s", Value::Str(text).as_ref())],
        );
    }
    let weighting = Weighting {
        line: Line::Step,
        gap_max_ms: i64::MAX,
    };
    let found = hours(&rows, &[0, 60_000], weighting);
    let states = found.fields["s"][0].1.states.as_ref().unwrap();
    assert_eq!(states.state_ms.len(), STATES_MAX + 1);
    assert_eq!(states.state_ms[OTHER_STATES], 13_000);
    assert_eq!(states.last.as_deref(), Some(OTHER_STATES));
    let bounds: Vec<i64> = (0..=FIELD_HOURS_MAX as i64 / 2).collect();
    let mut rows = Rows::default();
    let values = ["c", "a", "b"].map(|name| (name, Value::Int(1)));
    rows.push_named(
        5,
        RowFlags::default(),
        &values.each_ref().map(|(n, v)| (*n, v.as_ref())),
    );
    let found = hours(&rows, &bounds, weighting);
    assert!(found.is_truncated && found.fields.keys().map(|name| &**name).eq(["a", "b"]));
}

#[test]
fn the_first_list_that_selects_a_field_has_its_rule() {
    let rule = |line, is_sketched| FieldRule { line, is_sketched };
    let names = |list: &[&str]| SensorPatterns::parse(list.iter().copied()).unwrap();
    let others = Weighting {
        line: Line::Straight,
        gap_max_ms: 7,
    };
    let weightings = Weightings::new(
        others,
        [
            (names(&["valve", "set*"]), rule(Line::Step, true)),
            (names(&["s*"]), rule(Line::Straight, false)),
            (names(&["*_state"]), rule(Line::Step, false)),
        ],
    );
    let steps = ["valve", "setpoint", "a_state"];
    for field in ["valve", "setpoint", "a_state", "s_state", "temp"] {
        let line = match steps.contains(&field) {
            true => Line::Step,
            false => Line::Straight,
        };
        assert_eq!(
            weightings.weighting_of(field),
            Weighting { line, ..others },
            "{field}"
        );
        let is_sketched = ["valve", "setpoint"].contains(&field);
        assert_eq!(weightings.has_sketch(field), is_sketched, "{field}");
        assert!(weightings.with_sketches(None).has_sketch(field));
        let one = weightings.with_sketches(Some("temp"));
        assert_eq!(one.has_sketch(field), field == "temp");
    }
    assert_eq!(Weightings::from(others).weighting_of("valve"), others);
}

#[test]
fn the_sketches_of_a_day_are_bounded() {
    let mut rows = Rows::default();
    for at in 0..SKETCH_BINS_MAX / 40 {
        let value = Value::Double(1.02f64.powi(at as i32 % 1900));
        let fields: Vec<String> = (10..99).map(|n| format!("f{n}")).collect();
        let values: Vec<_> = fields
            .iter()
            .map(|name| (name.as_str(), value.as_ref()))
            .collect();
        rows.push_named(at as i64, RowFlags::default(), &values);
    }
    let weighting = Weighting {
        line: Line::Straight,
        gap_max_ms: i64::MAX,
    };
    let mut found = hours(&rows, &[0, 1 << 30], weighting);
    assert!(found.are_sketched(None));
    found.limit_sketches();
    assert!(found.are_sketched(Some("f10")) && !found.are_sketched(None));
    let bins = |name: &str| {
        let numbers = found.fields[name][0].1.numbers.as_ref().unwrap();
        numbers.sketch.as_ref().map(|sketch| sketch.bins().len())
    };
    let of_one = bins("f10").unwrap();
    assert!(of_one > 1000, "{of_one}");
    let all: Vec<_> = found.fields.keys().filter_map(|name| bins(name)).collect();
    assert_eq!(all.len(), SKETCH_BINS_MAX / of_one);
    assert_eq!(bins("f98"), None);
}
