//! `forward.order = "newest"`: what is journaled now goes before a backlog. Pure.
//!
//! Readings that came without a time are numbered in the order of the journal ([`super::equal`]), and
//! that must not depend on what goes first. Two equal ones have the same time of receipt, and each is
//! journaled soon after it. So when a backlog is left, the readings that were received before and are
//! journaled after that moment are *kept back*: they are numbered and sent at the end of the backlog,
//! with the counts of the backlog. All others have no equal one in it.
//!
//! The centre must get equal readings in the order of their numbers: it may know of stored ones only how
//! many there are. So a backlog begins when everything before it is stored, and its end is in the same
//! lane. Readings that another instance has numbered are refused (`http/readings.rs` of `ingest`).

use std::sync::Arc;

use super::equal::{EqualReadings, MOMENT_MS};
use model::ack::Ack;
use model::{ReadingBatch, ReadingRef};

/// Readings of an entry that belong to the end of a backlog.
#[derive(Debug)]
pub struct KeptBack {
    /// The entry's readings.
    pub batch: Arc<ReadingBatch>,
    /// The offsets of these.
    pub offsets: Vec<u32>,
    /// When it was journaled (ms since 1970).
    pub wall_ms: i64,
    /// A part of the entry's acknowledgement.
    pub ack: Ack,
}

/// What is known of the journal's end.
#[derive(Debug, Default)]
pub struct Newest {
    equal: EqualReadings,
    kept: Option<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// When the backlog was left (ms since 1970).
    left_ms: i64,
    entries: Vec<KeptBack>,
}

impl Newest {
    /// Whether the end of the last backlog is not known yet: no other one can be left.
    pub fn is_leaving(&self) -> bool {
        self.kept.is_some()
    }

    /// A backlog is left now, up to what is journaled by now. Returns the counts for its readings.
    pub fn leave(&mut self, now_ms: i64) -> EqualReadings {
        self.kept = Some(Kept {
            left_ms: now_ms,
            entries: vec![],
        });
        std::mem::take(&mut self.equal)
    }

    /// When the end of the backlog is known although nothing is journaled (ms since 1970).
    pub fn end_due_ms(&self) -> Option<i64> {
        let kept = self.kept.as_ref()?;
        Some(kept.left_ms.saturating_add(2 * MOMENT_MS.cast_signed()))
    }

    /// What was kept back, once no more will be. `wall_ms`: when the next entry was journaled; `None`:
    /// there is none for now, or ever.
    pub fn take_end(&mut self, wall_ms: Option<i64>) -> Option<Vec<KeptBack>> {
        let is_over = |kept: &Kept| wall_ms.is_none_or(|ms| ms.abs_diff(kept.left_ms) > MOMENT_MS);
        let kept = self.kept.take_if(|kept| is_over(kept))?;
        Some(kept.entries)
    }

    /// Assigns the readings of the next entry to lanes, as [`rows_of_lanes`] does it. `ack`: of the
    /// entry; a part of it is kept with what is kept back.
    pub fn rows(
        &mut self,
        batch: &Arc<ReadingBatch>,
        wall_ms: i64,
        ack: &Ack,
        lanes: usize,
    ) -> Vec<Vec<(u32, u32)>> {
        let Newest { equal, kept } = self;
        let Some(kept) = kept else {
            return rows_of_lanes(batch, equal, wall_ms, lanes);
        };
        let mut offsets = vec![];
        let left_ms = kept.left_ms;
        let rows = assigned(batch, lanes, |offset, hash, reading| {
            if reading.receipt_time && reading.ts_ms <= left_ms {
                offsets.push(offset);
                return None;
            }
            Some(number(batch, equal, wall_ms, hash, reading))
        });
        if !offsets.is_empty() {
            kept.entries.push(KeptBack {
                batch: batch.clone(),
                offsets,
                wall_ms,
                ack: ack.clone(),
            });
        }
        rows
    }
}

impl KeptBack {
    /// Assigns these readings to lanes, with the counts of their backlog.
    pub fn rows(&self, equal: &mut EqualReadings, lanes: usize) -> Vec<Vec<(u32, u32)>> {
        assigned(&self.batch, lanes, |offset, hash, reading| {
            let is_kept = self.offsets.binary_search(&offset).is_ok();
            is_kept.then(|| number(&self.batch, equal, self.wall_ms, hash, reading))
        })
    }
}

/// Assigns the readings of an entry to lanes, in order, each with the number of equal ones before it.
/// `wall_ms`: when the entry was journaled.
pub fn rows_of_lanes(
    batch: &ReadingBatch,
    equal: &mut EqualReadings,
    wall_ms: i64,
    lanes: usize,
) -> Vec<Vec<(u32, u32)>> {
    assigned(batch, lanes, |_, hash, reading| {
        Some(number(batch, equal, wall_ms, hash, reading))
    })
}

/// `number`: of a reading at an offset, with the hash of its sensor; `None`: it is not sent.
fn assigned(
    batch: &ReadingBatch,
    lanes: usize,
    mut number: impl FnMut(u32, u64, &ReadingRef<'_>) -> Option<u32>,
) -> Vec<Vec<(u32, u32)>> {
    let mut rows = vec![vec![]; lanes];
    for place in batch.places() {
        let Some(reading) = batch.at(place.offset) else {
            continue;
        };
        if let Some(repeat) = number(place.offset, place.hash, &reading) {
            // Scaled by the upper half of the hash, as the router does it.
            let lane = (((place.hash >> 32) * lanes as u64) >> 32) as usize;
            rows[lane].push((place.offset, repeat));
        }
    }
    rows
}

fn number(
    batch: &ReadingBatch,
    equal: &mut EqualReadings,
    wall_ms: i64,
    hash: u64,
    reading: &ReadingRef<'_>,
) -> u32 {
    match reading.receipt_time {
        true => equal.number(wall_ms, hash, reading.key(batch)),
        false => reading.repeat,
    }
}
