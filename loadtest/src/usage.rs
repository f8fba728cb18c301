//! Resources used by a process, from `/proc`, including all its threads and those that have ended.

use std::time::{Duration, Instant};

use serde::Serialize;

/// The unit of CPU time in `/proc` (USER_HZ), which the kernel fixes for user space.
const TICKS_PER_S: f64 = 100.0;

/// Resources used by a process since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Usage {
    pub(crate) cpu_s: f64,
    pub(crate) rss_bytes: u64,
    pub(crate) rss_peak_bytes: u64,
    /// Bytes that the process caused to be written to disk.
    pub(crate) written_bytes: u64,
    pub(crate) threads: u64,
}

impl Usage {
    /// The difference to `before`; memory and threads are not subtracted.
    pub(crate) fn since(self, before: Usage) -> Usage {
        Usage {
            cpu_s: self.cpu_s - before.cpu_s,
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            ..self
        }
    }

    /// The sum of two processes; for memory and threads, the maximum.
    pub(crate) fn plus(self, other: Usage) -> Usage {
        Usage {
            cpu_s: self.cpu_s + other.cpu_s,
            rss_bytes: self.rss_bytes.max(other.rss_bytes),
            rss_peak_bytes: self.rss_peak_bytes.max(other.rss_peak_bytes),
            written_bytes: self.written_bytes + other.written_bytes,
            threads: self.threads.max(other.threads),
        }
    }
}

/// Whether the process has exited, even if it is not yet reaped.
pub(crate) fn ended(pid: u32) -> bool {
    stat(pid).is_none_or(|fields| matches!(fields.first().map(String::as_str), Some("Z" | "X")))
}

/// CPU seconds only; readable until an exited process is reaped.
pub(crate) fn cpu_s(pid: u32) -> Option<f64> {
    let fields = stat(pid)?;
    // utime and stime are fields 14 and 15 of the line; the state, index 0 here, is field 3.
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS_PER_S)
}

/// The usage of a process; `None` if it has exited.
pub(crate) fn of(pid: u32) -> Option<Usage> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    Some(Usage {
        cpu_s: cpu_s(pid)?,
        rss_bytes: number(&status, "VmRSS:")? * 1024,
        rss_peak_bytes: number(&status, "VmHWM:")? * 1024,
        written_bytes: number(&io, "write_bytes:")?,
        threads: number(&status, "Threads:")?,
    })
}

/// Follows a process until it has exited, calling `each` meanwhile; returns its usage, or `None` if
/// it runs longer.
pub(crate) fn until_ended(pid: u32, within: Duration, mut each: impl FnMut()) -> Option<Usage> {
    let begun = Instant::now();
    let mut usage = Usage::default();
    while !ended(pid) {
        if begun.elapsed() > within {
            return None;
        }
        usage = of(pid).unwrap_or(usage);
        each();
        std::thread::sleep(Duration::from_millis(10));
    }
    usage.cpu_s = cpu_s(pid).unwrap_or(usage.cpu_s);
    Some(usage)
}

/// Number of open files of a process, sockets included.
pub(crate) fn open_files(pid: u32) -> Option<u64> {
    Some(std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64)
}

/// The fields after the name, which may contain blanks and parentheses.
fn stat(pid: u32) -> Option<Vec<String>> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(
        line.rsplit_once(") ")?
            .1
            .split(' ')
            .map(str::to_owned)
            .collect(),
    )
}

fn number(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_cpu_and_memory() {
        let pid = std::process::id();
        let before = of(pid).unwrap();
        assert!(before.rss_bytes > 0 && before.rss_peak_bytes >= before.rss_bytes && !ended(pid));
        assert!(before.threads > 0 && open_files(pid).unwrap() > 2);
        let mut x = 1u64;
        while cpu_s(pid).unwrap() <= before.cpu_s {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(of(pid).unwrap().since(before).cpu_s > 0.0);
        assert!(of(u32::MAX - 1).is_none() && ended(u32::MAX - 1));
    }
}
