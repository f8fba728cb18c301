//! Rate-limited log lines about devices: closed connections, messages kept as dead letters, refused
//! connections.
//!
//! A device can repeat a mistake thousands of times a second, so each kind has a limit
//! ([`LineLimit`]). A client is named by its id, the id of its token and its address. The secret of
//! a token is never written, even if a device has put it into its client id.

use std::net::SocketAddr;
use std::sync::Arc;

use super::connect::Client;
use decode::RejectReason;
use model::Clock;
use telemetry::log_limit::LineLimit;

/// Characters of a topic that are logged.
const TOPIC_CHARS_MAX: usize = 200;

pub(super) struct LimitedLog {
    clock: Arc<dyn Clock>,
    disconnects: LineLimit,
    unwanted: LineLimit,
    strangers: LineLimit,
}

impl LimitedLog {
    pub(super) fn new(clock: Arc<dyn Clock>) -> LimitedLog {
        let [disconnects, unwanted, strangers] =
            ["disconnects", "dead letters", "refused connections"].map(LineLimit::new);
        LimitedLog {
            clock,
            disconnects,
            unwanted,
            strangers,
        }
    }

    /// Logs a connection that this side closed.
    pub(super) fn disconnected(&self, client: &Client, reason: &'static str, detail: &str) {
        let Client {
            shown, token, peer, ..
        } = client;
        self.disconnects.line(self.now_ms(), || {
            tracing::warn!(client = shown, token, %peer, reason, detail, "MQTT device disconnected");
        });
    }

    /// Logs a message that becomes a dead letter because of its topic or its size.
    pub(super) fn unwanted(
        &self,
        client: &Client,
        topic: &str,
        reason: RejectReason,
        detail: &str,
    ) {
        let Client {
            shown, token, peer, ..
        } = client;
        self.unwanted.line(self.now_ms(), || {
            let topic: String = topic.chars().take(TOPIC_CHARS_MAX).collect();
            tracing::warn!(
                client = shown, token, %peer, topic, reason = reason.as_str(), detail,
                "MQTT message kept as a dead letter"
            );
        });
    }

    /// Logs a connection that was refused before CONNACK. `client`: its client id, if CONNECT was
    /// read.
    pub(super) fn connection_refused(
        &self,
        peer: SocketAddr,
        client: Option<&str>,
        reason: &'static str,
        detail: &str,
    ) {
        self.strangers.line(self.now_ms(), || {
            tracing::warn!(client, %peer, reason, detail, "MQTT device refused");
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
        [&self.disconnects, &self.unwanted, &self.strangers]
            .into_iter()
            .for_each(|kind| kind.end(now_ms));
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().mono_ms
    }
}
