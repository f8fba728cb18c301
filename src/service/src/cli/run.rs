//! The command `run`: the service until a signal.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::output::{CONFIG_UNUSABLE, fail};
use super::{dead_letters, disk};
use crate::app::Service;
use crate::shutdown;
use crate::systemd::Notifier;
use config::{AckMode, Config};
use decode::RejectReason;
use model::{Clock, SystemClock};
use pipeline::accumulate::state::RejectCause;
use store::{NoStore, Store, StoreErrorKind};
use telemetry::metrics::{self, Source};
use telemetry::{audit, log};

/// `storing`: the runtime of the stages after the journal, unless senders wait for these.
pub(super) async fn run(
    loaded: config::Loaded,
    path: Option<PathBuf>,
    storing: Handle,
) -> ExitCode {
    if let Err(error) = log::init(&loaded.config.log) {
        return fail(error);
    }
    match audit::open(&loaded.config.audit) {
        Ok(file) => audit::put(&loaded.config.audit, file),
        Err(error) => return fail(error),
    }
    if let Err(error) = metrics::install() {
        return fail(error);
    }
    start_series();
    let handlers = || {
        shutdown::survive_file_size_limit()?;
        Ok((shutdown::signal()?, shutdown::hangups()?))
    };
    let (signal, mut hangups) = match handlers() {
        Ok(both) => both,
        Err::<_, std::io::Error>(error) => return fail(format!("signal handlers: {error}")),
    };
    let exposed = loaded.exposed_secrets();
    let config = loaded.config;
    let file = loaded
        .file
        .map_or_else(|| "none, defaults".to_owned(), |f| f.display().to_string());
    let journal = disk::absolute(&config.journal.dir).display().to_string();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config = file,
        journal,
        "starting"
    );
    for warning in config
        .warnings()
        .iter()
        .chain(&exposed)
        .chain(&config.exposed_journal())
    {
        tracing::warn!(%warning, "configuration warning");
    }
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let storing = match config.ingest.ack {
        AckMode::Journal => storing,
        AckMode::Stored => Handle::current(),
    };
    let store = match open_store(&config, &storing).await {
        Ok(store) => store,
        Err(code) => return code,
    };
    let notifier = Notifier::new(&config::manager()).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET)");
        Notifier::default()
    });
    match Service::start_watched(config, store, clock, notifier, storing).await {
        Ok(service) => {
            let reloader = service.reloader();
            let notifier = service.notifier();
            tokio::spawn(async move {
                while hangups.recv().await.is_some() {
                    notifier.reloading().await;
                    let path = path.clone();
                    let done = reloader
                        .reload(move || config::load(path.as_deref(), config::environment()))
                        .await;
                    notifier.ready(done.status()).await;
                }
            });
            let ended = service.run_until(signal).await;
            audit::close();
            ExitCode::from(ended.exit_code())
        }
        Err(error) => {
            tracing::error!(%error, "cannot start");
            ExitCode::FAILURE
        }
    }
}

/// The store of the configuration; none of an instance that forwards.
async fn open_store(config: &Config, storing: &Handle) -> Result<Arc<dyn Store>, ExitCode> {
    if let Some(elsewhere) = config.forward.elsewhere() {
        return Ok(Arc::new(NoStore::new(elsewhere)));
    }
    // There, because the driver opens its connections in the runtime that its client began in.
    let of_store = config.clone();
    let opened = storing.spawn(async move { super::store(&of_store).await });
    match opened.await {
        Ok(Ok(store)) => Ok(Arc::new(store)),
        Ok(Err(error)) if error.is_permanent() => {
            fail(error);
            Err(ExitCode::from(CONFIG_UNUSABLE))
        }
        Ok(Err(error)) => Err(fail(error)),
        Err(panic) => Err(fail(panic)),
    }
}

/// Starts the series at zero whose labels are values of crates above `telemetry`. A rate misses the
/// event with which a counter appears.
fn start_series() {
    for reason in dead_letters::reasons() {
        metrics::dead_letters_total(reason, 0);
    }
    for kind in StoreErrorKind::ALL {
        metrics::store_errors_total(kind, 0);
    }
    net::http::start_series();
    ingest::listen::start_series();
    // These are about acknowledged readings, and `queue_full` about messages that no sender repeats
    // (QoS 0).
    for cause in RejectCause::ALL {
        metrics::readings_rejected_total(Source::Store, cause, 0);
    }
    metrics::readings_rejected_total(Source::Mqtt, RejectReason::QueueFull, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_other_crates_are_there_before_their_first_event() {
        metrics::install().unwrap();
        start_series();
        let text = metrics::render();
        for series in [
            "hourbucket_dead_letters_total{reason=\"too_old\"}",
            "hourbucket_store_errors_total{kind=\"no_primary\"}",
            "hourbucket_quota_exceeded_total{limit=\"readings\"}",
            "hourbucket_http_connections_refused_total{port=\"admin\",reason=\"proxy_header\"}",
            "hourbucket_auth_failures_total{port=\"http\",reason=\"invalid_jwt\"}",
            "hourbucket_auth_failures_total{port=\"listen.mqtt\",reason=\"jwt\"}",
            "hourbucket_readings_rejected_total{source=\"store\",reason=\"quarantined\"}",
            "hourbucket_readings_rejected_total{source=\"store\",reason=\"readings_removed\"}",
            "hourbucket_readings_rejected_total{source=\"mqtt\",reason=\"queue_full\"}",
        ] {
            assert!(text.contains(&format!("\n{series} ")), "{series} in {text}");
        }
    }
}
