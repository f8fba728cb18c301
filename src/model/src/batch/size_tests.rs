//! The size of a batch, and its limit.

use super::{BatchBuilder, BuildError, ReadingBatch};
use crate::value::ValueRef;

const BYTES_MAX: usize = 1000;

fn encoded(batch: &ReadingBatch) -> usize {
    let mut out = vec![];
    batch.encode(&mut out);
    out.len()
}

fn limited() -> BatchBuilder {
    let mut builder = BatchBuilder::new(8);
    builder.limit_bytes(BYTES_MAX);
    builder
}

/// Adds readings that `of` begins, until one does not fit; returns their number.
fn fill(
    builder: &mut BatchBuilder,
    of: impl Fn(&mut BatchBuilder, usize) -> Result<(), BuildError>,
) -> usize {
    for n in 0.. {
        builder.begin();
        let added =
            of(builder, n).and_then(|()| builder.commit("S", 1, false, &[("site", "north")]));
        match added {
            Ok(()) => assert!(!builder.take_is_overfull()),
            Err(error) => {
                assert!(builder.take_is_overfull() && !builder.take_is_overfull());
                assert_eq!(
                    error,
                    BuildError::BatchFull {
                        bytes_max: BYTES_MAX
                    }
                );
                builder.abort();
                return n;
            }
        }
    }
    unreachable!()
}

#[test]
fn a_batch_stays_within_its_limit_with_its_names_and_schemas() {
    let same =
        |builder: &mut BatchBuilder, n: usize| builder.value("temp", ValueRef::Int(n as i64));
    let names = |builder: &mut BatchBuilder, n: usize| {
        builder.value(&format!("a name of its own {n}"), ValueRef::Int(1))
    };
    let mut builder = limited();
    let many = fill(&mut builder, same);
    let batch = builder.finish();
    assert_eq!(batch.len(), many);
    let bytes = encoded(&batch);
    assert!((BYTES_MAX - 100..=BYTES_MAX).contains(&bytes), "{bytes}");

    // The same builder again, which counts from 0.
    let few = fill(&mut builder, names);
    let bytes = encoded(&builder.finish());
    assert!(few < many, "{few} of {many}");
    assert!((BYTES_MAX - 100..=BYTES_MAX).contains(&bytes), "{bytes}");
}

#[test]
fn a_rollback_makes_room_and_keeps_the_names() {
    let mut builder = limited();
    let mark = builder.mark();
    let same =
        |builder: &mut BatchBuilder, n: usize| builder.value("temp", ValueRef::Int(n as i64));
    let many = fill(&mut builder, same);
    builder.rollback(mark);
    assert_eq!(fill(&mut builder, same), many);
    assert!(encoded(&builder.finish()) <= BYTES_MAX);
}
