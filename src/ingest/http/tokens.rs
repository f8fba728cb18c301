//! Where a request carries its token, and in which form. [`Tokens`] verifies it.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;

use super::error::IngestError;
use super::peer::{Peer, judge};
pub use crate::ingest::tokens::{TOKEN_ID_MAX_BYTES, Tokens, TokensError, hash_secret};

impl Tokens {
    /// Verifies the token in the header `Authorization`.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), IngestError> {
        let (scheme, token) = authorization(headers)?;
        if !scheme.eq_ignore_ascii_case("bearer") && !scheme.eq_ignore_ascii_case("token") {
            return Err(IngestError::MalformedToken);
        }
        self.check_text(token)
    }

    /// The id of a valid token in the header `Authorization`.
    pub(super) fn sender(&self, headers: &HeaderMap) -> Option<String> {
        let (_, token) = authorization(headers).ok()?;
        let (id, secret) = token.split_once('.')?;
        self.matches(id, secret).then(|| id.to_owned())
    }

    /// The answer (401) to a request on the admin port if its header `Authorization` is not valid.
    pub(crate) fn refuse(&self, headers: &HeaderMap, peer: Option<&Peer>) -> Option<Response> {
        judge(peer, self.check(headers)).err().map(IntoResponse::into_response)
    }

    /// Like [`Tokens::check`], for InfluxDB clients: also accepts `Basic`, with the token as password of any user, and
    /// `Token user:token`, with which version 2 clients send a user name and password of version 1.
    pub(super) fn check_influx(&self, headers: &HeaderMap) -> Result<(), IngestError> {
        let (scheme, token) = authorization(headers)?;
        let decoded;
        let token = if scheme.eq_ignore_ascii_case("basic") {
            let bytes = BASE64.decode(token).map_err(|_| IngestError::MalformedToken)?;
            decoded = String::from_utf8(bytes).map_err(|_| IngestError::MalformedToken)?;
            decoded.split_once(':').ok_or(IngestError::MalformedToken)?.1
        } else if scheme.eq_ignore_ascii_case("token") {
            // A secret may contain a colon. The id before it ends at the first dot.
            token.split_once(':').filter(|(user, _)| !user.contains('.')).map_or(token, |(_, token)| token)
        } else {
            return self.check(headers);
        };
        self.check_text(token)
    }

    /// Like [`Tokens::check_influx`], for webhooks, many of which cannot set `Authorization`: also accepts the token in
    /// the query or in the header `X-Api-Key`.
    pub(super) fn check_hook(&self, headers: &HeaderMap, in_query: Option<&str>) -> Result<(), IngestError> {
        match in_query.map(Ok).or_else(|| headers.get("x-api-key").map(|value| value.to_str())) {
            Some(token) => self.check_text(token.map_err(|_| IngestError::MalformedToken)?),
            None => self.check_influx(headers),
        }
    }

    /// Verifies a token of the form `id.secret`.
    pub(super) fn check_text(&self, token: &str) -> Result<(), IngestError> {
        let (id, secret) = token.split_once('.').ok_or(IngestError::MalformedToken)?;
        if id.is_empty() || secret.is_empty() {
            return Err(IngestError::MalformedToken);
        }
        if self.matches(id, secret) { Ok(()) } else { Err(IngestError::WrongToken) }
    }
}

/// Scheme and rest of the only `Authorization` header; several are malformed.
fn authorization(headers: &HeaderMap) -> Result<(&str, &str), IngestError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(IngestError::NoToken)?;
    if values.next().is_some() {
        return Err(IngestError::MalformedToken);
    }
    let (scheme, rest) = value.to_str().ok().and_then(|v| v.split_once(' ')).ok_or(IngestError::MalformedToken)?;
    Ok((scheme, rest.trim()))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    /// A tokens file with these ids and secrets.
    fn load(tokens: &[(&str, &str)]) -> Tokens {
        let entry =
            |(id, secret): &(&str, &str)| format!("[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n", hash_secret(secret));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), tokens.iter().map(entry).collect::<String>()).unwrap();
        Tokens::load("http.tokens_file", file.path()).unwrap()
    }

    #[test]
    fn a_token_is_accepted_with_its_id_and_secret_only() {
        let tokens = load(&[("gw1", "one.with.dots"), ("gw2", "two")]);
        assert_eq!((tokens.len(), format!("{tokens:?}").as_str()), (2, "Tokens(2)"));
        let check = |value: &'static str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
            tokens.check(&headers).map_err(|e| e.reason())
        };
        assert_eq!(check("Bearer gw1.one.with.dots"), Ok(()));
        assert_eq!(check("bearer gw2.two"), Ok(()));
        assert_eq!(check("Token gw2.two"), Ok(()));
        assert_eq!(check("Bearer gw1.two"), Err("invalid_token"));
        assert_eq!(check("Bearer gw3.two"), Err("invalid_token"));
        for malformed in
            ["Bearer", "Bearer ", "Bearer gw1", "Bearer .one", "Bearer gw1.", "Basic Z3cxOm9uZQ==", "gw2.two"]
        {
            assert_eq!(check(malformed), Err("malformed_token"), "{malformed}");
        }
        assert_eq!(tokens.check(&HeaderMap::new()).map_err(|e| e.reason()), Err("no_token"));
    }
}
