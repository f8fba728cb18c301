//! What the journal's figures mean for an operator: how long it lasts, and whether its disk answers.

use std::collections::VecDeque;

use journal::{JournalFull, JournalStats};
use query::admin::JournalState;

/// How fast the journal is written is computed over ten minutes, in steps of ten seconds.
const GROWTH_EVERY_MS: u64 = 10_000;
const GROWTH_STEPS: usize = 60;
/// A group that takes longer hangs. A sync takes milliseconds, on a disk that others keep busy at
/// times a second or two. Much shorter than `http.ack_timeout`, so that a load balancer uses another
/// instance before requests fail.
const HANGS_AFTER_MS: u64 = 5000;

/// The state of the journal between two updates.
#[derive(Debug, Default)]
pub(super) struct JournalReport {
    growth: JournalGrowth,
    /// For how long the present group has been hanging, at the last update (ms).
    hung_ms: Option<u64>,
}

impl JournalReport {
    /// The state for `/readyz`. Logs when the disk stops answering, and when it answers again.
    pub(super) fn observe(&mut self, stats: &JournalStats, now_ms: u64) -> JournalState {
        let hung_ms = stats.commit_age_ms.filter(|ms| *ms > HANGS_AFTER_MS);
        match (self.hung_ms, hung_ms) {
            (None, Some(ms)) => tracing::warn!(
                seconds = ms / 1000,
                "the journal's disk does not answer; readings are not acknowledged until it does"
            ),
            (Some(ms), None) => {
                tracing::info!(seconds = ms / 1000, "the journal's disk answers again")
            }
            _ => {}
        }
        self.hung_ms = hung_ms;
        let rate = self.growth.bytes_per_second(now_ms, stats.written_bytes);
        let left = stats.bytes_max.saturating_sub(stats.unstored_bytes);
        JournalState {
            bytes: stats.bytes,
            max_bytes: stats.bytes_max,
            unstored_bytes: stats.unstored_bytes,
            lasts_seconds: match stats.full {
                Some(_) => Some(0),
                None => (rate >= 1.0).then(|| (left as f64 / rate) as u64),
            },
            full: stats.full.is_some(),
            disk_error: match &stats.full {
                Some(JournalFull::Disk { error }) => Some(error.clone()),
                Some(JournalFull::MaxBytes) | None => None,
            },
            hangs_seconds: hung_ms.map(|ms| ms / 1000),
            unstored_entries: stats.unstored_entries,
            replayed: stats.replay_done,
            replay_total: stats.replay_total,
        }
    }
}

/// How fast the journal is written, over the last minutes.
#[derive(Debug, Default)]
struct JournalGrowth {
    /// Time (monotonic ms) and bytes written, every [`GROWTH_EVERY_MS`], oldest first.
    seen: VecDeque<(u64, u64)>,
}

impl JournalGrowth {
    fn bytes_per_second(&mut self, now_ms: u64, written: u64) -> f64 {
        if self
            .seen
            .back()
            .is_none_or(|(at_ms, _)| now_ms >= at_ms + GROWTH_EVERY_MS)
        {
            self.seen.push_back((now_ms, written));
            if self.seen.len() > GROWTH_STEPS {
                self.seen.pop_front();
            }
        }
        let (since_ms, before) = self.seen.front().copied().unwrap_or((now_ms, written));
        (written - before) as f64 * 1000.0 / now_ms.saturating_sub(since_ms).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_growth_is_that_of_the_last_ten_minutes() {
        let mut growth = JournalGrowth::default();
        assert_eq!(growth.bytes_per_second(0, 500), 0.0);
        for s in 1..=600u64 {
            let rate = growth.bytes_per_second(s * 1000, 500 + s * 1000);
            assert!((rate - 1000.0).abs() < 1.0, "{rate}");
        }
        let rates: Vec<f64> = (601..1300u64)
            .map(|s| growth.bytes_per_second(s * 1000, 600_500))
            .collect();
        assert!(
            rates.is_sorted_by(|a, b| a >= b) && rates.last() == Some(&0.0),
            "{:?}",
            rates.last()
        );
    }

    #[test]
    fn a_full_journal_lasts_no_longer_and_names_the_error_of_its_disk() {
        let mut report = JournalReport::default();
        let mut stats = JournalStats {
            bytes_max: 1 << 30,
            ..JournalStats::default()
        };
        report.observe(&stats, 0);
        stats.written_bytes = 1 << 20;
        assert_eq!(report.observe(&stats, 1000).lasts_seconds, Some(1024));
        let disk = JournalFull::Disk {
            error: "Input/output error".into(),
        };
        for (full, disk_error) in [
            (JournalFull::MaxBytes, None),
            (disk, Some("Input/output error")),
        ] {
            stats.full = Some(full);
            let state = report.observe(&stats, 1000);
            assert_eq!((state.full, state.lasts_seconds), (true, Some(0)));
            assert_eq!(state.disk_error.as_deref(), disk_error);
        }
    }

    #[test]
    fn a_group_that_takes_more_than_five_seconds_hangs() {
        let mut report = JournalReport::default();
        let mut hangs = |commit_age_ms| {
            let stats = JournalStats {
                commit_age_ms,
                ..JournalStats::default()
            };
            report.observe(&stats, 0).hangs_seconds
        };
        assert_eq!(hangs(None), None);
        assert_eq!(hangs(Some(5000)), None);
        assert_eq!(hangs(Some(5999)), Some(5));
        assert_eq!(hangs(Some(45_000)), Some(45));
        assert_eq!(hangs(Some(2)), None, "the next group");
    }
}
