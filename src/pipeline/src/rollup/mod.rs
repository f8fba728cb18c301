//! Rollup: `sensor_days`, one document per sensor and day, computed from the stored hours. Off by
//! default (`rollup.days`).
//!
//! ```text
//!  shard ─[RollupHandle: arrivals, settled readings]─> state ─[task]─> marks, days ─[flush]─> store
//! ```
//!
//! A day's document is a function of the stored pages of its hours ([`store::days`]). So
//! nothing is added to it: when the hours of a day have changed, it is computed again and replaced.
//!
//! **Life of a change.** A reading arrives at its shard, which passes it on: its day gets an entry
//! in [`state`], and a *mark* in the collection `rollup_pending`, before the journal may release
//! the reading. When the reading's write is confirmed (or the reading was found stored, or became a
//! dead letter) the shard reports it as *settled*, and the day is changed. An open day is computed
//! after it has ended and `rollup.settle` has passed, any other day when no reading has arrived for
//! `rollup.late`. Then the entry and the mark go, if no reading of the day arrived meanwhile. An
//! open day costs one mark, one computation and one removal per sensor and instance, however many
//! readings it has.
//!
//! **Crash.** The marks of this instance (its id is a file in the journal's directory) are read at
//! the start, and their days computed. A reading whose mark was not durable is still in the
//! journal, and its replay marks the day again, although the reading is found stored. With `ack =
//! "stored"` the id changes with every start; marks that are older than [`state::ORPHAN_MS`] are
//! taken over by any instance, by the clocks of the services, which must not differ by days.
//!
//! **Two instances.** Each marks and computes what it wrote. Of two computations of a day, the one
//! that begins after the last confirmed write of both reads everything, so it counts the most
//! readings, and a document is only replaced by one that counts at least as many. Each instance
//! computes after its own last write, so the later of the two is complete.
//!
//! **Full.** Entries stay within `rollup.max_bytes`. From three quarters on, days are computed
//! before they are due; at the limit the shard accepts nothing. Computing continues meanwhile, so
//! there is always room again.
//!
//! **Yielding.** All tasks together read hours with one command at a time, under a separate permit;
//! then the task pauses for the same time. Marks and documents are written under the permits of
//! page writes, in few statements.
//!
//! Invariants: an acknowledgement is held until the mark of its day is durable. A mark is removed
//! only with the version that this entry knows, after a computation that began after the last
//! change. An entry without a durable mark is never dropped.

pub mod recovery;
pub mod state;
pub mod task;

pub use task::{RollupGauges, RollupHandle, RollupTask, RollupView};
