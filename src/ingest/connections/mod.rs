//! The open connections of a port: how many there may be, in total and per address, and which one
//! makes room for another. All three ports use this.
//!
//! When a port is full, the connection that has waited longest for a request is cut, so that idle
//! connections, however many, keep no others out. The same applies within an address that has all
//! of its connections. A connection with a request in progress is never cut; if all have one, the
//! new connection is refused. For MQTT, a device is in progress from its CONNECT on. On the admin
//! port, a request is in progress only once its body has arrived.
//!
//! A connection that is cut gives up its place immediately, and notices a moment later. If a
//! request was complete before that, it keeps its place, and the port has one connection more than
//! its limit until it ends.

pub(crate) mod address_limits;
pub(crate) mod phase;
mod senders;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slab::Slab;

pub(crate) use self::address_limits::Refusal;
use self::address_limits::{AddressKey, AddressLimits};
use self::phase::{Doing, Phase};
use crate::access::Grant;
use crate::config::{Connections, Proxies};
use crate::model::Clock;

/// A port with more connections than this is searched for idle ones at most once in
/// [`SEARCH_EVERY_MS`] if that is repeated for each new connection: for an address that has all of
/// its connections, or if there were no idle ones.
const SEARCHED_FREELY: usize = 256;
const SEARCH_EVERY_MS: u64 = 10;
/// A search finds this part of the connections, so that the next new connections need none.
const FOUND_PART: usize = 16;

/// The open connections of a port.
#[derive(Clone)]
pub(crate) struct OpenConnections(Arc<Inner>);

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

/// The idle connections of the last search, the longest idle first, and what was searched.
#[derive(Default)]
struct IdleConnections {
    of: Option<AddressKey>,
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
pub(crate) struct Place {
    of: OpenConnections,
    entry: Arc<Entry>,
    key: usize,
}

/// How long an address is still paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) left: Duration,
    /// It begins with this failure.
    pub(crate) is_new: bool,
}

/// Addresses without limits: those of this machine, where a proxy may run.
fn is_exempt(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

impl OpenConnections {
    pub(crate) fn new(
        settings: Connections,
        proxies: Proxies,
        clock: Arc<dyn Clock>,
    ) -> OpenConnections {
        let state = State {
            settings,
            proxies: Arc::new(proxies),
            addresses: AddressLimits::new(is_exempt),
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
    pub(crate) fn put(&self, settings: Connections, proxies: Proxies) {
        self.lock(|state| (state.settings, state.proxies) = (settings, Arc::new(proxies)));
    }

    /// The proxies in front of the port.
    pub(crate) fn proxies(&self) -> Arc<Proxies> {
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
    pub(crate) fn enter(&self, peer: SocketAddr) -> Result<Place, Refusal> {
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

    /// Applies the limits to this machine's addresses too.
    #[cfg(test)]
    pub(crate) fn exempt_none(&self) {
        self.lock(|state| state.addresses.exempt_none());
    }
}

impl State {
    /// Makes room for a connection of an address.
    fn make_room(&mut self, entry: &Entry, now_ms: u64) -> Result<(), Refusal> {
        let ip = entry.peer.ip();
        if entry.is_counted {
            match self.addresses.admits(ip, &self.settings, now_ms) {
                Err(Refusal::AddressLimit) if self.cut_one(Some(AddressKey::of(ip)), now_ms) => {}
                other => other?,
            }
        }
        if self.placed >= self.settings.max && !self.cut_one(None, now_ms) {
            return Err(Refusal::Limit);
        }
        Ok(())
    }

    /// Cuts the connection that has been idle for longest, of an address or of all. False if none
    /// is idle.
    fn cut_one(&mut self, of: Option<AddressKey>, now_ms: u64) -> bool {
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
    fn search(&mut self, of: Option<AddressKey>, now_ms: u64) {
        let is_repeated = of.is_some() || self.idle.is_none;
        let is_soon = now_ms < self.idle.searched_ms + SEARCH_EVERY_MS;
        if is_repeated && is_soon && self.list.len() > SEARCHED_FREELY {
            return;
        }
        let mut found: Vec<(u64, usize)> = self
            .list
            .iter()
            .filter_map(|(key, entry)| {
                let is_meant =
                    of.is_none_or(|of| entry.is_counted && AddressKey::of(entry.peer.ip()) == of);
                match entry.phase.now() {
                    Doing::Waiting { since_ms, .. } if is_meant => Some((since_ms, key)),
                    _ => None,
                }
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
    pub(crate) fn peer(&self) -> SocketAddr {
        self.entry.peer
    }

    pub(crate) fn phase(&self) -> &Phase {
        &self.entry.phase
    }

    /// Completes when the connection is cut.
    pub(crate) async fn cut(&self) {
        poll_fn(|cx| self.phase().poll_cut(cx)).await;
    }

    /// A request has arrived. Takes the place again if it was lost in the meantime.
    pub(crate) fn begin(&self) {
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
    pub(crate) fn proved(&self) {
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
    pub(crate) fn failed(&self) -> Option<Pause> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Network, ProxyHeader};
    use crate::model::Now;

    /// A clock that the test sets.
    struct SetClock(Mutex<u64>);

    impl Clock for SetClock {
        fn now(&self) -> Now {
            Now {
                wall_ms: 0,
                mono_ms: *self.0.lock().unwrap(),
            }
        }
    }

    struct Rig {
        open: OpenConnections,
        clock: Arc<SetClock>,
    }

    impl Rig {
        fn new(max: usize, per_address_max: usize) -> Rig {
            let pause = Duration::from_secs(30);
            let settings = Connections {
                max,
                per_address_max,
                failed_auth_max: 3,
                failed_auth_pause: pause,
            };
            let clock = Arc::new(SetClock(Mutex::new(1)));
            let trusted = [Network::parse("198.51.100.0/24").unwrap()].into();
            let proxies = Proxies {
                trusted,
                header: ProxyHeader::ProxyV2,
            };
            Rig {
                open: OpenConnections::new(settings, proxies, clock.clone()),
                clock,
            }
        }

        /// A connection from host `n`, a millisecond after the one before it.
        fn enter(&self, n: u8) -> Result<Place, Refusal> {
            *self.clock.0.lock().unwrap() += 1;
            self.open.enter(SocketAddr::from(([192, 0, 2, n], 1000)))
        }

        fn rest(&self, place: &Place) {
            *self.clock.0.lock().unwrap() += 1;
            place.phase().rest(self.open.now_ms());
        }

        fn placed(&self) -> usize {
            self.open.lock(|state| state.placed)
        }
    }

    fn is_cut(place: &Place) -> bool {
        place.phase().now() == Doing::Cut
    }

    #[test]
    fn the_longest_idle_connection_makes_room_and_one_with_a_request_never() {
        let rig = Rig::new(3, 3);
        let [a, b, c] = [1, 2, 3].map(|n| rig.enter(n).unwrap());
        a.begin();
        rig.rest(&a);
        b.begin();
        // c has waited for longest, then a.
        let d = rig.enter(4).unwrap();
        assert!(is_cut(&c) && !is_cut(&a) && !is_cut(&b));
        drop(c);
        d.begin();
        let e = rig.enter(5).unwrap();
        assert!(is_cut(&a) && rig.placed() == 3);
        e.begin();
        assert_eq!(rig.enter(6).err(), Some(Refusal::Limit));
        rig.rest(&b);
        let f = rig.enter(6).unwrap();
        assert!(is_cut(&b));
        drop((a, b, d, e, f));
        assert_eq!(
            rig.open.lock(|state| (state.placed, state.list.len())),
            (0, 0)
        );
        assert!(rig.enter(1).is_ok());
    }

    #[test]
    fn a_request_that_was_complete_before_the_cut_keeps_its_place() {
        let rig = Rig::new(1, 1);
        let a = rig.enter(1).unwrap();
        let b = rig.enter(2).unwrap();
        assert!(is_cut(&a));
        a.begin();
        assert_eq!((a.phase().now(), rig.placed()), (Doing::Busy, 2));
        drop(a);
        assert_eq!(rig.placed(), 1);
        drop(b);
        assert_eq!(rig.placed(), 0);
    }

    #[test]
    fn an_address_makes_room_among_its_own() {
        let rig = Rig::new(8, 0);
        let others: Vec<Place> = (0..3).map(|n| rig.enter(100 + n).unwrap()).collect();
        let a = rig.enter(1).unwrap();
        let b = rig.enter(1).unwrap();
        a.begin();
        let c = rig.enter(1).unwrap();
        assert!(is_cut(&b) && !others.iter().any(is_cut));
        c.begin();
        assert_eq!(rig.enter(1).err(), Some(Refusal::AddressLimit));
        assert!(rig.enter(2).is_ok());
    }

    #[test]
    fn a_trusted_proxy_has_no_limit_but_counts_for_the_port() {
        let rig = Rig::new(8, 2);
        let of_proxy = |n: u8| rig.open.enter(SocketAddr::from(([198, 51, 100, n], 1000)));
        let mut places: Vec<Place> = (0..6).map(|_| of_proxy(1).unwrap()).collect();
        assert!(
            (0..100).all(|_| places[0].failed().is_none()),
            "it is not paused"
        );
        places.extend([rig.enter(1).unwrap(), rig.enter(1).unwrap()]);
        places.iter().for_each(Place::begin);
        assert_eq!(rig.enter(1).err(), Some(Refusal::AddressLimit));
        assert_eq!((of_proxy(2).err(), rig.placed()), (Some(Refusal::Limit), 8));
        // Nothing of it stays when its connections end, even if it is no longer trusted.
        let Connections { max, .. } = rig.open.lock(|state| state.settings);
        let pause = Duration::from_secs(30);
        let settings = Connections {
            max,
            per_address_max: 2,
            failed_auth_max: 3,
            failed_auth_pause: pause,
        };
        rig.open.put(
            settings,
            Proxies {
                trusted: [].into(),
                header: ProxyHeader::ProxyV2,
            },
        );
        drop(places);
        assert_eq!(rig.placed(), 0);
        let a = of_proxy(1).unwrap();
        let b = of_proxy(1).unwrap();
        a.begin();
        b.begin();
        assert_eq!(of_proxy(1).err(), Some(Refusal::AddressLimit));
    }

    #[test]
    fn failures_behind_a_proxy_pause_the_address_that_it_names() {
        let rig = Rig::new(100, 100);
        let ip: IpAddr = "192.0.2.9".parse().unwrap();
        assert!((0..3).all(|_| rig.open.failed_behind_proxy(ip).is_none()));
        assert_eq!(
            rig.open.failed_behind_proxy(ip).map(|pause| pause.is_new),
            Some(true)
        );
        assert_eq!(
            rig.open.failed_behind_proxy(ip).map(|pause| pause.is_new),
            Some(false)
        );
        assert_eq!(
            rig.open.failed_behind_proxy("192.0.2.8".parse().unwrap()),
            None,
            "only this one"
        );
        // Its own connection meets the same pause.
        assert_eq!(
            rig.enter(9).unwrap().failed().map(|pause| pause.is_new),
            Some(false)
        );
    }

    #[test]
    fn a_full_port_is_not_searched_for_each_connection() {
        let n = 2 * SEARCHED_FREELY;
        let rig = Rig::new(n, n);
        let places: Vec<Place> = (0..n).map(|_| rig.enter(1).unwrap()).collect();
        let searched = || rig.open.lock(|state| state.idle.searched_ms);
        let mut new = vec![rig.enter(2).unwrap()];
        let first = searched();
        new.extend((1..n / FOUND_PART).map(|_| rig.enter(2).unwrap()));
        assert_eq!(searched(), first);
        assert!(
            places[..n / FOUND_PART].iter().all(is_cut),
            "the longest idle of all"
        );
        assert!(!places[n / FOUND_PART..].iter().any(is_cut));
        places
            .iter()
            .chain(&new)
            .filter(|place| !is_cut(place))
            .for_each(Place::begin);
        assert_eq!(rig.enter(3).err(), Some(Refusal::Limit));
        let last = searched();
        assert!((1..SEARCH_EVERY_MS).all(|_| rig.enter(3).is_err()) && searched() == last);
        rig.rest(&new[0]);
        *rig.clock.0.lock().unwrap() += SEARCH_EVERY_MS;
        assert!(rig.enter(3).is_ok());
    }

    #[test]
    fn failures_pause_the_address_and_a_connection_that_was_cut_leaves_no_trace() {
        let rig = Rig::new(100, 100);
        let a = rig.enter(1).unwrap();
        assert!((0..3).all(|_| a.failed().is_none()));
        assert_eq!(
            a.failed(),
            Some(Pause {
                left: Duration::from_secs(30),
                is_new: true
            })
        );
        let mut more: Vec<Place> = std::iter::from_fn(|| rig.enter(1).ok()).collect();
        assert_eq!((more.len(), rig.enter(1).err()), (7, Some(Refusal::Paused)));
        more[0].proved();
        more[0].proved();
        more.push(rig.enter(1).unwrap());
        assert_eq!(rig.enter(1).err(), Some(Refusal::Paused));
        rig.open.lock(|state| {
            assert!(state.cut_one(None, 1000) && state.cut_one(None, 1000));
        });
        // The proven one was cut, too; it cannot prove itself once more.
        more.iter().for_each(Place::proved);
        drop((a, more));
        assert_eq!(
            std::iter::from_fn(|| rig.enter(1).ok().map(std::mem::forget)).count(),
            8
        );
    }
}
