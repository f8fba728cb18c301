//! Recognises requests that a page of another site makes a browser send, by their headers. Used by
//! both HTTP ports while they have no tokens: then such a page has everything that a request needs.
//!
//! A page can reach a port of this machine in two ways. It sends a request to `127.0.0.1`, which a
//! browser marks ([`check_page`]; W3C Fetch Metadata, RFC 6454 §7). Or the name of its own site is
//! made to resolve to `127.0.0.1` (DNS rebinding); to the browser the port is then part of that
//! site; only the header Host shows it ([`is_local`]).
//!
//! A browser marks a `GET` only if the address is loopback or has TLS. Elsewhere a page could store
//! readings with an image whose URL is that of a hook, so there a `GET` of a browser needs the
//! mark.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::header::{HOST, ORIGIN, USER_AGENT};
use axum::http::{HeaderMap, HeaderName};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a request is refused. The texts do not repeat the headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// A trusted proxy names a client on another machine.
    #[error(
        "the proxy in front of this port names a client on another machine, and without tokens \
         only programs on this machine may send; set http.tokens_file and send the header \
         `Authorization: Bearer <id>.<secret>`, or set http.allow_anonymous = true to accept \
         readings from any sender"
    )]
    Client,
    /// The header Host has another name than this machine's.
    #[error(
        "without tokens the header Host must be an IP address or localhost, because a web page \
         could reach this port under another name; use such an address, or set http.tokens_file \
         and send the header `Authorization: Bearer <id>.<secret>`, or set http.allow_anonymous = \
         true to accept any name"
    )]
    Host,
    /// Sec-Fetch-Site or Origin names another site.
    #[error(
        "a web page of another site sent this request (headers Sec-Fetch-Site and Origin), which \
         is refused without tokens; set http.tokens_file and send the header `Authorization: \
         Bearer <id>.<secret>`"
    )]
    Page,
    /// A `GET` that stores readings, from a browser that does not say which site it is for.
    #[error(
        "a browser sent this GET without the header Sec-Fetch-Site, so a web page of any site \
         could have caused it, which is refused without tokens; use another client, or set \
         http.tokens_file and add the token to the URL (`?token=<id>.<secret>`)"
    )]
    Browser,
}

/// Refuses requests of a page of another site. `is_get_hook`: a `GET` that stores readings.
/// `any_host`: the port is meant to be reached under any name.
pub fn check(headers: &HeaderMap, is_get_hook: bool, any_host: bool) -> Result<(), Foreign> {
    check_page(headers)?;
    if is_get_hook && is_browser(headers) && !headers.contains_key(SEC_FETCH_SITE) {
        return Err(Foreign::Browser);
    }
    if any_host || is_local(headers) {
        Ok(())
    } else {
        Err(Foreign::Host)
    }
}

/// Refuses requests that a browser marks as those of a page of another site.
pub fn check_page(headers: &HeaderMap) -> Result<(), Foreign> {
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    // `none`: the user entered the address.
    let is_own = |site: &[u8]| site == b"same-origin" || site == b"none";
    if !sites.all(|site| is_own(site.as_bytes())) {
        return Err(Foreign::Page);
    }
    let mut origins = headers.get_all(ORIGIN).iter();
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    // `null`, the origin of a page without one, has no host. Browsers omit the default port in both
    // headers.
    let is_own = |origin: &str| {
        let of_origin = origin.split_once("://").map(|(_, host)| host);
        of_origin
            .zip(host)
            .is_some_and(|(of_origin, host)| of_origin.eq_ignore_ascii_case(host))
    };
    let is_ours = origins.all(|origin| origin.to_str().is_ok_and(is_own));
    if is_ours { Ok(()) } else { Err(Foreign::Page) }
}

/// All browsers begin with this word, and no page can change what they send with an image or a
/// form.
///
/// The only place that looks at `User-Agent`, because nothing else in such a request distinguishes
/// the two who send it: a page's image, which must not store readings, and a Shelly, which has a URL
/// and no header of its own. Refusing every `GET` without `Sec-Fetch-Site` would stop the Shelly.
fn is_browser(headers: &HeaderMap) -> bool {
    headers
        .get_all(USER_AGENT)
        .iter()
        .any(|agent| agent.as_bytes().starts_with(b"Mozilla/"))
}

/// Whether the header Host is an IP address or `localhost`, with or without a port (RFC 9110 §7.2).
/// Only a browser must send it, so a request without it is local.
pub fn is_local(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return true;
    };
    hosts.next().is_none() && host.to_str().is_ok_and(names_this_machine)
}

fn names_this_machine(host: &str) -> bool {
    // The colons of an IPv6 address are inside the brackets.
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => {
            if !port.bytes().all(|digit| digit.is_ascii_digit()) {
                return false;
            }
            name
        }
        _ => host,
    };
    let v6 = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok()
        || v6.is_some_and(|v6| v6.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_localhost_with_or_without_a_port_is_this_machine() {
        for host in [
            "localhost",
            "LocalHost:8080",
            "127.0.0.1",
            "10.0.0.1:1",
            "[::1]",
            "[fe80::1]:8080",
            "localhost:",
        ] {
            assert!(names_this_machine(host), "{host}");
        }
        for host in [
            "",
            ":",
            ":80",
            "evil.example",
            "localhost.evil.example",
            "evil.localhost",
            "localhost:1@evil",
            "localhost:+1",
            "user@localhost",
            "user:1@127.0.0.1:80",
            "localhost@evil:80",
            "localhost:80:80",
            "::1",
            "[::1",
            "::1]",
            "[::1]x",
            "[::1]:x",
            "[localhost]",
            "127.0.0.1.evil.example",
            "127.1",
            "0x7f000001",
            "localhost/",
            " localhost",
        ] {
            assert!(!names_this_machine(host), "{host}");
        }
    }
}
