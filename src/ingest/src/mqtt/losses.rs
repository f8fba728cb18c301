//! What is said of lost connections: which are logged, and what is wrong if sessions end soon after
//! they began, one after the other. Pure.

use super::event::LinkError;
use super::observe::Ended;

/// A reason is logged once in this time.
const LOG_MS: u64 = 60_000;
/// From so many short sessions in a row on, they have a common cause.
pub(super) const MANY: u32 = 3;

/// Limits the log lines about lost connections.
#[derive(Debug, Default)]
pub(super) struct Losses {
    reason: String,
    logged_ms: Option<u64>,
    suppressed: u64,
}

impl Losses {
    /// Whether a loss for this reason is logged: if so, the number of losses that were not logged
    /// since the last line.
    pub(super) fn log(&mut self, reason: &str, now_ms: u64) -> Option<u64> {
        let is_due = |at: u64| now_ms.saturating_sub(at) >= LOG_MS;
        if self.reason == reason && !self.logged_ms.is_none_or(is_due) {
            self.suppressed += 1;
            return None;
        }
        self.reason = reason.to_owned();
        self.logged_ms = Some(now_ms);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// The problem that remains after the next connection has been opened, until a session lasts:
/// `error` ended a session, and so many in a row were short.
pub(super) fn lasting_problem(error: &LinkError, short_sessions: u32) -> Option<String> {
    match error {
        LinkError::Ended(Ended::Said(reason)) if reason.is_takeover() => Some(reason.to_string()),
        _ if short_sessions < MANY => None,
        LinkError::Ended(Ended::Silently) => Some(format!(
            "{error}, and each of the last sessions ended within a minute: another client may use \
             this client_id (give each client of the broker its own mqtt.client_id), or the broker \
             does not accept what hourbucket does; look at its log"
        )),
        _ => Some(format!(
            "{error}; each of the last sessions ended within a minute"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_logged_once_a_minute_and_a_new_one_immediately() {
        let mut losses = Losses::default();
        let mut logged = vec![];
        for now in (0..=120_000).step_by(1000) {
            logged.extend(losses.log("a", now).map(|suppressed| (now, suppressed)));
        }
        assert_eq!(logged, [(0, 0), (60_000, 59), (120_000, 59)]);
        assert_eq!(losses.log("b", 120_001), Some(0));
        assert_eq!(losses.log("b", 120_002), None);
        assert_eq!(losses.log("a", 120_003), Some(1));
    }

    #[test]
    fn short_sessions_in_a_row_hint_at_another_client() {
        let silently = LinkError::Ended(Ended::Silently);
        assert_eq!(lasting_problem(&silently, MANY - 1), None);
        let hint = lasting_problem(&silently, MANY).unwrap();
        assert!(
            hint.contains("another client may use this client_id"),
            "{hint}"
        );
        let refused = LinkError::Ended(Ended::BeforeSubAck);
        let problem = lasting_problem(&refused, MANY).unwrap();
        assert!(!problem.contains("another client"), "{problem}");
    }
}
