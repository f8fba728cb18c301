//! The way of a body's readings, the same for every route: received, decoded, counted, handed over, waited for.
//!
//! The sender may leave at any point: before the hand-over nothing was taken, and after it the readings go their way all
//! the same. Between the hand-over and its counting nothing waits, so `accepted` counts what was handed over and nothing
//! else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::request::Parts;

use super::admit::{Shared, asks_before_sending};
use super::body::{BodyPermit, ReceivedBody, drain, receive};
use super::encoding::{DecompressError, Encoding};
use super::error::IngestError;
use crate::ack::{Ack, AckOutcome, AckWaiter};
use crate::admission::{AdmissionError, IngestBatch};
use crate::config::Decoding;
use crate::decode::{self, Context, Decoder, Rejects, TsUnit};
use crate::model::{BatchBuilder, DeadLetter, FieldLimiter, ReadingBatch};
use crate::telemetry::metrics::{self, Source};
use crate::telemetry::rejected;

/// Bodies up to this size, decompressed, are decoded where the request is; at some 200 MB/s that is about a
/// millisecond in which the thread does nothing else. Larger ones go to a thread of their own.
const INLINE_BYTES_MAX: u64 = 256 << 10;

/// Characters of a line that is quoted in an answer.
const QUOTED_CHARS_MAX: usize = 200;

/// What the request says about its body.
#[derive(Debug, Clone)]
pub(super) struct DecodeOptions {
    pub(super) decoder: Decoder,
    pub(super) encoding: Encoding,
    pub(super) ts_unit: Option<TsUnit>,
    /// The answer quotes the lines of rejects.
    pub(super) quoting: bool,
    /// What the URL says beside that; most routes say nothing.
    pub(super) origin: Origin,
}

/// Where the readings of a body are from, as far as the request says it outside of the body.
#[derive(Debug, Clone, Default)]
pub(super) struct Origin {
    /// In place of an MQTT topic, for mappings.
    pub(super) topic: Option<String>,
    /// Where the body names no sensor.
    pub(super) sensor_id: Option<String>,
    /// The field of a bare value.
    pub(super) field: Option<String>,
    /// A body of which something is rejected comes back, decompressed.
    pub(super) keeping: bool,
}

/// What became of a body.
pub(super) struct DecodedBody {
    pub(super) batch: ReadingBatch,
    pub(super) rejects: Rejects,
    /// The lines of the rejects that are kept, where they were asked for.
    pub(super) quoted: Vec<String>,
    /// When it was received, in milliseconds since 1970.
    pub(super) received_at_ms: i64,
    /// See [`Origin::keeping`].
    pub(super) kept: Option<Vec<u8>>,
}

/// The body of a request, once its head is understood; a body that nobody wants is let pass, so that its sender reads why.
pub(super) async fn arrive<T>(
    shared: &Shared,
    parts: &Parts,
    body: Body,
    understood: Result<T, IngestError>,
) -> Result<(T, ReceivedBody), IngestError> {
    let asked = asks_before_sending(&parts.headers);
    let understood = match understood {
        Ok(understood) => understood,
        Err(error) => {
            drain(body, asked).await;
            return Err(error);
        }
    };
    let cfg = &shared.cfg;
    let received = receive(body, asked, cfg.body_max_bytes, cfg.body_timeout, &shared.bodies).await?;
    Ok((understood, received))
}

/// Decodes a body that has arrived, here or, if it is large, in a thread for such work. What it holds of the budget of all
/// bodies comes back, to be dropped when its readings count elsewhere.
pub(super) async fn decode(
    shared: &Shared,
    received: ReceivedBody,
    options: DecodeOptions,
) -> Result<(DecodedBody, BodyPermit), IngestError> {
    decode_within(shared, received, options, shared.cfg.body_max_bytes).await
}

/// The same for a body that may have `bytes_max` bytes decompressed.
pub(super) async fn decode_within(
    shared: &Shared,
    received: ReceivedBody,
    options: DecodeOptions,
    bytes_max: u64,
) -> Result<(DecodedBody, BodyPermit), IngestError> {
    let received_at_ms = shared.clock.now().wall_ms;
    let decoding = shared.decoding.clone();
    let fields = shared.admission.fields().cloned();
    let work = DecodeJob { body: received.bytes, options, received_at_ms, decoding, fields, bytes_max };
    work.run(received.held).await
}

/// A body and all that it takes to decode it.
struct DecodeJob {
    body: Vec<u8>,
    options: DecodeOptions,
    received_at_ms: i64,
    decoding: Arc<Decoding>,
    fields: Option<FieldLimiter>,
    bytes_max: u64,
}

impl DecodeJob {
    /// Decodes here if the body is small, and also small once it is decompressed; otherwise in a thread for such work.
    /// What the body holds of the budget goes there with it: where the sender leaves, the work goes on to its end.
    async fn run(self, mut held: BodyPermit) -> Result<(DecodedBody, BodyPermit), IngestError> {
        let (bytes, encoding, bytes_max) = (self.body.len() as u64, self.options.encoding, self.bytes_max);
        let inflated_max = |limit: u64| if encoding == Encoding::Identity { 0 } else { limit };
        let inline_max = INLINE_BYTES_MAX.min(bytes_max);
        if bytes <= inline_max {
            held.grow_to(bytes + inflated_max(inline_max))?;
            match self.decode(inline_max) {
                Err(DecompressError::TooLarge) if inline_max < bytes_max => {}
                done => return done.map(|decoded| (decoded, held)).map_err(|e| refuse(e, encoding, bytes_max)),
            }
        }
        held.grow_to(bytes + inflated_max(bytes_max))?;
        let done = tokio::task::spawn_blocking(move || (self.decode(self.bytes_max), held)).await;
        let (decoded, held) = done.map_err(|e| {
            tracing::error!("decoding a body panicked: {e}");
            IngestError::Internal
        })?;
        decoded.map(|decoded| (decoded, held)).map_err(|e| refuse(e, encoding, bytes_max))
    }

    fn decode(&self, inflated_max: u64) -> Result<DecodedBody, DecompressError> {
        let payload = self.options.encoding.inflate(&self.body, inflated_max)?;
        let context = Context {
            limits: &self.decoding.limits,
            line: &self.decoding.line,
            received_at_ms: self.received_at_ms,
            ts_unit: self.options.ts_unit,
            sensor_id: self.options.origin.sensor_id.as_deref(),
            field: self.options.origin.field.as_deref(),
            tags: &[],
        };
        let topic = self.options.origin.topic.as_deref();
        let mut builder = BatchBuilder::new(self.decoding.limits.fields_max);
        if let Some(fields) = &self.fields {
            builder.guard(fields.guard(self.decoding.limits.bucket_fields_max, self.received_at_ms));
        }
        let mut rejects = Rejects::new();
        self.options.decoder.decode(&payload, topic, &context, &mut builder, &mut rejects);
        let indexes = rejects.list().iter().map(|reject| reject.index);
        let quoted =
            if self.options.quoting { decode::quote_lines(&payload, indexes, QUOTED_CHARS_MAX) } else { vec![] };
        let kept = (self.options.origin.keeping && !rejects.is_empty()).then(|| payload.into_owned());
        Ok(DecodedBody { batch: builder.finish(), rejects, quoted, received_at_ms: self.received_at_ms, kept })
    }
}

fn refuse(error: DecompressError, encoding: Encoding, limit: u64) -> IngestError {
    match error {
        DecompressError::TooLarge => IngestError::TooLargeDecompressed { limit },
        DecompressError::Corrupt(e) => IngestError::Corrupt { encoding: encoding.name(), detail: e.to_string() },
    }
}

/// Counts what arrived, once for the whole body; `sender` names whom rejects are told of.
pub(super) fn count(batch: &ReadingBatch, rejects: &Rejects, sender: impl FnOnce() -> String, at_ms: i64) {
    metrics::received(Source::Http, (batch.len() + rejects.total()) as u64);
    for (reason, n) in rejects.by_reason() {
        metrics::rejected(Source::Http, reason, *n as u64);
    }
    if rejects.is_empty() {
        return;
    }
    let sender = sender();
    for (reason, n) in rejects.by_reason() {
        let detail = rejects.list().iter().rev().find(|r| r.reason == *reason).map_or("", |r| &r.detail);
        rejected::note(Source::Http, &sender, reason, *n as u64, detail, at_ms);
    }
}

/// Hands the readings over, all or none, and waits until they are safe. Nothing to do for none.
pub(super) async fn deliver(shared: &Shared, batch: ReadingBatch, held: BodyPermit) -> Result<(), IngestError> {
    deliver_with(shared, batch, vec![], held, shared.cfg.queue_timeout).await
}

/// The same with dead letters, and with more patience where admission is narrow.
pub(super) async fn deliver_with(
    shared: &Shared,
    batch: ReadingBatch,
    dead: Vec<DeadLetter>,
    held: BodyPermit,
    patience: Duration,
) -> Result<(), IngestError> {
    if batch.is_empty() && dead.is_empty() {
        return Ok(());
    }
    let wait = hand_over(shared, batch, dead, patience).await?;
    // From here on the readings count against the next stage's memory, not against that of the bodies.
    drop(held);
    acknowledged(shared, wait).await
}

async fn hand_over(
    shared: &Shared,
    batch: ReadingBatch,
    dead: Vec<DeadLetter>,
    patience: Duration,
) -> Result<AckWaiter, IngestError> {
    // Counted with the outcome and not by this request, which may be gone by then: at rest what is accepted must be what is
    // stored, whether its sender has waited or not, and what the journal had no room for is neither.
    let readings = batch.len() as u64;
    let since = Instant::now();
    let (ack, wait) = Ack::observed(move |outcome| {
        if outcome == AckOutcome::Delivered {
            metrics::accepted(Source::Http, readings);
            metrics::acknowledged(Source::Http, since.elapsed().as_secs_f64());
        }
    });
    let submit = shared.admission.submit(IngestBatch::new(batch, dead, ack));
    tokio::time::timeout(patience, submit).await.unwrap_or(Err(AdmissionError::Busy))?;
    Ok(wait)
}

async fn acknowledged(shared: &Shared, wait: AckWaiter) -> Result<(), IngestError> {
    let _pending = Pending::new();
    let timeout = shared.cfg.ack_timeout;
    match tokio::time::timeout(timeout, wait.outcome()).await {
        Ok(AckOutcome::Delivered) => Ok(()),
        // The ingest batch that finds the journal full is the one that closes admission.
        Ok(AckOutcome::NotDelivered) => {
            Err(shared.admission.check().err().map_or(IngestError::NotDelivered, IngestError::from))
        }
        Err(_) => Err(IngestError::AckTimeout { seconds: timeout.as_secs_f64() }),
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
