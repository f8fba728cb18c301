//! Reads a request's body within its limits: size, time, and the memory of all bodies together.
//!
//! `http.body_max_bytes` limits one body and `http.concurrency_max` their number, but their product is gigabytes. So
//! all bodies in progress share a [`BodyBudget`]. A body that exceeds the remaining budget is refused (429); it does
//! not wait, because it would hold memory meanwhile.
//!
//! A refused body is still read to its end, within limits ([`drain`]). If a server answers and closes while the sender
//! is writing, the kernel discards the answer (RST), and the sender sees a broken pipe instead of "413".

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody};
use axum::http::request::Parts;
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::IngestError;
use super::sender::Sender;
use crate::access::Grant;

/// Memory for all bodies in progress; larger if four bodies of the largest size need more.
const BUDGET_BYTES: u64 = 128 << 20;
/// Upper limit of the initial allocation for a body; a longer body grows as it arrives.
const EXPECTED_BYTES_MAX: u64 = 512 << 10;
/// The budget is counted in KiB, so that a semaphore's permits suffice on every platform.
const UNIT_BYTES: u64 = 1024;

/// How much of a refused body is read and discarded, and for how long.
const DRAIN_BYTES_MAX: u64 = 16 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The memory that all bodies share.
#[derive(Debug, Clone)]
pub(super) struct BodyBudget(Arc<Semaphore>);

/// A part of the budget, returned when dropped, and who holds it.
#[derive(Debug)]
pub(super) struct BodyPermit {
    budget: BodyBudget,
    permit: Option<OwnedSemaphorePermit>,
    /// `None` without tokens.
    pub(super) sender: Option<Arc<Grant>>,
}

impl ReceivedBody {
    /// Bytes that did not arrive as a body but are decoded like one.
    pub(super) fn of(bytes: Vec<u8>, budget: &BodyBudget) -> Result<ReceivedBody, IngestError> {
        let mut held = budget.hold();
        held.grow_to(bytes.len() as u64)?;
        Ok(ReceivedBody { bytes, held })
    }

    /// The same with the sender of its request.
    pub(super) fn sent_by(self, parts: &Parts) -> ReceivedBody {
        let held = BodyPermit { sender: Sender::of(parts).cloned(), ..self.held };
        ReceivedBody { held, ..self }
    }
}

impl BodyBudget {
    pub(super) fn new(body_max_bytes: u64) -> BodyBudget {
        let units = BUDGET_BYTES.max(body_max_bytes.saturating_mul(4)).div_ceil(UNIT_BYTES);
        BodyBudget(Arc::new(Semaphore::new(usize::try_from(units).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS))))
    }

    fn hold(&self) -> BodyPermit {
        BodyPermit { budget: self.clone(), permit: None, sender: None }
    }
}

impl BodyPermit {
    /// Acquires from the budget until the permit covers `bytes`.
    pub(super) fn grow_to(&mut self, bytes: u64) -> Result<(), IngestError> {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) as u64;
        let missing = bytes.div_ceil(UNIT_BYTES).saturating_sub(held);
        if missing == 0 {
            return Ok(());
        }
        let missing = u32::try_from(missing).map_err(|_| IngestError::Memory)?;
        let more = self.budget.0.clone().try_acquire_many_owned(missing).map_err(|_| IngestError::Memory)?;
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }
}

/// A body that has arrived, and its part of the budget.
#[derive(Debug)]
pub(super) struct ReceivedBody {
    pub(super) bytes: Vec<u8>,
    pub(super) held: BodyPermit,
}

/// Reads the body. `asked`: the sender waits for "100 Continue", so it need not send a body that is too large.
pub(super) async fn receive(
    body: Body,
    asked: bool,
    bytes_max: u64,
    timeout: Duration,
    budget: &BodyBudget,
) -> Result<ReceivedBody, IngestError> {
    if body.size_hint().lower() > bytes_max {
        drain(body, asked).await;
        return Err(IngestError::TooLarge { limit: bytes_max });
    }
    // The announced length, up to a size that is cheap to allocate even if no body follows.
    let expected = body.size_hint().lower().min(EXPECTED_BYTES_MAX) as usize;
    let mut stream = body.into_data_stream();
    let collected = tokio::time::timeout(timeout, collect(&mut stream, expected, bytes_max, budget)).await;
    let collected = collected.unwrap_or(Err(IngestError::BodyTimeout { seconds: timeout.as_secs_f64() }));
    if matches!(collected, Err(IngestError::TooLarge { .. } | IngestError::Memory)) {
        drain_stream(&mut stream).await;
    }
    collected
}

async fn collect(
    stream: &mut BodyDataStream,
    expected: usize,
    bytes_max: u64,
    budget: &BodyBudget,
) -> Result<ReceivedBody, IngestError> {
    let mut received = ReceivedBody { bytes: Vec::new(), held: budget.hold() };
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|e| IngestError::BodyBroken { detail: e.to_string() })?;
        let bytes = (received.bytes.len() + chunk.len()) as u64;
        if bytes > bytes_max {
            return Err(IngestError::TooLarge { limit: bytes_max });
        }
        received.held.grow_to(bytes)?;
        if received.bytes.is_empty() {
            received.bytes.reserve_exact(expected);
        }
        received.bytes.extend_from_slice(&chunk);
    }
    Ok(received)
}

/// Reads and discards the body of a refused request, unless the sender waits for "100 Continue".
pub(super) async fn drain(body: Body, asked: bool) {
    if !asked {
        drain_stream(&mut body.into_data_stream()).await;
    }
}

async fn drain_stream(stream: &mut BodyDataStream) {
    let all = async {
        let mut bytes = 0;
        while let Some(Ok(chunk)) = stream.next().await {
            bytes += chunk.len() as u64;
            if bytes > DRAIN_BYTES_MAX {
                break;
            }
        }
    };
    // A sender that is slow or sends more loses the connection, and perhaps the answer.
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, all).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_comes_back_and_never_exceeds_the_budget() {
        let budget = BodyBudget::new(1 << 20);
        let mut a = budget.hold();
        a.grow_to(1).unwrap();
        a.grow_to(1000).unwrap();
        assert_eq!(a.permit.as_ref().unwrap().num_permits(), 1);
        a.grow_to(100 << 20).unwrap();
        let mut b = budget.hold();
        assert!(matches!(b.grow_to(29 << 20), Err(IngestError::Memory)));
        b.grow_to(28 << 20).unwrap();
        drop(a);
        b.grow_to(128 << 20).unwrap();
        drop(b);
        assert_eq!(budget.0.available_permits() as u64 * UNIT_BYTES, BUDGET_BYTES);
    }
}
