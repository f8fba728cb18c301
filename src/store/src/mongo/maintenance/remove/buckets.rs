//! Removes from pages and measurements, bucket by bucket.

use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{DateTime, Document, doc};

use super::moving::only_of;
use super::{EXAMPLES_MAX, Removed, Run, store_failed};
use crate::days::{DayMark, REMOVAL};
use crate::maintain::bucket::Recomputed;
use crate::maintain::convert::{
    Conclusion, Conversion, ConversionSettings, LeftoverRemoval, Leftovers, Outcome,
};
use crate::maintain::removal::{Left, Removal};
use crate::maintain::{MaintainError, Selection, StoredBucket, StoredPage, audit, time};
use crate::mongo::error::Applied;
use crate::mongo::maintenance::convert_bucket::one_attempt;
use crate::mongo::maintenance::repair::{counted, readings, unchanged_filter};
use crate::mongo::pack::GATE;
use crate::mongo::read::bucket_reader::failed;
use crate::reading::PageQuery;
use model::rows::Row;
use model::{BucketKey, Rows, SensorId, StorageMode};

/// Attempts for a bucket that other writers keep changing, and the pause before the next one,
/// multiplied by their number.
pub(super) const TRIES: u32 = 10;
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What came of one attempt.
pub(super) enum Attempt {
    Done,
    /// Another writer has changed the bucket, or is about to: read it again. What is to be done if it
    /// stays so.
    Again(String),
}

impl Attempt {
    pub(super) fn changing() -> Attempt {
        Attempt::Again("it kept changing: run the command again".to_owned())
    }
}

/// What a removal would take from a bucket.
struct Taken {
    readings: u64,
    values: u64,
    examples: Vec<(i64, String)>,
}

impl Run<'_> {
    /// Removes from all buckets of a sensor; calls `progress` after each.
    pub(super) async fn buckets_of(
        &mut self,
        sensor: &SensorId,
        removal: &Arc<Removal>,
        progress: &mut impl FnMut(&Removed),
    ) -> Result<(), MaintainError> {
        let span = self.of.reader.connection().span();
        let selection = Selection {
            from_ms: span.floor(removal.from_ms).0,
            to_ms: removal.to_ms,
            sensors: vec![sensor.to_string()],
        };
        let before = self.done.buckets;
        let all = self.all.clone();
        let mut stream = all.stream(&selection).await?;
        while let Some(bucket) = stream.next().await? {
            self.bucket(bucket, removal).await?;
            progress(&self.done);
        }
        self.done.affected += u64::from(self.done.buckets > before);
        Ok(())
    }

    async fn bucket(
        &mut self,
        mut bucket: StoredBucket,
        removal: &Arc<Removal>,
    ) -> Result<(), MaintainError> {
        let key = bucket.key.clone();
        let mut is_counted = false;
        let mut why = String::new();
        for n in 1..=TRIES {
            if bucket.storage_mode() == StorageMode::TimeSeries {
                bucket.measured = Some(self.all.read_measurements(&key, bucket.end_ms).await?);
            }
            let rows = self.rows_of(&bucket).await?;
            let Some(taken) = taken(&bucket, &rows, removal) else {
                return Ok(());
            };
            if let Some(why) = self.why_kept(&bucket, &rows, removal) {
                self.done.keep(&key, why);
                return Ok(());
            }
            if let Some(sensor_id) = self.into.clone() {
                let start = key.start;
                let into = BucketKey { sensor_id, start };
                if let Some(why) = self.give(&into, &bucket, &rows, removal).await? {
                    self.done.keep(&key, why);
                    return Ok(());
                }
            }
            if !std::mem::replace(&mut is_counted, true) {
                self.count(&key, taken);
            }
            if self.options.dry_run {
                return Ok(());
            }
            self.mark(&key).await?;
            let attempt = match bucket.storage_mode() {
                // Its summary was copied.
                StorageMode::TimeSeries if bucket.has_lost_measurements() => {
                    self.drop_pages(&bucket).await?
                }
                StorageMode::TimeSeries if self.into.is_some() => {
                    self.convert(&key, &only_of(&rows, removal)).await?
                }
                StorageMode::TimeSeries => self.convert(&key, removal).await?,
                StorageMode::Bucket => self.pages(&bucket, rows, removal).await?,
            };
            match attempt {
                Attempt::Done => return Ok(()),
                Attempt::Again(again) => why = again,
            }
            tokio::time::sleep(RETRY_PAUSE * n).await;
            bucket = self.all.read_documents(&key).await?;
        }
        self.done.keep(&key, why);
        Ok(())
    }

    fn count(&mut self, key: &BucketKey, taken: Taken) {
        let done = &mut self.done;
        done.buckets += 1;
        done.readings += taken.readings;
        done.values += taken.values;
        let room = EXAMPLES_MAX - done.examples.len().min(EXAMPLES_MAX);
        let examples = taken.examples.into_iter().take(room);
        let examples = examples.map(|(ts_ms, text)| (key.sensor_id.clone(), ts_ms, text));
        done.examples.extend(examples);
    }

    /// The readings of each page. Those that only columns have are in the first page without readings.
    pub(super) async fn rows_of(&self, bucket: &StoredBucket) -> Result<Vec<Rows>, MaintainError> {
        if let Some(measured) = &bucket.measured {
            return Ok(vec![measured.rows.clone()]);
        }
        let mut rows: Vec<Rows> = bucket.pages.iter().map(|page| page.rows.clone()).collect();
        if self.options.columns.is_none() || !bucket.pages.iter().any(|page| page.readings_removed)
        {
            return Ok(rows);
        }
        let mut query = PageQuery {
            sensor_id: bucket.key.sensor_id.clone(),
            from: bucket.key.start,
            to_ms: bucket.key.start.0 + 1,
            after: None,
            readings_from_ms: Some(i64::MIN),
        };
        loop {
            let found = self.store.pages(&query).await.map_err(store_failed)?;
            for (_, page) in found.pages {
                let at = bucket.pages.iter().position(|held| held.page == page.page);
                if let Some(at) = at.filter(|at| bucket.pages[*at].readings_removed) {
                    rows[at] = page.rows;
                }
            }
            query.after = found.next;
            if query.after.is_none() {
                return Ok(rows);
            }
        }
    }

    /// Why a bucket keeps what should go.
    fn why_kept(&self, bucket: &StoredBucket, rows: &[Rows], removal: &Removal) -> Option<String> {
        let measured = bucket.measured.as_ref();
        let removed = || bucket.pages.iter().filter(|page| page.readings_removed);
        let counted: u64 = removed().map(StoredPage::counted::<u64>).sum();
        let at = bucket.pages.iter().zip(rows);
        let found = at.filter(|(page, _)| page.readings_removed);
        let found: u64 = found.map(|(_, rows)| rows.len() as u64).sum();
        if bucket.end_ms > self.options.settled_before_ms {
            let wait_ms = bucket.end_ms - self.options.settled_before_ms;
            let at = time((self.options.now_ms + wait_ms) / 1000 * 1000 + 1000);
            return Some(format!(
                "it ended too recently, or has not ended: run the command again after {at}"
            ));
        }
        if bucket.pages.iter().any(|page| page.unreadable > 0)
            || measured.is_some_and(|measured| measured.unreadable > 0)
        {
            return Some("it holds data that hourbucket has not written".to_owned());
        }
        if bucket.strays().next().is_some() || !bucket.gaps().is_empty() {
            return Some("run `hourbucket reconcile --repair` first".to_owned());
        }
        if self.into.is_some() {
            // What is lost is decided when it is added to the other sensor.
            return None;
        }
        if bucket.has_lost_measurements() {
            return Some("some of its measurements were removed by retention".to_owned());
        }
        (counted > found && !removal.covers(bucket.key.start.0, bucket.end_ms)).then(|| {
            "its readings are no longer stored, only its summary: only a whole hour, without --field \
             and --where, can be removed"
                .to_owned()
        })
    }

    /// Marks the day of a bucket, before it is changed.
    pub(super) async fn mark(&mut self, key: &BucketKey) -> Result<(), MaintainError> {
        if !self.options.has_days && self.options.columns.is_none() {
            return Ok(());
        }
        let day_ms = self.options.zone.day(key.start.0).start_ms;
        let place = (key.sensor_id.clone(), day_ms);
        if self.marked.contains(&place) {
            return Ok(());
        }
        let mark = DayMark {
            instance: REMOVAL.into(),
            day_ms,
            sensor_id: key.sensor_id.clone(),
            version: self.options.now_ms,
        };
        let days = self.store.days();
        let Some(days) = days else { return Ok(()) };
        days.mark_days(&[mark]).await.map_err(store_failed)?;
        self.marked.insert(place);
        Ok(())
    }

    /// How a bucket of measurements becomes pages.
    pub(super) fn conversion(&self) -> ConversionSettings {
        ConversionSettings {
            leftovers: match self.deletes_by_time {
                true => LeftoverRemoval::Remove,
                false => LeftoverRemoval::Leave,
            },
            ..one_attempt(StorageMode::Bucket, self.options.page)
        }
    }

    /// Replaces a bucket of measurements by pages with what is left.
    async fn convert(
        &mut self,
        key: &BucketKey,
        removal: &Arc<Removal>,
    ) -> Result<Attempt, MaintainError> {
        let settings = self.conversion();
        let conversion = Conversion::removing(key.clone(), settings, removal.clone());
        self.converted(conversion).await
    }

    /// Executes a conversion to pages.
    pub(super) async fn converted(
        &mut self,
        conversion: Conversion,
    ) -> Result<Attempt, MaintainError> {
        match self.all.convert(conversion, &|_, _| Ok(())).await {
            Ok(Conclusion::Done(Outcome {
                moved: Some(_),
                leftovers,
            })) => {
                self.deletes_by_time &= leftovers != Leftovers::Refused;
                self.done.converted += 1;
                self.done.leftovers += u64::from(!matches!(leftovers, Leftovers::Removed(_)));
                Ok(Attempt::Done)
            }
            Ok(Conclusion::Done(_) | Conclusion::Collided) => Ok(Attempt::changing()),
            // A service stores measurements before their document counts them.
            Ok(Conclusion::Unfit(why)) | Err(MaintainError::Refused(why)) => {
                Ok(Attempt::Again(why))
            }
            Err(error) => Err(error),
        }
    }

    /// Replaces the pages of a bucket by what is left of them.
    async fn pages(
        &self,
        bucket: &StoredBucket,
        rows: Vec<Rows>,
        removal: &Removal,
    ) -> Result<Attempt, MaintainError> {
        let covered = removal.covers(bucket.key.start.0, bucket.end_ms);
        let is_removed = |page: &StoredPage| page.readings_removed && page.counted::<u64>() > 0;
        if !covered && bucket.pages.iter().any(is_removed) {
            self.restore(bucket, &rows).await?;
            // What was restored is read again, page by page.
            return Ok(Attempt::changing());
        }
        let left = match covered {
            true => bucket.pages.iter().map(|_| Left::default()).collect(),
            false => removal.apply(&rows),
        };
        if let [page] = &bucket.pages[..]
            && !page.sealed
            && left[0].rows.is_empty()
        {
            let gone = self
                .all
                .buckets
                .delete_one(unchanged_filter(&bucket.key, page))
                .await;
            return Ok(
                match gone.map_err(failed("removing a page"))?.deleted_count {
                    1 => Attempt::Done,
                    _ => Attempt::changing(),
                },
            );
        }
        // Pages that were restored may have others' readings than their summary counts. They come
        // first: while a page has something to remove, the next run finds the bucket.
        let found = audit(bucket);
        let differs =
            |page: &StoredPage| found.iter().any(|finding| finding.page == Some(page.page));
        let mut pages: Vec<(&StoredPage, &Left)> = bucket.pages.iter().zip(&left).collect();
        pages.retain(|(page, left)| left.is_changed() || covered || differs(page));
        pages.sort_by_key(|(_, left)| left.is_changed());
        for (page, left) in pages {
            let change = rewritten(bucket, page, &left.rows);
            let set = self.set(unchanged_filter(&bucket.key, page), change);
            if set.await? == Applied::Conflict {
                return Ok(Attempt::changing());
            }
        }
        Ok(Attempt::Done)
    }

    /// Returns readings that only columns have to the pages that count them. Which page has which of
    /// them is no longer known; only the counts are kept, so that a bucket of which some pages were
    /// restored is as complete as before.
    async fn restore(&self, bucket: &StoredBucket, rows: &[Rows]) -> Result<(), MaintainError> {
        let removed = || removed_pages(bucket, rows);
        let mut rest = Rows::default();
        removed().for_each(|(_, rows)| rest.append(rows));
        for (page, _) in removed() {
            let some = match page.counted() {
                0 => Rows::default(),
                n => rest.take_front(n, u64::MAX),
            };
            let change = doc! {
                "$set": { "readings": readings(&some) },
                "$unset": { GATE: "", "readings_removed": "" },
            };
            let set = self.set(unchanged_filter(&bucket.key, page), change);
            if set.await? == Applied::Conflict {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Changes a page.
    pub(super) async fn set(
        &self,
        filter: Document,
        change: Document,
    ) -> Result<Applied, MaintainError> {
        let result = self.all.buckets.update_one(filter, change).await;
        let result = result.map_err(failed("changing a page"))?;
        Ok(Applied::to_one(result.matched_count))
    }
}

/// The pages that have lost their readings, each with the rows that columns still have of it. `rows`: those
/// of each page, from [`Run::rows_of`].
pub(super) fn removed_pages<'b>(
    bucket: &'b StoredBucket,
    rows: &'b [Rows],
) -> impl Iterator<Item = (&'b StoredPage, &'b Rows)> {
    let pages = bucket.pages.iter().zip(rows);
    pages.filter(|(page, _)| page.readings_removed)
}

/// The change of a page that keeps these rows.
pub(super) fn rewritten(bucket: &StoredBucket, page: &StoredPage, rows: &Rows) -> Document {
    let recomputed = Recomputed::from_rows([rows]);
    let mut set = counted(&recomputed, 0);
    set.insert("readings", readings(rows));
    if rows.is_empty() {
        // Any reading replaces both, as in an empty page of a conversion.
        set.insert("first_ts", DateTime::from_millis(bucket.end_ms - 1));
        set.insert("last_ts", DateTime::from_millis(bucket.key.start.0));
    }
    if page
        .count
        .is_none_or(|count| (recomputed.count as i64) < count)
    {
        set.insert("has_overflow", true);
    }
    doc! { "$set": set, "$unset": { GATE: "", "readings_removed": "" } }
}

/// What the removal takes from a bucket with these readings; `None`: nothing.
fn taken(bucket: &StoredBucket, rows: &[Rows], removal: &Removal) -> Option<Taken> {
    let left = removal.apply(rows);
    let mut taken = Taken {
        readings: left.iter().map(|left| left.readings).sum(),
        values: left.iter().map(|left| left.values).sum(),
        examples: vec![],
    };
    // Readings that are only counted.
    let pages = bucket.pages.iter().filter(|page| page.readings_removed);
    let in_range = pages.filter(|page| {
        let times = page.first_ts_ms.zip(page.last_ts_ms);
        times.is_some_and(|(first_ms, last_ms)| removal.may_match(first_ms, last_ms))
    });
    let counted: u64 = in_range.map(StoredPage::counted::<u64>).sum();
    let held: u64 = rows.iter().map(|rows| rows.len() as u64).sum();
    if bucket.measured.is_none() && counted > held {
        taken.readings += counted - held;
    }
    let rows = rows.iter().flat_map(Rows::iter);
    let matching = rows.filter(|row| removal.takes(row)).take(EXAMPLES_MAX);
    taken.examples = matching.map(|row| (row.ts_ms, shown(&row))).collect();
    (taken.readings + taken.values > 0).then_some(taken)
}

/// Its values, sorted by field: their order in a page is not fixed.
fn shown(row: &Row<'_>) -> String {
    let value = |(name, value): (&str, model::ValueRef<'_>)| match value.to_value() {
        model::Value::Double(v) => format!("{name}={v}"),
        model::Value::Int(v) => format!("{name}={v}"),
        model::Value::Bool(v) => format!("{name}={v}"),
        model::Value::Str(v) => format!("{name}={v:?}"),
    };
    let mut values: Vec<String> = row.named().map(value).collect();
    values.sort_unstable();
    values.join(" ")
}
