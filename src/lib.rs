//! hourbucket (the map is written once the stages stand).
pub mod ack;
pub mod config;
pub mod decode;
pub mod intake;
pub mod journal;
pub mod model;
pub mod store;
pub mod telemetry;
