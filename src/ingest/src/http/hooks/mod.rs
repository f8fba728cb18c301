//! `/v1/hooks/{format}`: LoRaWAN servers, clouds and devices post here, each in its own format.
//!
//! Most of these senders send once: ChirpStack logs an error and drops the uplink, The Things Stack
//! tries once, a Shelly ignores the answer. Therefore:
//! - A body that cannot be decoded is not answered with an error. The whole body is kept as a dead
//!   letter, durable like readings, and the answer is 2xx (202 if no reading of it was accepted).
//!   After the mapping is corrected, `hourbucket dead-letters replay` decodes it again.
//! - Under overload a hook waits for room ([`PATIENCE`]). The other routes answer immediately with
//!   "try again", because their senders do. 429 and 503 with Retry-After remain for senders that
//!   can retry (Event Grid, AWS).
//! - A body has at most [`BODY_BYTES_MAX`] bytes, the limit of a dead letter's payload.
//!
//! The query may contain a token; it is never kept. `handshake` answers the handshakes of clouds,
//! `target` parses the URL.

mod handshake;
mod target;

pub(crate) use self::target::Target;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;

use super::admit::Shared;
use super::answer::{self, Accepted};
use super::body::{BodyLimits, ReceivedBody, check_length, receive};
use super::error::IngestError;
use super::form::{self, Form};
use super::media;
use super::pipeline::{self, DecodedBody};
use super::routes::{HOOKS, with_slash};
use model::{DEAD_PAYLOAD_BYTES_MAX, DeadLetter};
use net::http::encoding::Encoding;
use net::http::peer::Peer;
use telemetry::metrics::Source;

/// How long a hook waits for room. The Things Stack and ChirpStack wait some seconds for an answer.
const PATIENCE: Duration = Duration::from_secs(4);

/// Limit of a body, both as sent and decompressed.
const BODY_BYTES_MAX: u64 = DEAD_PAYLOAD_BYTES_MAX as u64;

pub(super) fn routes(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    let methods = post(take).get(take_query).options(handshake::options);
    with_slash(
        HOOKS,
        methods.route_layer(from_fn_with_state(shared.clone(), admit)),
    )
}

/// Middleware like [`super::admit::admit`]: accepts a token in more places, and does not check for
/// room yet.
async fn admit(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let token = target::token(request.uri());
    let peer = Peer::find(request.extensions());
    match shared.open(peer, |credentials| {
        credentials.check_hook(request.headers(), token.as_deref())
    }) {
        Ok(sender) => sender.run(request, next).await,
        Err(error) => error.into_response(),
    }
}

/// The last part of the path.
type Format = Result<Path<String>, PathRejection>;

async fn take(State(shared): State<Arc<Shared>>, format: Format, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    posted(&shared, format, &parts, body)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

async fn posted(
    shared: &Shared,
    format: Format,
    parts: &Parts,
    body: Body,
) -> Result<Response, IngestError> {
    let Path(format) = format?;
    let encoding = Encoding::from_headers(&parts.headers)?;
    // An unknown format is refused here, so its bodies do not become dead letters.
    let target = Target::parse(&format, &parts.uri)?;
    let mut options = target.decode_options(&shared.formats, encoding)?;
    if media::is_form(&parts.headers) {
        options.origin.form = Form::of_body(&options.decoder);
    }
    check_length(parts)?;
    let limits = BodyLimits::new(&shared.cfg).at_most(BODY_BYTES_MAX);
    let mut received = receive(parts, body, &limits, &shared.bodies).await?;
    let _running = shared
        .start_patiently(parts, &mut received, PATIENCE)
        .await?;
    if handshake::is_confirmation(&parts.headers) {
        return confirmation(shared, &target, received).await;
    }
    match handshake::answer(&parts.headers, &received.bytes) {
        Some(answer) => Ok(answer),
        None => store_readings(shared, &target, received, options).await,
    }
}

/// `GET`: a Shelly sends its values in the query, which is decoded like the body of a form. Without
/// any value it is a health check.
async fn take_query(
    State(shared): State<Arc<Shared>>,
    format: Format,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    let taken = async {
        let Path(format) = format?;
        let target = Target::parse(&format, &parts.uri)?;
        let mut options = target.decode_options(&shared.formats, Encoding::Identity)?;
        let query = parts.uri.query().unwrap_or_default().as_bytes();
        // axum routes HEAD here as well; it must not change anything.
        if !form::has_values(query) || parts.method != Method::GET {
            return Ok(answer::hook(
                Accepted::default(),
                &Default::default(),
                false,
            ));
        }
        if !options.decoder.reads_objects() {
            return Err(IngestError::NoQueryValues);
        }
        options.origin.form = Some(Form::of_query(&options.decoder));
        let mut received = ReceivedBody::charge_bytes(query.to_vec(), &parts, &shared.bodies)?;
        let _running = shared
            .start_patiently(&parts, &mut received, PATIENCE)
            .await?;
        store_readings(&shared, &target, received, options).await
    };
    taken.await.unwrap_or_else(IntoResponse::into_response)
}

async fn store_readings(
    shared: &Shared,
    target: &Target,
    received: ReceivedBody,
    options: pipeline::DecodeOptions,
) -> Result<Response, IngestError> {
    let sender = received.held.sender.clone();
    let (decoded, held) =
        pipeline::decode_within(shared, received, options, BODY_BYTES_MAX).await?;
    let DecodedBody {
        batch,
        rejects,
        received_at_ms,
        kept,
        ..
    } = decoded;
    let sender = || sender.map_or_else(|| target.written(), |grant| grant.id.to_string());
    pipeline::count(&batch, &rejects, sender, received_at_ms);
    let dead_letter = target.dead_letter(&rejects, kept, received_at_ms);
    let accepted = Accepted::count(&batch);
    let kept = dead_letter.is_some();
    pipeline::deliver_with(
        shared,
        batch,
        dead_letter.into_iter().collect(),
        held,
        PATIENCE,
    )
    .await?;
    Ok(answer::hook(accepted, &rejects, kept))
}

/// AWS requests a confirmation that its rule may post here: a URL that has to be opened once. An
/// operator must do that: a service must not fetch URLs from a sender's message. The URL is as good
/// as a password, so it is not logged. It is kept as a dead letter, and the log says how to find
/// it.
async fn confirmation(
    shared: &Shared,
    target: &Target,
    received: ReceivedBody,
) -> Result<Response, IngestError> {
    let now_ms = shared.clock.now().wall_ms;
    let reason = handshake::CONFIRMATION.as_str();
    let detail = "open the payload's enableUrl to allow AWS IoT to post here";
    let dead_letter = DeadLetter::keep(
        now_ms,
        Source::Http.as_str(),
        target.written(),
        &received.bytes,
        reason,
        detail,
    );
    pipeline::deliver_with(
        shared,
        Default::default(),
        vec![dead_letter],
        received.held,
        PATIENCE,
    )
    .await?;
    tracing::warn!(
        reason,
        "AWS IoT destination needs confirmation; open the enableUrl in `hourbucket dead-letters \
         list --reason <reason>`"
    );
    Ok(answer::hook(Accepted::default(), &Default::default(), true))
}
