//! Collections, indexes, validators and views: the required state, the existing one, and how one
//! becomes the other.

pub(super) mod advisories;
pub(super) mod collections;
pub(super) mod days;
pub(super) mod detect;
pub(super) mod dropped;
pub(super) mod foreign;
pub(super) mod identities;
pub(super) mod kinds;
pub(super) mod latest_and_tag_indexes;
pub(super) mod metadata;
pub(super) mod prepare;
pub(super) mod rollup_schema;
pub(super) mod sharding;
pub(super) mod view;
