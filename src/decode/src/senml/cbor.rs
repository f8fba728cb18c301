//! A pack in CBOR (RFC 8428 §6): an array of maps whose keys are numbers, or texts as in JSON.

use super::pack::Pack;
use super::record::Record;
use crate::binary::{Cbor, Head, Item, Items, Malformed};
use crate::rejects::{Fault, Rejects};
use crate::{Context, RejectReason};
use model::BatchBuilder;

pub(crate) fn decode(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    if payload.is_empty() {
        return rejects.push(0, RejectReason::EmptyPayload, "the payload is empty");
    }
    let mut walk = Walk {
        items: Items::new(Cbor::new(payload)),
        pack: Pack::new(cx, out, rejects),
    };
    if let Err(e) = walk.payload() {
        let detail = format!("invalid CBOR {e}; the rest of the payload is skipped");
        walk.pack
            .reject(Fault::new(RejectReason::InvalidCbor, detail));
    }
    walk.pack.finish();
}

struct Walk<'a, 'de> {
    items: Items<'de, Cbor<'de>>,
    pack: Pack<'a, 'de>,
}

impl Walk<'_, '_> {
    fn payload(&mut self) -> Result<(), Malformed> {
        let Head::Array(len) = self.items.head()? else {
            self.pack.reject(Fault::new(
                RejectReason::InvalidSenml,
                "a pack must be an array of records",
            ));
            return Ok(());
        };
        let mut record = Record::default();
        let mut left = len;
        while self.items.more(&mut left)? {
            record.clear();
            match self.items.head()? {
                Head::Map(len) => {
                    let mut left = len;
                    while self.items.more(&mut left)? {
                        match (self.items.item()?, self.items.item()?) {
                            (Item::Int(label), item) => record.put_number(label, item),
                            (Item::Text(label), item) => record.put(&label, item),
                            (other, _) => {
                                let detail = format!(
                                    "a label must be a number or a text, not {}",
                                    other.name()
                                );
                                record.fail(Fault::new(RejectReason::WrongType, detail));
                            }
                        }
                    }
                }
                other => {
                    let what = self.items.finish(other)?.name();
                    let detail = format!("a record must be an object (a map), not {what}");
                    record.fail(Fault::new(RejectReason::NotAnObject, detail));
                }
            }
            self.pack.take(&mut record);
        }
        if !self.items.is_at_end() {
            let detail = format!("unexpected data at byte {}", self.items.at());
            self.pack
                .reject(Fault::new(RejectReason::TrailingData, detail));
        }
        Ok(())
    }
}
