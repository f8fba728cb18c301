//! The registry collection, and its change stream if the server supports one.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use mongodb::bson::{Document, RawBsonRef, RawDocument, RawDocumentBuf};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType};
use mongodb::error::ErrorKind;
use mongodb::options::{FullDocumentType, ReadConcern};
use mongodb::{Collection, Database};

use super::error::{command_error, describe};
use crate::registry::{
    RegistryChange, RegistryChanges, RegistryQuery, RegistryReader, RegistryRecord, RegistryWatch,
};
use crate::{BoxFuture, StoreError, StoreErrorKind};

#[derive(Debug)]
pub(super) struct MongoRegistry {
    collection: Collection<RawDocumentBuf>,
    query: RegistryQuery,
    timeout: Duration,
}

impl MongoRegistry {
    /// `timeout` applies to each command; a large collection needs many.
    pub(super) fn new(db: &Database, query: RegistryQuery, timeout: Duration) -> MongoRegistry {
        MongoRegistry {
            collection: db.collection(&query.collection),
            query,
            timeout,
        }
    }

    async fn limited<T>(
        &self,
        asked: impl Future<Output = mongodb::error::Result<T>>,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.timeout, asked).await {
            Ok(result) => result.map_err(|e| command_error(&e)),
            Err(_) => Err(StoreError::NotApplied {
                kind: StoreErrorKind::Timeout,
                detail: format!("no answer within store.timeout ({:?})", self.timeout),
            }),
        }
    }
}

impl RegistryReader for MongoRegistry {
    fn read_all<'a>(
        &'a self,
        each: &'a mut (dyn FnMut(RegistryRecord) + Send),
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let mut projection = Document::new();
            if !self.query.fields.is_empty() {
                projection.insert(&self.query.id_field, 1);
                projection.extend(
                    self.query
                        .fields
                        .iter()
                        .map(|field| (field.clone(), 1.into())),
                );
            }
            let find = self.collection.find(Document::new()).projection(projection);
            let mut cursor = self
                .limited(find.read_concern(ReadConcern::majority()).into_future())
                .await?;
            while let Some(document) = self.limited(cursor.try_next()).await? {
                record(&document, &self.query)
                    .into_iter()
                    .for_each(&mut *each);
            }
            Ok(())
        })
    }

    fn watch(&self) -> BoxFuture<'_, Result<RegistryWatch, StoreError>> {
        Box::pin(async move {
            let watch = self
                .collection
                .watch()
                .full_document(FullDocumentType::UpdateLookup);
            match tokio::time::timeout(self.timeout, watch.into_future()).await {
                Ok(Ok(stream)) => Ok(RegistryWatch::Changes(Box::new(Stream {
                    stream,
                    query: self.query.clone(),
                }))),
                // The server responded: it does not support change streams here.
                Ok(Err(error)) if matches!(error.kind.as_ref(), ErrorKind::Command(_)) => {
                    Ok(RegistryWatch::NotPossible(describe(&error)))
                }
                Ok(Err(error)) => Err(command_error(&error)),
                Err(_) => Err(StoreError::NotApplied {
                    kind: StoreErrorKind::Timeout,
                    detail: "no answer within store.timeout when opening a change stream".into(),
                }),
            }
        })
    }
}

struct Stream {
    stream: ChangeStream<ChangeStreamEvent<RawDocumentBuf>>,
    query: RegistryQuery,
}

impl RegistryChanges for Stream {
    fn next(&mut self) -> BoxFuture<'_, Result<RegistryChange, StoreError>> {
        Box::pin(async move {
            loop {
                let event = match self.stream.next().await {
                    Some(Ok(event)) => event,
                    Some(Err(error)) => return Err(command_error(&error)),
                    None => return Err(ended("the change stream ended")),
                };
                if let Some(change) = change(&event, &self.query)? {
                    return Ok(change);
                }
            }
        })
    }
}

fn ended(detail: &str) -> StoreError {
    StoreError::NotApplied {
        kind: StoreErrorKind::Registry,
        detail: detail.into(),
    }
}

/// Converts an event; `None` if it does not concern the registry.
fn change(
    event: &ChangeStreamEvent<RawDocumentBuf>,
    query: &RegistryQuery,
) -> Result<Option<RegistryChange>, StoreError> {
    // An event names its document by `_id`. Only if that is the sensor id does the event identify
    // the removed sensor.
    let by_key = query.id_field == "_id";
    let gone = || {
        let id = event
            .document_key
            .as_ref()
            .and_then(|key| RawDocumentBuf::try_from(key).ok());
        let id = id
            .as_ref()
            .filter(|_| by_key)
            .and_then(|key| id_text(key.get("_id").ok()??));
        id.map_or(RegistryChange::Unclear, RegistryChange::Remove)
    };
    let moved = event.update_description.as_ref().is_some_and(|u| {
        let touches = |path: &str| path.split('.').next() == query.id_field.split('.').next();
        u.updated_fields.keys().any(|k| touches(k)) || u.removed_fields.iter().any(|k| touches(k))
    });
    match event.operation_type {
        OperationType::Insert | OperationType::Update | OperationType::Replace => {
            if !by_key && (moved || event.operation_type == OperationType::Replace) {
                return Ok(Some(RegistryChange::Unclear));
            }
            Ok(match event.full_document.as_ref() {
                Some(document) => record(document, query).map(RegistryChange::Set),
                // Removed since the event.
                None => Some(gone()),
            })
        }
        OperationType::Delete => Ok(Some(gone())),
        OperationType::Drop
        | OperationType::Rename
        | OperationType::DropDatabase
        | OperationType::Invalidate => Err(ended("the registry collection was dropped or renamed")),
        _ => Ok(None),
    }
}

/// Extracts the requested fields; `None` if the document's id cannot be a sensor id.
fn record(document: &RawDocument, query: &RegistryQuery) -> Option<RegistryRecord> {
    let sensor_id = id_text(at(document, &query.id_field)?)?;
    let fields = if query.fields.is_empty() {
        let top = document.iter().filter_map(Result::ok);
        let wanted = top.filter(|(name, _)| !["_id", &query.id_field].contains(&name.as_str()));
        wanted
            .filter_map(|(name, value)| Some((name.as_str().to_owned(), text(value)?)))
            .collect()
    } else {
        query
            .fields
            .iter()
            .filter_map(|path| Some((path.clone(), text(at(document, path)?)?)))
            .collect()
    };
    Some(RegistryRecord { sensor_id, fields })
}

/// The value at a dotted path.
fn at<'a>(document: &'a RawDocument, path: &str) -> Option<RawBsonRef<'a>> {
    match path.split_once('.') {
        None => document.get(path).ok()?,
        Some((first, rest)) => at(document.get(first).ok()??.as_document()?, rest),
    }
}

/// A sensor id: a string, an integer or an ObjectId.
fn id_text(value: RawBsonRef<'_>) -> Option<String> {
    match value {
        RawBsonRef::String(_)
        | RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::ObjectId(_) => text(value),
        _ => None,
    }
}

/// A scalar as text; `None` for null, documents, lists and binary data.
fn text(value: RawBsonRef<'_>) -> Option<String> {
    Some(match value {
        RawBsonRef::String(v) => v.to_owned(),
        RawBsonRef::Boolean(v) => v.to_string(),
        RawBsonRef::Int32(v) => v.to_string(),
        RawBsonRef::Int64(v) => v.to_string(),
        RawBsonRef::Double(v) => v.to_string(),
        RawBsonRef::Decimal128(v) => v.to_string(),
        RawBsonRef::ObjectId(v) => v.to_hex(),
        RawBsonRef::DateTime(v) => v.try_to_rfc3339_string().ok()?,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::{DateTime, doc, rawdoc};

    fn query(id_field: &str, fields: &[&str]) -> RegistryQuery {
        let fields = fields.iter().map(|f| (*f).to_owned()).collect();
        RegistryQuery {
            collection: "sensors".into(),
            id_field: id_field.into(),
            fields,
        }
    }

    #[test]
    fn scalars_become_text_and_the_rest_is_left_out() {
        let document = RawDocumentBuf::try_from(&doc! {
            "_id": 7, "site": "north", "floor": 3i64, "gain": 1.5, "on": true, "none": null,
            "since": DateTime::from_millis(0), "place": { "room": "12" }, "list": [1],
        });
        let document = document.unwrap();
        let all = record(&document, &query("_id", &[])).unwrap();
        assert_eq!(all.sensor_id, "7");
        let pairs: Vec<_> = all.fields.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            pairs,
            [
                "site=north",
                "floor=3",
                "gain=1.5",
                "on=true",
                "since=1970-01-01T00:00:00Z"
            ]
        );
        let some = record(&document, &query("site", &["place.room", "gone", "place"])).unwrap();
        assert_eq!(
            (some.sensor_id, some.fields),
            ("north".into(), vec![("place.room".into(), "12".into())])
        );
        assert_eq!(record(&rawdoc! { "_id": 1.5 }, &query("_id", &[])), None);
    }
}
