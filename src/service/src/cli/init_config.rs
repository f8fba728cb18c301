//! The command `init config`: a small commented configuration for the case at hand, from flags or a
//! few questions.
//!
//! It has only the settings that the case needs; the others keep their defaults. It contains no
//! secret: those are in files and in the environment. A tokens file that the case needs is made
//! with a first token, because a configuration that names a missing file is not valid. Nothing that
//! exists is overwritten.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::output::fail;
use super::{disk, tokens};

const GIB: u64 = 1 << 30;
/// The id of the first token.
const FIRST_TOKEN: &str = "first";

/// Who sends the readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    /// Devices publish to an MQTT broker that you have
    Broker,
    /// Gateways or programs send over HTTP
    Http,
    /// MQTT devices connect directly, without a broker
    Devices,
    /// A LoRaWAN server (ChirpStack, The Things Stack)
    Lorawan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Lorawan {
    Chirpstack,
    Ttn,
}

#[derive(Args, Debug, Default)]
pub(super) struct InitConfig {
    /// Who sends the readings; asked for if it is missing
    #[arg(long, value_enum)]
    case: Option<Case>,
    /// Write to this file; - is standard output
    #[arg(long, value_name = "FILE", default_value = "hourbucket.toml")]
    output: PathBuf,
    /// MongoDB without a password [default: mongodb://127.0.0.1:27017/?replicaSet=rs0]
    #[arg(long = "mongodb", value_name = "URI")]
    store_uri: Option<String>,
    /// The broker: mqtt://HOST or mqtts://HOST [default: mqtt://127.0.0.1:1883]
    #[arg(long, value_name = "URL")]
    broker: Option<String>,
    /// The user at the broker
    #[arg(long, value_name = "NAME")]
    username: Option<String>,
    /// The topics, with the sensor and the field in braces [default: sensors/{sensor_id}/{field}]
    #[arg(long)]
    topic: Option<String>,
    /// What a message contains (see `decode --list`) [default: scalar if the topic has a {field},
    /// else json]
    #[arg(long)]
    format: Option<String>,
    /// The LoRaWAN server; with --broker over MQTT, otherwise by its webhook
    #[arg(long, value_enum)]
    server: Option<Lorawan>,
    /// The port for senders [default: 0.0.0.0:8080 for HTTP, 0.0.0.0:1883 for devices]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<std::net::SocketAddr>,
    /// The file with the tokens of senders; made with a first token if it does not exist
    #[arg(long, value_name = "FILE", default_value = "tokens.toml")]
    tokens_file: PathBuf,
    /// The directory of the journal, on a disk that survives a restart
    #[arg(long, value_name = "DIR", default_value = "journal")]
    journal_dir: PathBuf,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
enum InitError {
    #[error("--case is missing; expected broker, http, devices or lorawan")]
    NoCase,
    #[error("{}: it exists; choose another one with --output, or remove it", .0.display())]
    Exists(PathBuf),
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("--mongodb contains a password; leave it out, and set HOURBUCKET_STORE__URI")]
    Password,
    #[error("{0}: no {{sensor_id}}; write for example sensors/{{sensor_id}}/{{field}}")]
    Topic(String),
    #[error("the answers make no valid configuration:\n{0}")]
    Invalid(config::ConfigErrors),
    #[error("the tokens file was not made")]
    Tokens,
    #[error(
        "the secret of the first token could not be printed, and is lost; make a new one with \
         `hourbucket tokens rotate {id}`: {0}",
        id = FIRST_TOKEN
    )]
    TokenLost(io::Error),
}

pub(super) fn run(mut options: InitConfig) -> ExitCode {
    let done = (|| {
        if options.case.is_none() {
            if !io::stdin().is_terminal() {
                return Err(InitError::NoCase);
            }
            ask_all(&mut options, &mut io::stdin().lock(), &mut io::stderr()).map_err(|error| {
                InitError::Io {
                    path: "standard input".into(),
                    error,
                }
            })?;
        }
        write(&options, &mut io::stdout().lock(), &mut io::stderr())
    })();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

/// Asks for the values that have no usual one; an empty answer is the default.
fn ask_all(
    options: &mut InitConfig,
    from: &mut impl BufRead,
    to: &mut impl Write,
) -> io::Result<()> {
    let mut ask = |question: &str, usual: &str| {
        write!(to, "{question} [{usual}]: ")?;
        to.flush()?;
        let mut line = String::new();
        from.read_line(&mut line)?;
        let answer = line.trim();
        io::Result::Ok(if answer.is_empty() { usual } else { answer }.to_owned())
    };
    let kinds = "Who sends the readings?\n  broker   devices publish to an MQTT broker that you \
        have\n  http     gateways or programs send over HTTP\n  devices  MQTT devices connect directly, without a broker\n  lorawan  a \
                 LoRaWAN server (ChirpStack, The Things Stack)\n";
    let case = loop {
        if let Ok(case) = Case::from_str(&ask(kinds, "broker")?, true) {
            break case;
        }
    };
    options.case = Some(case);
    options.store_uri = Some(ask(
        "MongoDB, without a password",
        "mongodb://127.0.0.1:27017/?replicaSet=rs0",
    )?);
    if case == Case::Broker {
        options.broker = Some(ask("The broker", "mqtt://127.0.0.1:1883")?);
        options.username =
            Some(ask("The user at the broker; none: -", "-")?).filter(|name| name != "-");
    }
    if matches!(case, Case::Broker | Case::Devices) {
        let topic = ask(
            "The topics, with {sensor_id} and, if a message is one value, {field}",
            "sensors/{sensor_id}/{field}",
        )?;
        let usual = if topic.contains("{field}") {
            "scalar"
        } else {
            "json"
        };
        options.format = Some(ask(
            "What a message contains: scalar (one value), json, line, zigbee2mqtt, ...",
            usual,
        )?);
        options.topic = Some(topic);
    }
    if case == Case::Lorawan {
        let server = ask("The server: chirpstack or ttn", "chirpstack")?;
        options.server = Lorawan::from_str(&server, true).ok();
    }
    Ok(())
}

/// Writes the configuration and prints the next steps. The token goes to standard output, unless
/// the configuration does: it would not be valid with the token in it.
fn write(
    options: &InitConfig,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<(), InitError> {
    let text = text(options)?;
    let to_stdout = options.output.as_os_str() == "-";
    if !to_stdout && options.output.exists() {
        return Err(InitError::Exists(options.output.clone()));
    }
    // Before the configuration, which is not valid without it.
    let token = if text.contains("tokens_file") && !options.tokens_file.exists() {
        let token = tokens::add_first(&options.tokens_file, FIRST_TOKEN);
        Some(token.ok_or(InitError::Tokens)?)
    } else {
        None
    };
    if !to_stdout && let Err(error) = create(&options.output, &text) {
        if token.is_some() {
            let _ = fs::remove_file(&options.tokens_file);
        }
        return Err(error);
    }
    if let Some(token) = token {
        let _ = writeln!(
            err,
            "hourbucket: the first token, in {}; the secret is not shown again:",
            options.tokens_file.display()
        );
        let printed = match to_stdout {
            true => writeln!(err, "{token}"),
            false => writeln!(out, "{token}"),
        };
        printed.map_err(InitError::TokenLost)?;
    }
    if to_stdout {
        return match writeln!(out, "{}", text.trim_end()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(InitError::Io {
                path: "standard output".into(),
                error,
            }),
            _ => Ok(()),
        };
    }
    let path = options.output.display();
    let _ = writeln!(
        err,
        "hourbucket: wrote {path}; next: hourbucket --config {path} check, then run"
    );
    Ok(())
}

/// Creates the file, and removes it again if it is not a valid configuration, so that a second try
/// with other answers can create it.
fn create(path: &Path, text: &str) -> Result<(), InitError> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path);
    let io = |error| InitError::Io {
        path: path.to_owned(),
        error,
    };
    let mut file = created.map_err(io)?;
    let valid = file.write_all(text.as_bytes()).map_err(io).and_then(|()| {
        // With the environment, as the service will read it.
        config::load(Some(path), config::environment()).map_err(InitError::Invalid)
    });
    if valid.is_err() {
        let _ = fs::remove_file(path);
    }
    valid.map(drop)
}

/// A text in TOML.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn text(options: &InitConfig) -> Result<String, InitError> {
    let case = options.case.ok_or(InitError::NoCase)?;
    let over_mqtt = options.broker.is_some();
    let what = match case {
        Case::Broker => "devices publish to an MQTT broker, and hourbucket subscribes",
        Case::Http => "gateways and programs send over HTTP",
        Case::Devices => "MQTT devices connect to hourbucket directly, without a broker",
        Case::Lorawan => "a LoRaWAN server sends the uplinks of its devices",
    };
    let senders = match case {
        Case::Broker => broker(options, &options.topic_rules()?, "hourbucket-1"),
        Case::Http => http(options, HTTP_USE),
        Case::Devices => devices(options, &options.topic_rules()?),
        Case::Lorawan if over_mqtt => {
            broker(options, &options.lorawan_rules(), "hourbucket-lorawan")
        }
        Case::Lorawan => http(options, options.lorawan_use()),
    };
    Ok(format!(
        "# hourbucket: {what}.\n# Written by `hourbucket init config`. Every other setting has its \
         default; docs/configuration.md lists them.\n\
         # Test this file with `hourbucket --config FILE check`.\n\n{}\n{senders}",
        storage(options)?
    ))
}

/// Store and journal.
fn storage(options: &InitConfig) -> Result<String, InitError> {
    let uri = options
        .store_uri
        .as_deref()
        .unwrap_or("mongodb://127.0.0.1:27017/?replicaSet=rs0");
    let authority = uri
        .split_once("://")
        .map_or(uri, |(_, rest)| rest.split('/').next().unwrap_or(rest));
    if authority
        .rsplit_once('@')
        .is_some_and(|(user, _)| user.contains(':'))
    {
        return Err(InitError::Password);
    }
    Ok(format!(
        r#"[store]
# MongoDB 4.4 or later, a replica set or cluster. Without its password: with one, set the whole URI in the environment
# (HOURBUCKET_STORE__URI), or name a file that holds it (HOURBUCKET_STORE__URI_FILE=/run/secrets/mongodb-uri).
uri = {}
database = "hourbucket"
# Data is kept for ever, or this long (at least limits.past, which is 365d).
# retention = "730d"

[journal]
# Acknowledged readings that are not in MongoDB yet, and the buffer while it is away. A directory on a local disk that
# survives a restart; readings/s * 67 B * the longest outage is the space that it needs.
dir = {}
max_bytes = "{}"
"#,
        quoted(uri),
        quoted(&options.journal_dir.display().to_string()),
        journal_bytes(&options.journal_dir),
    ))
}

/// The default, or less on a small disk.
fn journal_bytes(dir: &Path) -> String {
    match disk::free(dir).map(|free| free / 2) {
        Some(half) if half < GIB => format!("{}MiB", (half >> 20).max(64)),
        Some(half) => format!("{}GiB", (half / GIB).min(16)),
        None => "16GiB".to_owned(),
    }
}

/// Filter, topic and format of one kind of messages.
struct Rules {
    filter: String,
    /// `None`: the format reads the topic, or the payload names the sensor.
    topic: Option<String>,
    format: String,
}

impl Rules {
    fn lines(&self) -> String {
        let topic = self.topic.as_ref().map(|topic| {
            format!(
                "# The levels of the topic; other names in braces become tags.\ntopic = {}\n",
                quoted(topic)
            )
        });
        format!(
            "filter = {}\n{}# Try it: hourbucket decode --format {} --topic TOPIC < payload\n\
             format = {}\n",
            quoted(&self.filter),
            topic.unwrap_or_default(),
            self.format,
            quoted(&self.format)
        )
    }
}

impl InitConfig {
    fn topic_rules(&self) -> Result<Rules, InitError> {
        let topic = self
            .topic
            .clone()
            .unwrap_or_else(|| "sensors/{sensor_id}/{field}".to_owned());
        let usual = if topic.contains("{field}") {
            "scalar"
        } else {
            "json"
        };
        let format = self.format.clone().unwrap_or_else(|| usual.to_owned());
        let level = |level: &str| match level {
            "#" => "#".to_owned(),
            _ if level.starts_with('{') && level.ends_with("#}") => "#".to_owned(),
            _ if level.contains('{') => "+".to_owned(),
            _ => level.to_owned(),
        };
        let filter = topic.split('/').map(level).collect::<Vec<_>>().join("/");
        // A format with its own topics, such as zigbee2mqtt, takes a filter alone. Line protocol
        // and others name the sensor in the payload.
        let is_filter = !topic.contains('{');
        let needs_sensor = ["scalar", "json", "ndjson", "cbor", "msgpack"];
        let names_sensor = ["line", "senml", "senml-cbor", "otlp", "otlp-json"];
        if is_filter && needs_sensor.contains(&format.as_str()) {
            return Err(InitError::Topic(topic));
        }
        let is_template = !is_filter || names_sensor.contains(&format.as_str());
        Ok(Rules {
            filter,
            topic: is_template.then_some(topic),
            format,
        })
    }

    fn lorawan_rules(&self) -> Rules {
        let (filter, format) = match self.server.unwrap_or(Lorawan::Chirpstack) {
            Lorawan::Chirpstack => ("application/+/device/+/event/up", "chirpstack-v4"),
            Lorawan::Ttn => ("v3/+/devices/+/up", "ttn-v3"),
        };
        Rules {
            filter: filter.to_owned(),
            topic: None,
            format: format.to_owned(),
        }
    }

    fn lorawan_use(&self) -> &'static str {
        match self.server.unwrap_or(Lorawan::Chirpstack) {
            Lorawan::Chirpstack => {
                "# In ChirpStack: Application, Integrations, HTTP: payload encoding JSON, event \
                 endpoint\n\
                 # http://HOST:8080/v1/hooks/chirpstack-v4, header Authorization: Bearer \
                 first.SECRET."
            }
            Lorawan::Ttn => {
                "# In The Things Stack: Integrations, Webhooks, Custom: JSON, base URL \
                 http://HOST:8080/v1/hooks/ttn-v3,\n\
                 # header Authorization: Bearer first.SECRET, uplink messages enabled."
            }
        }
    }
}

const HTTP_USE: &str = "# curl http://HOST:8080/v1/readings -H 'Authorization: Bearer \
    first.SECRET' \\\n\
                        #     -d '{\"sensor_id\": \"S1\", \"ts\": \"2024-03-01T10:00:00Z\", \
                        \"temp\": 22.4}' \\\n\
                        #     -H 'Content-Type: application/json'\n\
                        # Telegraf and InfluxDB clients use http://HOST:8080 with the same token.";

/// The listening address in a URL that senders use.
fn http(options: &InitConfig, how: &str) -> String {
    let listen = options
        .listen
        .unwrap_or_else(|| ([0, 0, 0, 0], 8080).into());
    let how = how.replace(":8080", &format!(":{}", listen.port()));
    format!(
        "[http]\n{how}\nlisten = \"{listen}\"\n# Who may send. `hourbucket tokens add NAME --file \
         {0}` adds a sender and prints its token once.\ntokens_file = {1}\n\n\
         # Without TLS the network can read tokens and readings: use it, or a proxy that does.\n\
         # [http.tls]\n# cert_file = \"server.pem\"\n# key_file = \"server.key\"\n",
        options.tokens_file.display(),
        quoted(&options.tokens_file.display().to_string()),
    )
}

fn broker(options: &InitConfig, rules: &Rules, client_id: &str) -> String {
    let url = options.broker.as_deref().unwrap_or("mqtt://127.0.0.1:1883");
    let username = match &options.username {
        Some(name) => format!("username = {}\n", quoted(name)),
        None => "# username = \"hourbucket\"\n".to_owned(),
    };
    format!(
        "# No port for senders over HTTP; true opens 127.0.0.1:8080.\n[http]\nenabled = false\n\n\
         [[mqtt]]\n# mqtts:// for TLS.\nurl = {}\n# Unique at the broker. It queues messages for \
         this client while hourbucket is away, within its limits\n\
         # (mosquitto: max_queued_messages, max_inflight_messages).\nclient_id = \"{client_id}\"\n\
         {username}# A file that holds only the password, or set HOURBUCKET_MQTT__0__PASSWORD.\n\
         # password_file = \"mqtt-password\"\n\n[[mqtt.subscriptions]]\n{}",
        quoted(url),
        rules.lines()
    )
}

fn devices(options: &InitConfig, rules: &Rules) -> String {
    let listen = options
        .listen
        .unwrap_or_else(|| ([0, 0, 0, 0], 1883).into());
    format!(
        "# No port for senders over HTTP; true opens 127.0.0.1:8080.\n[http]\nenabled = false\n\n\
         [listen.mqtt]\nenabled = true\nlisten = \"{listen}\"\n\
         # Who may connect: the id of a token is the user name, its secret the password.\n\
         # `hourbucket tokens add NAME --file {0}` adds a device and prints NAME.SECRET once.\n\
         tokens_file = {1}\n# Without TLS the network can read passwords and readings.\n\
         # cert_file = \"server.pem\"\n# key_file = \"server.key\"\n\n[[listen.mqtt.topics]]\n{2}",
        options.tokens_file.display(),
        quoted(&options.tokens_file.display().to_string()),
        rules.lines()
    )
}

#[cfg(test)]
mod tests;
