//! Flush: when buckets are written ([`due`]), and how a command is carried through ([`backoff`]).

pub mod backoff;
pub mod due;
