//! What an operator sees: metrics (declared in [`metrics`], made by [`catalog`]), the log
//! ([`log`]), the audit log ([`audit`]), hints for senders ([`log_limit::hint`]), the table of rejected senders
//! ([`rejected`]) and the live view of what arrives ([`tail`]).
//!
//! In: events of all other crates, as calls of typed functions. Out: the text of `/metrics`, lines on
//! standard error, the audit file.
//!
//! Invariants:
//! - A metric is declared once. Its labels have names from closed sets ([`model::Named`]), apart from
//!   brokers, routes and status codes; none holds a sensor's id.
//! - Log lines that a sender can cause are limited in rate, and the suppressed ones are counted.
//! - A secret appears nowhere.
//!
//! What must not be here: a decision that depends on a metric.

pub mod audit;
mod audit_file;
mod audit_limits;
pub mod catalog;
mod labels;
pub mod log;
pub mod log_limit;
pub mod metrics;
mod process;
pub mod rejected;
pub mod tail;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks something whose parts are each valid by themselves, so it stays usable after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
