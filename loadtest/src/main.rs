//! Load tests for hourbucket and for common alternatives, with a check of the stored data
//! afterwards.
//!
//! ```text
//!  spec ──> plan ──> render ──> drive ──(http|mqtt)──> hourbucket ──> MongoDB ──> verify
//!                                 └── usage (/proc), metrics ──> report ──> table, JSON, plot
//! ```
//!
//! A run that lost or duplicated a reading fails, regardless of its speed.

mod baseline;
mod compare;
mod disk;
mod drive;
mod http;
mod instructions;
mod latency;
mod mqtt;
mod pair;
mod parts;
mod plan;
mod plot;
mod promql;
mod reads;
mod record;
mod removal;
mod render;
mod report;
mod run;
mod soak;
mod spec;
mod usage;
mod values;
mod verify;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Why a run failed, as a message for the user.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Load test for hourbucket: runs scenarios, compares with common alternatives, and verifies the
/// stored data.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one scenario; exit code 1 if an acknowledged reading is missing or duplicated
    Run {
        /// A file, or the name of a scenario in loadtest/specs
        spec: PathBuf,
        #[command(flatten)]
        common: Common,
        /// Damage the store before the check, to test that the check detects it
        #[arg(long, value_enum)]
        tamper: Option<verify::Tamper>,
    },
    /// Run the baselines and hourbucket, and print the ratios; exit code 1 if a part failed or a
    /// reading is missing or duplicated. A missed target is not a failure
    Compare {
        #[command(flatten)]
        common: Common,
        /// Only these parts, separated by commas
        #[arg(long, value_enum, value_delimiter = ',')]
        only: Vec<compare::Part>,
        #[command(flatten)]
        recording: Recording,
    },
    /// Fill MongoDB with a month of readings in four layouts, and measure queries; with --promql,
    /// compare PromQL with Prometheus and VictoriaMetrics; exit code 1 if answers differ
    Reads {
        #[command(flatten)]
        common: Common,
        /// Only the comparison of PromQL
        #[arg(long)]
        promql: bool,
        /// Number of sensors, each with one reading per minute
        #[arg(long, default_value_t = 1000)]
        sensors: u32,
        /// Number of days
        #[arg(long, default_value_t = 30)]
        days: i64,
        #[command(flatten)]
        recording: Recording,
    },
    /// Measure cheap PromQL queries beside four viewers who repeat an expensive one
    Starve {
        #[command(flatten)]
        common: Common,
        /// Number of sensors, each with one reading per minute
        #[arg(long, default_value_t = 300)]
        sensors: u32,
        /// Number of days
        #[arg(long, default_value_t = 30)]
        days: i64,
        #[command(flatten)]
        recording: Recording,
    },
    /// Measure `hourbucket export` from columns in each format
    Export {
        #[command(flatten)]
        common: Common,
        /// Number of sensors, each with one reading per minute
        #[arg(long, default_value_t = 1000)]
        sensors: u32,
        /// Number of days
        #[arg(long, default_value_t = 30)]
        days: i64,
        #[command(flatten)]
        recording: Recording,
    },
    /// Run a steady load over MQTT and HTTP for a long time, with restarts; exit code 1 if a
    /// reading is missing or duplicated
    Soak {
        #[command(flatten)]
        common: Common,
        /// The storage mode: bucket or timeseries
        #[arg(long, default_value = "bucket", value_parser = ["bucket", "timeseries"])]
        mode: String,
        /// Duration
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(8..=1440))]
        minutes: u32,
        /// Add the result to loadtest/RESULTS.md, and its plot to loadtest/plots
        #[arg(long)]
        record: bool,
        /// A note for the record, for instance what was changed
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Run a scenario alternately with two binaries, and print the ratios
    Pair {
        /// A file, or the name of a scenario in loadtest/specs
        spec: PathBuf,
        /// The binary of the service before a change
        #[arg(long, default_value = "target/release/hourbucket")]
        before: PathBuf,
        /// The binary of the service after the change
        #[arg(long, default_value = "target/release/hourbucket")]
        after: PathBuf,
        /// A setting of the service after the change, such as FLUSH__COMMANDS_MAX=2; may be
        /// repeated
        #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
        settings: Vec<(String, String)>,
        /// Number of runs with each binary
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Run and compare all phases, not only the first
        #[arg(long)]
        each_phase: bool,
        /// Count instructions with valgrind instead, which other load on the machine changes little:
        /// two short runs with each binary
        #[arg(long, conflicts_with_all = ["rounds", "each_phase", "short"])]
        instructions: bool,
        /// Run a short version of the scenario, to see that everything works
        #[arg(long)]
        short: bool,
        #[command(flatten)]
        recording: Recording,
    },
}

#[derive(clap::Args)]
struct Recording {
    /// Add the result to loadtest/RESULTS.md
    #[arg(long)]
    record: bool,
    /// A note for the record, for instance what was changed
    #[arg(long, default_value = "")]
    note: String,
}

#[derive(clap::Args)]
struct Common {
    /// The binary of the service
    #[arg(long, default_value = "target/release/hourbucket")]
    binary: PathBuf,
    /// Run a short version of each scenario, to see that everything works
    #[arg(long)]
    short: bool,
    /// A setting of the service: its variable without `HOURBUCKET_`, such as FLUSH__COMMANDS_MAX=2;
    /// may be repeated (the service does not inherit such variables of the environment)
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Output directory for the JSON and the plots
    #[arg(long, default_value = "target/loadtest")]
    out: PathBuf,
}

/// `KEY=VALUE`.
fn setting(text: &str) -> Result<(String, String), Failure> {
    let (key, value) = text
        .split_once('=')
        .ok_or("expected KEY=VALUE, such as FLUSH__COMMANDS_MAX=2")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    match runtime.block_on(command(arguments.command)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Failure) -> ExitCode {
    eprintln!("loadtest: {error}");
    ExitCode::from(2)
}

/// Runs the command; false if its check failed.
async fn command(command: Command) -> Result<bool, Failure> {
    match command {
        Command::Run {
            spec,
            common,
            tamper,
        } => run_scenario(&spec, common, tamper).await,
        Command::Compare {
            common,
            only,
            recording: Recording { record, note },
        } => run_comparison(common, &only, record, &note).await,
        Command::Reads {
            common,
            promql: true,
            sensors,
            days,
            recording,
        } => run_promql(&common, sensors, days, &recording).await,
        Command::Reads {
            common,
            promql: false,
            sensors,
            days,
            recording,
        } => run_reads(&common, sensors, days, &recording).await,
        Command::Starve {
            common,
            sensors,
            days,
            recording,
        } => run_starve(&common, sensors, days, &recording).await,
        Command::Export {
            common,
            sensors,
            days,
            recording,
        } => run_export(&common, sensors, days, &recording).await,
        Command::Soak {
            common,
            mode,
            minutes,
            record,
            note,
        } => run_soak(common, mode, minutes, record, &note).await,
        Command::Pair {
            spec,
            before,
            after,
            settings,
            rounds,
            each_phase,
            instructions,
            short,
            recording: Recording { record, note },
        } => {
            let options = |binary, settings| run::Options {
                binary,
                settings,
                tamper: None,
                progress: false,
            };
            let before = options(before, BTreeMap::new());
            let after = options(after, settings.into_iter().collect());
            let machine = record::Machine::now();
            let both = [before, after];
            let pair = match instructions {
                true => instructions::run(&spec, both).await?,
                false => pair::run(&spec, short, both, rounds, each_phase).await?,
            };
            let lines = pair.markdown();
            lines.iter().for_each(|line| print_line(line));
            if record {
                record::append(&machine, short, &note, &lines)?;
            }
            Ok(true)
        }
    }
}

async fn run_scenario(
    spec: &Path,
    common: Common,
    tamper: Option<verify::Tamper>,
) -> Result<bool, Failure> {
    let spec = run::find_spec(spec, common.short)?;
    let settings = common.settings.into_iter().collect();
    let options = run::Options {
        binary: common.binary,
        settings,
        tamper,
        progress: true,
    };
    let report = run::run(&spec, &options).await?;
    report.lines().iter().for_each(|line| print_line(line));
    save(&common.out, &spec.name, &report)?;
    plot::save(&common.out, &report)?;
    Ok(report.check.problems.is_empty())
}

async fn run_comparison(
    common: Common,
    only: &[compare::Part],
    record: bool,
    note: &str,
) -> Result<bool, Failure> {
    let settings = common.settings.into_iter().collect();
    let options = run::Options {
        binary: common.binary,
        settings,
        tamper: None,
        progress: false,
    };
    // Records the load of the machine before anything runs.
    let machine = record::Machine::now();
    let comparison = compare::compare(only, common.short, &options).await?;
    let lines = comparison.markdown();
    lines.iter().for_each(|line| print_line(line));
    save(&common.out, "compare", &comparison)?;
    comparison
        .reports()
        .try_for_each(|report| plot::save(&common.out, report))?;
    if record {
        record::append(&machine, common.short, note, &lines)?;
    }
    Ok(comparison.sound())
}

async fn run_reads(
    common: &Common,
    sensors: u32,
    days: i64,
    recording: &Recording,
) -> Result<bool, Failure> {
    let publisher = Publisher::new(common, recording);
    let month = if common.short {
        reads::Month::new(20, 2)
    } else {
        reads::Month::new(sensors, days)
    };
    let settings = common.settings.iter().cloned().collect();
    let reads = reads::run(
        month,
        &reads::Options {
            binary: common.binary.clone(),
            settings,
            short: common.short,
        },
    )
    .await?;
    publisher.publish("reads", &reads, &reads.markdown())?;
    Ok(reads.sound())
}

fn promql_options(common: &Common, sensors: u32, days: i64) -> promql::Options {
    let (sensors, days) = if common.short {
        (40, 3)
    } else {
        (sensors, days)
    };
    promql::Options {
        binary: common.binary.clone(),
        settings: common.settings.iter().cloned().collect(),
        sensors,
        days,
        short: common.short,
    }
}

async fn run_promql(
    common: &Common,
    sensors: u32,
    days: i64,
    recording: &Recording,
) -> Result<bool, Failure> {
    let publisher = Publisher::new(common, recording);
    let report = promql::run(&promql_options(common, sensors, days)).await?;
    publisher.publish("promql", &report, &report.markdown())?;
    Ok(report.sound())
}

async fn run_starve(
    common: &Common,
    sensors: u32,
    days: i64,
    recording: &Recording,
) -> Result<bool, Failure> {
    let publisher = Publisher::new(common, recording);
    let starved = promql::starve::run(&promql_options(common, sensors, days)).await?;
    publisher.publish("starve", &starved, &starved.markdown())?;
    Ok(true)
}

async fn run_export(
    common: &Common,
    sensors: u32,
    days: i64,
    recording: &Recording,
) -> Result<bool, Failure> {
    let publisher = Publisher::new(common, recording);
    let exported = promql::export::run(&promql_options(common, sensors, days)).await?;
    publisher.publish("export", &exported, &exported.markdown())?;
    Ok(true)
}

async fn run_soak(
    common: Common,
    mode: String,
    minutes: u32,
    record: bool,
    note: &str,
) -> Result<bool, Failure> {
    let machine = record::Machine::now();
    let settings = common.settings.into_iter().collect();
    let options = soak::Options {
        binary: common.binary,
        settings,
        mode,
        minutes,
        short: common.short,
    };
    let soak = soak::run(&options).await?;
    let lines = soak.markdown();
    lines.iter().for_each(|line| print_line(line));
    save(&common.out, &soak.name, &soak)?;
    soak.plot(&common.out)?;
    if record {
        soak.plot_record()?;
        record::append(&machine, common.short, note, &lines)?;
    }
    Ok(soak.sound())
}

/// Publishes a result that was measured on this machine.
struct Publisher<'a> {
    common: &'a Common,
    recording: &'a Recording,
    machine: record::Machine,
}

impl<'a> Publisher<'a> {
    /// Before anything runs: it reads the load of the machine.
    fn new(common: &'a Common, recording: &'a Recording) -> Publisher<'a> {
        let machine = record::Machine::now();
        Publisher {
            common,
            recording,
            machine,
        }
    }

    /// Prints the lines of a result, saves it under its name, and adds the lines to the records if
    /// that is asked for.
    fn publish(
        &self,
        name: &str,
        result: &impl serde::Serialize,
        lines: &[String],
    ) -> Result<(), Failure> {
        lines.iter().for_each(|line| print_line(line));
        save(&self.common.out, name, result)?;
        if self.recording.record {
            record::append(
                &self.machine,
                self.common.short,
                &self.recording.note,
                lines,
            )?;
        }
        Ok(())
    }
}

fn save(out: &Path, name: &str, what: &impl serde::Serialize) -> Result<(), Failure> {
    std::fs::create_dir_all(out)?;
    let path = out.join(name).with_extension("json");
    std::fs::write(&path, serde_json::to_string_pretty(what)?)?;
    eprintln!("{}", path.display());
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the output of the program")]
fn print_line(line: &str) {
    println!("{line}");
}
