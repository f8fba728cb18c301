//! JWTs as credentials of a port: beside tokens, out of time, and after a change of keys or
//! settings.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::super::{CredentialFault, Credentials, Denied, GrantDefaults, Protocol, hash_secret};
use super::tests::{Issuer, claims, load, settings};
use super::*;

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
