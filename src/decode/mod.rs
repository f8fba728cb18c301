//! Bytes to readings and rejects. Pure: no IO, no clock (the time of receipt is handed in), and one bad reading never
//! fails its batch.

use crate::config::Limits;
use crate::model::BatchBuilder;

/// A reading or message that is not taken, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// Its place in the payload, from 0: element of the array, line, or 0 for a single one.
    pub index: usize,
    /// One of a fixed set of names; a metric label and part of the HTTP answer.
    pub reason: &'static str,
    /// What is wrong and where, for a person.
    pub detail: String,
}

/// How to read a payload, the setting `format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The native shape: object, array of objects, or objects one after another.
    Json,
    /// The native shape, one object a line; a bad line costs only itself.
    Ndjson,
    /// One bare value; sensor and field come from the topic.
    Scalar,
}

/// Unit of a number that stands for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TsUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
}

/// What is known about a payload beside its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The limits that hold.
    pub limits: &'a Limits,
    /// When it was received, in milliseconds since 1970.
    pub received_at_ms: i64,
    /// Unit of numbers as time; `None`: by magnitude.
    pub ts_unit: Option<TsUnit>,
    /// From the topic: used where the payload names no sensor.
    pub sensor_id: Option<&'a str>,
    /// From the topic: the field of a scalar.
    pub field: Option<&'a str>,
    /// From the topic: tags, beside those of the payload (which win).
    pub tags: &'a [(&'a str, &'a str)],
}

/// Reads a payload: appends its readings to `out` and its rejects to `rejects`.
pub fn decode(format: Format, payload: &[u8], cx: &Context<'_>, out: &mut BatchBuilder, rejects: &mut Vec<Reject>) {
    let _ = (format, payload, cx, out, rejects);
}
