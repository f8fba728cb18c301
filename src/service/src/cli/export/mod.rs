//! The command `export`: stored readings into files, day by day, of each day sensor by sensor.
//!
//! **Life of a reading.** [`store::export`] reads it, in a part. Parts gather in a [`Group`] until it is
//! full; then they are decoded and written together. A file ends when it is large, when a group needs a
//! column that it lacks, or with the day. Then it gets its name and [`State`] moves on ([`state`]), so
//! an interrupted export continues behind the last finished file: at a place in the order of days,
//! sensors and times. A late reading that comes before that place meanwhile is not exported.
//!
//! **Memory**: what `store::export` holds, a group (at most some 50 MiB decoded), a column of it, and
//! the metadata of the file.

mod group;
mod parquet_file;
mod state;
#[cfg(test)]
mod tests;
mod text_file;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::{Args, ValueEnum};

use self::group::{COLUMNS_MAX, Column, Group, Needs, Progress, Readings};
use self::parquet_file::ParquetFile;
use self::state::{Directory, NewFile, Out, Parameters, State, StateError};
use self::text_file::TextFile;
use super::output::{Bar, maintenance_failed, print_line};
use config::Config;
use model::sensor_patterns::InvalidPattern;
use model::{DAY_MS, Day, SensorId, SensorPatterns, Span, Zone};
use store::Store;
use store::catalog::CatalogQuery;
use store::export::ExportDay;
use store::maintain::{moment, time};
use store::mongo::MongoStore;

pub(in crate::cli) use self::group::Kind;
pub(in crate::cli) use self::parquet_file::KEY;

/// A file that has so many bytes ends with the next group.
const FILE_BYTES_WANTED: u64 = 256 << 20;
/// Sensors that are listed together.
const SENSORS_MAX: usize = 1000;

#[derive(Args)]
pub(super) struct Export {
    /// Readings from this time on: RFC 3339, or a date in UTC
    #[arg(long, value_parser = moment)]
    from: i64,
    /// Only readings before this time
    #[arg(long, value_parser = moment)]
    to: i64,
    /// Only sensors whose id matches; * matches any characters. Can be repeated
    #[arg(long = "sensor", value_name = "PATTERN")]
    sensors: Vec<String>,
    /// Only sensors that have this tag now. Can be repeated: they have all of them
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = tag)]
    tags: Vec<(String, String)>,
    /// How the files are written; `import` reads all of them
    #[arg(long, value_enum)]
    format: Format,
    /// The directory of the files: DAY-NUMBER.FORMAT, each when it is complete. It is created, or has
    /// an export with the same parameters, which is continued
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A row for each reading, a column for each field
    Parquet,
    /// The same as text
    Csv,
    /// A line for each reading, in the native format
    Ndjson,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Format::Parquet => "parquet",
            Format::Csv => "csv",
            Format::Ndjson => "ndjson",
        }
    }

    fn needs(self) -> Needs {
        match self {
            Format::Parquet => Needs::Kinds,
            Format::Csv => Needs::Texts,
            Format::Ndjson => Needs::Nothing,
        }
    }
}

#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("expected NAME=VALUE, such as site=north")]
struct InvalidTag;

fn tag(text: &str) -> Result<(String, String), InvalidTag> {
    let (name, value) = text.split_once('=').ok_or(InvalidTag)?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Why an export ended early.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("--from must be before --to")]
    Range,
    #[error("--sensor: {0}")]
    Pattern(#[from] InvalidPattern),
    #[error(transparent)]
    Store(#[from] store::StoreError),
    #[error("the columns of {sensor_id} are damaged: {error}")]
    Part {
        sensor_id: SensorId,
        error: columns::DamagedPart,
    },
    #[error(transparent)]
    State(#[from] StateError),
    #[error("{}: {error}", path.display())]
    Write { path: PathBuf, error: WriteError },
}

#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Parquet(#[from] parquet::errors::ParquetError),
}

/// Runs the command. Exit code 0: everything is exported, 2: failed.
pub(super) async fn run(config: &Config, store: MongoStore, arguments: &Export) -> ExitCode {
    if let Err(failure) = store.schema().prepare_reading().await {
        return maintenance_failed(failure);
    }
    let mut run = match Run::start(config, Arc::new(store), arguments) {
        Ok(run) => run,
        Err(error) => return maintenance_failed(error),
    };
    let mut bar = Bar::new();
    let done = run.run(&mut bar).await;
    bar.end();
    if let Err(error) = done {
        return maintenance_failed(format!(
            "{error}; finished files stay, and the same command continues behind them"
        ));
    }
    let State {
        readings,
        lost,
        files,
        ..
    } = &run.state;
    let dir = arguments.output.display();
    print_line(&format!(
        "{readings} readings in {} files in {dir}",
        files.len()
    ));
    if *lost > 0 {
        print_line(&format!("note: retention has removed about {lost} others"));
    }
    ExitCode::SUCCESS
}

/// A file that is being written.
struct OpenFile {
    name: String,
    file: NewFile,
    writer: Writer,
    readings: u64,
    columns: BTreeSet<Column>,
}

enum Writer {
    Parquet(Box<ParquetFile<Out>>),
    Text(TextFile<Out>),
}

struct Run<'a> {
    arguments: &'a Export,
    store: Arc<dyn Store>,
    span: Span,
    zone: Zone,
    patterns: SensorPatterns,
    directory: Directory,
    state: State,
    /// The day that is exported, its number of finished files, and how far it is.
    day: Day,
    files: usize,
    progress: Progress,
    group: Group,
    open: Option<OpenFile>,
    /// Of the last file: most likely, the next one needs the same columns.
    columns: BTreeSet<Column>,
    /// The readings of earlier runs, and when this one began.
    before: u64,
    since: Instant,
}

impl<'a> Run<'a> {
    fn start(
        config: &Config,
        store: Arc<dyn Store>,
        arguments: &'a Export,
    ) -> Result<Run<'a>, ExportError> {
        let Export {
            from,
            to,
            sensors,
            tags,
            format,
            output,
        } = arguments;
        if from >= to {
            return Err(ExportError::Range);
        }
        let patterns = match sensors.is_empty() {
            true => SensorPatterns::parse(["*"])?,
            false => SensorPatterns::parse(sensors.iter().map(String::as_str))?,
        };
        let zone = Zone::from(config.rollup.zone);
        let mut tags: Vec<String> = tags.iter().map(|(n, v)| format!("{n}={v}")).collect();
        tags.sort_unstable();
        let parameters = [
            ("store.database", config.store.database.clone()),
            ("rollup.zone", zone.name().to_owned()),
            ("--from", time(*from)),
            ("--to", time(*to)),
            ("--sensor", sensors.join(" ")),
            ("--tag", tags.join(" ")),
            ("--format", format.name().to_owned()),
        ];
        let parameters: Parameters = parameters.map(|(k, v)| (k.to_owned(), v)).into();
        let directory = Directory::hold(output)?;
        let state = directory.load(parameters)?;
        let day = zone.day(state.day_ms.unwrap_or(*from));
        Ok(Run {
            arguments,
            store,
            span: config.bucket.span,
            zone,
            patterns,
            directory,
            day,
            files: 0,
            progress: Progress::new(state.place.clone()),
            group: Group::new(format.needs()),
            open: None,
            columns: BTreeSet::new(),
            before: state.readings,
            since: Instant::now(),
            state,
        })
    }

    async fn run(&mut self, bar: &mut Bar) -> Result<(), ExportError> {
        let Export { from, to, .. } = *self.arguments;
        let known = self.store.count_catalog((0, 0)).await?.known.max(1);
        while !self.state.is_complete {
            if self.progress.place.is_none() {
                self.skip_empty_days(to).await?;
            }
            if self.day.start_ms < to {
                let date = self.zone.date(self.day.start_ms);
                let is_of_day = |name: &&String| name.starts_with(&date);
                self.files = self.state.files.iter().filter(is_of_day).count();
                let within_ms = self.day.start_ms.max(from)..self.day.end_ms.min(to);
                self.export_day(within_ms, bar, known).await?;
                self.end_file()?;
                // An earlier run may have left one more.
                self.directory.remove(&self.next_name())?;
                self.day = self.zone.day(self.day.end_ms);
            }
            self.progress = Progress::default();
            self.state.day_ms = Some(self.day.start_ms);
            self.state.is_complete = self.day.start_ms >= to;
            self.save()?;
        }
        Ok(())
    }

    /// Goes on to the next day of which a sensor may have readings, in steps that double while there is
    /// none: who wants everything asks from 1970 on.
    async fn skip_empty_days(&mut self, to: i64) -> Result<(), ExportError> {
        let mut days = 1;
        while self.day.start_ms < to {
            let last = self.zone.day(self.day.start_ms + (days - 1) * DAY_MS);
            let query = CatalogQuery {
                limit: 1,
                ..self.query(&(self.day.start_ms..last.end_ms))
            };
            let is_empty = self.store.find_catalog(&query).await?.is_empty();
            match (is_empty, days) {
                (true, _) => {
                    self.day = self.zone.day(last.end_ms);
                    days *= 2;
                }
                (false, 1) => break,
                (false, _) => days /= 2,
            }
        }
        Ok(())
    }

    /// The sensors that may be selected, and may have readings of this time.
    fn query(&self, within_ms: &Range<i64>) -> CatalogQuery {
        CatalogQuery {
            tags: self.arguments.tags.clone(),
            overlaps_ms: Some((within_ms.start, within_ms.end)),
            prefixes: self
                .patterns
                .prefixes()
                .into_iter()
                .map(str::to_owned)
                .collect(),
            limit: SENSORS_MAX,
            without_fields: true,
            ..CatalogQuery::default()
        }
    }

    async fn export_day(
        &mut self,
        within_ms: Range<i64>,
        bar: &mut Bar,
        known: u64,
    ) -> Result<(), ExportError> {
        let mut query = self.query(&within_ms);
        let place = self.progress.place.as_ref();
        let first = place.map(|place| place.sensor_id.as_str().into());
        query.after.clone_from(&first);
        // The sensor of the place was selected before, and goes on.
        let mut sensors: Vec<_> = first.into_iter().collect();
        let mut done = 0;
        let store = self.store.clone();
        loop {
            let found = store.find_catalog(&query).await?;
            let is_last = found.len() < SENSORS_MAX;
            query.after = found.last().map(|entry| entry.sensor_id.clone());
            let ids = found.into_iter().map(|entry| entry.sensor_id);
            sensors.extend(ids.filter(|id| self.patterns.matches(id)));
            let n = sensors.len() as u64;
            let listed = std::mem::take(&mut sensors);
            let mut reader = ExportDay::new(&store, self.span, self.day, within_ms.clone(), listed);
            while let Some(part) = reader.next().await? {
                if part.part.last_ts_ms < within_ms.start || part.part.first_ts_ms >= within_ms.end
                {
                    continue;
                }
                if self.group.is_too_wide(&part) {
                    self.write_group()?;
                }
                self.group.add(part, within_ms.clone());
                if self.group.is_full() {
                    self.write_group()?;
                    self.draw(bar, done as f64 / known as f64);
                }
            }
            done += n;
            self.state.lost += reader.lost();
            if is_last {
                self.write_group()?;
                self.draw(bar, 1.0);
                return Ok(());
            }
        }
    }

    fn draw(&self, bar: &mut Bar, share_of_day: f64) {
        let Export { from, to, .. } = *self.arguments;
        let day_ms = (self.day.end_ms - self.day.start_ms) as f64;
        let done_ms = (self.day.start_ms - from).max(0) + (day_ms * share_of_day.min(1.0)) as i64;
        let total_ms = to - from;
        let readings = self.state.readings + self.open.as_ref().map_or(0, |open| open.readings);
        let seconds = self.since.elapsed().as_secs_f64().max(0.001);
        let rate = (readings - self.before) as f64 / seconds;
        bar.draw((done_ms.clamp(0, total_ms) as u64, total_ms as u64), || {
            let date = self.zone.date(self.day.start_ms);
            format!("{date}, {readings} readings, {rate:.0} readings/s")
        });
    }

    /// Writes the readings that have gathered.
    fn write_group(&mut self) -> Result<(), ExportError> {
        let new = Group::new(self.arguments.format.needs());
        let group = std::mem::replace(&mut self.group, new);
        let before = self.progress.place.clone();
        let decoded = group.decode(&mut self.progress);
        let readings =
            decoded.map_err(|(sensor_id, error)| ExportError::Part { sensor_id, error })?;
        if readings.is_empty() {
            return Ok(());
        }
        let fits = |open: &OpenFile| {
            open.bytes() < FILE_BYTES_WANTED && group.columns.is_subset(&open.columns)
        };
        if self.open.as_ref().is_some_and(|open| !fits(open)) {
            let after = std::mem::replace(&mut self.progress.place, before);
            self.end_file()?;
            self.progress.place = after;
        }
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                let name = self.next_name();
                let mut columns: BTreeSet<Column> = &group.columns | &self.columns;
                if columns.len() > COLUMNS_MAX {
                    columns = group.columns.clone();
                }
                self.columns.clone_from(&columns);
                let format = self.arguments.format;
                let opened = OpenFile::new(&self.directory, name, format, columns)?;
                self.open.insert(opened)
            }
        };
        open.write(&readings)
    }

    fn next_name(&self) -> String {
        let date = self.zone.date(self.day.start_ms);
        let format = self.arguments.format.name();
        format!("{date}-{:03}.{format}", self.files)
    }

    /// Finishes the open file, which has everything up to the place of the progress.
    fn end_file(&mut self) -> Result<(), ExportError> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let out = match open.writer {
            Writer::Parquet(file) => file
                .finish()
                .map_err(|error| write_failed(&open.file, error.into()))?,
            Writer::Text(file) => file.finish(),
        };
        self.directory.finish(out, &open.file)?;
        self.files += 1;
        self.state.files.push(open.name);
        self.state.readings += open.readings;
        self.state.day_ms = Some(self.day.start_ms);
        self.save()
    }

    fn save(&mut self) -> Result<(), ExportError> {
        self.state.place.clone_from(&self.progress.place);
        Ok(self.directory.save(&self.state)?)
    }
}

impl OpenFile {
    fn new(
        directory: &Directory,
        name: String,
        format: Format,
        columns: BTreeSet<Column>,
    ) -> Result<OpenFile, ExportError> {
        let (out, file) = directory.create(&name)?;
        let writer = match format {
            Format::Parquet => ParquetFile::new(out, &columns)
                .map(|file| Writer::Parquet(Box::new(file)))
                .map_err(WriteError::from),
            Format::Csv => TextFile::csv(out, &columns)
                .map(Writer::Text)
                .map_err(WriteError::from),
            Format::Ndjson => Ok(Writer::Text(TextFile::ndjson(out))),
        };
        let writer = writer.map_err(|error| write_failed(&file, error))?;
        Ok(OpenFile {
            name,
            file,
            writer,
            readings: 0,
            columns,
        })
    }

    fn bytes(&self) -> u64 {
        match &self.writer {
            Writer::Parquet(file) => file.bytes(),
            Writer::Text(file) => file.bytes(),
        }
    }

    fn write(&mut self, readings: &[Readings<'_>]) -> Result<(), ExportError> {
        let n: usize = readings.iter().map(|r| r.decoded.times().len()).sum();
        self.readings += n as u64;
        let written = match &mut self.writer {
            Writer::Parquet(file) => file.write(readings).map_err(WriteError::from),
            Writer::Text(file) => file.write(readings).map_err(WriteError::from),
        };
        written.map_err(|error| write_failed(&self.file, error))
    }
}

fn write_failed(file: &NewFile, error: WriteError) -> ExportError {
    ExportError::Write {
        path: file.partial.clone(),
        error,
    }
}
