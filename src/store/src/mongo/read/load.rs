//! Reads buckets back: the versions of their pages and, if requested, the keys of their readings.
//!
//! One request neither fails the others nor delays them for long. Reads for many buckets are
//! combined into pieces that fit well within `store.timeout`; a few pieces run at a time. Each
//! request is complete as soon as its last piece has arrived. When the time of the batch is up,
//! requests whose pieces are running get a timeout and the others are deferred. In a small batch,
//! which consists of requests that failed before, no request shares a piece with another. A count
//! that takes too long is split by time ([`count_measurements`](super::count_measurements)).
//!
//! The steps of a request: read the heads of its pages (first page 0 of all requests, then the
//! other pages of buckets that have more). Then read the readings of the pages that can hold one of
//! the requested time, or its measurements. The steps are not atomic together. Between them only
//! the last page can change, and the version in its head guards the rest: a write that is based on
//! a stale read is refused.
//!
//! If the document of a bucket contains `storage: "timeseries"`, its readings are in the
//! time-series collection. The same holds for a bucket without a document that has measurements (a
//! process ended before it wrote the summary).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use mongodb::bson::{Bson, DateTime, Document, RawDocument, RawDocumentBuf, doc};
use mongodb::options::Hint;

use crate::mongo::connection::{Connection, timed_out};
use crate::mongo::detected::Detected;
use crate::mongo::document::{int, page_of, storage_mode_of, summary_bytes};
use crate::mongo::expiry::Expiry;
use crate::mongo::read::bucket_reader::key_of;
use crate::mongo::write::fence::Fence;
use crate::mongo::write::recompute_summary::SummaryRecompute;
use crate::{LoadRequest, LoadResult, LoadedBucket, LoadedPage, StoreError, StoreErrorKind};
use model::collections::BUCKETS;
use model::{BucketKey, StorageMode};
use telemetry::metrics::{self, StoreCommand};

/// Maximum pages per `find`: without readings, and in bytes of readings as reported by the heads.
const HEADS_MAX: usize = 500;
const READINGS_BYTES_MAX: u64 = 4 << 20;
/// Maximum buckets with several pages whose heads one `find` reads.
const SEALED_MAX: usize = 50;
/// Maximum concurrent commands of one load.
const COMMANDS_MAX: usize = 3;
/// In a batch of at most this many requests, each is loaded separately.
const ISOLATED_MAX: usize = 16;

/// Index of a request, and a page of its bucket.
type PageKey = (usize, u32);

/// The state of one request.
#[derive(Debug)]
struct Slot {
    bucket: LoadedBucket,
    /// Number of missing pieces.
    pieces: usize,
    /// Reading its pieces has started.
    begun: bool,
    answer: Option<LoadResult>,
}

/// A batch of requests in progress.
pub(crate) struct Load<'a> {
    pub(crate) loader: &'a Loader,
    pub(crate) requests: &'a [LoadRequest],
    slots: Mutex<Vec<Slot>>,
}

/// Loads buckets from `sensor_buckets` and `sensor_readings`; recomputes the summary of one in doubt.
#[derive(Debug, Clone)]
pub(crate) struct Loader {
    pub(crate) connection: Connection,
    pub(crate) detected: Arc<Detected>,
    pub(crate) recompute: SummaryRecompute,
    expiry: Expiry,
    fence: Arc<Fence>,
}

impl Loader {
    pub(crate) fn new(
        connection: Connection,
        detected: Arc<Detected>,
        recompute: SummaryRecompute,
        expiry: Expiry,
        fence: Arc<Fence>,
    ) -> Loader {
        Loader {
            connection,
            detected,
            recompute,
            expiry,
            fence,
        }
    }

    /// See [`crate::Store::load`].
    pub(crate) async fn load(
        &self,
        requests: &[LoadRequest],
        within: Option<Duration>,
    ) -> Result<Vec<LoadResult>, StoreError> {
        let begun = Instant::now();
        let answers = self.load_each(requests, within).await;
        metrics::store_command(
            StoreCommand::Load,
            requests.len() as u64,
            begun.elapsed().as_secs_f64(),
        );
        match self.common_error(&answers) {
            Some(error) => Err(error),
            None => Ok(answers),
        }
    }

    /// The error of the whole call: the store cannot be reached, or no bucket has a result. With a
    /// single bucket, an error of the command does not show whether the store or the bucket failed;
    /// then it is that of the bucket.
    fn common_error(&self, answers: &[LoadResult]) -> Option<StoreError> {
        let errors = || answers.iter().filter_map(|answer| answer.as_ref().err());
        if let Some(away) = errors().find(|error| error.is_away()) {
            return Some(away.clone());
        }
        if answers.is_empty() || answers.iter().any(Result::is_ok) {
            return None;
        }
        let is_of_bucket =
            |error: &StoreError| answers.len() == 1 && error.kind() == StoreErrorKind::Command;
        match errors().find(|error| !error.is_deferred()) {
            Some(error) => (!is_of_bucket(error)).then(|| error.clone()),
            None => Some(timed_out(self.connection.timeout())),
        }
    }

    async fn load_each(
        &self,
        requests: &[LoadRequest],
        within: Option<Duration>,
    ) -> Vec<LoadResult> {
        let new = LoadedBucket {
            storage_mode: self.detected.storage_mode(),
            pages: vec![],
        };
        let slot = |_: &LoadRequest| Slot {
            bucket: new.clone(),
            pieces: 0,
            begun: false,
            answer: None,
        };
        let load = Load {
            loader: self,
            requests,
            slots: Mutex::new(requests.iter().map(slot).collect()),
        };
        let over = match within {
            Some(within) => tokio::time::timeout(within, load.run())
                .await
                .is_err()
                .then_some(within),
            None => {
                load.run().await;
                None
            }
        };
        let unfinished = |slot: &Slot| match over {
            Some(_) if !slot.begun => StoreError::deferred(),
            _ => timed_out(over.unwrap_or(self.connection.timeout())),
        };
        let slots = load
            .slots
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        slots
            .into_iter()
            .map(|mut slot| slot.answer.take().unwrap_or_else(|| Err(unfinished(&slot))))
            .collect()
    }
}

impl Load<'_> {
    async fn run(&self) {
        let fence = &self.loader.fence;
        let is_fenced =
            |r: &usize| self.requests[*r].doubt && fence.covers(&self.requests[*r].bucket);
        let (fenced, free): (Vec<usize>, Vec<usize>) =
            (0..self.requests.len()).partition(is_fenced);
        let after_fence = async {
            if fenced.is_empty() {
                return;
            }
            match self.wait_for_abandoned(&fenced).await {
                Ok(()) => self.some(&fenced).await,
                Err(error) => self.fail(&fenced, &error),
            }
        };
        tokio::join!(self.some(&free), after_fence);
    }

    /// Waits for abandoned statements that write these buckets.
    async fn wait_for_abandoned(&self, places: &[usize]) -> Result<(), StoreError> {
        let connection = self.loader.connection.clone();
        let fence = self.loader.fence.clone();
        let buckets: Vec<BucketKey> = places
            .iter()
            .map(|r| self.requests[*r].bucket.clone())
            .collect();
        let wait = async move { fence.wait(&connection, buckets.iter()).await };
        self.loader.connection.ask(wait).await
    }

    async fn some(&self, places: &[usize]) {
        let size = if self.requests.len() <= ISOLATED_MAX {
            1
        } else {
            HEADS_MAX
        };
        let chunks: Vec<Vec<usize>> = places.chunks(size).map(<[usize]>::to_vec).collect();
        together(
            chunks
                .into_iter()
                .map(|places| self.chunk(places))
                .collect(),
        )
        .await;
    }

    async fn chunk(&self, places: Vec<usize>) {
        if let Err(error) = self.heads(&places).await {
            return self.fail(&places, &error);
        }
        let mut paged = vec![];
        let mut measured = vec![];
        let expiring = match self.expiring(&places).await {
            Ok(expiring) => expiring,
            Err(error) => return self.fail(&places, &error),
        };
        for r in places {
            if expiring.contains(&r) {
                self.slots_of(r, |bucket| bucket.pages[0].readings_removed = true);
                self.expect(r, 0);
                continue;
            }
            let request = &self.requests[r];
            let (storage_mode, empty) = {
                let slots = self.slots();
                (
                    slots[r].bucket.storage_mode,
                    slots[r].bucket.pages.is_empty(),
                )
            };
            let is_series = storage_mode == StorageMode::TimeSeries;
            if is_series {
                self.loader.detected.note_measurements();
            }
            let of_series = is_series && (request.doubt || request.readings_from.is_some());
            if of_series || (self.loader.detected.has_measurements() && request.doubt && empty) {
                measured.push(r);
            } else if storage_mode == StorageMode::Bucket && request.readings_from.is_some() {
                paged.push(r);
            } else {
                self.expect(r, 0);
            }
        }
        let pages = together(
            self.pieces(&paged)
                .into_iter()
                .map(|piece| self.readings(piece))
                .collect(),
        );
        tokio::join!(pages, self.measurements(&measured));
    }

    /// Those of these buckets whose measurements are being removed ([`crate::retention`]).
    async fn expiring(&self, places: &[usize]) -> Result<Vec<usize>, StoreError> {
        let is_series = |bucket: &mut LoadedBucket| {
            bucket.storage_mode == StorageMode::TimeSeries && !bucket.pages.is_empty()
        };
        let of_series: Vec<usize> = places
            .iter()
            .copied()
            .filter(|r| self.slots_of(*r, is_series))
            .collect();
        let expiry = &self.loader.expiry;
        if !expiry.removes_measurements() || of_series.is_empty() {
            return Ok(vec![]);
        }
        let now_ms = expiry.about_now_ms().await?;
        let is_expiring = |r: &usize| expiry.is_expiring(self.requests[*r].bucket.start, now_ms);
        Ok(of_series.into_iter().filter(is_expiring).collect())
    }

    /// Reads the heads of all pages of these buckets.
    pub(crate) async fn heads(&self, places: &[usize]) -> Result<(), StoreError> {
        let first: Vec<PageKey> = places.iter().map(|r| (*r, 0)).collect();
        let mut sealed = vec![];
        for ((r, _), (head, storage_mode)) in self
            .find(by_ids(self.requests, &first), &first, false)
            .await?
        {
            if head.sealed {
                sealed.push(r);
            }
            self.slots()[r].bucket = LoadedBucket {
                storage_mode,
                pages: vec![head],
            };
        }
        for chunk in sealed.chunks(SEALED_MAX) {
            let keys: Vec<PageKey> = chunk.iter().map(|r| (*r, 0)).collect();
            let mut found = self
                .find(by_buckets(self.requests, chunk), &keys, false)
                .await?;
            let mut slots = self.slots();
            for &r in chunk {
                let pages = &mut slots[r].bucket.pages;
                // Read again including page 0, so that all heads are from the same read.
                let read = (0..)
                    .map_while(|n| found.remove(&(r, n)))
                    .map(|(head, _)| head)
                    .collect::<Vec<_>>();
                if !read.is_empty() {
                    *pages = read;
                }
            }
        }
        Ok(())
    }

    /// The pages whose readings are needed, grouped into pieces.
    fn pieces(&self, places: &[usize]) -> Vec<Vec<PageKey>> {
        let mut pieces = vec![];
        let mut piece = vec![];
        let mut bytes = 0;
        for &r in places {
            let from_ms = self.requests[r].readings_from.unwrap_or(i64::MAX);
            let heads = self.slots()[r].bucket.pages.clone();
            let mut parts = 0;
            let mut fresh = true;
            for (page, head) in heads
                .iter()
                .enumerate()
                .filter(|(_, head)| head.last_ts_ms >= from_ms)
            {
                parts += usize::from(fresh);
                fresh = false;
                piece.push((r, page as u32));
                bytes += head.bytes;
                if bytes >= READINGS_BYTES_MAX {
                    (bytes, fresh) = (0, true);
                    pieces.push(std::mem::take(&mut piece));
                }
            }
            self.expect(r, parts);
        }
        pieces.extend(Some(piece).filter(|p| !p.is_empty()));
        pieces
    }

    /// Replaces the heads of pages with the pages and their readings.
    async fn readings(&self, piece: Vec<PageKey>) {
        let mut places: Vec<usize> = piece.iter().map(|(r, _)| *r).collect();
        places.dedup();
        self.begin(&places);
        match self.find(by_ids(self.requests, &piece), &piece, true).await {
            Ok(found) => {
                let mut slots = self.slots();
                for ((r, page), (read, _)) in found {
                    slots[r].bucket.pages[page as usize] = read;
                }
                drop(slots);
                places.into_iter().for_each(|r| self.piece_done(r));
            }
            Err(error) => self.fail(&places, &error),
        }
    }

    /// Finds pages by request and page number; `keys` names the requests.
    async fn find(
        &self,
        filter: (Document, Option<Hint>),
        keys: &[PageKey],
        readings: bool,
    ) -> Result<HashMap<PageKey, (LoadedPage, StorageMode)>, StoreError> {
        let by_bucket = self.by_bucket(keys.iter().map(|(r, _)| *r));
        let mut projection = doc! {
            "count": 1, "has_overflow": 1, "first_ts": 1, "last_ts": 1, "storage": 1,
            "readings_removed": 1,
            "bytes": { "$bsonSize": "$$ROOT" }, "summary_bytes": summary_bytes(),
        };
        if readings {
            projection.insert("readings", 1);
        }
        let buckets = self.loader.connection.majority::<RawDocumentBuf>(BUCKETS);
        let (filter, hint) = filter;
        let read = async move {
            let mut find = buckets.find(filter).projection(projection);
            if let Some(hint) = hint {
                find = find.hint(hint);
            }
            let mut cursor = find.await?;
            let mut found = vec![];
            while let Some(document) = cursor.try_next().await? {
                if let Some((bucket, page)) = head_id(&document) {
                    let head = (page_of(&document), storage_mode_of(&document));
                    found.push((bucket, page, head));
                }
            }
            Ok(found)
        };
        let found = self.loader.connection.ask(read).await?;
        let entry = |(bucket, page, head): (BucketKey, u32, _)| {
            let r = by_bucket.get(&(&*bucket.sensor_id, bucket.start.0))?;
            Some(((*r, page), head))
        };
        Ok(found.into_iter().filter_map(entry).collect())
    }

    /// The requests by sensor and start.
    pub(crate) fn by_bucket(
        &self,
        places: impl Iterator<Item = usize>,
    ) -> HashMap<(&str, i64), usize> {
        let entry = |r: usize| {
            let bucket = &self.requests[r].bucket;
            ((&*bucket.sensor_id, bucket.start.0), r)
        };
        places.map(entry).collect()
    }

    pub(crate) fn slots_of<T>(&self, r: usize, look: impl FnOnce(&mut LoadedBucket) -> T) -> T {
        look(&mut self.slots()[r].bucket)
    }

    /// Sets how many pieces a request needs; with 0 it is complete.
    pub(crate) fn expect(&self, r: usize, pieces: usize) {
        let mut slots = self.slots();
        slots[r].pieces = pieces;
        slots[r].finish();
    }

    /// Marks these requests as started.
    pub(crate) fn begin(&self, places: &[usize]) {
        let mut slots = self.slots();
        places.iter().for_each(|r| slots[*r].begun = true);
    }

    pub(crate) fn piece_done(&self, r: usize) {
        let mut slots = self.slots();
        slots[r].pieces = slots[r].pieces.saturating_sub(1);
        slots[r].finish();
    }

    /// Fails these requests unless they already have a result.
    pub(crate) fn fail(&self, places: &[usize], error: &StoreError) {
        let mut slots = self.slots();
        for r in places {
            slots[*r].answer.get_or_insert_with(|| Err(error.clone()));
        }
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn finish(&mut self) {
        if self.pieces == 0 && self.answer.is_none() {
            self.answer = Some(Ok(std::mem::take(&mut self.bucket)));
        }
    }
}

/// Runs these futures, at most [`COMMANDS_MAX`] at a time.
pub(crate) async fn together(futures: Vec<impl Future<Output = ()>>) {
    stream::iter(futures)
        .for_each_concurrent(COMMANDS_MAX, |future| future)
        .await;
}

/// The filter for pages by id. `_id` decides; a sharded cluster needs the other fields to target
/// its shards.
fn by_ids(requests: &[LoadRequest], keys: &[PageKey]) -> (Document, Option<Hint>) {
    let mut ids = vec![];
    let mut sensors = vec![];
    let mut starts = BTreeMap::new();
    for &(r, page) in keys {
        let bucket = &requests[r].bucket;
        let start = DateTime::from_millis(bucket.start.0);
        ids.push(Bson::from(
            doc! { "sensor_id": &*bucket.sensor_id, "bucket_start": start, "page": page as i32 },
        ));
        sensors.push(Bson::from(&*bucket.sensor_id));
        starts.insert(bucket.start.0, Bson::from(start));
    }
    let starts: Vec<Bson> = starts.into_values().collect();
    let filter = doc! { "_id": { "$in": ids }, "sensor_id": { "$in": sensors }, "bucket_start": { "$in": starts } };
    (filter, Some(Hint::Name("_id_".into())))
}

/// The filter for all pages of these buckets.
fn by_buckets(requests: &[LoadRequest], places: &[usize]) -> (Document, Option<Hint>) {
    let bucket = |r: &usize| {
        let bucket = &requests[*r].bucket;
        doc! { "sensor_id": &*bucket.sensor_id, "bucket_start": DateTime::from_millis(bucket.start.0) }
    };
    (
        doc! { "$or": places.iter().map(bucket).collect::<Vec<_>>() },
        None,
    )
}

fn head_id(found: &RawDocument) -> Option<(BucketKey, u32)> {
    let id = found.get_document("_id").ok()?;
    let page = int(id.get("page").ok()??)?;
    Some((key_of(id)?, u32::try_from(page).ok()?))
}
