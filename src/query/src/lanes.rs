//! Which query works next. Pure.
//!
//! A query is *light* or *heavy*, by its [cost](super::cost). Light ones have separate places, so they
//! never wait for a heavy one. A heavy query needs one of `promql.queries_max` places, which
//! limit memory, and works in chunks: for each it needs a turn. Few turns are given at a time, so that
//! heavy queries leave processor and MongoDB to others.
//!
//! The life of a query: it [arrives](Lanes::arrive) as a light one and works as soon as a place is
//! free. Once its cost is known, it may [become heavy](Lanes::becomes_heavy): it gives its place back
//! and waits for one of the heavy lane. Between two chunks it [gives way](Lanes::gives_way): it keeps
//! its place and waits for its next turn. It [leaves](Lanes::leave) when it ends, in whatever state.
//!
//! Invariants:
//! - A light query waits for light ones only.
//! - A heavy query takes no turn while a light one works or waits that arrived before it began to
//!   wait. Later light ones do not hold it up, so it makes progress under any load.
//! - Clients take turns: the client whose last turn is longest ago is next. A new one is as one
//!   whose last turn was when its query arrived.
//! - Among light queries, the client that has the fewest at work is next.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// How many queries of each kind may do something at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaneLimits {
    /// Light queries at work.
    pub(crate) light_max: usize,
    /// Heavy queries with a place.
    pub(crate) heavy_max: usize,
    /// Heavy queries at work.
    pub(crate) turns_max: usize,
}

/// Names a query.
pub(crate) type Ticket = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Without a place.
    Waiting,
    /// Heavy, with a place, between two chunks.
    Paused,
    Working,
}

#[derive(Debug)]
struct Entry<C> {
    client: C,
    is_heavy: bool,
    state: State,
    /// The moment from which on it waits.
    since: u64,
}

/// The queries of all clients.
#[derive(Debug)]
pub(crate) struct Lanes<C> {
    limits: LaneLimits,
    queries: BTreeMap<Ticket, Entry<C>>,
    /// The moment of each client's last turn in the heavy lane; only clients with queries.
    turns: HashMap<C, u64>,
    /// Counts moments; the next ticket.
    moment: u64,
}

impl<C: Clone + Eq + Hash> Lanes<C> {
    pub(crate) fn new(limits: LaneLimits) -> Lanes<C> {
        Lanes {
            limits,
            queries: BTreeMap::new(),
            turns: HashMap::new(),
            moment: 0,
        }
    }

    fn now(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// A query arrives, as a light one.
    pub(crate) fn arrive(&mut self, client: C) -> Ticket {
        let ticket = self.now();
        let entry = Entry {
            client,
            is_heavy: false,
            state: State::Waiting,
            since: ticket,
        };
        self.queries.insert(ticket, entry);
        ticket
    }

    /// The query is expensive. It waits as if it had always been.
    pub(crate) fn becomes_heavy(&mut self, ticket: Ticket) {
        if let Some(query) = self.queries.get_mut(&ticket) {
            (query.is_heavy, query.state, query.since) = (true, State::Waiting, ticket);
        }
    }

    /// A heavy query has done a chunk.
    pub(crate) fn gives_way(&mut self, ticket: Ticket) {
        let now = self.now();
        if let Some(query) = self.queries.get_mut(&ticket) {
            (query.state, query.since) = (State::Paused, now);
        }
    }

    /// The query has ended.
    pub(crate) fn leave(&mut self, ticket: Ticket) {
        if let Some(Entry { client, .. }) = self.queries.remove(&ticket)
            && !self.queries.values().any(|other| other.client == client)
        {
            self.turns.remove(&client);
        }
    }

    /// A query that may work now. Ask again until there is none.
    pub(crate) fn next(&mut self) -> Option<Ticket> {
        let ticket = self.next_light().or_else(|| self.next_heavy())?;
        let now = self.now();
        let query = self.queries.get_mut(&ticket)?;
        query.state = State::Working;
        if query.is_heavy {
            self.turns.insert(query.client.clone(), now);
        }
        Some(ticket)
    }

    fn of_lane(&self, is_heavy: bool) -> impl Iterator<Item = (Ticket, &Entry<C>)> {
        let all = self.queries.iter().map(|(ticket, query)| (*ticket, query));
        all.filter(move |(_, query)| query.is_heavy == is_heavy)
    }

    fn next_light(&self) -> Option<Ticket> {
        let is_working = |query: &Entry<C>| query.state == State::Working;
        let mut at_work: HashMap<&C, usize> = HashMap::new();
        for (_, query) in self.of_lane(false).filter(|(_, query)| is_working(query)) {
            *at_work.entry(&query.client).or_default() += 1;
        }
        if at_work.values().sum::<usize>() >= self.limits.light_max {
            return None;
        }
        let waiting = self.of_lane(false).filter(|(_, query)| !is_working(query));
        let next = waiting.min_by_key(|(ticket, query)| {
            (at_work.get(&query.client).copied().unwrap_or(0), *ticket)
        });
        next.map(|(ticket, _)| ticket)
    }

    fn next_heavy(&self) -> Option<Ticket> {
        let count = |is: fn(State) -> bool| {
            let all = self.of_lane(true);
            all.filter(|(_, query)| is(query.state)).count()
        };
        if count(|state| state == State::Working) >= self.limits.turns_max {
            return None;
        }
        let is_place_free = count(|state| state != State::Waiting) < self.limits.heavy_max;
        let first_light = self.of_lane(false).map(|(ticket, _)| ticket).min();
        let may_work = |query: &Entry<C>| {
            (query.state == State::Paused || query.state == State::Waiting && is_place_free)
                && first_light.is_none_or(|light| light > query.since)
        };
        let next = self.of_lane(true).filter(|(_, query)| may_work(query));
        let next = next.min_by_key(|(ticket, query)| {
            let turn = self.turns.get(&query.client).copied();
            (turn.unwrap_or(*ticket), query.since)
        });
        next.map(|(ticket, _)| ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LaneLimits = LaneLimits {
        light_max: 2,
        heavy_max: 3,
        turns_max: 1,
    };

    /// All that may work now.
    fn all(lanes: &mut Lanes<char>) -> Vec<Ticket> {
        std::iter::from_fn(|| lanes.next()).collect()
    }

    /// A heavy query that waits for its first turn.
    fn heavy(lanes: &mut Lanes<char>, client: char) -> Ticket {
        let ticket = lanes.arrive(client);
        lanes.becomes_heavy(ticket);
        ticket
    }

    #[test]
    fn a_light_query_waits_for_no_heavy_one() {
        let mut lanes = Lanes::new(LIMITS);
        let first: Vec<Ticket> = (0..5).map(|_| heavy(&mut lanes, 'a')).collect();
        assert_eq!(all(&mut lanes), [first[0]], "one turn at a time");
        let light = lanes.arrive('a');
        assert_eq!(all(&mut lanes), [light]);
    }

    #[test]
    fn a_heavy_query_gives_way_to_light_ones_that_were_there_before_and_to_no_others() {
        let mut lanes = Lanes::new(LIMITS);
        let heavy = heavy(&mut lanes, 'a');
        assert_eq!(all(&mut lanes), [heavy]);
        let before = lanes.arrive('b');
        assert_eq!(all(&mut lanes), [before]);
        lanes.gives_way(heavy);
        assert_eq!(all(&mut lanes), [] as [Ticket; 0], "a light one works");
        let after = lanes.arrive('b');
        assert_eq!(all(&mut lanes), [after]);
        lanes.leave(before);
        assert_eq!(all(&mut lanes), [heavy], "the later one holds nothing up");
    }

    #[test]
    fn clients_take_turns_with_chunks_and_with_places() {
        let mut lanes = Lanes::new(LIMITS);
        // `a` fills all places and has more; then `b` comes.
        let a: Vec<Ticket> = (0..5).map(|_| heavy(&mut lanes, 'a')).collect();
        for ticket in &a[..3] {
            assert_eq!(all(&mut lanes), [*ticket]);
            lanes.gives_way(*ticket);
        }
        let b = heavy(&mut lanes, 'b');
        // All places are taken, so `a` goes on.
        let works = all(&mut lanes);
        assert_eq!(works, [a[0]]);
        lanes.leave(a[0]);
        assert_eq!(all(&mut lanes), [b], "the free place is that of `b`");
        let mut order = vec![];
        let mut works = b;
        for _ in 0..6 {
            lanes.gives_way(works);
            works = all(&mut lanes)[0];
            order.push(if works == b { 'b' } else { 'a' });
        }
        assert_eq!(order, ['a', 'b', 'a', 'b', 'a', 'b']);
    }

    #[test]
    fn light_places_go_to_the_client_with_the_fewest() {
        let mut lanes = Lanes::new(LIMITS);
        let a: Vec<Ticket> = (0..4).map(|_| lanes.arrive('a')).collect();
        assert_eq!(all(&mut lanes), a[..2]);
        let b = lanes.arrive('b');
        assert_eq!(all(&mut lanes), [] as [Ticket; 0]);
        lanes.leave(a[0]);
        assert_eq!(all(&mut lanes), [b]);
    }

    /// Random arrivals, chunks and ends: the limits and the order hold at every moment, and every
    /// query ends.
    #[test]
    fn whatever_happens_every_query_ends_and_no_limit_is_exceeded() {
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut lanes = Lanes::new(LaneLimits {
                light_max: rng.usize(1..4),
                heavy_max: rng.usize(1..4),
                turns_max: rng.usize(1..3),
            });
            let mut working: Vec<Ticket> = vec![];
            // Chunks that are left of each; 0 for a light one.
            let mut left: HashMap<Ticket, u32> = HashMap::new();
            let mut to_come = 60;
            while to_come > 0 || !left.is_empty() {
                if to_come > 0 && rng.bool() {
                    to_come -= 1;
                    let ticket = lanes.arrive(rng.char('a'..='c'));
                    left.insert(ticket, rng.u32(0..6).saturating_sub(2));
                }
                if !working.is_empty() && rng.bool() {
                    let ticket = working.swap_remove(rng.usize(0..working.len()));
                    let is_heavy = lanes.queries[&ticket].is_heavy;
                    match left[&ticket] {
                        0 => {
                            left.remove(&ticket);
                            lanes.leave(ticket);
                        }
                        _ if !is_heavy => lanes.becomes_heavy(ticket),
                        n => {
                            left.insert(ticket, n - 1);
                            lanes.gives_way(ticket);
                        }
                    }
                }
                if rng.u32(0..20) == 0
                    && let Some(ticket) = left.keys().min().copied()
                {
                    // Its client goes away.
                    left.remove(&ticket);
                    working.retain(|other| *other != ticket);
                    lanes.leave(ticket);
                }
                working.extend(all(&mut lanes));
                let count = |is_heavy, is: fn(State) -> bool| {
                    let of_lane = lanes.of_lane(is_heavy);
                    of_lane.filter(|(_, query)| is(query.state)).count()
                };
                let limits = lanes.limits;
                let is_working = |state| state == State::Working;
                assert!(count(false, is_working) <= limits.light_max, "seed {seed}");
                assert!(count(true, is_working) <= limits.turns_max, "seed {seed}");
                let placed = count(true, |state| state != State::Waiting);
                assert!(placed <= limits.heavy_max, "seed {seed}");
                assert!(
                    !working.is_empty() || left.is_empty(),
                    "seed {seed}: nothing works although something waits"
                );
            }
            assert!(lanes.turns.is_empty() && lanes.queries.is_empty());
        }
    }
}
