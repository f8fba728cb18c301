//! The commands `sensors rename`, `sensors merge` and `sensors replace`: arguments, confirmation,
//! output, exit codes, audit lines.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::output::{maintenance_failed, print_line};
use super::remove::{
    PROGRESS_EVERY, begin, confirm, counted, print_kept, print_notes, settings, uid,
};
use config::Config;
use model::{Alias, Clock, SensorId, SystemClock};
use store::maintain::report::printable;
use store::maintain::{moment, time};
use store::mongo::{MongoStore, MoveKind, MoveOptions, Moved, Removed};
use telemetry::audit;

#[derive(Subcommand)]
pub(crate) enum Sensors {
    /// Give a sensor another id, which has no readings yet; readings that still come with the old id
    /// count for the new one
    Rename {
        /// The id that it has
        old: String,
        /// The id that it gets
        new: String,
        #[command(flatten)]
        how: How,
    },
    /// Join two sensors: the readings of the first one count for the second one, equal ones once
    Merge {
        /// The id that becomes a former one
        a: String,
        /// The word `into`
        #[arg(value_parser = ["into"], ignore_case = true, hide_possible_values = true)]
        into: String,
        /// The id that stays
        b: String,
        #[command(flatten)]
        how: How,
    },
    /// Continue the history of a device with the readings of its successor, from a time on; the
    /// sensor keeps the old id
    Replace {
        /// The id of the device that was replaced, which stays
        old: String,
        /// The id of its successor
        new: String,
        /// From when on readings of the successor count: RFC 3339, or a date in UTC
        #[arg(long, value_name = "TIME", value_parser = moment)]
        at: i64,
        #[command(flatten)]
        how: How,
    },
}

#[derive(Args)]
pub(crate) struct How {
    /// Only show what would be moved
    #[arg(long)]
    dry_run: bool,
    /// Move without asking
    #[arg(long)]
    yes: bool,
}

impl Sensors {
    fn into_parts(self) -> (MoveKind, Alias, How) {
        let alias = |former: String, sensor_id: String, from_ms| Alias {
            former: former.into(),
            sensor_id: sensor_id.into(),
            from_ms,
        };
        match self {
            Sensors::Rename { old, new, how } => (MoveKind::Rename, alias(old, new, None), how),
            Sensors::Merge { a, into, b, how } => {
                debug_assert!(into.eq_ignore_ascii_case("into"));
                (MoveKind::Merge, alias(a, b, None), how)
            }
            Sensors::Replace { old, new, at, how } => {
                (MoveKind::Replace, alias(new, old, Some(at)), how)
            }
        }
    }
}

pub(crate) async fn run(config: &Config, store: MongoStore, command: Sensors) -> ExitCode {
    let (kind, alias, how) = command.into_parts();
    if let Some(why) = invalid(config, &alias) {
        return maintenance_failed(why);
    }
    let _alone = match begin(config, &store).await {
        Ok(alone) => alone,
        Err(code) => return code,
    };
    let now_ms = SystemClock::new().now().wall_ms;
    let options = MoveOptions {
        settings: settings(config, now_ms),
        kind,
        alias,
    };
    let planned = store.maintenance().plan_move(&store, &options).await;
    let planned = match planned {
        Ok(planned) => planned,
        Err(failure) => return maintenance_failed(failure),
    };
    print_planned(&options.alias, &planned);
    if how.dry_run {
        return ExitCode::SUCCESS;
    }
    if !how.yes
        && let Err(why) = confirm("Move this? [y/N] ", "moved")
    {
        return maintenance_failed(why);
    }
    let mut details = details(&options.alias);
    if let Err(failure) = audit::append(&config.audit, "move_begins", &details) {
        return maintenance_failed(failure);
    }
    let mut printed = Instant::now();
    let progress = |at: &Removed| {
        if printed.elapsed() >= PROGRESS_EVERY {
            printed = Instant::now();
            let all = planned.buckets;
            let line = format!("{} of {all} hours, {} readings", at.buckets, at.readings);
            let _ = writeln!(io::stderr().lock(), "{line}");
        }
    };
    let moved = store
        .maintenance()
        .move_sensor(&store, &options, progress)
        .await;
    let moved = match moved {
        Ok(moved) => moved,
        Err(failure) => {
            let why = "what has moved stays moved; run the same command again, which continues";
            return maintenance_failed(format!("{failure}; {why}"));
        }
    };
    details.insert("readings".into(), json!(moved.removed.readings));
    details.insert("kept_buckets".into(), json!(moved.removed.kept_total));
    let noted = audit::append(&config.audit, "move", &details);
    print_moved(&options.alias, &moved);
    let removed = &moved.removed;
    let left = removed.kept_total + removed.still_arriving + removed.unsettled + moved.days_kept;
    match noted {
        Err(failure) => maintenance_failed(failure),
        Ok(()) if left > 0 || !moved.unconfirmed.is_empty() => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
    }
}

/// Why these cannot be ids of sensors.
fn invalid(config: &Config, alias: &Alias) -> Option<String> {
    let bytes_max = config.limits.sensor_id_max_bytes;
    let fits = |id: &SensorId| !id.is_empty() && id.len() <= bytes_max && !id.contains('\0');
    let ids = [&alias.former, &alias.sensor_id];
    let id = ids.into_iter().find(|id| !fits(id))?;
    Some(format!(
        "`{}` cannot be the id of a sensor: expected 1 to {bytes_max} bytes without NUL",
        printable(id)
    ))
}

/// What was asked for, as an audit line shows it.
fn details(alias: &Alias) -> Map<String, Value> {
    let mut details = Map::new();
    details.insert("former_id".into(), json!(&*alias.former));
    details.insert("sensor_id".into(), json!(&*alias.sensor_id));
    details.extend(
        alias
            .from_ms
            .map(|from_ms| ("from".into(), json!(time(from_ms)))),
    );
    details.extend(uid().map(|uid| ("uid".into(), json!(uid))));
    details
}

/// `a` to `b`, and from when on.
fn named(alias: &Alias) -> String {
    let from = alias
        .from_ms
        .map(|from_ms| format!(", from {} on", time(from_ms)));
    let former = printable(&alias.former);
    let sensor = printable(&alias.sensor_id);
    format!("of {former} to {sensor}{}", from.unwrap_or_default())
}

fn print_planned(alias: &Alias, planned: &Removed) {
    let about = match alias.from_ms {
        None => "",
        Some(_) => "at most ",
    };
    let readings = counted(planned.readings, "reading");
    let hours = counted(planned.buckets, "hour");
    print_line(&format!(
        "would move {about}{readings} from {hours} {}; readings that come with the id {} count for \
         {} from now on",
        named(alias),
        printable(&alias.former),
        printable(&alias.sensor_id)
    ));
}

fn print_moved(alias: &Alias, moved: &Moved) {
    let removed = &moved.removed;
    print_kept(removed);
    print_notes(removed);
    for instance in &moved.unconfirmed {
        print_line(&format!(
            "note: the instance {instance} has not confirmed the new id: it has readings that are not \
             stored, or does not answer. Run the command again later"
        ));
    }
    if removed.still_arriving > 0 {
        print_line("note: readings still arrived under the former id: run the command again");
    }
    if moved.days_kept > 0 {
        let days = counted(moved.days_kept, "day");
        print_line(&format!(
            "note: kept {days} of the former id of which the hours are gone: both ids have readings then"
        ));
    }
    let readings = counted(removed.readings, "reading");
    let hours = counted(removed.buckets, "hour");
    print_line(&format!(
        "moved {readings} from {hours} {}; computed {} days again",
        named(alias),
        removed.days
    ));
}
