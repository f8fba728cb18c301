//! The keys that senders gave their requests (`Idempotency-Key`), so that a repeat of a request is
//! recognised and its readings without a time are stored once.
//!
//! **Life of a key.** [`RequestKeys::begin`] marks it as in flight. When the readings of its request
//! are durable, it is *remembered*, with the receipt time that they got. If they are not accepted,
//! it is released, and the next request with it is a first one again. Its age counts from the
//! receipt time, by the wall clock: only that survives a restart.
//!
//! **Durable.** A key is a frame of the journal before the last entry of its ingest batch, in the
//! same write. It counts only if that entry follows: so a torn write never leaves a key without its
//! readings, nor readings without their key. A key lives longer than the segment with its entry.
//! Before a segment is removed, the keys of its entries are written to the file [`NAME`]
//! ([`RequestKeys::save`]). Keys of later segments are not in that file: if their entries are lost to
//! damage, they are lost as well. A start reads the file and the frames in all segments. With `ack =
//! "stored"` keys are only in memory, for lack of a journal.
//!
//! **Full.** At `keys_max` keys the sender with the most of them loses its oldest one, so a sender
//! that floods the memory makes only its own requests forgotten. Forgotten keys are counted.
//!
//! **Failure.** If the file cannot be written, as on a full disk, the segment is removed anyway, and
//! a warning says so: a journal that cannot drain would stop all senders. Keys that are not in the
//! file are forgotten if the service is killed before the next attempt.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::error::{Damage, JournalError, io_error};
use super::fs::{Fs, read_full_at, remove_existing, write_all_at};
use super::segment::Fields;
use super::segment_files::UNFINISHED;
use model::Clock;
use telemetry::metrics;

/// The file name.
const NAME: &str = "keys";
const MAGIC: [u8; 8] = *b"hbreqky1";
/// Magic and checksum.
const HEAD_BYTES: usize = 12;

/// A key of a sender, and the request that it was first used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestKey {
    /// Hash of the sender and its key. Another sender must not be able to choose the same one.
    pub id: [u8; 16],
    /// Hash of the sender alone.
    pub sender: u64,
    /// Hash of the request's content.
    pub fingerprint: u64,
    /// The receipt time of its readings, in milliseconds since 1970.
    pub received_at_ms: i64,
}

impl RequestKey {
    /// Bytes of an encoded key.
    pub(super) const BYTES: usize = 40;

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.sender.to_le_bytes());
        out.extend_from_slice(&self.fingerprint.to_le_bytes());
        out.extend_from_slice(&self.received_at_ms.to_le_bytes());
    }

    /// `None` if the length is wrong.
    pub(super) fn decode(bytes: &[u8]) -> Option<RequestKey> {
        let (id, rest) = bytes.split_first_chunk()?;
        let mut fields = Fields(rest);
        let key = RequestKey {
            id: *id,
            sender: fields.u64()?,
            fingerprint: fields.u64()?,
            received_at_ms: fields.u64()? as i64,
        };
        fields.0.is_empty().then_some(key)
    }
}

/// What a request with a key is.
#[derive(Debug)]
pub enum KeyUse {
    /// The first use of the key, or the first since it was forgotten.
    First(KeyInFlight),
    /// A repeat of a request whose readings are safe, with their receipt time (milliseconds since
    /// 1970).
    Repeat(i64),
}

/// Why a request with a key is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRefused {
    /// The first request with the key has no outcome yet.
    InFlight,
    /// The key was used for another content.
    OtherContent,
    /// As many keys are in flight as may be remembered.
    Full,
}

/// A key in flight. Dropping it releases the key, unless it is remembered by then.
#[derive(Debug)]
pub struct KeyInFlight {
    keys: RequestKeys,
    key: RequestKey,
    /// Distinguishes it from a later request with the same key.
    number: u64,
}

impl KeyInFlight {
    /// The key, for the ingest batch.
    pub fn key(&self) -> RequestKey {
        self.key
    }

    /// Remembers the key, unless the journal has done that: the readings of its request are safe.
    pub fn accepted(self) {
        if let Some(mut table) = self.keys.table()
            && table.end(&self.key.id, self.number)
        {
            table.remember(self.key, None);
        }
    }
}

impl Drop for KeyInFlight {
    fn drop(&mut self) {
        if let Some(mut table) = self.keys.table() {
            table.end(&self.key.id, self.number);
        }
    }
}

/// The keys of all senders. A clone shares them; the default remembers none.
#[derive(Clone, Default)]
pub struct RequestKeys(Option<Arc<Inner>>);

struct Inner {
    clock: Arc<dyn Clock>,
    table: Mutex<Table>,
}

impl std::fmt::Debug for RequestKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RequestKeys")
    }
}

impl RequestKeys {
    /// Remembers up to `keys_max` keys for `keep` after the receipt of their requests; none if
    /// `keep` is zero.
    pub fn new(keep: Duration, keys_max: usize, clock: Arc<dyn Clock>) -> RequestKeys {
        if keep.is_zero() {
            return RequestKeys::default();
        }
        let keep_ms = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
        let table = Mutex::new(Table::new(keep_ms, keys_max.max(1)));
        RequestKeys(Some(Arc::new(Inner { clock, table })))
    }

    /// Whether it remembers any.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins a request with this key, received now.
    ///
    /// # Errors
    /// The request must not be processed; see [`KeyRefused`].
    pub fn begin(&self, key: RequestKey) -> Result<KeyUse, KeyRefused> {
        let begun = self.table().map(|mut table| table.begin(key));
        let number = match begun.transpose()? {
            Some(Begun::Repeat(received_at_ms)) => return Ok(KeyUse::Repeat(received_at_ms)),
            Some(Begun::First(number)) => number,
            None => 0,
        };
        let keys = self.clone();
        Ok(KeyUse::First(KeyInFlight { keys, key, number }))
    }

    /// Remembers the key of an entry that is durable in a segment.
    pub(super) fn remember(&self, key: RequestKey, seq: u64) {
        if let Some(mut table) = self.table() {
            table.remember(key, Some(seq));
        }
    }

    /// Locked, without those that are too old. `None` if none are remembered.
    fn table(&self) -> Option<MutexGuard<'_, Table>> {
        let inner = self.0.as_ref()?;
        // Every change under the lock is complete.
        let mut table = inner.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.forget_old(inner.clock.now().wall_ms);
        Some(table)
    }

    /// Reads the keys in the file.
    pub(super) fn load(&self, fs: &dyn Fs, dir: &Path) -> Result<(), JournalError> {
        if self.is_on() {
            let keys = read(fs, dir)?;
            if let Some(mut table) = self.table() {
                keys.into_iter().for_each(|key| table.remember(key, None));
            }
        }
        Ok(())
    }

    /// Removes the file if no keys are remembered.
    pub(super) fn remove_unused(&self, fs: &dyn Fs, dir: &Path) -> Result<(), JournalError> {
        match self.is_on() {
            true => Ok(()),
            false => remove_existing(fs, &path(dir)).map_err(io_error("remove", &path(dir))),
        }
    }

    /// Call before the removal of segments that end before the sequence `end`: makes the keys of
    /// their entries durable. A failure is only logged; see the module.
    pub(super) fn save(&self, fs: &dyn Fs, dir: &Path, end: u64) {
        let Some(bytes) = self.table().and_then(|table| table.unsaved(end)) else {
            return;
        };
        let path = path(dir);
        let temporary = dir.join(format!("{NAME}{UNFINISHED}"));
        let write = || {
            let file = fs.create(&temporary)?;
            write_all_at(&*file, &bytes, 0)?;
            file.sync_data()?;
            fs.rename(&temporary, &path)?;
            fs.sync_dir(dir)
        };
        match write() {
            Ok(()) => self.table().iter_mut().for_each(|table| table.saved(end)),
            Err(error) => {
                // Frees the space of an incomplete file.
                let _ = fs.remove(&temporary);
                tracing::warn!(path = %path.display(), %error, "cannot write the idempotency keys; \
                    if the service is killed now, repeats of some requests are not recognised");
            }
        }
    }
}

struct Remembered {
    key: RequestKey,
    number: u64,
    /// The sequence of its entry, until the key is in the file; `None` without a journal.
    seq: Option<u64>,
}

struct InFlight {
    fingerprint: u64,
    number: u64,
}

enum Begun {
    /// With the number of the request.
    First(u64),
    /// With the receipt time of the first request.
    Repeat(i64),
}

/// Pure: knows no clock and no file.
struct Table {
    keep_ms: i64,
    keys_max: usize,
    known: HashMap<[u8; 16], Remembered>,
    in_flight: HashMap<[u8; 16], InFlight>,
    /// The keys by their number.
    order: BTreeMap<u64, [u8; 16]>,
    /// Numbers increase in the order in which keys are remembered, and requests begun.
    next_number: u64,
    /// The numbers of a sender's keys.
    senders: HashMap<u64, BTreeSet<u64>>,
    /// How many each sender has.
    counts: BTreeSet<(usize, u64)>,
    /// The first sequence of a key that is not in the file.
    unsaved_from: Option<u64>,
}

impl Table {
    fn new(keep_ms: i64, keys_max: usize) -> Table {
        Table {
            keep_ms,
            keys_max,
            known: HashMap::new(),
            in_flight: HashMap::new(),
            order: BTreeMap::new(),
            next_number: 0,
            senders: HashMap::new(),
            counts: BTreeSet::new(),
            unsaved_from: None,
        }
    }

    fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn begin(&mut self, key: RequestKey) -> Result<Begun, KeyRefused> {
        let same = |fingerprint| {
            let is_same = fingerprint == key.fingerprint;
            is_same.then_some(()).ok_or(KeyRefused::OtherContent)
        };
        if let Some(known) = self.known.get(&key.id) {
            let now_ms = key.received_at_ms;
            if !known.key.is_older_than(self.keep_ms, now_ms) {
                same(known.key.fingerprint)?;
                return Ok(Begun::Repeat(known.key.received_at_ms));
            }
        }
        if let Some(first) = self.in_flight.get(&key.id) {
            same(first.fingerprint)?;
            return Err(KeyRefused::InFlight);
        }
        if self.in_flight.len() >= self.keys_max {
            return Err(KeyRefused::Full);
        }
        let number = self.next_number();
        let fingerprint = key.fingerprint;
        let in_flight = InFlight {
            fingerprint,
            number,
        };
        self.in_flight.insert(key.id, in_flight);
        Ok(Begun::First(number))
    }

    /// Ends a request. Returns whether it was the one in flight with this key.
    fn end(&mut self, id: &[u8; 16], number: u64) -> bool {
        let is_this = self.in_flight.get(id).is_some_and(|r| r.number == number);
        is_this && self.in_flight.remove(id).is_some()
    }

    fn remember(&mut self, key: RequestKey, seq: Option<u64>) {
        self.in_flight.remove(&key.id);
        self.forget(&key.id);
        while self.known.len() >= self.keys_max {
            self.forget_one_of_the_most();
            metrics::idempotency_keys_forgotten_total(1);
        }
        let number = self.next_number();
        self.order.insert(number, key.id);
        self.change_numbers(key.sender, |numbers| numbers.insert(number));
        self.unsaved_from = [self.unsaved_from, seq].into_iter().flatten().min();
        self.known.insert(key.id, Remembered { key, number, seq });
        metrics::idempotency_keys(self.known.len() as u64);
    }

    fn change_numbers(&mut self, sender: u64, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        let numbers = self.senders.entry(sender).or_default();
        self.counts.remove(&(numbers.len(), sender));
        change(numbers);
        if numbers.is_empty() {
            self.senders.remove(&sender);
        } else {
            self.counts.insert((numbers.len(), sender));
        }
    }

    fn forget(&mut self, id: &[u8; 16]) {
        if let Some(Remembered { key, number, .. }) = self.known.remove(id) {
            self.order.remove(&number);
            self.change_numbers(key.sender, |numbers| numbers.remove(&number));
            metrics::idempotency_keys(self.known.len() as u64);
        }
    }

    /// The oldest key of the sender that has the most.
    fn forget_one_of_the_most(&mut self) {
        let most = self.counts.last().map(|(_, sender)| sender);
        let numbers = most.and_then(|sender| self.senders.get(sender));
        let oldest = numbers.and_then(BTreeSet::first).copied();
        if let Some(id) = oldest.and_then(|number| self.order.get(&number)).copied() {
            self.forget(&id);
        }
    }

    /// From the front only: a key that was received before one in front of it stays a little longer.
    fn forget_old(&mut self, now_ms: i64) {
        while let Some(id) = self.order.values().next().copied() {
            let known = self.known.get(&id);
            if known.is_some_and(|known| !known.key.is_older_than(self.keep_ms, now_ms)) {
                return;
            }
            self.forget(&id);
        }
    }

    /// The content of the file with all keys of entries before `end`; `None` if it has them already.
    fn unsaved(&self, end: u64) -> Option<Vec<u8>> {
        self.unsaved_from.filter(|&from| from < end)?;
        let mut bytes = vec![0; HEAD_BYTES];
        let known = self.order.values().filter_map(|id| self.known.get(id));
        for Remembered { key, seq, .. } in known {
            if seq.is_none_or(|seq| seq < end) {
                key.encode(&mut bytes);
            }
        }
        let checksum = crc32c::crc32c(&bytes[HEAD_BYTES..]);
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
        Some(bytes)
    }

    /// The file has all keys of entries before `end`.
    fn saved(&mut self, end: u64) {
        self.unsaved_from = None;
        for known in self.known.values_mut() {
            known.seq = known.seq.filter(|&seq| seq >= end);
            self.unsaved_from = [self.unsaved_from, known.seq].into_iter().flatten().min();
        }
    }
}

impl RequestKey {
    fn is_older_than(&self, keep_ms: i64, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.received_at_ms) >= keep_ms
    }
}

pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// The keys in the file; none if it does not exist.
pub(super) fn read(fs: &dyn Fs, dir: &Path) -> Result<Vec<RequestKey>, JournalError> {
    let path = path(dir);
    let read = || -> io::Result<Vec<u8>> {
        let file = fs.open(&path, false)?;
        let mut bytes = vec![0; usize::try_from(file.size()?).unwrap_or(usize::MAX)];
        let n = read_full_at(&*file, &mut bytes, 0)?;
        bytes.truncate(n);
        Ok(bytes)
    };
    let bytes = match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        bytes => bytes.map_err(io_error("read", &path))?,
    };
    decode(&bytes).ok_or(JournalError::Damaged(Damage::Keys { path }))
}

fn decode(bytes: &[u8]) -> Option<Vec<RequestKey>> {
    let (head, keys) = bytes.split_at_checked(HEAD_BYTES)?;
    let (magic, checksum) = head.split_at(8);
    let is_sound = magic == MAGIC && checksum == crc32c::crc32c(keys).to_le_bytes();
    let keys = keys.chunks(RequestKey::BYTES).map(RequestKey::decode);
    is_sound.then(|| keys.collect()).flatten()
}

#[cfg(test)]
mod tests;
