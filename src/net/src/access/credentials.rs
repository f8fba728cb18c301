//! What a port accepts as proof of who sends or reads: tokens of a file and JWTs, or client
//! certificates.
//!
//! All of them lead to a [`Grant`]. An identity has one name, however it authenticates: the quota,
//! `ingest.sender_tag` and the log know only that name.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::grant::{Grant, Proof, Protocols};
use super::jwt::{Claims, Jwt, JwtFault};
use super::quota::GrantDefaults;
use super::tokens::{Tokens, TokensError};
use config::{Certificates as CertificateSettings, ClientIdentity};
use model::SensorPatterns;
use model::sensor_patterns::InvalidPattern;

/// The senders of JWTs and certificates count as more than one: their issuer decides how many there
/// are.
const MANY_SENDERS: usize = 2;

/// The longest identity: it is a key of the quotas, a tag and part of log lines.
const IDENTITY_MAX_BYTES: usize = 128;

/// What a port accepts as proof of who sends or reads.
pub struct Credentials {
    tokens: Option<Arc<Tokens>>,
    jwt: Option<Arc<Jwt>>,
    grants: GrantDefaults,
    by_certificate: bool,
}

/// Why something is not accepted as proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CredentialFault {
    /// No token with this id, or its secret differs.
    #[error("no token with this id and secret")]
    Wrong,
    /// It is a JWT, and not a good one.
    #[error(transparent)]
    Jwt(#[from] JwtFault),
    /// The client has no certificate, or one without an identity.
    #[error(
        "a client certificate with one name is required: of the kind in certificates.identity, \
         with 1 to 128 letters, digits and characters of - _ . : @ / | + ="
    )]
    NoIdentity,
}

impl Credentials {
    /// Reads the tokens file of a port, if it has one; `key` is the setting that names it.
    /// `by_certificate`: only the client certificate is the identity (`client_auth = "identity"`).
    /// `None`: the port is open.
    ///
    /// # Errors
    /// The file cannot be read, or entries are not valid.
    pub fn load(
        key: &'static str,
        path: Option<&Path>,
        by_certificate: bool,
        grants: &GrantDefaults,
    ) -> Result<Option<Credentials>, TokensError> {
        let tokens = path
            .map(|path| Tokens::load(key, path, grants))
            .transpose()?
            .map(Arc::new);
        let jwt = grants.jwt.clone();
        let grants = grants.clone();
        Ok(Credentials {
            tokens,
            jwt,
            grants,
            by_certificate,
        }
        .unless_open())
    }

    /// Those of another port with the same tokens file, as it was read for this one.
    pub fn for_port(&self, by_certificate: bool) -> Option<Credentials> {
        let Credentials {
            tokens,
            jwt,
            grants,
            ..
        } = self;
        let tokens = tokens.clone();
        let jwt = jwt.clone();
        let grants = grants.clone();
        Credentials {
            tokens,
            jwt,
            grants,
            by_certificate,
        }
        .unless_open()
    }

    /// `None`: nothing is required.
    fn unless_open(self) -> Option<Credentials> {
        let is_open = self.tokens.is_none() && self.jwt.is_none() && !self.by_certificate;
        (!is_open).then_some(self)
    }

    /// The kind of name in the client certificate that is the identity, if the certificate is the
    /// only proof.
    pub fn by_certificate(&self) -> Option<ClientIdentity> {
        self.by_certificate
            .then_some(self.grants.certificates.identity)
    }

    /// The grant of a client certificate with this name: that of its entry in the tokens file, else
    /// by `[certificates]`.
    ///
    /// # Errors
    /// The name is not an identity.
    pub fn of_certificate(&self, name: Option<&str>) -> Result<Arc<Grant>, CredentialFault> {
        let id = name
            .filter(|name| valid_identity(name))
            .ok_or(CredentialFault::NoIdentity)?;
        if let Some(grant) = self
            .tokens
            .as_ref()
            .and_then(|tokens| tokens.of_certificate(id))
        {
            return Ok(grant.clone());
        }
        let CertificateSettings {
            write_default,
            read_default,
            identity,
        } = &self.grants.certificates;
        let patterns = |texts: &[String]| {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            own_patterns(&texts, id).map_err(|_| CredentialFault::NoIdentity)
        };
        let grant = self.base(id, patterns(write_default)?, patterns(read_default)?);
        Ok(Arc::new(Grant {
            proof: Proof::Certificate(*identity),
            ..grant
        }))
    }

    /// Number of tokens, for the log; `None`: there is no tokens file.
    pub fn tokens(&self) -> Option<usize> {
        self.tokens.as_ref().map(|tokens| tokens.len())
    }

    /// Logs that tokens may write and read every sensor, because they have no rules. `key`: the
    /// setting that names the file.
    pub fn log_tokens_without_rules(&self, key: &str) {
        let grants = self.tokens.iter().flat_map(|tokens| tokens.grants());
        let count = grants
            .filter(|grant| grant.write.is_none() && grant.read.is_none())
            .count();
        if count > 0 {
            tracing::warn!(
                key,
                tokens = count,
                "tokens without `write` and `read` may write and read every sensor"
            );
        }
    }

    /// Whether JWTs are accepted.
    pub fn accepts_jwt(&self) -> bool {
        self.jwt.is_some() && !self.by_certificate
    }

    /// The grant of the token with this id and this secret.
    pub fn of_secret(&self, id: &str, secret: &str) -> Option<Arc<Grant>> {
        self.tokens.as_ref()?.of_secret(id, secret).cloned()
    }

    /// The grant of a token `id.secret`, or of a JWT: two dots, and the part before the first is
    /// not the id of a token.
    ///
    /// # Errors
    /// It is neither.
    pub fn of_text(&self, text: &str) -> Result<Arc<Grant>, CredentialFault> {
        let (id, secret) = text.split_once('.').ok_or(CredentialFault::Wrong)?;
        match &self.jwt {
            Some(jwt) if secret.contains('.') && !self.has_token(id) => {
                Ok(self.grant_of(&*jwt.verify(text)?, text))
            }
            _ => self.of_secret(id, secret).ok_or(CredentialFault::Wrong),
        }
    }

    /// The grant of a token, which may be a secret alone ([`Tokens::of_text`]).
    pub fn of_token(&self, token: &str) -> Option<Arc<Grant>> {
        self.tokens.as_ref()?.of_text(token).cloned()
    }

    /// The successor of a grant of earlier credentials, if its proof is still accepted.
    pub fn renewed(&self, grant: &Grant) -> Option<Arc<Grant>> {
        match &grant.proof {
            Proof::None => None,
            Proof::Certificate(kind) if self.by_certificate() == Some(*kind) => {
                self.of_certificate(Some(&grant.id)).ok()
            }
            Proof::Certificate(_) => None,
            _ if self.by_certificate => None,
            Proof::Token(hash) => self.tokens.as_ref()?.of_hash(&grant.id, hash).cloned(),
            Proof::Jwt(text) => {
                let claims = self.jwt.as_ref()?.verify(text).ok()?;
                Some(self.grant_of(&claims, text))
            }
        }
    }

    #[cfg(test)]
    pub(super) fn jwt_for_tests(&self) -> Option<Arc<Jwt>> {
        self.jwt.clone()
    }

    fn has_token(&self, id: &str) -> bool {
        self.tokens.as_ref().is_some_and(|tokens| tokens.has(id))
    }

    fn grant_of(&self, claims: &Claims, text: &str) -> Arc<Grant> {
        let Claims {
            id,
            write,
            read,
            expires_ms,
            valid_from_ms,
        } = claims;
        let grant = self.base(id, write.clone(), read.clone());
        let expires_ms = Some(*expires_ms);
        let valid_from_ms = *valid_from_ms;
        Arc::new(Grant {
            expires_ms,
            valid_from_ms,
            proof: Proof::Jwt(text.into()),
            ..grant
        })
    }

    /// A grant without an entry in the tokens file.
    fn base(&self, id: &str, write: SensorPatterns, read: SensorPatterns) -> Grant {
        let usage = self.grants.usages.find_or_add(id);
        let quota = self.grants.quota(MANY_SENDERS);
        let write = Some(write);
        let read = Some(read);
        Grant {
            id: id.into(),
            write,
            read,
            via: Protocols::ALL,
            forward: false,
            expires_ms: None,
            valid_from_ms: None,
            quota,
            usage,
            proof: Proof::None,
        }
    }
}

/// Without quotas, and without JWTs.
impl From<Tokens> for Credentials {
    fn from(tokens: Tokens) -> Credentials {
        Credentials {
            tokens: Some(Arc::new(tokens)),
            jwt: None,
            grants: GrantDefaults::unlimited(),
            by_certificate: false,
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?}, {:?})", self.tokens, self.jwt)
    }
}

/// Whether it can be the identity in a JWT or certificate: not a pattern, printable as a word.
pub(super) fn valid_identity(id: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.:@/|+=".contains(&b);
    !id.is_empty() && id.len() <= IDENTITY_MAX_BYTES && id.bytes().all(allowed)
}

/// The patterns of the sender with this identity, which replaces `{id}`.
pub(super) fn own_patterns(texts: &[&str], id: &str) -> Result<SensorPatterns, InvalidPattern> {
    let own: Vec<String> = texts.iter().map(|text| text.replace("{id}", id)).collect();
    SensorPatterns::parse(own.iter().map(String::as_str))
}
