//! Fills and checks `sensor_days`, sensor by sensor, while a service runs: `init --rollup-from` and
//! `reconcile`.
//!
//! Each sensor's hours are streamed in the order of time and added up by day, without readings.
//! Filling writes like the service: a document is replaced only by one that counts at least as many
//! readings, so a concurrent computation is never undone. An interrupted run begins again with the
//! first sensor. It must not continue after the last one: readings of the sensors before it may have
//! arrived meanwhile while `rollup.days` was off, and their days would be left out without an error.
//!
//! A check skips days that are marked, and the open day: the service computes them. Days that
//! differ are compared again after the marks were read once more, so a day that changes meanwhile
//! is not a finding.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::Cursor;
use mongodb::bson::{DateTime, RawDocumentBuf, doc};

use crate::days::{DaySummary, DayWritten, SensorDay};
use crate::maintain::{DaysChecked, Filled, LISTED_MAX, MaintainError, Selection};
use crate::mongo::document::between;
use crate::mongo::maintenance::Maintenance;
use crate::mongo::read::bucket_reader::{Collections, failed};
use crate::mongo::read::days::day_of;
use crate::mongo::read::queries::next_sensors;
use crate::reading::SensorQuery;
use model::collections::{DAYS, PENDING_DAYS};
use model::{Day, SensorId, Zone};

/// Sensors that are listed together.
const SENSORS_MAX: usize = 200;
/// Days and fields that are written together.
const DAYS_MAX: usize = 100;
const FIELDS_MAX: usize = 50_000;
/// Pause before the days of a sensor that differ are read again: an hour may be written shortly
/// before its mark.
const PAUSE: Duration = Duration::from_millis(500);

/// Which days are compared.
struct Check {
    zone: Zone,
    /// Days that begin at or after this, in milliseconds since 1970.
    from_ms: i64,
    /// Days that begin before this, in milliseconds since 1970.
    to_ms: i64,
    repair: bool,
}

fn store_failed(error: crate::StoreError) -> MaintainError {
    MaintainError::Server(error.to_string())
}

impl Maintenance {
    /// Computes and writes all days from `from_ms` on. `progress` is called after each sensor.
    ///
    /// # Errors
    /// The server failed; what was written remains, and may be written again.
    pub async fn fill_days(
        &self,
        zone: Zone,
        from_ms: i64,
        now_ms: i64,
        mut progress: impl FnMut(&str, &Filled),
    ) -> Result<Filled, MaintainError> {
        let mut filled = Filled::default();
        let mut after = None;
        // Days whose hours may have expired are left as they are.
        let kept_ms = self
            .retention
            .map_or(i64::MIN, |kept| now_ms - kept.as_millis() as i64);
        let first_ms = zone
            .days(kept_ms.max(from_ms), i64::MAX)
            .map(|d| d.start_ms)
            .find(|ms| *ms >= kept_ms.max(from_ms));
        loop {
            let sensors = self.sensors_after(after.clone()).await?;
            let Some(last) = sensors.last() else { break };
            after = Some(last.clone());
            for sensor in sensors {
                let mut batch = vec![];
                let id: SensorId = sensor.as_str().into();
                let mut hours = self
                    .hours_of(&id, first_ms.unwrap_or(from_ms), i64::MAX)
                    .await?;
                while let Some((day, summary)) = hours.next(zone).await? {
                    batch.push((
                        SensorDay {
                            day,
                            sensor_id: id.clone(),
                        },
                        summary,
                    ));
                    let fields: usize = batch
                        .iter()
                        .map(|(_, summary)| summary.hour.summary.len())
                        .sum();
                    if batch.len() >= DAYS_MAX || fields >= FIELDS_MAX {
                        self.fill(&mut batch, &mut filled).await?;
                    }
                }
                self.fill(&mut batch, &mut filled).await?;
                filled.sensors += 1;
                progress(&sensor, &filled);
            }
        }
        Ok(filled)
    }

    async fn fill(
        &self,
        batch: &mut Vec<(SensorDay, DaySummary)>,
        filled: &mut Filled,
    ) -> Result<(), MaintainError> {
        let written = self
            .days
            .put_days(batch, false)
            .await
            .map_err(store_failed)?;
        let refused = written
            .iter()
            .filter(|w| matches!(w, DayWritten::Rejected { .. }))
            .count() as u64;
        filled.days += written.len() as u64 - refused;
        filled.refused += refused;
        batch.clear();
        Ok(())
    }

    /// Compares days with their hours, and repairs differences if requested.
    ///
    /// # Errors
    /// The server failed; earlier repairs remain.
    pub async fn check_days(
        &self,
        zone: Zone,
        selection: &Selection,
        now_ms: i64,
        repair: bool,
    ) -> Result<DaysChecked, MaintainError> {
        let kept_ms = self
            .retention
            .map_or(i64::MIN, |kept| now_ms - kept.as_millis() as i64);
        // Whole days, all of whose hours are stored, and that have ended.
        let first = zone.day(selection.from_ms.max(kept_ms));
        let from_ms = if first.start_ms < kept_ms {
            first.end_ms
        } else {
            first.start_ms
        };
        let to_ms = zone.day(selection.to_ms.min(now_ms)).start_ms;
        let check = Check {
            zone,
            from_ms,
            to_ms,
            repair,
        };
        let mut checked = DaysChecked::default();
        let mut after = None;
        loop {
            let sensors = match selection.sensors.is_empty() {
                true => self.sensors_after(after).await?,
                false if after.is_none() => selection.sensors.clone(),
                false => vec![],
            };
            let Some(last) = sensors.last() else {
                return Ok(checked);
            };
            after = Some(last.clone());
            for sensor in sensors {
                self.check_sensor(&check, &sensor.as_str().into(), &mut checked)
                    .await?;
            }
        }
    }

    async fn check_sensor(
        &self,
        check: &Check,
        sensor: &SensorId,
        checked: &mut DaysChecked,
    ) -> Result<(), MaintainError> {
        let marked = self.marked_days_of(sensor).await?;
        let mut hours = self.hours_of(sensor, check.from_ms, check.to_ms).await?;
        let mut suspects = vec![];
        while let Some((day, summary)) = hours.next(check.zone).await? {
            if marked.contains(&day.start_ms) {
                checked.pending += 1;
                continue;
            }
            checked.days += 1;
            if !same(self.stored_day(sensor, day).await?.as_ref(), &summary) {
                suspects.push(day);
            }
        }
        if suspects.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
        let marked = self.marked_days_of(sensor).await?;
        for day in suspects {
            if marked.contains(&day.start_ms) {
                checked.days -= 1;
                checked.pending += 1;
            } else {
                self.check_again(check, sensor, day, checked).await?;
            }
        }
        Ok(())
    }

    /// Reports a day that still differs, and repairs it if requested.
    async fn check_again(
        &self,
        check: &Check,
        sensor: &SensorId,
        day: Day,
        checked: &mut DaysChecked,
    ) -> Result<(), MaintainError> {
        let computed = self
            .hours_of(sensor, day.start_ms, day.end_ms)
            .await?
            .next(check.zone)
            .await?;
        let stored = self.stored_day(sensor, day).await?;
        let Some((_, computed)) = computed.filter(|(_, computed)| !same(stored.as_ref(), computed))
        else {
            return Ok(());
        };
        checked.differences += 1;
        if checked.listed.len() < LISTED_MAX {
            let stored = stored.as_ref().map_or(0, |day| day.hour.count);
            checked.listed.push((
                sensor.to_string(),
                day.start_ms,
                stored,
                computed.hour.count,
            ));
        }
        if check.repair {
            let day = (
                SensorDay {
                    day,
                    sensor_id: sensor.clone(),
                },
                computed,
            );
            let written = self
                .days
                .put_days(&[day], true)
                .await
                .map_err(store_failed)?;
            checked.repaired += u64::from(written[0] == DayWritten::Done);
        }
        Ok(())
    }

    async fn sensors_after(&self, after: Option<String>) -> Result<Vec<String>, MaintainError> {
        let query = SensorQuery {
            prefix: String::new(),
            after,
            limit: SENSORS_MAX,
        };
        next_sensors(&self.reader.collections().buckets, &query)
            .await
            .map_err(failed("listing the sensors"))
    }

    async fn marked_days_of(&self, sensor: &SensorId) -> Result<BTreeSet<i64>, MaintainError> {
        let what = failed("reading the marks of a sensor");
        let mut marks = self
            .reader
            .connection()
            .majority::<RawDocumentBuf>(PENDING_DAYS)
            .find(doc! { "sensor_id": &**sensor })
            .await
            .map_err(&what)?;
        let mut days = BTreeSet::new();
        while let Some(mark) = marks.try_next().await.map_err(&what)? {
            let day = mark
                .get_document("_id")
                .and_then(|id| id.get_datetime("day"));
            days.extend(day.map(|day| day.timestamp_millis()));
        }
        Ok(days)
    }

    pub(crate) async fn stored_day(
        &self,
        sensor: &SensorId,
        day: Day,
    ) -> Result<Option<DaySummary>, MaintainError> {
        let filter = doc! { "sensor_id": &**sensor, "day": DateTime::from_millis(day.start_ms) };
        let found = self
            .reader
            .connection()
            .majority::<RawDocumentBuf>(DAYS)
            .find_one(filter)
            .await
            .map_err(failed("reading a day"))?;
        Ok(found
            .and_then(|found| day_of(&found))
            .map(|(_, summary)| summary))
    }

    pub(crate) async fn hours_of(
        &self,
        sensor: &SensorId,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<HourStream, MaintainError> {
        let of = self.reader.collections();
        let within = between(from_ms, to_ms);
        // The order of DaySummary::add_page.
        let sort = doc! { "sensor_id": -1, "bucket_start": 1, "page": -1 };
        let find = of
            .buckets
            .find(doc! { "sensor_id": &**sensor, "bucket_start": within })
            .sort(sort);
        let cursor = find
            .projection(doc! { "readings": 0 })
            .await
            .map_err(failed("reading the hours"))?;
        Ok(HourStream {
            of,
            cursor,
            open: None,
        })
    }
}

/// The hours of one sensor, added up by day.
pub(crate) struct HourStream {
    of: Collections,
    cursor: Cursor<RawDocumentBuf>,
    open: Option<(Day, DaySummary)>,
}

impl HourStream {
    /// The next day with readings.
    pub(crate) async fn next(
        &mut self,
        zone: Zone,
    ) -> Result<Option<(Day, DaySummary)>, MaintainError> {
        while let Some(found) = self
            .cursor
            .try_next()
            .await
            .map_err(failed("reading the hours"))?
        {
            let Some((key, _, page)) = self.of.parse(&found) else {
                continue;
            };
            match &mut self.open {
                Some((day, summary)) if day.contains(key.start.0) => summary.add_page(&page),
                open => {
                    let mut next = DaySummary::default();
                    next.add_page(&page);
                    let ended = open.replace((zone.day(key.start.0), next));
                    if let Some(ended) = ended.filter(|(_, summary)| summary.hour.count > 0) {
                        return Ok(Some(ended));
                    }
                }
            }
        }
        Ok(self
            .open
            .take()
            .filter(|(_, summary)| summary.hour.count > 0))
    }
}

/// Whether a stored day is as computed. Sums are compared exactly: both were added up in the same
/// order. As text, because a sum may be NaN.
pub(crate) fn same(stored: Option<&DaySummary>, computed: &DaySummary) -> bool {
    stored == Some(computed)
        || stored.is_some_and(|stored| format!("{stored:?}") == format!("{computed:?}"))
}
