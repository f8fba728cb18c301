//! Replaces documents of days, each under a guard in its filter.

use mongodb::bson::{Document, doc};

use crate::days::DayWritten;
use crate::mongo::connection::{Connection, in_part};
use crate::mongo::error::{
    StatementError, check_concern, command_error, describe, is_refused_for_its_data,
    statement_error, write_errors,
};
use crate::{StoreError, StoreErrorKind};

/// Executes upserts of whole documents, in one command. If the server rejects it as a whole because of
/// its data, halves it.
pub(super) async fn replace_all(
    connection: &Connection,
    collection: &'static str,
    mut updates: Vec<Document>,
) -> Result<Vec<DayWritten>, StoreError> {
    if updates.is_empty() {
        return Ok(vec![]);
    }
    let command = |updates: Vec<Document>| doc! { "update": collection, "updates": updates, "ordered": false };
    match connection.change(command(updates.clone())).await? {
        Ok(reply) => {
            let mut written = answers(updates.len(), reply)?;
            let again: Vec<usize> = (0..updates.len())
                .filter(|at| written[*at] == DayWritten::Newer)
                .collect();
            if !again.is_empty() {
                // The document counts more, or another instance inserted it at the same moment: now
                // it exists.
                let updates = again.iter().map(|at| updates[*at].clone()).collect();
                let reply = connection.change(command(updates)).await?;
                let reply = reply.map_err(|e| command_error(&e))?;
                again
                    .iter()
                    .zip(answers(again.len(), reply)?)
                    .for_each(|(at, answer)| written[*at] = answer);
            }
            Ok(written)
        }
        Err(error) if is_refused_for_its_data(&error) => {
            if updates.len() == 1 {
                return Ok(vec![DayWritten::Rejected {
                    detail: describe(&error),
                }]);
            }
            let second = updates.split_off(updates.len() / 2);
            let mut written = Box::pin(replace_all(connection, collection, updates)).await?;
            let others = Box::pin(replace_all(connection, collection, second)).await;
            written.extend(others.map_err(in_part)?);
            Ok(written)
        }
        Err(error) => Err(command_error(&error)),
    }
}

fn answers(statements: usize, reply: Document) -> Result<Vec<DayWritten>, StoreError> {
    let mut answers = vec![DayWritten::Done; statements];
    for error in write_errors(&check_concern(reply)?) {
        let detail = error.detail();
        let answer = error.index.and_then(|at| answers.get_mut(at));
        match (answer, statement_error(error.code)) {
            // The document exists and counts more, so the filter did not match, and the insert
            // collided.
            (Some(answer), StatementError::Conflict) => *answer = DayWritten::Newer,
            (Some(answer), StatementError::Data) => *answer = DayWritten::Rejected { detail },
            _ => return Err(StoreError::unknown(StoreErrorKind::Command, detail)),
        }
    }
    Ok(answers)
}
