//! Tokens: who may send and read, over HTTP (`ingest::http::tokens`) and MQTT
//! (`ingest::listen::connect`).
//!
//! A token has the form `id.secret`. The file contains the id, which is public, the SHA-256 of the
//! secret, and optionally rules:
//!
//! ```toml
//! [[tokens]]
//! id = "gw1"
//! sha256 = "…64 hexadecimal digits…"
//! write = ["{id}-*", "shared"]    # sensors it may write: `*` matches anything, `{id}` is the token's id; absent: all
//! read = []                       # sensors it may read; absent: all
//! via = ["http", "mqtt"]          # protocols; absent: all
//! expires = 2027-01-31T12:00:00Z  # a date without a time is its begin, in UTC; absent: never
//! note = "roof of hall 3"         # for people
//! rate = 500                      # readings per second, or more of `[quota]`: { readings_per_second = 500, … }
//!
//! [[tokens]]
//! id = "device-7.example"         # the name in a client certificate, where that is the identity
//! certificate = true              # in place of sha256, or in addition
//! ```
//!
//! A plain hash is enough, because a secret is long and random, not chosen by a person: it cannot
//! be guessed from the hash, and a slow password hash would only slow down every request. The
//! hashes are compared in constant time, and an unknown id takes as long as a wrong secret. Secrets
//! and the content of the file never appear in an error or a log.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::grant::Grant;
use super::quota::GrantDefaults;
use super::token_entry::{Entry, Hash, InvalidToken, Token, parse_entry, parse_id};

/// Faults of one file that an error lists.
const FAULTS_MAX: usize = 20;

/// Compared with if the id is unknown; the result is not used.
const NO_HASH: Hash = [0; 32];

/// The accepted tokens, by id and by hash.
pub struct Tokens {
    by_id: HashMap<Box<str>, Token>,
    /// The id whose secret has this hash; `None` if several ids share it.
    by_hash: HashMap<Hash, Option<Box<str>>>,
    /// The grants of client certificates, by their id.
    certificates: HashMap<Box<str>, Arc<Grant>>,
}

/// Why a tokens file is not usable.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The file cannot be read.
    #[error("{key}: cannot read {}: {source}", path.display())]
    Read {
        /// The setting that names the file.
        key: &'static str,
        /// Path of the tokens file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file is not TOML. The parser's message is omitted, because it quotes the file.
    #[error("{key}: {} is not valid TOML near line {line}", path.display())]
    Syntax {
        /// The setting that names the file.
        key: &'static str,
        /// Path of the tokens file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
    },
    /// An unknown top-level key.
    #[error("{key}: {} has an unknown key; expected only [[tokens]] tables", path.display())]
    UnknownKey {
        /// The setting that names the file.
        key: &'static str,
        /// Path of the tokens file.
        path: PathBuf,
    },
    /// No entry: no sender could authenticate, which is hardly intended.
    #[error("{key}: {} has no [[tokens]] table, so no sender could authenticate; add one", path.display())]
    Empty {
        /// The setting that names the file.
        key: &'static str,
        /// Path of the tokens file.
        path: PathBuf,
    },
    /// Entries are not valid.
    #[error("{key}: {}: {faults}", path.display())]
    Entries {
        /// The setting that names the file.
        key: &'static str,
        /// Path of the tokens file.
        path: PathBuf,
        /// All of them.
        faults: TokenFaults,
    },
}

/// The faults of a tokens file, in the order of its entries; at least one.
#[derive(Debug)]
pub struct TokenFaults(Vec<TokenFault>);

/// A fault of one entry of a tokens file.
#[derive(Debug)]
struct TokenFault {
    /// Position in the file, from 1.
    entry: usize,
    /// The entry's id, if that is valid.
    id: Option<Box<str>>,
    problem: InvalidToken,
}

impl fmt::Display for TokenFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, TokenFault { entry, id, problem }) in self.0.iter().take(FAULTS_MAX).enumerate() {
            let id = id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
            write!(
                f,
                "{}entry {entry}{id}: {problem}",
                if i > 0 { "; " } else { "" }
            )?;
        }
        match self.0.len().saturating_sub(FAULTS_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// The SHA-256 of a secret as the file expects it: 64 lower-case hexadecimal digits. The secret
/// should be at least 32 random characters. The sender uses `id.secret`.
pub fn hash_secret(secret: &str) -> String {
    Sha256::digest(secret.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

impl Tokens {
    /// Reads and checks the file; `key` is the setting that names it.
    ///
    /// # Errors
    /// The file cannot be read, or entries are not valid; the error names all of them.
    pub fn load(
        key: &'static str,
        path: &Path,
        defaults: &GrantDefaults,
    ) -> Result<Tokens, TokensError> {
        let text = std::fs::read_to_string(path).map_err(|source| TokensError::Read {
            key,
            path: path.to_owned(),
            source,
        })?;
        Tokens::parse(key, &text, path, defaults)
    }

    /// Checks the text of a file, like [`Tokens::load`].
    ///
    /// # Errors
    /// Entries are not valid; the error names all of them.
    pub fn parse(
        key: &'static str,
        text: &str,
        path: &Path,
        defaults: &GrantDefaults,
    ) -> Result<Tokens, TokensError> {
        let path = path.to_owned();
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(e) => {
                let e: toml::de::Error = e;
                let before = e.span().map_or(0, |span| span.start.min(text.len()));
                let line = 1 + text.as_bytes()[..before]
                    .iter()
                    .filter(|b| **b == b'\n')
                    .count();
                return Err(TokensError::Syntax { key, path, line });
            }
        };
        if table.keys().any(|name| name != "tokens") {
            return Err(TokensError::UnknownKey { key, path });
        }
        let entries = table
            .get("tokens")
            .and_then(toml::Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default();
        if entries.is_empty() {
            return Err(TokensError::Empty { key, path });
        }
        let mut tokens = Tokens {
            by_id: HashMap::new(),
            by_hash: HashMap::new(),
            certificates: HashMap::new(),
        };
        let mut faults = vec![];
        let mut ids = HashSet::new();
        // Those with a JWT are others.
        let senders = entries.len() + usize::from(defaults.jwt.is_some());
        for (i, entry) in entries.iter().enumerate() {
            let id = entry.as_table().and_then(|entry| parse_id(entry).ok());
            let mut fault = |problem| {
                faults.push(TokenFault {
                    entry: i + 1,
                    id: id.map(Box::from),
                    problem,
                })
            };
            if id.is_some_and(|id| !ids.insert(id)) {
                fault(InvalidToken::SameId);
            }
            let Some(Entry { token, certificate }) =
                parse_entry(entry, defaults, senders, &mut fault)
            else {
                continue;
            };
            if let Some(token) = token {
                tokens.add(token);
            }
            if let Some(grant) = certificate {
                tokens.certificates.insert(grant.id.as_ref().into(), grant);
            }
        }
        match faults.is_empty() {
            true => Ok(tokens),
            false => Err(TokensError::Entries {
                key,
                path,
                faults: TokenFaults(faults),
            }),
        }
    }

    fn add(&mut self, token: Token) {
        let id: Box<str> = token.grant.id.as_ref().into();
        self.by_hash
            .entry(token.hash)
            .and_modify(|owner| *owner = None)
            .or_insert_with(|| Some(id.clone()));
        self.by_id.insert(id, token);
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.grants().count()
    }

    /// Never true of a loaded file: a file without entries is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The grant of the client certificate with this identity.
    pub(super) fn of_certificate(&self, id: &str) -> Option<&Arc<Grant>> {
        self.certificates.get(id)
    }

    /// The grant of each id, in no particular order.
    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        let only_certificates = self
            .certificates
            .values()
            .filter(|grant| !self.by_id.contains_key(&*grant.id));
        self.by_id
            .values()
            .map(|token| &token.grant)
            .chain(only_certificates)
            .map(|grant| &**grant)
    }

    /// The grant of a token. The token is `id.secret`, or a secret alone for devices whose tokens
    /// were issued elsewhere and have no id. (The lookup key is a hash, so its duration reveals
    /// nothing about the secrets.)
    pub fn of_text(&self, token: &str) -> Option<&Arc<Grant>> {
        if let Some(grant) = token
            .split_once('.')
            .and_then(|(id, secret)| self.of_secret(id, secret))
        {
            return Some(grant);
        }
        let hash: Hash = Sha256::digest(token.as_bytes()).into();
        let id = self.by_hash.get(&hash)?.as_deref()?;
        self.by_id.get(id).map(|token| &token.grant)
    }

    /// The grant of the token with this id and this secret. Takes the same time whether id or
    /// secret is wrong.
    pub fn of_secret(&self, id: &str, secret: &str) -> Option<&Arc<Grant>> {
        let known = self.by_id.get(id);
        let given: Hash = Sha256::digest(secret.as_bytes()).into();
        let is_equal = bool::from(given.ct_eq(known.map_or(&NO_HASH, |token| &token.hash)));
        known.filter(|_| is_equal).map(|token| &token.grant)
    }

    /// Whether there is a token with this id.
    pub(super) fn has(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    /// The grant of the token with this id if its secret has this hash.
    pub(super) fn of_hash(&self, id: &str, hash: &Hash) -> Option<&Arc<Grant>> {
        self.by_id
            .get(id)
            .filter(|token| token.hash == *hash)
            .map(|token| &token.grant)
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::credentials::Credentials;
    use super::super::grant::Protocols;
    use super::super::quota::Quota;
    use super::*;

    fn parse(text: &str) -> Result<Tokens, TokensError> {
        Tokens::parse(
            "x.tokens_file",
            text,
            Path::new("t.toml"),
            &GrantDefaults::unlimited(),
        )
    }

    fn file(id: &str, secret: &str) -> String {
        format!(
            "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n",
            hash_secret(secret)
        )
    }

    /// The file of gw1 with this line more.
    fn rule(line: &str) -> String {
        format!("{}{line}\n", file("gw1", "x"))
    }

    #[test]
    fn every_fault_is_reported() {
        let text = format!(
            "[[tokens]]\nid = \"gw1\"\nvia = []\nexpires = 1\n{}{}[[tokens]]\nid = \"gw3\"\n",
            file("gw2", "x"),
            file("gw2", "y")
        );
        let error = parse(&text).unwrap_err().to_string();
        for fault in [
            "entry 1 (gw1): has no sha256, and not certificate = true; entry 1 (gw1): via must not \
             be empty",
            "entry 1 (gw1): expires",
            "entry 3 (gw2): another entry has the same id",
            "entry 4 (gw3): has no sha256",
        ] {
            assert!(error.contains(fault), "{fault}: {error}");
        }
        assert!(!error.contains("entry 2"), "{error}");
        let many = parse(&"[[tokens]]\nid = \"é\"\n".repeat(15))
            .unwrap_err()
            .to_string();
        assert!(many.ends_with("; and 10 more"), "{many}");
    }

    #[test]
    fn rules_become_a_grant() {
        let text = rule(
            "write = [\"{id}-*\", \"x\"]\nread = []\nvia = [\"mqtt\"]\nexpires = 2027-01-31\n\
             note = \"n\"",
        );
        let tokens = parse(&text).unwrap();
        let grant = tokens.of_secret("gw1", "x").unwrap();
        let write = grant.write.as_ref().unwrap();
        assert!(
            write.matches("gw1-7")
                && write.matches("x")
                && !write.matches("{id}-7")
                && !write.matches("gw2-7")
        );
        assert!(grant.read.as_ref().unwrap().is_none());
        assert_eq!(
            grant.via,
            Protocols {
                http: false,
                mqtt: true
            }
        );
        assert_eq!(grant.expires_ms, Some(1_801_353_600_000));
        for time in [
            "2027-01-31T02:00:00+02:00",
            "\"2027-01-31T00:00:00Z\"",
            "\"2027-01-31\"",
        ] {
            let grant = parse(&rule(&format!("expires = {time}"))).unwrap();
            assert_eq!(
                grant.of_secret("gw1", "x").unwrap().expires_ms,
                Some(1_801_353_600_000),
                "{time}"
            );
        }
        let plain = parse(&file("gw1", "x")).unwrap();
        let plain_grant = plain.of_text("gw1.x").unwrap();
        assert!(
            plain_grant.write.is_none()
                && plain_grant.read.is_none()
                && plain_grant.expires_ms.is_none()
        );
        assert_eq!(
            (plain_grant.via, &plain_grant.quota),
            (Protocols::ALL, &Quota::unlimited())
        );
        assert_eq!(plain.of_text("x").unwrap().id, "gw1".into());
    }

    #[test]
    fn limits_come_from_the_configuration_and_an_entry_changes_its_own() {
        let config = config::Quota {
            readings_per_second: Some(7),
            ..config::Config::default().quota
        };
        let defaults = GrantDefaults {
            quota: Some(config),
            journal_bytes_max: 1000,
            ..GrantDefaults::unlimited()
        };
        let parse = |text: &str| Tokens::parse("x", text, Path::new("t"), &defaults).unwrap();
        let two = parse(&(rule("rate = 500") + &file("gw2", "x")));
        let of = |id: &str| two.of_secret(id, "x").unwrap().quota.clone();
        assert_eq!(
            (of("gw1").readings_per_second, of("gw2").readings_per_second),
            (Some(500), Some(7))
        );
        assert_eq!(
            (of("gw2").journal_bytes, of("gw2").requests_max),
            (Some(250), Some(64))
        );
        let own = "rate = { bytes_per_second = \"1KiB\", burst = \"2s\", connections_max = 3, \
            requests_max = 4, journal_share_percent = 50, readings_per_second = 0 }";
        let expected = Quota {
            readings_per_second: None,
            bytes_per_second: Some(1024),
            burst: std::time::Duration::from_secs(2),
            connections_max: Some(3),
            requests_max: Some(4),
            journal_bytes: Some(500),
        };
        assert_eq!(
            parse(&rule(own)).of_secret("gw1", "x").unwrap().quota,
            expected
        );
        let alone = parse(&file("gw1", "x"))
            .of_secret("gw1", "x")
            .unwrap()
            .quota
            .clone();
        assert_eq!(
            (alone.journal_bytes, alone.requests_max),
            (None, None),
            "there is no other sender to leave room for"
        );
    }

    #[test]
    fn a_grant_is_renewed_if_its_token_is_still_there() {
        let before = parse(&format!("{}{}", file("gw1", "x"), file("gw2", "y"))).unwrap();
        let grant = before.of_secret("gw1", "x").unwrap();
        let renewed = |text: &str| Credentials::from(parse(text).unwrap()).renewed(grant);
        assert!(
            renewed(&rule("write = []"))
                .unwrap()
                .write
                .as_ref()
                .unwrap()
                .is_none()
        );
        assert!(renewed(&file("gw1", "other")).is_none(), "another secret");
        assert!(renewed(&file("gw2", "y")).is_none(), "removed");
    }

    #[test]
    fn the_hash_is_sha256_in_hexadecimal() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(
            hash_secret("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn what_is_wrong_is_named_and_nothing_of_the_file_is_quoted() {
        let hash = hash_secret("x");
        for (text, problem) in [
            ("", "has no [[tokens]] table"),
            ("tokens = \"gw1.hunter2\"", "has no [[tokens]] table"),
            ("token = []", "unknown key"),
            ("[[tokens]]\nid = \"gw1\"\nsha256 = hunter2", "near line 3"),
            ("[[tokens]]\nsha256 = \"hunter2\"", "entry 1: has no id"),
            (
                "[[tokens]]\nid = \"a.hunter2\"",
                "entry 1: id must be 1 to 64",
            ),
            ("[[tokens]]\nid = \"gw1\"", "entry 1 (gw1): has no sha256"),
            (
                "[[tokens]]\nid = \"gw1\"\nsha256 = \"hunter2\"",
                "entry 1 (gw1): sha256 must be 64",
            ),
            (
                &file("gw1", ""),
                "entry 1 (gw1): sha256 is the hash of an empty text",
            ),
            (
                "[[tokens]]\nid = \"gw1\"\nsecret = \"hunter2\"",
                "entry 1 (gw1): has an unknown key",
            ),
            (
                &rule("write = \"hunter2\""),
                "entry 1 (gw1): write must be a list of patterns",
            ),
            (
                &rule("read = [7]"),
                "entry 1 (gw1): read must be a list of patterns",
            ),
            (
                &rule("write = [\"\"]"),
                "entry 1 (gw1): write: a pattern must not be empty",
            ),
            (&rule("via = \"http\""), "entry 1 (gw1): via must be a list"),
            (
                &rule("via = [\"hunter2\"]"),
                "entry 1 (gw1): via must be a list",
            ),
            (&rule("via = []"), "entry 1 (gw1): via must not be empty"),
            (
                &rule("expires = \"hunter2\""),
                "entry 1 (gw1): expires must be a date",
            ),
            (
                &rule("expires = 2027-01-31T12:00:00"),
                "entry 1 (gw1): expires must be a date",
            ),
            (&rule("note = 7"), "entry 1 (gw1): note must be a string"),
            (
                &rule("rate = \"hunter2\""),
                "entry 1 (gw1): rate must be a number",
            ),
            (&rule("rate = -1"), "entry 1 (gw1): rate must be"),
            (
                &rule("rate = { hunter2 = 1 }"),
                "entry 1 (gw1): rate must be",
            ),
            (
                &rule("rate = { journal_share_percent = 0 }"),
                "entry 1 (gw1): rate must be",
            ),
            (&rule("rate = { burst = 5 }"), "entry 1 (gw1): rate must be"),
            (
                &format!("{0}{0}", file("gw1", "hunter2")),
                "entry 2 (gw1): another entry has the same id",
            ),
            (
                &format!("[[tokens]]\nid = 5\nsha256 = \"{hash}\""),
                "entry 1: id must be a string",
            ),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(
                error.contains(problem) && error.contains("t.toml"),
                "{error}"
            );
            assert!(
                !error.contains("hunter2") && !error.contains(&hash),
                "{error}"
            );
        }
        let error = Tokens::load(
            "x.tokens_file",
            Path::new("/nowhere/t.toml"),
            &GrantDefaults::unlimited(),
        )
        .unwrap_err()
        .to_string();
        assert!(
            error.starts_with("x.tokens_file: ") && error.contains("/nowhere/t.toml"),
            "{error}"
        );
    }
}
