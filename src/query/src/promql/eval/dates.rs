//! Parts of a time in UTC, of seconds since 1970.

const DAY_S: i64 = 86_400;

/// Year, month (1 to 12) and day (1 to 31) in the proleptic Gregorian calendar.
fn civil(seconds: i64) -> (i64, i64, i64) {
    // Eras of 400 years that begin on 1 March, so that the leap day is the last of a year.
    let days = i128::from(seconds.div_euclid(DAY_S)) + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let year = era * 400 + year + i128::from(month <= 2);
    (year as i64, month as i64, day as i64)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

const DAYS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

fn month_length(year: i64, month: i64) -> i64 {
    DAYS[month as usize - 1] + i64::from(month == 2 && is_leap(year))
}

pub(crate) fn days_in_month(seconds: i64) -> f64 {
    let (year, month, _) = civil(seconds);
    month_length(year, month) as f64
}

pub(crate) fn day_of_month(seconds: i64) -> f64 {
    civil(seconds).2 as f64
}

/// 0 is Sunday.
pub(crate) fn day_of_week(seconds: i64) -> f64 {
    (seconds.div_euclid(DAY_S) + 4).rem_euclid(7) as f64
}

pub(crate) fn day_of_year(seconds: i64) -> f64 {
    let (year, month, day) = civil(seconds);
    ((1..month).map(|m| month_length(year, m)).sum::<i64>() + day) as f64
}

pub(crate) fn hour(seconds: i64) -> f64 {
    (seconds.rem_euclid(DAY_S) / 3600) as f64
}

pub(crate) fn minute(seconds: i64) -> f64 {
    (seconds.rem_euclid(3600) / 60) as f64
}

pub(crate) fn month(seconds: i64) -> f64 {
    civil(seconds).1 as f64
}

pub(crate) fn year(seconds: i64) -> f64 {
    civil(seconds).0 as f64
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Datelike, Timelike};

    use super::*;

    #[test]
    fn the_calendar_is_chronos() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let at = rng.i64(-100_000_000_000..200_000_000_000);
            let time = DateTime::from_timestamp(at, 0).unwrap();
            let of = [
                year(at),
                month(at),
                day_of_month(at),
                day_of_year(at),
                hour(at),
                minute(at),
                day_of_week(at),
            ];
            let expected = [
                f64::from(time.year()),
                f64::from(time.month()),
                f64::from(time.day()),
                f64::from(time.ordinal()),
                f64::from(time.hour()),
                f64::from(time.minute()),
                f64::from(time.weekday().num_days_from_sunday()),
            ];
            assert_eq!(of, expected, "{at}");
        }
        assert_eq!(
            [days_in_month(1_708_000_000), days_in_month(1_676_000_000)],
            [29.0, 28.0]
        );
    }
}
