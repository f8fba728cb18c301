//! The port on a real socket; the test plays the next stage behind admission, and speaks HTTP byte by byte, since that
//! is what is tested.

mod encodings;
mod hooks;
mod influx;
mod lifecycle;
mod limits;
mod otlp;
mod readings;
mod rig;
