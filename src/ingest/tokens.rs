//! Tokens: which senders may send, over HTTP (`http/tokens`) and MQTT (`listen/connect`).
//!
//! A token has the form `id.secret`. The file contains the id, which is public, and the SHA-256 of the secret:
//!
//! ```toml
//! [[tokens]]
//! id = "gw1"
//! sha256 = "…64 hexadecimal digits…"
//! ```
//!
//! A plain hash is enough, because a secret is long and random, not chosen by a person: it cannot be guessed from the
//! hash, and a slow password hash would only slow down every request. The hashes are compared in constant time, and an
//! unknown id takes as long as a wrong secret. Secrets and the content of the file never appear in an error or a log.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Maximum length of a token id.
pub const TOKEN_ID_MAX_BYTES: usize = 64;

type Hash = [u8; 32];

/// Compared with if the id is unknown; the result is not used.
const NO_HASH: Hash = [0; 32];

/// The accepted tokens, by id and by hash.
pub struct Tokens {
    by_id: HashMap<Box<str>, Hash>,
    /// The id whose secret has this hash; `None` if several ids share it.
    by_hash: HashMap<Hash, Option<Box<str>>>,
}

/// Why a tokens file is not usable. An entry is named by its position, from 1, and its id if it has one.
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
    /// An entry is not valid.
    #[error("{key}: {}: entry {entry}: {problem}", path.display())]
    Entry {
        /// The setting that names the file.
        key: &'static str,
        /// Path of the tokens file.
        path: PathBuf,
        /// The entry: its position from 1, with its id if that is valid.
        entry: String,
        /// The rule that the entry breaks.
        #[source]
        problem: InvalidToken,
    },
}

/// The rule that an entry of a tokens file breaks. No variant holds anything of the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum InvalidToken {
    #[error("is not a table")]
    NotATable,
    #[error("has an unknown key; expected only id and sha256 (never the secret itself)")]
    UnknownKey,
    #[error("has no id")]
    NoId,
    #[error("id must be a string")]
    IdNotText,
    #[error("id must be 1 to 64 letters, digits, - or _")]
    Id,
    #[error("has no sha256")]
    NoHash,
    #[error("sha256 must be a string")]
    HashNotText,
    #[error("sha256 must be 64 hexadecimal digits, the SHA-256 of the secret")]
    Hash,
    #[error("another entry has the same id")]
    SameId,
}

/// The SHA-256 of a secret as the file expects it: 64 lower-case hexadecimal digits. The secret should be at least 32
/// random characters. The sender uses `id.secret`.
pub fn hash_secret(secret: &str) -> String {
    Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Tokens {
    /// Reads and checks the file; `key` is the setting that names it.
    ///
    /// # Errors
    /// The file cannot be read, or an entry is not valid; the error names the entry.
    pub fn load(key: &'static str, path: &Path) -> Result<Tokens, TokensError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| TokensError::Read { key, path: path.to_owned(), source })?;
        Tokens::parse(key, &text, path)
    }

    fn parse(key: &'static str, text: &str, path: &Path) -> Result<Tokens, TokensError> {
        let path = path.to_owned();
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(e) => {
                let e: toml::de::Error = e;
                let before = e.span().map_or(0, |span| span.start.min(text.len()));
                let line = 1 + text.as_bytes()[..before].iter().filter(|b| **b == b'\n').count();
                return Err(TokensError::Syntax { key, path, line });
            }
        };
        if table.keys().any(|name| name != "tokens") {
            return Err(TokensError::UnknownKey { key, path });
        }
        let entries = table.get("tokens").and_then(toml::Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if entries.is_empty() {
            return Err(TokensError::Empty { key, path });
        }
        let (mut by_id, mut by_hash) = (HashMap::new(), HashMap::new());
        for (i, entry) in entries.iter().enumerate() {
            let (id, hash) = parse_entry(entry).map_err(|problem| {
                let id = entry.get("id").and_then(toml::Value::as_str).filter(|id| valid_id(id));
                let entry = id.map_or(format!("{}", i + 1), |id| format!("{} ({id})", i + 1));
                TokensError::Entry { key, path: path.clone(), entry, problem }
            })?;
            by_hash.entry(hash).and_modify(|owner| *owner = None).or_insert_with(|| Some(Box::from(id)));
            if by_id.insert(Box::from(id), hash).is_some() {
                let (entry, problem) = (format!("{} ({id})", i + 1), InvalidToken::SameId);
                return Err(TokensError::Entry { key, path, entry, problem });
            }
        }
        Ok(Tokens { by_id, by_hash })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Never true of a loaded file: a file without tokens is refused.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The id of a token's owner. The token is `id.secret`, or a secret alone for devices whose tokens were issued
    /// elsewhere and have no id. (The lookup key is a hash, so its duration reveals nothing about the secrets.)
    pub(super) fn owner(&self, token: &str) -> Option<&str> {
        if let Some((id, _)) = token.split_once('.').filter(|(id, secret)| self.matches(id, secret)) {
            return self.by_id.get_key_value(id).map(|(id, _)| &**id);
        }
        let hash: Hash = Sha256::digest(token.as_bytes()).into();
        self.by_hash.get(&hash)?.as_deref()
    }

    /// Whether a token with this id and this secret exists. Takes the same time whether id or secret is wrong.
    pub(super) fn matches(&self, id: &str, secret: &str) -> bool {
        let known = self.by_id.get(id);
        let given: Hash = Sha256::digest(secret.as_bytes()).into();
        let equal = bool::from(given.ct_eq(known.unwrap_or(&NO_HASH)));
        equal & known.is_some()
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokens({})", self.by_id.len())
    }
}

fn valid_id(id: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    !id.is_empty() && id.len() <= TOKEN_ID_MAX_BYTES && id.bytes().all(allowed)
}

fn parse_entry(entry: &toml::Value) -> Result<(&str, Hash), InvalidToken> {
    let entry = entry.as_table().ok_or(InvalidToken::NotATable)?;
    if entry.keys().any(|key| key != "id" && key != "sha256") {
        return Err(InvalidToken::UnknownKey);
    }
    let id = entry.get("id").ok_or(InvalidToken::NoId)?.as_str().ok_or(InvalidToken::IdNotText)?;
    if !valid_id(id) {
        return Err(InvalidToken::Id);
    }
    let hex = entry.get("sha256").ok_or(InvalidToken::NoHash)?.as_str().ok_or(InvalidToken::HashNotText)?;
    let hash = parse_hash(hex).ok_or(InvalidToken::Hash)?;
    Ok((id, hash))
}

fn parse_hash(hex: &str) -> Option<Hash> {
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = NO_HASH;
    for (i, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Tokens, TokensError> {
        Tokens::parse("x.tokens_file", text, Path::new("t.toml"))
    }

    fn file(id: &str, secret: &str) -> String {
        format!("[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n", hash_secret(secret))
    }

    #[test]
    fn the_hash_is_sha256_in_hexadecimal() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(hash_secret("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
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
            ("[[tokens]]\nid = \"a.hunter2\"", "entry 1: id must be 1 to 64"),
            ("[[tokens]]\nid = \"gw1\"", "entry 1 (gw1): has no sha256"),
            ("[[tokens]]\nid = \"gw1\"\nsha256 = \"hunter2\"", "entry 1 (gw1): sha256 must be 64"),
            ("[[tokens]]\nid = \"gw1\"\nsecret = \"hunter2\"", "entry 1 (gw1): has an unknown key"),
            (&format!("{0}{0}", file("gw1", "hunter2")), "entry 2 (gw1): another entry has the same id"),
            (&format!("[[tokens]]\nid = 5\nsha256 = \"{hash}\""), "entry 1: id must be a string"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("t.toml"), "{error}");
            assert!(!error.contains("hunter2") && !error.contains(&hash), "{error}");
        }
        let error = Tokens::load("x.tokens_file", Path::new("/nowhere/t.toml")).unwrap_err().to_string();
        assert!(error.starts_with("x.tokens_file: ") && error.contains("/nowhere/t.toml"), "{error}");
    }
}
