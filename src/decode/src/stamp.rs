//! The time of a reading, and where it is from.

use model::BatchBuilder;
use model::batch::BuildError;

/// Where the time of a reading is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// The sender.
    Sender,
    /// Its receipt, because the sender gave none.
    Receipt,
    /// Its receipt, in place of a time that cannot be used.
    Replaced,
}

/// The time of a reading in milliseconds since 1970, and where it is from.
pub(super) type Stamp = (i64, Origin);

impl Origin {
    /// Commits a reading with this time.
    pub(super) fn commit(
        self,
        out: &mut BatchBuilder,
        sensor_id: &str,
        ts_ms: i64,
        tags: &[(&str, &str)],
    ) -> Result<(), BuildError> {
        out.commit(sensor_id, ts_ms, self != Origin::Sender, tags)?;
        if self == Origin::Replaced {
            out.note_retimed();
        }
        Ok(())
    }
}
