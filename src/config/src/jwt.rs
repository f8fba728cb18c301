//! Reads `[jwt]`: the JSON Web Tokens of an identity provider.

use std::path::PathBuf;
use std::time::Duration;

use super::reader::{Bad, Report, Section, one_of, wrong};
use super::tree::Node;
use super::units::SECOND;
use super::values::patterns;

/// Audiences, algorithms and patterns in a list.
const LIST_MAX: usize = 32;

/// `[jwt]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jwt {
    /// `keys_file`: PEM or JWKS; if absent, JWTs are not accepted.
    pub keys_file: Option<PathBuf>,
    /// `algorithms` (default RS256, ES256 and EdDSA).
    pub algorithms: Vec<JwtAlgorithm>,
    /// `issuer`: the claim `iss`. Set if `keys_file` is.
    pub issuer: Option<String>,
    /// `audience`: the claim `aud` must contain one of these. Not empty if `keys_file` is set.
    pub audience: Vec<String>,
    /// `leeway`: how much the clocks of issuer and service may differ (default 30s).
    pub leeway: Duration,
    /// `id_claim`: the claim with the identity (default sub).
    pub id_claim: String,
    /// `write_claim`: the claim with the sensors that it may write (default write).
    pub write_claim: String,
    /// `read_claim`: the claim with the sensors that it may read (default read).
    pub read_claim: String,
    /// `write_default`: the sensors to write without that claim (default `{id}`).
    pub write_default: Vec<String>,
    /// `read_default`: the sensors to read without that claim (default none).
    pub read_default: Vec<String>,
}

/// An algorithm of signatures with a key pair (RFC 7518 §3.1, RFC 8037 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JwtAlgorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// RSASSA-PSS with SHA-384.
    Ps384,
    /// RSASSA-PSS with SHA-512.
    Ps512,
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// ECDSA with P-384 and SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

impl JwtAlgorithm {
    /// All algorithms.
    pub const ALL: [JwtAlgorithm; 9] = [
        JwtAlgorithm::Rs256,
        JwtAlgorithm::Rs384,
        JwtAlgorithm::Rs512,
        JwtAlgorithm::Ps256,
        JwtAlgorithm::Ps384,
        JwtAlgorithm::Ps512,
        JwtAlgorithm::Es256,
        JwtAlgorithm::Es384,
        JwtAlgorithm::EdDsa,
    ];

    /// The name in `alg`.
    pub fn as_str(self) -> &'static str {
        match self {
            JwtAlgorithm::Rs256 => "RS256",
            JwtAlgorithm::Rs384 => "RS384",
            JwtAlgorithm::Rs512 => "RS512",
            JwtAlgorithm::Ps256 => "PS256",
            JwtAlgorithm::Ps384 => "PS384",
            JwtAlgorithm::Ps512 => "PS512",
            JwtAlgorithm::Es256 => "ES256",
            JwtAlgorithm::Es384 => "ES384",
            JwtAlgorithm::EdDsa => "EdDSA",
        }
    }
}

impl Jwt {
    /// Whether JWTs are accepted.
    pub fn is_on(&self) -> bool {
        self.keys_file.is_some()
    }
}

pub(super) fn read(mut s: Section<'_>) -> Jwt {
    let name =
        |s: &mut Section<'_>, key, default: &str| s.text(key).unwrap_or_else(|| default.to_owned());
    let jwt = Jwt {
        keys_file: s.file("keys_file"),
        algorithms: s.parse("algorithms", algorithms).unwrap_or_else(|| {
            vec![
                JwtAlgorithm::Rs256,
                JwtAlgorithm::Es256,
                JwtAlgorithm::EdDsa,
            ]
        }),
        issuer: s.text("issuer"),
        audience: s.parse("audience", audience).unwrap_or_default(),
        leeway: s.duration("leeway", 30 * SECOND, Duration::ZERO..=600 * SECOND),
        id_claim: name(&mut s, "id_claim", "sub"),
        write_claim: name(&mut s, "write_claim", "write"),
        read_claim: name(&mut s, "read_claim", "read"),
        write_default: s
            .parse("write_default", patterns)
            .unwrap_or_else(|| vec!["{id}".to_owned()]),
        read_default: s.parse("read_default", patterns).unwrap_or_default(),
    };
    check(&jwt, s.report);
    s.end();
    jwt
}

/// Without issuer and audience, a JWT that the provider issued for any other service would be
/// accepted.
fn check(jwt: &Jwt, report: &mut Report) {
    if jwt.is_on() && (jwt.issuer.is_none() || jwt.audience.is_empty()) {
        report.impossible(
            &["jwt.keys_file", "jwt.issuer", "jwt.audience"],
            "without issuer and audience, what the provider issues for other services would be \
             accepted here",
            "set jwt.issuer to the claim `iss` of the JWTs, and jwt.audience to what `aud` \
             contains for this service",
        );
    }
}

fn algorithms(node: &Node) -> Result<Vec<JwtAlgorithm>, Bad> {
    let advice = format!(
        "{} in a list",
        one_of(JwtAlgorithm::ALL.map(JwtAlgorithm::as_str))
    );
    let named = |name: &String| {
        JwtAlgorithm::ALL
            .into_iter()
            .find(|algorithm| algorithm.as_str() == name)
    };
    let list: Option<Vec<_>> = node
        .texts()
        .and_then(|names| names.iter().map(named).collect());
    list.filter(|list| !list.is_empty() && list.len() <= LIST_MAX)
        .ok_or_else(|| wrong(node, &advice))
}

fn audience(node: &Node) -> Result<Vec<String>, Bad> {
    let advice = "write a list of texts, such as [\"hourbucket\"]";
    let is_good =
        |list: &Vec<String>| list.len() <= LIST_MAX && list.iter().all(|text| !text.is_empty());
    node.texts()
        .filter(is_good)
        .ok_or_else(|| wrong(node, advice))
}
