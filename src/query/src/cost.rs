//! What a query costs, estimated before anything of it is read. Pure.
//!
//! The unit is the work for one page with an hour of readings, about 50 µs of MongoDB and of this
//! process together. How often a sensor reports is not known, so it is taken to be once a minute.
//!
//! A new source of readings or of summaries has its own cost here: what it takes to read an hour.

use crate::promql::SelectorRequest;
use model::Span;

/// The cost of a page, of which every other is a part.
const PAGE: u64 = 1000;
/// The summary of an hour, of all its fields.
const SUMMARY: u64 = 120;
/// An hour of a day in columns.
const COLUMNS: u64 = 40;
/// A sample that a window is computed over.
const SAMPLE: u64 = 1;
/// A step: a point in memory and in the answer.
const STEP: u64 = 2;
/// Up to here a query is light: a tenth of a second.
const LIGHT_MAX: u64 = 2000 * PAGE;
/// Readings of a sensor, in ms.
const INTERVAL_MS: i64 = 60_000;

/// Where the series of a selector are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Their windows are answered from summaries.
    Summaries,
    /// Their samples are read: from columns before this time (ms since 1970), then from pages.
    Samples { columns_until_ms: i64 },
}

/// An estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Cost(u64);

impl Cost {
    /// Of the steps that are computed, without what they read.
    pub(crate) fn of_steps(steps: u64) -> Cost {
        Cost(steps.saturating_mul(STEP))
    }

    /// Of a selector with so many sensors and series.
    pub(crate) fn of_selector(
        request: &SelectorRequest,
        (sensors, series): (usize, usize),
        source: Source,
        span: Span,
    ) -> Cost {
        let windows = &request.windows;
        let span_ms = span.ms();
        let hours = |from_ms: i64, to_ms: i64| (to_ms.saturating_sub(from_ms) / span_ms) as u64;
        let from_ms = request.after_ms();
        let to_ms = request.to_ms().max(from_ms);
        let of_sensor = match source {
            Source::Summaries => (hours(from_ms, to_ms) + 1).saturating_mul(SUMMARY),
            Source::Samples { columns_until_ms } => {
                let cut_ms = columns_until_ms.clamp(from_ms, to_ms);
                let of_pages = (hours(cut_ms, to_ms) + 1).saturating_mul(PAGE);
                of_pages.saturating_add(hours(from_ms, cut_ms).saturating_mul(COLUMNS))
            }
        };
        let read = (sensors as u64).saturating_mul(of_sensor);
        let in_window = match source {
            Source::Summaries => hours(0, windows.range_ms),
            Source::Samples { .. } => (windows.range_ms / INTERVAL_MS) as u64,
        };
        let of_step = STEP + in_window.saturating_mul(SAMPLE) / 16;
        let steps = (series as u64).saturating_mul(windows.steps as u64);
        Cost(read.saturating_add(steps.saturating_mul(of_step)))
    }

    #[must_use]
    pub(crate) fn plus(self, other: Cost) -> Cost {
        Cost(self.0.saturating_add(other.0))
    }

    /// Whether it is too much for the light lane.
    pub(crate) fn is_heavy(self) -> bool {
        self.0 > LIGHT_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::promql::{AnsweredBy, QueryTime, parse, requests};

    const DAY: i64 = 86_400_000;

    /// Whether the query over so many sensors is heavy; its times are days before the end.
    fn is_heavy(text: &str, sensors: usize, days: i64, step_ms: i64) -> bool {
        let end_ms = 20_000 * DAY;
        let time = QueryTime {
            start_ms: end_ms - days * DAY,
            end_ms,
            step_ms: Some(step_ms),
            lookback_ms: 300_000,
        };
        let requests = requests(&parse(text).unwrap(), time);
        let each = requests.iter().map(|request| {
            let is_summarised = request.answered_by != AnsweredBy::Samples;
            let source = match is_summarised && request.windows.range_ms >= Span::HOUR.ms() {
                true => Source::Summaries,
                false => Source::Samples {
                    columns_until_ms: i64::MIN,
                },
            };
            Cost::of_selector(request, (sensors, sensors), source, Span::HOUR)
        });
        each.fold(Cost::default(), Cost::plus).is_heavy()
    }

    #[test]
    fn what_a_person_looks_at_is_light_and_the_readings_of_a_fleet_are_heavy() {
        let minute = 60_000;
        for (text, sensors, days, step_ms) in [
            ("temp", 300, 0, minute),
            ("temp", 1, 1, minute),
            ("avg_over_time(temp[1h])", 1, 30, 60 * minute),
            (
                "hourbucket_quantile_over_time(0.9, temp[30d])",
                20,
                0,
                minute,
            ),
            ("max_over_time(temp[1d])", 600, 0, minute),
        ] {
            assert!(!is_heavy(text, sensors, days, step_ms), "{text}");
        }
        for (text, sensors, days, step_ms) in [
            ("sum(rate(energy_total[5m]))", 300, 1, minute),
            ("temp", 20_000, 0, minute),
            ("avg_over_time(temp[1h])", 1000, 7, 60 * minute),
            ("quantile_over_time(0.9, temp[1d])", 5, 30, minute * 15),
        ] {
            assert!(is_heavy(text, sensors, days, step_ms), "{text}");
        }
    }
}
