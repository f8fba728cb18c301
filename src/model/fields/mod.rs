//! How many different field names a sensor may use in a bucket (`limits.bucket_fields_max`): decided before a reading is
//! journaled, for every way in. Pure, shared by all threads that decode.
//!
//! Constraints: nothing may be done for a reading in the usual case, a fleet whose sensors use the same few names; a sensor
//! that keeps to the limit must never be refused, whatever others do; memory is bounded whatever arrives.
//!
//! So names are told apart in two kinds. A name is *shared* when two sensors have used it, and at most an eighth of the
//! limit are shared ([`shared_max`]). A reading whose names are all shared passes without a look: all shared names together
//! are no more than an eighth. Any other reading is counted: for each sensor and bucket the set of its names is kept, as
//! hashes, and a reading that would make it larger than the limit is refused. A sensor that repeats itself is
//! recognised by the shape of its readings, so that it costs one look into a table.
//!
//! What holds, within one process:
//! - the set of a sensor and bucket holds names that it has really used, so that one with no more names than the limit is
//!   never refused (but for two names with the same 64-bit hash, whose seed nobody knows, and those make it smaller);
//! - a bucket gets at most the limit, and an eighth of it of names that were shared when it used them. A sensor alone, or
//!   with names of its own, is stopped exactly at the limit;
//! - the sets take at most [`MEMORY_MAX`]. Beyond it those that were not used for longest are forgotten, and such a bucket
//!   begins again: it takes thousands of sensors at their limit at the same time. A restart begins again too.
//!
//! The shared names are looked for anew every [`EPOCH_MS`], so that names that are not used any more leave room. The
//! journal's replay is not asked: what was acknowledged is stored.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::memory;
use super::span::{BucketStart, Span};

/// All sets together.
pub const MEMORY_MAX: usize = 16 << 20;
/// Threads that decode seldom meet in one of these.
const STRIPES: usize = 16;
/// Names whose first sensor is remembered, 16 bytes each; of more it is not seen that they are shared.
const OWNERS_MAX: usize = 16_384;
/// How long the shared names hold, in milliseconds of the clock by which readings are received.
const EPOCH_MS: i64 = 60 * 60 * 1000;
/// Field schemas by which a sensor's readings are recognised.
const SHAPES_KEPT: usize = 4;

/// How many names may be shared.
const fn shared_max(fields_max: usize) -> usize {
    fields_max / 8
}

/// Names by their hashes.
type Names = HashTable<u64>;

/// Counts field names; cloning shares the counts.
#[derive(Debug, Clone)]
pub struct FieldLimiter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    span: Span,
    /// Nobody can prepare names or sensors that collide.
    seed: u64,
    /// Counts on when the shared names are looked for anew.
    epoch: AtomicU32,
    shared: RwLock<Arc<Names>>,
    owners: Mutex<Owners>,
    stripes: [Mutex<Stripe>; STRIPES],
}

/// The sensors that used a name first.
#[derive(Debug, Default)]
struct Owners {
    since_ms: i64,
    /// Hashes of name and sensor.
    table: HashTable<(u64, u64)>,
}

/// A part of the sets: those used lately, and those that were before them.
#[derive(Debug, Default)]
struct Stripe {
    young: HashTable<Used>,
    old: HashTable<Used>,
    young_bytes: usize,
}

/// What a sensor has used in a bucket.
#[derive(Debug)]
struct Used {
    /// Of sensor and bucket.
    key: u64,
    /// In which its names were noted.
    epoch: u32,
    schemas: [u64; SHAPES_KEPT],
    shapes_next: u8,
    /// Upper halves of the names' hashes, sorted.
    names: Vec<u32>,
}

/// A reading that would bring too many names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketFieldsFull {
    /// Names that its sensor has used in its bucket.
    pub used: usize,
    /// Names of it that are new there.
    pub new: usize,
    /// The limit.
    pub max: usize,
}

impl FieldLimiter {
    /// A limiter for buckets of this span that has seen nothing.
    pub fn new(span: Span) -> FieldLimiter {
        let seed = RandomState::new().hash_one(0);
        let (shared, owners, stripes) = Default::default();
        FieldLimiter(Arc::new(Inner { span, seed, epoch: AtomicU32::new(0), shared, owners, stripes }))
    }

    /// What guards one batch: at most `fields_max` names. `now_ms`: when it is received.
    pub fn guard(&self, fields_max: usize, now_ms: i64) -> FieldGuard {
        self.0.begin_epoch(now_ms);
        let epoch = self.0.epoch.load(Ordering::Relaxed);
        let shared = self.0.shared.read().unwrap_or_else(PoisonError::into_inner).clone();
        let (inner, hashes, schemas) = (self.0.clone(), vec![], vec![]);
        FieldGuard { inner, epoch, shared, fields_max, hashes, schemas, last: None }
    }

    /// Bytes held by the sets of names.
    pub fn memory_bytes(&self) -> usize {
        self.0.stripes.iter().map(|stripe| lock(stripe).memory_bytes()).sum()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a thread that panicked has left is a count that is a little too low.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// Lets go of the shared names when they have held for long enough, or the clock was set.
    fn begin_epoch(&self, now_ms: i64) {
        let Ok(mut owners) = self.owners.try_lock() else { return };
        if !(0..EPOCH_MS).contains(&(now_ms.saturating_sub(owners.since_ms))) {
            *owners = Owners { since_ms: now_ms, table: HashTable::new() };
            *self.shared.write().unwrap_or_else(PoisonError::into_inner) = Arc::default();
            self.epoch.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes who used names; those of two sensors become shared while there is room.
    fn note_owners(&self, sensor: u64, names: &[u64], fields_max: usize) {
        let mut owners = lock(&self.owners);
        let mut shared: Option<Names> = None;
        let held = self.shared.read().unwrap_or_else(PoisonError::into_inner).clone();
        for &name in names {
            match owners.table.find(name, |(n, _)| *n == name) {
                None if owners.table.len() < OWNERS_MAX => {
                    owners.table.insert_unique(name, (name, sensor), |(n, _)| *n);
                }
                Some((_, owner)) if *owner != sensor => {
                    let shared = shared.get_or_insert_with(|| Names::clone(&held));
                    if shared.len() < shared_max(fields_max) && shared.find(name, |n| *n == name).is_none() {
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
    /// What is kept of a sensor and bucket, which is young again.
    fn used(&mut self, key: u64, epoch: u32) -> &mut Used {
        let found = self.old.find_entry(key, |used| used.key == key).ok().map(|entry| entry.remove().0);
        if let Some(used) = found {
            self.young_bytes += used.memory_bytes();
            self.young.insert_unique(key, used, |used| used.key);
        }
        let new = || Used { key, epoch, schemas: [0; SHAPES_KEPT], shapes_next: 0, names: vec![] };
        self.young.entry(key, |used| used.key == key, |used| used.key).or_insert_with(new).into_mut()
    }

    /// The old ones go when the young ones take half of the room.
    fn grew(&mut self, bytes: usize) {
        self.young_bytes += bytes;
        if self.young_bytes >= MEMORY_MAX / STRIPES / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }

    fn memory_bytes(&self) -> usize {
        self.young.iter().chain(&self.old).map(Used::memory_bytes).sum()
    }
}

impl Used {
    /// With its share of the table, of which between an eighth and a half is empty.
    fn memory_bytes(&self) -> usize {
        2 * size_of::<Used>() + memory::block(self.names.capacity() * size_of::<u32>())
    }

    /// Adds the names of a reading; gives how many were new, and by how many bytes it grew.
    fn admit(&mut self, schema: u64, names: &[u64], max: usize) -> Result<(usize, usize), BucketFieldsFull> {
        let is_new = |name: &&u64| self.names.binary_search(&upper(**name)).is_err();
        let mut new: Vec<u32> = names.iter().filter(is_new).map(|name| upper(*name)).collect();
        new.sort_unstable();
        new.dedup();
        let used = self.names.len();
        if used + new.len() > max {
            return Err(BucketFieldsFull { used, new: new.len(), max });
        }
        let (before, news) = (if used == 0 { 0 } else { self.memory_bytes() }, new.len());
        if !new.is_empty() {
            // Nearly sorted: two runs, which this sort merges.
            self.names.extend(new);
            self.names.sort();
        }
        self.schemas[usize::from(self.shapes_next)] = schema;
        self.shapes_next = (self.shapes_next + 1) % SHAPES_KEPT as u8;
        Ok((news, self.memory_bytes() - before))
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
    /// Of the batch's names, as far as they were asked for.
    hashes: Vec<u64>,
    /// Of the batch's shapes, as far as they were asked for: the hash, or `None` where all names are shared.
    schemas: Vec<Option<u64>>,
    /// Sensor and bucket, and shape, of the reading that was counted last.
    last: Option<(u64, u32)>,
}

impl FieldGuard {
    /// Whether a reading of this shape may be taken; `names` and `schemas` are those of the batch so far.
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
        let Some(shape_hash) = self.schemas[schema as usize] else { return Ok(()) };
        let BucketStart(start) = self.inner.span.floor(ts_ms);
        let sensor = xxh3_64_with_seed(sensor_id.as_bytes(), self.inner.seed);
        let key = xxh3_64_with_seed(&start.to_le_bytes(), sensor);
        if self.last == Some((key, schema)) {
            return Ok(());
        }
        let mut stripe = lock(&self.inner.stripes[(key >> 8) as usize % STRIPES]);
        let used = stripe.used(key, self.epoch);
        let is_of_old = used.epoch != self.epoch;
        if is_of_old || !used.schemas.contains(&shape_hash) {
            let hashes: Vec<u64> =
                schemas[schema as usize].iter().map(|&name| self.hashes[usize::from(name)]).collect();
            let (news, grown) = used.admit(shape_hash, &hashes, self.fields_max)?;
            used.epoch = self.epoch;
            stripe.grew(grown);
            drop(stripe);
            if news > 0 || is_of_old {
                self.inner.note_owners(sensor, &hashes, self.fields_max);
            }
        }
        self.last = Some((key, schema));
        Ok(())
    }

    /// Looks at the names and shapes that are new in the batch.
    fn learn(&mut self, names: &[Box<str>], schemas: &[Box<[u16]>]) {
        let seed = self.inner.seed;
        self.hashes.extend(names[self.hashes.len()..].iter().map(|name| xxh3_64_with_seed(name.as_bytes(), seed)));
        for schema in &schemas[self.schemas.len()..] {
            let hashes = || schema.iter().map(|&name| self.hashes[usize::from(name)]);
            let is_shared = hashes().all(|hash| self.shared.find(hash, |h| *h == hash).is_some());
            // Whatever their order: the same names count the same. Zero stands for none.
            let hash = hashes().fold(1u64, |sum, hash| sum.wrapping_add(hash.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
            self.schemas.push((!is_shared).then_some(hash.max(1)));
        }
    }
}

#[cfg(test)]
mod tests;
