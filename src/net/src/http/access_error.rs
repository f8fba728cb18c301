//! Why a sender or reader is refused, on both HTTP ports.

use axum::http::header::{CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::json;
use crate::access::{CredentialFault, Denied, JwtFault, QuotaExceeded};
use model::Named;

/// Why a sender or reader is refused.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum AccessError {
    #[error(
        "token required: send the header `Authorization: Bearer <id>.<secret>` (or `Token` in \
         place of `Bearer`, or HTTP Basic with id and secret)"
    )]
    NoToken,
    #[error(
        "malformed token; expected `<id>.<secret>` or a JWT, in the header `Authorization: Bearer \
         <token>` (or `Token` in place of `Bearer`, or HTTP Basic with id and secret); hooks also \
         accept it in X-Api-Key or `?token=`, InfluxDB's version 1 in `?u=` and `?p=`"
    )]
    MalformedToken,
    #[error("token rejected: its id is not in the tokens file, or its secret does not match")]
    WrongToken,
    #[error(transparent)]
    Jwt(JwtFault),
    #[error("{}", CredentialFault::NoIdentity)]
    NoIdentity,
    #[error("{}", denied_text(*.0))]
    Denied(#[from] Denied),
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    #[error("too many failed authentications from this address; try again with a valid token")]
    Paused {
        /// Until the pause ends, rounded up.
        seconds: u64,
    },
}

impl From<CredentialFault> for AccessError {
    fn from(fault: CredentialFault) -> AccessError {
        match fault {
            CredentialFault::Wrong => AccessError::WrongToken,
            CredentialFault::Jwt(fault) => AccessError::Jwt(fault),
            CredentialFault::NoIdentity => AccessError::NoIdentity,
        }
    }
}

impl AccessError {
    /// The answer with this text in place of its own.
    pub(super) fn response(&self, detail: &str) -> Response {
        let mut response = refusal(self.status(), self.as_str(), detail);
        self.add_headers(response.headers_mut());
        response
    }

    /// 401: the credentials are missing or not valid. 403: they do not allow this. 429: a quota is
    /// exceeded, or the address is paused.
    pub fn status(&self) -> StatusCode {
        match self {
            AccessError::NoToken
            | AccessError::MalformedToken
            | AccessError::WrongToken
            | AccessError::Jwt(_)
            | AccessError::Denied(Denied::Expired | Denied::NotYetValid) => {
                StatusCode::UNAUTHORIZED
            }
            AccessError::Denied(Denied::Protocol | Denied::Write | Denied::Forward)
            | AccessError::NoIdentity => StatusCode::FORBIDDEN,
            AccessError::Quota(_) | AccessError::Paused { .. } => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Adds Retry-After, WWW-Authenticate or Connection.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        match self {
            AccessError::NoToken | AccessError::MalformedToken => {
                let value = "Bearer realm=\"hourbucket\"";
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(value));
            }
            AccessError::WrongToken
            | AccessError::Jwt(_)
            | AccessError::Denied(Denied::Expired | Denied::NotYetValid) => {
                let value = "Bearer realm=\"hourbucket\", error=\"invalid_token\"";
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(value));
            }
            AccessError::Quota(exceeded) => {
                let seconds = exceeded.retry_after.as_secs_f64().ceil() as u64;
                retry_after(headers, seconds.max(1));
            }
            AccessError::Paused { seconds } => {
                retry_after(headers, *seconds);
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            AccessError::Denied(Denied::Protocol | Denied::Write | Denied::Forward)
            | AccessError::NoIdentity => {}
        }
    }
}

/// The machine-readable reason; the set is fixed.
impl Named for AccessError {
    fn as_str(&self) -> &'static str {
        match self {
            AccessError::NoToken => "no_token",
            AccessError::MalformedToken => "malformed_token",
            AccessError::WrongToken => "invalid_token",
            AccessError::Jwt(_) => "invalid_jwt",
            AccessError::NoIdentity => "no_identity",
            AccessError::Denied(Denied::Expired) => "expired_token",
            AccessError::Denied(Denied::NotYetValid) => "token_not_yet_valid",
            AccessError::Denied(Denied::Protocol | Denied::Write | Denied::Forward) => {
                "not_allowed"
            }
            AccessError::Quota(_) => "quota",
            AccessError::Paused { .. } => "paused",
        }
    }
}

/// Adds Retry-After: random, up to twice `base_s`, because senders that were refused together should
/// not return together.
pub fn retry_after(headers: &mut HeaderMap, base_s: u64) {
    let seconds = base_s + fastrand::u64(0..=base_s);
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
}

/// The answer with this reason and text.
pub fn refusal(status: StatusCode, reason: &str, detail: &str) -> Response {
    json(
        status,
        &serde_json::json!({ "error": { "reason": reason, "detail": detail } }),
    )
}

/// What to do about it. The sender knows its own token, so its id is not repeated.
fn denied_text(denied: Denied) -> &'static str {
    match denied {
        Denied::Expired => "token expired; use a new one",
        Denied::NotYetValid => {
            "token not valid yet (`nbf`); compare the clocks of its issuer and of this machine"
        }
        Denied::Protocol => "this token may not be used over HTTP (`via` in the tokens file)",
        Denied::Write => {
            "this token may not write readings (`write` in the tokens file, or the JWT's claim, is \
             empty)"
        }
        Denied::Forward => {
            "this token may not forward what others have sent; give its entry in the tokens file \
             `forward = true`"
        }
    }
}

impl IntoResponse for AccessError {
    fn into_response(self) -> Response {
        self.response(&self.to_string())
    }
}
