//! What the service tells about itself: metrics (every one of them in [`metrics`], with its words in
//! [`catalog`]) and the log (in [`log`]).

pub mod catalog;
pub mod log;
pub mod metrics;
mod process;
pub mod rejected;
