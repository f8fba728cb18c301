//! Executes the queries of the read API in memory. Limits are small, so that tests also cover the
//! continuation after them.

use std::collections::BTreeMap;

use super::Pages;
use model::{BucketStart, Rows, SensorId, StorageMode, keep_newer};
use store::maintain::StoredPage;
use store::reading::{
    DeadLetterQuery, MeasurementQuery, MeasurementResults, PageQuery, PageResults, SensorQuery,
    StoredDeadLetter, StoredSensor,
};

/// Maximum pages in one result.
const PAGES_MAX: usize = 7;

impl Pages {
    /// See [`store::Store::pages`].
    pub fn read_pages(&self, q: &PageQuery) -> PageResults {
        let of_sensor = (q.sensor_id.to_string(), q.from, 0)
            ..(q.sensor_id.to_string(), BucketStart(q.to_ms), 0);
        let mut wanted: Vec<_> = match q.from.0 < q.to_ms {
            true => self
                .pages
                .range(of_sensor)
                .map(|((_, start, n), page)| (*start, *n, page))
                .collect(),
            false => vec![],
        };
        wanted.sort_by_key(|(start, n, _)| (*start, std::cmp::Reverse(*n)));
        wanted.retain(|(start, n, page)| {
            let behind = q
                .after
                .is_none_or(|(s, p)| *start > s || (*start == s && *n < p));
            let last_ts_ms = page
                .readings
                .iter()
                .map(|r| r.ts_ms)
                .max()
                .unwrap_or(i64::MAX);
            behind && q.readings_from_ms.is_none_or(|from| last_ts_ms >= from)
        });
        let next = wanted
            .get(PAGES_MAX)
            .and(wanted.get(PAGES_MAX - 1))
            .map(|(start, n, _)| (*start, *n));
        wanted.truncate(PAGES_MAX);
        let shown = |(start, n, page): (BucketStart, u32, &super::Page)| {
            (
                start,
                self.stored_page(&q.sensor_id, start, n, page, q.readings_from_ms.is_some()),
            )
        };
        PageResults {
            pages: wanted.into_iter().map(shown).collect(),
            next,
        }
    }

    pub(super) fn stored_page(
        &self,
        sensor: &str,
        start: BucketStart,
        n: u32,
        page: &super::Page,
        readings: bool,
    ) -> StoredPage {
        let id = (sensor.to_owned(), start);
        let of_page = match page.storage_mode {
            StorageMode::Bucket => [Some(&page.readings), None],
            StorageMode::TimeSeries => [self.series.get(&id), self.expired.get(&id)],
        };
        let times = of_page.into_iter().flatten().flatten().map(|r| r.ts_ms);
        let mut rows = Rows::default();
        if readings && !page.readings_removed {
            page.readings.iter().for_each(|r| rows.push_reading(r));
        }
        StoredPage {
            page: n,
            storage_mode: page.storage_mode,
            count: Some(i64::from(page.count)),
            sealed: page.sealed,
            first_ts_ms: page.first_ts_ms,
            last_ts_ms: times.max(),
            summary: page
                .summary
                .iter()
                .map(|(name, s)| (name.clone(), Some(*s)))
                .collect(),
            tags: BTreeMap::new(),
            rows,
            unreadable: 0,
            readings_removed: page.readings_removed,
            was_converted: page.was_converted,
        }
    }

    /// See [`store::Store::measurements`].
    pub fn read_measurements(&self, q: &MeasurementQuery) -> MeasurementResults {
        let bucket = |start: i64| (q.sensor_id.to_string(), BucketStart(start));
        let of_sensor = self
            .series
            .range(bucket(i64::MIN)..bucket(q.to_ms.max(i64::MIN + 1)));
        let mut found: Vec<_> = of_sensor
            .flat_map(|(_, list)| list)
            .filter(|r| (q.from_ms..q.to_ms).contains(&r.ts_ms))
            .collect();
        found.sort_by_key(|r| r.ts_ms);
        let mut until_ms = q.to_ms;
        if let Some(over) = found.get(q.limit) {
            until_ms = match found[0].ts_ms == over.ts_ms {
                true => over.ts_ms + 1,
                false => over.ts_ms,
            };
            found.retain(|r| r.ts_ms < until_ms);
        }
        let mut rows = Rows::default();
        found.into_iter().for_each(|r| rows.push_reading(r));
        MeasurementResults { rows, until_ms }
    }

    /// See [`store::Store::sensors`].
    pub fn read_sensors(&self, q: &SensorQuery) -> Vec<String> {
        let mut ids: Vec<&String> = self.pages.keys().map(|(sensor, ..)| sensor).collect();
        ids.dedup();
        ids.retain(|id| {
            id.starts_with(&q.prefix) && q.after.as_ref().is_none_or(|after| *id > after)
        });
        ids.into_iter().take(q.limit).cloned().collect()
    }

    /// See [`store::Store::newest`].
    pub fn read_newest(&self, sensors: &[SensorId]) -> Vec<StoredSensor> {
        sensors.iter().map(|id| self.newest_of(id)).collect()
    }

    fn newest_of(&self, id: &str) -> StoredSensor {
        let mut news = StoredSensor::default();
        for ((sensor, start, _), page) in self.pages.iter().filter(|((sensor, ..), _)| sensor == id)
        {
            let readings = match page.storage_mode {
                StorageMode::Bucket => &page.readings,
                StorageMode::TimeSeries => self
                    .series
                    .get(&(sensor.clone(), *start))
                    .unwrap_or(&page.readings),
            };
            for reading in readings {
                news.last_ts_ms = news.last_ts_ms.max(Some(reading.ts_ms));
                let values = reading.values.iter().map(|(n, v)| (n.as_str(), v.as_ref()));
                keep_newer(&mut news.values, reading.ts_ms, values);
            }
        }
        news
    }

    /// See [`store::Store::find_dead_letters`].
    pub fn read_dead_letters(&self, q: &DeadLetterQuery) -> Vec<StoredDeadLetter> {
        let mut all: Vec<_> = self.dead.iter().enumerate().collect();
        all.retain(|(_, dead_letter)| {
            q.reason.as_ref().is_none_or(|r| dead_letter.reason == *r)
                && q.before
                    .is_none_or(|(at, _)| dead_letter.received_at_ms <= at)
        });
        all.sort_by_key(|(i, dead_letter)| std::cmp::Reverse((dead_letter.received_at_ms, *i)));
        let skip = q.before.map_or(0, |(_, n)| n as usize);
        let mut bytes = 0;
        let within = |(_, dead_letter): &(usize, &model::DeadLetter)| {
            let fits = bytes == 0 || bytes < q.bytes_max;
            bytes += dead_letter.payload.len();
            fits
        };
        let shown = |(i, dead_letter): (usize, &model::DeadLetter)| StoredDeadLetter {
            id: format!("{i:024x}"),
            dead_letter: dead_letter.clone(),
        };
        all.into_iter()
            .skip(skip)
            .take(q.limit)
            .take_while(within)
            .map(shown)
            .collect()
    }
}
