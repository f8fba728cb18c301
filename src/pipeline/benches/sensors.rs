//! Memory of an idle sensor, all readings of which are stored: a million sensors in two shards, two
//! readings each, alternating with flushes as in the service. Compares resident memory with the
//! shards' own estimate. A benchmark, not a test.
//!
//!     cargo bench -p pipeline --bench sensors [-- SENSORS]

use std::time::Duration;

use model::ack::Ack;
use model::{
    BatchBuilder, BucketStart, NewBuckets, Now, PageWrite, ReadingBatch, Span, StorageMode,
    ValueRef,
};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::{Job, JobResult, Shard, ShardSettings};
use pipeline::flush::backoff::Backoff;
use pipeline::flush::due::DuePolicy;
use pipeline::route::row_refs;
use store::PageWriteResult;

/// The allocator of the service.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SHARDS: usize = 2;
const BATCH: usize = 1000;
const NAMES: [&str; 7] = [
    "latitude",
    "longitude",
    "elevation",
    "velocity",
    "heading",
    "grade",
    "fuel_consumption",
];
const HOUR_MS: i64 = 3_600_000;

fn shard() -> Shard {
    let mut shard = Shard::new(ShardSettings {
        span: Span::HOUR,
        page: PageLimits {
            readings: 1000,
            bytes: 1 << 20,
            summary_bytes: 1 << 20,
        },
        due: DuePolicy::Age(15_000),
        command_bytes_max: 12 << 20,
        command_statements_max: 5000,
        bytes_max: 256 << 20,
        sensors_max: 1_000_000,
        dedup_keys_max: 8192,
        quarantine_after_ms: 600_000,
        arrival_step_ms: 3_600_000,
        backoff: Backoff {
            min: Duration::from_millis(100),
            max: Duration::from_secs(30),
        },
    });
    shard.set_new_buckets(NewBuckets::NONE.raised(BucketStart(i64::MIN), BucketStart(i64::MAX)));
    shard
}

/// Readings of a thousand sensors with tags of trucks: few distinct sets, as in real fleets.
fn batch(first: usize, ts_ms: i64) -> ReadingBatch {
    let mut builder = BatchBuilder::new(64);
    for i in first..first + BATCH {
        builder.begin();
        for name in NAMES {
            builder
                .value(name, ValueRef::Double(i as f64 / 7.0))
                .expect("fits");
        }
        let driver = ["Trish", "Derek", "Andy", "Rodney", "Seth"][i % 5];
        let tags = [
            ("device_version", "v2.3"),
            ("driver", driver),
            ("fleet", "South"),
            ("model", "H-2"),
        ];
        builder
            .commit(&format!("truck_{i:07}"), ts_ms, false, &tags)
            .expect("it fits");
    }
    builder.finish()
}

fn stored(shard: &mut Shard, now: Now) {
    while let Some(job) = shard.take(StorageMode::Bucket) {
        let Job::Write(tickets, writes) = job else {
            unreachable!("all buckets are new")
        };
        let count = |w: &PageWrite| PageWriteResult::Done {
            count: w.count_after(),
        };
        let answers = writes.iter().map(count).collect();
        shard.finished(JobResult::Write(tickets, writes, Ok(answers)), now);
    }
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc is there");
    statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .expect("a number of pages")
        * 4096
}

#[allow(clippy::print_stdout, reason = "the output of the benchmark")]
fn main() {
    let sensors = std::env::args()
        .skip(1)
        .find_map(|a| a.parse().ok())
        .unwrap_or(1_000_000usize);
    let before = resident();
    let mut shards: Vec<Shard> = (0..SHARDS).map(|_| shard()).collect();
    let mut now = Now {
        wall_ms: 10 * HOUR_MS,
        mono_ms: 1,
    };
    for round in 0..2 {
        for first in (0..sensors).step_by(BATCH) {
            let batch = batch(first, now.wall_ms);
            for (shard, row_refs) in shards.iter_mut().zip(row_refs(&batch, SHARDS)) {
                shard.accept(&batch, &row_refs, Ack::none(), false, now);
            }
            // A million readings a minute.
            now = Now {
                wall_ms: now.wall_ms + 60,
                mono_ms: now.mono_ms + 60,
            };
            for shard in &mut shards {
                shard.tick(now);
                stored(shard, now);
            }
        }
        println!(
            "round {round}: {} resident bytes per sensor",
            (resident() - before) / sensors as u64
        );
    }
    for shard in &mut shards {
        shard.drain();
        stored(shard, now);
    }
    std::thread::sleep(Duration::from_secs(2));
    let books: usize = shards.iter().map(|s| s.usage().bytes).sum();
    let resident = resident() - before;
    let held = shards.iter().map(|s| s.usage().sensors).sum::<usize>();
    println!(
        "{held} idle sensors: {} resident bytes per sensor, {} estimated",
        resident / held as u64,
        books / held
    );
}
