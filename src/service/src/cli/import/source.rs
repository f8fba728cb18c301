//! Opens a file of an import, or standard input: compressed or not, with or without a byte order
//! mark, from a given offset on.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use xxhash_rust::xxh3::Xxh3;

/// Bytes at the start of a file, and before the offset, that show whether it is still the same.
const COMPARED_BYTES: u64 = 64 << 10;
/// The UTF-8 byte order mark.
pub(super) const BOM: &[u8] = b"\xef\xbb\xbf";
pub(super) const BOM_BYTES: u64 = BOM.len() as u64;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the file is empty")]
    Empty,
    #[error("the file is {0}; expected text, gzip or zstd; {1}")]
    Kind(&'static str, &'static str),
    #[error(
        "another file has taken its place while it was read, or it was moved away; a part of the \
         old one is imported; to import what has this name now, add --restart"
    )]
    Replaced,
    #[error(
        "it was overwritten or cut off while it was read; a part of it is imported; to import it \
         as it is now, add --restart"
    )]
    Overwritten,
}

/// The content of a file, decompressed.
pub(super) struct Source {
    pub(super) reader: Box<dyn Read>,
    /// The offset in the content at which `reader` starts.
    pub(super) offset: u64,
}

/// The source of an import.
pub(super) enum Input {
    File(OpenFile),
    /// Standard input can be read once. The bytes read to find the columns are kept until the rows
    /// are read.
    Standard(Rc<RefCell<Standard>>),
}

pub(super) struct Standard {
    /// Decompressed.
    reader: Box<dyn Read>,
    /// The bytes read while `keeps`.
    kept: Vec<u8>,
    keeps: bool,
}

/// Reads the kept bytes of standard input from an offset on, and then the rest of it.
struct Replay {
    standard: Rc<RefCell<Standard>>,
    at: usize,
}

impl Read for Replay {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Standard {
            reader,
            kept,
            keeps,
        } = &mut *self.standard.borrow_mut();
        if let Some(rest) = kept.get(self.at..).filter(|rest| !rest.is_empty()) {
            let n = rest.len().min(buffer.len());
            buffer[..n].copy_from_slice(&rest[..n]);
            self.at += n;
            return Ok(n);
        }
        let n = reader.read(buffer)?;
        if *keeps {
            kept.extend_from_slice(&buffer[..n]);
            self.at += n;
        }
        Ok(n)
    }
}

impl Input {
    /// `-` is standard input.
    pub(super) fn new(path: &Path) -> Result<Input, SourceError> {
        if path == Path::new("-") {
            Input::standard(io::stdin())
        } else {
            Ok(Input::File(OpenFile::new(path)?))
        }
    }

    pub(super) fn standard(mut reader: impl Read + 'static) -> Result<Input, SourceError> {
        let mut head = vec![];
        (&mut reader).take(4).read_to_end(&mut head)?;
        let compression = compression_of(&head)?;
        let reader = decompressed(compression, Cursor::new(head).chain(reader))?;
        Ok(Input::Standard(Rc::new(RefCell::new(Standard {
            reader,
            kept: vec![],
            keeps: true,
        }))))
    }

    /// Opens the content at an offset. `is_last`: it is not opened again.
    pub(super) fn open(&self, offset: u64, is_last: bool) -> Result<Source, SourceError> {
        match self {
            Input::File(file) => file.open(offset),
            Input::Standard(standard) => {
                standard.borrow_mut().keeps = !is_last;
                // The bytes before it were read, so they are kept.
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                at_start(
                    Box::new(Replay {
                        standard: standard.clone(),
                        at,
                    }),
                    offset,
                )
            }
        }
    }

    /// `None`: standard input, which has no state.
    pub(super) fn file(&self) -> Option<&OpenFile> {
        match self {
            Input::File(file) => Some(file),
            Input::Standard(_) => None,
        }
    }

    pub(super) fn file_mut(&mut self) -> Option<&mut OpenFile> {
        match self {
            Input::File(file) => Some(file),
            Input::Standard(_) => None,
        }
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.file().map(OpenFile::path)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
    /// Read by its columns ([`super::parquet_rows`]); nothing can be appended to it.
    Parquet,
}

/// By the first four bytes.
fn compression_of(head: &[u8]) -> Result<Compression, SourceError> {
    match head {
        [] => Err(SourceError::Empty),
        [0x1f, 0x8b, ..] => Ok(Compression::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd] => Ok(Compression::Zstd),
        b"PAR1" => Ok(Compression::Parquet),
        [b'P', b'K', 3, 4] => Err(SourceError::Kind(
            "a zip archive or an Excel workbook",
            "unpack it, or save the sheet as CSV",
        )),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Err(SourceError::Kind(
            "UTF-16",
            "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW",
        )),
        b"BZh9" | [0xfd, b'7', b'z', b'X'] => Err(SourceError::Kind(
            "compressed with bzip2 or xz",
            "unpack it",
        )),
        _ => Ok(Compression::None),
    }
}

fn decompressed(
    compression: Compression,
    reader: impl Read + 'static,
) -> io::Result<Box<dyn Read>> {
    Ok(match compression {
        Compression::None | Compression::Parquet => Box::new(reader),
        Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(BufReader::new(reader))),
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::new(reader)?),
    })
}

/// A file, open as long as it is imported: what is read and what is remembered are of one file, also
/// if another one takes its name meanwhile.
pub(super) struct OpenFile {
    path: PathBuf,
    file: Rc<File>,
    compression: Compression,
    /// An offset and the fingerprint that the file had there, when it was opened or was last
    /// remembered. If that has changed, what was read may be of another content.
    known: (u64, String),
}

/// Reads a file from its own position on; several can read one file.
struct At {
    file: Rc<File>,
    at: u64,
}

impl Read for At {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read_at(buffer, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl OpenFile {
    pub(super) fn new(path: &Path) -> Result<OpenFile, SourceError> {
        let file = Rc::new(File::open(path)?);
        let mut head = vec![];
        let start = At {
            file: file.clone(),
            at: 0,
        };
        start.take(4).read_to_end(&mut head)?;
        let mut open = OpenFile {
            path: path.to_owned(),
            file,
            compression: compression_of(&head)?,
            known: (0, String::new()),
        };
        let offset = COMPARED_BYTES.min(open.file.metadata()?.len());
        open.known = (offset, open.fingerprint(offset)?.unwrap_or_default());
        Ok(open)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn at(&self, at: u64) -> At {
        At {
            file: self.file.clone(),
            at,
        }
    }

    /// Opens the file at an offset of its decompressed content.
    fn open(&self, offset: u64) -> Result<Source, SourceError> {
        if self.compression == Compression::None {
            return at_start(Box::new(self.at(offset)), offset);
        }
        let mut reader = decompressed(self.compression, self.at(0))?;
        io::copy(&mut (&mut reader).take(offset), &mut io::sink())?;
        at_start(reader, offset)
    }

    /// The file, for a reader that seeks in it.
    pub(super) fn clone_file(&self) -> Result<File, SourceError> {
        Ok(self.file.try_clone()?)
    }

    /// The size of the content in bytes; `None` if it is compressed.
    pub(super) fn size(&self) -> Result<Option<u64>, SourceError> {
        let is_plain = self.compression == Compression::None;
        Ok(is_plain.then_some(self.file.metadata()?.len()))
    }

    /// Recognises a file whose content before `offset` has not changed. Of a compressed file,
    /// nothing may have changed; to an uncompressed one, something may have been appended. `None`:
    /// the file is shorter than `offset`.
    pub(super) fn fingerprint(&self, offset: u64) -> Result<Option<String>, SourceError> {
        let size = self.file.metadata()?.len();
        let end = match self.compression {
            Compression::None => offset,
            _ => size,
        };
        if size < end {
            return Ok(None);
        }
        let mut hash = Xxh3::new();
        hash.update(&end.to_le_bytes());
        for from in [0, end.saturating_sub(COMPARED_BYTES)] {
            let mut part = vec![];
            self.at(from)
                .take(COMPARED_BYTES.min(end - from))
                .read_to_end(&mut part)?;
            hash.update(&part);
        }
        Ok(Some(format!("{:032x}", hash.digest128())))
    }

    /// The fingerprint at an offset before which everything was read.
    ///
    /// # Errors
    /// What was read may not be what the file with this name contains.
    pub(super) fn fingerprint_of_read(&mut self, offset: u64) -> Result<String, SourceError> {
        let fingerprint = self.fingerprint(offset)?;
        // After it was taken: it is not that of a content that came between.
        let (known_offset, known) = &self.known;
        if self.fingerprint(*known_offset)?.as_ref() != Some(known) {
            return Err(SourceError::Overwritten);
        }
        let own = self.file.metadata()?;
        match std::fs::metadata(&self.path) {
            Ok(named) if (own.dev(), own.ino()) == (named.dev(), named.ino()) => {}
            Ok(_) => return Err(SourceError::Replaced),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SourceError::Replaced);
            }
            Err(error) => return Err(error.into()),
        }
        let fingerprint = fingerprint.ok_or(SourceError::Overwritten)?;
        if offset > self.known.0 {
            self.known = (offset, fingerprint.clone());
        }
        Ok(fingerprint)
    }
}

/// A content whose reader is at an offset. At the start, a UTF-8 byte order mark is skipped.
fn at_start(mut reader: Box<dyn Read>, offset: u64) -> Result<Source, SourceError> {
    if offset > 0 {
        return Ok(Source { reader, offset });
    }
    let mut head = vec![];
    (&mut reader).take(BOM_BYTES).read_to_end(&mut head)?;
    if head == BOM {
        let offset = BOM_BYTES;
        return Ok(Source { reader, offset });
    }
    Ok(Source {
        reader: Box::new(Cursor::new(head).chain(reader)),
        offset: 0,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn content(path: &Path, offset: u64) -> (u64, String) {
        let mut source = OpenFile::new(path).unwrap().open(offset).unwrap();
        let mut text = String::new();
        source.reader.read_to_string(&mut text).unwrap();
        (source.offset, text)
    }

    #[test]
    fn plain_gzip_and_zstd_are_read_from_any_offset_without_a_byte_order_mark() {
        let text = "\u{feff}a,b\n1,2\n";
        let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        for bytes in [
            text.into(),
            gzip.finish().unwrap(),
            zstd::encode_all(text.as_bytes(), 1).unwrap(),
        ] {
            let file = file(&bytes);
            assert_eq!(content(file.path(), 0), (3, "a,b\n1,2\n".into()));
            assert_eq!(content(file.path(), 7), (7, "1,2\n".into()));
        }
        assert_eq!(content(file(b"a").path(), 0), (0, "a".into()));
    }

    #[test]
    fn standard_input_is_read_as_a_file_is_and_can_be_opened_again_until_the_last_time() {
        let text = format!("\u{feff}a,b\n{}", "1,2\n".repeat(100_000));
        let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        for bytes in [
            text.clone().into(),
            gzip.finish().unwrap(),
            zstd::encode_all(text.as_bytes(), 1).unwrap(),
        ] {
            let input = Input::standard(Cursor::new(bytes)).unwrap();
            let read = |offset, is_last, bytes| {
                let source = input.open(offset, is_last).unwrap();
                let mut found = vec![];
                source.reader.take(bytes).read_to_end(&mut found).unwrap();
                (source.offset, String::from_utf8(found).unwrap())
            };
            assert_eq!(read(0, false, 4), (3, "a,b\n".into()));
            assert_eq!(read(7, false, 50_000).1.len(), 50_000);
            assert_eq!(
                read(7, true, u64::MAX),
                (7, text[7..].into()),
                "the whole rest, and each byte once"
            );
            let Input::Standard(standard) = &input else {
                panic!()
            };
            assert!(
                standard.borrow().kept.len() < 60_000,
                "the rest is not kept"
            );
        }
        assert!(
            Input::standard(Cursor::new(b"PK\x03\x04")).is_err()
                && Input::standard(io::empty()).is_err()
        );
    }

    #[test]
    fn other_files_are_refused_with_advice() {
        for (bytes, text) in [
            (&b"PK\x03\x04xx"[..], "save the sheet as CSV"),
            (b"\xff\xfea\0", "iconv"),
            (b"BZh91AY", "unpack it"),
            (b"", "empty"),
        ] {
            let error = OpenFile::new(file(bytes).path()).err().unwrap().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_file_is_recognised_if_only_something_was_appended() {
        let fingerprint = |bytes: &[u8]| {
            let file = file(bytes);
            OpenFile::new(file.path()).unwrap().fingerprint(8).unwrap()
        };
        let known = fingerprint(b"one\ntwo\n");
        assert_eq!(fingerprint(b"one\ntwo\nthree\n"), known);
        assert_ne!(fingerprint(b"one\n2wo\nthree\n"), known);
        assert_eq!(fingerprint(b"one\n"), None);
    }

    #[test]
    fn a_file_that_is_replaced_overwritten_or_cut_off_while_it_is_read_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let opened = |text: &str| {
            std::fs::write(&path, text).unwrap();
            OpenFile::new(&path).unwrap()
        };
        let mut file = opened("one\ntwo\n");
        let known = file.fingerprint_of_read(4).unwrap();
        let mut source = file.open(0).unwrap();
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert_eq!(file.fingerprint_of_read(4).unwrap(), known);
        file.fingerprint_of_read(14).unwrap();
        std::fs::write(&path, "one\ntwo\nTHREE\n").unwrap();
        let error = file.fingerprint_of_read(4).unwrap_err();
        assert!(matches!(error, SourceError::Overwritten), "{error}");
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        std::fs::rename(&path, dir.path().join("b")).unwrap();
        assert!(matches!(
            file.fingerprint_of_read(14),
            Err(SourceError::Replaced)
        ));
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert!(matches!(
            file.fingerprint_of_read(14),
            Err(SourceError::Replaced)
        ));
        let mut text = String::new();
        source.reader.read_to_string(&mut text).unwrap();
        assert_eq!(
            text, "one\ntwo\nthree\n",
            "the open file, from its own position"
        );
        let mut file = opened("one\ntwo\n");
        std::fs::write(&path, "one\n").unwrap();
        assert!(matches!(
            file.fingerprint_of_read(8),
            Err(SourceError::Overwritten)
        ));
    }
}
