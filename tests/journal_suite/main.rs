//! The journal against a naive model, a file system that fails, and real files.
mod faults;
mod files;
mod model;
mod support;
