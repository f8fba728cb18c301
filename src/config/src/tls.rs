//! Reads `[http.tls]` and `[admin.tls]`: the settings for HTTPS on a port.

use std::path::PathBuf;

use super::reader::{Report, Section};

/// `[http.tls]` and `[admin.tls]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// `cert_file`: PEM, with its chain; enables HTTPS. Read again when it changes.
    pub cert_file: Option<PathBuf>,
    /// `key_file`: PEM, the key of `cert_file`.
    pub key_file: Option<PathBuf>,
    /// `client_ca_file`: PEM; the CA of client certificates.
    pub client_ca_file: Option<PathBuf>,
    /// `client_crl_file`: PEM; revocation lists of client certificates. Read again when it changes.
    pub client_crl_file: Option<PathBuf>,
    /// `client_auth`: whether a client certificate is required (default required).
    pub client_auth: ClientAuth,
    /// `min_version` (default 1.2).
    pub min_version: TlsVersion,
}

/// Whether clients must present a certificate if `client_ca_file` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// Connections without a certificate are refused.
    Required,
    /// A client may connect without a certificate; one that is presented must be valid.
    Optional,
    /// As [`ClientAuth::Required`], and the certificate is the identity of the sender.
    Identity,
}

/// The lowest TLS version to accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    V12,
    /// TLS 1.3.
    V13,
}

impl Tls {
    /// Whether the port speaks HTTPS.
    pub fn is_on(&self) -> bool {
        self.cert_file.is_some()
    }

    /// Whether every client needs a certificate.
    pub fn is_gate(&self) -> bool {
        self.is_on() && self.client_ca_file.is_some() && self.client_auth != ClientAuth::Optional
    }

    /// Whether the certificate is the identity of a sender.
    pub fn is_identity(&self) -> bool {
        self.is_gate() && self.client_auth == ClientAuth::Identity
    }
}

pub(super) fn read(mut s: Section<'_>) -> Tls {
    let auth = [
        ("required", ClientAuth::Required),
        ("optional", ClientAuth::Optional),
        ("identity", ClientAuth::Identity),
    ];
    let tls = Tls {
        cert_file: s.file("cert_file"),
        key_file: s.file("key_file"),
        client_ca_file: s.file("client_ca_file"),
        client_crl_file: s.file("client_crl_file"),
        client_auth: s.choice("client_auth", ClientAuth::Required, &auth),
        min_version: s.choice(
            "min_version",
            TlsVersion::V12,
            &[("1.2", TlsVersion::V12), ("1.3", TlsVersion::V13)],
        ),
    };
    let path = s.key("");
    check(path.trim_end_matches('.'), &tls, s.report);
    s.end();
    tls
}

/// Reports impossible combinations within the section.
fn check(path: &str, tls: &Tls, report: &mut Report) {
    check_files(
        path,
        "client",
        [&tls.cert_file, &tls.key_file, &tls.client_ca_file],
        report,
    );
    check_clients(path, tls.client_ca_file.is_some(), report);
}

/// Reports settings of client certificates without their CA.
pub(super) fn check_clients(path: &str, has_ca: bool, report: &mut Report) {
    let key = |name: &str| format!("{path}.{name}");
    for name in ["client_auth", "client_crl_file"] {
        if report.is_set(&key(name)) && !has_ca {
            report.impossible(
                &[&key(name), &key("client_ca_file")],
                "without client_ca_file, client certificates cannot be verified",
                format!("set client_ca_file, or remove {name}"),
            );
        }
    }
}

/// Checks certificate, key and CA of a port; `who` names the peers in messages.
pub(super) fn check_files(
    path: &str,
    who: &str,
    files: [&Option<PathBuf>; 3],
    report: &mut Report,
) {
    let key = |name: &str| format!("{path}.{name}");
    let [cert_file, key_file, client_ca_file] = files;
    check_pair(path, "TLS needs", [cert_file, key_file], report);
    if client_ca_file.is_some() && cert_file.is_none() {
        report.impossible(
            &[&key("client_ca_file"), &key("cert_file")],
            format!("without TLS no {who} can present a certificate"),
            "set cert_file and key_file, or remove client_ca_file",
        );
    }
}

/// Checks a certificate and its key. `what` begins the message and names the feature that needs
/// both.
pub(super) fn check_pair(
    path: &str,
    what: &str,
    files: [&Option<PathBuf>; 2],
    report: &mut Report,
) {
    let key = |name: &str| format!("{path}.{name}");
    let (there, missing) = match files.map(Option::is_some) {
        [true, false] => ("cert_file", "key_file"),
        [false, true] => ("key_file", "cert_file"),
        _ => return,
    };
    report.impossible(
        &[&key(there), &key(missing)],
        format!("{what} a certificate and its key, but {missing} is not set"),
        format!("set {missing} too, or remove {there}"),
    );
}
