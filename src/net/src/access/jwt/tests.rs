//! JWTs that are good or for others, their keys, and files of keys with every fault.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD as BASE64};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;

use super::*;
use config::Config;

/// An issuer with a key for EdDSA.
pub(super) struct Issuer(Ed25519KeyPair);

impl Issuer {
    pub(super) fn new() -> Issuer {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Issuer(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    pub(super) fn public(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    pub(super) fn pem(&self) -> String {
        pem(
            "PUBLIC KEY",
            &[
                b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00",
                self.public(),
            ]
            .concat(),
        )
    }

    pub(super) fn jwk(&self, kid: &str) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": kid, "x": BASE64.encode(self.public())})
    }

    pub(super) fn sign(&self, header: &Value, claims: &Value) -> String {
        signed(header, claims, |message| {
            self.0.sign(message).as_ref().to_vec()
        })
    }

    /// With its usual header.
    pub(super) fn issue(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "EdDSA", "typ": "JWT"}), claims)
    }
}

pub(super) fn signed(
    header: &Value,
    claims: &Value,
    sign: impl FnOnce(&[u8]) -> Vec<u8>,
) -> String {
    let message = format!(
        "{}.{}",
        BASE64.encode(header.to_string()),
        BASE64.encode(claims.to_string())
    );
    let signature = sign(message.as_bytes());
    format!("{message}.{}", BASE64.encode(signature))
}

fn pem(label: &str, der: &[u8]) -> String {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        BASE64_STANDARD.encode(der)
    )
}

pub(super) fn settings() -> config::Jwt {
    config::Jwt {
        issuer: Some("https://idp.example".into()),
        audience: vec!["hourbucket".into(), "other".into()],
        ..Config::default().jwt
    }
}

pub(super) fn load(settings: config::Jwt, keys: &str) -> Jwt {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), keys).unwrap();
    Jwt::load(&config::Jwt {
        keys_file: Some(file.path().into()),
        ..settings
    })
    .unwrap()
    .unwrap()
}

/// Good claims, with changes; null removes one.
pub(super) fn claims(changes: &Value) -> Value {
    let mut claims =
        json!({"iss": "https://idp.example", "aud": "hourbucket", "sub": "gw1", "exp": 2000});
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

#[test]
fn the_claims_of_a_good_jwt_become_a_grant() {
    let issuer = Issuer::new();
    let jwks = json!({"keys": [issuer.jwk("k1")]}).to_string();
    for keys in [issuer.pem(), jwks] {
        let jwt = load(settings(), &keys);
        let plain = jwt
            .verify(&issuer.issue(&claims(&json!({"aud": ["x", "hourbucket"]}))))
            .unwrap();
        assert_eq!(
            (plain.id.as_str(), plain.expires_ms, plain.valid_from_ms),
            ("gw1", 2_030_000, None)
        );
        // By default it may write the sensor with its own name, and read none.
        assert!(
            plain.write.matches("gw1") && !plain.write.matches("gw1-7") && plain.read.is_none()
        );
        let scope = json!({"write": ["{id}-*", "x"], "read": "a {id}", "nbf": 1000.5});
        let own = jwt.verify(&issuer.issue(&claims(&scope))).unwrap();
        assert!(own.write.matches("gw1-7") && own.write.matches("x") && !own.write.matches("gw1"));
        assert!(own.read.matches("a") && own.read.matches("gw1") && !own.read.matches("gw1-7"));
        assert_eq!(own.valid_from_ms, Some(970_500));
        let none = jwt
            .verify(&issuer.issue(&claims(&json!({"write": [], "read": "*"}))))
            .unwrap();
        assert!(none.write.is_none() && none.read.is_all());
    }
}

#[test]
fn the_names_of_claims_and_the_scope_without_them_are_settings() {
    let issuer = Issuer::new();
    let name = |name: &str| format!("https://hourbucket.example/{name}");
    let changed = config::Jwt {
        id_claim: "device".into(),
        write_claim: name("write"),
        read_claim: name("read"),
        write_default: vec!["{id}-*".into()],
        read_default: vec!["{id}".into()],
        leeway: Duration::ZERO,
        ..settings()
    };
    let jwt = load(changed, &issuer.pem());
    let got = jwt
        .verify(&issuer.issue(&claims(&json!({"device": "d1", "write": ["*"]}))))
        .unwrap();
    assert_eq!((got.id.as_str(), got.expires_ms), ("d1", 2_000_000));
    assert!(got.write.matches("d1-1") && !got.write.matches("x") && got.read.matches("d1"));
    let got = jwt
        .verify(&issuer.issue(&claims(&json!({"device": "d1", name("write"): "x"}))))
        .unwrap();
    assert!(got.write.matches("x") && !got.write.matches("d1-1"));
}

#[test]
fn claims_that_are_missing_or_of_another_service_are_refused() {
    let issuer = Issuer::new();
    let jwt = load(settings(), &issuer.pem());
    for (changes, fault) in [
        (json!({"iss": "https://evil.example"}), JwtFault::Issuer),
        (json!({"iss": null}), JwtFault::Issuer),
        (json!({"iss": 7}), JwtFault::Issuer),
        (json!({"aud": "another-service"}), JwtFault::Audience),
        (json!({"aud": ["a", "b"]}), JwtFault::Audience),
        (json!({"aud": []}), JwtFault::Audience),
        (json!({"aud": null}), JwtFault::Audience),
        (json!({"exp": null}), JwtFault::Times),
        (json!({"exp": "2000"}), JwtFault::Times),
        (json!({"exp": -1}), JwtFault::Times),
        (json!({"exp": 1e300}), JwtFault::Times),
        (json!({"nbf": "soon"}), JwtFault::Times),
        (json!({"sub": null}), JwtFault::Identity),
        (json!({"sub": ""}), JwtFault::Identity),
        (json!({"sub": "*"}), JwtFault::Identity),
        (json!({"sub": "gw1 x"}), JwtFault::Identity),
        (json!({"sub": "x".repeat(129)}), JwtFault::Identity),
        (json!({"write": 7}), JwtFault::Scope),
        (json!({"write": [7]}), JwtFault::Scope),
        (json!({"read": {"all": true}}), JwtFault::Scope),
        (json!({"read": [""]}), JwtFault::Scope),
        (json!({"write": ["a*b*c*d*e*f*g*h*i*j"]}), JwtFault::Scope),
    ] {
        assert_eq!(
            jwt.verify(&issuer.issue(&claims(&changes))),
            Err(fault),
            "{changes}"
        );
        assert!(!fault.is_forged(), "{changes}");
    }
}

#[test]
fn kid_selects_the_key_and_alg_its_use() {
    let first = Issuer::new();
    let second = Issuer::new();
    let pkcs8 =
        EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .unwrap();
    let curve = EcdsaKeyPair::from_pkcs8(
        &ECDSA_P256_SHA256_FIXED_SIGNING,
        pkcs8.as_ref(),
        &SystemRandom::new(),
    )
    .unwrap();
    let (x, y) = curve.public_key().as_ref()[1..].split_at(32);
    let point = json!({"kty": "EC", "crv": "P-256", "kid": "c", "alg": "ES256", "x": BASE64.encode(x),
                       "y": BASE64.encode(y)});
    let for_encryption = json!({"kty": "RSA", "use": "enc", "kid": "e", "n": "AQAB", "e": "AQAB"});
    let keys = json!({"keys": [first.jwk("a"), second.jwk("b"), point, for_encryption, {"kty": "future"}]});
    let jwt = load(settings(), &keys.to_string());
    assert_eq!(jwt.len(), 3);
    let verify = |text: String| jwt.verify(&text).map(drop);
    let eddsa = |kid: &str| json!({"alg": "EdDSA", "kid": kid});
    let good = claims(&json!({}));
    assert_eq!(verify(first.sign(&eddsa("a"), &good)), Ok(()));
    assert_eq!(verify(second.sign(&eddsa("b"), &good)), Ok(()));
    assert_eq!(
        verify(second.sign(&eddsa("a"), &good)),
        Err(JwtFault::Signature)
    );
    assert_eq!(
        verify(second.issue(&good)),
        Ok(()),
        "without kid every key is tried"
    );
    assert_eq!(
        verify(first.sign(&eddsa("c"), &good)),
        Err(JwtFault::UnknownKey),
        "a key for another algorithm"
    );
    let es256 = |kid: &str| {
        let sign = |message: &[u8]| {
            curve
                .sign(&SystemRandom::new(), message)
                .unwrap()
                .as_ref()
                .to_vec()
        };
        signed(&json!({"alg": "ES256", "kid": kid}), &good, sign)
    };
    assert_eq!(verify(es256("c")), Ok(()));
    assert_eq!(verify(es256("a")), Err(JwtFault::UnknownKey));
    let only = load(
        config::Jwt {
            algorithms: vec![config::JwtAlgorithm::EdDsa],
            ..settings()
        },
        &keys.to_string(),
    );
    assert_eq!(only.verify(&es256("c")).map(drop), Err(JwtFault::Algorithm));
}

#[test]
fn every_fault_of_a_key_file_is_named_and_no_part_of_a_key() {
    let issuer = Issuer::new();
    let text = |keys: &str| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), keys).unwrap();
        let settings = config::Jwt {
            keys_file: Some(file.path().into()),
            ..settings()
        };
        Jwt::load(&settings).unwrap_err().to_string()
    };
    let secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQ";
    let private = json!({"kty": "OKP", "crv": "Ed25519", "kid": "p", "x": BASE64.encode(issuer.public()), "d": secret});
    let all = json!({"keys": [
        issuer.jwk("good"), private, {"kty": "oct", "kid": "s", "k": secret}, {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {"kty": "EC", "crv": "P-256", "x": secret}, 7, {"kty": "OKP", "crv": "Ed25519", "kid": "with space", "x": "AA"},
    ]});
    let said = text(&all.to_string());
    for fault in [
        "key 2 (p): is a private key",
        "key 3 (s): is a symmetric key",
        "key 4: RSA keys must have 2048",
        "key 5: has missing or wrong parameters",
        "key 6: is not a JSON object",
        "key 7: has missing or wrong parameters",
    ] {
        assert!(said.contains(fault), "{fault}: {said}");
    }
    assert!(
        said.starts_with("jwt.keys_file: ") && !said.contains("key 1") && !said.contains(secret),
        "{said}"
    );
    let rsa_512 = [
        b"\x30\x5c\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00\x03\x4b\x00\x30\x48\x02\x41\x00"
            .as_slice(),
        &[0xab; 64],
        b"\x02\x03\x01\x00\x01",
    ];
    for (keys, fault) in [
        ("", "is neither PEM nor a JWKS"),
        ("secret", "is neither PEM nor a JWKS"),
        ("{\"keys\": 7}", "is neither PEM nor a JWKS"),
        ("{\"keys\": [", "is neither PEM nor a JWKS"),
        (
            "{\"keys\": []}",
            "has no key that can verify one of jwt.algorithms",
        ),
        (&pem("PRIVATE KEY", b"secret"), "key 1: is a private key"),
        (
            &(issuer.pem() + &pem("CERTIFICATE", b"x")),
            "key 2: is not a public key of a known kind",
        ),
        (
            &pem("PUBLIC KEY", b"\x30\x03\x02\x01"),
            "key 1: is not a public key of a known kind",
        ),
        (
            &pem("PUBLIC KEY", &rsa_512.concat()),
            "key 1: RSA keys must have 2048",
        ),
        (&"x".repeat(2 << 20), "is larger than 1 MiB"),
        (&issuer.pem().repeat(33), "has more than 32 keys"),
    ] {
        assert!(text(keys).contains(fault), "{fault}: {}", text(keys));
    }
    let nowhere = config::Jwt {
        keys_file: Some("/nowhere/keys.pem".into()),
        ..settings()
    };
    let said = Jwt::load(&nowhere).unwrap_err().to_string();
    assert!(
        said.starts_with("jwt.keys_file: cannot read /nowhere/keys.pem"),
        "{said}"
    );
    assert!(
        Jwt::load(&settings()).unwrap().is_none(),
        "no file, no JWTs"
    );
}
