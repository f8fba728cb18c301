//! The problems of a configuration: all of them, each with its key, its origin and advice.

use std::fmt;

/// One problem. It never contains the value of a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key, such as `store.uri` or `mqtt[0].url`; empty if the problem concerns the file as a
    /// whole.
    pub key: String,
    /// Where it was set: file and line, or the name of an environment variable; empty for a
    /// default.
    pub origin: String,
    /// The problem and the value found.
    pub what: String,
    /// What to write instead.
    pub advice: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.key.is_empty(), self.origin.is_empty()) {
            (true, _) => f.write_str(&self.origin)?,
            (false, true) => f.write_str(&self.key)?,
            (false, false) => write!(f, "{} ({})", self.key, self.origin)?,
        }
        write!(f, ": {}", self.what)?;
        if self.advice.is_empty() {
            Ok(())
        } else {
            write!(f, "; {}", self.advice)
        }
    }
}

/// All problems of a configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// In the order of the file's sections.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.problems.len();
        write!(
            f,
            "the configuration has {n} problem{}:",
            if n == 1 { "" } else { "s" }
        )?;
        self.problems
            .iter()
            .try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for ConfigErrors {}
