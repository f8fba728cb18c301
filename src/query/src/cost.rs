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
/// A sample that a window is computed over.
const SAMPLE: u64 = 1;
/// A step: a point in memory and in the answer.
const STEP: u64 = 2;
/// Up to here a query is light: a tenth of a second.
const LIGHT_MAX: u64 = 2000 * PAGE;
/// Readings of a sensor, in ms.
const INTERVAL_MS: i64 = 60_000;

/// An estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Cost(u64);

impl Cost {
    /// Of the steps that are computed, without what they read.
    pub(crate) fn of_steps(steps: u64) -> Cost {
        Cost(steps.saturating_mul(STEP))
    }

    /// Of a selector with so many sensors and series; `is_summarised`: its windows are answered
    /// from summaries.
    pub(crate) fn of_selector(
        request: &SelectorRequest,
        (sensors, series): (usize, usize),
        is_summarised: bool,
        span: Span,
    ) -> Cost {
        let windows = &request.windows;
        let span_ms = span.ms();
        let whole_ms = request.to_ms().saturating_sub(request.after_ms()).max(0);
        let hours = (whole_ms / span_ms) as u64 + 1;
        let of_hour = if is_summarised { SUMMARY } else { PAGE };
        let read = (sensors as u64).saturating_mul(hours.saturating_mul(of_hour));
        let in_window = match is_summarised {
            true => (windows.range_ms / span_ms) as u64,
            false => (windows.range_ms / INTERVAL_MS) as u64,
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
    use crate::promql::{QueryTime, parse, requests};

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
            let is_summarised =
                request.is_summarised && request.windows.range_ms >= Span::HOUR.ms();
            Cost::of_selector(request, (sensors, sensors), is_summarised, Span::HOUR)
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
