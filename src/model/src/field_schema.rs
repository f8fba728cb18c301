//! The field schema of a reading: the names of its fields, in order. The readings of a sensor
//! nearly always have the same schema. So a schema is looked up once per batch, and the values of a
//! reading are copied as one byte slice.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::batch::ReadingBatch;
use super::memory;
use super::value::{Cursor, ValueRef};

/// Distinct field names in order.
#[derive(Debug, PartialEq, Eq)]
pub struct FieldSchema {
    names: Box<[Arc<str>]>,
    /// Size of the names as BSON elements without values: type, name, NUL.
    element_bytes: u32,
}

impl FieldSchema {
    /// The names must be distinct.
    pub fn new(names: impl IntoIterator<Item = Arc<str>>) -> FieldSchema {
        let names: Box<[Arc<str>]> = names.into_iter().collect();
        let element_bytes = names.iter().map(|n| n.len() as u32 + 2).sum();
        FieldSchema {
            names,
            element_bytes,
        }
    }

    /// The field names, in order.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Names and values of a reading; `payload` has the values in compact form ([`super::value`]).
    pub fn values<'a>(
        &'a self,
        payload: &'a [u8],
    ) -> impl Iterator<Item = (&'a str, ValueRef<'a>)> + use<'a> {
        let mut cursor = Cursor { rest: payload };
        self.names
            .iter()
            .map_while(move |name| Some((&**name, cursor.value()?)))
    }

    pub(super) fn element_bytes(&self) -> u32 {
        self.element_bytes
    }

    /// Whether its names equal these, in order.
    pub(super) fn is<'n>(&self, names: impl ExactSizeIterator<Item = &'n str>) -> bool {
        names.len() == self.names.len() && self.names.iter().zip(names).all(|(a, b)| **a == *b)
    }
}

/// Number of schemas and names below which no automatic sweep runs.
const SWEEP_MIN: usize = 1024;
/// Schemas of one batch for which memory is kept. It counts, and nothing frees it: with many shards
/// and a small limit, 1,024 filled a shard for ever.
const BATCH_KEPT: usize = 64;

/// Field schemas shared by all buckets of a shard, and the mapping from the schema indexes of the
/// current batch.
///
/// [`FieldSchemas::sweep`] drops unused schemas and names. It runs when their number has doubled
/// since the last sweep (so that the amortized cost is constant for each new one), and when the
/// owner needs memory.
#[derive(Debug)]
pub struct FieldSchemas {
    names: HashTable<Arc<str>>,
    table: HashTable<Arc<FieldSchema>>,
    of_batch: Vec<Option<Arc<FieldSchema>>>,
    /// Memory of the names and schemas, without the tables.
    bytes: usize,
    sweep_at: usize,
}

impl Default for FieldSchemas {
    fn default() -> FieldSchemas {
        let (names, table, of_batch) = Default::default();
        FieldSchemas {
            names,
            table,
            of_batch,
            bytes: 0,
            sweep_at: SWEEP_MIN,
        }
    }
}

impl FieldSchemas {
    /// Starts a batch: [`FieldSchemas::intern`] then accepts only schemas of this batch.
    pub fn begin(&mut self, batch: &ReadingBatch) {
        self.of_batch.clear();
        self.of_batch.resize(batch.schema_count(), None);
        if self.names.len() + self.table.len() >= self.sweep_at {
            self.sweep();
        }
    }

    /// The schema for an index of [`super::ReadingRef::schema`].
    #[inline]
    pub fn intern(&mut self, batch: &ReadingBatch, index: u32) -> &Arc<FieldSchema> {
        let names = &mut self.names;
        let table = &mut self.table;
        let bytes = &mut self.bytes;
        self.of_batch[index as usize].get_or_insert_with(|| find(names, table, bytes, batch, index))
    }

    /// Ends a batch and releases its schemas.
    pub fn end(&mut self) {
        self.of_batch.clear();
        self.of_batch.shrink_to(BATCH_KEPT);
    }

    /// Drops the schemas and names without another owner, and frees their memory.
    pub fn sweep(&mut self) {
        let bytes = &mut self.bytes;
        let hash = |schema: &Arc<FieldSchema>| hash_of_schema(schema);
        memory::retain(&mut self.table, hash, |schema| {
            let is_held = Arc::strong_count(schema) > 1;
            *bytes -= if is_held { 0 } else { schema_bytes(schema) };
            is_held
        });
        let hash = |name: &Arc<str>| hash_of_name(name);
        memory::retain(&mut self.names, hash, |name| {
            let is_held = Arc::strong_count(name) > 1;
            *bytes -= if is_held { 0 } else { name_bytes(name) };
            is_held
        });
        self.sweep_at = (2 * (self.names.len() + self.table.len())).max(SWEEP_MIN);
    }

    /// Memory use in bytes, including schemas and names that have other owners.
    pub fn memory_bytes(&self) -> usize {
        self.bytes
            + memory::block(self.names.allocation_size())
            + memory::block(self.table.allocation_size())
            + memory::block(self.of_batch.capacity() * size_of::<Option<Arc<FieldSchema>>>())
    }
}

fn schema_bytes(schema: &FieldSchema) -> usize {
    memory::shared(size_of::<FieldSchema>())
        + memory::block(schema.names.len() * size_of::<Arc<str>>())
}

fn name_bytes(name: &str) -> usize {
    memory::shared(name.len())
}

fn find(
    interned: &mut HashTable<Arc<str>>,
    table: &mut HashTable<Arc<FieldSchema>>,
    bytes: &mut usize,
    batch: &ReadingBatch,
    index: u32,
) -> Arc<FieldSchema> {
    let names = || batch.schema(index).iter().map(|&name| batch.name(name));
    let hash = hash_of_names(names());
    if let Some(known) = table.find(hash, |schema| schema.is(names())) {
        return known.clone();
    }
    let mut intern = |name: &str| {
        let hash = hash_of_name(name);
        if let Some(known) = interned.find(hash, |known| **known == *name) {
            return known.clone();
        }
        let new: Arc<str> = Arc::from(name);
        *bytes += name_bytes(&new);
        interned.insert_unique(hash, new.clone(), |name| hash_of_name(name));
        new
    };
    let schema = Arc::new(FieldSchema::new(names().map(&mut intern)));
    *bytes += schema_bytes(&schema);
    table.insert_unique(hash, schema.clone(), |schema| hash_of_schema(schema));
    schema
}

/// Random for each process, so that no sender can prepare colliding names.
static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));

pub(crate) fn hash_of_name(name: &str) -> u64 {
    xxh3_64_with_seed(name.as_bytes(), *SEED)
}

pub(super) fn hash_of_names<'n>(names: impl Iterator<Item = &'n str>) -> u64 {
    let mix = |hash: u64, name: &str| {
        hash.rotate_left(5).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ hash_of_name(name)
    };
    names.fold(*SEED, mix)
}

fn hash_of_schema(schema: &FieldSchema) -> u64 {
    hash_of_names(schema.names.iter().map(|name| &**name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, ValueRef};

    #[test]
    fn equal_names_share_one_schema_across_batches() {
        let batch = |names: &[&[&str]]| {
            let mut builder = BatchBuilder::new(8);
            for reading in names {
                reading
                    .iter()
                    .for_each(|n| builder.value(n, ValueRef::Int(1)).unwrap());
                builder.commit("s", 0, false, &[]).unwrap();
            }
            builder.finish()
        };
        let a = batch(&[&["x", "y"], &["y", "x"], &["x", "y"]]);
        let b = batch(&[&["y", "x"], &["x", "y"]]);
        let mut schemas = FieldSchemas::default();
        let mut all = |batch: &ReadingBatch| -> Vec<Arc<FieldSchema>> {
            schemas.begin(batch);
            batch
                .iter()
                .map(|(_, r)| schemas.intern(batch, r.schema).clone())
                .collect()
        };
        let a = all(&a);
        let b = all(&b);
        assert!(
            Arc::ptr_eq(&a[0], &a[2]) && Arc::ptr_eq(&a[0], &b[1]) && Arc::ptr_eq(&a[1], &b[0])
        );
        assert!(!Arc::ptr_eq(&a[0], &a[1]), "the order counts");
        assert!(
            Arc::ptr_eq(&a[0].names()[0], &a[1].names()[1]),
            "names are shared"
        );
    }

    #[test]
    fn unused_schemas_are_dropped_and_not_counted() {
        let mut schemas = FieldSchemas::default();
        let empty = schemas.memory_bytes();
        let mut held = vec![];
        let mut most = 0;
        for i in 0..200 {
            let mut builder = BatchBuilder::new(8);
            for k in 0..1000 {
                builder
                    .value(&format!("a name of some length {i} {k}"), ValueRef::Int(1))
                    .unwrap();
                builder.commit("s", 0, false, &[]).unwrap();
            }
            let batch = builder.finish();
            schemas.begin(&batch);
            let all: Vec<_> = batch
                .iter()
                .map(|(_, r)| schemas.intern(&batch, r.schema).clone())
                .collect();
            held.push(all[0].clone());
            schemas.end();
            most = most.max(schemas.memory_bytes());
        }
        assert!(
            most < 6000 * 200,
            "at most those of a few batches: {most} bytes"
        );
        let again = held.clone();
        schemas.sweep();
        let with_held = schemas.memory_bytes();
        assert!(
            with_held > empty + 200 * 32 && with_held < 200 * 1000,
            "{with_held} bytes"
        );
        assert!(again.iter().all(|schema| schema.names().len() == 1));
        drop((held, again));
        schemas.sweep();
        assert!(
            schemas.memory_bytes() <= empty + 16 * SWEEP_MIN,
            "{} bytes",
            schemas.memory_bytes()
        );
        assert_eq!(schemas.bytes, 0);
    }
}
