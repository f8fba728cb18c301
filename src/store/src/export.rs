//! Reads the stored readings of a day, sensor by sensor, wherever they are: for `hourbucket export`.
//!
//! The columns of a sensor's day are used if they count at least as many readings as its pages: then
//! they have all of them. Otherwise the day is open, too large for columns, or got a late reading: its
//! buckets are read one by one ([`DayReadings`]) and encoded as parts, which puts them in order.
//!
//! Several sensors are read together, and the next ones while the caller works on these. Memory: two
//! answers of about [`BYTES_WANTED`], or the columns of one day, and the readings of one bucket.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use columns::{DayEncoder, Part};
use model::{BucketStart, Day, SensorId, Span};
use tokio::task::JoinHandle;

use crate::columns::{ColumnsQuery, OfSensors, StoredColumns, count, part_bytes};
use crate::day_readings::DayReadings;
use crate::days::SensorDay;
use crate::reading::SummaryQuery;
use crate::{Store, StoreError, StoreErrorKind};

/// Bytes of the columns that are read together; more are read only of one sensor.
const BYTES_WANTED: usize = 4 << 20;
/// Sensors that are read together, at first and at most. With hours of pages, 500 of them are 12,000.
const SENSORS_FIRST: usize = 16;
const SENSORS_MAX: usize = 500;
/// A field that no sensor has ([`model::stored_name`]): of pages only the counts are read.
const NO_FIELD: &str = "_id";

/// Readings of one sensor, in order.
#[derive(Debug)]
pub struct ExportPart {
    /// The sensor.
    pub sensor_id: SensorId,
    /// The tags of its hour, or of its day if it was read from columns.
    pub tags: Arc<BTreeMap<String, String>>,
    /// The readings; the part may begin before and end after the range that is read.
    pub part: Part,
}

/// Reads a day.
pub struct ExportDay<'s> {
    store: &'s Arc<dyn Store>,
    span: Span,
    day: Day,
    within_ms: Range<i64>,
    /// Not asked for yet, in order.
    waiting: VecDeque<SensorId>,
    at_once: usize,
    answer: Option<JoinHandle<Result<Answer, StoreError>>>,
    found: VecDeque<Found>,
    buckets: Option<(SensorId, DayReadings<'s>)>,
    parts: VecDeque<ExportPart>,
    lost: u64,
}

/// What was found of some sensors.
struct Answer {
    found: VecDeque<Found>,
    /// Those that were not read.
    rest: Vec<SensorId>,
    bytes: usize,
}

/// Where the readings of a sensor and day are.
enum Found {
    Columns(StoredColumns),
    Buckets(SensorId),
}

impl<'s> ExportDay<'s> {
    /// Reads these sensors, which are in order, between two times of the day (ms since 1970).
    pub fn new(
        store: &'s Arc<dyn Store>,
        span: Span,
        day: Day,
        within_ms: Range<i64>,
        sensors: impl IntoIterator<Item = SensorId>,
    ) -> ExportDay<'s> {
        let mut reader = ExportDay {
            store,
            span,
            day,
            within_ms,
            waiting: sensors.into_iter().collect(),
            at_once: SENSORS_FIRST,
            answer: None,
            found: VecDeque::new(),
            buckets: None,
            parts: VecDeque::new(),
            lost: 0,
        };
        reader.ask();
        reader
    }

    /// How many readings were counted and are stored nowhere: they were removed.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The next readings, in the order of sensors and times; `None` at the end.
    ///
    /// # Errors
    /// The store failed.
    pub async fn next(&mut self) -> Result<Option<ExportPart>, StoreError> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Ok(Some(part));
            }
            if let Some((sensor_id, readings)) = &mut self.buckets {
                match readings.next().await? {
                    Some(rows) => {
                        let mut encoder = DayEncoder::default();
                        let mut parts = encoder.add(&rows);
                        parts.extend(encoder.finish());
                        let tags = Arc::new(readings.tags().clone());
                        self.parts = parts_of(sensor_id, &tags, parts);
                    }
                    None => {
                        self.lost += readings.lost();
                        self.buckets = None;
                    }
                }
                continue;
            }
            match self.found.pop_front() {
                Some(Found::Columns(day)) => {
                    self.parts = parts_of(&day.sensor_id, &Arc::new(day.tags), day.parts);
                }
                Some(Found::Buckets(sensor_id)) => {
                    let day = SensorDay {
                        day: self.day,
                        sensor_id: sensor_id.clone(),
                    };
                    let readings = DayReadings::new(&**self.store, self.span, &day);
                    self.buckets = Some((sensor_id, readings.within(&self.within_ms)));
                }
                None => match self.answer.take() {
                    Some(answer) => self.take(joined(answer.await)?),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Sends the next query.
    fn ask(&mut self) {
        let n = self.at_once.min(self.waiting.len());
        let sensors: Vec<SensorId> = self.waiting.drain(..n).collect();
        if !sensors.is_empty() {
            let answer = answer(self.store.clone(), sensors, self.day);
            self.answer = Some(tokio::spawn(answer));
        }
    }

    /// Takes an answer, and sends the next query.
    fn take(&mut self, answer: Answer) {
        if !answer.rest.is_empty() || answer.bytes > BYTES_WANTED {
            self.at_once = (self.at_once / 2).max(1);
        } else if answer.bytes < BYTES_WANTED / 2 {
            self.at_once = (self.at_once * 2).min(SENSORS_MAX);
        }
        self.found = answer.found;
        for sensor_id in answer.rest.into_iter().rev() {
            self.waiting.push_front(sensor_id);
        }
        self.ask();
    }
}

fn parts_of(
    sensor_id: &SensorId,
    tags: &Arc<BTreeMap<String, String>>,
    parts: Vec<Part>,
) -> VecDeque<ExportPart> {
    let part = |part| ExportPart {
        sensor_id: sensor_id.clone(),
        tags: tags.clone(),
        part,
    };
    parts.into_iter().map(part).collect()
}

fn joined(
    answer: Result<Result<Answer, StoreError>, tokio::task::JoinError>,
) -> Result<Answer, StoreError> {
    answer.unwrap_or_else(|error| {
        Err(StoreError::not_applied(
            StoreErrorKind::Command,
            error.to_string(),
        ))
    })
}

/// Reads the columns of a day, and compares their counts with those of the pages.
async fn answer(
    store: Arc<dyn Store>,
    mut sensors: Vec<SensorId>,
    day: Day,
) -> Result<Answer, StoreError> {
    let mut query = ColumnsQuery {
        sensor_ids: sensors.clone(),
        from_ms: day.start_ms,
        to_ms: day.start_ms + 1,
        fields: vec![],
    };
    let OfSensors { days, mut rest } = match store.columns() {
        Some(columns) => columns.columns_of(&query).await?,
        None => OfSensors::default(),
    };
    if rest.len() == sensors.len() {
        // The columns of the first one are too large to be read: it has pages.
        rest.remove(0);
    }
    sensors.retain(|id| rest.binary_search(id).is_err());
    query.sensor_ids = sensors;
    let counted = count_pages(&*store, &query.sensor_ids, day).await?;
    let bytes = days.iter().flat_map(|day| &day.parts).map(part_bytes).sum();
    let mut columns: BTreeMap<SensorId, StoredColumns> = days
        .into_iter()
        .map(|day| (day.sensor_id.clone(), day))
        .collect();
    let place = |sensor_id: SensorId| {
        let counted = counted.get(&sensor_id).copied().unwrap_or_default();
        match columns.remove(&sensor_id) {
            Some(day) if count(&day.parts) >= counted => Some(Found::Columns(day)),
            _ => (counted > 0).then_some(Found::Buckets(sensor_id)),
        }
    };
    Ok(Answer {
        found: query.sensor_ids.into_iter().filter_map(place).collect(),
        rest,
        bytes,
    })
}

/// How many readings the pages of a day count, by sensor; [`u64::MAX`] for one with too many pages.
async fn count_pages(
    store: &dyn Store,
    sensors: &[SensorId],
    day: Day,
) -> Result<BTreeMap<SensorId, u64>, StoreError> {
    let mut counted: BTreeMap<SensorId, u64> = BTreeMap::new();
    let mut left = sensors;
    let mut at_once = left.len();
    while !left.is_empty() {
        // The last ones, since an answer begins with these.
        let (before, asked) = left.split_at(left.len() - at_once.min(left.len()));
        let query = SummaryQuery {
            sensor_ids: asked.to_vec(),
            from: BucketStart(day.start_ms),
            to_ms: day.end_ms,
            fields: vec![NO_FIELD.to_owned()],
        };
        let found = store.summaries(&query).await?;
        if found.rest.len() == asked.len() {
            if let [only] = asked {
                counted.insert(only.clone(), u64::MAX);
                left = before;
            }
            at_once = (at_once / 2).max(1);
            continue;
        }
        for (key, page) in &found.pages {
            *counted.entry(key.sensor_id.clone()).or_default() += page.counted::<u64>();
        }
        left = &left[..before.len() + found.rest.len()];
    }
    Ok(counted)
}
