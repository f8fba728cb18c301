//! The header in which an HTTP proxy names its client: `X-Forwarded-For`. Pure.
//!
//! Each proxy appends the address of its client, and a client can send the header itself. So it is
//! read from its end: as long as an address is that of a trusted proxy, the one before it can be
//! believed. What stands before that is not looked at, so no bytes of a client can hide what the
//! proxy has appended.

use core::net::{IpAddr, SocketAddr};
use core::str::from_utf8;

/// Hops that are read, from the last.
const HOPS_MAX: usize = 32;

/// The last address that is not a trusted proxy's. `None`: the header names none that can be
/// believed, for example because the proxy itself asks. `values`: all headers of this name, in
/// order.
pub fn client<'a>(
    values: impl DoubleEndedIterator<Item = &'a [u8]>,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    let mut believed = None;
    let hops = values.rev().flat_map(|value| value.rsplit(|&b| b == b','));
    for hop in hops.take(HOPS_MAX) {
        let text = from_utf8(hop.trim_ascii()).ok();
        let Some(ip) = text.and_then(address) else {
            break;
        };
        believed = Some(ip);
        if !is_trusted(ip) {
            break;
        }
    }
    believed
}

/// An address, with or without brackets and a port. `None` for anything else, such as `unknown`.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    bare.parse()
        .ok()
        .or_else(with_port)
        .map(|ip: IpAddr| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 10.0.0.0/8 and fd00::/8
    fn is_trusted(ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => ip.octets()[0] == 10,
            IpAddr::V6(ip) => ip.octets()[0] == 0xfd,
        }
    }

    fn of(values: &[&str]) -> Option<String> {
        let values = values.iter().map(|value| value.as_bytes());
        client(values, is_trusted).map(|ip| ip.to_string())
    }

    #[test]
    fn the_last_address_that_is_not_a_proxy_counts() {
        for (values, expected) in [
            (&["192.0.2.1"][..], Some("192.0.2.1")),
            (&["198.51.100.9, 192.0.2.1"], Some("192.0.2.1")),
            (
                &["198.51.100.9, 192.0.2.1, 10.0.0.1,10.1.2.3"],
                Some("192.0.2.1"),
            ),
            (&["198.51.100.9", "192.0.2.1, 10.0.0.1"], Some("192.0.2.1")),
            (&["192.0.2.1:4711, [fd00::1]:80"], Some("192.0.2.1")),
            (&["2001:db8::1"], Some("2001:db8::1")),
            (&["::ffff:192.0.2.1"], Some("192.0.2.1")),
            (&["10.0.0.7, 10.0.0.1"], Some("10.0.0.7")),
            // Text that a client made up is not read.
            (&["nonsense, 192.0.2.1"], Some("192.0.2.1")),
            (&["192.0.2.1, nonsense"], None),
            (&["192.0.2.1, nonsense, 10.0.0.1"], Some("10.0.0.1")),
            (&["192.0.2.1,"], None),
            (&[""], None),
            (&[], None),
        ] {
            assert_eq!(of(values).as_deref(), expected, "{values:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_hide_no_address() {
        let of = |value: &[u8]| client([value].into_iter(), is_trusted).map(|ip| ip.to_string());
        let expected = Some("192.0.2.1".to_owned());
        assert_eq!(of(b"\xff, 192.0.2.1"), expected);
        assert_eq!(of(b"\xff, 192.0.2.1, 10.0.0.1"), expected);
        assert_eq!(of(b"192.0.2.1, \xff"), None);
    }

    proptest! {
        /// Any text that a client puts before the address that the trusted proxy appends.
        #[test]
        fn a_client_cannot_name_another_address(made_up in "[ -~]{0,80}", other in "[0-9., ]{0,40}") {
            for before in [made_up, other] {
                prop_assert_eq!(of(&[&before, "192.0.2.1"]), Some("192.0.2.1".to_owned()));
                prop_assert_eq!(of(&[&format!("{before}, 192.0.2.1, 10.0.0.1")]), Some("192.0.2.1".to_owned()));
            }
        }
    }
}
