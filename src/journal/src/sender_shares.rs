//! The unstored bytes of each sender, for its share of the journal. Pure.
//!
//! Entries are stored in any order, but the journal gets its space back from the front only. So a
//! sender's bytes count until everything up to them is stored. They are counted in *sections* of
//! the journal, not per entry: a section ends when it has enough bytes, and keeps only the senders
//! with a sixteenth of it or more. So the memory is bounded by the number of sections, and few
//! bytes are not counted.

use std::collections::{HashMap, VecDeque};

use super::tracker::Tracker;
use model::JournalAccount;

/// Sections of a full journal.
const SECTIONS: u64 = 256;
/// A sender with less than this part of a section is not counted for it.
const PART_MIN: u64 = 16;

/// A range of entries.
#[derive(Debug, Default)]
struct Section {
    /// The sequence after its last entry.
    end: u64,
    bytes: u64,
    /// By the key of the account.
    senders: HashMap<usize, (JournalAccount, u64)>,
}

#[derive(Debug)]
pub(super) struct SenderShares {
    section_bytes: u64,
    open: Section,
    closed: VecDeque<Section>,
}

impl SenderShares {
    pub(super) fn new(journal_bytes_max: u64) -> SenderShares {
        let section_bytes = (journal_bytes_max / SECTIONS).max(1);
        SenderShares {
            section_bytes,
            open: Section::default(),
            closed: VecDeque::new(),
        }
    }

    /// Counts entries of these bytes; the last one ends before sequence `end`.
    pub(super) fn add(&mut self, end: u64, bytes: u64, charges: &[(JournalAccount, u64)]) {
        self.open.end = end;
        self.open.bytes += bytes;
        for (account, bytes) in charges {
            account.add(*bytes);
            self.open
                .senders
                .entry(account.key())
                .or_insert_with(|| (account.clone(), 0))
                .1 += bytes;
        }
        if self.open.bytes >= self.section_bytes {
            let mut section = std::mem::take(&mut self.open);
            let least = section.bytes / PART_MIN;
            section.senders.retain(|_, (account, bytes)| {
                let is_kept = *bytes >= least;
                if !is_kept {
                    account.subtract(*bytes);
                }
                is_kept
            });
            section.senders.shrink_to_fit();
            self.closed.push_back(section);
        }
    }

    /// Forgets stored entries.
    pub(super) fn stored(&mut self, tracker: &Tracker) {
        let unstored_from = tracker.unstored_from();
        while self
            .closed
            .front()
            .is_some_and(|section| section.end <= unstored_from)
        {
            self.closed.pop_front().unwrap_or_default().settle();
        }
        if self.closed.is_empty() && self.open.end <= unstored_from {
            std::mem::take(&mut self.open).settle();
        }
    }
}

impl Section {
    fn settle(self) {
        self.senders
            .values()
            .for_each(|(account, bytes)| account.subtract(*bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tracker::Appended;
    use super::*;
    use model::ReceiptTimes;

    const AT: Appended = Appended {
        run: 1,
        mono_ms: 0,
        wall_ms: 0,
    };

    #[test]
    fn a_sender_owes_what_is_not_stored_up_to_a_section() {
        // Sections of 1000 bytes, entries of 100.
        let mut shares = SenderShares::new(256_000);
        let flood = JournalAccount::default();
        let small = JournalAccount::default();
        let mut tracker = Tracker::new(0, AT);
        for seq in 0..100 {
            tracker.hand_out(seq + 1, AT, ReceiptTimes::default());
            let charges: &[_] = if seq % 20 == 3 {
                &[(small.clone(), 100)]
            } else {
                &[(flood.clone(), 100)]
            };
            shares.add(seq + 1, 100, charges);
        }
        assert_eq!(
            (flood.unstored_bytes(), small.unstored_bytes()),
            (9500, 500)
        );
        // The first entry is stored last: until then the journal frees nothing.
        (1..=57).for_each(|seq| tracker.stored(seq));
        shares.stored(&tracker);
        assert_eq!(flood.unstored_bytes(), 9500);
        tracker.stored(0);
        shares.stored(&tracker);
        assert_eq!(
            (flood.unstored_bytes(), small.unstored_bytes()),
            (4800, 200),
            "50 entries are stored and counted"
        );
        (58..100).for_each(|seq| tracker.stored(seq));
        shares.stored(&tracker);
        assert_eq!((flood.unstored_bytes(), small.unstored_bytes()), (0, 0));
    }

    #[test]
    fn senders_with_little_in_a_section_cost_no_memory() {
        let mut shares = SenderShares::new(256_000);
        let accounts: Vec<JournalAccount> = (0..100).map(|_| JournalAccount::default()).collect();
        for (seq, account) in accounts.iter().enumerate() {
            shares.add(seq as u64 + 1, 10, &[(account.clone(), 10)]);
        }
        assert_eq!(
            (
                shares.closed.len(),
                shares.closed[0].senders.len(),
                shares.open.senders.len()
            ),
            (1, 0, 0)
        );
        assert!(accounts.iter().all(|account| account.unstored_bytes() == 0));
    }
}
