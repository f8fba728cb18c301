//! Reads marks and days, and computes days from the pages of their hours.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use mongodb::Collection;
use mongodb::bson::{DateTime, Document, RawDocument, RawDocumentBuf, doc};
use mongodb::error::Result as Found;

use crate::days::{
    DayMark, DayQuery, DayStore, DaySummary, DayWritten, DaysQuery, DaysResults, MarkQuery,
    MarksOf, SensorDay,
};
use crate::maintain::Hour;
use crate::mongo::document::{between, entries, int};
use crate::mongo::read::bucket_reader::{Collections, summary_of};
use crate::mongo::read::queries::Reader;
use crate::mongo::read::summaries::projection;
use crate::mongo::write::days::{DayWriter, mark_id};
use crate::{BoxFuture, StoreError};
use model::collections::{DAYS, PENDING_DAYS};
use model::{Day, SensorId};

/// Fields of all days of one computation: about 40 MB.
const FIELDS_MAX: usize = 200_000;
/// Days in one answer.
const DAYS_MAX: i64 = 400;
/// Days of several sensors in one answer, and their bytes.
const DAYS_OF_MANY_MAX: usize = 50_000;
const BYTES_MAX: usize = 32 << 20;
/// Server-side limit; below the limit of a whole request.
const TIME_MAX: Duration = Duration::from_secs(8);

/// Computes the days of some sensors; `None` for those that follow when there are too many fields.
async fn compute(
    of: Collections,
    day: Day,
    sensors: Vec<SensorId>,
) -> Found<BTreeMap<String, DaySummary>> {
    let ids: Vec<&str> = sensors.iter().map(|id| &**id).collect();
    let within = between(day.start_ms, day.end_ms);
    // Traverses the index backwards. The order of the pages is that of DaySummary::add_page.
    let find = of
        .buckets
        .find(doc! { "sensor_id": { "$in": &ids }, "bucket_start": within });
    let sort = doc! { "sensor_id": -1, "bucket_start": 1, "page": -1 };
    let mut cursor = find
        .sort(sort)
        .projection(doc! { "readings": 0 })
        .max_time(TIME_MAX)
        .await?;
    let mut days: BTreeMap<String, DaySummary> = BTreeMap::new();
    let mut fields = 0;
    while cursor.advance().await? {
        let Some((key, _, page)) = of.parse(cursor.current()) else {
            continue;
        };
        if !days.contains_key(&*key.sensor_id) {
            // Descending: the first is the one before.
            fields += days
                .first_entry()
                .map_or(0, |last| last.get().hour.summary.len());
            if fields > FIELDS_MAX {
                return Ok(days);
            }
        }
        days.entry(key.sensor_id.to_string())
            .or_default()
            .add_page(&page);
    }
    // Sensors without hours.
    for id in ids {
        days.entry(id.to_owned()).or_default();
    }
    Ok(days)
}

fn mark_of(found: &RawDocument) -> Option<DayMark> {
    let id = found.get_document("_id").ok()?;
    Some(DayMark {
        instance: Arc::from(id.get_str("instance").ok()?),
        day_ms: id.get_datetime("day").ok()?.timestamp_millis(),
        sensor_id: id.get_str("sensor_id").ok()?.into(),
        version: found.get_datetime("marked_at").ok()?.timestamp_millis(),
    })
}

pub(crate) fn day_of(found: &RawDocument) -> Option<(i64, DaySummary)> {
    let time = |name: &str| found.get_datetime(name).ok().map(|d| d.timestamp_millis());
    let summary = found
        .get_document("summary")
        .map(summary_of)
        .unwrap_or_default();
    let hour = Hour {
        count: found
            .get("count")
            .ok()
            .flatten()
            .and_then(int)
            .and_then(|n| u64::try_from(n).ok())
            .unwrap_or(0),
        first_ts_ms: time("first_ts"),
        last_ts_ms: time("last_ts"),
        summary: summary
            .into_iter()
            .filter_map(|(name, field)| Some((name, field?)))
            .collect(),
        is_truncated: found.get_bool("summary_truncated").unwrap_or(false),
    };
    let tags = found.get_document("tags").map(entries).unwrap_or_default();
    Some((time("day")?, DaySummary { hour, tags }))
}

fn marks_filter(query: &MarkQuery) -> Document {
    let mut filter = match &query.of {
        // The bounds of a prefix of the id, which begins with the instance.
        MarksOf::Instance(instance) => doc! { "_id": {
            "$gte": { "instance": &**instance }, "$lt": { "instance": format!("{instance}\u{0}") },
        } },
        MarksOf::Sensor(sensor_id) => doc! { "sensor_id": &**sensor_id },
        MarksOf::Sensors(sensor_ids) => {
            let ids: Vec<&str> = sensor_ids.iter().map(|id| &**id).collect();
            doc! { "sensor_id": { "$in": ids } }
        }
        MarksOf::Before(version) => {
            doc! { "marked_at": { "$lt": DateTime::from_millis(*version) } }
        }
    };
    if let Some(after) = &query.after {
        let after = doc! { "_id": { "$gt": mark_id(after) } };
        filter = doc! { "$and": [filter, after] };
    }
    filter
}

/// The days of several sensors, in ascending order of their ids.
async fn days_of(days: Collection<RawDocumentBuf>, q: &DaysQuery) -> Found<DaysResults> {
    let ids: Vec<&str> = q.sensor_ids.iter().map(|id| &**id).collect();
    let find = days
        .find(doc! { "sensor_id": { "$in": ids }, "day": between(q.from_ms, q.to_ms) })
        .sort(doc! { "sensor_id": 1, "day": 1 });
    let others = [
        "sensor_id",
        "day",
        "count",
        "first_ts",
        "last_ts",
        "summary_truncated",
    ];
    let mut cursor = find
        .projection(projection(&others, &q.fields))
        .max_time(TIME_MAX)
        .batch_size(2000)
        .await?;
    let mut found = DaysResults::default();
    let mut bytes = 0;
    while cursor.advance().await? {
        let document = cursor.current();
        bytes += document.as_bytes().len();
        let (Ok(sensor_id), Some((day_ms, summary))) =
            (document.get_str("sensor_id"), day_of(document))
        else {
            continue;
        };
        if found.days.len() >= DAYS_OF_MANY_MAX || bytes >= BYTES_MAX {
            // This sensor may have more, and those that follow were not reached.
            found.days.retain(|(id, ..)| **id < *sensor_id);
            found.rest = q
                .sensor_ids
                .iter()
                .filter(|id| ***id >= *sensor_id)
                .cloned()
                .collect();
            break;
        }
        found.days.push((sensor_id.into(), day_ms, summary.hour));
    }
    Ok(found)
}

/// The daily rollups.
#[derive(Debug, Clone)]
pub(crate) struct DayRollups {
    reader: Reader,
    writer: DayWriter,
}

impl DayRollups {
    pub(crate) fn new(reader: Reader, writer: DayWriter) -> DayRollups {
        DayRollups { reader, writer }
    }
}

impl DayStore for DayRollups {
    fn mark_days<'a>(&'a self, marks: &'a [DayMark]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.writer.set_marks(marks))
    }

    fn clear_marks<'a>(&'a self, marks: &'a [DayMark]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.writer.remove_marks(marks))
    }

    fn day_marks<'a>(
        &'a self,
        query: &'a MarkQuery,
    ) -> BoxFuture<'a, Result<Vec<DayMark>, StoreError>> {
        Box::pin(async move {
            let marks = self
                .reader
                .connection()
                .majority::<RawDocumentBuf>(PENDING_DAYS);
            let query = query.clone();
            self.reader
                .query(async move {
                    let find = marks
                        .find(marks_filter(&query))
                        .sort(doc! { "_id": 1 })
                        .limit(query.limit as i64);
                    let mut cursor = find.max_time(TIME_MAX).await?;
                    let mut found = vec![];
                    while let Some(mark) = cursor.try_next().await? {
                        found.extend(mark_of(&mark));
                    }
                    Ok(found)
                })
                .await
        })
    }

    fn compute_days<'a>(
        &'a self,
        days: &'a [SensorDay],
    ) -> BoxFuture<'a, Result<Vec<Option<DaySummary>>, StoreError>> {
        Box::pin(async move {
            let mut by_day: BTreeMap<Day, Vec<usize>> = BTreeMap::new();
            days.iter()
                .enumerate()
                .for_each(|(i, day)| by_day.entry(day.day).or_default().push(i));
            let mut answers = vec![None; days.len()];
            let mut fields = 0;
            let begun = Instant::now();
            let timeout = self.reader.connection().timeout();
            for (day, positions) in by_day {
                let sensors = positions
                    .iter()
                    .map(|i| days[*i].sensor_id.clone())
                    .collect();
                let mut found = self
                    .reader
                    .query(compute(self.reader.collections(), day, sensors))
                    .await?;
                for i in positions {
                    answers[i] = found.remove(&*days[i].sensor_id);
                    fields += answers[i].as_ref().map_or(0, |day| day.hour.summary.len());
                }
                if fields > FIELDS_MAX || begun.elapsed() > timeout {
                    break;
                }
            }
            Ok(answers)
        })
    }

    fn write_days<'a>(
        &'a self,
        days: &'a [(SensorDay, DaySummary)],
        replace: bool,
    ) -> BoxFuture<'a, Result<Vec<DayWritten>, StoreError>> {
        self.writer.put_days(days, replace)
    }

    fn stored_days<'a>(
        &'a self,
        query: &'a DayQuery,
    ) -> BoxFuture<'a, Result<Vec<(i64, DaySummary)>, StoreError>> {
        Box::pin(async move {
            let days = self.reader.connection().majority::<RawDocumentBuf>(DAYS);
            let q = query.clone();
            self.reader
                .query(async move {
                    let within = between(q.from_ms, q.to_ms);
                    let find = days
                        .find(doc! { "sensor_id": &*q.sensor_id, "day": within })
                        .sort(doc! { "sensor_id": 1, "day": 1 });
                    let mut cursor = find.limit(DAYS_MAX).max_time(TIME_MAX).await?;
                    let mut found = vec![];
                    while cursor.advance().await? {
                        found.extend(day_of(cursor.current()));
                    }
                    Ok(found)
                })
                .await
        })
    }

    fn days_of<'a>(
        &'a self,
        query: &'a DaysQuery,
    ) -> BoxFuture<'a, Result<DaysResults, StoreError>> {
        Box::pin(async move {
            let days = self.reader.connection().majority::<RawDocumentBuf>(DAYS);
            let q = query.clone();
            self.reader
                .query(async move { days_of(days, &q).await })
                .await
        })
    }
}
