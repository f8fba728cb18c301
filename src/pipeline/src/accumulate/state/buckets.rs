//! The open buckets of a sensor, sorted by start. Nearly always one, stored without an allocation
//! and without a length: there are millions of sensors. Pure.

use std::ops::{Deref, DerefMut};

use super::super::bucket::Bucket;
use model::memory;

#[derive(Debug, Default)]
pub(super) enum Buckets {
    #[default]
    None,
    One(Bucket),
    Many(Vec<Bucket>),
}

// The variants take no space besides the bucket's.
const _: () = assert!(size_of::<Buckets>() == size_of::<Bucket>());

impl Buckets {
    /// Inserts a bucket; `position`: as found by a search for its start.
    pub(super) fn insert(&mut self, position: usize, bucket: Bucket) {
        *self = match std::mem::take(self) {
            Buckets::None => Buckets::One(bucket),
            Buckets::One(other) => {
                let mut many = Vec::with_capacity(2);
                many.push(other);
                many.insert(position, bucket);
                Buckets::Many(many)
            }
            Buckets::Many(mut many) => {
                many.insert(position, bucket);
                Buckets::Many(many)
            }
        };
    }

    /// Heap bytes of the list, without those of its buckets.
    pub(super) fn memory(&self) -> usize {
        match self {
            Buckets::None | Buckets::One(_) => 0,
            Buckets::Many(many) => memory::block(many.capacity() * size_of::<Bucket>()),
        }
    }

    /// Keeps the buckets for which `keep` returns true.
    pub(super) fn retain_mut(&mut self, mut keep: impl FnMut(&mut Bucket) -> bool) {
        match self {
            Buckets::None => {}
            Buckets::One(bucket) => {
                if !keep(bucket) {
                    *self = Buckets::None;
                }
            }
            Buckets::Many(many) => {
                many.retain_mut(keep);
                if many.len() <= 1 {
                    *self = many.pop().map_or(Buckets::None, Buckets::One);
                }
            }
        }
    }
}

impl Deref for Buckets {
    type Target = [Bucket];

    fn deref(&self) -> &[Bucket] {
        match self {
            Buckets::None => &[],
            Buckets::One(bucket) => std::slice::from_ref(bucket),
            Buckets::Many(many) => many,
        }
    }
}

impl DerefMut for Buckets {
    fn deref_mut(&mut self) -> &mut [Bucket] {
        match self {
            Buckets::None => &mut [],
            Buckets::One(bucket) => std::slice::from_mut(bucket),
            Buckets::Many(many) => many,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::BucketStart;

    #[test]
    fn buckets_stay_sorted_and_the_last_one_is_inline() {
        let mut buckets = Buckets::default();
        assert!(buckets.is_empty());
        for start in [5, 1, 3, 9] {
            let start = BucketStart(start);
            let position = buckets
                .binary_search_by_key(&start, |b| b.start)
                .unwrap_err();
            buckets.insert(position, Bucket::new(start, true));
        }
        let starts = |buckets: &Buckets| buckets.iter().map(|b| b.start.0).collect::<Vec<_>>();
        assert_eq!(starts(&buckets), [1, 3, 5, 9]);
        buckets.retain_mut(|b| b.start.0 != 3);
        assert_eq!(starts(&buckets), [1, 5, 9]);
        buckets[1].queued = true;
        buckets.retain_mut(|b| b.queued);
        assert!(
            matches!(&buckets, Buckets::One(bucket) if bucket.start.0 == 5),
            "{buckets:?}"
        );
        buckets.retain_mut(|_| false);
        assert!(matches!(buckets, Buckets::None));
    }
}
