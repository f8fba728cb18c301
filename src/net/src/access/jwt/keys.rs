//! The file with the public keys of the issuer: PEM (`PUBLIC KEY`, one or several) or a JWKS (RFC
//! 7517), told apart by its first character.
//!
//! Keys of a JWKS that are for something else (encryption, other algorithms, types that are not
//! known here) are skipped, as RFC 7517 §5 asks for: providers publish them next to those that
//! sign. Private and symmetric keys are faults. The faults of a file are reported together, by
//! position and `kid`, without any part of a key.

use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use rustls_pki_types::pem::{SectionKind, from_buf};
use serde_json::{Map, Value};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_PKCS1_RSAENCRYPTION,
    OID_SIG_ED25519,
};
use x509_parser::prelude::FromDer;
use x509_parser::public_key::RSAPublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::access::credentials::valid_identity;

/// The largest file to read.
const FILE_MAX_BYTES: u64 = 1 << 20;
/// Keys of a file. Without `kid` a JWT is compared with each of its algorithm, which costs up to
/// 0.1 ms.
const KEYS_MAX: usize = 32;
/// Faults of one file that an error lists.
const FAULTS_MAX: usize = 20;
/// The sizes of RSA keys that ring accepts.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A public key.
pub(super) struct Key {
    kid: Option<String>,
    /// Those that it may be used with, of the allowed ones.
    algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

impl Key {
    /// Whether it is the key for a JWT with this header. A key without `kid` (PEM) fits every
    /// `kid`.
    pub(super) fn fits(&self, algorithm: Algorithm, kid: Option<&str>) -> bool {
        let is_named = self
            .kid
            .as_deref()
            .zip(kid)
            .is_none_or(|(own, kid)| own == kid);
        is_named && self.algorithms.contains(&algorithm)
    }
}

/// Why a file of keys is not usable.
#[derive(Debug, thiserror::Error)]
pub enum JwtKeysError {
    /// The file cannot be read.
    #[error("jwt.keys_file: cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// Keys cannot be used.
    #[error("jwt.keys_file: {}: {faults}", path.display())]
    Keys {
        /// Path of the file.
        path: PathBuf,
        /// All of them.
        faults: KeyFaults,
    },
}

/// The faults of a file of keys, in its order; at least one.
#[derive(Debug)]
pub struct KeyFaults(Vec<(Option<KeyPlace>, KeyFault)>);

/// A key of the file.
#[derive(Debug)]
struct KeyPlace {
    /// Position, from 1.
    at: usize,
    kid: Option<String>,
}

/// The fault of a file of keys or of one key. No variant holds any part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum KeyFault {
    #[error("is larger than 1 MiB")]
    FileTooLarge,
    #[error("is neither PEM nor a JWKS; expected -----BEGIN PUBLIC KEY-----, or {{\"keys\": […]}}")]
    Format,
    #[error("has no key that can verify one of jwt.algorithms")]
    NoKey,
    #[error("has more than {KEYS_MAX} keys")]
    TooManyKeys,
    #[error(
        "is a private key; put the public key into the file, and keep the private key with the \
         issuer"
    )]
    Private,
    #[error(
        "is a symmetric key (`oct`), with which everyone who can verify a JWT can make one; use a \
         key pair"
    )]
    Symmetric,
    #[error("is not a public key of a known kind; expected RSA, P-256, P-384 or Ed25519")]
    Kind,
    #[error("has missing or wrong parameters for its kind")]
    Parameters,
    #[error("RSA keys must have 2048 to 8192 bits")]
    RsaSize,
    #[error("is not a JSON object")]
    NotAnObject,
}

impl fmt::Display for KeyFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (key, fault)) in self.0.iter().take(FAULTS_MAX).enumerate() {
            let separator = if i > 0 { "; " } else { "" };
            match key {
                Some(KeyPlace { at, kid: Some(kid) }) => {
                    write!(f, "{separator}key {at} ({kid}): {fault}")?
                }
                Some(KeyPlace { at, kid: None }) => write!(f, "{separator}key {at}: {fault}")?,
                None => write!(f, "{separator}{fault}")?,
            }
        }
        match self.0.len().saturating_sub(FAULTS_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// Reads the keys that can verify one of the `allowed` algorithms.
pub(super) fn load(path: &Path, allowed: &[Algorithm]) -> Result<Vec<Key>, JwtKeysError> {
    let read = || {
        let is_large = std::fs::metadata(path)?.len() > FILE_MAX_BYTES;
        (!is_large).then(|| std::fs::read(path)).transpose()
    };
    let bytes = read().map_err(|source| JwtKeysError::Read {
        path: path.to_owned(),
        source,
    })?;
    let keys = match &bytes {
        None => Err(KeyFaults(vec![(None, KeyFault::FileTooLarge)])),
        Some(bytes) => parse(bytes, allowed),
    };
    keys.map_err(|faults| JwtKeysError::Keys {
        path: path.to_owned(),
        faults,
    })
}

/// A key that is skipped is `None`.
type Parsed = Result<Option<(DecodingKey, Vec<Algorithm>)>, KeyFault>;

pub(super) fn parse(bytes: &[u8], allowed: &[Algorithm]) -> Result<Vec<Key>, KeyFaults> {
    let of_file = |fault| KeyFaults(vec![(None, fault)]);
    let found = match bytes.trim_ascii_start().first() {
        Some(b'{') => of_jwks(bytes).ok_or_else(|| of_file(KeyFault::Format))?,
        _ => of_pem(bytes).ok_or_else(|| of_file(KeyFault::Format))?,
    };
    let mut keys = vec![];
    let mut faults = vec![];
    for (at, (kid, parsed)) in found.into_iter().enumerate() {
        match parsed {
            Ok(Some((key, fitting))) => {
                let algorithms: Vec<_> = fitting
                    .into_iter()
                    .filter(|one| allowed.contains(one))
                    .collect();
                if !algorithms.is_empty() {
                    keys.push(Key {
                        kid,
                        algorithms,
                        key,
                    });
                }
            }
            Ok(None) => {}
            Err(fault) => {
                let kid = kid.filter(|kid| valid_identity(kid));
                faults.push((Some(KeyPlace { at: at + 1, kid }), fault));
            }
        }
    }
    if faults.is_empty() && keys.is_empty() {
        faults.push((None, KeyFault::NoKey));
    }
    if keys.len() > KEYS_MAX {
        faults.push((None, KeyFault::TooManyKeys));
    }
    if faults.is_empty() {
        Ok(keys)
    } else {
        Err(KeyFaults(faults))
    }
}

fn of_pem(bytes: &[u8]) -> Option<Vec<(Option<String>, Parsed)>> {
    let mut rest = bytes;
    let mut found = vec![];
    while let Some((kind, der)) = from_buf(&mut rest).ok()? {
        let parsed = match kind {
            SectionKind::PublicKey => of_spki(&der).map(Some),
            SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                Err(KeyFault::Private)
            }
            _ => Err(KeyFault::Kind),
        };
        found.push((None, parsed));
    }
    (!found.is_empty()).then_some(found)
}

/// `SubjectPublicKeyInfo` (RFC 5280 §4.1).
fn of_spki(der: &[u8]) -> Result<(DecodingKey, Vec<Algorithm>), KeyFault> {
    let (_, info) = SubjectPublicKeyInfo::from_der(der).map_err(|_| KeyFault::Kind)?;
    let key = &*info.subject_public_key.data;
    let kind = &info.algorithm.algorithm;
    let curve = info.algorithm.parameters.and_then(|curve| curve.oid().ok());
    if *kind == OID_PKCS1_RSAENCRYPTION {
        let (_, parts) = RSAPublicKey::from_der(key).map_err(|_| KeyFault::Parameters)?;
        check_modulus(parts.modulus)?;
        Ok((DecodingKey::from_rsa_der(key), rsa_algorithms()))
    } else if *kind == OID_SIG_ED25519 && key.len() == 32 {
        Ok((DecodingKey::from_ed_der(key), vec![Algorithm::EdDSA]))
    } else if *kind == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == Some(OID_EC_P256) {
        Ok((of_point(key, 32)?, vec![Algorithm::ES256]))
    } else if *kind == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == Some(OID_NIST_EC_P384) {
        Ok((of_point(key, 48)?, vec![Algorithm::ES384]))
    } else {
        Err(KeyFault::Kind)
    }
}

fn rsa_algorithms() -> Vec<Algorithm> {
    AlgorithmFamily::Rsa.algorithms().to_vec()
}

fn check_modulus(modulus: &[u8]) -> Result<&[u8], KeyFault> {
    let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
    let modulus = &modulus[zeros..];
    let bits = modulus.first().map_or(0, |first| {
        modulus.len() * 8 - first.leading_zeros() as usize
    });
    if RSA_BITS.contains(&bits) {
        Ok(modulus)
    } else {
        Err(KeyFault::RsaSize)
    }
}

/// An uncompressed point (SEC 1 §2.3.3).
fn of_point(point: &[u8], bytes: usize) -> Result<DecodingKey, KeyFault> {
    let is_one = point.len() == 1 + 2 * bytes && point[0] == 4;
    if is_one {
        Ok(DecodingKey::from_ec_der(point))
    } else {
        Err(KeyFault::Parameters)
    }
}

fn of_jwks(bytes: &[u8]) -> Option<Vec<(Option<String>, Parsed)>> {
    let set: Value = serde_json::from_slice(bytes).ok()?;
    let keys = set.get("keys")?.as_array()?;
    let kid = |key: &Value| key.get("kid").and_then(Value::as_str).map(str::to_owned);
    Some(
        keys.iter()
            .map(|key| {
                (
                    kid(key),
                    key.as_object()
                        .ok_or(KeyFault::NotAnObject)
                        .and_then(of_jwk),
                )
            })
            .collect(),
    )
}

/// RFC 7517 §4, RFC 7518 §6, RFC 8037 §2.
fn of_jwk(jwk: &Map<String, Value>) -> Parsed {
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    let bytes = |name: &str| {
        let decoded = text(name).and_then(|text| BASE64_URL_SAFE_NO_PAD.decode(text).ok());
        decoded.ok_or(KeyFault::Parameters)
    };
    if text("kty") == Some("oct") {
        return Err(KeyFault::Symmetric);
    }
    if jwk.contains_key("d") {
        return Err(KeyFault::Private);
    }
    if text("use").is_some_and(|purpose| purpose != "sig") {
        return Ok(None);
    }
    let point = |size| -> Result<DecodingKey, KeyFault> {
        of_point(&[&[4], &*bytes("x")?, &*bytes("y")?].concat(), size)
    };
    let (key, mut algorithms) = match (text("kty"), text("crv")) {
        (Some("RSA"), _) => {
            let modulus = bytes("n")?;
            let exponent = bytes("e")?;
            let exponent: Vec<u8> = exponent.into_iter().skip_while(|byte| *byte == 0).collect();
            (
                DecodingKey::from_rsa_raw_components(check_modulus(&modulus)?, &exponent),
                rsa_algorithms(),
            )
        }
        (Some("EC"), Some("P-256")) => (point(32)?, vec![Algorithm::ES256]),
        (Some("EC"), Some("P-384")) => (point(48)?, vec![Algorithm::ES384]),
        (Some("OKP"), Some("Ed25519")) => {
            let key = Some(bytes("x")?)
                .filter(|key| key.len() == 32)
                .ok_or(KeyFault::Parameters)?;
            (DecodingKey::from_ed_der(&key), vec![Algorithm::EdDSA])
        }
        _ => return Ok(None),
    };
    if let Some(only) = text("alg") {
        algorithms.retain(|algorithm| only.parse() == Ok(*algorithm));
    }
    Ok(Some((key, algorithms)))
}
