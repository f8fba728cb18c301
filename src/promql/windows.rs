//! Windows answered from the summaries of hours and days. Pure.
//!
//! **The edges.** A window is `(start, end]`, a bucket `[start, end)`. So a sensor that reports on
//! the full hour has a sample on both edges of every window of whole hours: the one at the window's
//! start is in the bucket but not in the window, and the one at its end is in the window but in the
//! next bucket. The bucket's first and last time show whether there are such samples at all. For a
//! window and a bucket with readings from `first` to `last`:
//!
//! 1. `first > start` and `last <= end`: all samples are in the window, so the summary counts.
//! 2. `last <= start` or `first > end`: none is.
//! 3. The window starts with the bucket (`first == start`) and contains the rest of it: the summary
//!    without the readings of this one millisecond. Sum and count are corrected. The minimum holds
//!    unless one of these readings is the minimum; likewise the maximum. Otherwise, or if the sum
//!    has overflowed, rule 5.
//! 4. The window ends with the bucket's first millisecond (`first == end`): of the bucket only the
//!    sample there.
//! 5. Any other: the samples of the bucket.
//!
//! Rules 3 and 4 need the readings of one millisecond, rule 5 those of the bucket; rules 1 and 2
//! need none.
//!
//! **Days.** A day is a bucket made of hours, of 23, 24 or 25 of them, or of another number if the
//! clock was changed otherwise. The rules are the same, because they use nothing but its start,
//! first and last time, and summary. But if rule 5 applies to any window, the caller replaces the
//! day by its hours, and the rules apply to each of them. So readings of the same hours are loaded
//! as without days.
//!
//! **Two readings of one millisecond** with the same field are one sample, the last in stored
//! order. A summary counts both. So a window that covers their whole bucket counts both, and one
//! that cuts through it counts one; the docs say so.
//!
//! **Rounding.** Sums are added bucket by bucket. They differ from a sum over all samples in the
//! last digits.

use super::series::{Sample, WindowStats, Windows};

/// One bucket of a series: an hour, or a day of hours.
#[derive(Debug, Clone, PartialEq)]
pub struct SummarisedBucket {
    /// Its start, ms since 1970.
    pub start_ms: i64,
    /// Its end, exclusive.
    pub end_ms: i64,
    /// Whether it is made of hours.
    pub is_day: bool,
    /// The earliest time of its readings, of any field.
    pub first_ts_ms: i64,
    /// The latest time of its readings, of any field.
    pub last_ts_ms: i64,
    /// The field's summary.
    pub stats: WindowStats,
    /// The field's values in the readings at `start_ms`, in stored order, once they are loaded.
    pub edge: Option<Vec<f64>>,
    /// The samples of the bucket, once they are loaded.
    pub samples: Option<Vec<Sample>>,
}

/// What must be loaded of a bucket before its windows can be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// The summary suffices.
    Nothing,
    /// The readings at the bucket's start.
    Edge,
    /// All samples; of a day, its hours.
    Samples,
}

/// How a bucket contributes to a window: the rules of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    None,
    AllButEdge,
    Edge,
    Some,
}

impl SummarisedBucket {
    fn part(&self, (start, end): (i64, i64)) -> Part {
        let first = self.first_ts_ms;
        let last = self.last_ts_ms;
        match () {
            () if last <= start || first > end => Part::None,
            () if first > start && last <= end => Part::All,
            () if first == start && first == self.start_ms && last <= end => Part::AllButEdge,
            () if first == end && first == self.start_ms => Part::Edge,
            () => Part::Some,
        }
    }

    /// The parts still to be loaded for these windows.
    pub fn need(&self, windows: &Windows) -> Need {
        if self.samples.is_some() {
            return Need::Nothing;
        }
        let need = |step| match (self.part(windows.bounds(step)), &self.edge) {
            (Part::None, _) => Need::Nothing,
            (Part::All, _) if self.stats.sum.is_finite() => Need::Nothing,
            (Part::Some | Part::All, _) => Need::Samples,
            (Part::AllButEdge, _) if !self.stats.sum.is_finite() => Need::Samples,
            (Part::AllButEdge | Part::Edge, None) => Need::Edge,
            (Part::Edge, Some(_)) => Need::Nothing,
            (Part::AllButEdge, Some(edge)) => {
                match edge.iter().any(|v| self.is_extreme(*v, windows)) {
                    true => Need::Samples,
                    false => Need::Nothing,
                }
            }
        };
        self.steps(windows).map(need).max().unwrap_or(Need::Nothing)
    }

    fn is_extreme(&self, value: f64, windows: &Windows) -> bool {
        (windows.needs_min && value <= self.stats.min)
            || (windows.needs_max && value >= self.stats.max)
    }

    /// The windows that may contain samples of this bucket.
    fn steps(&self, windows: &Windows) -> std::ops::Range<usize> {
        let step = windows.step_ms.max(1);
        let first = (self.first_ts_ms - windows.first_end_ms + step - 1)
            .div_euclid(step)
            .max(0);
        let after =
            (self.last_ts_ms + windows.range_ms - windows.first_end_ms).div_euclid(step) + 1;
        let after = after.clamp(0, windows.steps as i64);
        (first.min(after) as usize)..(after as usize)
    }

    fn contribution(&self, bounds: (i64, i64)) -> Option<WindowStats> {
        if let Some(samples) = &self.samples {
            return of_samples(samples, bounds);
        }
        let edge = self.edge.as_deref().unwrap_or_default();
        match self.part(bounds) {
            Part::None | Part::Some => None,
            Part::All => Some(self.stats),
            Part::AllButEdge => {
                let count = self.stats.count.saturating_sub(edge.len() as u64);
                let sum = self.stats.sum - edge.iter().sum::<f64>();
                (count > 0).then_some(WindowStats {
                    count,
                    sum,
                    ..self.stats
                })
            }
            Part::Edge => edge.last().map(|v| WindowStats {
                count: 1,
                sum: *v,
                min: *v,
                max: *v,
            }),
        }
    }
}

/// The statistics of each window. `buckets`: ordered, no time is in two of them, and nothing is to
/// be loaded of any.
pub fn answer(windows: &Windows, buckets: &[SummarisedBucket]) -> Vec<Option<WindowStats>> {
    let mut all: Vec<Option<WindowStats>> = vec![None; windows.steps];
    for bucket in buckets {
        for step in bucket.steps(windows) {
            let window = &mut all[step];
            *window = match (*window, bucket.contribution(windows.bounds(step))) {
                (None, more) => more,
                (held, None) => held,
                (Some(held), Some(more)) => Some(WindowStats {
                    count: held.count + more.count,
                    sum: held.sum + more.sum,
                    min: held.min.min(more.min),
                    max: held.max.max(more.max),
                }),
            };
        }
    }
    all
}

fn of_samples(samples: &[Sample], (start, end): (i64, i64)) -> Option<WindowStats> {
    let from = samples.partition_point(|s| s.ts_ms <= start);
    let to = samples.partition_point(|s| s.ts_ms <= end);
    let values = samples.get(from..to)?.iter().map(|s| s.value);
    values
        .map(|v| WindowStats {
            count: 1,
            sum: v,
            min: v,
            max: v,
        })
        .reduce(|a, b| WindowStats {
            count: a.count + b.count,
            sum: a.sum + b.sum,
            min: a.min.min(b.min),
            max: a.max.max(b.max),
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: i64 = 3_600_000;

    /// The requests of `need`, by kind; for days, only what was loaded of them or of their hours.
    type Asked = [usize; 3];

    fn bucket(
        samples: &[Sample],
        (start_ms, end_ms): (i64, i64),
        is_day: bool,
    ) -> SummarisedBucket {
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
        let starts =
            [0, 24, 47, 71, 96].map(|h| ts_ms.div_euclid(96 * HOUR) * 96 * HOUR + h * HOUR);
        let day = starts.windows(2).find(|day| ts_ms < day[1]).unwrap();
        (day[0], day[1])
    }

    /// The buckets of a series: days if `has_day` of their number is set, else hours.
    fn buckets(
        samples: &[Sample],
        windows: &Windows,
        has_day: u64,
    ) -> (Vec<SummarisedBucket>, Asked) {
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
            extremes in any::<(bool, bool)>(),
            has_day in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        ) {
            let samples: Vec<Sample> =
                times.into_iter().map(|(ts_ms, v)| Sample { ts_ms, value: f64::from(v) }).collect();
            let (needs_min, needs_max) = extremes;
            let windows = Windows { first_end_ms, step_ms, steps, range_ms, needs_min, needs_max };
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

    #[test]
    fn whole_hours_need_no_reading_or_only_those_on_the_edge() {
        let windows = Windows {
            first_end_ms: 2 * HOUR,
            step_ms: HOUR,
            steps: 20,
            range_ms: HOUR,
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

    /// What the module says about two readings of one millisecond.
    #[test]
    fn a_summary_counts_two_readings_of_a_millisecond() {
        let stats = WindowStats {
            count: 3,
            sum: 6.0,
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
        };
        let window = |end_ms: i64| Windows {
            first_end_ms: end_ms,
            step_ms: 1,
            steps: 1,
            range_ms: HOUR,
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
}
