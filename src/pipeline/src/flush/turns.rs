//! Buckets that are held while the store is busy, in the order of their sensors' turns. Pure.
//!
//! Each sensor has a position on a ring, derived from its hash. A hand moves around the ring; a
//! bucket is written when the hand reaches its sensor. So while the age is stretched, a sensor is
//! written once per round, and all sensors are always written in the same order. The order matters
//! to MongoDB: it is also the order in which the documents of an hour were created, so the
//! statements of a command change neighbouring documents. If the documents do not fit into its
//! cache, an append in random order costs it four times as much, because each statement has it
//! read, compress and write another page.
//!
//! The hand moves with the time ([`Turns::advance`]; the age decides how fast), and ahead of it
//! when memory is short ([`Turns::pop_next`]). The order remains.

use std::collections::BTreeMap;
use std::ops::Range;

/// Positions on the ring. The buckets of one are written together, and a statement in a command of
/// 500 costs MongoDB a tenth less than in one of 100. With a million sensors on two shards, 2,000
/// sensors share a position; their order does not matter, because a few megabytes of documents fit
/// into any cache.
const POSITIONS: usize = 256;

/// The sensor's place in the order of all sensors, from 0 to below `scale`.
pub(super) fn scaled(sensor_hash: u64, scale: u64) -> u64 {
    // The upper half of the hash selects the shard.
    ((u128::from(sensor_hash as u32) * u128::from(scale)) >> 32) as u64
}

/// The ring; see the module.
#[derive(Debug)]
pub struct Turns<T> {
    /// The items at each position that has any.
    ring: BTreeMap<usize, Vec<T>>,
    hand: usize,
    /// How far the hand has moved towards the next position: 0 to 1.
    towards_next: f64,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns {
            ring: BTreeMap::new(),
            hand: 0,
            towards_next: 0.0,
        }
    }
}

impl<T> Turns<T> {
    /// Adds an item. Its turn comes when the hand next reaches the position of this hash, after one
    /// round at the latest.
    pub fn push(&mut self, sensor_hash: u64, item: T) {
        let position = scaled(sensor_hash, POSITIONS as u64) as usize;
        self.ring.entry(position).or_default().push(item);
    }

    /// The time until the hand reaches the position of this hash, if a round takes `round_ms`.
    pub fn until_ms(&self, sensor_hash: u64, round_ms: u64) -> u64 {
        let position = scaled(sensor_hash, POSITIONS as u64) as usize;
        // At the hand itself: after a whole round.
        let positions = (position + POSITIONS - self.hand - 1) % POSITIONS + 1;
        let rest = (positions as f64 - self.towards_next) / POSITIONS as f64;
        (rest * round_ms as f64).ceil() as u64
    }

    /// Moves the hand by the time that has passed, and returns the items that it has reached. A
    /// round takes `round_ms`.
    pub fn advance(&mut self, elapsed_ms: u64, round_ms: u64) -> Vec<T> {
        let moved =
            elapsed_ms as f64 * POSITIONS as f64 / round_ms.max(1) as f64 + self.towards_next;
        self.towards_next = moved.fract();
        // Beyond one round there is nothing left.
        let end = self.hand + (moved as usize).min(POSITIONS);
        let mut reached = self.take(self.hand + 1..end.min(POSITIONS - 1) + 1);
        if end >= POSITIONS {
            reached.append(&mut self.take(0..end - POSITIONS + 1));
        }
        self.hand = end % POSITIONS;
        reached
    }

    /// Moves the hand to the next position that has items, and returns these; `None` if there are
    /// no items.
    pub(crate) fn pop_next(&mut self) -> Option<Vec<T>> {
        let (&next, _) = self
            .ring
            .range(self.hand + 1..)
            .chain(self.ring.range(..=self.hand))
            .next()?;
        self.hand = next;
        self.ring.remove(&next)
    }

    fn take(&mut self, positions: Range<usize>) -> Vec<T> {
        let mut items = vec![];
        while let Some((&position, _)) = self.ring.range(positions.clone()).next() {
            items.append(&mut self.ring.remove(&position).unwrap_or_default());
        }
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(i: u64) -> u64 {
        (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    #[test]
    fn every_item_is_reached_within_one_round_and_in_the_same_order_in_each() {
        let mut turns = Turns::default();
        let mut orders = vec![];
        for _ in 0..3 {
            (0..10_000).for_each(|i| turns.push(hash(i), i));
            let mut order = vec![];
            for _ in 0..1000 {
                let reached = turns.advance(100, 100_000);
                assert!(reached.len() < 60, "{} together", reached.len());
                order.extend(reached);
            }
            assert_eq!(order.len(), 10_000);
            orders.push(order);
        }
        assert_eq!(orders[0], orders[1]);
        assert_eq!(orders[1], orders[2]);
    }

    #[test]
    fn half_a_million_items_are_reached_some_thousand_at_a_time() {
        let mut turns = Turns::default();
        (0..500_000).for_each(|i| turns.push(hash(i), i));
        let mut reached = vec![];
        (0..15_000).for_each(|_| reached.push(turns.advance(20, 300_000).len()));
        reached.retain(|n| *n > 0);
        assert_eq!(reached.iter().sum::<usize>(), 500_000);
        assert!(
            reached.iter().all(|n| (1_500..2_500).contains(n)),
            "{reached:?}"
        );
    }

    #[test]
    fn the_time_until_a_turn_is_known_before() {
        let mut turns = Turns::default();
        let round_ms = 300_000;
        turns.advance(12_345, round_ms);
        let expected: Vec<u64> = (0..1000)
            .map(|i| turns.until_ms(hash(i), round_ms))
            .collect();
        (0..1000).for_each(|i| turns.push(hash(i), i as usize));
        let mut reached = 0;
        for now_ms in (100..=round_ms).step_by(100) {
            for i in turns.advance(100, round_ms) {
                assert!(
                    (now_ms - 100..=now_ms).contains(&expected[i]),
                    "{} was expected, {now_ms} is now",
                    expected[i]
                );
                reached += 1;
            }
        }
        assert_eq!(reached, 1000);
    }

    #[test]
    fn the_hand_keeps_its_place_when_the_round_changes_or_memory_is_short() {
        let mut turns = Turns::default();
        (0..1000).for_each(|i| turns.push(hash(i), i));
        let mut order = turns.advance(30_000, 100_000);
        order.extend(turns.advance(5_000, 10_000));
        while let Some(items) = turns.pop_next() {
            order.extend(items);
        }
        let mut once = Turns::default();
        (0..1000).for_each(|i| once.push(hash(i), i));
        assert_eq!(order, once.advance(1, 1));
        assert_eq!(turns.pop_next(), None);
        assert!(turns.advance(u64::MAX, 1).is_empty());
    }

    #[test]
    fn the_hand_reaches_each_position_once_from_any_place_and_with_any_step() {
        for (first, step) in [(0, 1), (0, 255), (255, 1), (255, 256), (17, 100), (1, 500)] {
            let mut turns = Turns::default();
            turns.advance(first, POSITIONS as u64);
            let position = |i: u64| i << (32 - POSITIONS.ilog2());
            (0..POSITIONS as u64).for_each(|i| turns.push(position(i), i));
            let mut order = vec![];
            while order.len() < POSITIONS {
                let reached = turns.advance(step, POSITIONS as u64);
                assert!(!reached.is_empty() && reached.len() as u64 <= step);
                order.extend(reached);
            }
            let expected = (1..=POSITIONS as u64).map(|i| (first + i) % POSITIONS as u64);
            assert!(order.into_iter().eq(expected), "from {first} by {step}");
        }
    }
}
