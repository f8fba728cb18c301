//! Dead letters in memory: stored, counted and evicted as in MongoDB, with faults for individual
//! dead letters. `pipeline::dead_letters` has the design.

use super::judge::{Judge, Verdict};
use super::{MemoryStore, Pages, lock, unknown};
use model::DeadLetter;
use store::{DeadLetterWritten, Evicted, StoreError, StoreErrorKind};

/// Maximum dead letters that one call evicts. Small, so that tests also cover the continuation
/// after it.
const EVICTED_MAX: u64 = 7;

impl MemoryStore {
    /// Calls `judge` for every dead letter from now on.
    pub fn set_judge(&self, judge: Judge) {
        *lock(&self.judge) = judge;
    }

    pub(super) fn keep_dead_letters(
        &self,
        dead_letters: &[DeadLetter],
    ) -> Result<Vec<DeadLetterWritten>, StoreError> {
        let mut judge = lock(&self.judge);
        let verdicts: Vec<Verdict> = dead_letters.iter().map(&mut **judge).collect();
        if verdicts.contains(&Verdict::Hangs) {
            return Err(unknown());
        }
        if verdicts.contains(&Verdict::Fails) {
            return Err(StoreError::Unknown {
                kind: StoreErrorKind::Command,
                detail: "scripted error".into(),
            });
        }
        let keep = |(dead_letter, verdict): (&DeadLetter, Verdict)| match verdict {
            Verdict::Takes => {
                self.pages().dead.push(dead_letter.clone());
                DeadLetterWritten::Done
            }
            _ => DeadLetterWritten::Rejected {
                detail: "scripted refusal".into(),
            },
        };
        Ok(dead_letters.iter().zip(verdicts).map(keep).collect())
    }
}

impl Pages {
    /// See [`store::Store::dead_letter_bytes`].
    pub fn dead_letter_bytes(&self) -> u64 {
        self.dead
            .iter()
            .map(|dead_letter| dead_letter.memory_bytes() as u64)
            .sum()
    }

    /// See [`store::Store::evict_dead_letters`].
    pub fn evict_dead_letters(&mut self, bytes: u64) -> Evicted {
        let mut evicted = Evicted::default();
        while evicted.bytes < bytes && evicted.dead_letters < EVICTED_MAX {
            let evictable = self
                .dead
                .iter()
                .enumerate()
                .filter(|(_, dead_letter)| !dead_letter.is_own());
            let Some((oldest, _)) =
                evictable.min_by_key(|(_, dead_letter)| dead_letter.received_at_ms)
            else {
                evicted.exhausted = true;
                break;
            };
            let dead_letter = self.dead.remove(oldest);
            evicted.dead_letters += 1;
            evicted.bytes += dead_letter.memory_bytes() as u64;
            evicted.until_ms = dead_letter.received_at_ms;
        }
        evicted
    }
}
