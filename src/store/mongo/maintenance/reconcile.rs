//! `hourbucket reconcile`: every bucket of a span held against its readings, and mended on request, beside a running
//! service.
//!
//! The life of a bucket here: streamed in the order of the index, recomputed and compared ([`crate::maintain::audit`]);
//! where it differs it is put aside, read again alone after a pause, and only what still differs is told or repaired. So
//! what a service was just doing is no finding. A repair is made of gated statements ([`crate::store::mongo::maintenance::repair`]): read, compare,
//! write if still as read; else again from the start, at most [`TRIES`] times. Memory: one bucket, and the names of
//! those put aside ([`ASIDE_MAX`]).
//!
//! Beside it the service does this, and this is why nothing goes wrong (DESIGN section 2):
//! - *It appends to a page.* It changes `count`, by which the repair is gated: whoever comes second finds the other's
//!   number. A repair that changes `count` makes the service's next append a conflict; it loads, compares and goes on.
//!   A repair that does not (summary, times) leaves `readings` and `count` alone; `$set` of the summary and `$inc` from
//!   an append cannot mix, since the append makes the gate fail, or finds the summary set.
//! - *It knew this number before (ABA).* If `count` went down and others appended until it was the same again, an
//!   append of an earlier view would pass the gate with readings that are stored since. So the count of a page that
//!   still grows never goes down: a repair that lowers it seals the page in the same statement, and nothing is ever
//!   appended to a sealed one.
//! - *It seals a page and makes the next.* In this order; a bucket is read again from its last page to its first, so
//!   "not sealed" is never told of a page that was sealed in time. The stream may see it so; the second look does not.
//! - *It creates the page that a repair fills in.* Both are inserts of one `_id`: one loses, and looks again.
//! - *Its statement was applied and its answer lost, and a repair comes before its load.* Readings with a time of their
//!   own are found by value, wherever they stand. Those with the time of receipt are counted by position behind the
//!   known version, and positions move only where `--drop-duplicates` removes readings. So that is done only in
//!   buckets that ended before `settled_before_ms`; a replay of receipt-time readings older than that, at the same
//!   moment, could store one of them a second time. Nothing else here moves a reading.
//! - *Time-series form: measurements are stored, and their document not yet.* The document is read first, so a document
//!   ahead of its measurements is never seen, only one behind; after the pause it is mostly even. If a repair writes the
//!   missing count first, the service's gated write is a conflict and it recomputes from the measurements, as after any
//!   conflict. A document made for measurements without one is an insert: the service's is the one, or a conflict.
//! - *Retention removes pages and measurements at different moments.* Buckets that begin before the retention (or
//!   `expireAfterSeconds` of the measurements, if shorter) are left out, so a summary is never recomputed from what has
//!   half expired.
//!
//! Equal measurements are a matter of their own, since a server may not be able to delete single ones ([`crate::store::mongo::twice`]).
//!
//! Two repairs, or a repair and a `convert`, at the same time only make each other try again, but for duplicates:
//! both would be removing the same ones under gates, which is harmless too. Instances of the service beside each other
//! are covered by the gates as they are for their own writes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, DateTime, Document, RawDocumentBuf, doc};

use crate::maintain::bucket::without_duplicates;
use crate::maintain::{
    Entry, Finding, Kind, MaintainError, Reconciled, RepairOutcome, Selection, StoredBucket, audit, report,
};
use crate::model::{BucketKey, BucketStart, StorageMode};
use crate::store::mongo::MongoStore;
use crate::store::mongo::maintenance::drop_duplicates::Dropped;
use crate::store::mongo::read::bucket_reader::{Collections, Native, failed, key_of, page_id};
use crate::store::mongo::write::recompute_summary;
use crate::store::mongo::write::time_series::TimeSeriesWriter;

/// Before buckets that differ are looked at again, where measurements may be ahead of their document.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Before a repair that met a writer is tried again, times the number of tries.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// Tries for one bucket; a busy page takes an append every `flush.max_age` at most, so two are nearly always enough.
const TRIES: u32 = 10;
/// Buckets put aside before they are looked at again.
const ASIDE_MAX: usize = 10_000;
/// Sensor-hours of measurements whose documents are asked for at once.
const HOURS_MAX: usize = 500;

/// What to do.
#[derive(Debug, Clone)]
pub struct ReconcileOptions {
    /// Which buckets; the span is widened to whole buckets.
    pub selection: Selection,
    /// Put right what can be.
    pub repair: bool,
    /// Remove all but the first of equal readings too (only with `repair`).
    pub drop_duplicates: bool,
    /// Do not look for equal readings at all.
    pub ignore_duplicates: bool,
    /// Tell of measurements that a conversion has left, too.
    pub leftovers: bool,
    /// Now, in milliseconds since 1970: for the retention.
    pub now_ms: i64,
    /// Duplicates are removed from buckets that ended before this, in milliseconds since 1970.
    pub settled_before_ms: i64,
    /// `bucket.max_readings` and `bucket.max_bytes`, for buckets that have to be brought into pages.
    pub page: (u32, u64),
    /// Findings that are listed one by one.
    pub listed_max: usize,
}

/// Where something was put aside for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aside {
    Pages,
    TimeSeries,
    /// Measurements were found that no document speaks of; what else is wrong with the bucket was told already.
    Unspoken,
}

struct Run<'a> {
    all: Collections,
    series: Arc<TimeSeriesWriter>,
    options: &'a ReconcileOptions,
    report: Reconciled,
    aside: Vec<(BucketKey, Aside)>,
    /// Buckets brought into pages, since the server deletes no single measurements.
    converted: u64,
    /// The bucket at hand takes a transaction, and the server has none.
    no_transactions: bool,
}

impl MongoStore {
    /// Recomputes the buckets of a span, and repairs what differs where it is asked to.
    ///
    /// # Errors
    /// The server failed; what was repaired until then stays repaired.
    pub async fn reconcile(&self, options: &ReconcileOptions) -> Result<Reconciled, MaintainError> {
        let native = self.measurements_collection().await?;
        let mut selection = options.selection.clone();
        let span = self.options.span;
        selection.from_ms = span.floor(selection.from_ms).0;
        let mut notes = vec![];
        if let Some(kept) = self.kept_from(native, options.now_ms).filter(|kept| selection.from_ms < *kept) {
            selection.from_ms = kept;
            notes.push(format!("buckets before {} may be half expired and are left out", report::time(kept)));
        }
        let mut report = Reconciled::new(selection, options.listed_max);
        report.notes = notes;
        let (all, series) = (self.collections(), self.series.clone());
        let mut run = Run { all, series, options, report, aside: vec![], converted: 0, no_transactions: false };
        run.documents().await?;
        run.look_again().await?;
        if native != Native::Absent {
            run.measurements().await?;
            run.look_again().await?;
        }
        if run.converted > 0 {
            run.report.notes.push(format!(
                "{} buckets are pages now, without the duplicates: this server deletes measurements by whole series only. \
                 Their measurements stay, unseen, until retention or `convert --into bucket --drop-leftovers` removes them",
                run.converted
            ));
        }
        Ok(run.report)
    }

    /// The first bucket that cannot have expired in part.
    fn kept_from(&self, native: Native, now_ms: i64) -> Option<i64> {
        let expire_s = match native {
            Native::There { expire_s } => expire_s,
            Native::Absent => None,
        };
        let retention_s = self.retention.and_then(|r| i64::try_from(r.as_secs()).ok());
        let kept_s = [expire_s, retention_s].into_iter().flatten().min()?;
        let span = self.options.span;
        Some(span.end(span.floor(now_ms.saturating_sub(kept_s.saturating_mul(1000)))))
    }
}

impl Run<'_> {
    /// Every bucket that has documents.
    async fn documents(&mut self) -> Result<(), MaintainError> {
        let all = self.all.clone();
        let mut stream = all.stream(&self.report.selection).await?;
        while let Some(mut bucket) = stream.next().await? {
            let storage_mode = bucket.storage_mode();
            if storage_mode == StorageMode::TimeSeries {
                all.measure(&mut bucket).await?;
            }
            self.report.buckets += 1;
            self.report.documents += bucket.pages.len() as u64;
            self.report.readings += bucket.paged() + bucket.measured.as_ref().map_or(0, |m| m.rows.len() as u64);
            if !self.findings(&bucket).is_empty() {
                let aside = if storage_mode == StorageMode::TimeSeries { Aside::TimeSeries } else { Aside::Pages };
                self.put_aside(bucket.key, aside).await?;
            }
        }
        Ok(())
    }

    /// Every sensor-hour that has measurements, and no document that speaks of them.
    async fn measurements(&mut self) -> Result<(), MaintainError> {
        let all = self.all.clone();
        let mut hours = all.hours(&self.report.selection).await?;
        while let Some(keys) = hours.next().await? {
            let spoken = all.forms(&keys).await?;
            for key in keys {
                if spoken.iter().all(|(k, storage_mode)| *k != key || *storage_mode != StorageMode::TimeSeries) {
                    self.put_aside(key, Aside::Unspoken).await?;
                }
            }
        }
        Ok(())
    }

    async fn put_aside(&mut self, key: BucketKey, aside: Aside) -> Result<(), MaintainError> {
        self.aside.push((key, aside));
        if self.aside.len() >= ASIDE_MAX { self.look_again().await } else { Ok(()) }
    }

    /// Looks again at what was put aside, and tells or repairs what still differs.
    async fn look_again(&mut self) -> Result<(), MaintainError> {
        if self.aside.iter().any(|(_, aside)| *aside != Aside::Pages) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        for (key, aside) in std::mem::take(&mut self.aside) {
            self.settle(key, aside).await?;
        }
        Ok(())
    }

    fn findings(&self, bucket: &StoredBucket) -> Vec<Finding> {
        let mut found = audit(bucket);
        if self.options.ignore_duplicates {
            found.retain(|f| !matches!(f.kind, Kind::Duplicates { .. }));
        }
        if !self.options.leftovers {
            found.retain(|f| !matches!(f.kind, Kind::Leftover { .. }));
        }
        found
    }

    /// One bucket, alone.
    async fn settle(&mut self, key: BucketKey, aside: Aside) -> Result<(), MaintainError> {
        self.no_transactions = false;
        let mut bucket = self.read(&key, aside).await?;
        let first = self.told(&bucket, aside);
        if !self.options.repair {
            for finding in first {
                self.report.add(Entry { bucket: key.clone(), finding, outcome: RepairOutcome::Found });
            }
            return Ok(());
        }
        let mut left = first.clone();
        for n in 1..=TRIES {
            if left.iter().all(|f| self.why_not(&bucket, f).is_some()) {
                break;
            }
            if !self.mend(&bucket, &left).await? {
                tokio::time::sleep(TRY_AGAIN * n).await;
            }
            bucket = self.read(&key, aside).await?;
            left = self.told(&bucket, aside);
        }
        let same = |a: &Finding, b: &Finding| {
            a.page == b.page && a.kind.name() == b.kind.name() && a.kind.field() == b.kind.field()
        };
        for finding in first.iter().filter(|f| !left.iter().any(|l| same(l, f))) {
            let finding = finding.clone();
            self.report.add(Entry { bucket: key.clone(), finding, outcome: RepairOutcome::Repaired });
        }
        // What dropping its duplicates has left over is told in a note.
        let known = |f: &Finding| !matches!(f.kind, Kind::Leftover { .. }) || first.iter().any(|a| same(a, f));
        left.retain(known);
        for finding in left {
            let why = self.why_not(&bucket, &finding);
            let why = why.unwrap_or("the bucket kept changing: try again").to_owned();
            self.report.add(Entry { bucket: key.clone(), finding, outcome: RepairOutcome::NotRepaired(why) });
        }
        Ok(())
    }

    async fn read(&self, key: &BucketKey, aside: Aside) -> Result<StoredBucket, MaintainError> {
        self.all.bucket(key, aside != Aside::Pages).await
    }

    /// What is to be told of a bucket: of one with measurements that no document speaks of, only those.
    fn told(&self, bucket: &StoredBucket, aside: Aside) -> Vec<Finding> {
        let mut found = self.findings(bucket);
        if aside == Aside::Unspoken {
            found.retain(|f| matches!(f.kind, Kind::NoDocument { .. } | Kind::Leftover { .. }));
        }
        found
    }

    /// Why a finding is not repaired; `None` where it can be.
    fn why_not(&self, bucket: &StoredBucket, finding: &Finding) -> Option<&'static str> {
        if let Some(why) = finding.kind.beyond_repair() {
            return Some(why);
        }
        if !matches!(finding.kind, Kind::Duplicates { .. }) {
            return None;
        }
        let page = bucket.pages.iter().find(|p| Some(p.page) == finding.page);
        let foreign = page.is_some_and(|p| p.unreadable > 0)
            || (bucket.storage_mode() == StorageMode::TimeSeries
                && bucket.measured.as_ref().is_some_and(|m| m.unreadable > 0));
        if !self.options.drop_duplicates {
            Some("kept: readings without a time of their own may be equal; --drop-duplicates removes them")
        } else if bucket.end_ms > self.options.settled_before_ms {
            Some("kept: the bucket ended too short a time ago")
        } else if foreign {
            Some("kept: the bucket holds what hourbucket has not written")
        } else if self.no_transactions {
            Some(
                "kept: this server deletes measurements by whole series only (before MongoDB 7.0), and without transactions \
                 the bucket cannot be brought into several pages: make the server a replica set (one member is enough)",
            )
        } else {
            None
        }
    }

    /// Repairs what it can; `false` where a statement met another writer.
    async fn mend(&mut self, bucket: &StoredBucket, findings: &[Finding]) -> Result<bool, MaintainError> {
        match bucket.storage_mode() {
            StorageMode::TimeSeries => self.mend_series(bucket, findings).await,
            StorageMode::Bucket => self.mend_pages(bucket, findings).await,
        }
    }

    async fn mend_series(&mut self, bucket: &StoredBucket, findings: &[Finding]) -> Result<bool, MaintainError> {
        if bucket.strays().next().is_some() {
            // It writes the documents from the measurements as well.
            return self.all.fold(bucket).await;
        }
        let mut gaps = bucket.gaps().into_iter().peekable();
        if gaps.peek().is_some() && !bucket.pages.is_empty() {
            let mut applied = true;
            for page in gaps {
                applied &= self.all.fill_gap(bucket, page).await?;
            }
            return Ok(applied);
        }
        let mendable = |f: &&Finding| self.why_not(bucket, f).is_none();
        if bucket.pages.is_empty() || findings.iter().filter(mendable).any(|f| f.page.is_some()) {
            // Over as many pages as it takes, under their gates; with all tries used somebody keeps writing.
            let recomputed = recompute_summary::recompute_summary(&self.series, &bucket.key, true).await;
            recomputed.map_err(failed("recounting a bucket"))?;
            return Ok(true);
        }
        if !findings.iter().filter(mendable).any(|f| matches!(f.kind, Kind::Duplicates { .. })) {
            return Ok(true);
        }
        let dropped = self.all.drop_measured(bucket, self.options.page).await?;
        if dropped == Dropped::Deleted {
            let recomputed = recompute_summary::recompute_summary(&self.series, &bucket.key, true).await;
            recomputed.map_err(failed("recounting a bucket"))?;
        }
        self.converted += u64::from(dropped == Dropped::Converted);
        self.no_transactions = dropped == Dropped::NoTransactions;
        Ok(dropped != Dropped::Again)
    }

    async fn mend_pages(&self, bucket: &StoredBucket, findings: &[Finding]) -> Result<bool, MaintainError> {
        let mut applied = true;
        for page in bucket.gaps() {
            applied &= self.all.fill_gap(bucket, page).await?;
        }
        // What stands in earlier pages; a rewritten page adds its own.
        let mut seen = HashSet::new();
        for page in &bucket.pages {
            let of_page = || {
                findings
                    .iter()
                    .filter(|f| f.page == Some(page.page) && self.why_not(bucket, f).is_none())
                    .map(|f| &f.kind)
            };
            let rewrite = of_page().any(|k| !matches!(k, Kind::NotSealed | Kind::MissingPage));
            let drop = of_page().any(|k| matches!(k, Kind::Duplicates { .. }));
            if rewrite && drop {
                applied &= self.all.rewrite(&bucket.key, page, Some(&mut seen)).await?;
                continue;
            }
            without_duplicates(&page.rows, &mut seen);
            if rewrite {
                applied &= self.all.rewrite(&bucket.key, page, None).await?;
            } else if of_page().any(|k| matches!(k, Kind::NotSealed)) {
                // After a rewrite this would miss its gate; the next round does it.
                applied &= self.all.seal(&bucket.key, page).await?;
            }
        }
        Ok(applied)
    }
}

/// Sensor-hours that have measurements.
pub(in crate::store::mongo) struct Hours {
    cursor: mongodb::Cursor<RawDocumentBuf>,
}

impl Hours {
    /// Some more of them.
    pub(in crate::store::mongo) async fn next(&mut self) -> Result<Option<Vec<BucketKey>>, MaintainError> {
        let mut keys = vec![];
        while keys.len() < HOURS_MAX
            && let Some(found) = self.cursor.try_next().await.map_err(failed("reading measurements"))?
        {
            let id = found.get_document("_id").ok();
            let sensor = id.and_then(|id| id.get_str("sensor_id").ok());
            let start = id.and_then(|id| crate::store::mongo::document::int(id.get("start").ok()??));
            if let (Some(sensor), Some(start)) = (sensor, start) {
                keys.push(BucketKey { sensor_id: sensor.into(), start: BucketStart(start) });
            }
        }
        Ok((!keys.is_empty()).then_some(keys))
    }
}

impl Collections {
    /// The sensor-hours of a selection that have measurements, in no order; the server groups, on disk if need be.
    pub(in crate::store::mongo) async fn hours(&self, selection: &Selection) -> Result<Hours, MaintainError> {
        let end =
            selection.to_ms.saturating_add(self.span_ms - 1).div_euclid(self.span_ms).saturating_mul(self.span_ms);
        let span = doc! { "$gte": DateTime::from_millis(selection.from_ms), "$lt": DateTime::from_millis(end) };
        let mut filter = doc! { "ts": span };
        if !selection.sensors.is_empty() {
            filter.insert("meta.sensor_id", doc! { "$in": &selection.sensors });
        }
        let ms = doc! { "$toLong": "$ts" };
        // Floored towards the past, before 1970 too.
        let rest = doc! { "$mod": [{ "$add": [{ "$mod": [ms.clone(), self.span_ms] }, self.span_ms] }, self.span_ms] };
        let id = doc! { "sensor_id": "$meta.sensor_id", "start": { "$subtract": [ms, rest] } };
        let pipeline = [doc! { "$match": filter }, doc! { "$group": { "_id": id } }];
        let cursor = self.measurements.aggregate(pipeline).allow_disk_use(true).with_type::<RawDocumentBuf>().await;
        Ok(Hours { cursor: cursor.map_err(failed("reading measurements"))? })
    }

    /// The form that the documents of buckets tell, where they have a page 0.
    pub(in crate::store::mongo) async fn forms(
        &self,
        keys: &[BucketKey],
    ) -> Result<Vec<(BucketKey, StorageMode)>, MaintainError> {
        let what = failed("reading the buckets");
        let ids: Vec<Bson> = keys.iter().map(|key| Bson::from(page_id(key, 0))).collect();
        let projection: Document = doc! { "sensor_id": 1, "bucket_start": 1, "storage": 1 };
        let found = self.buckets.find(doc! { "_id": { "$in": ids } }).projection(projection).await;
        let mut cursor = found.map_err(&what)?;
        let mut forms = vec![];
        while let Some(found) = cursor.try_next().await.map_err(&what)? {
            let series = found.get_str("storage").is_ok_and(|s| s == crate::store::mongo::pack::SERIES);
            if let Some(key) = key_of(&found) {
                forms.push((key, if series { StorageMode::TimeSeries } else { StorageMode::Bucket }));
            }
        }
        Ok(forms)
    }
}
