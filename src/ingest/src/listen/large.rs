//! The budget of the large packets that are arriving, and those that wait for room in it.
//!
//! Senders share it as [`Shares`] says. The packets of one sender get room in the order in which
//! they asked, so that small ones do not overtake a larger one, and senders take turns. A sender
//! that holds room and may not have more yet keeps no other sender waiting. If one that holds
//! nothing has no room, there is too little for its packet, and those behind it wait too: otherwise
//! smaller packets of many senders could overtake it for ever.
//!
//! Room is given under the lock, not taken by a task that wakes up. So no wake-up is lost, and none
//! is in vain.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use net::shares::{Owner, Shares};

/// The budget.
pub(super) struct LargeBudget {
    bytes_max: u64,
    state: Mutex<State>,
}

struct State {
    shares: Shares,
    /// The packets that wait, by sender; no queue is empty.
    waiting: HashMap<Owner, VecDeque<Waiter>>,
    /// The senders in `waiting`, the next one first.
    turns: VecDeque<Owner>,
    /// Of the next packet that has to wait.
    ticket: u64,
}

struct Waiter {
    ticket: u64,
    bytes: u64,
    given: oneshot::Sender<()>,
}

/// Room for a packet, or its place among those that wait for room. Given back when dropped.
pub(super) struct Room {
    budget: Arc<LargeBudget>,
    owner: Owner,
    bytes: u64,
    /// Its ticket while it waits.
    waits: Option<(u64, oneshot::Receiver<()>)>,
}

impl LargeBudget {
    pub(super) fn new(bytes_max: usize) -> Arc<LargeBudget> {
        let bytes_max = bytes_max as u64;
        let state = State {
            shares: Shares::new(bytes_max),
            waiting: HashMap::new(),
            turns: VecDeque::new(),
            ticket: 0,
        };
        Arc::new(LargeBudget {
            bytes_max,
            state: Mutex::new(state),
        })
    }

    /// Asks for room for a packet. One that is larger than the budget takes all of it.
    pub(super) fn ask(self: &Arc<LargeBudget>, owner: &Owner, bytes: usize) -> Room {
        let bytes = (bytes as u64).min(self.bytes_max);
        Room {
            budget: self.clone(),
            owner: owner.clone(),
            bytes,
            waits: self.lock(|state| state.ask(owner, bytes)),
        }
    }

    fn lock<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.lock(|state| state.shares.free()) as usize
    }
}

impl State {
    /// Takes room, or a ticket to wait for it.
    fn ask(&mut self, owner: &Owner, bytes: u64) -> Option<(u64, oneshot::Receiver<()>)> {
        if self.turns.is_empty() && self.shares.take(owner, 0, bytes) {
            return None;
        }
        let ticket = self.ticket;
        self.ticket += 1;
        let (given, receiver) = oneshot::channel();
        let queue = self.waiting.entry(owner.clone()).or_default();
        if queue.is_empty() {
            self.turns.push_back(owner.clone());
        }
        queue.push_back(Waiter {
            ticket,
            bytes,
            given,
        });
        self.give();
        Some((ticket, receiver))
    }

    /// Gives room to the packets that may have it now.
    fn give(&mut self) {
        let mut passed = 0;
        while let Some(owner) = self.turns.get(passed) {
            let queue = self.waiting.get_mut(owner);
            let next = queue.as_ref().and_then(|queue| queue.front());
            let bytes = next.map_or(0, |waiter| waiter.bytes);
            if self.shares.take(owner, 0, bytes) {
                // Its receiver is there: a room that is dropped leaves the queue first.
                if let Some(waiter) = queue.and_then(VecDeque::pop_front) {
                    let _ = waiter.given.send(());
                }
                self.next_turn(passed);
            } else if self.shares.held(owner) == 0 {
                // What becomes free is for this one.
                return;
            } else {
                passed += 1;
            }
        }
    }

    /// Moves a sender behind the others, or removes it if none of its packets wait.
    fn next_turn(&mut self, index: usize) {
        let Some(owner) = self.turns.remove(index) else {
            return;
        };
        if self.waiting.get(&owner).is_none_or(VecDeque::is_empty) {
            self.waiting.remove(&owner);
        } else {
            self.turns.push_back(owner);
        }
    }

    /// Removes a packet that still waits; returns whether it did.
    fn leave(&mut self, owner: &Owner, ticket: u64) -> bool {
        let Some(queue) = self.waiting.get_mut(owner) else {
            return false;
        };
        let Ok(index) = queue.binary_search_by_key(&ticket, |waiter| waiter.ticket) else {
            return false;
        };
        queue.remove(index);
        if queue.is_empty() {
            self.waiting.remove(owner);
            self.turns.retain(|other| other != owner);
        }
        true
    }
}

impl Room {
    /// Whether it has been given.
    pub(super) fn is_given(&mut self) -> bool {
        if let Some((_, given)) = &mut self.waits {
            if given.try_recv().is_err() {
                return false;
            }
            self.waits = None;
        }
        true
    }

    /// Waits until it is given. It keeps its place if the wait is dropped.
    pub(super) async fn given(&mut self) {
        if let Some((_, given)) = &mut self.waits {
            // No error: the sender is in the queue until it sends.
            let _ = given.await;
            self.waits = None;
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.budget.lock(|state| {
            let ticket = self.waits.as_ref().map(|(ticket, _)| *ticket);
            if !ticket.is_some_and(|ticket| state.leave(&self.owner, ticket)) {
                state.shares.give_back(&self.owner, self.bytes);
            }
            // A smaller packet may have waited behind this one.
            state.give();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(id: usize) -> Owner {
        Owner::Token(id.to_string().into())
    }

    fn is_empty(budget: &LargeBudget) -> bool {
        budget.lock(|state| {
            state.waiting.is_empty()
                && state.turns.is_empty()
                && state.shares.free() == budget.bytes_max
        })
    }

    #[test]
    fn a_sender_with_its_share_keeps_only_itself_waiting() {
        let budget = LargeBudget::new(100);
        let [a, b] = [0, 1].map(owner);
        let mut rooms: Vec<Room> = (0..20).map(|_| budget.ask(&a, 10)).collect();
        let given = rooms
            .iter_mut()
            .map(Room::is_given)
            .filter(|is_given| *is_given)
            .count();
        assert_eq!((given, budget.free()), (5, 50));
        let mut other = budget.ask(&b, 40);
        assert!(other.is_given());
        assert!(!budget.ask(&a, 1).is_given(), "not past its own packets");
        drop(other);
        rooms.remove(0);
        assert!(
            rooms[4].is_given() && !rooms[5].is_given(),
            "the next one, and only that"
        );
        drop(rooms);
        assert!(is_empty(&budget));
    }

    #[test]
    fn small_packets_do_not_overtake_a_larger_one() {
        let budget = LargeBudget::new(100);
        let [a, b] = [0, 1].map(owner);
        let half = budget.ask(&a, 50);
        let mut large = budget.ask(&a, 100);
        let mut small = budget.ask(&a, 1);
        assert!(!large.is_given() && !small.is_given());
        // It holds something, so the other one passes.
        assert!(budget.ask(&b, 50).is_given());
        drop(half);
        assert!(large.is_given() && !small.is_given());
        let mut of_b = budget.ask(&b, 60);
        drop(large);
        assert!(small.is_given() && of_b.is_given());
        // Now it holds nothing and lacks room, so that nothing passes it.
        drop(small);
        let mut large = budget.ask(&a, 50);
        let mut of_c = budget.ask(&owner(2), 10);
        assert!(!large.is_given() && !of_c.is_given());
        drop(of_b);
        assert!(large.is_given() && of_c.is_given());
        drop((large, of_c));
        assert!(is_empty(&budget));
    }

    #[test]
    fn a_packet_that_is_given_up_lets_those_behind_it_pass() {
        let budget = LargeBudget::new(100);
        let a = owner(0);
        let first = budget.ask(&a, 20);
        let large = budget.ask(&a, 100);
        let mut small = budget.ask(&a, 10);
        assert!(!small.is_given());
        drop(large);
        assert!(small.is_given());
        // Given, but not noticed yet.
        let unnoticed = budget.ask(&a, 100);
        drop((first, small));
        assert_eq!(budget.free(), 0);
        drop(unnoticed);
        assert!(is_empty(&budget));
    }

    #[tokio::test]
    async fn a_wait_that_is_dropped_keeps_its_place() {
        let budget = LargeBudget::new(100);
        let a = owner(0);
        let all = budget.ask(&a, 1000);
        assert_eq!(budget.free(), 0, "one that is larger takes all");
        let mut first = budget.ask(&a, 60);
        let mut second = budget.ask(&a, 60);
        for room in [&mut second, &mut first] {
            tokio::select! {
                biased;
                () = room.given() => panic!("there is no room"),
                () = tokio::task::yield_now() => {}
            }
        }
        drop(all);
        first.given().await;
        assert!(!second.is_given());
        drop(first);
        second.given().await;
        drop(second);
        assert!(is_empty(&budget));
    }

    /// Random packets of several senders. Whenever something waits, it is because its sender holds
    /// something, or because there is too little room; and every packet gets room in the end.
    #[test]
    fn every_packet_gets_room() {
        for seed in 0..100 {
            let mut random = fastrand::Rng::with_seed(seed);
            let budget = LargeBudget::new(random.usize(10..1000));
            let mut rooms: Vec<Room> = Vec::new();
            for _ in 0..500 {
                if rooms.is_empty() || random.u8(0..5) < 3 {
                    let part = random.usize(1..9);
                    let bytes = random.usize(1..=budget.bytes_max as usize / part);
                    rooms.push(budget.ask(&owner(random.usize(0..6)), bytes));
                } else {
                    drop(rooms.swap_remove(random.usize(..rooms.len())));
                }
                budget.lock(|state| {
                    let is_known = state.turns.iter().all(|o| state.waiting.contains_key(o));
                    assert!(is_known && state.turns.len() == state.waiting.len());
                    let next = state.turns.iter().find(|o| state.shares.held(o) == 0);
                    if let Some(waiter) = next.and_then(|o| state.waiting[o].front()) {
                        assert!(waiter.bytes > state.shares.free(), "seed {seed}");
                    }
                    let throttled = state.turns.iter().take_while(|o| state.shares.held(o) > 0);
                    for owner in throttled {
                        let held = state.shares.held(owner);
                        let bytes = state.waiting[owner][0].bytes;
                        let free = state.shares.free();
                        assert!(
                            free < bytes || held + bytes > free - bytes,
                            "seed {seed}: room that is not given"
                        );
                    }
                });
            }
            // What has room ends, until all have had room.
            while !rooms.is_empty() {
                let before = rooms.len();
                rooms.retain_mut(|room| !room.is_given());
                assert!(
                    rooms.len() < before,
                    "seed {seed}: {before} packets wait for ever"
                );
            }
            assert!(is_empty(&budget), "seed {seed}");
        }
    }
}
