//! A removal beside a phase: readings of the past that belong to no plan are stored first, and
//! `hourbucket remove` takes them out again while the load goes on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::Failure;
use crate::http::{self, Connection};
use crate::parts::command;
use crate::parts::service::Service;
use crate::plan::now_ms;

/// Sensors with a reading a minute: a million readings are about a month.
const SENSORS: u64 = 24;
const MINUTE_MS: u64 = 60_000;
/// The last reading is so old: only hours that ended some time ago are changed.
const AGE_MS: u64 = 24 * 60 * MINUTE_MS;
const MINUTES_AT_ONCE: u64 = 400;
const REMOVED_WITHIN: Duration = Duration::from_secs(1800);

/// The result of the removal.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RemovalReport {
    /// Number of readings that were removed.
    pub(crate) readings: u64,
    /// From the start of the command until its end.
    pub(crate) seconds: f64,
    /// Of the command.
    pub(crate) cpu_s: f64,
    pub(crate) rss_peak_bytes: u64,
}

/// Sends at least this many readings; returns how many, once all are stored. `earlier` were sent
/// before.
pub(crate) fn store(service: &Service, readings: u64, earlier: u64) -> Result<u64, Failure> {
    let minutes = readings.div_ceil(SENSORS);
    let begin_ms = now_ms().cast_unsigned() - AGE_MS - minutes * MINUTE_MS;
    let mut connection = Connection::open(service.http_port)?;
    for first in (0..minutes).step_by(MINUTES_AT_ONCE as usize) {
        let mut body = String::new();
        for sensor in 0..SENSORS {
            for minute in first..minutes.min(first + MINUTES_AT_ONCE) {
                let ts_ms = begin_ms + minute * MINUTE_MS + sensor;
                let temp = 20.0 + ((minute + sensor) % 97) as f64 / 8.0;
                let _ = writeln!(body, "s,sensor_id=removed-{sensor} temp={temp} {ts_ms}");
            }
        }
        let path = "/api/v2/write?precision=ms";
        http::post(&mut connection, path, "text/plain", body.as_bytes())?;
    }
    let sent = minutes * SENSORS;
    crate::run::until_stored(service, earlier + sent)?;
    Ok(sent)
}

/// Removes what [`store`] has sent, and sets `stop` when that is done.
pub(crate) fn remove(
    binary: &Path,
    settings: &BTreeMap<String, String>,
    readings: u64,
    stop: &AtomicBool,
) -> Result<RemovalReport, Failure> {
    let arguments = ["--yes", "--sensor", "removed-*", "--from", "2000-01-01"];
    let settings = settings.iter();
    let ended = command::run(
        binary,
        "remove",
        &arguments,
        settings.map(|(key, value)| (key.as_str(), value.as_str())),
        REMOVED_WITHIN,
    );
    stop.store(true, Ordering::Relaxed);
    let ended = ended?;
    ended.must_say(&format!("removed {readings} readings"))?;
    Ok(RemovalReport {
        readings,
        seconds: ended.seconds,
        cpu_s: ended.used.cpu_s,
        rss_peak_bytes: ended.used.rss_peak_bytes,
    })
}
