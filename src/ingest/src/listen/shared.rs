//! The state that all connections of the port share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::authorization::LiveCredentials;
use super::clients::Clients;
use super::large::LargeBudget;
use super::log_limit::LimitedLog;
use crate::IngestDeps;
use config::ListenMqtt;
use decode::topic::filter_matches;
use net::connections::OpenConnections;
use telemetry::metrics::PortName;

/// The section of the configuration.
pub(super) const NAME: PortName = PortName::Mqtt;
/// Bytes of messages that may wait for the batchers, over all connections.
pub(super) const BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of large packets that are arriving, over all connections. A packet that is larger than
/// this passes alone. One sender with several gets at most half ([`LargeBudget`]).
pub(super) const LARGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// State shared by all connections.
pub(super) struct Shared {
    pub(super) settings: ListenMqtt,
    pub(super) deps: IngestDeps,
    pub(super) credentials: LiveCredentials,
    pub(super) clients: Clients,
    pub(super) connections: OpenConnections,
    /// [`BYTES_MAX`].
    pub(super) bytes: Arc<Semaphore>,
    /// [`LARGE_BYTES_MAX`].
    pub(super) large: Arc<LargeBudget>,
    /// The user properties that any topic's configuration turns into tags.
    pub(super) user_properties: Arc<[String]>,
    pub(super) logs: LimitedLog,
}

impl Shared {
    pub(super) fn new(
        settings: &ListenMqtt,
        deps: IngestDeps,
        credentials: LiveCredentials,
    ) -> Shared {
        let mut names: Vec<String> = settings
            .topics
            .iter()
            .flat_map(|topic| topic.user_property_tags.clone())
            .collect();
        names.sort_unstable();
        names.dedup();
        Shared {
            settings: settings.clone(),
            logs: LimitedLog::new(deps.clock.clone()),
            connections: OpenConnections::new(
                settings.connections,
                settings.proxies.clone(),
                deps.clock.clone(),
            ),
            deps,
            credentials,
            clients: Clients::default(),
            bytes: Arc::new(Semaphore::new(BYTES_MAX)),
            large: LargeBudget::new(LARGE_BYTES_MAX),
            user_properties: names.into(),
        }
    }

    pub(super) fn is_wanted(&self, topic: &str) -> bool {
        self.settings
            .topics
            .iter()
            .any(|route| filter_matches(&route.filter, topic))
    }
}
