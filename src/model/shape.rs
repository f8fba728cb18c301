//! The shape of a reading: the names of its fields, in their order. The readings of a sensor have nearly always the same,
//! so a shape is found once a batch, and a reading's values are copied as one run of bytes.

use std::collections::HashSet;
use std::sync::Arc;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::batch::ReadingBatch;
use super::value::{Cursor, ValueRef};

/// Field names in order, none twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape {
    names: Box<[Arc<str>]>,
    /// Bytes of the names as BSON elements without their values: type, name, NUL.
    element_bytes: u32,
}

impl Shape {
    /// The shape with these names.
    pub fn new(names: impl IntoIterator<Item = Arc<str>>) -> Shape {
        let names: Box<[Arc<str>]> = names.into_iter().collect();
        let element_bytes = names.iter().map(|n| n.len() as u32 + 2).sum();
        Shape { names, element_bytes }
    }

    /// The names.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Names and values of a reading whose values stand in compact form ([`super::value`]).
    pub fn values<'a>(&'a self, payload: &'a [u8]) -> impl Iterator<Item = (&'a str, ValueRef<'a>)> + use<'a> {
        let mut cursor = Cursor { rest: payload };
        self.names.iter().map_while(move |name| Some((&**name, cursor.value()?)))
    }

    pub(super) fn element_bytes(&self) -> u32 {
        self.element_bytes
    }

    /// Whether its names are these.
    pub(super) fn is<'n>(&self, names: impl ExactSizeIterator<Item = &'n str>) -> bool {
        names.len() == self.names.len() && self.names.iter().zip(names).all(|(a, b)| **a == *b)
    }
}

/// Shapes kept before unused ones are dropped.
const SHAPES_SOFT_MAX: usize = 16_384;

/// Shapes shared by all that one owner holds (a shard's buckets), and what the shapes of one batch are among them.
#[derive(Debug, Default)]
pub struct Shapes {
    names: HashSet<Arc<str>>,
    table: HashTable<Arc<Shape>>,
    of_batch: Vec<Option<Arc<Shape>>>,
}

impl Shapes {
    /// Begins a batch: from here on [`Shapes::of`] is asked for shapes of it only.
    pub fn begin(&mut self, batch: &ReadingBatch) {
        self.of_batch.clear();
        self.of_batch.resize(batch.shape_count(), None);
        if self.table.len() > SHAPES_SOFT_MAX {
            self.table.retain(|shape| Arc::strong_count(shape) > 1);
            self.names.retain(|name| Arc::strong_count(name) > 1);
        }
    }

    /// The shape behind an index of [`super::ReadingRef::shape`].
    pub fn of(&mut self, batch: &ReadingBatch, index: u32) -> &Arc<Shape> {
        let (names, table) = (&mut self.names, &mut self.table);
        self.of_batch[index as usize].get_or_insert_with(|| find(names, table, batch, index))
    }
}

fn find(
    interned: &mut HashSet<Arc<str>>,
    table: &mut HashTable<Arc<Shape>>,
    batch: &ReadingBatch,
    index: u32,
) -> Arc<Shape> {
    let names = || batch.shape(index).iter().map(|&name| batch.name(name));
    let hash = hash_of(names());
    if let Some(known) = table.find(hash, |shape| shape.is(names())) {
        return known.clone();
    }
    let mut intern = |name: &str| match interned.get(name) {
        Some(known) => known.clone(),
        None => {
            let new: Arc<str> = Arc::from(name);
            interned.insert(new.clone());
            new
        }
    };
    let shape = Arc::new(Shape::new(names().map(&mut intern)));
    table.insert_unique(hash, shape.clone(), |shape| hash_of(shape.names.iter().map(|n| &**n)));
    shape
}

/// Shapes of hostile senders may collide; what is found by it is compared, and there are few in one table.
fn hash_of<'n>(names: impl Iterator<Item = &'n str>) -> u64 {
    names.fold(0, |hash: u64, name| hash.rotate_left(5).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ xxh3_64(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BatchBuilder, ValueRef};

    #[test]
    fn equal_names_are_one_shape_whatever_batch_they_come_in() {
        let batch = |names: &[&[&str]]| {
            let mut builder = BatchBuilder::new(8);
            for reading in names {
                reading.iter().for_each(|n| builder.value(n, ValueRef::Int(1)).unwrap());
                builder.commit("s", 0, false, &[]);
            }
            builder.finish()
        };
        let (a, b) = (batch(&[&["x", "y"], &["y", "x"], &["x", "y"]]), batch(&[&["y", "x"], &["x", "y"]]));
        let mut shapes = Shapes::default();
        let mut all = |batch: &ReadingBatch| -> Vec<Arc<Shape>> {
            shapes.begin(batch);
            batch.iter().map(|(_, r)| shapes.of(batch, r.shape).clone()).collect()
        };
        let (a, b) = (all(&a), all(&b));
        assert!(Arc::ptr_eq(&a[0], &a[2]) && Arc::ptr_eq(&a[0], &b[1]) && Arc::ptr_eq(&a[1], &b[0]));
        assert!(!Arc::ptr_eq(&a[0], &a[1]), "the order counts");
        assert!(Arc::ptr_eq(&a[0].names()[0], &a[1].names()[1]), "names are shared");
    }
}
