//! Removal of readings from old buckets, for both kinds of histories: at any moment after the end
//! of a bucket by the true time, without the margin and the checks of the service, and also while
//! rows of the bucket are in flight. Measurements disappear some time after the store has begun
//! with their bucket, all of them or the first ones. In histories with steps, the retention may
//! become longer with a restart: then only what is left shows what was removed.
//!
//! Removed readings stay in [`Pages`] for the oracles, hidden from loads and queries. So the
//! oracles compare them with the summaries: no reading counts twice, and an acknowledged reading
//! that is not counted is a dead letter.

use model::{BucketStart, Span};
use testkit::memory_store::Pages;

/// Removes the readings of some pages that ended before that time; and begins to let the
/// measurements of a bucket expire, or removes some of them.
pub(crate) fn remove_some(pages: &mut Pages, span: Span, before_ms: i64, rng: &mut fastrand::Rng) {
    pages.remove_readings(span, before_ms, rng.usize(1..5));
    let is_old = |start: &BucketStart| span.end(*start) < before_ms;
    let old: Vec<_> = pages
        .series
        .keys()
        .filter(|(_, start)| is_old(start))
        .cloned()
        .collect();
    if !old.is_empty() {
        let (sensor, start) = &old[rng.usize(0..old.len())];
        if is_removed(pages, sensor, *start) {
            pages.remove_measurements(sensor, *start, rng.usize(1..6));
        }
        pages.begin_expiring(sensor, *start);
    }
}

/// Whether readings of a bucket were removed, or the store has begun to.
pub(crate) fn is_removed(pages: &Pages, sensor: &str, start: BucketStart) -> bool {
    let id = |n: u32| (sensor.to_owned(), start, n);
    pages.expired.contains_key(&(sensor.to_owned(), start))
        || pages
            .pages
            .range(id(0)..=id(u32::MAX))
            .any(|(_, page)| page.readings_removed)
}
