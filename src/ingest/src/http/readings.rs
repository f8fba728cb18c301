//! `POST /v1/readings`: the native format, or any other with `format=NAME`.
//!
//! The life of a request: headers and query are parsed, the body arrives, is decompressed and
//! decoded, its readings pass admission in one ingest batch, and the answer waits for their
//! acknowledgement. `pipeline` does everything from the body on.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::admit::{Sender, Shared, shown_sender};
use super::answer::{self, Accepted};
use super::error::IngestError;
use super::form::Form;
use super::media;
use super::pipeline::{self, DecodeOptions, Origin};
use decode::{UnknownFormat, UnknownName};
use net::http::access_error::AccessError;
use net::http::encoding::Encoding;

pub(super) async fn post(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    take(&shared, &parts, body)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

async fn take(shared: &Shared, parts: &Parts, body: Body) -> Result<Response, IngestError> {
    let options = decode_options(shared, parts)?;
    let sender = || shown_sender(parts);
    let (accepted, rejects) =
        pipeline::ingest(shared, parts, body, options, sender, Accepted::count).await?;
    Ok(answer::readings(accepted, &rejects))
}

/// Unknown parameters are refused: a misspelled `ts_unit` would move every reading to another time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    ts_unit: Option<String>,
    format: Option<String>,
    /// The topic for a mapping, and the sensor of readings that name none.
    topic: Option<String>,
    sensor_id: Option<String>,
    #[serde(default)]
    import: bool,
}

/// Reads headers and query. A format in the query overrides Content-Type.
fn decode_options(shared: &Shared, parts: &Parts) -> Result<DecodeOptions, IngestError> {
    let query = Query::<Params>::try_from_uri(&parts.uri);
    let known = "expected ts_unit (one of s, ms, us, ns), format, topic, sensor_id or import (true \
        or false)";
    let error = |detail| IngestError::Query { detail, known };
    let Query(params) = query.map_err(|e| error(e.body_text()))?;
    let ts_unit = params.ts_unit.map(|name| name.parse()).transpose();
    let ts_unit = ts_unit.map_err(|e: UnknownName| error(e.to_string()))?;
    let decoder = match params.format {
        Some(name) => shared
            .formats
            .get(&name)
            .map_err(|e: UnknownFormat| error(e.to_string()))?,
        None => media::decoder_of(&parts.headers)?,
    };
    if decoder.is_forwarded() {
        if let Some(grant) = Sender::find(parts) {
            grant.check_forward().map_err(AccessError::Denied)?;
        }
        if !shared.decoding.takes_forwarded {
            return Err(IngestError::NewestFirst);
        }
    }
    let ts_unit = ts_unit.or(decoder.ts_unit_usual());
    let form = media::is_form(&parts.headers).then(|| Form::of_body(&decoder));
    Ok(DecodeOptions {
        decoder,
        encoding: Encoding::from_headers(&parts.headers)?,
        ts_unit,
        quoting: false,
        origin: Origin {
            topic: params.topic,
            sensor_id: params.sensor_id,
            importing: params.import,
            form: form.flatten(),
            ..Origin::default()
        },
    })
}
