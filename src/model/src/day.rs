//! Days of a time zone, made of whole buckets. A bucket belongs to the day in which it begins.
//!
//! A day is the half-open interval between two local midnights; with summer time it has 23 or 25
//! hours. If a clock change skips midnight, the day begins with the first time after the change.

use chrono::{DateTime, Datelike, Days, NaiveDate, NaiveTime, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;

use super::span::{DAY_MS, Span};

/// Clock changes begin and end at multiples of this.
const GAP_STEP_MINUTES: i64 = 15;
/// The longest clock change: a whole day (Apia, 2011-12-30).
const GAP_STEPS_MAX: i64 = 26 * 60 / GAP_STEP_MINUTES;
/// The years whose midnights are compared with `bucket.span`. Some zones had odd offsets before.
const CHECKED_YEARS: std::ops::Range<i32> = 2000..2038;

/// One day of a zone, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day {
    /// Its first instant.
    pub start_ms: i64,
    /// The first instant of the next day.
    pub end_ms: i64,
}

impl Day {
    /// Whether it contains this time (ms since 1970).
    pub fn contains(self, ts_ms: i64) -> bool {
        self.start_ms <= ts_ms && ts_ms < self.end_ms
    }
}

/// A time zone of the IANA database (`rollup.zone`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone(Tz);

impl From<Tz> for Zone {
    fn from(zone: Tz) -> Zone {
        Zone(zone)
    }
}

impl Zone {
    /// UTC, the default.
    pub const UTC: Zone = Zone(Tz::UTC);

    /// Its name in the IANA database.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// The day of a time (ms since 1970).
    pub fn day(self, ts_ms: i64) -> Day {
        let utc = || {
            let start_ms = ts_ms.div_euclid(DAY_MS) * DAY_MS;
            Day {
                start_ms,
                end_ms: start_ms + DAY_MS,
            }
        };
        if self.0 == Tz::UTC {
            return utc();
        }
        let local = |at: DateTime<Utc>| at.with_timezone(&self.0).date_naive();
        let Some(mut date) = DateTime::from_timestamp_millis(ts_ms).map(local) else {
            return utc();
        };
        // A clock that is set back over midnight shows a date twice; at most one correction is
        // needed.
        for _ in 0..3 {
            let next = date.checked_add_days(Days::new(1));
            let Some((start_ms, end_ms)) = self
                .start_of(date)
                .zip(next.and_then(|next| self.start_of(next)))
            else {
                return utc();
            };
            let moved = match ts_ms {
                _ if ts_ms < start_ms => date.checked_sub_days(Days::new(1)),
                _ if ts_ms >= end_ms => next,
                _ => return Day { start_ms, end_ms },
            };
            date = moved.unwrap_or(date);
        }
        utc()
    }

    /// The days that begin in this range (ms since 1970, end exclusive), or contain its start.
    pub fn days(self, from_ms: i64, to_ms: i64) -> impl Iterator<Item = Day> {
        let mut at_ms = from_ms;
        std::iter::from_fn(move || {
            let day = (at_ms < to_ms).then(|| self.day(at_ms))?;
            at_ms = day.end_ms;
            Some(day)
        })
    }

    /// The start of a date; of one that was skipped, the start of the next.
    pub fn start_of(self, date: NaiveDate) -> Option<i64> {
        let midnight = date.and_time(NaiveTime::MIN);
        (0..=GAP_STEPS_MAX).find_map(|n| {
            let local = midnight.checked_add_signed(TimeDelta::minutes(n * GAP_STEP_MINUTES))?;
            Some(
                self.0
                    .from_local_datetime(&local)
                    .earliest()?
                    .timestamp_millis(),
            )
        })
    }

    /// A day that begins inside a bucket of this span, if there is one.
    pub fn misaligned(self, span: Span) -> Option<Day> {
        let first = self.start_of(NaiveDate::from_ymd_opt(CHECKED_YEARS.start, 1, 1)?)?;
        let end = self.start_of(NaiveDate::from_ymd_opt(CHECKED_YEARS.end, 1, 1)?)?;
        self.days(first, end)
            .find(|day| span.floor(day.start_ms).0 != day.start_ms)
    }

    /// The local date at this time, such as `2024-03-31`.
    pub fn date(self, ts_ms: i64) -> String {
        let date =
            DateTime::from_timestamp_millis(ts_ms).map(|at| at.with_timezone(&self.0).date_naive());
        date.map_or_else(String::new, |d| {
            format!("{:04}-{:02}-{:02}", d.year(), d.month(), d.day())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn zone(name: &str) -> Zone {
        Zone(name.parse().unwrap())
    }

    fn at(text: &str) -> i64 {
        DateTime::parse_from_rfc3339(text)
            .unwrap()
            .timestamp_millis()
    }

    #[test]
    fn days_have_23_to_25_hours_around_clock_changes() {
        for (name, within, start, hours) in [
            ("UTC", "2024-03-31T12:00:00Z", "2024-03-31T00:00:00Z", 24),
            (
                "Europe/Berlin",
                "2024-03-31T12:00:00Z",
                "2024-03-30T23:00:00Z",
                23,
            ),
            (
                "Europe/Berlin",
                "2024-10-27T12:00:00Z",
                "2024-10-26T22:00:00Z",
                25,
            ),
            (
                "Europe/Berlin",
                "2024-10-26T21:59:59Z",
                "2024-10-25T22:00:00Z",
                24,
            ),
            // Midnight is skipped: the day begins at 01:00.
            (
                "America/Sao_Paulo",
                "2018-11-04T12:00:00Z",
                "2018-11-04T03:00:00Z",
                23,
            ),
            // The clock is set from midnight back to 23:00, which belongs to the day before.
            (
                "America/Sao_Paulo",
                "2018-02-18T02:30:00Z",
                "2018-02-17T02:00:00Z",
                25,
            ),
            (
                "Pacific/Apia",
                "2011-12-30T09:59:59Z",
                "2011-12-29T10:00:00Z",
                24,
            ),
            (
                "Pacific/Apia",
                "2011-12-30T10:00:00Z",
                "2011-12-30T10:00:00Z",
                24,
            ),
            ("UTC", "1969-12-31T23:00:00Z", "1969-12-31T00:00:00Z", 24),
        ] {
            let day = zone(name).day(at(within));
            assert_eq!(
                (day.start_ms, (day.end_ms - day.start_ms) / HOUR),
                (at(start), hours),
                "{name} {within}"
            );
        }
    }

    #[test]
    fn days_follow_each_other_without_a_gap() {
        for name in [
            "UTC",
            "Europe/Berlin",
            "America/Sao_Paulo",
            "Pacific/Apia",
            "America/St_Johns",
            "Asia/Kolkata",
        ] {
            let zone = zone(name);
            let mut end = None;
            for ts_ms in
                (at("2001-01-01T00:00:00Z")..at("2020-01-01T00:00:00Z")).step_by(HOUR as usize * 7)
            {
                let day = zone.day(ts_ms);
                assert!(day.contains(ts_ms), "{name} {ts_ms}");
                if let Some((start_ms, end_ms)) =
                    end.filter(|(start_ms, _)| *start_ms != day.start_ms)
                {
                    assert_eq!(day.start_ms, end_ms, "{name}: after the day of {start_ms}");
                }
                end = Some((day.start_ms, day.end_ms));
            }
        }
    }

    #[test]
    fn a_span_must_fit_into_the_days_of_the_zone() {
        let span = |minutes: i64| Span::from_ms(minutes * 60_000).unwrap();
        for (name, minutes, fits) in [
            ("UTC", 60, true),
            ("UTC", 720, true),
            ("Europe/Berlin", 60, true),
            ("Europe/Berlin", 120, false),
            ("Asia/Kolkata", 60, false),
            ("Asia/Kolkata", 30, true),
            ("Asia/Kathmandu", 30, false),
            ("Asia/Kathmandu", 15, true),
            ("Australia/Lord_Howe", 60, false),
        ] {
            assert_eq!(
                zone(name).misaligned(span(minutes)).is_none(),
                fits,
                "{name} {minutes}"
            );
        }
    }
}
