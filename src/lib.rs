//! hourbucket (the map is written once the stages stand).
pub mod ack;
pub mod admin;
pub mod config;
pub mod decode;
pub mod ingest;
pub mod intake;
pub mod model;
pub mod store;
pub mod telemetry;
