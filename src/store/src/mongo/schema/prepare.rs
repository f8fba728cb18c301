//! Prepares the database before the first reading: detects the server, chooses the storage mode,
//! and creates the collections.
//!
//! The order limits the damage that a mistake can do: first the read-only checks (the server, and
//! what the database was written with), then the choice that determines everything else (whether
//! native time-series collections exist), then the rest.

use std::time::Duration;

use mongodb::bson::doc;

use crate::mongo::aliases;
use crate::mongo::catalog;
use crate::mongo::connection::is_mongos;
use crate::mongo::error::{command_error, describe};
use crate::mongo::pack::WriteConcern;
use crate::mongo::schema::Schema;
use crate::mongo::schema::advisories;
use crate::mongo::schema::collections::{self, Retention};
use crate::mongo::schema::days;
use crate::mongo::schema::detect;
use crate::mongo::schema::latest_and_tag_indexes;
use crate::mongo::schema::metadata;
use crate::mongo::setup::{SchemaError, Setup};
use crate::mongo::write::{fence, high_water};
use crate::retention::MARGIN;
use crate::{PrepareError, PrepareErrorEnd, PreparedStore, StoreErrorKind};
use config::StoreMode;
use model::StorageMode;
use model::collections::{BUCKETS, META, READINGS};

/// The server's description of itself.
struct Server {
    version: String,
    /// `replica set rs0`, `sharded cluster`, `standalone`.
    topology: String,
    /// Warnings that apply in any mode.
    warnings: Vec<String>,
}

impl Schema {
    /// See [`crate::Store::prepare`]. Then waits for statements of an earlier process.
    pub(crate) async fn prepare(&self) -> Result<PreparedStore, PrepareError> {
        let prepared = self.prepare_collections().await?;
        if self.detected.has_measurements() {
            let failed = |why: String, kind| PrepareError {
                detail: format!("waiting for statements of an earlier process: {why}"),
                end: PrepareErrorEnd::MayPass(kind),
            };
            let earlier = fence::wait_for_earlier(&self.connection);
            match tokio::time::timeout(self.connection.timeout(), earlier).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => return Err(failed(describe(&e), command_error(&e).kind())),
                Err(_) => {
                    let why = "the server still runs some (see db.currentOp())".to_owned();
                    return Err(failed(why, StoreErrorKind::Timeout));
                }
            }
        }
        Ok(prepared)
    }

    /// Returns a line that describes the server, and warnings for the operator. Changes nothing.
    ///
    /// # Errors
    /// The server is unreachable, the user lacks privileges, or the database cannot be used as
    /// configured.
    pub async fn inspect(&self) -> Result<(String, Vec<String>), SchemaError> {
        let setup = self.connection.setup();
        let mut server = self.server(&setup).await?;
        let found = self.settings.list_expected(&setup).await?;
        self.check_recorded(&setup).await?;
        let made = if found.get(BUCKETS).is_some() {
            "collections exist"
        } else {
            "collections will be created"
        };
        let (native, mode) = match (self.detected.configured(), found.get(READINGS)) {
            (StoreMode::Bucket, _) => (false, "store.mode is bucket".to_owned()),
            (_, Some(entry)) => {
                detect::fits(entry).map_err(|o| o.error(setup.db.name()))?;
                (
                    true,
                    format!("{READINGS} is a native time-series collection"),
                )
            }
            // Only creating the collection would prove it.
            (_, None) if advisories::may_be_native(&server.version) => (
                true,
                format!(
                    "{READINGS} will be created, as a native time-series collection if supported"
                ),
            ),
            (StoreMode::Timeseries, None) => {
                return Err(no_time_series(&format!("version {}", server.version)));
            }
            (StoreMode::Auto, None) => (
                false,
                "no native time-series before MongoDB 5.0, so bucket mode".to_owned(),
            ),
        };
        server
            .warnings
            .extend(advisories::warning(&server.version).filter(|_| native));
        Ok((
            format!(
                "MongoDB {}, {}, {made}, {mode}",
                server.version, server.topology
            ),
            server.warnings,
        ))
    }

    /// Refuses a database that was written with another span or by a newer version, or that has
    /// days of another zone, for commands that read or change buckets and days without preparing
    /// the database. Changes nothing.
    ///
    /// # Errors
    /// What does not match, and what to do; or the server is unreachable.
    pub async fn check_metadata(&self) -> Result<(), SchemaError> {
        self.check_recorded(&self.connection.setup()).await
    }

    /// Finds out what reading needs to know: the same checks, and where measurements are. Changes
    /// nothing.
    ///
    /// # Errors
    /// As [`Schema::check_metadata`].
    pub async fn prepare_reading(&self) -> Result<(), SchemaError> {
        let setup = self.connection.setup();
        self.server(&setup).await?;
        self.check_recorded(&setup).await?;
        let has_measurements = detect::is_there(&setup).await?;
        if has_measurements {
            self.detected.note_measurements();
        }
        self.detected.choose(match has_measurements {
            true => StorageMode::TimeSeries,
            false => StorageMode::Bucket,
        });
        Ok(())
    }

    async fn check_recorded(&self, setup: &Setup<'_>) -> Result<(), SchemaError> {
        metadata::check(setup, self.connection.span()).await?;
        match self.settings.rollup {
            Some(rollup) => days::check(setup, rollup.zone).await,
            None => Ok(()),
        }
    }

    /// Determines the mode, and creates or updates the collections.
    pub(super) async fn prepare_collections(&self) -> Result<PreparedStore, SchemaError> {
        let setup = self.connection.setup();
        let mut server = self.server(&setup).await?;
        let span = self.connection.span();
        let settings = &self.settings;
        let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::from(i32::MAX));
        let keep = Retention {
            buckets_s: settings.retention.map(seconds),
            measurements_s: settings
                .measurements_kept()
                .map(|kept| seconds(kept.saturating_add(MARGIN))),
            removes_readings: settings.retention_readings.is_some(),
            dead_letters_s: seconds(settings.retention_dead_letters),
        };
        let mut changes = vec![];
        settings.list_expected(&setup).await?;
        metadata::check(&setup, span).await?;
        let (native, why) = self
            .choose(&setup, keep.readings_s(span), &mut changes)
            .await?;
        if metadata::record_span(&setup, span).await? {
            changes.push(format!("noted bucket.span in {META}"));
        }
        changes.extend(collections::prepare(&setup, span, keep).await?);
        changes.extend(catalog::prepare(&setup).await?);
        changes.extend(aliases::prepare(&setup).await?);
        if high_water::create_if_missing(&setup).await? {
            changes.push(format!(
                "noted in {META} up to which hour buckets were written"
            ));
        }
        changes.extend(latest_and_tag_indexes::prepare(&setup, settings.optional_indexes).await?);
        if let Some(rollup) = settings.rollup {
            changes.extend(days::prepare(&setup, rollup, span).await?);
        }
        server
            .warnings
            .extend(advisories::warning(&server.version).filter(|_| native));
        if native || detect::is_there(&setup).await? {
            self.detected.note_measurements();
        }
        // Only the first time: if the mode changed, buckets in memory would use another one than
        // the store. A repeated preparation, after a later step failed, finds the same mode.
        self.detected.choose(match native {
            true => StorageMode::TimeSeries,
            false => StorageMode::Bucket,
        });
        let mode_reason = format!("{why} ({})", server.topology);
        Ok(PreparedStore {
            mode_reason,
            server_version: server.version,
            changes,
            warnings: server.warnings,
        })
    }

    /// Returns whether to use native time-series collections, and why.
    async fn choose(
        &self,
        setup: &Setup<'_>,
        expire_s: Option<i64>,
        changes: &mut Vec<String>,
    ) -> Result<(bool, String), SchemaError> {
        let configured = match self.detected.configured() {
            StoreMode::Bucket => return Ok((false, "store.mode is bucket".into())),
            StoreMode::Timeseries => "timeseries",
            StoreMode::Auto => "auto",
        };
        let missing = match detect::detect(setup, self.connection.span(), expire_s).await? {
            detect::Native::Fits { made } => {
                if made {
                    changes.push(format!("created time-series collection {READINGS}"));
                }
                let why = format!(
                    "store.mode is {configured}, and {READINGS} is a native time-series collection"
                );
                return Ok((true, why));
            }
            detect::Native::Missing(reason) => reason,
            detect::Native::Emulated => {
                "it created a plain collection instead, which was removed".into()
            }
        };
        if self.detected.configured() == StoreMode::Timeseries {
            return Err(no_time_series(&missing));
        }
        Ok((
            false,
            format!(
                "store.mode is auto, and the server has no native time-series collections: \
                 {missing}"
            ),
        ))
    }

    /// Describes the server, with warnings for the operator.
    async fn server(&self, setup: &Setup<'_>) -> Result<Server, SchemaError> {
        let build = setup
            .ask(doc! { "buildInfo": 1 })
            .await
            .map_err(|f| f.at("reading the server version"))?;
        let hello = setup
            .ask(doc! { "hello": 1 })
            .await
            .map_err(|f| f.at("reading the topology"))?;
        self.detected.note_server(&hello);
        let version = build.get_str("version").unwrap_or("unknown").to_owned();
        let mut warnings = vec![];
        let topology = match hello.get_str("setName") {
            Ok(set) => format!("replica set {set}"),
            Err(_) if is_mongos(&hello) => "sharded cluster".to_owned(),
            Err(_) => {
                let text = "the server is standalone: losing its disk loses all data, and \
                    measurements may be read twice while others are stored; use a replica set";
                warnings.push(text.to_owned());
                "standalone".to_owned()
            }
        };
        if self.connection.options().write_concern != WriteConcern::Majority {
            warnings.push(
                "store.write_concern is not majority: an acknowledged reading can be rolled back"
                    .to_owned(),
            );
        }
        Ok(Server {
            version,
            topology,
            warnings,
        })
    }
}

fn no_time_series(reason: &str) -> SchemaError {
    SchemaError::permanent(
        "store.mode is timeseries",
        format!(
            "the server has no native time-series collections ({reason}): use MongoDB 5.0 or \
             later, or set store.mode to auto or bucket"
        ),
    )
}
