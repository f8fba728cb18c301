//! Parses `store.uri`, and says what is wrong with it without its user and password.
//!
//! The driver's texts quote parts of the URI, and a password with an unescaped `?`, `@`, `/` or `&`
//! moves a part of itself into what the driver takes for a host, an option or a value. So a text of
//! the driver is used only for a single option, and only if the options cannot hold such a part.

use mongodb::options::ConnectionString;

/// What is wrong with a URI.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a valid MongoDB connection string: {0}")]
pub struct UriError(String);

/// Any valid string to which one option is added.
const BASE: &str = "mongodb://127.0.0.1/?";

/// # Errors
/// What is wrong.
pub(super) fn parse(uri: &str) -> Result<ConnectionString, UriError> {
    ConnectionString::parse(uri).map_err(|_| UriError(reason(uri)))
}

fn reason(uri: &str) -> String {
    let Some((scheme @ ("mongodb" | "mongodb+srv"), rest)) = uri.split_once("://") else {
        return "expected mongodb:// or mongodb+srv://".to_owned();
    };
    let (before, options) = rest.split_once('?').unwrap_or((rest, ""));
    let hosts = before.rsplit_once('@').map_or(before, |(_, hosts)| hosts);
    let is_valid = |uri: String| ConnectionString::parse(uri).is_ok();
    if !options.contains('@') && is_valid(format!("{scheme}://{hosts}?{options}")) {
        return "the user or the password: the characters : / ? # [ ] @ % must be \
                percent-encoded, such as %40 for @, and there must be a user"
            .to_owned();
    }
    let has_valid_hosts = is_valid(format!("{scheme}://{hosts}"));
    // Otherwise they may be the user and a part of the password.
    let is_whole = hosts.contains('/') && has_valid_hosts;
    if let Some(reason) = is_whole.then(|| reason_of_options(options)).flatten() {
        return reason;
    }
    if !has_valid_hosts || options.contains('@') {
        return "expected mongodb://USER:PASSWORD@HOST:PORT,HOST:PORT/?replicaSet=NAME, without a \
                port and with one host after mongodb+srv://; in the user and the password the \
                characters : / ? # [ ] @ % must be percent-encoded"
            .to_owned();
    }
    "options that exclude each other, an option that occurs twice, or one that needs a user"
        .to_owned()
}

/// The option at fault, if one alone is not valid.
fn reason_of_options(options: &str) -> Option<String> {
    let pairs = || options.split('&').filter(|pair| !pair.is_empty());
    let key = |pair: &str| pair.split('=').next().unwrap_or_default().to_lowercase();
    let is_secret = |key: &str| key.contains("password") || key == "authmechanismproperties";
    // Otherwise the options may begin with the rest of a password.
    let is_quotable = !options.contains('@') && !pairs().any(|pair| is_secret(&key(pair)));
    for pair in pairs() {
        let Err(error) = ConnectionString::parse(format!("{BASE}{pair}")) else {
            continue;
        };
        if is_quotable {
            let text = error.kind.to_string();
            let text = text.strip_prefix("An invalid argument was provided: ");
            return Some(match text {
                Some(text) => format!("option {}: {text}", key(pair)),
                None => format!("option {}", key(pair)),
            });
        }
        // Names of options are not secret; an unknown name may be a part of a password.
        if KNOWN.contains(&key(pair).as_str()) {
            return Some(format!("option {}", key(pair)));
        }
        return Some("one of its options".to_owned());
    }
    None
}

/// Names of options that are wrong most often.
const KNOWN: [&str; 25] = [
    "appname",
    "authmechanism",
    "authmechanismproperties",
    "authsource",
    "compressors",
    "connecttimeoutms",
    "directconnection",
    "heartbeatfrequencyms",
    "loadbalanced",
    "maxpoolsize",
    "minpoolsize",
    "readconcernlevel",
    "readpreference",
    "replicaset",
    "retryreads",
    "retrywrites",
    "serverselectiontimeoutms",
    "ssl",
    "tls",
    "tlscafile",
    "tlscertificatekeyfile",
    "tlscertificatekeyfilepassword",
    "tlsinsecure",
    "w",
    "wtimeoutms",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn text(uri: &str) -> String {
        parse(uri).unwrap_err().to_string()
    }

    #[test]
    fn the_option_at_fault_is_named_with_the_drivers_reason() {
        for (uri, expected) in [
            (
                "mongodb://u:geheim@h/?replicaSte=rs0",
                "replicaste is an invalid option",
            ),
            (
                "mongodb://u:geheim@h/?tls=yes&w=1",
                "`tls` option must be a boolean",
            ),
            (
                "mongodb://h/?readPreference=best",
                "'best' is not a valid read preference",
            ),
            ("mongodb://h/?tls", "not a 'key=value' pair: tls"),
            ("mongodb://h/?w=1&w=2", "an option that occurs twice"),
            ("mongo://u:geheim@h", "expected mongodb://"),
            ("geheim", "expected mongodb://"),
            ("mongodb://u:geheim@h:port/", "HOST:PORT"),
        ] {
            let text = text(uri);
            assert!(text.contains(expected), "{uri}: {text}");
            assert!(!text.contains("geheim"), "{text}");
        }
        assert!(parse("mongodb://u:p%40@h:1,i:2/db?replicaSet=rs0&tls=true").is_ok());
    }

    #[test]
    fn no_part_of_a_password_is_shown_wherever_the_driver_looks_for_it() {
        for password in [
            "ge?heim",
            "ge?heim=x",
            "ge?heim=x&w=imheim",
            "ge?tls=heim&",
            "ge?tls=heim&ge=heim",
            "ge@heim",
            "ge/heim",
            "ge:heim",
            "ge%heim",
            "ge#heim",
            "ge[heim]",
            "ge@heim?heim=heim&tls=heim",
        ] {
            for rest in ["@h/", "@h:1,i/?replicaSet=rs0", "@h/?tls=maybe", ""] {
                let uri = format!("mongodb://user:{password}{rest}");
                let Err(error) = parse(&uri) else { continue };
                let text = error.to_string();
                for part in ["ge?", "heim", "ge@", "ge/", "ge:", "ge%"] {
                    assert!(!text.contains(part), "{uri}: {text}");
                }
            }
        }
        for options in [
            "tlsCertificateKeyFilePassword=a&geheim=1",
            "tlsCertificateKeyFilePassword=geheim",
            "authMechanismProperties=AWS_SESSION_TOKEN:x&w=geheim&geheim",
            "authMechanism=MONGODB-AWS&authMechanismProperties=geheim",
        ] {
            let text = text(&format!("mongodb://h/?{options}"));
            assert!(!text.contains("geheim"), "{options}: {text}");
        }
    }
}
