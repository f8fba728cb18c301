//! The open connections of a port: how many there may be, in total and per address, and which one
//! makes room for another. All three ports use this.
//!
//! When a port is full, the connection that has waited longest for a request is cut, so that idle
//! connections, however many, keep no others out. The same applies within an address that has all
//! of its connections, and to the connections of a paused address that have shown no valid token
//! ([`address_limits`]). A connection with a request in progress is never cut; if all have one, the
//! new connection is refused. For MQTT, a device is in progress from its CONNECT on. On the admin
//! port, a request is in progress only once its body has arrived.
//!
//! A connection that is cut gives up its place immediately, and notices a moment later. If a
//! request was complete before that, it keeps its place, and the port has one connection more than
//! its limit until it ends.

pub(crate) mod address_limits;
pub(crate) mod phase;
mod senders;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slab::Slab;

pub use self::address_limits::Refusal;
use self::address_limits::{AddressKey, AddressLimits};
use self::phase::{Doing, Phase};
use crate::access::Grant;
use config::{Connections, Proxies};
use model::Clock;

/// A port with more connections than this is searched for idle ones at most once in
/// [`SEARCH_EVERY_MS`] if that is repeated for each new connection: for an address that has all of
/// its connections, or if there were no idle ones.
const SEARCHED_FREELY: usize = 256;
const SEARCH_EVERY_MS: u64 = 10;
/// A search finds this part of the connections, so that the next new connections need none.
const FOUND_PART: usize = 16;
/// How long a connection of a paused address may wait before another one of the address takes its
/// place. Longer than most handshakes: otherwise many devices that connect together would cut each
/// other, and none of them would get as far as its token.
const PROOF_MS: u64 = 1000;

/// The open connections of a port.
#[derive(Clone)]
pub struct OpenConnections(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    settings: Connections,
    proxies: Arc<Proxies>,
    addresses: AddressLimits,
    list: Slab<Arc<Entry>>,
    /// Connections with a place: those in `list` that are not cut.
    placed: usize,
    idle: IdleConnections,
}

/// The connections that may be cut for a new one if they are idle.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Candidates {
    #[default]
    All,
    /// Those of an address.
    Address(AddressKey),
    /// Those of an address that have shown no valid token, and had [`PROOF_MS`] for it.
    Unproven(AddressKey),
}

impl Candidates {
    /// Whether a connection that is idle since then is one of them.
    fn include(self, entry: &Entry, since_ms: u64, now_ms: u64) -> bool {
        let is_of = |address| entry.is_counted && AddressKey::new(entry.peer.ip()) == address;
        match self {
            Candidates::All => true,
            Candidates::Address(address) => is_of(address),
            Candidates::Unproven(address) => {
                is_of(address)
                    && !entry.is_proven.load(Ordering::Relaxed)
                    && since_ms + PROOF_MS <= now_ms
            }
        }
    }
}

/// The idle connections of the last search, the longest idle first, and what was searched.
#[derive(Default)]
struct IdleConnections {
    of: Candidates,
    found: VecDeque<(u64, usize)>,
    searched_ms: u64,
    /// The search found none.
    is_none: bool,
}

struct Entry {
    peer: SocketAddr,
    /// Whether the limits of an address apply: not to a trusted proxy, whose connections are those
    /// of many.
    is_counted: bool,
    phase: Phase,
    /// Changed under the lock.
    is_proven: AtomicBool,
    sender: Mutex<Option<Arc<Grant>>>,
}

/// The place of a connection, until it is dropped.
pub struct Place {
    of: OpenConnections,
    entry: Arc<Entry>,
    key: usize,
}

/// How long an address is still paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// The time until it ends.
    pub left: Duration,
    /// It begins with this failure.
    pub is_new: bool,
}

impl OpenConnections {
    /// No connection is open yet. The limits of an address do not apply to those of this machine.
    pub fn new(settings: Connections, proxies: Proxies, clock: Arc<dyn Clock>) -> OpenConnections {
        let state = State {
            settings,
            proxies: Arc::new(proxies),
            // A proxy may run on this machine.
            addresses: AddressLimits::new(config::is_loopback),
            list: Slab::new(),
            placed: 0,
            idle: IdleConnections::default(),
        };
        OpenConnections(Arc::new(Inner {
            clock,
            state: Mutex::new(state),
        }))
    }

    /// Applies from the next connection and the next failure on.
    pub fn put(&self, settings: Connections, proxies: Proxies) {
        self.lock(|state| (state.settings, state.proxies) = (settings, Arc::new(proxies)));
    }

    /// The proxies in front of the port.
    pub fn proxies(&self) -> Arc<Proxies> {
        self.lock(|state| state.proxies.clone())
    }

    /// An authentication has failed that came through a trusted proxy. Like [`Place::failed`], for
    /// this address.
    pub(crate) fn failed_behind_proxy(&self, ip: IpAddr) -> Option<Pause> {
        let now_ms = self.now_ms();
        let failed = self.lock(|state| {
            state
                .addresses
                .failed_unconnected(ip, &state.settings, now_ms)
        });
        failed.map(|(left_ms, is_new)| Pause {
            left: Duration::from_millis(left_ms),
            is_new,
        })
    }

    /// Gives a new connection a place. It waits for its first request.
    pub fn enter(&self, peer: SocketAddr) -> Result<Place, Refusal> {
        let now_ms = self.now_ms();
        let (entry, key) = self.lock(|state| {
            let is_counted = !state.proxies.trusts(peer.ip());
            let phase = Phase::waiting(now_ms);
            let is_proven = AtomicBool::new(false);
            let entry = Arc::new(Entry {
                peer,
                is_counted,
                phase,
                is_proven,
                sender: Mutex::default(),
            });
            state.make_room(&entry, now_ms)?;
            state.entered(&entry);
            Ok((entry.clone(), state.list.insert(entry)))
        })?;
        Ok(Place {
            of: self.clone(),
            entry,
            key,
        })
    }

    fn now_ms(&self) -> u64 {
        self.0.clock.now().mono_ms
    }

    // Nothing in between can panic, so the state is valid.
    fn lock<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies the limits to this machine's addresses too, for tests.
    pub fn exempt_none(&self) {
        self.lock(|state| state.addresses.exempt_none());
    }
}

impl State {
    /// Makes room for a connection of an address.
    fn make_room(&mut self, entry: &Entry, now_ms: u64) -> Result<(), Refusal> {
        let ip = entry.peer.ip();
        let address = AddressKey::new(ip);
        if entry.is_counted {
            match self.addresses.admits(ip, &self.settings, now_ms) {
                Err(Refusal::AddressLimit)
                    if self.cut_one(Candidates::Address(address), now_ms) => {}
                Err(Refusal::Paused) if self.cut_one(Candidates::Unproven(address), now_ms) => {}
                other => other?,
            }
        }
        if self.placed >= self.settings.max && !self.cut_one(Candidates::All, now_ms) {
            return Err(Refusal::Limit);
        }
        Ok(())
    }

    /// Cuts the one of these connections that has been idle for longest. False if none is idle.
    fn cut_one(&mut self, of: Candidates, now_ms: u64) -> bool {
        let mut may_search = true;
        loop {
            if self.idle.of == of
                && let Some((since_ms, key)) = self.idle.found.pop_front()
            {
                let Some(entry) = self.list.get(key) else {
                    continue;
                };
                if entry.phase.cut(since_ms) {
                    let entry = entry.clone();
                    self.left(&entry, now_ms);
                    return true;
                }
            } else if std::mem::take(&mut may_search) {
                self.search(of, now_ms);
            } else {
                return false;
            }
        }
    }

    /// Finds the connections that have been idle for longest.
    fn search(&mut self, of: Candidates, now_ms: u64) {
        let is_repeated = of != Candidates::All || self.idle.is_none;
        let is_soon = now_ms < self.idle.searched_ms + SEARCH_EVERY_MS;
        if is_repeated && is_soon && self.list.len() > SEARCHED_FREELY {
            return;
        }
        let mut found: Vec<(u64, usize)> = self
            .list
            .iter()
            .filter_map(|(key, entry)| match entry.phase.now() {
                Doing::Waiting { since_ms, .. } if of.include(entry, since_ms, now_ms) => {
                    Some((since_ms, key))
                }
                _ => None,
            })
            .collect();
        let most = (self.list.len() / FOUND_PART).max(FOUND_PART);
        if found.len() > most {
            found.select_nth_unstable(most);
            found.truncate(most);
        }
        found.sort_unstable();
        self.idle = IdleConnections {
            of,
            is_none: found.is_empty(),
            found: found.into(),
            searched_ms: now_ms,
        };
    }

    /// A connection has got a place.
    fn entered(&mut self, entry: &Entry) {
        self.placed += 1;
        if entry.is_counted {
            self.addresses.opened(entry.peer.ip());
        }
    }

    /// A connection has given up its place.
    fn left(&mut self, entry: &Entry, now_ms: u64) {
        self.placed -= 1;
        if entry.is_counted {
            self.addresses.closed(
                entry.peer.ip(),
                entry.is_proven.load(Ordering::Relaxed),
                now_ms,
            );
        }
    }
}

impl Place {
    /// The other side; behind a proxy with the PROXY protocol, the address that the proxy names,
    /// once its header has arrived.
    pub fn peer(&self) -> SocketAddr {
        self.entry.peer
    }

    pub(crate) fn phase(&self) -> &Phase {
        &self.entry.phase
    }

    /// Completes when the connection is cut.
    pub async fn cut(&self) {
        poll_fn(|cx| self.phase().poll_cut(cx)).await;
    }

    /// A request has arrived. Takes the place again if it was lost in the meantime.
    pub fn begin(&self) {
        if self.entry.phase.begin() {
            return;
        }
        self.of.lock(|state| {
            self.entry.phase.resume();
            state.entered(&self.entry);
            if self.entry.is_counted && self.entry.is_proven.load(Ordering::Relaxed) {
                state.addresses.proved(self.entry.peer.ip());
            }
        });
    }

    /// The connection has shown a valid token.
    pub fn proved(&self) {
        if !self.entry.is_counted || self.entry.is_proven.load(Ordering::Relaxed) {
            return;
        }
        self.of.lock(|state| {
            if !self.entry.is_proven.swap(true, Ordering::Relaxed)
                && self.entry.phase.now() != Doing::Cut
            {
                state.addresses.proved(self.entry.peer.ip());
            }
        });
    }

    /// An authentication has failed. Returns the pause of the address if there is one.
    pub fn failed(&self) -> Option<Pause> {
        if !self.entry.is_counted {
            return None;
        }
        let now_ms = self.of.now_ms();
        let failed = self.of.lock(|state| {
            state
                .addresses
                .failed(self.entry.peer.ip(), &state.settings, now_ms)
        });
        failed.map(|(left_ms, is_new)| Pause {
            left: Duration::from_millis(left_ms),
            is_new,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now_ms = self.of.now_ms();
        self.of.lock(|state| {
            state.list.remove(self.key);
            if self.entry.phase.now() != Doing::Cut {
                state.left(&self.entry, now_ms);
            }
        });
    }
}
