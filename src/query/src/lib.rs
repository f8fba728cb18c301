//! Queries: every question about readings, and the port that answers them.
//!
//! In: requests at the admin port. Out: answers from memory and the store, which change neither.
//!
//! The path of a question: [`admin`] authenticates it and parses its parameters. [`promql`] says
//! which series and windows a query needs, and evaluates them. [`read`] finds every acknowledged
//! reading exactly once: unstored readings in the shards, all others in the store. Threads that
//! evaluate yield to those that acknowledge ([`priority`]), and queries of PromQL take turns by what
//! they cost ([`lanes`]).
//!
//! Invariants:
//! - An answer has every reading that was acknowledged before the question, once, or says
//!   `complete: false`.
//! - Nothing here is waited for by the path of a reading.
//! - Every query has limits of time, memory and number; an unavailable store causes an error, never
//!   an unlimited wait.
//!
//! What must not be here: a write to the store, a second rule for what is a duplicate.

pub mod admin;
mod cost;
mod lanes;
pub mod priority;
pub mod promql;
pub mod read;
