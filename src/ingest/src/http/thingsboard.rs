//! `POST /api/v1/{token}/telemetry`: ThingsBoard's device API.
//!
//! The token in the URL is the credential and identifies the device: the sensor is the id of the
//! entry in `http.tokens_file` with that token. The token is `id.secret`, or the secret alone for
//! devices whose token was issued by ThingsBoard. If no tokens are configured, the token itself is
//! the sensor id. The mapping `thingsboard-telemetry` decodes the body. As shipped, it takes no
//! sensor id from the body, so a device can only send its own readings.
//!
//! The answers are ThingsBoard's: 200 without a body, 400, 401; and 429 and 503, as on the other
//! routes. Its devices read no more of a 200 than its status. So if a part of a body is rejected,
//! the whole body is kept as a dead letter, with the URL of a hook that decodes it the same way:
//! the path of this route has a token.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::post;

use super::admit::{Shared, health_check};
use super::answer::{self, Accepted};
use super::error::IngestError;
use super::hooks::Target;
use super::pipeline::{self, DecodedBody};
use super::routes::{TELEMETRY, with_slash};
use net::http::access_error::AccessError;
use net::http::encoding::Encoding;
use net::http::peer::Peer;

/// The mapping; a configuration can replace it with its own of that name.
const PROFILE: &str = "thingsboard-telemetry";

pub(super) fn routes(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    let methods = post(take).get(health_check);
    with_slash(
        TELEMETRY,
        methods.route_layer(from_fn_with_state(shared.clone(), admit)),
    )
}

/// The sensor that sent the request.
#[derive(Debug, Clone)]
struct Device(String);

/// Middleware like [`super::admit::admit`]; takes the token from the path.
async fn admit(
    State(shared): State<Arc<Shared>>,
    token: Result<Path<String>, PathRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let token = match token {
        Ok(Path(token)) => token,
        Err(rejection) => return IngestError::from(rejection).into_response(),
    };
    match shared.admit(Peer::find(request.extensions()), |credentials| {
        credentials.of_token(&token).ok_or(AccessError::WrongToken)
    }) {
        Ok(sender) => {
            let device = sender
                .0
                .as_ref()
                .map_or(token, |grant| grant.id.to_string());
            request.extensions_mut().insert(Device(device));
            sender.run(request, next).await
        }
        Err(error) => error.into_response(),
    }
}

async fn take(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let device = parts.extensions.remove::<Device>();
    match device {
        Some(Device(device)) => taken(&shared, &parts, body, device)
            .await
            .unwrap_or_else(IntoResponse::into_response),
        // `admit` always inserts it.
        None => IngestError::Internal.into_response(),
    }
}

async fn taken(
    shared: &Shared,
    parts: &Parts,
    body: Body,
    device: String,
) -> Result<Response, IngestError> {
    let encoding = Encoding::from_headers(&parts.headers)?;
    let target = Target::of_sensor(PROFILE, device.clone());
    let options = target.decode_options(&shared.formats, encoding)?;
    let (received, _running) = pipeline::arrive(shared, parts, body).await?;
    let (decoded, held) = pipeline::decode(shared, received, options).await?;
    let DecodedBody {
        batch,
        rejects,
        received_at_ms,
        kept,
        ..
    } = decoded;
    pipeline::count(&batch, &rejects, || device, received_at_ms);
    // An empty object or list contains no readings and is not an error.
    let is_fine = !batch.is_empty() || rejects.is_empty();
    // The device is told that nothing was accepted.
    let kept = kept.filter(|_| is_fine);
    let dead_letter = target.dead_letter(&rejects, kept, received_at_ms);
    let dead = dead_letter.into_iter().collect();
    pipeline::deliver_with(shared, batch, dead, held, shared.cfg.queue_timeout).await?;
    Ok(if is_fine {
        Response::new(Body::empty())
    } else {
        answer::readings(Accepted::default(), &rejects)
    })
}
