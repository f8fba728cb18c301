//! Access: who a sender or reader is, and what it may do. The same for HTTP, the MQTT listener and
//! the read API.
//!
//! A sender authenticates with a token of a file ([`tokens`]), a JWT ([`jwt`]) or its client
//! certificate; [`Credentials`] are what a port accepts. A sender's [`Grant`] defines its rights:
//! the sensors that it may write and read, the protocols, and the period of validity. A grant
//! without a rule allows everything, as do ports without credentials.
//!
//! Where the rules apply:
//! - `via` and `expires`: when a request or a connection authenticates, and again while an MQTT
//!   connection is open.
//! - `write`: per reading, when it is decoded. A reading outside the patterns is rejected with
//!   reason `not_allowed`; the other readings of the message are accepted.
//! - `read`: per request of the read API.
//! - [`quota`]: how much it may send, when a message is accepted.
//!
//! Invariants:
//! - A secret is never stored, only its hash; neither appears in an error, a log line or a metric,
//!   nor does a JWT.
//! - A grant is immutable. A reload makes new grants; the holder of an old one asks
//!   [`Credentials::renewed`] whether it is still valid.

mod credentials;
mod grant;
pub mod jwt;
mod last_used;
mod quota;
mod token_entry;
pub mod tokens;

pub use credentials::{CredentialFault, Credentials};
pub use grant::{Denied, Grant, Proof, Protocol, Protocols};
pub use jwt::{Jwt, JwtFault, JwtKeysError, KeyFault, KeyFaults};
pub use last_used::{LAST_USED_FILE, LastUsed};
pub use quota::{GrantDefaults, Held, Quota, QuotaExceeded, QuotaLimit, Usage, Usages};
pub use tokens::{TokenFaults, Tokens, TokensError, hash_secret};
