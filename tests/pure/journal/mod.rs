//! The journal against a naive model, a file system that fails, and real files.
#![allow(
    clippy::unwrap_used,
    reason = "the helpers of a test are test code too"
)]

mod clock;
mod damage;
mod faults;
mod files;
mod keys;
mod missing;
mod model;
mod recycling;
mod support;
