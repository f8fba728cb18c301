//! `sensor_latest`: sends updates, and those that are too large in part.
//!
//! The readings of a sensor may be more than a document can have, 16 MB: many fields with long
//! texts, or many recent readings. Then the parts that matter least are left out, step by step
//! ([`Parts`]). How large the stored document is, and so what fits, is known to the server alone;
//! such an update costs a refused command.

use std::time::Instant;

use super::latest::{Parts, StatementResult, answers, command, fault, forbidden};
use crate::mongo::connection::Connection;
use crate::mongo::error::{command_error, describe};
use crate::{BoxFuture, LatestWriteResult, StoreError, StoreErrorKind};
use model::LatestUpdate;
use telemetry::metrics::{self, StoreCommand};

/// A command has at most as many bytes as a document; the server adds 16 KiB for its own fields.
const COMMAND_BYTES_MAX: usize = 16 << 20;

/// Writes documents of `sensor_latest`.
#[derive(Debug, Clone)]
pub(crate) struct LatestWriter {
    connection: Connection,
}

impl LatestWriter {
    pub(crate) fn new(connection: Connection) -> LatestWriter {
        LatestWriter { connection }
    }

    /// See [`crate::Store::latest`].
    pub(crate) async fn merge(
        &self,
        updates: &[LatestUpdate],
    ) -> Result<Vec<LatestWriteResult>, StoreError> {
        let mut results = vec![];
        let sent = self.send_latest(updates, Parts::All).await?;
        for (update, sent) in updates.iter().zip(sent) {
            results.push(match sent {
                StatementResult::Done => LatestWriteResult::Done,
                StatementResult::Again => LatestWriteResult::Again,
                StatementResult::Rejected { detail } => LatestWriteResult::Rejected { detail },
                StatementResult::TooLarge { detail } => self.merge_in_part(update, detail).await?,
            });
        }
        Ok(results)
    }

    /// Writes as much as fits of an update that is too large.
    async fn merge_in_part(
        &self,
        update: &LatestUpdate,
        detail: String,
    ) -> Result<LatestWriteResult, StoreError> {
        for parts in [Parts::Values, Parts::ShortValues, Parts::Time] {
            let sent = self
                .send_latest(std::slice::from_ref(update), parts)
                .await?;
            match sent.into_iter().next() {
                Some(StatementResult::Done) => {
                    let detail = format!("{detail}; left out: {}", parts.left_out());
                    return Ok(LatestWriteResult::Reduced { detail });
                }
                Some(StatementResult::TooLarge { .. }) => {}
                Some(StatementResult::Rejected { detail }) => {
                    return Ok(LatestWriteResult::Rejected { detail });
                }
                Some(StatementResult::Again) | None => return Ok(LatestWriteResult::Again),
            }
        }
        Ok(LatestWriteResult::Rejected { detail })
    }

    /// Sends updates in one command, or in several if that is too large or fails because of one of
    /// them.
    fn send_latest<'a>(
        &'a self,
        updates: &'a [LatestUpdate],
        parts: Parts,
    ) -> BoxFuture<'a, Result<Vec<StatementResult>, StoreError>> {
        Box::pin(async move {
            if updates.is_empty() {
                return Ok(vec![]);
            }
            let command = command(updates, parts, self.connection.options())
                .map_err(|e| StoreError::not_applied(StoreErrorKind::Driver, e.to_string()))?;
            let bytes = command.as_bytes().len();
            let refused = if bytes > COMMAND_BYTES_MAX {
                let detail =
                    format!("the update has {bytes} bytes; at most {COMMAND_BYTES_MAX} fit");
                StatementResult::TooLarge { detail }
            } else {
                let begun = Instant::now();
                let result = self.connection.run_raw(command).await;
                metrics::store_command(
                    StoreCommand::Latest,
                    updates.len() as u64,
                    begun.elapsed().as_secs_f64(),
                );
                match result? {
                    Ok(reply) => return answers(updates.len(), reply),
                    Err(error) if forbidden(&error) => {
                        let detail = describe(&error);
                        return Ok(vec![StatementResult::Rejected { detail }; updates.len()]);
                    }
                    Err(error) => fault(&error).ok_or_else(|| command_error(&error))?,
                }
            };
            if updates.len() == 1 {
                return Ok(vec![refused]);
            }
            let (a, b) = updates.split_at(updates.len() / 2);
            let mut sent = self.send_latest(a, parts).await?;
            sent.extend(self.send_latest(b, parts).await?);
            Ok(sent)
        })
    }
}
