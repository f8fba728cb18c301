//! Fills and checks the columns of the past, sensor by sensor, while a service runs: `init
//! --columns-from` and `reconcile`.
//!
//! Filling writes like the service: a day is replaced only by one that counts at least as many
//! readings, so a concurrent computation is never undone. An interrupted run begins again with the
//! first sensor, as that of days does ([`crate::mongo::Maintenance::fill_days`]).
//!
//! A check skips the open day and marked days: the service computes them. A day that differs is
//! compared again, so a day that changes meanwhile is not a finding.

use std::collections::BTreeSet;
use std::time::Duration;

use columns::{Weightings, same_readings};
use model::{BucketStart, Day, Rows, SensorId, Span, Zone};

use crate::columns::{ColumnsQuery, DayColumns};
use crate::day_readings::{NoColumns, encode_day, stored_readings};
use crate::days::{DayWritten, MarkQuery, MarksOf, SensorDay};
use crate::maintain::{DaysChecked, Filled, LISTED_MAX, Selection};
use crate::reading::{PageQuery, SensorQuery};
use crate::{Store, StoreError, StoreErrorKind};

/// Sensors that are listed together.
const SENSORS_MAX: usize = 200;
/// Bytes of the columns that are written together.
const WRITE_BYTES: usize = 4 << 20;
/// Marks of a sensor that are read at once.
const MARKS_MAX: usize = 10_000;
/// Pause before a day that differs is read again: an hour may be written shortly before its mark.
const PAUSE: Duration = Duration::from_millis(500);

/// Fills and checks columns.
#[derive(Clone)]
pub struct ColumnsMaintenance<'s> {
    store: &'s dyn Store,
    zone: Zone,
    span: Span,
    weightings: Weightings,
}

impl<'s> ColumnsMaintenance<'s> {
    /// Of a database with this `rollup.zone` and `bucket.span`.
    pub fn new(
        store: &'s dyn Store,
        zone: Zone,
        span: Span,
        weightings: Weightings,
    ) -> ColumnsMaintenance<'s> {
        ColumnsMaintenance {
            store,
            zone,
            span,
            weightings,
        }
    }

    /// Encodes and writes all days that begin at or after `from_ms` and have ended. `progress` is
    /// called after each sensor.
    ///
    /// # Errors
    /// The store failed; what was written remains, and may be written again.
    pub async fn fill(
        &self,
        from_ms: i64,
        now_ms: i64,
        mut progress: impl FnMut(&str, &Filled) + Send,
    ) -> Result<Filled, StoreError> {
        let mut filled = Filled::default();
        let mut after = None;
        loop {
            let sensors = self.sensors_after(after).await?;
            let Some(last) = sensors.last() else {
                return Ok(filled);
            };
            after = Some(last.clone());
            for sensor in &sensors {
                self.fill_sensor(&sensor.as_str().into(), from_ms, now_ms, &mut filled)
                    .await?;
                filled.sensors += 1;
                progress(sensor, &filled);
            }
        }
    }

    async fn fill_sensor(
        &self,
        sensor_id: &SensorId,
        from_ms: i64,
        now_ms: i64,
        filled: &mut Filled,
    ) -> Result<(), StoreError> {
        let mut writes = vec![];
        let mut bytes = 0;
        for day in self.ended_days(sensor_id, from_ms, now_ms).await? {
            match self.encode(&day).await? {
                Ok(columns) => {
                    bytes += columns.about_bytes();
                    writes.push((day, columns));
                }
                Err(NoColumns::TooLarge) => filled.refused += 1,
                Err(NoColumns::Empty) => {}
            }
            if bytes >= WRITE_BYTES {
                self.write(&mut writes, filled).await?;
                bytes = 0;
            }
        }
        self.write(&mut writes, filled).await
    }

    async fn write(
        &self,
        days: &mut Vec<(SensorDay, DayColumns)>,
        filled: &mut Filled,
    ) -> Result<(), StoreError> {
        if let Some(store) = self.store.columns().filter(|_| !days.is_empty()) {
            for written in store.write_columns(days, false).await? {
                match written {
                    DayWritten::Rejected { .. } => filled.refused += 1,
                    DayWritten::Done | DayWritten::Newer => filled.days += 1,
                }
            }
        }
        days.clear();
        Ok(())
    }

    async fn encode(&self, day: &SensorDay) -> Result<Result<DayColumns, NoColumns>, StoreError> {
        encode_day(self.store, self.span, day, &self.weightings).await
    }

    /// Compares the columns and hours of days with their readings, and writes those that differ if
    /// requested.
    ///
    /// # Errors
    /// The store failed; earlier repairs remain.
    pub async fn check(
        &self,
        selection: &Selection,
        now_ms: i64,
        repair: bool,
    ) -> Result<DaysChecked, StoreError> {
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
                let sensor_id = sensor.as_str().into();
                let to_ms = selection.to_ms.min(now_ms);
                let days = self
                    .ended_days(&sensor_id, selection.from_ms, to_ms)
                    .await?;
                self.check_sensor(&sensor_id, days, repair, &mut checked)
                    .await?;
            }
        }
    }

    async fn check_sensor(
        &self,
        sensor_id: &SensorId,
        days: Vec<SensorDay>,
        repair: bool,
        checked: &mut DaysChecked,
    ) -> Result<(), StoreError> {
        let marked = self.marked_days(sensor_id).await?;
        for day in days {
            if marked.contains(&day.day.start_ms) {
                checked.pending += 1;
                continue;
            }
            checked.days += 1;
            if self.difference(&day).await?.is_none() {
                continue;
            }
            tokio::time::sleep(PAUSE).await;
            if self
                .marked_days(sensor_id)
                .await?
                .contains(&day.day.start_ms)
            {
                checked.days -= 1;
                checked.pending += 1;
                continue;
            }
            let Some((stored, computed)) = self.difference(&day).await? else {
                continue;
            };
            checked.differences += 1;
            if checked.listed.len() < LISTED_MAX {
                let place = (sensor_id.to_string(), day.day.start_ms);
                checked
                    .listed
                    .push((place.0, place.1, stored, computed.count()));
            }
            if repair && let Some(store) = self.store.columns() {
                let written = store.write_columns(&[(day, computed)], true).await?;
                checked.repaired += u64::from(written == [DayWritten::Done]);
            }
        }
        Ok(())
    }

    /// Replaces the columns and hours of a day if they are not those of its readings, also by fewer.
    /// Returns whether it did. An open day without columns gets none. `is_forced`: also equal ones, with
    /// which the day's document gets its fields again.
    ///
    /// # Errors
    /// The store failed, or refuses the columns.
    pub(crate) async fn settle(
        &self,
        day: &SensorDay,
        now_ms: i64,
        is_forced: bool,
    ) -> Result<bool, StoreError> {
        let stored = stored_readings(self.store, day).await;
        let has_none = stored.as_ref().is_ok_and(Rows::is_empty);
        let computed = match self.encode(day).await? {
            // One that is too large for columns has none, unless it has grown.
            Err(NoColumns::TooLarge) => return Ok(false),
            Err(NoColumns::Empty) if has_none => return Ok(false),
            Err(NoColumns::Empty) => DayColumns::default(),
            Ok(_) if has_none && day.day.end_ms > now_ms => return Ok(false),
            Ok(computed) if is_forced => computed,
            Ok(computed) => match self.difference(day).await? {
                None => return Ok(false),
                Some(_) => computed,
            },
        };
        let Some(store) = self.store.columns() else {
            return Ok(false);
        };
        match store
            .write_columns(&[(day.clone(), computed)], true)
            .await?
            .pop()
        {
            Some(DayWritten::Rejected { detail }) => Err(StoreError::NotApplied {
                kind: StoreErrorKind::Command,
                detail,
            }),
            _ => Ok(true),
        }
    }

    /// How many readings the columns of a day have, and what its columns must be, if they differ.
    async fn difference(&self, day: &SensorDay) -> Result<Option<(u64, DayColumns)>, StoreError> {
        let Ok(computed) = self.encode(day).await? else {
            return Ok(None);
        };
        // Columns that cannot be decoded differ as well.
        let stored = stored_readings(self.store, day).await.unwrap_or_default();
        let mut actual = Rows::default();
        for part in &computed.parts {
            if let Ok(part) = part.decode() {
                actual.append(&part.rows());
            }
        }
        let is_same = same_readings(&stored, &actual) && self.has_hours(day, &computed).await?;
        Ok((!is_same).then_some((stored.len() as u64, computed)))
    }

    async fn has_hours(&self, day: &SensorDay, computed: &DayColumns) -> Result<bool, StoreError> {
        let Some(store) = self.store.columns() else {
            return Ok(false);
        };
        let query = ColumnsQuery::of_day(&day.sensor_id, day.day);
        let found = store.hours_of(&query).await?;
        // As text: a sum may be NaN.
        let text = |hours: &columns::DayHours| format!("{hours:?}");
        let wanted = text(&computed.hours);
        Ok(found.days.iter().any(|day| text(&day.hours) == wanted))
    }

    async fn sensors_after(&self, after: Option<String>) -> Result<Vec<String>, StoreError> {
        let query = SensorQuery {
            prefix: String::new(),
            after,
            limit: SENSORS_MAX,
        };
        self.store.sensors(&query).await
    }

    async fn marked_days(&self, sensor_id: &SensorId) -> Result<BTreeSet<i64>, StoreError> {
        let Some(store) = self.store.days() else {
            return Ok(BTreeSet::new());
        };
        let query = MarkQuery {
            of: MarksOf::Sensor(sensor_id.clone()),
            after: None,
            limit: MARKS_MAX,
        };
        let marks = store.day_marks(&query).await?;
        Ok(marks.iter().map(|mark| mark.day_ms).collect())
    }

    /// The whole days with pages that begin at or after `from_ms` and end by `to_ms`.
    async fn ended_days(
        &self,
        sensor_id: &SensorId,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SensorDay>, StoreError> {
        let mut days: BTreeSet<Day> = BTreeSet::new();
        let mut query = PageQuery {
            sensor_id: sensor_id.clone(),
            from: BucketStart(from_ms),
            to_ms,
            after: None,
            readings_from_ms: None,
        };
        loop {
            let found = self.store.pages(&query).await?;
            for (start, _) in &found.pages {
                if !days.last().is_some_and(|day| day.contains(start.0)) {
                    days.insert(self.zone.day(start.0));
                }
            }
            query.after = found.next;
            if query.after.is_none() {
                break;
            }
        }
        let is_whole = |day: &Day| day.start_ms >= from_ms && day.end_ms <= to_ms;
        let day = |day| SensorDay {
            day,
            sensor_id: sensor_id.clone(),
        };
        Ok(days.into_iter().filter(is_whole).map(day).collect())
    }
}
