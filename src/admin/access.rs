//! Authorization of the read API: a token of `http.tokens_file`, or, without tokens, a client on the same machine.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::HOST;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::answer::ApiError;
use crate::ingest::http::Peer;
use crate::ingest::http::tokens::Tokens;

/// The tokens in effect. A reload can replace them while requests are served.
#[derive(Debug, Clone, Default)]
pub struct TokenSource(Arc<RwLock<Option<Arc<Tokens>>>>);

impl TokenSource {
    /// `None`: no `http.tokens_file`.
    pub fn new(tokens: Option<Arc<Tokens>>) -> TokenSource {
        TokenSource(Arc::new(RwLock::new(tokens)))
    }

    /// Applies to requests that arrive afterwards.
    pub fn replace(&self, tokens: Option<Arc<Tokens>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = tokens;
    }

    fn current(&self) -> Option<Arc<Tokens>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Decides whether a request may read.
#[derive(Debug, Clone)]
pub struct Access {
    tokens: TokenSource,
    is_loopback: bool,
}

impl Access {
    /// `listen` is the address of the port. Access without tokens requires loopback.
    pub fn new(tokens: TokenSource, listen: SocketAddr) -> Access {
        Access { tokens, is_loopback: listen.ip().to_canonical().is_loopback() }
    }

    /// The error response, or `None` if the request is authorized.
    fn refuse(&self, headers: &HeaderMap, peer: Option<&Peer>) -> Option<Response> {
        let Some(tokens) = self.tokens.current() else {
            return match (self.is_loopback, is_local(headers)) {
                (true, true) => None,
                (true, false) => Some(ApiError::ForeignHost.into_response()),
                (false, _) => Some(ApiError::NoTokens.into_response()),
            };
        };
        tokens.refuse(headers, peer)
    }
}

/// Whether the header Host is an IP address or `localhost`. Another name means that a foreign page in a browser on this
/// machine sent the request (DNS rebinding), or that a proxy makes the port public.
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    if host.parse::<SocketAddr>().is_ok() || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok() {
        return true;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok()
}

/// The middleware around the read API.
pub(super) async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    match access.refuse(request.headers(), Peer::of(request.extensions())) {
        None => next.run(request).await,
        Some(refused) => refused,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn without_tokens_only_this_machine_reads_and_only_under_its_own_names() {
        let ask = |listen: &str, host: Option<&'static str>| {
            let access = Access::new(TokenSource::default(), listen.parse().unwrap());
            let headers = host.map(|host| (HOST, HeaderValue::from_static(host)));
            access.refuse(&headers.into_iter().collect(), None).map_or(200, |r| r.status().as_u16())
        };
        for host in ["127.0.0.1:8081", "localhost:8081", "LOCALHOST", "[::1]:8081", "[::1]", "10.0.0.1"] {
            assert_eq!(ask("127.0.0.1:8081", Some(host)), 200, "{host}");
        }
        assert_eq!(ask("[::1]:8081", None), 200);
        for host in ["evil.example", "evil.example:8081", "localhost.evil.example:8081", ""] {
            assert_eq!(ask("127.0.0.1:8081", Some(host)), 403, "{host}");
        }
        assert_eq!(ask("0.0.0.0:8081", Some("127.0.0.1:8081")), 403);
        assert_eq!(ask("[::]:8081", None), 403);
    }
}
