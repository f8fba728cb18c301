//! How the disk does beside a phase: a small write with its fdatasync, twenty times a second, in a file of its own.
//!
//! An acknowledgement waits for such a write, so this is the least that it can take. On a machine that is shared the disk
//! stands still now and then, and without this nobody could tell that from a service that does.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::Failure;
use crate::report::Latency;

const EVERY: Duration = Duration::from_millis(50);
const BLOCK: [u8; 4096] = [0x5A; 4096];

/// Writes until told to stop, below `TMPDIR`, where the parts have their directories.
pub(crate) fn watch(stop: &AtomicBool) -> Result<Latency, Failure> {
    let dir = tempfile::tempdir()?;
    let file = File::create(dir.path().join("block"))?;
    let mut us = Histogram::<u64>::new(3)?;
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        file.write_all_at(&BLOCK, 0)?;
        file.sync_data()?;
        us.saturating_record(begun.elapsed().as_micros() as u64);
        std::thread::sleep(EVERY.saturating_sub(begun.elapsed()));
    }
    Ok(Latency::of(&us))
}
