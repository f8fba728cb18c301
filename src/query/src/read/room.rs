//! Refuses a query whose samples cannot fit into memory before any of them is read.
//!
//! The stored summaries count the samples of an hour, field by field. A window holds at least those
//! of the hours that are whole in it, so a query that is refused here would be refused later too,
//! after it has read `promql.samples_max` samples. One that is not may be: rows in memory, hours that
//! a window cuts and booleans are not counted. (Samples of one field and millisecond count
//! separately in a summary.)

use std::collections::BTreeMap;

use super::series::{FoundSeries, SelectError, Wanted, fields_of};
use super::{ReadError, ReadService};
use crate::promql::{PromqlError, Windows};
use model::{BucketStart, SensorId, Span};
use store::reading::SummaryQuery;

/// The summaries are read if sensors that report so often, in ms, would fill the memory.
const INTERVAL_MIN_MS: i64 = 10;

/// The samples of the hours of one series: the start of each hour, and how many there are before its
/// end.
type Counts = Vec<(i64, usize)>;

impl ReadService {
    /// Checks that the samples of each window fit, or those of all series if the request keeps them.
    ///
    /// # Errors
    /// They are certainly more than `samples_max`, or the store failed.
    pub(crate) async fn check_room(
        &self,
        found: &FoundSeries,
        samples_max: usize,
    ) -> Result<(), SelectError> {
        let request = &found.request;
        let windows = &request.windows;
        let series: usize = found.by_samples.iter().map(|of| of.fields.len()).sum();
        let at_once = if request.keeps_samples { series } else { 1 };
        let often = usize::try_from(windows.range_ms / INTERVAL_MIN_MS).unwrap_or(usize::MAX);
        let span = self.span();
        if often.saturating_mul(at_once) <= samples_max || windows.range_ms < span.ms() {
            return Ok(());
        }
        let from = BucketStart(span.end(span.floor(request.after_ms())));
        let to_ms = span.floor(request.to_ms().saturating_add(1)).0;
        if from.0 >= to_ms {
            return Ok(());
        }
        let mut kept = 0;
        for some in found.by_samples.chunks(self.sensors_at_once(from.0, to_ms)) {
            for counts in self.counts(some, from, to_ms).await? {
                kept = match request.keeps_samples {
                    true => kept + counts.last().map_or(0, |(_, samples)| *samples),
                    false => fullest(&counts, windows, span),
                };
                if kept > samples_max {
                    return Err(PromqlError::too_many_samples().into());
                }
            }
        }
        Ok(())
    }

    /// The counts of each series.
    async fn counts(
        &self,
        wanted: &[Wanted],
        from: BucketStart,
        to_ms: i64,
    ) -> Result<Vec<Counts>, ReadError> {
        let query = SummaryQuery {
            sensor_ids: wanted.iter().map(|of| of.sensor_id.clone()).collect(),
            from,
            to_ms,
            fields: fields_of(wanted),
        };
        let series = wanted.iter().flat_map(|of| {
            let fields = of.fields.iter();
            fields.map(|(field, _)| ((&of.sensor_id, field.as_str()), BTreeMap::new()))
        });
        let mut of_series: BTreeMap<(&SensorId, &str), BTreeMap<i64, usize>> = series.collect();
        let pages = self.within(self.summaries(query)).await?;
        for (key, page) in pages.iter().filter(|(_, page)| !page.readings_removed) {
            for (field, summary) in &page.summary {
                if let Some(hours) = of_series.get_mut(&(&key.sensor_id, field.as_str())) {
                    let count = summary.as_ref().map_or(0, |summary| summary.count as usize);
                    *hours.entry(key.start.0).or_default() += count;
                }
            }
        }
        let sums = of_series.into_values().map(|hours| {
            let mut before = 0;
            let sum = |(start_ms, count)| {
                before += count;
                (start_ms, before)
            };
            hours.into_iter().map(sum).collect()
        });
        Ok(sums.collect())
    }
}

/// The samples of whole hours in the window that has most.
fn fullest(counts: &Counts, windows: &Windows, span: Span) -> usize {
    // Of the hours that begin by then.
    let until = |ms: i64| {
        let hours = counts.partition_point(|(start_ms, _)| *start_ms <= ms);
        hours.checked_sub(1).map_or(0, |last| counts[last].1)
    };
    let in_window = |step| {
        let (after_ms, end_ms) = windows.bounds(step);
        let ended = until(end_ms - (span.ms() - 1));
        ended.saturating_sub(until(after_ms))
    };
    (0..windows.steps).map(in_window).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    #[test]
    fn only_hours_that_are_whole_in_a_window_count() {
        // Ten samples in each of the hours 1, 2 and 4.
        let counts = vec![(HOUR, 10), (2 * HOUR, 20), (4 * HOUR, 30)];
        let fullest = |first_end_ms, steps, range_ms| {
            let windows = Windows {
                first_end_ms,
                step_ms: HOUR,
                steps,
                range_ms,
                needs_sum: false,
                needs_min: false,
                needs_max: false,
            };
            super::fullest(&counts, &windows, Span::HOUR)
        };
        // (after, end]: the first millisecond of hour 1 is in the first of these, and not in the other.
        assert_eq!(fullest(3 * HOUR - 1, 1, 2 * HOUR), 20);
        assert_eq!(fullest(3 * HOUR, 1, 2 * HOUR), 10);
        assert_eq!(fullest(5 * HOUR - 2, 1, 5 * HOUR), 20);
        assert_eq!(fullest(5 * HOUR - 1, 1, 5 * HOUR), 30);
        assert_eq!(fullest(HOUR, 5, HOUR + 1), 10);
        assert_eq!(fullest(HOUR, 5, 4 * HOUR), 20);
        assert_eq!(fullest(HOUR, 5, 4 * HOUR + 1), 30);
        assert_eq!(fullest(0, 1, HOUR), 0);
        assert_eq!(fullest(9 * HOUR, 3, HOUR), 0);
    }
}
