//! The file system interface of the journal. The implementation ([`real`]) only calls the kernel;
//! tests have another, which injects faults, tears writes and loses data (`testkit::memory_fs`).
//!
//! All calls block. A caller without a dedicated thread uses `spawn_blocking`.

pub mod real;

pub use real::{RealFs, replace_file};

use std::io;
use std::path::Path;
use std::sync::Arc;

/// An open file. Reads and writes take an offset; there is no file position.
pub trait FsFile: Send + Sync {
    /// Reads at most `buf.len()` bytes; returns 0 at the end of the file.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at most `buf.len()` bytes and returns their number.
    ///
    /// # Errors
    /// Errors of the kernel. The number of written bytes is then unknown.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;

    /// Makes the contents durable (fdatasync), with the metadata required to read them.
    ///
    /// # Errors
    /// Errors of the kernel. Data written since the last success may then be lost permanently, even
    /// if a later call succeeds, because the kernel marks the pages as clean.
    fn sync_data(&self) -> io::Result<()>;

    /// Reserves space up to `len` and extends the file to it. Bytes that were never written read as
    /// zeros.
    ///
    /// # Errors
    /// `StorageFull` if there is no space; other errors of the kernel.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Truncates the file, or extends it without reserving space.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Length in bytes.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn size(&self) -> io::Result<u64>;
}

/// Exclusive use of the directory while it is held.
pub trait DirLock: Send + Sync {}

/// A file system.
pub trait Fs: Send + Sync {
    /// Creates the directory and its parents, durably. Does nothing if it exists.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// The file names in a directory, in arbitrary order.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Creates an empty file, or truncates an existing one.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn FsFile>>;

    /// Opens an existing file, read-only unless `write`.
    ///
    /// # Errors
    /// `NotFound`; other errors of the kernel.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn FsFile>>;

    /// Renames a file atomically; replaces an existing `to`.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes the name of a file.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in the directory durable.
    ///
    /// # Errors
    /// Errors of the kernel. Final, like those of [`FsFile::sync_data`].
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Locks this file exclusively; `None` if another process, or another journal in this process,
    /// holds the lock.
    ///
    /// # Errors
    /// Errors of the kernel.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DirLock>>>;
}

/// Removes the name of a file that may not exist.
pub(super) fn remove_existing(fs: &dyn Fs, path: &Path) -> io::Result<()> {
    match fs.remove(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Writes the whole buffer; continues short writes.
pub(super) fn write_all_at(file: &dyn FsFile, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match file.write_at(buf, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                buf = &buf[n..];
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads until `buf` is full or the file ends; returns the number of bytes.
pub(super) fn read_full_at(file: &dyn FsFile, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
