//! Cursors of `/v1/sensors`: the id after which the next page begins.
//!
//! A page that ends in a long run of ids that its reader may not read begins the next one after one
//! of them. Then the cursor is *sealed*: encrypted with a key of this process, so that it tells
//! nothing, and authenticated, so that it cannot be changed to compare the id with others. It is
//! valid until the process ends, and for this instance only; elsewhere it is refused.

use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::answer::ApiError;

/// A sealed cursor begins with this. An id that does so is sealed too.
const SEALED: &str = "cursor:";
/// The length of a sealed cursor must not tell that of the id.
const PADDED_BYTES: usize = 256;

/// `None`: the system has no random numbers.
static KEY: LazyLock<Option<LessSafeKey>> = LazyLock::new(|| {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).ok()?;
    UnboundKey::new(&CHACHA20_POLY1305, &bytes)
        .ok()
        .map(LessSafeKey::new)
});

/// The cursor after this id, for a reader that may or may not read it.
///
/// # Errors
/// Random numbers are missing.
pub(super) fn after(id: &str, may_read: bool) -> Result<String, ApiError> {
    if may_read && !id.starts_with(SEALED) {
        return Ok(id.to_owned());
    }
    sealed(id).ok_or(ApiError::Internal)
}

/// The id of a cursor.
///
/// # Errors
/// It is sealed, and not by this process.
pub(super) fn parse(cursor: String) -> Result<String, ApiError> {
    match cursor.strip_prefix(SEALED) {
        None => Ok(cursor),
        Some(text) => opened(text).ok_or_else(|| {
            ApiError::parameter(
                "after",
                "this cursor is not valid any more: the service was restarted, or another instance \
                 answers; begin again, or after the last sensor that you have received",
            )
        }),
    }
}

fn sealed(id: &str) -> Option<String> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).ok()?;
    let mut text = id.as_bytes().to_vec();
    // No id has a NUL.
    text.resize(text.len().next_multiple_of(PADDED_BYTES), 0);
    KEY.as_ref()?
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut text)
        .ok()?;
    let bytes = [&nonce[..], &text].concat();
    Some(format!("{SEALED}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes)))
}

fn opened(text: &str) -> Option<String> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
    let (nonce, rest) = bytes.split_first_chunk::<NONCE_LEN>()?;
    let mut rest = rest.to_vec();
    let padded = KEY
        .as_ref()?
        .open_in_place(
            Nonce::assume_unique_for_key(*nonce),
            Aad::empty(),
            &mut rest,
        )
        .ok()?;
    let id = std::str::from_utf8(padded).ok()?;
    Some(id.trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_cursor_tells_nothing_and_leads_back_to_its_id() {
        assert_eq!(after("a-1", true).unwrap(), "a-1");
        assert_eq!(parse("a-1".to_owned()).unwrap(), "a-1");
        let long = "x".repeat(300);
        for (id, may_read) in [
            ("b-1234567890", false),
            ("cursor:1234567890", true),
            (&*long, false),
        ] {
            let cursor = after(id, may_read).unwrap();
            assert!(
                cursor.starts_with(SEALED) && !cursor.contains(id),
                "{cursor}"
            );
            assert_ne!(after(id, may_read).unwrap(), cursor, "the same id twice");
            assert_eq!(parse(cursor).unwrap(), id);
        }
        let of = |id: &str| after(id, false).unwrap().len();
        assert_eq!(of("b"), of("b-123456"));
    }

    #[test]
    fn a_changed_or_foreign_cursor_is_refused() {
        let cursor = after("b-1", false).unwrap();
        for at in [SEALED.len(), cursor.len() / 2, cursor.len() - 1] {
            let mut changed = cursor.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(parse(changed).is_err(), "byte {at}");
        }
        for text in ["cursor:", "cursor:AAAA", "cursor:b-1"] {
            assert!(parse(text.to_owned()).is_err(), "{text}");
        }
    }
}
