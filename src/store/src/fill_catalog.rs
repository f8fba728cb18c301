//! Fills a catalogue that is not complete, such as that of a database that was restored without it:
//! once, in the background, sensor by sensor.
//!
//! The position is stored after each batch of sensors, so a restart continues there. Two instances
//! may both do it; the entries are the same. Sensors that report meanwhile are in the catalogue
//! anyway, because their entries are written before their pages.
//!
//! After each sensor the task rests as long as the sensor took, so that it uses at most half of one
//! connection.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::catalog::CatalogFill;
use super::reading::{MeasurementQuery, PageQuery, SensorQuery};
use super::{Store, StoreError};
use model::{BucketStart, CatalogUpdate, Rows, SensorId, StorageMode};

/// Sensors between two records of the position.
const SENSORS_MAX: usize = 64;
/// Measurements that are read at a time.
const MEASUREMENTS_MAX: usize = 100_000;
/// Before the year 1 and after the year 9999: MongoDB's dates reach further, but no bucket does.
const FROM_MS: i64 = -62_135_596_800_000;
const TO_MS: i64 = 253_402_300_800_000;

/// Fills the entries of the next sensors and records the position; returns how far it came.
///
/// # Errors
/// The store failed; may be called again.
pub async fn fill_some(store: &dyn Store, from: &CatalogFill) -> Result<CatalogFill, StoreError> {
    let query = SensorQuery {
        prefix: String::new(),
        after: from.after.clone(),
        limit: SENSORS_MAX,
    };
    let sensors = store.sensors(&query).await?;
    for sensor in &sensors {
        let begun = Instant::now();
        if let Some(update) = update_from_buckets(store, sensor.as_str().into()).await? {
            store.merge_catalog(&[&update]).await?;
        }
        tokio::time::sleep(begun.elapsed().min(Duration::from_secs(1))).await;
    }
    let is_complete = sensors.len() < SENSORS_MAX;
    let fill = CatalogFill {
        is_complete,
        after: sensors.last().cloned().or(from.after.clone()),
    };
    store.set_catalog_fill(&fill).await?;
    Ok(fill)
}

/// The update for everything that is stored of a sensor; `None` if nothing is.
async fn update_from_buckets(
    store: &dyn Store,
    sensor_id: SensorId,
) -> Result<Option<CatalogUpdate>, StoreError> {
    let mut all: Option<CatalogUpdate> = None;
    let mut add = |rows: &Rows, tags: &BTreeMap<String, String>| {
        if rows.is_empty() {
            return;
        }
        let mut update = CatalogUpdate::of_rows(sensor_id.clone(), rows, None, rows.last_ts_ms());
        update.tags = (!tags.is_empty()).then(|| (rows.last_ts_ms(), tags.clone()));
        match &mut all {
            Some(all) => all.merge(&update),
            None => all = Some(update),
        }
    };
    let from = BucketStart(FROM_MS);
    let readings_from_ms = Some(FROM_MS);
    let mut query = PageQuery {
        sensor_id: sensor_id.clone(),
        from,
        to_ms: TO_MS,
        after: None,
        readings_from_ms,
    };
    let mut newest_tags = (i64::MIN, BTreeMap::new());
    // Of the measurements that the pages count. With the whole range as bounds, MongoDB 6.0.5 found
    // none.
    let mut measured: Option<(i64, i64)> = None;
    loop {
        let found = store.pages(&query).await?;
        for (start, page) in &found.pages {
            add(&page.rows, &page.tags);
            if let (StorageMode::TimeSeries, Some(first), Some(last)) =
                (page.storage_mode, page.first_ts_ms, page.last_ts_ms)
            {
                measured =
                    Some(measured.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
            }
            if !page.tags.is_empty() && start.0 >= newest_tags.0 {
                newest_tags = (start.0, page.tags.clone());
            }
        }
        query.after = found.next;
        if query.after.is_none() {
            break;
        }
    }
    let (mut from_ms, to_ms) = measured.map_or((0, 0), |(first, last)| (first, last + 1));
    while from_ms < to_ms {
        let query = MeasurementQuery {
            sensor_id: sensor_id.clone(),
            from_ms,
            to_ms,
            limit: MEASUREMENTS_MAX,
        };
        let found = store.measurements(&query).await?;
        add(&found.rows, &newest_tags.1);
        from_ms = found.until_ms;
    }
    Ok(all)
}
