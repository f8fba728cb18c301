//! Limits a log line that each dead letter may cause to one per minute.

use std::time::Duration;

use tokio::time::Instant;

const EVERY: Duration = Duration::from_secs(60);

/// The state of one kind of log line.
#[derive(Debug, Default)]
pub(super) struct LogLimit {
    written_at: Option<Instant>,
    suppressed: u64,
}

impl LogLimit {
    /// If the line should be written now: how many were suppressed since the last one.
    pub(super) fn due(&mut self) -> Option<u64> {
        if self.written_at.is_some_and(|at| at.elapsed() < EVERY) {
            self.suppressed += 1;
            return None;
        }
        self.written_at = Some(Instant::now());
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_minute_reports_how_many_it_replaces() {
        let mut quiet = LogLimit::default();
        let mut written = vec![];
        for _ in 0..150 {
            written.extend(quiet.due());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(written, [0, 59, 59]);
    }
}
