//! Writes BSON into one buffer, so that a baseline's client uses as little CPU time as possible.

use mongodb::bson::RawDocumentBuf;

use crate::Failure;

/// A document under construction.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    open: Vec<usize>,
}

impl Writer {
    /// An empty document.
    pub(crate) fn new() -> Writer {
        let mut writer = Writer::default();
        writer.begin();
        writer
    }

    fn begin(&mut self) {
        self.open.push(self.bytes.len());
        self.bytes.extend_from_slice(&[0; 4]);
    }

    fn name(&mut self, kind: u8, name: &str) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
    }

    pub(crate) fn str(&mut self, name: &str, value: &str) {
        self.name(0x02, name);
        self.bytes
            .extend_from_slice(&(value.len() as i32 + 1).to_le_bytes());
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
    }

    pub(crate) fn double(&mut self, name: &str, value: f64) {
        self.name(0x01, name);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn i32(&mut self, name: &str, value: i32) {
        self.name(0x10, name);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn i64(&mut self, name: &str, value: i64) {
        self.name(0x12, name);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bool(&mut self, name: &str, value: bool) {
        self.name(0x08, name);
        self.bytes.push(u8::from(value));
    }

    /// Returns the offset of the value, so that it can be replaced.
    pub(crate) fn date(&mut self, name: &str, ms: i64) -> usize {
        self.name(0x09, name);
        self.bytes.extend_from_slice(&ms.to_le_bytes());
        self.bytes.len() - 8
    }

    /// Starts a nested document, which [`Writer::end`] ends.
    pub(crate) fn document(&mut self, name: &str) {
        self.name(0x03, name);
        self.begin();
    }

    /// Starts an array, which [`Writer::end`] ends. The caller names its elements by their indexes.
    pub(crate) fn array(&mut self, name: &str) {
        self.name(0x04, name);
        self.begin();
    }

    /// Adds an encoded document.
    pub(crate) fn whole(&mut self, name: &str, document: &[u8]) {
        self.name(0x03, name);
        self.bytes.extend_from_slice(document);
    }

    pub(crate) fn end(&mut self) {
        self.bytes.push(0);
        if let Some(at) = self.open.pop() {
            let len = (self.bytes.len() - at) as i32;
            self.bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Ends all open documents and returns the bytes.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        while !self.open.is_empty() {
            self.end();
        }
        self.bytes
    }

    /// The document in the type of the driver.
    pub(crate) fn command(self) -> Result<RawDocumentBuf, Failure> {
        Ok(RawDocumentBuf::from_bytes(self.finish())?)
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn the_driver_reads_what_was_written() {
        let mut w = Writer::new();
        w.str("a", "x");
        w.array("list");
        w.document("0");
        w.double("d", 1.5);
        w.i32("i", -1);
        w.end();
        w.whole("1", &Writer::new().finish());
        w.end();
        w.i64("l", 1 << 40);
        w.bool("b", true);
        let read = mongodb::bson::Document::try_from(&*w.command().unwrap()).unwrap();
        let expected =
            doc! { "a": "x", "list": [{ "d": 1.5, "i": -1 }, {}], "l": 1i64 << 40, "b": true };
        assert_eq!(read, expected);
    }
}
