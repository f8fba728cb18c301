//! Rate-limited log lines about devices: closed connections, messages kept as dead letters, refused connections.
//!
//! A device can repeat a mistake thousands of times a second. So each kind gets a few lines a minute ([`LINES_MAX`]),
//! and then one line with the number of suppressed lines. A client is named by its id, the id of its token and its
//! address. The secret of a token is never written, even if a device has put it into its client id.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::connect::Client;
use crate::decode::RejectReason;
use crate::model::Clock;

/// Lines of one kind within [`LOG_EVERY`].
const LINES_MAX: u32 = 10;
/// The period over which lines are counted.
pub(super) const LOG_EVERY: Duration = Duration::from_secs(60);
/// Characters of a topic that are logged.
const TOPIC_CHARS_MAX: usize = 200;

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
        self.since_ms.filter(|since| now_ms.saturating_sub(*since) >= LOG_EVERY.as_millis() as u64)?;
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

/// One kind of log line.
struct Kind {
    name: &'static str,
    quota: Mutex<Quota>,
}

impl Kind {
    fn new(name: &'static str) -> Kind {
        Kind { name, quota: Mutex::default() }
    }

    /// Writes a line, or counts it.
    fn line(&self, now_ms: u64, write: impl FnOnce()) {
        self.end(now_ms);
        // Two numbers and a time, each valid by itself, so the lock stays usable after a panic.
        if self.quota.lock().unwrap_or_else(PoisonError::into_inner).allows(now_ms) {
            write();
        }
    }

    fn end(&self, now_ms: u64) {
        let suppressed = self.quota.lock().unwrap_or_else(PoisonError::into_inner).end(now_ms);
        if let Some(suppressed) = suppressed {
            tracing::warn!(suppressed, kind = self.name, "MQTT device log lines suppressed within the last minute");
        }
    }
}

pub(super) struct LimitedLog {
    clock: Arc<dyn Clock>,
    disconnects: Kind,
    unwanted: Kind,
    strangers: Kind,
}

impl LimitedLog {
    pub(super) fn new(clock: Arc<dyn Clock>) -> LimitedLog {
        let [disconnects, unwanted, strangers] = ["disconnects", "dead letters", "refused connections"].map(Kind::new);
        LimitedLog { clock, disconnects, unwanted, strangers }
    }

    /// Logs a connection that this side closed.
    pub(super) fn disconnected(&self, client: &Client, reason: &'static str, acks: &str) {
        let Client { shown, token, peer, .. } = client;
        self.disconnects.line(self.now_ms(), || {
            tracing::warn!(client = shown, token, %peer, reason, detail = acks, "MQTT device disconnected");
        });
    }

    /// Logs a message that becomes a dead letter because of its topic or its size.
    pub(super) fn unwanted(&self, client: &Client, topic: &str, reason: RejectReason, detail: &str) {
        let Client { shown, token, peer, .. } = client;
        self.unwanted.line(self.now_ms(), || {
            let topic: String = topic.chars().take(TOPIC_CHARS_MAX).collect();
            tracing::warn!(
                client = shown, token, %peer, topic, reason = reason.as_str(), detail,
                "MQTT message kept as a dead letter"
            );
        });
    }

    /// Logs a connection that was refused before CONNACK. `client`: its client id, if CONNECT was read.
    pub(super) fn turned_away(&self, peer: SocketAddr, client: Option<&str>, reason: &'static str, acks: &str) {
        self.strangers.line(self.now_ms(), || {
            tracing::warn!(client, %peer, reason, detail = acks, "MQTT device refused");
        });
    }

    /// Logs the number of suppressed lines of each kind whose period is over.
    pub(super) fn end(&self) {
        self.end_all(self.now_ms());
    }

    /// Logs the number of suppressed lines of all kinds, at the end.
    pub(super) fn close(&self) {
        self.end_all(u64::MAX);
    }

    fn end_all(&self, now_ms: u64) {
        [&self.disconnects, &self.unwanted, &self.strangers].into_iter().for_each(|kind| kind.end(now_ms));
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().mono_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_lines_a_minute_and_the_number_of_the_others() {
        let mut quota = Quota::default();
        let (mut lines, mut told) = (0, 0);
        // A hundred seconds of one event every 10 ms.
        for now in (0..100_000).step_by(10) {
            told += quota.end(now).unwrap_or_default();
            lines += u64::from(quota.allows(now));
        }
        assert_eq!((lines, told), (20, 5990));
        assert_eq!(quota.end(119_990), None, "not yet");
        assert_eq!(quota.end(120_000), Some(3990));
        assert_eq!(quota.end(500_000), None, "logged once");
        assert!(quota.allows(500_000));
        assert_eq!(quota.end(600_000), None, "none was suppressed");
    }
}
