//! Windows answered from the sketches of buckets. Pure.
//!
//! As in [`super::windows`], a window is `(start, end]` and a bucket `[start, end)`, so a sensor that
//! reports on the full hour has a sample on both edges of every window of whole hours. The first sample
//! of a bucket is known with its time, and can be taken out of the sketch, or be counted alone. So for
//! windows of whole buckets no readings are needed. A bucket that a window cuts elsewhere needs its
//! samples.
//!
//! Several values of one millisecond all count, and in the samples the last of them.

use columns::{Numbers, Sketch};

use super::series::{Sample, Windows};
use super::windows::Part;

/// A bucket of a series.
#[derive(Debug, Clone, PartialEq)]
pub struct SketchedBucket {
    /// Its start, ms since 1970.
    pub(crate) start_ms: i64,
    /// Its end, exclusive.
    pub(crate) end_ms: i64,
    /// The times of its first and last sample.
    times: (i64, i64),
    first: f64,
    sketch: Sketch,
    /// Its samples, once they are loaded.
    pub(crate) samples: Option<Vec<Sample>>,
}

impl SketchedBucket {
    /// A bucket with these bounds; `None` without a sketch.
    pub(crate) fn new((start_ms, end_ms): (i64, i64), of: Numbers) -> Option<SketchedBucket> {
        Some(SketchedBucket {
            start_ms,
            end_ms,
            times: (of.first_ts_ms, of.last_ts_ms),
            first: of.first.as_f64(),
            sketch: of.sketch?,
            samples: None,
        })
    }

    /// The number of bins, each about as large as a sample.
    pub(crate) fn len(&self) -> usize {
        self.sketch.bins().len()
    }

    fn part(&self, bounds: (i64, i64)) -> Part {
        Part::of(self.times, true, bounds)
    }

    /// Whether a window needs samples that are not loaded.
    pub(crate) fn needs_samples(&self, windows: &Windows) -> bool {
        let mut steps = windows.steps_of(self.times);
        self.samples.is_none() && steps.any(|step| self.part(windows.bounds(step)) == Part::Some)
    }

    fn add_to(&self, all: &mut Sketch, (start_ms, end_ms): (i64, i64)) {
        match self.part((start_ms, end_ms)) {
            Part::None => {}
            Part::All => all.merge(&self.sketch),
            Part::AllButEdge => {
                all.merge(&self.sketch);
                all.remove(self.first);
            }
            Part::Edge => all.add(self.first),
            Part::Some => {
                let samples = self.samples.iter().flatten();
                let within = samples.filter(|of| start_ms < of.ts_ms && of.ts_ms <= end_ms);
                within.for_each(|sample| all.add(sample.value));
            }
        }
    }
}

/// The sketch of a window. `buckets`: ordered, and nothing is to be loaded of any.
pub(crate) fn of_window(buckets: &[SketchedBucket], (start_ms, end_ms): (i64, i64)) -> Sketch {
    let mut all = Sketch::default();
    let from = buckets.partition_point(|bucket| bucket.end_ms <= start_ms);
    let within = buckets[from..].iter();
    let within = within.take_while(|bucket| bucket.start_ms <= end_ms);
    within.for_each(|bucket| bucket.add_to(&mut all, (start_ms, end_ms)));
    all
}

#[cfg(test)]
mod tests {
    use columns::{HoursEncoder, Line, Weighting, Weightings};
    use model::{RowFlags, Rows, ValueRef};
    use proptest::prelude::*;

    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    /// The buckets of these samples.
    fn buckets(samples: &[Sample]) -> Vec<SketchedBucket> {
        let mut rows = Rows::default();
        for of in samples {
            rows.push_named(
                of.ts_ms,
                RowFlags::default(),
                &[("x", ValueRef::Double(of.value))],
            );
        }
        let weighting = Weighting {
            line: Line::Straight,
            gap_max_ms: i64::MAX,
        };
        let bounds: Vec<i64> = (0..=10).map(|hour| hour * HOUR_MS).collect();
        let weightings = Weightings::from(weighting).with_sketches(None);
        let mut hours = HoursEncoder::new(bounds, weightings);
        hours.add(&rows);
        let mut fields = hours.finish().fields;
        let hours = fields.remove("x").unwrap_or_default();
        let bucket = |(hour, of): (usize, columns::FieldHour)| {
            let start_ms = hour as i64 * HOUR_MS;
            SketchedBucket::new((start_ms, start_ms + HOUR_MS), of.numbers?)
        };
        hours.into_iter().filter_map(bucket).collect()
    }

    proptest! {
        #[test]
        fn a_window_has_the_sketch_of_its_samples(
            times in prop::collection::btree_set(0i64..200, 1..60),
            first in 0i64..200,
            step in 1i64..40,
            range in 1i64..150,
        ) {
            // Every third minute, so that hours begin with a sample or not.
            let sample = |minute: i64| Sample { ts_ms: minute * 180_000, value: (minute % 17) as f64 };
            let samples: Vec<Sample> = times.into_iter().map(sample).collect();
            let windows = Windows {
                first_end_ms: first * 180_000,
                step_ms: step * 180_000,
                steps: 12,
                range_ms: range * 180_000,
                needs_sum: false,
                needs_min: false,
                needs_max: false,
            };
            let mut buckets = buckets(&samples);
            let is_whole = [windows.first_end_ms, windows.step_ms, windows.range_ms]
                .iter()
                .all(|ms| ms % HOUR_MS == 0);
            for bucket in &mut buckets {
                prop_assert!(!is_whole || !bucket.needs_samples(&windows));
                if bucket.needs_samples(&windows) {
                    let within = bucket.start_ms..bucket.end_ms;
                    let of_bucket = samples.iter().filter(|of| within.contains(&of.ts_ms));
                    bucket.samples = Some(of_bucket.copied().collect());
                }
            }
            for window in 0..windows.steps {
                let bounds = windows.bounds(window);
                let mut naive = Sketch::default();
                let within = samples.iter().filter(|of| bounds.0 < of.ts_ms && of.ts_ms <= bounds.1);
                within.for_each(|of| naive.add(of.value));
                prop_assert_eq!(of_window(&buckets, bounds), naive);
            }
        }
    }
}
