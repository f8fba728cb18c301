//! The journal alone: acknowledged batches a second and the time to the acknowledgement, for 1, 8 and 64 callers of 100
//! readings with two numeric fields each, next to the bare fdatasync of writes of the same size on the same disk in the
//! same run. Figures, not a test.
//!
//!     cargo bench --bench journal [-- DIRECTORY [SECONDS]]

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hourbucket::ack::{Ack, Outcome};
use hourbucket::config;
use hourbucket::intake::{Gate, Intake, Parcel, door};
use hourbucket::journal::fs::{Fs, FsFile, RealFs};
use hourbucket::journal::{EntryKind, Env, Journal, Opened};
use hourbucket::model::{BatchBuilder, ReadingBatch, SystemClock, ValueRef};

const READINGS: usize = 100;

fn batch(caller: usize) -> ReadingBatch {
    let mut builder = BatchBuilder::new(8);
    for i in 0..READINGS {
        builder.begin();
        builder.value("temp", ValueRef::Double(20.0 + i as f64)).expect("fits");
        builder.value("humid", ValueRef::Double(60.5)).expect("fits");
        builder.commit(&format!("sensor-{caller:03}-{i:03}"), 1_700_000_000_000 + i as i64, false, &[]);
    }
    builder.finish()
}

fn percentiles(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |p: usize| times.get(times.len() * p / 100).copied().unwrap_or_default().as_secs_f64() * 1e3;
    (at(50), at(99))
}

/// p50 and p99 in milliseconds, and syncs a second.
fn bare(dir: &Path, bytes: usize, seconds: f64) -> std::io::Result<(f64, f64, f64)> {
    let path = dir.join("bare");
    let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    FsFile::allocate(&file, 64 << 20)?;
    file.sync_all()?;
    let (block, mut offset, mut times, began) = (vec![7; bytes], 4096, Vec::new(), Instant::now());
    while began.elapsed().as_secs_f64() < seconds {
        if offset + bytes as u64 > 64 << 20 {
            file.set_len(0)?;
            FsFile::allocate(&file, 64 << 20)?;
            file.sync_all()?;
            offset = 4096;
        }
        let one = Instant::now();
        file.write_all_at(&block, offset)?;
        file.sync_data()?;
        times.push(one.elapsed());
        offset += bytes as u64;
    }
    RealFs.remove(&path)?;
    let rate = times.len() as f64 / times.iter().sum::<Duration>().as_secs_f64();
    let (p50, p99) = percentiles(times);
    Ok((p50, p99, rate))
}

fn open(dir: &Path) -> Result<(Opened, Gate), Box<dyn std::error::Error>> {
    let config = config::Journal { dir: dir.join("journal"), max_bytes: 16 << 30, segment_bytes: 64 << 20 };
    let gate = Gate::default();
    let env = Env {
        fs: Arc::new(RealFs),
        clock: Arc::new(SystemClock::new()),
        gate: gate.clone(),
        on_broken: Box::new(|why| eprintln!("{why}")),
    };
    Ok((Journal::open(&config, env)?, gate))
}

/// One caller: a batch, its acknowledgement, the next.
async fn call(intake: Intake, batch: ReadingBatch, until: Instant) -> Vec<Duration> {
    let mut times = Vec::new();
    while Instant::now() < until {
        let batch = batch.clone();
        let one = Instant::now();
        let (ack, wait) = Ack::channel();
        let sent = intake.submit(Parcel::new(batch, vec![], ack)).await.is_ok();
        if !sent || wait.outcome().await != Outcome::Delivered {
            break;
        }
        times.push(one.elapsed());
    }
    times
}

/// p50 and p99 in milliseconds, and batches a second. With `consume`, a follower takes everything meanwhile; otherwise
/// the journal stays as it is.
async fn journal(
    dir: &Path,
    callers: usize,
    seconds: f64,
    consume: bool,
) -> Result<(f64, f64, f64), Box<dyn std::error::Error>> {
    let (opened, gate) = open(dir)?;
    let Opened { mut journal, mut follower } = opened;
    let (intake, parcels) = door(1024, 64 << 20, gate);
    journal.start(parcels)?;
    let consumer = tokio::spawn(async move {
        while let (true, Some(entry)) = (consume, follower.next().await) {
            entry.ack.delivered();
        }
        follower
    });
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(seconds);
    let tasks: Vec<_> = (0..callers).map(|c| tokio::spawn(call(intake.clone(), batch(c), until))).collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await?);
    }
    let rate = times.len() as f64 / began.elapsed().as_secs_f64();
    journal.finish().await;
    consumer.await?;
    let (p50, p99) = percentiles(times);
    Ok((p50, p99, rate))
}

/// Seconds to open the journal as it is, readings in it, and seconds to take all of them.
async fn replay(dir: &Path) -> Result<(f64, usize, f64), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let Opened { mut journal, mut follower } = open(dir)?.0;
    let opened = began.elapsed().as_secs_f64();
    journal.close().await;
    let (began, mut readings) = (Instant::now(), 0);
    while let Some(entry) = follower.next().await {
        if let EntryKind::Readings(batch) = &entry.kind {
            readings += batch.len();
        }
        entry.ack.delivered();
    }
    let taken = began.elapsed().as_secs_f64();
    journal.finish().await;
    Ok((opened, readings, taken))
}

#[expect(clippy::print_stdout, reason = "its output")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let base = arguments.first().map_or_else(std::env::temp_dir, Into::into);
    let seconds: f64 = arguments.get(1).and_then(|s| s.parse().ok()).unwrap_or(4.0);
    let dir = base.join(format!("hourbucket-journal-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut encoded = Vec::new();
    batch(0).encode(&mut encoded);
    println!("a batch of {READINGS} readings is {} bytes", encoded.len());
    println!(
        "callers   batches/s  readings/s  ack p50 ms  p99 ms   bare write+fdatasync of the same size: p50 ms  p99 ms  /s"
    );
    for callers in [1, 8, 64] {
        let (bare50, bare99, bare_rate) = bare(&dir, (encoded.len() + 40) * callers, seconds / 2.0)?;
        let (p50, p99, rate) = runtime.block_on(journal(&dir, callers, seconds, true))?;
        let readings = rate * READINGS as f64;
        println!(
            "{callers:7} {rate:11.0} {readings:11.0} {p50:11.3} {p99:7.3} {:>41} {bare50:7.3} {bare99:7.3} {bare_rate:6.0}",
            ""
        );
    }
    let (_, _, rate) = runtime.block_on(journal(&dir, 64, seconds, false))?;
    let (opened, readings, taken) = runtime.block_on(replay(&dir))?;
    println!(
        "without a follower {:.0} readings/s; then {readings} readings verified in {opened:.2} s and read back at {:.0}/s",
        rate * READINGS as f64,
        readings as f64 / taken
    );
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
