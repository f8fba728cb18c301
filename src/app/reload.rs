//! The settings read again while the service runs (SIGHUP): all of them are read and checked, then what can change is
//! taken over and the rest is named.
//!
//! - Anything wrong, in the settings or in the tokens and certificates that they name: nothing at all is changed.
//! - Else every key that can change holds from the next request, ingest batch, connection and handshake on, also where others
//!   have to wait for a restart. Files of tokens and certificates are read again in any case.
//! - What is in work keeps what it began with. Nothing waits for a reload, and nothing is lost by one.
//!
//! One reload at a time, in the order in which they are asked for.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::{StartError, start_error};
use crate::admin::{Health, TokenSource};
use crate::config::reload::{Change, changes, fits, taken_over};
use crate::config::{Config, ConfigErrors, Decoding, Loaded, Setter};
use crate::ingest::tls::{Certificates, Files, Loaded as LoadedTls};
use crate::ingest::tokens::Tokens;
use crate::ingest::{http, listen};
use crate::model::Clock;
use crate::telemetry::{log, metrics};

/// Takes settings over; shared.
#[derive(Clone)]
pub struct Reloader(Arc<Mutex<Running>>);

/// What runs, as far as it can be changed.
pub(super) struct Running {
    pub(super) config: Config,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) health: Arc<Health>,
    pub(super) decoding: Setter<Decoding>,
    pub(super) http: Option<http::Renewal>,
    pub(super) admin: Option<Certificates>,
    pub(super) readers: TokenSource,
    pub(super) devices: Option<listen::Renewal>,
}

/// What was read and can be used.
struct Ready {
    config: Config,
    http_tokens: Option<Arc<Tokens>>,
    device_tokens: Option<Tokens>,
    certificates: Vec<(Certificates, LoadedTls)>,
}

/// What became of a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reloaded {
    /// Every key that differs was taken over.
    Applied(Vec<Change>),
    /// Some keys have to wait for a restart; the others were taken over.
    RestartNeeded(Vec<Change>),
    /// Something is wrong, and nothing was changed.
    Invalid(String),
}

impl Reloaded {
    /// For the service manager's line.
    pub fn status(&self) -> &'static str {
        match self {
            Reloaded::Applied(_) => "the settings were read again",
            Reloaded::RestartNeeded(_) => "the settings were read again; some need a restart, see the log",
            Reloaded::Invalid(_) => "the new settings cannot be used, see the log; the old ones hold",
        }
    }
}

impl Reloader {
    pub(super) fn new(running: Running) -> Reloader {
        let at_ms = running.clock.now().wall_ms;
        let mut state = running.health.config_state();
        state.taken_over_ms = Some(at_ms);
        running.health.config(state);
        metrics::config_taken_over(at_ms / 1000);
        Reloader(Arc::new(Mutex::new(running)))
    }

    /// Lets go of the ports, which stop: nothing of theirs changes any more, and their handles of the admission go.
    pub(super) async fn end(&self) {
        let mut running = self.0.lock().await;
        (running.http, running.devices) = (None, None);
    }

    /// Reads the settings again by `load` and takes over what can change. Everything is said in the log too.
    pub async fn reload(&self, load: impl FnOnce() -> Result<Loaded, ConfigErrors> + Send + 'static) -> Reloaded {
        let mut running = self.0.lock().await;
        let done = match read(load).await {
            Ok(new) => running.take_over(&new).await,
            Err(why) => Err(why),
        };
        let done = match done {
            Ok(found) if found.iter().any(|change| change.waits.is_some()) => Reloaded::RestartNeeded(found),
            Ok(found) => Reloaded::Applied(found),
            Err(why) => Reloaded::Invalid(why),
        };
        running.tell(&done);
        done
    }
}

async fn read(load: impl FnOnce() -> Result<Loaded, ConfigErrors> + Send + 'static) -> Result<Config, String> {
    // Files may lie on a slow disk.
    let loaded = tokio::task::spawn_blocking(load).await.map_err(|error| error.to_string())?;
    loaded.map(|loaded| loaded.config).map_err(|errors| errors.to_string())
}

impl Running {
    /// Takes over what can change; what differs, taken over or not.
    async fn take_over(&mut self, new: &Config) -> Result<Vec<Change>, String> {
        let (found, config) = (changes(&self.config, new), taken_over(&self.config, new));
        fits(&config)?;
        let ready = self.prepare(config).await?;
        log::set_level(&ready.config.log.level).map_err(|error| error.to_string())?;
        // From here on nothing can fail.
        for (certificates, loaded) in ready.certificates {
            certificates.put(loaded);
        }
        self.readers.replace(ready.http_tokens.clone());
        let decoding = ready.config.decoding();
        if let Some(http) = &mut self.http {
            http.put(&ready.config.http, Arc::new(decoding.clone()), ready.http_tokens);
        }
        if let Some(devices) = &self.devices {
            devices.tokens.set(ready.device_tokens);
        }
        self.decoding.set(decoding);
        self.config = ready.config;
        Ok(found)
    }

    /// Reads the files that the settings name.
    async fn prepare(&self, config: Config) -> Result<Ready, String> {
        let http = self.http.as_ref().and_then(|http| http.certificates.clone());
        let devices = self.devices.as_ref().and_then(|devices| devices.certificates.clone());
        let ports = [
            (http, Files::of_http(&config.http.tls)),
            (self.admin.clone(), Files::of_http(&config.admin.tls)),
            (devices, Files::of_devices(&config.listen.mqtt)),
        ];
        let has_devices = self.devices.is_some();
        let read = tokio::task::spawn_blocking(move || {
            let http_tokens = http::tokens(&config.http).map_err(start_error)?;
            let device_tokens =
                if has_devices { listen::tokens(&config.listen.mqtt).map_err(start_error)? } else { None };
            let mut certificates = vec![];
            for (port, files) in ports.into_iter().filter_map(|(port, files)| Some((port?, files?))) {
                let loaded = files.read().map_err(|error| StartError(format!("{}: {error}", port.port())))?;
                certificates.push((port, loaded));
            }
            Ok::<_, StartError>(Ready { config, http_tokens, device_tokens, certificates })
        });
        read.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    /// Says what became of it: a line for each key, and one for the whole.
    fn tell(&self, done: &Reloaded) {
        let (label, detail) = match done {
            Reloaded::Invalid(why) => {
                tracing::error!("SIGHUP: nothing was changed, the settings before hold: {why}");
                ("invalid", why.clone())
            }
            Reloaded::Applied(found) | Reloaded::RestartNeeded(found) => {
                for change in found {
                    match change.waits {
                        None => tracing::info!(key = change.key, "SIGHUP: taken over"),
                        Some(why) => tracing::warn!(key = change.key, "SIGHUP: not taken over, restart for it: {why}"),
                    }
                }
                let names = |waits: bool| {
                    let keys = found.iter().filter(|change| change.waits.is_some() == waits);
                    keys.map(|change| change.key.as_str()).collect::<Vec<_>>().join(", ")
                };
                let (done, waiting) = (names(false), names(true));
                let is_partly = !waiting.is_empty();
                let done = if done.is_empty() { "no key".to_owned() } else { done };
                let waiting = if waiting.is_empty() { waiting } else { format!("; restart for {waiting}") };
                let detail =
                    format!("taken over: {done}, and the files of tokens and certificates read again{waiting}");
                tracing::info!("SIGHUP: {detail}");
                (if is_partly { "restart_needed" } else { "applied" }, detail)
            }
        };
        metrics::config_reload(label, 1);
        let at_ms = self.clock.now().wall_ms;
        let mut state = self.health.config_state();
        state.reload = Some((at_ms, label, detail));
        if label != "invalid" {
            state.taken_over_ms = Some(at_ms);
            metrics::config_taken_over(at_ms / 1000);
        }
        self.health.config(state);
    }
}
