//! Page writes: commands of many statements, and what their replies mean for each of them.

use std::sync::Arc;
use std::time::Instant;

use mongodb::bson::{Bson, Document};

use crate::mongo::connection::{Connection, in_part};
use crate::mongo::detected::Detected;
use crate::mongo::error::{
    StatementError, check_concern, command_error, describe, is_refused_for_its_data,
    statement_error, write_errors,
};
use crate::mongo::pack;
use crate::{BoxFuture, PageWriteResult, StoreError, StoreErrorKind};
use model::{Gate, PageKind, PageWrite};
use telemetry::metrics::{self, StoreCommand};

/// Writes documents of `sensor_buckets`.
#[derive(Debug, Clone)]
pub(crate) struct PageWriter {
    connection: Connection,
    detected: Arc<Detected>,
}

impl PageWriter {
    pub(crate) fn new(connection: Connection, detected: Arc<Detected>) -> PageWriter {
        PageWriter {
            connection,
            detected,
        }
    }

    /// Sends writes of one kind as one command. If the server rejects the whole command because of
    /// its data, halves it until the statement at fault is alone. `comment`: see [`pack::command`].
    pub(crate) fn write_kind<'a>(
        &'a self,
        writes: &'a [&'a PageWrite],
        comment: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<PageWriteResult>, StoreError>> {
        Box::pin(async move {
            let kind = if writes[0].kind == PageKind::Create {
                StoreCommand::Insert
            } else {
                StoreCommand::Update
            };
            let options = self.connection.options();
            let uses_gates = self.detected.uses_gates();
            let at_fault = match pack::command(writes, options, comment, uses_gates) {
                Err(error) => error.to_string(),
                Ok(command) => {
                    let begun = Instant::now();
                    let result = self.connection.run_raw(command).await;
                    metrics::store_command(
                        kind,
                        writes.len() as u64,
                        begun.elapsed().as_secs_f64(),
                    );
                    match result? {
                        Ok(reply) => return answers(writes, reply),
                        Err(error) if is_refused_for_its_data(&error) => describe(&error),
                        Err(error) => return Err(command_error(&error)),
                    }
                }
            };
            if writes.len() == 1 {
                return Ok(vec![rejected(writes[0], at_fault)]);
            }
            let (a, b) = writes.split_at(writes.len() / 2);
            let mut answers = self.write_kind(a, comment).await?;
            answers.extend(self.write_kind(b, comment).await.map_err(in_part)?);
            Ok(answers)
        })
    }
}

/// The result of a statement that the server refuses permanently. At a page's gate it is refused
/// with the same codes as for its data; the same readings without it tell which of them it was.
fn rejected(write: &PageWrite, detail: String) -> PageWriteResult {
    match write.kind {
        PageKind::Append {
            gate: Gate::Passes(_),
            ..
        } => PageWriteResult::Conflict,
        _ => PageWriteResult::Rejected { detail },
    }
}

/// Parses the reply to a command: one result per statement.
fn answers(writes: &[&PageWrite], reply: Document) -> Result<Vec<PageWriteResult>, StoreError> {
    let reply = check_concern(reply)?;
    let done = |w: &&PageWrite| PageWriteResult::Done {
        count: w.count_after(),
    };
    let mut answers: Vec<PageWriteResult> = writes.iter().map(done).collect();
    let upserted = reply.get_array("upserted").into_iter().flatten();
    for upserted in upserted.filter_map(Bson::as_document) {
        let index = upserted.get_i32("index").ok();
        let index = index.and_then(|i| usize::try_from(i).ok());
        if let Some(i) = index.filter(|i| *i < writes.len()) {
            answers[i] = PageWriteResult::Done {
                count: writes[i].rows.len() as u32,
            };
        }
    }
    for error in write_errors(&reply) {
        let Some(i) = error.index.filter(|i| *i < writes.len()) else {
            return Err(StoreError::unknown(StoreErrorKind::Command, error.text));
        };
        let detail = error.detail();
        answers[i] = match statement_error(error.code) {
            StatementError::Conflict => PageWriteResult::Conflict,
            StatementError::Data => rejected(writes[i], detail),
            StatementError::Retryable => PageWriteResult::Unknown { detail },
        };
    }
    Ok(answers)
}
