//! The objects of a reading, and the meaning of the keys in each.

use crate::RejectReason;
use crate::rejects::Fault;
use config::Native;

/// The objects of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Reading,
    Values,
    Tags,
    /// An object or array that is flattened: in `values`, or next to it.
    Nested {
        is_loose: bool,
    },
}

/// The meaning of the value under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    SensorId,
    Time,
    /// The time if it holds one, with its index in `native.time`; else like [`Role::LooseValue`].
    MaybeTime(u8),
    TimeUnit,
    /// `values` or `tags`.
    Object(Part),
    /// A member of the reading with another key: a value, unless there is an object `values`.
    LooseValue,
    /// In `values`.
    Value,
    /// In `tags`.
    Tag,
}

impl Role {
    /// The role of a key in an object.
    pub(crate) fn classify(part: Part, key: &str, native: &Native) -> Role {
        match (part, key) {
            (Part::Values, _) => Role::Value,
            (Part::Tags, _) => Role::Tag,
            (Part::Reading, "sensor_id") => Role::SensorId,
            (Part::Reading, "ts") => Role::Time,
            (Part::Reading, "ts_unit") => Role::TimeUnit,
            (Part::Reading, "values") => Role::Object(Part::Values),
            (Part::Reading, "tags") => Role::Object(Part::Tags),
            (Part::Nested { is_loose: false }, _) => Role::Value,
            (Part::Nested { is_loose: true }, _) => Role::LooseValue,
            (Part::Reading, _) => match native.time.iter().position(|name| name == key) {
                Some(rank) => Role::MaybeTime(rank as u8),
                None => Role::LooseValue,
            },
        }
    }
}

/// The fault of another value in the place of an object.
pub(crate) fn not_an_object(part: Part, what: &str) -> Fault {
    match part {
        Part::Reading | Part::Nested { .. } => Fault::new(
            RejectReason::NotAnObject,
            format!("a reading must be an object, not {what}"),
        ),
        Part::Values => Fault::new(
            RejectReason::WrongType,
            format!("`values` must be an object, not {what}"),
        ),
        Part::Tags => Fault::new(
            RejectReason::WrongType,
            format!("`tags` must be an object, not {what}"),
        ),
    }
}
