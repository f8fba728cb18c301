//! `sensor_aliases`, and what instances know of it: `hourbucket_meta` has the version
//! (`{_id: "aliases", version}`) and, for each instance, the version that it has confirmed and when it
//! was last seen (`{_id: "aliases/<instance>", version, at}`).

use futures_util::TryStreamExt;
use mongodb::bson::{DateTime, Document, doc};

use crate::aliases::{ALIASES_MAX, AliasStore};
use crate::mongo::connection::Connection;
use crate::mongo::setup::{SchemaError, Setup};
use crate::{BoxFuture, StoreError};
use model::Alias;
use model::collections::{ALIASES, META};

const VERSION: &str = "aliases";
const INSTANCES: &str = "aliases/";
/// Instances that were not seen for so long are forgotten.
const FORGOTTEN_MS: i64 = 7 * 24 * 3600 * 1000;

/// Creates the collection if it is missing. Returns one line if it did.
///
/// # Errors
/// The command failed.
pub(super) async fn prepare(setup: &Setup<'_>) -> Result<Option<String>, SchemaError> {
    let found = setup.list(&[ALIASES]).await?;
    let schema = doc! { "$jsonSchema": {
        "required": ["_id", "sensor_id"],
        "properties": {
            "_id": { "bsonType": "string" },
            "sensor_id": { "bsonType": "string" },
            "from": { "bsonType": "date" },
        },
    } };
    let options = doc! { "validator": schema };
    setup.create_missing(&found, ALIASES, &options).await
}

/// Reads aliases, and reads and writes what instances know of them.
#[derive(Debug, Clone)]
pub(super) struct MongoAliases {
    connection: Connection,
}

/// An instance as it was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeenInstance {
    pub(super) instance: String,
    /// The version that it has confirmed.
    pub(super) version: i64,
    /// By the clock of the server, ms since 1970.
    pub(super) at_ms: i64,
}

impl MongoAliases {
    pub(super) fn new(connection: Connection) -> MongoAliases {
        MongoAliases { connection }
    }

    /// Sets an alias, durably (majority).
    pub(super) async fn set(&self, alias: &Alias) -> Result<(), StoreError> {
        let mut document = doc! { "_id": &*alias.former, "sensor_id": &*alias.sensor_id };
        document.extend(
            alias
                .from_ms
                .map(|from_ms| ("from".to_owned(), DateTime::from_millis(from_ms).into())),
        );
        let update = doc! { "q": { "_id": &*alias.former }, "u": document, "upsert": true };
        self.update(ALIASES, update).await
    }

    /// Lets the former ids of `former` count for `sensor_id` directly.
    pub(super) async fn shorten(&self, former: &str, sensor_id: &str) -> Result<(), StoreError> {
        let set = doc! { "$set": { "sensor_id": sensor_id } };
        let update = doc! { "q": { "sensor_id": former }, "u": set, "multi": true };
        self.update(ALIASES, update).await
    }

    /// Counts up the version, and returns it.
    pub(super) async fn next_version(&self) -> Result<i64, StoreError> {
        let count = doc! { "$inc": { "version": 1i64 } };
        let update = doc! { "q": { "_id": VERSION }, "u": count, "upsert": true };
        self.update(META, update).await?;
        self.version().await
    }

    /// The instances that were seen within a week.
    pub(super) async fn instances(&self) -> Result<Vec<SeenInstance>, StoreError> {
        let meta = self.connection.majority::<Document>(META);
        let ids = doc! { "$gte": INSTANCES, "$lt": "aliases0" };
        let read = async move {
            let found = meta.find(doc! { "_id": ids }).await?;
            found.try_collect::<Vec<Document>>().await
        };
        let found = self.connection.ask(read).await?;
        let seen = |document: &Document| {
            let id = document.get_str("_id").ok()?;
            Some(SeenInstance {
                instance: id.strip_prefix(INSTANCES)?.to_owned(),
                version: document.get_i64("version").ok()?,
                at_ms: document.get_datetime("at").ok()?.timestamp_millis(),
            })
        };
        Ok(found.iter().filter_map(seen).collect())
    }

    async fn update(&self, collection: &str, update: Document) -> Result<(), StoreError> {
        let command = doc! { "update": collection, "updates": [update] };
        self.connection.apply_all(command).await.map(drop)
    }
}

impl AliasStore for MongoAliases {
    fn version(&self) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(async move {
            let meta = self.connection.majority::<Document>(META);
            let find = async move { meta.find_one(doc! { "_id": VERSION }).await };
            let found = self.connection.ask(find).await?;
            Ok(found
                .and_then(|found| found.get_i64("version").ok())
                .unwrap_or(0))
        })
    }

    fn aliases(&self) -> BoxFuture<'_, Result<Vec<Alias>, StoreError>> {
        Box::pin(async move {
            let aliases = self.connection.majority::<Document>(ALIASES);
            let read = async move {
                let find = aliases.find(doc! {}).limit(ALIASES_MAX as i64 + 1);
                find.await?.try_collect::<Vec<Document>>().await
            };
            let found = self.connection.ask(read).await?;
            Ok(found.iter().filter_map(alias_of).collect())
        })
    }

    fn confirm<'a>(
        &'a self,
        instance: &'a str,
        version: i64,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let seen = doc! { "$set": { "version": version }, "$currentDate": { "at": true } };
            let id = format!("{INSTANCES}{instance}");
            let update = doc! { "q": { "_id": id }, "u": seen, "upsert": true };
            let command = doc! { "update": META, "updates": [update] };
            let reply = self.connection.confirm(command).await?;
            if reply.contains_key("upserted") {
                let before =
                    DateTime::from_millis(DateTime::now().timestamp_millis() - FORGOTTEN_MS);
                let old = doc! { "_id": { "$gte": INSTANCES, "$lt": "aliases0" }, "at": { "$lt": before } };
                let command = doc! { "delete": META, "deletes": [{ "q": old, "limit": 0 }] };
                self.connection.apply_all(command).await?;
            }
            Ok(())
        })
    }

    fn retire<'a>(&'a self, instance: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let id = format!("{INSTANCES}{instance}");
            let command = doc! { "delete": META, "deletes": [{ "q": { "_id": id }, "limit": 1 }] };
            self.connection.apply_all(command).await.map(drop)
        })
    }
}

/// `None` for a document that hourbucket cannot have written.
fn alias_of(document: &Document) -> Option<Alias> {
    let from = document.get("from");
    Some(Alias {
        former: document.get_str("_id").ok()?.into(),
        sensor_id: document.get_str("sensor_id").ok()?.into(),
        from_ms: match from {
            None => None,
            Some(from) => Some(from.as_datetime()?.timestamp_millis()),
        },
    })
}
