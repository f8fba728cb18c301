//! The days of the simulated database, and the oracle for them: at rest, each day equals its hours,
//! its columns are its readings, and no mark is left.

use std::collections::{BTreeMap, BTreeSet};

use columns::{DayHours, HoursEncoder, same_readings};
use model::{BucketStart, Day, Reading, Rows, Span};
use pipeline::rollup::state::RollupSettings;
use store::columns::{
    ColumnStore, ColumnsQuery, DayColumns, OfSensors, StoredColumns, StoredHours, bounds,
};
use store::days::{
    DayMark, DayQuery, DayStore, DaySummary, DayWritten, DaysQuery, DaysResults, MarkQuery,
    SensorDay,
};
use store::{BoxFuture, StoreError};
use testkit::memory_store::{Pages, one_by_one};

use super::client::Client;
use super::process::WEIGHTING;
use super::removal;
use super::server::Applied;

impl Client {
    /// Carries out a change in two halves, with other commands in between, and with the faults of
    /// the database. A late change is carried out long after the client gave up.
    pub(crate) fn change<'a, T: Clone + Send + Sync + 'static, A: Send + 'a>(
        &'a self,
        parts: &'a [T],
        apply: impl Fn(&mut Pages, &T) -> A + Send + 'static,
    ) -> BoxFuture<'a, Result<Vec<A>, StoreError>> {
        Box::pin(async move {
            let mut responses = vec![];
            let outcome = self.server.outcome().await;
            match outcome
                .as_ref()
                .map_or_else(|(_, applied)| *applied, |()| Applied::Now)
            {
                Applied::Never => {}
                Applied::Later => {
                    let server = self.server.clone();
                    let parts = parts.to_vec();
                    tokio::spawn(async move {
                        tokio::time::sleep(server.pace.timeout * 2).await;
                        parts
                            .iter()
                            .for_each(|part| drop(apply(&mut server.state().pages, part)));
                    });
                }
                Applied::Now => {
                    for half in parts.chunks(parts.len().div_ceil(2).max(1)) {
                        tokio::time::sleep(self.server.pace.statement * half.len() as u32).await;
                        let mut state = self.server.state();
                        responses.extend(half.iter().map(|part| apply(&mut state.pages, part)));
                    }
                }
            }
            let waits = if outcome.is_ok() {
                self.server.pace.round_trip / 2
            } else {
                self.server.pace.timeout
            };
            tokio::time::sleep(waits).await;
            outcome.map(|()| responses).map_err(|(error, _)| error)
        })
    }
}

impl DayStore for Client {
    fn mark_days<'a>(&'a self, marks: &'a [DayMark]) -> BoxFuture<'a, Result<(), StoreError>> {
        let marked = self.change(marks, |pages, mark| {
            pages.mark_days(std::slice::from_ref(mark))
        });
        Box::pin(async { marked.await.map(drop) })
    }

    fn clear_marks<'a>(&'a self, marks: &'a [DayMark]) -> BoxFuture<'a, Result<(), StoreError>> {
        let cleared = self.change(marks, |pages, mark| {
            pages.clear_marks(std::slice::from_ref(mark))
        });
        Box::pin(async { cleared.await.map(drop) })
    }

    fn day_marks<'a>(
        &'a self,
        query: &'a MarkQuery,
    ) -> BoxFuture<'a, Result<Vec<DayMark>, StoreError>> {
        self.read(move |pages| pages.day_marks(query))
    }

    /// Reads the hours one after the other, with other statements in between.
    fn compute_days<'a>(
        &'a self,
        days: &'a [SensorDay],
    ) -> BoxFuture<'a, Result<Vec<Option<DaySummary>>, StoreError>> {
        Box::pin(async move {
            let mut summaries = vec![];
            for day in days {
                let hours = self.read(move |pages| {
                    let hours = pages.pages.keys().filter(|(sensor, start, _)| {
                        **sensor == *day.sensor_id && day.day.contains(start.0)
                    });
                    hours.map(|(_, start, _)| *start).collect::<BTreeSet<_>>()
                });
                let mut summary = DaySummary::default();
                for start in hours.await? {
                    let end_ms = start.0 + 1;
                    let hour = SensorDay {
                        day: Day {
                            start_ms: start.0,
                            end_ms,
                        },
                        sensor_id: day.sensor_id.clone(),
                    };
                    let pages = self.read(move |pages| pages.day_pages(&hour)).await?;
                    pages.iter().for_each(|page| summary.add_page(page));
                }
                summaries.push(Some(summary));
            }
            Ok(summaries)
        })
    }

    fn write_days<'a>(
        &'a self,
        days: &'a [(SensorDay, DaySummary)],
        replace: bool,
    ) -> BoxFuture<'a, Result<Vec<DayWritten>, StoreError>> {
        self.change(days, move |pages, (day, summary)| {
            pages.write_day(day, summary, replace)
        })
    }

    fn stored_days<'a>(
        &'a self,
        query: &'a DayQuery,
    ) -> BoxFuture<'a, Result<Vec<(i64, DaySummary)>, StoreError>> {
        self.read(move |pages| pages.stored_days(query))
    }

    fn days_of<'a>(
        &'a self,
        query: &'a DaysQuery,
    ) -> BoxFuture<'a, Result<DaysResults, StoreError>> {
        Box::pin(one_by_one::days(self, query))
    }
}

impl ColumnStore for Client {
    fn write_columns<'a>(
        &'a self,
        days: &'a [(SensorDay, DayColumns)],
        replace: bool,
    ) -> BoxFuture<'a, Result<Vec<DayWritten>, StoreError>> {
        self.change(days, move |pages, (day, columns)| {
            pages.write_columns(day, columns, replace)
        })
    }

    fn columns_of<'a>(
        &'a self,
        query: &'a ColumnsQuery,
    ) -> BoxFuture<'a, Result<OfSensors<StoredColumns>, StoreError>> {
        self.read(move |pages| pages.columns_of(query))
    }

    fn hours_of<'a>(
        &'a self,
        query: &'a ColumnsQuery,
    ) -> BoxFuture<'a, Result<OfSensors<StoredHours>, StoreError>> {
        self.read(move |pages| pages.hours_of(query))
    }
}

/// A difference between the columns of a day and its readings, if there is one.
fn find_wrong_columns(pages: &Pages, day: &SensorDay, span: Span) -> Option<String> {
    let mut rows = Rows::default();
    let is_of = |reading: &&Reading| {
        *reading.sensor_id == *day.sensor_id && day.day.contains(span.floor(reading.ts_ms).0)
    };
    let readings = pages.readings();
    readings
        .filter(is_of)
        .for_each(|reading| rows.push_reading(reading));
    let key = (day.sensor_id.to_string(), day.day.start_ms);
    let Some(columns) = pages.days.columns.get(&key) else {
        return (!rows.is_empty()).then(|| format!("day {key:?} has no columns: {rows:?}"));
    };
    let mut decoded = Rows::default();
    for part in &columns.parts {
        match part.decode() {
            Ok(part) => decoded.append(&part.rows()),
            Err(error) => return Some(format!("day {key:?}: {error}")),
        }
    }
    if !same_readings(&decoded, &rows) {
        return Some(format!(
            "day {key:?} has {decoded:?} in columns, and {rows:?}"
        ));
    }
    let mut hours = HoursEncoder::new(bounds(day, span), WEIGHTING.into());
    hours.add(&rows);
    // As text: a sum may be NaN.
    let text = |hours: &DayHours| format!("{hours:?}");
    let naive = text(&hours.finish());
    let found = text(&columns.hours);
    let differ = || found.bytes().zip(naive.bytes()).position(|(a, b)| a != b);
    (found != naive).then(|| {
        let at = differ().unwrap_or_default().saturating_sub(300);
        let part = |text: &str| text.chars().skip(at).take(600).collect::<String>();
        format!(
            "hours of day {key:?}: {}, not {}",
            part(&found),
            part(&naive)
        )
    })
}

/// A difference between the days and their hours, if there is one.
pub(crate) fn find_wrong_day(pages: &Pages, rollup: &RollupSettings) -> Option<String> {
    if let Some((mark, _)) = pages.days.marks.first_key_value() {
        return Some(format!(
            "{} marks are left, such as {mark:?}",
            pages.days.marks.len()
        ));
    }
    let mut days: BTreeMap<(String, i64), SensorDay> = BTreeMap::new();
    for (sensor, start, _) in pages.pages.keys() {
        let day = rollup.zone.day(start.0);
        days.insert(
            (sensor.clone(), day.start_ms),
            SensorDay {
                day,
                sensor_id: sensor.as_str().into(),
            },
        );
    }
    let text = |summary: Option<&DaySummary>| format!("{summary:?}");
    for (key, day) in &days {
        let of_day = |(_, start, _): &&(String, BucketStart, u32)| day.day.contains(start.0);
        let of_sensor = pages.pages.keys().filter(|(sensor, ..)| *sensor == key.0);
        // Readings that were removed before the day was computed are in no columns.
        let is_removed = |(sensor, start, _): &(String, BucketStart, u32)| {
            removal::is_removed(pages, sensor, *start)
        };
        let is_tiered = pages.days.zone.is_some();
        if (is_tiered || !of_sensor.filter(of_day).any(is_removed))
            && let Some(wrong) = find_wrong_columns(pages, day, rollup.span)
        {
            return Some(wrong);
        }
        let computed = pages.compute_day(day);
        let stored = pages.days.documents.get(key);
        // As text: a sum may be NaN.
        if computed.hour.count > 0 && text(stored) != text(Some(&computed)) {
            return Some(format!(
                "day {key:?} is {stored:?}, and its hours are {computed:?}"
            ));
        }
    }
    let unknown = pages
        .days
        .documents
        .keys()
        .find(|key| !days.contains_key(*key));
    unknown.map(|key| format!("day {key:?} has no hours"))
}
