//! The connections of a port.

pub(crate) mod phase;
