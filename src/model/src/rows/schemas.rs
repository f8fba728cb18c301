//! The field schemas of rows, and the mapping of their names to the fields of the rows.
//!
//! Nearly all rows of a bucket have one schema. Otherwise, lists longer than [`COMPARED_MAX`] are
//! searched by hash, so that the cost per name is constant even if a sender never repeats field
//! names.

use std::sync::Arc;

use hashbrown::HashTable;

use crate::field_schema::{FieldSchema, hash_of_name, hash_of_names};
use crate::memory;

#[derive(Debug, Clone, Default)]
pub(super) enum RowSchemas {
    #[default]
    None,
    /// All rows have this schema; its names are the fields of the rows.
    One(Arc<FieldSchema>),
    MultiSchema(Box<MultiSchema>),
}

#[derive(Debug, Clone, Default)]
pub(super) struct MultiSchema {
    /// Each schema with the indexes of its names in `fields`.
    schemas: Vec<(Arc<FieldSchema>, Box<[u32]>)>,
    fields: Vec<Arc<str>>,
    /// Schemas by address. Two of them may have equal names.
    by_address: Index,
    by_name: Index,
    /// Schemas by their names; filled by [`RowSchemas::named`].
    by_names: Index,
    /// Total number of indexes in `schemas`.
    places: usize,
    places_bytes: usize,
    last: u32,
    /// Rows removed since unused schemas were last dropped.
    rows_taken: u32,
}

/// Up to this many elements are searched linearly, which is faster than hashing and uses no memory.
const COMPARED_MAX: usize = 16;

/// Finds indexes in a list by hash, once it is long.
#[derive(Debug, Clone, Default)]
struct Index(HashTable<u32>);

impl Index {
    /// The index in the list of length `len` for which `is` returns true.
    fn find(
        &self,
        len: usize,
        hash: impl FnOnce() -> u64,
        is: impl Fn(usize) -> bool,
    ) -> Option<u32> {
        if len <= COMPARED_MAX {
            return (0..len as u32).find(|&i| is(i as usize));
        }
        self.0.find(hash(), |&i| is(i as usize)).copied()
    }

    /// Indexes the elements added since the last call; `len` is the current length of the list.
    fn grow(&mut self, len: usize, hash: impl Fn(usize) -> u64) {
        if len <= COMPARED_MAX {
            return;
        }
        for i in self.0.len() as u32..len as u32 {
            self.0
                .insert_unique(hash(i as usize), i, |&i| hash(i as usize));
        }
    }

    fn memory_bytes(&self) -> usize {
        memory::block(self.0.allocation_size())
    }
}

/// Addresses differ in their middle bits, and the table uses the upper and lower ones.
fn hash_of_address(schema: &Arc<FieldSchema>) -> u64 {
    let address = Arc::as_ptr(schema) as usize as u64;
    address.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32)
}

impl RowSchemas {
    pub(super) fn fields(&self) -> &[Arc<str>] {
        match self {
            RowSchemas::None => &[],
            RowSchemas::One(schema) => schema.names(),
            RowSchemas::MultiSchema(many) => &many.fields,
        }
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<(&Arc<FieldSchema>, Option<&[u32]>)> {
        match self {
            RowSchemas::One(schema) if index == 0 => Some((schema, None)),
            RowSchemas::MultiSchema(many) => many
                .schemas
                .get(index as usize)
                .map(|(schema, fields)| (schema, Some(&**fields))),
            _ => None,
        }
    }

    /// The index of a schema; adds it if it is new.
    pub(super) fn index(&mut self, schema: &Arc<FieldSchema>) -> u32 {
        match self {
            RowSchemas::None => {
                *self = RowSchemas::One(schema.clone());
                0
            }
            RowSchemas::One(one) if Arc::ptr_eq(one, schema) => 0,
            RowSchemas::One(one) => {
                let mut many = MultiSchema::default();
                many.index(one);
                let index = many.index(schema);
                *self = RowSchemas::MultiSchema(Box::new(many));
                index
            }
            RowSchemas::MultiSchema(many) => many.index(schema),
        }
    }

    /// A schema with these names: an existing one, or a new one.
    pub(super) fn named(&mut self, names: &[&str]) -> Arc<FieldSchema> {
        let known = match self {
            RowSchemas::None => None,
            RowSchemas::One(one) => Some(&*one).filter(|one| one.is(names.iter().copied())),
            RowSchemas::MultiSchema(many) => many.named(names),
        };
        known
            .cloned()
            .unwrap_or_else(|| Arc::new(FieldSchema::new(names.iter().map(|n| Arc::from(*n)))))
    }

    /// Number of schemas.
    pub(super) fn len(&self) -> usize {
        match self {
            RowSchemas::None => 0,
            RowSchemas::One(_) => 1,
            RowSchemas::MultiSchema(many) => many.schemas.len(),
        }
    }

    /// Counts removed rows, as long as there are several schemas.
    pub(super) fn count_taken(&mut self, rows: u32) {
        if let RowSchemas::MultiSchema(many) = self {
            many.rows_taken = many.rows_taken.saturating_add(rows);
        }
    }

    /// The rows counted by [`RowSchemas::count_taken`].
    pub(super) fn rows_taken(&self) -> u32 {
        match self {
            RowSchemas::MultiSchema(many) => many.rows_taken,
            _ => 0,
        }
    }

    /// The schemas for removed rows.
    pub(super) fn copy(&self) -> RowSchemas {
        let mut copy = self.clone();
        if let RowSchemas::MultiSchema(many) = &mut copy {
            many.rows_taken = 0;
        }
        copy
    }

    /// Approximate cost of a copy, in units of copying a row.
    pub(super) fn copy_cost(&self) -> usize {
        match self {
            RowSchemas::None | RowSchemas::One(_) => 0,
            RowSchemas::MultiSchema(many) => {
                many.schemas.len() + many.fields.len() + many.places / 16
            }
        }
    }

    /// Memory use in bytes, without the schemas and names, which are shared. Queried for every
    /// reading.
    #[inline]
    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            RowSchemas::None | RowSchemas::One(_) => 0,
            RowSchemas::MultiSchema(many) => many.memory_bytes(),
        }
    }
}

impl MultiSchema {
    fn index(&mut self, schema: &Arc<FieldSchema>) -> u32 {
        let schemas = &self.schemas;
        if schemas
            .get(self.last as usize)
            .is_some_and(|(last, _)| Arc::ptr_eq(last, schema))
        {
            return self.last;
        }
        let is = |i: usize| Arc::ptr_eq(&schemas[i].0, schema);
        self.last = match self
            .by_address
            .find(schemas.len(), || hash_of_address(schema), is)
        {
            Some(known) => known,
            None => self.add(schema),
        };
        self.last
    }

    fn add(&mut self, schema: &Arc<FieldSchema>) -> u32 {
        let places: Box<[u32]> = schema.names().iter().map(|name| self.place(name)).collect();
        self.places += places.len();
        self.places_bytes += memory::block(size_of_val(&*places));
        self.schemas.push((schema.clone(), places));
        let schemas = &self.schemas;
        self.by_address
            .grow(schemas.len(), |i| hash_of_address(&schemas[i].0));
        schemas.len() as u32 - 1
    }

    /// The index of a name in `fields`; adds it if it is new.
    fn place(&mut self, name: &Arc<str>) -> u32 {
        let fields = &self.fields;
        if let Some(known) =
            self.by_name
                .find(fields.len(), || hash_of_name(name), |i| fields[i] == *name)
        {
            return known;
        }
        self.fields.push(name.clone());
        let fields = &self.fields;
        self.by_name
            .grow(fields.len(), |i| hash_of_name(&fields[i]));
        fields.len() as u32 - 1
    }

    fn named(&mut self, names: &[&str]) -> Option<&Arc<FieldSchema>> {
        let schemas = &self.schemas;
        let by_names = &mut self.by_names;
        let is = |i: usize| schemas[i].0.is(names.iter().copied());
        let last = self.last as usize;
        if last < schemas.len() && is(last) {
            return Some(&schemas[last].0);
        }
        by_names.grow(schemas.len(), |i| {
            hash_of_names(schemas[i].0.names().iter().map(|n| &**n))
        });
        let known = by_names.find(schemas.len(), || hash_of_names(names.iter().copied()), is)?;
        Some(&schemas[known as usize].0)
    }

    fn memory_bytes(&self) -> usize {
        memory::block(size_of::<MultiSchema>())
            + memory::block(self.schemas.capacity() * size_of::<(Arc<FieldSchema>, Box<[u32]>)>())
            + memory::block(self.fields.capacity() * size_of::<Arc<str>>())
            + self.by_address.memory_bytes()
            + self.by_name.memory_bytes()
            + self.by_names.memory_bytes()
            + self.places_bytes
    }
}
