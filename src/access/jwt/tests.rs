//! JWTs that are good, forged, for others, and out of time; files of keys with every fault.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD as BASE64};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::json;

use super::super::{CredentialFault, Credentials, Denied, GrantDefaults, Protocol, hash_secret};
use super::*;
use crate::config::{self, Config};

/// An issuer with a key for EdDSA.
struct Issuer(Ed25519KeyPair);

impl Issuer {
    fn new() -> Issuer {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Issuer(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    fn public(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    fn pem(&self) -> String {
        pem(
            "PUBLIC KEY",
            &[
                b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00",
                self.public(),
            ]
            .concat(),
        )
    }

    fn jwk(&self, kid: &str) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": kid, "x": BASE64.encode(self.public())})
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        signed(header, claims, |message| {
            self.0.sign(message).as_ref().to_vec()
        })
    }

    /// With its usual header.
    fn issue(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "EdDSA", "typ": "JWT"}), claims)
    }
}

fn signed(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
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

fn settings() -> config::Jwt {
    config::Jwt {
        issuer: Some("https://idp.example".into()),
        audience: vec!["hourbucket".into(), "other".into()],
        ..Config::default().jwt
    }
}

fn load(settings: config::Jwt, keys: &str) -> Jwt {
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
fn claims(changes: &Value) -> Value {
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

/// Every attack on the format, the algorithm and the key. No text repeats a part of the JWT.
#[test]
fn what_no_configured_key_has_signed_is_refused() {
    let issuer = Issuer::new();
    let other = Issuer::new();
    let jwt = load(settings(), &json!({"keys": [issuer.jwk("k1")]}).to_string());
    let good = claims(&json!({}));
    let eddsa = json!({"alg": "EdDSA", "kid": "k1"});
    let by_public_key = |key: &[u8], alg: &str| {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
        signed(&json!({"alg": alg, "kid": "k1"}), &good, |message| {
            ring::hmac::sign(&key, message).as_ref().to_vec()
        })
    };
    let real = issuer.sign(&eddsa, &good);
    let (head, signature) = real.rsplit_once('.').unwrap();
    let header = head.split_once('.').unwrap().0;
    let raised = BASE64.encode(claims(&json!({"write": "*"})).to_string());
    let unsigned = |alg: &str| signed(&json!({"alg": alg}), &good, |_| vec![]);
    let with = |extra: Value| {
        let mut header = eddsa.clone();
        extra
            .as_object()
            .unwrap()
            .iter()
            .for_each(|(name, value)| header[name] = value.clone());
        header
    };
    assert_eq!(
        jwt.verify(&real).map(|claims| claims.id.clone()),
        Ok("gw1".into())
    );
    for (what, text, fault) in [
        ("none", unsigned("none"), JwtFault::Malformed),
        ("None", unsigned("None"), JwtFault::Malformed),
        (
            "none with the signature",
            format!("{}{signature}", unsigned("none")),
            JwtFault::Malformed,
        ),
        ("no signature", unsigned("EdDSA"), JwtFault::Signature),
        (
            "HMAC with the public key",
            by_public_key(issuer.public(), "HS256"),
            JwtFault::Algorithm,
        ),
        (
            "HMAC with its PEM",
            by_public_key(issuer.pem().as_bytes(), "HS256"),
            JwtFault::Algorithm,
        ),
        (
            "HMAC that says EdDSA",
            by_public_key(issuer.public(), "EdDSA"),
            JwtFault::Signature,
        ),
        (
            "another algorithm",
            issuer.sign(&json!({"alg": "ES256", "kid": "k1"}), &good),
            JwtFault::UnknownKey,
        ),
        (
            "one that is not allowed",
            issuer.sign(&json!({"alg": "PS512", "kid": "k1"}), &good),
            JwtFault::Algorithm,
        ),
        (
            "another key",
            other.sign(&eddsa, &good),
            JwtFault::Signature,
        ),
        (
            "another key without kid",
            other.issue(&good),
            JwtFault::Signature,
        ),
        (
            "unknown kid",
            other.sign(&with(json!({"kid": "k2"})), &good),
            JwtFault::UnknownKey,
        ),
        (
            "a path as kid",
            other.sign(&with(json!({"kid": "../../dev/null"})), &good),
            JwtFault::UnknownKey,
        ),
        (
            "SQL as kid",
            other.sign(&with(json!({"kid": "' UNION SELECT 'x"})), &good),
            JwtFault::UnknownKey,
        ),
        (
            "kid of another type",
            other.sign(&with(json!({"kid": ["k1"]})), &good),
            JwtFault::Malformed,
        ),
        (
            "its own key",
            other.sign(&with(json!({"jwk": other.jwk("k1")})), &good),
            JwtFault::Signature,
        ),
        (
            "its own URL",
            other.sign(&with(json!({"jku": "http://127.0.0.1/k"})), &good),
            JwtFault::Signature,
        ),
        (
            "critical header",
            issuer.sign(&with(json!({"crit": ["x"], "x": 1})), &good),
            JwtFault::Malformed,
        ),
        (
            "other claims",
            format!("{header}.{raised}.{signature}"),
            JwtFault::Signature,
        ),
        (
            "cut signature",
            real[..real.len() - 2].to_owned(),
            JwtFault::Signature,
        ),
        (
            "garbage in the signature",
            format!("{head}.!!!!"),
            JwtFault::Malformed,
        ),
        ("garbage", "eyJ.eyJ.x".into(), JwtFault::Malformed),
        ("not Base64", "ä.ö.ü".into(), JwtFault::Malformed),
        ("padding", format!("{real}="), JwtFault::Malformed),
        ("four parts", format!("{real}.x"), JwtFault::Malformed),
        ("five parts", format!("{real}.x.y"), JwtFault::Malformed),
        ("empty parts", "..".into(), JwtFault::Malformed),
        (
            "huge",
            issuer.issue(&claims(&json!({"x": "y".repeat(9000)}))),
            JwtFault::TooLong,
        ),
    ] {
        let refused = jwt.verify(&text);
        assert_eq!(refused, Err(fault), "{what}");
        assert!(fault.is_forged(), "{what}");
        let said = fault.to_string();
        assert!(
            text.split('.')
                .all(|part| part.len() < 4 || !said.contains(part)),
            "{what}: {said}"
        );
    }
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

/// The credentials of a port with the tokens `gw1.s.1` and `gw2.s`.
fn credentials(jwt: Jwt) -> Credentials {
    let file = tempfile::NamedTempFile::new().unwrap();
    let entry = |id: &str, secret: &str| {
        format!(
            "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n",
            hash_secret(secret)
        )
    };
    std::fs::write(file.path(), entry("gw1", "s.1") + &entry("gw2", "s")).unwrap();
    let grants = GrantDefaults {
        jwt: Some(Arc::new(jwt)),
        ..GrantDefaults::unlimited()
    };
    Credentials::load("x", Some(file.path()), false, &grants)
        .unwrap()
        .unwrap()
}

#[test]
fn tokens_and_jwts_are_accepted_side_by_side() {
    let issuer = Issuer::new();
    let port = credentials(load(settings(), &issuer.pem()));
    let id = |text: &str| port.of_text(text).map(|grant| grant.id.to_string());
    assert_eq!(
        id("gw1.s.1"),
        Ok("gw1".into()),
        "a token whose secret has a dot"
    );
    assert_eq!(id("gw2.s"), Ok("gw2".into()));
    assert_eq!(
        id(&issuer.issue(&claims(&json!({"sub": "auth0|7"})))),
        Ok("auth0|7".into())
    );
    assert_eq!(
        id("gw1.s.2"),
        Err(CredentialFault::Wrong),
        "the id of a token, so not a JWT"
    );
    assert_eq!(id("gw2.x"), Err(CredentialFault::Wrong));
    assert_eq!(id("a.b.c"), Err(CredentialFault::Jwt(JwtFault::Malformed)));
    let only_jwt = GrantDefaults {
        jwt: port.jwt_for_tests(),
        ..GrantDefaults::unlimited()
    };
    let only_jwt = Credentials::load("x", None::<&Path>, false, &only_jwt)
        .unwrap()
        .unwrap();
    assert!(
        only_jwt.of_text("gw2.s").is_err() && only_jwt.tokens().is_none() && only_jwt.accepts_jwt()
    );
    assert!(
        Credentials::load("x", None::<&Path>, false, &GrantDefaults::unlimited())
            .unwrap()
            .is_none()
    );
}

#[test]
fn the_time_is_checked_with_the_clock_of_the_service() {
    let issuer = Issuer::new();
    let port = credentials(load(settings(), &issuer.pem()));
    let grant = port
        .of_text(&issuer.issue(&claims(&json!({"nbf": 1000}))))
        .unwrap();
    let check = |at_s: i64| grant.check(Protocol::Mqtt, at_s * 1000);
    // With the leeway of 30 s.
    assert_eq!((check(969), check(970)), (Err(Denied::NotYetValid), Ok(())));
    assert_eq!((check(2029), check(2030)), (Ok(()), Err(Denied::Expired)));
}

#[test]
fn a_jwt_is_valid_as_long_as_its_key_and_the_settings_accept_it() {
    let issuer = Issuer::new();
    let other = Issuer::new();
    let keys = |keys: &[Value]| json!({"keys": keys}).to_string();
    let grant = credentials(load(settings(), &keys(&[issuer.jwk("a")])));
    let grant = grant
        .of_text(&issuer.sign(&json!({"alg": "EdDSA", "kid": "a"}), &claims(&json!({}))))
        .unwrap();
    let renewed = |settings, keys: &str| credentials(load(settings, keys)).renewed(&grant);
    assert!(renewed(settings(), &keys(&[other.jwk("b"), issuer.jwk("a")])).is_some());
    assert!(
        renewed(settings(), &keys(&[other.jwk("b")])).is_none(),
        "its key was removed"
    );
    assert!(
        renewed(settings(), &keys(&[other.jwk("a")])).is_none(),
        "another key with its kid"
    );
    assert!(
        renewed(
            config::Jwt {
                audience: vec!["x".into()],
                ..settings()
            },
            &issuer.pem()
        )
        .is_none()
    );
    assert!(
        renewed(
            config::Jwt {
                algorithms: vec![config::JwtAlgorithm::Es256, config::JwtAlgorithm::EdDsa],
                ..settings()
            },
            &issuer.pem()
        )
        .is_some()
    );
    let wider = config::Jwt {
        write_default: vec!["*".into()],
        ..settings()
    };
    assert!(
        renewed(wider, &issuer.pem())
            .unwrap()
            .write
            .as_ref()
            .unwrap()
            .is_all(),
        "the new settings apply"
    );
    let no_jwt = Credentials::load("x", None::<&Path>, false, &GrantDefaults::unlimited()).unwrap();
    assert!(no_jwt.is_none());
}

/// A JWT that was verified before is not verified again, but its expiry and a change of the keys
/// still count.
#[test]
fn a_known_jwt_ends_with_its_expiry_and_with_its_key() {
    let issuer = Issuer::new();
    let other = Issuer::new();
    let text = issuer.issue(&claims(&json!({"exp": 2000, "nbf": 1000})));
    let now = credentials(load(
        config::Jwt {
            leeway: Duration::ZERO,
            ..settings()
        },
        &issuer.pem(),
    ));
    for _ in 0..3 {
        let grant = now.of_text(&text).unwrap();
        assert_eq!(
            grant.check(Protocol::Http, 999_999),
            Err(Denied::NotYetValid)
        );
        assert_eq!(grant.check(Protocol::Http, 1_999_999), Ok(()));
        assert_eq!(grant.check(Protocol::Http, 2_000_000), Err(Denied::Expired));
    }
    // The known JWT with another signature or claim is another text.
    let (message, _) = text.rsplit_once('.').unwrap();
    let (_, of_other) = other
        .issue(&claims(&json!({})))
        .rsplit_once('.')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let forged = now.of_text(&format!("{message}.{of_other}")).map(drop);
    assert_eq!(forged, Err(CredentialFault::Jwt(JwtFault::Signature)));
    let after = credentials(load(settings(), &other.pem()));
    assert_eq!(
        after.of_text(&text).map(drop),
        Err(CredentialFault::Jwt(JwtFault::Signature))
    );
    assert!(
        after.renewed(&now.of_text(&text).unwrap()).is_none(),
        "an open connection ends"
    );
}
