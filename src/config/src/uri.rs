//! The addresses of MongoDB and of brokers: syntax checks, and display without secrets.
//!
//! MongoDB's driver parses its connection string again, in full, when it connects. The checks here
//! need no network and are reported together with all other problems. The messages never repeat any
//! part of the string.

/// Options whose name (in lower case) contains one of these hold credentials.
const SECRET_OPTIONS: [&str; 4] = ["password", "secret", "token", "authmechanismproperties"];

/// Why a text is not the address of MongoDB or of a broker. No variant holds any part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidAddress {
    #[error("it does not start with mongodb:// or mongodb+srv://")]
    StoreScheme,
    #[error("it contains a space or a control character")]
    Space,
    #[error(
        "user or password contain one of : / ? # [ ] @; write these as %3A %2F %3F %23 %5B %5D %40"
    )]
    Credentials,
    #[error("the part before the @ is not user:password")]
    User,
    #[error("its hosts are not a comma-separated list of host or host:port")]
    Hosts,
    #[error("mongodb+srv:// requires exactly one host name, without a port")]
    SrvHost,
    #[error("its options are not name=value pairs separated by &")]
    Options,
    #[error(
        "its option w=0 leaves writes unacknowledged; remove it: store.write_concern sets how many \
         members confirm a write"
    )]
    Unacknowledged,
    #[error("it does not start with mqtt://, mqtts://, ws:// or wss://")]
    BrokerScheme,
    #[error("user and password are not allowed in it: use username and password_file")]
    CredentialsInUrl,
    #[error("the part after :// is not host or host:port")]
    Address,
    #[error("only ws:// and wss:// can have a path")]
    Path,
    #[error("the part after the host is not a path")]
    NotAPath,
}

/// Checks a MongoDB connection string.
pub(super) fn check_store(uri: &str) -> Result<(), InvalidAddress> {
    let (srv, rest) = match (
        uri.strip_prefix("mongodb://"),
        uri.strip_prefix("mongodb+srv://"),
    ) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return Err(InvalidAddress::StoreScheme),
    };
    if uri.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(InvalidAddress::Space);
    }
    let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if tail.contains('@') || authority.matches('@').count() > 1 {
        return Err(InvalidAddress::Credentials);
    }
    let (user, hosts) = authority
        .rsplit_once('@')
        .map_or((None, authority), |(user, hosts)| (Some(user), hosts));
    if user.is_some_and(|user| {
        user.is_empty() || user.starts_with(':') || user.matches(':').count() > 1
    }) {
        return Err(InvalidAddress::User);
    }
    if hosts.is_empty()
        || !hosts
            .split(',')
            .all(|host| is_host(host) || (host.ends_with(".sock") && !srv))
    {
        return Err(InvalidAddress::Hosts);
    }
    if srv && (hosts.contains(',') || has_port(hosts)) {
        return Err(InvalidAddress::SrvHost);
    }
    let all = tail.split_once('?').map_or("", |(_, options)| options);
    if all
        .split(['&', ';'])
        .any(|option| !option.is_empty() && !option.contains('='))
    {
        return Err(InvalidAddress::Options);
    }
    if options(uri).any(|(name, value)| name == "w" && value.parse() == Ok(0)) {
        return Err(InvalidAddress::Unacknowledged);
    }
    Ok(())
}

/// The options of a connection string: names in lower case, and values.
fn options(uri: &str) -> impl Iterator<Item = (String, &str)> {
    let all = uri.split_once('?').map_or("", |(_, options)| options);
    all.split(['&', ';'])
        .filter_map(|option| option.split_once('='))
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
}

/// The names of the options that hourbucket replaces with its own values, as far as they differ
/// from these. `write_concern`: `store.write_concern`.
pub(super) fn replaced_options(uri: &str, write_concern: &str) -> Vec<&'static str> {
    // Each with the value that changes nothing.
    let replaced = [
        ("w", Some(write_concern)),
        ("journal", Some("true")),
        ("wtimeoutMS", None),
        ("readConcernLevel", Some("majority")),
        ("readPreference", Some("primary")),
        ("readPreferenceTags", None),
        ("maxStalenessSeconds", None),
    ];
    let differs = |(name, same): &(&str, Option<&str>)| {
        options(uri).any(|(given, value)| given.eq_ignore_ascii_case(name) && Some(value) != *same)
    };
    let found = replaced.into_iter().filter(differs);
    found.map(|(name, _)| name).collect()
}

/// The connection string without credentials. Hosts, database and harmless options stay.
pub(super) fn masked_store(uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once("://") else {
        return "***".to_owned();
    };
    // Split at the last @ of the whole text, so that a password with an unescaped / or ? is hidden
    // too.
    let (user, rest) = rest
        .rsplit_once('@')
        .map_or(("", rest), |(_, rest)| ("***@", rest));
    let Some((address, options)) = rest.split_once('?') else {
        return format!("{scheme}://{user}{rest}");
    };
    let options: Vec<String> = options
        .split(['&', ';'])
        .map(|option| match option.split_once('=') {
            Some((name, _))
                if SECRET_OPTIONS
                    .iter()
                    .any(|secret| name.to_ascii_lowercase().contains(secret)) =>
            {
                format!("{name}=***")
            }
            Some(_) => option.to_owned(),
            None => "***".to_owned(),
        })
        .collect();
    format!("{scheme}://{user}{address}?{}", options.join("&"))
}

/// Checks the address of a broker. Returns whether the connection is encrypted.
pub(super) fn check_broker(url: &str) -> Result<bool, InvalidAddress> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(InvalidAddress::BrokerScheme);
    };
    let (encrypted, web) = match scheme {
        "mqtt" => (false, false),
        "mqtts" => (true, false),
        "ws" => (false, true),
        "wss" => (true, true),
        _ => return Err(InvalidAddress::BrokerScheme),
    };
    if rest.contains('@') {
        return Err(InvalidAddress::CredentialsInUrl);
    }
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(InvalidAddress::Space);
    }
    let (address, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if !is_host(address) {
        return Err(InvalidAddress::Address);
    }
    if !web && !matches!(path, "" | "/") {
        return Err(InvalidAddress::Path);
    }
    if web && !path.is_empty() && !path.starts_with('/') || path.contains('#') {
        return Err(InvalidAddress::NotAPath);
    }
    Ok(encrypted)
}

/// `host` or `host:port`, `[ipv6]` or `[ipv6]:port`.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((ip, port)) if ip.parse::<std::net::Ipv6Addr>().is_ok() => (
                "ipv6",
                port.strip_prefix(':').or(port.is_empty().then_some("1")),
            ),
            _ => return false,
        },
        None => text
            .split_once(':')
            .map_or((text, Some("1")), |(host, port)| (host, Some(port))),
    };
    !host.is_empty()
        && host
            .chars()
            .all(|c| c.is_alphanumeric() || "-._%".contains(c))
        && port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(']')
        .map_or(host, |(_, rest)| rest)
        .contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_connection_strings() {
        for uri in [
            "mongodb://127.0.0.1:27017/?replicaSet=rs0",
            "mongodb://localhost",
            "mongodb://a:1,b:2,[::1]:3/db?w=majority&tls=true",
            "mongodb://user:p%40ss@host/",
            "mongodb://user@host/?authMechanism=MONGODB-X509",
            "mongodb+srv://user:pass@cluster0.example.mongodb.net/?retryWrites=true",
            "mongodb://%2Ftmp%2Fmongodb-27017.sock",
        ] {
            assert_eq!(check_store(uri), Ok(()), "{uri}");
        }
    }

    #[test]
    fn refuses_invalid_connection_strings() {
        for uri in [
            "",
            "localhost:27017",
            "http://host",
            "mongodb://",
            "mongodb:///db",
            "mongodb://host:port",
            "mongodb://host:0",
            "mongodb://user:pa/ss@host",
            "mongodb://user:pa@ss@host",
            "mongodb://u:p:q@host",
            "mongodb://@host",
            "mongodb://a,,b",
            "mongodb://host/?replicaSet",
            "mongodb://host/?replicaSet=rs0&W=0",
            "mongodb+srv://host:27017",
            "mongodb+srv://a,b",
            "mongodb://ho st",
            "mongodb://[::zz]:1",
        ] {
            assert!(check_store(uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn options_that_are_replaced_are_named_if_they_differ() {
        for (options, majority, two) in [
            ("retryWrites=true&w=majority", &[][..], &["w"][..]),
            ("w=2&journal=true&readPreference=primary", &["w"], &[]),
            (
                "journal=false&readpreference=secondary&readConcernLevel=local",
                &["journal", "readConcernLevel", "readPreference"],
                &["journal", "readConcernLevel", "readPreference"],
            ),
            ("appName=w&tls=true", &[], &[]),
        ] {
            let uri = format!("mongodb://host/?{options}");
            assert_eq!(replaced_options(&uri, "majority"), majority, "{options}");
            assert_eq!(replaced_options(&uri, "2"), two, "{options}");
        }
    }

    #[test]
    fn hides_what_opens_a_access() {
        for (uri, visible) in [
            (
                "mongodb://h:1,i:2/db?replicaSet=rs0",
                "mongodb://h:1,i:2/db?replicaSet=rs0",
            ),
            ("mongodb://u:p@h/", "mongodb://***@h/"),
            ("mongodb://u:p/q?r@h/?w=1", "mongodb://***@h/?w=1"),
            (
                "mongodb://h/?tls=true&tlsCertificateKeyFilePassword=x&authMechanismProperties=AWS_SESSION_TOKEN:y",
                "mongodb://h/?tls=true&tlsCertificateKeyFilePassword=***&authMechanismProperties=***",
            ),
            ("nonsense", "***"),
        ] {
            assert_eq!(masked_store(uri), visible);
        }
    }

    #[test]
    fn takes_and_refuses_brokers() {
        for (url, good) in [
            ("mqtt://127.0.0.1:1883", Ok(false)),
            ("mqtts://broker.example:8883", Ok(true)),
            ("mqtt://broker", Ok(false)),
            ("ws://broker:8083/mqtt", Ok(false)),
            ("wss://[::1]:8084/mqtt", Ok(true)),
            ("mqtt://[::1]:1883", Ok(false)),
        ] {
            assert_eq!(check_broker(url), good, "{url}");
        }
        for url in [
            "broker:1883",
            "tcp://broker",
            "mqtt://",
            "mqtt://:1883",
            "mqtt://broker:99999",
            "mqtt://broker:",
            "mqtt://user:pass@broker",
            "mqtt://broker/path",
            "ws://broker?x",
            "ws://broker/a#b",
            "mqtt://bro ker",
        ] {
            assert!(check_broker(url).is_err(), "{url}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_shows_a_password(user in "[a-z]{1,8}", password in "[!-~]{1,20}", host in "[a-z]{1,8}") {
            let uri = format!("mongodb://{user}:{password}Zq9@{host}/?replicaSet=rs0");
            proptest::prop_assert!(!masked_store(&uri).contains("Zq9"));
            if let Err(what) = check_store(&uri) {
                proptest::prop_assert!(!what.to_string().contains("Zq9"));
            }
        }
    }
}
