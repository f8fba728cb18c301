//! The field limit (`limits.bucket_fields_max`): the number of distinct field names per sensor and
//! bucket. Checked before a reading is journaled, for every protocol. Pure; shared by all threads
//! that decode.
//!
//! Constraints: the usual case, a fleet whose sensors use the same few names, must cost nothing per
//! reading. A sensor within the limit must never be rejected, regardless of other sensors. Memory
//! is bounded for any input.
//!
//! So there are two kinds of names. A name is *shared* if two sensors have used it; at most an
//! eighth of the limit is shared ([`shared_max`]). A reading with only shared names passes without
//! counting, because all shared names together are at most an eighth of the limit. Any other
//! reading is counted: for each sensor and bucket, the set of names is kept as hashes. A reading
//! that would exceed the limit is rejected. Repeated readings of a sensor are recognized by their
//! field schema, at the cost of one hash lookup.
//!
//! Guarantees, within one process:
//! - The set of a sensor and bucket contains only names that were really used. So a sensor with at
//!   most the limit of names is never rejected. (Two names with the same hash count as one, which
//!   only makes the set smaller. The seed is secret.)
//! - A bucket gets at most the limit, plus an eighth of it in names that were shared when the
//!   sensor used them. A sensor that is alone, or whose names no other sensor uses, is stopped
//!   exactly at the limit.
//! - The sets use at most [`MEMORY_MAX`]. Beyond it the least recently used ones are evicted, and
//!   counting starts again for these buckets. This requires thousands of sensors at their limit at
//!   the same time. Counting also starts again after a restart.
//!
//! The shared names are determined again every [`EPOCH_MS`], so that unused names free their space.
//! The journal's replay skips this check: acknowledged readings are always stored.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::memory;
use super::span::{BucketStart, Span};

/// Memory limit for all sets together, in bytes.
pub(crate) const MEMORY_MAX: usize = 16 << 20;
/// Number of locks, so that decoding threads rarely contend.
const STRIPES: usize = 16;
/// Number of names whose first sensor is remembered, 16 bytes each. Further names cannot become
/// shared.
const OWNERS_MAX: usize = 16_384;
/// Lifetime of the set of shared names, in milliseconds of receipt time.
const EPOCH_MS: i64 = 60 * 60 * 1000;
/// Number of recent field schemas that are kept per sensor and bucket.
const SCHEMAS_KEPT: usize = 4;

/// The maximum number of shared names.
const fn shared_max(fields_max: usize) -> usize {
    fields_max / 8
}

/// Hashes of names.
type Names = HashTable<u64>;

/// Counts field names. A clone shares the counts.
#[derive(Debug, Clone)]
pub struct FieldLimiter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    span: Span,
    /// Random, so that no sender can prepare colliding names or ids.
    seed: u64,
    /// Incremented when the shared names are determined again.
    epoch: AtomicU32,
    shared: RwLock<Arc<Names>>,
    owners: Mutex<Owners>,
    stripes: [Mutex<Stripe>; STRIPES],
}

/// The first sensor that used each name.
#[derive(Debug, Default)]
struct Owners {
    since_ms: i64,
    /// Pairs of the hashes of name and sensor.
    table: HashTable<(u64, u64)>,
}

/// A part of the sets, in two generations: recently used, and older.
#[derive(Debug, Default)]
struct Stripe {
    young: HashTable<Used>,
    old: HashTable<Used>,
    young_bytes: usize,
}

/// The names that a sensor has used in a bucket.
#[derive(Debug)]
struct Used {
    /// Hash of sensor and bucket.
    key: u64,
    /// The epoch in which its names were last recorded.
    epoch: u32,
    schemas: [u64; SCHEMAS_KEPT],
    next_schema: u8,
    /// Upper halves of the names' hashes, sorted.
    names: Vec<u32>,
}

/// A reading exceeds the field limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketFieldsFull {
    /// Number of names that the sensor has used in the bucket.
    pub used: usize,
    /// Number of further names in the reading.
    pub new: usize,
    /// The value of `limits.bucket_fields_max`.
    pub max: usize,
}

impl FieldLimiter {
    /// An empty limiter for buckets of this span.
    pub fn new(span: Span) -> FieldLimiter {
        let seed = RandomState::new().hash_one(0);
        let (shared, owners, stripes) = Default::default();
        FieldLimiter(Arc::new(Inner {
            span,
            seed,
            epoch: AtomicU32::new(0),
            shared,
            owners,
            stripes,
        }))
    }

    /// The guard for one batch: at most `fields_max` names. `now_ms` is the receipt time.
    pub fn guard(&self, fields_max: usize, now_ms: i64) -> FieldGuard {
        self.0.begin_epoch(now_ms);
        let epoch = self.0.epoch.load(Ordering::Relaxed);
        let shared = self
            .0
            .shared
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let inner = self.0.clone();
        let hashes = vec![];
        let schemas = vec![];
        FieldGuard {
            inner,
            epoch,
            shared,
            fields_max,
            hashes,
            schemas,
            last: None,
        }
    }

    /// Memory use of the sets, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.0
            .stripes
            .iter()
            .map(|stripe| lock(stripe).memory_bytes())
            .sum()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Ignores poisoning: after a panic, a count is at most slightly too low.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// Clears the shared names after [`EPOCH_MS`], or if the clock was set back.
    fn begin_epoch(&self, now_ms: i64) {
        let Ok(mut owners) = self.owners.try_lock() else {
            return;
        };
        if !(0..EPOCH_MS).contains(&(now_ms.saturating_sub(owners.since_ms))) {
            *owners = Owners {
                since_ms: now_ms,
                table: HashTable::new(),
            };
            *self.shared.write().unwrap_or_else(PoisonError::into_inner) = Arc::default();
            self.epoch.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records the sensor that used these names. Names of two sensors become shared, up to the
    /// maximum.
    fn note_owners(&self, sensor: u64, names: &[u64], fields_max: usize) {
        let mut owners = lock(&self.owners);
        let mut shared: Option<Names> = None;
        let held = self
            .shared
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        for &name in names {
            match owners.table.find(name, |(n, _)| *n == name) {
                None if owners.table.len() < OWNERS_MAX => {
                    owners
                        .table
                        .insert_unique(name, (name, sensor), |(n, _)| *n);
                }
                Some((_, owner)) if *owner != sensor => {
                    let shared = shared.get_or_insert_with(|| Names::clone(&held));
                    if shared.len() < shared_max(fields_max)
                        && shared.find(name, |n| *n == name).is_none()
                    {
                        shared.insert_unique(name, name, |n| *n);
                    }
                }
                _ => {}
            }
        }
        if let Some(shared) = shared.filter(|shared| shared.len() > held.len()) {
            *self.shared.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(shared);
        }
    }
}

impl Stripe {
    /// The names of a sensor and bucket; moves them to the young generation.
    fn used(&mut self, key: u64, epoch: u32) -> &mut Used {
        let found = self
            .old
            .find_entry(key, |used| used.key == key)
            .ok()
            .map(|entry| entry.remove().0);
        if let Some(used) = found {
            self.young_bytes += used.memory_bytes();
            self.young.insert_unique(key, used, |used| used.key);
        }
        let new = || Used {
            key,
            epoch,
            schemas: [0; SCHEMAS_KEPT],
            next_schema: 0,
            names: vec![],
        };
        self.young
            .entry(key, |used| used.key == key, |used| used.key)
            .or_insert_with(new)
            .into_mut()
    }

    /// Evicts the old generation when the young one uses half of the memory.
    fn grew(&mut self, bytes: usize) {
        self.young_bytes += bytes;
        if self.young_bytes >= MEMORY_MAX / STRIPES / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }

    fn memory_bytes(&self) -> usize {
        self.young
            .iter()
            .chain(&self.old)
            .map(Used::memory_bytes)
            .sum()
    }
}

impl Used {
    /// Includes its share of the table; an eighth to a half of the table is empty.
    fn memory_bytes(&self) -> usize {
        2 * size_of::<Used>() + memory::block(self.names.capacity() * size_of::<u32>())
    }

    /// Adds the names of a reading. Returns the number of new names, and the growth in bytes.
    fn admit(
        &mut self,
        schema: u64,
        names: &[u64],
        max: usize,
    ) -> Result<(usize, usize), BucketFieldsFull> {
        let is_new = |name: &&u64| self.names.binary_search(&upper(**name)).is_err();
        let mut new: Vec<u32> = names
            .iter()
            .filter(is_new)
            .map(|name| upper(*name))
            .collect();
        new.sort_unstable();
        new.dedup();
        let used = self.names.len();
        if used + new.len() > max {
            return Err(BucketFieldsFull {
                used,
                new: new.len(),
                max,
            });
        }
        let before = if used == 0 { 0 } else { self.memory_bytes() };
        let added = new.len();
        if !new.is_empty() {
            // Two sorted runs, which this sort merges efficiently.
            self.names.extend(new);
            self.names.sort();
        }
        self.schemas[usize::from(self.next_schema)] = schema;
        self.next_schema = (self.next_schema + 1) % SCHEMAS_KEPT as u8;
        Ok((added, self.memory_bytes() - before))
    }
}

fn upper(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// Guards one batch while it is built: see [`FieldLimiter::guard`].
#[derive(Debug)]
pub struct FieldGuard {
    inner: Arc<Inner>,
    epoch: u32,
    shared: Arc<Names>,
    fields_max: usize,
    /// Hashes of the batch's names so far.
    hashes: Vec<u64>,
    /// Hashes of the batch's schemas so far; `None` if all names of a schema are shared.
    schemas: Vec<Option<u64>>,
    /// Key (sensor and bucket) and schema of the last counted reading.
    last: Option<(u64, u32)>,
}

impl FieldGuard {
    /// Checks a reading with this schema. `names` and `schemas` are those of the batch so far.
    pub(super) fn admit(
        &mut self,
        names: &[Box<str>],
        schemas: &[Box<[u16]>],
        schema: u32,
        sensor_id: &str,
        ts_ms: i64,
    ) -> Result<(), BucketFieldsFull> {
        if self.schemas.len() <= schema as usize {
            self.learn(names, schemas);
        }
        let Some(schema_hash) = self.schemas[schema as usize] else {
            return Ok(());
        };
        let BucketStart(start) = self.inner.span.floor(ts_ms);
        let sensor = xxh3_64_with_seed(sensor_id.as_bytes(), self.inner.seed);
        let key = xxh3_64_with_seed(&start.to_le_bytes(), sensor);
        if self.last == Some((key, schema)) {
            return Ok(());
        }
        let mut stripe = lock(&self.inner.stripes[(key >> 8) as usize % STRIPES]);
        let used = stripe.used(key, self.epoch);
        let is_previous_epoch = used.epoch != self.epoch;
        if is_previous_epoch || !used.schemas.contains(&schema_hash) {
            let hashes: Vec<u64> = schemas[schema as usize]
                .iter()
                .map(|&name| self.hashes[usize::from(name)])
                .collect();
            let (added, grown) = used.admit(schema_hash, &hashes, self.fields_max)?;
            used.epoch = self.epoch;
            stripe.grew(grown);
            drop(stripe);
            if added > 0 || is_previous_epoch {
                self.inner.note_owners(sensor, &hashes, self.fields_max);
            }
        }
        self.last = Some((key, schema));
        Ok(())
    }

    /// Hashes the names and schemas that are new in the batch.
    fn learn(&mut self, names: &[Box<str>], schemas: &[Box<[u16]>]) {
        let seed = self.inner.seed;
        self.hashes.extend(
            names[self.hashes.len()..]
                .iter()
                .map(|name| xxh3_64_with_seed(name.as_bytes(), seed)),
        );
        for schema in &schemas[self.schemas.len()..] {
            let hashes = || schema.iter().map(|&name| self.hashes[usize::from(name)]);
            let is_shared = hashes().all(|hash| self.shared.find(hash, |h| *h == hash).is_some());
            // Independent of the order of names. Zero marks an unused slot.
            let hash = hashes().fold(1u64, |sum, hash| {
                sum.wrapping_add(hash.wrapping_mul(0x9E37_79B9_7F4A_7C15))
            });
            self.schemas.push((!is_shared).then_some(hash.max(1)));
        }
    }
}

/// The stored name of a field or tag: `.`, NUL and a leading `$` become `_`, the empty name becomes
/// `_`, and `ts`, `meta` and `_id`, which the documents use, get a leading `_`.
#[inline]
pub fn stored_name(raw: &str) -> Cow<'_, str> {
    let bad_char = raw.bytes().any(|b| b == b'.' || b == 0) || raw.starts_with('$');
    if bad_char || raw.is_empty() || is_reserved(raw) {
        return Cow::Owned(renamed(raw));
    }
    Cow::Borrowed(raw)
}

#[inline]
fn is_reserved(name: &str) -> bool {
    matches!(name, "ts" | "meta" | "_id")
}

fn renamed(raw: &str) -> String {
    let mut name: String = raw
        .chars()
        .map(|c| if c == '.' || c == '\0' { '_' } else { c })
        .collect();
    if name.is_empty() || name.starts_with('$') {
        name.replace_range(..name.len().min(1), "_");
    }
    // After replacing characters, because `$id` has become `_id`.
    if is_reserved(&name) {
        name.insert(0, '_');
    }
    name
}
