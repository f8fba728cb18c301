//! Reads `[certificates]`: client certificates that are the identity of a sender (`client_auth =
//! "identity"`).

use super::reader::Section;
use super::values::patterns;

/// `[certificates]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificates {
    /// `identity`: which name of a certificate is the identity (default cn).
    pub identity: ClientIdentity,
    /// `write_default`: the sensors that a certificate without an entry may write (default `{id}`).
    pub write_default: Vec<String>,
    /// `read_default`: the sensors that it may read (default none).
    pub read_default: Vec<String>,
}

/// A name of a certificate. It must have exactly one of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientIdentity {
    /// The common name of the subject.
    Cn,
    /// The DNS name in the subject alternative names.
    Dns,
    /// The URI in the subject alternative names.
    Uri,
}

impl ClientIdentity {
    pub(super) const CHOICES: [(&'static str, ClientIdentity); 3] = [
        ("cn", ClientIdentity::Cn),
        ("dns", ClientIdentity::Dns),
        ("uri", ClientIdentity::Uri),
    ];
}

impl Default for Certificates {
    fn default() -> Certificates {
        Certificates {
            identity: ClientIdentity::Cn,
            write_default: vec!["{id}".to_owned()],
            read_default: vec![],
        }
    }
}

pub(super) fn read(mut s: Section<'_>) -> Certificates {
    let Certificates {
        identity,
        write_default,
        read_default,
    } = Certificates::default();
    let certificates = Certificates {
        identity: s.choice("identity", identity, &ClientIdentity::CHOICES),
        write_default: s.parse("write_default", patterns).unwrap_or(write_default),
        read_default: s.parse("read_default", patterns).unwrap_or(read_default),
    };
    s.end();
    certificates
}
