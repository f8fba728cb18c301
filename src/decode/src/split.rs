//! Finds the end of a broken element, so that the following elements can be read. It parses
//! structure only: strings, brackets, commas.
//!
//! A guessed boundary (after an element that was cut and never closed) is marked. The reading after
//! it must name its own sensor: it could be a fragment of a larger reading, which must not be
//! stored under the topic's sensor.

/// Deepest nesting within an element; the same limit as serde_json's.
pub(super) const DEPTH_MAX: usize = 127;

/// The byte order mark of UTF-8.
pub(super) const BOM: &[u8] = b"\xEF\xBB\xBF";

/// The context of the element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Within {
    /// In an array: elements end at `,` or at the array's `]`.
    Array,
    /// In a stream of concatenated objects.
    Stream,
    /// The bytes are one element.
    Whole,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// The offset after its last byte.
    pub(super) end: usize,
    /// The depth of its nested brackets.
    pub(super) depth: usize,
    /// Whether it was not closed; then `end` is where the next one seems to start.
    pub(super) guessed: bool,
}

/// The open brackets. The kinds of the 128 outermost ones are stored; deeper elements are rejected
/// anyway.
#[derive(Default)]
struct Open {
    depth: usize,
    /// Bit i: level i is an array.
    arrays: u128,
}

impl Open {
    fn push(&mut self, array: bool) {
        if self.depth < 128 {
            let bit = 1u128 << self.depth;
            self.arrays = if array {
                self.arrays | bit
            } else {
                self.arrays & !bit
            };
        }
        self.depth += 1;
    }

    /// Closes the innermost bracket of this kind and all inside it; false if none is open.
    fn pop(&mut self, array: bool) -> bool {
        if self.depth > 128 {
            self.depth -= 1;
            return true;
        }
        let below = if self.depth == 128 {
            u128::MAX
        } else {
            (1u128 << self.depth) - 1
        };
        let same = (if array { self.arrays } else { !self.arrays }) & below;
        if same == 0 {
            return false;
        }
        self.depth = 127 - same.leading_zeros() as usize;
        true
    }

    fn in_object(&self) -> bool {
        (1..=128).contains(&self.depth) && self.arrays & (1u128 << (self.depth - 1)) == 0
    }
}

/// Finds the end of the element that starts at the first byte. One pass, which never reads past
/// that end.
pub(super) fn extent(bytes: &[u8], within: Within) -> Extent {
    let mut open = Open::default();
    let mut at = 0;
    let mut depth = 0;
    // The last byte that is not white space, and whether a line ended since.
    let mut before = b' ';
    let mut new_line = false;
    while let Some(&b) = bytes.get(at) {
        match b {
            b'"' => {
                at = string_end(bytes, at + 1);
                (before, new_line) = (b'"', false);
                continue;
            }
            b'{' | b'[' => {
                // In an object a bracket can only follow a colon. So the element before it was cut,
                // and the next one starts here.
                let separated = new_line || (within == Within::Array && before == b',');
                if b == b'{' && open.in_object() && before != b':' && separated {
                    return Extent {
                        end: at,
                        depth,
                        guessed: true,
                    };
                }
                open.push(b == b'[');
                depth = depth.max(open.depth);
            }
            b'}' | b']' => {
                let closed = open.pop(b == b']');
                if !closed && b == b']' && within == Within::Array {
                    return Extent {
                        end: at,
                        depth,
                        guessed: open.depth > 0,
                    };
                }
                if closed && open.depth == 0 && within == Within::Stream {
                    return Extent {
                        end: at + 1,
                        depth,
                        guessed: false,
                    };
                }
            }
            b',' if open.depth == 0 && within == Within::Array => {
                return Extent {
                    end: at,
                    depth,
                    guessed: false,
                };
            }
            b'\n' => new_line = within != Within::Whole,
            _ => {}
        }
        if !b.is_ascii_whitespace() {
            (before, new_line) = (b, false);
        }
        at += 1;
    }
    Extent {
        end: bytes.len(),
        depth,
        guessed: open.depth > 0,
    }
}

/// The offset after the closing quote. The end of a line also closes the string: JSON strings
/// contain no line ends, so the quote is missing.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(&b) = bytes.get(at) {
        match b {
            b'"' => return at + 1,
            b'\n' => return at,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Handles the other kind of cut, inside a string. Then the string's closing quote is really the
/// next element's first quote (`{"id":"a` and `{"id":"b"}` give `{"id":"a,{"id":"b"}`), and the
/// parser fails right after `,{"`. In this case returns the offset of that `{`.
pub(super) fn cut_within_string(bytes: &[u8], error_at: usize, within: Within) -> Option<usize> {
    let head = bytes.get(..error_at)?.strip_suffix(b"\"")?;
    let head = head.trim_ascii_end().strip_suffix(b"{")?;
    let before = head.trim_ascii_end();
    let separated = before.last() == Some(&b',') || head[before.len()..].contains(&b'\n');
    (!head.is_empty() && (separated || within == Within::Stream)).then_some(head.len())
}

/// The offset of the first byte from `at` on that is not white space.
pub(super) fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// The same between readings, where also a byte order mark is skipped: files that begin with one
/// are sometimes joined.
pub(super) fn skip_between(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = skip_space(bytes, at);
        if !bytes.get(at..).is_some_and(|rest| rest.starts_with(BOM)) {
            return at;
        }
        at += BOM.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_element_in_an_array() {
        for (bytes, end, guessed) in [
            (r#"{"a":[1,2],"b":"],}"},x"#, 21, false),
            (r#"NaN]"#, 3, false),
            (r#"{"a":NaN}]"#, 9, false),
            (r#"{"a":1,{"b":2}]"#, 7, true),
            ("{\"a\":\"x\n{\"b\":2}]", 8, true),
            (r#"{"a":{"b":1,{"c":2}]"#, 12, true),
            (r#"{"a":1]"#, 6, true),
            (r#"{"a":"\",{"},"#, 12, false),
            (r#"{"a":1"#, 6, true),
            (r#"[1}],"#, 4, false),
            ("", 0, false),
        ] {
            let extent = extent(bytes.as_bytes(), Within::Array);
            assert_eq!((extent.end, extent.guessed), (end, guessed), "{bytes}");
        }
    }

    #[test]
    fn the_end_of_an_object_in_a_stream() {
        for (bytes, end, guessed) in [
            (r#"{"a":1}{"b":2}"#, 7, false),
            ("{\"a\":1\n{\"b\":2}", 7, true),
            ("{\"a\":\n{\"b\":2}\n}{", 15, false),
            (r#"{"a":1,{"b":2}}"#, 15, false),
            (r#"{"a":]}"#, 7, false),
        ] {
            let extent = extent(bytes.as_bytes(), Within::Stream);
            assert_eq!((extent.end, extent.guessed), (end, guessed), "{bytes}");
        }
    }

    #[test]
    fn depth_is_counted_whatever_it_is() {
        for n in [1, 127, 128, 129, 100_000] {
            let bytes = "[".repeat(n);
            assert_eq!(extent(bytes.as_bytes(), Within::Array).depth, n);
            let bytes = "[".repeat(n) + &"]".repeat(n) + ",1";
            assert_eq!(
                extent(bytes.as_bytes(), Within::Array),
                Extent {
                    end: 2 * n,
                    depth: n,
                    guessed: false
                }
            );
            let bytes = r#"{"":"#.repeat(n) + &"}".repeat(n);
            assert_eq!(extent(bytes.as_bytes(), Within::Stream).end, bytes.len());
        }
    }

    #[test]
    fn a_cut_within_a_string_is_recognized_by_the_error() {
        let bytes = br#"{"id":"a,{"id":"b"}"#;
        assert_eq!(cut_within_string(bytes, 11, Within::Array), Some(9));
        assert_eq!(cut_within_string(bytes, 7, Within::Array), None);
        let bytes = br#"{"id":"a {"id":"b"}"#;
        assert_eq!(cut_within_string(bytes, 11, Within::Array), None);
        assert_eq!(cut_within_string(bytes, 11, Within::Stream), Some(9));
        assert_eq!(cut_within_string(b"{\"", 2, Within::Stream), None);
    }
}
