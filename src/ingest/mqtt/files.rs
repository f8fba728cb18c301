//! What a connection takes from files, certificates and the password: read again for each, so that what was renewed holds
//! from the next connection on. What cannot be read then (a file half written, a key that does not fit yet) stays as it
//! was at the last connection, and is said.

use rumqttc_v5::TlsConfiguration;

use super::target::{SetupError, Target};
use crate::config::{Mqtt, Secret};

/// What was read.
#[derive(Debug, Clone)]
pub(super) struct Credentials {
    /// `None`: the connection is not encrypted.
    pub(super) tls: Option<TlsConfiguration>,
    pub(super) password: Option<Secret>,
}

/// Reads the files; `before` is what the last connection had. Gives what to use, and what could not be read.
///
/// # Errors
/// There are no certificates yet, and they cannot be read.
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
            before.map_or(&config.password, |before| &before.password).clone()
        }
    };
    let problem = (!problems.is_empty()).then(|| format!("{}; what was read before is used", problems.join("; ")));
    Ok((Credentials { tls, password }, problem))
}
