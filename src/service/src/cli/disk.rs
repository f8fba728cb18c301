//! The disk of the journal: whether it can be written, whether `journal.max_bytes` fits, and what
//! its file system means for durability.

use std::error::Error;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::check::Finding;

/// File systems by the magic number of statfs(2), and why each is unsuitable for a journal.
const UNSUITABLE: [(u64, &str, &str); 5] = [
    (
        0x0102_1994,
        "tmpfs",
        "it is in memory, and a reboot loses acknowledged readings",
    ),
    (
        0x8584_58f6,
        "ramfs",
        "it is in memory, and a reboot loses acknowledged readings",
    ),
    (
        0x794c_7630,
        "overlayfs",
        "in a container it ends with the container; mount a volume",
    ),
    (
        0x6969,
        "NFS",
        "an fdatasync that the server confirms too early loses acknowledged readings; use a local \
         disk",
    ),
    (
        0xff53_4d42,
        "CIFS",
        "an fdatasync that the server confirms too early loses acknowledged readings; use a local \
         disk",
    ),
];

/// The journal does not fit on its disk.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: journal.max_bytes is {max_bytes} bytes, but the disk has {total} in all and {free} free: \
     the disk is full before the journal is; set journal.max_bytes below the size of the disk", path.display()
)]
struct TooSmall {
    path: PathBuf,
    max_bytes: u64,
    total: u64,
    free: u64,
}

/// File systems of the kernel by their magic number. Their directories look writable to root.
const WITHOUT_FILES: [(u64, &str); 2] = [(0x9fa0, "proc"), (0x6265_6572, "sysfs")];

/// The service cannot write its journal.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotWritable {
    #[error(
        "{}: no write access to {}: {source}; create journal.dir for the user of the service, or \
         set it to another directory", dir.display(), existing.display()
    )]
    Access {
        dir: PathBuf,
        existing: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "{}: {} is on {file_system}, where no file can be created; set journal.dir to a directory \
         on a local disk", dir.display(), existing.display()
    )]
    WithoutFiles {
        dir: PathBuf,
        existing: PathBuf,
        file_system: &'static str,
    },
}

/// Checks that the directory can be written, or created below the nearest one that exists. Changes
/// nothing.
pub(super) fn writable(dir: &Path) -> Result<(), NotWritable> {
    let dir = absolute(dir);
    let existing = dir.ancestors().find(|path| path.exists());
    let existing = existing.unwrap_or(Path::new("/")).to_owned();
    if let Err(errno) = rustix::fs::access(&existing, Access::WRITE_OK | Access::EXEC_OK) {
        let source = errno.into();
        return Err(NotWritable::Access {
            dir,
            existing,
            source,
        });
    }
    let magic = rustix::fs::statfs(&existing).map_or(0, |disk| u64::from(disk.f_type as u32));
    match WITHOUT_FILES.iter().find(|(known, _)| *known == magic) {
        Some((_, file_system)) => Err(NotWritable::WithoutFiles {
            dir,
            existing,
            file_system,
        }),
        None => Ok(()),
    }
}

/// The directory as an absolute path. It need not exist.
pub(super) fn absolute(dir: &Path) -> PathBuf {
    std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned())
}

/// Compares the journal's limit with its disk. Empty if the disk cannot be queried.
pub(super) fn check(journal: &config::Journal) -> Vec<Finding> {
    let path = absolute(&journal.dir);
    // It is created at the first start, below one that exists.
    let Some(existing) = path.ancestors().find(|dir| dir.is_dir()) else {
        return vec![];
    };
    let Ok(disk) = rustix::fs::statfs(existing) else {
        return vec![];
    };
    let block = u64::try_from(disk.f_bsize).unwrap_or(0);
    let total = disk.f_blocks.saturating_mul(block);
    let free = disk.f_bavail.saturating_mul(block);
    let finding = |result: Result<String, Box<dyn Error>>| Finding {
        what: "journal disk".into(),
        result,
    };
    let mut findings = vec![];
    let max_bytes = journal.max_bytes;
    if total > 0 && max_bytes > total {
        findings.push(finding(Err(TooSmall {
            path: path.clone(),
            max_bytes,
            total,
            free,
        }
        .into())));
    } else if total > 0 && max_bytes > free.saturating_add(used(&path)) {
        let text = format!(
            "warning: {free} bytes are free, and the journal may grow to {max_bytes} \
             (journal.max_bytes)"
        );
        findings.push(finding(Ok(text)));
    }
    let magic = u64::from(disk.f_type as u32);
    if let Some((_, name, why)) = UNSUITABLE.iter().find(|(known, _, _)| *known == magic) {
        findings.push(finding(Ok(format!(
            "warning: {} is on {name}: {why}",
            path.display()
        ))));
    }
    findings
}

/// Free bytes of the disk that a directory is on, or will be.
pub(super) fn free(dir: &Path) -> Option<u64> {
    let path = absolute(dir);
    let disk = rustix::fs::statfs(path.ancestors().find(|dir| dir.is_dir())?).ok()?;
    Some(
        disk.f_bavail
            .saturating_mul(u64::try_from(disk.f_bsize).ok()?),
    )
}

/// Bytes of the files in the directory.
fn used(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    entries
        .filter_map(|entry| entry.ok()?.metadata().ok())
        .map(|meta| meta.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_beyond_the_disk_is_a_problem_and_a_disk_in_memory_a_warning() {
        let shm = Path::new("/dev/shm/hourbucket-none/journal");
        let journal = |max_bytes| config::Journal {
            dir: shm.into(),
            max_bytes,
            ..config::Config::default().journal
        };
        let texts = |max_bytes| -> Vec<String> {
            check(&journal(max_bytes))
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        let found = texts(1 << 60);
        assert!(
            found[0].starts_with("PROBLEM  journal disk")
                && found[0].contains("/dev/shm/hourbucket"),
            "{found:?}"
        );
        assert!(
            found[1].contains("warning: ") && found[1].contains("tmpfs"),
            "{found:?}"
        );
        assert_eq!(texts(1).len(), 1);
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_a_problem_and_none_is_created() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("a/journal");
        assert!(writable(&new).is_ok() && writable(dir.path()).is_ok());
        assert!(!dir.path().join("a").exists());
        let error = writable(Path::new("/proc/x")).unwrap_err().to_string();
        assert!(
            error.starts_with("/proc/x: ") && error.contains("/proc"),
            "{error}"
        );
        // Not executable, so that root is refused too.
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = writable(&file.join("journal")).unwrap_err().to_string();
        assert!(error.contains("journal: no write access to "), "{error}");
    }
}
