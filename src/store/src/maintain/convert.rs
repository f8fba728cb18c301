//! The conversion of one bucket to the other storage mode, or of its stray pages, as a state machine:
//! [`Conversion::request`] says what the store must do next, [`Conversion::answer`] takes the result.
//! MongoDB and the store in memory execute the same requests, so the simulation tests the order of
//! the steps, the guards and the comparisons that run in production. Pure.
//!
//! `store::mongo::maintenance::convert` explains the order of the steps.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use super::audit::{Kind, audit};
use super::bucket::{Recomputed, without_duplicates};
use super::removal::{Removal, missing};
use super::{BucketMeasurements, PageSize, ReadingCounts, Step, StoredBucket, StoredPage};
use crate::summary_pages::chunks;
use model::rows::StatementLimits;
use model::{BucketKey, FieldSummary, Rows, StorageMode};

/// What to convert a bucket to, and how.
#[derive(Debug, Clone, Copy)]
pub struct ConversionSettings {
    /// The storage mode to convert to.
    pub into: StorageMode,
    /// For new pages with readings.
    pub page: PageSize,
    /// Maximum bytes of the summary of a new page.
    pub summary_bytes_max: u64,
    /// Maximum measurements per insert.
    pub insert_max: usize,
    /// Attempts for a bucket that other writers keep changing.
    pub tries_max: u32,
    /// What happens to equal measurements that become readings.
    pub equal: EqualReadings,
    /// What happens to the measurements of a bucket that consists of pages.
    pub leftovers: LeftoverRemoval,
}

/// What a conversion to pages does with equal measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EqualReadings {
    /// Each becomes a reading.
    KeepAll,
    /// Only the first becomes one.
    KeepFirst,
}

/// What a conversion to pages does with the measurements afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftoverRemoval {
    /// Removes those that the pages hold.
    Remove,
    /// Leaves them.
    Leave,
}

/// What the store must do next.
#[derive(Debug)]
pub enum Request<'a> {
    /// Read the documents of the bucket (majority), from the last page to the first.
    ReadDocuments,
    /// Read the measurements of the bucket (majority), which ends at this time (ms since 1970).
    ReadMeasurements {
        /// The end of the bucket, exclusive.
        end_ms: i64,
    },
    /// Insert measurements.
    Insert(&'a Insertion),
    /// Replace the documents of the bucket, all or none.
    Replace(&'a Replacement),
    /// Remove the measurements of the bucket, which ends at this time (ms since 1970).
    RemoveMeasurements {
        /// The end of the bucket, exclusive.
        end_ms: i64,
    },
    /// Nothing: the conversion has ended.
    End(&'a Conclusion),
}

/// The result of a [`Request`].
#[derive(Debug)]
pub enum Answer {
    /// The documents; `measured` is not set.
    Documents(StoredBucket),
    /// The measurements, ordered by time.
    Measurements(BucketMeasurements),
    /// The measurements were inserted.
    Inserted,
    /// The documents were replaced.
    Replaced,
    /// A document has changed since it was read, or there is another one: nothing was replaced.
    Changed,
    /// So many measurements were removed.
    Removed(u64),
    /// The server deletes only whole series of measurements.
    RemovalRefused,
}

/// Measurements to insert.
#[derive(Debug, Clone)]
pub struct Insertion {
    /// The tags of all of them.
    pub tags: BTreeMap<String, String>,
    /// Their times and values.
    pub rows: Rows,
}

/// New documents for the bucket in place of all that were read.
#[derive(Debug, Clone)]
pub struct Replacement {
    /// The bucket as it was read. A page has changed if its count, its seal, its storage mode or the
    /// removal of its readings has.
    pub old: StoredBucket,
    /// The new pages, from page 0 on, at least one.
    pub new: Vec<NewPage>,
}

/// A page that a conversion writes.
#[derive(Debug, Clone)]
pub struct NewPage {
    /// Where its readings are.
    pub storage_mode: StorageMode,
    /// Number of readings.
    pub count: u32,
    /// Whether it is closed for appends: all but the last are.
    pub sealed: bool,
    /// The earliest time, in milliseconds since 1970.
    pub first_ts_ms: i64,
    /// The latest time, in milliseconds since 1970.
    pub last_ts_ms: i64,
    /// By field.
    pub summary: BTreeMap<String, FieldSummary>,
    /// The tags of the bucket.
    pub tags: BTreeMap<String, String>,
    /// Its readings; empty in [`StorageMode::TimeSeries`].
    pub rows: Rows,
}

/// How a conversion has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conclusion {
    /// The documents have the requested storage mode, or the bucket keeps its own because it has
    /// lost readings.
    Done(Outcome),
    /// Other writers kept changing the bucket.
    Collided,
    /// The bucket cannot be converted, and why.
    Unfit(String),
}

/// What a conversion has done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Number of readings in the documents that it has replaced; `None` if there was nothing to do.
    pub moved: Option<u64>,
    /// What became of measurements that no document counts.
    pub leftovers: Leftovers,
}

/// The measurements of a bucket that consists of pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Leftovers {
    /// There are none, or they were not looked for.
    #[default]
    None,
    /// So many were removed.
    Removed(u64),
    /// The server deletes only whole series.
    Refused,
    /// They are not in the pages and must be kept.
    Kept(NotInPages),
}

/// A bucket of pages has measurements that its pages lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{foreign} of its {n} measurements are not in its pages, so none was removed; readers use its \
     pages: inspect the measurements, and remove them by hand"
)]
pub struct NotInPages {
    foreign: u32,
    n: u64,
}

/// A conversion in progress.
#[derive(Debug, Clone)]
pub struct Conversion {
    key: BucketKey,
    settings: ConversionSettings,
    /// What a conversion to pages leaves out.
    removal: Option<Arc<Removal>>,
    /// What a conversion to pages adds unless the bucket has it.
    added: Option<Arc<Rows>>,
    tries: u32,
    moved: Option<u64>,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Documents,
    Measurements(StoredBucket),
    /// Inserts the first of these.
    Copy(Copying, VecDeque<Insertion>),
    /// Reads the measurements back.
    Verify(Copying),
    /// Replaces the documents, which have so many readings.
    Replace(Replacement, u64),
    /// Reads the bucket again, before its leftovers are removed.
    HeldDocuments,
    HeldMeasurements(StoredBucket),
    Remove(StoredBucket),
    End(Conclusion),
}

/// A bucket whose readings become measurements: as it was read, and how many measurements there must
/// be afterwards.
#[derive(Debug, Clone)]
struct Copying {
    bucket: StoredBucket,
    total: u64,
    missing: u64,
}

impl Conversion {
    /// The conversion of a bucket that ended some time ago.
    pub fn new(key: BucketKey, settings: ConversionSettings) -> Conversion {
        Conversion {
            key,
            settings,
            removal: None,
            added: None,
            tries: 0,
            moved: None,
            state: State::Documents,
        }
    }

    /// The conversion to pages of what a removal leaves.
    pub(crate) fn removing(
        key: BucketKey,
        settings: ConversionSettings,
        removal: Arc<Removal>,
    ) -> Conversion {
        Conversion {
            removal: Some(removal),
            ..Conversion::new(key, settings)
        }
    }

    /// The conversion to pages together with other readings of this hour.
    pub(crate) fn adding(
        key: BucketKey,
        settings: ConversionSettings,
        added: Arc<Rows>,
    ) -> Conversion {
        Conversion {
            added: Some(added),
            ..Conversion::new(key, settings)
        }
    }

    /// Removes the leftovers of an earlier conversion, if the bucket consists of pages.
    pub(crate) fn of_leftovers(key: BucketKey, settings: ConversionSettings) -> Conversion {
        Conversion {
            state: State::HeldDocuments,
            ..Conversion::new(key, settings)
        }
    }

    /// The bucket.
    pub fn key(&self) -> &BucketKey {
        &self.key
    }

    /// What the store must do next.
    pub fn request(&self) -> Request<'_> {
        match &self.state {
            State::Documents | State::HeldDocuments => Request::ReadDocuments,
            State::Measurements(bucket) | State::HeldMeasurements(bucket) => {
                Request::ReadMeasurements {
                    end_ms: bucket.end_ms,
                }
            }
            State::Verify(Copying { bucket, .. }) => Request::ReadMeasurements {
                end_ms: bucket.end_ms,
            },
            State::Copy(_, insertions) => match insertions.front() {
                Some(insertion) => Request::Insert(insertion),
                None => Request::ReadDocuments,
            },
            State::Replace(replacement, _) => Request::Replace(replacement),
            State::Remove(bucket) => Request::RemoveMeasurements {
                end_ms: bucket.end_ms,
            },
            State::End(conclusion) => Request::End(conclusion),
        }
    }

    /// Continues with the result of the request; returns the steps that are completed by it.
    pub fn answer(&mut self, answer: Answer) -> &'static [Step] {
        let (state, steps): (State, &[Step]) =
            match (std::mem::replace(&mut self.state, State::Documents), answer) {
                (State::Documents, Answer::Documents(bucket)) => (State::Measurements(bucket), &[]),
                (State::Measurements(bucket), Answer::Measurements(measured)) => {
                    self.plan(measured_bucket(bucket, measured))
                }
                (State::Copy(copying, mut insertions), Answer::Inserted) => {
                    insertions.pop_front();
                    match insertions.is_empty() {
                        true => (State::Verify(copying), &[Step::PartCopied, Step::Copied]),
                        false => (State::Copy(copying, insertions), &[Step::PartCopied]),
                    }
                }
                (State::Verify(copying), Answer::Measurements(measured)) => {
                    match copying.is_complete(&measured.rows) {
                        true => (
                            self.replace_by_summaries(copying, &measured.rows),
                            &[Step::Verified],
                        ),
                        false => (self.again(), &[]),
                    }
                }
                (State::Replace(_, readings), Answer::Replaced) => {
                    self.moved = Some(readings);
                    (self.after_replacement(), &[Step::Swapped])
                }
                (State::Replace(..), Answer::Changed) => (self.again(), &[]),
                (State::HeldDocuments, Answer::Documents(bucket)) => {
                    // In time-series mode its measurements are no leftovers. If readings were removed,
                    // its pages cannot prove that they held them: the server's own retention removes
                    // them.
                    let is_removed = bucket.pages.iter().any(|page| page.readings_removed);
                    match bucket.storage_mode() {
                        StorageMode::Bucket if !is_removed => {
                            (State::HeldMeasurements(bucket), &[])
                        }
                        _ => (self.done(Leftovers::None), &[]),
                    }
                }
                (State::HeldMeasurements(bucket), Answer::Measurements(mut measured)) => {
                    measured.rows = self.left_of(measured.rows);
                    let bucket = measured_bucket(bucket, measured);
                    match count_held(&bucket) {
                        Ok(0) if self.removal.is_none() => (self.done(Leftovers::None), &[]),
                        Ok(_) => (State::Remove(bucket), &[Step::Verified]),
                        Err(error) => (self.done(Leftovers::Kept(error)), &[]),
                    }
                }
                (State::Remove(_), Answer::Removed(n)) => {
                    (self.done(Leftovers::Removed(n)), &[Step::Removed])
                }
                (State::Remove(_), Answer::RemovalRefused) => {
                    (self.done(Leftovers::Refused), &[Step::Removed])
                }
                (State::End(conclusion), _) => (State::End(conclusion), &[]),
                // Not the answer to the request: nothing is known.
                _ => (self.again(), &[]),
            };
        self.state = state;
        steps
    }

    /// Begins again, because another writer has changed the bucket.
    fn again(&mut self) -> State {
        self.tries += 1;
        match self.tries >= self.settings.tries_max {
            true => State::End(Conclusion::Collided),
            false => State::Documents,
        }
    }

    fn done(&self, leftovers: Leftovers) -> State {
        let moved = self.moved;
        State::End(Conclusion::Done(Outcome { moved, leftovers }))
    }

    fn after_replacement(&self) -> State {
        match (self.settings.into, self.settings.leftovers) {
            (StorageMode::Bucket, LeftoverRemoval::Remove) => State::HeldDocuments,
            _ => self.done(Leftovers::None),
        }
    }

    /// The next state for the bucket as it was read.
    fn plan(&self, bucket: StoredBucket) -> (State, &'static [Step]) {
        let has_strays = bucket.strays().next().is_some();
        let unfit = |why: String| State::End(Conclusion::Unfit(why));
        match (
            bucket.pages.is_empty(),
            bucket.storage_mode(),
            self.settings.into,
        ) {
            (true, ..) => return (self.done(Leftovers::None), &[]),
            (_, StorageMode::TimeSeries, StorageMode::TimeSeries) if !has_strays => {
                return (self.done(Leftovers::None), &[]);
            }
            (_, StorageMode::TimeSeries, StorageMode::Bucket) if has_strays => {
                let why = "has stray pages: run `hourbucket reconcile --repair` first";
                return (unfit(why.to_owned()), &[]);
            }
            // A run ends with the leftovers of earlier ones.
            (_, StorageMode::Bucket, StorageMode::Bucket) => {
                return (self.after_replacement(), &[]);
            }
            _ => {}
        }
        // There is nothing to move, and its summaries could not be computed again.
        let is_removed = bucket.pages.iter().any(|page| page.readings_removed);
        if is_removed || bucket.has_lost_measurements() {
            return (self.done(Leftovers::None), &[]);
        }
        if let Some(why) = why_unfit(&bucket) {
            return (unfit(why), &[]);
        }
        match self.settings.into {
            StorageMode::Bucket => (self.replace_by_pages(bucket), &[Step::Read]),
            StorageMode::TimeSeries => match Copying::plan(bucket, self.settings.insert_max) {
                Err(foreign) => {
                    let why = format!(
                        "sensor_readings has {foreign} measurements of it that are not in its \
                         pages: remove them first"
                    );
                    (unfit(why), &[Step::Read])
                }
                Ok((copying, insertions)) if insertions.is_empty() => {
                    (State::Verify(copying), &[Step::Read, Step::Copied])
                }
                Ok((copying, insertions)) => (State::Copy(copying, insertions), &[Step::Read]),
            },
        }
    }

    /// Replaces pages by the summaries of these measurements: one document, or as many as its fields
    /// need or a writer expects. How the count is distributed over them has no meaning
    /// ([`crate::summary_pages`]).
    fn replace_by_summaries(&self, copying: Copying, measured: &Rows) -> State {
        let bucket = copying.bucket;
        let recomputed = Recomputed::from_rows([measured]);
        let fields = recomputed.fields.into_iter();
        let fields = fields.map(|(name, (field, _))| (name, field)).collect();
        let mut chunks = chunks(fields, self.settings.summary_bytes_max);
        chunks.resize(chunks.len().max(bucket.expected_pages()), vec![]);
        let pages = chunks.len() as u64;
        // The tags of the last page that has any.
        let tagged = bucket.pages.iter().rev().find(|page| !page.tags.is_empty());
        let tags = tagged.map(|page| page.tags.clone()).unwrap_or_default();
        let mut left = recomputed.count;
        let page = |(n, chunk): (u64, Vec<(String, FieldSummary)>)| {
            let count = left.div_ceil(pages - n);
            left -= count;
            NewPage {
                storage_mode: StorageMode::TimeSeries,
                count: count as u32,
                sealed: n + 1 < pages,
                first_ts_ms: recomputed.first_ts_ms,
                last_ts_ms: recomputed.last_ts_ms,
                summary: chunk.into_iter().collect(),
                tags: tags.clone(),
                rows: Rows::default(),
            }
        };
        let new = (0..).zip(chunks).map(page).collect();
        let moved = match bucket.storage_mode() {
            StorageMode::TimeSeries => copying.missing,
            StorageMode::Bucket => bucket.paged(),
        };
        State::Replace(Replacement { old: bucket, new }, moved)
    }

    /// What the removal leaves of measurements.
    fn left_of(&self, rows: Rows) -> Rows {
        match &self.removal {
            Some(removal) => removal.apply([&rows]).remove(0).rows,
            None => rows,
        }
    }

    /// Replaces summaries by pages with their measurements, and adds empty pages if a writer expects
    /// more.
    fn replace_by_pages(&self, bucket: StoredBucket) -> State {
        let measured = bucket.measured.clone().unwrap_or_default();
        let rows = match self.settings.equal {
            EqualReadings::KeepAll => measured.rows,
            EqualReadings::KeepFirst => without_duplicates(&measured.rows, &mut HashSet::new()),
        };
        let mut rows = self.left_of(rows);
        if let Some(added) = &self.added {
            let added = missing([&rows], added);
            rows.append(&added);
        }
        let room = StatementLimits {
            rows: self.settings.page.readings_max as usize,
            bytes: self.settings.page.bytes_max,
            summary_bytes: self.settings.summary_bytes_max,
        };
        let moved = rows.len() as u64;
        let mut rest = rows;
        let mut new: Vec<NewPage> = vec![];
        while new.last().is_none_or(|page| page.sealed) {
            let (rows, _) = rest.take_room(room);
            let recomputed = Recomputed::from_rows([&rows]);
            let fields = recomputed.fields.into_iter();
            // An append lowers the first time and raises the last one. So an empty page has the last
            // and the first time that a reading of the bucket can have: any reading replaces both,
            // and the earliest and the latest of all pages, which the view uses, stay the same.
            let times = match rows.is_empty() {
                true => (bucket.end_ms - 1, bucket.key.start.0),
                false => (recomputed.first_ts_ms, recomputed.last_ts_ms),
            };
            new.push(NewPage {
                storage_mode: StorageMode::Bucket,
                count: rows.len() as u32,
                sealed: !rest.is_empty() || new.len() + 1 < bucket.expected_pages(),
                first_ts_ms: times.0,
                last_ts_ms: times.1,
                summary: fields.map(|(name, (field, _))| (name, field)).collect(),
                tags: measured.tags.clone(),
                rows,
            });
        }
        State::Replace(Replacement { old: bucket, new }, moved)
    }
}

impl Copying {
    /// What the measurements lack. The error: so many of them are in no page.
    fn plan(
        bucket: StoredBucket,
        insert_max: usize,
    ) -> Result<(Copying, VecDeque<Insertion>), u64> {
        let is_mixed = bucket.storage_mode() == StorageMode::TimeSeries;
        let mut there = ReadingCounts::from_rows(bucket.measured.as_ref().map(|m| &m.rows));
        let before = there.total();
        let mut insertions = VecDeque::new();
        let mut missing = 0;
        for page in sources(&bucket) {
            let mut rows = page.rows.clone();
            // A stray page may be a copy of existing measurements; equal readings in a bucket's own
            // pages are counted.
            rows.retain(|row| match is_mixed {
                true => !there.holds(&row.key()),
                false => !there.take(&row.key()),
            });
            missing += rows.len() as u64;
            // A page that an append recreated has no tags, and other tags would start another series.
            let tags = match is_mixed && page.tags.is_empty() {
                true => &bucket.pages[0].tags,
                false => &page.tags,
            };
            let room = StatementLimits {
                rows: insert_max,
                bytes: u64::MAX,
                summary_bytes: u64::MAX,
            };
            while !rows.is_empty() {
                let (rows, _) = rows.take_room(room);
                insertions.push_back(Insertion {
                    tags: tags.clone(),
                    rows,
                });
            }
        }
        if !is_mixed && there.total() > 0 {
            return Err(there.total());
        }
        let copying = Copying {
            bucket,
            total: before + missing,
            missing,
        };
        Ok((copying, insertions))
    }

    /// Whether the copy is complete. The measurements of a bucket's own pages must be exactly their
    /// readings. With stray pages there must be the expected number of them, with every reading of
    /// these pages.
    fn is_complete(&self, measured: &Rows) -> bool {
        let now = ReadingCounts::from_rows([measured]);
        match self.bucket.storage_mode() {
            StorageMode::TimeSeries => {
                let mut copied = sources(&self.bucket).flat_map(|page| page.rows.iter());
                now.total() == self.total && copied.all(|row| now.holds(&row.key()))
            }
            StorageMode::Bucket => {
                now == ReadingCounts::from_rows(self.bucket.pages.iter().map(|page| &page.rows))
            }
        }
    }
}

/// The pages whose readings become measurements.
fn sources(bucket: &StoredBucket) -> impl Iterator<Item = &StoredPage> {
    let is_mixed = bucket.storage_mode() == StorageMode::TimeSeries;
    let own = bucket.pages.iter().filter(move |_| !is_mixed);
    own.chain(bucket.strays())
}

fn measured_bucket(bucket: StoredBucket, measured: BucketMeasurements) -> StoredBucket {
    StoredBucket {
        measured: Some(measured),
        ..bucket
    }
}

/// Why a bucket must be repaired before its storage mode can change.
fn why_unfit(bucket: &StoredBucket) -> Option<String> {
    let fits = |kind: &Kind| {
        matches!(
            kind,
            Kind::Duplicates { .. } | Kind::Leftover { .. } | Kind::Stray { .. }
        )
    };
    // The document of a bucket with stray pages is rewritten from the measurements anyway.
    let found: Vec<&str> = match bucket.strays().next().is_some() {
        true if bucket.strays().any(|page| page.unreadable > 0) => vec!["unreadable"],
        true => vec![],
        false => audit(bucket)
            .iter()
            .filter(|finding| !fits(&finding.kind))
            .map(|finding| finding.kind.name())
            .collect(),
    };
    (!found.is_empty()).then(|| {
        format!(
            "differs ({}): run `hourbucket reconcile` first",
            found.join(", ")
        )
    })
}

/// Returns the number of measurements of a bucket of pages if its pages hold an equal reading for
/// each. (The pages may hold fewer than there are measurements: `reconcile --drop-duplicates` has
/// removed the others.)
pub(crate) fn count_held(bucket: &StoredBucket) -> Result<u64, NotInPages> {
    let pages = ReadingCounts::from_rows(bucket.pages.iter().map(|page| &page.rows));
    let mut n = 0;
    let mut foreign = bucket.measured.as_ref().map_or(0, |m| m.unreadable);
    for row in bucket.measured.iter().flat_map(|m| m.rows.iter()) {
        n += 1;
        foreign += u32::from(!pages.holds(&row.key()));
    }
    match foreign {
        0 => Ok(n),
        _ => Err(NotInPages { foreign, n }),
    }
}
