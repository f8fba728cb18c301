//! Starts what computes days: one task per shard, one that recovers marks, and its gauges and health.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use columns::{FieldRule, Line, Weighting, Weightings};
use tokio::task::JoinHandle;

use super::StartError;
use super::context::ServiceContext;
use config::{AckMode, Config};
use journal::fs::{Fs, RealFs, replace_file};
use model::Zone;
use pipeline::flush::backoff::Backoff;
use pipeline::rollup::state::RollupSettings;
use pipeline::rollup::{DayKinds, RollupGauges, RollupHandle, RollupTask, RollupView, recovery};
use pipeline::route::shard_of;
use telemetry::metrics;

/// How often gauges and health are updated.
const UPKEEP: Duration = Duration::from_secs(1);
/// From when on overdue days are a reason in `/readyz`.
const STUCK: Duration = Duration::from_secs(30 * 60);

/// The file in the journal's directory with the id of this instance: the owner of marks in
/// `rollup_pending`, and who confirms aliases.
const NAME: &str = "instance";

/// The tasks; all lists are empty without `rollup.days` and `columns.enabled`.
#[derive(Default)]
pub(super) struct Rollups {
    instance: Option<Arc<str>>,
    /// One per shard.
    pub(super) tasks: Vec<JoinHandle<()>>,
    pub(super) views: Vec<RollupView>,
    gauges: Vec<Arc<RollupGauges>>,
}

impl ServiceContext {
    /// What is computed of a day.
    pub(super) fn day_kinds(&self) -> DayKinds {
        let columns = &self.config.columns;
        DayKinds {
            days: self.config.rollup.days,
            columns: columns.enabled.then(|| weightings(&self.config)),
        }
    }

    fn has_days(&self) -> bool {
        let kinds = self.day_kinds();
        kinds.days || kinds.columns.is_some()
    }

    /// Without tasks yet.
    pub(super) fn rollups(&self) -> Result<Rollups, StartError> {
        Ok(Rollups {
            instance: self.has_days().then(|| self.instance()).transpose()?,
            ..Rollups::default()
        })
    }

    /// The id of this instance. It is read from the journal's directory, or created.
    pub(super) fn instance(&self) -> Result<Arc<str>, StartError> {
        match self.config.ingest.ack {
            AckMode::Stored => Ok(new_id()),
            AckMode::Journal => {
                let dir = &self.config.journal.dir;
                let id = RealFs.create_dir_all(dir).and_then(|()| id_in(dir));
                id.map_err(|error| StartError::Instance {
                    dir: dir.clone(),
                    error,
                })
            }
        }
    }

    /// Spawns the task of shard `i` of `n`; `None` if days are not computed.
    pub(super) fn rollup(&self, i: usize, n: usize, rollups: &mut Rollups) -> Option<RollupHandle> {
        let config = &self.config;
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let settings = RollupSettings {
            zone: Zone::from(config.rollup.zone),
            span: config.bucket.span,
            instance: rollups.instance.clone()?,
            settle_ms: ms(config.rollup.settle),
            late_ms: ms(config.rollup.late),
            hours_kept_ms: config
                .store
                .retention
                .and_then(|d| i64::try_from(d.as_millis()).ok()),
            bytes_max: usize::try_from(config.rollup.max_bytes).unwrap_or(usize::MAX) / n,
        };
        let flusher = self.flusher.clone();
        let clock = self.clock.clone();
        let gauges = Arc::new(RollupGauges::default());
        let (handle, view, task) = RollupTask::new(
            settings,
            self.day_kinds(),
            flusher,
            Backoff::default(),
            clock,
            gauges.clone(),
        );
        rollups
            .tasks
            .push(self.spawn_storing(format!("daily rollup of shard {i}"), task.run()));
        rollups.views.push(view);
        rollups.gauges.push(gauges);
        Some(handle)
    }

    /// Recovers marks, and updates gauges and health, without an end; `None` if days are not
    /// computed.
    pub(super) fn rollup_upkeep(self: &Arc<Self>, rollups: &Rollups) -> Option<JoinHandle<()>> {
        let instance = rollups.instance.clone()?;
        let views = rollups.views.clone();
        let gauges = rollups.gauges.clone();
        let flusher = self.flusher.clone();
        let clock = self.clock.clone();
        let context = self.clone();
        Some(self.spawn_storing("daily rollup", async move {
            let recovered = recovery::recover(instance, views, shard_of, flusher, clock);
            tokio::join!(recovered, context.rollup_gauges(&gauges));
        }))
    }

    async fn rollup_gauges(&self, gauges: &[Arc<RollupGauges>]) {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            ticks.tick().await;
            let usage: Vec<_> = gauges.iter().map(|g| g.get()).collect();
            let overdue_ms = usage.iter().map(|u| u.overdue_ms).max().unwrap_or(0);
            metrics::rollup_pending(usage.iter().map(|u| u.days as u64).sum::<u64>());
            metrics::rollup_bytes(usage.iter().map(|u| u.bytes as u64).sum::<u64>());
            metrics::rollup_overdue_seconds(overdue_ms as f64 / 1000.0);
            let is_stuck = overdue_ms >= STUCK.as_millis() as u64;
            self.health.rollup(is_stuck.then(|| {
                format!(
                    "daily rollup is behind: a day has waited for {} s to be computed",
                    overdue_ms / 1000
                )
            }));
        }
    }
}

/// What is between two readings of a field in rich hours, and which fields have sketches.
pub(crate) fn weightings(config: &Config) -> Weightings {
    let rule = |of: &config::Field| FieldRule {
        line: if of.is_step {
            Line::Step
        } else {
            Line::Straight
        },
        is_sketched: of.is_sketched,
    };
    let rules = config.fields.iter();
    let rules = rules.filter_map(|of| Some((of.patterns()?, rule(of))));
    let others = Weighting {
        line: Line::Straight,
        gap_max_ms: i64::try_from(config.columns.gap_max.as_millis()).unwrap_or(i64::MAX),
    };
    Weightings::new(others, rules)
}

/// A new id of an instance: 16 hexadecimal digits.
fn new_id() -> Arc<str> {
    Arc::from(format!("{:016x}", fastrand::u64(..)))
}

/// Reads the id of this instance, or creates it. The journal holds the directory's lock.
///
/// # Errors
/// The file cannot be read or written.
fn id_in(dir: &Path) -> std::io::Result<Arc<str>> {
    let path = dir.join(NAME);
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(Arc::from(text.trim())),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let id = new_id();
    replace_file(&path, format!("{id}\n").as_bytes())?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_stays_with_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let id = id_in(dir.path()).unwrap();
        assert_eq!((id.len(), id_in(dir.path()).unwrap()), (16, id));
    }
}
