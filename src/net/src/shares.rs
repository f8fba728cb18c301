//! A budget of bytes that senders share, so that none of them can use up all of it. Pure.
//!
//! A fixed share per sender would waste most of the budget, because few of many senders need it at
//! the same time. Instead an owner may take more only if it then holds at most as much as remains
//! free: the dynamic thresholds of switches with shared memory (Choudhury and Hahne, 1998). So one
//! owner holds at most half of the budget, and two that always want more hold a third each after a
//! while. Nothing is taken away from an owner, so each one that comes later leaves at least half of
//! what was free: after `n` owners there is still room for a request of `1 / 2^n` of the budget. For
//! the same reason an owner that is alone gets half only: another one may come at any time.
//!
//! The only request of an owner may take whatever is free. Otherwise a large one could have no room
//! in a budget that was chosen for a few of them.

use core::net::IpAddr;
use std::collections::HashMap;
use std::sync::Arc;

use super::connections::address_limits::AddressKey;
use crate::access::Grant;

/// The sender that a part of a budget is counted for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The id of its token.
    Token(Arc<str>),
    /// Its address, without tokens.
    Address(AddressKey),
}

impl Owner {
    /// Without a grant, the address is the owner.
    pub fn identify(grant: Option<&Grant>, ip: IpAddr) -> Owner {
        match grant {
            Some(grant) => Owner::Token(grant.id.clone()),
            None => Owner::Address(AddressKey::new(ip)),
        }
    }
}

/// As a text that no other owner has.
impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::Token(id) => write!(f, "token {id}"),
            Owner::Address(AddressKey::V4(ip)) => write!(f, "address {ip}"),
            Owner::Address(AddressKey::V6(network)) => write!(f, "network {network:016x}"),
        }
    }
}

/// The budget and who holds how much of it.
#[derive(Debug)]
pub struct Shares {
    free: u64,
    /// Only owners that hold something.
    held: HashMap<Owner, u64>,
}

impl Shares {
    /// `bytes_max`: the whole budget.
    pub fn new(bytes_max: u64) -> Shares {
        Shares {
            free: bytes_max,
            held: HashMap::new(),
        }
    }

    /// How much an owner holds.
    pub fn held(&self, owner: &Owner) -> u64 {
        self.held.get(owner).copied().unwrap_or_default()
    }

    /// Takes `more` bytes for a request, if its owner may have them; returns whether it does. `part`:
    /// what the request itself holds already.
    pub fn take(&mut self, owner: &Owner, part: u64, more: u64) -> bool {
        let Some(free) = self.free.checked_sub(more) else {
            return false;
        };
        let held = self.held(owner);
        let is_only = held <= part;
        if !is_only && held + more > free {
            return false;
        }
        self.free = free;
        if let Some(held) = self.held.get_mut(owner) {
            *held += more;
        } else if more > 0 {
            self.held.insert(owner.clone(), more);
        }
        true
    }

    /// Returns bytes that the owner has taken.
    pub fn give_back(&mut self, owner: &Owner, bytes: u64) {
        let Some(held) = self.held.get_mut(owner) else {
            return;
        };
        let bytes = bytes.min(*held);
        self.free += bytes;
        *held -= bytes;
        if *held == 0 {
            self.held.remove(owner);
        }
    }

    /// Bytes that no owner holds.
    pub fn free(&self) -> u64 {
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(id: usize) -> Owner {
        Owner::Token(id.to_string().into())
    }

    #[test]
    fn one_owner_has_half_and_its_only_request_all() {
        let mut shares = Shares::new(100);
        let [a, b] = [0, 1].map(owner);
        assert!(!shares.take(&a, 0, 101));
        assert!(shares.take(&a, 0, 20) && shares.take(&a, 20, 80));
        assert!(!shares.take(&b, 0, 1), "all is taken");
        shares.give_back(&a, 100);
        while shares.take(&a, 0, 1) {}
        assert_eq!((shares.held(&a), shares.free()), (50, 50));
        assert!(!shares.take(&a, 1, 1), "neither does one of several grow");
        assert!(shares.take(&b, 0, 50));
        shares.give_back(&a, 50);
        shares.give_back(&b, 50);
        assert_eq!((shares.free(), shares.held.len()), (100, 0));
    }

    #[test]
    fn owners_that_always_want_more_have_the_same_after_a_while() {
        for owners in 1..6 {
            let mut shares = Shares::new(6000);
            // The first one has its half before the others come.
            while shares.take(&owner(0), 0, 1) {}
            for round in 0..20_000 {
                let owner = owner(round % owners);
                shares.give_back(&owner, 1);
                while shares.take(&owner, 0, 1) {}
            }
            let each = 6000 / (owners as u64 + 1);
            for id in 0..owners {
                let held = shares.held(&owner(id));
                assert!(
                    held.abs_diff(each) <= 10,
                    "{held} of {each}, {owners} owners"
                );
            }
        }
    }

    #[test]
    fn an_address_is_an_owner_only_without_a_token() {
        let of = |id: Option<&str>, ip: &str| {
            Owner::identify(id.map(Grant::unlimited).as_ref(), ip.parse().unwrap())
        };
        assert_eq!(of(Some("a"), "192.0.2.1"), of(Some("a"), "192.0.2.2"));
        assert_ne!(of(Some("a"), "192.0.2.1"), of(Some("b"), "192.0.2.1"));
        assert_ne!(of(None, "192.0.2.1"), of(None, "192.0.2.2"));
        assert_eq!(of(None, "192.0.2.1"), of(None, "::ffff:192.0.2.1"));
        assert_eq!(of(None, "2001:db8::1"), of(None, "2001:db8::ffff:1"));
        assert_ne!(of(None, "2001:db8::1"), of(None, "2001:db8:0:1::1"));
    }

    /// Random requests of several owners that begin, grow and end. The budget and every owner's
    /// part are as in the list of requests, and one more owner always has room for a request of the
    /// size that the module promises.
    #[test]
    fn a_sender_that_holds_nothing_has_room_whatever_the_others_do() {
        for seed in 0..100 {
            let mut random = fastrand::Rng::with_seed(seed);
            let budget = random.u64(1000..100_000);
            let owners = random.usize(1..6);
            let request_max = budget >> owners;
            let mut shares = Shares::new(budget);
            let mut requests: Vec<(usize, u64)> = Vec::new();
            for _ in 0..1000 {
                let bytes = random.u64(0..=request_max);
                match random.u8(0..4) {
                    0 | 1 => {
                        let id = random.usize(..owners);
                        if shares.take(&owner(id), 0, bytes) {
                            requests.push((id, bytes));
                        }
                    }
                    2 if !requests.is_empty() => {
                        let i = random.usize(..requests.len());
                        let (id, part) = requests[i];
                        let more = bytes.min(request_max - part);
                        if shares.take(&owner(id), part, more) {
                            requests[i].1 += more;
                        }
                    }
                    _ if random.u8(0..3) == 0 && !requests.is_empty() => {
                        let i = random.usize(..requests.len());
                        let (id, part) = requests.swap_remove(i);
                        shares.give_back(&owner(id), part);
                    }
                    _ => {}
                }
                let of = |id: usize| -> u64 {
                    let parts = requests.iter().filter(|request| request.0 == id);
                    parts.map(|request| request.1).sum()
                };
                let all: u64 = (0..owners).map(of).sum();
                assert_eq!(all + shares.free(), budget, "seed {seed}");
                for id in 0..owners {
                    let sum = of(id);
                    assert_eq!(shares.held(&owner(id)), sum, "seed {seed}");
                    assert!(sum <= request_max.max(budget / 2), "seed {seed}");
                }
                let new = owner(owners);
                assert!(shares.take(&new, 0, request_max), "seed {seed}: no room");
                shares.give_back(&new, request_max);
            }
            for (id, part) in requests {
                shares.give_back(&owner(id), part);
            }
            assert_eq!(
                (shares.free(), shares.held.len()),
                (budget, 0),
                "seed {seed}"
            );
        }
    }
}
