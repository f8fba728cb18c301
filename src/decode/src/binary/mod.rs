//! The native format in CBOR (RFC 8949) and MessagePack: one object, an array of objects, or
//! concatenated objects (a CBOR sequence, RFC 8742; MessagePack values are concatenated in the same
//! way).
//!
//! `source` defines heads (type and length of a value, or a small value itself), `cbor` and
//! `msgpack` read them, `item` builds values from heads, `native` reports an object to
//! `super::reading`, and this module walks over a payload. The readers are written here, some
//! hundred lines each. The available libraries return owned trees without a limit (ciborium, rmpv),
//! or a serde interface that hides details needed here (integers beyond 64 bits, tags, bytes, error
//! positions).
//!
//! Both formats declare the length of every value, so a wrong reading is skipped exactly and
//! rejects only itself. Malformed data has no known end: it and the rest of the payload are one
//! reject. Only flattened values recurse, at most `DEPTH_MAX` levels; skipped values may be at most
//! [`item::SKIP_DEPTH_MAX`] levels deep, and no allocation trusts a length that the payload claims.

mod cbor;
mod item;
mod msgpack;
mod native;
mod source;
#[cfg(test)]
mod tests;

pub(super) use self::cbor::Cbor;
pub(super) use self::item::{Item, Items};
pub(super) use self::source::{Head, Malformed};

use self::msgpack::MessagePack;
use self::source::Source;
use super::quota::Quota;
use super::reading::{Part, ReadingDecoder, not_an_object};
use super::rejects::{Fault, Rejects};
use super::token::Token;
use super::{Context, RejectReason};
use model::BatchBuilder;

pub(super) fn decode_cbor(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    Walk::new(Cbor::new(payload), cx, out, rejects).run();
}

/// Decodes a payload in MessagePack.
pub(super) fn decode_msgpack(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    Walk::new(MessagePack::new(payload), cx, out, rejects).run();
}

/// A walk over the elements of a payload.
struct Walk<'a, 'de, S> {
    items: Items<'de, S>,
    decoder: ReadingDecoder<'a, 'de>,
    rejects: &'a mut Rejects,
    quota: Quota,
    /// The next element's index.
    index: usize,
}

impl<'a, 'de, S: Source<'de>> Walk<'a, 'de, S> {
    fn new(
        source: S,
        cx: &'a Context<'a>,
        out: &'a mut BatchBuilder,
        rejects: &'a mut Rejects,
    ) -> Walk<'a, 'de, S> {
        let decoder = ReadingDecoder::new(cx, out);
        let items = Items::new(source);
        Walk {
            items,
            decoder,
            rejects,
            quota: Quota::new(cx.limits),
            index: 0,
        }
    }

    fn run(mut self) {
        if let Err(e) = self.payload() {
            self.decoder.abort();
            let detail = format!(
                "invalid {} {e}; the rest of the payload is skipped",
                S::NAME
            );
            self.rejects.push(self.index, S::REASON, detail);
        }
        self.decoder.report(self.rejects);
        self.quota.close("readings", self.rejects);
    }

    fn payload(&mut self) -> Result<(), Malformed> {
        if self.items.is_at_end() {
            self.rejects
                .push(0, RejectReason::EmptyPayload, "the payload is empty");
            return Ok(());
        }
        match self.items.head()? {
            Head::Array(len) => {
                let mut left = len;
                while self.items.more(&mut left)? {
                    self.element()?;
                }
                self.trailing()
            }
            Head::Map(len) => {
                self.object(len)?;
                self.sequence()
            }
            other => {
                let what = Token::from(self.items.finish(other)?).kind();
                self.reject(not_an_object(Part::Reading, what));
                Ok(())
            }
        }
    }

    /// Reads the values after the first object. Any other values between two objects are one
    /// reject.
    fn sequence(&mut self) -> Result<(), Malformed> {
        let mut other_from = None;
        while !self.items.is_at_end() {
            let at = self.items.at();
            let head = self.items.head()?;
            if let Head::Map(len) = head {
                if let Some(from) = other_from.take() {
                    self.reject_other(from, at);
                }
                self.object(len)?;
            } else {
                self.items.finish(head)?;
                other_from.get_or_insert(at);
            }
        }
        if let Some(from) = other_from {
            self.reject_other(from, self.items.at());
        }
        Ok(())
    }

    fn trailing(&mut self) -> Result<(), Malformed> {
        let from = self.items.at();
        while !self.items.is_at_end() {
            let head = self.items.head()?;
            self.items.finish(head)?;
        }
        if self.items.at() > from {
            self.reject_other(from, self.items.at());
        }
        Ok(())
    }

    fn reject_other(&mut self, from: usize, end: usize) {
        let detail = format!("{} bytes of other data at byte {from}", end - from);
        self.reject(Fault::new(RejectReason::TrailingData, detail));
    }

    /// Reads one element of an array.
    fn element(&mut self) -> Result<(), Malformed> {
        match self.items.head()? {
            Head::Map(len) => self.object(len),
            other => {
                let what = Token::from(self.items.finish(other)?).kind();
                self.reject(not_an_object(Part::Reading, what));
                Ok(())
            }
        }
    }

    fn object(&mut self, len: Option<u64>) -> Result<(), Malformed> {
        if self.quota.refuses(self.index) {
            self.index += 1;
            return self.items.finish(Head::Map(len)).map(drop);
        }
        native::read_reading(&mut self.items, len, &mut self.decoder)?;
        match self.decoder.finish(true) {
            Ok(()) => {
                self.quota.took();
                self.index += 1;
            }
            Err(fault) => self.reject(fault),
        }
        Ok(())
    }

    fn reject(&mut self, fault: Fault) {
        self.rejects.fault(self.index, fault);
        self.index += 1;
    }
}
