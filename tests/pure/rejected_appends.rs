//! An append that the server rejects because of its content may have met another page than the
//! shard believes in: the page is loaded, and the append repeated, before its rows are given up.

use std::collections::BTreeMap;

use model::{PageKind, StorageMode};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::{Job, JobResult};
use store::PageWriteResult;

use crate::shard_rig::{START_MS, ShardRig, reading, shard};

const LARGE: PageLimits = PageLimits {
    readings: 1000,
    bytes: 1 << 20,
    summary_bytes: 1 << 20,
};

/// A shard that has stored one reading of `s`, and has a second one to append.
fn with_append() -> ShardRig {
    let mut rig = ShardRig::new(StorageMode::Bucket, shard(100, LARGE));
    rig.accept(reading("s", START_MS, 1), false);
    rig.flush(0);
    rig.accept(reading("s", START_MS + 10, 2), false);
    rig
}

/// The next job, once the rows are due.
fn next_job(rig: &mut ShardRig) -> Job {
    for _ in 0..10 {
        rig.now.mono_ms += 10;
        rig.shard.drain();
        if let Some(job) = rig.shard.take(StorageMode::Bucket) {
            return job;
        }
    }
    panic!("nothing to do: {:?}", rig.shard);
}

/// Rejects the append that is due.
fn reject(rig: &mut ShardRig) {
    let Job::Write(buckets, writes) = next_job(rig) else {
        panic!("not a write");
    };
    assert!(matches!(writes[0].kind, PageKind::Append { .. }));
    let rejected = PageWriteResult::Rejected {
        detail: "Document failed validation (121)".into(),
    };
    let done = JobResult::Write(buckets, writes, Ok(vec![rejected]));
    rig.shard.finished(done, rig.now);
}

fn load(rig: &mut ShardRig) {
    let job = next_job(rig);
    assert!(matches!(job, Job::Load(..)), "{job:?}");
    rig.carry_out(job, false);
}

#[test]
fn an_append_to_a_page_that_another_has_changed_is_stored() {
    let mut rig = with_append();
    rig.pages.pages = BTreeMap::new();
    reject(&mut rig);
    load(&mut rig);
    rig.flush(0);
    assert_eq!(rig.stored("s", START_MS + 10), 1);
    assert!(rig.shard.take_rejected_rows().is_empty());
}

#[test]
fn an_append_that_is_rejected_after_a_load_is_given_up() {
    let mut rig = with_append();
    for n in 1..=3 {
        reject(&mut rig);
        assert!(rig.shard.take_rejected_rows().is_empty());
        load(&mut rig);
        reject(&mut rig);
        let rejected = rig.shard.take_rejected_rows();
        assert_eq!((rejected.len(), rejected[0].rows.len()), (1, 1));
        rig.accept(reading("s", START_MS + 10 + n, 3), false);
    }
    rig.flush(0);
    assert_eq!(
        rig.stored("s", START_MS + 13),
        1,
        "the next is not affected"
    );
}
