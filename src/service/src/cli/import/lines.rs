//! Reads a file line by line, within a limit.

use std::io::{self, BufRead, BufReader, Read};

use super::source::Source;
use super::{LocalReject, Record, Records};
use decode::unpadded;

/// Longest line. A file with longer ones is not a file of readings, or lacks line ends.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;

/// The lines of a file. Empty ones are skipped, `\r\n` ends a line as `\n` does.
pub(super) struct Lines {
    reader: BufReader<Box<dyn Read>>,
    offset: u64,
    line: u64,
    /// The line that was read last has an end.
    ended: bool,
    /// Lines that begin with it are skipped.
    comment: Option<u8>,
    buffer: Vec<u8>,
}

impl Lines {
    /// `line`: the lines before the source's offset.
    pub(super) fn new(source: Source, line: u64, comment: Option<u8>) -> Lines {
        let reader = BufReader::with_capacity(256 << 10, source.reader);
        Lines {
            reader,
            offset: source.offset,
            line,
            ended: false,
            comment,
            buffer: vec![],
        }
    }

    /// Skips whole lines, regardless of their content.
    pub(super) fn skip(&mut self, lines: u64) -> io::Result<()> {
        for _ in 0..lines {
            self.read_line()?;
        }
        Ok(())
    }

    pub(super) fn position(&self) -> (u64, u64) {
        (self.offset, self.line)
    }

    /// Reads the next line into the buffer; returns whether it was within the limit, `None` at the
    /// end of the file.
    fn read_line(&mut self) -> io::Result<Option<bool>> {
        self.buffer.clear();
        self.ended = false;
        let mut bytes = 0;
        loop {
            let available = self.reader.fill_buf()?;
            if available.is_empty() {
                break;
            }
            let end = memchr::memchr(b'\n', available);
            let taken = end.map_or(available.len(), |at| at + 1);
            if self.buffer.len() <= LINE_BYTES_MAX {
                self.buffer.extend_from_slice(&available[..taken]);
            }
            bytes += taken;
            self.reader.consume(taken);
            if end.is_some() {
                self.ended = true;
                break;
            }
        }
        self.offset += bytes as u64;
        if bytes == 0 {
            return Ok(None);
        }
        self.line += 1;
        Ok(Some(bytes <= LINE_BYTES_MAX))
    }
}

impl Records for Lines {
    fn next(&mut self, out: &mut Vec<u8>) -> io::Result<Option<Record>> {
        loop {
            let before = self.position();
            let Some(fits) = self.read_line()? else {
                return Ok(None);
            };
            // Joined files have byte order marks in their midst, and one that a crash has left has
            // NULs at its end.
            let text = unpadded(&self.buffer).trim_ascii();
            if fits && (text.is_empty() || self.comment.is_some_and(|c| text[0] == c)) {
                continue;
            }
            let reject = (!fits).then(|| {
                let detail = format!(
                    "the line is longer than {LINE_BYTES_MAX} bytes; does the file have line ends?"
                );
                LocalReject {
                    reason: "line_too_long",
                    detail,
                }
            });
            if reject.is_none() {
                out.extend_from_slice(text);
                out.push(b'\n');
            }
            return Ok(Some(Record {
                line: self.line,
                end: if self.ended { self.position() } else { before },
                reject,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn lines(text: &[u8]) -> Lines {
        Lines::new(
            Source {
                reader: Box::new(Cursor::new(text.to_vec())),
                offset: 0,
            },
            0,
            Some(b'#'),
        )
    }

    #[test]
    fn lines_end_with_or_without_a_carriage_return_and_know_where_they_are() {
        let mut lines = lines(b"a 1\r\n\n# no\n  b 2\nc\0\0\n\0\0\0");
        let mut out = vec![];
        let mut found = vec![];
        while let Some(Record {
            line,
            end,
            reject: None,
        }) = lines.next(&mut out).unwrap()
        {
            found.push((line, end));
        }
        assert_eq!(out, b"a 1\nb 2\nc\n");
        assert_eq!(found, [(1, (5, 1)), (4, (17, 4)), (5, (21, 5))]);
    }

    #[test]
    fn a_byte_order_mark_at_the_begin_of_a_later_line_is_cut() {
        let mut lines = lines(b"a\n\xef\xbb\xbfb\n\xef\xbb\xbf\n\xef\xbb\xbf# no\nc\n");
        let mut out = vec![];
        while lines.next(&mut out).unwrap().is_some() {}
        assert_eq!(out, b"a\nb\nc\n");
    }

    #[test]
    fn a_long_last_line_without_an_end_is_read_again_as_a_whole() {
        let mut text = b"a\n".to_vec();
        text.resize(2 + LINE_BYTES_MAX + 1, b'x');
        let mut lines = lines(&text);
        let mut out = vec![];
        lines.next(&mut out).unwrap().unwrap();
        let record = lines.next(&mut out).unwrap().unwrap();
        assert_eq!((record.line, record.end), (2, (2, 1)));
        assert_eq!(record.reject.unwrap().reason, "line_too_long");
        assert!(lines.next(&mut out).unwrap().is_none());
    }

    #[test]
    fn a_line_of_100_mb_is_rejected_in_little_memory_and_the_next_is_read() {
        let mut text = vec![b'x'; 100 << 20];
        text.extend_from_slice(b"\na\n");
        let mut lines = lines(&text);
        let mut out = vec![];
        let record = lines.next(&mut out).unwrap().unwrap();
        assert_eq!(
            (record.line, record.reject.unwrap().reason),
            (1, "line_too_long")
        );
        assert!(
            lines.buffer.capacity() < 8 << 20,
            "{}",
            lines.buffer.capacity()
        );
        assert_eq!(
            (lines.next(&mut out).unwrap().unwrap().line, out.as_slice()),
            (2, &b"a\n"[..])
        );
    }
}
