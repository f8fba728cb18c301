//! Page writes: commands of many statements, and what their replies mean for each of them.

use std::sync::atomic::Ordering;
use std::time::Instant;

use mongodb::bson::Document;

use crate::mongo::MongoStore;
use crate::mongo::error::{
    StatementError, command_code, command_error, concern_error, describe, statement_error, text_of,
};
use crate::mongo::limited::in_part;
use crate::mongo::pack;
use crate::{BoxFuture, PageWriteResult, StoreError, StoreErrorKind};
use model::{Gate, PageKind, PageWrite};
use telemetry::metrics;

impl MongoStore {
    /// Sends writes of one kind as one command. If the server rejects the whole command because of
    /// its data, halves it until the statement at fault is alone. `comment`: see [`pack::command`].
    pub(crate) fn write_kind<'a>(
        &'a self,
        writes: &'a [&'a PageWrite],
        comment: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<PageWriteResult>, StoreError>> {
        Box::pin(async move {
            let kind = if writes[0].kind == PageKind::Create {
                "insert"
            } else {
                "update"
            };
            let with_gates = self.with_gates.load(Ordering::Acquire);
            let at_fault = match pack::command(writes, &self.options, comment, with_gates) {
                Err(error) => error.to_string(),
                Ok(command) => {
                    let db = self.db.clone();
                    let begun = Instant::now();
                    let result = self
                        .limited(async move { db.run_raw_command(command).await })
                        .await;
                    metrics::store_command(
                        kind,
                        writes.len() as u64,
                        begun.elapsed().as_secs_f64(),
                    );
                    match result? {
                        Ok(reply) => return answers(writes, &reply),
                        Err(e)
                            if command_code(&e)
                                .is_some_and(|c| statement_error(c) == StatementError::Data) =>
                        {
                            describe(&e)
                        }
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
fn answers(writes: &[&PageWrite], reply: &Document) -> Result<Vec<PageWriteResult>, StoreError> {
    if let Some(detail) = concern_error(reply) {
        return Err(StoreError::Unknown {
            kind: StoreErrorKind::WriteConcern,
            detail,
        });
    }
    let done = |w: &&PageWrite| PageWriteResult::Done {
        count: w.count_after(),
    };
    let mut answers: Vec<PageWriteResult> = writes.iter().map(done).collect();
    let index = |d: &Document| {
        usize::try_from(d.get_i32("index").ok()?)
            .ok()
            .filter(|i| *i < writes.len())
    };
    let documents = |name: &str| -> Vec<Document> {
        let list = reply.get_array(name).map(Vec::as_slice).unwrap_or_default();
        list.iter()
            .filter_map(|d| d.as_document().cloned())
            .collect()
    };
    for upserted in documents("upserted") {
        if let Some(i) = index(&upserted) {
            answers[i] = PageWriteResult::Done {
                count: writes[i].rows.len() as u32,
            };
        }
    }
    for error in documents("writeErrors") {
        let detail = || text_of(&error, "");
        let code = error.get_i32("code").unwrap_or_default();
        let Some(i) = index(&error) else {
            return Err(StoreError::Unknown {
                kind: StoreErrorKind::Command,
                detail: detail(),
            });
        };
        answers[i] = match statement_error(code) {
            StatementError::Conflict => PageWriteResult::Conflict,
            StatementError::Data => rejected(writes[i], format!("{} ({code})", detail())),
            StatementError::Retryable => PageWriteResult::Unknown {
                detail: format!("{} ({code})", detail()),
            },
        };
    }
    Ok(answers)
}
