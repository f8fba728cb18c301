//! Classifies MongoDB's errors for the caller: nothing was applied, the outcome is unknown, or the
//! data is rejected permanently.

use mongodb::bson::{Bson, Document};
use mongodb::error::ErrorKind;

use crate::{StoreError, StoreErrorKind};

/// The meaning of an error of a single statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatementError {
    /// The stored page does not have the expected version (E11000).
    Conflict,
    /// The data itself cannot be stored.
    Data,
    /// The server is in trouble: send it again.
    Retryable,
}

/// Classifies the error codes of `writeErrors`. Only codes that are known to be caused by the data
/// reject it; all others are retried and logged, since rejecting a reading wrongly is worse than
/// waiting.
pub(super) fn statement_error(code: i32) -> StatementError {
    match code {
        11000 | 11001 | 12582 => StatementError::Conflict,
        // BadValue, FailedToParse, TypeMismatch, Overflow, InvalidBSON, PathNotViable,
        // ConflictingUpdateOperators, DollarPrefixedFieldName, EmptyFieldName, DottedFieldName,
        // ImmutableField, DocumentValidationFailure, BSONObjectTooLarge, the resulting document too
        // large (17419, 17420), index key too long (17280, 17282).
        2 | 9 | 14 | 15 | 22 | 28 | 40 | 52 | 56 | 57 | 66 | 121 | 10334 | 17419 | 17420
        | 17280 | 17282 => StatementError::Data,
        _ => StatementError::Retryable,
    }
}

/// The error text of a reply whose write concern was not satisfied: a part of the write may be lost
/// again.
pub(super) fn concern_error(reply: &Document) -> Option<String> {
    let error = reply.get_document("writeConcernError").ok()?;
    Some(text_of(error, "write concern not satisfied"))
}

/// The reply, if its write concern was satisfied.
pub(super) fn check_concern(reply: Document) -> Result<Document, StoreError> {
    match concern_error(&reply) {
        None => Ok(reply),
        Some(detail) => Err(StoreError::unknown(StoreErrorKind::WriteConcern, detail)),
    }
}

/// A statement of a command that failed.
#[derive(Debug, Clone)]
pub(super) struct WriteError {
    /// Its place in the command, if the server says it.
    pub(super) index: Option<usize>,
    pub(super) code: i32,
    /// The server's text.
    pub(super) text: String,
}

impl WriteError {
    /// The text and the code.
    pub(super) fn detail(&self) -> String {
        format!("{} ({})", self.text, self.code)
    }
}

/// The statements that failed, by the reply to a command.
pub(super) fn write_errors(reply: &Document) -> impl Iterator<Item = WriteError> {
    let errors = reply.get_array("writeErrors").into_iter().flatten();
    errors.filter_map(Bson::as_document).map(|error| {
        let index = error.get_i32("index").ok();
        WriteError {
            index: index.and_then(|index| usize::try_from(index).ok()),
            code: error.get_i32("code").unwrap_or_default(),
            text: text_of(error, "refused"),
        }
    })
}

/// The number of documents that a command has changed, by its reply.
pub(super) fn changed_documents(reply: &Document) -> u64 {
    let n = reply.get_i32("n").ok();
    n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
}

/// What became of a change that needs its documents as they were read.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Applied {
    Yes,
    /// Another writer has changed one since: read it again.
    Conflict,
}

impl Applied {
    /// Of a statement for one document, by how many it has found.
    pub(crate) fn to_one(found: u64) -> Applied {
        match found {
            1 => Applied::Yes,
            _ => Applied::Conflict,
        }
    }

    /// Of both changes.
    pub(crate) fn and(self, other: Applied) -> Applied {
        match self {
            Applied::Yes => other,
            Applied::Conflict => Applied::Conflict,
        }
    }
}

/// The number of documents that an unordered command has changed, if each of its statements was
/// applied.
pub(super) fn all_applied(reply: &Document) -> Result<u64, StoreError> {
    match write_errors(reply).next() {
        None => Ok(changed_documents(reply)),
        Some(error) => Err(StoreError::unknown(StoreErrorKind::Command, error.text)),
    }
}

/// The meaning of a failed command.
pub(super) fn command_error(error: &mongodb::error::Error) -> StoreError {
    let not_applied = |kind| StoreError::not_applied(kind, describe(error));
    let unknown = |kind| StoreError::unknown(kind, describe(error));
    match error.kind.as_ref() {
        ErrorKind::ServerSelection { .. } => not_applied(StoreErrorKind::NoPrimary),
        ErrorKind::Authentication { .. } => not_applied(StoreErrorKind::Unauthorized),
        ErrorKind::DnsResolve { .. } => not_applied(StoreErrorKind::Network),
        ErrorKind::Io(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
            not_applied(StoreErrorKind::Network)
        }
        ErrorKind::Command(e) => match e.code {
            // Unauthorized, AuthenticationFailed, AtlasError: refused before anything is executed.
            13 | 18 | 8000 => not_applied(StoreErrorKind::Unauthorized),
            // NotWritablePrimary and related codes may also end a batch midway.
            10107 | 13435 | 13436 | 10058 | 189 | 11602 | 91 | 11600 => {
                unknown(StoreErrorKind::NoPrimary)
            }
            50 | 262 => unknown(StoreErrorKind::Timeout),
            64 | 100 => unknown(StoreErrorKind::WriteConcern),
            _ => unknown(StoreErrorKind::Command),
        },
        ErrorKind::Write(_) => unknown(StoreErrorKind::WriteConcern),
        ErrorKind::Io(e) if e.kind() == std::io::ErrorKind::TimedOut => {
            unknown(StoreErrorKind::Timeout)
        }
        ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } => {
            unknown(StoreErrorKind::Network)
        }
        // The reply was invalid, or this process found it to be wrong: the server is reachable all
        // the same.
        _ => unknown(StoreErrorKind::Command),
    }
}

/// The error code of a command that failed as a whole.
pub(super) fn command_code(error: &mongodb::error::Error) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(e) => Some(e.code),
        _ => None,
    }
}

/// Whether a command failed as a whole because of its data. Then it is halved, until the statement
/// at fault is alone.
pub(super) fn is_refused_for_its_data(error: &mongodb::error::Error) -> bool {
    command_code(error).is_some_and(|code| statement_error(code) == StatementError::Data)
}

/// The longest error text, in bytes. Texts are in the log and in `/readyz`, which needs no token,
/// and the server quotes documents and keys in some.
const TEXT_MAX: usize = 400;

/// The error text for an operator, without the content of commands. The driver's texts name hosts,
/// never credentials; they do not contain the URI.
pub(super) fn describe(error: &mongodb::error::Error) -> String {
    match error.kind.as_ref() {
        ErrorKind::Command(e) => {
            let advice = if e.message.ends_with("requires authentication") {
                "; the user of store.uri was dropped; once it exists again, the service logs in again \
                 within seconds, or after a restart"
            } else {
                ""
            };
            let text = shortened(&e.message);
            format!("{} ({}): {text}{advice}", e.code_name, e.code)
        }
        ErrorKind::ServerSelection { message, .. } => format!(
            "no writable server found; is MongoDB running, and are the hosts and the replicaSet in \
             store.uri correct? ({})",
            shortened(message)
        ),
        // The error's own text adds the server's whole response. Before a text of this crate, the
        // driver names its own user.
        kind => {
            let text = kind.to_string();
            shortened(text.strip_prefix("Custom user error: ").unwrap_or(&text))
        }
    }
}

/// The text of an entry of `writeErrors`, or of a write concern error.
pub(super) fn text_of(error: &Document, default: &str) -> String {
    shortened(error.get_str("errmsg").unwrap_or(default))
}

/// A server's text in at most [`TEXT_MAX`] bytes, without the command that some texts quote.
pub(super) fn shortened(text: &str) -> String {
    const REFUSED: &str = " to execute command ";
    let refused = text
        .split_once(REFUSED)
        .map(|(user, command)| format!("{user}{REFUSED}{}", named(command)));
    let text = refused.as_deref().unwrap_or(text);
    if text.len() <= TEXT_MAX {
        return text.to_owned();
    }
    let end = (0..=TEXT_MAX).rev().find(|&at| text.is_char_boundary(at));
    format!("{}…", &text[..end.unwrap_or(0)])
}

/// `insert (sensor_buckets)` of `{ insert: "sensor_buckets", documents: [ … ] }`.
fn named(command: &str) -> String {
    let first = command.trim_start_matches(['{', ' ']);
    let first = first.split([',', '}']).next().unwrap_or_default();
    let (name, on) = first.split_once(':').unwrap_or((first, ""));
    match on
        .trim()
        .strip_prefix('"')
        .and_then(|on| on.strip_suffix('"'))
    {
        Some(on) => format!("{} ({on})", name.trim()),
        None => name.trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn only_known_faults_of_the_data_are_final() {
        for (code, means) in [
            (11000, StatementError::Conflict),
            (121, StatementError::Data),
            (10334, StatementError::Data),
            (112, StatementError::Retryable),
            (189, StatementError::Retryable),
            (999_999, StatementError::Retryable),
        ] {
            assert_eq!(statement_error(code), means, "{code}");
        }
    }

    #[test]
    fn a_refused_command_is_named_without_its_content() {
        let text = "not authorized on hb to execute command { insert: \"sensor_buckets\", ordered: \
            false, documents: [ { sensor_id: \"S1\", v: 21.5 } ], $clusterTime: { signature: 1 } }";
        assert_eq!(
            shortened(text),
            "not authorized on hb to execute command insert (sensor_buckets)"
        );
        for (command, name) in [
            ("{ aggregate: 1, pipeline: [] }", "aggregate"),
            ("{ listCollections: 1.0 }", "listCollections"),
            ("{ ping: 1 }", "ping"),
        ] {
            assert_eq!(
                shortened(&format!(
                    "not authorized on hb to execute command {command}"
                )),
                format!("not authorized on hb to execute command {name}")
            );
        }
        assert_eq!(
            shortened("command insert requires authentication"),
            "command insert requires authentication"
        );
    }

    #[test]
    fn an_error_of_this_crate_is_its_text() {
        let error = mongodb::error::Error::custom("Document failed validation".to_owned());
        assert_eq!(describe(&error), "Document failed validation");
    }

    #[test]
    fn a_text_is_limited() {
        let error = doc! { "errmsg": "ä".repeat(100_000) };
        let text = text_of(&error, "");
        assert!(text.len() < TEXT_MAX + 5 && text.ends_with('…'), "{text}");
        assert_eq!(text_of(&doc! {}, "refused"), "refused");
        let driver = mongodb::error::Error::from(std::io::Error::other("x".repeat(100_000)));
        assert!(describe(&driver).len() < TEXT_MAX + 5);
    }
}
