//! Writes BSON directly into one buffer: no document tree, no allocation per element. Implements
//! only what the hot path needs.

use mongodb::bson::RawDocumentBuf;

use model::ValueRef;

const DOUBLE: u8 = 0x01;
const STRING: u8 = 0x02;
const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;
const BOOL: u8 = 0x08;
const DATE: u8 = 0x09;
const INT32: u8 = 0x10;
const INT64: u8 = 0x12;

/// A BSON document under construction. Documents and arrays are opened and closed in order. Names
/// must not contain NUL (the decoders ensure this).
#[derive(Debug, Default)]
pub(super) struct Writer {
    buf: Vec<u8>,
}

/// An open document or array: the offset of its length.
#[must_use]
pub(super) struct Open(usize);

impl Writer {
    /// Creates a writer with capacity for `bytes` and opens the outermost document.
    pub(super) fn new(bytes: usize) -> (Writer, Open) {
        let mut writer = Writer {
            buf: Vec::with_capacity(bytes),
        };
        let open = writer.open();
        (writer, open)
    }

    /// Bytes written so far.
    pub(super) fn len(&self) -> usize {
        self.buf.len()
    }

    fn open(&mut self) -> Open {
        let at = self.buf.len();
        self.buf.extend_from_slice(&[0; 4]);
        Open(at)
    }

    /// Closes a document or array.
    pub(super) fn close(&mut self, open: Open) {
        self.buf.push(0);
        let len = (self.buf.len() - open.0) as i32;
        self.buf[open.0..open.0 + 4].copy_from_slice(&len.to_le_bytes());
    }

    fn name(&mut self, kind: u8, name: &str) {
        self.buf.push(kind);
        self.buf.extend_from_slice(name.as_bytes());
        self.buf.push(0);
    }

    /// Starts an element with the name `a.b.c`.
    fn path(&mut self, kind: u8, path: [&str; 3]) {
        self.buf.push(kind);
        for (i, part) in path.into_iter().enumerate() {
            if i > 0 {
                self.buf.push(b'.');
            }
            self.buf.extend_from_slice(part.as_bytes());
        }
        self.buf.push(0);
    }

    /// Opens a sub-document.
    pub(super) fn document(&mut self, name: &str) -> Open {
        self.name(DOCUMENT, name);
        self.open()
    }

    pub(super) fn array(&mut self, name: &str) -> Open {
        self.name(ARRAY, name);
        self.open()
    }

    /// Opens a sub-document that is element `index` of an array.
    pub(super) fn element(&mut self, index: usize) -> Open {
        self.buf.push(DOCUMENT);
        let mut digits = [0u8; 20];
        let mut n = index;
        let mut at = 20;
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                break;
            }
        }
        self.buf.extend_from_slice(&digits[at..]);
        self.buf.push(0);
        self.open()
    }

    pub(super) fn str(&mut self, name: &str, value: &str) {
        self.name(STRING, name);
        self.str_payload(value);
    }

    fn str_payload(&mut self, value: &str) {
        self.buf
            .extend_from_slice(&(value.len() as i32 + 1).to_le_bytes());
        self.buf.extend_from_slice(value.as_bytes());
        self.buf.push(0);
    }

    pub(super) fn bool(&mut self, name: &str, value: bool) {
        self.name(BOOL, name);
        self.buf.push(u8::from(value));
    }

    pub(super) fn i32(&mut self, name: &str, value: i32) {
        self.name(INT32, name);
        self.buf.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn date(&mut self, name: &str, ms: i64) {
        self.name(DATE, name);
        self.buf.extend_from_slice(&ms.to_le_bytes());
    }

    pub(super) fn i32_at(&mut self, path: [&str; 3], value: i32) {
        self.path(INT32, path);
        self.buf.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn value(&mut self, name: &str, value: ValueRef<'_>) {
        match value {
            ValueRef::Double(v) => {
                self.name(DOUBLE, name);
                self.buf.extend_from_slice(&v.to_le_bytes());
            }
            ValueRef::Int(v) => {
                self.name(INT64, name);
                self.buf.extend_from_slice(&v.to_le_bytes());
            }
            ValueRef::Bool(v) => self.bool(name, v),
            ValueRef::Str(v) => self.str(name, v),
        }
    }

    pub(super) fn num(&mut self, name: &str, value: model::Number) {
        self.value(name, as_value(value));
    }

    pub(super) fn num_at(&mut self, path: [&str; 3], value: model::Number) {
        match value {
            model::Number::Double(v) => {
                self.path(DOUBLE, path);
                self.buf.extend_from_slice(&v.to_le_bytes());
            }
            model::Number::Int(v) => {
                self.path(INT64, path);
                self.buf.extend_from_slice(&v.to_le_bytes());
            }
        }
    }

    /// Returns the finished document; the outermost document must be closed.
    ///
    /// # Errors
    /// The buffer is not a BSON document: a bug in the use of this module.
    pub(super) fn finish(self) -> mongodb::bson::error::Result<RawDocumentBuf> {
        RawDocumentBuf::from_bytes(self.buf)
    }
}

fn as_value(num: model::Number) -> ValueRef<'static> {
    match num {
        model::Number::Int(v) => ValueRef::Int(v),
        model::Number::Double(v) => ValueRef::Double(v),
    }
}
