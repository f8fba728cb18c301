//! Reads a request's body within its limits: size, time, rate, and the memory of all bodies
//! together.
//!
//! `http.body_max_bytes` limits one body and `http.connections_max` their number, but their product
//! is gigabytes. So all bodies in progress share a [`BodyBudget`] (`http.bodies_max_bytes`), and one
//! sender gets at most half of it ([`Shares`]). A body without room in it is refused (429); it does
//! not wait, because it would hold memory meanwhile.
//!
//! A body has `http.body_grace` and a second for each `http.body_rate_min` bytes that have arrived,
//! but not more than `http.body_timeout`. So a sender on a bad radio link is left alone, and one
//! that only holds the connection is not.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::http::request::Parts;
use futures_util::StreamExt;
use tokio::time::Instant;

use super::admit::Sender;
use super::error::IngestError;
use journal::KeyUse;
use net::access::Grant;
use net::http::peer::Peer;
use net::shares::{Owner, Shares};

/// The budget has room for this many bodies of the largest size, regardless of the settings.
const LARGEST_BODIES: u64 = 4;
/// Memory allocated for the announced length of a body: up to this size, which as many bodies as
/// connections can have, or this multiple of what has arrived. A program sends a body as fast as it
/// can, and most arrive in a few chunks, so that most are not copied to a larger allocation.
const EXPECTED_BYTES: usize = 64 << 10;
const EXPECTED_FACTOR: usize = 4;
/// The budget is taken in KiB, so that not every chunk of a body takes the lock.
const UNIT_BYTES: u64 = 1024;
/// Counts for requests that did not come over a port.
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The memory that all bodies share.
#[derive(Debug, Clone)]
pub(super) struct BodyBudget(Arc<Mutex<Shares>>);

/// A part of the budget, returned when dropped, and who holds it.
#[derive(Debug)]
pub(super) struct BodyPermit {
    budget: BodyBudget,
    owner: Owner,
    bytes: u64,
    /// `None` without tokens.
    pub(super) sender: Option<Arc<Grant>>,
    /// Set when the body has arrived, if the request has a key.
    pub(super) key: Option<KeyUse>,
}

impl ReceivedBody {
    /// Bytes that did not arrive as the request's body but are decoded like one.
    pub(super) fn charge_bytes(
        bytes: Vec<u8>,
        parts: &Parts,
        budget: &BodyBudget,
    ) -> Result<ReceivedBody, IngestError> {
        let mut held = budget.hold(parts);
        held.grow_to(bytes.len() as u64)?;
        if let Some(grant) = &held.sender {
            grant.usage.charge(&grant.quota, 0, bytes.len());
        }
        Ok(ReceivedBody { bytes, held })
    }
}

impl BodyBudget {
    pub(super) fn new(cfg: &config::Http) -> BodyBudget {
        let largest = cfg.body_max_bytes.saturating_mul(LARGEST_BODIES);
        let shares = Shares::new(in_units(cfg.bodies_max_bytes.max(largest)));
        BodyBudget(Arc::new(Mutex::new(shares)))
    }

    /// Nothing yet, for this request.
    fn hold(&self, parts: &Parts) -> BodyPermit {
        let sender = Sender::find(parts).cloned();
        let address = Peer::find(&parts.extensions).map_or(NO_ADDRESS, Peer::address);
        BodyPermit {
            budget: self.clone(),
            owner: Owner::identify(sender.as_deref(), address),
            bytes: 0,
            sender,
            key: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shares> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> u64 {
        self.lock().free()
    }
}

impl BodyPermit {
    /// The sender that it is counted for.
    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The receipt time of a request with a key (milliseconds since 1970).
    pub(super) fn received_at_ms(&self) -> Option<i64> {
        self.key.as_ref().map(|key| match key {
            KeyUse::First(key) => key.key().received_at_ms,
            KeyUse::Repeat(received_at_ms) => *received_at_ms,
        })
    }

    /// Takes from the budget until the permit covers `bytes`.
    pub(super) fn grow_to(&mut self, bytes: u64) -> Result<(), IngestError> {
        let wanted = in_units(bytes);
        let more = wanted.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let is_taken = self.budget.lock().take(&self.owner, self.bytes, more);
        if !is_taken {
            return Err(IngestError::Memory);
        }
        self.bytes = wanted;
        Ok(())
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.lock().give_back(&self.owner, self.bytes);
        }
    }
}

fn in_units(bytes: u64) -> u64 {
    bytes.div_ceil(UNIT_BYTES).saturating_mul(UNIT_BYTES)
}

/// A body that has arrived, and its part of the budget.
#[derive(Debug)]
pub(super) struct ReceivedBody {
    pub(super) bytes: Vec<u8>,
    pub(super) held: BodyPermit,
}

/// The limits of one body.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyLimits {
    bytes_max: u64,
    timeout: Duration,
    grace: Duration,
    /// Bytes per second.
    rate_min: u64,
}

impl BodyLimits {
    pub(super) fn new(cfg: &config::Http) -> BodyLimits {
        let config::Http {
            body_max_bytes,
            body_timeout,
            body_grace,
            body_rate_min,
            ..
        } = *cfg;
        BodyLimits {
            bytes_max: body_max_bytes,
            timeout: body_timeout,
            grace: body_grace,
            rate_min: body_rate_min,
        }
    }

    pub(super) fn at_most(self, bytes_max: u64) -> BodyLimits {
        BodyLimits {
            bytes_max: bytes_max.min(self.bytes_max),
            ..self
        }
    }

    /// How long a body may take after this many bytes have arrived, and the error if it takes
    /// longer.
    fn patience(&self, bytes: usize) -> (Duration, IngestError) {
        let per_byte = 1.0 / self.rate_min.max(1) as f64;
        let by_rate = self.grace + Duration::from_secs_f64(bytes as f64 * per_byte);
        if self.rate_min > 0 && by_rate < self.timeout {
            (
                by_rate,
                IngestError::BodyTooSlow {
                    rate_min: self.rate_min,
                },
            )
        } else {
            (
                self.timeout,
                IngestError::BodyTimeout {
                    seconds: self.timeout.as_secs_f64(),
                },
            )
        }
    }
}

/// Refuses a request that should have a body and gives no length. HTTP takes such a body for empty
/// (RFC 9112 §6.3), and its sender would be told that it is stored.
pub(super) fn check_length(parts: &Parts) -> Result<(), IngestError> {
    let has_length = [CONTENT_LENGTH, TRANSFER_ENCODING]
        .iter()
        .any(|name| parts.headers.contains_key(name));
    has_length.then_some(()).ok_or(IngestError::NoLength)
}

/// Reads the body of a request.
pub(super) async fn receive(
    parts: &Parts,
    body: Body,
    limits: &BodyLimits,
    budget: &BodyBudget,
) -> Result<ReceivedBody, IngestError> {
    let bytes_max = limits.bytes_max;
    if body.size_hint().lower() > bytes_max {
        return Err(IngestError::TooLarge { limit: bytes_max });
    }
    let announced = body.size_hint().lower() as usize;
    let mut stream = body.into_data_stream();
    let mut received = ReceivedBody {
        bytes: Vec::new(),
        held: budget.hold(parts),
    };
    let since = Instant::now();
    loop {
        let (patience, late) = limits.patience(received.bytes.len());
        let next = tokio::time::timeout_at(since + patience, stream.next()).await;
        let Some(chunk) = next.map_err(|_| late)? else {
            return Ok(received);
        };
        let chunk = chunk.map_err(|e| IngestError::BodyBroken {
            detail: e.to_string(),
        })?;
        let bytes = received.bytes.len() + chunk.len();
        if bytes as u64 > bytes_max {
            return Err(IngestError::TooLarge { limit: bytes_max });
        }
        received.held.grow_to(bytes as u64)?;
        let expected = announced.min((bytes * EXPECTED_FACTOR).max(EXPECTED_BYTES));
        if bytes > received.bytes.capacity() && bytes <= expected {
            received
                .bytes
                .reserve_exact(expected - received.bytes.len());
        }
        received.bytes.extend_from_slice(&chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_comes_back_and_never_exceeds_the_budget() {
        let budget = budget(128 << 20, 1 << 20);
        let mut a = budget.hold(&sent_by("a"));
        a.grow_to(1).unwrap();
        a.grow_to(1000).unwrap();
        assert_eq!(a.bytes, 1024);
        a.grow_to(100 << 20).unwrap();
        let mut b = budget.hold(&sent_by("b"));
        assert!(matches!(b.grow_to(29 << 20), Err(IngestError::Memory)));
        b.grow_to(28 << 20).unwrap();
        drop(a);
        b.grow_to(128 << 20).unwrap();
        drop(b);
        assert_eq!(budget.free(), 128 << 20);
    }

    #[test]
    fn a_sender_with_many_bodies_leaves_half_to_the_others() {
        let budget = budget(128 << 20, 8 << 20);
        let grown = |id| {
            let mut held = budget.hold(&sent_by(id));
            held.grow_to(8 << 20).map(|()| held)
        };
        let of_a: Vec<_> = (0..17).filter_map(|_| grown("a").ok()).collect();
        assert_eq!((of_a.len(), budget.free()), (8, 64 << 20));
        let of_b: Vec<_> = (0..17).filter_map(|_| grown("b").ok()).collect();
        assert_eq!((of_b.len(), budget.free()), (4, 32 << 20));
        assert!(grown("c").is_ok());
        drop((of_a, of_b));
        assert_eq!(budget.free(), 128 << 20);
    }

    /// The head of a request with the token of this id.
    fn sent_by(id: &str) -> Parts {
        let (mut parts, ()) = axum::http::Request::new(()).into_parts();
        let grant = Grant::unlimited(id);
        parts.extensions.insert(Sender(Some(Arc::new(grant))));
        parts
    }

    fn budget(bodies_max_bytes: u64, body_max_bytes: u64) -> BodyBudget {
        BodyBudget::new(&config::Http {
            bodies_max_bytes,
            body_max_bytes,
            ..config::Config::default().http
        })
    }

    #[test]
    fn four_of_the_largest_bodies_have_room() {
        assert_eq!(budget(1 << 20, 8 << 20).free(), 32 << 20);
    }

    /// Receives a body of `n` bytes that arrives at this rate, in parts with a pause of a second
    /// between them; returns how long that took, and the reason if it was refused.
    async fn arriving(n: usize, bytes_per_second: usize) -> (u64, Option<&'static str>) {
        let parts = futures_util::stream::unfold(n, move |left| async move {
            let part = left.min(bytes_per_second);
            if part > 0 && left < n {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            (part > 0).then(|| {
                (
                    Ok::<_, std::convert::Infallible>(vec![0; part]),
                    left - part,
                )
            })
        });
        let cfg = config::Config::default().http;
        let since = Instant::now();
        let limits = BodyLimits::new(&cfg);
        let budget = BodyBudget::new(&cfg);
        let body = Body::from_stream(parts);
        let received = receive(&sent_by("a"), body, &limits, &budget).await;
        if let Ok(received) = &received {
            assert_eq!(received.bytes.len(), n);
        }
        (
            since.elapsed().as_secs(),
            received.err().map(|error| error.reason()),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_on_a_bad_link_arrives_and_one_that_only_holds_the_connection_does_not() {
        assert_eq!(arriving(1_000_000, 1_000_000).await, (0, None));
        // 2 bytes per second, as slow as it was in the attack.
        assert_eq!(arriving(1000, 2).await, (10, Some("body_too_slow")));
        // A gateway on a 2G link, which takes half of the time.
        assert_eq!(arriving(15_000, 1000).await, (14, None));
        assert_eq!(arriving(6000, 300).await, (19, None));
        // Regardless of the rate, not forever.
        assert_eq!(
            arriving(1_000_000, 10_000).await,
            (30, Some("body_timeout"))
        );
    }
}
