//! What a connected device may do, and for how long: its grant, which a reload can change or end
//! and which can expire.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::close_reason::CloseReason;
use config::Live;
use model::{Clock, Now};
use net::access::{Credentials, Denied, Grant, Held, Protocol, QuotaExceeded};
use net::shares::Owner;

/// Longest wait until the expiry is compared with the clock again, because the clock may be set.
const CHECK_EVERY: Duration = Duration::from_secs(30);

/// The credentials in effect; `None` inside: none are configured.
pub(super) type LiveCredentials = Live<Option<Credentials>>;

/// A connection's grant, kept up to date.
#[derive(Clone)]
pub(super) struct Authorization {
    /// `None`: no credentials are configured.
    grant: Option<Arc<Grant>>,
    is_revoked: bool,
    live: LiveCredentials,
}

impl Authorization {
    /// Authenticates a device with the credentials in effect; `check` finds its grant.
    ///
    /// # Errors
    /// That of `check`.
    pub(super) fn new<E>(
        mut live: LiveCredentials,
        check: impl FnOnce(&Credentials) -> Result<Arc<Grant>, E>,
    ) -> Result<Authorization, E> {
        let grant = live.latest().as_ref().as_ref().map(check).transpose()?;
        Ok(Authorization {
            grant,
            is_revoked: false,
            live,
        })
    }

    /// Counts the connection for its sender.
    ///
    /// # Errors
    /// The sender has as many connections as it may have.
    pub(super) fn hold(&self) -> Result<Option<Held>, QuotaExceeded> {
        self.grant
            .as_ref()
            .map(|grant| grant.usage.connection(&grant.quota))
            .transpose()
    }

    /// How long the device must not be read, because its sender has reached its quota. A reload may
    /// have raised it meanwhile.
    pub(super) fn pause(&mut self, now: Now) -> Option<QuotaExceeded> {
        let grant = self.current(now.wall_ms).ok()??;
        grant.check_quota(now).err()
    }

    /// Whether no credentials are configured.
    pub(super) fn is_anonymous(&self) -> bool {
        self.grant.is_none()
    }

    /// The id of the sender; empty without credentials.
    pub(super) fn id(&self) -> &str {
        self.grant.as_ref().map_or("", |grant| &*grant.id)
    }

    /// Who the memory of the device's packets is counted for; `ip`: its address.
    pub(super) fn owner(&self, ip: IpAddr) -> Owner {
        Owner::identify(self.grant.as_deref(), ip)
    }

    /// The grant in effect now. Costs an atomic load if nothing was reloaded.
    ///
    /// # Errors
    /// The device must be disconnected.
    pub(super) fn current(&mut self, now_ms: i64) -> Result<Option<&Arc<Grant>>, CloseReason> {
        if let Some(credentials) = self.live.changed() {
            let renewed = match (&*credentials, &self.grant) {
                (None, _) => Some(None),
                (Some(now), Some(grant)) => now.renewed(grant).map(Some),
                // It has authenticated with nothing.
                (Some(_), None) => None,
            };
            self.is_revoked |= renewed.is_none();
            self.grant = renewed.flatten();
        }
        if self.is_revoked {
            return Err(CloseReason::Revoked);
        }
        if let Some(grant) = &self.grant {
            grant
                .check_sender(Protocol::Mqtt, now_ms)
                .map_err(close_reason)?;
        }
        Ok(self.grant.as_ref())
    }

    /// Waits until the device must be disconnected.
    pub(super) async fn ended(mut self, clock: Arc<dyn Clock>) -> CloseReason {
        loop {
            let now_ms = clock.now().wall_ms;
            let expires_ms = match self.current(now_ms) {
                Ok(grant) => grant.and_then(|grant| grant.expires_ms),
                Err(reason) => return reason,
            };
            let left_ms =
                expires_ms.map_or(i64::MAX, |expires_ms| expires_ms.saturating_sub(now_ms));
            let wait =
                Duration::from_millis(u64::try_from(left_ms).unwrap_or_default()).min(CHECK_EVERY);
            tokio::select! {
                () = self.live.wait_for_change() => {}
                () = tokio::time::sleep(wait), if expires_ms.is_some() => {}
            }
        }
    }
}

fn close_reason(denied: Denied) -> CloseReason {
    match denied {
        Denied::Expired => CloseReason::Expired,
        Denied::NotYetValid | Denied::Protocol | Denied::Write | Denied::Forward => {
            CloseReason::Revoked
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::access::{GrantDefaults, hash_secret};
    use testkit::SetClock;

    fn tokens(entries: &[(&str, &str, &str)]) -> Credentials {
        let entry = |(id, secret, rules): &(&str, &str, &str)| {
            format!(
                "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n{rules}\n",
                hash_secret(secret)
            )
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), entries.iter().map(entry).collect::<String>()).unwrap();
        Credentials::load("x", Some(file.path()), false, &GrantDefaults::unlimited())
            .unwrap()
            .unwrap()
    }

    fn of_d1(live: &LiveCredentials) -> Authorization {
        Authorization::new(live.clone(), |tokens| tokens.of_secret("d1", "s").ok_or(())).unwrap()
    }

    #[test]
    fn a_reload_changes_or_ends_a_grant() {
        let (setter, live) = Live::new(Some(tokens(&[("d1", "s", "")])));
        let mut one = of_d1(&live);
        assert!(one.current(0).unwrap().unwrap().write.is_none());
        setter.set(Some(tokens(&[
            ("d1", "s", "write = [\"a\"]"),
            ("d2", "s", ""),
        ])));
        assert!(one.current(0).unwrap().unwrap().write.is_some());
        let kept = one.clone();
        for after in [
            ("d2", "s", ""),
            ("d1", "rotated", ""),
            ("d1", "s", "via = [\"http\"]"),
            ("d1", "s", "write = []"),
        ] {
            setter.set(Some(tokens(&[after])));
            assert_eq!(
                kept.clone().current(0).err(),
                Some(CloseReason::Revoked),
                "{after:?}"
            );
        }
        setter.set(None);
        let mut anonymous = kept;
        assert!(
            anonymous.current(0).unwrap().is_none(),
            "no tokens any more"
        );
        setter.set(Some(tokens(&[("d1", "s", "")])));
        assert_eq!(anonymous.current(0).err(), Some(CloseReason::Revoked));
    }

    #[test]
    fn a_raised_quota_ends_a_pause() {
        let (setter, live) = Live::new(Some(tokens(&[("d1", "s", "rate = 1")])));
        let mut one = of_d1(&live);
        let now = Now {
            wall_ms: 0,
            mono_ms: 1000,
        };
        let grant = one.current(0).unwrap().unwrap().clone();
        grant.usage.charge(&grant.quota, 600, 1);
        assert!(one.pause(now).is_some());
        setter.set(Some(tokens(&[("d1", "s", "rate = 100000")])));
        assert!(one.pause(now).is_none());
        setter.set(Some(tokens(&[("d2", "s", "")])));
        assert!(one.pause(now).is_none(), "it is about to be disconnected");
        assert_eq!(one.current(0).err(), Some(CloseReason::Revoked), "still");
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_or_revoked_grant_ends_the_wait() {
        let clock = Arc::new(SetClock::new(0));
        clock.set_wall(1_801_353_599_000);
        let (setter, live) = Live::new(Some(tokens(&[("d1", "s", "expires = 2027-01-31")])));
        let wait = tokio::spawn(of_d1(&live).ended(clock.clone()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!wait.is_finished(), "by its clock it is still valid");
        clock.set_wall(1_801_353_600_000);
        assert_eq!(wait.await.unwrap(), CloseReason::Expired);
        clock.set_wall(0);
        let wait = tokio::spawn(of_d1(&live).ended(clock));
        tokio::task::yield_now().await;
        setter.set(Some(tokens(&[("d2", "s", "")])));
        assert_eq!(wait.await.unwrap(), CloseReason::Revoked);
    }
}
