//! hourbucket (the map is written once the stages stand).
pub mod accumulate;
pub mod ack;
pub mod admin;
pub mod app;
pub mod check;
pub mod config;
pub mod decode;
pub mod flush;
pub mod ingest;
pub mod intake;
pub mod journal;
pub mod model;
pub mod route;
pub mod shutdown;
pub mod store;
pub mod telemetry;
