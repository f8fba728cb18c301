//! The command `import`: files of gateways and old systems, through a running service.
//!
//! **Why a client of the service, and not a second instance with its own journal.** The service
//! stays the only writer of its journal and knows what it holds in memory, so a reading that
//! arrives live and in a file is one reading, in both storage modes. The import works like every
//! other sender: a token with its rights and quota, its share of the journal, 429 when MongoDB does
//! not keep up. It cannot stop the live senders, and it needs neither the password of MongoDB nor
//! access to the machine of the service.
//!
//! **What `import=true` changes** in the service: readings may be as old as `limits.import_past`,
//! and a reading without its own time is rejected, since a second run could not recognise it.
//!
//! **Life of a file.** A reader ([`lines`], [`rows`]) makes one line of each record. Up to
//! `--batch` of them are one request; the next one is sent when it is acknowledged. Then the state
//! ([`state`]) of the file moves on. A last line without an end is sent as well, but the state stays
//! before it: if it was cut, the next run reads it as a whole. A crash repeats at most the requests
//! since the last write of the state, and the service recognises their readings: after any number
//! of runs, each reading is stored once.

mod csv_reader;
mod lines;
mod parquet_rows;
mod progress;
pub(super) mod replace;
pub(super) mod rows;
mod send;
mod source;
mod state;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use self::lines::Lines;
use self::parquet_rows::ParquetFault;
use self::progress::Progress;
use self::rows::{CsvArgs, MappingError};
use self::send::{Answer, SendError, Sent};
use self::source::{BOM_BYTES, Input, OpenFile, SourceError};
use self::state::{State, StateError, StateFile};
use super::client::{Client, ClientError, ServiceArgs, escaped};
use super::output::{MAINTENANCE_FAILED, maintenance_failed, print_line};
use config::Config;

/// Time limit of one request; longer than `http.ack_timeout` usually is.
const REQUEST: Duration = Duration::from_secs(120);
/// A request is sent when its body has this size, below the default `http.body_max_bytes`.
const BODY_BYTES: usize = 4 << 20;
/// A file that is one payload.
const PAYLOAD_BYTES_MAX: u64 = 512 << 20;
/// Interval between writes of the state.
const SAVE_EVERY: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct Import {
    /// The files, one after the other; those compressed with gzip or zstd are decompressed. - is
    /// standard input: then name the format; no state is kept, so an interrupted import begins
    /// again (nothing is stored twice)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// csv, ndjson, line, parquet (of `export`), or a format of the service (see `decode --list`)
    /// [default: by the name: .csv, .tsv, .ndjson, .jsonl, .lp, .parquet, .json]. A file in another
    /// format than the first four is one payload, unless --per-line is given
    #[arg(long, value_name = "NAME")]
    format: Option<String>,
    /// Each line is a payload of the format, such as the messages of a webhook
    #[arg(long)]
    per_line: bool,
    /// Unit of numeric times: s, ms, us or ns [default: by magnitude; line protocol: ns]
    #[arg(long, value_name = "UNIT")]
    ts_unit: Option<String>,
    /// The sensor of readings that name none
    #[arg(long, value_name = "ID")]
    sensor_id: Option<String>,
    /// The topic, for a format that reads it
    #[arg(long)]
    topic: Option<String>,
    /// Readings of one request
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..))]
    batch: u16,
    /// Keep the state of each file here [default: beside it, FILE.import]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Begin each file again; stored readings are not stored twice
    #[arg(long)]
    restart: bool,
    /// How long to wait for a service that is away or busy
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    patience: Duration,
    /// Afterwards, remove what else is stored of the sensors between the first and the last reading of
    /// the files (lines, CSV or Parquet). Needs store.uri, as `remove` does
    #[arg(long)]
    pub(super) replace: bool,
    /// Replace from this time on: RFC 3339, or a date in UTC
    #[arg(long, value_parser = store::maintain::moment, requires = "replace")]
    from: Option<i64>,
    /// Replace up to this time, exclusive
    #[arg(long, value_parser = store::maintain::moment, requires = "replace")]
    to: Option<i64>,
    /// Only show how many readings would be replaced
    #[arg(long, requires = "replace")]
    dry_run: bool,
    /// Replace without asking
    #[arg(long, requires = "replace")]
    yes: bool,
    #[command(flatten)]
    service: ServiceArgs,
    #[command(flatten)]
    csv: CsvArgs,
}

#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("expected a duration, such as 10m or 12h")]
struct InvalidDuration;

fn duration(text: &str) -> Result<Duration, InvalidDuration> {
    config::parse_duration(text).ok_or(InvalidDuration)
}

/// Why a file was not imported to its end.
#[derive(Debug, thiserror::Error)]
enum ImportError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Mapping(#[from] MappingError),
    #[error(transparent)]
    Parquet(#[from] ParquetFault),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Send(#[from] SendError),
    #[error("after line {line}: {error}")]
    Read { line: u64, error: std::io::Error },
    #[error(
        "the format is not known from the file's name; name it with --format, such as csv, ndjson \
         or line"
    )]
    Format,
    #[error("the record of line {line} is too large for the service: {text}")]
    RecordTooLarge { line: u64, text: String },
    #[error("the file, which is one payload, is too large for the service: {0}")]
    PayloadTooLarge(String),
    #[error(
        "the file is one payload in this format, of at most {} MiB, and it is larger; nothing was \
         sent; import it in parts, or as lines with --per-line", .0 >> 20
    )]
    PayloadBytes(u64),
    #[error("standard input can be read only once; name it once")]
    StandardTwice,
    #[error("it was begun with other options; repeat them, or begin again with --restart")]
    OtherOptions,
    #[error(
        "it was already sent to {0}; --restart sends it again, to the service that --url names"
    )]
    OtherService(String),
    #[error("--replace needs files of lines: csv, ndjson, line, parquet, or --per-line")]
    NotReplacing,
    #[error("line {line}: {why}")]
    Refused { line: u64, why: String },
    #[error("--replace takes files with at most {0} readings: replace them in parts")]
    TooManyReadings(usize),
}

/// One record of a file: a line, or a row of CSV.
#[derive(Debug)]
struct Record {
    /// The line that it starts on, from 1.
    line: u64,
    /// The offset and the number of lines after it: where a later run continues. Those before it, if
    /// the file ended and not the line: it may be continued, and is then read again.
    end: (u64, u64),
    /// Why it is not sent.
    reject: Option<LocalReject>,
}

/// A record that was rejected before it was sent.
#[derive(Debug)]
struct LocalReject {
    reason: &'static str,
    detail: String,
}

/// The records of a file, in order.
trait Records {
    /// Appends the next record to `out` as one line, unless it is rejected. `None`: the end of the
    /// file.
    fn next(&mut self, out: &mut Vec<u8>) -> io::Result<Option<Record>>;
}

/// Records that wait to be sent together.
#[derive(Default)]
struct Batch {
    body: Vec<u8>,
    /// The line of each record in the body, and where it ends there.
    records: Vec<(u64, usize)>,
    /// Where the next batch begins in the file.
    end: (u64, u64),
    /// Rejected before they were sent: reason, line, detail.
    rejects: Vec<(&'static str, u64, String)>,
}

/// The import of one file.
struct Run<'a> {
    options: &'a Import,
    client: &'a Client,
    input: Input,
    /// `None`: of standard input there is none.
    state_file: Option<StateFile>,
    state: State,
    saved: Instant,
    format: String,
    progress: Progress,
}

/// Runs the command. Exit code 0: everything is stored, 1: some records were rejected, 2: failed.
pub(super) fn run(options: &Import, config: &Config) -> ExitCode {
    let client = match client(options, config) {
        Ok(client) => client,
        Err(error) => return maintenance_failed(error),
    };
    let mut failed = false;
    let mut rejected = false;
    let is_standard = |path: &&PathBuf| path.as_os_str() == "-";
    if options.files.iter().filter(is_standard).count() > 1 {
        return maintenance_failed(ImportError::StandardTwice);
    }
    for path in &options.files {
        match Run::start(options, &client, path).and_then(Run::run) {
            Ok(state) => {
                rejected |= !state.rejected.is_empty();
                print_line(&state.summary(path));
            }
            Err(error) => {
                failed = true;
                maintenance_failed(format!("{}: {error}", path.display()));
            }
        }
    }
    match (failed, rejected) {
        (true, _) => ExitCode::from(MAINTENANCE_FAILED),
        (false, true) => ExitCode::FAILURE,
        (false, false) => ExitCode::SUCCESS,
    }
}

fn client(options: &Import, config: &Config) -> Result<Client, ClientError> {
    let http = &config.http;
    let secure = http.tls.cert_file.is_some();
    Client::new(&options.service, http.listen, secure, Some(REQUEST))
}

/// The format in which the records of a file are sent.
fn sent_as(format: &str) -> &str {
    match format {
        "csv" | "parquet" => "ndjson",
        format => format,
    }
}

impl Import {
    fn format_of(&self, path: &Path) -> Result<String, ImportError> {
        let format = self.format.as_deref().or(format_of(path));
        format.map(str::to_owned).ok_or(ImportError::Format)
    }

    /// Whether each line or row is a separate record.
    fn is_by_record(&self, format: &str) -> bool {
        matches!(format, "csv" | "ndjson" | "line" | "parquet") || self.per_line
    }
}

/// The format by the name of a file, without the ending of its compression.
fn format_of(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let name = name
        .strip_suffix(".gz")
        .or(name.strip_suffix(".zst"))
        .unwrap_or(&name);
    match name.rsplit_once('.')?.1 {
        "csv" | "tsv" => Some("csv"),
        "ndjson" | "jsonl" => Some("ndjson"),
        "lp" | "line" => Some("line"),
        "json" => Some("json"),
        "parquet" => Some("parquet"),
        _ => None,
    }
}

impl<'a> Run<'a> {
    fn start(
        options: &'a Import,
        client: &'a Client,
        path: &'a Path,
    ) -> Result<Run<'a>, ImportError> {
        let format = options.format_of(path)?;
        let Import {
            per_line,
            ts_unit,
            sensor_id,
            topic,
            csv,
            ..
        } = options;
        let described = format!("{format} {per_line} {ts_unit:?} {sensor_id:?} {topic:?} {csv:?}");
        let input = Input::new(path)?;
        let Some(file) = input.file() else {
            eprintln!(
                "hourbucket: no state is kept of standard input: if this is interrupted, import \
                 all of it again; nothing is stored twice"
            );
            return Ok(Run::from_start(options, client, input, format));
        };
        // A file that cannot be read gets no state.
        let progress = Progress::new(path, file.size()?);
        let state_file = StateFile::hold(path, options.state_dir.as_deref())?;
        let known = match options.restart {
            true => None,
            false => state_file.load(file)?,
        };
        if known
            .as_ref()
            .is_some_and(|state| state.options != described)
        {
            return Err(ImportError::OtherOptions);
        }
        let url = client.base();
        if let Some(state) = known.as_ref().filter(|state| state.url != url) {
            return Err(ImportError::OtherService(state.url.clone()));
        }
        let mut state = known.unwrap_or_default();
        state.url = url;
        state.options = described;
        state.begin();
        Ok(Run {
            state_file: Some(state_file),
            state,
            progress,
            ..Run::from_start(options, client, input, format)
        })
    }

    /// Without a state.
    fn from_start(
        options: &'a Import,
        client: &'a Client,
        input: Input,
        format: String,
    ) -> Run<'a> {
        let progress = Progress::new(Path::new("standard input"), None);
        Run {
            options,
            client,
            input,
            state_file: None,
            state: State::default(),
            saved: Instant::now(),
            format,
            progress,
        }
    }

    fn run(mut self) -> Result<State, ImportError> {
        let done = if self.options.is_by_record(&self.format) {
            self.records()
        } else {
            self.payload()
        };
        self.progress.end();
        self.state.complete = done.is_ok();
        // Readings acknowledged before a failure count as well.
        let saved = self.save();
        done.and(saved).map(|()| self.state)
    }

    /// The records behind an offset and a number of lines.
    fn open_records(&mut self, start: (u64, u64)) -> Result<Box<dyn Records>, ImportError> {
        Ok(match self.format.as_str() {
            "csv" => Box::new(rows::open(
                &self.input,
                start,
                &self.options.csv,
                self.options.sensor_id.is_some(),
            )?),
            "parquet" => {
                let rows = parquet_rows::open(&self.input, start.1)?;
                self.progress.size = Some(rows.rows);
                Box::new(rows)
            }
            format => {
                let comment = (format == "line").then_some(b'#');
                Box::new(Lines::new(
                    self.input.open(start.0, true)?,
                    start.1,
                    comment,
                ))
            }
        })
    }

    /// A file whose records are sent in batches.
    fn records(&mut self) -> Result<(), ImportError> {
        let start = (self.state.offset, self.state.lines);
        let mut records = self.open_records(start)?;
        let per_request = if self.options.per_line {
            1
        } else {
            usize::from(self.options.batch)
        };
        let mut batch = Batch {
            end: start,
            ..Batch::default()
        };
        loop {
            let next = match records.next(&mut batch.body) {
                Ok(next) => next,
                Err(error) => {
                    let line = batch.end.1;
                    // The records before the fault.
                    self.send(batch)?;
                    return Err(ImportError::Read { line, error });
                }
            };
            let Some(Record { line, end, reject }) = next else {
                break;
            };
            batch.end = end;
            self.state.last_line = line.max(end.1);
            match reject {
                Some(reject) => batch.rejects.push((reject.reason, line, reject.detail)),
                None => batch.records.push((line, batch.body.len())),
            }
            let is_full = batch.records.len() >= per_request || batch.body.len() >= BODY_BYTES;
            if is_full || batch.rejects.len() >= per_request {
                self.send(std::mem::replace(
                    &mut batch,
                    Batch {
                        end,
                        ..Batch::default()
                    },
                ))?;
            }
        }
        self.send(batch)
    }

    /// A file that is one payload. If it has grown since it was sent, it is sent again as a whole: a
    /// part of it is not a payload, and the service recognises what it has stored.
    fn payload(&mut self) -> Result<(), ImportError> {
        let is_known = self.state.offset > 0;
        if is_known && self.read_from(self.state.offset, 1)?.1.is_empty() {
            return Ok(());
        }
        self.state.counted_after = 0;
        let (offset, body) = self.payload_within(PAYLOAD_BYTES_MAX)?;
        let ends = body.iter().filter(|b| **b == b'\n').count() as u64;
        let lines = ends + u64::from(body.last().is_some_and(|b| *b != b'\n'));
        let answer = match self.post(&body)? {
            Sent::Answered(answer) => answer,
            Sent::TooLarge(text) => return Err(ImportError::PayloadTooLarge(text)),
        };
        self.answered(&answer, |_| 1);
        (self.state.offset, self.state.lines) = (offset + body.len() as u64, lines);
        self.state.last_line = lines;
        Ok(())
    }

    /// The whole content, and the offset at which it starts.
    fn payload_within(&self, bytes_max: u64) -> Result<(u64, Vec<u8>), ImportError> {
        let size = self.input.file().map(OpenFile::size).transpose()?.flatten();
        // A large file is not read in vain.
        let is_larger = size.is_some_and(|size| size > bytes_max.saturating_add(BOM_BYTES));
        let (offset, body) = match is_larger {
            true => return Err(ImportError::PayloadBytes(bytes_max)),
            false => self.read_from(0, bytes_max + 1)?,
        };
        match body.len() as u64 > bytes_max {
            true => Err(ImportError::PayloadBytes(bytes_max)),
            false => Ok((offset, body)),
        }
    }

    /// Up to `bytes_max` bytes of the content, and the offset at which they start: at `offset`, or
    /// after the byte order mark.
    fn read_from(&self, offset: u64, bytes_max: u64) -> Result<(u64, Vec<u8>), ImportError> {
        use std::io::Read;
        let source = self.input.open(offset, true)?;
        let mut bytes = vec![];
        let read = source.reader.take(bytes_max).read_to_end(&mut bytes);
        read.map_err(|error| ImportError::Read { line: 0, error })?;
        Ok((source.offset, bytes))
    }

    fn send(&mut self, batch: Batch) -> Result<(), ImportError> {
        self.send_part(&batch.body, 0, &batch.records)?;
        for (reason, line, detail) in &batch.rejects {
            self.state.reject(reason, *line, detail);
        }
        (self.state.offset, self.state.lines) = batch.end;
        self.progress.draw(self.state.offset, self.state.accepted);
        if self.saved.elapsed() >= SAVE_EVERY {
            self.save()?;
        }
        Ok(())
    }

    /// Sends records, in halves if the service finds them too large. `from`: where they begin in
    /// the body.
    fn send_part(
        &mut self,
        body: &[u8],
        from: usize,
        records: &[(u64, usize)],
    ) -> Result<(), ImportError> {
        let Some((last, end)) = records.last() else {
            return Ok(());
        };
        match self.post(&body[from..*end])? {
            Sent::Answered(answer) => {
                let payload = self.options.per_line;
                self.answered(&answer, |index| {
                    records
                        .get(if payload { 0 } else { index })
                        .map_or(0, |r| r.0)
                });
                Ok(())
            }
            Sent::TooLarge(_) if records.len() > 1 => {
                let (first, second) = records.split_at(records.len() / 2);
                self.send_part(body, from, first)?;
                let from = first.last().map_or(from, |(_, end)| *end);
                self.send_part(body, from, second)
            }
            Sent::TooLarge(text) => Err(ImportError::RecordTooLarge { line: *last, text }),
        }
    }

    fn post(&self, body: &[u8]) -> Result<Sent, SendError> {
        let format = sent_as(&self.format);
        let mut path = format!("/v1/readings?import=true&format={}", escaped(format));
        let Import {
            ts_unit,
            sensor_id,
            topic,
            ..
        } = self.options;
        for (key, value) in [
            ("ts_unit", ts_unit),
            ("sensor_id", sensor_id),
            ("topic", topic),
        ] {
            if let Some(value) = value {
                path += &format!("&{key}={}", escaped(value));
            }
        }
        send::post(
            self.client,
            &path,
            body,
            self.options.patience,
            |why, pause| self.progress.wait(why, pause),
        )
    }

    /// Counts an answer; `line` is the line of a record by its index.
    fn answered(&mut self, answer: &Answer, line: impl Fn(usize) -> u64) {
        self.state.accepted += answer.accepted;
        let unlisted = answer.rejected.saturating_sub(answer.errors.len() as u64);
        for reject in &answer.errors {
            self.state
                .reject(&reject.reason, line(reject.index), &reject.detail);
        }
        if unlisted > 0 {
            self.state
                .rejected
                .entry("not_listed".to_owned())
                .or_default()
                .records += unlisted;
        }
    }

    fn save(&mut self) -> Result<(), ImportError> {
        if let (Some(file), Some(state_file)) = (self.input.file_mut(), &mut self.state_file) {
            self.state.fingerprint = file.fingerprint_of_read(self.state.offset)?;
            state_file.save(&self.state)?;
        }
        self.saved = Instant::now();
        Ok(())
    }
}

/// The lines that are sent of a Parquet file behind so many rows.
#[cfg(test)]
pub(super) fn parquet_lines(path: &Path, rows_before: u64) -> String {
    let input = Input::new(path).unwrap();
    let mut rows = parquet_rows::open(&input, rows_before).unwrap();
    let mut out = vec![];
    while rows.next(&mut out).unwrap().is_some() {}
    String::from_utf8(out).unwrap()
}

#[cfg(test)]
mod tests;
