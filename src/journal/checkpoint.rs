//! The checkpoint: two sequences, written about once a second, that limit the replay and verify the
//! end of the journal.
//!
//! Everything before `unstored_from` is stored; everything before `synced_to` was synced. Both
//! statements stay true, so an old checkpoint only costs a longer replay and a weaker check. The
//! file has two slots in separate pages, written alternately. A torn write therefore damages only
//! the slot being replaced, and the writer needs no rename and no sync of the directory. A failure
//! to write the checkpoint does not stop the journal.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::fs::{Fs, FsFile, read_full_at, write_all_at};
use super::segment::Fields;

/// The file name.
pub(super) const NAME: &str = "checkpoint";
const SLOT_BYTES: u64 = 4096;
const MAGIC: [u8; 8] = *b"hbcheckp";
const USED: usize = 36;

/// The content of a slot; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Checkpoint {
    generation: u64,
    pub(super) unstored_from: u64,
    pub(super) synced_to: u64,
}

/// The newest valid slot; `None` if the file does not exist or no slot is valid.
pub(super) fn read(fs: &dyn Fs, dir: &Path) -> io::Result<Option<Checkpoint>> {
    let file = match fs.open(&dir.join(NAME), false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut best: Option<Checkpoint> = None;
    for slot in 0..2 {
        let mut bytes = [0; USED];
        let n = read_full_at(&*file, &mut bytes, slot * SLOT_BYTES)?;
        let found = decode(&bytes[..n]);
        best = [best, found]
            .into_iter()
            .flatten()
            .max_by_key(|c| c.generation);
    }
    Ok(best)
}

fn decode(bytes: &[u8]) -> Option<Checkpoint> {
    let (body, crc) = bytes.split_at_checked(USED - 4)?;
    let (magic, body_fields) = body.split_at(8);
    if magic != MAGIC || Fields(crc).u32()? != crc32c::crc32c(body) {
        return None;
    }
    let mut fields = Fields(body_fields);
    Some(Checkpoint {
        generation: fields.u64()?,
        unstored_from: fields.u64()?,
        synced_to: fields.u64()?,
    })
}

/// Writes the slots alternately.
pub(super) struct Writer {
    file: Arc<dyn FsFile>,
    last: Checkpoint,
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
        })
    }

    /// Writes and syncs a slot, unless both sequences are unchanged.
    pub(super) fn write(&mut self, unstored_from: u64, synced_to: u64) -> io::Result<()> {
        if (unstored_from, synced_to) == (self.last.unstored_from, self.last.synced_to) {
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
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::fs::MemFs;

    #[test]
    fn the_newest_sound_slot_counts() {
        let fs = MemFs::new();
        let dir = Path::new("j");
        assert_eq!(read(&fs, dir).unwrap(), None);
        let mut writer = Writer::open(&fs, dir, None).unwrap();
        assert_eq!(read(&fs, dir).unwrap(), None);
        writer.write(1, 2).unwrap();
        writer.write(3, 4).unwrap();
        let last = read(&fs, dir).unwrap().unwrap();
        assert_eq!((last.unstored_from, last.synced_to), (3, 4));
        let path = dir.join(NAME);
        let mut bytes = fs.read(&path).unwrap();
        bytes[10] ^= 1;
        fs.replace(&path, bytes);
        assert_eq!(read(&fs, dir).unwrap().unwrap().unstored_from, 1);
        let mut writer = Writer::open(&fs, dir, read(&fs, dir).unwrap()).unwrap();
        writer.write(5, 6).unwrap();
        assert_eq!(read(&fs, dir).unwrap().unwrap().unstored_from, 5);
    }
}
