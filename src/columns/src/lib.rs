//! The readings of a day in columns, and the rich summaries of its hours. Pure.
//!
//! In: the stored readings of one sensor and day, as [`model::Rows`], bucket by bucket. Out: the
//! parts of `sensor_columns` ([`Part`]) and the fields of `sensor_day_hours` ([`DayHours`]), as values
//! that the store packs into documents. And back: a part to its readings, or to some fields of them.
//!
//! The path of a reading: [`DayEncoder`] puts the readings of a bucket in order ([`order`]) and
//! appends each value to the column of its field. A full part is encoded ([`encode`]): numbers by pco
//! ([`numbers`]), doubles of few digits as multiples of their unit ([`decimals`]). [`Part::decode`]
//! reads them back, and [`same_readings`] compares before readings may leave their pages.
//!
//! Invariants:
//! - A part and an hour are functions of the stored readings: the same readings give the same bytes,
//!   on every machine, in whatever order they arrived.
//! - What is decoded is what was encoded: each value with its kind and all its bits.
//! - Damaged bytes are an error. They cause no panic, and no more memory than the part declares.
//! - A part, and so its document, has a largest size.
//!
//! What must not be here: async, IO, a clock, a name of MongoDB, a decision when a day is encoded.

mod decimals;
mod decode;
mod encode;
mod hours;
mod numbers;
mod order;
mod part;
mod sketch;
#[cfg(test)]
mod tests;

pub use decode::Decoded;
pub use encode::DayEncoder;
pub use hours::{
    DayHours, FieldHour, FieldRule, HoursEncoder, Line, Numbers, States, Weighting, Weightings,
};
pub use order::same_readings;
pub use part::{Entry, EntryKind, Part};
pub use sketch::Sketch;

/// A part cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("`{place}`: {fault}")]
pub struct DamagedPart {
    /// `ts`, or the name of a field.
    place: String,
    #[source]
    fault: Fault,
}

impl DamagedPart {
    fn new(place: &str, fault: Fault) -> DamagedPart {
        DamagedPart {
            place: place.to_owned(),
            fault,
        }
    }
}

/// What is wrong with a column.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}")]
    Pco(#[from] pco::errors::PcoError),
    #[error("the data end early")]
    Incomplete,
    #[error("the data have {found} values; expected {count}")]
    Count { found: usize, count: usize },
    #[error("hourbucket does not write data in this form")]
    Foreign,
    #[error("more than {0} values")]
    TooMany(usize),
    #[error("the times are not in order, or not those declared")]
    Times,
    #[error("`present` does not fit the readings")]
    Present,
    #[error("`ints` does not fit the values")]
    Ints,
    #[error("an index is not in the dictionary, or a boolean is neither 0 nor 1")]
    Index,
}
