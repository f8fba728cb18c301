//! Hints of the decoders in the log: each text once, with the first sender that caused it. Over MQTT
//! there is no answer that could show them. Called once per message or request at most.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::lock;
use super::metrics::Source;

/// Texts that are logged. The senders' names of members are in them, so there may be any number.
const TEXTS_MAX: usize = 100;

static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Whether the text is to be logged now.
fn is_new(logged: &mut BTreeSet<String>, text: &str) -> bool {
    !logged.contains(text) && logged.len() < TEXTS_MAX && logged.insert(text.to_owned())
}

/// Logs a hint, unless it was logged before. `sender`: the topic, token id or route.
pub fn note(source: Source, sender: &str, hint: &str) {
    let is_new = is_new(&mut lock(&LOGGED), hint);
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
        let mut logged = BTreeSet::new();
        let mut is_new = |text: &str| is_new(&mut logged, text);
        assert!(is_new("a") && !is_new("a") && is_new("b"));
        let more = (0..1000).filter(|i| is_new(&i.to_string())).count();
        assert_eq!(more, TEXTS_MAX - 2);
    }
}
