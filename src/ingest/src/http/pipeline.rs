//! The request pipeline, the same for every route: receive the body, decode it, count, hand over,
//! wait for the acknowledgement.
//!
//! The sender may disconnect at any point. Before the hand-over, nothing was accepted; after it,
//! the readings continue through the pipeline. `accepted` counts delivered batches, whether or not
//! the sender is still connected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::request::Parts;

use super::admit::{Running, Shared};
use super::body::{BodyLimits, BodyPermit, ReceivedBody, check_length, receive};
use super::error::IngestError;
use super::form::{Form, NEITHER, Shape, TOO_MANY};
use crate::count_out_of_range;
use config::{Decoding, Limits};
use decode::{Context, Decoder, RejectReason, Rejects, Renamed, TsUnit};
use journal::admission::{AdmissionError, IngestBatch};
use journal::{KeyInFlight, KeyUse};
use model::ack::{Ack, AckOutcome, AckWaiter};
use model::{BatchBuilder, Checks, DeadLetter, ReadingBatch};
use net::access::Grant;
use net::http::encoding::{DecompressError, Encoding};
use telemetry::metrics::{self, Source};
use telemetry::rejected::{self, Reject};
use telemetry::{log_limit, tail};

/// Bodies up to this size, decompressed, are decoded in the request's task. At some 200 MB/s that
/// blocks the thread for about a millisecond. Larger bodies are decoded on a blocking thread.
const INLINE_BYTES_MAX: u64 = 256 << 10;

/// Characters of a line that an answer quotes.
const QUOTED_CHARS_MAX: usize = 200;

/// How to decode a body, from headers and URL.
#[derive(Debug, Clone)]
pub(crate) struct DecodeOptions {
    pub(super) decoder: Decoder,
    pub(super) encoding: Encoding,
    pub(super) ts_unit: Option<TsUnit>,
    /// The answer quotes the lines of rejects.
    pub(super) quoting: bool,
    /// Defaults from the URL; empty for most routes.
    pub(super) origin: Origin,
}

impl DecodeOptions {
    /// Without anything from the URL.
    pub(super) fn new(decoder: Decoder, encoding: Encoding) -> DecodeOptions {
        DecodeOptions {
            decoder,
            encoding,
            ts_unit: None,
            quoting: false,
            origin: Origin::default(),
        }
    }
}

/// The origin of a body's readings, as far as the request gives it outside of the body.
#[derive(Debug, Clone, Default)]
pub(super) struct Origin {
    /// Used in place of an MQTT topic, for mappings.
    pub(super) topic: Option<String>,
    /// Used if the body names no sensor.
    pub(super) sensor_id: Option<String>,
    /// The field of a bare value.
    pub(super) field: Option<String>,
    /// If anything is rejected, the body is returned as it was decoded: decompressed, and pairs as
    /// an object.
    pub(super) keeping: bool,
    /// The body may be pairs `name=value`, or is the query of a `GET`.
    pub(super) form: Option<Form>,
    /// An import: `limits.import_past` in place of `limits.past`, and each reading needs its own
    /// time, because it may be sent again days later.
    pub(super) importing: bool,
}

/// The result of decoding a body.
pub(super) struct DecodedBody {
    pub(super) batch: ReadingBatch,
    pub(super) rejects: Rejects,
    /// The lines of the kept rejects; empty unless requested ([`DecodeOptions::quoting`]).
    pub(super) quoted: Vec<String>,
    /// Time of receipt, in milliseconds since 1970.
    pub(super) received_at_ms: i64,
    /// See [`Origin::keeping`].
    pub(super) kept: Option<Vec<u8>>,
    /// Readings are missing because all together would be too large for the next stage.
    is_overfull: bool,
}

/// The whole pipeline, for a route that answers with figures only. `figures` reads them from the
/// batch; they are returned with the rejects once the readings are acknowledged. `sender` is as in
/// [`count`].
pub(super) async fn ingest<T>(
    shared: &Shared,
    parts: &Parts,
    body: Body,
    options: DecodeOptions,
    sender: impl FnOnce() -> String,
    figures: impl FnOnce(&ReadingBatch) -> T,
) -> Result<(T, Rejects), IngestError> {
    let (received, _running) = arrive(shared, parts, body).await?;
    let (decoded, held) = decode(shared, received, options).await?;
    let DecodedBody { batch, rejects, .. } = decoded;
    count(&batch, &rejects, sender, decoded.received_at_ms);
    let figures = figures(&batch);
    deliver(shared, batch, held).await?;
    Ok((figures, rejects))
}

/// Receives the body of a request whose head is valid. The permit is to be held until the answer is
/// made.
pub(super) async fn arrive(
    shared: &Shared,
    parts: &Parts,
    body: Body,
) -> Result<(ReceivedBody, Running), IngestError> {
    check_length(parts)?;
    let limits = BodyLimits::new(&shared.cfg);
    let mut received = receive(parts, body, &limits, &shared.bodies).await?;
    let running = shared.start(parts, &mut received).await?;
    Ok((received, running))
}

/// Decodes a body that has arrived: inline, or on a blocking thread if it is large. Also returns
/// the body's part of the budget, to be dropped when its readings are counted elsewhere.
pub(super) async fn decode(
    shared: &Shared,
    received: ReceivedBody,
    options: DecodeOptions,
) -> Result<(DecodedBody, BodyPermit), IngestError> {
    decode_within(shared, received, options, shared.cfg.body_max_bytes).await
}

/// Like [`decode()`], for a body of at most `bytes_max` bytes after decompression.
pub(super) async fn decode_within(
    shared: &Shared,
    received: ReceivedBody,
    options: DecodeOptions,
    bytes_max: u64,
) -> Result<(DecodedBody, BodyPermit), IngestError> {
    let now_ms = shared.clock.now().wall_ms;
    let decoding = shared.decoding.clone();
    let checks = shared.admission.checks().cloned();
    let readings_bytes_max = shared.admission.readings_bytes_max();
    let ReceivedBody { bytes, held } = received;
    let sender = held.sender.clone();
    let work = DecodeJob {
        body: bytes,
        options,
        sender: sender.clone(),
        now_ms,
        received_at_ms: held.received_at_ms().unwrap_or(now_ms),
        decoding,
        checks,
        readings_bytes_max,
        bytes_max,
    };
    let (decoded, held) = work.run(held).await?;
    if let Some(grant) = sender {
        let readings = decoded.batch.len() + decoded.rejects.total();
        // The bytes were charged as they arrived.
        grant.usage.charge(&grant.quota, readings, 0);
    }
    // What is kept as a dead letter is not lost, and its readings that fit are stored.
    if decoded.is_overfull && decoded.kept.is_none() {
        return Err(IngestError::TooLargeDecoded {
            limit: readings_bytes_max,
        });
    }
    Ok((decoded, held))
}

/// A body and everything that its decoding needs.
struct DecodeJob {
    body: Vec<u8>,
    options: DecodeOptions,
    sender: Option<Arc<Grant>>,
    now_ms: i64,
    /// Differs from `now_ms` in a repeat.
    received_at_ms: i64,
    decoding: Arc<Decoding>,
    checks: Option<Checks>,
    readings_bytes_max: usize,
    bytes_max: u64,
}

impl DecodeJob {
    /// Decodes inline if the body is small, also after decompression; otherwise on a blocking
    /// thread. The budget permit moves to that thread: if the sender disconnects, the work still
    /// runs to its end.
    async fn run(self, mut held: BodyPermit) -> Result<(DecodedBody, BodyPermit), IngestError> {
        let bytes = self.body.len() as u64;
        let encoding = self.options.encoding.of_body(&self.body);
        let bytes_max = self.bytes_max;
        let inflated_max = |limit: u64| {
            if encoding == Encoding::Identity {
                0
            } else {
                limit
            }
        };
        let inline_max = INLINE_BYTES_MAX.min(bytes_max);
        if bytes <= inline_max {
            held.grow_to(bytes + inflated_max(inline_max))?;
            match self.decode(inline_max) {
                Err(DecompressError::TooLarge) if inline_max < bytes_max => {}
                done => {
                    return done
                        .map(|decoded| (decoded, held))
                        .map_err(|e| refuse(e, encoding, bytes_max));
                }
            }
        }
        held.grow_to(bytes + inflated_max(bytes_max))?;
        let done = tokio::task::spawn_blocking(move || (self.decode(self.bytes_max), held)).await;
        let (decoded, held) = done.map_err(|e| {
            tracing::error!(error = %e, "decoding a body panicked; this is a bug, please report it");
            IngestError::Internal
        })?;
        decoded
            .map(|decoded| (decoded, held))
            .map_err(|e| refuse(e, encoding, bytes_max))
    }

    fn decode(&self, inflated_max: u64) -> Result<DecodedBody, DecompressError> {
        let mut payload = self.options.encoding.inflate(&self.body, inflated_max)?;
        let importing = self.options.origin.importing;
        // Its limits were applied where it was received, perhaps long ago.
        let is_forwarded = self.options.decoder.is_forwarded();
        let of_import = (importing || is_forwarded).then(|| {
            let limits = &self.decoding.limits;
            Limits {
                past: self.decoding.import_past.max(limits.past),
                ..limits.clone()
            }
        });
        let usual = Context::of_http(&self.decoding, self.received_at_ms);
        let renamed = Renamed::default();
        let context = Context {
            limits: of_import.as_ref().unwrap_or(usual.limits),
            ts_unit: self.options.ts_unit,
            sensor_id: self.options.origin.sensor_id.as_deref(),
            field: self.options.origin.field.as_deref(),
            renamed: Some(&renamed),
            ..usual
        };
        let topic = self.options.origin.topic.as_deref();
        let read = |payload: &[u8], builder: &mut BatchBuilder, rejects: &mut Rejects| {
            let decoder = &self.options.decoder;
            decoder.decode(payload, topic, &context, builder, rejects);
        };
        let mut builder = BatchBuilder::new(self.decoding.limits.fields_max);
        builder.limit_bytes(self.readings_bytes_max);
        if let Some(checks) = &self.checks {
            let Decoding { limits, ranges, .. } = &*self.decoding;
            let fields_max = limits.bucket_fields_max;
            checks.apply(&mut builder, fields_max, ranges, self.now_ms);
        }
        if importing {
            builder.require_own_time();
        }
        Grant::apply(
            self.sender.as_ref(),
            self.decoding.sender_tag.as_ref(),
            is_forwarded,
            &mut builder,
        );
        let mut rejects = Rejects::new();
        let knows_sensor = context.sensor_id.is_some();
        let shape = self
            .options
            .origin
            .form
            .map_or(Shape::Other, |form| form.read_shape(&payload, knows_sensor));
        match shape {
            Shape::Object(object) => {
                payload = object.json.into();
                if object.is_cut {
                    rejects.push(0, RejectReason::TooManyFields, TOO_MANY);
                } else {
                    read(&payload, &mut builder, &mut rejects);
                }
                if !builder.is_empty() {
                    let names = object.secrets.iter();
                    names.for_each(|name| rejects.leave_out_name(name));
                }
            }
            Shape::Neither => rejects.push(0, RejectReason::InvalidJson, NEITHER),
            Shape::Other => read(&payload, &mut builder, &mut rejects),
        }
        rejects.note_ranges(&mut builder);
        let indexes = rejects.list().iter().map(|reject| reject.index);
        let quoted = if self.options.quoting {
            decode::quote_lines(&payload, indexes, QUOTED_CHARS_MAX)
        } else {
            vec![]
        };
        let kept =
            (self.options.origin.keeping && !rejects.is_empty()).then(|| payload.into_owned());
        let is_overfull = builder.take_is_overfull();
        metrics::names_renamed_total(Source::Http, renamed.take().len() as u64);
        Ok(DecodedBody {
            batch: builder.finish(),
            rejects,
            quoted,
            received_at_ms: self.received_at_ms,
            kept,
            is_overfull,
        })
    }
}

fn refuse(error: DecompressError, encoding: Encoding, limit: u64) -> IngestError {
    match error {
        DecompressError::TooLarge => IngestError::TooLargeDecompressed { limit },
        DecompressError::Corrupt(e) => IngestError::Corrupt {
            encoding: encoding.name(),
            detail: e.to_string(),
        },
    }
}

/// Counts the readings that arrived, once for the whole body. `sender` names the sender in the
/// report of rejects and hints.
pub(super) fn count(
    batch: &ReadingBatch,
    rejects: &Rejects,
    sender: impl FnOnce() -> String,
    at_ms: i64,
) {
    metrics::readings_received_total(Source::Http, (batch.len() + rejects.total()) as u64);
    metrics::readings_retimed_total(Source::Http, batch.retimed() as u64);
    metrics::values_left_out_total(Source::Http, rejects.left_out().total() as u64);
    count_out_of_range(rejects.out_of_range());
    for (reason, n) in rejects.by_reason() {
        metrics::readings_rejected_total(Source::Http, *reason, *n as u64);
    }
    if rejects.is_empty() && rejects.hints().is_empty() {
        return;
    }
    let sender = sender();
    for hint in rejects.hints() {
        log_limit::hint(Source::Http, &sender, hint);
    }
    for (reason, n) in rejects.by_reason() {
        let detail = rejects
            .list()
            .iter()
            .rev()
            .find(|r| r.reason == *reason)
            .map_or("", |r| &r.detail);
        rejected::note(Reject {
            source: Source::Http,
            name: &sender,
            reason: reason.as_str(),
            count: *n as u64,
            detail,
            at_ms,
        });
    }
}

/// Hands the readings over, all or none, and waits until they are acknowledged. Does nothing for an
/// empty batch.
pub(super) async fn deliver(
    shared: &Shared,
    batch: ReadingBatch,
    held: BodyPermit,
) -> Result<(), IngestError> {
    deliver_with(shared, batch, vec![], held, shared.cfg.queue_timeout).await
}

/// Like [`deliver`], with dead letters, and waits up to `patience` for room at admission. Of a
/// repeat, everything is safe already.
pub(super) async fn deliver_with(
    shared: &Shared,
    batch: ReadingBatch,
    dead: Vec<DeadLetter>,
    mut held: BodyPermit,
    patience: Duration,
) -> Result<(), IngestError> {
    if batch.is_empty() && dead.is_empty() {
        return Ok(());
    }
    let key = match held.key.take() {
        Some(KeyUse::Repeat(_)) => {
            metrics::readings_accepted_total(Source::Http, batch.len() as u64);
            metrics::readings_duplicate_total(batch.len() as u64);
            return Ok(());
        }
        Some(KeyUse::First(key)) => Some(key),
        None => None,
    };
    let wait = hand_over(shared, (batch, dead), key, held.sender.as_ref(), patience).await?;
    // From here on the readings count against the next stage's memory, not against the budget of
    // bodies.
    drop(held);
    acknowledged(shared, wait).await
}

async fn hand_over(
    shared: &Shared,
    (batch, dead): (ReadingBatch, Vec<DeadLetter>),
    key: Option<KeyInFlight>,
    sender: Option<&Arc<Grant>>,
    patience: Duration,
) -> Result<AckWaiter, IngestError> {
    // Counted with the outcome, not by this request, which may have been dropped by then. At rest,
    // the accepted count must equal the stored count, whether or not the sender has waited.
    // Readings that the journal had no room for count as neither.
    let readings = batch.len() as u64;
    let shown = tail::readings(Source::Http, &batch);
    let since = Instant::now();
    let request_key = key.as_ref().map(KeyInFlight::key);
    // The key stays in flight until the outcome, also if the sender disconnects.
    let (ack, wait) = Ack::observed(move |outcome| {
        if outcome == AckOutcome::Delivered {
            if let Some(key) = key {
                key.accepted();
            }
            metrics::readings_accepted_total(Source::Http, readings);
            shown.send();
            metrics::ack_seconds(Source::Http, since.elapsed().as_secs_f64());
        }
    });
    let mut ingest_batch = IngestBatch::new(batch, dead, ack);
    ingest_batch.key = request_key;
    let submit = async {
        if let Some(Grant { usage, .. }) = sender.map(|grant| &**grant) {
            let part = usage.queue(ingest_batch.memory_bytes()).await;
            ingest_batch = ingest_batch.sent_by(usage.account(), part);
        }
        shared.admission.submit(ingest_batch).await
    };
    tokio::time::timeout(patience, submit)
        .await
        .unwrap_or(Err(AdmissionError::Busy))?;
    Ok(wait)
}

async fn acknowledged(shared: &Shared, wait: AckWaiter) -> Result<(), IngestError> {
    let _pending = Pending::new();
    let timeout = shared.cfg.ack_timeout;
    match tokio::time::timeout(timeout, wait.outcome()).await {
        Ok(AckOutcome::Delivered) => Ok(()),
        // The ingest batch that finds the journal full is the one that closes admission.
        Ok(AckOutcome::NotDelivered) => Err(shared
            .admission
            .check()
            .err()
            .map_or(IngestError::NotDelivered, IngestError::from)),
        Err(_) => Err(IngestError::AckTimeout {
            seconds: timeout.as_secs_f64(),
        }),
    }
}

/// Counts one request in the gauge of waiting requests until dropped, also if the sender
/// disconnects.
struct Pending;

impl Pending {
    fn new() -> Pending {
        metrics::acks_pending(Source::Http, 1);
        Pending
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        metrics::acks_pending(Source::Http, -1);
    }
}
