//! What certificates and revocation lists say that rustls does not expose: validity, names, and who
//! has signed a list. rustls decides whether a certificate can be trusted.

use tokio_rustls::rustls::pki_types::SignatureVerificationAlgorithm;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;
use x509_parser::x509::X509Name;

use config::ClientIdentity;

/// Parses a certificate; `None` if it is malformed.
pub(super) fn certificate(der: &[u8]) -> Option<X509Certificate<'_>> {
    Some(X509Certificate::from_der(der).ok()?.1)
}

/// Parses a revocation list; `None` if it is malformed.
pub(super) fn revocation_list(der: &[u8]) -> Option<CertificateRevocationList<'_>> {
    Some(CertificateRevocationList::from_der(der).ok()?.1)
}

/// When the issuer of a revocation list has promised a newer one (`nextUpdate`, RFC 5280 §5.1.2.5),
/// in seconds since 1970; `None` if it has not, or the list is malformed.
pub(super) fn next_update_s(crl: &[u8]) -> Option<i64> {
    Some(revocation_list(crl)?.next_update()?.timestamp())
}

/// Whether the key of this CA has signed the list, with one of these algorithms.
pub(super) fn is_signed_by(
    list: &CertificateRevocationList<'_>,
    ca: &X509Certificate<'_>,
    algorithms: &[&dyn SignatureVerificationAlgorithm],
) -> bool {
    let id = list.signature_algorithm.algorithm.as_bytes();
    let key = &ca.public_key().subject_public_key.data;
    let signed = list.tbs_cert_list.as_ref();
    let signature = &list.signature_value.data;
    algorithms.iter().any(|algorithm| {
        // The DER of the identifier begins with two bytes of tag and length. A key of another kind
        // verifies nothing.
        algorithm.signature_alg_id()[2..].starts_with(id)
            && algorithm.verify_signature(key, signed, signature).is_ok()
    })
}

/// The texts of a name, for people.
pub(super) fn shown_name(name: &X509Name<'_>) -> String {
    let texts = name.iter_attributes().filter_map(|text| text.as_str().ok());
    texts.collect::<Vec<_>>().join(", ")
}

/// The only name of this kind that a certificate has: a common name of the subject, or a DNS name
/// or URI of the subject alternative names. `None`: it has none or several, or one of them is not
/// text.
pub(super) fn only_name(certificate: &X509Certificate<'_>, kind: ClientIdentity) -> Option<String> {
    let mut names = vec![];
    if kind == ClientIdentity::Cn {
        for name in certificate.subject().iter_common_name() {
            names.push(name.as_str().ok()?);
        }
    } else if let Some(alternative) = certificate.subject_alternative_name().ok()? {
        for name in &alternative.value.general_names {
            match (kind, name) {
                (ClientIdentity::Dns, GeneralName::DNSName(name))
                | (ClientIdentity::Uri, GeneralName::URI(name)) => names.push(name),
                (_, GeneralName::Invalid(..)) => return None,
                _ => {}
            }
        }
    }
    match names[..] {
        [name] => Some(name.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer};

    use super::*;

    const SERVER: &[u8] = include_bytes!("../../../../tests/support/mqtt_tls/server.pem");
    const CA: &[u8] = include_bytes!("../../../../tests/support/mqtt_tls/ca.pem");
    const CRL: &[u8] = include_bytes!("../../../../tests/support/mqtt_tls/crl_of_2024.pem");

    fn der(pem: &[u8]) -> Vec<u8> {
        CertificateDer::from_pem_slice(pem).unwrap().to_vec()
    }

    #[test]
    fn the_times_and_names_are_those_that_openssl_shows() {
        // openssl x509 -in … -noout -startdate -enddate
        let [server, ca] = [der(SERVER), der(CA)];
        let [server, ca] = [&server, &ca].map(|der| certificate(der).unwrap());
        let validity = server.validity();
        assert_eq!(
            [validity.not_before, validity.not_after].map(|time| time.timestamp()),
            [1_795_249_250, 4_948_849_250]
        );
        assert_eq!(
            (server.issuer().as_raw(), ca.issuer().as_raw()),
            (ca.subject().as_raw(), ca.subject().as_raw()),
            "issued by the CA, which is self-signed"
        );
        assert_ne!(server.subject().as_raw(), ca.subject().as_raw());
    }

    #[test]
    fn the_names_that_can_be_an_identity_are_those_that_openssl_shows() {
        use ClientIdentity::{Cn, Dns, Uri};
        // openssl x509 -in … -noout -subject -ext subjectAltName
        let names = |pem: &[u8]| {
            let der = der(pem);
            let certificate = certificate(&der).unwrap();
            [Cn, Dns, Uri].map(|kind| only_name(&certificate, kind))
        };
        let cn = |name: &str| Some(name.to_owned());
        assert_eq!(names(SERVER), [cn("127.0.0.1"), None, None]);
        let client = include_bytes!("../../../../tests/support/mqtt_tls/mutual/client.pem");
        assert_eq!(names(client), [cn("client"), None, None]);
        let server = include_bytes!("../../../../tests/support/mqtt_tls/mutual/server.pem");
        let dns = Some("localhost".to_owned());
        assert_eq!(names(server), [cn("server"), dns, None]);
    }

    #[test]
    fn a_name_that_is_not_text_is_no_identity() {
        let named = |name: &[u8], changed: &[u8], kind| {
            let pem = include_bytes!("../../../../tests/support/mqtt_tls/mutual/server.pem");
            let mut der = der(pem);
            let mut places = (0..der.len()).rev();
            let at = places.find(|at| der[*at..].starts_with(name)).unwrap();
            der[at..at + changed.len()].copy_from_slice(changed);
            only_name(&certificate(&der).unwrap(), kind)
        };
        let dns = |changed| named(b"localhost", changed, ClientIdentity::Dns);
        assert_eq!(dns(b"localhosT"), Some("localhosT".into()));
        assert_eq!(dns(b"localhos\xff"), None);
        // UTF8String, and then a TeletexString.
        let cn = |changed| named(b"\x0c\x06server", changed, ClientIdentity::Cn);
        assert_eq!(cn(b"\x0c\x06serveR"), Some("serveR".into()));
        assert_eq!(cn(b"\x0c\x06serve\xff"), None);
        assert_eq!(cn(b"\x14\x06server"), None);
    }

    #[test]
    fn the_next_update_of_a_revocation_list_is_that_which_openssl_shows() {
        // openssl crl -in … -noout -nextupdate
        let list = CertificateRevocationListDer::from_pem_slice(CRL).unwrap();
        assert_eq!(next_update_s(&list), Some(1_706_659_200));
        for n in 0..list.len() {
            assert_eq!(next_update_s(&list[..n]), None, "{n}");
            assert!(revocation_list(&list[..n]).is_none(), "{n}");
        }
        assert_eq!(
            shown_name(revocation_list(&list).unwrap().issuer()),
            "hourbucket, client tests"
        );
        // The same without a next update.
        let mut bare = list.to_vec();
        let removed = bare.drain(81..96).len() as u8;
        (bare[2], bare[4]) = (bare[2] - removed, bare[4] - removed);
        assert!(revocation_list(&bare).is_some());
        assert_eq!(next_update_s(&bare), None);
    }

    #[test]
    fn both_forms_of_time_are_read_and_others_refused() {
        let time = |text: &str| {
            let mut der = der(SERVER);
            let at = der.windows(2).position(|two| two == b"\x17\x0d").unwrap() + 2;
            der[at..at + 13].copy_from_slice(text.as_bytes());
            Some(certificate(&der)?.validity().not_before.timestamp())
        };
        assert_eq!(time("700101000000Z"), Some(0));
        assert_eq!(time("491231235959Z"), Some(2_524_607_999));
        assert_eq!(time("500101000000Z"), Some(-631_152_000));
        for bad in [
            "7001010000000",
            "701301000000Z",
            "7001010000é0",
            "+0010100000+Z",
        ] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_truncated_or_invalid_certificate_is_refused() {
        let whole = der(SERVER);
        for n in 0..whole.len() {
            assert!(certificate(&whole[..n]).is_none(), "{n}");
        }
        assert!(certificate(&[0x30, 0x85, 1, 1, 1, 1, 1, 0]).is_none());
    }

    fn read_all(bytes: &[u8]) {
        for kind in [ClientIdentity::Cn, ClientIdentity::Dns] {
            let _ = certificate(bytes).and_then(|one| only_name(&one, kind));
        }
        let _ = certificate(bytes).map(|one| shown_name(one.issuer()));
        let _ = next_update_s(bytes);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200), at in 0usize..700, to: u8) {
            read_all(&bytes);
            let list = CertificateRevocationListDer::from_pem_slice(CRL).unwrap();
            for mut near in [der(SERVER), list.to_vec()] {
                let at = at % near.len();
                near[at] = to;
                read_all(&near);
            }
        }
    }
}
