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

/// Writes until `stop` is set, but at least once, below `TMPDIR`, where the parts have their
/// directories.
pub(crate) fn watch(stop: &AtomicBool) -> Result<Latency, Failure> {
    let dir = tempfile::tempdir()?;
    let file = File::create(dir.path().join("block"))?;
    let mut latencies = Latencies::default();
    loop {
        let begun = Instant::now();
        file.write_all_at(&BLOCK, 0)?;
        file.sync_data()?;
        latencies.record(begun.elapsed());
        if stop.load(Ordering::Relaxed) {
            return Ok(latencies.percentiles());
        }
        std::thread::sleep(EVERY.saturating_sub(begun.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_that_ends_immediately_has_a_measurement() {
        let latency = watch(&AtomicBool::new(true)).unwrap();
        assert!(
            latency.p50 > 0.0 && latency.p50 <= latency.max,
            "{latency:?}"
        );
    }
}
