//! Whether revocation lists fit the CAs of client certificates. rustls looks for the list of a CA, and
//! verifies its signature, only when a client connects. So a wrong file would refuse every client of
//! the CA, at a time when no one looks at it, instead of being refused itself.

use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, SignatureVerificationAlgorithm,
};

use super::x509;

/// Why every client of a CA would be refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CrlFault {
    /// The CA has no list.
    #[error("it has no revocation list of the CA {ca:?}")]
    Missing {
        /// The name of the CA.
        ca: String,
    },
    /// Another key has signed the list: a list of another CA with the same name, or a changed one.
    #[error("its revocation list of the CA {ca:?} is not signed by the key of this CA")]
    Signature {
        /// The name of the CA.
        ca: String,
    },
}

/// Checks that each of these CAs has a list that it has signed. A CA that has issued another one of
/// them needs none: no list is looked up above the CA that has issued a client's certificate.
///
/// Lists of other issuers are those of intermediate CAs, whose certificates the clients send.
pub(super) fn check(
    lists: &[CertificateRevocationListDer<'_>],
    cas: &[CertificateDer<'_>],
    algorithms: &[&dyn SignatureVerificationAlgorithm],
) -> Result<(), CrlFault> {
    let lists: Vec<_> = lists
        .iter()
        .filter_map(|list| x509::revocation_list(list))
        .collect();
    let cas: Vec<_> = cas.iter().filter_map(|ca| x509::certificate(ca)).collect();
    for ca in &cas {
        let name = ca.subject().as_raw();
        let of_name = || lists.iter().filter(|list| list.issuer().as_raw() == name);
        let has_issued_another = || {
            let mut issued = cas.iter().filter(|other| other.issuer().as_raw() == name);
            issued.any(|other| other.subject().as_raw() != name)
        };
        if of_name().next().is_none() && !has_issued_another() {
            let ca = x509::shown_name(ca.subject());
            return Err(CrlFault::Missing { ca });
        }
        // After a change of its key a CA can be there twice, under the same name.
        let is_signed = |list| {
            let mut namesakes = cas.iter().filter(|other| other.subject().as_raw() == name);
            namesakes.any(|ca| x509::is_signed_by(list, ca, algorithms))
        };
        if !of_name().all(is_signed) {
            let ca = x509::shown_name(ca.subject());
            return Err(CrlFault::Signature { ca });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::super::{Identity, ServerSettings, server};

    fn file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/support/mqtt_tls")
            .join(name)
    }

    /// Why a port with these files of client certificates does not start; empty if it does.
    fn refused(ca: &Path, crl: &Path) -> String {
        let cert = file("server.pem");
        let key = file("server.key");
        let settings = ServerSettings {
            identity: Identity {
                cert: &cert,
                key: &key,
            },
            client_ca: Some(ca),
            client_crl: Some(crl),
            client_optional: false,
            only_13: false,
            protocols: &[],
        };
        let refused = server(settings).err();
        refused.map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn a_list_that_would_refuse_every_client_of_a_ca_is_not_used() {
        let ca = file("client_ca.pem");
        let of_ca = file("crl_of_2024.pem");
        let forged = file("crl_forged.pem");
        assert_eq!(refused(&ca, &of_ca), "");
        let why = refused(&ca, &forged);
        assert!(
            why.contains("crl_forged.pem")
                && why.contains("\"hourbucket, client tests\" is not signed"),
            "{why}"
        );
        let why = refused(&file("ca.pem"), &of_ca);
        assert!(
            why.contains("crl_of_2024.pem")
                && why.contains("no revocation list of the CA \"hourbucket tests\""),
            "{why}"
        );
        let dir = tempfile::tempdir().unwrap();
        let together = |name: &str, parts: [&Path; 2]| {
            let path = dir.path().join(name);
            let text = parts.map(|part| std::fs::read_to_string(part).unwrap());
            std::fs::write(&path, text.concat()).unwrap();
            path
        };
        let both = together("both.pem", [&ca, &file("ca.pem")]);
        assert!(
            refused(&both, &of_ca).contains("no revocation list of the CA \"hourbucket tests\"")
        );
        // rustls takes the first list of an issuer.
        let two = together("two.pem", [&of_ca, &forged]);
        assert!(refused(&ca, &two).contains("is not signed"));
    }
}
