//! Groups the values of one message into readings by time.

use std::borrow::Cow;

use super::metric::{Metric, NoValue, value};
use crate::names::{self, excerpt};
use crate::reading::add_value;
use crate::rejects::{Fault, Rejects};
use crate::time::Stamp;
use crate::token::Token;
use crate::{Context, RejectReason, TsUnit, time};
use model::{BatchBuilder, ValueRef};

/// A metric's value.
#[derive(Debug)]
struct Field<'a> {
    index: usize,
    time: Stamp,
    name: Cow<'a, str>,
    value: ValueRef<'a>,
}

/// The values of one message.
pub(super) struct Gathered<'r, 'a> {
    cx: &'r Context<'r>,
    /// The message's time.
    timestamp: Option<u64>,
    rejects: &'r mut Rejects,
    fields: Vec<Field<'a>>,
}

impl<'r, 'a> Gathered<'r, 'a> {
    pub(super) fn new(
        cx: &'r Context<'r>,
        timestamp: Option<u64>,
        rejects: &'r mut Rejects,
    ) -> Gathered<'r, 'a> {
        Gathered {
            cx,
            timestamp,
            rejects,
            fields: Vec::new(),
        }
    }

    /// The metrics within the limit, each with its index; those beyond it are rejected.
    pub(super) fn limited<'m>(&mut self, metrics: &[&'m [u8]]) -> Vec<(usize, &'m [u8])> {
        let max = self.cx.limits.batch_max_readings;
        if let Some(n) = metrics.len().checked_sub(max).filter(|n| *n > 0) {
            let detail = format!(
                "{n} metrics, starting with this one, exceed the limit of {max} in one payload"
            );
            self.rejects
                .push_many(max, n, RejectReason::TooManyReadings, detail);
        }
        metrics.iter().copied().enumerate().take(max).collect()
    }

    pub(super) fn reject(&mut self, index: usize, fault: Fault) {
        self.rejects.fault(index, fault);
    }

    /// Adds a metric's value, if it has one.
    pub(super) fn take(
        &mut self,
        index: usize,
        name: &'a str,
        metric: &Metric<'a>,
        datatype: Option<u64>,
    ) -> Result<(), NoValue> {
        let limits = self.cx.limits;
        let Some(raw) = metric.raw().filter(|_| !metric.is_transient) else {
            return Ok(());
        };
        if let Some(quality) = metric.bad_quality() {
            let detail = format!("{}: its quality is {quality}", excerpt(name));
            return Err(NoValue::Fault(Fault::new(RejectReason::BadQuality, detail)));
        }
        let value = value(name, raw, datatype)?;
        let time = self.time(metric).map_err(NoValue::Fault)?;
        if let ValueRef::Str(text) = value {
            names::check_text(name, text, limits).map_err(NoValue::Fault)?;
        }
        let name = names::name(name, self.cx).map_err(NoValue::Fault)?;
        self.fields.push(Field {
            index,
            time,
            name,
            value,
        });
        Ok(())
    }

    /// The metric's own time, else that of the message, else the time of receipt. Senders write 0
    /// for no time.
    fn time(&self, metric: &Metric<'_>) -> Result<Stamp, Fault> {
        let given = [metric.timestamp, self.timestamp]
            .into_iter()
            .flatten()
            .find(|ms| *ms != 0);
        let given = given.map(|ms| Token::integer(i128::from(ms)));
        time::resolve(given.as_ref(), Some(TsUnit::Ms), self.cx)
    }

    /// Commits the readings of a sensor. Values with the same time form one reading, or several if
    /// a name occurs twice or there are too many.
    pub(super) fn commit(mut self, sensor_id: &str, out: &mut BatchBuilder) {
        if let Err(fault) = names::check_sensor_id(sensor_id, self.cx.limits) {
            self.fields
                .iter()
                .for_each(|field| self.rejects.fault(field.index, fault.clone()));
            return;
        }
        let mut fields = std::mem::take(&mut self.fields);
        fields.sort_by_key(|field| field.time);
        for group in fields.chunk_by(|a, b| a.time == b.time) {
            let mut rest = group;
            while !rest.is_empty() {
                rest = &rest[self.reading(sensor_id, rest, out)..];
            }
        }
    }

    /// Commits one reading from the first of these fields. Returns the number of fields used.
    fn reading(&mut self, sensor_id: &str, fields: &[Field<'a>], out: &mut BatchBuilder) -> usize {
        out.begin();
        let mut taken = 0;
        for field in fields {
            let Err(fault) = add_value(out, &field.name, field.value, self.cx.limits.fields_max)
            else {
                taken += 1;
                continue;
            };
            let continues = matches!(
                fault.reason,
                RejectReason::DuplicateKey | RejectReason::TooManyFields
            ) && taken > 0;
            if continues {
                break;
            }
            // The batch has no space for the name. This field is rejected; those before it are
            // committed.
            self.rejects.fault(field.index, fault);
            if taken == 0 {
                return 1;
            }
            self.end(sensor_id, &fields[..taken], out);
            return taken + 1;
        }
        self.end(sensor_id, &fields[..taken], out);
        taken
    }

    fn end(&mut self, sensor_id: &str, fields: &[Field<'a>], out: &mut BatchBuilder) {
        let Some(first) = fields.first() else { return };
        let committed = names::commit(out, sensor_id, first.time, &[], self.cx);
        if let Err(fault) = committed {
            out.begin();
            fields
                .iter()
                .for_each(|field| self.rejects.fault(field.index, fault.clone()));
        }
    }
}
