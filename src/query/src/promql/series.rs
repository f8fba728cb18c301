//! The input of an evaluation, the samples of a query's selectors, and its result.

use super::ast::ValueType;
use super::error::PromqlError;
use super::labels::Labels;
use super::matcher::Matcher;
use super::sketches::SketchedBucket;
pub use model::Sample;

/// A series of samples, ordered by time, one at a time.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its labels, the metric's name among them.
    pub labels: Labels,
    /// Ordered by time.
    pub samples: Vec<Sample>,
}

/// The common properties of all samples of a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowStats {
    /// Number of samples, at least one.
    pub count: u64,
    /// Their sum, infinite if it overflows.
    pub sum: f64,
    /// Their mean, if their sum overflowed; otherwise [`WindowStats::mean`] derives it.
    pub(crate) overflow_mean: Option<f64>,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl WindowStats {
    /// Those of one sample.
    pub fn of(value: f64) -> WindowStats {
        WindowStats {
            count: 1,
            sum: value,
            overflow_mean: None,
            min: value,
            max: value,
        }
    }

    /// The mean of the samples, finite even if their sum is not.
    pub fn mean(self) -> f64 {
        self.overflow_mean.unwrap_or(self.sum / self.count as f64)
    }

    /// Those of the samples of both.
    #[must_use]
    pub fn merge(self, more: WindowStats) -> WindowStats {
        let count = self.count + more.count;
        let sum = self.sum + more.sum;
        let share = |stats: WindowStats| stats.mean() * (stats.count as f64 / count as f64);
        WindowStats {
            count,
            sum,
            overflow_mean: (!sum.is_finite()).then(|| share(self) + share(more)),
            min: self.min.min(more.min),
            max: self.max.max(more.max),
        }
    }
}

/// Windows of equal length at equal distances: each is `(end - range, end]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// The end of the first window, ms since 1970, inclusive.
    pub(crate) first_end_ms: i64,
    /// The distance of two ends.
    pub step_ms: i64,
    /// How many windows.
    pub steps: usize,
    /// The length of each.
    pub range_ms: i64,
    /// Whether the sum is needed.
    pub(crate) needs_sum: bool,
    /// Whether the smallest value is needed.
    pub(crate) needs_min: bool,
    /// Whether the largest value is needed.
    pub(crate) needs_max: bool,
}

impl Windows {
    /// One window: after the first time up to the second, ms since 1970; none if that is empty.
    pub(crate) fn one(after_ms: i64, to_ms: i64) -> Windows {
        Windows {
            first_end_ms: to_ms,
            step_ms: 1,
            steps: usize::from(after_ms < to_ms),
            range_ms: to_ms - after_ms,
            needs_sum: false,
            needs_min: false,
            needs_max: false,
        }
    }

    /// From the first millisecond of all windows to after the last one.
    pub(crate) fn range(&self) -> (i64, i64) {
        let after_ms = self.bounds(0).0;
        let last_ms = self.bounds(self.steps.max(1) - 1).1;
        (after_ms + 1, last_ms + 1)
    }

    /// The windows that may contain samples between two times, both inclusive.
    pub(crate) fn steps_of(&self, (first_ms, last_ms): (i64, i64)) -> std::ops::Range<usize> {
        let step_ms = self.step_ms.max(1);
        let first = (first_ms - self.first_end_ms + step_ms - 1).div_euclid(step_ms);
        let after = (last_ms + self.range_ms - self.first_end_ms).div_euclid(step_ms) + 1;
        let after = after.clamp(0, self.steps as i64);
        (first.max(0).min(after) as usize)..(after as usize)
    }

    /// The bounds of a window: start (exclusive) and end (inclusive).
    pub(crate) fn bounds(&self, step: usize) -> (i64, i64) {
        let end = self.first_end_ms + self.step_ms * step as i64;
        (end - self.range_ms, end)
    }
}

/// What suffices to answer windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnsweredBy {
    /// Their samples.
    Samples,
    /// Their [`WindowStats`].
    Stats,
    /// The sketches of buckets.
    Sketches,
}

/// What a selector of a query needs.
#[derive(Debug, Clone)]
pub struct SelectorRequest {
    /// All of them must match.
    pub matchers: Vec<Matcher>,
    /// The windows whose samples are needed; none, if nothing is.
    pub windows: Windows,
    /// What suffices of the windows; samples do, too.
    pub answered_by: AnsweredBy,
    /// Whether the samples of all series are in memory together, because they are the answer.
    pub(crate) keeps_samples: bool,
}

impl SelectorRequest {
    /// All samples after the first time up to the second, ms since 1970.
    pub(crate) fn of_samples(matchers: Vec<Matcher>, after_ms: i64, to_ms: i64) -> SelectorRequest {
        SelectorRequest {
            matchers,
            windows: Windows::one(after_ms, to_ms),
            answered_by: AnsweredBy::Samples,
            keeps_samples: true,
        }
    }

    /// Samples after this time are needed, ms since 1970.
    pub fn after_ms(&self) -> i64 {
        self.windows.first_end_ms - self.windows.range_ms
    }

    /// Samples up to this time are needed, inclusive.
    pub fn to_ms(&self) -> i64 {
        match self.windows.steps.checked_sub(1) {
            Some(last) => self.windows.bounds(last).1,
            None => self.after_ms(),
        }
    }
}

impl SelectorRequest {
    /// The same with the stored names of fields and tags.
    pub(crate) fn stored(&self) -> SelectorRequest {
        SelectorRequest {
            matchers: self.matchers.iter().map(Matcher::stored).collect(),
            ..self.clone()
        }
    }
}

/// The samples of one series, or the statistics of its windows.
#[derive(Debug, Clone, PartialEq)]
pub enum SeriesData {
    /// Ordered by time, one at a time.
    Samples(Vec<Sample>),
    /// One entry for each window of the request; `None` for a window without samples.
    Windows(Vec<Option<WindowStats>>),
    /// The buckets of all windows, in order.
    Sketches(Vec<SketchedBucket>),
}

/// A series that a selector found.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectedSeries {
    /// Its labels.
    pub labels: Labels,
    /// Its samples in the requested time.
    pub data: SeriesData,
}

/// Some series of a selector, or a stretch of their time.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// In any order.
    pub series: Vec<SelectedSeries>,
    /// All their samples up to this time (ms since 1970) are in this part or in those before it. If
    /// it is not [`Part::WHOLE`], the next part continues the same series, in the same order.
    pub until_ms: i64,
}

impl Part {
    /// Nothing of the series is left.
    pub(crate) const WHOLE: i64 = i64::MAX;

    /// The samples of each series that has not only statistics.
    pub(crate) fn samples_mut(&mut self) -> impl Iterator<Item = &mut Vec<Sample>> {
        let each = self.series.iter_mut();
        each.filter_map(|series| match &mut series.data {
            SeriesData::Samples(samples) => Some(samples),
            SeriesData::Windows(_) | SeriesData::Sketches(_) => None,
        })
    }
}

/// Where the samples of a query's selectors come from, part by part, so that only those of one part
/// are in memory.
pub trait Source {
    /// The next part of the selector with this number, by the order of
    /// [`requests`](super::requests); `None` at the end.
    ///
    /// # Errors
    /// [`PromqlError::Unread`] if the source has failed, which then knows why.
    fn next(&mut self, selector: usize) -> Result<Option<Part>, PromqlError>;
}

/// Joins the parts of a selector into whole series, ordered by their labels, without those that have no
/// samples.
pub(crate) fn joined<E>(
    mut next: impl FnMut() -> Result<Option<Part>, E>,
) -> Result<Vec<Series>, E> {
    let mut all: Vec<Series> = vec![];
    // Of the series whose stretches arrive.
    let mut open: Vec<Series> = vec![];
    while let Some(part) = next()? {
        for (i, found) in part.series.into_iter().enumerate() {
            let SeriesData::Samples(mut samples) = found.data else {
                continue;
            };
            match open.get_mut(i) {
                Some(series) => series.samples.append(&mut samples),
                None => open.push(Series {
                    labels: found.labels,
                    samples,
                }),
            }
        }
        if part.until_ms == Part::WHOLE {
            all.append(&mut open);
        }
    }
    all.retain(|series| !series.samples.is_empty());
    all.sort_by(|a, b| a.labels.cmp(&b.labels));
    Ok(all)
}

/// All series of each selector, each given once.
impl Source for Vec<Vec<SelectedSeries>> {
    fn next(&mut self, selector: usize) -> Result<Option<Part>, PromqlError> {
        let series = self.get_mut(selector).map(std::mem::take);
        let series = series.filter(|series| !series.is_empty());
        Ok(series.map(|series| Part {
            series,
            until_ms: Part::WHOLE,
        }))
    }
}

/// The result of a query.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Of an instant query.
    Scalar(f64),
    /// Of an instant query.
    String(String),
    /// Of an instant query: each series has one sample, at the time of the query.
    Vector(Vec<Series>),
    /// Of a range query, or of an instant query of a range.
    Matrix(Vec<Series>),
}

impl Value {
    /// The type's name in the API.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::Scalar(_) => ValueType::Scalar,
            Value::String(_) => ValueType::String,
            Value::Vector(_) => ValueType::Vector,
            Value::Matrix(_) => ValueType::Matrix,
        }
    }
}
