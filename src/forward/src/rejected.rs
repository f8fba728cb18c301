//! The file of readings that the centre rejects, and of messages that cannot be decoded: one JSON
//! object per line, oldest first, in journal.dir.
//!
//! **Shared.** The service appends, and the commands `dead-letters` read and rewrite the file meanwhile.
//! Each takes the lock on a file next to it, and the service opens the file again each time.
//!
//! **Crash.** A line is synced before the readings in it are acknowledged. One that was cut off is not
//! JSON; it is skipped, and gone with the next rewrite. Its readings were not acknowledged, so they are
//! sent, rejected and kept again. So a reading may be here twice.
//!
//! **Full.** Beyond its limit the oldest lines are dropped and counted, until a quarter is free.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::lane::RejectedReading;
use journal::fs::{Fs as _, RealFs, replace_file};
use model::{DeadLetter, OWN_SOURCE};
use telemetry::metrics::{self, DeadLetterDropped};

const NAME: &str = "rejected";
const LOCK_NAME: &str = "rejected.lock";

/// The file. Blocking.
#[derive(Debug)]
pub struct RejectedFile {
    path: PathBuf,
    lock: PathBuf,
    bytes_max: u64,
}

/// A line of it.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    received_at_ms: i64,
    source: String,
    topic: String,
    reason: String,
    detail: String,
    payload_base64: String,
}

impl RejectedFile {
    /// The file in this directory (`journal.dir`), of at most this size.
    pub fn new(dir: &Path, bytes_max: u64) -> RejectedFile {
        RejectedFile {
            path: dir.join(NAME),
            lock: dir.join(LOCK_NAME),
            bytes_max,
        }
    }

    /// Adds dead letters at the end, durably.
    ///
    /// # Errors
    /// The file cannot be written. Some of them may be there.
    pub fn append(&self, dead_letters: &[DeadLetter]) -> io::Result<()> {
        let _lock = self.locked()?;
        let mut text = vec![];
        for dead_letter in dead_letters {
            write_line(&mut text, dead_letter)?;
        }
        if text.len() as u64 > self.bytes_max {
            let count = dead_letters.len() as u64;
            metrics::dead_letters_dropped_total(DeadLetterDropped::Limit, count);
            return Ok(());
        }
        let stored_bytes = || match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            found => found.map(|found| found.len()),
        };
        // A newline may be added.
        if stored_bytes()? + text.len() as u64 >= self.bytes_max {
            self.make_room(text.len() as u64)?;
        }
        let bytes = stored_bytes()?;
        let mut file = open().append(true).create(true).open(&self.path)?;
        if bytes > 0 && !ends_a_line(&self.path)? {
            text.insert(0, b'\n');
        }
        file.write_all(&text)?;
        file.sync_data()?;
        match bytes {
            0 => self.sync_dir(),
            _ => Ok(()),
        }
    }

    /// All dead letters, oldest first.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn dead_letters(&self) -> io::Result<Vec<DeadLetter>> {
        let _lock = self.locked()?;
        self.read_locked()
    }

    /// Removes those for which `keep` is false, and returns their number. The service may append
    /// before and after it.
    ///
    /// # Errors
    /// The file cannot be read or written; then it is unchanged.
    pub fn retain(&self, mut keep: impl FnMut(&DeadLetter) -> bool) -> io::Result<usize> {
        let _lock = self.locked()?;
        let mut all = self.read_locked()?;
        let before = all.len();
        all.retain(|dead_letter| keep(dead_letter));
        self.rewrite(&all)?;
        Ok(before - all.len())
    }

    fn locked(&self) -> io::Result<File> {
        let file = open().write(true).create(true).open(&self.lock)?;
        file.lock()?;
        Ok(file)
    }

    fn read_locked(&self) -> io::Result<Vec<DeadLetter>> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            file => file?,
        };
        let mut all = vec![];
        for line in BufReader::new(file).split(b'\n') {
            all.extend(read_line(&line?));
        }
        Ok(all)
    }

    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut all = self.read_locked()?;
        let mut left = (self.bytes_max / 4 * 3).saturating_sub(bytes);
        let kept = all.iter().rev().take_while(|dead_letter| {
            let mut line = vec![];
            let size = write_line(&mut line, dead_letter).map_or(0, |()| line.len() as u64);
            let fits = size <= left;
            left = left.saturating_sub(size);
            fits
        });
        let dropped = all.len() - kept.count();
        all.drain(..dropped);
        metrics::dead_letters_dropped_total(DeadLetterDropped::Limit, dropped as u64);
        tracing::warn!(
            dropped,
            "the file of rejected readings is full (forward.rejected_max_bytes); dropped the oldest"
        );
        self.rewrite(&all)
    }

    fn rewrite(&self, all: &[DeadLetter]) -> io::Result<()> {
        let mut text = vec![];
        for dead_letter in all {
            write_line(&mut text, dead_letter)?;
        }
        replace_file(&self.path, &text)
    }

    fn sync_dir(&self) -> io::Result<()> {
        let dir = self.path.parent();
        dir.map_or(Ok(()), |dir| RealFs.sync_dir(dir))
    }
}

/// Readings may be confidential.
fn open() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

fn ends_a_line(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::FileExt as _;
    let file = File::open(path)?;
    let mut last = [0];
    file.read_exact_at(&mut last, file.metadata()?.len() - 1)?;
    Ok(last == *b"\n")
}

fn write_line(out: &mut Vec<u8>, dead_letter: &DeadLetter) -> io::Result<()> {
    let DeadLetter {
        received_at_ms,
        source,
        topic,
        payload,
        reason,
        detail,
    } = dead_letter.clone();
    let line = Line {
        received_at_ms,
        source,
        topic,
        reason,
        detail,
        payload_base64: BASE64.encode(payload),
    };
    serde_json::to_writer(&mut *out, &line)?;
    out.push(b'\n');
    Ok(())
}

/// `None`: the line was cut off.
fn read_line(line: &[u8]) -> Option<DeadLetter> {
    let line: Line = serde_json::from_slice(line).ok()?;
    Some(DeadLetter {
        received_at_ms: line.received_at_ms,
        source: line.source,
        topic: line.topic,
        payload: BASE64.decode(line.payload_base64).ok()?,
        reason: line.reason,
        detail: line.detail,
    })
}

/// The dead letter of a reading that the centre rejects, as the native format has it.
pub(crate) fn dead_letter(rejected: &RejectedReading, wall_ms: i64) -> DeadLetter {
    let reading = &rejected.reading;
    let line = json!({
        "sensor_id": reading.sensor_id,
        "ts": reading.ts_ms,
        "ts_unit": "ms",
        "values": reading.values,
        "tags": reading.tags,
    });
    DeadLetter::keep(
        wall_ms,
        OWN_SOURCE,
        "",
        line.to_string().as_bytes(),
        &rejected.reason,
        &rejected.detail,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(n: usize) -> DeadLetter {
        DeadLetter::keep(n as i64, "mqtt", "a/b", &vec![n as u8; 300], "too_old", "d")
    }

    #[test]
    fn dead_letters_are_kept_until_they_are_removed_and_a_cut_line_harms_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = RejectedFile::new(dir.path(), 1 << 20);
        assert_eq!(file.dead_letters().unwrap(), []);
        file.append(&[numbered(1), numbered(2)]).unwrap();
        let mut raw = OpenOptions::new()
            .append(true)
            .open(dir.path().join(NAME))
            .unwrap();
        raw.write_all(b"{\"received_at_ms\":3,\"sou").unwrap();
        file.append(&[numbered(4)]).unwrap();
        assert_eq!(
            file.dead_letters().unwrap(),
            [numbered(1), numbered(2), numbered(4)]
        );
        assert_eq!(file.retain(|l| l.received_at_ms != 2).unwrap(), 1);
        file.append(&[numbered(5)]).unwrap();
        assert_eq!(
            file.dead_letters().unwrap(),
            [numbered(1), numbered(4), numbered(5)]
        );
    }

    #[test]
    fn beyond_the_limit_the_oldest_are_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let file = RejectedFile::new(dir.path(), 8000);
        for n in 0..100 {
            file.append(&[numbered(n)]).unwrap();
            let size = std::fs::metadata(dir.path().join(NAME)).unwrap().len();
            assert!(size <= 8000, "{size}");
        }
        let left: Vec<i64> = file
            .dead_letters()
            .unwrap()
            .iter()
            .map(|l| l.received_at_ms)
            .collect();
        assert!(
            left.len() >= 8 && left.is_sorted() && left.last() == Some(&99),
            "{left:?}"
        );
        file.append(&[DeadLetter::keep(1, "mqtt", "", &[0; 9000], "r", "d")])
            .unwrap();
        assert_eq!(
            file.dead_letters().unwrap().len(),
            left.len(),
            "too large alone"
        );
    }
}
