//! The command line: arguments, configuration, commands, exit codes. One file per command.

#![allow(
    clippy::disallowed_macros,
    reason = "commands print for a person or a script"
)]

mod check;
mod client;
mod dead_letters;
mod decode;
mod decode_all;
mod decode_command;
mod disk;
mod export;
mod hardening;
#[cfg(test)]
mod hardening_tests;
mod import;
mod init_config;
mod journal;
mod maintain;
mod output;
mod probe;
mod rejected;
mod remove;
mod run;
mod sensors;
mod tail;
mod tokens;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tokio::runtime::Runtime;

use output::{
    CONFIG_UNUSABLE, MAINTENANCE_FAILED, StandardOutput, ended, fail, maintenance_failed,
    print_line,
};

use config::Config;
use model::Zone;
use query::priority;
use store::Store;
use store::mongo::{MongoStore, OptionalIndexes, RollupSchema, StoreConfigError};

/// Stores sensor readings from MQTT and HTTP in MongoDB, in hourly buckets, each acknowledged
/// reading exactly once
#[derive(Parser)]
#[command(name = "hourbucket", version, after_long_help = AFTER)]
struct Arguments {
    /// The configuration file [default: config/hourbucket.toml, if it exists]
    #[arg(long, global = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const AFTER: &str = "\
Files of the Debian package: /etc/hourbucket/hourbucket.toml (every setting with its default), \
/etc/hourbucket/credentials/mongodb-uri (the URI of MongoDB), /var/lib/hourbucket/journal \
(acknowledged readings that are not in MongoDB yet).";

#[derive(Subcommand)]
enum Command {
    /// Run the service until SIGTERM or SIGINT; SIGHUP reloads the configuration. Exit code 0: all
    /// acknowledged readings are stored, 1: failed, 3: the journal keeps readings that were not
    /// stored in time, 78: invalid configuration, so a restart would not help
    Run,
    /// Check on admin.listen that the running service is alive; exit code 1: it is not
    Probe {
        /// Check that it accepts readings
        #[arg(long)]
        ready: bool,
    },
    /// Check configuration, connections, server and journal; exit code 1 on a problem
    Check,
    /// Create or update the collections, indexes, validator and view; exit code 1 on a problem.
    /// `init config` writes a configuration
    #[command(args_conflicts_with_subcommands = true)]
    Init {
        /// Also shard the collections; store.uri must point to a mongos
        #[arg(long)]
        shard: bool,
        #[command(subcommand)]
        command: Option<InitCommand>,
        /// Also compute the days from this date on (rollup.days), such as 2023-01-01; can be
        /// interrupted and repeated, and the service may run
        #[arg(long, value_name = "DATE")]
        rollup_from: Option<chrono::NaiveDate>,
        /// Also encode the columns from this date on (columns.enabled); can be interrupted and
        /// repeated, and the service may run
        #[arg(long, value_name = "DATE")]
        columns_from: Option<chrono::NaiveDate>,
    },
    /// Decode a payload from standard input and print the result; exit code 0: at least one
    /// reading, 1: none, because of rejects, 3: none, and rightly so (skipped by a rule, empty, or
    /// without a value)
    Decode {
        /// A built-in format (json, ndjson, scalar, line, ...), a shipped profile such as
        /// zigbee2mqtt, or one of [formats.NAME] in the configuration; --list shows all. Without
        /// it, all formats are tried, and those that fit are shown with what they would store, the
        /// best first
        #[arg(long)]
        format: Option<String>,
        /// The MQTT topic of the message
        #[arg(long)]
        topic: Option<String>,
        /// The subscription's topic template, such as sensors/{sensor_id}/{field}
        #[arg(long)]
        template: Option<String>,
        /// Unit of numeric times: s, ms, us, ns, or auto for by magnitude [default: auto; ns for
        /// line]
        #[arg(long)]
        ts_unit: Option<String>,
        /// A file with the birth of a Sparkplug node or device, which defines the aliases of its
        /// data
        #[arg(long)]
        birth: Option<PathBuf>,
        /// Only list the formats
        #[arg(long)]
        list: bool,
    },
    /// Import files (CSV, NDJSON, line protocol, any other format) through the running service;
    /// exit code 0: everything is stored, 1: some records were rejected, 2: failed. Can be
    /// interrupted and repeated: readings are stored once
    Import(Box<import::Import>),
    /// Export stored readings into files (Parquet, CSV, NDJSON), a day or less in each; the service may
    /// run, and readings that it has only in memory are not exported; exit code 0: all are exported,
    /// 2: failed. Can be interrupted and repeated: it continues behind the last finished file
    Export(export::Export),
    /// Show readings as the running service accepts them, and rejects with their reason
    Tail(tail::Tail),
    /// Compare stored buckets with their readings; exit code 0: all equal (or repaired), 1: they
    /// differ, 2: failed
    Reconcile(maintain::Reconcile),
    /// Convert stored buckets from pages to the time-series collection or back; can be interrupted
    /// and repeated; exit code 0: done, 1: some were skipped or differ, 2: failed
    Convert(maintain::Convert),
    /// Remove readings, single values, or sensors wholly, after a confirmation; the service may run. Can
    /// be interrupted and repeated; exit code 0: done, 1: something was kept, 2: failed
    Remove(remove::Remove),
    /// Rename, merge or replace sensors: their readings count for another id, and so does what arrives;
    /// the service may run. Can be interrupted and repeated; exit code 0: done, 1: something was kept,
    /// 2: failed
    Sensors {
        #[command(subcommand)]
        command: sensors::Sensors,
    },
    /// List, replay or remove dead letters: messages that could not be decoded or stored
    DeadLetters {
        #[command(subcommand)]
        command: dead_letters::DeadLetters,
    },
    /// Inspect or salvage the journal
    Journal {
        #[command(subcommand)]
        command: journal::JournalCommand,
    },
    /// Add, list, revoke or rotate tokens of senders and readers
    Tokens {
        #[command(subcommand)]
        command: tokens::TokensCommand,
    },
    /// Print the completion script of a shell
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print docs/configuration.md
    #[command(hide = true)]
    ConfigReference,
}

#[derive(Subcommand)]
enum InitCommand {
    /// Write a small commented configuration for your case, from options or a few questions
    Config(Box<init_config::InitConfig>),
}

/// Runs the command that the arguments name. `on_idle` is called by a thread before it waits for
/// work, so often that it must be cheap.
pub fn main(on_idle: fn()) -> ExitCode {
    let arguments = Arguments::parse();
    let failed = arguments.command.failed();
    ended(run_command(arguments, on_idle), failed)
}

impl Command {
    /// The exit code if it failed.
    fn failed(&self) -> u8 {
        match self {
            Command::Import(_)
            | Command::Export(_)
            | Command::Reconcile(_)
            | Command::Convert(_)
            | Command::Remove(_)
            | Command::Sensors { .. }
            | Command::DeadLetters { .. }
            | Command::Journal { .. } => MAINTENANCE_FAILED,
            _ => 1,
        }
    }
}

fn run_command(arguments: Arguments, on_idle: fn()) -> ExitCode {
    if let Command::Init {
        command: Some(InitCommand::Config(options)),
        ..
    } = arguments.command
    {
        return init_config::run(*options);
    }
    match &arguments.command {
        Command::Decode {
            format,
            topic,
            template,
            ts_unit,
            birth,
            list,
        } => {
            let request = decode_command::Request {
                format: format.as_deref(),
                birth: birth.as_deref(),
                topic: topic.as_deref(),
                template: template.as_deref(),
                ts_unit: ts_unit.as_deref(),
            };
            match decode_command::settings(arguments.config.as_deref()) {
                Ok(config) if *list => decode_command::list_formats(&config),
                Ok(config) => decode_command::decode_stdin(request, &config),
                Err(errors) => fail(errors),
            }
        }
        Command::Import(options) if !options.replace => {
            match decode_command::settings(arguments.config.as_deref()) {
                Ok(config) => import::run(options, &config),
                Err(errors) => maintenance_failed(errors),
            }
        }
        Command::Tail(options) => match decode_command::settings(arguments.config.as_deref()) {
            Ok(config) => tail::run(options, &config),
            Err(errors) => fail(errors),
        },
        Command::Tokens { command } => tokens::run(command, arguments.config.as_deref()),
        Command::Completions { shell } => match print_completions(*shell) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(error),
        },
        Command::ConfigReference => {
            print_line(config::reference().trim_end());
            ExitCode::SUCCESS
        }
        _ => match config::load(arguments.config.as_deref(), config::environment()) {
            Ok(loaded) => with_config(arguments.command, loaded, arguments.config, on_idle),
            Err(errors) => config_failed(&arguments.command, errors),
        },
    }
}

/// The definition of the command line, from which the man pages in `deploy/` are made.
pub fn command_line() -> clap::Command {
    Arguments::command()
}

fn print_completions(shell: clap_complete::Shell) -> std::io::Result<()> {
    // The generator panics if its writer fails.
    let mut script = vec![];
    clap_complete::generate(shell, &mut command_line(), "hourbucket", &mut script);
    StandardOutput.write_all(&script)?;
    StandardOutput.flush()
}

/// Time for work that still runs at the end: blocking work such as a name lookup, or a driver task.
const SHUTDOWN_WAIT: std::time::Duration = std::time::Duration::from_millis(200);

fn config_failed(command: &Command, error: impl std::fmt::Display) -> ExitCode {
    let failed = fail(error);
    match command {
        Command::Import(_)
        | Command::Export(_)
        | Command::Reconcile(_)
        | Command::Convert(_)
        | Command::Remove(_)
        | Command::Sensors { .. }
        | Command::DeadLetters { .. } => ExitCode::from(MAINTENANCE_FAILED),
        Command::Run => ExitCode::from(CONFIG_UNUSABLE),
        _ => failed,
    }
}

fn with_config(
    command: Command,
    loaded: config::Loaded,
    path: Option<PathBuf>,
    on_idle: fn(),
) -> ExitCode {
    if let Command::Journal { command } = command {
        return journal::run(&command, &loaded.config);
    }
    let runtime = match runtime(|| {}, on_idle) {
        Ok(runtime) => runtime,
        Err(error) => return fail(format!("cannot start the runtime: {error}")),
    };
    let is_service = matches!(command, Command::Run);
    let code = match command {
        Command::Run => match self::runtime(|| priority::lower_own(priority::STORING), on_idle) {
            Ok(storing) => {
                let code = runtime.block_on(run::run(loaded, path, storing.handle().clone()));
                storing.shutdown_timeout(SHUTDOWN_WAIT);
                code
            }
            Err(error) => fail(format!("cannot start the runtime: {error}")),
        },
        Command::Probe { ready } => {
            match runtime.block_on(probe::probe(&loaded.config.admin, ready)) {
                Ok(answer) => {
                    print_line(&answer);
                    ExitCode::SUCCESS
                }
                Err(error) => fail(error),
            }
        }
        Command::Init {
            shard,
            rollup_from,
            columns_from,
            ..
        } => runtime.block_on(init(&loaded.config, shard, rollup_from, columns_from)),
        Command::Import(options) => runtime
            .block_on(with_store(&loaded.config, async |config, store| {
                import::replace::run(config, store, *options).await
            })),
        Command::Export(arguments) => runtime
            .block_on(with_store(&loaded.config, async |config, store| {
                export::run(config, store, &arguments).await
            })),
        Command::Reconcile(arguments) => runtime
            .block_on(with_store(&loaded.config, async |config, store| {
                maintain::reconcile(config, store, arguments).await
            })),
        Command::Convert(arguments) => runtime
            .block_on(with_store(&loaded.config, async |config, store| {
                maintain::convert(config, store, arguments).await
            })),
        Command::Remove(arguments) => runtime
            .block_on(with_store(&loaded.config, async |config, store| {
                remove::remove(config, store, arguments).await
            })),
        Command::DeadLetters { command } if loaded.config.forward.is_on() => {
            rejected::run(&loaded.config, command)
        }
        Command::Sensors { command } => runtime
            .block_on(with_store(&loaded.config, async |config, store| {
                sensors::run(config, store, command).await
            })),
        Command::DeadLetters { command } => runtime
            .block_on(with_store(&loaded.config, async |config, store| {
                dead_letters::run(config, store, command).await
            })),
        _ => runtime.block_on(check_all(&loaded)),
    };
    match is_service {
        true => runtime.shutdown_timeout(SHUTDOWN_WAIT),
        // A task of the driver, such as one that ends a cursor, panics if the pool that it asks for a
        // connection was dropped before it. So none is dropped: they end with the process.
        false => std::mem::forget(runtime),
    }
    code
}

fn runtime(on_thread_start: fn(), on_idle: fn()) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_start(on_thread_start)
        .on_thread_park(on_idle)
        .build()
}

/// Runs a maintenance command on the store.
async fn with_store(
    config: &Config,
    command: impl AsyncFnOnce(&Config, MongoStore) -> ExitCode,
) -> ExitCode {
    if let Some(elsewhere) = config.forward.elsewhere() {
        return maintenance_failed(elsewhere);
    }
    match store(config).await {
        Ok(store) => command(config, store).await,
        Err(error) => maintenance_failed(error),
    }
}

/// The store of the configuration, for commands that work on it.
async fn store(config: &Config) -> Result<MongoStore, StoreConfigError> {
    let optional_indexes = OptionalIndexes {
        latest: config.latest.enabled,
        tags_index: config.store.tags_index,
    };
    let store = MongoStore::new(
        &config.store,
        config.bucket.span,
        config.dead_letters.retention,
    )
    .await?;
    let rollup = RollupSchema {
        zone: Zone::from(config.rollup.zone),
        days: config.rollup.days.then_some(config.rollup.retention),
        columns: config.columns.enabled.then_some(config.columns.retention),
    };
    let has_days = rollup.days.is_some() || rollup.columns.is_some();
    Ok(store
        .with_latest_and_tags(optional_indexes)
        .with_rollup(has_days.then_some(rollup)))
}

async fn init(
    config: &Config,
    shard: bool,
    rollup_from: Option<chrono::NaiveDate>,
    columns_from: Option<chrono::NaiveDate>,
) -> ExitCode {
    let done = async {
        if let Some(elsewhere) = config.forward.elsewhere() {
            return Err(elsewhere.into());
        }
        let store = store(config).await?;
        if rollup_from.is_some() && !config.rollup.days {
            return Err("--rollup-from needs rollup.days = true".into());
        }
        if columns_from.is_some() && !config.columns.enabled {
            return Err("--columns-from needs columns.enabled = true".into());
        }
        if shard {
            // Before anything is created.
            store.schema().can_shard().await?;
        }
        let prepared = store.prepare().await?;
        prepared
            .changes
            .iter()
            .for_each(|change| print_line(change));
        prepared
            .warnings
            .iter()
            .for_each(|warning| print_line(&format!("warning: {warning}")));
        if shard {
            store
                .schema()
                .shard()
                .await?
                .iter()
                .for_each(|line| print_line(line));
        }
        print_line(&format!(
            "ready: MongoDB {}, {}",
            prepared.server_version, prepared.mode_reason
        ));
        if let Some(date) = rollup_from {
            maintain::fill_days(config, &store, date).await?;
        }
        if let Some(date) = columns_from {
            maintain::fill_columns(config, &store, date).await?;
        }
        Ok::<(), Box<dyn Error>>(())
    };
    match done.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

async fn check_all(loaded: &config::Loaded) -> ExitCode {
    let file = loaded.file.as_ref().map_or_else(
        || "no file, defaults".to_owned(),
        |f| f.display().to_string(),
    );
    print_line(&format!("ok       configuration  {file}"));
    let exposed = loaded.exposed_secrets();
    let journal = loaded.config.exposed_journal();
    for warning in loaded
        .config
        .warnings()
        .iter()
        .chain(&exposed)
        .chain(&journal)
    {
        print_line(&format!("warning  configuration  {warning}"));
    }
    let store = match loaded.config.forward.is_on() {
        true => None,
        false => Some(store(&loaded.config).await),
    };
    let mut good = true;
    for finding in check::check(&loaded.config, store).await {
        good &= finding.good();
        print_line(&finding.to_string());
    }
    // No problems: a service on a private network may do without.
    for line in hardening::checklist(&loaded.config) {
        print_line(&line.to_string());
    }
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
