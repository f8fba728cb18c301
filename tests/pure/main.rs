//! Tests that need no server: decoders, configuration, journal, shipped files.

#[path = "../support"]
mod support {
    pub(crate) mod promql;
    pub(crate) mod watch;
}

mod accumulate_props;
mod binary_props;
mod config;
mod decode_props;
mod deploy;
mod fuzz_corpus;
mod journal;
mod lost_answers;
mod monitoring_files;
mod payloads;
mod profiles;
mod receipt_times;
