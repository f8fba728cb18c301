//! The common parts of the readers of files.

use std::io;

/// One record of a file: a line, or a row of CSV.
#[derive(Debug)]
pub(super) struct Record {
    /// The line that it starts on, from 1.
    pub(super) line: u64,
    /// The offset and the number of lines after it: where a later run continues. Those before it, if
    /// the file ended and not the line: it may be continued, and is then read again.
    pub(super) end: (u64, u64),
    /// Why it is not sent.
    pub(super) reject: Option<LocalReject>,
}

/// A record that was rejected before it was sent.
#[derive(Debug)]
pub(super) struct LocalReject {
    pub(super) reason: &'static str,
    pub(super) detail: String,
}

/// The records of a file, in order.
pub(super) trait Records {
    /// Appends the next record to `out` as one line, unless it is rejected. `None`: the end of the
    /// file.
    fn next(&mut self, out: &mut Vec<u8>) -> io::Result<Option<Record>>;
}
