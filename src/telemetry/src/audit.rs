//! The audit log: who was refused, lost access, reached a quota, or queried, and from which
//! address.
//!
//! Every event is counted (`hourbucket_audit_events_total`) and written to the normal log with the
//! target `audit`, a few lines a minute of each kind. With `audit.file` it is also written there,
//! one JSON object per line ([`super::audit_file`]), for tools that ban addresses and for the record.
//!
//! A stranger can cause these events any number of times, so:
//! - The file has limits: `audit.lines_per_second` for each kind, so that one kind hides no other,
//!   and 120 a minute for each kind and address, so that one address hides no other.
//! - Nothing waits for the disk: lines that find the queue full are dropped.
//! - Omitted lines are counted in the file itself and in `hourbucket_audit_dropped_total`.
//! - Texts from outside are cut, and hold no control characters. No event has a secret: the callers
//!   pass ids, never what was presented as a secret.
//!
//! Global to the process, like the log and the metrics.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use serde::Serialize;

use super::audit_file::AuditFile;
pub use super::audit_limits::AuditKind;
use super::audit_limits::FileLimits;
use super::log_limit::LineLimit;
use super::metrics::{self, PortName};
use model::{Clock, SystemClock, rfc3339};

/// Characters of a text from outside.
const TEXT_CHARS_MAX: usize = 200;

/// An event. Fields that do not apply are empty.
#[derive(Debug, Clone, Copy)]
pub struct AuditEvent<'a> {
    /// Each kind has its own limit of lines.
    pub kind: AuditKind,
    /// The port that it came to.
    pub port: PortName,
    /// The address of the other side; behind a trusted proxy, the one that the proxy names.
    pub peer: SocketAddr,
    /// Machine-readable; one of a fixed set.
    pub reason: &'static str,
    /// The id of its token, if it is known.
    pub token: &'a str,
    /// The client id of an MQTT device, as it may be shown.
    pub client: &'a str,
    /// For people: the path of a query, or why in words.
    pub detail: &'a str,
    /// The status of the answer to a query.
    pub status: Option<u16>,
}

impl<'a> AuditEvent<'a> {
    /// An event without a token, a client, a detail and a status.
    pub fn new(
        kind: AuditKind,
        port: PortName,
        peer: SocketAddr,
        reason: &'static str,
    ) -> AuditEvent<'a> {
        AuditEvent {
            kind,
            port,
            peer,
            reason,
            token: "",
            client: "",
            detail: "",
            status: None,
        }
    }

    /// Adds the id of the token, never its secret.
    pub fn token(self, token: &'a str) -> AuditEvent<'a> {
        AuditEvent { token, ..self }
    }

    /// Adds the client id of an MQTT device; cut to 200 characters when it is written.
    pub fn client(self, client: &'a str) -> AuditEvent<'a> {
        AuditEvent { client, ..self }
    }

    /// Adds a text for people; cut to 200 characters when it is written.
    pub fn detail(self, detail: &'a str) -> AuditEvent<'a> {
        AuditEvent { detail, ..self }
    }

    /// Counts and logs it. Never waits.
    pub fn record(self) {
        AUDIT.record(&self);
    }

    /// One JSON object. Texts that the other side chooses are at the end, so that a pattern for the
    /// beginning is safe.
    fn line(&self, now_ms: i64) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            ts: String,
            event: &'a str,
            address: IpAddr,
            #[serde(skip_serializing_if = "Option::is_none")]
            address_port: Option<u16>,
            port: &'a str,
            reason: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<u16>,
            #[serde(skip_serializing_if = "String::is_empty")]
            token: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            client: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            detail: String,
        }
        let line = Line {
            ts: rfc3339(now_ms),
            event: self.kind.as_str(),
            address: self.peer.ip().to_canonical(),
            address_port: Some(self.peer.port()).filter(|port| *port > 0),
            port: self.port.as_str(),
            reason: self.reason,
            status: self.status,
            token: bounded(self.token),
            client: bounded(self.client),
            detail: bounded(self.detail),
        };
        // Texts and numbers only.
        serde_json::to_string(&line).unwrap_or_default()
    }
}

/// JSON escapes control characters below 32, but neither DEL nor those of C1, which terminals
/// understand as well.
fn bounded(text: &str) -> String {
    text.chars()
        .take(TEXT_CHARS_MAX)
        .collect::<String>()
        .replace(|c: char| c.is_control() && c >= ' ', "\u{fffd}")
}

/// The audit log of the process.
struct Audit {
    clock: SystemClock,
    /// Of the normal log, by kind.
    log: [LineLimit; AuditKind::ALL.len()],
    file: AuditFile,
}

static AUDIT: LazyLock<Audit> = LazyLock::new(Audit::new);

/// Opens the file of the section, if it names one, to append to it. Only the owner may read a new
/// one.
///
/// # Errors
/// It cannot be opened.
pub fn open(settings: &config::Audit) -> Result<Option<File>, AuditError> {
    use std::os::unix::fs::OpenOptionsExt as _;

    let Some(path) = &settings.file else {
        return Ok(None);
    };
    let mut options = File::options();
    options.append(true).create(true).mode(0o600);
    let path = path.clone();
    let opened = options.open(&path);
    opened
        .map(Some)
        .map_err(|source| AuditError { path, source })
}

/// Appends the line of a command that changes stored data to the file of the section, if it names one.
///
/// # Errors
/// It cannot be opened or written.
pub fn append(
    settings: &config::Audit,
    event: &str,
    details: &serde_json::Map<String, serde_json::Value>,
) -> Result<(), AuditError> {
    use std::io::Write as _;

    let (Some(path), Some(mut file)) = (&settings.file, open(settings)?) else {
        return Ok(());
    };
    let ts = rfc3339(SystemClock::new().now().wall_ms);
    let mut line = serde_json::json!({ "ts": ts, "event": event });
    if let Some(line) = line.as_object_mut() {
        line.extend(details.clone());
    }
    let path = path.clone();
    file.write_all(format!("{line}\n").as_bytes())
        .map_err(|source| AuditError { path, source })
}

/// The file of the audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("audit.file: cannot open {} to append to it: {source}", path.display())]
pub struct AuditError {
    path: std::path::PathBuf,
    source: std::io::Error,
}

/// Writes to this file from now on, or to none. Also after a rotation, which has given the file
/// another name.
pub fn put(settings: &config::Audit, file: Option<File>) {
    AUDIT.file.put(file, settings.lines_per_second);
}

/// Logs the numbers of lines that were left out of the normal log, if their minute is over.
pub fn log_suppressed() {
    let now_ms = AUDIT.clock.now().mono_ms;
    AUDIT.log.iter().for_each(|limit| limit.end(now_ms));
}

/// The same at the end of the process; also waits a moment until the file has everything.
pub fn close() {
    AUDIT.log.iter().for_each(|limit| limit.end(u64::MAX));
    AUDIT.file.drain();
}

impl Audit {
    fn new() -> Audit {
        Audit {
            clock: SystemClock::new(),
            log: AuditKind::ALL.map(|kind| LineLimit::new(kind.as_str())),
            file: AuditFile::new(FileLimits::new(0)),
        }
    }

    fn record(&self, event: &AuditEvent<'_>) {
        metrics::audit_events_total(event.kind, 1);
        let now = self.clock.now();
        self.log[event.kind as usize].line(now.mono_ms, || log(event));
        self.file.write(
            |limits| limits.allow(event.kind, event.peer.ip(), now.mono_ms),
            || event.line(now.wall_ms),
        );
    }
}

/// The line of the normal log.
fn log(event: &AuditEvent<'_>) {
    let given = |text: &'_ str| Some(bounded(text)).filter(|text| !text.is_empty());
    let token = given(event.token);
    let client = given(event.client);
    let detail = given(event.detail);
    macro_rules! line {
        ($level:ident, $text:literal) => {
            tracing::$level!(target: "audit", port = event.port.as_str(), peer = %event.peer,
                reason = event.reason, token, client, detail, status = event.status, $text)
        };
    }
    match event.kind {
        AuditKind::AuthFailed => line!(warn, "authentication failed"),
        AuditKind::AddressPaused => line!(warn, "address paused after failed authentications"),
        AuditKind::ConnectionRefused => line!(warn, "connection refused"),
        AuditKind::QuotaExceeded => line!(warn, "quota exceeded"),
        AuditKind::AccessEnded => line!(warn, "connection ended: its access has ended"),
        AuditKind::Query => line!(info, "query"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(client: &str) -> AuditEvent<'_> {
        let peer = "192.0.2.7:4711".parse().unwrap();
        AuditEvent::new(
            AuditKind::AuthFailed,
            PortName::Mqtt,
            peer,
            "wrong_credentials",
        )
        .client(client)
    }

    #[test]
    fn a_line_is_one_json_object_whatever_the_texts_are() {
        let line = event("a\"\n\u{1b}[31m\u{9b}31m\u{7f}é").line(1_732_312_345_678);
        assert_eq!(
            line,
            "{\"ts\":\"2024-11-22T21:52:25.678Z\",\"event\":\"auth_failed\",\"address\":\"192.0.2.7\",\"address_port\":4711,\
             \"port\":\"listen.mqtt\",\"reason\":\"wrong_credentials\",\"client\":\"a\\\"\\n\\u001b[31m\u{fffd}31m\u{fffd}é\"}"
        );
        assert!(!line.contains(|c: char| c.is_control()));
        let long = event(&"ä".repeat(100_000)).line(0);
        assert!(long.len() < 1000, "{}", long.len());
        let mapped = AuditEvent {
            peer: "[::ffff:192.0.2.7]:0".parse().unwrap(),
            ..event("")
        }
        .line(0);
        assert!(
            mapped.contains("\"address\":\"192.0.2.7\",\"port\""),
            "{mapped}"
        );
    }
}
