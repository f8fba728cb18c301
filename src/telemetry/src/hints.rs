//! Hints of the decoders in the log: each text once, with the first sender that caused it. Over MQTT
//! there is no answer that could show them. Called once per message or request at most.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::metrics::Source;

/// Texts that are logged. The senders' names of members are in them, so there may be any number.
const TEXTS_MAX: usize = 100;

struct Logged(BTreeSet<String>);

impl Logged {
    const fn new() -> Logged {
        Logged(BTreeSet::new())
    }

    /// Whether the text is to be logged now.
    fn is_new(&mut self, text: &str) -> bool {
        if self.0.contains(text) || self.0.len() >= TEXTS_MAX {
            return false;
        }
        self.0.insert(text.to_owned())
    }
}

static LOGGED: Mutex<Logged> = Mutex::new(Logged::new());

/// Logs a hint, unless it was logged before. `sender`: the topic, token id or route.
pub fn note(source: Source, sender: &str, hint: &str) {
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    let is_new = logged.is_new(hint);
    drop(logged);
    if is_new {
        tracing::info!(
            source = source.as_str(),
            sender,
            hint,
            "a sender's messages are stored, but see the hint; it is logged once"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_logged_once_and_their_number_is_limited() {
        let mut logged = Logged::new();
        assert!(logged.is_new("a") && !logged.is_new("a") && logged.is_new("b"));
        let more = (0..1000).filter(|i| logged.is_new(&i.to_string())).count();
        assert_eq!(more, TEXTS_MAX - 2);
    }
}
