//! The present age ([`super::age`]) with the figures that it follows, shared by shards and flush
//! stage.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::age::{AgeControl, AgeSample};
use model::PageWrite;

/// Commands of up to this many statements show the round trip; larger ones, what a statement takes.
const SMALL: usize = 16;
/// How fast the estimate of the round trip rises; it falls immediately.
const ROUND_TRIP_RISE: f64 = 0.05;

#[derive(Debug)]
pub(super) struct PresentAge {
    state: Mutex<State>,
    began: AtomicU64,
    filled_late: AtomicU64,
    age_ms: AtomicU64,
}

#[derive(Debug)]
struct State {
    control: AgeControl,
    /// Since the last update.
    sample: AgeSample,
    updated: Instant,
    round_trip_s: f64,
}

impl PresentAge {
    /// See [`AgeControl::new`].
    pub(super) fn new(max_age_ms: u64, max_age_busy_ms: u64) -> PresentAge {
        let control = AgeControl::new(max_age_ms, max_age_busy_ms);
        let age_ms = AtomicU64::new(control.age_ms());
        let state = State {
            control,
            sample: AgeSample::default(),
            updated: Instant::now(),
            round_trip_s: 0.0,
        };
        PresentAge {
            state: Mutex::new(state),
            began: AtomicU64::new(0),
            filled_late: AtomicU64::new(0),
            age_ms,
        }
    }

    /// How old a reading may get now (ms).
    pub(super) fn age_ms(&self) -> u64 {
        self.age_ms.load(Ordering::Relaxed)
    }

    /// Counts buckets that began to wait, and pages that were filled late.
    pub(super) fn waiting(&self, began: u64, filled_late: u64) {
        self.began.fetch_add(began, Ordering::Relaxed);
        self.filled_late.fetch_add(filled_late, Ordering::Relaxed);
    }

    /// Adds a command that the store has answered.
    pub(super) fn written(&self, writes: &[PageWrite], took: Duration) {
        let took_s = took.as_secs_f64();
        let mut state = self.state();
        state.sample.count(writes);
        if writes.len() > SMALL {
            state.sample.measured += writes.len() as u64;
            state.sample.measured_s += (took_s - state.round_trip_s).max(0.0);
        } else {
            state.round_trip_s =
                took_s.min(state.round_trip_s + (took_s - state.round_trip_s) * ROUND_TRIP_RISE);
        }
    }

    /// Adjusts the age; call it about once a second.
    pub(super) fn update(&self) {
        let mut state = self.state();
        let sample = std::mem::take(&mut state.sample);
        let elapsed = state.updated.elapsed();
        state.updated = Instant::now();
        let elapsed_ms = elapsed.as_millis() as u64;
        let began = self.began.swap(0, Ordering::Relaxed);
        let filled_late = self.filled_late.swap(0, Ordering::Relaxed);
        state.control.observe(AgeSample {
            elapsed_ms,
            began,
            filled_late,
            ..sample
        });
        self.age_ms.store(state.control.age_ms(), Ordering::Relaxed);
    }

    /// Sets the age, for simulations.
    pub(super) fn set(&self, age_ms: u64) {
        self.age_ms.store(age_ms, Ordering::Relaxed);
    }

    /// Ignores poisoning: every change under the lock is complete.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
