//! The result of one check, as one line.

use std::error::Error;
use std::fmt;

/// The result of one check.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) what: String,
    pub(super) result: Result<String, Box<dyn Error>>,
}

impl Finding {
    /// Whether the check succeeded.
    pub(super) fn good(&self) -> bool {
        self.result.is_ok()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Ok(text) => write!(f, "ok       {:<14} {text}", self.what),
            Err(text) => write!(f, "PROBLEM  {:<14} {text}", self.what),
        }
    }
}
