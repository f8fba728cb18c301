//! Facts of certificates and revocation lists that rustls does not expose: validity, names, and who
//! has signed a list. Parses the outer fields of X.509 (RFC 5280 §4.1, §5.1) without interpreting
//! them; rustls decides whether a certificate can be trusted.

use chrono::NaiveDate;
use tokio_rustls::rustls::pki_types::{SignatureVerificationAlgorithm, TrustAnchor};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Context tag `[0]`: the version.
const VERSION: u8 = 0xa0;
/// Context tag `[3]`.
const EXTENSIONS: u8 = 0xa3;
const BOOLEAN: u8 = 0x01;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
const SET: u8 = 0x31;
/// UTF8String, PrintableString, IA5String. Others are no longer used for names (RFC 5280 §4.1.2.4).
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
/// 2.5.4.3
const COMMON_NAME: &[u8] = b"\x55\x04\x03";
/// 2.5.29.17
const SUBJECT_ALTERNATIVE_NAME: &[u8] = b"\x55\x1d\x11";
/// GeneralName, RFC 5280 §4.2.1.6.
const DNS_NAME: u8 = 0x82;
const UNIFORM_RESOURCE_IDENTIFIER: u8 = 0x86;

/// The outer fields of a certificate. Times are in seconds since 1970, both inclusive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) not_before_s: i64,
    pub(super) not_after_s: i64,
    /// DER of the name.
    pub(super) issuer: Vec<u8>,
    pub(super) subject: Vec<u8>,
}

impl Facts {
    /// Parses a certificate; `None` if it is malformed.
    pub(super) fn read(der: &[u8]) -> Option<Facts> {
        let mut certificate = Der(Der(der).take(SEQUENCE)?);
        let mut fields = Der(certificate.take(SEQUENCE)?);
        if fields.0.first() == Some(&VERSION) {
            fields.take(VERSION)?;
        }
        fields.take(INTEGER)?;
        // The signature algorithm.
        fields.take(SEQUENCE)?;
        let issuer = fields.take(SEQUENCE)?.to_vec();
        let mut validity = Der(fields.take(SEQUENCE)?);
        let subject = fields.take(SEQUENCE)?.to_vec();
        Some(Facts {
            not_before_s: validity.time()?,
            not_after_s: validity.time()?,
            issuer,
            subject,
        })
    }
}

/// When the issuer of a revocation list has promised a newer one (`nextUpdate`, RFC 5280 §5.1.2.5),
/// in seconds since 1970; `None` if it has not, or the list is malformed.
pub(super) fn next_update_s(crl: &[u8]) -> Option<i64> {
    let mut list = Der(Der(crl).take(SEQUENCE)?);
    let mut fields = Der(list.take(SEQUENCE)?);
    if fields.tag() == Some(INTEGER) {
        fields.take(INTEGER)?;
    }
    // Algorithm, issuer, and the time of the list.
    fields.take(SEQUENCE)?;
    fields.take(SEQUENCE)?;
    fields.time()?;
    fields
        .tag()
        .filter(|tag| [UTC_TIME, GENERALIZED_TIME].contains(tag))?;
    fields.time()
}

/// A revocation list and its signature (RFC 5280 §5.1.1).
pub(super) struct SignedList<'a> {
    /// DER of the name.
    pub(super) issuer: &'a [u8],
    /// What is signed.
    signed: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl SignedList<'_> {
    /// Parses a revocation list; `None` if it is malformed.
    pub(super) fn read(crl: &[u8]) -> Option<SignedList<'_>> {
        let mut list = Der(Der(crl).take(SEQUENCE)?);
        let whole = list.0;
        let mut fields = Der(list.take(SEQUENCE)?);
        let signed = &whole[..whole.len() - list.0.len()];
        let algorithm = list.take(SEQUENCE)?;
        let signature = list.bits()?;
        if fields.tag() == Some(INTEGER) {
            fields.take(INTEGER)?;
        }
        fields.take(SEQUENCE)?;
        let issuer = fields.take(SEQUENCE)?;
        Some(SignedList {
            issuer,
            signed,
            algorithm,
            signature,
        })
    }

    /// Whether the key of this CA has signed it, with one of these algorithms.
    pub(super) fn is_signed_by(
        &self,
        ca: &TrustAnchor<'_>,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> bool {
        let mut key_info = Der(&ca.subject_public_key_info);
        let Some((kind, key)) = key_info.take(SEQUENCE).zip(key_info.bits()) else {
            return false;
        };
        algorithms.iter().any(|algorithm| {
            algorithm.signature_alg_id().as_ref() == self.algorithm
                && algorithm.public_key_alg_id().as_ref() == kind
                && algorithm
                    .verify_signature(key, self.signed, self.signature)
                    .is_ok()
        })
    }
}

/// The texts of a name, for people.
pub(super) fn shown_name(name: &[u8]) -> String {
    let mut sets = Der(name);
    let mut texts = Vec::new();
    while let Some(set) = sets.take(SET) {
        let mut attributes = Der(set);
        while let Some(attribute) = attributes.take(SEQUENCE) {
            let mut attribute = Der(attribute);
            let is_named = attribute.take(OBJECT_IDENTIFIER).is_some();
            let value = attribute.tag().filter(|_| is_named);
            texts.extend(value.and_then(|tag| text(attribute.take(tag)?)));
        }
    }
    texts.join(", ")
}

/// The names of a certificate that can be an identity, in its order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// Common names of the subject.
    pub(super) cn: Vec<String>,
    /// DNS names of the subject alternative names.
    pub(super) dns: Vec<String>,
    /// URIs of the subject alternative names.
    pub(super) uri: Vec<String>,
}

impl Names {
    /// Reads the names; `None` if the certificate is malformed, or one of these names is not text.
    pub(super) fn read(der: &[u8]) -> Option<Names> {
        let mut names = Names::default();
        let mut certificate = Der(Der(der).take(SEQUENCE)?);
        let mut fields = Der(certificate.take(SEQUENCE)?);
        if fields.tag() == Some(VERSION) {
            fields.take(VERSION)?;
        }
        fields.take(INTEGER)?;
        // Algorithm, issuer, validity.
        for _ in 0..3 {
            fields.take(SEQUENCE)?;
        }
        let mut subject = Der(fields.take(SEQUENCE)?);
        while subject.tag().is_some() {
            let mut set = Der(subject.take(SET)?);
            while set.tag().is_some() {
                let mut attribute = Der(set.take(SEQUENCE)?);
                if attribute.take(OBJECT_IDENTIFIER)? == COMMON_NAME {
                    let tag = attribute.tag().filter(|tag| TEXTS.contains(tag))?;
                    names.cn.push(text(attribute.take(tag)?)?);
                }
            }
        }
        // The public key; unique identifiers may follow.
        fields.take(SEQUENCE)?;
        while let Some(tag) = fields.tag() {
            let field = fields.take(tag)?;
            if tag == EXTENSIONS {
                names.read_extensions(Der(Der(field).take(SEQUENCE)?))?;
            }
        }
        Some(names)
    }

    fn read_extensions(&mut self, mut extensions: Der<'_>) -> Option<()> {
        while extensions.tag().is_some() {
            let mut extension = Der(extensions.take(SEQUENCE)?);
            if extension.take(OBJECT_IDENTIFIER)? != SUBJECT_ALTERNATIVE_NAME {
                continue;
            }
            if extension.tag() == Some(BOOLEAN) {
                extension.take(BOOLEAN)?;
            }
            let mut names = Der(Der(extension.take(OCTET_STRING)?).take(SEQUENCE)?);
            while let Some(tag) = names.tag() {
                let name = names.take(tag)?;
                match tag {
                    DNS_NAME => self.dns.push(text(name)?),
                    UNIFORM_RESOURCE_IDENTIFIER => self.uri.push(text(name)?),
                    _ => {}
                }
            }
        }
        Some(())
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

/// The unread rest of a DER encoding.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The tag of the next element; `None` at the end.
    fn tag(&self) -> Option<u8> {
        self.0.first().copied()
    }

    /// The content of the next element, which must have this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (&first, rest) = self.0.split_first()?;
        let (&length, rest) = rest.split_first()?;
        let (length, rest) = match length {
            0..=0x7f => (usize::from(length), rest),
            // Long form: the low bits give the number of length bytes. Four allow 4 GiB.
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
                (
                    bytes
                        .iter()
                        .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
                    rest,
                )
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        (first == tag).then_some(content)
    }

    /// The next element, a bit string of whole bytes.
    fn bits(&mut self) -> Option<&'a [u8]> {
        self.take(BIT_STRING)?.strip_prefix(&[0])
    }

    /// The next element, a time: `YYMMDDHHMMSSZ` (1950 to 2049) or `YYYYMMDDHHMMSSZ`.
    fn time(&mut self) -> Option<i64> {
        let (text, century) = match self.0.first()? {
            &UTC_TIME => (self.take(UTC_TIME)?, None),
            _ => (self.take(GENERALIZED_TIME)?, Some(())),
        };
        let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
        let (year, rest) = text.split_at_checked(if century.is_some() { 4 } else { 2 })?;
        let year: i32 = year.parse().ok()?;
        let year = match century {
            Some(()) => year,
            None if year < 50 => 2000 + year,
            None => 1900 + year,
        };
        let is_plain = rest.len() == 10 && rest.bytes().all(|b| b.is_ascii_digit());
        let part = |at: usize| -> Option<u32> { rest[2 * at..2 * at + 2].parse().ok() };
        let [month, day, hour, minute, second] = is_plain.then(|| std::array::from_fn(part))?;
        let at =
            NaiveDate::from_ymd_opt(year, month?, day?)?.and_hms_opt(hour?, minute?, second?)?;
        Some(at.and_utc().timestamp())
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer};

    use super::*;

    fn der(pem: &[u8]) -> Vec<u8> {
        CertificateDer::from_pem_slice(pem).unwrap().to_vec()
    }

    #[test]
    fn the_times_and_names_are_those_that_openssl_shows() {
        // openssl x509 -in … -noout -startdate -enddate
        let server = Facts::read(&der(include_bytes!(
            "../../../../tests/support/mqtt_tls/server.pem"
        )))
        .unwrap();
        let ca = Facts::read(&der(include_bytes!(
            "../../../../tests/support/mqtt_tls/ca.pem"
        )))
        .unwrap();
        assert_eq!(
            (server.not_before_s, server.not_after_s),
            (1_795_249_250, 4_948_849_250)
        );
        assert_eq!(
            (&server.issuer, &ca.issuer),
            (&ca.subject, &ca.subject),
            "issued by the CA, which is self-signed"
        );
        assert_ne!(server.subject, ca.subject);
    }

    #[test]
    fn the_names_that_can_be_an_identity_are_those_that_openssl_shows() {
        // openssl x509 -in … -noout -subject -ext subjectAltName
        let names = |pem: &[u8]| Names::read(&der(pem)).unwrap();
        let cn = |name: &str| Names {
            cn: vec![name.into()],
            ..Names::default()
        };
        assert_eq!(
            names(include_bytes!(
                "../../../../tests/support/mqtt_tls/server.pem"
            )),
            cn("127.0.0.1")
        );
        assert_eq!(
            names(include_bytes!(
                "../../../../tests/support/mqtt_tls/mutual/client.pem"
            )),
            cn("client")
        );
        let server = names(include_bytes!(
            "../../../../tests/support/mqtt_tls/mutual/server.pem"
        ));
        assert_eq!(
            server,
            Names {
                dns: vec!["localhost".into()],
                ..cn("server")
            }
        );
    }

    #[test]
    fn the_next_update_of_a_revocation_list_is_that_which_openssl_shows() {
        // openssl crl -in … -noout -nextupdate
        let pem = include_bytes!("../../../../tests/support/mqtt_tls/crl_of_2024.pem");
        let list = CertificateRevocationListDer::from_pem_slice(pem).unwrap();
        assert_eq!(next_update_s(&list), Some(1_706_659_200));
        for n in 0..list.len() {
            assert_eq!(next_update_s(&list[..n]), None, "{n}");
            assert!(SignedList::read(&list[..n]).is_none(), "{n}");
        }
        assert_eq!(
            shown_name(SignedList::read(&list).unwrap().issuer),
            "hourbucket, client tests"
        );
        // The same without a version and without a next update.
        let fields = b"\x30\x00\x30\x00\x17\x0d240101000000Z\xa0\x00";
        let bare = [
            &[
                SEQUENCE,
                fields.len() as u8 + 2,
                SEQUENCE,
                fields.len() as u8,
            ],
            &fields[..],
        ]
        .concat();
        assert_eq!(next_update_s(&bare), None);
    }

    #[test]
    fn both_forms_of_time_are_read_and_others_refused() {
        let time =
            |tag, text: &str| Der(&[&[tag, text.len() as u8], text.as_bytes()].concat()).time();
        assert_eq!(time(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(time(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(time(UTC_TIME, "500101000000Z"), Some(-631_152_000));
        assert_eq!(
            time(GENERALIZED_TIME, "20500101000000Z"),
            Some(2_524_608_000)
        );
        for bad in [
            "",
            "Z",
            "700101000000",
            "7001010000Z",
            "701301000000Z",
            "7001010000é0Z",
            "+0010100000+Z",
        ] {
            assert_eq!(time(UTC_TIME, bad), None, "{bad}");
        }
    }

    #[test]
    fn a_truncated_or_invalid_certificate_is_refused() {
        let whole = der(include_bytes!(
            "../../../../tests/support/mqtt_tls/server.pem"
        ));
        for n in 0..whole.len() {
            assert_eq!(Facts::read(&whole[..n]), None, "{n}");
        }
        assert_eq!(Facts::read(&[0x30, 0x85, 1, 1, 1, 1, 1, 0]), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200), at in 0usize..700, to: u8) {
            let _ = (Facts::read(&bytes), Names::read(&bytes));
            let _ = (SignedList::read(&bytes).is_some(), shown_name(&bytes));
            let mut near = der(include_bytes!("../../../../tests/support/mqtt_tls/server.pem"));
            let at = at % near.len();
            near[at] = to;
            let _ = (Facts::read(&near), Names::read(&near));
        }
    }
}
