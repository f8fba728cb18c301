//! Recomputes the summary of a time-series bucket from its measurements.
//! [`crate::summary_pages`] defines the pages and the order of the steps, and why a crash
//! between them is harmless. This file has the statements, each guarded by the version that the
//! page was read with.
//!
//! Memory: the measurements are streamed. The fields of the result are held up to
//! [`FIELDS_BYTES_MAX`]. If there are more, the first ones by name are written, and the
//! measurements are read again for the next ones. (With names of 128 bytes: about 150,000 fields
//! per pass.)
//!
//! The statements carry a name of the [`super::fence`]. If the caller abandons a recomputation, the
//! name is dropped, and the next load with `doubt` waits until the server has ended its statements.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::TryStreamExt;
use mongodb::bson::{DateTime, Document, RawDocument, RawDocumentBuf, doc};
use mongodb::error::Error;

use crate::LoadedPage;
use crate::mongo::connection::Connection;
use crate::mongo::detected::Detected;
use crate::mongo::document::{
    MEASUREMENTS_PER_BATCH, int, is_set, measurements_of, page_of, storage_mode_of, summary_bytes,
    summary_document, values,
};
use crate::mongo::error::{Applied, concern_error, write_errors};
use crate::mongo::pack::{GATE, SCHEMA_VERSION, SERIES};
use crate::mongo::setup::DUPLICATE_KEY;
use crate::mongo::write::fence::Fence;
use crate::retention::Extent;
use crate::summary_pages::{Chunk, PageState, Plan, Several, chunks, plan};
use model::collections::BUCKETS;
use model::summary::{PAGE_SUMMARY_BYTES_MAX, entry_bytes};
use model::{BucketKey, FieldSummary, RowFlags, Rows, StorageMode, summary};

/// Attempts when concurrent writers change the bucket.
const TRIES_MAX: usize = 20;
/// Measurements that are added up together, unless they have more than [`NAMES_MAX`] field names.
const ROWS_MAX: usize = 10_000;
const NAMES_MAX: usize = 512;
/// Maximum bytes of the fields held in memory.
const FIELDS_BYTES_MAX: u64 = 64 << 20;
/// Memory of a field in bytes, in addition to its name.
const FIELD_BYTES: u64 = 256;
/// Maximum values per measurement that [`Rows`] can hold.
const VALUES_MAX: usize = 255;
/// Maximum consecutive missing pages.
const GAP_MAX: usize = 10_000;

/// The totals of a bucket's measurements. Only fields whose names sort after `after` are summed, as
/// many as fit.
#[derive(Default)]
struct Total {
    count: u32,
    first_ts_ms: i64,
    last_ts_ms: i64,
    after: Option<String>,
    fields: BTreeMap<String, FieldSummary>,
    fields_bytes: u64,
    /// Fields from this name on did not fit.
    below: Option<String>,
    /// Of the last measurement that has tags.
    tags: Document,
}

impl Total {
    fn add(&mut self, rows: &Rows) {
        if rows.is_empty() {
            return;
        }
        let first = rows.first_ts_ms();
        let last = rows.last_ts_ms();
        (self.first_ts_ms, self.last_ts_ms) = match self.count {
            0 => (first, last),
            _ => (self.first_ts_ms.min(first), self.last_ts_ms.max(last)),
        };
        self.count += rows.len() as u32;
        for (i, part) in summary::summarise(rows) {
            self.add_field(&rows.fields()[i as usize], part);
        }
    }

    fn extent(&self) -> Extent {
        match self.count {
            0 => Extent::NONE,
            count => Extent {
                count: u64::from(count),
                first_ts_ms: self.first_ts_ms,
            },
        }
    }

    fn add_field(&mut self, name: &str, part: FieldSummary) {
        if self.after.as_deref().is_some_and(|after| name <= after)
            || self.below.as_deref().is_some_and(|b| name >= b)
        {
            return;
        }
        if let Some(sum) = self.fields.get_mut(name) {
            *sum = sum.merge(part);
            return;
        }
        self.fields.insert(name.to_owned(), part);
        self.fields_bytes += name.len() as u64 + FIELD_BYTES;
        while self.fields_bytes > FIELDS_BYTES_MAX
            && let Some((last, _)) = self.fields.pop_last()
        {
            self.fields_bytes -= last.len() as u64 + FIELD_BYTES;
            self.below = Some(last);
        }
    }

    /// The content of a page: its count, its summary, and the time range of the whole bucket.
    fn page(&self, count: u32, chunk: &Chunk) -> Document {
        doc! {
            "count": count as i32,
            "first_ts": DateTime::from_millis(self.first_ts_ms),
            "last_ts": DateTime::from_millis(self.last_ts_ms),
            "summary": summary_document(chunk.iter().map(|(name, field)| (name, field))),
        }
    }
}

#[derive(Debug)]
pub(crate) struct RecomputedSummary {
    /// Its pages, from page 0.
    pub pages: Vec<LoadedPage>,
    /// Measurements that they count were removed.
    pub is_removed: bool,
}

/// Which summaries are rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// Those that do not count all measurements, unless measurements that they count were removed.
    IfWrong,
    /// Any, unless all measurements were removed.
    Always,
}

/// Recomputes summaries in `sensor_buckets` from `sensor_readings`.
#[derive(Debug, Clone)]
pub(crate) struct SummaryRecompute {
    connection: Connection,
    detected: Arc<Detected>,
    fence: Arc<Fence>,
}

impl SummaryRecompute {
    pub(crate) fn new(
        connection: Connection,
        detected: Arc<Detected>,
        fence: Arc<Fence>,
    ) -> SummaryRecompute {
        SummaryRecompute {
            connection,
            detected,
            fence,
        }
    }

    /// Recomputes the summary of a bucket.
    pub(crate) async fn recompute(
        &self,
        bucket: &BucketKey,
        rewrite: Rewrite,
    ) -> mongodb::error::Result<RecomputedSummary> {
        let name = self.fence.named(bucket.clone());
        for _ in 0..TRIES_MAX {
            let pages = self.heads(bucket).await?;
            let total = self.add_up(bucket, None).await?;
            let counted = Extent::sum(pages.iter().flatten().map(LoadedPage::extent));
            let has_lost = counted.has_lost(pages.len(), total.extent());
            if (has_lost && rewrite == Rewrite::IfWrong) || total.count == 0 {
                // Or the bucket was converted, and its measurements were removed after that.
                if self.heads(bucket).await? != pages {
                    continue;
                }
                name.over();
                return Ok(RecomputedSummary {
                    pages: pages.into_iter().map_while(|page| page).collect(),
                    is_removed: has_lost,
                });
            }
            let run = Run {
                recompute: self,
                bucket,
                comment: name.name(),
                pages: &pages,
            };
            if run.write(total, rewrite).await? == Applied::Yes {
                let pages = self.heads(bucket).await?;
                name.over();
                return Ok(RecomputedSummary {
                    pages: pages.into_iter().map_while(|page| page).collect(),
                    is_removed: false,
                });
            }
        }
        let text = format!(
            "the summary of the bucket at {} changes faster than it can be recomputed",
            bucket.start.0
        );
        Err(Error::custom(text))
    }

    /// The stored pages without their summaries. `None` for a missing page before another one: a
    /// recomputation of a bucket without documents ended before its last step, or an operator
    /// deleted the page.
    async fn heads(&self, bucket: &BucketKey) -> mongodb::error::Result<Vec<Option<LoadedPage>>> {
        let start = DateTime::from_millis(bucket.start.0);
        let filter = doc! { "sensor_id": &*bucket.sensor_id, "bucket_start": start };
        let projection = doc! {
            "page": 1, "count": 1, "storage": 1, "has_overflow": 1, "first_ts": 1, "last_ts": 1,
            "summary_bytes": summary_bytes(),
        };
        let buckets = self.connection.majority::<RawDocumentBuf>(BUCKETS);
        let find = buckets
            .find(filter)
            .projection(projection)
            .sort(doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 });
        let mut found = self.connection.in_time(async { find.await }).await?;
        let mut pages: Vec<Option<LoadedPage>> = vec![];
        while let Some(found) = self.connection.in_time(found.try_next()).await? {
            if storage_mode_of(&found) == StorageMode::Bucket {
                // Another instance writes with another store.mode. A load returns the bucket's mode,
                // and writes continue in it.
                let text = match pages.is_empty() {
                    true => "the bucket is stored as pages, not as measurements",
                    false => {
                        "a time-series bucket also has pages with readings: run `hourbucket \
                         reconcile --repair`"
                    }
                };
                return Err(Error::custom(text));
            }
            let page = found.get("page").ok().flatten().and_then(int);
            let missing = page.and_then(|n| usize::try_from(n).ok()?.checked_sub(pages.len()));
            match missing {
                Some(n @ 0..=GAP_MAX) => pages.extend((0..n).map(|_| None)),
                _ => {
                    let text = format!("a page of the bucket has number {page:?}");
                    return Err(Error::custom(text));
                }
            }
            pages.push(Some(page_of(&found)));
        }
        Ok(pages)
    }

    /// Adds up the measurements of a bucket: of the fields those whose names sort after `after`.
    async fn add_up(
        &self,
        bucket: &BucketKey,
        after: Option<String>,
    ) -> mongodb::error::Result<Total> {
        let to_ms = self.connection.span().end(bucket.start);
        let filter = measurements_of(&[&bucket.sensor_id], bucket.start.0, to_ms);
        let readings = self.detected.measurements(&self.connection);
        let find = readings.find(filter).batch_size(MEASUREMENTS_PER_BATCH);
        let mut cursor = self.connection.in_time(async { find.await }).await?;
        let mut total = Total {
            after,
            ..Total::default()
        };
        let mut rows = Rows::default();
        while let Some(document) = self.connection.in_time(cursor.try_next()).await? {
            add_row(&mut rows, &document);
            if let Some(tags) = document
                .get_document("meta")
                .ok()
                .and_then(|m| m.get_document("tags").ok())
                && !tags.is_empty()
            {
                total.tags = tags.try_into().unwrap_or_default();
            }
            if rows.len() >= ROWS_MAX || rows.fields().len() >= NAMES_MAX {
                total.add(&std::mem::take(&mut rows));
            }
        }
        total.add(&rows);
        Ok(total)
    }
}

fn id(bucket: &BucketKey, page: usize) -> Document {
    let start = DateTime::from_millis(bucket.start.0);
    doc! { "sensor_id": &*bucket.sensor_id, "bucket_start": start, "page": page as i32 }
}

fn add_row(rows: &mut Rows, document: &RawDocument) {
    let Ok(ts) = document.get_datetime("ts") else {
        return;
    };
    let values: Vec<_> = values(document).take(VALUES_MAX).collect();
    rows.push_named(ts.timestamp_millis(), RowFlags::default(), &values);
}

/// One attempt, based on the pages as they were read.
struct Run<'a> {
    recompute: &'a SummaryRecompute,
    bucket: &'a BucketKey,
    comment: &'a str,
    pages: &'a [Option<LoadedPage>],
}

impl Run<'_> {
    /// Executes the plan.
    async fn write(&self, mut total: Total, rewrite: Rewrite) -> mongodb::error::Result<Applied> {
        let bytes: u64 = total.fields.keys().map(|name| entry_bytes(name)).sum();
        let fits = bytes <= PAGE_SUMMARY_BYTES_MAX && total.below.is_none();
        let state = |page: &Option<LoadedPage>| {
            let absent = PageState {
                count: 0,
                sealed: true,
            };
            page.as_ref().map_or(absent, |page| PageState {
                count: page.count,
                sealed: page.sealed,
            })
        };
        let states: Vec<PageState> = self.pages.iter().map(state).collect();
        let is_torn = self.pages.iter().any(Option::is_none);
        match plan(
            &states,
            total.count,
            fits,
            is_torn || rewrite == Rewrite::Always,
        ) {
            Plan::AsItIs => Ok(Applied::Yes),
            Plan::One { seal } => {
                let fields = std::mem::take(&mut total.fields).into_iter().collect();
                self.page_0(&total, total.page(total.count, &fields), seal)
                    .await
            }
            Plan::Several(several) => self.several(total, several).await,
        }
    }

    async fn several(
        &self,
        mut total: Total,
        mut several: Several,
    ) -> mongodb::error::Result<Applied> {
        if let Some(Some(last)) = self.pages.last()
            && !last.sealed
        {
            let emptied = doc! { "has_overflow": true, "summary": {} };
            let set = self.set(last, self.pages.len() - 1, emptied, false);
            if set.await? == Applied::Conflict {
                return Ok(Applied::Conflict);
            }
        }
        let mut fields = Fields::new(self, &mut total);
        let total = &total;
        let (counts, mut next_page, last) = match &several {
            Several::Rising { pages, .. } => (pages.clone(), pages.len(), None),
            Several::Falling { pages, rest, last } => {
                let page = total.page(*rest, &fields.next().await?.unwrap_or_default());
                let inserted = self.insert(pages.len(), total, page, true).await?;
                if inserted == Applied::Conflict {
                    return Ok(Applied::Conflict);
                }
                (pages.clone(), pages.len() + 1, Some(*last))
            }
        };
        // The last fields are written by the last statement.
        let mut held = fields.next().await?.unwrap_or_default();
        for n in (0..counts.len()).filter(|n| Some(*n) != last) {
            let next = fields.next().await?;
            let chunk = next
                .map(|next| std::mem::replace(&mut held, next))
                .unwrap_or_default();
            let page = total.page(counts[n], &chunk);
            if self.rewrite(n, total, page).await? == Applied::Conflict {
                return Ok(Applied::Conflict);
            }
        }
        while let Some(next) = fields.next().await? {
            let page = total.page(several.share(), &std::mem::replace(&mut held, next));
            if self.insert(next_page, total, page, true).await? == Applied::Conflict {
                return Ok(Applied::Conflict);
            }
            next_page += 1;
        }
        match several {
            Several::Rising { rest, .. } => {
                self.insert(next_page, total, total.page(rest, &held), true)
                    .await
            }
            Several::Falling { pages, last, .. } => {
                self.rewrite(last, total, total.page(pages[last], &held))
                    .await
            }
        }
    }

    /// Writes all fields to page 0, whether it exists or not.
    async fn page_0(
        &self,
        total: &Total,
        mut page: Document,
        seal: bool,
    ) -> mongodb::error::Result<Applied> {
        let Some(Some(head)) = self.pages.first() else {
            return self.insert(0, total, page, seal).await;
        };
        if seal {
            page.insert("has_overflow", true);
        }
        self.set(head, 0, page, head.sealed).await
    }

    /// Writes one of several pages, whether it exists or not. The last page is sealed by now.
    async fn rewrite(
        &self,
        n: usize,
        total: &Total,
        mut page: Document,
    ) -> mongodb::error::Result<Applied> {
        let Some(Some(stored)) = self.pages.get(n) else {
            return self.insert(n, total, page, true).await;
        };
        page.insert("has_overflow", true);
        self.set(stored, n, page, stored.sealed || n + 1 == self.pages.len())
            .await
    }

    async fn insert(
        &self,
        n: usize,
        total: &Total,
        page: Document,
        seal: bool,
    ) -> mongodb::error::Result<Applied> {
        let start = self.bucket.start;
        let mut document = doc! {
            "_id": id(self.bucket, n),
            "schema_version": SCHEMA_VERSION,
            "sensor_id": &*self.bucket.sensor_id,
            "bucket_start": DateTime::from_millis(start.0),
            "bucket_end": DateTime::from_millis(self.recompute.connection.span().end(start)),
            "page": n as i32,
            "tags": &total.tags,
            "storage": SERIES,
        };
        document.extend(page);
        if seal {
            document.insert("has_overflow", true);
        }
        self.run(doc! { "insert": BUCKETS, "documents": [document] })
            .await
    }

    /// Updates page `n` if it still has the count that it was read with; `sealed`: whether it is
    /// sealed now.
    async fn set(
        &self,
        page: &LoadedPage,
        n: usize,
        set: Document,
        sealed: bool,
    ) -> mongodb::error::Result<Applied> {
        let filter = doc! {
            "_id": id(self.bucket, n),
            "sensor_id": &*self.bucket.sensor_id,
            "bucket_start": DateTime::from_millis(self.bucket.start.0),
            "count": i64::from(page.count),
            "has_overflow": is_set(sealed),
            "storage": SERIES,
        };
        let update =
            doc! { "q": filter, "u": { "$set": set, "$unset": { GATE: "" } }, "hint": "_id_" };
        self.run(doc! { "update": BUCKETS, "updates": [update] })
            .await
    }

    /// Runs a command of one statement; an error means that it is unknown whether it was applied.
    async fn run(&self, mut command: Document) -> mongodb::error::Result<Applied> {
        command.insert("comment", self.comment);
        let connection = &self.recompute.connection;
        command.insert("writeConcern", connection.options().document());
        let run = async { connection.db().run_command(command).await };
        let reply = connection.in_time(run).await?;
        if let Some(error) = concern_error(&reply) {
            return Err(Error::custom(error));
        }
        match write_errors(&reply).next() {
            None if reply.get_i32("n").is_ok_and(|n| n > 0) => Ok(Applied::Yes),
            None => Ok(Applied::Conflict),
            Some(error) if error.code == DUPLICATE_KEY => Ok(Applied::Conflict),
            Some(error) => Err(Error::custom(error.text)),
        }
    }
}

/// All fields of a bucket in the order of their names, one page's worth at a time.
struct Fields<'a> {
    of: &'a Run<'a>,
    chunks: std::vec::IntoIter<Chunk>,
    /// More fields follow after this name.
    after: Option<String>,
}

impl<'a> Fields<'a> {
    fn new(of: &'a Run<'a>, total: &mut Total) -> Fields<'a> {
        let mut fields = Fields {
            of,
            chunks: vec![].into_iter(),
            after: None,
        };
        fields.hold(std::mem::take(&mut total.fields), total.below.is_some());
        fields
    }

    fn hold(&mut self, fields: BTreeMap<String, FieldSummary>, more: bool) {
        self.after = fields
            .last_key_value()
            .filter(|_| more)
            .map(|(name, _)| name.clone());
        self.chunks = chunks(fields, PAGE_SUMMARY_BYTES_MAX).into_iter();
    }

    async fn next(&mut self) -> mongodb::error::Result<Option<Chunk>> {
        if let Some(chunk) = self.chunks.next() {
            return Ok(Some(chunk));
        }
        let Some(after) = self.after.take() else {
            return Ok(None);
        };
        let Run {
            recompute, bucket, ..
        } = self.of;
        let total = recompute.add_up(bucket, Some(after)).await?;
        self.hold(total.fields, total.below.is_some());
        Ok(self.chunks.next())
    }
}
