//! Why a `tokens` command has changed nothing.

use std::path::{Path, PathBuf};

use toml_edit::TomlError;

use net::access::TokensError;

/// In errors, in place of the setting that names the file.
pub(super) const KEY: &str = "tokens";

/// Why a command has changed nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error(transparent)]
    Config(#[from] config::ConfigErrors),
    #[error("no tokens file is configured; set http.tokens_file, or name the file with --file")]
    NoFile,
    #[error(
        "http.tokens_file and listen.mqtt.tokens_file are different files; name the one that is \
         meant with --file"
    )]
    TwoFiles,
    #[error(transparent)]
    Tokens(#[from] TokensError),
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "a token with the id {0} exists; remove it first, or give it a new secret with `tokens \
         rotate`"
    )]
    Exists(String),
    #[error("there is no token with the id {0}")]
    Unknown(String),
    #[error(
        "{0} is the last entry, and without one no sender could authenticate; give it a new secret \
         with `tokens rotate {0}`, or remove the setting tokens_file and the file"
    )]
    Last(String),
    #[error(
        "the entry {0} is for a client certificate and has no secret; renew the certificate instead"
    )]
    Certificate(String),
    #[error("`tokens` is not written as [[tokens]] tables; this command edits only those")]
    NotTables,
    #[error("--expires: expected a date and time such as 2027-01-31T12:00:00Z, or a date")]
    Expires,
    /// The text of the library quotes the file.
    #[error("not valid TOML")]
    Syntax,
}

impl From<TomlError> for CommandError {
    fn from(_: TomlError) -> CommandError {
        CommandError::Syntax
    }
}

pub(super) fn io(doing: &'static str, path: &Path) -> impl Fn(std::io::Error) -> CommandError {
    let path = path.to_owned();
    move |source| CommandError::Io {
        doing,
        path: path.clone(),
        source,
    }
}
