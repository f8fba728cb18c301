//! The journal alone: acknowledged readings per second and acknowledgement latency, for 1, 8 and 64
//! callers that send batches of 100 readings with two numeric fields. For comparison, bare writes
//! of the same size with fdatasync on the same disk. Both alternate every fraction of a second, so
//! that other load on the machine affects both. A benchmark, not a test.
//!
//!     cargo bench -p journal --bench journal [-- DIRECTORY [SECONDS]]

#![allow(clippy::disallowed_macros, reason = "a program for a terminal")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use journal::admission::{Admission, AdmissionControl, IngestBatch, admission_channel};
use journal::fs::{FsFile, RealFs};
use journal::{EntryKind, Follower, Journal, JournalDeps, OpenedJournal};
use model::ack::{Ack, AckOutcome};
use model::{BatchBuilder, ReadingBatch, SystemClock, ValueRef};

const READINGS: usize = 100;
/// Size of the bare file, and of a segment.
const FILE_BYTES: u64 = 64 << 20;
/// Number of alternations between journal and bare file.
const SLICES: usize = 8;

fn batch(caller: usize) -> ReadingBatch {
    let mut builder = BatchBuilder::new(8);
    for i in 0..READINGS {
        builder.begin();
        builder
            .value("temp", ValueRef::Double(20.0 + i as f64))
            .expect("fits");
        builder
            .value("humid", ValueRef::Double(60.5))
            .expect("fits");
        builder
            .commit(
                &format!("sensor-{caller:03}-{i:03}"),
                1_700_000_000_000 + i as i64,
                false,
                &[],
            )
            .expect("it fits");
    }
    builder.finish()
}

/// Latencies, in milliseconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn add(&mut self, began: Instant) {
        self.0.push(began.elapsed().as_secs_f64() * 1e3);
    }

    /// A quantile, in thousandths.
    fn at(&self, permille: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let i = (sorted.len() * permille / 1000).min(sorted.len().saturating_sub(1));
        sorted.get(i).copied().unwrap_or_default()
    }

    fn print(&self) -> String {
        format!(
            "{:7.3} {:7.3} {:7.3} {:7.3}",
            self.at(500),
            self.at(990),
            self.at(999),
            self.at(1000)
        )
    }
}

/// A file that is written and synced with the journal's pattern: consecutive writes.
struct Bare {
    path: PathBuf,
    file: File,
    times: Times,
}

impl Bare {
    fn new(dir: &Path, name: &str) -> std::io::Result<Bare> {
        let path = dir.join(name);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        Ok(Bare {
            path,
            file,
            times: Times::default(),
        })
    }

    /// Writes to blocks that were written before, like those of a recycled segment.
    fn written(&mut self, bytes: usize, seconds: f64) -> std::io::Result<()> {
        if self.file.metadata()?.len() < FILE_BYTES {
            for mib in 0..FILE_BYTES >> 20 {
                self.file.write_all_at(&[1; 1 << 20], mib << 20)?;
                self.file.sync_all()?;
            }
        }
        self.write(bytes, seconds)
    }

    /// Writes to blocks that are only reserved, like those of a new segment; at most one file.
    fn reserved(&mut self, bytes: usize, seconds: f64) -> std::io::Result<()> {
        self.file.set_len(0)?;
        FsFile::allocate(&self.file, FILE_BYTES)?;
        self.file.sync_all()?;
        // Excludes the work of the file system for freeing the blocks from the measurement.
        std::thread::sleep(Duration::from_millis(100));
        self.write(bytes, seconds)
    }

    fn write(&mut self, bytes: usize, seconds: f64) -> std::io::Result<()> {
        let block = vec![7; bytes];
        let mut offset = 4096;
        let began = Instant::now();
        while began.elapsed().as_secs_f64() < seconds && offset + bytes as u64 <= FILE_BYTES {
            let one = Instant::now();
            self.file.write_all_at(&block, offset)?;
            self.file.sync_data()?;
            self.times.add(one);
            offset += bytes as u64;
        }
        Ok(())
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // Errors do not matter: the directory is removed too.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn open(dir: &Path) -> Result<(OpenedJournal, AdmissionControl), Box<dyn std::error::Error>> {
    let config = config::Journal {
        dir: dir.join("journal"),
        max_bytes: 16 << 30,
        segment_bytes: FILE_BYTES,
        commit_delay: Duration::from_millis(2),
    };
    let admission_control = AdmissionControl::default();
    let env = JournalDeps {
        fs: Arc::new(RealFs),
        clock: Arc::new(SystemClock::new()),
        admission_control: admission_control.clone(),
        on_broken: Box::new(|why| eprintln!("{why}")),
        keys: Default::default(),
    };
    Ok((Journal::open(&config, env)?, admission_control))
}

/// One caller: sends a batch, waits for its acknowledgement, and repeats.
async fn call(admission: Admission, batch: ReadingBatch, until: Instant) -> Times {
    let mut times = Times::default();
    while Instant::now() < until {
        let batch = batch.clone();
        let one = Instant::now();
        let (ack, wait) = Ack::channel();
        let sent = admission
            .submit(IngestBatch::new(batch, vec![], ack))
            .await
            .is_ok();
        if !sent || wait.outcome().await != AckOutcome::Delivered {
            break;
        }
        times.add(one);
    }
    times
}

/// A running journal. With `consume`, a follower consumes the entries; otherwise they stay in the
/// journal.
struct Running {
    journal: Journal,
    admission: Admission,
    consumer: tokio::task::JoinHandle<Follower>,
    times: Times,
    seconds: f64,
}

impl Running {
    fn start(dir: &Path, consume: bool) -> Result<Running, Box<dyn std::error::Error>> {
        let (opened, admission_control) = open(dir)?;
        let OpenedJournal {
            mut journal,
            mut follower,
        } = opened;
        let (admission, ingest_batches) = admission_channel(1024, 64 << 20, admission_control);
        journal.start(ingest_batches)?;
        let consumer = tokio::spawn(async move {
            while consume && let Some(entry) = follower.next().await {
                entry.ack.delivered();
            }
            follower
        });
        Ok(Running {
            journal,
            admission,
            consumer,
            times: Times::default(),
            seconds: 0.0,
        })
    }

    async fn slice(
        &mut self,
        callers: usize,
        seconds: f64,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let began = Instant::now();
        let until = began + Duration::from_secs_f64(seconds);
        let tasks: Vec<_> = (0..callers)
            .map(|c| tokio::spawn(call(self.admission.clone(), batch(c), until)))
            .collect();
        for task in tasks {
            self.times.0.extend(task.await?.0);
        }
        self.seconds += began.elapsed().as_secs_f64();
        Ok(())
    }

    fn readings_a_second(&self) -> f64 {
        (self.times.0.len() * READINGS) as f64 / self.seconds
    }

    async fn finish(self) -> Result<(), Box<dyn std::error::Error>> {
        self.journal.finish().await;
        self.consumer.await?;
        Ok(())
    }
}

/// Returns the seconds to open the journal, the number of readings in it, and the seconds to read
/// them back.
async fn replay(dir: &Path) -> Result<(f64, usize, f64), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let OpenedJournal {
        mut journal,
        mut follower,
    } = open(dir)?.0;
    let opened = began.elapsed().as_secs_f64();
    journal.close().await;
    let began = Instant::now();
    let mut readings = 0;
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

#[expect(clippy::print_stdout, reason = "the output of the benchmark")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let base = arguments
        .first()
        .map_or_else(std::env::temp_dir, Into::into);
    let seconds: f64 = arguments.get(1).and_then(|s| s.parse().ok()).unwrap_or(4.0);
    let dir = base.join(format!("hourbucket-journal-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut encoded = Vec::new();
    batch(0).encode(&mut encoded);
    println!(
        "a batch of {READINGS} readings has {} bytes; milliseconds: p50, p99, p99.9, max",
        encoded.len()
    );
    println!(
        "the bare write+fdatasync has the size of a group of all callers, and alternates with the \
         journal"
    );
    println!(
        "{:7} {:>11} {:^31}   {:^31}   {:^31}",
        "callers",
        "readings/s",
        "acknowledgement",
        "bare, into written blocks",
        "bare, into reserved blocks"
    );
    for callers in [1, 8, 64] {
        let group_bytes = (encoded.len() + 40) * callers;
        let mut written = Bare::new(&dir, "written")?;
        let mut reserved = Bare::new(&dir, "reserved")?;
        let mut running = runtime.block_on(async { Running::start(&dir, true) })?;
        for _ in 0..SLICES {
            written.written(group_bytes, seconds / SLICES as f64 / 2.0)?;
            runtime.block_on(running.slice(callers, seconds / SLICES as f64))?;
            reserved.reserved(group_bytes, seconds / SLICES as f64 / 2.0)?;
        }
        let rate = running.readings_a_second();
        let acks = &running.times;
        let over = &written.times;
        let new = &reserved.times;
        println!(
            "{callers:7} {rate:11.0} {}   {}   {}",
            acks.print(),
            over.print(),
            new.print()
        );
        if callers == 64 {
            let limits = [over, new].map(|bare| 5.0 * bare.at(500) + 1.0);
            let p99 = acks.at(990);
            let [over, new] = limits;
            let says = |limit| if p99 < limit { "below" } else { "not below" };
            println!(
                "p99 of the acknowledgement is {p99:.3} ms: {} 5 x the bare p50 + 1 ms = {new:.3} \
                 ms of reserved blocks, {} {over:.3} ms of written ones",
                says(new),
                says(over)
            );
        }
        runtime.block_on(running.finish())?;
    }
    let mut running = runtime.block_on(async { Running::start(&dir, false) })?;
    runtime.block_on(running.slice(64, seconds))?;
    let rate = running.readings_a_second();
    runtime.block_on(running.finish())?;
    let (opened, readings, taken) = runtime.block_on(replay(&dir))?;
    println!(
        "without a follower: {rate:.0} readings/s; then {readings} readings verified in \
         {opened:.2} s, read back at {:.0}/s",
        readings as f64 / taken
    );
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
