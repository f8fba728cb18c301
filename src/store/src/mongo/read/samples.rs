//! Reads the samples of many sensors with one command, or two with measurements, straight from the
//! batches of the cursor.
//!
//! Pages come first, in the order of sensors: with their readings, or as the heads of buckets whose
//! readings are measurements. When so many sensors are passed that their measurements fill a command,
//! or a sensor has so many samples that it is given in stretches, these are read and returned.
//! Documents of time-series buckets are written after their measurements; those that are in doubt
//! have rows in memory, and the caller asks for them as whole buckets.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use mongodb::bson::{Bson, Document, RawDocument, doc};

use super::bucket_reader::{Collections, push};
use super::queries::Reader;
use crate::StoreError;
use crate::mongo::connection::Batches;
use crate::mongo::document::{between, measurements_of};
use crate::mongo::elements::Elements;
use crate::mongo::error::command_error;
use crate::mongo::pack::SERIES;
use crate::samples::{Collecting, PageHead, SampleQuery, SampleStream, SensorSamples};
use model::{BucketStart, SensorId, StorageMode};
use telemetry::metrics::{self, StoreCommand};

/// Pages in one batch: of 60 readings with two fields, 4 MiB.
const PAGES_PER_BATCH: u32 = 1000;
/// Measurements in one batch, about 2 MiB.
const MEASUREMENTS_PER_BATCH: u32 = 20_000;
/// Measurements that pages count, for one command; and samples of a sensor for one stretch.
const SAMPLES_AT_ONCE: usize = 250_000;
/// Fields that a projection names; with more, whole readings are read.
const FIELDS_MAX: usize = 100;
/// Server-side limit of a cursor, for the time that the server works. The caller ends it earlier.
const TIME_MAX: Duration = Duration::from_secs(600);

/// The names of the fields, in order, with their places in the query.
struct Fields(Vec<(Vec<u8>, usize)>);

impl Fields {
    fn new(query: &SampleQuery) -> Fields {
        let names = query.fields.iter().map(|name| name.as_bytes().to_vec());
        let mut places: Vec<_> = names.zip(0..).collect();
        places.sort();
        Fields(places)
    }

    /// Adds the samples of a reading or measurement at this time.
    fn add(&self, to: &mut Collecting, ts_ms: i64, reading: Elements<'_>) {
        for element in reading {
            let found = self
                .0
                .binary_search_by(|(name, _)| name.as_slice().cmp(element.name));
            if let (Ok(at), Some(value)) = (found, element.number()) {
                to.sample(self.0[at].1, ts_ms, value);
            }
        }
    }
}

fn time_of(mut reading: Elements<'_>) -> Option<i64> {
    reading.find(|element| element.name == b"ts")?.time_ms()
}

/// A query, while it is read.
struct Reading {
    reader: Reader,
    of: Collections,
    query: Arc<SampleQuery>,
    fields: Fields,
    /// The server's time, if it removes measurements.
    now_ms: Option<i64>,
    pages: Option<Batches>,
    /// Sensors of which no page was read, the next one last.
    waiting: Vec<SensorId>,
    current: Option<Collecting>,
    /// The bucket of the last page.
    at: BucketStart,
    /// Stretches whose pages are read, and where each ends.
    passed: Vec<(Collecting, i64)>,
    /// Measurements that the pages of `passed` and of `current` count.
    counted: usize,
    /// Those of `current`.
    counted_of_current: usize,
}

/// See [`crate::Store::samples`].
pub(super) fn read(reader: Reader, query: SampleQuery) -> SampleStream<'static> {
    let pieces = stream::try_unfold(None, move |reading: Option<Reading>| {
        let reader = reader.clone();
        let query = query.clone();
        async move {
            let mut reading = match reading {
                Some(reading) => reading,
                None => Reading::begin(reader, query).await?,
            };
            let found = reading.next().await?;
            Ok(found.map(|found| (stream::iter(found).map(Ok), Some(reading))))
        }
    });
    pieces.try_flatten().boxed()
}

impl Reading {
    async fn begin(reader: Reader, query: SampleQuery) -> Result<Reading, StoreError> {
        reader.detected().check_prepared()?;
        let expiry = reader.expiry();
        let now_ms = match expiry.removes_measurements() && reader.detected().has_measurements() {
            true => Some(expiry.about_now_ms().await?),
            false => None,
        };
        let of = reader.collections();
        let buckets = of.buckets.clone();
        let filter = pages_of(&query);
        let projection = page_projection(&query);
        let pages = reader.connection().batches(async move {
            // Traverses the index backwards.
            let sort = doc! { "sensor_id": -1, "bucket_start": 1, "page": -1 };
            let find = buckets.find(filter).sort(sort).projection(projection);
            let find = find.max_time(TIME_MAX).batch_size(PAGES_PER_BATCH);
            find.batch().await
        });
        let mut waiting = query.sensor_ids.clone();
        waiting.sort_unstable();
        Ok(Reading {
            fields: Fields::new(&query),
            query: Arc::new(query),
            pages: Some(pages),
            reader,
            of,
            now_ms,
            waiting,
            current: None,
            at: BucketStart(i64::MIN),
            passed: vec![],
            counted: 0,
            counted_of_current: 0,
        })
    }

    /// Some more stretches; `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<SensorSamples>>, StoreError> {
        loop {
            let has_measurements = self.reader.detected().has_measurements();
            let is_enough =
                !has_measurements || self.counted >= SAMPLES_AT_ONCE || self.pages.is_none();
            if !self.passed.is_empty() && is_enough {
                let passed = std::mem::take(&mut self.passed);
                self.counted = 0;
                return self.measured(passed, has_measurements).await.map(Some);
            }
            let Some(pages) = &mut self.pages else {
                return Ok(None);
            };
            let begun = Instant::now();
            let batch = pages.next().await?;
            metrics::store_command(StoreCommand::Read, 1, begun.elapsed().as_secs_f64());
            match batch {
                Some(batch) => {
                    let pages = batch.doc_slices().map_err(|error| command_error(&error))?;
                    let pages = pages.into_iter().flatten();
                    for page in pages.filter_map(|page| page.as_document()) {
                        self.page(page);
                        self.cut_long();
                    }
                }
                None => {
                    self.pages = None;
                    self.pass_until(None);
                }
            }
        }
    }

    /// Passes the sensors before this one, in descending order, or all.
    fn pass_until(&mut self, next: Option<&SensorId>) {
        let to_ms = self.query.to_ms;
        self.passed
            .extend(self.current.take().map(|of| (of, to_ms)));
        while let Some(sensor_id) = self
            .waiting
            .pop_if(|id| next.is_none_or(|next| *id > *next))
        {
            let none = Collecting::new(self.query.clone(), sensor_id);
            self.passed.push((none, to_ms));
        }
        self.counted_of_current = 0;
    }

    /// The sensor of the next page.
    fn reach(&mut self, sensor_id: &str) -> &mut Collecting {
        let is_current = |of: &Collecting| **of.sensor_id() == *sensor_id;
        if !self.current.as_ref().is_some_and(is_current) {
            let sensor_id = SensorId::from(sensor_id);
            self.pass_until(Some(&sensor_id));
            self.waiting.pop_if(|id| *id == sensor_id);
            self.current = Some(Collecting::new(self.query.clone(), sensor_id));
        }
        let query = self.query.clone();
        self.current
            .get_or_insert_with(|| Collecting::new(query, SensorId::from(sensor_id)))
    }

    fn page(&mut self, document: &RawDocument) {
        let mut sensor_id = None;
        let mut start = None;
        let mut count = 0.0;
        let mut readings = None;
        let mut head = PageHead {
            storage_mode: StorageMode::Bucket,
            first_ts_ms: None,
            readings_removed: false,
        };
        for element in Elements::new(document) {
            match element.name {
                b"sensor_id" => sensor_id = element.text(),
                b"bucket_start" => start = element.time_ms().map(BucketStart),
                b"count" => count = element.number().unwrap_or(0.0),
                b"first_ts" => head.first_ts_ms = element.time_ms(),
                b"readings_removed" => head.readings_removed = element.is_true(),
                b"storage" if element.text() == Some(SERIES) => {
                    head.storage_mode = StorageMode::TimeSeries;
                }
                b"readings" => readings = Some(element.elements()),
                _ => {}
            }
        }
        let (Some(sensor_id), Some(start)) = (sensor_id, start) else {
            return;
        };
        let is_whole = self.reach(sensor_id).is_whole(start);
        self.at = start;
        if head.storage_mode == StorageMode::TimeSeries {
            if let Some(now_ms) = self.now_ms {
                head.readings_removed = self.reader.expiry().is_expiring(start, now_ms);
            }
            self.counted_of_current += count as usize;
            self.counted += count as usize;
        }
        if is_whole {
            if let Some((_, _, mut page)) = self.of.parse(document) {
                page.readings_removed = head.readings_removed;
                self.reach(sensor_id).whole_page(start, page);
            }
            return;
        }
        head.first_ts_ms = head.first_ts_ms.filter(|_| count > 0.0);
        self.reach(sensor_id).head(start, head);
        let Reading {
            fields,
            current: Some(current),
            ..
        } = self
        else {
            return;
        };
        for reading in readings.into_iter().flatten() {
            if let Some(ts_ms) = time_of(reading.elements()) {
                fields.add(current, ts_ms, reading.elements());
            }
        }
    }

    /// Passes what there is of a sensor that is too long to be in memory at once. The last bucket
    /// may have more pages.
    fn cut_long(&mut self) {
        let at = self.at;
        let is_long = |of: &Collecting| of.held() >= SAMPLES_AT_ONCE && at.0 > of.begin_ms();
        let counted = self.counted_of_current;
        if let Some(mut stretch) = self
            .current
            .take_if(|of| is_long(of) || counted >= SAMPLES_AT_ONCE && at.0 > of.begin_ms())
        {
            self.current = Some(stretch.split_off(at));
            self.counted_of_current = 0;
            self.passed.push((stretch, at.0));
        }
    }

    /// Adds their measurements to stretches.
    async fn measured(
        &self,
        mut stretches: Vec<(Collecting, i64)>,
        has_measurements: bool,
    ) -> Result<Vec<SensorSamples>, StoreError> {
        if has_measurements {
            // Those of whole sensors together, in the same order: a sensor's stretches follow one another.
            for some in stretches
                .chunk_by_mut(|(a, a_ms), (b, b_ms)| (a.begin_ms(), a_ms) == (b.begin_ms(), b_ms))
            {
                self.measure(some).await?;
            }
        }
        let done = stretches
            .into_iter()
            .map(|(of, until_ms)| of.finish(until_ms));
        Ok(done.collect())
    }

    /// Reads the measurements of stretches of the same time.
    async fn measure(&self, stretches: &mut [(Collecting, i64)]) -> Result<(), StoreError> {
        let Some((first, until_ms)) = stretches.first() else {
            return Ok(());
        };
        let range = (first.begin_ms(), *until_ms);
        let mut places: HashMap<SensorId, usize> = HashMap::new();
        for (i, (of, _)) in stretches.iter().enumerate() {
            places.insert(of.sensor_id().clone(), i);
        }
        let sensors: Vec<&str> = stretches.iter().map(|(of, _)| &**of.sensor_id()).collect();
        let measurements = self.of.measurements.clone();
        let filter = measurements_of(&sensors, range.0, range.1);
        let projection = measurement_projection(&self.query);
        let mut batches = self.reader.connection().batches(async move {
            let find = measurements.find(filter).projection(projection);
            let find = find.max_time(TIME_MAX).batch_size(MEASUREMENTS_PER_BATCH);
            find.batch().await
        });
        loop {
            let begun = Instant::now();
            let batch = batches.next().await?;
            metrics::store_command(StoreCommand::Read, 1, begun.elapsed().as_secs_f64());
            let Some(batch) = batch else {
                return Ok(());
            };
            let found = batch.doc_slices().map_err(|error| command_error(&error))?;
            for document in found.into_iter().flatten() {
                let Some(document) = document.as_document() else {
                    continue;
                };
                self.measurement(document, &places, stretches);
            }
        }
    }

    fn measurement(
        &self,
        document: &RawDocument,
        places: &HashMap<SensorId, usize>,
        stretches: &mut [(Collecting, i64)],
    ) {
        let elements = Elements::new(document);
        let mut meta = elements
            .filter(|element| element.name == b"meta")
            .flat_map(|element| element.elements());
        let sensor_id = meta.find(|element| element.name == b"sensor_id");
        let place = sensor_id.and_then(|id| places.get(id.text()?)).copied();
        let (Some(place), Some(ts_ms)) = (place, time_of(elements)) else {
            return;
        };
        let of = &mut stretches[place].0;
        if of.is_whole(self.query.span.floor(ts_ms)) {
            push(of.measured(), document, &["_id", "ts", "meta"]);
        } else if of.measurement(ts_ms) {
            self.fields.add(of, ts_ms, elements);
        }
    }
}

/// The pages that can have readings of the range. A time-series bucket that is left out is read as
/// one without a document.
fn pages_of(query: &SampleQuery) -> Document {
    let sensors: Vec<&str> = query.sensor_ids.iter().map(|id| &**id).collect();
    let range = between(query.from_ms, query.to_ms);
    let first = between(query.span.floor(query.from_ms).0, query.to_ms);
    let mut filter = doc! { "sensor_id": { "$in": sensors }, "bucket_start": first };
    let (Some(from), Some(to)) = (range.get("$gte"), range.get("$lt")) else {
        return filter;
    };
    filter.insert("last_ts", doc! { "$gte": from });
    // Of whole buckets, the place of a reading counts.
    if query.whole.is_empty() {
        filter.insert("first_ts", doc! { "$lt": to });
    }
    filter
}

/// Whether only the fields of the query are read.
fn is_projected(query: &SampleQuery) -> bool {
    query.is_narrow && query.whole.is_empty() && query.fields.len() <= FIELDS_MAX
}

fn page_projection(query: &SampleQuery) -> Document {
    if !query.whole.is_empty() {
        return doc! { "_id": 0, "summary": 0, "tags": 0 };
    }
    let mut projection = doc! {
        "_id": 0, "sensor_id": 1, "bucket_start": 1, "count": 1, "first_ts": 1, "storage": 1,
        "readings_removed": 1,
    };
    if !is_projected(query) {
        projection.insert("readings", 1);
        return projection;
    }
    let names = std::iter::once("ts").chain(query.fields.iter().map(String::as_str));
    projection.extend(names.map(|name| (format!("readings.{name}"), Bson::Int32(1))));
    projection
}

fn measurement_projection(query: &SampleQuery) -> Document {
    if !query.whole.is_empty() || query.fields.len() > FIELDS_MAX {
        return doc! { "_id": 0 };
    }
    // MongoDB unpacks only these.
    let mut projection = doc! { "_id": 0, "ts": 1, "meta.sensor_id": 1 };
    projection.extend(
        query
            .fields
            .iter()
            .map(|name| (name.clone(), Bson::Int32(1))),
    );
    projection
}
