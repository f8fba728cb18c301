//! Tests that need no server: decoders, configuration, journal, shipped files.

#[path = "../support"]
mod support {
    pub(crate) mod promql;
    pub(crate) mod watch;
}

mod accumulate_props;
mod acknowledgements;
mod blocked_shard;
mod catalog_writes;
mod command_line;
mod config;
mod deploy;
mod forward;
mod fuzz_corpus;
mod journal;
mod monitoring_files;
mod payloads;
mod profiles;
mod promql_engine;
mod receipt_times;
mod rejected_appends;
mod shard_rig;
mod two_writers;
