//! `hourbucket convert`: buckets of a span from pages into measurements of the time-series collection, and back.
//!
//! A bucket has one form, told by the document of its page 0; measurements of a sensor-hour whose document does not say
//! `storage: "timeseries"` are nobody's, and no reader looks at them. So the form changes in one instant, and every
//! reading can be read exactly once before, at and after it.
//!
//! Pages into measurements, each bucket by itself ([`crate::store::mongo::swap`]; [`AT_ONCE`] of them at a time, all in memory):
//! 1. read (majority); a bucket that differs from its readings is left for `reconcile`;
//! 2. insert the readings that are not among its measurements yet: equal ones are counted, so a second run adds only
//!    what the first has left out;
//! 3. read the measurements back (majority) and compare them one by one with the pages;
//! 4. swap: page 0 becomes the summary document, recomputed from the measurements, and the other pages go, each gated by
//!    the count, seal and form it was read with. One document is replaced in one statement; several, in a transaction.
//!
//! A crash before 4 leaves pages, and measurements that nobody reads; after it, the new form. A second run begins such a
//! bucket again, and finds it done or copies the rest.
//!
//! Measurements into pages: read, cut into pages, and swapped in the same way: page 0 with its readings replaces the
//! document, the other pages are inserted in the same transaction. What was measurements is *leftover* then. It is
//! removed only after the pages were read back and hold every one of it:
//! - MongoDB 7.0 and later delete measurements of a sensor and a span. This is tried, not asked for by version.
//! - Before, a server deletes whole series only (by `meta`). So leftovers stay, unseen, until retention takes them; or
//!   `drop_leftovers` deletes all measurements of a sensor, if every one of them is a leftover that its pages hold. That
//!   is safe only while no instance writes in time-series mode: between the look and the delete such an instance could
//!   insert a measurement of a new hour. Therefore it must be asked for.
//!
//! A reader of raw readings must go by the documents (a `$lookup` of measurements for documents in time-series form), not
//! unite both collections blindly: it would see leftovers, and the copies of a conversion under way, a second time.
//!
//! Beside a running service. An append, a seal or a new page before the swap makes the gate fail, and the bucket is begun
//! again ([`TRIES`]). A service that has loaded the bucket before the swap and writes after it does one of these:
//! - it appends to page 0: `count` or `storage` is another; a conflict, and it loads. (With pages of one and the same
//!   count on both sides only `storage` tells: the service's gate must name the form.)
//! - it appends to a page that is gone (its upsert makes it anew), or creates the next one: a *stray* page beside a
//!   document in time-series form. Its readings stand in it once, and nowhere else. They are folded in, under the gates
//!   of document and page, when this run is through, by the next run, and by `reconcile --repair`.
//! - it inserts measurements for a bucket that is pages now: its document write is a conflict; it loads the pages and
//!   writes there. The measurements are leftovers.
//!
//! The window for these is from a load to its write, seconds at most; a bucket kept in memory between is one that has not
//! ended for long. So only buckets are taken that ended before `ended_before_ms`. Two conversions in opposite directions
//! must not run at once: each would take the other's copies for leftovers.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::TryStreamExt;
use futures_util::future::join_all;
use mongodb::bson::{RawDocumentBuf, doc};

use crate::maintain::{Converted, MaintainError, Progress, ReadingCounts, Selection, Step, StoredBucket};
use crate::model::{BucketKey, SensorId, StorageMode};
use crate::store::mongo::MongoStore;
use crate::store::mongo::error::command_code;
use crate::store::mongo::maintenance::convert_bucket::Turn;
use crate::store::mongo::names::READINGS;
use crate::store::mongo::pack::SERIES;
use crate::store::mongo::read::bucket_reader::{Collections, Native, failed, key_of, measured_in, selected};

/// Tries for a bucket that somebody writes to.
const TRIES: u32 = 10;
/// Passes over the span: the second one folds what came in beside the first.
const PASSES: u32 = 3;
/// Buckets at once: most of the time of each is waiting for a majority to have written its journal.
const AT_ONCE: usize = 8;

/// Called after each step of a bucket; where it says `true` the conversion ends there, as in a crash (for tests).
pub type Hook = Arc<dyn Fn(Step, &BucketKey) -> bool + Send + Sync>;

/// What to do.
#[derive(Clone)]
pub struct ConvertOptions {
    /// Which buckets; the span is widened to whole buckets.
    pub selection: Selection,
    /// Only buckets that ended at or before this, in milliseconds since 1970.
    pub ended_before_ms: i64,
    /// The form they shall have.
    pub into: StorageMode,
    /// `bucket.max_readings` and `bucket.max_bytes`, for new pages.
    pub page: (u32, u64),
    /// Remove leftovers by whole sensors where the server can do no better. No instance may write in time-series mode.
    pub drop_leftovers: bool,
    /// For tests.
    pub hook: Option<Hook>,
}

/// What became of the measurements of a bucket that is pages now.
enum Removal {
    Nothing,
    Removed(u64),
    /// The server deletes whole series only.
    Refused,
    /// They must stay, and why.
    Kept(String),
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

impl MongoStore {
    /// Brings the buckets of a span into another form; `progress` is called now and then. May be ended at any moment and
    /// given again.
    ///
    /// # Errors
    /// The server failed or cannot do it; the text says what to do.
    pub async fn convert(
        &self,
        options: &ConvertOptions,
        mut progress: impl FnMut(Progress),
    ) -> Result<Converted, MaintainError> {
        if self.measurements_collection().await? == Native::Absent {
            return Err(MaintainError::Refused(format!(
                "there is no time-series collection {READINGS} with timeField ts and metaField meta: with \
                 store.mode = \"timeseries\", `hourbucket init` makes it"
            )));
        }
        let span = self.options.span;
        let mut selection = options.selection.clone();
        selection.from_ms = span.floor(selection.from_ms).0;
        // A bucket has ended if it began a span earlier.
        selection.to_ms = selection.to_ms.min(options.ended_before_ms.saturating_sub(span.ms() - 1));
        let all = self.collections();
        let (done, at) = (Converted::default(), Progress::default());
        let mut run = Run { all, options, selection, done, at, deletes_by_time: true };
        for _ in 0..PASSES {
            let before = run.done.buckets;
            run.done = Converted { skipped: vec![], skipped_total: 0, ..run.done };
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
    fn told(&self, step: Step, key: &BucketKey) -> Result<(), MaintainError> {
        match &self.options.hook {
            Some(hook) if hook(step, key) => Err(MaintainError::Stopped { step, bucket: key.clone() }),
            _ => Ok(()),
        }
    }

    /// All buckets that are not in the form asked for, once.
    async fn pass(&mut self, progress: &mut impl FnMut(Progress)) -> Result<(), MaintainError> {
        let what = failed("reading the buckets");
        let mut filter = selected(&self.selection);
        match self.options.into {
            // Pages beside a document in time-series form, and readings in one, too.
            StorageMode::TimeSeries => {
                filter.insert("$or", [doc! { "storage": { "$ne": SERIES } }, doc! { "readings": { "$exists": true } }])
            }
            StorageMode::Bucket => filter.insert("storage", SERIES),
        };
        let buckets = self.all.buckets.clone();
        let heads = doc! { "$and": [filter.clone(), { "page": 0 }] };
        self.at = Progress {
            buckets: 0,
            buckets_total: buckets.count_documents(heads).await.map_err(&what)?,
            readings: self.done.readings,
        };
        let sort = doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 };
        let found = buckets.find(filter).projection(doc! { "sensor_id": 1, "bucket_start": 1 }).sort(sort).await;
        let mut cursor: mongodb::Cursor<RawDocumentBuf> = found.map_err(&what)?;
        let (mut last, mut keys) = (None, vec![]);
        while let Some(found) = cursor.try_next().await.map_err(&what)? {
            let Some(key) = key_of(&found).filter(|key| last.as_ref() != Some(key)) else { continue };
            last = Some(key.clone());
            keys.push(key);
            if keys.len() == AT_ONCE {
                self.buckets(std::mem::take(&mut keys)).await?;
                progress(self.at);
            }
        }
        self.buckets(keys).await
    }

    /// Some buckets at once. All are brought to their end, then the first error counts.
    async fn buckets(&mut self, keys: Vec<BucketKey>) -> Result<(), MaintainError> {
        let turns = join_all(keys.iter().map(|key| self.bucket(key))).await;
        let mut first = Ok(());
        for (key, turn) in keys.into_iter().zip(turns) {
            self.at.buckets += 1;
            match turn {
                Ok((Turn::Done(readings), removal)) => {
                    self.done.buckets += 1;
                    self.done.readings += readings;
                    self.removed(key, removal);
                }
                Ok((Turn::Nothing, _)) => {}
                Ok((Turn::Again, _)) => self.done.skip(key, "somebody kept writing to it: try again later".into()),
                Ok((Turn::Skip(why), _)) => self.done.skip(key, why),
                Err(error) => first = first.and(Err(error)),
            }
        }
        self.at.readings = self.done.readings;
        first
    }

    /// One bucket, until it is done or somebody else was faster too often.
    async fn bucket(&self, key: &BucketKey) -> Result<(Turn, Removal), MaintainError> {
        let told = |step, key: &BucketKey| self.told(step, key);
        for _ in 0..TRIES {
            let turn = match self.options.into {
                StorageMode::TimeSeries => self.all.move_to_series(key, &told).await?,
                StorageMode::Bucket => self.all.move_to_pages(key, self.options.page, false, &told).await?,
            };
            match turn {
                Turn::Again => {}
                Turn::Done(_) if self.options.into == StorageMode::Bucket => {
                    return Ok((turn, self.remove(key).await?));
                }
                turn => return Ok((turn, Removal::Nothing)),
            }
        }
        Ok((Turn::Again, Removal::Nothing))
    }

    fn removed(&mut self, key: BucketKey, removal: Removal) {
        match removal {
            Removal::Nothing => {}
            Removal::Removed(n) => self.done.removed += n,
            Removal::Refused => self.deletes_by_time = false,
            Removal::Kept(why) => self.done.skip(key, why),
        }
    }

    /// Removes the measurements of a bucket that is pages, if its pages hold them all and the server can.
    async fn remove(&self, key: &BucketKey) -> Result<Removal, MaintainError> {
        if !self.deletes_by_time {
            return Ok(Removal::Nothing);
        }
        let bucket = self.all.bucket(key, true).await?;
        match held(&bucket) {
            Ok(0) => return Ok(Removal::Nothing),
            Ok(_) => self.told(Step::Verified, key)?,
            Err(why) => return Ok(Removal::Kept(why)),
        }
        let removal = match self.all.measurements.delete_many(measured_in(key, bucket.end_ms)).await {
            Ok(result) => Removal::Removed(result.deleted_count),
            // The server is older than 7.0: it deletes by `meta` only.
            Err(error) if is_refusal(&error) => Removal::Refused,
            Err(error) => return Err(failed("removing measurements")(error)),
        };
        self.told(Step::Removed, key)?;
        Ok(removal)
    }

    /// What an earlier run, or a server that deletes whole series only, has left.
    async fn remove_leftovers(&mut self) -> Result<(), MaintainError> {
        let (all, mut sensors) = (self.all.clone(), BTreeSet::new());
        let mut hours = all.hours(&self.selection).await?;
        while let Some(keys) = hours.next().await? {
            for (key, storage_mode) in all.forms(&keys).await? {
                if storage_mode == StorageMode::Bucket {
                    let removal = self.remove(&key).await?;
                    self.removed(key.clone(), removal);
                    if !self.deletes_by_time {
                        sensors.insert(key.sensor_id);
                    }
                }
            }
        }
        for sensor in sensors {
            let removed = if self.options.drop_leftovers { self.remove_series(&sensor).await? } else { None };
            match removed {
                Some(n) => self.done.removed += n,
                None => self.done.leftovers += self.leftovers_of(&sensor).await?,
            }
        }
        Ok(())
    }

    /// Deletes all measurements of a sensor, if each is a leftover that its pages hold; `None` where one is not.
    async fn remove_series(&self, sensor: &SensorId) -> Result<Option<u64>, MaintainError> {
        for key in self.hours_of(sensor).await? {
            let bucket = self.all.bucket(&key, true).await?;
            if bucket.pages.is_empty() || bucket.storage_mode() == StorageMode::TimeSeries || held(&bucket).is_err() {
                return Ok(None);
            }
        }
        let series = doc! { "meta.sensor_id": &**sensor };
        let result = self.all.measurements.delete_many(series).await.map_err(failed("removing measurements"))?;
        Ok(Some(result.deleted_count))
    }

    /// Measurements of a sensor in buckets that are pages.
    async fn leftovers_of(&self, sensor: &SensorId) -> Result<u64, MaintainError> {
        let keys = self.hours_of(sensor).await?;
        let mut n = 0;
        for (key, storage_mode) in self.all.forms(&keys).await? {
            if storage_mode == StorageMode::Bucket {
                let filter = measured_in(&key, key.start.0 + self.all.span_ms);
                n += self.all.measurements.count_documents(filter).await.map_err(failed("counting measurements"))?;
            }
        }
        Ok(n)
    }

    /// Every hour in which a sensor has measurements, whatever span was asked for.
    async fn hours_of(&self, sensor: &SensorId) -> Result<Vec<BucketKey>, MaintainError> {
        let ever = Selection { from_ms: EVER.0, to_ms: EVER.1, sensors: vec![sensor.to_string()] };
        let (mut hours, mut keys) = (self.all.hours(&ever).await?, vec![]);
        while let Some(more) = hours.next().await? {
            keys.extend(more);
        }
        Ok(keys)
    }
}

/// The years 0 to 9999, in milliseconds since 1970: what a date in MongoDB's own functions may be.
const EVER: (i64, i64) = (-62_167_219_200_000, 253_402_300_800_000);

/// How many measurements a bucket of pages has, an equal of each of which its pages must hold. (Fewer in the pages than among
/// the measurements: `reconcile --drop-duplicates` has taken the others out.)
fn held(bucket: &StoredBucket) -> Result<u64, String> {
    let pages = ReadingCounts::of(bucket.pages.iter().map(|p| &p.rows));
    let rows = bucket.measured.iter().map(|m| &m.rows);
    let (mut n, mut foreign) = (0, bucket.measured.as_ref().map_or(0, |m| m.unreadable));
    for row in rows.flat_map(|r| r.iter()) {
        n += 1;
        foreign += u32::from(!pages.holds(&row.key()));
    }
    if foreign == 0 {
        return Ok(n);
    }
    Err(format!(
        "{foreign} of its {n} measurements are not in its pages, so none was removed; its pages are what is read: look at \
         them, and remove them by hand"
    ))
}

/// Whether a delete was refused as such: InvalidOptions (6.0), IllegalOperation, or not supported.
pub(in crate::store::mongo) fn is_refusal(error: &mongodb::error::Error) -> bool {
    use mongodb::error::{ErrorKind, WriteFailure};
    let code = match error.kind.as_ref() {
        ErrorKind::Write(WriteFailure::WriteError(e)) => Some(e.code),
        _ => command_code(error),
    };
    matches!(code, Some(72 | 20 | 115))
}
