//! Builds one reading from each data point, with a field named after the metric.

use std::borrow::Cow;

use super::super::names::{self, TAGS_MAX, excerpt};
use super::super::reading::add_value;
use super::super::rejects::{Fault, LeftOut, Rejects};
use super::super::{Context, RejectReason, line, time};
use crate::time::Origin;
use config::{Otlp, PointAttributes};
use model::{BatchBuilder, ValueRef};

/// Attributes to read from one list. Further ones could not be tags anyway.
const ATTRIBUTES_MAX: usize = 128;

/// `DataPointFlags.NO_RECORDED_VALUE_MASK`: the series has ended, and the point has no value.
const NO_RECORDED_VALUE: u64 = 1;

/// The hint for the sender if points are indistinguishable.
const INDISTINCT: &str = "points of one metric and time differ only in their attributes, which are \
    tags here, so they are indistinguishable readings of one sensor; to make each series a sensor, \
    set otlp.point_attributes = \"sensor_id\"";

/// The hint for the sender if a histogram or summary is not stored as a whole.
const BUCKETS: &str = "of histograms and summaries count, sum, min and max are stored; their \
    buckets only with otlp.point_attributes = \"sensor_id\" and explicit bounds, quantiles never";

/// The hint for the sender if a request that is not empty has no point.
const NO_POINTS: &str = "the request has no data point of a metric, so nothing is stored; its \
    members must be named as in ExportMetricsServiceRequest";

/// The value of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    Int(i64),
    Double(f64),
}

/// `NumberDataPoint`.
#[derive(Debug, Default)]
pub(super) struct Point<'d> {
    /// 0 if unknown.
    pub(super) time_ns: u64,
    pub(super) value: Option<Number>,
    pub(super) flags: u64,
    pub(super) attributes: Attributes<'d>,
}

/// The stored part of a `HistogramDataPoint`, `ExponentialHistogramDataPoint` or
/// `SummaryDataPoint`.
#[derive(Debug, Default)]
pub(super) struct Distribution<'d> {
    /// 0 if unknown.
    pub(super) time_ns: u64,
    pub(super) count: u64,
    pub(super) sum: Option<f64>,
    pub(super) min: Option<f64>,
    pub(super) max: Option<f64>,
    /// Of a histogram with explicit bounds: the counts of its buckets, and their upper bounds; the
    /// last bucket has none.
    pub(super) counts: Vec<u64>,
    pub(super) bounds: Vec<f64>,
    /// Number of other buckets and of quantiles, which are not stored.
    pub(super) parts: usize,
    pub(super) flags: u64,
    pub(super) attributes: Attributes<'d>,
}

impl Distribution<'_> {
    /// Adds a quantile of a summary: 0 is the minimum, 1 the maximum, others are not stored.
    pub(super) fn quantile(&mut self, at: f64, value: f64) {
        match at {
            0.0 => self.min = Some(value),
            1.0 => self.max = Some(value),
            _ => self.parts += 1,
        }
    }
}

/// Attributes whose values can be texts, in order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Attributes<'d> {
    list: Vec<(Cow<'d, str>, Cow<'d, str>)>,
    /// Whether there were more.
    beyond: bool,
}

impl<'d> Attributes<'d> {
    pub(super) fn add(&mut self, key: impl Into<Cow<'d, str>>, value: impl Into<Cow<'d, str>>) {
        if self.list.len() < ATTRIBUTES_MAX {
            self.list.push((key.into(), value.into()));
        } else {
            self.beyond = true;
        }
    }

    fn get(&self, key: &str) -> Option<&str> {
        let found = self.list.iter().find(|(k, v)| k == key && !v.is_empty());
        found.map(|(_, value)| &**value)
    }
}

/// The readings built so far.
pub(super) struct Points<'a> {
    otlp: &'a Otlp,
    cx: &'a Context<'a>,
    out: &'a mut BatchBuilder,
    rejects: &'a mut Rejects,
    /// Number of points so far.
    index: usize,
    /// Number of readings so far, and of points beyond the limit.
    readings: usize,
    beyond: usize,
    metric: String,
    /// The current sensor id, and time and sensor id of the metric's last point.
    id: String,
    last: Option<(i64, String)>,
}

impl<'a> Points<'a> {
    pub(super) fn new(
        otlp: &'a Otlp,
        cx: &'a Context<'a>,
        out: &'a mut BatchBuilder,
        rejects: &'a mut Rejects,
    ) -> Points<'a> {
        let (metric, id, last) = Default::default();
        Points {
            otlp,
            cx,
            out,
            rejects,
            index: 0,
            readings: 0,
            beyond: 0,
            metric,
            id,
            last,
        }
    }

    /// Sets the metric of the following points.
    pub(super) fn metric(&mut self, name: &str) {
        self.metric.clear();
        self.metric.push_str(name);
        self.last = None;
    }

    /// Adds a point of a gauge or sum.
    pub(super) fn take(&mut self, resource: &Attributes<'_>, point: &Point<'_>) {
        self.add(point.flags, |points| points.reading(resource, point));
    }

    /// Adds a point of a histogram or summary: its count, sum, minimum and maximum, and its buckets
    /// if each series is a sensor. `parts` names the omitted parts.
    pub(super) fn distribution(
        &mut self,
        resource: &Attributes<'_>,
        point: Distribution<'_>,
        parts: &str,
    ) {
        let added = self.add(point.flags, |points| {
            points.distribution_reading(resource, &point)
        });
        let omitted = point.parts + point.counts.len();
        if added && omitted > 0 {
            let omitted = omitted - self.buckets(resource, point);
            if omitted > 0 {
                let mut left_out = LeftOut::default();
                left_out.add(&format!("{} ({parts})", self.metric), omitted);
                self.rejects.leave_out(left_out);
                self.rejects.hint(BUCKETS);
            }
        }
    }

    /// Adds the buckets of a histogram as Prometheus has them: `NAME_bucket` counts what is not above
    /// the bound `le`, and each is a series. Returns how many were added.
    fn buckets(&mut self, resource: &Attributes<'_>, point: Distribution<'_>) -> usize {
        let Distribution {
            time_ns,
            counts,
            bounds,
            attributes: mut own,
            ..
        } = point;
        let is_series = self.otlp.point_attributes == PointAttributes::SensorId;
        if !is_series || counts.len() != bounds.len() + 1 {
            return 0;
        }
        let field = format!("{}_bucket", self.metric);
        own.list.retain(|(key, _)| key != BOUND);
        let mut added = 0;
        let mut cumulated = 0u64;
        for (i, count) in counts.iter().enumerate() {
            cumulated = cumulated.saturating_add(*count);
            let Ok(value) = i64::try_from(cumulated) else {
                break;
            };
            own.add(BOUND, bound_text(bounds.get(i)));
            let stored = self.within_limit(|points| {
                let name = names::name(&field, points.cx)?;
                let max = points.cx.limits.fields_max;
                add_value(points.out, &name, ValueRef::Int(value), max)?;
                points.commit(resource, time_ns, &own)
            });
            own.list.pop();
            added += usize::from(matches!(stored, Some(Ok(()))));
        }
        added
    }

    /// Returns whether there is a reading.
    fn add(&mut self, flags: u64, read: impl FnOnce(&mut Self) -> Result<(), Fault>) -> bool {
        let index = self.index;
        self.index += 1;
        if flags & NO_RECORDED_VALUE != 0 {
            return false;
        }
        match self.within_limit(read) {
            Some(Ok(())) => true,
            Some(Err(fault)) => {
                self.rejects.fault(index, fault);
                false
            }
            None => {
                self.beyond += 1;
                false
            }
        }
    }

    /// Reads a reading; `None` if the request has as many as it may.
    fn within_limit(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<(), Fault>,
    ) -> Option<Result<(), Fault>> {
        if self.readings >= self.cx.limits.batch_max_readings {
            return None;
        }
        self.out.begin();
        let done = read(self);
        match done {
            Ok(()) => self.readings += 1,
            Err(_) => self.out.abort(),
        }
        Some(done)
    }

    /// Rejects a malformed point in JSON.
    pub(super) fn unreadable(&mut self, error: &str) {
        let detail = format!("a point of {}: {error}", excerpt(&self.metric));
        self.rejects
            .push(self.index, RejectReason::InvalidJson, detail);
        self.index += 1;
    }

    /// Rejects the points beyond the limit. `is_empty`: the request was meant to have none.
    pub(super) fn finish(self, is_empty: bool) {
        if self.index == 0 && !is_empty {
            self.rejects.hint(NO_POINTS);
        }
        if self.beyond > 0 {
            let max = self.cx.limits.batch_max_readings;
            let detail = format!(
                "{} points exceed the limit of {max} in one request",
                self.beyond
            );
            self.rejects
                .push_many(max, self.beyond, RejectReason::TooManyReadings, detail);
        }
    }

    fn reading(&mut self, resource: &Attributes<'_>, point: &Point<'_>) -> Result<(), Fault> {
        let limits = self.cx.limits;
        if self.metric.is_empty() {
            return Err(Fault::new(
                RejectReason::MissingField,
                "the metric has no name",
            ));
        }
        let value = match point.value {
            Some(Number::Int(v)) => ValueRef::Int(v),
            Some(Number::Double(v)) if v.is_finite() => ValueRef::Double(v),
            Some(Number::Double(v)) => {
                let detail = format!(
                    "{} is {v}, which is not a finite number",
                    excerpt(&self.metric)
                );
                return Err(Fault::new(RejectReason::NotFinite, detail));
            }
            None => {
                let detail = format!(
                    "{} has a point without asDouble or asInt",
                    excerpt(&self.metric)
                );
                return Err(Fault::new(RejectReason::NoValues, detail));
            }
        };
        add_value(
            self.out,
            &names::name(&self.metric, self.cx)?,
            value,
            limits.fields_max,
        )?;
        self.commit(resource, point.time_ns, &point.attributes)
    }

    fn distribution_reading(
        &mut self,
        resource: &Attributes<'_>,
        point: &Distribution<'_>,
    ) -> Result<(), Fault> {
        let limits = self.cx.limits;
        if self.metric.is_empty() {
            return Err(Fault::new(
                RejectReason::MissingField,
                "the metric has no name",
            ));
        }
        let mut add = |name: &str, value| {
            let name = format!("{}_{name}", self.metric);
            add_value(
                self.out,
                &names::name(&name, self.cx)?,
                value,
                limits.fields_max,
            )
        };
        let count = i64::try_from(point.count).map_err(|_| {
            let detail = format!(
                "the count of {} exceeds a signed 64-bit integer",
                excerpt(&self.metric)
            );
            Fault::new(RejectReason::IntegerOutOfRange, detail)
        })?;
        add("count", ValueRef::Int(count))?;
        // The sum of measurements that can be negative is absent; with NaN among them it is not a
        // number.
        for (name, value) in [("sum", point.sum), ("min", point.min), ("max", point.max)] {
            if let Some(value) = value.filter(|v| v.is_finite()) {
                add(name, ValueRef::Double(value))?;
            }
        }
        self.commit(resource, point.time_ns, &point.attributes)
    }

    fn commit(
        &mut self,
        resource: &Attributes<'_>,
        time_ns: u64,
        own: &Attributes<'_>,
    ) -> Result<(), Fault> {
        let stamp = match time_ns {
            0 => (self.cx.received_at_ms, Origin::Receipt),
            ns => (time::of_unix_nanos(ns, self.cx)?, Origin::Sender),
        };
        self.sensor_id(resource, own)?;
        self.compare(stamp.0, own);
        let tags = tags(own, resource, self.cx);
        let out = &mut *self.out;
        let id = &self.id;
        names::commit(out, id, stamp, &tags, self.cx)
    }

    fn sensor_id(&mut self, resource: &Attributes<'_>, own: &Attributes<'_>) -> Result<(), Fault> {
        let keys = || self.otlp.sensor_id_attributes.iter();
        let named = keys().find_map(|key| Some((key, own.get(key).or_else(|| resource.get(key))?)));
        let default = Some(self.otlp.sensor_id_default.as_str()).filter(|id| !id.is_empty());
        let Some(id) = named.map(|(_, id)| id).or(self.cx.sensor_id).or(default) else {
            let keys = keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let detail = format!(
                "none of otlp.sensor_id_attributes ({keys}) is present, and otlp.sensor_id_default \
                 is empty"
            );
            return Err(Fault::new(RejectReason::MissingSensorId, detail));
        };
        self.id.clear();
        match self.otlp.point_attributes {
            PointAttributes::Tags => self.id.push_str(id),
            PointAttributes::SensorId if own.beyond => {
                return Err(names::too_many_tags(ATTRIBUTES_MAX));
            }
            PointAttributes::SensorId => {
                let mut rest: Vec<_> = own
                    .list
                    .iter()
                    .filter(|(k, _)| named.is_none_or(|(key, _)| k != key))
                    .cloned()
                    .collect();
                rest.sort_unstable();
                line::write_id(&mut self.id, id, &rest);
            }
        }
        names::check_sensor_id(&self.id, self.cx.limits)
    }

    /// Sets a hint if points become indistinguishable readings.
    fn compare(&mut self, ts_ms: i64, own: &Attributes<'_>) {
        if own.list.is_empty() || self.otlp.point_attributes == PointAttributes::SensorId {
            return;
        }
        if self
            .last
            .as_ref()
            .is_some_and(|(ts, id)| *ts == ts_ms && *id == self.id)
        {
            self.rejects.hint(INDISTINCT);
        }
        let mut id = self.last.take().map(|(_, id)| id).unwrap_or_default();
        id.clone_from(&self.id);
        self.last = Some((ts_ms, id));
    }
}

/// The attribute of a bucket with its upper bound.
const BOUND: &str = "le";

/// An upper bound as Prometheus writes it; `None`: there is none.
fn bound_text(bound: Option<&f64>) -> String {
    match bound {
        Some(bound) if bound.is_finite() => {
            let is_short = *bound == 0.0 || (1e-4..1e21).contains(&bound.abs());
            if is_short {
                bound.to_string()
            } else {
                format!("{bound:e}")
            }
        }
        _ => "+Inf".to_owned(),
    }
}

/// The point's attributes, then the resource's, as far as they can be tags. Attributes that are too
/// long, or too many, are dropped, because the value matters more. Of two with the same name the
/// first is kept.
fn tags<'t>(
    own: &'t Attributes<'_>,
    resource: &'t Attributes<'_>,
    cx: &Context<'_>,
) -> Vec<(Cow<'t, str>, Cow<'t, str>)> {
    let mut tags: Vec<(Cow<'t, str>, Cow<'t, str>)> = vec![];
    let max = cx
        .limits
        .tags_max
        .min(TAGS_MAX)
        .saturating_sub(cx.tags.len());
    for (key, value) in own.list.iter().chain(&resource.list) {
        let Ok(name) = names::name(key, cx) else {
            continue;
        };
        let too_long = value.len() > cx.limits.string_max_bytes;
        if tags.len() >= max || too_long || tags.iter().any(|(taken, _)| *taken == name) {
            continue;
        }
        tags.push((name, Cow::Borrowed(value)));
    }
    tags
}
