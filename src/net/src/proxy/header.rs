//! The header of the PROXY protocol, version 2 (haproxy.org/download/3.0/doc/proxy-protocol.txt,
//! §2.2): a proxy sends it before the first byte of the connection that it passes on. Pure.
//!
//! ```text
//! signature (12 bytes) │ version and command │ family │ length │ addresses │ TLVs (skipped)
//!                             1 byte            1 byte  2 bytes  └──── length bytes ────┘
//! ```

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// The first bytes of each header; HTTP, TLS and MQTT begin differently.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// How version 1 begins, a line of text.
const VERSION_1: &[u8] = b"PROXY ";
/// Bytes of the fixed part.
pub const FIXED_BYTES: usize = 16;
/// The most that may follow it. Addresses take at most 216 bytes; the rest is for TLVs, such as a
/// client certificate's name.
pub const REST_BYTES_MAX: usize = 2048;

/// Why a connection has no usable header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum HeaderFault {
    #[error(
        "no PROXY header, which every connection from an address in trusted_proxies must begin with"
    )]
    Missing,
    #[error("a PROXY header of version 1; configure the proxy to send version 2")]
    Version1,
    #[error("a PROXY header of another version than 2, or with an unknown command")]
    Version,
    #[error(
        "a PROXY header with an unknown address family or protocol; expected TCP over IPv4 or IPv6"
    )]
    Family,
    #[error(
        "a PROXY header with {0} bytes of addresses and TLVs; expected at most {REST_BYTES_MAX}"
    )]
    TooLong(usize),
    #[error("a PROXY header that is too short for its addresses")]
    TooShort,
}

/// What the first bytes of a connection are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// A header of version 2, as far as it has arrived.
    Version2,
    /// A header of version 1.
    Version1,
    /// More bytes are needed to distinguish version 1 from something else.
    Unclear,
    /// Something else.
    Other,
}

/// Classifies the first bytes of a connection, at least one.
pub fn beginning(bytes: &[u8]) -> Beginning {
    let starts = |whole: &[u8]| whole.starts_with(&bytes[..bytes.len().min(whole.len())]);
    match bytes {
        [] => Beginning::Unclear,
        _ if starts(&SIGNATURE) => Beginning::Version2,
        _ if starts(VERSION_1) && bytes.len() < VERSION_1.len() => Beginning::Unclear,
        _ if starts(VERSION_1) => Beginning::Version1,
        _ => Beginning::Other,
    }
}

/// The fixed part of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fixed {
    family: Family,
    rest_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// The proxy itself connects (LOCAL), for example to check that the service answers; or it does
    /// not name its client (UNSPEC, or a Unix socket).
    Unnamed,
    V4,
    V6,
}

impl Fixed {
    /// Reads the fixed part.
    ///
    /// # Errors
    /// It is not one, or requests something unknown. Such a connection must be dropped (§2.2).
    pub fn parse(bytes: &[u8; FIXED_BYTES]) -> Result<Fixed, HeaderFault> {
        if bytes[..12] != SIGNATURE {
            return Err(HeaderFault::Missing);
        }
        let [version_and_command, family, high, low] = [bytes[12], bytes[13], bytes[14], bytes[15]];
        let family = match (version_and_command, family) {
            (0x20, _) | (0x21, 0x00 | 0x31) => Family::Unnamed,
            (0x21, 0x11) => Family::V4,
            (0x21, 0x21) => Family::V6,
            (0x21, _) => return Err(HeaderFault::Family),
            _ => return Err(HeaderFault::Version),
        };
        let rest_bytes = usize::from(u16::from_be_bytes([high, low]));
        if rest_bytes > REST_BYTES_MAX {
            return Err(HeaderFault::TooLong(rest_bytes));
        }
        Ok(Fixed { family, rest_bytes })
    }

    /// Bytes that follow, and belong to the header.
    pub fn rest_bytes(self) -> usize {
        self.rest_bytes
    }

    /// The client of the proxy; `None`: it names none. `rest`: the bytes that follow.
    ///
    /// # Errors
    /// The addresses are not complete.
    pub fn client(self, rest: &[u8]) -> Result<Option<SocketAddr>, HeaderFault> {
        let client = match self.family {
            Family::Unnamed => return Ok(None),
            // Source and destination address, source and destination port.
            Family::V4 => {
                rest.first_chunk::<12>()
                    .map(|&[a, b, c, d, _, _, _, _, high, low, _, _]| {
                        (
                            Ipv4Addr::new(a, b, c, d).into(),
                            u16::from_be_bytes([high, low]),
                        )
                    })
            }
            Family::V6 => rest.first_chunk::<36>().and_then(|all| {
                let ip: [u8; 16] = *all.first_chunk()?;
                Some((
                    Ipv6Addr::from(ip).to_canonical(),
                    u16::from_be_bytes([all[32], all[33]]),
                ))
            }),
        };
        client
            .map(|client| Some(SocketAddr::from(client)))
            .ok_or(HeaderFault::TooShort)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(version_and_command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = (rest.len() as u16).to_be_bytes();
        [
            &SIGNATURE[..],
            &[version_and_command, family],
            &length,
            rest,
        ]
        .concat()
    }

    fn read(bytes: &[u8]) -> Result<Option<SocketAddr>, HeaderFault> {
        let fixed = Fixed::parse(bytes.first_chunk().unwrap())?;
        fixed.client(&bytes[FIXED_BYTES..][..fixed.rest_bytes()])
    }

    #[test]
    fn the_headers_of_real_proxies_are_understood() {
        // HAProxy 2.6, `send-proxy-v2`: 192.0.2.7:51764 to 10.0.0.5:8080.
        let v4 = header(
            0x21,
            0x11,
            &[192, 0, 2, 7, 10, 0, 0, 5, 0xca, 0x34, 0x1f, 0x90],
        );
        assert_eq!(read(&v4), Ok(Some("192.0.2.7:51764".parse().unwrap())));
        // AWS NLB: the same with PP2_TYPE_AWS and PP2_TYPE_CRC32C.
        let tlvs = [
            &v4[16..],
            b"\xea\x00\x05\x01vpce\x03\x00\x04\x12\x34\x56\x78",
        ]
        .concat();
        assert_eq!(read(&header(0x21, 0x11, &tlvs)), read(&v4));
        let ip: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let v6 = [&ip.octets()[..], &[0; 16], &[0x12, 0x34, 0, 80]].concat();
        assert_eq!(
            read(&header(0x21, 0x21, &v6)),
            Ok(Some("[2001:db8::7]:4660".parse().unwrap()))
        );
        let mapped: Ipv6Addr = "::ffff:192.0.2.7".parse().unwrap();
        let mapped = [&mapped.octets()[..], &[0; 16], &[0, 1, 0, 2]].concat();
        assert_eq!(
            read(&header(0x21, 0x21, &mapped)),
            Ok(Some("192.0.2.7:1".parse().unwrap()))
        );
        for (command, family, rest) in [
            (0x20, 0x00, 0),
            (0x20, 0x11, 12),
            (0x21, 0x00, 5),
            (0x21, 0x31, 216),
        ] {
            assert_eq!(
                read(&header(command, family, &vec![1; rest])),
                Ok(None),
                "{command} {family}"
            );
        }
    }

    #[test]
    fn what_is_not_a_header_is_named() {
        for (bytes, fault) in [
            (header(0x11, 0x11, &[0; 12]), HeaderFault::Version),
            (header(0x22, 0x11, &[0; 12]), HeaderFault::Version),
            (header(0x21, 0x12, &[0; 12]), HeaderFault::Family),
            (header(0x21, 0x41, &[0; 12]), HeaderFault::Family),
            (header(0x21, 0x11, &[0; 11]), HeaderFault::TooShort),
            (header(0x21, 0x21, &[0; 35]), HeaderFault::TooShort),
            (
                header(0x21, 0x11, &[0; REST_BYTES_MAX + 1]),
                HeaderFault::TooLong(REST_BYTES_MAX + 1),
            ),
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), HeaderFault::Missing),
        ] {
            assert_eq!(read(&bytes), Err(fault));
        }
    }

    #[test]
    fn the_first_bytes_tell_the_versions_apart() {
        for n in 1..=12 {
            assert_eq!(beginning(&SIGNATURE[..n]), Beginning::Version2, "{n}");
        }
        for (bytes, is) in [
            (&b"P"[..], Beginning::Unclear),
            (b"PROXY", Beginning::Unclear),
            (b"PROXY ", Beginning::Version1),
            (
                b"PROXY TCP4 192.0.2.7 10.0.0.5 1 2\r\n",
                Beginning::Version1,
            ),
            (b"POST /v1/readings", Beginning::Other),
            (b"PRO", Beginning::Unclear),
            (b"\r\n\r\n\0\r\nQUIX", Beginning::Other),
            (b"\x10\x0c\0\x04MQTT", Beginning::Other),
            (b"\x16\x03\x01", Beginning::Other),
        ] {
            assert_eq!(beginning(bytes), is, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_address_survives(ip: [u8; 16], port: u16, is_v4: bool, more in proptest::collection::vec(any::<u8>(), 0..500)) {
            let (expected, family, addresses) = if is_v4 {
                let ip = [ip[0], ip[1], ip[2], ip[3]];
                (SocketAddr::from((ip, port)), 0x11, [&ip[..], &[9; 4]].concat())
            } else {
                (SocketAddr::from((Ipv6Addr::from(ip).to_canonical(), port)), 0x21, [&ip[..], &[9; 16]].concat())
            };
            let rest = [&addresses[..], &port.to_be_bytes(), &[0, 7], &more].concat();
            prop_assert_eq!(read(&header(0x21, family, &rest)), Ok(Some(expected)));
        }

        #[test]
        fn any_bytes_are_read_within_bounds(bytes: [u8; FIXED_BYTES], has_signature: bool, rest in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut bytes = bytes;
            if has_signature {
                bytes[..12].copy_from_slice(&SIGNATURE);
            }
            if let Ok(fixed) = Fixed::parse(&bytes) {
                prop_assert!(fixed.rest_bytes() <= REST_BYTES_MAX);
                let _ = fixed.client(&rest);
            }
            let _ = (beginning(&bytes), beginning(&rest));
        }
    }
}
