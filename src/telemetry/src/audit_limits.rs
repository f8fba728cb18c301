//! The kinds of events of the audit log, and how many lines of each its file may have. Pure, apart
//! from the hash.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use model::closed_set;

/// Lines of one kind about one address within a minute.
const ADDRESS_LINES_MAX: u16 = 120;
/// Addresses are counted in this many slots of each kind; two in one slot share their lines for a
/// minute.
const SLOTS: usize = 1024;

closed_set! {
    /// What happened: `event` in the file, and the label of the metric.
    pub enum AuditKind {
        /// Credentials were missing, wrong, expired or not valid for this port.
        AuthFailed => "auth_failed",
        /// An address has failed too often, and is paused.
        AddressPaused => "address_paused",
        /// A connection was refused before it could say anything.
        ConnectionRefused => "connection_refused",
        /// A sender has reached its quota.
        QuotaExceeded => "quota_exceeded",
        /// A connection was ended because its grant has ended.
        AccessEnded => "access_ended",
        /// A query of the read API with a token.
        Query => "query",
    }
}

/// The lines that the file may still have of each kind.
#[derive(Debug)]
pub(super) struct FileLimits {
    pub(super) lines_per_second: u32,
    second: u64,
    lines: [u32; AuditKind::ALL.len()],
    minute: u64,
    of_addresses: Box<[[u16; SLOTS]; AuditKind::ALL.len()]>,
    hasher: RandomState,
    suppressed: [u64; AuditKind::ALL.len()],
}

impl FileLimits {
    pub(super) fn new(lines_per_second: u32) -> FileLimits {
        FileLimits {
            lines_per_second,
            second: 0,
            lines: Default::default(),
            minute: 0,
            of_addresses: Box::new([[0; SLOTS]; AuditKind::ALL.len()]),
            hasher: RandomState::new(),
            suppressed: Default::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn unlimited() -> FileLimits {
        FileLimits::new(u32::MAX)
    }

    /// Whether the file gets a line now; otherwise it is counted.
    pub(crate) fn allow(&mut self, kind: AuditKind, ip: IpAddr, now_ms: u64) -> bool {
        if self.second != now_ms / 1000 {
            (self.second, self.lines) = (now_ms / 1000, Default::default());
        }
        if self.minute != now_ms / 60_000 {
            self.minute = now_ms / 60_000;
            self.of_addresses.iter_mut().for_each(|slots| slots.fill(0));
        }
        let slot = self.slot(ip);
        let of_address = &mut self.of_addresses[kind as usize][slot];
        let lines = &mut self.lines[kind as usize];
        let is_allowed = *of_address < ADDRESS_LINES_MAX && *lines < self.lines_per_second;
        if is_allowed {
            (*of_address, *lines) = (*of_address + 1, *lines + 1);
        } else {
            self.suppressed[kind as usize] += 1;
        }
        is_allowed
    }

    fn slot(&self, ip: IpAddr) -> usize {
        self.hasher.hash_one(ip.to_canonical()) as usize % SLOTS
    }

    /// The numbers of lines that were left out since the last call.
    pub(crate) fn take_suppressed(&mut self) -> impl Iterator<Item = (AuditKind, u64)> + use<> {
        AuditKind::ALL
            .into_iter()
            .zip(std::mem::take(&mut self.suppressed))
            .filter(|(_, n)| *n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_one_kind_nor_one_address_hides_the_others() {
        let mut limits = FileLimits::new(20);
        let flood: IpAddr = "192.0.2.1".parse().unwrap();
        let other = (1..)
            .map(|n: u32| IpAddr::V4(n.into()))
            .find(|ip| limits.slot(*ip) != limits.slot(flood))
            .unwrap();
        let mut allowed = |kind, ip, times, now_ms| {
            (0..times)
                .filter(|_| limits.allow(kind, ip, now_ms))
                .count()
        };
        // A minute of ten thousand failures a second: what the address may have.
        let of_flood: usize = (0..60)
            .map(|s| allowed(AuditKind::AuthFailed, flood, 10_000, s * 1000))
            .sum();
        assert_eq!(of_flood, usize::from(ADDRESS_LINES_MAX));
        assert_eq!(
            allowed(AuditKind::Query, flood, 5, 59_000),
            5,
            "another kind"
        );
        assert_eq!(
            allowed(AuditKind::AuthFailed, other, 5, 59_000),
            5,
            "another address"
        );
        assert_eq!(
            allowed(AuditKind::AuthFailed, flood, 1, 60_000),
            1,
            "another minute"
        );
        // A second of a thousand addresses.
        let of_many: usize = (0..1000u32)
            .map(|n| allowed(AuditKind::AuthFailed, IpAddr::V4(n.into()), 1, 61_000))
            .sum();
        assert_eq!(of_many, 20);
        let suppressed: Vec<_> = limits.take_suppressed().collect();
        assert_eq!(suppressed, [(AuditKind::AuthFailed, 600_000 - 120 + 980)]);
        assert_eq!(limits.take_suppressed().count(), 0);
    }
}
