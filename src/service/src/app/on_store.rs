//! Updates the health of the service from the outcome of each request to the store, and logs it.

use std::sync::Arc;

use model::Clock;
use pipeline::flush::OnStoreOutcome;
use query::admin::Health;
use query::admin::health::{StoreLogEvent, StoreLogLine};

/// Returns the callback that reports to health, and logs when requests of one kind fail and when
/// they succeed again.
pub(super) fn on_store(health: Arc<Health>, clock: Arc<dyn Clock>) -> OnStoreOutcome {
    Arc::new(move |ability, outcome| {
        if let Some(line) = health.store_requested(ability, outcome, clock.now()) {
            log(&line);
        }
    })
}

pub(super) fn log(line: &StoreLogLine) {
    let StoreLogLine {
        ability,
        event,
        failures,
        seconds,
    } = line;
    let requests = ability.as_str();
    match event {
        StoreLogEvent::Fail {
            error,
            oldest_waiting_seconds,
        } => tracing::warn!(
            requests,
            %error,
            failures,
            seconds,
            oldest_waiting_seconds,
            "store requests fail; retrying"
        ),
        StoreLogEvent::Succeed => {
            tracing::info!(requests, failures, seconds, "store requests succeed again");
        }
        StoreLogEvent::Settled => tracing::info!(
            requests,
            failures,
            seconds,
            "store requests that failed are settled; no reading waits for one"
        ),
    }
}
