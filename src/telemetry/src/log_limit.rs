//! Rate-limited log lines. An event that a peer can cause any number of times gets a few lines a
//! minute, and then one line with the number of suppressed lines ([`LineLimit`]). One of which the
//! number says enough gets one line a minute with it ([`CountedLine`]). A hint is logged once ([`hint`]).

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::lock;
use super::metrics::Source;

/// Lines of one kind within [`LOG_EVERY`].
const LINES_MAX: u32 = 10;
/// The period over which lines are counted.
pub const LOG_EVERY: Duration = Duration::from_secs(60);

/// Allows a few lines per period, and counts the suppressed ones. Pure.
#[derive(Debug, Default)]
struct Quota {
    since_ms: Option<u64>,
    lines: u32,
    suppressed: u64,
}

impl Quota {
    /// Ends the period if it is over; returns the number of suppressed lines, if any.
    fn end(&mut self, now_ms: u64) -> Option<u64> {
        self.since_ms
            .filter(|since| now_ms.saturating_sub(*since) >= LOG_EVERY.as_millis() as u64)?;
        let suppressed = std::mem::take(self).suppressed;
        (suppressed > 0).then_some(suppressed)
    }

    /// Whether a line may be written now; call after [`Quota::end`].
    fn allows(&mut self, now_ms: u64) -> bool {
        self.since_ms.get_or_insert(now_ms);
        let allows = self.lines < LINES_MAX;
        if allows {
            self.lines += 1;
        } else {
            self.suppressed += 1;
        }
        allows
    }
}

/// The limit of one kind of log line.
pub struct LineLimit {
    name: &'static str,
    quota: Mutex<Quota>,
}

impl LineLimit {
    /// `name` says in the log which lines were suppressed.
    pub fn new(name: &'static str) -> LineLimit {
        LineLimit {
            name,
            quota: Mutex::default(),
        }
    }

    /// Writes a line, or counts it.
    pub fn line(&self, now_ms: u64, write: impl FnOnce()) {
        self.end(now_ms);
        let allows = lock(&self.quota).allows(now_ms);
        if allows {
            write();
        }
    }

    /// Logs the number of suppressed lines if the period is over.
    pub fn end(&self, now_ms: u64) {
        let suppressed = lock(&self.quota).end(now_ms);
        if let Some(suppressed) = suppressed {
            tracing::warn!(
                suppressed,
                kind = self.name,
                "log lines suppressed within the last minute"
            );
        }
    }
}

/// A log line with the number of events since the line before it.
#[derive(Debug, Default)]
pub struct CountedLine {
    written_at: Option<Instant>,
    events: u64,
}

impl CountedLine {
    /// Adds events; returns the number of all if the line must be written now.
    pub fn add(&mut self, events: u64) -> Option<u64> {
        self.events += events;
        if self.written_at.is_some_and(|at| at.elapsed() < LOG_EVERY) {
            return None;
        }
        self.written_at = Some(Instant::now());
        Some(std::mem::take(&mut self.events))
    }
}

/// Texts that are logged. The senders' names of members are in them, so there may be any number.
const TEXTS_MAX: usize = 100;

static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Whether the text is to be logged now.
fn is_new(logged: &mut BTreeSet<String>, text: &str) -> bool {
    !logged.contains(text) && logged.len() < TEXTS_MAX && logged.insert(text.to_owned())
}

/// Logs a hint of a decoder once, with the first sender that caused it: a topic, the id of a token, or a
/// route. Who sends over MQTT gets no answer, so the log is where the hint can be seen. Called at most
/// once for each message or request.
pub fn hint(source: Source, sender: &str, text: &str) {
    let is_new = is_new(&mut lock(&LOGGED), text);
    if is_new {
        tracing::info!(
            source = source.as_str(),
            sender,
            hint = text,
            "a sender's messages are stored, but see the hint; it is logged once"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines_a_minute_and_the_number_of_the_others() {
        let mut quota = Quota::default();
        let mut lines = 0;
        let mut suppressed = 0;
        // A hundred seconds of one event every 10 ms.
        for now in (0..100_000).step_by(10) {
            suppressed += quota.end(now).unwrap_or_default();
            lines += u64::from(quota.allows(now));
        }
        assert_eq!((lines, suppressed), (20, 5990));
        assert_eq!(quota.end(119_990), None, "not yet");
        assert_eq!(quota.end(120_000), Some(3990));
        assert_eq!(quota.end(500_000), None, "logged once");
        assert!(quota.allows(500_000));
        assert_eq!(quota.end(600_000), None, "none was suppressed");
    }

    #[test]
    fn a_text_is_logged_once_and_their_number_is_limited() {
        let mut logged = BTreeSet::new();
        let mut is_new = |text: &str| is_new(&mut logged, text);
        assert!(is_new("a") && !is_new("a") && is_new("b"));
        let more = (0..1000).filter(|i| is_new(&i.to_string())).count();
        assert_eq!(more, TEXTS_MAX - 2);
    }
}
