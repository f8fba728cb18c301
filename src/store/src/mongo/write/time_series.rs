//! Time-series buckets: measurements in a native collection, and the summary in `sensor_buckets`
//! (docs/design.md, section 2).
//!
//! **Writing.** First the measurements of all statements are sent as large inserts, grouped by
//! sensor. Then the summaries follow, guarded by the version like any page. A native
//! collection cannot refuse a duplicate, so nothing is inserted speculatively: after a lost
//! response, and if an earlier process may have written the bucket, it is loaded with `doubt`
//! before its next statement. If a summary does not have the expected version, the load that
//! follows recomputes it from the measurements ([`super::recompute_summary`]).
//!
//! **Ordered inserts.** If MongoDB 6.0.5 interrupts an unordered insert (the primary steps down, or
//! an operator ends the operation), it leaves the measurements that it has not written yet in its
//! open buckets. The next insert of such a sensor then stores them as well, although they were
//! reported as failed: they are stored twice, or, since their memory is used for other things, the
//! server takes all memory. An ordered insert is one transaction, which the server undoes as a
//! whole.
//!
//! **Abandoned statements.** The server may still execute a statement whose response was lost. The
//! [`fence`](super::fence) ensures that it has ended before the stored measurements are read.
//!
//! If a second instance writes the same sensor, delivery is only at least once, as documented.

use std::sync::Arc;
use std::time::Instant;

use mongodb::bson::RawDocumentBuf;

use crate::mongo::bson::Writer;
use crate::mongo::connection::{Connection, in_part};
use crate::mongo::error::{
    StatementError, WriteError, check_concern, command_error, statement_error, write_errors,
};
use crate::mongo::pack::{self, CommandOptions};
use crate::mongo::write::command_size::CommandSize;
use crate::mongo::write::fence::Fence;
use crate::mongo::write::pages::PageWriter;
use crate::{PageWriteResult, StoreError, StoreErrorKind};
use model::collections::READINGS;
use model::rows::Row;
use model::{PageKind, PageWrite};
use telemetry::metrics::{self, StoreCommand};

/// Maximum bytes per command, below the 16 MiB limit of a raw command.
const COMMAND_BYTES_MAX: usize = 12 << 20;

/// Inserts measurements into `sensor_readings`, and writes their summaries with a [`PageWriter`].
#[derive(Debug, Clone)]
pub(crate) struct SeriesWriter {
    connection: Connection,
    summaries: PageWriter,
    fence: Arc<Fence>,
    command_size: Arc<CommandSize>,
}

impl SeriesWriter {
    pub(crate) fn new(
        connection: Connection,
        summaries: PageWriter,
        fence: Arc<Fence>,
    ) -> SeriesWriter {
        let command_size = CommandSize::new(connection.timeout());
        SeriesWriter {
            connection,
            summaries,
            fence,
            command_size: Arc::new(command_size),
        }
    }

    /// Stores measurements and summaries. Once a measurement may be stored, every later failure is
    /// `Unknown`, and a load determines the outcome.
    pub(crate) async fn write(
        &self,
        writes: &[PageWrite],
    ) -> Result<Vec<PageWriteResult>, StoreError> {
        let name = self.fence.name();
        let result = self.measurements_and_summaries(writes, &name).await;
        if matches!(result, Err(StoreError::Unknown { .. })) {
            let buckets = writes.iter().map(PageWrite::bucket);
            self.fence.gave_up(name, buckets);
        }
        result
    }

    async fn measurements_and_summaries(
        &self,
        writes: &[PageWrite],
        name: &str,
    ) -> Result<Vec<PageWriteResult>, StoreError> {
        let refused = self.insert_measurements(writes, name).await?;
        let kept: Vec<usize> = (0..writes.len())
            .filter(|i| refused[*i].is_none())
            .collect();
        let mut answers: Vec<PageWriteResult> = refused
            .into_iter()
            .map(|r| r.unwrap_or(PageWriteResult::Done { count: 0 }))
            .collect();
        for create in [true, false] {
            let some: Vec<usize> = kept
                .iter()
                .copied()
                .filter(|i| (writes[*i].kind == PageKind::Create) == create)
                .collect();
            if some.is_empty() {
                continue;
            }
            let statements: Vec<&PageWrite> = some.iter().map(|i| &writes[*i]).collect();
            let written = self
                .summaries
                .write_kind(&statements, Some(name))
                .await
                .map_err(in_part)?;
            for (i, written) in some.into_iter().zip(written) {
                answers[i] = match written {
                    PageWriteResult::Done { count } if count == writes[i].count_after() => written,
                    PageWriteResult::Unknown { .. } => written,
                    // Another version, a deleted document, or a sum that no longer fits: the load
                    // recomputes it.
                    _ => PageWriteResult::SummaryConflict,
                };
            }
        }
        Ok(answers)
    }

    /// Inserts the measurements. Returns the statements whose summary must not be written: those
    /// with a measurement that the server rejects, and those with one that may or may not be
    /// stored. A rejected statement is reported as a whole, so measurements of it that were stored
    /// nevertheless are stored twice. No input that the decoders accept is known to be rejected.
    async fn insert_measurements(
        &self,
        writes: &[PageWrite],
        name: &str,
    ) -> Result<Vec<Option<PageWriteResult>>, StoreError> {
        let mut packer = Packer::new(writes);
        let mut refused = vec![None; writes.len()];
        let mut begun_at = None;
        let size = &self.command_size;
        let options = self.connection.options();
        while let Some(command) = packer.next(options, name, size.measurements_max()) {
            let command = command
                .map_err(|e| StoreError::not_applied(StoreErrorKind::Driver, e.to_string()))?;
            let begun = Instant::now();
            let result = self.connection.run_raw(command).await;
            let took = begun.elapsed();
            size.note(packer.last.len(), took, matches!(result, Ok(Ok(_))));
            metrics::store_command(
                StoreCommand::Measurement,
                packer.statements(begun_at),
                took.as_secs_f64(),
            );
            let reply = result?.map_err(|error| match begun_at {
                None => command_error(&error),
                Some(_) => in_part(command_error(&error)),
            })?;
            // One error at most: the server does not execute what follows it.
            if let Some(error) = write_errors(&check_concern(reply)?).next() {
                packer.failed(&error, &mut refused)?;
            }
            begun_at = Some(packer.at);
        }
        Ok(refused)
    }
}

/// Packs the rows of statements into consecutive insert commands.
struct Packer<'a> {
    writes: &'a [PageWrite],
    rows: Box<dyn Iterator<Item = (usize, Row<'a>)> + Send + 'a>,
    next: Option<(usize, Row<'a>)>,
    /// The statement of the next row.
    at: usize,
    /// The statement of each row of the last command.
    last: Vec<usize>,
    /// For the current statement: the position of each field in the order of names.
    order: Vec<u32>,
    order_of: Option<usize>,
}

impl<'a> Packer<'a> {
    fn new(writes: &'a [PageWrite]) -> Packer<'a> {
        let mut rows: Box<dyn Iterator<Item = (usize, Row<'a>)> + Send + 'a> = Box::new(
            writes
                .iter()
                .enumerate()
                .flat_map(|(i, w)| w.rows.iter().map(move |row| (i, row))),
        );
        let next = rows.next();
        let at = next.as_ref().map_or(0, |(i, _)| *i);
        Packer {
            writes,
            rows,
            next,
            at,
            last: vec![],
            order: vec![],
            order_of: None,
        }
    }

    /// The next command, as large as the limits allow.
    ///
    /// It has no `maxTimeMS`, because an interrupted insert is not safe with every server (see the
    /// module). An abandoned insert ends by itself; the fence waits for that.
    fn next(
        &mut self,
        options: &CommandOptions,
        comment: &str,
        measurements_max: usize,
    ) -> Option<mongodb::bson::error::Result<RawDocumentBuf>> {
        self.next.as_ref()?;
        self.last.clear();
        let (mut w, root) = Writer::new(1 << 16);
        w.str("insert", READINGS);
        w.bool("ordered", true);
        w.str("comment", comment);
        options.write_to(&mut w);
        let list = w.array("documents");
        while self.last.len() < measurements_max && w.len() < COMMAND_BYTES_MAX {
            let Some((write, row)) = self.next.take() else {
                break;
            };
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

    /// Encodes one measurement. The values are sorted by name, independent of the sender's order:
    /// the server compresses measurements best if their fields have a constant order.
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
            (0u32..)
                .zip(by_name)
                .for_each(|(place, i)| self.order[i as usize] = place);
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

    /// Number of statements that the last command completed; `before`: where the previous command
    /// stopped.
    fn statements(&self, before: Option<usize>) -> u64 {
        (self.at - before.unwrap_or(0)) as u64
    }

    /// Marks the statement that the server refused as rejected or unknown, and those after it in
    /// the last command, which were not executed, as unknown.
    fn failed(
        &self,
        error: &WriteError,
        refused: &mut [Option<PageWriteResult>],
    ) -> Result<(), StoreError> {
        let detail = error.detail();
        let Some(index) = error.index.filter(|i| *i < self.last.len()) else {
            return Err(StoreError::unknown(StoreErrorKind::Command, detail));
        };
        let write = self.last[index];
        if statement_error(error.code) == StatementError::Data {
            refused[write] = Some(PageWriteResult::Rejected {
                detail: detail.clone(),
            });
        }
        for &unknown in &self.last[index..] {
            refused[unknown].get_or_insert_with(|| PageWriteResult::Unknown {
                detail: detail.clone(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mongo::pack::WriteConcern;
    use model::{BucketStart, Reading, Rows, Span, StorageMode, Value, summary::summarise};

    fn write(readings: i64) -> PageWrite {
        let mut rows = Rows::default();
        for i in 0..readings {
            rows.push_reading(&Reading {
                sensor_id: "s".into(),
                ts_ms: i,
                receipt_time: false,
                tags: Default::default(),
                values: [("temp".to_owned(), Value::Int(i))].into(),
            });
        }
        PageWrite {
            sensor_id: "s".into(),
            start: BucketStart(0),
            page: 0,
            kind: PageKind::Create,
            storage_mode: StorageMode::TimeSeries,
            seal: false,
            tags: None,
            summary: summarise(&rows),
            rows: rows.into(),
            catalog: None,
        }
    }

    #[test]
    fn what_follows_a_refused_measurement_was_not_executed() {
        let options = CommandOptions {
            span: Span::HOUR,
            write_concern: WriteConcern::Majority,
            wtimeout_ms: 7500,
        };
        let writes = [write(300), write(300), write(300), write(300)];
        let mut packer = Packer::new(&writes);
        packer.next(&options, "name", 900).unwrap().unwrap();
        let after = |index: usize, code: i32| {
            let error = WriteError {
                index: Some(index),
                code,
                text: "no".to_owned(),
            };
            let mut refused = vec![None; writes.len()];
            packer.failed(&error, &mut refused).map(|()| refused)
        };
        let detail = |code| format!("no ({code})");
        let unknown = |code| {
            Some(PageWriteResult::Unknown {
                detail: detail(code),
            })
        };
        let rejected = Some(PageWriteResult::Rejected {
            detail: detail(121),
        });
        assert_eq!(
            after(450, 121).unwrap(),
            [None, rejected, unknown(121), None],
            "the last statement is part of the next command"
        );
        assert_eq!(
            after(0, 11602).unwrap(),
            [unknown(11602), unknown(11602), unknown(11602), None]
        );
        assert!(after(900, 121).is_err(), "the command has fewer");
    }

    #[test]
    fn measurements_are_split_and_the_server_never_interrupts_a_command() {
        let options = CommandOptions {
            span: Span::HOUR,
            write_concern: WriteConcern::Majority,
            wtimeout_ms: 7500,
        };
        let writes = [write(300), write(900)];
        let mut packer = Packer::new(&writes);
        let mut sizes = vec![];
        while let Some(command) = packer.next(&options, "name", 500) {
            let command = command.unwrap();
            assert!(command.get("maxTimeMS").unwrap().is_none());
            sizes.push(command.get_array("documents").unwrap().into_iter().count());
        }
        assert_eq!(sizes, [500, 500, 200]);
    }
}
