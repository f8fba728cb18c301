//! The binary: arguments, configuration, logging, commands, exit codes.

mod dead_letters_cli;
mod maintain_cli;

use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use hourbucket::app::Service;
use hourbucket::check;
use hourbucket::config::{self, Config};
use hourbucket::model::{Clock, SystemClock};
use hourbucket::shutdown;
use hourbucket::store::Store;
use hourbucket::store::mongo::{MongoStore, OptionalIndexes};
use hourbucket::systemd::Notifier;
use hourbucket::telemetry::{log, metrics};
use hourbucket::{decode, journal, probe};

/// Bodies, batches and pages of hundreds of kilobytes are allocated and freed all the time. With the allocator of the C
/// library the service took an eighth more CPU time per reading.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Stores sensor readings from MQTT and HTTP in MongoDB, in hourly buckets, each acknowledged reading exactly once
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The configuration file [default: config/hourbucket.toml, if it exists]
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the service until SIGTERM or SIGINT; SIGHUP reloads the configuration. Exit code 0: all acknowledged
    /// readings are stored, 1: failed, 3: the journal keeps readings that were not stored in time, 78: invalid
    /// configuration, so a restart would not help
    Run,
    /// Check on admin.listen that the running service is alive; exit code 1: it is not
    Probe {
        /// Check that it accepts readings
        #[arg(long)]
        ready: bool,
    },
    /// Check configuration, connections, server and journal; exit code 1 on a problem
    Check,
    /// Create or update the collections, indexes, validator and view; exit code 1 on a problem
    Init {
        /// Also shard the collections; store.uri must point to a mongos
        #[arg(long)]
        shard: bool,
    },
    /// Decode a payload from standard input and print the result; exit code 1 if it has no reading
    Decode {
        /// A built-in format (json, ndjson, scalar, line, ...), a shipped profile such as zigbee2mqtt, or one of
        /// [formats.NAME] in the configuration; --list shows all
        #[arg(long, required_unless_present = "list")]
        format: Option<String>,
        /// The MQTT topic of the message
        #[arg(long)]
        topic: Option<String>,
        /// The subscription's topic template, such as sensors/{sensor_id}/{field}
        #[arg(long)]
        template: Option<String>,
        /// Unit of numeric times: s, ms, us or ns [default: by magnitude]
        #[arg(long)]
        ts_unit: Option<String>,
        /// Only list the formats
        #[arg(long)]
        list: bool,
    },
    /// Compare stored buckets with their readings; exit code 0: all equal (or repaired), 1: they differ, 2: failed
    Reconcile(maintain_cli::Reconcile),
    /// Convert stored buckets from pages to the time-series collection or back; can be interrupted and repeated; exit
    /// code 0: done, 1: some were skipped or differ, 2: failed
    Convert(maintain_cli::Convert),
    /// List, replay or remove dead letters: messages that could not be decoded or stored
    DeadLetters {
        #[command(subcommand)]
        command: dead_letters_cli::DeadLetters,
    },
    /// Inspect or salvage the journal
    Journal {
        #[command(subcommand)]
        command: JournalCommand,
    },
    /// Read a secret from standard input and print its line for http.tokens_file
    HashToken,
    /// Print docs/configuration.md
    #[command(hide = true)]
    ConfigReference,
}

#[derive(Subcommand)]
enum JournalCommand {
    /// List segments and damage; makes no changes
    Inspect,
    /// Move damaged segments aside and keep their readable contents; the service must be stopped
    Salvage,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match &arguments.command {
        Command::Decode { format, topic, template, ts_unit, list } => {
            let question = decode::cli::DecodeRequest {
                format: format.as_deref().unwrap_or_default(),
                topic: topic.as_deref(),
                template: template.as_deref(),
                ts_unit: ts_unit.as_deref(),
            };
            match decode_config(arguments.config.as_deref()) {
                Ok(config) if *list => list_formats(&config),
                Ok(config) => decode_stdin(question, config),
                Err(errors) => fail(errors),
            }
        }
        Command::HashToken => hash_token(),
        Command::ConfigReference => {
            say(config::reference().trim_end());
            ExitCode::SUCCESS
        }
        _ => match config::load(arguments.config.as_deref(), config::environment()) {
            Ok(loaded) => with_config(arguments.command, loaded, arguments.config),
            Err(errors) => command_failed(&arguments.command, errors),
        },
    }
}

/// EX_CONFIG of sysexits.h: a service manager should not restart.
const CONFIG_UNUSABLE: u8 = 78;

/// A failure exits with 2 in commands whose exit code 1 means that something differs.
fn command_failed(command: &Command, error: impl std::fmt::Display) -> ExitCode {
    let failed = fail(error);
    match command {
        Command::Reconcile(_) | Command::Convert(_) | Command::DeadLetters { .. } => {
            ExitCode::from(maintain_cli::ERROR)
        }
        Command::Run => ExitCode::from(CONFIG_UNUSABLE),
        _ => failed,
    }
}

fn fail(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("hourbucket: {error}");
    ExitCode::FAILURE
}

fn with_config(command: Command, loaded: config::Loaded, path: Option<PathBuf>) -> ExitCode {
    if let Command::Journal { command } = command {
        return journal_command(&command, &loaded.config);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(format!("cannot start the runtime: {error}")),
    };
    let code = match command {
        Command::Run => runtime.block_on(run(loaded, path)),
        Command::Probe { ready } => match runtime.block_on(probe::probe(&loaded.config.admin, ready)) {
            Ok(answer) => {
                say(&answer);
                ExitCode::SUCCESS
            }
            Err(error) => fail(error),
        },
        Command::Init { shard } => runtime.block_on(init(&loaded.config, shard)),
        Command::Reconcile(arguments) => runtime.block_on(async {
            let config = &loaded.config;
            maintain_cli::reconcile(config, store(config).await, arguments).await
        }),
        Command::Convert(arguments) => runtime.block_on(async {
            let config = &loaded.config;
            maintain_cli::convert(config, store(config).await, arguments).await
        }),
        Command::DeadLetters { command } => runtime.block_on(async {
            let config = &loaded.config;
            dead_letters_cli::run(config, store(config).await, command).await
        }),
        _ => runtime.block_on(check_all(&loaded)),
    };
    // Does not wait for blocking work such as a name lookup or a driver task.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    code
}

async fn store(config: &Config) -> Result<MongoStore, String> {
    let optional_indexes = OptionalIndexes { latest: config.latest.enabled, tags_index: config.store.tags_index };
    let store = MongoStore::new(&config.store, config.bucket.span, config.dead_letters.retention).await?;
    Ok(store.with_latest_and_tags(optional_indexes))
}

async fn run(loaded: config::Loaded, path: Option<PathBuf>) -> ExitCode {
    let config = loaded.config;
    if let Err(error) = log::init(&config.log) {
        return fail(error);
    }
    if let Err(error) = metrics::install() {
        return fail(error);
    }
    let (signal, mut hangups) = match shutdown::signal().and_then(|signal| Ok((signal, shutdown::hangups()?))) {
        Ok(both) => both,
        Err(error) => return fail(format!("signal handlers: {error}")),
    };
    let file = loaded.file.map_or_else(|| "none, defaults".to_owned(), |f| f.display().to_string());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = file, "starting");
    config.warnings().iter().for_each(|warning| tracing::warn!(%warning, "configuration warning"));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = match store(&config).await {
        Ok(store) => Arc::new(store),
        Err(error) => return fail(error),
    };
    let notifier = Notifier::new(&config::manager()).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET)");
        Notifier::default()
    });
    match Service::start_watched(config, store, clock, notifier).await {
        Ok(service) => {
            let (reloader, notifier) = (service.reloader(), service.notifier());
            tokio::spawn(async move {
                while hangups.recv().await.is_some() {
                    notifier.reloading().await;
                    let path = path.clone();
                    let done = reloader.reload(move || config::load(path.as_deref(), config::environment())).await;
                    notifier.ready(done.status()).await;
                }
            });
            ExitCode::from(service.run_until(signal).await.exit_code())
        }
        Err(error) => {
            tracing::error!(%error, "cannot start");
            ExitCode::FAILURE
        }
    }
}

async fn init(config: &Config, shard: bool) -> ExitCode {
    let done = async {
        let store = store(config).await?;
        if shard {
            // Before anything is created.
            store.can_shard().await?;
        }
        let prepared = store.prepare().await.map_err(|e| e.to_string())?;
        prepared.changes.iter().for_each(|change| say(change));
        prepared.warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
        if shard {
            store.shard().await?.iter().for_each(|line| say(line));
        }
        say(&format!("ready: MongoDB {}, {}", prepared.server_version, prepared.mode_reason));
        Ok::<(), String>(())
    };
    match done.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

async fn check_all(loaded: &config::Loaded) -> ExitCode {
    let file = loaded.file.as_ref().map_or_else(|| "no file, defaults".to_owned(), |f| f.display().to_string());
    say(&format!("ok       configuration  {file}"));
    loaded.config.warnings().iter().for_each(|warning| say(&format!("warning  configuration  {warning}")));
    let store = store(&loaded.config).await;
    let mut good = true;
    for finding in check::check(&loaded.config, store).await {
        good &= finding.good();
        say(&finding.to_string());
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The settings affect decoding, but an invalid default file must not prevent it. One given with `--config` does.
fn decode_config(path: Option<&std::path::Path>) -> Result<Config, config::ConfigErrors> {
    match config::load(path, config::environment()) {
        Ok(loaded) => Ok(loaded.config),
        Err(errors) if path.is_some() => Err(errors),
        Err(_) => {
            eprintln!(
                "hourbucket: invalid configuration (run `hourbucket check` for details); decoding with the defaults"
            );
            Ok(Config::default())
        }
    }
}

fn list_formats(config: &Config) -> ExitCode {
    decode::Formats::new(&config.decoding()).names().into_iter().for_each(say);
    // Not a format for messages in general, but `decode` accepts it.
    say(decode::sparkplug::NAME);
    ExitCode::SUCCESS
}

fn decode_stdin(question: decode::cli::DecodeRequest<'_>, mut config: Config) -> ExitCode {
    if std::io::stdin().is_terminal() {
        eprintln!("hourbucket: reading the payload from the terminal; end it with Ctrl-D");
    }
    let mut payload = vec![];
    if let Err(error) = std::io::stdin().lock().read_to_end(&mut payload) {
        return fail(format!("standard input: {error}"));
    }
    // Samples may be of any age; the limits for times apply only to the running service.
    let century = std::time::Duration::from_secs(1000 * 365 * 24 * 3600);
    (config.limits.past, config.limits.future) = (century, century);
    let received_at_ms = SystemClock::new().now().wall_ms;
    let mut out = std::io::stdout().lock();
    match decode::cli::run(question, &payload, &mut out, &config, received_at_ms) {
        Ok(shown) if shown.readings > 0 => ExitCode::SUCCESS,
        Ok(shown) => {
            if shown.rejects == 0 {
                eprintln!(
                    "hourbucket: no reading and no error: all values are null, nan, unavailable or similar, or the \
                     format skips this message"
                );
            }
            ExitCode::FAILURE
        }
        Err(error) => fail(error),
    }
}

fn hash_token() -> ExitCode {
    let mut secret = String::new();
    match std::io::stdin().lock().read_to_string(&mut secret) {
        Ok(_) => {
            let hash = hourbucket::ingest::tokens::hash_secret(secret.trim_end_matches(['\r', '\n']));
            say(&format!("sha256 = \"{hash}\""));
            ExitCode::SUCCESS
        }
        Err(error) => fail(format!("standard input: {error}")),
    }
}

fn journal_command(command: &JournalCommand, config: &Config) -> ExitCode {
    let dir = &config.journal.dir;
    match command {
        JournalCommand::Inspect => match journal::inspect(&journal::fs::RealFs, dir) {
            Ok(report) => {
                say(&check::describe(&report));
                if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
            }
            Err(error) => fail(error),
        },
        JournalCommand::Salvage => match journal::salvage(&journal::fs::RealFs, dir) {
            Ok(salvaged) => {
                say(&check::describe_salvage(&salvaged));
                ExitCode::SUCCESS
            }
            Err(error) => fail(error),
        },
    }
}

/// Prints a line to standard output. A closed pipe is not an error.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
