//! The series that are queried.

use query::promql::{Labels, Matcher, Sample, SelectedSeries, SelectorRequest, Series, SeriesData};

/// A full hour, ms since 1970.
pub(super) const T0: i64 = 1_699_999_200_000;
pub(super) const HOUR: i64 = 3_600_000;

/// Two sites, sensors with and without a floor, a counter with resets, gaps, a series on the full
/// hour, equal values.
pub(super) fn series() -> Vec<Series> {
    let mut rng = fastrand::Rng::with_seed(17);
    let mut all = vec![];
    for (i, (site, floor)) in [
        ("north", "1"),
        ("north", "2"),
        ("south", "1"),
        ("south", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("S{}", i * 5 + 1);
        for (name, until) in [("temp", 4), ("hum", 3)] {
            if i < until {
                let labels = [
                    ("__name__", name),
                    ("sensor_id", &id),
                    ("site", site),
                    ("floor", floor),
                ];
                // The first reports on the full minute, the others next to it.
                let shift = i as i64 * 7_300;
                let value = |rng: &mut fastrand::Rng| f64::from(rng.i32(-20..60)) / 4.0;
                all.push(made(&labels, shift, 60_000, || value(&mut rng)));
            }
        }
        if i < 2 {
            let labels = [
                ("__name__", "energy_total"),
                ("sensor_id", &id),
                ("site", site),
            ];
            let mut count = 0.0;
            all.push(made(&labels, 1_000, 30_000, || {
                count = if rng.u32(0..40) == 0 {
                    0.0
                } else {
                    count + f64::from(rng.u32(0..9))
                };
                count
            }));
        }
    }
    let mut sparse = made(
        &[
            ("__name__", "sparse"),
            ("sensor_id", "S1"),
            ("site", "north"),
        ],
        11_000,
        600_000,
        || 0.0,
    );
    sparse
        .samples
        .iter_mut()
        .for_each(|s| s.value = f64::from(rng.u32(0..5)));
    sparse.samples.retain(|_| rng.u32(0..3) > 0);
    all.push(sparse);
    all.push(made(
        &[("__name__", "on_hour"), ("sensor_id", "S9")],
        0,
        HOUR,
        || 1.5,
    ));
    all.push(made(
        &[
            ("__name__", "air.quality-2"),
            ("sensor_id", "S1"),
            ("tag with space", "x"),
        ],
        0,
        300_000,
        || 7.0,
    ));
    // Buckets of a histogram, some of which decrease, and one of a bound that is no number.
    for (path, bounds) in [
        ("/a", &["0.1", "0.5", "1", "+Inf"][..]),
        ("/b", &["-1", "2.5", "+Inf"]),
        ("/c", &["1", "2"]),
        ("/d", &["+Inf", "x"]),
    ] {
        let mut observed = 0.0;
        for bound in bounds {
            let labels = [("__name__", "took_bucket"), ("le", bound), ("path", path)];
            let mut count = observed * 50.0;
            observed += f64::from(rng.i32(-1..6));
            let each = observed;
            all.push(made(&labels, 2_000, 60_000, || {
                count += each.max(0.0);
                count
            }));
        }
    }
    all
}

fn made(labels: &[(&str, &str)], shift: i64, every: i64, mut value: impl FnMut() -> f64) -> Series {
    let times = (0..)
        .map(|n| T0 + shift + n * every)
        .take_while(|ts| *ts <= T0 + 3 * HOUR);
    Series {
        labels: Labels::from_pairs(labels),
        samples: times
            .map(|ts_ms| Sample {
                ts_ms,
                value: value(),
            })
            .collect(),
    }
}

/// What a store would answer.
pub(super) fn select(all: &[Series], request: &SelectorRequest) -> Vec<SelectedSeries> {
    let matches = |series: &&Series| {
        request
            .matchers
            .iter()
            .all(|m: &Matcher| m.matches(series.labels.get(&m.name)))
    };
    let wanted = |s: &&Sample| s.ts_ms > request.after_ms() && s.ts_ms <= request.to_ms();
    all.iter()
        .filter(matches)
        .map(|series| SelectedSeries {
            labels: series.labels.clone(),
            data: SeriesData::Samples(series.samples.iter().filter(wanted).copied().collect()),
        })
        .collect()
}
