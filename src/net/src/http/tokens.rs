//! Where a request carries its token, and in which form. [`Credentials`] verify it.
//!
//! All routes and the read API accept the header `Authorization` with `Bearer id.secret`, `Token
//! id.secret`, and `Basic`: with id and secret as user name and password, or with any user name and
//! `id.secret` as password, as over MQTT. A JWT takes the place of `id.secret`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;

use super::access_error::AccessError;
use super::peer::{Peer, judge};
use crate::access::{Credentials, Grant};

impl Credentials {
    /// Verifies the token in the header `Authorization`.
    pub fn check(&self, headers: &HeaderMap) -> Result<Arc<Grant>, AccessError> {
        let (scheme, rest) = authorization(headers)?;
        if scheme.eq_ignore_ascii_case("basic") {
            let decoded = BASE64
                .decode(rest)
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok());
            let decoded = decoded.ok_or(AccessError::MalformedToken)?;
            let (user, password) = decoded.split_once(':').ok_or(AccessError::MalformedToken)?;
            self.check_pair(user, password)
        } else if scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("token") {
            self.check_text(rest)
        } else {
            Err(AccessError::MalformedToken)
        }
    }

    /// Like [`Credentials::check`], for a port on which nothing is sent; `text` describes a fault.
    ///
    /// # Errors
    /// The answer (401, or 429 if the address is paused).
    pub fn check_reader(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
        text: fn(&AccessError) -> Cow<'static, str>,
    ) -> Result<Arc<Grant>, Box<Response>> {
        let checked = identify(self, peer, |credentials| credentials.check(headers));
        judge(peer, checked).map_err(|error| Box::new(error.response(&text(&error))))
    }

    /// Like [`Credentials::check`], for InfluxDB clients: also accepts `Token user:password`, with
    /// which version 2 clients send a user name and password of version 1.
    pub fn check_influx(&self, headers: &HeaderMap) -> Result<Arc<Grant>, AccessError> {
        let (scheme, rest) = authorization(headers)?;
        // A secret may contain a colon. The id before it ends at the first dot.
        match rest.split_once(':').filter(|(user, _)| !user.contains('.')) {
            Some((user, password)) if scheme.eq_ignore_ascii_case("token") => {
                self.check_pair(user, password)
            }
            _ => self.check(headers),
        }
    }

    /// Like [`Credentials::check_influx`], for webhooks, many of which cannot set `Authorization`:
    /// also accepts the token in the query or in the header `X-Api-Key`.
    pub fn check_hook(
        &self,
        headers: &HeaderMap,
        in_query: Option<&str>,
    ) -> Result<Arc<Grant>, AccessError> {
        match in_query
            .map(Ok)
            .or_else(|| headers.get("x-api-key").map(|value| value.to_str()))
        {
            Some(token) => self.check_text(token.map_err(|_| AccessError::MalformedToken)?),
            None => self.check_influx(headers),
        }
    }

    /// Verifies a token that is given as id and secret, or as password of any user.
    pub fn check_pair(&self, user: &str, password: &str) -> Result<Arc<Grant>, AccessError> {
        if let Some(grant) = self.of_secret(user, password) {
            return Ok(grant);
        }
        match self.check_text(password) {
            // Without a dot it can only be the secret of this user.
            Err(AccessError::MalformedToken) if !user.is_empty() && !password.is_empty() => {
                Err(AccessError::WrongToken)
            }
            other => other,
        }
    }

    /// Verifies a token of the form `id.secret`, or a JWT.
    fn check_text(&self, token: &str) -> Result<Arc<Grant>, AccessError> {
        let (id, secret) = token.split_once('.').ok_or(AccessError::MalformedToken)?;
        if id.is_empty() || secret.is_empty() {
            return Err(AccessError::MalformedToken);
        }
        Ok(self.of_text(token)?)
    }
}

/// Who sends a request: the certificate of its connection alone, if that is the identity; otherwise
/// the result of `check`.
pub fn identify(
    credentials: &Credentials,
    peer: Option<&Peer>,
    check: impl FnOnce(&Credentials) -> Result<Arc<Grant>, AccessError>,
) -> Result<Arc<Grant>, AccessError> {
    let Some(kind) = credentials.by_certificate() else {
        return check(credentials);
    };
    let name = peer
        .and_then(Peer::certificate)
        .and_then(|client| client.name(kind));
    Ok(credentials.of_certificate(name.as_deref())?)
}

/// Scheme and rest of the only `Authorization` header; several are malformed.
fn authorization(headers: &HeaderMap) -> Result<(&str, &str), AccessError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(AccessError::NoToken)?;
    if values.next().is_some() {
        return Err(AccessError::MalformedToken);
    }
    let (scheme, rest) = value
        .to_str()
        .ok()
        .and_then(|v| v.split_once(' '))
        .ok_or(AccessError::MalformedToken)?;
    Ok((scheme, rest.trim()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::access::{GrantDefaults, hash_secret};
    use model::Named as _;

    /// A tokens file with these ids and secrets.
    fn load(tokens: &[(&str, &str)]) -> Credentials {
        let entry = |(id, secret): &(&str, &str)| {
            format!(
                "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n",
                hash_secret(secret)
            )
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), tokens.iter().map(entry).collect::<String>()).unwrap();
        Credentials::load(
            "http.tokens_file",
            Some(file.path()),
            false,
            &GrantDefaults::unlimited(),
        )
        .unwrap()
        .unwrap()
    }

    #[test]
    fn a_token_is_accepted_with_its_id_and_secret_only() {
        let tokens = load(&[("gw1", "one.with.dots"), ("gw2", "two")]);
        assert_eq!(
            (tokens.tokens(), format!("{tokens:?}").as_str()),
            (Some(2), "Credentials(Some(Tokens(2)), None)")
        );
        let check = |value: &'static str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
            tokens
                .check(&headers)
                .map(drop)
                .map_err(|error| error.as_str())
        };
        assert_eq!(check("Bearer gw1.one.with.dots"), Ok(()));
        assert_eq!(check("bearer gw2.two"), Ok(()));
        assert_eq!(check("Token gw2.two"), Ok(()));
        // Each user name and password in Base64.
        assert_eq!(check("Basic Z3cyOnR3bw=="), Ok(()), "gw2:two");
        assert_eq!(
            check("basic Z3cxOm9uZS53aXRoLmRvdHM="),
            Ok(()),
            "gw1:one.with.dots"
        );
        assert_eq!(check("Basic YW55Omd3Mi50d28="), Ok(()), "any:gw2.two");
        assert_eq!(check("Basic Z3cxOm9uZQ=="), Err("invalid_token"), "gw1:one");
        assert_eq!(
            check("Basic Z3cxOmd3Mi5vbmU="),
            Err("invalid_token"),
            "gw1:gw2.one"
        );
        assert_eq!(check("Bearer gw1.two"), Err("invalid_token"));
        assert_eq!(check("Bearer gw3.two"), Err("invalid_token"));
        for malformed in
            // `gw2`, `gw2:` and `:two` in Base64; the last has a byte that is not UTF-8.
            [
                "Bearer",
                "Bearer ",
                "Bearer gw1",
                "Bearer .one",
                "Bearer gw1.",
                "gw2.two",
                "Basic ?",
                "Basic Z3cy",
                "Basic Z3cyOg==",
                "Basic OnR3bw==",
                "Basic /zp4",
            ]
        {
            assert_eq!(check(malformed), Err("malformed_token"), "{malformed}");
        }
        assert_eq!(
            tokens
                .check(&HeaderMap::new())
                .map(drop)
                .map_err(|error| error.as_str()),
            Err("no_token")
        );
    }
}
