//! The store of the configuration, for commands that work on it.

use config::Config;
use model::Zone;
use store::mongo::{MongoStore, OptionalIndexes, RollupSchema, StoreConfigError};

pub(super) async fn store(config: &Config) -> Result<MongoStore, StoreConfigError> {
    let optional_indexes = OptionalIndexes {
        latest: config.latest.enabled,
        tags_index: config.store.tags_index,
    };
    let store = MongoStore::new(
        &config.store,
        config.bucket.span,
        config.dead_letters.retention,
    )
    .await?;
    let zone = Zone::from(config.rollup.zone);
    let retention = config.rollup.retention;
    let rollup = config
        .rollup
        .days
        .then_some(RollupSchema { zone, retention });
    Ok(store
        .with_latest_and_tags(optional_indexes)
        .with_rollup(rollup))
}
