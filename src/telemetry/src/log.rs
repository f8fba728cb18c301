//! The log: written to standard error, as text or as one JSON object per line, filtered by the
//! section `[log]`.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use config::{Log, LogFormat};

/// Libraries whose messages below `warn` are of no use to an operator.
const QUIET: [&str; 7] = [
    "mongodb",
    "rumqttc",
    "hickory_resolver",
    "hickory_proto",
    "rustls",
    "tungstenite",
    "hyper",
];

/// The log cannot be started or changed.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `log.level` is not a valid filter. A checked configuration never has such a value.
    #[error("log.level: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// Another global subscriber is already installed.
    #[error("cannot install the log: {0}")]
    Installed(#[from] TryInitError),
    /// The subscriber no longer exists.
    #[error("cannot change log.level: {0}")]
    Reload(#[from] reload::Error),
}

static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Installs the global log. Call once per process.
///
/// # Errors
/// The filter is invalid, or another log is already installed.
pub fn init(log: &Log) -> Result<(), LogError> {
    let (filter, handle) = reload::Layer::new(EnvFilter::try_new(directives(&log.level))?);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match log.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()?;
    // Only a second call could find it set, and its `try_init` fails above.
    let _ = FILTER.set(handle);
    Ok(())
}

/// Changes the level of the log that [`init`] installed; does nothing if there is none.
///
/// # Errors
/// The filter is invalid.
pub fn set_level(level: &str) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(directives(level))?;
    let handle = FILTER.get();
    handle.map_or(Ok(()), |handle| Ok(handle.reload(filter)?))
}

/// Adds directives that limit the [`QUIET`] libraries to `warn`. The setting follows them and takes
/// precedence: a directive for a library replaces its limit. A general level of `error` or `off` is
/// stricter than `warn`, so nothing is added.
fn directives(level: &str) -> String {
    let mut parts = level.split(',').map(str::trim);
    let general = parts.rfind(|part| !part.contains('=')).unwrap_or("off");
    match general.to_ascii_lowercase().as_str() {
        "off" | "error" => level.to_owned(),
        _ => QUIET.map(|library| format!("{library}=warn,")).concat() + level,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// The text that a log with this setting writes.
    fn written(level: &str) -> String {
        #[derive(Clone, Default)]
        struct Sink(Arc<Mutex<Vec<u8>>>);
        impl Write for Sink {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let sink = Sink::default();
        let out = sink.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::try_new(directives(level)).unwrap())
            .with_writer(move || out.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "hourbucket::app", "ours-info");
            tracing::debug!(target: "hourbucket::app", "ours-debug");
            tracing::warn!(target: "mongodb::cmap", "driver-warn");
            tracing::info!(target: "mongodb::cmap", "driver-info");
            tracing::info!(target: "rumqttc::eventloop", "broker-info");
        });
        let text = sink.0.lock().unwrap().clone();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn libraries_stay_quiet_unless_asked() {
        for (level, visible, hidden) in [
            (
                "info",
                &["ours-info", "driver-warn"][..],
                &["ours-debug", "driver-info", "broker-info"][..],
            ),
            (
                "debug",
                &["ours-info", "ours-debug", "driver-warn"],
                &["driver-info", "broker-info"],
            ),
            (
                "info,mongodb=debug",
                &["ours-info", "driver-info"],
                &["broker-info"],
            ),
            ("info,hourbucket=debug", &["ours-debug"], &["driver-info"]),
            ("error", &[], &["ours-info", "driver-warn"]),
            ("off", &[], &["driver-warn"]),
        ] {
            let text = written(level);
            for word in visible {
                assert!(text.contains(word), "{level}: {word} is missing in {text}");
            }
            for word in hidden {
                assert!(!text.contains(word), "{level}: {word} is in {text}");
            }
        }
    }
}
