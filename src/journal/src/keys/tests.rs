//! The rules of the table, and the file.

use std::sync::atomic::{AtomicI64, Ordering};

use super::*;
use crate::fs::RealFs;
use model::Now;

#[derive(Default)]
struct Wall(AtomicI64);

impl Clock for Wall {
    fn now(&self) -> Now {
        let wall_ms = self.0.load(Ordering::Relaxed);
        Now {
            wall_ms,
            mono_ms: 0,
        }
    }
}

const KEEP: Duration = Duration::from_secs(60);

fn keys(keys_max: usize) -> (RequestKeys, Arc<Wall>) {
    let clock = Arc::new(Wall::default());
    (RequestKeys::new(KEEP, keys_max, clock.clone()), clock)
}

fn key(n: u8, sender: u64, received_at_ms: i64) -> RequestKey {
    RequestKey {
        id: [n; 16],
        sender,
        fingerprint: 7,
        received_at_ms,
    }
}

fn first(keys: &RequestKeys, key: RequestKey) -> KeyInFlight {
    match keys.begin(key) {
        Ok(KeyUse::First(first)) => first,
        other => panic!("{other:?}"),
    }
}

fn repeat(keys: &RequestKeys, key: RequestKey) -> Option<i64> {
    match keys.begin(key) {
        Ok(KeyUse::Repeat(received_at_ms)) => Some(received_at_ms),
        _ => None,
    }
}

fn refused(keys: &RequestKeys, key: RequestKey) -> KeyRefused {
    keys.begin(key).expect_err("it is refused")
}

#[test]
fn a_repeat_has_the_receipt_time_of_the_first_use() {
    let (keys, _) = keys(10);
    first(&keys, key(1, 1, 100)).accepted();
    assert_eq!(repeat(&keys, key(1, 1, 250)), Some(100));
    assert_eq!(repeat(&keys, key(1, 1, 900)), Some(100));
    drop(first(&keys, key(2, 1, 100)));
}

#[test]
fn a_key_is_in_flight_until_its_outcome_and_free_again_if_nothing_was_accepted() {
    let (keys, _) = keys(10);
    let in_flight = first(&keys, key(1, 1, 100));
    assert_eq!(refused(&keys, key(1, 1, 110)), KeyRefused::InFlight);
    drop(in_flight);
    let again = first(&keys, key(1, 1, 120));
    again.accepted();
    assert_eq!(repeat(&keys, key(1, 1, 130)), Some(120));
}

#[test]
fn another_content_is_refused_in_flight_and_afterwards() {
    let (keys, _) = keys(10);
    let other = RequestKey {
        fingerprint: 8,
        ..key(1, 1, 110)
    };
    let in_flight = first(&keys, key(1, 1, 100));
    assert_eq!(refused(&keys, other), KeyRefused::OtherContent);
    in_flight.accepted();
    assert_eq!(refused(&keys, other), KeyRefused::OtherContent);
}

#[test]
fn a_key_is_forgotten_after_its_time() {
    let (keys, clock) = keys(10);
    first(&keys, key(1, 1, 100)).accepted();
    let end_ms = 100 + KEEP.as_millis() as i64;
    for (now_ms, is_known) in [(end_ms - 1, true), (0, true), (end_ms, false)] {
        clock.0.store(now_ms, Ordering::Relaxed);
        let is_repeat = repeat(&keys, key(1, 1, now_ms)).is_some();
        assert_eq!(is_repeat, is_known, "{now_ms}");
    }
    assert_eq!(keys.table().unwrap().known.len(), 0);
}

#[test]
fn the_sender_with_the_most_keys_loses_its_oldest_one() {
    let (keys, _) = keys(4);
    first(&keys, key(1, 1, 1)).accepted();
    for n in 10..20 {
        first(&keys, key(n, 2, 2)).accepted();
    }
    assert_eq!(repeat(&keys, key(1, 1, 3)), Some(1), "of another sender");
    let known = |n| repeat(&keys, key(n, 2, 3)).is_some();
    let left: Vec<u8> = (10..20).filter(|&n| known(n)).collect();
    assert_eq!(left, [17, 18, 19]);
    let table = keys.table().unwrap();
    assert_eq!((table.known.len(), table.order.len()), (4, 4));
    assert_eq!(
        table.counts.iter().copied().collect::<Vec<_>>(),
        [(1, 1), (3, 2)]
    );
}

#[test]
fn keys_in_flight_are_limited_too() {
    let (keys, _) = keys(2);
    let _both = [first(&keys, key(1, 1, 1)), first(&keys, key(2, 1, 1))];
    assert_eq!(refused(&keys, key(3, 1, 1)), KeyRefused::Full);
    assert_eq!(refused(&keys, key(2, 1, 1)), KeyRefused::InFlight);
}

#[test]
fn a_late_outcome_changes_nothing_of_a_later_request_with_the_key() {
    let (keys, _) = keys(100);
    let slow = first(&keys, key(1, 1, 1));
    // The journal remembers it; then it is forgotten.
    keys.remember(key(1, 1, 1), 5);
    keys.table().unwrap().forget(&[1; 16]);
    let later = first(&keys, key(1, 1, 2));
    slow.accepted();
    assert_eq!(refused(&keys, key(1, 1, 3)), KeyRefused::InFlight);
    later.accepted();
    assert_eq!(repeat(&keys, key(1, 1, 4)), Some(2));
}

#[test]
fn without_a_time_nothing_is_remembered() {
    let keys = RequestKeys::new(Duration::ZERO, 10, Arc::new(Wall::default()));
    assert!(!keys.is_on());
    first(&keys, key(1, 1, 1)).accepted();
    first(&keys, key(1, 1, 1)).accepted();
}

#[test]
fn the_file_has_the_keys_of_entries_that_leave_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (keys, _) = keys(10);
    keys.save(&RealFs, dir, 100);
    assert!(!path(dir).exists(), "there is nothing to write");
    keys.remember(key(1, 1, 1), 5);
    keys.remember(key(2, 1, 2), 9);
    keys.save(&RealFs, dir, 5);
    assert!(!path(dir).exists(), "both entries are in the journal");
    keys.save(&RealFs, dir, 6);
    assert_eq!(read(&RealFs, dir).unwrap(), [key(1, 1, 1)]);
    keys.save(&RealFs, dir, 10);
    assert_eq!(read(&RealFs, dir).unwrap(), [key(1, 1, 1), key(2, 1, 2)]);
    let (loaded, _) = self::keys(10);
    loaded.load(&RealFs, dir).unwrap();
    assert_eq!(repeat(&loaded, key(2, 1, 7)), Some(2));
    loaded.remember(key(3, 1, 3), 20);
    loaded.save(&RealFs, dir, 21);
    assert_eq!(read(&RealFs, dir).unwrap().len(), 3);
    // Nothing is remembered any more.
    let off = RequestKeys::default();
    off.remove_unused(&RealFs, dir).unwrap();
    off.remove_unused(&RealFs, dir).unwrap();
    assert!(!path(dir).exists());
}

#[test]
fn every_changed_bit_of_the_file_is_found() {
    let (keys, _) = keys(10);
    keys.remember(key(1, 1, 1), 5);
    let bytes = keys.table().unwrap().unsaved(6).unwrap();
    assert_eq!(decode(&bytes), Some(vec![key(1, 1, 1)]));
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(decode(&bad), None, "bit {bit}");
    }
    for end in 0..bytes.len() {
        assert_eq!(decode(&bytes[..end]), None, "cut at {end}");
    }
}

#[test]
fn a_full_disk_stops_nothing_and_the_next_attempt_writes_all() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (keys, _) = keys(10);
    keys.remember(key(1, 1, 1), 5);
    let temporary = dir.join(format!("{NAME}{UNFINISHED}"));
    std::os::unix::fs::symlink("/dev/full", &temporary).unwrap();
    keys.save(&RealFs, dir, 6);
    assert!(!path(dir).exists() && !temporary.exists());
    keys.save(&RealFs, dir, 6);
    assert_eq!(read(&RealFs, dir).unwrap(), [key(1, 1, 1)]);
}
