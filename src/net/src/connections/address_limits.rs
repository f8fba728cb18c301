//! The limits of one address on a port: its connections, and its failed authentications.
//!
//! Many devices can share an address (NAT), among them one with a wrong token. So an address whose
//! authentications fail too often is not locked out: it is *paused*. While the pause lasts,
//! - a request with a valid token is served as always: tokens are checked first, on every
//!   connection;
//! - a request whose token is wrong again is refused without further work, and loses its
//!   connection;
//! - only a few of the address's open connections may have shown no valid token yet. That ends a
//!   flood of connections and handshakes, and still lets the other devices of the address connect:
//!   a new connection takes the place of one that has had time to show its token and has not
//!   ([`super::OpenConnections`]).
//!
//! Memory is bounded: addresses with open connections by the limit on connections, the others by
//! [`REMEMBERED_MAX`]. Pure: the time is an argument.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::HashMap;

use config::Connections;
use model::Named;

/// Addresses without an open connection whose failures are remembered. Beyond it, those with the
/// oldest are forgotten.
const REMEMBERED_MAX: usize = 4096;
/// The period over which failures are counted.
const WINDOW_MS: u64 = 60_000;
/// Open connections of a paused address that have not shown a valid token.
const UNPROVEN_MAX: u32 = 8;

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum Refusal {
    #[error("connections_max reached")]
    Limit,
    #[error("connections_per_address_max reached")]
    AddressLimit,
    #[error("the address is paused because of failed authentications")]
    Paused,
}

impl Refusal {
    pub(crate) const ALL: [Refusal; 3] = [Refusal::Limit, Refusal::AddressLimit, Refusal::Paused];
}

impl Named for Refusal {
    fn as_str(&self) -> &'static str {
        match self {
            Refusal::Limit => "limit",
            Refusal::AddressLimit => "address_limit",
            Refusal::Paused => "paused",
        }
    }
}

/// An address as it is counted. One host usually has a whole IPv6 network of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressKey {
    /// The whole address, also of an IPv6 address that maps an IPv4 address.
    V4(Ipv4Addr),
    /// The upper 64 bits.
    V6(u64),
}

impl AddressKey {
    pub(crate) fn new(ip: IpAddr) -> AddressKey {
        match ip.to_canonical() {
            IpAddr::V4(ip) => AddressKey::V4(ip),
            IpAddr::V6(ip) => AddressKey::V6((ip.to_bits() >> 64) as u64),
        }
    }
}

/// The state of an address.
#[derive(Debug, Default)]
struct Entry {
    open: u32,
    /// Those of `open` that have not shown a valid token.
    unproven: u32,
    failures: u32,
    /// When the first of `failures` was.
    since_ms: u64,
    paused_until_ms: u64,
    /// The turn of its last close.
    turn: u64,
}

impl Entry {
    fn is_memorable(&self, now_ms: u64) -> bool {
        let counts = self.failures > 0 && now_ms.saturating_sub(self.since_ms) < WINDOW_MS;
        counts || now_ms < self.paused_until_ms
    }
}

/// The addresses that are connected or were refused lately.
#[derive(Debug)]
pub(crate) struct AddressLimits {
    entries: HashMap<AddressKey, Entry>,
    /// Entries without an open connection.
    remembered: usize,
    turn: u64,
    /// Whether no limit applies to an address.
    is_exempt: fn(IpAddr) -> bool,
}

impl AddressLimits {
    pub(crate) fn new(is_exempt: fn(IpAddr) -> bool) -> AddressLimits {
        AddressLimits {
            entries: HashMap::new(),
            remembered: 0,
            turn: 0,
            is_exempt,
        }
    }

    /// Whether an address may open another connection.
    pub(crate) fn admits(
        &self,
        ip: IpAddr,
        settings: &Connections,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        let Some(entry) = self.entries.get(&AddressKey::new(ip)) else {
            return Ok(());
        };
        if now_ms < entry.paused_until_ms && entry.unproven >= UNPROVEN_MAX {
            return Err(Refusal::Paused);
        }
        if entry.open as usize >= settings.per_address() {
            Err(Refusal::AddressLimit)
        } else {
            Ok(())
        }
    }

    /// Counts a connection that was opened.
    pub(crate) fn opened(&mut self, ip: IpAddr) {
        if (self.is_exempt)(ip) {
            return;
        }
        let entry = self.entries.entry(AddressKey::new(ip)).or_insert_with(|| {
            self.remembered += 1;
            Entry::default()
        });
        self.remembered -= usize::from(entry.open == 0);
        entry.open += 1;
        entry.unproven += 1;
    }

    /// A connection of the address has shown its first valid token.
    pub(crate) fn proved(&mut self, ip: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&AddressKey::new(ip)) {
            entry.unproven = entry.unproven.saturating_sub(1);
        }
    }

    /// Counts a connection that was closed. `is_proven`: it had shown a valid token.
    pub(crate) fn closed(&mut self, ip: IpAddr, is_proven: bool, now_ms: u64) {
        let key = AddressKey::new(ip);
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        entry.open = entry.open.saturating_sub(1);
        if !is_proven {
            entry.unproven = entry.unproven.saturating_sub(1);
        }
        if entry.open > 0 {
            return;
        }
        if !entry.is_memorable(now_ms) {
            self.entries.remove(&key);
            return;
        }
        self.turn += 1;
        entry.turn = self.turn;
        self.remembered += 1;
        if self.remembered > REMEMBERED_MAX {
            self.forget(now_ms);
        }
    }

    /// Counts a failed authentication on an open connection. Returns how long the address is still
    /// paused, in milliseconds, if it is, and whether this failure has paused it.
    pub(crate) fn failed(
        &mut self,
        ip: IpAddr,
        settings: &Connections,
        now_ms: u64,
    ) -> Option<(u64, bool)> {
        let entry = self.entries.get_mut(&AddressKey::new(ip))?;
        if now_ms < entry.paused_until_ms {
            return Some((entry.paused_until_ms - now_ms, false));
        }
        if now_ms.saturating_sub(entry.since_ms) >= WINDOW_MS {
            (entry.failures, entry.since_ms) = (0, now_ms);
        }
        entry.failures += 1;
        if settings.failed_auth_max == 0 || entry.failures <= settings.failed_auth_max {
            return None;
        }
        let pause_ms = settings.failed_auth_pause.as_millis() as u64;
        (entry.failures, entry.paused_until_ms) = (0, now_ms + pause_ms);
        Some((pause_ms, true))
    }

    /// Like [`AddressLimits::failed`], for an address without its own open connection.
    pub(crate) fn failed_unconnected(
        &mut self,
        ip: IpAddr,
        settings: &Connections,
        now_ms: u64,
    ) -> Option<(u64, bool)> {
        if (self.is_exempt)(ip) {
            return None;
        }
        if !self.entries.contains_key(&AddressKey::new(ip)) {
            self.turn += 1;
            self.entries.insert(
                AddressKey::new(ip),
                Entry {
                    turn: self.turn,
                    ..Entry::default()
                },
            );
            self.remembered += 1;
        }
        let failed = self.failed(ip, settings, now_ms);
        if self.remembered > REMEMBERED_MAX {
            self.forget(now_ms);
        }
        failed
    }

    /// Forgets entries that no longer count; if that is not enough, a quarter of the rest, so that
    /// a flood of addresses does not search all of them for each.
    fn forget(&mut self, now_ms: u64) {
        self.entries
            .retain(|_, entry| entry.open > 0 || entry.is_memorable(now_ms));
        let mut turns: Vec<u64> = self
            .entries
            .values()
            .filter(|entry| entry.open == 0)
            .map(|entry| entry.turn)
            .collect();
        if turns.len() > REMEMBERED_MAX / 4 * 3 {
            let oldest = turns.len() - REMEMBERED_MAX / 4 * 3;
            let (_, line, _) = turns.select_nth_unstable(oldest - 1);
            let line = *line;
            self.entries
                .retain(|_, entry| entry.open > 0 || entry.turn > line);
            turns.truncate(turns.len() - oldest);
        }
        self.remembered = turns.len();
    }

    /// Applies the limits to every address, for tests.
    pub(crate) fn exempt_none(&mut self) {
        self.is_exempt = |_| false;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn limits() -> AddressLimits {
        AddressLimits::new(|ip| ip.is_loopback())
    }

    fn settings() -> Connections {
        Connections {
            max: 40,
            per_address_max: 0,
            failed_auth_max: 3,
            failed_auth_pause: Duration::from_secs(30),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_may_open_a_quarter_of_the_connections() {
        let mut limits = limits();
        let settings = settings();
        let [a, mapped, b] = ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"].map(ip);
        for _ in 0..10 {
            limits.admits(a, &settings, 0).unwrap();
            limits.opened(a);
        }
        assert_eq!(limits.admits(a, &settings, 0), Err(Refusal::AddressLimit));
        assert_eq!(
            limits.admits(mapped, &settings, 0),
            Err(Refusal::AddressLimit)
        );
        assert_eq!(limits.admits(b, &settings, 0), Ok(()));
        assert_eq!(
            limits.admits(
                a,
                &Connections {
                    per_address_max: 11,
                    ..settings
                },
                0
            ),
            Ok(())
        );
        limits.closed(mapped, false, 0);
        assert_eq!(limits.admits(a, &settings, 0), Ok(()));
        (0..9).for_each(|_| limits.closed(a, false, 0));
        assert!(limits.entries.is_empty() && limits.remembered == 0);
    }

    #[test]
    fn a_network_of_ipv6_is_one_address_and_this_machine_has_no_limit() {
        let mut limits = limits();
        let settings = settings();
        (0..10).for_each(|i| limits.opened(ip(&format!("2001:db8::{i}:1"))));
        assert_eq!(
            limits.admits(ip("2001:db8:0:0:ffff::9"), &settings, 0),
            Err(Refusal::AddressLimit)
        );
        assert_eq!(limits.admits(ip("2001:db8:0:1::9"), &settings, 0), Ok(()));
        for here in ["127.0.0.1", "::1"].map(ip) {
            (0..100).for_each(|_| limits.opened(here));
            assert_eq!(
                (
                    limits.admits(here, &settings, 0),
                    limits.failed(here, &settings, 0)
                ),
                (Ok(()), None)
            );
            limits.closed(here, false, 0);
        }
        assert_eq!(limits.entries.len(), 1);
    }

    #[test]
    fn failures_within_a_minute_pause_the_address() {
        let mut limits = limits();
        let settings = settings();
        let a = ip("192.0.2.1");
        limits.opened(a);
        let mut failed = |at_ms| limits.failed(a, &settings, at_ms);
        assert_eq!([0, 10, 59_999].map(&mut failed), [None; 3]);
        // A new minute.
        assert_eq!([60_000, 60_001, 60_002].map(&mut failed), [None; 3]);
        assert_eq!(
            [60_003, 60_004, 90_002].map(&mut failed),
            [
                Some((30_000, true)),
                Some((29_999, false)),
                Some((1, false))
            ]
        );
        assert_eq!(failed(90_003), None, "the pause is over");
        let off = Connections {
            failed_auth_max: 0,
            ..settings
        };
        assert!((0..1000).all(|_| limits.failed(a, &off, 100_000).is_none()));
    }

    #[test]
    fn of_a_paused_address_a_few_connections_may_still_prove_themselves() {
        let mut limits = limits();
        let settings = Connections {
            max: 400,
            ..settings()
        };
        let a = ip("192.0.2.1");
        // Good devices of the same address.
        for _ in 0..20 {
            limits.opened(a);
            limits.proved(a);
        }
        limits.opened(a);
        assert_eq!(
            (0..4)
                .filter_map(|_| limits.failed(a, &settings, 0))
                .count(),
            1
        );
        for _ in 1..UNPROVEN_MAX {
            limits.admits(a, &settings, 1).unwrap();
            limits.opened(a);
        }
        assert_eq!(limits.admits(a, &settings, 1), Err(Refusal::Paused));
        limits.proved(a);
        assert_eq!(
            limits.admits(a, &settings, 1),
            Ok(()),
            "a good device has connected meanwhile"
        );
        limits.opened(a);
        assert_eq!(limits.admits(a, &settings, 29_999), Err(Refusal::Paused));
        assert_eq!(limits.admits(a, &settings, 30_000), Ok(()));
        // The pause outlives the connections.
        limits.closed(a, false, 2);
        (0..21).for_each(|_| limits.closed(a, true, 2));
        (0..UNPROVEN_MAX - 1).for_each(|_| limits.closed(a, false, 2));
        assert_eq!(
            (
                limits.remembered,
                limits.entries[&AddressKey::new(a)].unproven
            ),
            (1, 0)
        );
        limits.opened(a);
        assert_eq!(limits.failed(a, &settings, 10_000), Some((20_000, false)));
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_are_forgotten_first() {
        let mut limits = limits();
        let settings = settings();
        let nth = |i: u32| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + i));
        limits.opened(nth(u32::MAX >> 9));
        for i in 0..20_000 {
            limits.opened(nth(i));
            limits.failed(nth(i), &settings, 0);
            limits.closed(nth(i), false, 0);
            assert!(limits.entries.len() <= REMEMBERED_MAX + 1);
            assert_eq!(limits.entries.len(), limits.remembered + 1);
        }
        assert!(limits.entries.contains_key(&AddressKey::new(nth(19_999))));
        assert!(!limits.entries.contains_key(&AddressKey::new(nth(0))));
        assert!(
            limits
                .entries
                .contains_key(&AddressKey::new(nth(u32::MAX >> 9))),
            "it is connected"
        );
        for i in 0..20_000 {
            limits.failed_unconnected(nth(i), &settings, 0);
            assert!(
                limits.entries.len() <= REMEMBERED_MAX + 1
                    && limits.entries.len() == limits.remembered + 1
            );
        }
        // Entries that no longer count are removed before that.
        for i in 0..REMEMBERED_MAX as u32 / 2 {
            limits.opened(nth(i));
            limits.failed(nth(i), &settings, 100_000);
            limits.closed(nth(i), false, 100_000);
        }
        assert!(
            (0..REMEMBERED_MAX as u32 / 2)
                .all(|i| limits.entries.contains_key(&AddressKey::new(nth(i))))
        );
    }
}
