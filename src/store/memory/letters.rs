//! Dead letters in memory: kept, counted and evicted as MongoDB does it, with faults that belong to single letters.

use super::{MemoryStore, Pages, lock, unknown};
use crate::model::DeadLetter;
use crate::store::{Evicted, LetterKept, StoreError};

/// Letters that one call removes at most. Small, so that what goes on behind it is tried as well.
const EVICTED_MAX: u64 = 7;

/// What the store makes of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is stored.
    Takes,
    /// It is refused, and those beside it are stored.
    Refuses,
    /// The command that has it among its letters gets no answer, and nothing of it is stored.
    Hangs,
}

/// Decides what the store makes of each letter.
pub type Judge = Box<dyn FnMut(&DeadLetter) -> Verdict + Send>;

impl MemoryStore {
    /// Asks `judge` about every dead letter from now on.
    pub fn set_judge(&self, judge: Judge) {
        *lock(&self.judge) = judge;
    }

    pub(super) fn keep_letters(&self, letters: &[DeadLetter]) -> Result<Vec<LetterKept>, StoreError> {
        let mut judge = lock(&self.judge);
        let verdicts: Vec<Verdict> = letters.iter().map(&mut **judge).collect();
        if verdicts.contains(&Verdict::Hangs) {
            return Err(unknown());
        }
        let keep = |(letter, verdict): (&DeadLetter, Verdict)| match verdict {
            Verdict::Takes => {
                self.pages().dead.push(letter.clone());
                LetterKept::Done
            }
            _ => LetterKept::Rejected { detail: "scripted refusal".into() },
        };
        Ok(letters.iter().zip(verdicts).map(keep).collect())
    }
}

impl Pages {
    /// See [`crate::store::Store::dead_letter_bytes`].
    pub fn dead_letter_bytes(&self) -> u64 {
        self.dead.iter().map(|letter| letter.memory_bytes() as u64).sum()
    }

    /// See [`crate::store::Store::evict_letters`].
    pub fn evict_letters(&mut self, bytes: u64) -> Evicted {
        let mut evicted = Evicted::default();
        while evicted.bytes < bytes && evicted.letters < EVICTED_MAX {
            let evictable = self.dead.iter().enumerate().filter(|(_, letter)| !letter.is_own());
            let Some((oldest, _)) = evictable.min_by_key(|(_, letter)| letter.received_at_ms) else {
                evicted.exhausted = true;
                break;
            };
            let letter = self.dead.remove(oldest);
            evicted.letters += 1;
            evicted.bytes += letter.memory_bytes() as u64;
            evicted.until_ms = letter.received_at_ms;
        }
        evicted
    }
}
