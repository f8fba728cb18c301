//! Verifies that the store has every acknowledged reading exactly once, and that the summaries are
//! correct.
//!
//! Memory is a few numbers per sensor, regardless of the amount of data: the number of readings,
//! the sum of their identities (a hash of time and values, so that a missing and a duplicated
//! reading do not cancel out), and the sum of their values. If a sensor differs, its readings are
//! read again, and the message names some of them. Buckets of both storage modes are read; the sums
//! of the summaries are compared too.

use std::collections::BTreeMap;

use mongodb::bson::{Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use mongodb::{Collection, Database};
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::Failure;
use crate::plan::Plan;
use crate::values::{self, Values};

/// Values are summed as integers of 1/100,000, the finest decimal of all fields, so that sums are
/// exact.
const FRACTION: f64 = 100_000.0;
/// Sums of doubles differ in their last digits, depending on the order of addition.
const SUM_TOLERANCE: f64 = 1e-9;
/// Maximum number of sensors and readings named in a message.
const NAMED_MAX: usize = 5;

/// Hash and sum of the values of each reading, by sensor and round of the ring.
pub(crate) struct Known {
    ring: usize,
    rounds: Vec<(u64, i64)>,
}

impl Known {
    pub(crate) fn new(sensors: u32, ring: u32) -> Known {
        Known {
            ring: ring as usize,
            rounds: Vec::with_capacity(sensors as usize * ring as usize),
        }
    }

    /// Adds sensors from `first` on, which must follow those already added.
    pub(crate) fn add(&mut self, first: u32, values: &[Vec<Values>]) {
        debug_assert_eq!(
            self.rounds.len(),
            first as usize * self.ring,
            "sensors come in order"
        );
        for (i, rounds) in values.iter().enumerate() {
            let fields = values::fields(first + i as u32);
            self.rounds.extend(rounds.iter().map(|values| {
                fields
                    .iter()
                    .zip(values)
                    .fold((0u64, 0), |(hash, sum), (field, value)| {
                        let double = values::double(*value, field);
                        (
                            hash.wrapping_add(value_hash(field.name, double)),
                            sum + whole(double),
                        )
                    })
            }));
        }
    }

    fn at(&self, sensor: u32, round: u64) -> (u64, i64) {
        self.rounds[sensor as usize * self.ring + (round % self.ring as u64) as usize]
    }
}

fn value_hash(name: &str, value: f64) -> u64 {
    mix(xxh3_64(name.as_bytes()) ^ value.to_bits())
}

/// Splitmix: every bit of the result depends on every bit of the input.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The identity of a reading: a hash of its time and the sum of its values' hashes.
fn identity(ts_ms: i64, values: u64) -> u64 {
    mix(mix(ts_ms as u64).wrapping_add(values))
}

fn whole(value: f64) -> i64 {
    (value * FRACTION).round() as i64
}

/// Sums over the readings of a sensor, and over the summaries of its buckets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Tally {
    count: u64,
    identities: u64,
    sum: i64,
    summary_count: u64,
    summary_sum: f64,
}

impl Tally {
    fn add(&mut self, identity: u64, sum: i64) {
        self.count += 1;
        self.identities = self.identities.wrapping_add(identity);
        self.sum += sum;
    }

    fn readings_equal(&self, other: &Tally) -> bool {
        (self.count, self.identities, self.sum) == (other.count, other.identities, other.sum)
    }

    fn summary_fits(&self) -> bool {
        let sum = self.sum as f64 / FRACTION;
        self.summary_count == self.count
            && (self.summary_sum - sum).abs() <= SUM_TOLERANCE * sum.abs().max(1.0)
    }
}

#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Checked {
    /// Number of acknowledged readings.
    pub(crate) acknowledged: u64,
    pub(crate) stored: u64,
    pub(crate) sensors: u64,
    pub(crate) documents: u64,
    /// Descriptions of the differences; empty if the check passed.
    pub(crate) problems: Vec<String>,
}

/// The acknowledged readings: the plan, their values, and the number of acknowledged messages per
/// lane.
pub(crate) struct Sent<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) known: &'a Known,
    pub(crate) messages: &'a [u64],
}

impl Sent<'_> {
    fn each(&self, mut with: impl FnMut(u32, u64)) {
        for (lane, messages) in (0u32..).zip(self.messages) {
            for group in 0..self.plan.groups(lane) {
                let rounds = self.plan.rounds_after(lane, group, *messages);
                for sensor in self.plan.group(lane, group) {
                    with(sensor, rounds);
                }
            }
        }
    }

    fn reading(&self, sensor: u32, round: u64) -> (i64, u64, i64) {
        let (values, sum) = self.known.at(sensor, round);
        let ts_ms = self.plan.ts_ms(sensor, round);
        (ts_ms, identity(ts_ms, values), sum)
    }

    fn tallies(&self) -> Vec<Tally> {
        let mut all = vec![Tally::default(); self.plan.sensors as usize];
        self.each(|sensor, rounds| {
            for round in 0..rounds {
                let (_, identity, sum) = self.reading(sensor, round);
                all[sensor as usize].add(identity, sum);
            }
        });
        all
    }

    /// Times and identities of a sensor's readings, with their number.
    fn of(&self, wanted: u32) -> BTreeMap<(i64, u64), i64> {
        let mut found = BTreeMap::new();
        self.each(|sensor, rounds| {
            if sensor == wanted {
                for (ts_ms, identity, _) in (0..rounds).map(|round| self.reading(sensor, round)) {
                    *found.entry((ts_ms, identity)).or_default() += 1;
                }
            }
        });
        found
    }
}

/// Reads the store and compares it with the acknowledged readings.
pub(crate) async fn check(db: &Database, sent: &Sent<'_>) -> Result<Checked, Failure> {
    let expected = sent.tallies();
    let mut checked = Checked {
        acknowledged: expected.iter().map(|t| t.count).sum(),
        sensors: expected.iter().filter(|t| t.count > 0).count() as u64,
        ..Checked::default()
    };
    let mut stored = vec![Tally::default(); expected.len()];
    pages(db, &mut stored, &mut checked).await?;
    measurements(db, &mut stored, &mut checked).await?;
    checked.stored = stored.iter().map(|t| t.count).sum();
    let differ = |i: &usize| !stored[*i].readings_equal(&expected[*i]);
    let wrong: Vec<usize> = (0..expected.len()).filter(differ).collect();
    for sensor in wrong.iter().take(NAMED_MAX) {
        checked
            .problems
            .push(difference(db, sent, *sensor as u32).await?);
    }
    if wrong.len() > NAMED_MAX {
        checked
            .problems
            .push(format!("and {} more sensors", wrong.len() - NAMED_MAX));
    }
    let sums: Vec<usize> = (0..expected.len())
        .filter(|i| !differ(i) && !stored[*i].summary_fits())
        .collect();
    for sensor in sums.iter().take(NAMED_MAX) {
        let Tally {
            count,
            sum,
            summary_count,
            summary_sum,
            ..
        } = stored[*sensor];
        checked.problems.push(format!(
            "{}: the summaries have {summary_count} readings with the sum {summary_sum}; stored \
             are {count} with {}",
            values::id(*sensor as u32),
            sum as f64 / FRACTION
        ));
    }
    Ok(checked)
}

/// Reads the bucket documents: the readings of pages, and the summaries of both storage modes.
async fn pages(db: &Database, stored: &mut [Tally], checked: &mut Checked) -> Result<(), Failure> {
    let collection: Collection<RawDocumentBuf> = db.collection("sensor_buckets");
    let mut cursor = collection.find(doc! {}).await?;
    while cursor.advance().await? {
        let page = cursor.current();
        checked.documents += 1;
        let Some(tally) = sensor_of(page.get_str("sensor_id")?, stored, checked) else {
            continue;
        };
        let before = tally.count;
        if let Some(RawBsonRef::Array(readings)) = page.get("readings")? {
            for reading in readings {
                if let RawBsonRef::Document(reading) = reading? {
                    let (_, identity, sum) = read(reading)?;
                    tally.add(identity, sum);
                }
            }
        }
        let in_page = tally.count - before;
        let count = page.get_i32("count")? as u64;
        tally.summary_count += count;
        for entry in page.get_document("summary")? {
            if let (_, RawBsonRef::Document(field)) = entry? {
                tally.summary_sum += number(field.get("sum")?).unwrap_or(f64::NAN);
            }
        }
        if in_page != count && page.get("storage")?.is_none() && checked.problems.len() < NAMED_MAX
        {
            let id = page.get("_id")?;
            checked.problems.push(format!(
                "{id:?}: count is {count}, but the page has {in_page} readings"
            ));
        }
    }
    Ok(())
}

async fn measurements(
    db: &Database,
    stored: &mut [Tally],
    checked: &mut Checked,
) -> Result<(), Failure> {
    let collection: Collection<RawDocumentBuf> = db.collection("sensor_readings");
    let mut cursor = collection
        .find(doc! {})
        .projection(doc! { "_id": 0, "meta.tags": 0 })
        .await?;
    while cursor.advance().await? {
        let measurement = cursor.current();
        checked.documents += 1;
        let Some(tally) = sensor_of(
            measurement.get_document("meta")?.get_str("sensor_id")?,
            stored,
            checked,
        ) else {
            continue;
        };
        let (_, identity, sum) = read(measurement)?;
        tally.add(identity, sum);
    }
    Ok(())
}

fn sensor_of<'a>(
    id: &str,
    stored: &'a mut [Tally],
    checked: &mut Checked,
) -> Option<&'a mut Tally> {
    let sensor = values::parse_id(id).and_then(|sensor| stored.get_mut(sensor as usize));
    if sensor.is_none() && checked.problems.len() < NAMED_MAX {
        checked.problems.push(format!("{id}: unknown sensor"));
    }
    sensor
}

/// Time, identity and sum of a stored reading.
fn read(reading: &RawDocument) -> Result<(i64, u64, i64), Failure> {
    let mut ts_ms = None;
    let mut values = 0u64;
    let mut sum = 0;
    for entry in reading {
        let (name, value) = entry?;
        match value {
            RawBsonRef::DateTime(ts) if name.as_str() == "ts" => {
                ts_ms = Some(ts.timestamp_millis())
            }
            RawBsonRef::Document(_) => {}
            other => {
                let value = number(Some(other))
                    .ok_or_else(|| format!("stored value is not a number: {name:?} {other:?}"))?;
                values = values.wrapping_add(value_hash(name.as_str(), value));
                sum += whole(value);
            }
        }
    }
    let ts_ms = ts_ms.ok_or("stored reading without a time")?;
    Ok((ts_ms, identity(ts_ms, values), sum))
}

fn number(value: Option<RawBsonRef<'_>>) -> Option<f64> {
    match value? {
        RawBsonRef::Double(v) => Some(v),
        RawBsonRef::Int32(v) => Some(f64::from(v)),
        RawBsonRef::Int64(v) => Some(v as f64),
        _ => None,
    }
}

async fn difference(db: &Database, sent: &Sent<'_>, sensor: u32) -> Result<String, Failure> {
    let id = values::id(sensor);
    let expected = sent.of(sensor);
    let mut stored: BTreeMap<(i64, u64), i64> = BTreeMap::new();
    let mut note = |reading: &RawDocument| -> Result<(), Failure> {
        let (ts_ms, identity, _) = read(reading)?;
        *stored.entry((ts_ms, identity)).or_default() += 1;
        Ok(())
    };
    let mut cursor = db
        .collection::<RawDocumentBuf>("sensor_buckets")
        .find(doc! { "sensor_id": &id })
        .await?;
    while cursor.advance().await? {
        if let Some(RawBsonRef::Array(readings)) = cursor.current().get("readings")? {
            for reading in readings {
                if let RawBsonRef::Document(reading) = reading? {
                    note(reading)?;
                }
            }
        }
    }
    let of_sensor = doc! { "meta.sensor_id": &id };
    let mut cursor = db
        .collection::<RawDocumentBuf>("sensor_readings")
        .find(of_sensor)
        .projection(doc! { "_id": 0 })
        .await?;
    while cursor.advance().await? {
        note(cursor.current())?;
    }
    let mut missing = vec![];
    let mut twice = vec![];
    let mut strange = vec![];
    for (reading, times) in &expected {
        match stored.get(reading).copied().unwrap_or(0) - times {
            0 => {}
            less if less < 0 => missing.push(reading.0),
            _ => twice.push(reading.0),
        }
    }
    strange.extend(
        stored
            .keys()
            .filter(|reading| !expected.contains_key(reading))
            .map(|reading| reading.0),
    );
    let part = |what: &str, times: &[i64]| match times {
        [] => String::new(),
        some => format!(
            "; {} {what}, with ts {:?}",
            some.len(),
            &some[..some.len().min(NAMED_MAX)]
        ),
    };
    Ok(format!(
        "{id}: {} readings were acknowledged{}{}{}",
        expected.values().sum::<i64>(),
        part("missing", &missing),
        part("stored more than once", &twice),
        part("stored but never sent", &strange)
    ))
}

/// Damages the store on purpose, to test that [`check`] detects it.
pub(crate) async fn tamper(db: &Database, how: Tamper) -> Result<(), Failure> {
    let buckets = db.collection::<Document>("sensor_buckets");
    let pages = doc! { "storage": { "$exists": false } };
    let measurements = db.collection::<Document>("sensor_readings");
    let Some(page) = buckets.find_one(pages).await? else {
        let one = measurements
            .find_one(doc! {})
            .await?
            .ok_or("nothing is stored")?;
        match how {
            // A single measurement cannot be removed, so all of its sensor are.
            Tamper::Missing => {
                let sensor = one.get_document("meta")?.clone();
                measurements.delete_many(doc! { "meta": sensor }).await?;
            }
            Tamper::Doubled => drop(measurements.insert_one(one).await?),
        }
        return Ok(());
    };
    let id = page.get("_id").cloned().ok_or("a page without an _id")?;
    let first = page
        .get_array("readings")?
        .first()
        .cloned()
        .ok_or("a page without readings")?;
    // Also adjusts the count, so that only a check of the readings themselves detects the damage.
    let (change, by) = match how {
        Tamper::Missing => (doc! { "$pop": { "readings": -1 } }, -1),
        Tamper::Doubled => (doc! { "$push": { "readings": first } }, 1),
    };
    let mut change = change;
    change.insert("$inc", doc! { "count": by });
    // Bypasses the validator of the collection, which would reject the change.
    buckets
        .update_one(doc! { "_id": id }, change)
        .bypass_document_validation(true)
        .await?;
    Ok(())
}

/// How to damage the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Tamper {
    /// A reading is removed (of time-series: those of a sensor).
    Missing,
    /// A reading is added once more.
    Doubled,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missing_and_one_doubled_reading_do_not_cancel_out() {
        let readings = [(1000, 5), (2000, 5), (3000, 5)];
        let tally = |list: &[(i64, u64)]| {
            let mut tally = Tally::default();
            list.iter()
                .for_each(|(ts, values)| tally.add(identity(*ts, *values), 7));
            tally
        };
        let whole = tally(&readings);
        assert!(
            whole.readings_equal(&tally(&[readings[2], readings[0], readings[1]])),
            "the order does not matter"
        );
        assert!(!whole.readings_equal(&tally(&[readings[0], readings[0], readings[2]])));
        assert!(!whole.readings_equal(&tally(&readings[1..])));
        assert!(
            !whole.readings_equal(&tally(&[(1000, 6), readings[1], readings[2]])),
            "values count"
        );
    }
}
