//! When the days are computed: an open one some time after it has ended, any other one when no
//! reading has arrived for a while, and earlier if memory is short.

use super::{Entry, GRAIN_MS, Mark, Rollup, RollupSettings};
use model::{Now, stable_hash};
use store::days::SensorDay;

/// A day is computed at the latest after this many times `rollup.late`, even if readings keep
/// arriving.
const LATE_MAX: u64 = 10;
/// Clocks of the service and of MongoDB may differ by this much when hours expire.
const EXPIRY_MARGIN_MS: i64 = 60 * 60 * 1000;

impl Rollup {
    /// The next days to compute, at most `most`. Days whose hours may have expired are not
    /// computed: they are returned separately, and their marks are removed.
    pub(crate) fn take_days(&mut self, most: usize, now: Now) -> (Vec<SensorDay>, Vec<SensorDay>) {
        self.promote(now);
        if self.ready.is_empty() && self.is_short() {
            self.sweep(most, now);
        }
        let mut days = vec![];
        let mut expired = vec![];
        while days.len() < most
            && let Some(((slot, generation), since_ms)) = self.ready.pop_front()
        {
            let found = self
                .entries
                .get_mut(slot as usize)
                .filter(|e| e.generation == generation);
            let Some(entry) = found else { continue };
            entry.is_queued = false;
            if !entry.is_changed || entry.is_computing || entry.mark == Mark::Pending {
                continue;
            }
            let day = SensorDay {
                day: entry.day,
                sensor_id: entry.sensor_id.clone(),
            };
            let kept_ms = self.settings.hours_kept_ms.unwrap_or(i64::MAX);
            if day.day.start_ms.saturating_add(kept_ms) < now.wall_ms + EXPIRY_MARGIN_MS {
                expired.push(day);
                entry.is_changed = false;
                self.changed -= 1;
                self.let_go(slot);
                continue;
            }
            entry.is_changed = false;
            entry.is_computing = true;
            self.changed -= 1;
            self.computing_since_ms = Some(
                self.computing_since_ms
                    .map_or(since_ms, |ms| ms.min(since_ms)),
            );
            days.push(day);
        }
        (days, expired)
    }

    /// Applies the result of computing and writing days, in the order of [`Rollup::take_days`]:
    /// `true` if the day's document is as new as the computation.
    pub fn computed<'a>(
        &mut self,
        days: impl IntoIterator<Item = (&'a SensorDay, bool)>,
        now: Now,
    ) {
        let since_ms = self.computing_since_ms.take().unwrap_or(now.mono_ms);
        for (day, is_written) in days {
            let Some(slot) = self.find(stable_hash(&day.sensor_id), &day.sensor_id, day.day) else {
                continue;
            };
            let entry = &mut self.entries[slot as usize];
            entry.is_computing = false;
            if is_written {
                self.let_go(slot);
                self.schedule(slot, now);
            } else {
                if !entry.is_changed {
                    entry.is_changed = true;
                    self.changed += 1;
                }
                if !entry.is_queued {
                    entry.is_queued = true;
                    self.ready.push_front(((slot, entry.generation), since_ms));
                }
            }
        }
    }

    /// Whether a day is due, or must be computed to free memory.
    pub fn has_days(&mut self, now: Now) -> bool {
        self.promote(now);
        !self.ready.is_empty() || self.is_short()
    }

    /// Whether days are computed before they are due, to free memory.
    fn is_short(&self) -> bool {
        self.bytes >= self.settings.bytes_max / 4 * 3
    }

    pub(super) fn change(&mut self, slot: u32, now: Now) {
        let entry = &mut self.entries[slot as usize];
        if !entry.is_changed {
            entry.is_changed = true;
            entry.first_change_ms = now.mono_ms;
            self.changed += 1;
        }
        self.schedule(slot, now);
    }

    /// Puts a changed entry with a durable mark into the wheel.
    pub(super) fn schedule(&mut self, slot: u32, now: Now) {
        let Some(entry) = self.entries.get_mut(slot as usize) else {
            return;
        };
        if entry.is_changed
            && !entry.is_queued
            && !entry.is_computing
            && entry.mark != Mark::Pending
        {
            entry.is_queued = true;
            let queued = (slot, entry.generation);
            self.wheel.push(
                due_ms(&self.settings, &self.entries[slot as usize], now),
                queued,
            );
        }
    }

    /// Moves due entries from the wheel to `ready`. One that changed again meanwhile is put back.
    fn promote(&mut self, now: Now) {
        while let Some(due) = self.wheel.pop_due(now.mono_ms) {
            for (slot, generation) in due {
                let found = self
                    .entries
                    .get(slot as usize)
                    .filter(|e| e.generation == generation);
                let Some(entry) = found else { continue };
                let due_ms = due_ms(&self.settings, entry, now);
                if due_ms > now.mono_ms + GRAIN_MS {
                    self.wheel.push(due_ms, (slot, generation));
                } else {
                    self.ready.push_back(((slot, generation), now.mono_ms));
                }
            }
        }
    }

    /// Makes changed days ready although they are not due, those without unstored readings.
    fn sweep(&mut self, most: usize, now: Now) {
        for _ in 0..self.entries.capacity().min(most * 16) {
            self.sweep_at = (self.sweep_at + 1) % self.entries.capacity().max(1);
            let Some(entry) = self.entries.get(self.sweep_at) else {
                continue;
            };
            if entry.is_changed
                && !entry.is_computing
                && entry.unstored == 0
                && entry.mark != Mark::Pending
            {
                // Its entry in the wheel stays, and is skipped when it is due.
                self.ready
                    .push_back(((self.sweep_at as u32, entry.generation), now.mono_ms));
            }
            if self.ready.len() >= most {
                break;
            }
        }
    }
}

/// When a changed day is computed (monotonic ms): an open one after its end, spread over
/// `rollup.settle`; any other one when no reading has arrived for `rollup.late`.
fn due_ms(settings: &RollupSettings, entry: &Entry, now: Now) -> u64 {
    if entry.day.contains(now.wall_ms) {
        let left_ms = (entry.day.end_ms - now.wall_ms).unsigned_abs();
        return now.mono_ms + left_ms + settings.settle_ms + entry.hash % settings.settle_ms.max(1);
    }
    let latest = entry.first_change_ms + settings.late_ms * LATE_MAX;
    (entry.last_change_ms + settings.late_ms).min(latest)
}
