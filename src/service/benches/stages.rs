//! The stages of the pipeline, each separately, to detect regressions: decode, journal, accumulate,
//! BSON packing. Figures, not tests: `cargo bench --bench stages`.

#![allow(missing_docs, reason = "criterion's macro makes an item without")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use decode::{Context, Format, Rejects, TsUnit, decode};
use journal::admission::{AdmissionControl, IngestBatch, admission_channel};
use journal::fs::RealFs;
use journal::{Journal, JournalDeps, OpenedJournal};
use model::ack::Ack;
use model::{
    BatchBuilder, Gate, GateSlot, Now, PageKind, PageWrite, ReadingBatch, RowFlags, Rows,
    StorageMode, SystemClock, ValueRef, summary,
};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::{Shard, ShardSettings};
use pipeline::flush::backoff::Backoff;
use pipeline::flush::due::DuePolicy;
use store::mongo::packed_bytes;

const READINGS: usize = 1000;
const NAMES: [&str; 7] = [
    "latitude",
    "longitude",
    "elevation",
    "velocity",
    "heading",
    "grade",
    "fuel_consumption",
];

fn values(i: usize) -> [f64; 7] {
    let i = i as f64;
    [
        52.31854 + i / 1e5,
        4.72037 + i / 1e5,
        124.0,
        0.0,
        221.0,
        0.0,
        25.0 + i / 10.0,
    ]
}

/// A thousand readings of a thousand trucks, as a gateway posts them.
fn ndjson() -> Vec<u8> {
    let mut body = String::new();
    for i in 0..READINGS {
        let fields: Vec<String> = NAMES
            .iter()
            .zip(values(i))
            .map(|(n, v)| format!("\"{n}\":{v:?}"))
            .collect();
        body += &format!(
            "{{\"sensor_id\":\"truck_{i:06}\",\"ts\":1700000000000,\"values\":{{{}}},\"tags\":{{\"fleet\":\"South\",\
             \"driver\":\"Trish\",\"model\":\"H-2\",\"device_version\":\"v2.3\"}}}}\n",
            fields.join(",")
        );
    }
    body.into_bytes()
}

fn batch(ts_ms: i64) -> ReadingBatch {
    let mut builder = BatchBuilder::new(64);
    let tags = [
        ("fleet", "South"),
        ("driver", "Trish"),
        ("model", "H-2"),
        ("device_version", "v2.3"),
    ];
    for i in 0..READINGS {
        builder.begin();
        for (name, value) in NAMES.iter().zip(values(i)) {
            builder.value(name, ValueRef::Double(value)).expect("fits");
        }
        builder
            .commit(&format!("truck_{i:06}"), ts_ms, false, &tags)
            .expect("nothing guards it");
    }
    builder.finish()
}

/// The same in line protocol.
fn lines() -> Vec<u8> {
    let mut body = String::new();
    for i in 0..READINGS {
        let fields: Vec<String> = NAMES
            .iter()
            .zip(values(i))
            .map(|(n, v)| format!("{n}={v}"))
            .collect();
        body += &format!(
            "readings,sensor_id=truck_{i:06},fleet=South,driver=Trish,model=H-2,device_version=v2.3 {} 1700000000000\n",
            fields.join(",")
        );
    }
    body.into_bytes()
}

fn decoding(c: &mut Criterion) {
    let config = Config::default();
    let mut group = c.benchmark_group("decode");
    group.throughput(Throughput::Elements(READINGS as u64));
    for (name, format, body) in [
        ("ndjson", Format::Ndjson, ndjson()),
        ("line", Format::Line, lines()),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| {
                let cx = Context {
                    limits: &config.limits,
                    line: &config.line,
                    received_at_ms: 1_700_000_001_000,
                    ts_unit: Some(TsUnit::Ms),
                    sensor_id: None,
                    field: None,
                    tags: &[],
                    ..Context::usual()
                };
                let mut out = BatchBuilder::new(config.limits.fields_max);
                let mut rejects = Rejects::default();
                decode(format, black_box(&body), &cx, &mut out, &mut rejects);
                assert_eq!((out.len(), rejects.total()), (READINGS, 0));
                out.finish()
            });
        });
    }
    group.finish();
}

fn journal(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let _guard = runtime.enter();
    let config = config::Journal {
        dir: dir.path().join("journal"),
        max_bytes: 16 << 30,
        segment_bytes: 64 << 20,
        commit_delay: Duration::from_millis(2),
    };
    let admission_control = AdmissionControl::default();
    let env = JournalDeps {
        fs: Arc::new(RealFs),
        clock: Arc::new(SystemClock::new()),
        admission_control: admission_control.clone(),
        on_broken: Box::new(|why| panic!("{why}")),
        keys: Default::default(),
    };
    let OpenedJournal {
        mut journal,
        mut follower,
    } = Journal::open(&config, env).expect("a journal");
    let (admission, ingest_batches) = admission_channel(1024, 64 << 20, admission_control);
    journal.start(ingest_batches).expect("the journal starts");
    runtime.spawn(async move {
        while let Some(entry) = follower.next().await {
            entry.ack.delivered();
        }
    });
    let batch = batch(1_700_000_000_000);
    let mut group = c.benchmark_group("journal");
    group.throughput(Throughput::Elements(READINGS as u64));
    // With fdatasync, for one ingest batch at a time.
    group.bench_function("append and sync", |b| {
        b.iter(|| {
            runtime.block_on(async {
                let (ack, wait) = Ack::channel();
                admission
                    .submit(IngestBatch::new(batch.clone(), vec![], ack))
                    .await
                    .expect("admission is open");
                wait.outcome().await
            })
        });
    });
    let mut bytes = Vec::new();
    group.bench_function("encode", |b| {
        b.iter(|| {
            bytes.clear();
            batch.encode(&mut bytes);
            black_box(bytes.len())
        });
    });
    group.finish();
}

/// A thousand sensors, ten readings each, into the open buckets of one shard.
fn accumulating(c: &mut Criterion) {
    const ROUNDS: i64 = 10;
    let span = Config::default().bucket.span;
    let second = 1000;
    // An hour that begins after the start of the shard, so nothing has to be loaded first.
    let base_ms = 1_700_006_400_000;
    let batches: Vec<ReadingBatch> = (0..ROUNDS)
        .map(|round| batch(base_ms + round * second))
        .collect();
    let settings = ShardSettings {
        span,
        page: PageLimits {
            readings: 1000,
            bytes: 1 << 20,
            summary_bytes: 1 << 20,
        },
        due: DuePolicy::Age(15_000),
        command_bytes_max: 12 << 20,
        command_statements_max: 5000,
        bytes_max: 512 << 20,
        sensors_max: 1_000_000,
        dedup_keys_max: 8192,
        quarantine_after_ms: 600_000,
        arrival_step_ms: 3_600_000,
        backoff: Backoff {
            min: Duration::from_millis(50),
            max: Duration::from_secs(5),
        },
    };
    let now = Now {
        wall_ms: base_ms,
        mono_ms: 1,
    };
    let mut group = c.benchmark_group("accumulate");
    group.throughput(Throughput::Elements(READINGS as u64 * ROUNDS as u64));
    group.bench_function("shard", |b| {
        b.iter_batched(
            || Shard::new(settings.clone()),
            |mut shard| {
                for batch in &batches {
                    shard.accept(batch, batch.places(), Ack::channel().0, false, now);
                }
                assert_eq!(shard.usage().readings, READINGS * ROUNDS as usize);
                shard
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// Twelve full pages in one command, and 500 appends of fifteen readings each.
fn packing(c: &mut Criterion) {
    let span = Config::default().bucket.span;
    let write = |i: usize, kind: PageKind, readings: usize| {
        let mut rows = Rows::default();
        for n in 0..readings {
            let values: Vec<_> = NAMES
                .iter()
                .zip(values(n))
                .map(|(name, v)| (*name, ValueRef::Double(v)))
                .collect();
            rows.push_named(
                1_700_006_400_000 + n as i64 * 1000,
                RowFlags::default(),
                &values,
            );
        }
        let summary = summary::summarise(&rows);
        let sensor_id = format!("truck_{i:06}").into();
        let start = span.floor(1_700_006_400_000);
        PageWrite {
            sensor_id,
            start,
            page: 0,
            kind,
            storage_mode: StorageMode::Bucket,
            seal: false,
            tags: None,
            rows: rows.into(),
            summary,
            catalog: None,
        }
    };
    let append = PageKind::Append {
        known_count: 100,
        gate: Gate::Passes(GateSlot::A),
    };
    let pages: Vec<PageWrite> = (0..12).map(|i| write(i, PageKind::Create, 1000)).collect();
    let appends: Vec<PageWrite> = (0..500).map(|i| write(i, append, 15)).collect();
    let mut group = c.benchmark_group("pack");
    for (name, writes) in [("pages", &pages), ("appends", &appends)] {
        group.throughput(Throughput::Elements(
            writes.iter().map(|w| w.rows.len() as u64).sum(),
        ));
        group.bench_function(name, |b| {
            b.iter(|| black_box(packed_bytes(writes, span).expect("BSON")))
        });
    }
    group.finish();
}

criterion_group!(stages, decoding, journal, accumulating, packing);
criterion_main!(stages);
