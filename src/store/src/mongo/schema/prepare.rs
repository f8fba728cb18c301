//! Prepares the database before the first reading: detects the server, chooses the storage mode,
//! and creates the collections.
//!
//! The order limits the damage that a mistake can do: first the read-only checks (the server, and
//! what the database was written with), then the choice that determines everything else (whether
//! native time-series collections exist), then the rest.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mongodb::bson::{Document, doc};

use crate::PreparedStore;
use crate::mongo::MongoStore;
use crate::mongo::Native;
use crate::mongo::catalog;
use crate::mongo::catalog_state;
use crate::mongo::hello::is_mongos;
use crate::mongo::names::{BUCKETS, META, READINGS};
use crate::mongo::pack::WriteConcern;
use crate::mongo::schema::advisories;
use crate::mongo::schema::collections::{self, Retention};
use crate::mongo::schema::days;
use crate::mongo::schema::detect;
use crate::mongo::schema::latest_and_tag_indexes;
use crate::mongo::schema::metadata;
use crate::mongo::setup::{SchemaError, Setup};
use crate::mongo::write::high_water;
use crate::retention::MARGIN;
use config::StoreMode;

/// The server's description of itself.
struct Server {
    /// Its reply to `hello`.
    hello: Document,
    version: String,
    /// `replica set rs0`, `sharded cluster`, `standalone`.
    topology: String,
    /// Warnings that apply in any mode.
    warnings: Vec<String>,
}

impl MongoStore {
    /// Whether new buckets store their readings in the time-series collection. Before
    /// [`prepare`](Self::prepare_all): whether the configuration requires it.
    pub fn native(&self) -> bool {
        self.native
            .get()
            .map_or(self.mode == StoreMode::Timeseries, |native| native.chosen)
    }

    /// Whether there is a time-series collection, which may hold measurements of any bucket.
    pub fn measured(&self) -> bool {
        let there = |native: &Native| native.there.load(Ordering::Acquire);
        self.native.get().is_some_and(there)
    }

    /// Notes that there is a time-series collection: another process may create it while this one
    /// runs, a conversion or an instance in time-series mode.
    pub(crate) fn note_measured(&self) {
        if let Some(native) = self.native.get() {
            native.there.store(true, Ordering::Release);
        }
    }

    /// Returns a line that describes the server, and warnings for the operator. Changes nothing.
    ///
    /// # Errors
    /// The server is unreachable, the user lacks privileges, or the database cannot be used as
    /// configured.
    pub async fn inspect(&self) -> Result<(String, Vec<String>), SchemaError> {
        let setup = Setup::new(&self.db, &self.options);
        let mut server = self.server(&setup).await?;
        let found = self.list_expected(&setup).await?;
        metadata::check(&setup, self.options.span).await?;
        if let Some(rollup) = self.rollup {
            days::check(&setup, rollup.zone).await?;
        }
        let made = if found.get(BUCKETS).is_some() {
            "collections exist"
        } else {
            "collections will be created"
        };
        let (native, mode) = match (self.mode, found.get(READINGS)) {
            (StoreMode::Bucket, _) => (false, "store.mode is bucket".to_owned()),
            (_, Some(entry)) => {
                detect::fits(entry).map_err(|o| o.error(self.db.name()))?;
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
        let setup = Setup::new(&self.db, &self.options);
        metadata::check(&setup, self.options.span).await?;
        match self.rollup {
            Some(rollup) => days::check(&setup, rollup.zone).await,
            None => Ok(()),
        }
    }

    /// Determines the mode, and creates or updates the collections.
    pub(crate) async fn prepare_all(&self) -> Result<PreparedStore, SchemaError> {
        let setup = Setup::new(&self.db, &self.options);
        let mut server = self.server(&setup).await?;
        let span = self.options.span;
        let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::from(i32::MAX));
        let keep = Retention {
            buckets_s: self.retention.map(seconds),
            measurements_s: self
                .retention_readings
                .map(|kept| seconds(kept.saturating_add(MARGIN))),
            dead_letters_s: seconds(self.dead_letters_retention),
        };
        let mut changes = vec![];
        self.list_expected(&setup).await?;
        metadata::check(&setup, span).await?;
        let (native, why) = self
            .choose(&setup, keep.readings_s(span), &mut changes)
            .await?;
        if metadata::record_span(&setup, span).await? {
            changes.push(format!("noted bucket.span in {}", META));
        }
        self.with_gates
            .store(!is_mongos(&server.hello), Ordering::Release);
        changes.extend(collections::prepare(&setup, span, keep).await?);
        changes.extend(catalog::prepare(&setup).await?);
        self.catalog_complete
            .store(catalog_state::prepare(&setup).await?, Ordering::Relaxed);
        if high_water::create_if_missing(&setup).await? {
            changes.push(format!(
                "noted in {} up to which hour buckets were written",
                META
            ));
        }
        changes.extend(latest_and_tag_indexes::prepare(&setup, self.optional_indexes).await?);
        if let Some(rollup) = self.rollup {
            changes.extend(days::prepare(&setup, rollup).await?);
        }
        server
            .warnings
            .extend(advisories::warning(&server.version).filter(|_| native));
        // Set only once: if the mode changed, buckets in memory would use another one than the
        // store. A repeated preparation, after a later step failed, finds the same mode.
        let there = native || detect::is_there(&setup).await?;
        let _ = self.native.set(Native {
            chosen: native,
            there: there.into(),
        });
        if there {
            self.note_measured();
        }
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
        let configured = match self.mode {
            StoreMode::Bucket => return Ok((false, "store.mode is bucket".into())),
            StoreMode::Timeseries => "timeseries",
            StoreMode::Auto => "auto",
        };
        let missing = match detect::detect(setup, self.options.span, expire_s).await? {
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
        if self.mode == StoreMode::Timeseries {
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
        self.series.snapshot_reads.note(&hello);
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
        if self.options.write_concern != WriteConcern::Majority {
            warnings.push(
                "store.write_concern is not majority: an acknowledged reading can be rolled back"
                    .to_owned(),
            );
        }
        Ok(Server {
            hello,
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
