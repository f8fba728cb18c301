//! Time-series buckets: measurements in a native collection, and the summary in `sensor_buckets` (DESIGN section 2).
//!
//! **Writing.** First the measurements of all statements as large unordered inserts, each sensor's together, then the
//! summaries under the version gate like any page. A native collection cannot refuse a duplicate, so nothing is inserted
//! on a guess: after an answer that never came, and where an earlier process may have been, the bucket is loaded with
//! `doubt` before its next statement. A summary that meets another version is recounted from the measurements
//! ([`recount`]), over as many pages as its fields take; its readings never go back, since they are stored.
//!
//! **Given up.** A statement whose answer never came may still be carried out; [`fence`] makes sure that it is over before
//! the stored measurements are looked at.
//!
//! A second instance on the same sensor makes all of this at least once, and the documentation says so.

use std::time::Instant;

use futures_util::TryStreamExt;
use mongodb::bson::{Document, RawDocument, RawDocumentBuf};
use mongodb::{Collection, Database};

use super::bson::Writer;
use super::error::{StatementError, concern_error, statement_error};
use super::fence::Fence;
use super::load::{key_of, selection};
use super::pack::{self, CommandOptions};
use super::recount;
use super::{MongoStore, READINGS, command_error, in_part};
use crate::model::rows::Row;
use crate::model::{BucketKey, BucketStart, PageKind, PageWrite, ReadingKey, Span};
use crate::store::{BoxFuture, LoadedPage, StoreError, Written};
use crate::telemetry::metrics;

/// Measurements in one command; the server takes 100,000.
const MEASUREMENTS_MAX: usize = 50_000;
/// Bytes of one command, below the 16 MiB that a raw command may have.
const COMMAND_BYTES_MAX: usize = 12 << 20;
/// Sensors looked at in one `find`.
const SENSORS_MAX: usize = 500;

/// What time-series buckets need beside what pages need.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) db: Database,
    pub(super) readings: Collection<RawDocumentBuf>,
    pub(super) options: CommandOptions,
    pub(super) fence: Fence,
}

impl Series {
    pub(super) fn new(db: &Database, options: CommandOptions) -> Series {
        Series { db: db.clone(), readings: db.collection(READINGS), options, fence: Fence::new() }
    }
}

impl MongoStore {
    /// Stores measurements and summaries. Once a measurement may be stored there is no going back: whatever fails then is
    /// `Unknown`, and found out by a load.
    pub(super) fn write_series<'a>(
        &'a self,
        writes: &'a [PageWrite],
    ) -> BoxFuture<'a, Result<Vec<Written>, StoreError>> {
        Box::pin(async move {
            let name = self.series.fence.name();
            let result = self.measurements_and_summaries(writes, &name).await;
            if matches!(result, Err(StoreError::Unknown { .. })) {
                self.series.fence.gave_up(name);
            }
            result
        })
    }

    async fn measurements_and_summaries(&self, writes: &[PageWrite], name: &str) -> Result<Vec<Written>, StoreError> {
        let mut refused = self.measurements(writes, name).await?;
        let kept: Vec<usize> = (0..writes.len()).filter(|i| refused[*i].is_none()).collect();
        let mut answers: Vec<Written> =
            refused.iter_mut().map(|r| Written::Rejected { detail: r.take().unwrap_or_default() }).collect();
        for create in [true, false] {
            let some: Vec<usize> =
                kept.iter().copied().filter(|i| (writes[*i].kind == PageKind::Create) == create).collect();
            if some.is_empty() {
                continue;
            }
            let statements: Vec<&PageWrite> = some.iter().map(|i| &writes[*i]).collect();
            let written = self.write_kind(&statements, Some(name)).await.map_err(in_part)?;
            for (i, written) in some.into_iter().zip(written) {
                // Another version, none at all any more, or a sum that no longer fits: what is stored is the truth.
                answers[i] = match written {
                    Written::Done { count } if count == writes[i].count_after() => Written::Done { count },
                    _ => self.recount(writes[i].bucket()).await?,
                };
            }
        }
        Ok(answers)
    }

    /// Inserts the measurements; says of which statements the server refuses some for good, and why. Those are given back
    /// whole, so what was stored of them nevertheless is there twice; nothing that the decoders let through is known to
    /// be refused.
    async fn measurements(&self, writes: &[PageWrite], name: &str) -> Result<Vec<Option<String>>, StoreError> {
        let mut packer = Packer::new(writes);
        let mut refused = vec![None; writes.len()];
        let mut begun_at = None;
        while let Some(command) = packer.next(&self.options, name) {
            let command = command.map_err(|e| StoreError::NotApplied { kind: "driver", detail: e.to_string() })?;
            let (db, begun) = (self.db.clone(), Instant::now());
            let result = self.limited(async move { db.run_raw_command(command).await }).await;
            metrics::store_command("measurement", packer.statements(begun_at), begun.elapsed().as_secs_f64());
            let reply = match (result, begun_at) {
                (Ok(Ok(reply)), _) => reply,
                (Ok(Err(e)), None) => return Err(command_error(&e)),
                (Ok(Err(e)), Some(_)) => return Err(in_part(command_error(&e))),
                (Err(e), _) => return Err(e),
            };
            if let Some(detail) = concern_error(&reply) {
                return Err(StoreError::Unknown { kind: "write_concern", detail });
            }
            for error in reply.get_array("writeErrors").into_iter().flatten().filter_map(|e| e.as_document()) {
                let (write, detail) = packer.failed(error)?;
                refused[write].get_or_insert(detail);
            }
            begun_at = Some(packer.at);
        }
        Ok(refused)
    }

    /// Makes the summary of a bucket anew from its measurements.
    async fn recount(&self, bucket: BucketKey) -> Result<Written, StoreError> {
        let (series, begun) = (self.series.clone(), Instant::now());
        let result = self.limited(async move { recount::recount(&series, &bucket, false).await }).await;
        metrics::store_command("recount", 1, begun.elapsed().as_secs_f64());
        let pages = result?.map_err(|e| in_part(command_error(&e)))?.pages;
        Ok(match pages[..] {
            [LoadedPage { count, sealed: false, .. }] => Written::Done { count },
            _ => Written::Recounted,
        })
    }
}

/// Packs the rows of statements into insert commands, one after the other.
struct Packer<'a> {
    writes: &'a [PageWrite],
    rows: Box<dyn Iterator<Item = (usize, Row<'a>)> + Send + 'a>,
    next: Option<(usize, Row<'a>)>,
    /// The statement that the next row belongs to.
    at: usize,
    /// The statements of the rows of the last command.
    last: Vec<usize>,
    /// For the statement at hand: its fields' places in the order of their names.
    order: Vec<u32>,
    order_of: Option<usize>,
}

impl<'a> Packer<'a> {
    fn new(writes: &'a [PageWrite]) -> Packer<'a> {
        let mut rows: Box<dyn Iterator<Item = (usize, Row<'a>)> + Send + 'a> =
            Box::new(writes.iter().enumerate().flat_map(|(i, w)| w.rows.iter().map(move |row| (i, row))));
        let next = rows.next();
        let at = next.as_ref().map_or(0, |(i, _)| *i);
        Packer { writes, rows, next, at, last: vec![], order: vec![], order_of: None }
    }

    /// The next command, as large as it may be.
    fn next(
        &mut self,
        options: &CommandOptions,
        comment: &str,
    ) -> Option<mongodb::bson::error::Result<RawDocumentBuf>> {
        self.next.as_ref()?;
        self.last.clear();
        let (mut w, root) = Writer::new(1 << 16);
        w.str("insert", READINGS);
        w.bool("ordered", false);
        w.str("comment", comment);
        // The server gives it up when this process does.
        w.i32("maxTimeMS", options.wtimeout_ms);
        options.write_to(&mut w);
        let list = w.array("documents");
        while self.last.len() < MEASUREMENTS_MAX && w.len() < COMMAND_BYTES_MAX {
            let Some((write, row)) = self.next.take() else { break };
            let open = w.element(self.last.len());
            self.measurement(&mut w, write, &row);
            w.close(open);
            self.last.push(write);
            self.next = self.rows.next();
            self.at = self.next.as_ref().map_or(self.writes.len(), |(i, _)| *i);
        }
        w.close(list);
        w.close(root);
        Some(w.finish())
    }

    /// One measurement. The values are in the order of their names, whatever the sender's: the server packs measurements
    /// whose fields come in one order best.
    fn measurement(&mut self, w: &mut Writer, write: usize, row: &Row<'_>) {
        let page = &self.writes[write];
        w.date("ts", row.ts_ms);
        let meta = w.document("meta");
        w.str("sensor_id", &page.sensor_id);
        pack::tags(w, page);
        w.close(meta);
        if self.order_of != Some(write) {
            let fields = page.rows.fields();
            let mut by_name: Vec<u32> = (0..fields.len() as u32).collect();
            by_name.sort_by_key(|i| &fields[*i as usize]);
            self.order.resize(fields.len(), 0);
            (0u32..).zip(by_name).for_each(|(place, i)| self.order[i as usize] = place);
            self.order_of = Some(write);
        }
        let place = |i: u32| self.order[i as usize];
        let name = |i: u32| &*page.rows.fields()[i as usize];
        if row.values().map(|(i, _)| place(i)).is_sorted() {
            row.values().for_each(|(i, v)| w.value(name(i), v));
        } else {
            let mut values: Vec<_> = row.values().collect();
            values.sort_by_key(|(i, _)| place(*i));
            values.into_iter().for_each(|(i, v)| w.value(name(i), v));
        }
    }

    /// Statements whose rows the last command ended; `before`: where the one before it stopped.
    fn statements(&self, before: Option<usize>) -> u64 {
        (self.at - before.unwrap_or(0)) as u64
    }

    /// What an element of `writeErrors` means: a statement that is refused for good, or an answer that says nothing.
    fn failed(&self, error: &Document) -> Result<(usize, String), StoreError> {
        let code = error.get_i32("code").unwrap_or_default();
        let detail = format!("{} ({code})", error.get_str("errmsg").unwrap_or_default());
        let index = error.get_i32("index").ok().and_then(|i| self.last.get(usize::try_from(i).ok()?).copied());
        match (index, statement_error(code)) {
            (Some(write), StatementError::Data) => Ok((write, detail)),
            _ => Err(StoreError::Unknown { kind: "command", detail }),
        }
    }
}

/// What there is of a sensor's measurements in one bucket.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) count: u32,
    pub(super) last_ts_ms: Option<i64>,
    /// Of those that were asked for.
    pub(super) keys: Vec<ReadingKey>,
}

/// One bucket to look at: measurements from `count_from_ms` on are counted, those from `keys_from_ms` on identified.
#[derive(Debug)]
pub(super) struct Look<'a> {
    pub(super) sensor_id: &'a str,
    pub(super) count_from_ms: i64,
    pub(super) keys_from_ms: i64,
}

/// Looks at the measurements of several sensors in one bucket's time.
pub(super) async fn measured(
    readings: &Collection<RawDocumentBuf>,
    start: BucketStart,
    span: Span,
    looks: &[Look<'_>],
) -> mongodb::error::Result<Vec<Measured>> {
    let mut found: Vec<Measured> = looks.iter().map(|_| Measured::default()).collect();
    for (c, chunk) in looks.chunks(SENSORS_MAX).enumerate() {
        let places: std::collections::HashMap<&str, usize> =
            chunk.iter().enumerate().map(|(i, look)| (look.sensor_id, c * SENSORS_MAX + i)).collect();
        let from_ms = chunk.iter().map(|l| l.count_from_ms.min(l.keys_from_ms)).min().unwrap_or(start.0);
        let sensors: Vec<&str> = places.keys().copied().collect();
        let filter = recount::measurements_of(&sensors, from_ms.max(start.0), span.end(start));
        let mut cursor = selection(readings.find(filter)).await?;
        while let Some(document) = cursor.try_next().await? {
            let Some((place, ts_ms)) = whose(&document).and_then(|(id, ts)| Some((*places.get(id)?, ts))) else {
                continue;
            };
            let (look, measured) = (&looks[place], &mut found[place]);
            if ts_ms >= look.count_from_ms {
                measured.count += 1;
                measured.last_ts_ms = measured.last_ts_ms.max(Some(ts_ms));
            }
            if ts_ms >= look.keys_from_ms {
                measured.keys.extend(key_of(&document));
            }
        }
    }
    Ok(found)
}

fn whose(document: &RawDocument) -> Option<(&str, i64)> {
    let id = document.get_document("meta").ok()?.get_str("sensor_id").ok()?;
    Some((id, document.get_datetime("ts").ok()?.timestamp_millis()))
}
