//! JSON documents in texts: some brokers and clouds send the message of a device as a text, plain
//! or in base64, inside their own JSON. A place, and `each`, continue inside such a text.
//!
//! A text is parsed when a place first leads into it, at most once for each scope: the texts of the
//! message, and of each record below a `*` in `each`. So all places of a rule share one document,
//! and memory holds those of one record at a time. Nothing else in a message is parsed, and only
//! the rule decides how deeply documents are nested in each other.
//!
//! Limits: a document has at most 127 levels, and the documents in memory have together at most
//! [`MEMBERS_MAX`] members. A text beyond the first limit is not a document, beyond the second the
//! record is rejected. So it is if a key occurs twice in a document that it uses.

use std::cell::{Cell, OnceCell, RefCell};

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;

use super::document::{self, MEMBERS_MAX, Message};
use crate::rejects::Fault;
use crate::unpadded;

const ANY_PADDING: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, ANY_PADDING);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, ANY_PADDING);

/// The bytes of a text in base64, in either alphabet (RFC 4648 §4 and §5), padded or not.
pub(super) fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let engine = if text.iter().any(|b| matches!(b, b'-' | b'_')) {
        &URL_SAFE
    } else {
        &STANDARD
    };
    engine.decode(text).ok()
}

/// What all scopes of one message share.
#[derive(Debug)]
pub(super) struct Documents {
    /// Members that further documents may have.
    left: Cell<usize>,
    /// See [`Scope::take_fault`].
    fault: RefCell<Option<Fault>>,
}

impl Documents {
    pub(super) fn new() -> Documents {
        Documents {
            left: Cell::new(MEMBERS_MAX),
            fault: RefCell::new(None),
        }
    }

    /// The document that a text holds.
    fn parse(&self, text: &str) -> Result<Option<Value>, Fault> {
        let bytes = unpadded(text.as_bytes()).trim_ascii();
        let decoded;
        let document = match bytes {
            [b'{' | b'[', ..] => bytes,
            // The first bits of `{` and `[`.
            [
                b'e' | b'W',
                b'w'..=b'z' | b'0'..=b'9' | b'+' | b'/' | b'-' | b'_',
                ..,
            ] => {
                decoded = base64(bytes).unwrap_or_default();
                // `e30` and `W10` are an empty object and array, but more likely they are names.
                if decoded.len() <= 2 {
                    return Ok(None);
                }
                unpadded(&decoded)
            }
            _ => return Ok(None),
        };
        let Some((Message { value, duplicates }, left)) =
            document::embedded(document, self.left.get())?
        else {
            return Ok(None);
        };
        self.left.set(left);
        duplicates.fault().map_or(Ok(Some(value)), Err)
    }
}

/// The documents in the texts of one scope: a list, since a rule has few places.
#[derive(Debug)]
pub(super) struct Scope<'d> {
    documents: &'d Documents,
    first: OnceCell<Box<Link>>,
    /// [`Documents::left`] without the documents of this scope.
    left: usize,
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        self.documents.left.set(self.left);
    }
}

#[derive(Debug)]
struct Link {
    /// The text, which outlives the scope: it is in the message, in a document of the scope around,
    /// or in one of this list.
    text: *const str,
    found: Result<Option<Value>, Fault>,
    next: OnceCell<Box<Link>>,
}

impl<'d> Scope<'d> {
    pub(super) fn new(documents: &'d Documents) -> Scope<'d> {
        Scope {
            documents,
            first: OnceCell::new(),
            left: documents.left.get(),
        }
    }

    /// A scope for a part of this one.
    pub(super) fn inner(&self) -> Scope<'d> {
        Scope::new(self.documents)
    }

    /// What is wrong with a document that was used since the last call.
    pub(super) fn take_fault(&self) -> Option<Fault> {
        self.documents.fault.take()
    }

    /// The document in a value that is a text, if there is one; any other value as it is.
    pub(super) fn open<'v>(&'v self, value: &'v Value) -> Option<&'v Value> {
        let Value::String(text) = value else {
            return Some(value);
        };
        // Most texts are numbers and words.
        let first = text.as_bytes().first()?;
        if first.is_ascii_alphanumeric() && !matches!(first, b'e' | b'W') {
            return None;
        }
        let mut place = &self.first;
        let link = loop {
            let link = place.get_or_init(|| {
                Box::new(Link {
                    text: &**text,
                    found: self.documents.parse(text),
                    next: OnceCell::new(),
                })
            });
            if std::ptr::eq(link.text, &**text) {
                break link;
            }
            place = &link.next;
        };
        match &link.found {
            Ok(found) => found.as_ref(),
            Err(fault) => {
                self.documents.fault.replace(Some(fault.clone()));
                None
            }
        }
    }
}
