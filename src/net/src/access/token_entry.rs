//! One entry of a tokens file: its keys and their rules. Pure.

use std::sync::Arc;

use chrono::{DateTime, NaiveDate, NaiveTime};

use super::credentials::{own_patterns, valid_identity};
use super::grant::{Grant, Proof, Protocol, Protocols};
use super::quota::{GrantDefaults, Quota, share};
use config::{parse_duration, parse_size};
use model::SensorPatterns;
use model::sensor_patterns::InvalidPattern;

/// Maximum length of a token id.
const TOKEN_ID_MAX_BYTES: usize = 64;

pub(super) type Hash = [u8; 32];

/// A token: the hash of its secret, and its permissions.
#[derive(Debug)]
pub(super) struct Token {
    pub(super) hash: Hash,
    pub(super) grant: Arc<Grant>,
}

/// An entry: a token, a certificate, or both.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) token: Option<Token>,
    /// The grant of the client certificate with this id as its name.
    pub(super) certificate: Option<Arc<Grant>>,
}

/// The rule that an entry of a tokens file breaks. No variant holds anything of the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidToken {
    #[error("is not a table")]
    NotATable,
    #[error(
        "has an unknown key; expected id, sha256 (never the secret itself) or certificate = true, \
         and optionally write, read, via, forward, expires, note, rate"
    )]
    UnknownKey,
    #[error("has no id")]
    NoId,
    #[error("id must be a string")]
    IdNotText,
    #[error("id must be 1 to 64 letters, digits, - or _")]
    Id,
    #[error(
        "id of a certificate must be 1 to 128 letters, digits and characters of - _ . : @ / | + ="
    )]
    CertificateId,
    #[error("has no sha256, and not certificate = true")]
    NoHash,
    #[error("certificate must be true or false")]
    Certificate,
    #[error("sha256 must be a string")]
    HashNotText,
    #[error("sha256 must be 64 hexadecimal digits, the SHA-256 of the secret")]
    Hash,
    #[error(
        "sha256 is the hash of an empty text, so anyone could use the token; give the token a \
         secret with `hourbucket tokens rotate`"
    )]
    EmptySecret,
    #[error("another entry has the same id")]
    SameId,
    #[error("{0} must be a list of patterns, such as [\"{{id}}-*\"]")]
    NotPatterns(&'static str),
    #[error("{0}: {1}")]
    Pattern(&'static str, InvalidPattern),
    #[error("via must be a list of \"http\" and \"mqtt\"")]
    Via,
    #[error("via must not be empty; remove the token instead")]
    ViaEmpty,
    #[error("forward must be true or false")]
    Forward,
    #[error(
        "expires must be a date and time with an offset, such as 2027-01-31T12:00:00Z, or a date"
    )]
    Expires,
    #[error("note must be a string")]
    Note,
    #[error(
        "rate must be a number of readings per second, or a table with keys of [quota]: \
         readings_per_second, bytes_per_second, burst, connections_max, requests_max, \
         journal_share_percent"
    )]
    Rate,
}

/// The SHA-256 of an empty text.
const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn valid_id(id: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    !id.is_empty() && id.len() <= TOKEN_ID_MAX_BYTES && id.bytes().all(allowed)
}

/// The parts of an entry; `None` if it has faults, which are all reported.
pub(super) fn parse_entry(
    entry: &toml::Value,
    defaults: &GrantDefaults,
    senders: usize,
    fault: &mut impl FnMut(InvalidToken),
) -> Option<Entry> {
    const KEYS: [&str; 10] = [
        "id",
        "sha256",
        "certificate",
        "write",
        "read",
        "via",
        "forward",
        "expires",
        "note",
        "rate",
    ];
    let Some(entry) = entry.as_table() else {
        fault(InvalidToken::NotATable);
        return None;
    };
    if entry.keys().any(|key| !KEYS.contains(&&**key)) {
        fault(InvalidToken::UnknownKey);
    }
    let mut part = |result: Result<(), InvalidToken>| result.map_err(&mut *fault).is_ok();
    let is_certificate = parse_flag(entry, "certificate", InvalidToken::Certificate);
    let hash = parse_hash(entry);
    let id = parse_id(entry);
    let own_id = id.unwrap_or_default();
    let write = parse_patterns(entry, "write", own_id);
    let read = parse_patterns(entry, "read", own_id);
    let via = parse_via(entry);
    let forward = parse_flag(entry, "forward", InvalidToken::Forward);
    let expires = parse_expires(entry);
    let note = parse_note(entry);
    let quota = parse_rate(entry, defaults, senders);
    // All of them, also after the first fault.
    let is_valid = [
        part(id.map(drop)),
        part(hash.map(drop)),
        part(is_certificate.map(drop)),
        part(write.as_ref().map(drop).map_err(|e| *e)),
        part(read.as_ref().map(drop).map_err(|e| *e)),
        part(via.map(drop)),
        part(forward.map(drop)),
        part(expires.map(drop)),
        part(note),
        part(quota.as_ref().map(drop).map_err(|e| *e)),
    ];
    if is_valid.contains(&false) {
        return None;
    }
    let grant = Grant {
        id: id.ok()?.into(),
        write: write.ok()?,
        read: read.ok()?,
        via: via.ok()?,
        forward: forward.ok()?,
        expires_ms: expires.ok()?,
        valid_from_ms: None,
        quota: quota.ok()?,
        usage: defaults.usages.find_or_add(own_id),
        proof: Proof::Certificate(defaults.certificates.identity),
    };
    let of_token = |hash| Token {
        hash,
        grant: Arc::new(Grant {
            proof: Proof::Token(hash),
            ..grant.clone()
        }),
    };
    let token = hash.ok()?.map(of_token);
    Some(Entry {
        token,
        certificate: is_certificate.ok()?.then(|| Arc::new(grant)),
    })
}

/// The id, if it is valid: an invalid one may be a whole token.
pub(super) fn parse_id(entry: &toml::Table) -> Result<&str, InvalidToken> {
    let id = entry
        .get("id")
        .ok_or(InvalidToken::NoId)?
        .as_str()
        .ok_or(InvalidToken::IdNotText)?;
    // The id of a token ends at the first dot.
    let is_only_certificate = !entry.contains_key("sha256") && is_certificate(entry);
    match is_only_certificate {
        true => Some(id)
            .filter(|id| valid_identity(id))
            .ok_or(InvalidToken::CertificateId),
        false => Some(id).filter(|id| valid_id(id)).ok_or(InvalidToken::Id),
    }
}

fn is_certificate(entry: &toml::Table) -> bool {
    entry.get("certificate").and_then(toml::Value::as_bool) == Some(true)
}

/// `false` if it is not there.
fn parse_flag(entry: &toml::Table, key: &str, invalid: InvalidToken) -> Result<bool, InvalidToken> {
    match entry.get(key) {
        None => Ok(false),
        Some(toml::Value::Boolean(flag)) => Ok(*flag),
        Some(_) => Err(invalid),
    }
}

/// `None`: the entry is only for a certificate.
fn parse_hash(entry: &toml::Table) -> Result<Option<Hash>, InvalidToken> {
    let Some(hex) = entry.get("sha256") else {
        return if is_certificate(entry) {
            Ok(None)
        } else {
            Err(InvalidToken::NoHash)
        };
    };
    let hex = hex.as_str().ok_or(InvalidToken::HashNotText)?;
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(InvalidToken::Hash);
    }
    if hex.eq_ignore_ascii_case(EMPTY_SHA256) {
        return Err(InvalidToken::EmptySecret);
    }
    let mut hash = Hash::default();
    for (i, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).map_err(|_| InvalidToken::Hash)?;
    }
    Ok(Some(hash))
}

fn parse_patterns(
    entry: &toml::Table,
    key: &'static str,
    id: &str,
) -> Result<Option<SensorPatterns>, InvalidToken> {
    let Some(value) = entry.get(key) else {
        return Ok(None);
    };
    let texts: Option<Vec<&str>> = value
        .as_array()
        .and_then(|list| list.iter().map(toml::Value::as_str).collect());
    let texts = texts.ok_or(InvalidToken::NotPatterns(key))?;
    own_patterns(&texts, id)
        .map(Some)
        .map_err(|error| InvalidToken::Pattern(key, error))
}

fn parse_via(entry: &toml::Table) -> Result<Protocols, InvalidToken> {
    let Some(value) = entry.get("via") else {
        return Ok(Protocols::ALL);
    };
    let mut via = Protocols {
        http: false,
        mqtt: false,
    };
    for name in value.as_array().ok_or(InvalidToken::Via)? {
        match Protocol::ALL
            .into_iter()
            .find(|protocol| name.as_str() == Some(protocol.as_str()))
        {
            Some(Protocol::Http) => via.http = true,
            Some(Protocol::Mqtt) => via.mqtt = true,
            None => return Err(InvalidToken::Via),
        }
    }
    if via.http || via.mqtt {
        Ok(via)
    } else {
        Err(InvalidToken::ViaEmpty)
    }
}

fn parse_expires(entry: &toml::Table) -> Result<Option<i64>, InvalidToken> {
    let text = match entry.get("expires") {
        None => return Ok(None),
        Some(toml::Value::Datetime(time)) => time.to_string(),
        Some(toml::Value::String(text)) => text.clone(),
        Some(_) => return Err(InvalidToken::Expires),
    };
    let time = DateTime::parse_from_rfc3339(&text).map(|time| time.timestamp_millis());
    let date = || {
        text.parse::<NaiveDate>()
            .map(|date| date.and_time(NaiveTime::MIN).and_utc().timestamp_millis())
    };
    time.or_else(|_| date())
        .map(Some)
        .map_err(|_| InvalidToken::Expires)
}

/// The limits of the entry, and for the rest those of all senders.
fn parse_rate(
    entry: &toml::Table,
    defaults: &GrantDefaults,
    senders: usize,
) -> Result<Quota, InvalidToken> {
    let mut quota = defaults.quota(senders);
    let rates = match entry.get("rate") {
        None => return Ok(quota),
        Some(toml::Value::Table(rates)) => rates.clone(),
        Some(readings) => {
            toml::Table::from_iter([("readings_per_second".to_owned(), readings.clone())])
        }
    };
    for (key, value) in rates {
        // 0: no limit, as in the configuration.
        let number = || {
            value
                .as_integer()
                .and_then(|n| u64::try_from(n).ok())
                .ok_or(InvalidToken::Rate)
        };
        let limit = || number().map(|n| Some(n).filter(|n| *n > 0));
        let count = || limit().map(|n| n.map(|n| usize::try_from(n).unwrap_or(usize::MAX)));
        match &*key {
            "readings_per_second" => quota.readings_per_second = limit()?,
            "bytes_per_second" => {
                let bytes = value
                    .as_str()
                    .map(|text| parse_size(text).ok_or(InvalidToken::Rate));
                quota.bytes_per_second = bytes
                    .unwrap_or_else(number)
                    .map(|n| Some(n).filter(|n| *n > 0))?;
            }
            "burst" => {
                quota.burst = value
                    .as_str()
                    .and_then(parse_duration)
                    .ok_or(InvalidToken::Rate)?
            }
            "connections_max" => quota.connections_max = count()?,
            "requests_max" => quota.requests_max = count()?,
            "journal_share_percent" => {
                let percent = number()?;
                if !(1..=100).contains(&percent) {
                    return Err(InvalidToken::Rate);
                }
                quota.journal_bytes = share(defaults.journal_bytes_max, percent);
            }
            _ => return Err(InvalidToken::Rate),
        }
    }
    Ok(quota)
}

fn parse_note(entry: &toml::Table) -> Result<(), InvalidToken> {
    match entry.get("note") {
        None | Some(toml::Value::String(_)) => Ok(()),
        Some(_) => Err(InvalidToken::Note),
    }
}
