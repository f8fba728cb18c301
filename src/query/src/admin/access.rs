//! Authorization of the read API: a token of `http.tokens_file` or a JWT, or, without both, a
//! client on the same machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::answer::{ApiError, token_text};
use model::{Clock, SensorPatterns};
use net::access::{Credentials, Grant, Protocol};
use net::http::Peer;
use net::http::foreign::{check_page, is_local};
use net::shares::Owner;

/// The credentials in effect. A reload can replace them while requests are served.
#[derive(Debug, Clone, Default)]
pub struct TokenSource(Arc<RwLock<Option<Arc<Credentials>>>>);

impl TokenSource {
    /// `None`: neither `http.tokens_file` nor `jwt.keys_file`.
    pub fn new(tokens: Option<Arc<Credentials>>) -> TokenSource {
        TokenSource(Arc::new(RwLock::new(tokens)))
    }

    /// Applies to requests that arrive afterwards.
    pub fn replace(&self, tokens: Option<Arc<Credentials>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = tokens;
    }

    fn current(&self) -> Option<Arc<Credentials>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Decides whether a request may read.
#[derive(Clone)]
pub struct Access {
    tokens: TokenSource,
    is_loopback: bool,
    clock: Arc<dyn Clock>,
}

/// Who reads, in the extensions of a request.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    /// `None` without tokens.
    grant: Option<Arc<Grant>>,
    address: IpAddr,
}

/// That of a request that came over no port, in tests.
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl Reader {
    /// Checks whether it may read this sensor.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn check(&self, sensor_id: &str) -> Result<(), ApiError> {
        match &self.grant {
            Some(grant) if !grant.may_read(sensor_id) => Err(ApiError::NotAllowed),
            _ => Ok(()),
        }
    }

    /// Checks whether it may read every sensor.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn check_all(&self) -> Result<(), ApiError> {
        match &self.grant {
            Some(grant) if !grant.may_read_all() => Err(ApiError::NotAllowed),
            _ => Ok(()),
        }
    }

    /// Whom its part of a shared limit is counted for.
    pub(super) fn owner(&self) -> Owner {
        Owner::identify(self.grant.as_deref(), self.address)
    }

    /// The sensors that it may read; `None`: all.
    pub(super) fn patterns(&self) -> Option<SensorPatterns> {
        let patterns = self.grant.as_ref().and_then(|grant| grant.read.clone());
        patterns.filter(|patterns| !patterns.is_all())
    }

    /// Whether it may read this sensor.
    pub(super) fn may_read(&self, sensor_id: &str) -> bool {
        self.check(sensor_id).is_ok()
    }
}

impl Access {
    /// `listen` is the address of the port. Access without tokens requires loopback.
    pub fn new(tokens: TokenSource, listen: SocketAddr, clock: Arc<dyn Clock>) -> Access {
        Access {
            tokens,
            is_loopback: config::is_loopback(listen.ip()),
            clock,
        }
    }

    /// Who reads, or the error response.
    pub(super) fn reader(
        &self,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<Reader, Box<Response>> {
        let refuse = |error: ApiError| Err(Box::new(error.into_response()));
        let address = peer.map_or(NO_ADDRESS, Peer::address);
        let reader = |grant| Reader { grant, address };
        match self.tokens.current() {
            Some(tokens) => {
                let grant = tokens.check_reader(headers, peer, token_text)?;
                let now_ms = self.clock.now().wall_ms;
                match grant.check(Protocol::Http, now_ms) {
                    Ok(()) => {
                        peer.inspect(|peer| peer.sent_by(&grant));
                        grant.usage.note_used(now_ms);
                        Ok(reader(Some(grant)))
                    }
                    Err(denied) => {
                        let error = ApiError::Denied(denied);
                        peer.inspect(|peer| peer.denied(&grant, &error));
                        refuse(error)
                    }
                }
            }
            None => match self.check_near(headers, peer) {
                Ok(()) => Ok(reader(None)),
                Err(error) => refuse(error),
            },
        }
    }

    /// Checks whether a program or a page of this machine asks.
    fn check_near(&self, headers: &HeaderMap, peer: Option<&Peer>) -> Result<(), ApiError> {
        if !self.is_loopback {
            return Err(ApiError::NoTokens);
        }
        if !peer.is_none_or(Peer::is_on_this_machine) {
            return Err(ApiError::FarClient);
        }
        if !is_local(headers) {
            return Err(ApiError::ForeignHost);
        }
        check_page(headers).map_err(|_| ApiError::ForeignPage)
    }
}

/// The middleware around the read API.
pub(super) async fn guard(
    State(access): State<Access>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = Peer::find(request.extensions()).cloned();
    match access.reader(request.headers(), peer.as_ref()) {
        Ok(reader) => {
            let grant = reader.grant.clone();
            let path = request.uri().path().to_owned();
            request.extensions_mut().insert(reader);
            let response = next.run(request).await;
            if let (Some(peer), Some(grant)) = (peer, grant) {
                peer.queried(&grant, &path, response.status().as_u16());
            }
            response
        }
        Err(refused) => *refused,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use axum::http::header::{HOST, ORIGIN};

    use super::*;

    #[test]
    fn without_tokens_only_this_machine_reads_and_only_under_its_own_names() {
        let ask_with = |listen: &str, headers: HeaderMap| {
            let clock = Arc::new(model::SystemClock::new());
            let access = Access::new(TokenSource::default(), listen.parse().unwrap(), clock);
            access
                .reader(&headers, None)
                .map_or_else(|refused| refused.status().as_u16(), |_| 200)
        };
        let ask = |listen: &str, host: Option<&'static str>| {
            let host = host.map(|host| (HOST, HeaderValue::from_static(host)));
            ask_with(listen, host.into_iter().collect())
        };
        for host in [
            "127.0.0.1:8081",
            "localhost:8081",
            "LOCALHOST",
            "[::1]:8081",
            "[::1]",
            "10.0.0.1",
        ] {
            assert_eq!(ask("127.0.0.1:8081", Some(host)), 200, "{host}");
        }
        assert_eq!(ask("[::1]:8081", None), 200);
        for host in [
            "evil.example",
            "evil.example:8081",
            "localhost.evil.example:8081",
            "localhost:1@evil",
            "::1",
            "",
        ] {
            assert_eq!(ask("127.0.0.1:8081", Some(host)), 403, "{host}");
        }
        let of_page = HeaderMap::from_iter([
            (HOST, HeaderValue::from_static("127.0.0.1:8081")),
            (ORIGIN, HeaderValue::from_static("http://evil.example")),
        ]);
        assert_eq!(ask_with("127.0.0.1:8081", of_page), 403);
        assert_eq!(ask("0.0.0.0:8081", Some("127.0.0.1:8081")), 403);
        assert_eq!(ask("[::]:8081", None), 403);
    }

    /// A tokens file with `r.secret`.
    fn tokens() -> Arc<Credentials> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let hash = net::access::hash_secret("secret");
        std::fs::write(
            file.path(),
            format!("[[tokens]]\nid = \"r\"\nsha256 = \"{hash}\"\n"),
        )
        .unwrap();
        let grants = net::access::GrantDefaults::unlimited();
        Arc::new(
            Credentials::load("http.tokens_file", Some(file.path()), false, &grants)
                .unwrap()
                .unwrap(),
        )
    }

    #[tokio::test]
    async fn a_reader_needs_a_token_and_is_told_about_reading() {
        use axum::body::to_bytes;
        use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};

        let clock = Arc::new(model::SystemClock::new());
        let access = Access::new(
            TokenSource::new(Some(tokens())),
            "0.0.0.0:8081".parse().unwrap(),
            clock,
        );
        let ask = |value: Option<&'static str>| {
            let headers = value.map(|value| (AUTHORIZATION, HeaderValue::from_static(value)));
            access.reader(&headers.into_iter().collect(), None).err()
        };
        // `r:secret` and `any:r.secret` in Base64.
        for value in [
            "Bearer r.secret",
            "Token r.secret",
            "Basic cjpzZWNyZXQ=",
            "Basic YW55OnIuc2VjcmV0",
        ] {
            assert!(ask(Some(value)).is_none(), "{value}");
        }
        for (value, reason) in [
            (None, "no_token"),
            (Some("Bearer r"), "malformed_token"),
            (Some("Bearer r.wrong"), "invalid_token"),
            (Some("Basic cjp3cm9uZw=="), "invalid_token"),
        ] {
            let refused = ask(value).unwrap();
            assert_eq!(refused.status(), 401, "{value:?}");
            assert!(
                refused.headers()[WWW_AUTHENTICATE]
                    .to_str()
                    .unwrap()
                    .starts_with("Bearer")
            );
            let body = to_bytes(refused.into_body(), 10_000).await.unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let detail = body["error"]["detail"].as_str().unwrap();
            assert_eq!(body["error"]["reason"], reason, "{detail}");
            assert!(
                detail.contains("read") && detail.contains("http.tokens_file"),
                "{detail}"
            );
            assert!(
                ["readings", "write", "wrong"]
                    .iter()
                    .all(|word| !detail.contains(word)),
                "{detail}"
            );
        }
    }
}
