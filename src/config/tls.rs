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
        self.is_on() && self.client_ca_file.is_some() && self.client_auth == ClientAuth::Required
    }
}

pub(super) fn read(mut s: Section<'_>) -> Tls {
    let auth = [("required", ClientAuth::Required), ("optional", ClientAuth::Optional)];
    let tls = Tls {
        cert_file: s.file("cert_file"),
        key_file: s.file("key_file"),
        client_ca_file: s.file("client_ca_file"),
        client_auth: s.choice("client_auth", ClientAuth::Required, &auth),
        min_version: s.choice("min_version", TlsVersion::V12, &[("1.2", TlsVersion::V12), ("1.3", TlsVersion::V13)]),
    };
    let path = s.key("");
    check(path.trim_end_matches('.'), &tls, s.report);
    s.end();
    tls
}

/// Reports impossible combinations within the section.
fn check(path: &str, tls: &Tls, report: &mut Report) {
    let key = |name: &str| format!("{path}.{name}");
    check_files(path, "client", [&tls.cert_file, &tls.key_file, &tls.client_ca_file], report);
    if report.is_set(&key("client_auth")) && tls.client_ca_file.is_none() {
        report.impossible(
            &[&key("client_auth"), &key("client_ca_file")],
            "without client_ca_file, client certificates cannot be verified",
            "set client_ca_file, or remove client_auth",
        );
    }
}

/// Checks certificate, key and CA of a port; `who` names the peers in messages.
pub(super) fn check_files(path: &str, who: &str, files: [&Option<PathBuf>; 3], report: &mut Report) {
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

/// Checks a certificate and its key. `what` begins the message and names the feature that needs both.
pub(super) fn check_pair(path: &str, what: &str, files: [&Option<PathBuf>; 2], report: &mut Report) {
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
