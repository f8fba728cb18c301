//! Reads for the pipeline and the read API: loads of buckets, counts of measurements, queries.

pub(super) mod bucket_reader;
pub(super) mod columns;
pub(super) mod count_measurements;
pub(super) mod days;
pub(super) mod load;
pub(super) mod pipelines;
pub(super) mod queries;
pub(super) mod samples;
pub(super) mod summaries;
