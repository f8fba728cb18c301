//! `hourbucket check`: checks that everything the configuration names can be used, one line each.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};

use super::disk;
use super::journal::{brief, describe};
use config::{AckMode, Config};
use ingest::mqtt;
use journal::Report;
use model::{Clock, SystemClock};
use store::mongo::{MongoStore, StoreConfigError};

/// A problem that only this command looks for.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("{}", describe(.0))]
    Journal(Report),
    #[error("audit.file: {}: {source}; create this directory, writable for the service", parent.display())]
    Audit {
        parent: PathBuf,
        source: std::io::Error,
    },
}

/// The result of one check.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) what: String,
    pub(super) result: Result<String, Box<dyn Error>>,
}

impl Finding {
    /// Whether the check succeeded.
    pub(super) fn good(&self) -> bool {
        self.result.is_ok()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Ok(text) => write!(f, "ok       {:<14} {text}", self.what),
            Err(text) => write!(f, "PROBLEM  {:<14} {text}", self.what),
        }
    }
}

/// Checks everything except the configuration itself, which the caller has loaded. Makes no
/// changes. `store`: `None` if readings are forwarded.
pub(super) async fn check(
    config: &Config,
    store: Option<Result<MongoStore, StoreConfigError>>,
) -> Vec<Finding> {
    let mut findings = match store {
        Some(store) => check_store(store).await,
        None => vec![check_centre(config).await],
    };
    for broker in &config.mqtt {
        let result = mqtt::check(broker).await.map_err(Box::from);
        findings.push(Finding {
            what: "mqtt".into(),
            result,
        });
    }
    if config.ingest.ack == AckMode::Journal {
        findings.extend(disk::check(&config.journal));
        findings.push(check_journal(&config.journal.dir).await);
    }
    findings.extend(check_credentials(config));
    let now_s = SystemClock::new().now().wall_ms / 1000;
    let ports = [
        ("http tls", config.http.enabled.then_some(&config.http.tls)),
        ("admin tls", Some(&config.admin.tls)),
    ];
    for (what, tls) in ports {
        if let Some(result) = tls.and_then(|tls| net::http::check_tls(tls, now_s)) {
            findings.push(Finding {
                what: what.into(),
                result: result.map_err(Box::from),
            });
        }
    }
    if let Some(result) = audit_directory(config) {
        findings.push(Finding {
            what: "audit".into(),
            result: result.map_err(Box::from),
        });
    }
    if config.listen.mqtt.enabled {
        let result = ingest::listen::check(&config.listen.mqtt, now_s);
        findings.push(Finding {
            what: "listen.mqtt".into(),
            result: result.map_err(Box::from),
        });
    }
    findings
}

/// Whether the instance that readings are forwarded to takes them.
async fn check_centre(config: &Config) -> Finding {
    let forward = config.forward.clone();
    let ask = move || -> Result<String, Box<dyn Error + Send + Sync>> {
        let client = forward::Client::new(&forward)?;
        client.check()?;
        Ok(format!("{} takes readings", client.url()))
    };
    let result = tokio::task::spawn_blocking(ask).await;
    Finding {
        what: "forward".into(),
        result: match result {
            Ok(result) => result.map_err(|error| error as Box<dyn Error>),
            Err(panic) => Err(panic.into()),
        },
    }
}

async fn check_store(store: Result<MongoStore, StoreConfigError>) -> Vec<Finding> {
    let mut findings = vec![];
    let server = match store {
        Ok(store) => store.schema().inspect().await.map_err(Box::from),
        Err(error) => Err(Box::from(error)),
    };
    match server {
        Ok((text, warnings)) => {
            findings.push(Finding {
                what: "store".into(),
                result: Ok(text),
            });
            let warning = |w: String| Finding {
                what: "store".into(),
                result: Ok(format!("warning: {w}")),
            };
            findings.extend(warnings.into_iter().map(warning));
        }
        Err(error) => findings.push(Finding {
            what: "store".into(),
            result: Err(error),
        }),
    }
    findings
}

async fn check_journal(dir: &Path) -> Finding {
    let path = disk::absolute(dir);
    if let Err(error) = disk::writable(dir) {
        return Finding {
            what: "journal".into(),
            result: Err(error.into()),
        };
    }
    let dir = dir.to_owned();
    let result =
        match tokio::task::spawn_blocking(move || journal::check(&journal::fs::RealFs, &dir)).await
        {
            Ok(Ok(report)) if report.is_sound() => {
                Ok(format!("{}: {}", path.display(), brief(&report)))
            }
            Ok(Ok(report)) => Err(CheckError::Journal(report).into()),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(error.into()),
        };
    Finding {
        what: "journal".into(),
        result,
    }
}

/// The tokens and the keys of JWTs.
fn check_credentials(config: &Config) -> Vec<Finding> {
    let mut findings = vec![];
    if let Some(path) = config
        .http
        .tokens_file
        .as_ref()
        .filter(|_| config.http.enabled)
    {
        let result = net::access::Tokens::load(
            "http.tokens_file",
            path,
            &net::access::GrantDefaults::unlimited(),
        );
        let result = result
            .map(|t| format!("{} tokens", t.len()))
            .map_err(Box::from);
        findings.push(Finding {
            what: "http tokens".into(),
            result,
        });
    }
    match net::access::Jwt::load(&config.jwt) {
        Ok(None) => {}
        Ok(Some(jwt)) => findings.push(Finding {
            what: "jwt".into(),
            result: Ok(format!("{} keys", jwt.len())),
        }),
        Err(error) => findings.push(Finding {
            what: "jwt".into(),
            result: Err(error.into()),
        }),
    }
    findings
}

/// Whether the directory of the audit file exists; the file itself is made at the start.
fn audit_directory(config: &Config) -> Option<Result<String, CheckError>> {
    let path = config.audit.file.as_ref()?;
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let found = std::fs::metadata(parent).map(|_| path.display().to_string());
    Some(found.map_err(|source| CheckError::Audit {
        parent: parent.to_owned(),
        source,
    }))
}
