//! What must hold for whatever a proxy, or who pretends to be one, sends. Shared by the fuzzer and
//! by `tests/pure/fuzz_corpus.rs`.
//!
//! An input is a byte that chooses the PROXY header (0) or the header of a request, and the bytes.

use std::net::IpAddr;

use net::proxy::forwarded;
use net::proxy::header::{Beginning, FIXED_BYTES, Fixed, HeaderFault, REST_BYTES_MAX, beginning};

/// The name of this in `HOURBUCKET_FUZZ` and of its corpus.
pub(crate) const NAME: &str = "proxy-header";

/// Looks at what comes out of an input.
///
/// # Panics
/// Something does not hold.
pub(crate) fn check(input: &[u8]) {
    match input.split_first() {
        Some((0, bytes)) => proxy_header(bytes),
        Some((_, bytes)) => request_header(bytes),
        None => {}
    }
}

fn proxy_header(bytes: &[u8]) {
    // What has been told apart stays told apart.
    let mut before = Beginning::Unclear;
    for n in 1..=bytes.len().min(FIXED_BYTES) {
        let now = beginning(&bytes[..n]);
        let is_step = now == before
            || before == Beginning::Unclear
            || (before == Beginning::Version2 && now == Beginning::Other);
        assert!(is_step, "{before:?} {now:?} at {n}");
        before = now;
    }
    let Some((fixed, rest)) = bytes.split_first_chunk() else {
        return;
    };
    let Ok(fixed) = Fixed::parse(fixed) else {
        return;
    };
    assert!(before == Beginning::Version2 && fixed.rest_bytes() <= REST_BYTES_MAX);
    let rest = &rest[..rest.len().min(fixed.rest_bytes())];
    for n in 0..=rest.len() {
        match fixed.client(&rest[..n]) {
            Ok(client) => assert_eq!(
                fixed.client(rest),
                Ok(client),
                "what follows the addresses changes nothing"
            ),
            Err(fault) => assert_eq!(fault, HeaderFault::TooShort),
        }
    }
}

/// A client cannot name another address than the one that the trusted proxy appends, in a header of
/// its own or in the same.
fn request_header(made_up: &[u8]) {
    let is_trusted = |ip: IpAddr| matches!(ip, IpAddr::V4(ip) if ip.octets()[0] == 10);
    let own: IpAddr = "192.0.2.1".parse().unwrap();
    for appended in [&b"192.0.2.1"[..], b"192.0.2.1:80"] {
        let client = |values: &[&[u8]]| forwarded::client(values.iter().copied(), is_trusted);
        assert_eq!(client(&[made_up, appended]), Some(own), "{made_up:?}");
        let joined = [made_up, b", ", appended].concat();
        assert_eq!(client(&[&joined]), Some(own), "{made_up:?}");
        let _ = client(&[made_up]);
    }
}
