//! Converts one bucket from one storage mode to the other, or folds its stray pages in, one
//! statement at a time: between any two of them a simulation may let other writers in, or end the
//! conversion as a crash would.
//!
//! The statements, guards and comparisons are those of MongoDB's version:
//! `store::mongo::maintenance::{convert, convert_bucket}` explain them. Tags, and values that
//! hourbucket cannot have written, do not occur here.

use std::collections::{BTreeMap, VecDeque};

use super::pages::{Page, Pages, stored_bytes};
use model::rows::StatementLimits;
use model::summary::PAGE_SUMMARY_BYTES_MAX;
use model::{BucketKey, Reading, Rows, Span, StorageMode};
use store::maintain::bucket::Recomputed;
use store::maintain::{BucketMeasurements, Kind, ReadingCounts, StoredBucket, StoredPage, audit};
use store::summary_pages::chunks;

/// Measurements per insert. Small, so that other writers come between two inserts.
const INSERT_MAX: usize = 3;
/// Attempts for a bucket that another writer keeps changing.
const TRIES: u32 = 10;

/// How a conversion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    /// Its documents have the requested storage mode, and nothing is left of the other one.
    Done,
    /// Other writers kept changing the bucket.
    Collided,
    /// A bucket with these findings must be repaired first.
    Unfit(&'static str),
}

/// A conversion in progress.
#[derive(Debug, Clone)]
pub struct Conversion {
    key: BucketKey,
    into: StorageMode,
    /// Readings and bytes of a new page.
    limits: (u32, u64),
    tries: u32,
    next: Next,
}

/// The next statement.
#[derive(Debug, Clone)]
enum Next {
    /// Reads the documents, and then the measurements.
    Documents,
    Measurements(StoredBucket),
    /// Inserts some measurements.
    Copy(Copying, VecDeque<Reading>),
    /// Reads the measurements back.
    Verify(Copying),
    /// Replaces the documents that were read, if they are unchanged.
    Swap(Vec<StoredPage>, Vec<Page>),
    /// Reads the documents and the measurements that may be leftovers, and removes these.
    HeldDocuments,
    HeldMeasurements(StoredBucket),
    Remove,
}

/// The bucket as it was read, how many measurements it had of each reading, and how many are added.
#[derive(Debug, Clone)]
struct Copying {
    bucket: StoredBucket,
    before: ReadingCounts,
    added: u64,
}

impl Copying {
    fn is_mixed(&self) -> bool {
        self.bucket.storage_mode() == StorageMode::TimeSeries
    }

    /// The pages whose readings become measurements.
    fn sources(&self) -> impl Iterator<Item = &StoredPage> {
        let mixed = self.is_mixed();
        self.bucket
            .pages
            .iter()
            .filter(move |page| !mixed || page.storage_mode == StorageMode::Bucket)
    }

    /// The readings that are not among the measurements yet; `None` if there are measurements that
    /// no page holds.
    fn missing(&mut self) -> Option<VecDeque<Reading>> {
        let mixed = self.is_mixed();
        let mut there = self.before.clone();
        let mut missing = VecDeque::new();
        for page in self.sources() {
            let mut rows = page.rows.clone();
            // A stray page may be a copy of existing measurements; equal readings in a bucket's own
            // pages are counted.
            rows.retain(|row| {
                !(if mixed {
                    there.holds(&row.key())
                } else {
                    there.take(&row.key())
                })
            });
            missing.extend(rows.to_readings(&self.bucket.key.sensor_id));
        }
        self.added = missing.len() as u64;
        (mixed || there.total() == 0).then_some(missing)
    }

    /// Whether the measurements are exactly the copied ones.
    fn is_whole(&self, measured: &Rows) -> bool {
        let now = ReadingCounts::of([measured]);
        match self.is_mixed() {
            true => {
                now.total() == self.before.total() + self.added
                    && self
                        .sources()
                        .all(|page| page.rows.iter().all(|row| now.holds(&row.key())))
            }
            false => now == ReadingCounts::of(self.bucket.pages.iter().map(|page| &page.rows)),
        }
    }
}

impl Conversion {
    /// A conversion of a bucket that ended some time ago. `limits`: `bucket.max_readings` and
    /// `bucket.max_bytes`.
    pub fn new(key: BucketKey, into: StorageMode, limits: (u32, u64)) -> Conversion {
        Conversion {
            key,
            into,
            limits,
            tries: 0,
            next: Next::Documents,
        }
    }

    /// The bucket.
    pub fn key(&self) -> &BucketKey {
        &self.key
    }

    /// Whether the next statement removes measurements.
    pub fn is_removing(&self) -> bool {
        matches!(self.next, Next::Remove)
    }

    /// Executes the next statement; `Some` if it was the last.
    pub fn step(&mut self, pages: &mut Pages) -> Option<Conclusion> {
        self.next = match std::mem::replace(&mut self.next, Next::Documents) {
            Next::Documents => Next::Measurements(pages.documents(&self.key)),
            Next::Measurements(bucket) => match self.plan(pages.measured(bucket), pages) {
                Ok(next) => next,
                Err(conclusion) => return Some(conclusion),
            },
            Next::Copy(copying, mut missing) => {
                let some = missing.drain(..missing.len().min(INSERT_MAX));
                pages
                    .series
                    .entry((self.key.sensor_id.to_string(), self.key.start))
                    .or_default()
                    .extend(some);
                match missing.is_empty() {
                    true => Next::Verify(copying),
                    false => Next::Copy(copying, missing),
                }
            }
            Next::Verify(copying) => {
                let measured = pages
                    .measured(copying.bucket.clone())
                    .measured
                    .unwrap_or_default()
                    .rows;
                match copying.is_whole(&measured) {
                    true => {
                        let new = pages.summaries(&copying.bucket, &measured);
                        Next::Swap(copying.bucket.pages, new)
                    }
                    false => return self.again(),
                }
            }
            Next::Swap(old, new) => match (pages.swap(&self.key, &old, new), self.into) {
                (false, _) => return self.again(),
                (true, StorageMode::TimeSeries) => return Some(Conclusion::Done),
                (true, StorageMode::Bucket) => Next::HeldDocuments,
            },
            Next::HeldDocuments => Next::HeldMeasurements(pages.documents(&self.key)),
            // Only the server's own retention removes them then.
            Next::HeldMeasurements(bucket)
                if bucket.pages.iter().any(|page| page.readings_removed) =>
            {
                return Some(Conclusion::Done);
            }
            Next::HeldMeasurements(bucket) => match held(&pages.measured(bucket)) {
                Some(0) => return Some(Conclusion::Done),
                Some(_) => Next::Remove,
                None => return Some(Conclusion::Unfit("measurements that are not in its pages")),
            },
            Next::Remove => {
                pages
                    .series
                    .remove(&(self.key.sensor_id.to_string(), self.key.start));
                return Some(Conclusion::Done);
            }
        };
        None
    }

    /// Begins again with the next step.
    fn again(&mut self) -> Option<Conclusion> {
        self.tries += 1;
        self.next = Next::Documents;
        (self.tries >= TRIES).then_some(Conclusion::Collided)
    }

    /// The next step for the bucket as it was read.
    fn plan(&self, bucket: StoredBucket, pages: &Pages) -> Result<Next, Conclusion> {
        let mode = bucket.storage_mode();
        let strays = bucket.strays().next().is_some();
        match (bucket.pages.is_empty(), mode, self.into) {
            (true, ..) => return Err(Conclusion::Done),
            (_, StorageMode::TimeSeries, StorageMode::TimeSeries) if !strays => {
                return Err(Conclusion::Done);
            }
            (_, StorageMode::TimeSeries, StorageMode::Bucket) if strays => {
                return Err(Conclusion::Unfit("stray_page"));
            }
            // A run ends with the leftovers of earlier ones.
            (_, StorageMode::Bucket, StorageMode::Bucket) => return Ok(Next::HeldDocuments),
            _ => {}
        }
        let is_removed = bucket.pages.iter().any(|page| page.readings_removed);
        if is_removed || bucket.has_lost_measurements() {
            return Err(Conclusion::Done);
        }
        if let Some(why) = unfit(&bucket) {
            return Err(Conclusion::Unfit(why));
        }
        let measured = bucket.measured.as_ref().map(|m| &m.rows);
        if self.into == StorageMode::Bucket {
            let new = self.cut(
                &bucket,
                measured.cloned().unwrap_or_default(),
                pages.page_summary_bytes(),
            );
            return Ok(Next::Swap(bucket.pages, new));
        }
        let before = ReadingCounts::of(measured);
        let mut copying = Copying {
            bucket,
            before,
            added: 0,
        };
        let missing = copying
            .missing()
            .ok_or(Conclusion::Unfit("measurements that are not in its pages"))?;
        Ok(if missing.is_empty() {
            Next::Verify(copying)
        } else {
            Next::Copy(copying, missing)
        })
    }

    /// Splits measurements into pages, and adds empty ones if a writer expects more; all but the
    /// last are sealed.
    fn cut(&self, bucket: &StoredBucket, mut rest: Rows, summary_bytes: u64) -> Vec<Page> {
        let room = StatementLimits {
            rows: self.limits.0 as usize,
            bytes: self.limits.1,
            summary_bytes,
        };
        let mut pages: Vec<Page> = vec![];
        while pages.last().is_none_or(|page| page.sealed) {
            let (rows, _) = rest.take_room(room);
            let fields = Recomputed::of([&rows]).fields;
            pages.push(Page {
                count: rows.len() as u32,
                sealed: !rest.is_empty() || pages.len() + 1 < bucket.expected_pages(),
                first_ts_ms: rows.iter().map(|row| row.ts_ms).min(),
                readings: rows.to_readings(&self.key.sensor_id),
                summary: fields
                    .into_iter()
                    .map(|(name, (field, _))| (name, field))
                    .collect(),
                storage_mode: StorageMode::Bucket,
                readings_removed: false,
                gate: None,
                bytes: stored_bytes(&rows),
            });
        }
        pages
    }
}

impl Pages {
    /// The documents of a bucket.
    fn documents(&self, key: &BucketKey) -> StoredBucket {
        let id = |n: u32| (key.sensor_id.to_string(), key.start, n);
        let found = self.pages.range(id(0)..=id(u32::MAX));
        let pages = found
            .map(|((sensor, start, n), page)| self.stored_page(sensor, *start, *n, page, true))
            .collect();
        StoredBucket {
            key: key.clone(),
            end_ms: Span::HOUR.end(key.start),
            pages,
            measured: None,
        }
    }

    /// The bucket with its measurements as they are now, ordered by time.
    fn measured(&self, bucket: StoredBucket) -> StoredBucket {
        let id = (bucket.key.sensor_id.to_string(), bucket.key.start);
        let mut readings: Vec<&Reading> = self.series.get(&id).into_iter().flatten().collect();
        readings.sort_by_key(|reading| reading.ts_ms);
        let mut rows = Rows::default();
        readings
            .into_iter()
            .for_each(|reading| rows.push_reading(reading));
        let measured = Some(BucketMeasurements {
            rows,
            unreadable: 0,
            tags: BTreeMap::new(),
        });
        StoredBucket { measured, ..bucket }
    }

    fn page_summary_bytes(&self) -> u64 {
        self.summary_bytes_max.unwrap_or(PAGE_SUMMARY_BYTES_MAX)
    }

    /// The documents of a bucket whose readings are these measurements.
    fn summaries(&self, bucket: &StoredBucket, measured: &Rows) -> Vec<Page> {
        let recomputed = Recomputed::of([measured]);
        let first_ts_ms = Some(recomputed.first_ts_ms);
        let fields = recomputed
            .fields
            .into_iter()
            .map(|(name, (field, _))| (name, field))
            .collect();
        let mut chunks = chunks(fields, self.page_summary_bytes());
        chunks.resize(chunks.len().max(bucket.expected_pages()), vec![]);
        let pages = chunks.len() as u64;
        let mut left = recomputed.count;
        let page = |(n, chunk): (u64, Vec<_>)| {
            let count = left.div_ceil(pages - n);
            left -= count;
            let summary = chunk.into_iter().collect();
            let sealed = n + 1 < pages;
            Page {
                count: count as u32,
                sealed,
                first_ts_ms,
                summary,
                storage_mode: StorageMode::TimeSeries,
                ..Page::default()
            }
        };
        (0..).zip(chunks).map(page).collect()
    }

    /// Replaces the documents of a bucket, all or none; `false` if one has changed since it was
    /// read, or there is another.
    fn swap(&mut self, key: &BucketKey, old: &[StoredPage], new: Vec<Page>) -> bool {
        let id = |n: u32| (key.sensor_id.to_string(), key.start, n);
        let is_unchanged = |read: &StoredPage| {
            self.pages.get(&id(read.page)).is_some_and(|page| {
                (
                    Some(i64::from(page.count)),
                    page.sealed,
                    page.storage_mode,
                    page.readings_removed,
                ) == (
                    read.count,
                    read.sealed,
                    read.storage_mode,
                    read.readings_removed,
                ) && (read.rows.is_empty() || page.readings.len() == read.rows.len())
            })
        };
        let is_free =
            |n: u32| old.iter().any(|read| read.page == n) || !self.pages.contains_key(&id(n));
        if !old.iter().all(is_unchanged) || !(0..new.len() as u32).all(is_free) {
            return false;
        }
        old.iter()
            .for_each(|read| drop(self.pages.remove(&id(read.page))));
        self.pages
            .extend((0..).zip(new).map(|(n, page)| (id(n), page)));
        true
    }
}

/// Why a bucket must be repaired before its storage mode can change.
fn unfit(bucket: &StoredBucket) -> Option<&'static str> {
    let fits = |kind: &Kind| {
        matches!(
            kind,
            Kind::Duplicates { .. } | Kind::Leftover { .. } | Kind::Stray { .. }
        )
    };
    // The document of a bucket with stray pages is rewritten from the measurements anyway.
    let mixed = bucket.strays().next().is_some();
    let found = audit(bucket)
        .into_iter()
        .find(|finding| !mixed && !fits(&finding.kind));
    found.map(|finding| finding.kind.name())
}

/// The number of measurements of a bucket of pages; `None` if its pages lack one of them.
fn held(bucket: &StoredBucket) -> Option<u64> {
    let pages = ReadingCounts::of(bucket.pages.iter().map(|page| &page.rows));
    let mut rows = bucket
        .measured
        .iter()
        .flat_map(|measured| measured.rows.iter());
    let n = bucket
        .measured
        .as_ref()
        .map_or(0, |measured| measured.rows.len() as u64);
    rows.all(|row| pages.holds(&row.key())).then_some(n)
}
