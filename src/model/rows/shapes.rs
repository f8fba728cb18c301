//! The shapes of rows, and the places of their names among the fields of the rows.
//!
//! Nearly all rows of a bucket have one shape. Where there are more, everything is found by hash once there are more than
//! [`COMPARED_MAX`] of it: a sender whose field names never repeat costs as much for each name as any other.

use std::sync::Arc;

use hashbrown::HashTable;

use crate::model::memory;
use crate::model::shape::{Shape, hash_of_name, hash_of_names};

/// The shapes of rows.
#[derive(Debug, Clone, Default)]
pub(super) enum RowShapes {
    #[default]
    None,
    /// All rows have this one: the fields of the rows are its names.
    One(Arc<Shape>),
    Many(Box<Many>),
}

/// Several shapes.
#[derive(Debug, Clone, Default)]
pub(super) struct Many {
    /// Each with the place of its names in `fields`.
    shapes: Vec<(Arc<Shape>, Box<[u32]>)>,
    fields: Vec<Arc<str>>,
    /// The same names may stand in two shapes.
    by_address: Index,
    by_name: Index,
    /// Shapes by their names, as far as [`RowShapes::named`] was asked.
    by_names: Index,
    /// How many places all shapes have.
    places: usize,
    places_bytes: usize,
    last: u32,
}

/// Up to this many are found by comparing, which is faster than hashing and takes no memory.
const COMPARED_MAX: usize = 16;

/// Finds places in a list by hash, once it is long.
#[derive(Debug, Clone, Default)]
struct Index(HashTable<u32>);

impl Index {
    /// The place of the list of length `len` for which `is` holds.
    fn find(&self, len: usize, hash: impl FnOnce() -> u64, is: impl Fn(usize) -> bool) -> Option<u32> {
        if len <= COMPARED_MAX {
            return (0..len as u32).find(|&i| is(i as usize));
        }
        self.0.find(hash(), |&i| is(i as usize)).copied()
    }

    /// Takes in what the list, of length `len` now, has got since the last time.
    fn grow(&mut self, len: usize, hash: impl Fn(usize) -> u64) {
        if len <= COMPARED_MAX {
            return;
        }
        for i in self.0.len() as u32..len as u32 {
            self.0.insert_unique(hash(i as usize), i, |&i| hash(i as usize));
        }
    }

    fn memory_bytes(&self) -> usize {
        memory::block(self.0.allocation_size())
    }
}

/// Addresses differ in their middle bits, and the table uses the upper and lower ones.
fn hash_of_address(shape: &Arc<Shape>) -> u64 {
    let address = Arc::as_ptr(shape) as usize as u64;
    address.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32)
}

impl RowShapes {
    pub(super) fn fields(&self) -> &[Arc<str>] {
        match self {
            RowShapes::None => &[],
            RowShapes::One(shape) => shape.names(),
            RowShapes::Many(many) => &many.fields,
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<(&Arc<Shape>, Option<&[u32]>)> {
        match self {
            RowShapes::One(shape) if index == 0 => Some((shape, None)),
            RowShapes::Many(many) => many.shapes.get(index as usize).map(|(shape, fields)| (shape, Some(&**fields))),
            _ => None,
        }
    }

    /// The index of a shape, added where it is new.
    pub(super) fn index(&mut self, shape: &Arc<Shape>) -> u32 {
        match self {
            RowShapes::None => {
                *self = RowShapes::One(shape.clone());
                0
            }
            RowShapes::One(one) if Arc::ptr_eq(one, shape) => 0,
            RowShapes::One(one) => {
                let mut many = Many::default();
                many.index(one);
                let index = many.index(shape);
                *self = RowShapes::Many(Box::new(many));
                index
            }
            RowShapes::Many(many) => many.index(shape),
        }
    }

    /// A shape with these names, an earlier one where there is one.
    pub(super) fn named(&mut self, names: &[&str]) -> Arc<Shape> {
        let known = match self {
            RowShapes::None => None,
            RowShapes::One(one) => Some(&*one).filter(|one| one.is(names.iter().copied())),
            RowShapes::Many(many) => many.named(names),
        };
        known.cloned().unwrap_or_else(|| Arc::new(Shape::new(names.iter().map(|n| Arc::from(*n)))))
    }

    /// How many shapes there are.
    pub(super) fn len(&self) -> usize {
        match self {
            RowShapes::None => 0,
            RowShapes::One(_) => 1,
            RowShapes::Many(many) => many.shapes.len(),
        }
    }

    /// What a copy costs, in about the cost of copying a row.
    pub(super) fn copy_cost(&self) -> usize {
        match self {
            RowShapes::None | RowShapes::One(_) => 0,
            RowShapes::Many(many) => many.shapes.len() + many.fields.len() + many.places / 16,
        }
    }

    /// Bytes held, without the shapes and names themselves, which others share. It is asked for with every reading.
    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            RowShapes::None | RowShapes::One(_) => 0,
            RowShapes::Many(many) => many.memory_bytes(),
        }
    }
}

impl Many {
    fn index(&mut self, shape: &Arc<Shape>) -> u32 {
        let shapes = &self.shapes;
        if shapes.get(self.last as usize).is_some_and(|(last, _)| Arc::ptr_eq(last, shape)) {
            return self.last;
        }
        let is = |i: usize| Arc::ptr_eq(&shapes[i].0, shape);
        self.last = match self.by_address.find(shapes.len(), || hash_of_address(shape), is) {
            Some(known) => known,
            None => self.add(shape),
        };
        self.last
    }

    fn add(&mut self, shape: &Arc<Shape>) -> u32 {
        let places: Box<[u32]> = shape.names().iter().map(|name| self.place(name)).collect();
        self.places += places.len();
        self.places_bytes += memory::block(size_of_val(&*places));
        self.shapes.push((shape.clone(), places));
        let shapes = &self.shapes;
        self.by_address.grow(shapes.len(), |i| hash_of_address(&shapes[i].0));
        shapes.len() as u32 - 1
    }

    /// The place of a name among the fields, added where it is new.
    fn place(&mut self, name: &Arc<str>) -> u32 {
        let fields = &self.fields;
        if let Some(known) = self.by_name.find(fields.len(), || hash_of_name(name), |i| fields[i] == *name) {
            return known;
        }
        self.fields.push(name.clone());
        let fields = &self.fields;
        self.by_name.grow(fields.len(), |i| hash_of_name(&fields[i]));
        fields.len() as u32 - 1
    }

    fn named(&mut self, names: &[&str]) -> Option<&Arc<Shape>> {
        let (shapes, by_names) = (&self.shapes, &mut self.by_names);
        let is = |i: usize| shapes[i].0.is(names.iter().copied());
        let last = self.last as usize;
        if last < shapes.len() && is(last) {
            return Some(&shapes[last].0);
        }
        by_names.grow(shapes.len(), |i| hash_of_names(shapes[i].0.names().iter().map(|n| &**n)));
        let known = by_names.find(shapes.len(), || hash_of_names(names.iter().copied()), is)?;
        Some(&shapes[known as usize].0)
    }

    fn memory_bytes(&self) -> usize {
        memory::block(size_of::<Many>())
            + memory::block(self.shapes.capacity() * size_of::<(Arc<Shape>, Box<[u32]>)>())
            + memory::block(self.fields.capacity() * size_of::<Arc<str>>())
            + self.by_address.memory_bytes()
            + self.by_name.memory_bytes()
            + self.by_names.memory_bytes()
            + self.places_bytes
    }
}
