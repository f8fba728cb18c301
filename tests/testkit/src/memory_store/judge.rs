//! Faults of individual dead letters.

use model::DeadLetter;

/// The outcome of storing one dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is stored.
    Takes,
    /// It is rejected; the others of the command are stored.
    Refuses,
    /// The whole command gets no response, and nothing of it is stored.
    Hangs,
    /// The whole command is answered with an error, and nothing of it is stored.
    Fails,
}

/// Decides the outcome for each dead letter.
pub type Judge = Box<dyn FnMut(&DeadLetter) -> Verdict + Send>;
