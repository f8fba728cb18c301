//! The command `remove`: arguments, confirmation, output, exit codes, audit lines.

use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value, json};

use super::maintain::{EVER, page_size};
use super::output::{maintenance_failed, print_line};
use crate::app::weightings;
use config::Config;
use model::catalog::arrival_step_ms;
use model::{Clock, SensorPatterns, SystemClock, Zone};
use store::maintain::condition::Condition;
use store::maintain::removal::{Keys, Removal};
use store::maintain::report::printable;
use store::maintain::{moment, settled_ms, time};
use store::mongo::{Alone, MongoStore, RemoveOptions, Removed, alone};
use telemetry::audit;

/// Interval between progress lines.
pub(super) const PROGRESS_EVERY: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct Remove {
    /// Of these sensors: an id, or a pattern in which `*` stands for any text; can be repeated. Without
    /// --from, --to, --field and --where, the sensors are removed wholly
    #[arg(long = "sensor", value_name = "PATTERN", required = true)]
    sensors: Vec<String>,
    /// Only readings at or after this time: RFC 3339, or a date in UTC [default: the first one]
    #[arg(long, value_parser = moment)]
    from: Option<i64>,
    /// Only readings before this time [default: the last one that is an hour old]
    #[arg(long, value_parser = moment)]
    to: Option<i64>,
    /// Only the values of this field; a reading that has no other value is removed
    #[arg(long, value_name = "FIELD")]
    field: Option<String>,
    /// Only readings for which this holds: FIELD OP VALUE, joined by `and`, such as 'temp < -100'. OP
    /// is one of < <= > >= == !=, VALUE a number, true, false or 'text'
    #[arg(long = "where", value_name = "CONDITION", allow_hyphen_values = true)]
    condition: Option<Condition>,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Remove without asking
    #[arg(long)]
    yes: bool,
}

impl Remove {
    /// What it removes of the sensors; `None`: everything.
    fn removal(&self) -> Option<Removal> {
        let is_whole = self.from.is_none() && self.to.is_none();
        let is_whole = is_whole && self.field.is_none() && self.condition.is_none();
        (!is_whole).then(|| Removal {
            from_ms: self.from.unwrap_or(EVER.0),
            to_ms: self.to.unwrap_or(EVER.1),
            field: self.field.clone(),
            condition: self.condition.clone().unwrap_or_default(),
            keys: Keys::All,
        })
    }

    /// What it was asked for, as an audit line shows it.
    fn details(&self) -> Map<String, Value> {
        let mut details = Map::new();
        details.insert("sensors".into(), json!(self.sensors));
        let texts = [
            ("from", self.from.map(|from| json!(time(from)))),
            ("to", self.to.map(|to| json!(time(to)))),
            ("field", self.field.as_ref().map(|field| json!(field))),
            (
                "where",
                self.condition
                    .as_ref()
                    .map(|condition| json!(condition.to_string())),
            ),
            ("uid", uid().map(|uid| json!(uid))),
        ];
        for (name, value) in texts {
            details.extend(value.map(|value| (name.to_owned(), value)));
        }
        details
    }
}

pub(crate) async fn remove(config: &Config, store: MongoStore, arguments: Remove) -> ExitCode {
    let patterns = arguments.sensors.iter().map(String::as_str);
    let sensors = match SensorPatterns::parse(patterns) {
        Ok(sensors) => sensors,
        Err(error) => return maintenance_failed(format!("--sensor: {error}")),
    };
    let removal = arguments.removal();
    if removal
        .as_ref()
        .is_some_and(|removal| removal.from_ms >= removal.to_ms)
    {
        return maintenance_failed("--from must be before --to");
    }
    let _alone = match begin(config, &store).await {
        Ok(alone) => alone,
        Err(code) => return code,
    };
    let now_ms = SystemClock::new().now().wall_ms;
    let plan = RemoveOptions {
        sensors,
        removal,
        dry_run: true,
        ..settings(config, now_ms)
    };
    let planned = match run(&store, &plan).await {
        Ok(planned) => planned,
        Err(failure) => return maintenance_failed(failure),
    };
    print_planned(&planned, plan.removal.is_none());
    if !arguments.yes || arguments.dry_run {
        print_kept(&planned);
    }
    if arguments.dry_run {
        return ExitCode::SUCCESS;
    }
    // With nothing to remove, an interrupted run may have left something to compute.
    let has_some = planned.readings + planned.values > 0;
    if has_some && !arguments.yes {
        let question = "Remove this? It cannot be undone. [y/N] ";
        if let Err(why) = confirm(question, "removed") {
            return maintenance_failed(why);
        }
    }
    let mut details = arguments.details();
    if let Err(failure) = audit::append(&config.audit, "removal_begins", &details) {
        return maintenance_failed(failure);
    }
    let options = RemoveOptions {
        dry_run: false,
        ..plan
    };
    let removed = match run(&store, &options).await {
        Ok(removed) => removed,
        Err(failure) => {
            let why = "what is removed stays removed; run the same command again, which continues";
            return maintenance_failed(format!("{failure}; {why}"));
        }
    };
    details.insert("readings".into(), json!(removed.readings));
    details.insert("values".into(), json!(removed.values));
    details.insert("kept_buckets".into(), json!(removed.kept_total));
    let noted = audit::append(&config.audit, "removal", &details);
    print_removed(&removed, options.removal.is_none());
    match noted {
        Err(failure) => maintenance_failed(failure),
        Ok(()) if removed.kept_total + removed.still_arriving + removed.unsettled > 0 => {
            ExitCode::FAILURE
        }
        Ok(()) => ExitCode::SUCCESS,
    }
}

async fn run(
    store: &MongoStore,
    options: &RemoveOptions,
) -> Result<Removed, store::maintain::MaintainError> {
    let mut printed = Instant::now();
    let mut seen = 0;
    let progress = |at: &Removed| {
        seen += 1;
        if printed.elapsed() >= PROGRESS_EVERY {
            printed = Instant::now();
            let of = at.sensors;
            let line = format!("{seen} of {of} sensors, {} readings", at.readings);
            let _ = writeln!(io::stderr().lock(), "{line}");
        }
    };
    store.maintenance().remove(store, options, progress).await
}

/// What the configuration says about removals; of no sensor.
pub(super) fn settings(config: &Config, now_ms: i64) -> RemoveOptions {
    RemoveOptions {
        sensors: SensorPatterns::default(),
        removal: None,
        now_ms,
        settled_before_ms: now_ms - settled_ms(config.bucket.span),
        zone: Zone::from(config.rollup.zone),
        has_days: config.rollup.days,
        columns: config.columns.enabled.then(|| weightings(config)),
        recent_max: config.latest.enabled.then_some(config.latest.recent),
        latest_interval: config.latest.interval,
        arrival_step_ms: arrival_step_ms(config.sensors.silent_after),
        page: page_size(config),
        dry_run: false,
    }
}

/// The id of the user that runs the command.
pub(super) fn uid() -> Option<u32> {
    let process = std::fs::metadata("/proc/self").ok()?;
    Some(process.uid())
}

/// Begins a command that changes stored readings: no other one may run.
pub(super) async fn begin(config: &Config, store: &MongoStore) -> Result<Alone, ExitCode> {
    let checked = store.schema().check_metadata().await;
    checked.map_err(maintenance_failed)?;
    alone(&config.store).await.map_err(maintenance_failed)
}

/// Why a command does nothing, with what it would have done, such as `removed`.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotConfirmed {
    #[error("nothing was {0}; add --yes to confirm")]
    NoTerminal(&'static str),
    #[error("nothing was {0}")]
    Refused(&'static str),
    #[error("standard input cannot be read")]
    NoAnswer,
}

/// Asks whether to go on. `done`: what happens to the readings then, such as `removed`.
pub(super) fn confirm(question: &str, done: &'static str) -> Result<(), NotConfirmed> {
    if !io::stdin().is_terminal() {
        return Err(NotConfirmed::NoTerminal(done));
    }
    let mut out = io::stderr().lock();
    let _ = write!(out, "{question}");
    let _ = out.flush();
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|_| NotConfirmed::NoAnswer)?;
    match ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        true => Ok(()),
        false => Err(NotConfirmed::Refused(done)),
    }
}

fn print_planned(planned: &Removed, is_whole: bool) {
    if planned.readings + planned.values == 0 && planned.kept_total == 0 && planned.affected == 0 {
        let sensors = counted(planned.sensors, "sensor");
        return print_line(&format!(
            "nothing to remove: no reading of {sensors} matches"
        ));
    }
    print_line(&format!("{}:", summed("would remove", planned)));
    for (sensor, ts_ms, values) in &planned.examples {
        let sensor = printable(sensor);
        let values = printable(values);
        print_line(&format!("  {sensor} {} {values}", time(*ts_ms)));
    }
    let all = match is_whole {
        true => planned.affected,
        false => planned.readings + planned.values,
    };
    if all > planned.examples.len() as u64 {
        print_line("  …");
    }
}

pub(super) fn print_removed(removed: &Removed, is_whole: bool) {
    print_kept(removed);
    print_notes(removed);
    if removed.entries_kept > 0 {
        let what = match is_whole {
            true => "stay",
            false => "may list fields and times that are no longer stored",
        };
        print_line(&format!(
            "note: {} entries of the catalogue {what}, because their sensors have sent recently: run \
             the command again when they have been silent for half of sensors.silent_after",
            removed.entries_kept
        ));
    }
    if removed.still_arriving > 0 {
        print_line(&format!(
            "note: readings of {} sensors still arrive: revoke their tokens, or stop them, and run \
             the command again",
            removed.still_arriving
        ));
    }
    print_line(&format!(
        "{}; computed {} days again; changed {} latest states and {} entries of the catalogue",
        summed("removed", removed),
        removed.days,
        removed.latest,
        removed.entries
    ));
}

/// What became pages, and what services still compute.
pub(super) fn print_notes(removed: &Removed) {
    if removed.leftovers > 0 {
        print_line(&format!(
            "note: {} hours are pages now. This server deletes only whole series, so their \
             measurements stay, invisible to readers, until retention removes them",
            removed.leftovers
        ));
    } else if removed.converted > 0 {
        print_line(&format!(
            "note: {} hours of measurements are pages now",
            removed.converted
        ));
    }
    if removed.unsettled > 0 {
        print_line(&format!(
            "note: services keep computing {} days. Queries use their hours until you run the command \
             again",
            removed.unsettled
        ));
    }
}

fn summed(verb: &str, of: &Removed) -> String {
    let values = match of.values {
        0 => String::new(),
        n => format!(" and {}", counted(n, "single value")),
    };
    let readings = counted(of.readings, "reading");
    let hours = counted(of.buckets, "hour");
    let sensors = counted(of.affected, "sensor");
    format!("{verb} {readings}{values} from {hours} of {sensors}")
}

pub(super) fn counted(n: u64, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

pub(super) fn print_kept(of: &Removed) {
    for (bucket, why) in &of.kept {
        let sensor = printable(&bucket.sensor_id);
        print_line(&format!("kept: {sensor} {}: {why}", time(bucket.start.0)));
    }
    let unlisted = of.kept_total - of.kept.len() as u64;
    if unlisted > 0 {
        print_line(&format!("… and {unlisted} more hours kept"));
    }
}
