//! Reads `sensor_columns` and `sensor_day_hours` of several sensors at once.

use std::time::Duration;

use mongodb::Collection;
use mongodb::bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use mongodb::error::Result as Found;

use crate::columns::{
    ColumnStore, ColumnsQuery, DayColumns, OfSensors, StoredColumns, StoredHours, count,
};
use crate::days::{DayWritten, SensorDay};
use crate::mongo::column_document::{PartSet, hours_of, part_of};
use crate::mongo::document::{between, entries};
use crate::mongo::read::queries::Reader;
use crate::mongo::write::columns::ColumnWriter;
use crate::{BoxFuture, StoreError};
use model::SensorId;
use model::collections::{COLUMNS, DAY_HOURS};

/// Bytes of the documents of one answer.
const BYTES_MAX: usize = 32 << 20;
/// Days in one answer.
const DAYS_MAX: usize = 50_000;
/// Fields that a projection names; with more, all are read.
const FIELDS_MAX: usize = 100;
/// Attempts to read days that are replaced meanwhile.
const ATTEMPTS: usize = 5;
/// Server-side limit; below the limit of a whole request.
const TIME_MAX: Duration = Duration::from_secs(8);

/// Reads and writes the columns.
#[derive(Debug, Clone)]
pub(crate) struct ColumnDays {
    reader: Reader,
    writer: ColumnWriter,
}

impl ColumnDays {
    pub(crate) fn new(reader: Reader, writer: ColumnWriter) -> ColumnDays {
        ColumnDays { reader, writer }
    }

    fn collection(&self, name: &str) -> Collection<RawDocumentBuf> {
        self.reader.connection().majority(name)
    }
}

impl ColumnStore for ColumnDays {
    fn write_columns<'a>(
        &'a self,
        days: &'a [(SensorDay, DayColumns)],
        replace: bool,
    ) -> BoxFuture<'a, Result<Vec<DayWritten>, StoreError>> {
        Box::pin(self.writer.put(days, replace))
    }

    fn columns_of<'a>(
        &'a self,
        query: &'a ColumnsQuery,
    ) -> BoxFuture<'a, Result<OfSensors<StoredColumns>, StoreError>> {
        Box::pin(async move {
            let parts = self.collection(COLUMNS);
            let query = query.clone();
            self.reader
                .query(async move {
                    let sort = doc! { "sensor_id": 1, "day": 1, "part": 1 };
                    let mut attempts = 0;
                    loop {
                        attempts += 1;
                        let mut days = PartsOfDays::default();
                        let found = find(&parts, &query, "columns", &sort, |part| days.add(part));
                        let cut = found.await?;
                        let is_whole = days.finish() || attempts == ATTEMPTS;
                        if is_whole {
                            let of = |day: &StoredColumns| day.sensor_id.clone();
                            return Ok(answer(days.done, &query, cut.as_ref(), of));
                        }
                    }
                })
                .await
        })
    }

    fn hours_of<'a>(
        &'a self,
        query: &'a ColumnsQuery,
    ) -> BoxFuture<'a, Result<OfSensors<StoredHours>, StoreError>> {
        Box::pin(async move {
            let hours = self.collection(DAY_HOURS);
            let query = query.clone();
            self.reader
                .query(async move {
                    let sort = doc! { "sensor_id": 1, "day": 1 };
                    let mut days = vec![];
                    let cut = find(&hours, &query, "fields", &sort, |found| {
                        days.extend(hours_of(found));
                    })
                    .await?;
                    let of = |day: &StoredHours| day.sensor_id.clone();
                    Ok(answer(days, &query, cut.as_ref(), of))
                })
                .await
        })
    }
}

/// Passes on the documents of a query in order. Returns the sensor at which the answer became too
/// large: it may have more, and those that follow were not reached.
async fn find(
    documents: &Collection<RawDocumentBuf>,
    query: &ColumnsQuery,
    fields: &str,
    sort: &Document,
    mut add: impl FnMut(&RawDocument),
) -> Found<Option<SensorId>> {
    let ids: Vec<&str> = query.sensor_ids.iter().map(|id| &**id).collect();
    let filter = doc! { "sensor_id": { "$in": ids }, "day": between(query.from_ms, query.to_ms) };
    let mut find = documents.find(filter).sort(sort.clone()).max_time(TIME_MAX);
    if let Some(projection) = projection(fields, &query.fields) {
        find = find.projection(projection);
    }
    let mut cursor = find.batch_size(2000).await?;
    let mut bytes = 0;
    let mut read = 0;
    while cursor.advance().await? {
        let document = cursor.current();
        bytes += document.as_bytes().len();
        read += 1;
        if read > DAYS_MAX || bytes > BYTES_MAX {
            return Ok(Some(
                document.get_str("sensor_id").unwrap_or_default().into(),
            ));
        }
        add(document);
    }
    Ok(None)
}

/// Everything but the fields that are not wanted; `None`: everything.
fn projection(fields: &str, wanted: &[String]) -> Option<Document> {
    if wanted.is_empty() || wanted.len() > FIELDS_MAX {
        return None;
    }
    let others = [
        "sensor_id",
        "day",
        "part",
        "tags",
        "count",
        "first_ts",
        "last_ts",
        "ts",
        "set",
        "fields_truncated",
    ];
    let others = others.into_iter().map(str::to_owned);
    let wanted = wanted.iter().map(|name| format!("{fields}.{name}"));
    let mut projection = doc! { "_id": 0 };
    projection.extend(others.chain(wanted).map(|name| (name, Bson::Int32(1))));
    Some(projection)
}

/// The days before `cut`.
fn answer<T>(
    mut days: Vec<T>,
    query: &ColumnsQuery,
    cut: Option<&SensorId>,
    sensor_id: impl Fn(&T) -> SensorId,
) -> OfSensors<T> {
    let mut rest = vec![];
    if let Some(cut) = cut {
        days.retain(|day| sensor_id(day) < *cut);
        rest.extend(query.sensor_ids.iter().filter(|id| *id >= cut).cloned());
    }
    OfSensors { days, rest }
}

/// Collects the parts of days, in the order of sensors, days and parts.
#[derive(Default)]
struct PartsOfDays {
    done: Vec<StoredColumns>,
    open: Option<(StoredColumns, Option<PartSet>)>,
    /// A day was replaced while it was read.
    is_torn: bool,
}

impl PartsOfDays {
    fn add(&mut self, found: &RawDocument) {
        let place = || {
            let day = found.get_datetime("day").ok()?;
            Some((found.get_str("sensor_id").ok()?, day.timestamp_millis()))
        };
        let (Some((sensor_id, day_ms)), Some((number, set, part))) = (place(), part_of(found))
        else {
            return;
        };
        if number == 0 {
            self.close();
            let day = StoredColumns {
                sensor_id: sensor_id.into(),
                day_ms,
                tags: found.get_document("tags").map(entries).unwrap_or_default(),
                parts: vec![part],
            };
            self.open = Some((day, set));
        } else if let Some((day, of_set)) = &mut self.open
            && *day.sensor_id == *sensor_id
            && day.day_ms == day_ms
            && *of_set == set
        {
            day.parts.push(part);
        }
    }

    /// Adds the open day, if its set is complete.
    fn close(&mut self) {
        let Some((day, set)) = self.open.take() else {
            return;
        };
        let is_complete = |set: PartSet| {
            usize::try_from(set.parts) == Ok(day.parts.len())
                && i64::try_from(count(&day.parts)) == Ok(set.count)
        };
        match set.is_none_or(is_complete) {
            true => self.done.push(day),
            false => self.is_torn = true,
        }
    }

    /// Returns whether all days are whole.
    fn finish(&mut self) -> bool {
        self.close();
        !self.is_torn
    }
}
