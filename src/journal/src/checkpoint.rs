//! The checkpoint: two sequences, written about once a second, that limit the replay and verify the
//! end of the journal.
//!
//! Everything before `unstored_from` is stored; everything before `synced_to` was synced. Both
//! statements stay true, so an old checkpoint only costs a longer replay and a weaker check. The
//! file has two slots in separate pages, written alternately. A torn write therefore damages only
//! the slot being replaced, and the writer needs no rename and no sync of the directory. A failure
//! to write the checkpoint does not stop the journal.
//!
//! **Before a removal.** Segments are removed only after a checkpoint without their entries is
//! synced ([`CheckpointFile::before_removal`]). So every entry from `unstored_from` on is in a
//! segment, and the next start notices if the first segments are missing. If the checkpoint cannot
//! be written, it is removed instead.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::fs::{Fs, FsFile, read_full_at, remove_existing, write_all_at};
use super::segment::Fields;

/// The file name.
pub(super) const NAME: &str = "checkpoint";
const SLOT_BYTES: u64 = 4096;
const MAGIC: [u8; 8] = *b"hbcheckp";
/// Magic, three numbers, and a checksum.
const USED: usize = 8 + 3 * 8 + 4;

/// The content of a slot; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Checkpoint {
    generation: u64,
    pub(super) unstored_from: u64,
    pub(super) synced_to: u64,
    /// Whether it is known to be the latest. Damage to a slot leaves an older one, which does not
    /// know the latest removals of segments.
    is_latest: bool,
}

impl Checkpoint {
    /// The sequences (the end exclusive) that must be in segments before the first one that exists,
    /// and are in none. `first_seq`: where that segment starts; `None` if there is none.
    pub(super) fn missing_before(&self, first_seq: Option<u64>) -> Option<(u64, u64)> {
        let end = first_seq.unwrap_or(self.synced_to);
        (self.is_latest && end > self.unstored_from).then_some((self.unstored_from, end))
    }
}

/// The newest valid slot; `None` if the file does not exist or no slot is valid.
pub(super) fn read_newest(fs: &dyn Fs, dir: &Path) -> io::Result<Option<Checkpoint>> {
    let file = match fs.open(&dir.join(NAME), false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut slots = [None; 2];
    for (slot, at) in slots.iter_mut().zip([0, SLOT_BYTES]) {
        let mut bytes = [0; USED];
        let n = read_full_at(&*file, &mut bytes, at)?;
        *slot = decode(&bytes[..n]);
    }
    let generation = |slot: Option<Checkpoint>| slot.map_or(0, |c| c.generation);
    let [a, b] = slots;
    let (older, newest) = if generation(a) > generation(b) {
        (b, a)
    } else {
        (a, b)
    };
    let newest = newest.filter(|newest| newest.generation > 0);
    Ok(newest.map(|newest| Checkpoint {
        is_latest: older.is_some_and(|older| older.generation + 1 == newest.generation),
        ..newest
    }))
}

/// Generation 0 if nothing was ever written; `None` if the slot is damaged.
fn decode(bytes: &[u8]) -> Option<Checkpoint> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Some(Checkpoint::default());
    }
    let (body, checksum) = bytes.split_at_checked(USED - 4)?;
    let (magic, body_fields) = body.split_at(8);
    if magic != MAGIC || Fields(checksum).u32()? != crc32c::crc32c(body) {
        return None;
    }
    let mut fields = Fields(body_fields);
    Some(Checkpoint {
        generation: fields.u64()?,
        unstored_from: fields.u64()?,
        synced_to: fields.u64()?,
        is_latest: false,
    })
}

/// Writes the slots alternately.
pub(super) struct Writer {
    file: Arc<dyn FsFile>,
    last: Checkpoint,
    /// Whether `last` was synced by this writer. One that was only read may be in the page cache
    /// only, left by a process that was killed or whose fdatasync failed.
    synced: bool,
}

impl Writer {
    /// Opens or creates the file.
    pub(super) fn open(fs: &dyn Fs, dir: &Path, last: Option<Checkpoint>) -> io::Result<Writer> {
        let path = dir.join(NAME);
        let file = match fs.open(&path, true) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = fs.create(&path)?;
                fs.sync_dir(dir)?;
                file
            }
            file => file?,
        };
        Ok(Writer {
            file,
            last: last.unwrap_or_default(),
            synced: false,
        })
    }

    /// Writes and syncs a slot, unless this writer has already written these sequences.
    pub(super) fn write(&mut self, unstored_from: u64, synced_to: u64) -> io::Result<()> {
        if self.synced
            && (unstored_from, synced_to) == (self.last.unstored_from, self.last.synced_to)
        {
            return Ok(());
        }
        let generation = self.last.generation + 1;
        let mut bytes = MAGIC.to_vec();
        for number in [generation, unstored_from, synced_to] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        write_all_at(&*self.file, &bytes, generation % 2 * SLOT_BYTES)?;
        self.file.sync_data()?;
        self.last = Checkpoint {
            generation,
            unstored_from,
            synced_to,
            is_latest: true,
        };
        self.synced = true;
        Ok(())
    }
}

/// The checkpoint of an open journal.
pub(super) struct CheckpointFile {
    /// `None` after a failure. No retry: after a failed sync a later success proves nothing.
    writer: Option<Writer>,
    /// Whether the file was removed because it could not be written.
    removed: bool,
}

impl CheckpointFile {
    /// Opens or creates the file. A failure is only logged: on a full disk the journal must still
    /// start, to drain.
    pub(super) fn open(fs: &dyn Fs, dir: &Path, last: Option<Checkpoint>) -> CheckpointFile {
        let writer = Writer::open(fs, dir, last).inspect_err(|error| {
            let dir = dir.display();
            tracing::warn!(%dir, %error, "cannot open the journal checkpoint; the next start \
                replays more");
        });
        CheckpointFile {
            writer: writer.ok(),
            removed: false,
        }
    }

    /// Writes and syncs these sequences. A failure is only logged.
    pub(super) fn write(&mut self, unstored_from: u64, synced_to: u64) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        if let Err(error) = writer.write(unstored_from, synced_to) {
            tracing::warn!(%error, "cannot write the journal checkpoint; the next start replays \
                more");
            self.writer = None;
        }
    }

    /// Call before the removal of segments that end at or before `end`, which is not after
    /// `unstored_from`. Writes the checkpoint, unless a synced one is late enough. If it cannot be
    /// written, removes it, because an older one would call these segments lost.
    pub(super) fn before_removal(
        &mut self,
        fs: &dyn Fs,
        dir: &Path,
        end: u64,
        (unstored_from, synced_to): (u64, u64),
    ) -> io::Result<BeforeRemoval> {
        let is_late = |writer: &Writer| writer.synced && end <= writer.last.unstored_from;
        if self.removed || self.writer.as_ref().is_some_and(is_late) {
            return Ok(BeforeRemoval::Ready);
        }
        self.write(unstored_from, synced_to);
        if self.writer.is_some() {
            return Ok(BeforeRemoval::Ready);
        }
        remove_existing(fs, &dir.join(NAME))?;
        self.removed = true;
        Ok(BeforeRemoval::SyncDirectory)
    }
}

/// What the caller must do before it removes segments.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BeforeRemoval {
    /// Nothing: the checkpoint is late enough, or there is none.
    Ready,
    /// The checkpoint was removed; its directory must be synced.
    SyncDirectory,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::RealFs;

    fn last(dir: &Path) -> Option<Checkpoint> {
        read_newest(&RealFs, dir).unwrap()
    }

    fn damage(dir: &Path) {
        let path = dir.join(NAME);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[10] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }

    #[test]
    fn the_newest_sound_slot_counts() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(last(dir), None);
        let mut writer = Writer::open(&RealFs, dir, None).unwrap();
        assert_eq!(last(dir), None);
        writer.write(1, 2).unwrap();
        writer.write(3, 4).unwrap();
        let newest = last(dir).unwrap();
        assert_eq!((newest.unstored_from, newest.synced_to), (3, 4));
        damage(dir);
        assert_eq!(last(dir).unwrap().unstored_from, 1);
        let mut writer = Writer::open(&RealFs, dir, last(dir)).unwrap();
        writer.write(5, 6).unwrap();
        assert_eq!(last(dir).unwrap().unstored_from, 5);
    }

    #[test]
    fn only_the_latest_checkpoint_proves_that_segments_are_missing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let missing = |first_seq| last(dir).unwrap().missing_before(first_seq);
        let mut writer = Writer::open(&RealFs, dir, None).unwrap();
        writer.write(1, 9).unwrap();
        assert_eq!(missing(Some(1)), None);
        assert_eq!(missing(Some(5)), Some((1, 5)));
        assert_eq!(missing(None), Some((1, 9)));
        writer.write(4, 9).unwrap();
        assert_eq!(missing(Some(5)), Some((4, 5)));
        // The newest slot is damaged: the segments before 4 may have been removed.
        damage(dir);
        assert_eq!(last(dir).unwrap().unstored_from, 1);
        assert_eq!(missing(Some(4)), None);
    }

    /// `tests/pure/journal/missing.rs` has the syncs.
    #[test]
    fn a_removal_is_preceded_by_a_checkpoint_or_by_its_removal() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let remove = |file: &mut CheckpointFile, end, sequences| {
            file.before_removal(&RealFs, dir, end, sequences).unwrap()
        };
        let mut file = CheckpointFile::open(&RealFs, dir, None);
        file.write(1, 9);
        assert_eq!(remove(&mut file, 4, (5, 9)), BeforeRemoval::Ready);
        let written = last(dir).unwrap();
        assert_eq!(written.unstored_from, 5);
        // Nothing to write for the next segment.
        assert_eq!(remove(&mut file, 5, (7, 9)), BeforeRemoval::Ready);
        assert_eq!(last(dir).unwrap().generation, written.generation);
        // A checkpoint that was only read may not be durable.
        let mut file = CheckpointFile::open(&RealFs, dir, last(dir));
        assert_eq!(remove(&mut file, 5, (5, 9)), BeforeRemoval::Ready);
        assert_eq!(last(dir).unwrap().generation, written.generation + 1);
        // A file that takes no byte, as on a full disk.
        std::fs::remove_file(dir.join(NAME)).unwrap();
        std::os::unix::fs::symlink("/dev/full", dir.join(NAME)).unwrap();
        let mut file = CheckpointFile::open(&RealFs, dir, None);
        assert_eq!(remove(&mut file, 8, (8, 9)), BeforeRemoval::SyncDirectory);
        assert_eq!(last(dir), None);
        assert!(!dir.join(NAME).is_symlink());
        assert_eq!(remove(&mut file, 9, (9, 9)), BeforeRemoval::Ready);
    }
}
