//! Removes sensors wholly.
//!
//! The pages go first, so that no service can compute a day again from them, and the entry of the
//! catalogue last. Readings that arrive meanwhile are removed too, as long as the command runs.

use std::collections::BTreeSet;

use mongodb::bson::{Bson, Document, doc};

use super::{EXAMPLES_MAX, Removed, Run};
use crate::maintain::MaintainError;
use crate::mongo::read::bucket_reader::failed;
use futures_util::TryStreamExt;
use model::SensorId;
use model::collections::{CATALOG, COLUMNS, DAY_HOURS, DAYS, LATEST, PENDING_DAYS};

/// How often the documents of a sensor are removed that is still written.
const PASSES: u32 = 3;

impl Run<'_> {
    pub(super) async fn whole(
        &mut self,
        sensors: &BTreeSet<SensorId>,
        progress: &mut impl FnMut(&Removed),
    ) -> Result<(), MaintainError> {
        for sensor in sensors {
            self.count_whole(sensor).await?;
            if !self.options.dry_run {
                self.remove_whole(sensor).await?;
            }
            progress(&self.done);
        }
        Ok(())
    }

    /// Counts what is stored of a sensor.
    async fn count_whole(&mut self, sensor: &SensorId) -> Result<(), MaintainError> {
        let pages = doc! { "sensor_id": &**sensor };
        self.count_pages(sensor, pages).await
    }

    /// Counts what some pages of a sensor hold.
    pub(super) async fn count_pages(
        &mut self,
        sensor: &SensorId,
        pages: Document,
    ) -> Result<(), MaintainError> {
        let pipeline = [
            doc! { "$match": pages },
            doc! { "$group": {
                "_id": null, "readings": { "$sum": "$count" }, "first": { "$min": "$first_ts" },
                "buckets": { "$sum": { "$cond": [{ "$eq": ["$page", 0] }, 1, 0] } },
            } },
        ];
        let what = failed("counting the readings of a sensor");
        let mut found = self.all.buckets.aggregate(pipeline).await.map_err(&what)?;
        let Some(found) = found.try_next().await.map_err(&what)? else {
            return Ok(());
        };
        let number = |name: &str| {
            let number = found.get(name).and_then(Bson::as_i64);
            let small = found.get_i32(name).map_or(0, i64::from);
            number.unwrap_or(small).unsigned_abs()
        };
        let done = &mut self.done;
        done.affected += 1;
        done.buckets += number("buckets");
        done.readings += number("readings");
        if let Ok(first) = found.get_datetime("first")
            && done.examples.len() < EXAMPLES_MAX
        {
            let text = format!("and everything after it: {} readings", number("readings"));
            done.examples
                .push((sensor.clone(), first.timestamp_millis(), text));
        }
        Ok(())
    }

    async fn remove_whole(&mut self, sensor: &SensorId) -> Result<(), MaintainError> {
        for pass in 1..=PASSES {
            // Without the time limit of one command.
            let pages = doc! { "sensor_id": &**sensor };
            let removed = self.all.buckets.delete_many(pages).await;
            removed.map_err(failed("removing pages"))?;
            if self.is_measured {
                // By `meta`, which every server can.
                let series = doc! { "meta.sensor_id": &**sensor };
                let removed = self.all.measurements.delete_many(series).await;
                removed.map_err(failed("removing measurements"))?;
            }
            self.delete(LATEST, doc! { "_id": &**sensor }).await?;
            // A service may be computing a day from pages that it read before.
            self.wait_for_services(sensor).await?;
            for collection in [DAYS, COLUMNS, DAY_HOURS] {
                self.delete(collection, doc! { "sensor_id": &**sensor })
                    .await?;
            }
            let own = doc! { "sensor_id": &**sensor, "_id.instance": crate::days::REMOVAL };
            self.delete(PENDING_DAYS, own).await?;
            let what = failed("reading the buckets");
            let left = self.all.buckets.find_one(doc! { "sensor_id": &**sensor });
            if left.await.map_err(what)?.is_none() {
                break;
            }
            self.done.still_arriving += u64::from(pass == PASSES);
        }
        let entries = self.of.reader.connection().majority::<Document>(CATALOG);
        let what = failed("reading the catalogue");
        let Some(entry) = entries
            .find_one(doc! { "_id": &**sensor })
            .await
            .map_err(what)?
        else {
            return Ok(());
        };
        if self.may_be_written(&entry) {
            self.done.entries_kept += 1;
            return Ok(());
        }
        let arrived = entry.get("last_arrival").cloned();
        let guard = doc! { "_id": &**sensor, "last_arrival": arrived };
        self.done.entries += self.delete(CATALOG, guard).await?;
        Ok(())
    }
}
