//! `hourbucket check`: checks that everything the configuration names can be used, one line each.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::config::{AckMode, Config};
use crate::ingest::mqtt;
use crate::journal::{self, Report, Salvaged, SegmentReport};
use crate::model::{Clock, SystemClock};
use crate::store::mongo::{MongoStore, StoreConfigError};

/// Time for a broker to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// The result of one check.
#[derive(Debug)]
pub(super) struct Finding {
    what: String,
    result: Result<String, Box<dyn Error>>,
}

/// A problem that only this command looks for.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("{}", describe(.0))]
    Journal(Report),
    #[error("{address}: {source}; check that the broker is running, and mqtt.url")]
    Broker { address: String, source: std::io::Error },
    #[error("{address}: no answer within {CONNECT:?}")]
    BrokerTimeout { address: String },
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

/// Checks everything except the configuration itself, which the caller has loaded. Makes no changes.
pub(super) async fn check(config: &Config, store: Result<MongoStore, StoreConfigError>) -> Vec<Finding> {
    let mut findings = vec![];
    let server = match store {
        Ok(store) => store.inspect().await.map_err(Box::from),
        Err(error) => Err(Box::from(error)),
    };
    match server {
        Ok((text, warnings)) => {
            findings.push(Finding { what: "store".into(), result: Ok(text) });
            let warning = |w: String| Finding { what: "store".into(), result: Ok(format!("warning: {w}")) };
            findings.extend(warnings.into_iter().map(warning));
        }
        Err(error) => findings.push(Finding { what: "store".into(), result: Err(error) }),
    }
    for broker in &config.mqtt {
        findings.push(Finding { what: "mqtt".into(), result: reachable(&broker.url).await });
    }
    if config.ingest.ack == AckMode::Journal {
        let dir = config.journal.dir.clone();
        let result = match tokio::task::spawn_blocking(move || journal::check(&journal::fs::RealFs, &dir)).await {
            Ok(Ok(report)) if report.is_sound() => Ok(brief(&report)),
            Ok(Ok(report)) => Err(CheckError::Journal(report).into()),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(error.into()),
        };
        findings.push(Finding { what: "journal".into(), result });
    }
    if let Some(path) = config.http.tokens_file.as_ref().filter(|_| config.http.enabled) {
        let result = crate::access::Tokens::load("http.tokens_file", path, &crate::access::GrantDefaults::unlimited());
        let result = result.map(|t| format!("{} tokens", t.len())).map_err(Box::from);
        findings.push(Finding { what: "http tokens".into(), result });
    }
    let now_s = SystemClock::new().now().wall_ms / 1000;
    let ports = [("http tls", config.http.enabled.then_some(&config.http.tls)), ("admin tls", Some(&config.admin.tls))];
    for (what, tls) in ports {
        if let Some(result) = tls.and_then(|tls| crate::ingest::http::check_tls(tls, now_s)) {
            findings.push(Finding { what: what.into(), result: result.map_err(Box::from) });
        }
    }
    if config.listen.mqtt.enabled {
        let result = crate::ingest::listen::check(&config.listen.mqtt, now_s);
        findings.push(Finding { what: "listen.mqtt".into(), result: result.map_err(Box::from) });
    }
    findings
}

/// The journal in one line.
fn brief(report: &Report) -> String {
    if report.in_use {
        return "in use by a running hourbucket".into();
    }
    let sum = |f: fn(&SegmentReport) -> u64| report.segments.iter().map(f).sum::<u64>();
    let (bytes, readings) = (sum(|s| s.bytes), sum(|s| s.readings));
    format!("{} segments, {bytes} bytes, {readings} readings", report.segments.len())
}

/// The journal in full: one line per segment and per problem.
pub(super) fn describe(report: &Report) -> String {
    let mut lines = vec![brief(report)];
    for s in &report.segments {
        let torn = s.cut.map(|cut| format!(", its last write is incomplete; the next start cuts off {cut}"));
        let torn = torn.unwrap_or_default();
        let (path, (first, end)) = (s.path.display(), s.sequences);
        lines.push(format!(
            "{path}: {} bytes, entries {first}..{end}, {} readings, {} dead letters{torn}",
            s.bytes, s.readings, s.dead_letters
        ));
    }
    lines.extend(report.problems.iter().map(|damage| format!("damage: {damage}")));
    for (path, fault) in &report.other_format {
        lines.push(format!("{}: {fault}", path.display()));
    }
    if !report.is_sound() {
        lines.push("to repair: `hourbucket journal salvage` moves damaged segments aside and keeps the rest".into());
    }
    lines.join("\n")
}

/// The result of a salvage, one line per segment moved and per range lost.
pub(super) fn describe_salvage(salvaged: &Salvaged) -> String {
    if salvaged.moved.is_empty() {
        return "no damage found; nothing was changed".into();
    }
    let moved = salvaged.moved.iter().map(|p| format!("moved aside: {}", p.display()));
    let lost = salvaged.lost.iter().map(|(first, end)| format!("lost: entries {first}..{end}"));
    moved.chain(lost).collect::<Vec<_>>().join("\n")
}

/// Whether the broker's address accepts connections. Opens no session, which would end the one of the service.
async fn reachable(url: &str) -> Result<String, Box<dyn Error>> {
    let address = mqtt::address(url)?;
    match tokio::time::timeout(CONNECT, TcpStream::connect(&address)).await {
        Ok(Ok(_)) => Ok(format!("{address} accepts connections")),
        Ok(Err(source)) => Err(CheckError::Broker { address, source }.into()),
        Err(_) => Err(CheckError::BrokerTimeout { address }.into()),
    }
}
