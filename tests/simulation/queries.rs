//! Queries during a history: a response has every reading that was acknowledged and sent to the
//! shards before the query, exactly once, regardless of what the store and the process do between
//! the three reads of `query::read`.

use model::stable_hash;
use pipeline::accumulate::state::snapshot::UnstoredRows;
use pipeline::route::shard_of;
use query::read::hours::{Hour, OpenHour};
use query::read::merge::{Cursor, MergedReadings, ReadingMerge, Window};
use store::reading::{MeasurementQuery, MeasurementResults, PageQuery};
use testkit::memory_store::same_sum;

use super::super::Sensor;
use super::*;

impl Sim {
    /// Queries a sensor's readings page by page, and its buckets; other steps happen in between.
    pub(super) fn query(&mut self) {
        let sensor = format!("s{}", self.rng.u64(0..self.sensors));
        let to_ms = self.now.wall_ms - self.wrong_ms + self.rng.i64(-HOUR..HOUR / 2);
        let from_ms = to_ms - self.rng.i64(1..6 * HOUR);
        let of = Sensor::new(&sensor);
        let matches = |id: &Identity| id.sensor == of && (from_ms..to_ms).contains(&id.key.ts_ms);
        // The memory of a second instance is not read; and `complete` reports whether all entries
        // are routed.
        let all = self.instances.len() == 1 && self.instances[0].process.backlog.is_empty();
        let least: Vec<(Identity, u32)> = match all {
            true => self
                .known
                .keys()
                .filter(|id| matches(id))
                .map(|id| (*id, *self.expected(id).start()))
                .collect(),
            false => vec![],
        };
        let limit = self.rng.usize(1..20);
        let generation = self.instances[0].generation;
        let mut shown: Identities<u32> = Identities::default();
        let mut after: Option<Cursor> = None;
        for page in 0.. {
            let gathered = self.readings(
                &sensor,
                Window {
                    from_ms,
                    to_ms,
                    after,
                    limit,
                },
            );
            assert!(
                gathered.rows.len() <= limit,
                "seed {}: more than the limit",
                self.seed
            );
            for row in gathered.rows.iter() {
                *shown
                    .entry(Identity {
                        sensor: of,
                        key: key(row.ts_ms, row.named()),
                    })
                    .or_default() += 1;
            }
            match gathered.next {
                None => break,
                next => after = next,
            }
            assert!(
                page < 10_000,
                "seed {}: a response without an end",
                self.seed
            );
            self.meanwhile();
        }
        let is_expired = |id: &Identity| self.is_expired(Span::HOUR.floor(id.key.ts_ms));
        for (id, n) in shown.iter().filter(|(id, _)| !is_expired(id)) {
            let most = *self.expected(id).end();
            assert!(
                *n <= most,
                "seed {}: shown {n} times, at most {most} were sent: {id:?}",
                self.seed
            );
        }
        // After a crash between two pages the replay is not in memory yet, which `complete` of the
        // later pages reports.
        let same = self.instances[0].generation == generation;
        let is_removed = |id: &Identity| self.is_removed(&sensor, Span::HOUR.floor(id.key.ts_ms));
        for (id, least) in least
            .iter()
            .filter(|(id, _)| same && !is_expired(id) && !is_removed(id))
        {
            // A dead letter from the time when readings of its bucket were being removed.
            let dead = self.dead.get(id).copied().unwrap_or(0);
            let n = shown.get(id).copied().unwrap_or(0) + dead;
            // Its bucket may have been converted meanwhile: see `convert.rs`.
            let least = (*least).min(*self.expected(id).start());
            assert!(
                n >= least,
                "seed {}: acknowledged {least}, shown {n}: {id:?}",
                self.seed
            );
        }
        self.compare_hours(&sensor, from_ms, to_ms);
    }

    fn meanwhile(&mut self) {
        for _ in 0..self.rng.usize(0..6) {
            self.step_without_query();
        }
    }

    fn view(&self, sensor: &str, from_ms: i64, to_ms: i64) -> UnstoredRows {
        let shards = &self.instances[0].process.shards;
        let hash = stable_hash(sensor);
        shards[shard_of(hash, shards.len())].view(hash, sensor, from_ms, to_ms)
    }

    fn readings(&mut self, sensor: &str, window: Window) -> MergedReadings {
        let view = self.view(sensor, window.begin_ms(), window.to_ms);
        let mut gather = ReadingMerge::new(window, Span::HOUR, view);
        let mut query = PageQuery {
            sensor_id: sensor.into(),
            from: Span::HOUR.floor(window.begin_ms()),
            to_ms: window.to_ms,
            after: None,
            readings_from_ms: Some(window.begin_ms()),
        };
        let until_ms = loop {
            self.reading = query.after.map(|(start, _)| (sensor.to_owned(), start));
            self.meanwhile();
            self.reading = None;
            let found = self.pages.read_pages(&query);
            for (start, page) in &found.pages {
                gather.page(*start, page);
            }
            query.after = found.next;
            match (found.next, gather.is_enough()) {
                (None, _) => break window.to_ms,
                (_, true) => break gather.whole_until_ms(),
                (_, false) => {}
            }
        };
        self.meanwhile();
        let sensor_id = sensor.into();
        let from_ms = window.begin_ms();
        let limit = window.limit + window.after.map_or(0, |after| after.given as usize) + 1;
        let measured = match from_ms < until_ms {
            true => self.pages.read_measurements(&MeasurementQuery {
                sensor_id,
                from_ms,
                to_ms: until_ms,
                limit,
            }),
            false => MeasurementResults {
                until_ms,
                ..MeasurementResults::default()
            },
        };
        gather.finish(until_ms, &measured)
    }

    /// At any moment, the summaries of the buckets equal those of the listed readings.
    fn compare_hours(&mut self, sensor: &str, from_ms: i64, to_ms: i64) {
        let first = Span::HOUR.floor(from_ms);
        let last = Span::HOUR.floor(to_ms - 1);
        let view = self.view(sensor, first.0, Span::HOUR.end(last));
        for bucket in view.buckets {
            let mut open = OpenHour::new(bucket);
            let start = open.start();
            if self.is_expired(start)
                || self.is_removed(sensor, start)
                || !self.is_counted(sensor, start)
            {
                continue;
            }
            let sensor_id = sensor.into();
            let to_ms = start.0 + 1;
            let mut query = PageQuery {
                sensor_id,
                from: start,
                to_ms,
                after: None,
                readings_from_ms: Some(i64::MIN),
            };
            loop {
                let found = self.pages.read_pages(&query);
                found.pages.iter().for_each(|(_, page)| open.add_page(page));
                query.after = found.next;
                if found.next.is_none() {
                    break;
                }
            }
            let from_ms = start.0;
            let to_ms = Span::HOUR.end(start);
            if open.is_measured() {
                let query = MeasurementQuery {
                    sensor_id: sensor.into(),
                    from_ms,
                    to_ms,
                    limit: usize::MAX,
                };
                open.add_measurements(&self.pages.read_measurements(&query).rows);
            }
            let (_, hour) = open.finish();
            let window = Window {
                from_ms,
                to_ms,
                after: None,
                limit: 1_000_000,
            };
            let rows = self.readings_at_once(sensor, window).rows;
            let mut expected = Hour::default();
            expected.add_rows(&rows);
            let numbers = rows.iter().flat_map(|row| {
                row.values()
                    .filter_map(|(_, v)| v.num())
                    .collect::<Vec<_>>()
            });
            let sizes = numbers.fold(1.0, |sum, n| sum + n.as_f64().abs());
            let mut hour = hour;
            for (name, field) in &mut hour.summary {
                let other = expected
                    .summary
                    .get(name)
                    .map_or(f64::NAN, |f| f.sum.as_f64());
                let sum = field.sum.as_f64();
                let seed = self.seed;
                assert!(
                    same_sum(sum, other, sizes),
                    "seed {seed}: {name}: {sum}, not {other}"
                );
                field.sum = expected.summary[name].sum;
            }
            assert_eq!(
                hour, expected,
                "seed {}: bucket of {sensor} at {}",
                self.seed, start.0
            );
        }
    }

    fn readings_at_once(&mut self, sensor: &str, window: Window) -> MergedReadings {
        let mut gather = ReadingMerge::new(
            window,
            Span::HOUR,
            self.view(sensor, window.from_ms, window.to_ms),
        );
        let sensor_id = sensor.into();
        let readings_from_ms = Some(window.from_ms);
        let from = Span::HOUR.floor(window.from_ms);
        let to_ms = window.to_ms;
        let mut query = PageQuery {
            sensor_id,
            from,
            to_ms,
            after: None,
            readings_from_ms,
        };
        loop {
            let found = self.pages.read_pages(&query);
            found
                .pages
                .iter()
                .for_each(|(start, page)| gather.page(*start, page));
            query.after = found.next;
            if found.next.is_none() {
                break;
            }
        }
        let sensor_id = sensor.into();
        let from_ms = window.from_ms;
        let query = MeasurementQuery {
            sensor_id,
            from_ms,
            to_ms,
            limit: usize::MAX,
        };
        gather.finish(to_ms, &self.pages.read_measurements(&query))
    }
}
