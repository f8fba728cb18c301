//! The log: to standard error, for people or as one JSON object a line, filtered as `[log]` says.

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::TryInitError;

use crate::config::{Log, LogFormat};

/// Libraries that tell more of their inner life at `info` and below than an operator wants to read.
const QUIET: [&str; 8] =
    ["mongodb", "rumqttc", "hickory_resolver", "hickory_proto", "rustls", "tungstenite", "hyper", "h2"];

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `log.level` is no filter; a checked configuration has none such.
    #[error("log.level: {0}")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// Another log is installed already.
    #[error("the log cannot be installed: {0}")]
    Installed(#[from] TryInitError),
    /// The filter cannot be replaced.
    #[error("log.level cannot be changed: {0}")]
    Reload(#[from] tracing_subscriber::reload::Error),
}

/// Replaces the filter of the log that was started.
type SetFilter = Box<dyn Fn(EnvFilter) -> Result<(), tracing_subscriber::reload::Error> + Send + Sync>;

static SET_FILTER: OnceLock<SetFilter> = OnceLock::new();

/// Starts the log; once a process.
///
/// # Errors
/// The filter is no filter, or another log is installed.
pub fn init(log: &Log) -> Result<(), LogError> {
    use tracing_subscriber::util::SubscriberInitExt as _;

    let filter = EnvFilter::try_new(directives(&log.level))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let set: SetFilter = match log.format {
        LogFormat::Text => {
            let builder = builder.with_ansi(std::io::stderr().is_terminal()).with_filter_reloading();
            let handle = builder.reload_handle();
            builder.finish().try_init()?;
            Box::new(move |filter| handle.reload(filter))
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            builder.finish().try_init()?;
            Box::new(move |filter| handle.reload(filter))
        }
    };
    // Set before only where a log was installed before, which was refused.
    let _ = SET_FILTER.set(set);
    Ok(())
}

/// From now on the log tells so much; nothing where there is no log of ours.
///
/// # Errors
/// The filter is no filter.
pub fn set_level(level: &str) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(directives(level))?;
    SET_FILTER.get().map_or(Ok(()), |set| set(filter)).map_err(LogError::from)
}

/// The filter with the libraries held at `warn`. What the setting says itself stands behind and wins: by name for one
/// library, or by a general level that lets through even less.
fn directives(level: &str) -> String {
    let general = level.split(',').map(str::trim).rfind(|part| !part.contains('=')).unwrap_or("off");
    if ["off", "error"].iter().any(|quiet| general.eq_ignore_ascii_case(quiet)) {
        return level.to_owned();
    }
    QUIET.iter().map(|library| format!("{library}=warn,")).chain([level.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What a log with this setting would write.
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
        for (level, shown, hidden) in [
            ("info", &["ours-info", "driver-warn"][..], &["ours-debug", "driver-info", "broker-info"][..]),
            ("debug", &["ours-info", "ours-debug", "driver-warn"], &["driver-info", "broker-info"]),
            ("info,mongodb=debug", &["ours-info", "driver-info"], &["broker-info"]),
            ("info,hourbucket=debug", &["ours-debug"], &["driver-info"]),
            ("error", &[], &["ours-info", "driver-warn"]),
            ("off", &[], &["driver-warn"]),
        ] {
            let text = written(level);
            for word in shown {
                assert!(text.contains(word), "{level}: {word} is missing in {text}");
            }
            for word in hidden {
                assert!(!text.contains(word), "{level}: {word} is in {text}");
            }
        }
    }
}
