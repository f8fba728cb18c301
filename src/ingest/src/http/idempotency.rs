//! The header `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header-07): a string of
//! structured fields (RFC 8941 §3.3.3) that a sender gives to a request and to its repeats.
//!
//! The key belongs to its sender: the id of the token, else the address. Beside it, a fingerprint of
//! path, query, Content-Type and body is remembered, so that a key that is used again for other
//! readings is refused instead of losing them. A repeat is decoded like the first request, with the
//! receipt time of that one, and nothing of it is handed over. So it costs what its decoding costs,
//! and no answer has to be kept.

use std::hash::Hasher;

use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::Xxh3;

use super::body::ReceivedBody;
use super::error::IngestError;
use journal::{KeyRefused, KeyUse, RequestKey, RequestKeys};
use model::Clock;
use net::shares::Owner;
use telemetry::metrics;

const HEADER: &str = "idempotency-key";

/// Bytes of a key. A UUID has 36.
const KEY_BYTES_MAX: usize = 256;

/// Begins the request with its key, if it has one and keys are remembered.
pub(super) fn begin(
    keys: &RequestKeys,
    clock: &dyn Clock,
    parts: &Parts,
    body: &ReceivedBody,
) -> Result<Option<KeyUse>, IngestError> {
    let mut values = parts.headers.get_all(HEADER).iter();
    let value = match (values.next(), values.next()) {
        _ if !keys.is_on() => return Ok(None),
        (None, _) => return Ok(None),
        (Some(value), None) => value,
        (Some(_), Some(_)) => return Err(IngestError::Key("it occurs more than once")),
    };
    let text = parse(value).map_err(IngestError::Key)?;
    let (id, sender) = identify(body.held.owner(), &text);
    let key = RequestKey {
        id,
        sender,
        fingerprint: fingerprint(parts, &body.bytes),
        received_at_ms: clock.now().wall_ms,
    };
    let begun = keys.begin(key).map_err(|refused| match refused {
        KeyRefused::InFlight => IngestError::KeyInFlight,
        KeyRefused::OtherContent => IngestError::KeyReused,
        KeyRefused::Full => IngestError::Concurrency,
    })?;
    if let KeyUse::Repeat(_) = begun {
        metrics::idempotency_repeats_total(1);
    }
    Ok(Some(begun))
}

/// Reads the string. Parameters after it have no meaning and are ignored, as RFC 8941 wants.
fn parse(value: &HeaderValue) -> Result<String, &'static str> {
    const NOT_QUOTED: &str = "it must be a text in double quotes, like \"8e03978e-40d5\"";
    let text = value.to_str().map_err(|_| "it must be ASCII")?.trim();
    let mut chars = text.strip_prefix('"').ok_or(NOT_QUOTED)?.chars();
    let mut key = String::new();
    loop {
        match chars.next().ok_or("its closing quote is missing")? {
            '"' => break,
            '\\' => match chars.next() {
                Some(c @ ('"' | '\\')) => key.push(c),
                _ => return Err("a backslash in it must precede a quote or a backslash"),
            },
            c @ ' '..='~' => key.push(c),
            _ => return Err("it must consist of printable ASCII characters"),
        }
    }
    let rest = chars.as_str().trim_start();
    match key.len() {
        _ if !rest.is_empty() && !rest.starts_with(';') => Err("something follows its text"),
        0 => Err("it is empty"),
        1..=KEY_BYTES_MAX => Ok(key),
        _ => Err("it has more than 256 bytes"),
    }
}

/// Hashes of the sender with its key, and of the sender. The first is cryptographic: with a hash
/// whose collisions can be computed, a sender could make another one's readings look like a repeat.
fn identify(owner: &Owner, key: &str) -> ([u8; 16], u64) {
    let owner = owner.to_string();
    let digest = |texts: &[&str]| -> [u8; 32] {
        let mut hasher = Sha256::new();
        for text in texts {
            hasher.update((text.len() as u64).to_le_bytes());
            hasher.update(text);
        }
        hasher.finalize().into()
    };
    let mut id = [0; 16];
    id.copy_from_slice(&digest(&[&owner, key])[..16]);
    let mut sender = [0; 8];
    sender.copy_from_slice(&digest(&[&owner])[..8]);
    (id, u64::from_le_bytes(sender))
}

fn fingerprint(parts: &Parts, body: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    let media = parts.headers.get(CONTENT_TYPE);
    for part in [
        parts.uri.path().as_bytes(),
        parts.uri.query().unwrap_or_default().as_bytes(),
        media.map_or(&[][..], HeaderValue::as_bytes),
        body,
    ] {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<String, &'static str> {
        parse(&HeaderValue::from_str(text).unwrap())
    }

    #[test]
    fn a_key_is_a_string_of_structured_fields() {
        assert_eq!(parsed(r#""8e03-978e""#).unwrap(), "8e03-978e");
        assert_eq!(parsed(r#" "a b" "#).unwrap(), "a b");
        assert_eq!(parsed(r#""a\"b\\c""#).unwrap(), r#"a"b\c"#);
        assert_eq!(parsed(r#""a";p=1; q"#).unwrap(), "a");
        for (bad, part) in [
            ("8e03", "in double quotes"),
            ("", "in double quotes"),
            ("'a'", "in double quotes"),
            (r#""a"#, "closing quote"),
            (r#""a\n""#, "backslash"),
            (r#""a\"#, "backslash"),
            (r#""a" "b""#, "follows"),
            (r#""a", "b""#, "follows"),
            (r#""""#, "empty"),
            ("\"a\tb\"", "printable"),
        ] {
            let fault = parsed(bad).expect_err(bad);
            assert!(fault.contains(part), "{bad}: {fault}");
        }
        let long = |n| parse(&HeaderValue::from_str(&format!("\"{}\"", "k".repeat(n))).unwrap());
        assert!(long(KEY_BYTES_MAX).is_ok());
        assert!(long(KEY_BYTES_MAX + 1).unwrap_err().contains("256"));
        assert!(parse(&HeaderValue::from_bytes(b"\"\xfc\"").unwrap()).is_err());
    }

    #[test]
    fn equal_keys_of_two_senders_differ_and_so_do_parts_that_are_split_elsewhere() {
        let token = |id: &str| Owner::Token(id.into());
        let address = |ip: &str| Owner::identify(None, ip.parse().unwrap());
        let all = [
            identify(&token("a"), "k"),
            identify(&token("b"), "k"),
            identify(&token("ak"), ""),
            identify(&token("address 10.0.0.1"), "k"),
            identify(&address("10.0.0.1"), "k"),
            identify(&address("2001:db8::1"), "k"),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a.0 != b.0 && a.1 != b.1), "{i}");
        }
        assert_eq!(identify(&token("a"), "k").1, identify(&token("a"), "l").1);
    }
}
