//! Reads marks that are stored already: at the start those of an earlier process with the same
//! instance id, and once per hour those of instances whose journal was lost.

use std::sync::Arc;
use std::time::Duration;

use super::RollupView;
use super::state::ORPHAN_MS;
use crate::flush::Flusher;
use model::{Clock, stable_hash};
use store::days::{DayMark, MarkQuery, MarksOf, REMOVAL};

/// Marks in one request.
const PAGE: usize = 1000;
/// How long to wait while the states are full.
const FULL: Duration = Duration::from_secs(1);
/// How often old marks are looked for.
const ORPHANS_EVERY: Duration = Duration::from_secs(60 * 60);

/// Passes stored marks to the states of the shards, without an end. `shard_of`: the shard of a
/// sensor's hash.
pub async fn recover(
    instance: Arc<str>,
    shards: Vec<RollupView>,
    shard_of: fn(u64, usize) -> usize,
    flusher: Flusher,
    clock: Arc<dyn Clock>,
) {
    let own = list(MarksOf::Instance(instance), &shards, shard_of, &flusher).await;
    if own > 0 {
        tracing::info!(
            days = own,
            "computing days that changed before the last stop"
        );
    }
    loop {
        // Not at the start: the clock may not be set yet.
        tokio::time::sleep(ORPHANS_EVERY).await;
        let orphans = MarksOf::Before(clock.now().wall_ms - ORPHAN_MS);
        let days = list(orphans, &shards, shard_of, &flusher).await;
        if days > 0 {
            tracing::warn!(
                days,
                "computing days that an instance left behind; was its journal lost?"
            );
        }
    }
}

/// Passes on all marks of a query; returns how many.
async fn list(
    of: MarksOf,
    shards: &[RollupView],
    shard_of: fn(u64, usize) -> usize,
    flusher: &Flusher,
) -> usize {
    let mut after = None;
    let mut total = 0;
    let mut failures = 0;
    loop {
        let query = MarkQuery {
            of: of.clone(),
            after: after.clone(),
            limit: PAGE,
        };
        let permit = flusher.days_permit().await;
        let marks = match flusher.day_marks(permit, &query).await {
            Ok(marks) => marks,
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(%error, "cannot read which days have changed; trying again");
                }
                flusher.pause(&mut failures).await;
                continue;
            }
        };
        failures = 0;
        let Some(last) = marks.last() else {
            return total;
        };
        after = Some(last.clone());
        let mut by_shard: Vec<Vec<DayMark>> = vec![vec![]; shards.len()];
        // A service would not replace a day by one that counts less.
        for mark in marks.into_iter().filter(|mark| *mark.instance != *REMOVAL) {
            total += 1;
            by_shard[shard_of(stable_hash(&mark.sensor_id), shards.len())].push(mark);
        }
        for (shard, marks) in shards.iter().zip(by_shard) {
            while !shard.recover(marks.clone()) {
                tokio::time::sleep(FULL).await;
            }
        }
    }
}
