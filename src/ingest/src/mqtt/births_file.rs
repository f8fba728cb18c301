//! The file that keeps the births of Sparkplug B nodes over a restart, one for each broker, next to
//! the journal.
//!
//! It is written at most every [`EVERY`] while births change, and at the end: to a temporary file,
//! synced, renamed, and the directory synced. A crash therefore leaves the old file or the new one.
//! A file that is damaged, or missing, costs rebirths only. Its size is bounded by
//! [`decode::sparkplug::BYTES_MAX`].

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use config::Mqtt;

/// The shortest time between two writes.
pub(super) const EVERY: Duration = Duration::from_secs(5);

/// The file of a broker's births.
pub fn births_path(dir: &Path, broker: &Mqtt) -> PathBuf {
    let identity = format!("{}\0{}", broker.url, broker.client_id);
    dir.join(format!("births-{:016x}", xxh3_64(identity.as_bytes())))
}

/// The content; `None` if there is no file.
///
/// # Errors
/// The file cannot be read.
pub fn read_births(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        bytes => bytes.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use journal::fs::replace_file;

    #[test]
    fn the_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("births-1");
        assert_eq!(read_births(&path).unwrap(), None);
        replace_file(&path, b"one").unwrap();
        replace_file(&path, b"two").unwrap();
        assert_eq!(read_births(&path).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }
}
