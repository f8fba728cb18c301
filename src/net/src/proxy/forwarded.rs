//! The headers in which an HTTP proxy names its client: `X-Forwarded-For`, and `Forwarded` (RFC
//! 7239). Pure.
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
    is_rfc_7239: bool,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    let mut believed = None;
    let hops = values
        .rev()
        .flat_map(|value| elements_from_the_end(value, is_rfc_7239));
    for hop in hops.take(HOPS_MAX) {
        let text = if is_rfc_7239 {
            for_parameter(hop)
        } else {
            from_utf8(hop.trim_ascii()).ok()
        };
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

/// The elements of a list, between commas, from the last one. In `Forwarded` a comma can be in
/// quotes, which are matched from the end, too: a proxy's are complete, but a client can leave one
/// open.
fn elements_from_the_end(value: &[u8], has_quotes: bool) -> impl Iterator<Item = &[u8]> {
    let mut is_quoted = false;
    // Backslashes in front of the quote that was just met.
    let mut quote: Option<usize> = None;
    value.rsplit(move |&byte| {
        if let Some(backslashes) = quote {
            if byte == b'\\' {
                quote = Some(backslashes + 1);
                return false;
            }
            // In quotes `\"` is a part of the text.
            let is_text = is_quoted && backslashes % 2 == 1;
            is_quoted ^= !is_text;
            quote = None;
        }
        if has_quotes && byte == b'"' {
            quote = Some(0);
        }
        byte == b',' && !is_quoted
    })
}

/// The parameter `for` of an element of `Forwarded`, without its quotes.
fn for_parameter(element: &[u8]) -> Option<&str> {
    parameters(element)?.into_iter().find_map(|pair| {
        let (name, value) = from_utf8(pair).ok()?.split_once('=')?;
        let value = value.trim();
        let unquoted = value
            .strip_prefix('"')
            .and_then(|value| value.strip_suffix('"'))
            .unwrap_or(value);
        name.trim().eq_ignore_ascii_case("for").then_some(unquoted)
    })
}

/// The parts between semicolons; `None` if a quote is left open.
fn parameters(element: &[u8]) -> Option<Vec<&[u8]>> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    let parts = element.split(|&byte| {
        let was_escaped = core::mem::take(&mut is_escaped);
        match byte {
            b'"' if !was_escaped => is_quoted = !is_quoted,
            b'\\' if is_quoted && !was_escaped => is_escaped = true,
            _ => return byte == b';' && !is_quoted,
        }
        false
    });
    let parts = parts.collect();
    (!is_quoted).then_some(parts)
}

/// An address, with or without brackets and a port. `None` for `unknown` and names such as
/// `_hidden`.
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

    fn of(is_rfc_7239: bool, values: &[&str]) -> Option<String> {
        let values = values.iter().map(|value| value.as_bytes());
        client(values, is_rfc_7239, is_trusted).map(|ip| ip.to_string())
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
            assert_eq!(of(false, values).as_deref(), expected, "{values:?}");
        }
    }

    #[test]
    fn the_examples_of_rfc_7239_are_understood() {
        for (values, expected) in [
            (&["for=\"_gazonk\""][..], None),
            (
                &["For=\"[2001:db8:cafe::17]:4711\""],
                Some("2001:db8:cafe::17"),
            ),
            (
                &["for=192.0.2.60;proto=http;by=203.0.113.43"],
                Some("192.0.2.60"),
            ),
            (
                &["for=192.0.2.43, for=198.51.100.17"],
                Some("198.51.100.17"),
            ),
            (&["for=192.0.2.43, for=\"10.0.0.3:99\""], Some("192.0.2.43")),
            (
                &[
                    "for=192.0.2.43",
                    "for=10.0.0.3;host=\"a,b\\\";for=1.1.1.1\"",
                ],
                Some("192.0.2.43"),
            ),
            (&["for=192.0.2.43, for=unknown"], None),
            (&["by=192.0.2.43"], None),
            // A quote that a client left open before the proxy appended its own.
            (&["for=192.0.2.99;x=\", for=192.0.2.1"], Some("192.0.2.1")),
            (
                &["for=192.0.2.99;x=\", for=\"[2001:db8::1]\""],
                Some("2001:db8::1"),
            ),
            (
                &["x=\"\\\", for=192.0.2.1;host=\"\\\\\", for=10.0.0.3;host=\"a,\\\"b,\\\\\""],
                Some("192.0.2.1"),
            ),
        ] {
            assert_eq!(of(true, values).as_deref(), expected, "{values:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_hide_no_address() {
        let of = |is_rfc_7239, value: &[u8]| {
            let ip = client([value].into_iter(), is_rfc_7239, is_trusted);
            ip.map(|ip| ip.to_string())
        };
        let expected = Some("192.0.2.1".to_owned());
        assert_eq!(of(false, b"\xff, 192.0.2.1"), expected);
        assert_eq!(of(false, b"\xff, 192.0.2.1, 10.0.0.1"), expected);
        assert_eq!(of(true, b"\xff\", for=192.0.2.1"), expected);
        assert_eq!(of(true, b"host=\xff;for=192.0.2.1"), expected);
        assert_eq!(of(false, b"192.0.2.1, \xff"), None);
    }

    proptest! {
        /// Any text that a client puts before the address that the trusted proxy appends.
        #[test]
        fn a_client_cannot_name_another_address(made_up in "[ -~]{0,80}", other in "[0-9., ]{0,40}") {
            for before in [made_up, other] {
                prop_assert_eq!(of(false, &[&before, "192.0.2.1"]), Some("192.0.2.1".to_owned()));
                prop_assert_eq!(of(false, &[&format!("{before}, 192.0.2.1, 10.0.0.1")]), Some("192.0.2.1".to_owned()));
                prop_assert_eq!(of(true, &[&before, "for=192.0.2.1"]), Some("192.0.2.1".to_owned()));
                prop_assert_eq!(of(true, &[&format!("{before}, for=192.0.2.1")]), Some("192.0.2.1".to_owned()));
                let quoted = format!("{before}, for=\"[2001:db8::1]:80\"");
                prop_assert_eq!(of(true, &[&quoted]), Some("2001:db8::1".to_owned()));
            }
        }
    }
}
