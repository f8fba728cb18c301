//! The file of the audit log: a bounded queue, and a thread that writes.
//!
//! A line is written in one call to a file that is opened to append, so that a crash loses at most
//! the queued lines. If the queue is full, lines are dropped. Every ten seconds the thread writes
//! how many were dropped or left out.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::audit_limits::FileLimits;
use super::lock;
use super::metrics::{self, AuditDropped};
use model::{Clock, SystemClock, rfc3339};

/// Lines that wait for the disk: with their texts at most some 8 MiB.
const QUEUE_MAX: usize = 4096;
/// How often the numbers of missing lines are written.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// How long the end of the process waits for the disk.
const DRAIN: Duration = Duration::from_secs(1);

pub(super) struct AuditFile {
    shared: Arc<Shared>,
    queue: OnceLock<Option<SyncSender<String>>>,
}

struct Shared {
    file: Mutex<Option<Arc<File>>>,
    /// Whether there is one; saves the lock and the text.
    is_on: AtomicBool,
    limits: Mutex<FileLimits>,
    /// Lines in the queue, or being written.
    waiting: AtomicUsize,
    /// Lines that did not reach the file.
    dropped: AtomicU64,
}

impl AuditFile {
    pub(super) fn new(limits: FileLimits) -> AuditFile {
        let shared = Shared {
            file: Mutex::default(),
            is_on: AtomicBool::new(false),
            limits: Mutex::new(limits),
            waiting: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        };
        AuditFile {
            shared: Arc::new(shared),
            queue: OnceLock::new(),
        }
    }

    /// Replaces the file.
    pub(super) fn put(&self, file: Option<File>, lines_per_second: u32) {
        lock(&self.shared.limits).lines_per_second = lines_per_second;
        let is_on = file.is_some();
        *lock(&self.shared.file) = file.map(Arc::new);
        self.shared.is_on.store(is_on, Ordering::Release);
        if is_on {
            self.queue
                .get_or_init(|| start(self.shared.clone(), QUEUE_MAX));
        }
    }

    /// Queues a line if there is a file and `allow` agrees. Never waits for the disk.
    pub(super) fn write(
        &self,
        allow: impl FnOnce(&mut FileLimits) -> bool,
        line: impl FnOnce() -> String,
    ) {
        if !self.shared.is_on.load(Ordering::Acquire) {
            return;
        }
        if !allow(&mut lock(&self.shared.limits)) {
            return metrics::audit_dropped_total(AuditDropped::Limit, 1);
        }
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        let queue = self.queue.get().and_then(Option::as_ref);
        if queue.is_none_or(|queue| queue.try_send(line()).is_err()) {
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
            self.shared.drop_one(AuditDropped::Queue);
        }
    }

    /// Waits until everything is written, but not for long.
    pub(super) fn drain(&self) {
        let begun = Instant::now();
        while self.shared.waiting.load(Ordering::Acquire) > 0 && begun.elapsed() < DRAIN {
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.shared.is_on.load(Ordering::Acquire) {
            self.shared.report_suppressed();
        }
    }
}

impl Shared {
    fn drop_one(&self, why: AuditDropped) {
        self.dropped.fetch_add(1, Ordering::AcqRel);
        metrics::audit_dropped_total(why, 1);
    }

    /// Appends a line; false if that failed.
    fn append(&self, line: &str) -> bool {
        let file = lock(&self.file).clone();
        // If it was removed from the settings meanwhile, the line is no longer wanted.
        file.is_none_or(|file| (&*file).write_all(format!("{line}\n").as_bytes()).is_ok())
    }

    fn report_suppressed(&self) {
        let ts = rfc3339(SystemClock::new().now().wall_ms);
        let suppressed: Vec<_> = lock(&self.limits).take_suppressed().collect();
        for (kind, count) in suppressed {
            let of = kind.as_str();
            self.append(&format!(
                r#"{{"ts":"{ts}","event":"suppressed","of":"{of}","count":{count}}}"#
            ));
        }
        let count = self.dropped.swap(0, Ordering::AcqRel);
        if count > 0
            && !self.append(&format!(
                r#"{{"ts":"{ts}","event":"dropped","count":{count}}}"#
            ))
        {
            self.dropped.fetch_add(count, Ordering::AcqRel);
        }
    }
}

/// Starts the thread; `None` if the system gives none.
fn start(shared: Arc<Shared>, queue_max: usize) -> Option<SyncSender<String>> {
    let (queue, lines) = sync_channel(queue_max);
    let thread = std::thread::Builder::new().name("audit".to_owned());
    match thread.spawn(move || run(&shared, &lines)) {
        Ok(_) => Some(queue),
        Err(error) => {
            tracing::error!(%error, "cannot start the thread of the audit log; audit.file stays \
                empty");
            None
        }
    }
}

fn run(shared: &Shared, lines: &Receiver<String>) {
    let mut reported = Instant::now();
    let mut is_failing = false;
    loop {
        match lines.recv_timeout(REPORT_EVERY) {
            Ok(line) => {
                // A write that failed may have left half a line.
                let gap = if is_failing { "\n" } else { "" };
                let is_written = shared.append(&format!("{gap}{line}"));
                if !is_written {
                    shared.drop_one(AuditDropped::Write);
                }
                if is_written == is_failing {
                    is_failing = !is_written;
                    report(is_failing);
                }
                shared.waiting.fetch_sub(1, Ordering::AcqRel);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            shared.report_suppressed();
        }
    }
}

fn report(is_failing: bool) {
    if is_failing {
        tracing::error!(
            "cannot write to audit.file (disk full?); its lines are dropped and counted"
        );
    } else {
        tracing::info!("audit.file is written again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &std::path::Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn append(path: &std::path::Path) -> Option<File> {
        Some(
            File::options()
                .append(true)
                .create(true)
                .open(path)
                .unwrap(),
        )
    }

    #[test]
    fn after_a_rotation_lines_go_to_the_new_file_and_none_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.log");
        let old = dir.path().join("a.log.1");
        let audit = AuditFile::new(FileLimits::unlimited());
        audit.write(|_| true, || unreachable!("without a file nothing is made"));
        audit.put(append(&path), 1000);
        (0..100).for_each(|n| audit.write(|_| true, || format!("{{\"n\":{n}}}")));
        std::fs::rename(&path, &old).unwrap();
        (100..200).for_each(|n| audit.write(|_| true, || format!("{{\"n\":{n}}}")));
        audit.drain();
        audit.put(append(&path), 1000);
        (200..300).for_each(|n| audit.write(|_| true, || format!("{{\"n\":{n}}}")));
        audit.drain();
        let first = read(&old);
        let second = read(&path);
        assert_eq!((first.len(), second.len()), (200, 100));
        assert_eq!(
            first
                .iter()
                .chain(&second)
                .map(|line| line["n"].as_u64().unwrap())
                .collect::<Vec<_>>(),
            { (0..300).collect::<Vec<u64>>() }
        );
    }

    /// A pipe that is not read is a disk that hangs.
    #[test]
    fn a_disk_that_hangs_stops_no_request_and_what_is_dropped_is_counted() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let audit = AuditFile::new(FileLimits::unlimited());
        audit.put(Some(File::from(std::os::fd::OwnedFd::from(writer))), 1000);
        let begun = Instant::now();
        let sent = 3 * QUEUE_MAX;
        (0..sent).for_each(|_| audit.write(|_| true, || "x".repeat(100)));
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
        let dropped = audit.shared.dropped.load(Ordering::Acquire);
        assert!(dropped > QUEUE_MAX as u64, "{dropped}");
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
            text
        });
        while audit.shared.waiting.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        audit.drain();
        audit.put(None, 1000);
        let text = reading.join().unwrap();
        assert_eq!(
            text.lines().filter(|line| line.starts_with('x')).count() as u64 + dropped,
            sent as u64
        );
        assert!(
            text.contains(&format!("\"event\":\"dropped\",\"count\":{dropped}}}")),
            "{}",
            text.lines().last().unwrap()
        );
    }

    #[test]
    fn a_full_disk_drops_lines_and_half_a_line_spoils_no_other() {
        let audit = AuditFile::new(FileLimits::unlimited());
        audit.put(
            Some(File::options().append(true).open("/dev/full").unwrap()),
            1000,
        );
        (0..10).for_each(|_| audit.write(|_| true, || "{}".to_owned()));
        while audit.shared.waiting.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(audit.shared.dropped.load(Ordering::Acquire), 10);
        let dir = tempfile::tempdir().unwrap();
        audit.put(append(&dir.path().join("a")), 1000);
        audit.write(|_| true, || "{\"n\":1}".to_owned());
        audit.drain();
        let text = std::fs::read_to_string(dir.path().join("a")).unwrap();
        assert!(
            text.starts_with("\n{\"n\":1}\n") && text.contains("\"dropped\",\"count\":10"),
            "{text}"
        );
    }
}
