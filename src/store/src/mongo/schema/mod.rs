//! Collections, indexes, validators and views: the required state, the existing one, and how one
//! becomes the other.

pub(super) mod advisories;
pub(super) mod collections;
pub(super) mod columns;
pub(super) mod days;
pub(super) mod detect;
pub(super) mod dropped;
pub(super) mod foreign;
pub(super) mod kinds;
pub(super) mod latest_and_tag_indexes;
pub(super) mod metadata;
pub(super) mod prepare;
pub(super) mod sharding;
pub(super) mod view;

use std::sync::Arc;
use std::time::Duration;

use crate::mongo::connection::Connection;
use crate::mongo::detected::Detected;
use days::RollupSchema;
use dropped::Prepared;
use latest_and_tag_indexes::OptionalIndexes;
use model::Zone;

/// Prepares and checks all collections and views, and `hourbucket_meta`.
#[derive(Debug, Clone)]
pub struct Schema {
    connection: Connection,
    /// The preparation finds out what others use.
    detected: Arc<Detected>,
    settings: Settings,
    /// The collections as they were prepared.
    prepared: Arc<Prepared>,
}

/// The settings that the collections depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// `store.retention`
    pub(super) retention: Option<Duration>,
    /// `store.retention_readings`
    pub(super) retention_readings: Option<Duration>,
    /// `dead_letters.retention`
    pub(super) retention_dead_letters: Duration,
    pub(super) optional_indexes: OptionalIndexes,
    /// `rollup.days` or `columns.enabled`
    pub(super) rollup: Option<RollupSchema>,
}

impl Settings {
    fn columns_zone(&self) -> Option<Zone> {
        let rollup = self.rollup?;
        rollup.columns.is_some().then_some(rollup.zone)
    }

    /// How long measurements are kept, if they expire before their summaries. With columns they do
    /// not: the server does not ask whether they are in columns ([`crate::tier`]).
    pub(super) fn measurements_kept(&self) -> Option<Duration> {
        self.retention_readings
            .filter(|_| self.columns_zone().is_none())
    }
}

impl Schema {
    pub(super) fn new(
        connection: Connection,
        detected: Arc<Detected>,
        settings: Settings,
    ) -> Schema {
        Schema {
            connection,
            detected,
            settings,
            prepared: Arc::default(),
        }
    }

    /// The zone of the days in columns; `None` without columns.
    pub(super) fn columns_zone(&self) -> Option<Zone> {
        self.settings.columns_zone()
    }

    /// The same with these optional indexes.
    pub(super) fn with_optional_indexes(mut self, optional_indexes: OptionalIndexes) -> Schema {
        self.settings.optional_indexes = optional_indexes;
        self
    }

    /// Its settings with the collections of days.
    pub(super) fn settings_with(&self, rollup: Option<RollupSchema>) -> Settings {
        Settings {
            rollup,
            ..self.settings
        }
    }
}
