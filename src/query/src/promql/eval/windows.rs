//! The points of a series, computed window by window while its samples arrive. A sample leaves
//! memory once no later window contains it.

use super::evaluator::Evaluator;
use super::grid::{Grid, Point, Row};
use super::math::outside;
use super::over_time::{Window, evaluate, of_stats};
use crate::promql::error::PromqlError;
use crate::promql::eval::Stop;
use crate::promql::functions::OverTime;
use crate::promql::series::{Part, Sample, SeriesData, WindowStats};
use crate::promql::sketches::{SketchedBucket, of_window};

/// What is computed of a window.
#[derive(Clone, Copy)]
pub(super) enum Of<'a> {
    /// A number of its newest sample.
    Newest(fn(Sample) -> f64),
    /// A function, with the values of its other arguments at each step.
    Function(OverTime, &'a [Vec<f64>]),
}

/// The windows of a selector or subquery, one for each step of the grid.
#[derive(Clone, Copy)]
pub(super) struct Ranges<'a> {
    pub(super) grid: Grid,
    pub(super) offset_ms: i64,
    pub(super) at: Option<i64>,
    pub(super) range_ms: i64,
    pub(super) of: Of<'a>,
}

impl Ranges<'_> {
    fn end_ms(&self, step: usize) -> i64 {
        self.at.unwrap_or_else(|| self.grid.at(step)) - self.offset_ms
    }

    fn value(&self, step: usize, samples: &[Sample]) -> Result<Option<f64>, PromqlError> {
        let end_ms = self.end_ms(step);
        match self.of {
            Of::Newest(of) => Ok(samples.last().map(|sample| of(*sample))),
            Of::Function(function, args) => {
                let args: Vec<f64> = args.iter().map(|arg| arg[step]).collect();
                let window = Window {
                    samples,
                    start_ms: end_ms - self.range_ms,
                    end_ms,
                    at_ms: self.grid.at(step),
                    args: &args,
                };
                evaluate(function, &window)
            }
        }
    }

    /// The points of windows that were answered from summaries.
    fn of_stats(&self, stats: &[Option<WindowStats>]) -> Vec<Point> {
        let Of::Function(function, _) = self.of else {
            return vec![];
        };
        // With `@`, all steps have the same window.
        let place = |step: usize| if self.at.is_some() { 0 } else { step };
        let point = |step: usize| {
            let stats = stats.get(place(step)).copied().flatten()?;
            Some(Point {
                step: step as u32,
                value: of_stats(function, &stats),
            })
        };
        (0..self.grid.steps()).filter_map(point).collect()
    }
}

impl Ranges<'_> {
    /// The quantiles of windows whose buckets have sketches.
    fn of_sketches(
        &self,
        buckets: &[SketchedBucket],
        stop: &Stop,
    ) -> Result<Vec<Point>, PromqlError> {
        let Of::Function(_, [quantiles]) = self.of else {
            return Ok(vec![]);
        };
        let mut points = vec![];
        let mut of_all = None;
        for (step, quantile) in quantiles.iter().enumerate() {
            stop.check()?;
            let end_ms = self.end_ms(step);
            let window = || of_window(buckets, (end_ms - self.range_ms, end_ms));
            // With `@`, all steps have the same window.
            let sketch = match self.at {
                Some(_) => &*of_all.get_or_insert_with(window),
                None => of_all.insert(window()),
            };
            // Without values there is no point.
            let within = sketch.quantiles(&[quantile.clamp(0.0, 1.0)]);
            points.extend(within.map(|within| Point {
                step: step as u32,
                value: outside(*quantile).unwrap_or(within[0]),
            }));
        }
        Ok(points)
    }
}

/// One series, while its samples arrive.
#[derive(Default)]
pub(super) struct Stepper {
    samples: Vec<Sample>,
    /// The next step whose window is not computed.
    step: usize,
    points: Vec<Point>,
}

impl Stepper {
    /// Computes the windows that end by `until_ms`, with these samples added.
    pub(super) fn feed(
        &mut self,
        ranges: &Ranges<'_>,
        mut samples: Vec<Sample>,
        until_ms: i64,
        evaluator: &Evaluator<'_>,
    ) -> Result<(), PromqlError> {
        match self.samples.is_empty() {
            true => self.samples = samples,
            false => self.samples.append(&mut samples),
        }
        let mut from = 0;
        let mut to = 0;
        let mut longest = 0;
        while self.step < ranges.grid.steps() {
            let end_ms = ranges.end_ms(self.step);
            if end_ms > until_ms {
                break;
            }
            evaluator.stop.check()?;
            let start_ms = end_ms - ranges.range_ms;
            while self.samples.get(to).is_some_and(|s| s.ts_ms <= end_ms) {
                to += 1;
            }
            while from < to && self.samples[from].ts_ms <= start_ms {
                from += 1;
            }
            if from < to {
                longest = longest.max(to - from);
                let value = ranges.value(self.step, &self.samples[from..to])?;
                self.points.extend(value.map(|value| Point {
                    step: self.step as u32,
                    value,
                }));
            }
            self.step += 1;
        }
        self.samples.drain(..from);
        if until_ms != Part::WHOLE {
            longest = longest.max(self.samples.len());
        }
        evaluator.check_room(self.points.len() + longest)
    }

    pub(super) fn finish(mut self) -> Vec<Point> {
        self.points.shrink_to_fit();
        self.points
    }
}

impl Evaluator<'_> {
    /// The series of a selector that have a point, ordered by their labels.
    pub(super) fn windows(
        &mut self,
        selector: usize,
        ranges: &Ranges<'_>,
    ) -> Result<Vec<Row>, PromqlError> {
        let mut rows = vec![];
        let mut open: Vec<Stepper> = vec![];
        while let Some(part) = self.source.next(selector)? {
            open.resize_with(part.series.len(), Stepper::default);
            for (stepper, series) in open.iter_mut().zip(part.series) {
                self.stop.check()?;
                match series.data {
                    SeriesData::Samples(samples) => {
                        stepper.feed(ranges, samples, part.until_ms, self)?;
                    }
                    SeriesData::Windows(stats) => stepper.points = ranges.of_stats(&stats),
                    SeriesData::Sketches(buckets) => {
                        stepper.points = ranges.of_sketches(&buckets, self.stop)?;
                    }
                }
                if part.until_ms == Part::WHOLE {
                    let points = std::mem::take(stepper).finish();
                    self.hold(points.len())?;
                    rows.extend((!points.is_empty()).then_some(Row {
                        labels: series.labels,
                        points,
                    }));
                }
            }
            if part.until_ms == Part::WHOLE {
                open.clear();
            }
        }
        rows.sort_by(|a: &Row, b| a.labels.cmp(&b.labels));
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::promql::{
        Labels, Part, PromqlError, QueryTime, Sample, SelectedSeries, SeriesData, Source, Stop,
        evaluate, parse,
    };

    /// A series in stretches that end at these times.
    struct Stretches {
        samples: Vec<Sample>,
        ends: Vec<i64>,
    }

    impl Source for Stretches {
        fn next(&mut self, _: usize) -> Result<Option<Part>, PromqlError> {
            let Some(until_ms) = self.ends.pop() else {
                return Ok(None);
            };
            let left = self.samples.partition_point(|s| s.ts_ms <= until_ms);
            let rest = self.samples.split_off(left);
            let samples = std::mem::replace(&mut self.samples, rest);
            let data = SeriesData::Samples(samples);
            let labels = Labels::from_pairs(&[("__name__", "x")]);
            Ok(Some(Part {
                series: vec![SelectedSeries { labels, data }],
                until_ms,
            }))
        }
    }

    proptest! {
        #[test]
        fn a_series_in_stretches_has_the_points_of_the_whole(
            times in prop::collection::btree_set(0i64..100, 0..60),
            mut ends in prop::collection::vec(-10i64..110, 0..6),
            step_ms in 1i64..20,
            query in prop::sample::select(vec![
                "x", "sum_over_time(x[7ms])", "rate(x[30ms])", "x @ 0.05", "last_over_time(x[9ms] offset 20ms)",
                "predict_linear(x[20ms] @ 0.07, 5)", "timestamp(x)",
            ]),
        ) {
            let samples: Vec<Sample> =
                times.into_iter().map(|ts_ms| Sample { ts_ms, value: (ts_ms % 13) as f64 }).collect();
            ends.sort_unstable_by_key(|end| std::cmp::Reverse(*end));
            ends.insert(0, Part::WHOLE);
            let time = QueryTime { start_ms: 0, end_ms: 100, step_ms: Some(step_ms), lookback_ms: 11 };
            let query = parse(query).unwrap();
            let ask = |ends: Vec<i64>| {
                let mut source = Stretches { samples: samples.clone(), ends };
                evaluate(&query, time, &mut source, 1000, &Stop::default()).unwrap().value
            };
            prop_assert_eq!(ask(ends), ask(vec![Part::WHOLE]));
        }
    }

    #[test]
    fn a_window_counts_and_what_it_has_passed_does_not() {
        let samples = (0..5000)
            .map(|ts_ms| Sample { ts_ms, value: 1.0 })
            .collect();
        let time = QueryTime {
            start_ms: 0,
            end_ms: 5000,
            step_ms: Some(1000),
            lookback_ms: 1,
        };
        let mut source = Stretches {
            samples,
            ends: (1..5).rev().map(|n| n * 1000).collect(),
        };
        source.ends.insert(0, Part::WHOLE);
        let query = parse("count_over_time(x[2s])").unwrap();
        let ask = |samples_max| {
            let mut source = Stretches {
                samples: source.samples.clone(),
                ends: source.ends.clone(),
            };
            evaluate(&query, time, &mut source, samples_max, &Stop::default())
        };
        assert!(ask(2010).is_ok());
        assert!(ask(1990).is_err());
    }
}
