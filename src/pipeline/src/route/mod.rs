//! Route: receives readings in order, from the journal or directly from admission, and sends each
//! to the shard that owns its sensor.
//!
//! A full shard blocks the router, and with it everything upstream: the journal is the buffer then,
//! or admission with `ack = "stored"`. Dead letters go to a separate task, and block nothing
//! (`postponed`). An acknowledgement is split over the shards involved; the router delivers its own
//! part once everything is sent. Former ids of sensors are replaced here ([`aliases`]).

pub mod aliases;
pub mod oldest;
mod postponed;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::accumulate::{ShardBatch, ShardClosed, ShardHandle};
use crate::dead_letters::DeadLetters;
use aliases::AliasView;
use journal::admission::IngestReceiver;
use journal::{EntryKind, Follower};
use model::ack::Ack;
use model::{Clock, DeadLetter, ReadingBatch, RowPosition};
use oldest::Oldest;
use postponed::Postponed;
use telemetry::metrics::{self, Source};

/// The router's task and its outputs.
#[derive(Debug)]
pub struct Router {
    shards: Vec<ShardHandle>,
    dead: DeadLetters,
    repeats: bool,
    aliases: AliasView,
}

/// Why the router ended before its input did.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// A shard's task has ended.
    #[error(transparent)]
    Shard(#[from] ShardClosed),
}

impl Router {
    /// A router that distributes sensors over these shards, in this order.
    pub fn new(shards: Vec<ShardHandle>, dead: DeadLetters) -> Router {
        Router {
            shards,
            dead,
            repeats: false,
            aliases: AliasView::default(),
        }
    }

    /// The same router for readings that may have been stored before, including those without their
    /// own time: all are compared like the journal's replay.
    #[must_use]
    pub fn repeating(self, repeats: bool) -> Router {
        Router { repeats, ..self }
    }

    /// The same router for readings that may come with former ids.
    #[must_use]
    pub fn with_aliases(self, aliases: AliasView) -> Router {
        Router { aliases, ..self }
    }

    /// Follows the journal until it is closed and all its entries are sent.
    ///
    /// # Errors
    /// A shard's task has ended.
    pub async fn follow(self, mut follower: Follower) -> Result<(), RouteError> {
        let postponed = Postponed::start(follower.second_reader(), self.dead.clone());
        while let Some(entry) = follower.next().await {
            match entry.kind {
                EntryKind::Readings(batch) => {
                    if entry.replayed {
                        metrics::readings_accepted_total(Source::Replay, batch.len() as u64);
                    }
                    self.readings(batch, &entry.ack, entry.replayed).await?;
                    entry.ack.delivered();
                }
                EntryKind::Dead(dead_letters) => {
                    let n = dead_letters.len() as u64;
                    let is_sent = postponed.is_empty()
                        && self.dead.try_send_one(dead_letters, &entry.ack).is_ok();
                    if is_sent {
                        entry.ack.delivered();
                    } else {
                        postponed.add(entry.position, entry.seq, n, entry.ack);
                    }
                }
            }
        }
        postponed.finish().await;
        Ok(())
    }

    /// Routes ingest batches from admission until it is closed (`ack = "stored"`). Each is
    /// acknowledged when it is stored.
    ///
    /// # Errors
    /// A shard's task has ended.
    pub async fn take(
        self,
        mut ingest_batches: IngestReceiver,
        oldest: Arc<Oldest>,
        clock: Arc<dyn Clock>,
    ) -> Result<(), RouteError> {
        let (waiting, in_order) = mpsc::unbounded_channel();
        let send = send_in_order(in_order, self.dead.clone());
        let send = AbortOnDropHandle::new(tokio::spawn(send));
        while let Some(mut ingest_batch) = ingest_batches.recv().await {
            let has_dead = !ingest_batch.dead.is_empty();
            let permits = has_dead.then(|| ingest_batch.take_permits());
            let (batch, dead, ack) = ingest_batch.into_parts();
            let ack = oldest.watch(ack, clock.now().mono_ms);
            if !batch.is_empty() {
                self.readings(Arc::new(batch), &ack, self.repeats).await?;
            }
            if !has_dead {
                ack.delivered();
                continue;
            }
            match self.dead.try_send_one(dead, &ack) {
                Ok(()) => ack.delivered(),
                // It fails only if the task has panicked; then the sender sends again.
                Err(dead) => drop(waiting.send((dead, ack, permits))),
            }
        }
        drop(waiting);
        let _ = send.await;
        Ok(())
    }

    async fn readings(
        &self,
        batch: Arc<ReadingBatch>,
        ack: &Ack,
        replayed: bool,
    ) -> Result<(), RouteError> {
        let batch = self.aliases.apply(batch).await;
        for (shard, row_refs) in row_refs(&batch, self.shards.len()).into_iter().enumerate() {
            if !row_refs.is_empty() {
                self.shards[shard]
                    .send(ShardBatch {
                        batch: batch.clone(),
                        row_refs,
                        ack: ack.clone(),
                        replayed,
                    })
                    .await?;
            }
        }
        Ok(())
    }
}

/// Sends dead letters for which there was no room, each as soon as there is. Until then they take
/// their part of admission's queue.
async fn send_in_order<P>(
    mut waiting: mpsc::UnboundedReceiver<(Vec<DeadLetter>, Ack, P)>,
    dead: DeadLetters,
) {
    while let Some((dead_letters, ack, permits)) = waiting.recv().await {
        dead.send_one(dead_letters, ack).await;
        drop(permits);
    }
}

/// Assigns the readings of a batch to `shards` shards, in the batch's order.
pub fn row_refs(batch: &ReadingBatch, shards: usize) -> Vec<Vec<RowPosition>> {
    let expected = batch.len() / shards.max(1) + 1;
    let mut row_refs: Vec<Vec<RowPosition>> =
        (0..shards).map(|_| Vec::with_capacity(expected)).collect();
    for place in batch.places() {
        row_refs[shard_of(place.hash, shards)].push(*place);
    }
    row_refs
}

/// The shard of a sensor: the upper half of the hash scaled to the number of shards. The lower half
/// stays evenly distributed within a shard; its hash table and flush phases use it.
pub fn shard_of(hash: u64, shards: usize) -> usize {
    (((hash >> 32) * shards as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::stable_hash;

    #[test]
    fn sensors_are_spread_evenly_and_stay_where_they_are() {
        for shards in [1usize, 2, 3, 7] {
            let mut counts = vec![0; shards];
            for i in 0..7000 {
                counts[shard_of(stable_hash(&format!("sensor-{i}")), shards)] += 1;
            }
            assert!(
                counts
                    .iter()
                    .all(|n| (*n as f64 - 7000.0 / shards as f64).abs() < 300.0),
                "{counts:?}"
            );
        }
    }
}
