//! `POST /v1/readings`: the native shape.
//!
//! The life of a request: headers and query are understood, the body arrives, is decompressed and decoded, its readings
//! go through the door in one parcel, and the answer waits for their acknowledgement. The sender may leave at any point:
//! before the hand-over nothing was taken, and after it the readings go their way all the same. Between the hand-over
//! and its counting nothing waits, so `accepted` counts what was handed over and nothing else.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::admit::{Shared, asks_before_sending};
use super::answer;
use super::body::{Held, drain, receive};
use super::encoding::{Encoding, Inflate};
use super::media;
use super::refusal::Refusal;
use crate::ack::{Ack, Outcome, Wait};
use crate::config::Limits;
use crate::decode::{self, Context, Format, Rejects, TsUnit, UnknownName};
use crate::intake::{Parcel, Refused};
use crate::model::{BatchBuilder, ReadingBatch};
use crate::telemetry::metrics::{self, Source};

/// Bodies up to this size, decompressed, are decoded where the request is; at some 200 MB/s that is about a
/// millisecond in which the thread does nothing else. Larger ones go to a thread of their own.
const INLINE_BYTES_MAX: u64 = 256 << 10;

pub(super) async fn post(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    take(&shared, &parts, body).await.unwrap_or_else(IntoResponse::into_response)
}

async fn take(shared: &Shared, parts: &Parts, body: Body) -> Result<Response, Refusal> {
    let asked = asks_before_sending(&parts.headers);
    let how = match How::of(parts) {
        Ok(how) => how,
        Err(refusal) => {
            drain(body, asked).await;
            return Err(refusal);
        }
    };
    let cfg = &shared.cfg;
    let received = receive(body, asked, cfg.body_max_bytes, cfg.body_timeout, &shared.bodies).await?;
    let received_at_ms = shared.clock.now().wall_ms;
    let limits = shared.limits.clone();
    let work = Work { body: received.bytes, how, received_at_ms, limits, bytes_max: cfg.body_max_bytes };
    let (Decoded { batch, rejects }, held) = work.run(received.held).await?;
    count(&batch, &rejects);
    let accepted = batch.len();
    if accepted > 0 {
        let wait = hand_over(shared, batch).await?;
        // From here on the readings count against the next stage's memory, not against that of the bodies.
        drop(held);
        acknowledged(shared, wait).await?;
    }
    Ok(answer::readings(accepted, &rejects))
}

/// What headers and query say about the body.
#[derive(Debug, Clone, Copy)]
struct How {
    format: Format,
    encoding: Encoding,
    ts_unit: Option<TsUnit>,
}

/// A parameter that is not known is refused: a misspelled `ts_unit` would move every reading to another time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    ts_unit: Option<String>,
}

impl How {
    fn of(parts: &Parts) -> Result<How, Refusal> {
        let query = Query::<Params>::try_from_uri(&parts.uri);
        let Query(params) = query.map_err(|e| Refusal::Query { detail: e.body_text() })?;
        let ts_unit = params.ts_unit.map(|name| name.parse()).transpose();
        let ts_unit = ts_unit.map_err(|e: UnknownName| Refusal::Query { detail: e.to_string() })?;
        Ok(How { format: media::format_of(&parts.headers)?, encoding: Encoding::of(&parts.headers)?, ts_unit })
    }
}

/// A body and all that it takes to decode it.
struct Work {
    body: Vec<u8>,
    how: How,
    received_at_ms: i64,
    limits: Arc<Limits>,
    bytes_max: u64,
}

struct Decoded {
    batch: ReadingBatch,
    rejects: Rejects,
}

impl Work {
    /// Decodes here if the body is small, and also small once it is decompressed; otherwise in a thread for such work.
    /// What the body holds of the budget goes there with it: where the sender leaves, the work goes on to its end.
    async fn run(self, mut held: Held) -> Result<(Decoded, Held), Refusal> {
        let (bytes, encoding, bytes_max) = (self.body.len() as u64, self.how.encoding, self.bytes_max);
        let inflated_max = |limit: u64| if encoding == Encoding::Identity { 0 } else { limit };
        let inline_max = INLINE_BYTES_MAX.min(bytes_max);
        if bytes <= inline_max {
            held.grow_to(bytes + inflated_max(inline_max))?;
            match self.decode(inline_max) {
                Err(Inflate::TooLarge) if inline_max < bytes_max => {}
                done => return done.map(|decoded| (decoded, held)).map_err(|e| refuse(e, encoding, bytes_max)),
            }
        }
        held.grow_to(bytes + inflated_max(bytes_max))?;
        let done = tokio::task::spawn_blocking(move || (self.decode(self.bytes_max), held)).await;
        let (decoded, held) = done.map_err(|e| {
            tracing::error!("decoding a body panicked: {e}");
            Refusal::Internal
        })?;
        decoded.map(|decoded| (decoded, held)).map_err(|e| refuse(e, encoding, bytes_max))
    }

    fn decode(&self, inflated_max: u64) -> Result<Decoded, Inflate> {
        let payload = self.how.encoding.inflate(&self.body, inflated_max)?;
        let context = Context {
            limits: &self.limits,
            received_at_ms: self.received_at_ms,
            ts_unit: self.how.ts_unit,
            sensor_id: None,
            field: None,
            tags: &[],
        };
        let mut builder = BatchBuilder::new(self.limits.fields_max);
        let mut rejects = Rejects::new();
        decode::decode(self.how.format, &payload, &context, &mut builder, &mut rejects);
        Ok(Decoded { batch: builder.finish(), rejects })
    }
}

fn refuse(error: Inflate, encoding: Encoding, limit: u64) -> Refusal {
    match error {
        Inflate::TooLarge => Refusal::TooLargeDecompressed { limit },
        Inflate::Corrupt(e) => Refusal::Corrupt { encoding: encoding.name(), detail: e.to_string() },
    }
}

/// Counts what arrived, once for the whole body.
fn count(batch: &ReadingBatch, rejects: &Rejects) {
    metrics::received(Source::Http, (batch.len() + rejects.total()) as u64);
    for (reason, n) in rejects.by_reason() {
        metrics::rejected(Source::Http, reason, *n as u64);
    }
}

/// Hands over the readings, all or none.
async fn hand_over(shared: &Shared, batch: ReadingBatch) -> Result<Wait, Refusal> {
    // Counted with the outcome and not by this request, which may be gone by then: at rest what is accepted must be what is
    // stored, whether its sender has waited or not, and what the journal had no room for is neither.
    let readings = batch.len() as u64;
    let (ack, wait) = Ack::observed(move |outcome| {
        if outcome == Outcome::Delivered {
            metrics::accepted(Source::Http, readings);
        }
    });
    let submit = shared.intake.submit(Parcel::new(batch, Vec::new(), ack));
    tokio::time::timeout(shared.cfg.queue_timeout, submit).await.unwrap_or(Err(Refused::Busy))?;
    Ok(wait)
}

/// Waits until the readings are safe.
async fn acknowledged(shared: &Shared, wait: Wait) -> Result<(), Refusal> {
    let _pending = Pending::new();
    let timeout = shared.cfg.ack_timeout;
    match tokio::time::timeout(timeout, wait.outcome()).await {
        Ok(Outcome::Delivered) => Ok(()),
        // The parcel that finds the journal full is the one that closes the door.
        Ok(Outcome::NotDelivered) => Err(shared.intake.check().err().map_or(Refusal::NotDelivered, Refusal::from)),
        Err(_) => Err(Refusal::AckTimeout { seconds: timeout.as_secs_f64() }),
    }
}

/// One request in the gauge of those that wait, for as long as it lives; also where the sender leaves.
struct Pending;

impl Pending {
    fn new() -> Pending {
        metrics::acks_pending_change(Source::Http, 1);
        Pending
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        metrics::acks_pending_change(Source::Http, -1);
    }
}
