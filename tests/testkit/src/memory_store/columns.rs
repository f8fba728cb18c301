//! Days in columns in memory.

use super::{MemoryStore, Pages};
use model::SensorId;
use store::columns::{
    ColumnStore, ColumnsQuery, DayColumns, OfSensors, StoredColumns, StoredHours,
};
use store::days::{DayWritten, SensorDay};
use store::{BoxFuture, StoreError};

/// Limits of a result are small, so that tests also cover the continuation after them.
const DAYS_MAX: usize = 3;

impl Pages {
    /// See [`ColumnStore::write_columns`].
    pub fn write_columns(
        &mut self,
        day: &SensorDay,
        columns: &DayColumns,
        replace: bool,
    ) -> DayWritten {
        let key = (day.sensor_id.to_string(), day.day.start_ms);
        let stored = self.days.columns.get(&key);
        if replace && columns.parts.is_empty() {
            self.days.columns.remove(&key);
            return DayWritten::Done;
        }
        if !replace && stored.is_some_and(|stored| stored.count() > columns.count()) {
            return DayWritten::Newer;
        }
        self.days.columns.insert(key, columns.clone());
        DayWritten::Done
    }

    /// See [`ColumnStore::columns_of`].
    pub fn columns_of(&self, query: &ColumnsQuery) -> OfSensors<StoredColumns> {
        self.find_columns(query, |sensor_id, day_ms, columns| StoredColumns {
            sensor_id: sensor_id.clone(),
            day_ms,
            tags: columns.tags.clone(),
            parts: columns.parts.clone(),
        })
    }

    /// See [`ColumnStore::hours_of`].
    pub fn hours_of(&self, query: &ColumnsQuery) -> OfSensors<StoredHours> {
        self.find_columns(query, |sensor_id, day_ms, columns| StoredHours {
            sensor_id: sensor_id.clone(),
            day_ms,
            tags: columns.tags.clone(),
            count: columns.count(),
            times: columns.times().unwrap_or((day_ms, day_ms)),
            hours: columns.hours.clone(),
        })
    }

    /// The days of a query that fit into an answer, and the sensors that do not.
    fn find_columns<T>(
        &self,
        query: &ColumnsQuery,
        show: impl Fn(&SensorId, i64, &DayColumns) -> T,
    ) -> OfSensors<T> {
        let mut sensor_ids = query.sensor_ids.clone();
        sensor_ids.sort_unstable();
        let mut found = OfSensors::default();
        for (at, sensor_id) in sensor_ids.iter().enumerate() {
            let key = |ms| (sensor_id.to_string(), ms);
            let range = key(query.from_ms)..key(query.to_ms.max(query.from_ms));
            let days = self.days.columns.range(range);
            let days: Vec<T> = days
                .map(|((_, day_ms), columns)| show(sensor_id, *day_ms, columns))
                .collect();
            // One sensor alone always fits: its caller limits the days.
            if at > 0 && found.days.len() + days.len() > DAYS_MAX {
                found.rest = sensor_ids[at..].to_vec();
                break;
            }
            found.days.extend(days);
        }
        found
    }
}

impl ColumnStore for MemoryStore {
    fn write_columns<'a>(
        &'a self,
        days: &'a [(SensorDay, DayColumns)],
        replace: bool,
    ) -> BoxFuture<'a, Result<Vec<DayWritten>, StoreError>> {
        let write = move |pages: &mut Pages, (day, columns): &(SensorDay, DayColumns)| {
            pages.write_columns(day, columns, replace)
        };
        Box::pin(self.change(days, write))
    }

    fn columns_of<'a>(
        &'a self,
        query: &'a ColumnsQuery,
    ) -> BoxFuture<'a, Result<OfSensors<StoredColumns>, StoreError>> {
        Box::pin(self.read(move |pages| pages.columns_of(query)))
    }

    fn hours_of<'a>(
        &'a self,
        query: &'a ColumnsQuery,
    ) -> BoxFuture<'a, Result<OfSensors<StoredHours>, StoreError>> {
        Box::pin(self.read(move |pages| pages.hours_of(query)))
    }
}
