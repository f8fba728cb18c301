//! Commands that inspect and change the collections, and the classification of their errors.
//!
//! Commands that change something use the same write concern as all other writes. If a failover
//! rolled back a collection, an index or the metadata, the stored readings would have no
//! description.

use mongodb::Database;
use mongodb::bson::{Document, doc};

use crate::mongo::error::{command_code, command_error, describe, text_of};
use crate::mongo::pack::CommandOptions;
use crate::{PrepareError, PrepareErrorEnd, StoreErrorKind};
use model::collections::META;

pub(super) const UNAUTHORIZED: i32 = 13;
pub(super) const NAMESPACE_NOT_FOUND: i32 = 26;
const INDEX_NOT_FOUND: i32 = 27;
pub(super) const NAMESPACE_EXISTS: i32 = 48;
pub(super) const INDEX_OPTIONS_CONFLICT: i32 = 85;
pub(super) const INDEX_KEY_SPECS_CONFLICT: i32 = 86;
pub(super) const DUPLICATE_KEY: i32 = 11000;

/// Error codes with which servers and emulations report an unknown option: BadValue, FailedToParse,
/// CommandNotFound, InvalidOptions, CommandNotSupported, NotImplemented, an unsupported feature
/// (303), and unknown field (40415; MongoDB 4.4).
pub(super) const UNKNOWN_OPTION: [i32; 8] = [2, 9, 59, 72, 115, 238, 303, 40415];

/// An error while the collections are inspected, prepared or sharded, with a text for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {detail}")]
pub struct SchemaError {
    /// The step that failed.
    pub(super) step: String,
    /// The reason, and what to do.
    pub(super) detail: String,
    /// What ends it.
    pub(super) end: PrepareErrorEnd,
    /// The driver's error, if a command failed.
    pub(super) source: Option<Box<mongodb::error::Error>>,
}

impl SchemaError {
    /// An error that needs an operator's action; a retry cannot succeed.
    pub(super) fn permanent(step: impl Into<String>, detail: impl Into<String>) -> SchemaError {
        SchemaError::new(step, detail, PrepareErrorEnd::Operator)
    }

    pub(super) fn new(
        step: impl Into<String>,
        detail: impl Into<String>,
        end: PrepareErrorEnd,
    ) -> SchemaError {
        SchemaError {
            step: step.into(),
            detail: detail.into(),
            end,
            source: None,
        }
    }

    /// Whether the server did not answer, or could not: this says nothing about the database.
    pub(super) fn is_of_the_connection(&self) -> bool {
        matches!(self.end, PrepareErrorEnd::MayPass(kind) if kind != StoreErrorKind::Command)
    }
}

impl From<SchemaError> for PrepareError {
    fn from(error: SchemaError) -> PrepareError {
        PrepareError {
            detail: error.to_string(),
            end: error.end,
        }
    }
}

/// A command that failed.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    /// The server's error code, if the server responded.
    pub(super) code: Option<i32>,
    /// The server's error text.
    pub(super) detail: String,
    /// What failed.
    pub(super) kind: StoreErrorKind,
    /// The driver's error; `None` if the server reported the failure in a reply.
    pub(super) source: Option<Box<mongodb::error::Error>>,
}

/// The driver's errors cannot be compared.
impl PartialEq for Failure {
    fn eq(&self, other: &Failure) -> bool {
        (self.code, &self.detail, self.kind) == (other.code, &other.detail, other.kind)
    }
}

impl Eq for Failure {}

impl Failure {
    fn new(error: &mongodb::error::Error) -> Failure {
        Failure {
            code: command_code(error),
            detail: describe(error),
            kind: command_error(error).kind(),
            source: Some(Box::new(error.clone())),
        }
    }

    /// What ends it. Whatever a server answers may pass, except that rights are missing.
    fn end(&self) -> PrepareErrorEnd {
        match self.code {
            Some(UNAUTHORIZED) => PrepareErrorEnd::Rights,
            _ => PrepareErrorEnd::MayPass(self.kind),
        }
    }

    /// Adds the failed step, and advice if privileges are missing.
    pub(super) fn at(self, step: impl Into<String>) -> SchemaError {
        let advice = match self.code {
            Some(UNAUTHORIZED) => {
                "; grant the user of store.uri the roles readWrite and dbAdmin on this database, \
                 or run `hourbucket init` once as a user with these roles (the service itself then \
                 needs only readWrite)"
            }
            _ => "",
        };
        let detail = format!("{}{advice}", self.detail);
        SchemaError {
            source: self.source.clone(),
            ..SchemaError::new(step, detail, self.end())
        }
    }
}

/// The database that is prepared.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    pub(super) db: &'a Database,
    write_concern: Document,
}

impl<'a> Setup<'a> {
    pub(super) fn new(db: &'a Database, options: &CommandOptions) -> Setup<'a> {
        let write_concern =
            doc! { "w": options.write_concern.w(), "wtimeout": options.wtimeout_ms };
        Setup { db, write_concern }
    }

    /// Runs a command that changes nothing.
    pub(super) async fn ask(&self, command: Document) -> Result<Document, Failure> {
        self.db
            .run_command(command)
            .await
            .map_err(|e| Failure::new(&e))
    }

    /// Runs a query and returns its first document.
    pub(super) async fn first(&self, query: Document) -> Result<Option<Document>, Failure> {
        let reply = self.ask(query).await?;
        Ok(first_batch(&reply).into_iter().next())
    }

    /// Runs a command that changes something, with the write concern.
    pub(super) async fn change(&self, command: Document) -> Result<Document, Failure> {
        self.change_in(self.db, command).await
    }

    /// The same on another database, such as `admin`.
    pub(super) async fn change_in(
        &self,
        db: &Database,
        mut command: Document,
    ) -> Result<Document, Failure> {
        command.insert("writeConcern", self.write_concern.clone());
        let reply = db
            .run_command(command)
            .await
            .map_err(|e| Failure::new(&e))?;
        match reply.get_document("writeConcernError") {
            // Applied, but not on as many members as requested. The caller retries; every step is
            // idempotent.
            Ok(concern) => Err(Failure {
                code: concern.get_i32("code").ok(),
                detail: text_of(concern, "write concern not satisfied"),
                kind: StoreErrorKind::WriteConcern,
                source: None,
            }),
            Err(_) => Ok(reply),
        }
    }

    /// Returns the document of [`META`] with this id, and whether it was inserted now, because it
    /// did not exist.
    pub(super) async fn find_or_insert(
        &self,
        id: &str,
        fields: Document,
    ) -> Result<(Document, bool), Failure> {
        let command = doc! {
            "findAndModify": META,
            "query": { "_id": id },
            "update": { "$setOnInsert": fields },
            "upsert": true,
            "new": true,
        };
        let reply = match self.change(command.clone()).await {
            // Another instance inserted it concurrently, so now it is found.
            Err(failure) if failure.code == Some(DUPLICATE_KEY) => self.change(command).await?,
            reply => reply?,
        };
        let existed = reply
            .get_document("lastErrorObject")
            .and_then(|o| o.get_bool("updatedExisting"))
            .unwrap_or(false);
        match reply.get_document("value") {
            Ok(found) => Ok((found.clone(), !existed)),
            Err(_) => Err(Failure {
                code: None,
                detail: "the server did not return the document after the upsert".into(),
                kind: StoreErrorKind::Command,
                source: None,
            }),
        }
    }

    /// Creates a collection with zstd compression, or without it if the server does not know storage
    /// options. After any other error it is tried with compression again: a collection keeps what
    /// it was created with.
    pub(super) async fn create(&self, name: &str, options: &Document) -> Result<(), Failure> {
        let mut plain = doc! { "create": name };
        plain.extend(options.clone());
        let mut compressed = plain.clone();
        compressed.insert(
            "storageEngine",
            doc! { "wiredTiger": { "configString": "block_compressor=zstd" } },
        );
        match self.change(compressed).await {
            Err(failure)
                if failure
                    .code
                    .is_some_and(|code| UNKNOWN_OPTION.contains(&code)) =>
            {
                self.change(plain).await.map(drop)
            }
            done => done.map(drop),
        }
    }

    /// Creates a collection that is not in `found`. Returns a line if it did: another instance may
    /// have created it first.
    pub(super) async fn create_missing(
        &self,
        found: &Listing,
        name: &str,
        options: &Document,
    ) -> Result<Option<String>, SchemaError> {
        if found.get(name).is_some() {
            return Ok(None);
        }
        match self.create(name, options).await {
            Ok(()) => Ok(Some(format!("created collection {name}"))),
            Err(Failure {
                code: Some(NAMESPACE_EXISTS),
                ..
            }) => Ok(None),
            Err(failure) => Err(failure.at(format!("creating collection {name}"))),
        }
    }

    /// Drops an index; returns whether there was one.
    pub(super) async fn drop_index(&self, collection: &str, name: &str) -> Result<bool, Failure> {
        let drop = doc! { "dropIndexes": collection, "index": name };
        match self.change(drop).await {
            Ok(_) => Ok(true),
            Err(Failure {
                code: Some(INDEX_NOT_FOUND | NAMESPACE_NOT_FOUND),
                ..
            }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Creates an index. One with the same keys and another name will do: queries name the keys.
    pub(super) async fn create_index(
        &self,
        collection: &str,
        index: Document,
    ) -> Result<(), SchemaError> {
        let name = index.get_str("name").unwrap_or_default().to_owned();
        let command = doc! { "createIndexes": collection, "indexes": [index] };
        let failure = match self.change(command).await {
            Ok(_)
            | Err(Failure {
                code: Some(INDEX_OPTIONS_CONFLICT),
                ..
            }) => return Ok(()),
            Err(failure) => failure,
        };
        let is_other = failure.code == Some(INDEX_KEY_SPECS_CONFLICT)
            && self.has_index(collection, &name).await?;
        let error = failure.at(format!("creating an index of {collection}"));
        if !is_other {
            return Err(error);
        }
        Err(SchemaError {
            detail: format!(
                "{}; an index of that name with other keys or options exists: drop it with \
                 db.{collection}.dropIndex(\"{name}\"), and hourbucket creates its own",
                error.detail
            ),
            end: PrepareErrorEnd::Operator,
            ..error
        })
    }

    /// Whether a collection exists and has an index of this name.
    pub(super) async fn has_index(
        &self,
        collection: &str,
        name: &str,
    ) -> Result<bool, SchemaError> {
        let reply = match self.ask(doc! { "listIndexes": collection }).await {
            Err(failure) if failure.code == Some(NAMESPACE_NOT_FOUND) => return Ok(false),
            reply => reply.map_err(|f| f.at(format!("listing the indexes of {collection}")))?,
        };
        let is_named = |index: &Document| index.get_str("name").is_ok_and(|n| n == name);
        Ok(first_batch(&reply).iter().any(is_named))
    }

    /// Lists the named collections and views.
    pub(super) async fn list(&self, names: &[&str]) -> Result<Listing, SchemaError> {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let command = doc! { "listCollections": 1, "filter": { "name": { "$in": names } } };
        let step = "listing the collections (listCollections)";
        let reply = self.ask(command).await.map_err(|f| f.at(step))?;
        Ok(Listing(first_batch(&reply)))
    }
}

/// The first batch of a cursor. It is complete for lists of collections by name and of indexes: a
/// collection has at most 64.
pub(super) fn first_batch(reply: &Document) -> Vec<Document> {
    let batch = reply
        .get_document("cursor")
        .and_then(|c| c.get_array("firstBatch"));
    batch
        .map(|b| b.iter().filter_map(|d| d.as_document().cloned()).collect())
        .unwrap_or_default()
}

/// The entries that `listCollections` returned.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listing(pub(super) Vec<Document>);

impl Listing {
    /// The entry of a collection or view.
    pub(super) fn get(&self, name: &str) -> Option<&Document> {
        self.0
            .iter()
            .find(|d| d.get_str("name").is_ok_and(|n| n == name))
    }

    /// The options it was created with, including later changes.
    pub(super) fn options(&self, name: &str) -> Option<&Document> {
        self.get(name)?.get_document("options").ok()
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn whatever_a_server_answers_may_pass_except_that_rights_are_missing() {
        // SnapshotTooOld, AtlasError, OutOfDiskSpace, and codes that no server has.
        for code in [239, 8000, 14031, 4242, -1] {
            let failure = Failure {
                code: Some(code),
                detail: "no".to_owned(),
                kind: StoreErrorKind::Command,
                source: None,
            };
            let end = PrepareErrorEnd::MayPass(StoreErrorKind::Command);
            assert_eq!(failure.clone().at("a step").end, end, "{code}");
            let without_rights = Failure {
                code: Some(UNAUTHORIZED),
                ..failure
            };
            assert_eq!(without_rights.at("a step").end, PrepareErrorEnd::Rights);
        }
        let final_one = SchemaError::permanent("a step", "a reason");
        assert_eq!(final_one.end, PrepareErrorEnd::Operator);
    }

    #[test]
    fn an_error_of_a_command_keeps_the_drivers_error_as_its_source() {
        let error = mongodb::error::Error::custom("no such host");
        let failure = Failure::new(&error).at("listing the collections");
        assert!(failure.to_string().starts_with("listing the collections: "));
        assert_eq!(
            failure.source().expect("the driver's error").to_string(),
            error.to_string()
        );
        assert!(
            SchemaError::permanent("a step", "a reason")
                .source()
                .is_none()
        );
    }
}
