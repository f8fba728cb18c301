//! JWTs that no configured key has signed: every attack on the format, the algorithm and the key.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde_json::json;

use super::tests::{Issuer, claims, load, settings, signed};
use super::*;

/// Accepts the key `k1` of this issuer, and no other.
fn accepting(issuer: &Issuer) -> Jwt {
    load(settings(), &json!({"keys": [issuer.jwk("k1")]}).to_string())
}

/// The header of a JWT that is signed with `k1`, with changes.
fn header(changes: &Value) -> Value {
    let mut header = json!({"alg": "EdDSA", "kid": "k1"});
    changes
        .as_object()
        .unwrap()
        .iter()
        .for_each(|(name, value)| header[name] = value.clone());
    header
}

/// Each is refused as forged, and no text repeats a part of the JWT.
fn assert_forged(jwt: &Jwt, forged: impl IntoIterator<Item = (&'static str, String, JwtFault)>) {
    for (what, text, fault) in forged {
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
fn a_jwt_that_is_unsigned_or_names_another_algorithm_is_refused() {
    let issuer = Issuer::new();
    let jwt = accepting(&issuer);
    let good = claims(&json!({}));
    let by_public_key = |key: &[u8], alg: &str| {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
        signed(&json!({"alg": alg, "kid": "k1"}), &good, |message| {
            ring::hmac::sign(&key, message).as_ref().to_vec()
        })
    };
    let real = issuer.sign(&header(&json!({})), &good);
    let (_, signature) = real.rsplit_once('.').unwrap();
    let unsigned = |alg: &str| signed(&json!({"alg": alg}), &good, |_| vec![]);
    let forged = [
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
    ];
    assert_forged(&jwt, forged);
}

#[test]
fn what_no_configured_key_has_signed_is_refused() {
    let issuer = Issuer::new();
    let other = Issuer::new();
    let jwt = accepting(&issuer);
    let good = claims(&json!({}));
    let by_other = |changes: Value| other.sign(&header(&changes), &good);
    let forged = [
        ("another key", by_other(json!({})), JwtFault::Signature),
        (
            "another key without kid",
            other.issue(&good),
            JwtFault::Signature,
        ),
        (
            "unknown kid",
            by_other(json!({"kid": "k2"})),
            JwtFault::UnknownKey,
        ),
        (
            "a path as kid",
            by_other(json!({"kid": "../../dev/null"})),
            JwtFault::UnknownKey,
        ),
        (
            "SQL as kid",
            by_other(json!({"kid": "' UNION SELECT 'x"})),
            JwtFault::UnknownKey,
        ),
        (
            "kid of another type",
            by_other(json!({"kid": ["k1"]})),
            JwtFault::Malformed,
        ),
        (
            "its own key",
            by_other(json!({"jwk": other.jwk("k1")})),
            JwtFault::Signature,
        ),
        (
            "its own URL",
            by_other(json!({"jku": "http://127.0.0.1/k"})),
            JwtFault::Signature,
        ),
    ];
    assert_forged(&jwt, forged);
}

#[test]
fn a_changed_jwt_and_other_text_is_refused() {
    let issuer = Issuer::new();
    let jwt = accepting(&issuer);
    let good = claims(&json!({}));
    let real = issuer.sign(&header(&json!({})), &good);
    assert_eq!(
        jwt.verify(&real).map(|claims| claims.id.clone()),
        Ok("gw1".into())
    );
    let (head, signature) = real.rsplit_once('.').unwrap();
    let first = head.split_once('.').unwrap().0;
    let raised = BASE64.encode(claims(&json!({"write": "*"})).to_string());
    let forged = [
        (
            "critical header",
            issuer.sign(&header(&json!({"crit": ["x"], "x": 1})), &good),
            JwtFault::Malformed,
        ),
        (
            "other claims",
            format!("{first}.{raised}.{signature}"),
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
    ];
    assert_forged(&jwt, forged);
}
