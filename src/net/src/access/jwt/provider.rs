//! Verifies the signatures of JWTs with ring, which verifies those of TLS too. The crate
//! `jsonwebtoken` would bring a second library of cryptography otherwise.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{
    self as by_ring, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

/// Makes this the provider of the process. It cannot change, so that a second call has no effect.
pub(super) fn install() {
    static PROVIDER: CryptoProvider = CryptoProvider {
        signer_factory: |_: &Algorithm, _: &EncodingKey| Err(ErrorKind::UnsupportedAlgorithm.into()),
        verifier_factory: verifier,
        // For thumbprints and private keys, which are not used.
        key_utils: KeyUtils::new_unimplemented(),
    };
    let _ = PROVIDER.install_default();
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    let method = match algorithm {
        Algorithm::RS256 => Method::Rsa(&by_ring::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Method::Rsa(&by_ring::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Method::Rsa(&by_ring::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Method::Rsa(&by_ring::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Method::Rsa(&by_ring::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Method::Rsa(&by_ring::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Method::Curve(&by_ring::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Method::Curve(&by_ring::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Method::Curve(&by_ring::ED25519),
        _ => return Err(ErrorKind::InvalidAlgorithm.into()),
    };
    Ok(Box::new(RingVerifier {
        algorithm: *algorithm,
        method,
        key: key.clone(),
    }))
}

enum Method {
    Rsa(&'static by_ring::RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

struct RingVerifier {
    algorithm: Algorithm,
    method: Method,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let verified = match (&self.method, self.key.kind()) {
            (Method::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Method::Rsa(parameters), DecodingKeyKind::SecretOrDer(der)) => {
                UnparsedPublicKey::new(*parameters, der).verify(message, signature)
            }
            (Method::Curve(algorithm), DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(*algorithm, point).verify(message, signature)
            }
            (Method::Curve(_), DecodingKeyKind::RsaModulusExponent { .. }) => {
                return Err(Error::new());
            }
        };
        verified.map_err(|_| Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
