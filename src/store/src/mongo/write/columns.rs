//! Writes `sensor_columns`, `sensor_day_hours` and the `fields` of `sensor_days`; see [`crate::columns`]
//! for what holds meanwhile.

use mongodb::bson::{Bson, DateTime, Document, doc};

use crate::columns::{DayColumns, bounds};
use crate::days::{DayWritten, SensorDay};
use crate::mongo::column_document::{PartSet, hours_document, part_document, whole_document};
use crate::mongo::connection::{Connection, in_part};
use crate::mongo::error::{
    StatementError, check_concern, command_error, describe, is_refused_for_its_data,
    statement_error, write_errors,
};
use crate::mongo::write::replace::replace_all;
use crate::{StoreError, StoreErrorKind};
use model::collections::{COLUMNS, DAY_HOURS, DAYS};

/// Bytes of the documents of one command.
const COMMAND_BYTES_MAX: usize = 8 << 20;

/// A day with its columns, to be written.
type Day = (SensorDay, DayColumns);

/// Writes documents of `sensor_columns` and `sensor_day_hours`.
#[derive(Debug, Clone)]
pub(crate) struct ColumnWriter {
    connection: Connection,
}

impl ColumnWriter {
    pub(crate) fn new(connection: Connection) -> ColumnWriter {
        ColumnWriter { connection }
    }

    /// See [`crate::columns::ColumnStore::write_columns`].
    pub(crate) async fn put(
        &self,
        days: &[Day],
        is_forced: bool,
    ) -> Result<Vec<DayWritten>, StoreError> {
        let mut written = Vec::with_capacity(days.len());
        let mut rest = days;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(_, columns): &&Day| {
                bytes += columns.about_bytes();
                bytes <= COMMAND_BYTES_MAX && columns.parts.len() <= 1 && !is_forced
            };
            let (some, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            let answers = match some {
                [day] if is_forced && day.1.parts.is_empty() => self.remove(&day.0).await,
                // Also a single part: the stored day may have several.
                [day] if day.1.parts.len() > 1 || is_forced => {
                    let done = self.put_set(day, is_forced).await;
                    done.map(|done| vec![done])
                }
                some => self.put_single(some).await,
            };
            written.extend(if written.is_empty() {
                answers?
            } else {
                answers.map_err(in_part)?
            });
            rest = others;
        }
        Ok(written)
    }

    /// Writes days of one part each.
    async fn put_single(&self, days: &[Day]) -> Result<Vec<DayWritten>, StoreError> {
        let part = |(day, columns): &Day| {
            let part = columns.parts.first()?;
            Some(replace(part_document(day, columns, (0, part), None), false))
        };
        let documents = days.iter().filter_map(part).collect();
        let mut written = replace_all(&self.connection, COLUMNS, documents).await?;
        let are_kept = |(_, columns): &&Day| !columns.parts.is_empty();
        let days: Vec<&Day> = days.iter().filter(are_kept).collect();
        self.put_hours(&days, &mut written, false).await?;
        Ok(written)
    }

    /// Removes a day.
    async fn remove(&self, day: &SensorDay) -> Result<Vec<DayWritten>, StoreError> {
        for collection in [COLUMNS, DAY_HOURS] {
            let deletes = [doc! { "q": of_day(day), "limit": 0 }];
            let command = doc! { "delete": collection, "deletes": deletes.to_vec() };
            self.connection.apply_all(command).await.map_err(in_part)?;
        }
        Ok(vec![DayWritten::Done])
    }

    /// Writes the hours of those days whose columns were written.
    async fn put_hours(
        &self,
        days: &[&Day],
        written: &mut [DayWritten],
        is_forced: bool,
    ) -> Result<(), StoreError> {
        let at: Vec<usize> = (0..days.len())
            .filter(|at| written[*at] == DayWritten::Done)
            .collect();
        let hours = at.iter().map(|at| {
            let (day, columns) = days[*at];
            let bounds = bounds(day, self.connection.span());
            let document = hours_document(day, columns, bounds.len().saturating_sub(1));
            replace(document, is_forced)
        });
        let answers = replace_all(&self.connection, DAY_HOURS, hours.collect()).await;
        for (at, answer) in at.iter().zip(answers.map_err(in_part)?) {
            // Newer: of another instance, whose columns are newer too by now.
            if matches!(answer, DayWritten::Rejected { .. }) {
                written[*at] = answer;
            }
        }
        let kept = at.iter().filter(|at| written[**at] == DayWritten::Done);
        let wholes: Vec<Document> = kept.map(|at| whole(days[*at])).collect();
        if wholes.is_empty() {
            return Ok(());
        }
        let command = doc! { "update": DAYS, "updates": wholes, "ordered": false };
        let done = self.connection.apply_all(command).await;
        done.map(drop).map_err(in_part)
    }

    /// Writes a day of several parts as a new set: first all parts but part 0, under numbers of their
    /// own, then part 0, which makes them the day's. Then removes what is left of other sets.
    async fn put_set(&self, day: &Day, is_forced: bool) -> Result<DayWritten, StoreError> {
        let (sensor_day, columns) = day;
        let set = PartSet {
            id: fastrand::i64(1..),
            parts: i32::try_from(columns.parts.len()).unwrap_or(i32::MAX),
            count: columns.count() as i64,
        };
        let of_day = of_day(sensor_day);
        // Another instance may add a set at the same time, so the numbers must differ.
        let first = match self.last_part(of_day.clone()).await? {
            0 => 1,
            last => last.saturating_add(1 + fastrand::i32(0..1 << 20)),
        };
        let Some((part_0, others)) = columns.parts.split_first() else {
            return Ok(DayWritten::Done);
        };
        for numbered in (first..).zip(others) {
            let document = part_document(sensor_day, columns, numbered, Some(set));
            let command = doc! { "insert": COLUMNS, "documents": [document] };
            let reply = match self.connection.change(command).await.map_err(in_part)? {
                Ok(reply) => check_concern(reply).map_err(in_part)?,
                Err(error) if is_refused_for_its_data(&error) => {
                    let detail = describe(&error);
                    return Ok(DayWritten::Rejected { detail });
                }
                Err(error) => return Err(in_part(command_error(&error))),
            };
            if let Some(error) = write_errors(&reply).next() {
                let detail = error.detail();
                return match statement_error(error.code) {
                    StatementError::Data => Ok(DayWritten::Rejected { detail }),
                    _ => Err(StoreError::unknown(StoreErrorKind::Command, detail)),
                };
            }
        }
        let part_0 = part_document(sensor_day, columns, (0, part_0), Some(set));
        let part_0 = vec![replace(part_0, is_forced)];
        let written = replace_all(&self.connection, COLUMNS, part_0).await;
        let mut written = written.map_err(in_part)?;
        // What is left of sets that count fewer. One that counts as many or more may be of an instance
        // that is still writing it.
        let mut older = of_day;
        older.extend(doc! { "part": { "$gt": 0 }, "set.id": { "$ne": set.id } });
        if !is_forced {
            older.insert("set.count", doc! { "$lt": set.count });
        }
        let deletes = [doc! { "q": older, "limit": 0 }];
        let command = doc! { "delete": COLUMNS, "deletes": deletes.to_vec(), "ordered": false };
        self.connection.apply_all(command).await.map_err(in_part)?;
        self.put_hours(&[day], &mut written, is_forced).await?;
        Ok(written.swap_remove(0))
    }

    /// The largest number of a part of a day; 0 if it has none.
    async fn last_part(&self, of_day: Document) -> Result<i32, StoreError> {
        let parts = self.connection.majority::<Document>(COLUMNS);
        let find = async move {
            let find = parts.find_one(of_day).sort(doc! { "part": -1 });
            find.projection(doc! { "_id": 0, "part": 1 }).await
        };
        let last = self.connection.ask(find).await?;
        Ok(last.and_then(|last| last.get_i32("part").ok()).unwrap_or(0))
    }
}

/// Adds the fields to the document of the day, if it has one with the same readings. Without
/// `rollup.days` there is none. A newer one was replaced as a whole, and is computed again.
fn whole((day, columns): &Day) -> Document {
    let mut q = of_day(day);
    let start = DateTime::from_millis(day.day.start_ms);
    q.insert("_id", doc! { "sensor_id": &*day.sensor_id, "day": start });
    q.insert("count", columns.count() as i64);
    doc! { "q": q, "u": { "$set": { "fields": whole_document(columns) } } }
}

/// The filter for the documents of a day.
fn of_day(day: &SensorDay) -> Document {
    doc! { "sensor_id": &*day.sensor_id, "day": DateTime::from_millis(day.day.start_ms) }
}

/// Replaces a document with this id by this one if what it stands for counts as many readings or more:
/// a part 0 stands for its set. `is_forced`: in any case.
fn replace(document: Document, is_forced: bool) -> Document {
    let key = |name: &str| document.get(name).cloned().unwrap_or(Bson::Null);
    let set = document.get_document("set");
    let count = set.map_or_else(
        |_| key("count"),
        |set| set.get("count").cloned().unwrap_or(Bson::Null),
    );
    let fewer = doc! { "$lte": count };
    let mut q = doc! { "_id": key("_id"), "sensor_id": key("sensor_id"), "day": key("day") };
    if !is_forced {
        let none = doc! { "set": { "$exists": false }, "count": fewer.clone() };
        q.insert("$or", [none, doc! { "set.count": fewer }]);
    }
    doc! { "q": q, "u": document, "upsert": true }
}
