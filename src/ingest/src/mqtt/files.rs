//! Certificates and password from files, read again for each connection, so that renewed files
//! apply from the next connection on. If a file cannot be read (half written, or a key that does
//! not match yet), the content of the last connection is used and the problem is reported.

use super::target::{SetupError, Target};
use config::{Mqtt, Secret};
use net::tls::ClientTls;

/// The content of the files.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    /// `None`: the connection is not encrypted.
    pub(super) tls: Option<ClientTls>,
    pub(super) password: Option<Secret>,
}

/// Reads the files; `before` is the content at the last connection. Also returns the problems.
///
/// # Errors
/// The certificates cannot be read, and there are no previous ones.
pub(super) fn read(
    config: &Mqtt,
    target: &Target,
    before: Option<&Credentials>,
) -> Result<(Credentials, Option<String>), SetupError> {
    let mut problems = vec![];
    let tls = match (target.tls(config), before) {
        (Ok(tls), _) => tls,
        (Err(error), Some(before)) => {
            problems.push(format!("certificates: {error}"));
            before.tls.clone()
        }
        (Err(error), None) => return Err(error.into()),
    };
    let password = match config.password_now() {
        Ok(password) => password,
        Err(error) => {
            problems.push(format!("password_file: {error}"));
            before
                .map_or(&config.password, |before| &before.password)
                .clone()
        }
    };
    let problem = (!problems.is_empty())
        .then(|| format!("{}; the previous content is used", problems.join("; ")));
    Ok((Credentials { tls, password }, problem))
}
