//! The headers in which an HTTP proxy names its client: `X-Forwarded-For`, and `Forwarded` (RFC
//! 7239). Pure.
//!
//! Each proxy appends the address of its client, and a client can send the header itself. So it is
//! read from its end: as long as an address is that of a trusted proxy, the one before it can be
//! believed.

use core::net::{IpAddr, SocketAddr};

/// Hops that are read, from the last.
const HOPS_MAX: usize = 32;

/// The last address that is not a trusted proxy's. `None`: the header names none that can be
/// believed, for example because the proxy itself asks. `values`: all headers of this name, in
/// order.
pub(crate) fn client<'a>(
    values: impl DoubleEndedIterator<Item = &'a str>,
    is_rfc_7239: bool,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    let mut believed = None;
    let hops = values
        .rev()
        .flat_map(|value| elements(value, is_rfc_7239).into_iter().rev());
    for hop in hops.take(HOPS_MAX) {
        let address = if is_rfc_7239 {
            for_parameter(hop).and_then(address)
        } else {
            address(hop.trim())
        };
        let Some(ip) = address else { break };
        believed = Some(ip);
        if !is_trusted(ip) {
            break;
        }
    }
    believed
}

/// The elements of a list, between commas. In `Forwarded` a comma can be in quotes. A client could
/// open a quote that hides the address that the proxy appends, so a value with an open quote is not
/// believed at all.
fn elements(value: &str, has_quotes: bool) -> Vec<&str> {
    split(value, ',', has_quotes).unwrap_or_else(|| vec![""])
}

/// The parts between separators; `None` if a quote is left open.
fn split(text: &str, separator: char, has_quotes: bool) -> Option<Vec<&str>> {
    let mut is_quoted = false;
    let mut is_escaped = false;
    let parts = text.split(|c| {
        let was_escaped = std::mem::take(&mut is_escaped);
        match c {
            '"' if has_quotes && !was_escaped => is_quoted = !is_quoted,
            '\\' if is_quoted && !was_escaped => is_escaped = true,
            _ => return c == separator && !is_quoted,
        }
        false
    });
    let parts = parts.collect();
    (!is_quoted).then_some(parts)
}

/// The parameter `for` of an element of `Forwarded`, without its quotes.
fn for_parameter(element: &str) -> Option<&str> {
    split(element, ';', true)?.into_iter().find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let value = value.trim();
        let unquoted = value
            .strip_prefix('"')
            .and_then(|value| value.strip_suffix('"'))
            .unwrap_or(value);
        name.trim().eq_ignore_ascii_case("for").then_some(unquoted)
    })
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
        client(values.iter().copied(), is_rfc_7239, is_trusted).map(|ip| ip.to_string())
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
            (&["for=192.0.2.99;x=\", for=192.0.2.1"], None),
            (&["for=192.0.2.99;x=\", for=\"[2001:db8::1]\""], None),
        ] {
            assert_eq!(of(true, values).as_deref(), expected, "{values:?}");
        }
    }

    proptest! {
        /// Any text that a client puts before the address that the trusted proxy appends.
        #[test]
        fn a_client_cannot_name_another_address(made_up in "[ -~]{0,80}", other in "[0-9., ]{0,40}") {
            for before in [made_up, other] {
                prop_assert_eq!(of(false, &[&before, "192.0.2.1"]), Some("192.0.2.1".to_owned()));
                prop_assert_eq!(of(false, &[&format!("{before}, 192.0.2.1, 10.0.0.1")]), Some("192.0.2.1".to_owned()));
                prop_assert_eq!(of(true, &[&before, "for=192.0.2.1"]), Some("192.0.2.1".to_owned()));
                let joined = of(true, &[&format!("{before}, for=192.0.2.1")]);
                prop_assert!(joined.is_none_or(|ip| ip == "192.0.2.1"));
                let joined = of(true, &[&format!("{before}, for=\"[2001:db8::1]:80\"")]);
                prop_assert!(joined.is_none_or(|ip| ip == "2001:db8::1"));
            }
        }
    }
}
