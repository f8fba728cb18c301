//! How much a sender may send. Each sender (token id) has one [`Usage`], over all ports and
//! reloads; the limits ([`Quota`]) belong to its grant.
//!
//! - *Rates* of readings and bytes, with a burst: a bucket of credit that fills at the rate up to
//!   `burst` seconds of it. A message passes if there is any credit, and takes what it costs; if it
//!   costs more, the sender waits until the debt is paid. So a message may be larger than a burst.
//! - *Share of the journal*: unstored bytes. Without it, one sender that is faster than the store
//!   fills the journal for all.
//! - *Share of the queue*: bytes that wait for admission, [`QUEUE_BYTES`]. The sender waits
//!   meanwhile, so the messages of others find room and a short queue.
//! - *Requests and connections* at the same time.
//!
//! Beyond a limit only this sender is refused (HTTP) or read more slowly (MQTT).

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::jwt::Jwt;
use super::last_used::LastUsed;
use config::{Certificates as CertificateSettings, Quota as QuotaSettings};
use model::JournalAccount;

/// Bytes of one sender that may wait for admission: one group of the journal, some milliseconds.
const QUEUE_BYTES: u32 = 4 << 20;
/// When a sender should try again if its journal share or requests are used up: that depends on the
/// store.
const RETRY: Duration = Duration::from_secs(1);

/// How much a sender may send. `None`: any amount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Readings per second.
    pub readings_per_second: Option<u64>,
    /// Bytes per second of bodies and messages, as sent.
    pub bytes_per_second: Option<u64>,
    /// Seconds of both rates that may be saved up.
    pub burst: Duration,
    /// MQTT connections.
    pub connections_max: Option<usize>,
    /// Concurrent HTTP requests.
    pub requests_max: Option<usize>,
    /// Unstored bytes in the journal.
    pub journal_bytes: Option<u64>,
}

impl Quota {
    /// No limits.
    pub fn unlimited() -> Quota {
        Quota {
            readings_per_second: None,
            bytes_per_second: None,
            burst: Duration::from_secs(10),
            connections_max: None,
            requests_max: None,
            journal_bytes: None,
        }
    }

    /// The limits of the configuration. `is_alone`: there is only one sender, which needs to leave
    /// no room for others.
    fn new(settings: &QuotaSettings, journal_bytes_max: u64, is_alone: bool) -> Quota {
        Quota {
            readings_per_second: settings.readings_per_second,
            bytes_per_second: settings.bytes_per_second,
            burst: settings.burst,
            connections_max: settings.connections_max,
            requests_max: settings.requests_max.filter(|_| !is_alone),
            journal_bytes: share(journal_bytes_max, settings.journal_share_percent)
                .filter(|_| !is_alone),
        }
    }
}

/// This percentage of the journal; `None`: all of it.
pub(super) fn share(journal_bytes_max: u64, percent: u64) -> Option<u64> {
    (percent < 100).then(|| journal_bytes_max / 100 * percent)
}

model::closed_set! {
    /// The limit that a sender has reached.
    pub enum QuotaLimit {
        /// Readings per second.
        Readings => "readings",
        /// Bytes per second.
        Bytes => "bytes",
        /// Share of the journal.
        Journal => "journal",
        /// Concurrent requests.
        Requests => "requests",
        /// Open MQTT connections.
        Connections => "connections",
    }
}

impl QuotaLimit {
    /// The exceeded limit in words.
    fn text(self) -> &'static str {
        match self {
            QuotaLimit::Readings => "too many readings per second",
            QuotaLimit::Bytes => "too many bytes per second",
            QuotaLimit::Journal => "too many readings wait to be stored",
            QuotaLimit::Requests => "too many concurrent requests",
            QuotaLimit::Connections => "too many connections",
        }
    }
}

/// A sender has reached one of its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("quota of this token exceeded: {}; try again later", limit.text())]
pub struct QuotaExceeded {
    /// The limit.
    pub limit: QuotaLimit,
    /// When it is worth trying again.
    pub retry_after: Duration,
}

/// The input of grants in addition to a tokens file.
#[derive(Debug, Clone)]
pub struct GrantDefaults {
    /// `[quota]`; `None`: no limits.
    pub quota: Option<QuotaSettings>,
    /// `journal.max_bytes`, for shares of it.
    pub journal_bytes_max: u64,
    /// The usage of all senders.
    pub usages: Usages,
    /// What JWTs are verified with; `None`: none are accepted.
    pub jwt: Option<Arc<Jwt>>,
    /// `[certificates]`
    pub certificates: CertificateSettings,
}

impl GrantDefaults {
    /// No limits, and separate usages: to check a file, and for tests.
    pub fn unlimited() -> GrantDefaults {
        GrantDefaults {
            quota: None,
            journal_bytes_max: u64::MAX,
            usages: Usages::default(),
            jwt: None,
            certificates: CertificateSettings::default(),
        }
    }

    /// The limits of a sender without its own, one of `senders`.
    pub(super) fn quota(&self, senders: usize) -> Quota {
        let quota = self.quota.as_ref();
        quota.map_or_else(Quota::unlimited, |quota| {
            Quota::new(quota, self.journal_bytes_max, senders == 1)
        })
    }
}

/// The usage of every sender, by its id. Those of configured tokens stay. Those of JWTs, whose
/// issuer decides how many there are, are forgotten when nothing refers to them, nothing is
/// unstored and their rates were not queried in the last hour.
#[derive(Debug, Clone, Default)]
pub struct Usages(Arc<Mutex<AllUsages>>);

#[derive(Debug, Default)]
struct AllUsages {
    by_id: HashMap<Box<str>, Arc<Usage>>,
    /// With this many, unused ones are forgotten.
    full_at: usize,
}

/// Usages are not searched for unused ones below this number.
const USAGES_KEPT: usize = 1024;
/// The longest burst: a debt or credit that is this old is gone.
const UNUSED_MS: u64 = 60 * 60 * 1000;

impl Usages {
    /// The usage of a sender.
    pub fn find_or_add(&self, id: &str) -> Arc<Usage> {
        // Each entry is valid by itself, so the lock stays usable after a panic.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(usage) = all.by_id.get(id) {
            return usage.clone();
        }
        if all.by_id.len() >= all.full_at.max(USAGES_KEPT) {
            all.forget_unused();
        }
        let usage = Arc::new(Usage::default());
        all.by_id.insert(id.into(), usage.clone());
        usage
    }

    /// Whether no sender is known.
    pub fn is_empty(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .by_id
            .is_empty()
    }

    /// Sets in `last` when each sender was last accepted.
    pub fn note_last_uses(&self, last: &mut LastUsed) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, usage) in &all.by_id {
            let used_s = usage.used_s.load(Ordering::Relaxed);
            if used_s > 0 {
                last.set(id, used_s);
            }
        }
    }
}

impl AllUsages {
    fn forget_unused(&mut self) {
        // The clock that rates are counted by, as far as it is known here.
        let now_ms = self
            .by_id
            .values()
            .map(|usage| usage.asked_ms())
            .max()
            .unwrap_or_default();
        self.by_id.retain(|_, usage| {
            Arc::strong_count(usage) > 1
                || usage.account.unstored_bytes() > 0
                || usage.asked_ms().saturating_add(UNUSED_MS) > now_ms && usage.asked_ms() > 0
        });
        // Twice the number that is in use, so that the search costs each new sender little.
        self.full_at = 2 * self.by_id.len();
    }
}

/// What a sender uses now.
#[derive(Debug)]
pub struct Usage {
    rates: Mutex<Rates>,
    account: JournalAccount,
    queue: Arc<Semaphore>,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    /// When it was last accepted, in seconds since 1970; 0: never.
    used_s: AtomicI64,
}

impl Default for Usage {
    fn default() -> Usage {
        Usage {
            rates: Mutex::default(),
            account: JournalAccount::default(),
            queue: Arc::new(Semaphore::new(QUEUE_BYTES as usize)),
            requests: Arc::default(),
            connections: Arc::default(),
            used_s: AtomicI64::new(0),
        }
    }
}

/// Readings and bytes that the sender still owes; negative: its credit.
#[derive(Debug, Default)]
struct Rates {
    readings: Debt,
    bytes: Debt,
}

#[derive(Debug, Default, Clone, Copy)]
struct Debt {
    amount: f64,
    /// Monotonic clock.
    at_ms: u64,
}

impl Debt {
    /// Seconds until there is credit again; 0: there is. `rate` per second, at most `burst` seconds
    /// of it are saved.
    fn wait_s(&mut self, rate: u64, burst: Duration, now_ms: u64) -> f64 {
        let rate = rate as f64;
        let passed_s = now_ms.saturating_sub(self.at_ms) as f64 / 1000.0;
        self.amount = (self.amount - rate * passed_s).max(-rate * burst.as_secs_f64());
        self.at_ms = now_ms.max(self.at_ms);
        self.amount.max(0.0) / rate
    }
}

/// One of the requests or connections of a sender, until dropped.
#[derive(Debug)]
pub struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Usage {
    /// Checks whether the sender may send now.
    ///
    /// # Errors
    /// A rate or the share of the journal is used up.
    pub fn check(&self, quota: &Quota, now_ms: u64) -> Result<(), QuotaExceeded> {
        if quota
            .journal_bytes
            .is_some_and(|most| self.account.unstored_bytes() >= most)
        {
            return Err(QuotaExceeded {
                limit: QuotaLimit::Journal,
                retry_after: RETRY,
            });
        }
        if quota.readings_per_second.is_none() && quota.bytes_per_second.is_none() {
            return Ok(());
        }
        // Numbers and times, each valid by itself, so the lock stays usable after a panic.
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let Rates { readings, bytes } = &mut *rates;
        for (rate, debt, limit) in [
            (quota.readings_per_second, readings, QuotaLimit::Readings),
            (quota.bytes_per_second, bytes, QuotaLimit::Bytes),
        ] {
            let wait_s = rate.map_or(0.0, |rate| debt.wait_s(rate, quota.burst, now_ms));
            if wait_s > 0.0 {
                return Err(QuotaExceeded {
                    limit,
                    retry_after: Duration::from_secs_f64(wait_s),
                });
            }
        }
        Ok(())
    }

    /// Notes that its credentials are accepted now, in milliseconds since 1970.
    pub fn note_used(&self, wall_ms: i64) {
        let now_s = wall_ms / 1000;
        // Most calls are in the second of the one before, and other cores need not wait for a read.
        if self.used_s.load(Ordering::Relaxed) != now_s {
            self.used_s.store(now_s, Ordering::Relaxed);
        }
    }

    /// When its rates were last queried, by the monotonic clock; 0: never.
    fn asked_ms(&self) -> u64 {
        let rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.readings.at_ms.max(rates.bytes.at_ms)
    }

    /// Charges a message that passed [`Usage::check`].
    pub fn charge(&self, quota: &Quota, readings: usize, bytes: usize) {
        if quota.readings_per_second.is_some() || quota.bytes_per_second.is_some() {
            let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
            rates.readings.amount += readings as f64;
            rates.bytes.amount += bytes as f64;
        }
    }

    /// Where the journal counts the sender's unstored bytes.
    pub fn account(&self) -> &JournalAccount {
        &self.account
    }

    /// Waits for a part of the sender's share of the queue. If the message is larger, it takes all
    /// of it.
    pub async fn queue(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.queue
            .clone()
            .acquire_many_owned(queue_part(bytes))
            .await
            .ok()
    }

    /// The same without waiting; `None`: there is no room now.
    pub fn try_queue(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.queue
            .clone()
            .try_acquire_many_owned(queue_part(bytes))
            .ok()
    }

    /// Counts a request.
    ///
    /// # Errors
    /// There are as many already as the sender may have.
    pub fn request(&self, quota: &Quota) -> Result<Held, QuotaExceeded> {
        hold(&self.requests, quota.requests_max, QuotaLimit::Requests)
    }

    /// Counts an MQTT connection.
    ///
    /// # Errors
    /// There are as many already as the sender may have.
    pub fn connection(&self, quota: &Quota) -> Result<Held, QuotaExceeded> {
        hold(
            &self.connections,
            quota.connections_max,
            QuotaLimit::Connections,
        )
    }
}

fn queue_part(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).min(QUEUE_BYTES)
}

fn hold(
    held: &Arc<AtomicUsize>,
    most: Option<usize>,
    limit: QuotaLimit,
) -> Result<Held, QuotaExceeded> {
    let one_more = |n: usize| most.is_none_or(|most| n < most).then_some(n + 1);
    match held.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
        Ok(_) => Ok(Held(held.clone())),
        Err(_) => Err(QuotaExceeded {
            limit,
            retry_after: RETRY,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(readings: Option<u64>, bytes: Option<u64>) -> Quota {
        Quota {
            readings_per_second: readings,
            bytes_per_second: bytes,
            ..Quota::unlimited()
        }
    }

    #[test]
    fn a_sender_gets_its_rate_and_its_burst_and_no_more() {
        let usage = Usage::default();
        let quota = Quota {
            burst: Duration::from_secs(10),
            ..quota(Some(100), None)
        };
        // An hour at full speed, 50 readings together every 10 ms.
        let mut sent = 0;
        for now_ms in (0..3_600_000).step_by(10) {
            if usage.check(&quota, now_ms).is_ok() {
                usage.charge(&quota, 50, 0);
                sent += 50;
            }
        }
        assert!(
            (360_000..=360_100).contains(&sent),
            "{sent}: nothing was saved at the begin"
        );
        // After a pause the burst, and the message that goes beyond it.
        let mut sent = 0;
        while usage.check(&quota, 4_000_000).is_ok() {
            usage.charge(&quota, 300, 0);
            sent += 300;
        }
        assert_eq!(sent, 1200);
        let refused = usage.check(&quota, 4_000_000).unwrap_err();
        assert_eq!(
            (refused.limit, refused.retry_after),
            (QuotaLimit::Readings, Duration::from_secs(2))
        );
        assert!(usage.check(&quota, 4_001_990).is_err() && usage.check(&quota, 4_002_000).is_ok());
        assert!(
            usage.check(&quota, 0).is_ok(),
            "a clock that steps back owes nothing more"
        );
    }

    #[test]
    fn bytes_are_limited_alone_too_and_without_a_limit_nothing_is() {
        let usage = Usage::default();
        usage.charge(&quota(None, Some(10)), 1_000_000, 25);
        assert_eq!(
            usage.check(&quota(None, Some(10)), 0).map_err(|e| e.limit),
            Err(QuotaLimit::Bytes)
        );
        assert_eq!(usage.check(&Quota::unlimited(), 0), Ok(()));
    }

    #[test]
    fn what_waits_to_be_stored_counts_until_it_is_stored() {
        let usage = Usage::default();
        let quota = Quota {
            journal_bytes: Some(100),
            ..Quota::unlimited()
        };
        usage.account().add(99);
        assert_eq!(usage.check(&quota, 0), Ok(()));
        usage.account().add(1);
        assert_eq!(
            usage.check(&quota, 0).map_err(|e| e.limit),
            Err(QuotaLimit::Journal)
        );
        usage.account().subtract(50);
        assert_eq!(usage.check(&quota, 0), Ok(()));
    }

    #[test]
    fn requests_and_connections_are_counted_while_they_last_and_ports_share_the_count() {
        let usages = Usages::default();
        let quota = Quota {
            requests_max: Some(2),
            connections_max: Some(1),
            ..Quota::unlimited()
        };
        let held = [
            usages.find_or_add("a").request(&quota).unwrap(),
            usages.find_or_add("a").request(&quota).unwrap(),
        ];
        assert_eq!(
            usages.find_or_add("a").request(&quota).unwrap_err().limit,
            QuotaLimit::Requests
        );
        assert!(usages.find_or_add("b").request(&quota).is_ok());
        drop(held);
        assert!(usages.find_or_add("a").request(&quota).is_ok());
        let _one = usages.find_or_add("a").connection(&quota).unwrap();
        assert_eq!(
            usages
                .find_or_add("a")
                .connection(&quota)
                .unwrap_err()
                .limit,
            QuotaLimit::Connections
        );
    }

    #[test]
    fn usages_that_are_not_used_any_more_are_forgotten() {
        let usages = Usages::default();
        let quota = quota(Some(1), None);
        let ids = |range: std::ops::Range<usize>| range.map(|n| format!("d{n}"));
        let held: Vec<_> = ids(0..10).map(|id| usages.find_or_add(&id)).collect();
        usages.find_or_add("unstored").account().add(1);
        assert!(
            usages
                .find_or_add("recent")
                .check(&quota, 10_000_000)
                .is_ok()
        );
        assert!(usages.find_or_add("old").check(&quota, 1000).is_ok());
        ids(10..USAGES_KEPT * 4).for_each(|id| drop(usages.find_or_add(&id)));
        let all = usages.0.lock().unwrap();
        assert!(all.by_id.len() <= USAGES_KEPT, "{}", all.by_id.len());
        assert!(
            ids(0..10)
                .zip(&held)
                .all(|(id, held)| Arc::ptr_eq(held, &all.by_id[&*id]))
        );
        assert!(
            ["unstored", "recent"]
                .iter()
                .all(|id| all.by_id.contains_key(*id))
        );
        assert!(!all.by_id.contains_key("old"));
    }

    #[tokio::test]
    async fn one_message_of_any_size_finds_room_in_the_queue() {
        let usage = Usage::default();
        let all = usage.queue(1 << 30).await.unwrap();
        assert!(usage.try_queue(1).is_none());
        drop(all);
        assert!(usage.try_queue(1).is_some());
    }
}
