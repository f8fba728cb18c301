//! One open bucket of one sensor: the believed state of the store, the pending rows and the rows in
//! flight. Pure.
//!
//! Life of a reading: it arrives, is compared if it could be a duplicate ([`Bucket::arrive`]), is
//! pending, moves into a statement ([`Bucket::take`]) and leaves when the store confirms it. If the
//! store answers `Conflict`, or the answer is lost, the statement's rows return to the front of the
//! pending ones, marked as suspect. The bucket is then loaded ([`Bucket::loaded`]), rows that are
//! stored already are dropped, and the rest continues with the right version.
//!
//! Which readings can be duplicates:
//! - One with its own time, later than everything stored or in flight (`high_water_ms`), is new: no
//!   comparison.
//! - One at or before that time is compared with the stored ones, which are loaded from its time on
//!   and kept ([`DedupWindow`]). Until then it is pending with `check` set, and the bucket is not
//!   written before the load.
//! - One with the receipt time is never dropped on arrival. Only if it is suspect (replayed,
//!   refused, answer lost), it is matched with a stored reading of another writer that no other
//!   reading has been matched with ([`ExternalWrites`]).
//!
//! In a time-series bucket ([`StorageMode::TimeSeries`]) measurements have no version that could
//! refuse a write. If some may be stored without being known (an earlier process, a lost answer),
//! the load has `doubt` set: the store then waits for statements still in progress, and makes the
//! summary match the measurements.
//!
//! If the readings of a bucket were removed, its rows cannot be compared with them and are given up
//! ([`Bucket::readings_removed`], [`store::retention`]).
//!
//! A page's summary is bounded in bytes for any field names: see [`stored_state`]. A page without
//! room for more summary is sealed like one that is full of readings, in both storage modes.
//!
//! Invariants: at most one statement or load in flight; a reading is in exactly one of pending, in
//! flight, stored; acknowledgements leave with the last reading that was pending when they joined.

mod answers;
mod pending;
mod statement;
mod stored_state;
mod unstored;

pub use unstored::UnstoredBucket;

use std::sync::Arc;

use pending::Pending;
use stored_state::StoredState;

use super::dedup::{DedupWindow, ExternalWrites};
use crate::flush::age::is_worthwhile;
use crate::flush::due::{DueBucket, DuePolicy};
use model::ack::{Ack, Acks};
use model::{BucketStart, FieldSchema, ReadingKey, RowFlags, Rows, StorageMode, memory, rows};

/// The size limits of a page.
#[derive(Debug, Clone, Copy)]
pub struct PageLimits {
    /// `bucket.max_readings`.
    pub readings: u32,
    /// `bucket.max_bytes`: the size of the readings as a BSON array.
    pub bytes: u64,
    /// The size of the summary:
    /// [`PAGE_SUMMARY_BYTES_MAX`](model::summary::PAGE_SUMMARY_BYTES_MAX), smaller in tests.
    pub summary_bytes: u64,
}

/// A reading on arrival: its values as encoded in its batch, under the names of `schema`.
pub(super) struct IncomingReading<'a> {
    pub ts_ms: i64,
    pub flags: RowFlags,
    /// See [`model::ReadingRef::repeat`].
    pub repeat: u32,
    /// When it came ([`super::arrivals`]), of one with the time of receipt.
    pub arrived_ms: i64,
    pub schema: &'a Arc<FieldSchema>,
    pub numbers: u8,
    pub payload: &'a [u8],
}

impl IncomingReading<'_> {
    fn key(&self) -> ReadingKey {
        ReadingKey::new(self.ts_ms, self.schema.values(self.payload)).repeated(self.repeat)
    }
}

/// The effect of an answer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct WriteOutcome {
    /// Readings now known to be stored.
    pub stored: u64,
    /// Readings dropped because they had been stored before.
    pub duplicates: u64,
}

/// The bucket's pending work in the store.
#[derive(Debug)]
struct InFlight {
    acks: Acks,
    /// When the first of the rows arrived, or earlier; of a load 0.
    since_ms: u64,
    bytes: u64,
    /// The statement's rows; `None` for a load.
    rows: Option<Arc<Rows>>,
    memory: usize,
}

impl InFlight {
    fn count(&self) -> u32 {
        self.rows.as_ref().map_or(0, |rows| rows.len() as u32)
    }
}

/// A bucket. With the sensor's other state 200 bytes while no rows are pending, without an
/// allocation.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) start: BucketStart,
    /// When the wheel returns it (monotonic ms); [`AT_ITS_TURN`]; or 0 if it is not scheduled.
    pub(super) due_ms: u64,
    /// In a queue of the shard.
    pub(super) queued: bool,
    /// Failures since the last write, including conflicts.
    attempts: u16,
    /// The part of `attempts` that the store caused: a lost answer, or a failed load.
    faults: u16,
    stored: StoredState,
    /// The storage mode of its readings, once known.
    storage_mode: Option<StorageMode>,
    /// A statement may have been applied in part; used for [`StorageMode::TimeSeries`].
    doubt: bool,
    /// Readings of other writers; `None` until a load finds some.
    external: Option<Box<ExternalWrites>>,
    /// When the latest reading with the time of receipt came: see [`Bucket::counts_since`].
    receipt_at_ms: i64,
    /// Latest time stored or in flight.
    high_water_ms: i64,
    pending: Option<Box<Pending>>,
    in_flight: Option<Box<InFlight>>,
    dedup: Option<Box<DedupWindow>>,
}

/// The `due_ms` of a bucket that waits for its sensor's turn ([`crate::flush::turns`]).
pub(super) const AT_ITS_TURN: u64 = u64::MAX;

/// What a bucket needs of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Load,
    /// Insert a new page.
    Create,
    /// Append to a page.
    Append,
}

/// For how long a due bucket is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// Until this time (monotonic ms).
    UntilMs(u64),
    /// Until its sensor's turn.
    ForTurn,
}

impl Bucket {
    /// A new bucket. `believed_new`: no earlier process can have written it.
    pub(super) fn new(start: BucketStart, believed_new: bool) -> Bucket {
        Bucket {
            start,
            due_ms: 0,
            queued: false,
            attempts: 0,
            faults: 0,
            stored: if believed_new {
                StoredState::New
            } else {
                StoredState::Unknown
            },
            storage_mode: None,
            doubt: !believed_new,
            external: None,
            receipt_at_ms: i64::MIN,
            high_water_ms: i64::MIN,
            pending: None,
            in_flight: None,
            dedup: None,
        }
    }

    /// Whether it can be evicted: no rows are pending or in flight. It is loaded again when needed.
    pub(super) fn idle(&self) -> bool {
        self.pending.is_none() && self.in_flight.is_none()
    }

    /// Number of pending rows.
    pub(super) fn pending_rows(&self) -> usize {
        self.pending
            .as_ref()
            .map_or(0, |pending| pending.rows.len())
    }

    /// Number of rows that are pending or in flight.
    pub(super) fn unstored_rows(&self) -> usize {
        let in_flight = self.in_flight.as_ref().map_or(0, |f| f.count() as usize);
        self.pending_rows() + in_flight
    }

    /// When the first pending row arrived.
    pub(super) fn since_ms(&self) -> Option<u64> {
        self.pending.as_ref().map(|w| w.since_ms)
    }

    /// See [`Rows::last_byte`](model::Rows::last_byte).
    pub(super) fn last_byte(&self) -> u8 {
        let rows = self.pending.as_ref().map(|pending| &pending.rows);
        rows.map_or(0, |rows| rows.last_byte())
    }

    /// Failures since the last write, including conflicts with other writers.
    pub(super) fn attempts(&self) -> u32 {
        u32::from(self.attempts)
    }

    /// Failures caused by the store since the last write.
    pub(super) fn faults(&self) -> u32 {
        u32::from(self.faults)
    }

    /// Counts a failure of the store, in a job with or without other buckets.
    pub(super) fn fault(&mut self) {
        self.faults = self.faults.saturating_add(1);
    }

    /// Whether it knows which readings with a time of receipt that arrived after `at_ms`
    /// ([`Arrivals`]) this process wrote. An equal reading that can still arrive (of the same
    /// millisecond, so soon) may be matched with a stored one. If the bucket had been dropped, it
    /// would be matched with a reading that this process wrote itself.
    ///
    /// [`Arrivals`]: super::arrivals::Arrivals
    pub(super) fn counts_since(&self, at_ms: i64) -> bool {
        self.receipt_at_ms > at_ms
    }

    /// Forgets most of the known stored readings.
    pub(super) fn trim(&mut self, keys_max: usize) {
        if let Some(dedup) = self.dedup.as_mut() {
            dedup.trim(keys_max);
        }
    }

    /// Heap bytes, without the struct itself.
    pub(super) fn memory(&self) -> usize {
        let pending = self.pending.as_ref().map_or(0, |pending| pending.memory());
        let in_flight = self.in_flight.as_ref().map_or(0, |f| {
            memory::block(size_of::<InFlight>()) + f.memory + f.acks.memory_bytes()
        });
        let dedup = self.dedup.as_ref().map_or(0, |s| s.memory());
        pending + in_flight + dedup + self.external.as_ref().map_or(0, |f| f.memory())
    }

    /// Adds a reading; returns `false` if it is a duplicate.
    pub(super) fn arrive(&mut self, reading: &IncomingReading<'_>, ack: &Ack, now_ms: u64) -> bool {
        let receipt = reading.flags.any(RowFlags::RECEIPT_TIME);
        let replayed = reading.flags.any(RowFlags::REPLAYED);
        if receipt {
            self.receipt_at_ms = reading.arrived_ms;
        }
        let maybe_stored = match (self.stored, receipt) {
            (StoredState::New, _) if self.in_flight.is_none() => false,
            (StoredState::Unknown, false) => true,
            (StoredState::Unknown, true) => replayed,
            (_, false) => reading.ts_ms <= self.high_water_ms,
            (_, true) => {
                replayed
                    && self
                        .external
                        .as_ref()
                        .is_some_and(|f| f.may_hold(reading.ts_ms))
            }
        };
        let mut check = false;
        match self
            .dedup
            .as_ref()
            .filter(|s| maybe_stored && s.knows(reading.ts_ms))
        {
            Some(dedup) => {
                let key = reading.key();
                let stored = match (receipt, self.external.as_mut()) {
                    (true, external) => external.is_some_and(|f| f.claim(dedup, key)),
                    (false, _) => dedup.contains(&key),
                };
                if stored {
                    return self.duplicate(ack, reading.flags);
                }
            }
            // An unknown bucket is loaded before its first write anyway, and its rows are compared
            // then.
            None => check = maybe_stored && self.stored != StoredState::Unknown,
        }
        if !receipt && self.is_waiting(reading) {
            return self.duplicate(ack, reading.flags);
        }
        let pending = self
            .pending
            .get_or_insert_with(|| Box::new(Pending::new(now_ms)));
        pending.push(reading);
        pending.join(ack, reading.flags);
        pending.check |= check;
        pending.replayed |= replayed;
        true
    }

    /// Whether an equal reading is pending. Free for readings in order: only one at or before the
    /// last is compared.
    fn is_waiting(&mut self, reading: &IncomingReading<'_>) -> bool {
        let Some(pending) = self.pending.as_mut() else {
            return false;
        };
        if pending.rows.is_empty() || reading.ts_ms > pending.rows.last_ts_ms() {
            return false;
        }
        pending.has_key(&reading.key())
    }

    /// The acknowledgement of a duplicate joins the rows that it may repeat: it is delivered when
    /// they are stored.
    fn duplicate(&mut self, ack: &Ack, flags: RowFlags) -> bool {
        if let Some(pending) = self.pending.as_mut() {
            pending.join(ack, flags);
        } else if let Some(in_flight) = self.in_flight.as_mut() {
            in_flight.acks.join(ack);
        }
        false
    }

    /// Whether more rows are pending than the page has room for: one write can fill and seal it.
    pub(super) fn overfull(&self, limits: PageLimits) -> bool {
        let Some(pending) = &self.pending else {
            return false;
        };
        let (count, bytes) = self.page_holds();
        self.in_flight.is_none()
            && (pending.rows.len() + count as usize > limits.readings as usize
                || array_bytes(&pending.rows) + bytes > limits.bytes)
    }

    /// Notes that the reading that arrived now is the first that does not fit into the page. The
    /// rows that remain when the page is taken count as pending since then.
    pub(super) fn overflows(&mut self, now_ms: u64) {
        if let Some(pending) = self.pending.as_mut() {
            pending.overflows(now_ms);
        }
    }

    /// Readings and bytes that take room in the page that the next readings go to. Measurements of
    /// a time-series bucket take none.
    fn page_holds(&self) -> (u32, u64) {
        match self.storage_mode {
            Some(StorageMode::TimeSeries) => (0, 0),
            _ => self.open_page(),
        }
    }

    /// Readings and bytes that are stored and that the next write rewrites.
    fn open_page(&self) -> (u32, u64) {
        match self.stored {
            StoredState::Page {
                count,
                bytes,
                sealed: false,
                ..
            } => (count, u64::from(bytes)),
            _ => (0, 0),
        }
    }

    /// Whether so many rows are pending that a write has little to gain from more.
    pub(super) fn is_worthwhile(&self) -> bool {
        is_worthwhile(self.open_page().0 as usize, self.pending_rows())
    }

    /// Whether a due bucket is still held: see [`DuePolicy::hold_until_ms`] and
    /// [`DuePolicy::waits_for_turn`]. `age_ms`: how old its readings may get; `turn_ms`: the time
    /// until its sensor's turn.
    pub(super) fn hold(
        &self,
        due: DuePolicy,
        limits: PageLimits,
        now_ms: u64,
        age_ms: u64,
        turn_ms: u64,
    ) -> Option<Hold> {
        // After a failure it is not held: while it waits, another writer may be faster once more.
        let next = self.next_operation(limits);
        let may_wait =
            self.attempts == 0 && matches!(next, Some(Operation::Create | Operation::Append));
        let pending = self.pending.as_ref().filter(|_| may_wait)?;
        let bucket = DueBucket {
            since_ms: pending.since_ms,
            readings: pending.rows.len(),
            stored: self.open_page().0 as usize,
            room: limits.readings.saturating_sub(self.page_holds().0) as usize,
        };
        let for_page = |age_ms| {
            let until_ms = due.hold_until_ms(bucket, now_ms, age_ms);
            until_ms.map(Hold::UntilMs)
        };
        let waits_for_turn = due.waits_for_turn(bucket, now_ms, age_ms, turn_ms);
        // From few readings the rate of a sensor is hardly known, so those wait for the turn.
        for_page(0)
            .or(waits_for_turn.then_some(Hold::ForTurn))
            .or_else(|| for_page(age_ms))
    }

    /// The operation that it needs; `None` if there is nothing to do, or an answer is outstanding.
    pub(super) fn next_operation(&self, limits: PageLimits) -> Option<Operation> {
        let pending = self.pending.as_ref().filter(|_| self.in_flight.is_none())?;
        Some(match (pending.check, self.stored) {
            (false, StoredState::New | StoredState::Page { sealed: true, .. }) => Operation::Create,
            (
                false,
                StoredState::Page {
                    sealed: false,
                    summary,
                    ..
                },
            ) if !summary.must_be_looked_up(limits) => Operation::Append,
            _ => Operation::Load,
        })
    }

    /// For a load: the time from which on the stored readings are needed; `None` if none are.
    pub(super) fn compares_from(&self) -> Option<i64> {
        let pending = self.pending.as_ref().filter(|w| w.check || w.replayed)?;
        pending.rows.iter().map(|r| r.ts_ms).min()
    }

    /// For a load: see [`store::LoadRequest::doubt`].
    pub(super) fn doubt(&self) -> bool {
        self.doubt
    }

    /// Estimates how many stored readings a load from this time on returns.
    pub(super) fn stored_since(&self, from_ms: i64, limits: PageLimits) -> usize {
        let StoredState::Page { page, count, .. } = self.stored else {
            return limits.readings as usize;
        };
        let total = page as usize * limits.readings as usize + count as usize;
        let since = self.high_water_ms.saturating_sub(from_ms);
        let whole = self.high_water_ms.saturating_sub(self.start.0);
        (total as f64 * (since as f64 / whole.max(1) as f64).clamp(0.0, 1.0)) as usize
    }

    /// Removes the pending rows, to be kept as dead letters, with their acknowledgements. `None` if
    /// there are none or something is in flight. The bucket is loaded again before its next write.
    pub(super) fn abandon(&mut self) -> Option<(Rows, Acks)> {
        let pending = self.pending.take_if(|_| self.in_flight.is_none())?;
        self.forget();
        Some(pending.into_parts())
    }

    /// Like [`Bucket::abandon`], after a load that found that readings were removed. Rows that came
    /// during the load stay: they must be compared with the readings that are left. Without pending
    /// rows, only what is known is forgotten: it does not have the removed readings.
    pub(super) fn readings_removed(&mut self) -> Option<(Rows, Acks)> {
        if self.in_flight.is_some() || self.pending.as_ref().is_some_and(|pending| pending.check) {
            return None;
        }
        let pending = self.pending.take();
        self.forget();
        pending.map(|pending| pending.into_parts())
    }

    /// Forgets what is stored, except who wrote it: an equal reading with the time of receipt may
    /// still be in the journal, and must not be matched with a stored one that another was matched
    /// with. Nothing is pending or in flight.
    fn forget(&mut self) {
        let due_ms = self.due_ms;
        let queued = self.queued;
        let receipt_at_ms = self.receipt_at_ms;
        let mut external = self.external.take();
        if self.stored != StoredState::Unknown && receipt_at_ms > i64::MIN {
            external.get_or_insert_default().known = self.stored.end();
        }
        *self = Bucket {
            due_ms,
            queued,
            receipt_at_ms,
            external,
            ..Bucket::new(self.start, false)
        };
    }
}

fn array_bytes(rows: &Rows) -> u64 {
    rows.stored_bytes() + rows.len() as u64 * rows::ARRAY_KEY_BYTES_MAX
}
