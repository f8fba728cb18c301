//! The segment files of a journal directory: their names, and the list of them with their headers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{JournalError, io_error};
use super::fs::{Fs, FsFile, read_full_at};
use super::segment::{Coding, HEADER_BYTES, Header, HeaderFault};

/// Suffix of files that will become segments, so that a crash leaves no incomplete `*.seg` file.
pub(super) const UNFINISHED: &str = ".tmp";

/// The file name of a segment. Names sort like numbers.
pub(super) fn segment_name(number: u64) -> String {
    format!("{number:012}.seg")
}

fn segment_number(name: &str) -> Option<u64> {
    name.strip_suffix(".seg")?.parse().ok()
}

/// A segment that exists, as recovery finds it and the shared state lists it.
#[derive(Debug, Clone)]
pub(super) struct SegmentInfo {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) coding: Coding,
    pub(super) first_seq: u64,
    /// End of its frames. Later bytes are not synced, or belong to an earlier segment.
    pub(super) data_end: u64,
    /// Size on disk.
    pub(super) bytes: u64,
    /// Written by this process, so that its salt differs from those of the next segments.
    pub(super) own: bool,
}

/// A segment file and its header.
pub(super) struct FoundSegment {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn FsFile>,
    pub(super) bytes: u64,
    pub(super) header: Result<Header, HeaderFault>,
}

impl FoundSegment {
    /// Its header, unless that belongs to a segment with another number.
    pub(super) fn own_header(&self) -> Option<&Header> {
        let header = self.header.as_ref().ok()?;
        (header.number == self.number).then_some(header)
    }
}

/// The names of the files in a directory that must exist.
pub(super) fn names(fs: &dyn Fs, dir: &Path) -> Result<Vec<String>, JournalError> {
    fs.list(dir).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => JournalError::NoDirectory { dir: dir.into() },
        _ => io_error("list", dir)(error),
    })
}

/// All segment files, ordered by number.
pub(super) fn list(fs: &dyn Fs, dir: &Path) -> Result<Vec<FoundSegment>, JournalError> {
    let names = fs.list(dir).map_err(io_error("list", dir))?;
    let mut numbers = Vec::new();
    for name in &names {
        let Some(number) = segment_number(name) else {
            continue;
        };
        if segment_name(number) != *name {
            let path = dir.join(name);
            return Err(JournalError::NotSegment { path });
        }
        numbers.push(number);
    }
    numbers.sort_unstable();
    let find = |number| {
        let path = dir.join(segment_name(number));
        let read = || {
            let file = fs.open(&path, false)?;
            let mut page = vec![0; HEADER_BYTES as usize];
            let n = read_full_at(&*file, &mut page, 0)?;
            let bytes = file.size()?;
            Ok((
                file,
                bytes,
                if n < page.len() {
                    Err(HeaderFault::Magic)
                } else {
                    Header::decode(&page)
                },
            ))
        };
        let (file, bytes, header) = read().map_err(io_error("read", &path))?;
        Ok(FoundSegment {
            number,
            path,
            file,
            bytes,
            header,
        })
    };
    numbers.into_iter().map(find).collect()
}
