//! Commands of the operator on stored data: reconcile, convert, dead letters.

pub(super) mod alone;
pub(super) mod convert;
pub(super) mod convert_bucket;
pub(super) mod days;
pub(super) mod drop_duplicates;
pub(super) mod reconcile;
pub(super) mod repair;
