//! `import --replace`: what the files have is all that stays of their sensors in their range of time.
//!
//! The files are decoded here too, as the service decodes them, to know their readings. Then they are
//! imported as ever, and what else is stored in the range is removed, as by `hourbucket remove`: hour by
//! hour, each change under its guard. So a reader misses nothing; it may see both for a moment.
//! Interrupted at any moment and run again, it continues: the import behind its state, and whatever is
//! still stored that the files do not have is removed.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Map, json};

use super::{Import, ImportError, Records, Run, source::Input};
use crate::cli::client::Client;
use crate::cli::decode::{Decode, DecodeRequest};
use crate::cli::output::{maintenance_failed, print_line};
use crate::cli::remove::{begin, confirm, counted, print_kept, print_removed, settings, uid};
use config::Config;
use model::{Aliases, Clock, ReadingKey, SensorId, SystemClock};
use store::Store;
use store::maintain::removal::{Keys, Removal};
use store::maintain::time;
use store::mongo::{MongoStore, RemoveOptions};
use telemetry::audit;

/// Readings of all files, which take some 30 bytes of memory each.
const READINGS_MAX: usize = 10_000_000;

/// What the files have of a sensor: the times of the first and the last reading (ms since 1970), and
/// all of them.
struct Corrected {
    first_ms: i64,
    last_ms: i64,
    keys: HashSet<ReadingKey>,
}

/// Reads the files, and adds up what they have.
struct Reader<'a> {
    options: &'a Import,
    client: &'a Client,
    decode: Decode,
    aliases: Aliases,
    now_ms: i64,
    sensors: BTreeMap<SensorId, Corrected>,
    readings: usize,
}

pub(crate) async fn run(config: &Config, store: MongoStore, options: Import) -> ExitCode {
    let _alone = match begin(config, &store).await {
        Ok(alone) => alone,
        Err(code) => return code,
    };
    let aliases = match store.aliases().map(|aliases| aliases.aliases()) {
        Some(read) => match read.await {
            Ok(all) => Aliases::new(all),
            Err(error) => return maintenance_failed(error),
        },
        None => Aliases::default(),
    };
    let now_ms = SystemClock::new().now().wall_ms;
    let client = match super::client(&options, config) {
        Ok(client) => client,
        Err(error) => return maintenance_failed(error),
    };
    let mut reader = Reader {
        options: &options,
        client: &client,
        decode: Decode::of_any_age(config),
        aliases,
        now_ms,
        sensors: BTreeMap::new(),
        readings: 0,
    };
    for path in &options.files {
        if let Err(error) = reader.read_file(path) {
            return maintenance_failed(format!("{}: {error}; nothing was changed", path.display()));
        }
    }
    let found = counted(reader.readings as u64, "reading");
    let of: Vec<(SensorId, Removal)> = reader
        .sensors
        .into_iter()
        .map(|(sensor, corrected)| (sensor, removal(&options, corrected, now_ms)))
        .collect();
    let plan = RemoveOptions {
        dry_run: true,
        ..settings(config, now_ms)
    };
    let maintenance = store.maintenance();
    let planned = match maintenance.remove_of(&store, &plan, &of).await {
        Ok(planned) => planned,
        Err(failure) => return maintenance_failed(failure),
    };
    let sensors = counted(of.len() as u64, "sensor");
    let others = counted(planned.readings, "stored reading");
    print_line(&format!(
        "would store {found} of {sensors} unless they are stored, and remove {others} of the same time"
    ));
    print_kept(&planned);
    if options.dry_run {
        return ExitCode::SUCCESS;
    }
    if !options.yes
        && let Err(why) = confirm("Replace them? [y/N] ", "changed")
    {
        return maintenance_failed(why);
    }
    let mut details = details(&options, &of);
    if let Err(failure) = audit::append(&config.audit, "replacement_begins", &details) {
        return maintenance_failed(failure);
    }
    let service = config.clone();
    let imported = tokio::task::spawn_blocking(move || super::run(&options, &service)).await;
    match imported {
        Ok(code) if code == ExitCode::SUCCESS => {}
        Ok(_) => return maintenance_failed("nothing was removed: not every record was accepted"),
        Err(panic) => return maintenance_failed(panic),
    }
    let options = RemoveOptions {
        dry_run: false,
        ..plan
    };
    let removed = match maintenance.remove_of(&store, &options, &of).await {
        Ok(removed) => removed,
        Err(failure) => {
            let why = "run the same command again, which continues";
            return maintenance_failed(format!("{failure}; {why}"));
        }
    };
    details.insert("removed".into(), json!(removed.readings));
    let noted = audit::append(&config.audit, "replacement", &details);
    print_removed(&removed, false);
    match noted {
        Err(failure) => maintenance_failed(failure),
        Ok(()) if removed.kept_total + removed.unsettled > 0 => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
    }
}

/// What the files replace of a sensor, up to now.
fn removal(options: &Import, corrected: Corrected, now_ms: i64) -> Removal {
    let to_ms = options.to.unwrap_or(corrected.last_ms + 1);
    Removal {
        from_ms: options.from.unwrap_or(corrected.first_ms),
        to_ms: to_ms.min(now_ms),
        field: None,
        condition: Default::default(),
        keys: Keys::Except(Arc::new(corrected.keys)),
    }
}

fn details(options: &Import, of: &[(SensorId, Removal)]) -> Map<String, serde_json::Value> {
    let mut details = Map::new();
    let files: Vec<String> = options
        .files
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    details.insert("files".into(), json!(files));
    details.insert("sensors".into(), json!(of.len()));
    let from_ms = of.iter().map(|(_, removal)| removal.from_ms).min();
    let to_ms = of.iter().map(|(_, removal)| removal.to_ms).max();
    details.extend(from_ms.map(|from_ms| ("from".into(), json!(time(from_ms)))));
    details.extend(to_ms.map(|to_ms| ("to".into(), json!(time(to_ms)))));
    details.extend(uid().map(|uid| ("uid".into(), json!(uid))));
    details
}

impl Reader<'_> {
    fn read_file(&mut self, path: &Path) -> Result<(), ImportError> {
        let format = self.options.format_of(path)?;
        if path.as_os_str() == "-" || !self.options.is_by_record(&format) {
            return Err(ImportError::NotReplacing);
        }
        let sent_as = super::sent_as(&format).to_owned();
        let mut run = Run::from_start(self.options, self.client, Input::new(path)?, format);
        let mut records: Box<dyn Records> = run.open_records((0, 0))?;
        let mut record = vec![];
        let mut line = 0;
        loop {
            record.clear();
            let next = records.next(&mut record);
            let next = next.map_err(|error| ImportError::Read { line, error })?;
            let Some(found) = next else {
                return Ok(());
            };
            line = found.line;
            let refused = |why: String| ImportError::Refused { line, why };
            if let Some(reject) = found.reject {
                return Err(refused(reject.detail));
            }
            let request = DecodeRequest {
                format: &sent_as,
                topic: self.options.topic.as_deref(),
                ts_unit: self.options.ts_unit.as_deref(),
                ..DecodeRequest::default()
            };
            let sensor_id = self.options.sensor_id.as_deref();
            let decoded = self
                .decode
                .readings(request, sensor_id, &record, self.now_ms);
            let (batch, rejects) = decoded.map_err(|error| refused(error.to_string()))?;
            if let Some((_, why)) = rejects.foremost() {
                return Err(refused(why.to_owned()));
            }
            for (_, reading) in batch.iter() {
                if reading.receipt_time {
                    return Err(refused("it has no time".to_owned()));
                }
                if self.readings >= READINGS_MAX {
                    return Err(ImportError::TooManyReadings(READINGS_MAX));
                }
                self.readings += 1;
                let ts_ms = reading.ts_ms;
                let id = reading.sensor_id();
                let now = self.aliases.resolve(id, ts_ms).cloned();
                let of = self.sensors.entry(now.unwrap_or_else(|| id.into()));
                let of = of.or_insert_with(|| Corrected {
                    first_ms: ts_ms,
                    last_ms: ts_ms,
                    keys: HashSet::new(),
                });
                of.first_ms = of.first_ms.min(ts_ms);
                of.last_ms = of.last_ms.max(ts_ms);
                of.keys.insert(reading.key(&batch));
            }
        }
    }
}
