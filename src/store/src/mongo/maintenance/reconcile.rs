//! `hourbucket reconcile`: compares every bucket of a time range with its readings, and repairs it
//! on request, while a service runs.
//!
//! The steps for a bucket: it is streamed in index order, recomputed and compared
//! ([`crate::maintain::audit`]). If it differs it is read again separately after a pause; only
//! remaining differences are reported or repaired. So a write in progress is not a finding. A
//! repair consists of guarded statements ([`super::repair`]): read, compare, and write if
//! unchanged. If the bucket has changed, the repair starts again, at most [`TRIES`] times. Memory:
//! one bucket, and the keys of the buckets to read again ([`RECHECK_MAX`]).
//!
//! A concurrently running service may do the following, and this is why it is safe (docs/design.md,
//! section 2):
//! - *It appends to a page.* This changes `count`, which guards the repair: the second of the two
//!   writers finds the other's number. A repair that changes `count` makes the service's next
//!   append a conflict; the service loads, compares and continues. A repair that does not (summary,
//!   times) leaves `readings` and `count` unchanged. `$set` of the summary and `$inc` of an append
//!   cannot mix, since the append either makes the guard fail or finds the new summary.
//! - *It has read this number before (ABA).* If `count` decreased and other appends raised it to
//!   the same value again, an append based on an earlier read would pass the guard with readings
//!   that are stored by now. So the count of an open page never decreases: a repair that lowers it
//!   seals the page in the same statement, and a sealed page accepts no appends.
//! - *It seals a page and creates the next one.* This is the order of the writes, and a bucket is
//!   read again from its last page to its first, so "not sealed" is never reported for a page that
//!   was sealed in time. The stream may see it so; the second read does not.
//! - *It creates the page that a repair fills in.* Both insert the same `_id`: one fails and reads
//!   again.
//! - *The response to its statement was lost, and a repair comes before its load.* Readings with
//!   their own time are found by value, in any position. Readings with receipt time are identified
//!   by position after the known version, and positions move only if `--drop-duplicates` removes
//!   readings. So duplicates are removed only from buckets that ended before `settled_before_ms`. A
//!   concurrent replay of receipt-time readings older than that could store one of them a second
//!   time. No other repair moves a reading.
//! - *Time-series mode: measurements are stored before their document.* The document is read first,
//!   so it can be behind its measurements but never ahead; after the pause it is usually up to
//!   date. If a repair writes the missing count first, the service's guarded write is a conflict,
//!   and the service recomputes from the measurements, as after any conflict. A document for
//!   measurements without one is inserted: either the service's insert succeeds, or it is a
//!   conflict.
//! - *Retention removes pages and measurements at different times.* Buckets that begin before the
//!   retention (or before `expireAfterSeconds` of the measurements, if shorter) are skipped. A
//!   bucket whose measurements an earlier retention removed is a finding that is not repaired
//!   ([`Kind::MissingMeasurements`]). So a summary is never recomputed from a part of its readings.
//!
//! Duplicate measurements are handled separately, since a server may not be able to delete single
//! ones ([`super::drop_duplicates`]).
//!
//! Two repairs, or a repair and a `convert`, at the same time only make each other retry. The
//! exception is duplicates: both would remove the same ones under guards, which is also harmless.
//! The guards protect several instances of the service in the same way.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::options::ReadConcern;

use crate::maintain::bucket::without_duplicates;
use crate::maintain::{
    Entry, Finding, Kind, MaintainError, PageSize, Reconciled, RepairOutcome, Selection,
    StoredBucket, audit, time,
};
use crate::mongo::document::{between, int, storage_mode_of};
use crate::mongo::error::Applied;
use crate::mongo::maintenance::Maintenance;
use crate::mongo::maintenance::drop_duplicates::Dropped;
use crate::mongo::read::bucket_reader::{
    Collections, MeasurementsFound, failed, find_measurements, key_of, page_id,
};
use crate::mongo::write::recompute_summary::{Rewrite, SummaryRecompute};
use model::{BucketKey, BucketStart, StorageMode};

/// Pause before buckets that differ are read again, if measurements may be ahead of their document.
const RECHECK_PAUSE: Duration = Duration::from_secs(2);
/// Pause before a repair that collided with a writer is retried, multiplied by the number of
/// attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Attempts per bucket. A busy page gets an append every `flush.max_age` at most, so two are nearly
/// always enough.
const TRIES: u32 = 10;
/// Maximum buckets that wait to be read again.
const RECHECK_MAX: usize = 10_000;
/// Sensor-hours of measurements whose documents are read together.
const HOURS_MAX: usize = 500;

/// What to reconcile, and how.
#[derive(Debug, Clone)]
pub struct ReconcileOptions {
    /// Which buckets; the range is widened to whole buckets.
    pub selection: Selection,
    /// Repair findings that can be repaired.
    pub repair: bool,
    /// Also remove all but the first of equal readings (only with `repair`).
    pub drop_duplicates: bool,
    /// Do not check for equal readings.
    pub ignore_duplicates: bool,
    /// Also report leftover measurements of a conversion.
    pub leftovers: bool,
    /// The current time in milliseconds since 1970, for the retention.
    pub now_ms: i64,
    /// Remove duplicates from buckets that ended before this time, in milliseconds since 1970.
    pub settled_before_ms: i64,
    /// For buckets that must be converted to pages.
    pub page: PageSize,
    /// Maximum findings that are listed individually.
    pub listed_max: usize,
}

/// Why a bucket is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecheckReason {
    Pages,
    TimeSeries,
    /// Measurements exist that no document counts; other differences of the bucket are reported
    /// already.
    Uncounted,
}

struct Run<'a> {
    all: Collections,
    recompute: SummaryRecompute,
    options: &'a ReconcileOptions,
    report: Reconciled,
    rechecks: Vec<(BucketKey, RecheckReason)>,
    /// Buckets that were converted to pages, since the server cannot delete single measurements.
    converted: u64,
    /// The current bucket needs a transaction, and the server has none.
    no_transactions: bool,
}

impl Maintenance {
    /// Compares the buckets of a range with their readings, and repairs differences if requested.
    ///
    /// # Errors
    /// The server failed; earlier repairs remain.
    pub async fn reconcile(&self, options: &ReconcileOptions) -> Result<Reconciled, MaintainError> {
        let connection = self.reader.connection();
        let measurements = find_measurements(connection, self.reader.detected()).await?;
        let mut selection = options.selection.clone();
        let span = connection.span();
        selection.from_ms = span.floor(selection.from_ms).0;
        let mut notes = vec![];
        if let Some(kept) = self
            .kept_from(measurements, options.now_ms)
            .filter(|kept| selection.from_ms < *kept)
        {
            selection.from_ms = kept;
            let before = time(kept);
            notes.push(format!(
                "the range was shortened: buckets before {before} may be partly expired and are \
                 skipped"
            ));
            if kept >= selection.to_ms {
                notes.push(
                    "no bucket is left to compare; choose a later --to, or a longer \
                    store.retention"
                        .to_owned(),
                );
            }
        }
        let mut report = Reconciled::new(selection, options.listed_max);
        report.notes = notes;
        let mut run = Run {
            all: self.reader.collections(),
            recompute: self.recompute.clone(),
            options,
            report,
            rechecks: vec![],
            converted: 0,
            no_transactions: false,
        };
        run.documents().await?;
        run.recheck_all().await?;
        if measurements != MeasurementsFound::Absent {
            run.measurements().await?;
            run.recheck_all().await?;
        }
        if run.converted > 0 {
            run.report.notes.push(format!(
                "{} buckets are pages now, without the duplicates: this server deletes only whole \
                 series of measurements. Readers no longer see their measurements; retention or \
                 `convert --into bucket --drop-leftovers` removes them",
                run.converted
            ));
        }
        Ok(run.report)
    }

    /// The start of the first bucket that is not expiring now; `None` if none ever expires.
    fn kept_from(&self, measurements: MeasurementsFound, now_ms: i64) -> Option<i64> {
        let expire_s = match measurements {
            MeasurementsFound::There { expire_s } => expire_s,
            MeasurementsFound::Absent => None,
        };
        let retention_s = self.retention.and_then(|r| i64::try_from(r.as_secs()).ok());
        let kept_s = [expire_s, retention_s].into_iter().flatten().min()?;
        let expired_ms = now_ms.saturating_sub(kept_s.saturating_mul(1000));
        let span = self.reader.connection().span();
        Some(span.end(span.floor(expired_ms)))
    }
}

impl Run<'_> {
    /// Checks every bucket that has documents.
    async fn documents(&mut self) -> Result<(), MaintainError> {
        let all = self.all.clone();
        let mut stream = all.stream(&self.report.selection).await?;
        while let Some(mut bucket) = stream.next().await? {
            let storage_mode = bucket.storage_mode();
            if storage_mode == StorageMode::TimeSeries {
                let measured = all.read_measurements(&bucket.key, bucket.end_ms).await?;
                bucket.measured = Some(measured);
            }
            self.report.buckets += 1;
            self.report.documents += bucket.pages.len() as u64;
            self.report.readings +=
                bucket.paged() + bucket.measured.as_ref().map_or(0, |m| m.rows.len() as u64);
            if !self.findings(&bucket).is_empty() {
                let reason = if storage_mode == StorageMode::TimeSeries {
                    RecheckReason::TimeSeries
                } else {
                    RecheckReason::Pages
                };
                self.recheck_later(bucket.key, reason).await?;
            }
        }
        Ok(())
    }

    /// Checks every sensor-hour that has measurements but no document that counts them.
    async fn measurements(&mut self) -> Result<(), MaintainError> {
        let all = self.all.clone();
        let mut hours = all.hours(&self.report.selection).await?;
        while let Some(keys) = hours.next().await? {
            let modes = all.storage_modes(&keys).await?;
            for key in keys {
                if modes
                    .iter()
                    .all(|(k, storage_mode)| *k != key || *storage_mode != StorageMode::TimeSeries)
                {
                    self.recheck_later(key, RecheckReason::Uncounted).await?;
                }
            }
        }
        Ok(())
    }

    async fn recheck_later(
        &mut self,
        key: BucketKey,
        reason: RecheckReason,
    ) -> Result<(), MaintainError> {
        self.rechecks.push((key, reason));
        if self.rechecks.len() >= RECHECK_MAX {
            self.recheck_all().await
        } else {
            Ok(())
        }
    }

    /// Reads the waiting buckets again, and reports or repairs remaining differences.
    async fn recheck_all(&mut self) -> Result<(), MaintainError> {
        if self
            .rechecks
            .iter()
            .any(|(_, reason)| *reason != RecheckReason::Pages)
        {
            tokio::time::sleep(RECHECK_PAUSE).await;
        }
        for (key, reason) in std::mem::take(&mut self.rechecks) {
            self.recheck(key, reason).await?;
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

    /// Reads one bucket again, and reports or repairs remaining differences.
    async fn recheck(
        &mut self,
        key: BucketKey,
        reason: RecheckReason,
    ) -> Result<(), MaintainError> {
        self.no_transactions = false;
        let mut bucket = self.read_again(&key, reason).await?;
        let first = self.to_report(&bucket, reason);
        if !self.options.repair {
            for finding in first {
                self.report.add(Entry {
                    bucket: key.clone(),
                    finding,
                    outcome: RepairOutcome::Found,
                });
            }
            return Ok(());
        }
        let mut left = first.clone();
        for n in 1..=TRIES {
            if left.iter().all(|f| self.why_not(&bucket, f).is_some()) {
                break;
            }
            if self.repair(&bucket, &left).await? == Applied::Conflict {
                tokio::time::sleep(RETRY_PAUSE * n).await;
            }
            bucket = self.read_again(&key, reason).await?;
            left = self.to_report(&bucket, reason);
        }
        let same = |a: &Finding, b: &Finding| {
            a.page == b.page && a.kind.name() == b.kind.name() && a.kind.field() == b.kind.field()
        };
        for finding in first.iter().filter(|f| !left.iter().any(|l| same(l, f))) {
            let finding = finding.clone();
            self.report.add(Entry {
                bucket: key.clone(),
                finding,
                outcome: RepairOutcome::Repaired,
            });
        }
        // A note reports the leftovers of removed duplicates.
        let known = |f: &Finding| {
            !matches!(f.kind, Kind::Leftover { .. }) || first.iter().any(|a| same(a, f))
        };
        left.retain(known);
        for finding in left {
            let why = self.why_not(&bucket, &finding);
            let why = why
                .unwrap_or("the bucket kept changing: run the command again")
                .to_owned();
            self.report.add(Entry {
                bucket: key.clone(),
                finding,
                outcome: RepairOutcome::NotRepaired(why),
            });
        }
        Ok(())
    }

    async fn read_again(
        &self,
        key: &BucketKey,
        reason: RecheckReason,
    ) -> Result<StoredBucket, MaintainError> {
        match reason {
            RecheckReason::Pages => self.all.read_documents(key).await,
            RecheckReason::TimeSeries | RecheckReason::Uncounted => self.all.read_bucket(key).await,
        }
    }

    /// The findings to report: if no document counts the measurements, only that.
    fn to_report(&self, bucket: &StoredBucket, reason: RecheckReason) -> Vec<Finding> {
        let mut found = self.findings(bucket);
        if reason == RecheckReason::Uncounted {
            found.retain(|f| matches!(f.kind, Kind::NoDocument { .. } | Kind::Leftover { .. }));
        }
        found
    }

    /// Why a finding is not repaired; `None` if it can be.
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
            Some(
                "kept: readings without a time of their own may be equal; use --drop-duplicates to \
                 remove them",
            )
        } else if bucket.end_ms > self.options.settled_before_ms {
            Some("kept: the bucket ended too recently")
        } else if foreign {
            Some("kept: the bucket holds data that hourbucket has not written")
        } else if self.no_transactions {
            Some(
                "kept: this server deletes only whole series (before MongoDB 7.0), and without \
                 transactions the bucket cannot be converted to several pages: make the server a \
                 replica set (one member is enough)",
            )
        } else {
            None
        }
    }

    /// Repairs what it can.
    async fn repair(
        &mut self,
        bucket: &StoredBucket,
        findings: &[Finding],
    ) -> Result<Applied, MaintainError> {
        match bucket.storage_mode() {
            StorageMode::TimeSeries => self.repair_series(bucket, findings).await,
            StorageMode::Bucket => self.repair_pages(bucket, findings).await,
        }
    }

    async fn repair_series(
        &mut self,
        bucket: &StoredBucket,
        findings: &[Finding],
    ) -> Result<Applied, MaintainError> {
        if bucket.strays().next().is_some() {
            // This also rewrites the documents from the measurements.
            return self.all.fold(bucket, self.options.page).await;
        }
        if !bucket.gaps().is_empty() {
            return self.fill_gaps(bucket).await;
        }
        let repairable = |f: &&Finding| self.why_not(bucket, f).is_none();
        if bucket.pages.is_empty() || findings.iter().filter(repairable).any(|f| f.page.is_some()) {
            // Uses as many pages as needed, under their guards; fails after repeated collisions
            // with writers.
            self.recompute(bucket).await?;
            return Ok(Applied::Yes);
        }
        if !findings
            .iter()
            .filter(repairable)
            .any(|f| matches!(f.kind, Kind::Duplicates { .. }))
        {
            return Ok(Applied::Yes);
        }
        let dropped = self.all.drop_measured(bucket, self.options.page).await?;
        if dropped == Dropped::Deleted {
            self.recompute(bucket).await?;
        }
        self.converted += u64::from(dropped == Dropped::Converted);
        self.no_transactions = dropped == Dropped::NoTransactions;
        Ok(match dropped {
            Dropped::Again => Applied::Conflict,
            _ => Applied::Yes,
        })
    }

    async fn fill_gaps(&self, bucket: &StoredBucket) -> Result<Applied, MaintainError> {
        let mut all = Applied::Yes;
        for page in bucket.gaps() {
            all = all.and(self.all.fill_gap(bucket, page).await?);
        }
        Ok(all)
    }

    async fn recompute(&self, bucket: &StoredBucket) -> Result<(), MaintainError> {
        let recomputed = self.recompute.recompute(&bucket.key, Rewrite::Always).await;
        recomputed.map(drop).map_err(failed("recomputing a bucket"))
    }

    async fn repair_pages(
        &self,
        bucket: &StoredBucket,
        findings: &[Finding],
    ) -> Result<Applied, MaintainError> {
        let mut all = self.fill_gaps(bucket).await?;
        // Readings of earlier pages; a rewritten page adds its own.
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
                let rewritten = self.all.rewrite(&bucket.key, page, Some(&mut seen));
                all = all.and(rewritten.await?);
                continue;
            }
            without_duplicates(&page.rows, &mut seen);
            if rewrite {
                all = all.and(self.all.rewrite(&bucket.key, page, None).await?);
            } else if of_page().any(|k| matches!(k, Kind::NotSealed)) {
                // After a rewrite the guard would fail; the next attempt seals it.
                all = all.and(self.all.seal(&bucket.key, page).await?);
            }
        }
        Ok(all)
    }
}

/// Sensor-hours that have measurements.
pub(crate) struct Hours {
    cursor: mongodb::Cursor<RawDocumentBuf>,
}

impl Hours {
    /// Returns the next ones, at most [`HOURS_MAX`].
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<BucketKey>>, MaintainError> {
        let mut keys = vec![];
        while keys.len() < HOURS_MAX
            && let Some(found) = self
                .cursor
                .try_next()
                .await
                .map_err(failed("reading measurements"))?
        {
            let id = found.get_document("_id").ok();
            let sensor = id.and_then(|id| id.get_str("sensor_id").ok());
            let start = id.and_then(|id| int(id.get("start").ok()??));
            if let (Some(sensor), Some(start)) = (sensor, start) {
                keys.push(BucketKey {
                    sensor_id: sensor.into(),
                    start: BucketStart(start),
                });
            }
        }
        Ok((!keys.is_empty()).then_some(keys))
    }
}

impl Collections {
    /// The sensor-hours of a selection that have measurements, unordered; the server groups them,
    /// on disk if necessary.
    pub(crate) async fn hours(&self, selection: &Selection) -> Result<Hours, MaintainError> {
        let end = selection
            .to_ms
            .saturating_add(self.span_ms - 1)
            .div_euclid(self.span_ms)
            .saturating_mul(self.span_ms);
        let mut filter = doc! { "ts": between(selection.from_ms, end) };
        if !selection.sensors.is_empty() {
            filter.insert("meta.sensor_id", doc! { "$in": &selection.sensors });
        }
        let ms = doc! { "$toLong": "$ts" };
        // Rounds down, also before 1970.
        let rest = doc! { "$mod": [{ "$add": [{ "$mod": [ms.clone(), self.span_ms] }, self.span_ms] }, self.span_ms] };
        let id = doc! { "sensor_id": "$meta.sensor_id", "start": { "$subtract": [ms, rest] } };
        let pipeline = [doc! { "$match": filter }, doc! { "$group": { "_id": id } }];
        let cursor = self
            .measurements
            .aggregate(pipeline)
            // A snapshot may end before the whole collection is read, and a repeated hour does no
            // harm.
            .read_concern(ReadConcern::majority())
            .allow_disk_use(true)
            .with_type::<RawDocumentBuf>()
            .await;
        Ok(Hours {
            cursor: cursor.map_err(failed("reading measurements"))?,
        })
    }

    /// The storage mode according to page 0 of each bucket, if there is one.
    pub(crate) async fn storage_modes(
        &self,
        keys: &[BucketKey],
    ) -> Result<Vec<(BucketKey, StorageMode)>, MaintainError> {
        let what = failed("reading the buckets");
        let ids: Vec<Bson> = keys.iter().map(|key| Bson::from(page_id(key, 0))).collect();
        let projection: Document = doc! { "sensor_id": 1, "bucket_start": 1, "storage": 1 };
        let found = self
            .buckets
            .find(doc! { "_id": { "$in": ids } })
            .projection(projection)
            .await;
        let mut cursor = found.map_err(&what)?;
        let mut modes = vec![];
        while let Some(found) = cursor.try_next().await.map_err(&what)? {
            modes.extend(key_of(&found).map(|key| (key, storage_mode_of(&found))));
        }
        Ok(modes)
    }
}
