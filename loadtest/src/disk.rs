//! Measures the disk during a phase: a small write with fdatasync to a separate file, twenty times
//! per second.
//!
//! An acknowledgement waits for such a write, so this is its lower bound. On a shared machine the
//! disk sometimes stalls. This measurement distinguishes such a stall from one of the service.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::latency::{Latencies, Latency};

const EVERY: Duration = Duration::from_millis(50);
const BLOCK: [u8; 4096] = [0x5A; 4096];

/// Writes until `stop` is set, below `TMPDIR`, where the parts have their directories.
pub(crate) fn watch(stop: &AtomicBool) -> Result<Latency, Failure> {
    let dir = tempfile::tempdir()?;
    let file = File::create(dir.path().join("block"))?;
    let mut latencies = Latencies::default();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        file.write_all_at(&BLOCK, 0)?;
        file.sync_data()?;
        latencies.record(begun.elapsed());
        std::thread::sleep(EVERY.saturating_sub(begun.elapsed()));
    }
    Ok(latencies.percentiles())
}
