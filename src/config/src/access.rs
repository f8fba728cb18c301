//! Who may send and read, and how much: `[quota]`, `[jwt]`, `[certificates]`.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::declare::settings;
use super::kinds::{Kind, choice, count, duration, file, patterns, size, text, texts};
use super::reader::{one_of, wrong};
use super::tree::Node;
use super::units::{HOUR, SECOND};

/// The most of a rate; a higher one is a mistake in the unit.
const RATE_MAX: u64 = 1_000_000_000_000;
/// Audiences or algorithms in a list.
const LIST_MAX: usize = 32;

settings! {
    /// How much one sender (a token) may send, over all ports together; `rate` in the tokens file
    /// sets it for one token. Beyond a limit only that sender is refused (HTTP: 429 with
    /// Retry-After) or read more slowly (MQTT). Without tokens there are no quotas.
    pub struct Quota, reload() {
        /// Readings and bytes (of bodies and messages as sent) per second, and for how many seconds
        /// of these rates a sender may save up while it sends less. 0: no limit.
        readings_per_second: Option<u64> = None, count(0..=RATE_MAX);
        bytes_per_second: Option<u64> = None, size(0..=RATE_MAX);
        burst: Duration = 10 * SECOND, duration(SECOND..=HOUR);
        /// MQTT connections with one token. 0: no limit.
        connections_max: Option<usize> = None, count(0..=1_000_000);
        /// Concurrent HTTP requests with one token (0: no limit), and the part of journal.max_bytes
        /// that its unstored readings may take (100: all of it). These two apply only if the tokens
        /// file has more than one token: a single sender has no other to leave room for.
        requests_max: Option<usize> = Some(64), count(0..=65_536);
        journal_share_percent: u64 = 25, count(1..=100);
    }
}

settings! {
    /// JSON Web Tokens of an identity provider. With keys_file, every port accepts a JWT wherever
    /// it accepts a token: as bearer or HTTP Basic password, and as MQTT password. It must have
    /// expiry, issuer and audience.
    pub struct Jwt, reload() {
        /// Public keys of the issuer: PEM, or a JWKS (the document at its jwks_uri). Read again on
        /// reload.
        keys_file: Option<PathBuf> = None, file().optional(), example("\"jwks.json\"");
        /// The accepted algorithms: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA.
        algorithms: Vec<JwtAlgorithm> = JwtAlgorithm::DEFAULT.to_vec(), algorithms();
        /// What the claim `iss` must be, and what `aud` must contain one of. Both are required with
        /// keys_file: without them, what the provider issues for other services would be accepted.
        issuer: Option<String> = None, text().optional(), example("\"https://idp.example.com/\"");
        audience: Vec<String> = vec![], audience(), example("[\"hourbucket\"]");
        /// How much the clocks of issuer and service may differ, up to 10m.
        leeway: Duration = 30 * SECOND, duration(Duration::ZERO..=600 * SECOND);
        /// The claim with the identity of the sender, which quotas, sender_tag and the log show: 1
        /// to 128 characters of A-Z, a-z, 0-9 and - _ . : @ / | + =. A sender with the id of a
        /// token is the same sender.
        id_claim: String = "sub".to_owned(), text();
        /// The claims with the sensors that it may write and read: a list of patterns on sensor
        /// ids, or patterns separated by spaces; `*` matches anything, `{id}` is its identity.
        write_claim: String = "write".to_owned(), text();
        read_claim: String = "read".to_owned(), text();
        /// The patterns for a JWT without these claims. By default it may write the one sensor that
        /// has its name, and read none.
        write_default: Vec<String> = vec!["{id}".to_owned()], patterns();
        read_default: Vec<String> = vec![], patterns();
    }
}

settings! {
    /// Client certificates that are the identity of a sender or reader, on ports with client_auth =
    /// "identity".
    pub struct Certificates, reload() {
        /// The name of a certificate that is the identity: "cn" (common name), "dns" or "uri"
        /// (subject alternative names). It must have exactly one of this kind, of 1 to 128
        /// characters of A-Z, a-z, 0-9 and - _ . : @ / | + =.
        identity: ClientIdentity = ClientIdentity::Cn, choice(ClientIdentity::NAMES);
        /// What a certificate may write and read without an entry in the tokens file (id = its
        /// name, certificate = true).
        write_default: Vec<String> = vec!["{id}".to_owned()], patterns();
        read_default: Vec<String> = vec![], patterns();
    }
}

model::closed_set! {
    /// A name of a certificate. It must have exactly one of this kind.
    pub enum ClientIdentity {
        /// The common name of the subject.
        Cn => "cn",
        /// The DNS name in the subject alternative names.
        Dns => "dns",
        /// The URI in the subject alternative names.
        Uri => "uri",
    }
}

model::closed_set! {
    /// An algorithm of signatures with a key pair (RFC 7518 §3.1, RFC 8037 §3.1).
    pub enum JwtAlgorithm {
        /// RSASSA-PKCS1-v1_5 with SHA-256.
        Rs256 => "RS256",
        /// RSASSA-PKCS1-v1_5 with SHA-384.
        Rs384 => "RS384",
        /// RSASSA-PKCS1-v1_5 with SHA-512.
        Rs512 => "RS512",
        /// RSASSA-PSS with SHA-256.
        Ps256 => "PS256",
        /// RSASSA-PSS with SHA-384.
        Ps384 => "PS384",
        /// RSASSA-PSS with SHA-512.
        Ps512 => "PS512",
        /// ECDSA with P-256 and SHA-256.
        Es256 => "ES256",
        /// ECDSA with P-384 and SHA-384.
        Es384 => "ES384",
        /// Ed25519.
        EdDsa => "EdDSA",
    }
}

impl JwtAlgorithm {
    const DEFAULT: [JwtAlgorithm; 3] = [
        JwtAlgorithm::Rs256,
        JwtAlgorithm::Es256,
        JwtAlgorithm::EdDsa,
    ];
}

impl Jwt {
    /// Whether JWTs are accepted.
    pub fn is_on(&self) -> bool {
        self.keys_file.is_some()
    }
}

fn algorithms() -> Kind<Vec<JwtAlgorithm>> {
    let names = JwtAlgorithm::ALL.map(JwtAlgorithm::as_str);
    let kind = format!("list of {}", names.join(", "));
    let advice = format!("{} in a list", one_of(names));
    let schema = json!({ "type": "array", "items": { "enum": names } });
    let named = |name: &String| {
        JwtAlgorithm::ALL
            .into_iter()
            .find(|one| one.as_str() == name)
    };
    let read = move |node: &Node| {
        let names = node.texts().unwrap_or_default();
        let list: Option<Vec<_>> = names.iter().map(named).collect();
        list.filter(|list| !list.is_empty() && list.len() <= LIST_MAX)
            .ok_or_else(|| wrong(node, &advice))
    };
    Kind::unwritten(kind, schema, read).written(|list| {
        let names = list.iter().map(|algorithm| algorithm.as_str().into());
        toml::Value::Array(names.collect())
    })
}

fn audience() -> Kind<Vec<String>> {
    texts(
        "list of texts, up to 32",
        "write a list of texts, such as [\"hourbucket\"]",
        LIST_MAX,
        |text| !text.is_empty(),
    )
}
