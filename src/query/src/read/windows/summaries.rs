//! The summaries of the sensors of a group: days whose documents can be used, and the hours that no
//! such day covers.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{Asked, CONCURRENT, GROUPS, summarised};
use crate::promql::Labels;
use crate::promql::windows::Need;
use crate::read::columns::ColumnedDays;
use crate::read::days::DailyHours;
use crate::read::hours::{Hours, OpenHour};
use crate::read::series::{Wanted, fields_of};
use crate::read::{FIELDS_MAX, ReadError, ReadService};
use model::{BucketKey, BucketStart, Day, SensorId};
use pipeline::accumulate::UnstoredBucket;
use pipeline::accumulate::state::snapshot::UnstoredRows;
use store::days::DaysQuery;
use store::maintain::StoredPage;
use store::reading::{PageQuery, SummaryQuery};

/// Gaps between days that are read separately.
const GAPS_MAX: usize = 16;

/// The hours of a sensor, and which of them are partly in memory.
type SensorHours = (Hours, BTreeSet<BucketStart>);

impl ReadService {
    /// For each sensor the days whose document can be used; and whether a window needs hours that
    /// have expired, of another day. `changed`: see [`ReadService::changed_days`].
    pub(super) async fn usable_days(
        &self,
        wanted: &[Wanted],
        changed: Option<&[BTreeSet<Day>]>,
        (from_ms, to_ms): (i64, i64),
        asked: Asked<'_>,
    ) -> Result<(Vec<DailyHours>, bool), ReadError> {
        let windows = asked.windows;
        let reaches_expired = asked.from_ms < asked.expired_until_ms;
        let mut usable = vec![DailyHours::new(); wanted.len()];
        let Some((store, changed)) = self.store.days().zip(changed) else {
            return Ok((usable, reaches_expired));
        };
        let sensor_ids: Vec<SensorId> = wanted.iter().map(|of| of.sensor_id.clone()).collect();
        let place: BTreeMap<&SensorId, usize> = wanted
            .iter()
            .enumerate()
            .map(|(i, of)| (&of.sensor_id, i))
            .collect();
        let mut query = DaysQuery {
            sensor_ids,
            from_ms,
            to_ms,
            fields: fields_of(wanted),
        };
        let mut are_hours_missing = false;
        while !query.sensor_ids.is_empty() {
            let found = store.days_of(&query).await?;
            for (sensor_id, day_ms, hour) in found.days {
                let (Some(i), day) = (place.get(&sensor_id).copied(), self.zone.day(day_ms)) else {
                    continue;
                };
                let is_usable = |(field, _): &(String, Labels)| {
                    let bucket = summarised((day.start_ms, day.end_ms, true), &hour, field);
                    bucket.is_none_or(|bucket| bucket.need(windows) != Need::Samples)
                };
                let is_current = day.start_ms == day_ms && !changed[i].contains(&day);
                let suffices = is_current && wanted[i].fields.iter().all(is_usable);
                let begins_expired = |first: i64| first < asked.expired_until_ms;
                are_hours_missing |=
                    !suffices && reaches_expired && hour.first_ts_ms.is_some_and(begins_expired);
                if suffices || is_current && asked.has_expired(day) {
                    usable[i].insert(day, hour);
                }
            }
            // Days that are too large for an answer are left out: their hours are read instead.
            if found.rest.len() == query.sensor_ids.len() {
                break;
            }
            query.sensor_ids = found.rest;
        }
        Ok((usable, are_hours_missing))
    }

    /// For each sensor the columns of those days whose document cannot be used.
    pub(super) async fn columns_between(
        &self,
        wanted: &[Wanted],
        mut all: Vec<Day>,
        days: &[DailyHours],
        changed: Option<&[BTreeSet<Day>]>,
    ) -> Result<Vec<ColumnedDays>, ReadError> {
        let Some(changed) = changed else {
            return Ok(vec![ColumnedDays::new(); wanted.len()]);
        };
        all.retain(|day| days.iter().any(|days| !days.contains_key(day)));
        // Sensors that do not fit take the summaries of their hours.
        let (mut columned, _) = self.columned_days(wanted, &all, changed).await?;
        for (columned, days) in columned.iter_mut().zip(days) {
            columned.retain(|day, _| !days.contains_key(day));
        }
        Ok(columned)
    }

    /// For each sensor the hours that no day covers, and which of them are partly in memory.
    pub(super) async fn hours_between(
        &self,
        wanted: &[Wanted],
        views: Vec<UnstoredRows>,
        days: &[BTreeSet<Day>],
        asked: Asked<'_>,
    ) -> Result<Vec<SensorHours>, ReadError> {
        let is_asked = |start: BucketStart| start.0 >= asked.from_ms && start.0 < asked.to_ms;
        let mut all: Vec<SensorHours> = vec![];
        for view in &views {
            let open = view
                .buckets
                .iter()
                .map(UnstoredBucket::start)
                .filter(|start| is_asked(*start))
                .collect();
            all.push((Hours::new(), open));
        }
        self.add_stored_hours(&mut all, wanted, days, asked).await?;
        let open = views
            .into_iter()
            .enumerate()
            .flat_map(|(i, view)| view.buckets.into_iter().map(move |bucket| (i, bucket)));
        let open =
            open.filter(|(_, bucket)| is_asked(bucket.start()))
                .map(|(i, bucket)| async move {
                    Ok::<_, ReadError>((
                        i,
                        self.add_up_open(&wanted[i].sensor_id, OpenHour::new(bucket))
                            .await?,
                    ))
                });
        let mut open = stream::iter(open.collect::<Vec<_>>()).buffer_unordered(CONCURRENT);
        while let Some((i, (start, hour))) = open.try_next().await? {
            all[i].0.insert(start, hour);
        }
        Ok(all)
    }

    /// Adds the stored hours that no day covers and that are not partly in memory.
    async fn add_stored_hours(
        &self,
        all: &mut [SensorHours],
        wanted: &[Wanted],
        days: &[BTreeSet<Day>],
        asked: Asked<'_>,
    ) -> Result<(), ReadError> {
        let mut by_gaps: BTreeMap<Vec<(i64, i64)>, Vec<usize>> = BTreeMap::new();
        for (i, days) in days.iter().enumerate() {
            by_gaps
                .entry(self.few_gaps(days, (asked.from_ms, asked.to_ms)))
                .or_default()
                .push(i);
        }
        let place: BTreeMap<&SensorId, usize> = wanted
            .iter()
            .enumerate()
            .map(|(i, of)| (&of.sensor_id, i))
            .collect();
        let fields = fields_of(wanted);
        let requests = by_gaps
            .iter()
            .flat_map(|(gaps, sensors)| gaps.iter().map(move |gap| (*gap, sensors)));
        let requests = requests.map(|((from_ms, to_ms), sensors)| {
            let sensor_ids = sensors
                .iter()
                .map(|i| wanted[*i].sensor_id.clone())
                .collect();
            self.summaries(SummaryQuery {
                sensor_ids,
                from: BucketStart(from_ms),
                to_ms,
                fields: fields.clone(),
            })
        });
        let mut found = stream::iter(requests.collect::<Vec<_>>()).buffer_unordered(GROUPS);
        let mut held = 0;
        while let Some(pages) = found.try_next().await? {
            for (key, page) in pages {
                let Some(i) = place.get(&key.sensor_id).copied() else {
                    continue;
                };
                if is_covered(&days[i], key.start) || all[i].1.contains(&key.start) {
                    continue;
                }
                let hour = all[i].0.entry(key.start).or_default();
                held += page.summary.len();
                if held < FIELDS_MAX {
                    hour.add_page(&page)
                } else {
                    hour.add_count(&page)
                }
            }
        }
        Ok(())
    }

    /// The times that no day covers; one range over all of them if there are too many.
    fn few_gaps(&self, days: &BTreeSet<Day>, range: (i64, i64)) -> Vec<(i64, i64)> {
        let gaps = self.gaps(days, range);
        match gaps[..] {
            [(first, _), .., (_, last)] if gaps.len() > GAPS_MAX => vec![(first, last)],
            _ => gaps,
        }
    }

    /// All pages of a query.
    pub(in crate::read) async fn summaries(
        &self,
        mut query: SummaryQuery,
    ) -> Result<Vec<(BucketKey, StoredPage)>, ReadError> {
        let mut all = vec![];
        while !query.sensor_ids.is_empty() {
            let found = self.store.summaries(&query).await?;
            all.extend(found.pages);
            let is_stuck = found.rest.len() == query.sensor_ids.len();
            query.sensor_ids = found.rest;
            if let Some(sensor_id) = query.sensor_ids.pop_if(|_| is_stuck) {
                let from = query.from;
                let to_ms = query.to_ms;
                let key = |start| BucketKey {
                    sensor_id: sensor_id.clone(),
                    start,
                };
                let sensor_id = sensor_id.clone();
                let mut one = PageQuery {
                    sensor_id,
                    from,
                    to_ms,
                    after: None,
                    readings_from_ms: None,
                };
                loop {
                    let found = self.store.pages(&one).await?;
                    all.extend(
                        found
                            .pages
                            .into_iter()
                            .map(|(start, page)| (key(start), page)),
                    );
                    one.after = found.next;
                    if one.after.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(all)
    }
}

/// Whether one of the days contains the bucket.
fn is_covered(days: &BTreeSet<Day>, start: BucketStart) -> bool {
    days.range(
        ..=Day {
            start_ms: start.0,
            end_ms: i64::MAX,
        },
    )
    .next_back()
    .is_some_and(|day| day.contains(start.0))
}
