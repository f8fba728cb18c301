//! Collects samples and builds readings from those of one sensor, time and set of tags.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::names::{self, TAGS_MAX, excerpt};
use crate::quota::Quota;
use crate::reading::add_value;
use crate::rejects::{Fault, Rejects};
use crate::time::Origin;
use crate::{Context, RejectReason, line, time};
use config::{PointAttributes, RemoteWrite};
use model::{BatchBuilder, ValueRef};

/// The label that is the metric's name.
const NAME: &str = "__name__";
/// Labels of one series; no more could be tags anyway.
const LABELS_MAX: usize = 128;
/// The hint if series are indistinguishable.
const INDISTINCT: &str = "series of remote write with one metric and sensor differ only in labels \
    that are tags here, such as one for each CPU or disk, so they become indistinguishable readings \
    of one field; to make each series a sensor, set remote_write.other_labels = \"sensor_id\", which \
    changes the sensor ids";

/// Between the values of several labels in a sensor's id.
const SEPARATOR: char = '/';

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Label<'d> {
    pub(super) name: &'d str,
    pub(super) value: &'d str,
}

/// Ordered as it becomes part of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Sample<'d> {
    /// Index into [`Samples::sensors`].
    sensor: u32,
    ts_ms: i64,
    field: &'d str,
    bits: u64,
    /// Among all samples and histograms of the request.
    index: usize,
}

/// The series whose samples follow.
#[derive(Debug, Default)]
struct Series<'d> {
    labels: Vec<Label<'d>>,
    /// Whether there are more.
    beyond: bool,
    /// The metric and its sensor, once a sample needs them.
    found: Option<(&'d str, u32)>,
}

/// All samples of a request.
pub(super) struct Samples<'a, 'd> {
    settings: &'a RemoteWrite,
    cx: &'a Context<'a>,
    rejects: &'a mut Rejects,
    quota: Quota,
    index: usize,
    series: Series<'d>,
    list: Vec<Sample<'d>>,
    /// Labels without the name, sorted, of the series so far: one sensor and its tags each.
    sensors: Vec<Vec<Label<'d>>>,
    known: HashMap<Vec<Label<'d>>, u32>,
    /// The first of `sensors` with each id, unless every series is a sensor.
    ids: HashMap<String, u32>,
    /// For each of these and each metric: the first of `sensors` that has it.
    metrics: HashMap<(u32, &'d str), u32>,
}

impl<'a, 'd> Samples<'a, 'd> {
    pub(super) fn new(
        settings: &'a RemoteWrite,
        cx: &'a Context<'a>,
        rejects: &'a mut Rejects,
    ) -> Samples<'a, 'd> {
        let (index, series, list, sensors, known) = Default::default();
        let (ids, metrics) = Default::default();
        Samples {
            settings,
            cx,
            rejects,
            quota: Quota::new(cx.limits),
            index,
            series,
            list,
            sensors,
            known,
            ids,
            metrics,
        }
    }

    /// Begins the next series.
    pub(super) fn series(&mut self) {
        self.series.labels.clear();
        (self.series.beyond, self.series.found) = (false, None);
    }

    /// Adds a label. An empty value means that there is no such label.
    pub(super) fn label(&mut self, label: Label<'d>) {
        match self.series.labels.len() < LABELS_MAX {
            true if label.value.is_empty() => {}
            true => self.series.labels.push(label),
            false => self.series.beyond = true,
        }
    }

    pub(super) fn sample(&mut self, ts_ms: i64, value: f64) {
        let index = self.index;
        self.index += 1;
        if !value.is_finite() {
            let name = self.name();
            self.rejects.leave_out_name(name);
            self.rejects.skip(1);
        } else if !self.quota.refuses(index) {
            match self.take(ts_ms, value, index) {
                Ok(()) => self.quota.took(),
                Err(fault) => self.rejects.fault(index, fault),
            }
        }
    }

    /// Rejects the native histograms of the series.
    pub(super) fn histograms(&mut self, count: usize) {
        if count > 0 {
            let name = self.name();
            let detail = format!(
                "{} is a native histogram; only numbers are supported",
                excerpt(name)
            );
            self.rejects
                .push_many(self.index, count, RejectReason::UnsupportedMetric, detail);
            self.index += count;
        }
    }

    /// The metric of the current series.
    fn name(&self) -> &'d str {
        let mut labels = self.series.labels.iter();
        labels
            .find(|label| label.name == NAME)
            .map_or("", |label| label.value)
    }

    fn take(&mut self, ts_ms: i64, value: f64, index: usize) -> Result<(), Fault> {
        let (field, sensor) = match self.series.found {
            Some(found) => found,
            None => {
                let found = self.find()?;
                self.series.found = Some(found);
                found
            }
        };
        let ts_ms = time::accepted(i128::from(ts_ms), self.cx)?;
        self.list.push(Sample {
            sensor,
            ts_ms,
            field,
            bits: value.to_bits(),
            index,
        });
        Ok(())
    }

    /// The metric of the current series and its sensor.
    fn find(&mut self) -> Result<(&'d str, u32), Fault> {
        if self.series.beyond {
            return Err(names::too_many_tags(LABELS_MAX));
        }
        let mut labels = self.series.labels.clone();
        labels.sort_unstable();
        if let Some(pair) = labels.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(Fault::new(
                RejectReason::DuplicateKey,
                format!("duplicate label {}", excerpt(pair[0].name)),
            ));
        }
        let Some(at) = labels.iter().position(|label| label.name == NAME) else {
            return Err(Fault::new(
                RejectReason::MissingField,
                "the series has no label __name__",
            ));
        };
        let field = labels.remove(at).value;
        let sensor = match self.known.get(&labels) {
            Some(known) => *known,
            None => {
                names::check_sensor_id(&self.sensor_id(&labels)?, self.cx.limits)?;
                let sensor = self.sensors.len() as u32;
                self.sensors.push(labels.clone());
                self.known.insert(labels, sensor);
                sensor
            }
        };
        self.compare(field, sensor)?;
        Ok((field, sensor))
    }

    /// Gives a hint if this series becomes indistinguishable from another one.
    fn compare(&mut self, field: &'d str, sensor: u32) -> Result<(), Fault> {
        if self.settings.other_labels == PointAttributes::SensorId {
            return Ok(());
        }
        let id = self.sensor_id(&self.sensors[sensor as usize])?;
        let first = *self.ids.entry(id).or_insert(sensor);
        if *self.metrics.entry((first, field)).or_insert(sensor) != sensor {
            self.rejects.hint(INDISTINCT);
        }
        Ok(())
    }

    fn sensor_id(&self, labels: &[Label<'_>]) -> Result<String, Fault> {
        let names = &self.settings.sensor_id_labels;
        let mut id = String::new();
        for label in names
            .iter()
            .filter_map(|name| labels.iter().find(|label| label.name == name))
        {
            if !id.is_empty() {
                id.push(SEPARATOR);
            }
            id.push_str(label.value);
        }
        if id.is_empty() {
            id.push_str(self.cx.sensor_id.unwrap_or_default());
        }
        if id.is_empty() {
            let names = names.join(", ");
            let detail = format!(
                "the series has none of the labels remote_write.sensor_id_labels ({names})"
            );
            return Err(Fault::new(RejectReason::MissingSensorId, detail));
        }
        if self.settings.other_labels == PointAttributes::SensorId {
            let others = labels
                .iter()
                .filter(|label| !names.iter().any(|name| name == label.name));
            let others: Vec<_> = others
                .map(|label| (Cow::Borrowed(label.name), Cow::Borrowed(label.value)))
                .collect();
            let mut whole = String::new();
            line::write_id(&mut whole, &id, &others);
            return Ok(whole);
        }
        Ok(id)
    }

    /// Builds the readings. A sample that repeats another one exactly is skipped.
    pub(super) fn commit(mut self, out: &mut BatchBuilder) {
        self.quota.close("samples", self.rejects);
        let mut list = std::mem::take(&mut self.list);
        list.sort_unstable();
        let all = list.len();
        list.dedup_by_key(|sample| (sample.sensor, sample.ts_ms, sample.field, sample.bits));
        self.rejects.skip(all - list.len());
        for of_sensor in list.chunk_by(|a, b| a.sensor == b.sensor) {
            let labels = &self.sensors[of_sensor[0].sensor as usize];
            // Checked before.
            let Ok(id) = self.sensor_id(labels) else {
                continue;
            };
            let tags = tags(labels, self.cx);
            for at_one_time in of_sensor.chunk_by(|a, b| a.ts_ms == b.ts_ms) {
                self.readings(&id, &tags, at_one_time, out);
            }
        }
    }

    /// Builds as few readings as possible from samples of one time: another one if a field has
    /// several values, or if there are too many fields.
    fn readings(
        &mut self,
        id: &str,
        tags: &Tags<'_>,
        samples: &[Sample<'_>],
        out: &mut BatchBuilder,
    ) {
        let fields_max = self.cx.limits.fields_max;
        let mut rest = samples;
        while !rest.is_empty() {
            let distinct = rest
                .windows(2)
                .take_while(|pair| pair[0].field != pair[1].field)
                .count()
                + 1;
            let (now, later) = rest.split_at(distinct.min(fields_max.max(1)));
            rest = later;
            self.reading(id, tags, now, out);
        }
    }

    fn reading(
        &mut self,
        id: &str,
        tags: &Tags<'_>,
        samples: &[Sample<'_>],
        out: &mut BatchBuilder,
    ) {
        let limits = self.cx.limits;
        out.begin();
        let mut added = vec![];
        for sample in samples {
            let value = ValueRef::Double(f64::from_bits(sample.bits));
            let name = names::name(sample.field, self.cx);
            match name.and_then(|name| add_value(out, &name, value, limits.fields_max)) {
                Ok(()) => added.push(sample.index),
                Err(fault) => self.rejects.fault(sample.index, fault),
            }
        }
        let Some(first) = added.first() else {
            return out.abort();
        };
        if let Err(fault) =
            names::commit(out, id, (samples[0].ts_ms, Origin::Sender), tags, self.cx)
        {
            out.abort();
            self.rejects
                .push_many(*first, added.len(), fault.reason, fault.detail);
        }
    }
}

type Tags<'t> = [(Cow<'t, str>, Cow<'t, str>)];

/// The labels, as far as they can be tags. Labels that are too long, or too many, are dropped,
/// because the value matters more. Of two with the same stored name the first is kept.
fn tags<'t>(labels: &[Label<'t>], cx: &Context<'_>) -> Vec<(Cow<'t, str>, Cow<'t, str>)> {
    let mut tags: Vec<(Cow<'t, str>, Cow<'t, str>)> = vec![];
    let max = cx
        .limits
        .tags_max
        .min(TAGS_MAX)
        .saturating_sub(cx.tags.len());
    for label in labels {
        let Ok(name) = names::name(label.name, cx) else {
            continue;
        };
        let too_long = label.value.len() > cx.limits.string_max_bytes;
        if tags.len() >= max || too_long || tags.iter().any(|(taken, _)| *taken == name) {
            continue;
        }
        tags.push((name, Cow::Borrowed(label.value)));
    }
    tags
}
