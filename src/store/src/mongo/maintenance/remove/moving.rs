//! `hourbucket sensors rename | merge | replace`: readings of one sensor count for another from now
//! on, and those that are stored move to it, while services run.
//!
//! **Order.** The alias first, durably. Every instance applies it to what leaves its journal, and
//! confirms that nothing is left of what it has routed without it ([`crate::aliases`]). From then on
//! no reading can be stored under the former id any more, so the positions of its readings are of no
//! interest, and recent buckets move too. Then bucket by bucket, as a removal does it, with one more
//! step: what goes is added to the same hour of the other sensor before, durably. An instance that
//! does not confirm in time is named; buckets that ended recently stay until the next run.
//!
//! **Each once.** A reading that is equal to one of the other sensor's bucket is not added. If one is
//! equal to several, as readings that came without a time may be, as many stay as the bucket with
//! more of them has, so the step may be repeated after a kill. Only what was added is removed: a page
//! is guarded by its version, and of measurements only those that were read.
//!
//! **The other sensor's bucket** is changed as by a second instance of the service in bucket mode:
//! the open page gets the readings under the guard of its version, which grows, or new pages follow,
//! each sealed before the next one is created. The positions of its readings stay. A bucket of
//! measurements becomes pages in one guarded change ([`super::buckets`]), if it ended long enough ago;
//! one that is not stored begins with pages, in both modes. So no measurement is ever inserted, which
//! nothing could guard.
//!
//! **Crash.** The alias and what has moved stay. The next run finds the alias, and in each bucket of
//! the former id what is left of it. The catalogue has the fields before a page needs them; days of
//! both sensors are marked before their pages change; latest states and the entry of the former id are
//! compared by every run.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use tokio::time::Instant;

use super::buckets::{Attempt, RETRY_PAUSE, TRIES, removed_pages, rewritten};
use super::{LATEST_MAX, LATEST_MORE, RemoveOptions, Removed, Run, Selected, store_failed};
use crate::Store;
use crate::aliases::{ALIASES_MAX, AliasStore};
use crate::catalog::{CatalogEntry, CatalogQuery};
use crate::maintain::addition::{Addition, additions};
use crate::maintain::convert::Conversion;
use crate::maintain::removal::{Keys, Removal, missing};
use crate::maintain::{MaintainError, StoredBucket, StoredPage};
use crate::mongo::aliases::MongoAliases;
use crate::mongo::document::int_of;
use crate::mongo::error::Applied;
use crate::mongo::maintenance::Maintenance;
use crate::mongo::maintenance::convert::EVER;
use crate::mongo::maintenance::repair::unchanged_filter;
use crate::mongo::pack::GATE;
use crate::mongo::read::bucket_reader::{failed, page_id};
use model::collections::{BUCKETS, CATALOG, COLUMNS, DAY_HOURS, DAYS, LATEST};
use model::{Alias, Aliases, BucketKey, CatalogUpdate, LatestUpdate, Rows, SensorId, StorageMode};

/// An instance that was not seen for so long has ended, or cannot reach the database.
const SEEN_WITHIN_MS: i64 = 2 * 60 * 1000;
/// How long instances are waited for: also until one that was killed counts as ended.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(150);
const POLL: Duration = Duration::from_millis(500);
/// Passes over the buckets: readings may have arrived under the former id during the first one. The
/// pause before the next one is for statements of instances that were killed.
const PASSES: u32 = 3;
const PASS_PAUSE: Duration = Duration::from_secs(2);

/// What a sensor becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveKind {
    /// The other id must not have readings.
    Rename,
    /// The other sensor must have readings.
    Merge,
    /// Only from a time on; it need not have readings yet.
    Replace,
}

/// What to move, and how.
#[derive(Debug, Clone)]
pub struct MoveOptions {
    /// Whose readings count for which sensor from now on.
    pub alias: Alias,
    /// What that means.
    pub kind: MoveKind,
    /// The settings that a removal has; its selection is not used.
    pub settings: RemoveOptions,
}

/// What was moved.
#[derive(Debug, Clone, Default)]
pub struct Moved {
    /// Buckets and readings that went, what was kept, and what was computed again.
    pub removed: Removed,
    /// Instances that have not confirmed the alias: recent buckets were kept because of them.
    pub unconfirmed: Vec<String>,
    /// Days that both sensors have, of which no hour is left.
    pub days_kept: u64,
}

impl Maintenance {
    /// Counts what would be moved.
    ///
    /// # Errors
    /// The ids cannot be used like this; the server failed.
    pub async fn plan_move(
        &self,
        store: &dyn Store,
        options: &MoveOptions,
    ) -> Result<Removed, MaintainError> {
        self.check_move(options).await?;
        let mut run = self.run(store, &options.settings).await?;
        let former = &options.alias.former;
        run.count_from(former, options.alias.from_ms).await?;
        Ok(run.done)
    }

    /// Moves. `progress` is called after each bucket. May be interrupted at any moment and run again.
    ///
    /// # Errors
    /// The ids cannot be used like this; the server failed.
    pub async fn move_sensor(
        &self,
        store: &dyn Store,
        options: &MoveOptions,
        mut progress: impl FnMut(&Removed),
    ) -> Result<Moved, MaintainError> {
        let alias = &options.alias;
        self.check_move(options).await?;
        let aliases = self.alias_store();
        aliases.set(alias).await.map_err(store_failed)?;
        if alias.from_ms.is_none() {
            let shortened = aliases.shorten(&alias.former, &alias.sensor_id).await;
            shortened.map_err(store_failed)?;
        }
        let version = aliases.next_version().await.map_err(store_failed)?;
        let unconfirmed = self.unconfirmed(store, version).await?;
        let mut settings = options.settings.clone();
        if unconfirmed.is_empty() {
            settings.settled_before_ms = i64::MAX;
            if alias.from_ms.is_none() {
                // No service writes the former id any more.
                settings.arrival_step_ms = 0;
            }
        }
        let removal = Removal {
            from_ms: alias.from_ms.unwrap_or(EVER.0),
            to_ms: EVER.1,
            field: None,
            condition: Default::default(),
            keys: Keys::All,
        };
        let mut run = self.run(store, &settings).await?;
        run.into = Some(alias.sensor_id.clone());
        run.into_settled_before_ms = options.settings.settled_before_ms;
        let removal = Arc::new(removal);
        for pass in 1..=PASSES {
            let before = run.done.buckets;
            run.done.kept.clear();
            run.done.kept_total = 0;
            run.widen_entry(alias).await?;
            run.buckets_of(&alias.former, &removal, &mut progress)
                .await?;
            if pass > 1 {
                run.done.still_arriving = u64::from(run.done.buckets > before);
            }
            if pass > 1 && run.done.buckets == before {
                break;
            }
            tokio::time::sleep(PASS_PAUSE).await;
        }
        let both: BTreeSet<SensorId> = [alias.former.clone(), alias.sensor_id.clone()].into();
        run.settle_days(|sensor| both.contains(sensor)).await?;
        let former: BTreeSet<SensorId> = [alias.former.clone()].into();
        let of = [(alias.former.clone(), removal.clone())];
        run.move_latest(alias, &of).await?;
        let mut days_kept = 0;
        if alias.from_ms.is_none() {
            days_kept = run.move_days(alias).await?;
            if unconfirmed.is_empty() && run.done.kept_total == 0 {
                run.sweep(&alias.former).await?;
            }
        }
        run.narrow_entries(&former).await?;
        if run.done.buckets > 0 && settings.recent_max.is_some() {
            tokio::time::sleep(settings.latest_interval.min(LATEST_MAX) + LATEST_MORE).await;
            run.latest_of_all(&of).await?;
        }
        Ok(Moved {
            removed: run.done,
            unconfirmed,
            days_kept,
        })
    }

    fn alias_store(&self) -> MongoAliases {
        MongoAliases::new(self.reader.connection().clone())
    }

    /// Refuses ids that cannot be used like this.
    async fn check_move(&self, options: &MoveOptions) -> Result<(), MaintainError> {
        let Alias {
            former,
            sensor_id,
            from_ms,
        } = &options.alias;
        let refused = |why: String| Err(MaintainError::Refused(why));
        if former == sensor_id {
            return refused(format!("`{former}` is the same id"));
        }
        let all = self.alias_store().aliases().await.map_err(store_failed)?;
        let held = all.iter().find(|alias| alias.former == *former).cloned();
        if all.len() >= ALIASES_MAX && held.is_none() {
            return refused(format!("there are {ALIASES_MAX} aliases already, the most"));
        }
        if let Some(target) = all.iter().find(|alias| alias.former == *sensor_id) {
            let now = Aliases::new(all.clone());
            let now = now
                .resolve(sensor_id, i64::MAX)
                .unwrap_or(&target.sensor_id);
            return refused(format!(
                "`{sensor_id}` is a former id of `{now}`: use the id that it has now, or remove the \
                 alias, db.sensor_aliases.deleteOne({{_id: {sensor_id:?}}}), and wait a minute"
            ));
        }
        if let Some(held) = held {
            return match held == options.alias {
                // An earlier run has begun.
                true => Ok(()),
                false => refused(format!(
                    "`{former}` is a former id of `{}` already",
                    held.sensor_id
                )),
            };
        }
        let has_former = self.is_stored(former).await?;
        let has_other = self.is_stored(sensor_id).await?;
        match options.kind {
            MoveKind::Replace if !has_other => {
                refused(format!("no readings of `{sensor_id}` are stored"))
            }
            MoveKind::Replace => Ok(()),
            _ if !has_former => refused(format!("no readings of `{former}` are stored")),
            MoveKind::Rename if has_other => refused(format!(
                "`{sensor_id}` has readings already; to join both sensors: hourbucket sensors merge \
                 {former} into {sensor_id}"
            )),
            MoveKind::Merge if !has_other => refused(format!(
                "no readings of `{sensor_id}` are stored; to give the sensor this id: hourbucket \
                 sensors rename {former} {sensor_id}"
            )),
            _ => {
                debug_assert!(from_ms.is_none());
                Ok(())
            }
        }
    }

    async fn is_stored(&self, sensor: &SensorId) -> Result<bool, MaintainError> {
        let what = failed("looking for a sensor");
        for (collection, field) in [(BUCKETS, "sensor_id"), (CATALOG, "_id")] {
            let found = self.reader.connection().majority::<Document>(collection);
            let find = found
                .find_one(doc! { field: &**sensor })
                .projection(doc! { "_id": 1 });
            if find.await.map_err(&what)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits until all running instances have confirmed a version of the aliases; returns those that
    /// have not.
    async fn unconfirmed(
        &self,
        store: &dyn Store,
        version: i64,
    ) -> Result<Vec<String>, MaintainError> {
        let aliases = self.alias_store();
        let until = Instant::now() + CONFIRMED_WITHIN;
        loop {
            let now_ms = store.now_ms().await.map_err(store_failed)?;
            let mut instances = aliases.instances().await.map_err(store_failed)?;
            instances.retain(|seen| seen.version < version && seen.at_ms + SEEN_WITHIN_MS > now_ms);
            if instances.is_empty() || Instant::now() >= until {
                return Ok(instances.into_iter().map(|seen| seen.instance).collect());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Run<'_> {
    /// Adds what the removal takes of a bucket, which has these readings, to the same hour of another
    /// sensor. Returns why that is not possible.
    pub(super) async fn give(
        &mut self,
        into: &BucketKey,
        from: &StoredBucket,
        rows: &[Rows],
        removal: &Removal,
    ) -> Result<Option<String>, MaintainError> {
        self.mark(into).await?;
        let moved = &taken_of(rows, removal);
        let lost = is_incomplete(from, rows);
        let is_whole = removal.covers(from.key.start.0, from.end_ms)
            && from
                .measured
                .as_ref()
                .is_none_or(|left| left.rows.is_empty());
        let mut why = String::new();
        for n in 1..=TRIES {
            let mut bucket = self.all.read_documents(into).await?;
            let attempt = if lost {
                match is_whole && self.copy(&bucket, from).await? {
                    true => Attempt::Done,
                    false => return Ok(Some(summary_only(&from.key.sensor_id))),
                }
            } else if moved.is_empty() {
                Attempt::Done
            } else if bucket.pages.is_empty() {
                self.extend(&bucket, from, missing([], moved)).await?
            } else {
                if bucket.storage_mode() == StorageMode::TimeSeries {
                    let measured = self.all.read_measurements(into, bucket.end_ms);
                    bucket.measured = Some(measured.await?);
                }
                let rows = self.rows_of(&bucket).await?;
                if let Some(why) = self.why_not(&bucket, &rows) {
                    return Ok(Some(why));
                }
                let missing = missing(&rows, moved);
                if missing.is_empty() {
                    Attempt::Done
                } else if bucket.measured.is_some() {
                    if bucket.end_ms > self.into_settled_before_ms {
                        let why = "the other sensor's measurements of this hour may still be \
                                   written: run the command again in two hours";
                        return Ok(Some(why.to_owned()));
                    }
                    let moved = Arc::new(moved.clone());
                    let conversion = Conversion::adding(into.clone(), self.conversion(), moved);
                    self.converted(conversion).await?
                } else {
                    self.extend(&bucket, from, missing).await?
                }
            };
            match attempt {
                Attempt::Done => return Ok(None),
                Attempt::Again(again) => why = again,
            }
            tokio::time::sleep(RETRY_PAUSE * n).await;
        }
        Ok(Some(why))
    }

    /// Why a bucket cannot take readings.
    fn why_not(&self, bucket: &StoredBucket, rows: &[Rows]) -> Option<String> {
        let unreadable = bucket.measured.as_ref().is_some_and(|m| m.unreadable > 0);
        if unreadable || bucket.pages.iter().any(|page| page.unreadable > 0) {
            return Some(
                "the other sensor's hour holds data that hourbucket has not written".into(),
            );
        }
        if bucket.strays().next().is_some() || !bucket.gaps().is_empty() {
            return Some("run `hourbucket reconcile --repair` first".into());
        }
        is_incomplete(bucket, rows).then(|| summary_only(&bucket.key.sensor_id))
    }

    /// Appends readings to the pages of a bucket, which are not measurements.
    async fn extend(
        &self,
        bucket: &StoredBucket,
        from: &StoredBucket,
        rest: Rows,
    ) -> Result<Attempt, MaintainError> {
        let tagged = from.pages.iter().rev().find(|page| !page.tags.is_empty());
        let tags = tagged.map(|page| page.tags.clone()).unwrap_or_default();
        for addition in additions(bucket, rest, &tags, self.options.page) {
            let added = match addition {
                Addition::Seal(page) => self.all.seal(&bucket.key, page).await?,
                Addition::Create { number, page } => {
                    self.all.insert_page(bucket, number, &page).await?
                }
                Addition::Fill {
                    page,
                    rows,
                    is_sealed,
                } => {
                    let mut change = rewritten(bucket, page, &rows);
                    if is_sealed && let Ok(set) = change.get_document_mut("$set") {
                        set.insert("has_overflow", true);
                    }
                    self.set(unchanged_filter(&bucket.key, page), change)
                        .await?
                }
            };
            if added == Applied::Conflict {
                return Ok(Attempt::changing());
            }
        }
        Ok(Attempt::Done)
    }

    /// Copies the documents of a bucket of which only the summary is left. `false`: the other sensor
    /// has something else of this hour.
    async fn copy(
        &self,
        bucket: &StoredBucket,
        from: &StoredBucket,
    ) -> Result<bool, MaintainError> {
        let is_same = |page: &StoredPage| {
            let copied = from.pages.iter().find(|copied| copied.page == page.page);
            copied.is_some_and(|copied| {
                let of = |page: &StoredPage| (page.count, page.first_ts_ms, page.last_ts_ms);
                of(copied) == of(page) && copied.summary == page.summary
            })
        };
        if !bucket.pages.iter().all(is_same) {
            return Ok(false);
        }
        let what = failed("copying a summary");
        for page in from.pages.iter().skip(bucket.pages.len()) {
            let filter = unchanged_filter(&from.key, page);
            let Some(raw) = self.all.buckets.find_one(filter).await.map_err(&what)? else {
                return Ok(false);
            };
            let mut copied = Document::try_from(raw)
                .map_err(|error| MaintainError::Server(error.to_string()))?;
            copied.insert("_id", page_id(&bucket.key, page.page));
            copied.insert("sensor_id", &*bucket.key.sensor_id);
            copied.remove(GATE);
            if copied.remove("storage").is_some() {
                copied.insert("readings_removed", true);
                copied.insert("has_overflow", true);
            }
            let copied = RawDocumentBuf::try_from(&copied)
                .map_err(|error| MaintainError::Server(error.to_string()))?;
            self.all.buckets.insert_one(copied).await.map_err(&what)?;
        }
        Ok(true)
    }

    /// Adds to the entry of the sensor what the catalogue has of its former id.
    async fn widen_entry(&self, alias: &Alias) -> Result<(), MaintainError> {
        let Some(entry) = self.entry(&alias.former).await? else {
            return Ok(());
        };
        let from_ms = alias.from_ms.unwrap_or(i64::MIN);
        if entry
            .last_ts_ms
            .saturating_add(model::catalog::CATALOG_STEP_MS)
            < from_ms
        {
            return Ok(());
        }
        let first_ts_ms = entry.first_ts_ms.max(from_ms);
        let fields = entry.fields.iter();
        let update = CatalogUpdate {
            sensor_id: alias.sensor_id.clone(),
            tags: entry.tags_ts_ms.map(|ts_ms| (ts_ms, entry.tags.clone())),
            fields: fields
                .map(|(name, kinds)| (name.as_str().into(), *kinds))
                .collect(),
            first_ts_ms,
            last_ts_ms: entry.last_ts_ms.max(first_ts_ms),
            arrived_ms: entry.arrived_ms,
            created_ms: entry.created_ms,
        };
        let merged = self.store.merge_catalog(&[&update]).await;
        merged.map(drop).map_err(store_failed)
    }

    /// Removes documents of measurements that are gone.
    pub(super) async fn drop_pages(&self, bucket: &StoredBucket) -> Result<Attempt, MaintainError> {
        for page in bucket.pages.iter().rev() {
            let filter = unchanged_filter(&bucket.key, page);
            let gone = self.all.buckets.delete_one(filter).await;
            if gone.map_err(failed("removing a page"))?.deleted_count != 1 {
                return Ok(Attempt::changing());
            }
        }
        Ok(Attempt::Done)
    }

    async fn entry(&self, sensor: &SensorId) -> Result<Option<CatalogEntry>, MaintainError> {
        let query = CatalogQuery {
            sensor_ids: Some(vec![sensor.clone()]),
            limit: 1,
            ..CatalogQuery::default()
        };
        let found = self.store.find_catalog(&query).await;
        Ok(found.map_err(store_failed)?.pop())
    }

    /// Brings the latest state of the sensor up to date, then that of the former id.
    async fn move_latest(&mut self, alias: &Alias, of: &[Selected]) -> Result<(), MaintainError> {
        let Some(recent_max) = self.options.recent_max else {
            return Ok(());
        };
        let states = self.of.reader.connection().majority::<Document>(LATEST);
        let what = failed("reading a latest state");
        let state = states
            .find_one(doc! { "_id": &*alias.former })
            .await
            .map_err(what)?;
        if state.is_some() || self.done.buckets > 0 {
            let values = state
                .as_ref()
                .and_then(|state| state.get_document("values").ok());
            let fields: BTreeSet<String> = values
                .into_iter()
                .flat_map(Document::keys)
                .cloned()
                .collect();
            let sensor = alias.sensor_id.clone();
            let rows = self
                .newest_left(&sensor, Rows::default(), &fields, recent_max)
                .await?;
            if !rows.is_empty() {
                let update = LatestUpdate {
                    sensor_id: sensor,
                    rows,
                    recent_max,
                };
                self.store.latest(&[update]).await.map_err(store_failed)?;
                self.done.latest += 1;
            }
        }
        self.latest_of_all(of).await
    }

    /// Moves days of which the retention has removed the hours. Returns how many stay, because the
    /// sensor has these days too.
    async fn move_days(&self, alias: &Alias) -> Result<u64, MaintainError> {
        let connection = self.of.reader.connection();
        let what = failed("moving a day");
        let mut days = BTreeSet::new();
        for collection in [DAYS, COLUMNS, DAY_HOURS] {
            let found = connection.majority::<Document>(collection);
            let find = found
                .find(doc! { "sensor_id": &*alias.former })
                .projection(doc! { "day": 1 });
            let mut found = find.await.map_err(&what)?;
            while let Some(document) = found.try_next().await.map_err(&what)? {
                days.extend(document.get_datetime("day").ok().copied());
            }
        }
        let mut kept = 0;
        for day in days {
            let end_ms = self.options.zone.day(day.timestamp_millis()).end_ms;
            let end = mongodb::bson::DateTime::from_millis(end_ms);
            let hours = |sensor: &SensorId| {
                doc! {
                    "sensor_id": &**sensor, "bucket_start": { "$gte": day, "$lt": end }, "count": { "$gt": 0 },
                }
            };
            let left = self.all.buckets.find_one(hours(&alias.former)).await;
            if left.map_err(&what)?.is_some() {
                continue;
            }
            let own = self.hours_left(hours(&alias.sensor_id)).await?;
            let mut is_kept = own.count > 0;
            let mut is_stale = is_kept;
            for collection in [DAYS, COLUMNS, DAY_HOURS] {
                let of = |sensor: &SensorId| doc! { "sensor_id": &**sensor, "day": day };
                let all = connection.majority::<Document>(collection);
                let copies = all.find(of(&alias.former)).await.map_err(&what)?;
                let copies: Vec<Document> = copies.try_collect().await.map_err(&what)?;
                for mut copied in copies {
                    is_stale &= own.covers(&copied);
                    let Ok(id) = copied.get_document_mut("_id") else {
                        continue;
                    };
                    id.insert("sensor_id", &*alias.sensor_id);
                    let id = id.clone();
                    copied.insert("sensor_id", &*alias.sensor_id);
                    let there = all.find_one(doc! { "_id": id }).await.map_err(&what)?;
                    is_kept |= there.as_ref().is_some_and(|there| *there != copied);
                    if there.is_none() && !is_kept {
                        let command = doc! { "insert": collection, "documents": [copied] };
                        connection.apply_all(command).await.map_err(store_failed)?;
                    }
                }
            }
            let stays = is_kept && !is_stale;
            kept += u64::from(stays);
            if !stays {
                for collection in [DAYS, COLUMNS, DAY_HOURS] {
                    let of = doc! { "sensor_id": &*alias.former, "day": day };
                    self.delete(collection, of).await?;
                }
            }
        }
        Ok(kept)
    }

    /// The hours that match: where the first one begins, and how many readings they count.
    async fn hours_left(&self, filter: Document) -> Result<HoursLeft, MaintainError> {
        let what = failed("reading the hours of a day");
        let projection = doc! { "bucket_start": 1, "count": 1 };
        let found = self.all.buckets.clone_with_type::<Document>();
        let found = found.find(filter).projection(projection).await;
        let mut found = found.map_err(&what)?;
        let mut left = HoursLeft {
            first_ms: i64::MAX,
            count: 0,
        };
        while let Some(page) = found.try_next().await.map_err(&what)? {
            let start = page
                .get_datetime("bucket_start")
                .map(|s| s.timestamp_millis());
            left.first_ms = left.first_ms.min(start.unwrap_or(i64::MAX));
            left.count += int_of(&page, "count").unwrap_or(0);
        }
        Ok(left)
    }

    /// Removes the empty pages and the invisible measurements of a former id that nothing writes.
    async fn sweep(&mut self, former: &SensorId) -> Result<(), MaintainError> {
        let empty = doc! { "sensor_id": &**former, "count": 0 };
        self.delete(BUCKETS, empty).await?;
        let pages = doc! { "sensor_id": &**former };
        let left = self.all.buckets.find_one(pages).await;
        let is_left = left.map_err(failed("reading the buckets"))?.is_some();
        if self.is_measured && !is_left {
            // By `meta`, which every server can.
            let series = doc! { "meta.sensor_id": &**former };
            let removed = self.all.measurements.delete_many(series).await;
            removed.map_err(failed("removing measurements"))?;
            self.done.leftovers = 0;
        }
        Ok(())
    }

    /// Counts what is stored of a sensor from a time on, by whole buckets.
    async fn count_from(
        &mut self,
        sensor: &SensorId,
        from_ms: Option<i64>,
    ) -> Result<(), MaintainError> {
        let mut filter = doc! { "sensor_id": &**sensor, "count": { "$gt": 0 } };
        if let Some(from_ms) = from_ms {
            let start = self.of.reader.connection().span().floor(from_ms);
            let start = mongodb::bson::DateTime::from_millis(start.0);
            filter.insert("bucket_start", doc! { "$gte": start });
        }
        self.count_pages(sensor, filter).await
    }
}

/// The hours of a sensor and day.
struct HoursLeft {
    /// Where the first one begins, in milliseconds since 1970.
    first_ms: i64,
    count: i64,
}

impl HoursLeft {
    /// Whether a day of the former id, which has no hours any more, can only be one whose readings are
    /// among these: a service that was killed computed it from hours that were moved meanwhile. The
    /// retention goes by time, so it has removed none of its hours if an hour as early is still here.
    fn covers(&self, day: &Document) -> bool {
        let first = day.get_datetime("first_ts");
        let begins_later = first.is_ok_and(|first| first.timestamp_millis() >= self.first_ms);
        begins_later && int_of(day, "count").is_some_and(|count| count <= self.count)
    }
}

fn summary_only(sensor: &SensorId) -> String {
    format!("only the summary of this hour is left of `{sensor}`: it cannot be divided or joined")
}

/// Whether readings that a bucket counts are no longer stored. `rows`: what is stored of each page.
fn is_incomplete(bucket: &StoredBucket, rows: &[Rows]) -> bool {
    let removed = || removed_pages(bucket, rows);
    let counted: u64 = removed().map(|(page, _)| page.counted::<u64>()).sum();
    let found: u64 = removed().map(|(_, rows)| rows.len() as u64).sum();
    bucket.has_lost_measurements() || (bucket.measured.is_none() && counted > found)
}

fn taken_of(rows: &[Rows], removal: &Removal) -> Rows {
    let mut taken = Rows::default();
    for row in rows.iter().flat_map(Rows::iter) {
        if removal.takes(&row) {
            taken.push_row(&row);
        }
    }
    taken
}

/// The removal of what is moved, and of nothing that was added since.
pub(super) fn only_of(rows: &[Rows], removal: &Removal) -> Arc<Removal> {
    let keys: HashSet<_> = taken_of(rows, removal)
        .iter()
        .map(|row| row.key())
        .collect();
    Arc::new(Removal {
        keys: Keys::Only(Arc::new(keys)),
        ..removal.clone()
    })
}
