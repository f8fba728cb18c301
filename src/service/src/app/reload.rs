//! Reloads the configuration while the service runs (SIGHUP): reads and checks all of it, then
//! applies the keys that can change and names the others.
//!
//! - If anything is wrong, in the settings or in the files of tokens, keys and certificates that
//!   they name, nothing is changed.
//! - Otherwise every key that can change applies from the next request, ingest batch, connection
//!   and handshake on, even if other keys need a restart. These files are read again in any case.
//! - Work in progress keeps the settings that it started with. Nothing waits for a reload, and no
//!   data is lost by one.
//!
//! Reloads run one at a time, in the order of the requests.

use std::fs::File;
use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::task::JoinError;

use super::files::within_files;
use config::reload::{Change, ReloadConflict, changes, fits, taken_over};
use config::{Config, ConfigErrors, Decoding, Loaded, Setter};
use ingest::{http, listen};
use model::Clock;
use net::access::{Credentials, GrantDefaults, Jwt, JwtKeysError, TokensError};
use net::tls::TlsError;
use net::tls::{Certificates, Files, Loaded as LoadedTls};
use query::admin::{self, Health, TokenSource};
use telemetry::metrics::{PortName, ReloadResult};
use telemetry::{audit, log, metrics};

/// Applies changed settings. Clones share the state.
#[derive(Clone)]
pub struct Reloader(Arc<Mutex<Running>>);

/// The running parts that a reload can change.
pub(super) struct Running {
    pub(super) config: Config,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) health: Arc<Health>,
    pub(super) decoding: Setter<Decoding>,
    pub(super) http: Option<http::Renewal>,
    pub(super) admin: admin::Renewal,
    pub(super) readers: TokenSource,
    pub(super) grants: GrantDefaults,
    pub(super) devices: Option<listen::Renewal>,
}

/// Settings and files that were read and checked.
struct Ready {
    config: Config,
    of_http: Option<Arc<Credentials>>,
    of_readers: Option<Arc<Credentials>>,
    of_devices: Option<Credentials>,
    certificates: Vec<(Certificates, LoadedTls)>,
    audit: Option<File>,
}

/// Why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error(transparent)]
    Conflict(#[from] ReloadConflict),
    #[error(transparent)]
    Tokens(#[from] TokensError),
    #[error(transparent)]
    Jwt(#[from] JwtKeysError),
    #[error("{port}: {source}")]
    Certificates {
        port: PortName,
        source: Box<TlsError>,
    },
    #[error(transparent)]
    Audit(#[from] audit::AuditError),
    #[error(transparent)]
    Level(#[from] log::LogError),
    #[error(transparent)]
    Task(#[from] JoinError),
}

/// The result of a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reloaded {
    /// Every changed key was applied; empty if none changed.
    Applied(Vec<Change>),
    /// Some keys need a restart; the others were applied.
    RestartNeeded(Vec<Change>),
    /// The configuration has an error, and nothing was changed.
    Invalid(String),
}

impl Reloaded {
    fn result(&self) -> ReloadResult {
        match self {
            Reloaded::Applied(_) => ReloadResult::Applied,
            Reloaded::RestartNeeded(_) => ReloadResult::RestartNeeded,
            Reloaded::Invalid(_) => ReloadResult::Invalid,
        }
    }

    /// The text for the service manager.
    pub fn status(&self) -> &'static str {
        match self {
            Reloaded::Applied(_) => "configuration reloaded",
            Reloaded::RestartNeeded(_) => {
                "configuration reloaded; some keys need a restart, see the log"
            }
            Reloaded::Invalid(_) => {
                "new configuration invalid, see the log; the previous one stays in effect"
            }
        }
    }
}

impl Reloader {
    pub(super) fn new(running: Running) -> Reloader {
        let at_ms = running.clock.now().wall_ms;
        let mut state = running.health.config_state();
        state.taken_over_ms = Some(at_ms);
        running.health.config(state);
        metrics::config_last_reload_success_timestamp_seconds((at_ms / 1000) as f64);
        metrics::config_last_reload_successful(true);
        Reloader(Arc::new(Mutex::new(running)))
    }

    /// Detaches from the ports, which stop. They no longer change, and their admission handles are
    /// dropped.
    pub(super) async fn end(&self) {
        let mut running = self.0.lock().await;
        (running.http, running.devices) = (None, None);
    }

    /// Reads the settings with `load`, applies what can change, and logs the result.
    pub async fn reload(
        &self,
        load: impl FnOnce() -> Result<Loaded, ConfigErrors> + Send + 'static,
    ) -> Reloaded {
        let mut running = self.0.lock().await;
        let done = match load_config(load).await {
            Ok(new) => running.take_over(&new).await,
            Err(why) => Err(why),
        };
        let done = match done {
            Ok(found) if found.iter().any(|change| change.waits.is_some()) => {
                Reloaded::RestartNeeded(found)
            }
            Ok(found) => Reloaded::Applied(found),
            Err(error) => Reloaded::Invalid(error.to_string()),
        };
        running.report(&done);
        done
    }
}

async fn load_config(
    load: impl FnOnce() -> Result<Loaded, ConfigErrors> + Send + 'static,
) -> Result<Config, ReloadError> {
    // Files may be on a slow disk.
    let read = || load().map(|loaded| (loaded.exposed_secrets(), loaded.config));
    let (exposed, config) = tokio::task::spawn_blocking(read).await??;
    exposed
        .iter()
        .for_each(|warning| tracing::warn!(%warning, "configuration warning"));
    Ok(config)
}

impl Running {
    /// Applies what can change. Returns all changed keys, applied or not.
    async fn take_over(&mut self, new: &Config) -> Result<Vec<Change>, ReloadError> {
        let found = changes(&self.config, new);
        let config = taken_over(&self.config, new);
        fits(&config)?;
        let ready = self.prepare(config).await?;
        log::set_level(&ready.config.log.level)?;
        // Nothing can fail from here on.
        audit::put(&ready.config.audit, ready.audit);
        for (certificates, loaded) in ready.certificates {
            certificates.put(loaded);
        }
        let fitted = within_files(&ready.config);
        self.admin.put(&fitted.admin);
        self.readers.replace(ready.of_readers.clone());
        self.admin.revoke(ready.of_readers.as_deref());
        let decoding = ready.config.decoding();
        metrics::ranges(&decoding.ranges);
        if let Some(http) = &mut self.http {
            http.put(&fitted.http, Arc::new(decoding.clone()), ready.of_http);
        }
        if let Some(devices) = &self.devices {
            devices.credentials.set(ready.of_devices);
            devices.connections.put(
                fitted.listen.mqtt.connections,
                fitted.listen.mqtt.proxies.clone(),
            );
        }
        self.decoding.set(decoding);
        self.config = ready.config;
        Ok(found)
    }

    /// Reads the files that the settings name.
    async fn prepare(&self, config: Config) -> Result<Ready, ReloadError> {
        let http = self
            .http
            .as_ref()
            .and_then(|http| http.certificates.clone());
        let devices = self
            .devices
            .as_ref()
            .and_then(|devices| devices.certificates.clone());
        let ports = [
            (http, Files::of_http(&config.http.tls)),
            (
                self.admin.certificates.clone(),
                Files::of_http(&config.admin.tls),
            ),
            (devices, Files::of_devices(&config.listen.mqtt)),
        ];
        let has_devices = self.devices.is_some();
        let grants = self.grants.clone();
        let read = tokio::task::spawn_blocking(move || {
            let jwt = Jwt::load(&config.jwt)?.map(Arc::new);
            let grants = GrantDefaults {
                quota: Some(config.quota.clone()),
                jwt,
                certificates: config.certificates.clone(),
                ..grants
            };
            let of_http = http::credentials(&config.http, &grants)?;
            let of_readers = http::reader_credentials(&config, &grants, of_http.as_deref())?;
            let of_devices = if has_devices {
                listen::credentials(&config.listen.mqtt, &grants)?
            } else {
                None
            };
            let mut certificates = vec![];
            for (port, files) in ports
                .into_iter()
                .filter_map(|(port, files)| Some((port?, files?)))
            {
                let loaded = files.load().map_err(|source| ReloadError::Certificates {
                    port: port.port(),
                    source: Box::new(source),
                })?;
                certificates.push((port, loaded));
            }
            let audit = audit::open(&config.audit)?;
            Ok(Ready {
                config,
                of_http,
                of_readers,
                of_devices,
                certificates,
                audit,
            })
        });
        read.await?
    }

    /// Reports the result: one log line per key and one in total, health and metrics.
    fn report(&self, done: &Reloaded) {
        let detail = match done {
            Reloaded::Invalid(why) => {
                tracing::error!(
                    error = why,
                    "reload failed; the previous configuration stays in effect"
                );
                why.clone()
            }
            Reloaded::Applied(found) | Reloaded::RestartNeeded(found) => {
                for change in found {
                    match change.waits {
                        None => tracing::info!(key = change.key, "setting applied"),
                        Some(why) => tracing::warn!(
                            key = change.key,
                            reason = why,
                            "setting needs a restart"
                        ),
                    }
                }
                let names = |waits: bool| {
                    let keys = found
                        .iter()
                        .filter(|change| change.waits.is_some() == waits);
                    keys.map(|change| change.key.as_str())
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                let done = names(false);
                let waiting = names(true);
                let done = if done.is_empty() {
                    "no key".to_owned()
                } else {
                    done
                };
                let waiting = if waiting.is_empty() {
                    waiting
                } else {
                    format!("; restart needed for {waiting}")
                };
                let detail = format!(
                    "applied: {done}; files of tokens, keys, certificates and the audit log opened \
                     again{waiting}"
                );
                tracing::info!(detail, "configuration reloaded");
                detail
            }
        };
        let result = done.result();
        metrics::config_reloads_total(result, 1);
        metrics::config_last_reload_successful(result != ReloadResult::Invalid);
        let at_ms = self.clock.now().wall_ms;
        let mut state = self.health.config_state();
        state.reload = Some((at_ms, result.as_str(), detail));
        if result != ReloadResult::Invalid {
            state.taken_over_ms = Some(at_ms);
            metrics::config_last_reload_success_timestamp_seconds((at_ms / 1000) as f64);
        }
        self.health.config(state);
    }
}
