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
//!    has overflowed, with or without these readings, or if it is so much smaller without them that
//!    its digits are lost, rule 5.
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
//! order. A summary counts both. So rules 1 and 3 count both, and rules 4 and 5 one; if rule 5
//! applies to any window of the bucket, it applies to all. The docs say so.
//!
//! **Removed readings.** Of a bucket whose readings were removed, only the summary is left. So where
//! it applies (rules 1 and 3) it is used, even if rule 5 applies to another window: that one gets the
//! samples that are left. The readings on an edge are not known then, so rule 3 counts them with
//! their bucket.
//!
//! **Rounding.** Sums are added bucket by bucket. They differ from a sum over all samples in the
//! last digits. Prometheus' sum is compensated, a summary's is not: if large numbers within a bucket
//! cancel out (1e100, 1, -1e100), the small ones are lost. Where a sum overflows, the mean is that of
//! the buckets' means, weighted by their counts; a bucket whose own sum overflows is rule 5.

use super::series::{Sample, WindowStats, Windows};

/// The relative error that the readings on an edge may leave in the sum without them.
const EDGE_ERROR_MAX: f64 = 1e-10;

/// One bucket of a series: an hour, or a day of hours.
#[derive(Debug, Clone, PartialEq)]
pub struct SummarisedBucket {
    /// Its start, ms since 1970.
    pub start_ms: i64,
    /// Its end, exclusive.
    pub end_ms: i64,
    /// Whether it is made of hours.
    pub(crate) is_day: bool,
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
    /// Whether these are fewer than the summary counts, because readings were removed.
    pub readings_removed: bool,
}

/// What must be loaded of a bucket before its windows can be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// The summary suffices.
    Nothing,
    /// The readings at the bucket's start.
    Edge,
    /// All samples; of a day, its hours.
    Samples,
}

/// How a bucket contributes to a window: the rules of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    All,
    None,
    AllButEdge,
    Edge,
    Some,
}

impl Part {
    /// Of a bucket with these first and last times. `is_edge_known`: what it has at its first time can
    /// be told from the rest.
    pub(super) fn of(
        (first, last): (i64, i64),
        is_edge_known: bool,
        (start, end): (i64, i64),
    ) -> Part {
        match () {
            () if last <= start || first > end => Part::None,
            () if first > start && last <= end => Part::All,
            () if first == start && is_edge_known && last <= end => Part::AllButEdge,
            () if first == end && is_edge_known => Part::Edge,
            () => Part::Some,
        }
    }
}

impl SummarisedBucket {
    /// A bucket whose samples are loaded, ordered by time; `None` without samples.
    pub(crate) fn of_samples(
        (start_ms, end_ms): (i64, i64),
        samples: Vec<Sample>,
    ) -> Option<SummarisedBucket> {
        let values = samples.iter().map(|sample| sample.value);
        Some(SummarisedBucket {
            start_ms,
            end_ms,
            is_day: false,
            first_ts_ms: samples.first()?.ts_ms,
            last_ts_ms: samples.last()?.ts_ms,
            stats: values.map(WindowStats::of).reduce(WindowStats::merge)?,
            edge: None,
            samples: Some(samples),
            readings_removed: false,
        })
    }

    fn part(&self, bounds: (i64, i64)) -> Part {
        let is_edge_known = self.first_ts_ms == self.start_ms;
        Part::of((self.first_ts_ms, self.last_ts_ms), is_edge_known, bounds)
    }

    /// The parts still to be loaded for these windows.
    pub(crate) fn need(&self, windows: &Windows) -> Need {
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
                match edge.iter().any(|v| self.is_extreme(*v, windows))
                    || windows.needs_sum && self.hides_rest(edge)
                {
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

    /// Whether the readings on the edge are so large that the sum of the others is lost in that of
    /// all, or that it overflows without them. Each addition rounds by at most the edge's epsilon. A
    /// sum of zero beside an edge that is not zero may be such a loss; a series of zeros is none.
    fn hides_rest(&self, edge: &[f64]) -> bool {
        let size: f64 = edge.iter().map(|v| v.abs()).sum();
        let error = size * self.stats.count as f64 * f64::EPSILON;
        let (count, sum) = self.without(edge);
        count > 0 && (!sum.is_finite() || error > EDGE_ERROR_MAX * sum.abs())
    }

    /// Count and sum without the readings on the edge.
    fn without(&self, edge: &[f64]) -> (u64, f64) {
        (
            self.stats.count.saturating_sub(edge.len() as u64),
            self.stats.sum - edge.iter().sum::<f64>(),
        )
    }

    /// The windows that may contain samples of this bucket.
    fn steps(&self, windows: &Windows) -> std::ops::Range<usize> {
        windows.steps_of((self.first_ts_ms, self.last_ts_ms))
    }

    fn contribution(&self, bounds: (i64, i64)) -> Option<WindowStats> {
        let part = self.part(bounds);
        let by_summary = self.readings_removed && matches!(part, Part::All | Part::AllButEdge);
        if let Some(samples) = self.samples.as_ref().filter(|_| !by_summary) {
            return of_samples(samples, bounds);
        }
        let edge = self.edge.as_deref().unwrap_or_default();
        match part {
            Part::None | Part::Some => None,
            Part::All => Some(self.stats),
            Part::AllButEdge => {
                let (count, sum) = self.without(edge);
                (count > 0).then_some(WindowStats {
                    count,
                    sum,
                    ..self.stats
                })
            }
            Part::Edge => edge.last().copied().map(WindowStats::of),
        }
    }
}

/// The statistics of each window. `buckets`: ordered, no time is in two of them, and nothing is to
/// be loaded of any.
pub fn answer(windows: &Windows, buckets: &[SummarisedBucket]) -> Vec<Option<WindowStats>> {
    let mut all: Vec<Option<WindowStats>> = vec![None; windows.steps];
    for bucket in buckets {
        add(windows, &mut all, bucket);
    }
    all
}

/// Adds a bucket of which nothing is to be loaded to the statistics of each window.
pub(crate) fn add(windows: &Windows, all: &mut [Option<WindowStats>], bucket: &SummarisedBucket) {
    for step in bucket.steps(windows) {
        let window = &mut all[step];
        *window = match (*window, bucket.contribution(windows.bounds(step))) {
            (None, more) => more,
            (held, None) => held,
            (Some(held), Some(more)) => Some(held.merge(more)),
        };
    }
}

fn of_samples(samples: &[Sample], (start, end): (i64, i64)) -> Option<WindowStats> {
    let from = samples.partition_point(|s| s.ts_ms <= start);
    let to = samples.partition_point(|s| s.ts_ms <= end);
    let values = samples.get(from..to)?.iter().map(|s| s.value);
    values.map(WindowStats::of).reduce(WindowStats::merge)
}

#[cfg(test)]
mod tests;
