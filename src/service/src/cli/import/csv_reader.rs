//! Reads CSV, and notices a quote that is not closed: it takes the rest of the file into one cell.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::lines::LINE_BYTES_MAX;
use super::source::Source;

/// Fails if one record takes more bytes than a line may have, and adds a line's end to the end of
/// the file. The parser reads that only for a last line without an end, and reads beyond it only
/// within quotes.
pub(super) struct Limited {
    reader: Box<dyn Read>,
    taken: Arc<AtomicU64>,
    end: End,
}

/// How far the parser has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    NotRead,
    /// The added line's end was read.
    Added,
    /// More was requested after it.
    Beyond,
}

impl Limited {
    /// Whether the record that was read last is the last of the file, and its line has no end.
    pub(super) fn lacks_end(&self) -> bool {
        self.end != End::NotRead
    }

    /// The same, and the file ends within its quotes. Only valid if there was a record.
    pub(super) fn is_within_quotes(&self) -> bool {
        self.end == End::Beyond
    }
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken.load(Ordering::Relaxed) > LINE_BYTES_MAX as u64 {
            let text = format!(
                "a row of more than {LINE_BYTES_MAX} bytes starts here; is a quote not closed?"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        if self.end == End::NotRead {
            let n = self.reader.read(buffer)?;
            self.taken.fetch_add(n as u64, Ordering::Relaxed);
            if n > 0 || buffer.is_empty() {
                return Ok(n);
            }
            self.end = End::Added;
            buffer[0] = b'\n';
            return Ok(1);
        }
        self.end = End::Beyond;
        Ok(0)
    }
}

/// A reader of the records, and the bytes that it has read; the caller sets those to 0 before each
/// record.
pub(super) fn reader(source: Source, delimiter: u8) -> (csv::Reader<Limited>, Arc<AtomicU64>) {
    let taken = Arc::new(AtomicU64::new(0));
    let limited = Limited {
        reader: source.reader,
        taken: taken.clone(),
        end: End::NotRead,
    };
    let reader = csv::ReaderBuilder::new()
        .delimiter(delimiter)
        .has_headers(false)
        .flexible(true)
        // A carriage return before it is cut from the last cell; as a part of the line's end it
        // would be counted late.
        .terminator(csv::Terminator::Any(b'\n'))
        .buffer_capacity(64 << 10)
        .from_reader(limited);
    (reader, taken)
}

/// `line`: the one on which the record starts.
pub(super) fn not_closed(line: u64) -> io::Error {
    let text = format!(
        "line {line}: the file ends within quotes of the row that starts here; is a quote not \
         closed?"
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}

pub(super) fn io_error(error: csv::Error) -> io::Error {
    let at = error.position().map(|at| at.line());
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("line {}: {other:?}", at.unwrap_or(0))),
    }
}
