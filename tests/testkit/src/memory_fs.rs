//! A file system in memory that distinguishes durable data from data that a crash may lose, and
//! that injects faults.
//!
//! A write dirties pages of [`PAGE_BYTES`]; `sync_data` makes them durable. A crash keeps, loses or
//! tears each dirty page independently, so a later page of a write can survive an earlier one. The
//! same holds for names: each create, rename and remove since the last `sync_dir` is kept or lost
//! independently. A failed `sync_data` behaves as on Linux: afterwards the pages are clean and
//! readable but not durable, even if a later sync succeeds.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;

use journal::fs::{DirLock, Fs, FsFile};

/// The unit that a disk writes. Smaller than a real page, so that small tests tear in many places.
const PAGE_BYTES: usize = 512;

/// The calls that faults can be injected into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the call of that name")]
pub enum Op {
    Write,
    SyncData,
    Allocate,
    SetLen,
    Create,
    Rename,
    Remove,
    SyncDir,
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call returns this error. A write has written half of its bytes.
    Error(io::ErrorKind),
    /// A write writes one byte less than requested, but at least one. Other calls succeed.
    Short,
    /// The machine stops during this call: it and all later calls fail until [`MemFs::crash`].
    Freeze,
}

/// The effect of a crash on unsynced data.
#[derive(Debug, Clone, Copy)]
pub enum Crash {
    /// All of it is lost.
    LoseAll,
    /// All of it is kept: the process was killed, but the machine continued.
    KeepAll,
    /// Each page and each name is kept or lost at random, with this seed.
    Random(u64),
}

#[derive(Debug, Clone, Default)]
struct Inode {
    cached: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
}

#[derive(Debug, Clone)]
struct Rule {
    op: Option<Op>,
    skip: u64,
    times: u64,
    fault: Fault,
}

/// The removed name, and the added name with its inode.
type NameChange = (Option<PathBuf>, Option<(PathBuf, usize)>);

#[derive(Debug, Default)]
struct Disk {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    /// Changes of names since the last `sync_dir`.
    pending: Vec<NameChange>,
    locks: HashSet<PathBuf>,
    rules: Vec<Rule>,
    ops: Vec<Op>,
    frozen: bool,
    capacity: Option<u64>,
}

/// The file system in memory. A clone shares its files.
#[derive(Debug, Clone, Default)]
pub struct MemFs(Arc<Mutex<Disk>>);

impl MemFs {
    /// An empty file system.
    pub fn new() -> MemFs {
        MemFs::default()
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After `skip` calls of this kind (of any kind if `None`), the next `times` calls fail with
    /// `fault`.
    pub fn fail(&self, op: Option<Op>, skip: u64, times: u64, fault: Fault) {
        self.disk().rules.push(Rule {
            op,
            skip,
            times,
            fault,
        });
    }

    /// Removes all injected faults.
    pub fn heal(&self) {
        self.disk().rules.clear();
    }

    /// Sets the total size of all files above which calls fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk().capacity = bytes;
    }

    /// All calls so far that faults can be injected into.
    pub fn ops(&self) -> Vec<Op> {
        self.disk().ops.clone()
    }

    /// Whether a [`Fault::Freeze`] has occurred.
    pub fn frozen(&self) -> bool {
        self.disk().frozen
    }

    /// Stops the machine and returns the file system that it finds after the restart. All later
    /// calls of `self` fail.
    pub fn crash(&self, crash: Crash) -> MemFs {
        let mut disk = self.disk();
        disk.frozen = true;
        let mut rng = Rng::with_seed(if let Crash::Random(seed) = crash {
            seed
        } else {
            0
        });
        let mut keep = |rng: &mut Rng| match crash {
            Crash::LoseAll => false,
            Crash::KeepAll => true,
            Crash::Random(_) => rng.bool(),
        };
        let torn = matches!(crash, Crash::Random(_));
        let mut inodes = Vec::new();
        for inode in &disk.inodes {
            let bytes = surviving_bytes(inode, torn, &mut rng, &mut keep);
            inodes.push(Inode {
                cached: bytes.clone(),
                durable: bytes,
                dirty: BTreeSet::new(),
            });
        }
        let mut names = disk.durable_names.clone();
        for (remove, put) in &disk.pending {
            if keep(&mut rng) {
                remove.as_ref().map(|path| names.remove(path));
                put.clone().map(|(path, inode)| names.insert(path, inode));
            }
        }
        let after = Disk {
            inodes,
            durable_names: names.clone(),
            names,
            capacity: disk.capacity,
            ..Disk::default()
        };
        MemFs(Arc::new(Mutex::new(after)))
    }

    /// The bytes of a file as a reader sees them, for tests that damage them.
    pub fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let disk = self.disk();
        disk.names.get(path).map(|&i| disk.inodes[i].cached.clone())
    }

    /// Replaces the bytes of a file, durably.
    pub fn replace(&self, path: &Path, bytes: Vec<u8>) {
        let mut disk = self.disk();
        let inode = disk.names.get(path).copied();
        let inode = inode.unwrap_or_else(|| {
            disk.inodes.push(Inode::default());
            disk.inodes.len() - 1
        });
        disk.inodes[inode] = Inode {
            cached: bytes.clone(),
            durable: bytes,
            dirty: BTreeSet::new(),
        };
        disk.names.insert(path.into(), inode);
        disk.durable_names.insert(path.into(), inode);
    }
}

/// The bytes of a file after a crash.
fn surviving_bytes(
    inode: &Inode,
    torn: bool,
    rng: &mut Rng,
    keep: &mut impl FnMut(&mut Rng) -> bool,
) -> Vec<u8> {
    let mut bytes = inode.durable.clone();
    if inode.cached.len() != bytes.len() && keep(rng) {
        bytes.resize(inode.cached.len(), 0);
    }
    for &page in &inode.dirty {
        if !keep(rng) {
            continue;
        }
        let from = page * PAGE_BYTES;
        let mut to = (from + PAGE_BYTES).min(inode.cached.len());
        if torn && rng.u8(..) < 64 {
            to = from + rng.usize(..=to.saturating_sub(from));
        }
        if from < to {
            // A page that reached the disk also extends the file.
            bytes.resize(bytes.len().max(to), 0);
            bytes[from..to].copy_from_slice(&inode.cached[from..to]);
        }
    }
    bytes
}

impl Disk {
    /// Records the call and returns the fault to inject, if any.
    fn call(&mut self, op: Op) -> io::Result<Option<Fault>> {
        if self.frozen {
            return Err(io::Error::other("the machine has stopped"));
        }
        self.ops.push(op);
        let mut fault = None;
        for rule in self
            .rules
            .iter_mut()
            .filter(|rule| rule.op.is_none_or(|o| o == op))
        {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.times > 0 && fault.is_none() {
                rule.times -= 1;
                fault = Some(rule.fault);
            }
        }
        self.frozen |= fault == Some(Fault::Freeze);
        Ok(fault)
    }

    /// The same for calls that either succeed or have no effect.
    fn whole_call(&mut self, op: Op) -> io::Result<()> {
        match self.call(op)? {
            Some(Fault::Error(kind)) => Err(kind.into()),
            Some(Fault::Freeze) => Err(io::Error::other("the machine has stopped")),
            Some(Fault::Short) | None => Ok(()),
        }
    }

    fn alive(&self) -> io::Result<()> {
        if self.frozen {
            Err(io::Error::other("the machine has stopped"))
        } else {
            Ok(())
        }
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .map(|&i| self.inodes[i].cached.len() as u64)
            .sum()
    }

    fn resize(&mut self, inode: usize, len: usize) -> io::Result<()> {
        let old = self.inodes[inode].cached.len();
        if len > old
            && self
                .capacity
                .is_some_and(|max| self.used() + (len - old) as u64 > max)
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let inode = &mut self.inodes[inode];
        inode.cached.resize(len, 0);
        // The page at the end of the file has changed.
        inode.dirty.insert(len.min(old) / PAGE_BYTES);
        Ok(())
    }
}

struct MemFile {
    fs: MemFs,
    inode: usize,
}

impl FsFile for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = self.fs.disk();
        disk.alive()?;
        let bytes = disk.inodes[self.inode]
            .cached
            .get(offset as usize..)
            .unwrap_or_default();
        let n = buf.len().min(bytes.len());
        buf[..n].copy_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut disk = self.fs.disk();
        let fault = disk.call(Op::Write)?;
        let n = match fault {
            None => buf.len(),
            Some(Fault::Short) => (buf.len() - 1).max(1),
            Some(Fault::Error(_) | Fault::Freeze) => buf.len() / 2,
        };
        let from = offset as usize;
        let to = offset as usize + n;
        if to > disk.inodes[self.inode].cached.len() {
            disk.resize(self.inode, to)?;
        }
        let inode = &mut disk.inodes[self.inode];
        inode.cached[from..to].copy_from_slice(&buf[..n]);
        inode
            .dirty
            .extend(from / PAGE_BYTES..to.div_ceil(PAGE_BYTES));
        match fault {
            Some(Fault::Error(kind)) => Err(kind.into()),
            Some(Fault::Freeze) => Err(io::Error::other("the machine has stopped")),
            _ => Ok(n),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let result = disk.whole_call(Op::SyncData);
        if disk.frozen {
            return result;
        }
        let inode = &mut disk.inodes[self.inode];
        let dirty = std::mem::take(&mut inode.dirty);
        result?;
        inode.durable.resize(inode.cached.len(), 0);
        for page in dirty {
            let from = (page * PAGE_BYTES).min(inode.cached.len());
            let to = (from + PAGE_BYTES).min(inode.cached.len());
            inode.durable[from..to].copy_from_slice(&inode.cached[from..to]);
        }
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut disk = self.fs.disk();
        disk.whole_call(Op::Allocate)?;
        let len = disk.inodes[self.inode].cached.len().max(len as usize);
        disk.resize(self.inode, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.fs.disk();
        disk.whole_call(Op::SetLen)?;
        disk.resize(self.inode, len as usize)
    }

    fn size(&self) -> io::Result<u64> {
        let disk = self.fs.disk();
        disk.alive()?;
        Ok(disk.inodes[self.inode].cached.len() as u64)
    }
}

struct MemLock {
    fs: MemFs,
    path: PathBuf,
}

impl DirLock for MemLock {}

impl Drop for MemLock {
    fn drop(&mut self) {
        self.fs.disk().locks.remove(&self.path);
    }
}

impl Fs for MemFs {
    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        self.disk().alive()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let disk = self.disk();
        disk.alive()?;
        let here = disk.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(here
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn FsFile>> {
        let mut disk = self.disk();
        disk.whole_call(Op::Create)?;
        disk.inodes.push(Inode::default());
        let inode = disk.inodes.len() - 1;
        disk.names.insert(path.into(), inode);
        disk.pending.push((None, Some((path.into(), inode))));
        Ok(Arc::new(MemFile {
            fs: self.clone(),
            inode,
        }))
    }

    fn open(&self, path: &Path, _write: bool) -> io::Result<Arc<dyn FsFile>> {
        let disk = self.disk();
        disk.alive()?;
        let inode = *disk.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(MemFile {
            fs: self.clone(),
            inode,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.whole_call(Op::Rename)?;
        let inode = disk.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        disk.names.insert(to.into(), inode);
        disk.pending
            .push((Some(from.into()), Some((to.into(), inode))));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.whole_call(Op::Remove)?;
        disk.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        disk.pending.push((Some(path.into()), None));
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let result = disk.whole_call(Op::SyncDir);
        if !disk.frozen {
            disk.pending.clear();
        }
        result?;
        disk.durable_names = disk.names.clone();
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DirLock>>> {
        let mut disk = self.disk();
        disk.alive()?;
        if !disk.locks.insert(path.into()) {
            return Ok(None);
        }
        Ok(Some(Box::new(MemLock {
            fs: self.clone(),
            path: path.into(),
        })))
    }
}
