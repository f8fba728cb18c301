//! Sending readings to another instance instead of MongoDB: `[forward]`.

use std::path::PathBuf;
use std::time::Duration;

use super::check::{check_pair, impossible};
use super::declare::settings;
use super::kinds::{Kind, choice, count, duration, file, path_in_quotes, size};
use super::reader::{Bad, Report, SecretFileError, read_secret, wrong};
use super::tree::Node;
use super::units::{GIB, KIB, MIB, MINUTE, SECOND};
use super::{AckMode, Config, Secret, Store};

settings! {
    /// With url, this instance is the one of a site: it takes readings as ever and sends them to
    /// another instance, the centre, in place of MongoDB (docs/forwarding.md). Then [store] and what
    /// works on stored readings is not used here.
    pub struct Forward, restart("the stage behind the journal is started with it") {
        /// The centre: http:// or https://, and the host and port of its http.listen.
        url: Option<String> = None, Kind::new("URL, such as `\"https://centre.example:8080\"`", url)
            .optional(), example("\"https://centre.example:8080\"");
        /// A file that holds only the token, as `hourbucket tokens add ID --forward` prints it at the
        /// centre; it is read again for each request.
        token_file: Option<PathBuf> = None,
            Kind::new("path of a file that holds a secret", path_in_quotes).optional(),
            example("\"forward-token\"");
        /// Trusted certificates (PEM) for https; absent: those of Mozilla's list.
        ca_file: Option<PathBuf> = None, file().optional(), example("\"ca.pem\"");
        /// Client certificate chain and key (PEM), for a centre that requires one.
        cert_file: Option<PathBuf> = None, file().optional(), example("\"client.pem\"");
        key_file: Option<PathBuf> = None, file().optional(), example("\"client.key\"");
        /// The largest body before compression; at most http.body_max_bytes of the centre. If the
        /// centre answers 413, smaller ones are sent.
        batch_max_bytes: u64 = MIB, size(16 * KIB..=64 * MIB);
        /// How long the oldest reading of a body waits for others. Longer means fewer and smaller
        /// bytes on the wire.
        linger: Duration = SECOND, duration(Duration::ZERO..=10 * MINUTE);
        /// "zstd", or "none".
        compression: ForwardCompression = ForwardCompression::Zstd,
            choice(ForwardCompression::NAMES);
        /// Bytes of bodies per second, for a metered uplink. 0: no limit.
        rate_max: Option<u64> = None, size(0..=GIB);
        /// Requests in flight. Those of one sensor follow each other, so each has the readings of
        /// other sensors.
        window: usize = 2, count(1..=64);
        /// What goes first after an outage: "oldest", or "newest": what is journaled now, and beside it,
        /// in one more request, what has waited for more than a minute. Then the readings of a sensor
        /// do not arrive in order, and bodies of other instances are refused (409).
        order: ForwardOrder = ForwardOrder::Oldest, choice(ForwardOrder::NAMES);
        /// Size of the file `rejected` in journal.dir: readings that the centre rejects, and messages
        /// that cannot be decoded. The commands dead-letters list, replay and purge work on it.
        /// Beyond this size the oldest are dropped and counted.
        rejected_max_bytes: u64 = 64 * MIB, size(64 * KIB..=64 * GIB);
    }
}

model::closed_set! {
    /// How bodies are compressed.
    pub enum ForwardCompression {
        /// With zstd.
        Zstd => "zstd",
        /// Not at all.
        None => "none",
    }
}

model::closed_set! {
    /// What is forwarded first.
    pub enum ForwardOrder {
        /// In the order of the journal.
        Oldest => "oldest",
        /// What is journaled now.
        Newest => "newest",
    }
}

impl Forward {
    /// Whether this instance forwards.
    pub fn is_on(&self) -> bool {
        self.url.is_some()
    }

    /// The current token.
    ///
    /// # Errors
    /// The file is unusable now.
    pub fn token_now(&self) -> Result<Option<Secret>, SecretFileError> {
        let path = self.token_file.as_deref();
        path.map(|path| read_secret(path).map(Secret::new))
            .transpose()
    }

    /// What a command says that works on stored readings: where to ask.
    pub fn elsewhere(&self) -> Option<String> {
        self.url.as_ref().map(|url| {
            format!(
                "this instance forwards its readings to {url} (forward.url) and stores none; ask \
                 there"
            )
        })
    }
}

fn url(node: &Node) -> Result<String, Bad> {
    let text = node
        .text()
        .ok_or_else(|| wrong(node, "write a URL in quotes"))?;
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    let authority = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_host = |host: &str| {
        let name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        let address = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        match address {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(name),
        }
    };
    let is_valid = authority.is_some_and(|authority| match authority.rsplit_once(':') {
        Some((host, digits)) if !digits.ends_with(']') => is_host(host) && port(digits),
        _ => is_host(authority),
    });
    if is_valid {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        // Without the text, which may hold a password.
        Err(Bad::new(
            "it is not http:// or https://, host and port",
            "write http://HOST:PORT or https://HOST:PORT of the centre, without user, password and \
             path; the token belongs into token_file",
        ))
    }
}

/// Reports combinations with `[forward]` that cannot work.
pub(super) fn combinations(config: &Config, report: &mut Report) {
    let forward = &config.forward;
    check_pair(
        "forward",
        "a client certificate is",
        [&forward.cert_file, &forward.key_file],
        report,
    );
    if let Some(Err(error)) = forward.token_file.as_deref().map(read_secret) {
        report.bad("forward.token_file", error.into());
    }
    let is_plain = forward
        .url
        .as_ref()
        .is_some_and(|url| url.starts_with("http://"));
    // A copy of the shipped file has the default.
    let has_store = config.store.uri != Store::default().uri;
    impossible! { report;
        forward.is_on() && has_store => ["forward.url", "store.uri"],
            "readings are either forwarded to another instance or stored in MongoDB",
            "remove store.uri here and set it at the centre, or remove [forward]";
        forward.is_on() && config.ingest.ack == AckMode::Stored => ["forward.url", "ingest.ack"],
            "what is forwarded is acknowledged once it is in the journal",
            "remove ingest.ack, or write \"journal\"";
        is_plain && forward.ca_file.is_some() => ["forward.ca_file", "forward.url"],
            "the connection is not encrypted, so there is no certificate to check",
            "write https:// in url, or remove ca_file";
        is_plain && forward.cert_file.is_some() => ["forward.cert_file", "forward.url"],
            "the connection is not encrypted, so no client certificate can be presented",
            "write https:// in url, or remove cert_file and key_file";
    }
}
