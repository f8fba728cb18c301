//! Shards the collections of a cluster (`hourbucket init --shard`).
//!
//! The shard key of pages is `{sensor_id, bucket_start}`. Every write contains both, so it targets
//! one shard, and a sensor's history can be split by time. The shard key of measurements is
//! `{"meta.sensor_id"}` alone: a key with the time field is allowed up to 7.0, but is deprecated
//! since 8.0 (SERVER-88647: chunks then split the server's own buckets), and neither can be undone
//! before 8.0.10. The cost: all measurements of one sensor stay on one shard.
//!
//! The catalogue is sharded by its `_id`, the sensor, and days and their columns by `{sensor_id,
//! day}`: every write names them. Both keys have their index already.

use mongodb::bson::{Document, doc};

use crate::mongo::connection::is_mongos;
use crate::mongo::schema::Schema;
use crate::mongo::schema::detect::{META_FIELD, fits};
use crate::mongo::setup::SchemaError;
use model::collections::{BUCKETS, CATALOG, COLUMNS, DAY_HOURS, DAYS, READINGS};

/// The commands in order: the index that the shard key of a non-empty collection needs (in the
/// database), then the sharding commands (in `admin`). All can be repeated.
struct Commands {
    index: Document,
    admin: Vec<Document>,
}

/// `days`: those collections of days that exist; `measurements`: whether these exist.
fn commands(database: &str, measurements: bool, days: &[&str]) -> Commands {
    let pages = doc! { "sensor_id": 1, "bucket_start": 1 };
    let index = doc! {
        "createIndexes": BUCKETS,
        "indexes": [{ "key": pages.clone(), "name": "shard_key" }],
    };
    let mut admin = vec![
        // Not needed since 6.0, but harmless there.
        doc! { "enableSharding": database },
        doc! { "shardCollection": format!("{database}.{BUCKETS}"), "key": pages },
        doc! { "shardCollection": format!("{database}.{CATALOG}"), "key": { "_id": 1 } },
    ];
    for name in days {
        let key = doc! { "sensor_id": 1, "day": 1 };
        admin.push(doc! { "shardCollection": format!("{database}.{name}"), "key": key });
    }
    if measurements {
        let key = doc! { format!("{META_FIELD}.sensor_id"): 1 };
        admin.push(doc! { "shardCollection": format!("{database}.{READINGS}"), "key": key });
    }
    Commands { index, admin }
}

impl Schema {
    /// Refuses a server that cannot shard. Changes nothing.
    ///
    /// # Errors
    /// The server is not a mongos; the text includes what to do.
    pub async fn can_shard(&self) -> Result<(), SchemaError> {
        let setup = self.connection.setup();
        let hello = setup
            .ask(doc! { "hello": 1 })
            .await
            .map_err(|f| f.at("reading the topology"))?;
        if is_mongos(&hello) {
            return Ok(());
        }
        let what = hello.get_str("setName").map_or_else(
            |_| "a standalone server".into(),
            |s| format!("replica set {s}"),
        );
        let detail = format!(
            "store.uri points to {what}, not to a mongos of a sharded cluster: omit --shard, or \
             set store.uri to a mongos; nothing was changed"
        );
        Err(SchemaError::permanent("init --shard", detail))
    }

    /// Shards the collections, which [`prepare`](crate::Store::prepare) has created. Returns
    /// one line per command.
    ///
    /// # Errors
    /// The first step that failed.
    pub async fn shard(&self) -> Result<Vec<String>, SchemaError> {
        self.can_shard().await?;
        let setup = self.connection.setup();
        let days = [DAYS, COLUMNS, DAY_HOURS];
        let found = setup
            .list(&[READINGS].into_iter().chain(days).collect::<Vec<_>>())
            .await?;
        let measurements = found.get(READINGS).is_some_and(|f| fits(f).is_ok());
        let days = days.into_iter().filter(|name| found.get(name).is_some());
        let days: Vec<&str> = days.collect();
        let commands = commands(self.connection.db().name(), measurements, &days);
        setup
            .change(commands.index)
            .await
            .map_err(|f| f.at("creating the index of the shard key"))?;
        let admin = self.connection.db().client().database("admin");
        let mut done = vec![];
        for command in commands.admin {
            let what = command
                .iter()
                .next()
                .map(|(name, of)| format!("{name} {of}"))
                .unwrap_or_default();
            setup
                .change_in(&admin, command)
                .await
                .map_err(|f| f.at(&what))?;
            done.push(what);
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_name_the_collections_and_their_keys() {
        let all = commands("db", true, &["sensor_days"]);
        let pages = doc! { "sensor_id": 1, "bucket_start": 1 };
        assert_eq!(
            all.admin,
            [
                doc! { "enableSharding": "db" },
                doc! { "shardCollection": "db.sensor_buckets", "key": pages.clone() },
                doc! { "shardCollection": "db.sensor_catalog", "key": { "_id": 1 } },
                doc! { "shardCollection": "db.sensor_days", "key": { "sensor_id": 1, "day": 1 } },
                doc! { "shardCollection": "db.sensor_readings", "key": { "meta.sensor_id": 1 } },
            ]
        );
        let index = doc! { "createIndexes": "sensor_buckets", "indexes": [{ "key": pages, "name": "shard_key" }] };
        assert_eq!(all.index, index);
        assert_eq!(
            commands("db", false, &[]).admin,
            all.admin[..3],
            "without measurements and days"
        );
    }

    #[test]
    fn only_a_mongos_can_shard() {
        assert!(is_mongos(
            &doc! { "msg": "isdbgrid", "isWritablePrimary": true }
        ));
        assert!(
            !is_mongos(&doc! { "setName": "rs0" })
                && !is_mongos(&doc! { "isWritablePrimary": true })
        );
    }
}
