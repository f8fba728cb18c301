//! The commands `reconcile` and `convert`: their arguments, what they print, their exit codes.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use hourbucket::config::Config;
use hourbucket::maintain::{Converted, MaintainError, Progress, Reconciled, Selection, moment, report, settled_ms};
use hourbucket::model::{Clock, StorageMode, SystemClock};
use hourbucket::store::mongo::{ConvertOptions, MongoStore, ReconcileOptions};

/// What could not be done at all; 1 says that something differs.
pub(crate) const ERROR: u8 = 2;

/// Without a terminal a line of progress is printed this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

#[derive(Args)]
pub(crate) struct Reconcile {
    /// From the bucket of this moment on: RFC 3339, or a date in UTC [default: a day before --to]
    #[arg(long, value_parser = moment)]
    from: Option<i64>,
    /// Buckets that begin before this [default: the begin of the bucket that is open now]
    #[arg(long, value_parser = moment)]
    to: Option<i64>,
    /// Only this sensor; may be given several times
    #[arg(long = "sensor", value_name = "ID")]
    sensors: Vec<String>,
    /// Put right what can be; the service may run
    #[arg(long)]
    repair: bool,
    /// Remove all but one of equal readings of a bucket that ended an hour ago; do not use it where sensors send
    /// readings without a time of their own, which may be equal. A bucket in time-series form becomes pages where the server
    /// (before MongoDB 7.0) deletes whole series only: do not run `convert --into timeseries` beside it
    #[arg(long, requires = "repair")]
    drop_duplicates: bool,
    /// Do not look for equal readings
    #[arg(long, conflicts_with = "drop_duplicates")]
    ignore_duplicates: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// List at most so many findings one by one; all are counted
    #[arg(long, value_name = "N", default_value_t = 1000)]
    list: usize,
}

#[derive(Args)]
pub(crate) struct Convert {
    /// The form that buckets shall have
    #[arg(long, value_enum)]
    into: Into,
    /// From the bucket of this moment on: RFC 3339, or a date in UTC [default: from the first]
    #[arg(long, value_parser = moment)]
    from: Option<i64>,
    /// Buckets that begin before this, and ended an hour ago [default: all that ended an hour ago]
    #[arg(long, value_parser = moment)]
    to: Option<i64>,
    /// Only this sensor; may be given several times
    #[arg(long = "sensor", value_name = "ID")]
    sensors: Vec<String>,
    /// With --into bucket on a server before MongoDB 7.0: delete the measurements of sensors all of whose buckets are
    /// pages now; no hourbucket may write in time-series mode meanwhile
    #[arg(long)]
    drop_leftovers: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Into {
    /// Measurements of the time-series collection
    Timeseries,
    /// Pages with their readings
    Bucket,
}

/// The years 0 to 9999.
const EVER: (i64, i64) = (-62_167_219_200_000, 253_402_300_800_000);

pub(crate) async fn reconcile(config: &Config, store: Result<MongoStore, String>, arguments: Reconcile) -> ExitCode {
    let store = match store {
        Ok(store) => store,
        Err(failure) => return error(failure),
    };
    let (now_ms, span) = (SystemClock::new().now().wall_ms, config.bucket.span);
    let to_ms = arguments.to.unwrap_or(span.floor(now_ms).0);
    let from_ms = arguments.from.unwrap_or(to_ms - DAY_MS);
    if from_ms >= to_ms {
        return error("--from must be before --to");
    }
    let options = ReconcileOptions {
        selection: Selection { from_ms, to_ms, sensors: arguments.sensors },
        repair: arguments.repair,
        drop_duplicates: arguments.drop_duplicates,
        ignore_duplicates: arguments.ignore_duplicates,
        leftovers: true,
        now_ms,
        settled_before_ms: now_ms - settled_ms(span),
        page: (config.bucket.max_readings, config.bucket.max_bytes),
        listed_max: arguments.list,
    };
    match store.reconcile(&options).await {
        Ok(report) => {
            say(&if arguments.json { format!("{:#}", report.json()) } else { report.table() });
            verdict(report.is_equal())
        }
        Err(failure) => error(failure),
    }
}

pub(crate) async fn convert(config: &Config, store: Result<MongoStore, String>, arguments: Convert) -> ExitCode {
    let store = match store {
        Ok(store) => store,
        Err(failure) => return error(failure),
    };
    let now_ms = SystemClock::new().now().wall_ms;
    let ended_before_ms = now_ms - settled_ms(config.bucket.span);
    let from_ms = arguments.from.unwrap_or(EVER.0);
    let to_ms = arguments.to.unwrap_or(EVER.1);
    if from_ms >= to_ms {
        return error("--from must be before --to");
    }
    let selection = Selection { from_ms, to_ms, sensors: arguments.sensors };
    let options = ConvertOptions {
        selection: selection.clone(),
        ended_before_ms,
        into: if arguments.into == Into::Timeseries { StorageMode::TimeSeries } else { StorageMode::Bucket },
        page: (config.bucket.max_readings, config.bucket.max_bytes),
        drop_leftovers: arguments.drop_leftovers,
        hook: None,
    };
    let mut bar = Bar::new();
    let converted = store.convert(&options, |at| bar.show(at)).await;
    bar.end();
    let converted = match converted {
        Ok(converted) => converted,
        Err(failure) => return error(format!("{failure}; what was converted stays so, and the next run goes on")),
    };
    tell(&converted);
    // The counts, times and summaries of everything in the span, against the readings in their new place.
    let to_ms = to_ms.min(ended_before_ms - config.bucket.span.ms() + 1);
    let check = check(config, store, Selection { to_ms, ..selection }, now_ms).await;
    match check {
        Ok(report) => {
            say(&report.table());
            verdict(report.is_equal() && converted.skipped_total == 0)
        }
        Err(failure) => error(failure),
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
        // Told in a line already.
        leftovers: false,
        now_ms,
        settled_before_ms: now_ms,
        page: (config.bucket.max_readings, config.bucket.max_bytes),
        listed_max: 100,
    };
    store.reconcile(&options).await
}

fn tell(converted: &Converted) {
    for (bucket, why) in &converted.skipped {
        say(&format!("left as it is: {} {}: {why}", bucket.sensor_id, report::time(bucket.start.0)));
    }
    let unlisted = converted.skipped_total - converted.skipped.len() as u64;
    if unlisted > 0 {
        say(&format!("… and {unlisted} more left as they are"));
    }
    if converted.leftovers > 0 {
        say(&format!(
            "{} measurements stay that no reader sees: this server deletes whole series only. Retention removes them; so \
             does --drop-leftovers once all buckets of their sensors are pages, while nothing writes in time-series mode",
            converted.leftovers
        ));
    }
    say(&format!(
        "converted {} buckets with {} readings; removed {} measurements; left {} as they are",
        converted.buckets, converted.readings, converted.removed, converted.skipped_total
    ));
}

/// Progress on standard error: a bar on a terminal, else a line now and then.
struct Bar {
    terminal: bool,
    shown: Option<Instant>,
}

impl Bar {
    const WIDTH: u64 = 30;

    fn new() -> Bar {
        Bar { terminal: std::io::stderr().is_terminal(), shown: None }
    }

    fn show(&mut self, at: Progress) {
        let every = if self.terminal { Duration::from_millis(100) } else { PROGRESS_EVERY };
        let last = at.buckets >= at.buckets_total;
        if !last && self.shown.is_some_and(|shown| shown.elapsed() < every) {
            return;
        }
        self.shown = Some(Instant::now());
        let total = at.buckets_total.max(at.buckets).max(1);
        let full = (at.buckets * Bar::WIDTH / total) as usize;
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(Bar::WIDTH as usize - full));
        let line = format!(
            "[{bar}] {:3} %  {} of {} buckets, {} readings",
            at.buckets * 100 / total,
            at.buckets,
            at.buckets_total,
            at.readings
        );
        let mut out = std::io::stderr().lock();
        let _ = if self.terminal { write!(out, "\r{line}\x1b[K") } else { writeln!(out, "{line}") };
        let _ = out.flush();
    }

    fn end(&self) {
        if self.terminal && self.shown.is_some() {
            let _ = writeln!(std::io::stderr().lock());
        }
    }
}

fn verdict(equal: bool) -> ExitCode {
    if equal { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn error(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("hourbucket: {error}");
    ExitCode::from(ERROR)
}

/// Text on standard output; a reader that has gone is no error.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}
