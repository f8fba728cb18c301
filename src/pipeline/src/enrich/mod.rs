//! Enrich: tags of sensors from a registry collection that the operator maintains (`[enrich]`),
//! copied into pages and measurements when these are written (the extended reference pattern). Off
//! by default.
//!
//! ```text
//!  registry collection ─[store::registry]─> task ─[Registry]<─ shards, once per write
//! ```
//!
//! **Precedence.** A tag in the message wins over the registry's tag of the same name, because the
//! sensor sent it with the measurement; the registry adds the others. A page has the tags of the
//! time it was created. So the history of a sensor that was moved is kept, and the next page has
//! the new tags.
//!
//! **Updates.** The registry is read in full before the first write, once the store is available.
//! If that fails the service starts anyway, and pages lack these tags until it succeeds. After that
//! a change stream delivers each change. On a server without change streams (standalone, a view,
//! missing rights) the registry is read in full again every `enrich.interval`.
//!
//! **Memory.** Sensor ids and tags of at most `enrich.max_sensors`; sensors with equal tags share
//! them. Sensors beyond the limit are counted and logged, and get no tags. During a full read there
//! are two copies.
//!
//! **Cost.** One lookup under a read lock per page write, none per reading. The write lock is held
//! while one change is applied or a complete map is swapped in, never during a read from the store.

mod registry;

pub use registry::Registry;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use config::{Decoding, Live};
use registry::TagMap;
use store::StoreError;
use store::registry::{RegistryChange, RegistryChanges, RegistryReader, RegistryWatch};
use telemetry::metrics::{self, LoadResult};

/// The task that keeps a [`Registry`] up to date.
pub struct Enrichment {
    reader: Arc<dyn RegistryReader>,
    registry: Registry,
    /// Its limits apply to tags.
    decoding: Live<Decoding>,
    interval: Duration,
    sensors_max: usize,
    changes: Option<Box<dyn RegistryChanges>>,
    /// Messages that were logged and still hold.
    logged: HashSet<&'static str>,
}

impl Enrichment {
    /// `interval`: `enrich.interval`; `sensors_max`: `enrich.max_sensors`. Nothing is read yet.
    pub fn new(
        reader: Arc<dyn RegistryReader>,
        registry: Registry,
        decoding: Live<Decoding>,
        interval: Duration,
        sensors_max: usize,
    ) -> Enrichment {
        Enrichment {
            reader,
            registry,
            decoding,
            interval,
            sensors_max,
            changes: None,
            logged: HashSet::new(),
        }
    }

    /// Opens the change stream if possible, then reads the registry in full, so that no change in
    /// between is missed. One attempt; call it before the first write.
    pub async fn refresh(&mut self) {
        match self.reader.watch().await {
            Ok(RegistryWatch::Changes(changes)) => {
                self.logged.remove("interval");
                self.changes = Some(changes);
            }
            Ok(RegistryWatch::NotPossible(why)) => {
                self.changes = None;
                if self.logged.insert("interval") {
                    tracing::info!(reason = %why, "registry has no change stream; reading it every \
                        enrich.interval");
                }
            }
            // The read that follows reports the same error.
            Err(_) => self.changes = None,
        }
        if let Err(error) = self.load().await {
            self.changes = None;
            if self.logged.insert("unread") {
                tracing::warn!(%error, "registry not readable; pages get the tags known so far");
            }
        }
    }

    /// Runs forever; call after the first [`Enrichment::refresh`].
    pub async fn run(mut self) {
        loop {
            if let Some(changes) = self.changes.take() {
                let error = self.follow(changes).await;
                tracing::debug!(%error, "registry change stream ended");
            }
            tokio::time::sleep(self.interval).await;
            self.refresh().await;
        }
    }

    /// Applies changes until the stream fails. After an unclear change the registry is read in
    /// full, after an interval.
    async fn follow(&mut self, mut changes: Box<dyn RegistryChanges>) -> StoreError {
        let mut again_at: Option<Instant> = None;
        loop {
            let again = async {
                match again_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                change = changes.next() => match change {
                    Ok(RegistryChange::Unclear) => again_at = again_at.or(Some(Instant::now() + self.interval)),
                    Ok(change) => self.take_over(change),
                    Err(error) => return error,
                },
                () = again => match self.load().await {
                    Ok(()) => again_at = None,
                    Err(error) => return error,
                },
            }
        }
    }

    fn take_over(&self, change: RegistryChange) {
        let decoding = self.decoding.now();
        let counts = self.registry.change(|map| {
            match change {
                RegistryChange::Set(record) => map.set(record, &decoding.limits, self.sensors_max),
                RegistryChange::Remove(sensor_id) => map.remove(&sensor_id),
                RegistryChange::Unclear => {}
            }
            (map.len() as u64, map.left_out)
        });
        metrics::registry_changes_total(1);
        if let Some((sensors, left_out)) = counts {
            metrics::registry_sensors(sensors);
            metrics::registry_left_out(left_out);
        }
    }

    async fn load(&mut self) -> Result<(), StoreError> {
        let mut map = TagMap::default();
        let begun = Instant::now();
        let decoding = self.decoding.now();
        let read = self
            .reader
            .read_all(&mut |record| map.set(record, &decoding.limits, self.sensors_max))
            .await;
        let result = if read.is_ok() {
            LoadResult::Ok
        } else {
            LoadResult::Failed
        };
        metrics::registry_loads_total(result, 1);
        read?;
        let sensors = map.len();
        let left_out = map.left_out;
        let bad = map.bad_fields;
        self.registry.replace(map);
        metrics::registry_sensors(sensors as u64);
        metrics::registry_left_out(left_out);
        tracing::debug!(
            sensors,
            took_ms = begun.elapsed().as_millis() as u64,
            "registry read"
        );
        self.logged.remove("unread");
        if left_out > 0 && self.logged.insert("left out") {
            tracing::warn!(
                sensors = left_out,
                "registry exceeds enrich.max_sensors; skipping the rest"
            );
        }
        if bad > 0 && self.logged.insert("bad fields") {
            tracing::warn!(
                fields = bad,
                "skipping registry fields beyond limits.name_max_bytes, limits.string_max_bytes or \
                 limits.tags_max"
            );
        }
        Ok(())
    }
}
