//! The commands `reconcile` and `convert`: arguments, output, exit codes.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use super::output::{Bar, maintenance_failed, print_line};
use crate::app::weightings;
use config::Config;
use model::{Clock, DAY_MS, StorageMode, SystemClock, Zone};
use store::maintain::{
    Converted, DaysChecked, Filled, MaintainError, PageSize, Progress, Reconciled, Selection,
    moment, report, settled_ms, time,
};
use store::maintain_columns::ColumnsMaintenance;
use store::mongo::{ConvertOptions, MongoStore, ReconcileOptions, alone};

/// The size of new pages.
pub(super) fn page_size(config: &Config) -> PageSize {
    PageSize {
        readings_max: config.bucket.max_readings,
        bytes_max: config.bucket.max_bytes,
    }
}

#[derive(Args)]
pub(crate) struct Reconcile {
    /// Start with the bucket of this time: RFC 3339, or a date in UTC [default: a day before --to]
    #[arg(long, value_parser = moment)]
    from: Option<i64>,
    /// Only buckets that start before this time [default: the start of the current bucket]
    #[arg(long, value_parser = moment)]
    to: Option<i64>,
    /// Only this sensor; can be repeated
    #[arg(long = "sensor", value_name = "ID")]
    sensors: Vec<String>,
    /// Repair what can be repaired; the service may run
    #[arg(long)]
    repair: bool,
    /// Remove all but one of equal readings in buckets that ended an hour ago. Do not use it if
    /// sensors send readings without their own time: these may be equal. On servers before MongoDB
    /// 7.0, which delete whole series only, a time-series bucket becomes pages; do not run `convert
    /// --into timeseries` at the same time
    #[arg(long, requires = "repair")]
    drop_duplicates: bool,
    /// Do not search for equal readings
    #[arg(long, conflicts_with = "drop_duplicates")]
    ignore_duplicates: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// List at most N findings; all are counted
    #[arg(long, value_name = "N", default_value_t = 1000)]
    list: usize,
}

#[derive(Args)]
pub(crate) struct Convert {
    /// The storage mode to convert to
    #[arg(long, value_enum)]
    into: Into,
    /// Start with the bucket of this time: RFC 3339, or a date in UTC [default: the first bucket]
    #[arg(long, value_parser = moment)]
    from: Option<i64>,
    /// Only buckets that start before this time and ended an hour ago [default: all that ended an
    /// hour ago]
    #[arg(long, value_parser = moment)]
    to: Option<i64>,
    /// Only this sensor; can be repeated
    #[arg(long = "sensor", value_name = "ID")]
    sensors: Vec<String>,
    /// With --into bucket on a server before MongoDB 7.0: delete the measurements of sensors whose
    /// buckets are all pages; no hourbucket may write in time-series mode at the same time
    #[arg(long)]
    drop_leftovers: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Into {
    /// Measurements of the time-series collection
    Timeseries,
    /// Pages that contain their readings
    Bucket,
}

/// The years 0 to 9999.
pub(super) const EVER: (i64, i64) = (-62_167_219_200_000, 253_402_300_800_000);

pub(crate) async fn reconcile(
    config: &Config,
    store: MongoStore,
    arguments: Reconcile,
) -> ExitCode {
    let now_ms = SystemClock::new().now().wall_ms;
    let span = config.bucket.span;
    let to_ms = arguments.to.unwrap_or(span.floor(now_ms).0);
    let from_ms = arguments.from.unwrap_or(to_ms - DAY_MS);
    if from_ms >= to_ms {
        return maintenance_failed("--from must be before --to");
    }
    if let Err(failure) = store.schema().check_metadata().await {
        return maintenance_failed(failure);
    }
    let options = ReconcileOptions {
        selection: Selection {
            from_ms,
            to_ms,
            sensors: arguments.sensors,
        },
        repair: arguments.repair,
        drop_duplicates: arguments.drop_duplicates,
        ignore_duplicates: arguments.ignore_duplicates,
        leftovers: true,
        now_ms,
        settled_before_ms: now_ms - settled_ms(span),
        page: page_size(config),
        listed_max: arguments.list,
    };
    let checked = async {
        let report = store.maintenance().reconcile(&options).await?;
        // After the hours, which may have been repaired.
        let zone = Zone::from(config.rollup.zone);
        let selection = &options.selection;
        let days = match config.rollup.days {
            true => Some(
                store
                    .maintenance()
                    .check_days(zone, selection, now_ms, options.repair)
                    .await?,
            ),
            false => None,
        };
        let columns = match config.columns.enabled {
            true => {
                let checked = columns(config, &store)
                    .check(selection, now_ms, options.repair)
                    .await;
                Some(checked.map_err(|error| MaintainError::Server(error.to_string()))?)
            }
            false => None,
        };
        Ok::<_, MaintainError>((report, days, columns))
    };
    match checked.await {
        Ok((report, days, columns)) => {
            if arguments.json {
                let mut json = report.json();
                json["days"] = days.as_ref().map_or(serde_json::Value::Null, days_json);
                json["columns"] = columns.as_ref().map_or(serde_json::Value::Null, days_json);
                print_line(&format!("{json:#}"));
            } else {
                print_line(&report.table());
                days.iter()
                    .for_each(|days| print_days("its document counts", "days", days));
                columns
                    .iter()
                    .for_each(|columns| print_days("its columns have", "days in columns", columns));
            }
            let are_equal = [days, columns].iter().flatten().all(DaysChecked::is_equal);
            verdict(report.is_equal() && are_equal)
        }
        Err(failure) => maintenance_failed(failure),
    }
}

fn days_json(checked: &DaysChecked) -> serde_json::Value {
    let finding = |(sensor, day_ms, stored, actual): &(String, i64, u64, u64)| serde_json::json!({ "sensor_id": sensor, "day": time(*day_ms), "stored": stored, "actual": actual });
    serde_json::json!({
        "days": checked.days, "pending": checked.pending, "differences": checked.differences,
        "repaired": checked.repaired, "equal": checked.is_equal(),
        "findings": checked.listed.iter().map(finding).collect::<Vec<_>>(),
    })
}

fn print_days(have: &str, what: &str, checked: &DaysChecked) {
    for (sensor, day_ms, stored, actual) in &checked.listed {
        let day = time(*day_ms);
        let sensor = report::printable(sensor);
        print_line(&format!(
            "day {sensor} {day}: {have} {stored} readings, its hours {actual}"
        ));
    }
    print_line(&format!(
        "{} {what}, {} not compared because they are open or marked: {} differences, {} repaired",
        checked.days, checked.pending, checked.differences, checked.repaired
    ));
}

/// Fills and checks the columns of the database.
fn columns<'s>(config: &Config, store: &'s MongoStore) -> ColumnsMaintenance<'s> {
    let zone = Zone::from(config.rollup.zone);
    ColumnsMaintenance::new(store, zone, config.bucket.span, weightings(config))
}

/// The start of a date; `option` says where it comes from.
fn start_of(config: &Config, option: &str, date: chrono::NaiveDate) -> Result<i64, MaintainError> {
    let zone = Zone::from(config.rollup.zone);
    zone.start_of(date)
        .ok_or_else(|| MaintainError::Refused(format!("{option}: {date} is out of range")))
}

/// Computes the days from a date on, with progress on standard error.
pub(crate) async fn fill_days(
    config: &Config,
    store: &MongoStore,
    date: chrono::NaiveDate,
) -> Result<(), MaintainError> {
    let zone = Zone::from(config.rollup.zone);
    let from_ms = start_of(config, "--rollup-from", date)?;
    let now_ms = SystemClock::new().now().wall_ms;
    let maintenance = store.maintenance();
    let filled = maintenance.fill_days(zone, from_ms, now_ms, progress_of_days());
    report_filled("computed", filled.await)
}

/// Encodes the columns from a date on, with progress on standard error.
pub(crate) async fn fill_columns(
    config: &Config,
    store: &MongoStore,
    date: chrono::NaiveDate,
) -> Result<(), MaintainError> {
    let from_ms = start_of(config, "--columns-from", date)?;
    let now_ms = SystemClock::new().now().wall_ms;
    let filled = columns(config, store)
        .fill(from_ms, now_ms, progress_of_days())
        .await;
    let filled = filled.map_err(|error| MaintainError::Server(error.to_string()));
    report_filled("encoded", filled)
}

fn progress_of_days() -> impl FnMut(&str, &Filled) + Send {
    let mut drawn = Instant::now();
    move |sensor, at| {
        if drawn.elapsed() >= Duration::from_secs(1) {
            drawn = Instant::now();
            let line = format!(
                "{} sensors, {} days; at sensor {}",
                at.sensors,
                at.days,
                report::printable(sensor)
            );
            let _ = writeln!(std::io::stderr().lock(), "{line}");
        }
    }
}

fn report_filled(done: &str, filled: Result<Filled, MaintainError>) -> Result<(), MaintainError> {
    let filled = filled.inspect_err(|_| {
        let _ = writeln!(
            std::io::stderr().lock(),
            "interrupted; run the same command again, which begins with the first sensor"
        );
    })?;
    print_line(&format!(
        "{done} {} days of {} sensors",
        filled.days, filled.sensors
    ));
    match filled.refused {
        0 => Ok(()),
        n => Err(MaintainError::Server(format!(
            "MongoDB refused {n} days; `hourbucket reconcile` lists them"
        ))),
    }
}

pub(crate) async fn convert(config: &Config, store: MongoStore, arguments: Convert) -> ExitCode {
    let now_ms = SystemClock::new().now().wall_ms;
    let ended_before_ms = now_ms - settled_ms(config.bucket.span);
    let from_ms = arguments.from.unwrap_or(EVER.0);
    let to_ms = arguments.to.unwrap_or(EVER.1);
    if from_ms >= to_ms {
        return maintenance_failed("--from must be before --to");
    }
    if let Err(failure) = store.schema().check_metadata().await {
        return maintenance_failed(failure);
    }
    let selection = Selection {
        from_ms,
        to_ms,
        sensors: arguments.sensors,
    };
    let options = ConvertOptions {
        selection: selection.clone(),
        ended_before_ms,
        into: if arguments.into == Into::Timeseries {
            StorageMode::TimeSeries
        } else {
            StorageMode::Bucket
        },
        page: page_size(config),
        drop_leftovers: arguments.drop_leftovers,
        hook: None,
    };
    let _alone = match alone(&config.store).await {
        Ok(alone) => alone,
        Err(failure) => return maintenance_failed(failure.to_string()),
    };
    let mut bar = Bar::new();
    let converted = store
        .maintenance()
        .convert(&options, |at| draw(&mut bar, at))
        .await;
    bar.end();
    let converted = match converted {
        Ok(converted) => converted,
        Err(failure) => {
            return maintenance_failed(format!(
                "{failure}; converted buckets stay converted; the next run continues"
            ));
        }
    };
    print_converted(&converted);
    let settled = ended_before_ms - config.bucket.span.ms() + 1;
    if arguments.to.is_some_and(|asked| asked > settled) {
        print_line(&format!(
            "note: --to was shortened to {}: later buckets ended less than an hour ago, or have \
             not ended; run it again",
            time(settled)
        ));
    }
    // Compares counts, times and summaries of all buckets in the range with the readings in their
    // new place.
    let to_ms = to_ms.min(settled);
    let check = check(config, store, Selection { to_ms, ..selection }, now_ms).await;
    match check {
        Ok(report) => {
            print_line(&report.table());
            verdict(report.is_equal() && converted.skipped_total == 0)
        }
        Err(failure) => maintenance_failed(failure),
    }
}

async fn check(
    config: &Config,
    store: MongoStore,
    selection: Selection,
    now_ms: i64,
) -> Result<Reconciled, MaintainError> {
    let options = ReconcileOptions {
        selection,
        repair: false,
        drop_duplicates: false,
        ignore_duplicates: true,
        // Already reported by the conversion.
        leftovers: false,
        now_ms,
        settled_before_ms: now_ms,
        page: page_size(config),
        listed_max: 100,
    };
    store.maintenance().reconcile(&options).await
}

fn draw(bar: &mut Bar, at: Progress) {
    bar.draw((at.buckets, at.buckets_total), || {
        format!(
            "{} of {} buckets, {} readings",
            at.buckets, at.buckets_total, at.readings
        )
    });
}

fn print_converted(converted: &Converted) {
    for (bucket, why) in &converted.skipped {
        print_line(&format!(
            "skipped: {} {}: {}",
            report::printable(&bucket.sensor_id),
            time(bucket.start.0),
            report::printable(why)
        ));
    }
    let unlisted = converted.skipped_total - converted.skipped.len() as u64;
    if unlisted > 0 {
        print_line(&format!("… and {unlisted} more skipped"));
    }
    if converted.leftovers > 0 {
        print_line(&format!(
            "{} measurements remain, invisible to readers: this server deletes whole series only. \
             Retention removes them, or --drop-leftovers once their sensors have only pages and \
             nothing writes in time-series mode",
            converted.leftovers
        ));
    }
    print_line(&format!(
        "converted {} buckets with {} readings; removed {} measurements; skipped {}",
        converted.buckets, converted.readings, converted.removed, converted.skipped_total
    ));
}

fn verdict(equal: bool) -> ExitCode {
    if equal {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
