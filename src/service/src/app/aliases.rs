//! Follows the aliases of sensors for the router ([`pipeline::route::aliases`]), and confirms what no
//! reading is routed by any more ([`store::aliases`]).
//!
//! A small document is read every [`POLL`]. A change stream would be faster, but the server of a change
//! stream looks at everything that is written to the database.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::context::ServiceContext;
use super::stages::Unstored;
use model::Aliases;
use pipeline::route::aliases::AliasSetter;
use store::aliases::{ALIASES_MAX, AliasStore};
use store::{Store, StoreError, StoreErrorKind};

/// How often the version is read.
const POLL: Duration = Duration::from_secs(2);
/// How often while readings wait for the first aliases.
const POLL_FIRST: Duration = Duration::from_millis(250);
/// How often the aliases are read whatever the version: they may be changed by hand.
const READ_EVERY: Duration = Duration::from_secs(60);
/// How often the instance is recorded as running.
const SEEN_EVERY: Duration = Duration::from_secs(10);
/// How long readings wait for the aliases if MongoDB refuses to show them, or to record that the
/// instance runs: it may not stop the service.
const REFUSED_WITHIN: Duration = Duration::from_secs(30);

/// What is known of the aliases.
struct Followed {
    setter: AliasSetter,
    instance: Arc<str>,
    unstored: Unstored,
    /// The version that the router applies, and since when (monotonic ms): batches that arrived before
    /// may have been routed by another one. `None`: it was the first.
    applied: Option<(i64, Option<u64>)>,
    /// Batches are routed, by whatever is known.
    is_routing: bool,
    read_at: Instant,
    confirmed: i64,
    seen_at: Instant,
    /// How many aliases were left out.
    warned_of: (usize, usize),
}

impl ServiceContext {
    /// Follows the aliases without an end. Begins after the store is prepared.
    pub(super) async fn follow_aliases(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        setter: AliasSetter,
        instance: Arc<str>,
        unstored: Unstored,
    ) {
        let Some(source) = store.aliases() else {
            return setter.set(Aliases::default());
        };
        drop(self.flusher.permit().await);
        let mut followed = Followed::new(setter, instance, unstored);
        let mut failing_since: Option<Instant> = None;
        loop {
            let done = followed.step(source, || self.clock.now().mono_ms).await;
            if let Err(error) = &done {
                if failing_since.is_none() {
                    tracing::warn!(%error, "cannot read the aliases of sensors; trying again");
                }
                let since = *failing_since.get_or_insert_with(Instant::now);
                let is_refused = matches!(
                    error.kind(),
                    StoreErrorKind::Unauthorized | StoreErrorKind::Command
                );
                if is_refused && !followed.is_routing && since.elapsed() >= REFUSED_WITHIN {
                    followed.is_routing = true;
                    followed.setter.set(Aliases::default());
                }
            } else {
                failing_since = None;
            }
            let is_routing = followed.is_routing;
            tokio::time::sleep(if is_routing { POLL } else { POLL_FIRST }).await;
        }
    }
}

impl Followed {
    fn new(setter: AliasSetter, instance: Arc<str>, unstored: Unstored) -> Followed {
        let now = Instant::now();
        Followed {
            setter,
            instance,
            unstored,
            applied: None,
            is_routing: false,
            read_at: now,
            confirmed: 0,
            seen_at: now,
            warned_of: (0, 0),
        }
    }

    async fn step(
        &mut self,
        source: &dyn AliasStore,
        mono_ms: impl Fn() -> u64,
    ) -> Result<(), StoreError> {
        let version = source.version().await?;
        let is_new = self.applied.is_none_or(|(applied, _)| applied != version);
        if is_new || self.read_at.elapsed() >= READ_EVERY {
            let aliases = self.load(source).await?;
            let is_first = !self.is_routing;
            if is_first {
                // Before anything is routed, so that a command knows of every instance that routes. One
                // that has not seen this instance has changed the version before.
                self.confirm(source, version).await?;
                if source.version().await? != version {
                    return Ok(());
                }
            }
            self.setter.set(aliases);
            self.is_routing = true;
            if is_new {
                self.applied = Some((version, (!is_first).then(&mono_ms)));
            }
        }
        let (applied, since_ms) = self.applied.unwrap_or((version, None));
        let is_settled = since_ms.is_none_or(|since_ms| self.is_settled(since_ms, mono_ms()));
        if is_settled && self.confirmed != applied {
            self.confirm(source, applied).await?;
        } else if self.seen_at.elapsed() >= SEEN_EVERY {
            self.confirm(source, self.confirmed).await?;
        }
        Ok(())
    }

    /// Whether all batches that arrived up to a time are stored (both in monotonic ms).
    fn is_settled(&self, since_ms: u64, now_ms: u64) -> bool {
        let backlog = self.unstored.backlog(now_ms);
        let arrived_after = |age_ms: u64| now_ms.saturating_sub(age_ms) > since_ms;
        backlog.is_replayed && backlog.age_ms.is_none_or(arrived_after)
    }

    async fn confirm(&mut self, source: &dyn AliasStore, version: i64) -> Result<(), StoreError> {
        source.confirm(&self.instance, version).await?;
        self.confirmed = version;
        self.seen_at = Instant::now();
        Ok(())
    }

    async fn load(&mut self, source: &dyn AliasStore) -> Result<Aliases, StoreError> {
        let mut all = source.aliases().await?;
        let too_many = all.len().saturating_sub(ALIASES_MAX);
        all.truncate(ALIASES_MAX);
        let aliases = Aliases::new(all);
        self.read_at = Instant::now();
        let left_out = (too_many, aliases.without_effect());
        if std::mem::replace(&mut self.warned_of, left_out) != left_out && left_out != (0, 0) {
            tracing::warn!(
                in_circles = left_out.1,
                is_too_many = too_many > 0,
                "some documents of sensor_aliases have no effect: they lead into a circle, or there \
                 are too many"
            );
        }
        Ok(aliases)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use model::Alias;
    use model::ack::Ack;
    use pipeline::route::aliases::AliasView;
    use pipeline::route::oldest::Oldest;
    use store::BoxFuture;

    /// The stored version, and what was confirmed.
    #[derive(Default)]
    struct Stored(Mutex<(i64, Vec<i64>)>);

    impl Stored {
        fn with<T>(&self, look: impl FnOnce(&mut (i64, Vec<i64>)) -> T) -> T {
            look(&mut self.0.lock().unwrap())
        }
    }

    impl AliasStore for Stored {
        fn version(&self) -> BoxFuture<'_, Result<i64, StoreError>> {
            Box::pin(async { Ok(self.with(|stored| stored.0)) })
        }

        fn aliases(&self) -> BoxFuture<'_, Result<Vec<Alias>, StoreError>> {
            let alias = |n| Alias {
                former: format!("old{n}").into(),
                sensor_id: "new".into(),
                from_ms: None,
            };
            Box::pin(async move { Ok(self.with(|stored| (0..stored.0).map(alias).collect())) })
        }

        fn confirm<'a>(
            &'a self,
            _: &'a str,
            version: i64,
        ) -> BoxFuture<'a, Result<(), StoreError>> {
            Box::pin(async move {
                self.with(|stored| stored.1.push(version));
                Ok(())
            })
        }

        fn retire<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
            Box::pin(async { Ok(()) })
        }
    }

    fn followed(oldest: &Arc<Oldest>) -> (Followed, AliasView) {
        let (setter, view) = AliasSetter::new();
        let unstored = Unstored::without_journal(oldest.clone());
        (Followed::new(setter, "i".into(), unstored), view)
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_is_confirmed_when_all_that_arrived_before_is_stored() {
        let stored = Stored::default();
        let oldest = Arc::new(Oldest::default());
        let (mut followed, view) = followed(&oldest);
        followed.step(&stored, || 10).await.unwrap();
        assert_eq!(
            stored.with(|stored| stored.1.clone()),
            [0],
            "before anything is routed"
        );
        assert_eq!(view.renamed_to("old0"), None);
        let (ack, _waiter) = Ack::channel();
        let first = oldest.watch(ack, 20);
        stored.with(|stored| stored.0 = 1);
        followed.step(&stored, || 20).await.unwrap();
        assert_eq!(
            view.renamed_to("old0").as_deref(),
            Some("new"),
            "applied immediately"
        );
        assert_eq!(
            stored.with(|stored| stored.1.len()),
            1,
            "one may be routed without it"
        );
        first.delivered();
        // What arrives later does not matter.
        let (ack, _waiter) = Ack::channel();
        let second = oldest.watch(ack, 21);
        followed.step(&stored, || 30).await.unwrap();
        assert_eq!(stored.with(|stored| stored.1.clone()), [0, 1]);
        tokio::time::sleep(SEEN_EVERY).await;
        followed.step(&stored, || 31).await.unwrap();
        assert_eq!(
            stored.with(|stored| stored.1.clone()),
            [0, 1, 1],
            "still running"
        );
        second.delivered();
    }
}
