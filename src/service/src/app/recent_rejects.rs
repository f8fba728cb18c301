//! The readings that MongoDB has rejected lately because of their content, for `/readyz`. Pure.

use std::collections::VecDeque;

use pipeline::accumulate::StoreRejects;

/// How long rejected readings are reported.
const WITHIN_MS: u64 = 15 * 60_000;
/// Readings rejected within this time are one step; so there are at most 90 steps.
const STEP_MS: u64 = 10_000;
/// Characters of the detail in the reason.
const DETAIL_CHARS_MAX: usize = 500;

/// Observes the totals of the shards.
#[derive(Debug, Default)]
pub(super) struct RecentRejects {
    total: u64,
    /// Start (monotonic ms) and number of readings, oldest first.
    steps: VecDeque<(u64, u64)>,
}

impl RecentRejects {
    /// The number of readings rejected within the last 15 minutes and the newest detail; `None` if
    /// there were none. `shards`: what each shard counts since the start.
    pub(super) fn observe(&mut self, shards: &[StoreRejects], now_ms: u64) -> Option<String> {
        let total = shards.iter().map(|shard| shard.readings).sum();
        let new = total - self.total;
        self.total = total;
        match self.steps.back_mut() {
            _ if new == 0 => {}
            Some((start_ms, readings)) if now_ms < *start_ms + STEP_MS => *readings += new,
            _ => self.steps.push_back((now_ms, new)),
        }
        let is_over = |(start_ms, _): &(u64, u64)| now_ms >= start_ms + WITHIN_MS;
        while self.steps.front().is_some_and(is_over) {
            self.steps.pop_front();
        }
        let recent: u64 = self.steps.iter().map(|(_, readings)| readings).sum();
        let newest = shards.iter().max_by_key(|shard| shard.last_ms)?;
        let detail: String = newest.detail.chars().take(DETAIL_CHARS_MAX).collect();
        (recent > 0).then(|| {
            format!(
                "{recent} acknowledged readings were rejected by MongoDB in the last 15 minutes \
                 and are kept as dead letters: {detail}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(readings: u64, last_ms: u64, detail: &str) -> StoreRejects {
        StoreRejects {
            readings,
            last_ms,
            detail: detail.to_owned(),
        }
    }

    #[test]
    fn readings_are_reported_for_fifteen_minutes_with_the_newest_detail() {
        let mut recent = RecentRejects::default();
        assert_eq!(recent.observe(&[], 0), None);
        assert_eq!(recent.observe(&[shard(0, 0, "")], 1000), None);
        let shards = [shard(2, 5000, "older"), shard(3, 6000, "newer")];
        let reason = recent.observe(&shards, 6000).unwrap();
        assert_eq!(
            reason,
            "5 acknowledged readings were rejected by MongoDB in the last 15 minutes and are kept \
             as dead letters: newer"
        );
        let shards = [shard(4, 600_000, "last"), shard(3, 6000, "newer")];
        let reason = recent.observe(&shards, 600_000).unwrap();
        assert!(
            reason.starts_with("7 ") && reason.ends_with(": last"),
            "{reason}"
        );
        let reason = recent.observe(&shards, 6000 + WITHIN_MS).unwrap();
        assert!(reason.starts_with("2 "), "{reason}");
        assert_eq!(recent.observe(&shards, 600_000 + WITHIN_MS), None);
    }

    #[test]
    fn any_number_of_rejects_takes_at_most_ninety_steps() {
        let mut recent = RecentRejects::default();
        for n in 1..5000u64 {
            recent.observe(&[shard(n, n * 1000, "x")], n * 1000);
            assert!(recent.steps.len() <= 91, "{}", recent.steps.len());
        }
    }
}
