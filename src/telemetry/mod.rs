//! What the service tells about itself: metrics (every one of them in [`metrics`]) and the log (in [`log`]).

pub mod log;
pub mod metrics;
pub mod rejected;
