//! `hourbucket remove`: removes readings, or single values of them, or sensors wholly, while services
//! run.
//!
//! **One bucket** ([`buckets`]). It is read, what the removal leaves is computed
//! ([`crate::maintain::removal`]), and each of its pages is replaced under the guard of what was read.
//! If a page has changed meanwhile, the bucket is read again. Why a running service stays exact:
//! - A page that loses readings is sealed in the same statement, so its count never decreases while
//!   appends are possible ([`super::reconcile`]). An append that the service has decided on earlier is
//!   a conflict; it loads the bucket, finds what it has acknowledged, and begins another page.
//! - A page that loses only values keeps its count, and appends to it continue.
//! - A page that loses everything stays as an empty one, because a service may expect its number. Only
//!   the single open page of a bucket is deleted: an append then creates it again with its own readings.
//! - The positions of readings move. A service identifies readings with receipt time by position if the
//!   answer to a write was lost, so only buckets that ended before `settled_before_ms` are changed.
//!
//! Readings that only columns have ([`crate::tier`]) return to their pages first, under guards and with
//! the counts that the pages have. Then the pages have everything, and the columns are a copy.
//!
//! A time-series bucket becomes pages with what is left, as in `reconcile --drop-duplicates`, on every
//! server: the replacement of its document is one guarded change, before which nothing and after which
//! everything is removed. Deleted measurements would leave a document that counts too many if the
//! command is killed before it is recomputed, and nothing would show what it has to count. The
//! measurements are leftovers then; MongoDB 7.0 and later delete them, others keep them, invisible.
//!
//! **What is derived** ([`derived`]). Before the first page of a day is changed, the day gets a mark of
//! the instance [`REMOVAL`], so queries use its hours from then on. After all pages, each marked day is
//! computed again and replaced, although it counts fewer. A service may be computing the day from
//! pages that it read before; then its own mark is there, so the command waits until it is gone, at most
//! [`PATIENCE`], compares again, and only then clears its mark. Latest states and entries of the
//! catalogue of all selected sensors are compared with what is left, each replaced only if it is as it
//! was read. A service writes a state up to `latest.interval` after its readings, which may be removed by
//! then, so the states are compared once more after this time. An entry is left as it is while a service may believe that it has a field
//! (`arrival_step_ms`); an entry that lists more than is stored hides nothing.
//!
//! **Crash.** Every step is idempotent. Pages that were not changed are found by the next run, days that
//! were not computed have their marks, everything else is compared by every run. The marks are not taken
//! over by services, which would not replace a day by one that counts less.
//!
//! **Whole sensors** ([`whole`]) lose every document, the entry of the catalogue last, so that the next
//! run finds a sensor that was removed in part.
//!
//! [`moving`] gives what is taken to another sensor.
//!
//! A removal and a conversion exclude each other ([`super::alone`]).

mod buckets;
mod derived;
mod moving;
mod whole;

pub use moving::{MoveKind, MoveOptions, Moved};

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use columns::Weightings;
use model::{BucketKey, SensorId, SensorPatterns, Zone};

use crate::catalog::CatalogQuery;
use crate::maintain::removal::Removal;
use crate::maintain::{LISTED_MAX, MaintainError, PageSize};
use crate::mongo::maintenance::Maintenance;
use crate::mongo::read::bucket_reader::{Collections, MeasurementsFound, find_measurements};
use crate::reading::SensorQuery;
use crate::{Store, StoreError};

/// How long a running computation of a day is waited for. It takes seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest `latest.interval` that is waited for, and how much longer.
const LATEST_MAX: Duration = Duration::from_secs(60);
const LATEST_MORE: Duration = Duration::from_secs(2);
/// Sensors that are listed together.
const SENSORS_MAX: usize = 1000;
/// Readings that are shown.
const EXAMPLES_MAX: usize = 5;

/// What to remove, and how.
#[derive(Debug, Clone)]
pub struct RemoveOptions {
    /// Of these sensors.
    pub sensors: SensorPatterns,
    /// `None`: the sensors wholly.
    pub removal: Option<Removal>,
    /// The current time in milliseconds since 1970.
    pub now_ms: i64,
    /// Only of buckets that ended by this time, in milliseconds since 1970.
    pub settled_before_ms: i64,
    /// `rollup.zone`
    pub zone: Zone,
    /// `rollup.days`
    pub has_days: bool,
    /// Of the columns, if `columns.enabled`.
    pub columns: Option<Weightings>,
    /// `latest.recent`, if `latest.enabled`.
    pub recent_max: Option<usize>,
    /// `latest.interval`
    pub latest_interval: Duration,
    /// The precision of arrivals in the catalogue.
    pub arrival_step_ms: i64,
    /// For buckets that become pages.
    pub page: PageSize,
    /// Only count what would be removed.
    pub dry_run: bool,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Default)]
pub struct Removed {
    /// Sensors that match.
    pub sensors: u64,
    /// Sensors that lose something.
    pub affected: u64,
    /// Buckets that lose something.
    pub buckets: u64,
    /// Readings that go.
    pub readings: u64,
    /// Readings that stay without a value that they had.
    pub values: u64,
    /// The first ones: sensor, time (ms since 1970), and the values.
    pub examples: Vec<(SensorId, i64, String)>,
    /// Buckets that have something to remove and keep it, and why: at most [`LISTED_MAX`].
    pub kept: Vec<(BucketKey, String)>,
    /// Number of these buckets.
    pub kept_total: u64,
    /// Buckets of measurements that became pages.
    pub converted: u64,
    /// Those of them whose measurements the server keeps, invisible.
    pub leftovers: u64,
    /// Days that were computed again.
    pub days: u64,
    /// Days that services kept computing: they keep their marks.
    pub unsettled: u64,
    /// Latest states that were replaced.
    pub latest: u64,
    /// Entries of the catalogue that were narrowed or removed.
    pub entries: u64,
    /// Entries that list more than is left, because their sensors sent recently.
    pub entries_kept: u64,
    /// Sensors of which readings arrived while they were removed.
    pub still_arriving: u64,
}

impl Removed {
    fn keep(&mut self, bucket: &BucketKey, why: impl Into<String>) {
        self.kept_total += 1;
        if self.kept.len() < LISTED_MAX {
            self.kept.push((bucket.clone(), why.into()));
        }
    }
}

fn store_failed(error: StoreError) -> MaintainError {
    MaintainError::Server(error.to_string())
}

struct Run<'a> {
    of: &'a Maintenance,
    all: Collections,
    store: &'a dyn Store,
    options: &'a RemoveOptions,
    /// There is a collection of measurements.
    is_measured: bool,
    /// The sensor that gets what is taken.
    into: Option<SensorId>,
    /// Its measurements become pages only in buckets that ended by this time (ms since 1970).
    into_settled_before_ms: i64,
    /// Days that this run has marked, by their start (ms since 1970).
    marked: HashSet<(SensorId, i64)>,
    /// Whether the server deletes measurements by time.
    deletes_by_time: bool,
    done: Removed,
}

impl Maintenance {
    /// Removes what the options say of this store. `progress` is called after each sensor. May be
    /// interrupted at any moment and run again.
    ///
    /// # Errors
    /// No sensor matches, or none has a field that is named; the server failed.
    pub async fn remove(
        &self,
        store: &dyn Store,
        options: &RemoveOptions,
        mut progress: impl FnMut(&Removed),
    ) -> Result<Removed, MaintainError> {
        let mut run = self.run(store, options).await?;
        let (sensors, fields) = run.sensors().await?;
        if sensors.is_empty() {
            let why = "no stored sensor matches; `*` stands for any text";
            return Err(MaintainError::Refused(why.into()));
        }
        run.done.sensors = sensors.len() as u64;
        match &options.removal {
            None => run.whole(&sensors, &mut progress).await?,
            Some(removal) => {
                check_fields(removal, &fields)?;
                let removal = Arc::new(removal.clone());
                let of: Vec<Selected> = sensors
                    .into_iter()
                    .map(|sensor| (sensor, removal.clone()))
                    .collect();
                run.take(&of, &mut progress).await?;
            }
        }
        Ok(run.done)
    }

    /// Removes from each of these sensors something else; the selection of the options is not used.
    /// May be interrupted at any moment and run again.
    ///
    /// # Errors
    /// The server failed.
    pub async fn remove_of(
        &self,
        store: &dyn Store,
        options: &RemoveOptions,
        of: &[(SensorId, Removal)],
    ) -> Result<Removed, MaintainError> {
        let mut run = self.run(store, options).await?;
        run.done.sensors = of.len() as u64;
        let of = of.iter().cloned();
        let of: Vec<Selected> = of
            .map(|(sensor, removal)| (sensor, Arc::new(removal)))
            .collect();
        run.take(&of, &mut |_| {}).await?;
        Ok(run.done)
    }

    /// A run that has done nothing yet.
    async fn run<'a>(
        &'a self,
        store: &'a dyn Store,
        options: &'a RemoveOptions,
    ) -> Result<Run<'a>, MaintainError> {
        let detected = self.reader.detected();
        let found = find_measurements(self.reader.connection(), detected).await?;
        Ok(Run {
            of: self,
            all: self.reader.collections(),
            store,
            options,
            is_measured: found != MeasurementsFound::Absent,
            into: None,
            into_settled_before_ms: i64::MAX,
            marked: HashSet::new(),
            deletes_by_time: true,
            done: Removed::default(),
        })
    }
}

/// What is removed of a sensor.
type Selected = (SensorId, Arc<Removal>);

impl Run<'_> {
    /// Removes from sensors, and computes what is derived again. Calls `progress` after each.
    async fn take(
        &mut self,
        of: &[Selected],
        progress: &mut impl FnMut(&Removed),
    ) -> Result<(), MaintainError> {
        for (sensor, removal) in of {
            self.buckets_of(sensor, removal, &mut |_| {}).await?;
            progress(&self.done);
        }
        if self.options.dry_run {
            return Ok(());
        }
        let sensors: BTreeSet<SensorId> = of.iter().map(|(sensor, _)| sensor.clone()).collect();
        let patterns = &self.options.sensors;
        self.settle_days(|sensor| sensors.contains(sensor) || patterns.matches(sensor))
            .await?;
        self.latest_of_all(of).await?;
        self.narrow_entries(&sensors).await?;
        if self.done.affected > 0 && self.options.recent_max.is_some() {
            tokio::time::sleep(self.options.latest_interval.min(LATEST_MAX) + LATEST_MORE).await;
            self.latest_of_all(of).await?;
        }
        Ok(())
    }

    /// The stored sensors that match, and their fields; no fields if they are not known to be all.
    async fn sensors(&self) -> Result<(BTreeSet<SensorId>, BTreeSet<String>), MaintainError> {
        let patterns = &self.options.sensors;
        let mut sensors: BTreeSet<SensorId> = BTreeSet::new();
        let mut fields = BTreeSet::new();
        let mut are_all = true;
        for prefix in patterns.prefixes() {
            let mut query = SensorQuery {
                prefix: prefix.to_owned(),
                after: None,
                limit: SENSORS_MAX,
            };
            loop {
                let found = self.store.sensors(&query).await.map_err(store_failed)?;
                query.after = found.last().cloned();
                let matching = found.iter().filter(|id| patterns.matches(id));
                sensors.extend(matching.map(|id| id.as_str().into()));
                if found.len() < SENSORS_MAX {
                    break;
                }
            }
        }
        let mut query = CatalogQuery {
            prefixes: patterns.prefixes().into_iter().map(str::to_owned).collect(),
            limit: SENSORS_MAX,
            ..CatalogQuery::default()
        };
        loop {
            let found = self
                .store
                .find_catalog(&query)
                .await
                .map_err(store_failed)?;
            query.after = found.last().map(|entry| entry.sensor_id.clone());
            let is_last = found.len() < SENSORS_MAX;
            for entry in found {
                if patterns.matches(&entry.sensor_id) {
                    are_all &= !entry.is_truncated;
                    fields.extend(entry.fields.into_keys());
                    sensors.insert(entry.sensor_id);
                }
            }
            if is_last {
                fields.retain(|_| are_all);
                return Ok((sensors, fields));
            }
        }
    }
}

/// Refuses a field that no sensor has: it is probably mistyped.
fn check_fields(removal: &Removal, known: &BTreeSet<String>) -> Result<(), MaintainError> {
    let named = removal.field.iter().map(String::as_str);
    let mut named = named.chain(removal.condition.fields());
    let unknown = named.find(|name| !known.contains(*name));
    match unknown.filter(|_| !known.is_empty()) {
        None => Ok(()),
        Some(name) => {
            let some: Vec<&str> = known.iter().take(20).map(String::as_str).collect();
            let some = some.join(", ");
            let why = format!("no matching sensor has a field `{name}`; they have: {some}");
            Err(MaintainError::Refused(why))
        }
    }
}
