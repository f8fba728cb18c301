//! What the journal asks of a file system, in its own words, so that a test can put one below it that fails, tears and
//! forgets ([`memory`]). The real one ([`real`]) adds nothing to what the kernel does.
//!
//! Everything here blocks. A caller that is not a thread of its own goes through `spawn_blocking`.

pub mod memory;
pub mod real;

use std::io;
use std::path::Path;
use std::sync::Arc;

pub use memory::MemFs;
pub use real::RealFs;

/// An open file. Reads and writes say where; there is no position.
pub trait FsFile: Send + Sync {
    /// Reads at most `buf.len()` bytes; 0 at the end of the file.
    ///
    /// # Errors
    /// The kernel's.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at most `buf.len()` bytes and says how many.
    ///
    /// # Errors
    /// The kernel's; how much was written then is unknown.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;

    /// Makes the contents durable (fdatasync), with as much metadata as is needed to find them again.
    ///
    /// # Errors
    /// The kernel's. What had been written since the last success may be lost for good, even where a later call
    /// succeeds: the kernel forgets that the pages were dirty.
    fn sync_data(&self) -> io::Result<()>;

    /// Reserves the space up to `len` and makes the file that long; what was never written reads as zeros.
    ///
    /// # Errors
    /// `StorageFull` where there is no room; other errors of the kernel.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Cuts the file, or makes it longer without reserving anything.
    ///
    /// # Errors
    /// The kernel's.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Length in bytes.
    ///
    /// # Errors
    /// The kernel's.
    fn size(&self) -> io::Result<u64>;
}

/// Held for as long as nobody else may use the directory.
pub trait DirLock: Send + Sync {}

/// A file system.
pub trait Fs: Send + Sync {
    /// Makes the directory with its parents, durably; nothing where it is there.
    ///
    /// # Errors
    /// The kernel's.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// The names in a directory, in no order.
    ///
    /// # Errors
    /// The kernel's.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// An empty file under this name, in place of any other.
    ///
    /// # Errors
    /// The kernel's.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn FsFile>>;

    /// An existing file, for reading only unless `write`.
    ///
    /// # Errors
    /// `NotFound`; others of the kernel.
    fn open(&self, path: &Path, write: bool) -> io::Result<Arc<dyn FsFile>>;

    /// Gives a file another name, in place of any other file, in one step.
    ///
    /// # Errors
    /// The kernel's.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name.
    ///
    /// # Errors
    /// The kernel's.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes durable which names the directory holds.
    ///
    /// # Errors
    /// The kernel's; as final as that of [`FsFile::sync_data`].
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the lock that this file stands for; `None` where another process, or another journal of this one, has it.
    ///
    /// # Errors
    /// The kernel's.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DirLock>>>;
}

/// Writes all of it; a short write is continued.
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

/// Fills as much of `buf` as the file has there and says how much.
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
