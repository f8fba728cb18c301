//! `hourbucket convert`: converts the buckets of a time range from pages to measurements of the
//! time-series collection, and back.
//!
//! A bucket has one storage mode, stored in the document of its page 0. Measurements of a
//! sensor-hour whose document does not contain `storage: "timeseries"` belong to no bucket, and no
//! reader returns them. So the mode changes atomically, and every reading can be read exactly once
//! before, during and after the change.
//!
//! Pages to measurements, each bucket separately ([`crate::maintain::convert`] says the steps,
//! [`super::convert_bucket`] executes them; [`AT_ONCE`] buckets concurrently, all in memory):
//! 1. Read the bucket (majority). A bucket that differs from its readings is left for `reconcile`.
//! 2. Insert the readings that are not among its measurements yet. Equal ones are counted, so a
//!    second run adds only what the first run did not insert.
//! 3. Read the measurements back (majority) and compare them one by one with the pages.
//! 4. Swap: the summary document, recomputed from the measurements, replaces page 0, and the other
//!    pages are deleted. Each change is guarded by the count, seal and storage mode that were read.
//!    A single document is replaced in one statement, several in a transaction.
//!
//! A crash before step 4 leaves the pages, and measurements that no reader returns; after it, the
//! new mode. A second run starts with this bucket again, and either finds it done or copies the
//! rest.
//!
//! Measurements to pages: read, split into pages, and swap in the same way. Page 0 with its
//! readings replaces the document, and the other pages are inserted in the same transaction. The
//! measurements are *leftovers* then. They are removed only after the pages were read back and hold
//! every one of them:
//! - MongoDB 7.0 and later delete the measurements of a sensor and a time range. This is determined
//!   by trying, not from the version.
//! - Earlier servers delete only whole series (by `meta`). So leftovers stay, invisible to readers,
//!   until retention removes them. Or `drop_leftovers` deletes all measurements of a sensor if
//!   every one of them is a leftover that its pages hold. That is safe only while no instance
//!   writes in time-series mode: between the check and the delete such an instance could insert a
//!   measurement of a new hour. Therefore it must be requested explicitly.
//!
//! A reader of raw readings must follow the documents (a `$lookup` of measurements for documents in
//! time-series mode). A union of both collections would return leftovers, and the copies of a
//! conversion in progress, a second time.
//!
//! Concurrency with a running service. An append, a seal or a new page before the swap makes the
//! guard fail, and the bucket is converted again from the start ([`TRIES`]). A service that loaded
//! the bucket before the swap and writes after it finds each page that it expects, in the other
//! storage mode. (A swap leaves no fewer pages than there were, and one more after a sealed last
//! page: empty ones if need be.) So its statement is a conflict, and it loads the bucket:
//! - It appends to a page. `count` or `storage` differs. (If the pages on both sides have the same
//!   count, only `storage` differs: the service's guard must contain the mode.)
//! - It creates the page after a sealed one. There is one.
//! - It appends to a page of a bucket that two conversions have moved there and back, and the page has
//!   the same count again. The document of a converted bucket says so (`converted`), and the second
//!   conversion leaves one page more, so it seals that page.
//! - It inserts measurements for a bucket that consists of pages now, before its document write
//!   conflicts. The measurements are leftovers; the service writes their readings to pages.
//!
//! With a `store.write_concern` below majority, a read may not see a write yet:
//! - A copy that is read back too early is made again. Then there are too many measurements, and the
//!   bucket is skipped and named, until an operator removes them.
//! - Leftovers are looked for only in a bucket that is read in bucket mode. If the pages cannot be
//!   read yet, they stay, without a message, for the end of the run or the next one.
//!
//! A *stray* page next to a document in time-series mode comes from a version that left fewer
//! pages. Its readings are stored once, in this page only. They are folded in, under the guards of
//! document and page, by the next run and by `reconcile --repair`.
//!
//! A bucket whose readings were removed ([`crate::retention`]) keeps its mode: there is
//! nothing to move, and its summaries cannot be computed again. The same holds for measurements.
//!
//! The window for these cases is from a load to its write: seconds at most, except for a bucket
//! kept in memory in between, which has ended only recently. So only buckets that ended before
//! `ended_before_ms` are converted. Two conversions must not run at the same time
//! ([`super::alone`]): in the same direction they would copy the same measurements, and in opposite
//! ones each would take the other's copies for leftovers.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::TryStreamExt;
use futures_util::future::join_all;
use mongodb::bson::{RawDocumentBuf, doc};

use crate::maintain::convert::{
    Conclusion, Conversion, ConversionSettings, LeftoverRemoval, Leftovers, count_held,
};
use crate::maintain::{Converted, MaintainError, PageSize, Progress, Selection, Step};
use crate::mongo::maintenance::Maintenance;
use crate::mongo::maintenance::convert_bucket::one_attempt;
use crate::mongo::pack::SERIES;
use crate::mongo::read::bucket_reader::{
    Collections, MeasurementsFound, failed, find_measurements, key_of, measured_in, selected,
};
use model::collections::READINGS;
use model::{BucketKey, SensorId, StorageMode};

/// Attempts for a bucket that another writer keeps changing.
const TRIES: u32 = 10;
/// Passes over the range: the second one folds in the stray pages that appeared during the first.
const PASSES: u32 = 3;
/// Buckets converted concurrently: most of the time is spent waiting for a majority to sync its
/// journal.
const AT_ONCE: usize = 8;

/// Called after each step of a bucket; if it returns `true`, the conversion ends there, as in a
/// crash (for tests).
pub type Hook = Arc<dyn Fn(Step, &BucketKey) -> bool + Send + Sync>;

/// What to convert, and how.
#[derive(Clone)]
pub struct ConvertOptions {
    /// Which buckets; the range is widened to whole buckets.
    pub selection: Selection,
    /// Only buckets that ended at or before this time, in milliseconds since 1970.
    pub ended_before_ms: i64,
    /// The storage mode to convert to.
    pub into: StorageMode,
    /// For new pages.
    pub page: PageSize,
    /// Remove leftovers by whole sensors if the server cannot delete single ones. No instance may
    /// write in time-series mode.
    pub drop_leftovers: bool,
    /// For tests.
    pub hook: Option<Hook>,
}

struct Run<'a> {
    all: Collections,
    options: &'a ConvertOptions,
    selection: Selection,
    done: Converted,
    at: Progress,
    /// Whether the server deletes measurements by time.
    deletes_by_time: bool,
}

impl Maintenance {
    /// Converts the buckets of a range to another storage mode; calls `progress` regularly. May be
    /// interrupted at any moment and run again.
    ///
    /// # Errors
    /// The server failed or lacks a feature; the text includes what to do.
    pub async fn convert(
        &self,
        options: &ConvertOptions,
        mut progress: impl FnMut(Progress),
    ) -> Result<Converted, MaintainError> {
        let connection = self.reader.connection();
        let found = find_measurements(connection, self.reader.detected()).await?;
        if found == MeasurementsFound::Absent {
            return Err(MaintainError::Refused(format!(
                "there is no time-series collection {READINGS} with timeField ts and metaField \
                 meta: with store.mode = \"timeseries\", `hourbucket init` creates it"
            )));
        }
        let span = connection.span();
        let mut selection = options.selection.clone();
        selection.from_ms = span.floor(selection.from_ms).0;
        // A bucket has ended if it started a span earlier.
        selection.to_ms = selection
            .to_ms
            .min(options.ended_before_ms.saturating_sub(span.ms() - 1));
        let all = self.reader.collections();
        let done = Converted::default();
        let at = Progress::default();
        let mut run = Run {
            all,
            options,
            selection,
            done,
            at,
            deletes_by_time: true,
        };
        for _ in 0..PASSES {
            let before = run.done.buckets;
            run.done = Converted {
                skipped: vec![],
                skipped_total: 0,
                ..run.done
            };
            run.pass(&mut progress).await?;
            if run.done.buckets == before {
                break;
            }
        }
        if options.into == StorageMode::Bucket {
            run.remove_leftovers().await?;
        }
        progress(run.at);
        Ok(run.done)
    }
}

impl Run<'_> {
    fn on_step(&self, step: Step, key: &BucketKey) -> Result<(), MaintainError> {
        match &self.options.hook {
            Some(hook) if hook(step, key) => Err(MaintainError::Stopped {
                step,
                bucket: key.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// One pass over all buckets that are not in the requested mode.
    async fn pass(&mut self, progress: &mut impl FnMut(Progress)) -> Result<(), MaintainError> {
        let what = failed("reading the buckets");
        let mut filter = selected(&self.selection);
        match self.options.into {
            // Also stray pages, and readings in a document in time-series mode.
            StorageMode::TimeSeries => {
                filter.insert("readings_removed", doc! { "$ne": true });
                filter.insert(
                    "$or",
                    [
                        doc! { "storage": { "$ne": SERIES } },
                        doc! { "readings": { "$exists": true } },
                    ],
                )
            }
            StorageMode::Bucket => filter.insert("storage", SERIES),
        };
        let buckets = self.all.buckets.clone();
        let heads = doc! { "$and": [filter.clone(), { "page": 0 }] };
        // Buckets that an earlier pass has converted are no longer found.
        let done = self.done.buckets;
        let left = buckets.count_documents(heads).await.map_err(&what)?;
        self.at = Progress {
            buckets: done,
            buckets_total: done + left,
            readings: self.done.readings,
        };
        let sort = doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 };
        let found = buckets
            .find(filter)
            .projection(doc! { "sensor_id": 1, "bucket_start": 1 })
            .sort(sort)
            .await;
        let mut cursor: mongodb::Cursor<RawDocumentBuf> = found.map_err(&what)?;
        let mut last = None;
        let mut keys = vec![];
        while let Some(found) = cursor.try_next().await.map_err(&what)? {
            let Some(key) = key_of(&found).filter(|key| last.as_ref() != Some(key)) else {
                continue;
            };
            last = Some(key.clone());
            keys.push(key);
            if keys.len() == AT_ONCE {
                self.buckets(std::mem::take(&mut keys)).await?;
                progress(self.at);
            }
        }
        self.buckets(keys).await
    }

    /// Converts some buckets concurrently. Completes all of them, then returns the first error.
    async fn buckets(&mut self, keys: Vec<BucketKey>) -> Result<(), MaintainError> {
        let conversions = keys.iter().map(|key| {
            let conversion = Conversion::new(key.clone(), self.settings());
            self.convert(conversion)
        });
        let conclusions = join_all(conversions).await;
        let mut first = Ok(());
        for (key, conclusion) in keys.into_iter().zip(conclusions) {
            self.at.buckets += 1;
            // Stray pages, and buckets that became due meanwhile, were not counted.
            self.at.buckets_total = self.at.buckets_total.max(self.at.buckets);
            match conclusion {
                Ok(conclusion) => self.note(key, conclusion),
                Err(error) => first = first.and(Err(error)),
            }
        }
        self.at.readings = self.done.readings;
        first
    }

    fn settings(&self) -> ConversionSettings {
        ConversionSettings {
            tries_max: TRIES,
            leftovers: match self.deletes_by_time {
                true => LeftoverRemoval::Remove,
                false => LeftoverRemoval::Leave,
            },
            ..one_attempt(self.options.into, self.options.page)
        }
    }

    async fn convert(&self, conversion: Conversion) -> Result<Conclusion, MaintainError> {
        let on_step = |step, key: &BucketKey| self.on_step(step, key);
        self.all.convert(conversion, &on_step).await
    }

    fn note(&mut self, key: BucketKey, conclusion: Conclusion) {
        let outcome = match conclusion {
            Conclusion::Done(outcome) => outcome,
            Conclusion::Collided => {
                let why = "other writers kept changing it: try again later";
                return self.done.skip(key, why.into());
            }
            Conclusion::Unfit(why) => return self.done.skip(key, why),
        };
        if let Some(readings) = outcome.moved {
            self.done.buckets += 1;
            self.done.readings += readings;
        }
        match outcome.leftovers {
            Leftovers::None => {}
            Leftovers::Removed(n) => self.done.removed += n,
            Leftovers::Refused => self.deletes_by_time = false,
            Leftovers::Kept(why) => self.done.skip(key, why.to_string()),
        }
    }

    /// Removes measurements that an earlier run, or a server that deletes only whole series, has
    /// left.
    async fn remove_leftovers(&mut self) -> Result<(), MaintainError> {
        let all = self.all.clone();
        let mut sensors = BTreeSet::new();
        let mut hours = all.hours(&self.selection).await?;
        while let Some(keys) = hours.next().await? {
            for (key, storage_mode) in all.storage_modes(&keys).await? {
                if storage_mode == StorageMode::TimeSeries {
                    continue;
                }
                if self.deletes_by_time {
                    let removal = Conversion::of_leftovers(key.clone(), self.settings());
                    let conclusion = self.convert(removal).await?;
                    self.note(key.clone(), conclusion);
                }
                if !self.deletes_by_time {
                    sensors.insert(key.sensor_id);
                }
            }
        }
        for sensor in sensors {
            let removed = if self.options.drop_leftovers {
                self.remove_series(&sensor).await?
            } else {
                None
            };
            match removed {
                Some(n) => self.done.removed += n,
                None => self.done.leftovers += self.leftovers_of(&sensor).await?,
            }
        }
        Ok(())
    }

    /// Deletes all measurements of a sensor, if each is a leftover that its pages hold; returns
    /// `None` if one is not.
    async fn remove_series(&self, sensor: &SensorId) -> Result<Option<u64>, MaintainError> {
        for key in self.hours_of(sensor).await? {
            let bucket = self.all.read_bucket(&key).await?;
            if bucket.pages.is_empty()
                || bucket.storage_mode() == StorageMode::TimeSeries
                || count_held(&bucket).is_err()
            {
                return Ok(None);
            }
        }
        let series = doc! { "meta.sensor_id": &**sensor };
        let result = self
            .all
            .measurements
            .delete_many(series)
            .await
            .map_err(failed("removing measurements"))?;
        Ok(Some(result.deleted_count))
    }

    /// Counts the measurements of a sensor in buckets that consist of pages.
    async fn leftovers_of(&self, sensor: &SensorId) -> Result<u64, MaintainError> {
        let keys = self.hours_of(sensor).await?;
        let mut n = 0;
        for (key, storage_mode) in self.all.storage_modes(&keys).await? {
            if storage_mode == StorageMode::Bucket {
                let filter = measured_in(&key, key.start.0 + self.all.span_ms);
                n += self
                    .all
                    .measurements
                    .count_documents(filter)
                    .await
                    .map_err(failed("counting measurements"))?;
            }
        }
        Ok(n)
    }

    /// Every hour in which a sensor has measurements, independent of the requested range.
    async fn hours_of(&self, sensor: &SensorId) -> Result<Vec<BucketKey>, MaintainError> {
        let ever = Selection {
            from_ms: EVER.0,
            to_ms: EVER.1,
            sensors: vec![sensor.to_string()],
        };
        let mut hours = self.all.hours(&ever).await?;
        let mut keys = vec![];
        while let Some(more) = hours.next().await? {
            keys.extend(more);
        }
        Ok(keys)
    }
}

/// The years 0 to 9999, in milliseconds since 1970: the range of dates in MongoDB's own functions.
pub(super) const EVER: (i64, i64) = (-62_167_219_200_000, 253_402_300_800_000);
