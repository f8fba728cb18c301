//! The port on a real socket. The test acts as the next stage after admission, and speaks HTTP byte
//! by byte, because that is under test.

mod access;
mod connections;
mod encodings;
mod foreign;
mod forwarded;
mod hooks;
mod idempotency;
mod influx;
mod lifecycle;
mod limits;
mod otlp;
mod proxy;
mod readings;
mod remote_write;
mod requests;
mod rig;
