//! Keys and JWTs that the program openssl makes, in a directory of the test.

#![allow(clippy::unwrap_used, reason = "only tests use it")]
#![allow(
    unreachable_pub,
    dead_code,
    reason = "included by several tests, none of which uses all of it"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};

/// Runs openssl in this directory; returns what it prints.
///
/// # Panics
/// It fails.
pub fn openssl(dir: &Path, arguments: &[&str]) -> Vec<u8> {
    let done = Command::new("openssl")
        .args(arguments)
        .current_dir(dir)
        .output()
        .expect("openssl is installed");
    assert!(
        done.status.success(),
        "openssl {arguments:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    done.stdout
}

/// A key pair of an issuer of JWTs.
pub struct JwtKey {
    dir: PathBuf,
    alg: &'static str,
}

impl JwtKey {
    /// Makes a key for `RS256`, `ES256` or `EdDSA`, in files that begin with this name.
    pub fn new(dir: &Path, name: &str, alg: &'static str) -> JwtKey {
        let dir = dir.join(name);
        std::fs::create_dir(&dir).unwrap();
        let kind: &[&str] = match alg {
            "RS256" => &["RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
            "ES256" => &["EC", "-pkeyopt", "ec_paramgen_curve:P-256"],
            _ => &["ED25519"],
        };
        openssl(
            &dir,
            &[&["genpkey", "-out", "key.pem", "-algorithm"], kind].concat(),
        );
        openssl(
            &dir,
            &["pkey", "-in", "key.pem", "-pubout", "-out", "public.pem"],
        );
        JwtKey { dir, alg }
    }

    /// The public key.
    pub fn public_pem(&self) -> String {
        std::fs::read_to_string(self.dir.join("public.pem")).unwrap()
    }

    /// Signs these claims.
    pub fn issue(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": self.alg, "typ": "JWT"}), claims)
    }

    /// Signs with the algorithm of the key, regardless of the header.
    pub fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = format!(
            "{}.{}",
            BASE64.encode(header.to_string()),
            BASE64.encode(claims.to_string())
        );
        std::fs::write(self.dir.join("message"), &message).unwrap();
        let signature = match self.alg {
            "EdDSA" => openssl(
                &self.dir,
                &[
                    "pkeyutl", "-sign", "-rawin", "-inkey", "key.pem", "-in", "message",
                ],
            ),
            _ => openssl(
                &self.dir,
                &["dgst", "-sha256", "-sign", "key.pem", "message"],
            ),
        };
        let signature = if self.alg == "ES256" {
            fixed(&signature)
        } else {
            signature
        };
        format!("{message}.{}", BASE64.encode(signature))
    }
}

/// The two numbers of 32 bytes in an ECDSA signature in DER, as JWTs have them (RFC 7518 §3.4).
fn fixed(der: &[u8]) -> Vec<u8> {
    let r_length = usize::from(der[3]);
    let rest = &der[4..];
    let r = &rest[..r_length];
    let s = &rest[r_length + 2..];
    let padded = |number: &[u8]| {
        let number: Vec<u8> = number
            .iter()
            .copied()
            .skip_while(|byte| *byte == 0)
            .collect();
        [vec![0; 32 - number.len()], number].concat()
    };
    [padded(r), padded(s)].concat()
}

/// A CA with its server certificate, all files in one directory.
pub struct Ca {
    pub dir: PathBuf,
}

impl Ca {
    /// Makes `ca.pem`, `server.pem` with its key for 127.0.0.1, and `crl.pem` without entries.
    pub fn new(dir: &Path) -> Ca {
        std::fs::create_dir_all(dir).unwrap();
        let settings = "[ca]\ndefault_ca = d\n[d]\ndatabase = index\nserial = serial\n\
            crlnumber = crlnumber\n\
                        new_certs_dir = .\ncertificate = ca.pem\nprivate_key = ca.key\n\
                        default_md = sha256\n\
                        default_days = 30\ndefault_crl_days = 30\npolicy = p\n\
                        copy_extensions = copy\n\
                        unique_subject = no\n[p]\ncommonName = optional\n";
        for (name, text) in [
            ("ca.cnf", settings),
            ("index", ""),
            ("serial", "1000\n"),
            ("crlnumber", "1000\n"),
        ] {
            std::fs::write(dir.join(name), text).unwrap();
        }
        let ca = Ca {
            dir: dir.to_owned(),
        };
        let usage = "keyUsage=critical,keyCertSign,cRLSign";
        let made = [
            "-x509",
            "-days",
            "30",
            "-addext",
            "basicConstraints=critical,CA:true",
            "-addext",
            usage,
        ];
        ca.request(
            "ca",
            "/CN=test-ca",
            &[&made[..], &["-out", "ca.pem"]].concat(),
        );
        ca.issue("server", "/CN=server", "IP:127.0.0.1");
        ca.write_crl();
        ca
    }

    fn request(&self, name: &str, subject: &str, more: &[&str]) {
        let key = format!("{name}.key");
        let kind = [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            &key,
        ];
        openssl(
            &self.dir,
            &[
                &["req", "-new", "-config", "/dev/null", "-subj", subject],
                &kind[..],
                more,
            ]
            .concat(),
        );
    }

    /// Makes a certificate with this subject and these subject alternative names (none if empty):
    /// `NAME.pem`, `NAME.key`.
    pub fn issue(&self, name: &str, subject: &str, alternative: &str) {
        let request = format!("{name}.csr");
        let alternative = format!("subjectAltName={alternative}");
        let mut more = vec!["-addext", "basicConstraints=CA:false", "-out", &request];
        if alternative.len() > "subjectAltName=".len() {
            more.extend(["-addext", &alternative]);
        }
        self.request(name, subject, &more);
        let out = format!("{name}.pem");
        openssl(
            &self.dir,
            &[
                "ca", "-batch", "-notext", "-config", "ca.cnf", "-in", &request, "-out", &out,
            ],
        );
    }

    /// Revokes a certificate in `crl.pem`.
    pub fn revoke(&self, name: &str) {
        openssl(
            &self.dir,
            &["ca", "-config", "ca.cnf", "-revoke", &format!("{name}.pem")],
        );
        self.write_crl();
    }

    fn write_crl(&self) {
        openssl(
            &self.dir,
            &["ca", "-config", "ca.cnf", "-gencrl", "-out", "crl.pem"],
        );
    }

    /// A file, for the life of the process.
    pub fn text(&self, file: &str) -> &'static str {
        std::fs::read_to_string(self.dir.join(file)).unwrap().leak()
    }

    /// The keys `cert_file`, `key_file`, `client_ca_file` and `client_crl_file`.
    pub fn settings(&self) -> String {
        let file =
            |key: &str, name: &str| format!("{key} = \"{}\"\n", self.dir.join(name).display());
        [
            ("cert_file", "server.pem"),
            ("key_file", "server.key"),
            ("client_ca_file", "ca.pem"),
            ("client_crl_file", "crl.pem"),
        ]
        .map(|(key, name)| file(key, name))
        .concat()
    }
}
