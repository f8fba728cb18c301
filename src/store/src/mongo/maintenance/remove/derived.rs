//! Recomputes what is derived from readings: days, their columns, latest states, the catalogue.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mongodb::bson::{Bson, DateTime, Document, RawDocumentBuf, doc};
use tokio::time::Instant;

use super::{PATIENCE, Run, Selected, store_failed};
use crate::days::{DayMark, MarkQuery, MarksOf, REMOVAL, SensorDay};
use crate::maintain::MaintainError;
use crate::maintain::removal::Removal;
use crate::maintain_columns::ColumnsMaintenance;
use crate::mongo::maintenance::days::same;
use crate::mongo::read::bucket_reader::{failed, key_of, push, value_bson};
use model::collections::{CATALOG, COLUMNS, DAYS, LATEST};
use model::latest::{newest, prune};
use model::{BucketKey, Day, Rows, SensorId, StorageMode};

/// Marks that are read at once.
const MARKS_MAX: usize = 1000;
/// How often marks of services are looked at.
const POLL: Duration = Duration::from_millis(500);
/// Attempts for a document that a service keeps changing, and the pause between them.
const TRIES: u32 = 10;
const RETRY_PAUSE: Duration = Duration::from_millis(50);

impl Run<'_> {
    /// Computes the marked days of the selected sensors, those of an interrupted run too.
    ///
    /// A service that computes a day has a mark of it from before it reads the pages until it has
    /// written. So a day is settled if no service had a mark, and then its documents were equal to its
    /// pages. An open day is settled at once: no service computes it before it has ended.
    pub(super) async fn settle_days(
        &mut self,
        is_selected: impl Fn(&SensorId) -> bool,
    ) -> Result<(), MaintainError> {
        let mut left = self.marks(MarksOf::Instance(REMOVAL.into())).await?;
        left.retain(|mark| is_selected(&mark.sensor_id));
        let until = Instant::now() + PATIENCE;
        loop {
            let computing = self.marked_by_services(&left).await?;
            for mark in &left {
                self.settle_day(mark).await?;
            }
            let is_settled = |mark: &DayMark| !computing.contains(&place(mark));
            let settled: Vec<DayMark> = left.extract_if(.., |mark| is_settled(mark)).collect();
            if let Some(days) = self.store.days() {
                for some in settled.chunks(MARKS_MAX) {
                    days.clear_marks(some).await.map_err(store_failed)?;
                }
            }
            self.done.days += settled.len() as u64;
            if left.is_empty() || Instant::now() >= until {
                self.done.unsettled = left.len() as u64;
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until no service has a mark of an ended day of this sensor, at most [`PATIENCE`].
    pub(super) async fn wait_for_services(&self, sensor: &SensorId) -> Result<(), MaintainError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let marks = self.marks(MarksOf::Sensor(sensor.clone())).await?;
            if self.marked_by_services(&marks).await?.is_empty() || Instant::now() >= until {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Those of these days that have ended and that a service has marked.
    async fn marked_by_services(
        &self,
        marks: &[DayMark],
    ) -> Result<BTreeSet<(SensorId, i64)>, MaintainError> {
        let sensors: BTreeSet<SensorId> = marks.iter().map(|mark| mark.sensor_id.clone()).collect();
        let sensors: Vec<SensorId> = sensors.into_iter().collect();
        let days: BTreeSet<_> = marks.iter().map(place).collect();
        let mut found = BTreeSet::new();
        for some in sensors.chunks(MARKS_MAX) {
            let marks = self.marks(MarksOf::Sensors(some.to_vec())).await?;
            let of_services = marks.iter().filter(|mark| *mark.instance != *REMOVAL);
            found.extend(of_services.map(place).filter(|place| days.contains(place)));
        }
        let now_ms = self.options.now_ms;
        found.retain(|(_, day_ms)| self.options.zone.day(*day_ms).end_ms <= now_ms);
        Ok(found)
    }

    pub(super) async fn marks(&self, of: MarksOf) -> Result<Vec<DayMark>, MaintainError> {
        let has_days = self.options.has_days || self.options.columns.is_some();
        let Some(days) = self.store.days().filter(|_| has_days) else {
            return Ok(vec![]);
        };
        let mut marks = vec![];
        let mut query = MarkQuery {
            of,
            after: None,
            limit: MARKS_MAX,
        };
        loop {
            let found = days.day_marks(&query).await.map_err(store_failed)?;
            let is_last = found.len() < MARKS_MAX;
            query.after = found.last().cloned();
            marks.extend(found);
            if is_last {
                return Ok(marks);
            }
        }
    }

    /// Replaces what is stored of a day by what its pages and readings say, until it is equal: a
    /// service may have written the day, with new readings, just before it was replaced.
    async fn settle_day(&self, mark: &DayMark) -> Result<(), MaintainError> {
        let day = SensorDay {
            day: self.options.zone.day(mark.day_ms),
            sensor_id: mark.sensor_id.clone(),
        };
        for _ in 0..TRIES {
            let mut is_changed = self.options.has_days && self.settle_summary(&day).await?;
            if let Some(weightings) = self.options.columns.clone() {
                let span = self.of.reader.connection().span();
                let zone = self.options.zone;
                let columns = ColumnsMaintenance::new(self.store, zone, span, weightings);
                let now_ms = self.options.now_ms;
                let settled = columns.settle(&day, now_ms, is_changed).await;
                is_changed |= settled.map_err(store_failed)?;
            }
            if !is_changed {
                break;
            }
        }
        Ok(())
    }

    /// Whether it has changed the day.
    async fn settle_summary(&self, day: &SensorDay) -> Result<bool, MaintainError> {
        let Day { start_ms, end_ms } = day.day;
        let stored = self.of.stored_day(&day.sensor_id, day.day).await?;
        let mut hours = self.of.hours_of(&day.sensor_id, start_ms, end_ms).await?;
        match hours.next(self.options.zone).await? {
            None => {
                let start = DateTime::from_millis(start_ms);
                let filter = doc! { "sensor_id": &*day.sensor_id, "day": start };
                Ok(self.delete(DAYS, filter).await? > 0)
            }
            // The service computes an open day when it has ended.
            Some(_) if stored.is_none() && end_ms > self.options.now_ms => Ok(false),
            Some((_, computed)) if same(stored.as_ref(), &computed) => Ok(false),
            Some((_, computed)) => {
                let days = [(day.clone(), computed)];
                let written = self.of.days.put_days(&days, true).await;
                written.map(|_| true).map_err(store_failed)
            }
        }
    }

    /// Deletes documents; returns how many.
    pub(super) async fn delete(
        &self,
        collection: &str,
        filter: Document,
    ) -> Result<u64, MaintainError> {
        let command = doc! { "delete": collection, "deletes": [{ "q": filter, "limit": 0 }] };
        let deleted = self.of.reader.connection().apply_all(command).await;
        deleted.map_err(store_failed)
    }

    /// Compares the latest states with what is left.
    pub(super) async fn latest_of_all(&mut self, of: &[Selected]) -> Result<(), MaintainError> {
        let Some(recent_max) = self.options.recent_max else {
            return Ok(());
        };
        for (sensor, removal) in of {
            for _ in 0..TRIES {
                match self.latest(sensor, removal, recent_max).await? {
                    Some(is_changed) => {
                        self.done.latest += u64::from(is_changed);
                        break;
                    }
                    None => tokio::time::sleep(RETRY_PAUSE).await,
                }
            }
        }
        Ok(())
    }

    /// Replaces the latest state of a sensor if something in it was removed; `None`: a service has
    /// changed it meanwhile.
    ///
    /// A state may be ahead of the pages, so what is outside of the removal, or too recent for it,
    /// stays as it is.
    async fn latest(
        &self,
        sensor: &SensorId,
        removal: &Removal,
        recent_max: usize,
    ) -> Result<Option<bool>, MaintainError> {
        let states = self.of.reader.connection().majority::<Document>(LATEST);
        let what = failed("reading a latest state");
        let Some(stored) = states
            .find_one(doc! { "_id": &**sensor })
            .await
            .map_err(what)?
        else {
            return Ok(Some(false));
        };
        let range = removal.from_ms..removal.to_ms.min(self.options.settled_before_ms);
        let is_within =
            |ts: Option<&DateTime>| ts.is_some_and(|ts| range.contains(&ts.timestamp_millis()));
        let values = stored.get_document("values").cloned().unwrap_or_default();
        let recent = stored.get_array("recent").cloned().unwrap_or_default();
        let at = |value: &Bson| {
            value
                .as_document()
                .and_then(|v| v.get_datetime("ts").ok())
                .copied()
        };
        let doubtful: BTreeSet<String> = values
            .iter()
            .filter(|(_, value)| is_within(at(value).as_ref()))
            .map(|(name, _)| name.clone())
            .collect();
        let is_last = is_within(stored.get_datetime("last_ts").ok());
        if doubtful.is_empty() && !is_last && !recent.iter().any(|r| is_within(at(r).as_ref())) {
            return Ok(Some(false));
        }
        let mut rows = Rows::default();
        for reading in recent.iter().filter_map(Bson::as_document) {
            if let Ok(raw) = RawDocumentBuf::try_from(reading) {
                push(&mut rows, &raw, &["ts"]);
            }
        }
        rows.retain(|row| !range.contains(&row.ts_ms));
        let left = self
            .newest_left(sensor, rows, &doubtful, recent_max)
            .await?;
        let found = newest(&left, recent_max);
        let mut new = stored.clone();
        let mut new_values = Document::new();
        let by_name: BTreeMap<&str, _> = found.values.iter().map(|v| (v.name, v)).collect();
        for (name, value) in &values {
            if !doubtful.contains(name) {
                new_values.insert(name, value);
            } else if let Some(v) = by_name.get(&**name) {
                let ts = DateTime::from_millis(v.ts_ms);
                new_values.insert(name, doc! { "ts": ts, "value": value_bson(v.value) });
            }
        }
        let reading = |r: &model::latest::RecentReading<'_>| {
            let mut reading = doc! { "ts": DateTime::from_millis(r.ts_ms) };
            let values = r.values.iter();
            reading.extend(values.map(|(name, value)| ((*name).to_owned(), value_bson(*value))));
            Bson::from(reading)
        };
        new.insert(
            "recent",
            found.recent.iter().map(reading).collect::<Vec<_>>(),
        );
        if is_last {
            new.insert("last_ts", DateTime::from_millis(found.last_ts_ms));
        }
        let is_empty = left.is_empty() && new_values.is_empty();
        new.insert("values", new_values);
        if new == stored {
            return Ok(Some(false));
        }
        let states = self
            .of
            .reader
            .connection()
            .db()
            .collection::<Document>(LATEST);
        let what = failed("replacing a latest state");
        // All of its fields: a service changes at least one.
        let changed = match is_empty {
            true => states.delete_one(stored).await.map_err(what)?.deleted_count,
            false => {
                states
                    .replace_one(stored, new)
                    .await
                    .map_err(what)?
                    .matched_count
            }
        };
        Ok((changed == 1).then_some(true))
    }

    /// Adds the newest stored readings to `rows`, until there is one of each of these fields, and
    /// enough recent ones.
    pub(super) async fn newest_left(
        &self,
        sensor: &SensorId,
        mut rows: Rows,
        fields: &BTreeSet<String>,
        recent_max: usize,
    ) -> Result<Rows, MaintainError> {
        let mut missing = fields.clone();
        let mut readings = 0;
        let mut before: Option<DateTime> = None;
        while !missing.is_empty() || readings < recent_max.max(1) {
            let Some(bucket) = self.bucket_before(sensor, before).await? else {
                break;
            };
            before = Some(DateTime::from_millis(bucket.start.0));
            let mut bucket = self.all.read_documents(&bucket).await?;
            if bucket.storage_mode() == StorageMode::TimeSeries {
                let measured = self.all.read_measurements(&bucket.key, bucket.end_ms);
                bucket.measured = Some(measured.await?);
            }
            for found in self.rows_of(&bucket).await? {
                for row in found.iter() {
                    for (name, _) in row.named() {
                        missing.remove(name);
                    }
                }
                readings += found.len();
                rows.append(&found);
            }
            rows = prune(&rows, recent_max);
        }
        Ok(rows)
    }

    /// The last bucket of a sensor that begins before this time and counts something.
    async fn bucket_before(
        &self,
        sensor: &SensorId,
        before: Option<DateTime>,
    ) -> Result<Option<BucketKey>, MaintainError> {
        let mut filter = doc! { "sensor_id": &**sensor, "count": { "$gt": 0 } };
        filter.extend(before.map(|at| ("bucket_start".to_owned(), Bson::from(doc! { "$lt": at }))));
        let found = self
            .all
            .buckets
            .find_one(filter)
            .projection(doc! { "sensor_id": 1, "bucket_start": 1 })
            .sort(doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 })
            .await;
        let found = found.map_err(failed("reading the buckets"))?;
        Ok(found.and_then(|found| key_of(&found)))
    }

    /// Compares the entries of the catalogue with what is left.
    pub(super) async fn narrow_entries(
        &mut self,
        sensors: &BTreeSet<SensorId>,
    ) -> Result<(), MaintainError> {
        for sensor in sensors {
            self.narrow_entry(sensor).await?;
        }
        Ok(())
    }

    async fn narrow_entry(&mut self, sensor: &SensorId) -> Result<(), MaintainError> {
        let entries = self.of.reader.connection().majority::<Document>(CATALOG);
        let what = failed("reading the catalogue");
        let Some(entry) = entries
            .find_one(doc! { "_id": &**sensor })
            .await
            .map_err(what)?
        else {
            return Ok(());
        };
        let narrowed = match self.times_left(sensor).await? {
            None => None,
            Some((first_ms, last_ms)) => {
                let mut gone = vec![];
                for name in entry
                    .get_document("fields")
                    .into_iter()
                    .flat_map(Document::keys)
                {
                    if !self.has_field(sensor, name).await? {
                        gone.push(name.clone());
                    }
                }
                let time = |name: &str| {
                    entry
                        .get_datetime(name)
                        .map_or(0, |at| at.timestamp_millis())
                };
                if gone.is_empty() && time("first_ts") >= first_ms && time("last_ts") <= last_ms {
                    return Ok(());
                }
                Some((first_ms, last_ms, gone))
            }
        };
        if self.may_be_written(&entry) {
            self.done.entries_kept += 1;
            return Ok(());
        }
        let times = ["_id", "first_ts", "last_ts", "last_arrival", "field_names"];
        let guard = times
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), entry.get(name)?.clone())));
        let guard: Document = guard.collect();
        let entries = self
            .of
            .reader
            .connection()
            .db()
            .collection::<Document>(CATALOG);
        let what = failed("changing the catalogue");
        let changed = match narrowed {
            None => entries.delete_one(guard).await.map_err(what)?.deleted_count,
            Some((first_ms, last_ms, gone)) => {
                let set = doc! { "first_ts": DateTime::from_millis(first_ms), "last_ts": DateTime::from_millis(last_ms) };
                let mut change = doc! { "$set": set };
                if !gone.is_empty() {
                    let fields = gone
                        .iter()
                        .map(|name| (format!("fields.{name}"), Bson::from("")));
                    change.insert("$unset", fields.collect::<Document>());
                    change.insert("$pullAll", doc! { "field_names": gone });
                }
                let changed = entries.update_one(guard, change).await;
                changed.map_err(what)?.matched_count
            }
        };
        self.done.entries += changed;
        self.done.entries_kept += 1 - changed.min(1);
        Ok(())
    }

    /// Whether a service may rely on an entry without looking at it: until an arrival step after the
    /// last arrival. Another step is for clocks that differ.
    pub(super) fn may_be_written(&self, entry: &Document) -> bool {
        let arrived = entry.get_datetime("last_arrival").ok();
        let quiet_ms = 2 * self.options.arrival_step_ms;
        arrived.is_some_and(|at| at.timestamp_millis() + quiet_ms > self.options.now_ms)
    }

    /// The times of the first and the last reading (ms since 1970); `None` without readings.
    async fn times_left(&self, sensor: &SensorId) -> Result<Option<(i64, i64)>, MaintainError> {
        let mut times = vec![];
        for direction in [1, -1] {
            let what = failed("reading the buckets");
            let found = self
                .all
                .buckets
                .find_one(doc! { "sensor_id": &**sensor, "count": { "$gt": 0 } })
                .projection(doc! { "sensor_id": 1, "bucket_start": 1 })
                .sort(
                    doc! { "sensor_id": -direction, "bucket_start": direction, "page": -direction },
                )
                .await;
            let Some(key) = found.map_err(&what)?.and_then(|found| key_of(&found)) else {
                return Ok(None);
            };
            let bucket = self.all.read_documents(&key).await?;
            let pages = bucket.pages.iter().filter(|page| page.counted::<u64>() > 0);
            times
                .extend(pages.flat_map(|page| page.first_ts_ms.into_iter().chain(page.last_ts_ms)));
        }
        Ok(times.iter().min().copied().zip(times.iter().max().copied()))
    }

    /// Whether a stored reading has a value of this field.
    async fn has_field(&self, sensor: &SensorId, name: &str) -> Result<bool, MaintainError> {
        let what = failed("looking for a field");
        let there = doc! { "$exists": true };
        // Numbers first: the summary of nearly every page shows them.
        for path in ["summary", "readings"] {
            let filter = doc! { "sensor_id": &**sensor, format!("{path}.{name}"): there.clone() };
            let find = self
                .all
                .buckets
                .find_one(filter)
                .projection(doc! { "_id": 1 });
            if find.await.map_err(&what)?.is_some() {
                return Ok(true);
            }
        }
        if self.is_measured && self.is_measured_field(sensor, name).await? {
            return Ok(true);
        }
        let filter = doc! { "sensor_id": &**sensor, format!("columns.{name}"): there };
        let columns = self.of.reader.connection().majority::<Document>(COLUMNS);
        let find = columns.find_one(filter).projection(doc! { "_id": 1 });
        Ok(find.await.map_err(&what)?.is_some())
    }

    /// The same of measurements. Those of hours that are pages now do not count.
    async fn is_measured_field(
        &self,
        sensor: &SensorId,
        name: &str,
    ) -> Result<bool, MaintainError> {
        let what = failed("looking for a field");
        let filter = doc! { "meta.sensor_id": &**sensor, name: { "$exists": true } };
        let find = self
            .all
            .measurements
            .find(filter)
            .projection(doc! { "ts": 1 });
        let mut found = find.await.map_err(&what)?;
        let mut seen = BTreeSet::new();
        while found.advance().await.map_err(&what)? {
            let Ok(ts) = found.current().get_datetime("ts") else {
                continue;
            };
            let start = self
                .of
                .reader
                .connection()
                .span()
                .floor(ts.timestamp_millis());
            let key = BucketKey {
                sensor_id: sensor.clone(),
                start,
            };
            if seen.insert(start)
                && let [(_, StorageMode::TimeSeries)] = self.all.storage_modes(&[key]).await?[..]
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn place(mark: &DayMark) -> (SensorId, i64) {
    (mark.sensor_id.clone(), mark.day_ms)
}
