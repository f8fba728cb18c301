//! JSON Web Tokens (RFC 7519) of an identity provider, for fleets that have one.
//!
//! A JWT is accepted if one of the configured keys signed it with one of the configured algorithms,
//! and if it is for this service (`iss`, `aud`). Its claims become a [`Grant`](super::Grant).
//! [`Grant::check`](super::Grant::check) checks its times (`exp`, `nbf`) like those of every other
//! grant, with the clock of the service; so this needs no clock.
//!
//! What the sender of a JWT cannot choose:
//! - The algorithm: the header names one, which must be configured and must fit the key. All of
//!   them are asymmetric, so a public key cannot be used as the secret of an HMAC, and `none` does
//!   not exist.
//! - The key: `kid` selects among the configured keys and does nothing else. Keys and URLs in the
//!   header (`jwk`, `jku`, `x5c`, `x5u`) are ignored. A header with `crit` is refused (RFC 7515
//!   §4.1.11).
//! - Patterns by its name: an identity contains no `*`, because it replaces `{id}` in patterns.
//!
//! The crate `jsonwebtoken` reads the format; ring verifies the signatures, as for TLS
//! ([`provider`]).

mod keys;
mod provider;
mod verified;

pub use self::keys::{JwtKeysError, KeyFault, KeyFaults};

use std::sync::Arc;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde_json::{Map, Value};

use self::keys::Key;
use self::verified::Verified;
use super::credentials::{own_patterns, valid_identity};
use config::{Jwt as JwtSettings, JwtAlgorithm};
use model::SensorPatterns;

/// A longer one is refused unread. With a dozen claims and an RSA signature of 4096 bits, one has
/// about 2 KiB.
const JWT_MAX_BYTES: usize = 8 * 1024;

/// The keys and rules that JWTs are verified with.
pub struct Jwt {
    settings: JwtSettings,
    keys: Vec<Key>,
    /// One for each algorithm that is allowed.
    validations: Vec<Validation>,
    verified: Verified<Claims>,
}

/// What the claims of a verified JWT say.
#[derive(Debug, PartialEq)]
pub(super) struct Claims {
    pub(super) id: String,
    pub(super) write: SensorPatterns,
    pub(super) read: SensorPatterns,
    /// Milliseconds since 1970, with the leeway.
    pub(super) expires_ms: i64,
    pub(super) valid_from_ms: Option<i64>,
}

/// Why a JWT is not accepted, regardless of the time. The texts contain nothing of the JWT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JwtFault {
    /// Longer than 8 KiB.
    #[error("JWT longer than 8192 bytes")]
    TooLong,
    /// Not three parts in Base64url, or no JSON in them.
    #[error(
        "malformed JWT; expected three parts in Base64url, the first a JSON object with a known \
         asymmetric `alg` and without `crit`"
    )]
    Malformed,
    /// `alg` is not one of `jwt.algorithms`.
    #[error("JWT rejected: its algorithm is not one of jwt.algorithms")]
    Algorithm,
    /// No key with this `kid` for this algorithm.
    #[error("JWT rejected: jwt.keys_file has no key with its `kid` for its algorithm")]
    UnknownKey,
    /// None of the keys signed it.
    #[error("JWT rejected: its signature does not match the key")]
    Signature,
    /// `iss` is missing or another one.
    #[error("JWT rejected: its issuer (`iss`) is not jwt.issuer")]
    Issuer,
    /// `aud` is missing or names others.
    #[error("JWT rejected: its audience (`aud`) is none of jwt.audience")]
    Audience,
    /// `exp` is missing or is not a time, or `nbf` is not one.
    #[error(
        "JWT rejected: `exp` is required, and `exp` and `nbf` must be numbers of seconds since 1970"
    )]
    Times,
    /// The claim with the identity is missing or is not one.
    #[error(
        "JWT rejected: the claim of jwt.id_claim must be 1 to 128 letters, digits and characters \
         of - _ . : @ / | + ="
    )]
    Identity,
    /// A claim that becomes the grant cannot be one.
    #[error(
        "JWT rejected: the claims of jwt.write_claim and jwt.read_claim must be lists of patterns \
         on sensor ids, or patterns separated by spaces"
    )]
    Scope,
}

impl JwtFault {
    /// Whether it may be an attempt to forge one: no key is known to have signed it.
    pub fn is_forged(self) -> bool {
        match self {
            JwtFault::TooLong
            | JwtFault::Malformed
            | JwtFault::Algorithm
            | JwtFault::UnknownKey
            | JwtFault::Signature => true,
            JwtFault::Issuer
            | JwtFault::Audience
            | JwtFault::Times
            | JwtFault::Identity
            | JwtFault::Scope => false,
        }
    }
}

impl Jwt {
    /// Reads the keys; `None` if no `jwt.keys_file` is configured.
    ///
    /// # Errors
    /// The file cannot be read, or its keys cannot be used; the error names all faults.
    pub fn load(settings: &JwtSettings) -> Result<Option<Jwt>, JwtKeysError> {
        let Some(path) = &settings.keys_file else {
            return Ok(None);
        };
        let allowed: Vec<Algorithm> = settings.algorithms.iter().copied().map(algorithm).collect();
        let keys = keys::load(path, &allowed)?;
        provider::install();
        let validations = allowed
            .iter()
            .map(|algorithm| validation(*algorithm, settings))
            .collect();
        Ok(Some(Jwt {
            settings: settings.clone(),
            keys,
            validations,
            verified: Verified::default(),
        }))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Never true: a file without keys is refused.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Verifies everything but the time. Cheap if it was verified before.
    pub(super) fn verify(&self, text: &str) -> Result<Arc<Claims>, JwtFault> {
        if text.len() > JWT_MAX_BYTES {
            return Err(JwtFault::TooLong);
        }
        self.verified.claims(text, || self.verify_signed(text))
    }

    fn verify_signed(&self, text: &str) -> Result<Claims, JwtFault> {
        let header = decode_header(text).map_err(|_| JwtFault::Malformed)?;
        if header.crit.is_some() {
            return Err(JwtFault::Malformed);
        }
        let validation = self
            .validations
            .iter()
            .find(|validation| validation.algorithms.contains(&header.alg));
        let validation = validation.ok_or(JwtFault::Algorithm)?;
        let mut fault = JwtFault::UnknownKey;
        for key in self
            .keys
            .iter()
            .filter(|key| key.fits(header.alg, header.kid.as_deref()))
        {
            match decode::<Map<String, Value>>(text, &key.key, validation) {
                Ok(verified) => return self.claims(&verified.claims),
                Err(error) => fault = fault_of(error.kind()),
            }
            if fault != JwtFault::Signature {
                return Err(fault);
            }
        }
        Err(fault)
    }

    fn claims(&self, claims: &Map<String, Value>) -> Result<Claims, JwtFault> {
        let JwtSettings {
            id_claim,
            write_claim,
            read_claim,
            write_default,
            read_default,
            ..
        } = &self.settings;
        let id = claims
            .get(id_claim)
            .and_then(Value::as_str)
            .filter(|id| valid_identity(id));
        let id = id.ok_or(JwtFault::Identity)?;
        let leeway_ms = i64::try_from(self.settings.leeway.as_millis()).unwrap_or(i64::MAX);
        let expires_ms = claims.get("exp").and_then(time_ms).ok_or(JwtFault::Times)?;
        let valid_from_ms = claims
            .get("nbf")
            .map(|nbf| time_ms(nbf).ok_or(JwtFault::Times))
            .transpose()?;
        Ok(Claims {
            id: id.to_owned(),
            write: patterns(claims.get(write_claim), write_default, id)?,
            read: patterns(claims.get(read_claim), read_default, id)?,
            expires_ms: expires_ms.saturating_add(leeway_ms),
            valid_from_ms: valid_from_ms.map(|from_ms| from_ms.saturating_sub(leeway_ms)),
        })
    }
}

/// Not shown: settings and keys say more than a log needs.
impl std::fmt::Debug for Jwt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Jwt({} keys)", self.keys.len())
    }
}

fn algorithm(setting: JwtAlgorithm) -> Algorithm {
    match setting {
        JwtAlgorithm::Rs256 => Algorithm::RS256,
        JwtAlgorithm::Rs384 => Algorithm::RS384,
        JwtAlgorithm::Rs512 => Algorithm::RS512,
        JwtAlgorithm::Ps256 => Algorithm::PS256,
        JwtAlgorithm::Ps384 => Algorithm::PS384,
        JwtAlgorithm::Ps512 => Algorithm::PS512,
        JwtAlgorithm::Es256 => Algorithm::ES256,
        JwtAlgorithm::Es384 => Algorithm::ES384,
        JwtAlgorithm::EdDsa => Algorithm::EdDSA,
    }
}

/// The crate does not refuse a JWT without `iss` or `aud` unless they are required claims. Times
/// are not checked here.
fn validation(algorithm: Algorithm, settings: &JwtSettings) -> Validation {
    let mut validation = Validation::new(algorithm);
    (validation.validate_exp, validation.validate_nbf) = (false, false);
    validation.set_required_spec_claims(&["iss", "aud"]);
    validation.set_issuer(settings.issuer.as_slice());
    validation.set_audience(&settings.audience);
    validation
}

fn fault_of(error: &ErrorKind) -> JwtFault {
    match error {
        ErrorKind::InvalidSignature => JwtFault::Signature,
        ErrorKind::InvalidIssuer => JwtFault::Issuer,
        ErrorKind::InvalidAudience => JwtFault::Audience,
        ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => JwtFault::Issuer,
        ErrorKind::MissingRequiredClaim(_) => JwtFault::Audience,
        ErrorKind::InvalidAlgorithm => JwtFault::Algorithm,
        _ => JwtFault::Malformed,
    }
}

/// Seconds since 1970, also with a fraction (RFC 7519 §2), in milliseconds.
fn time_ms(claim: &Value) -> Option<i64> {
    let seconds = claim
        .as_f64()
        .filter(|seconds| (0.0..1e12).contains(seconds))?;
    Some((seconds * 1000.0) as i64)
}

/// The patterns of a claim; those of the settings if it is absent.
fn patterns(
    claim: Option<&Value>,
    default: &[String],
    id: &str,
) -> Result<SensorPatterns, JwtFault> {
    let texts: Option<Vec<&str>> = match claim {
        None => Some(default.iter().map(String::as_str).collect()),
        Some(Value::String(text)) => Some(text.split_whitespace().collect()),
        Some(Value::Array(list)) => list.iter().map(Value::as_str).collect(),
        Some(_) => None,
    };
    own_patterns(&texts.ok_or(JwtFault::Scope)?, id).map_err(|_| JwtFault::Scope)
}

#[cfg(test)]
mod credentials_tests;
#[cfg(test)]
mod forged_tests;
#[cfg(test)]
mod tests;
