//! What the service asks of a store. One kind of request can fail while the others succeed: a
//! server whose disk is full still answers reads and pings, and a user may have some rights and not
//! others. So the health of each kind is its own.

use super::StoreError;

/// One kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ability {
    /// Preparing the database, at the start.
    Prepare,
    /// Page writes, and raising the high-water mark before them.
    WritePages,
    /// Loads of stored buckets.
    LoadBuckets,
    /// Updates of the catalogue.
    UpdateCatalog,
    /// Writes of dead letters.
    WriteDeadLetters,
    /// Updates of the sensors' latest states.
    UpdateLatest,
    /// Marks of days that have changed.
    MarkDays,
}

/// What a request shows about its [`Ability`].
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'e> {
    /// It succeeded. Of a write: something was stored.
    Success,
    /// It failed.
    Failure(&'e StoreError),
    /// It failed for one bucket or dead letter alone that has failed before, which may be its own
    /// fault. This may continue a failure of the store, but does not begin one.
    OfOne(&'e StoreError),
}

impl Ability {
    /// The name in `/readyz` and in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Ability::Prepare => "prepare",
            Ability::WritePages => "write",
            Ability::LoadBuckets => "load",
            Ability::UpdateCatalog => "catalog",
            Ability::WriteDeadLetters => "dead_letters",
            Ability::UpdateLatest => "latest",
            Ability::MarkDays => "day_marks",
        }
    }

    /// The requests, in the plural, for a sentence.
    pub fn requests(self) -> &'static str {
        match self {
            Ability::Prepare => "attempts to prepare the database",
            Ability::WritePages => "writes of readings",
            Ability::LoadBuckets => "loads of stored buckets",
            Ability::UpdateCatalog => "updates of the catalogue",
            Ability::WriteDeadLetters => "writes of dead letters",
            Ability::UpdateLatest => "updates of the latest states",
            Ability::MarkDays => "marks of changed days",
        }
    }

    /// Whether each of its requests holds readings that wait to be stored until it succeeds.
    pub fn holds_readings(self) -> bool {
        matches!(
            self,
            Ability::WritePages
                | Ability::LoadBuckets
                | Ability::WriteDeadLetters
                | Ability::MarkDays
        )
    }

    /// Whether no reading can be stored without it.
    pub fn is_essential(self) -> bool {
        matches!(
            self,
            Ability::Prepare | Ability::WritePages | Ability::LoadBuckets
        )
    }
}
