//! Errors of the read API and their HTTP statuses.

use std::borrow::Cow;

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::read::ReadError;
use model::{Named, SensorId};
use net::access::Denied;
use net::http::AccessError;
use net::http::json;
use telemetry::tail::TooManyWatchers;

/// Why a request fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error(
        "reading from another machine requires tokens: set http.tokens_file and send the header \
         `Authorization: Bearer <id>.<secret>`, or set admin.listen to 127.0.0.1"
    )]
    NoTokens,
    #[error(
        "the proxy in front of this port names a client on another machine, and without tokens \
         only this machine may read; set http.tokens_file and send the header `Authorization: \
         Bearer <id>.<secret>`, or, if the proxy decides who may read, remove it from \
         admin.trusted_proxies"
    )]
    FarClient,
    #[error(
        "a web page of another site sent this request (headers Sec-Fetch-Site and Origin), which \
         is refused without tokens; open the address itself, or set http.tokens_file and send the \
         header `Authorization: Bearer <id>.<secret>`"
    )]
    ForeignPage,
    #[error(
        "without tokens, the header Host must be an IP address or localhost; set http.tokens_file \
         and send the header `Authorization: Bearer <id>.<secret>`"
    )]
    ForeignHost,
    #[error(
        "this token may not read the requested sensors (`read` in the tokens file, or the JWT's \
         claim)"
    )]
    NotAllowed,
    #[error("{}", match .0 {
        Denied::Expired => "token expired; use a new one to read",
        Denied::NotYetValid => "token not valid yet (`nbf`); compare the clocks of its issuer and \
            of this machine",
        Denied::Protocol | Denied::Write | Denied::Forward => "this token may not be used over HTTP \
            (`via` in the tokens file)",
    })]
    Denied(Denied),
    #[error("{name}: {problem}")]
    Parameter { name: &'static str, problem: String },
    #[error("invalid query string: {0}")]
    Query(String),
    #[error("invalid path: {0}")]
    Path(String),
    #[error("no readings of this sensor have ever arrived")]
    UnknownSensor,
    #[error("`{former}` is a former id of the sensor `{sensor_id}`: ask for that")]
    FormerId {
        former: SensorId,
        sensor_id: SensorId,
    },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the read API is not available on this port")]
    Off,
    #[error(transparent)]
    Watchers(#[from] TooManyWatchers),
    #[error(
        "this token, or without tokens this address, has as many streams as it may; close one, or \
         try again later"
    )]
    Places,
    #[error("internal error; see the log of the service")]
    Internal,
}

/// Why a reader is refused (401), and what to do.
pub(super) fn token_text(error: &AccessError) -> Cow<'static, str> {
    let text = match error {
        AccessError::NoToken => {
            "reading requires a token of http.tokens_file: send it as `Authorization: Bearer \
             <id>.<secret>`, or its id and secret as user name and password (HTTP Basic)"
        }
        AccessError::MalformedToken => {
            "malformed header Authorization; to read, send a token of http.tokens_file as `Bearer \
             <id>.<secret>`, or its id and secret as user name and password (HTTP Basic)"
        }
        AccessError::WrongToken => {
            "token rejected, so it cannot read: its id is not in http.tokens_file, or its secret \
             does not match"
        }
        other => return other.to_string().into(),
    };
    text.into()
}

/// Value of the header Retry-After, in seconds.
const RETRY_S: u64 = 2;

impl ApiError {
    pub(super) fn parameter(name: &'static str, problem: impl Into<String>) -> ApiError {
        ApiError::Parameter {
            name,
            problem: problem.into(),
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            ApiError::Denied(Denied::Expired | Denied::NotYetValid) => StatusCode::UNAUTHORIZED,
            ApiError::NoTokens
            | ApiError::FarClient
            | ApiError::ForeignPage
            | ApiError::ForeignHost
            | ApiError::NotAllowed
            | ApiError::Denied(_) => StatusCode::FORBIDDEN,
            ApiError::Parameter { .. }
            | ApiError::Query(_)
            | ApiError::Path(_)
            | ApiError::Read(ReadError::TooManySensors | ReadError::TooManyFields) => {
                StatusCode::BAD_REQUEST
            }
            ApiError::UnknownSensor | ApiError::FormerId { .. } => StatusCode::NOT_FOUND,
            ApiError::Read(_) | ApiError::Watchers(_) | ApiError::Places | ApiError::Off => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ApiError::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl Named for ApiError {
    fn as_str(&self) -> &'static str {
        match self {
            ApiError::NoTokens | ApiError::FarClient => "no_tokens",
            ApiError::ForeignPage => "foreign_origin",
            ApiError::ForeignHost => "foreign_host",
            ApiError::Denied(Denied::Expired) => "expired_token",
            ApiError::Denied(Denied::NotYetValid) => "token_not_yet_valid",
            ApiError::NotAllowed | ApiError::Denied(_) => "not_allowed",
            ApiError::Parameter { .. }
            | ApiError::Read(ReadError::TooManySensors | ReadError::TooManyFields) => {
                "bad_parameter"
            }
            ApiError::UnknownSensor => "unknown_sensor",
            ApiError::FormerId { .. } => "former_id",
            ApiError::Query(_) => "bad_query",
            ApiError::Path(_) => "bad_path",
            ApiError::Read(ReadError::Store(_)) => "store_away",
            ApiError::Read(ReadError::TimedOut) => "timed_out",
            ApiError::Read(ReadError::Busy | ReadError::NotKnownYet)
            | ApiError::Watchers(_)
            | ApiError::Places => "busy",
            ApiError::Read(ReadError::Gone) | ApiError::Off => "stopping",
            ApiError::Internal => "internal",
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut error = serde_json::json!({ "reason": self.as_str(), "detail": self.to_string() });
        if let ApiError::FormerId { sensor_id, .. } = &self {
            error["sensor_id"] = serde_json::json!(&**sensor_id);
        }
        let body = serde_json::json!({ "error": error });
        let mut response = json(self.status(), &body);
        if self.status() == StatusCode::SERVICE_UNAVAILABLE {
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(RETRY_S));
        }
        response
    }
}
