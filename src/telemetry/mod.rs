//! What the service tells about itself: metrics (every one of them in [`metrics`]) and the log.

pub mod metrics;
