//! Readings that are written together, and the columns that they need. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use columns::{DamagedPart, Decoded, EntryKind};
use model::SensorId;
use serde::{Deserialize, Serialize};
use store::export::ExportPart;

/// A group is written when it has so many readings (the row group of DuckDB), ...
const READINGS_WANTED: usize = 122_880;
/// ... or so many values: 24 MiB decoded. One part may have nearly as many more.
const VALUES_WANTED: usize = 3 << 20;
/// Columns of a file, unless one part has more. A reader of the file has all of them in its schema.
pub(super) const COLUMNS_MAX: usize = 1000;

/// What a column has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum Kind {
    /// The tag of the sensor.
    Tag,
    /// All numbers of the field. In CSV: all its values but texts.
    Number,
    /// Those of them that were sent as integers, exactly.
    Int,
    /// The texts of the field.
    Text,
    /// The booleans of the field.
    Bool,
}

/// A column of a file, besides those of the sensor id and of the time: kind, and name of the tag or
/// field.
pub(super) type Column = (Kind, Arc<str>);

/// What a group keeps of the columns that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// A column for each kind of a field.
    Kinds,
    /// A column for the texts of a field, and one for its other values.
    Texts,
    /// The file has no columns.
    Nothing,
}

/// Readings of several sensors, in order.
pub(super) struct Group {
    needs: Needs,
    parts: Vec<GroupPart>,
    pub(super) columns: BTreeSet<Column>,
    readings: usize,
    values: usize,
}

struct GroupPart {
    part: ExportPart,
    within_ms: Range<i64>,
}

/// Decoded readings of one sensor.
pub(super) struct Readings<'g> {
    pub(super) sensor_id: &'g SensorId,
    pub(super) tags: &'g BTreeMap<String, String>,
    pub(super) decoded: Decoded<'g>,
}

/// The place behind a reading: where an interrupted export continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) sensor_id: String,
    /// In milliseconds since 1970.
    pub(super) ts_ms: i64,
    /// How many readings of this sensor and millisecond are before it.
    pub(super) given: usize,
}

impl Group {
    pub(super) fn new(needs: Needs) -> Group {
        Group {
            needs,
            parts: vec![],
            columns: BTreeSet::new(),
            readings: 0,
            values: 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.readings >= READINGS_WANTED || self.values >= VALUES_WANTED
    }

    /// Whether the group would need too many columns with this part.
    pub(super) fn is_too_wide(&self, part: &ExportPart) -> bool {
        // Nearly always, even all of them together are few.
        let most = self.columns.len() + part.tags.len() + 3 * part.part.columns.len();
        if self.parts.is_empty() || most <= COLUMNS_MAX {
            return false;
        }
        let mut columns = needed(part, self.needs);
        columns.retain(|column| !self.columns.contains(column));
        self.columns.len() + columns.len() > COLUMNS_MAX
    }

    /// Adds readings behind all others.
    pub(super) fn add(&mut self, part: ExportPart, within_ms: Range<i64>) {
        self.columns.extend(needed(&part, self.needs));
        self.readings += part.part.count as usize;
        self.values += part.part.values();
        self.parts.push(GroupPart { part, within_ms });
    }

    /// The readings, without those that an earlier run has exported. Moves `place` behind them.
    pub(super) fn decode(
        &self,
        place: &mut Progress,
    ) -> Result<Vec<Readings<'_>>, (SensorId, DamagedPart)> {
        let mut all = Vec::with_capacity(self.parts.len());
        for GroupPart { part, within_ms } in &self.parts {
            let decoded = place.new_readings(part, within_ms);
            let decoded = decoded.map_err(|error| (part.sensor_id.clone(), error))?;
            if !decoded.times().is_empty() {
                all.push(Readings {
                    sensor_id: &part.sensor_id,
                    tags: &part.tags,
                    decoded,
                });
            }
        }
        Ok(all)
    }
}

/// How far an export of a day is.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// What earlier runs have exported, without the readings that were skipped since.
    before: Option<Place>,
    /// The place behind the last reading.
    pub(super) place: Option<Place>,
}

impl Progress {
    /// Continues at a place.
    pub(super) fn new(place: Option<Place>) -> Progress {
        Progress {
            before: place.clone(),
            place,
        }
    }

    /// The readings of a part that were not exported yet; moves behind them.
    fn new_readings<'p>(
        &mut self,
        part: &'p ExportPart,
        within_ms: &Range<i64>,
    ) -> Result<Decoded<'p>, DamagedPart> {
        let is_of = |place: &&mut Place| *place.sensor_id == *part.sensor_id;
        let before = self.before.as_mut().filter(is_of);
        let from_ms = before.as_ref().map_or(i64::MIN, |before| before.ts_ms);
        let from_ms = from_ms.max(within_ms.start);
        let mut decoded = part.part.decode_range(from_ms, within_ms.end, |_| true)?;
        if let Some(before) = before {
            let same = decoded.times().iter().take_while(|ts| **ts == before.ts_ms);
            let given = same.count().min(before.given);
            before.given -= given;
            decoded = decoded.skip(given);
        }
        let Some(last_ms) = decoded.times().last().copied() else {
            return Ok(decoded);
        };
        let same = decoded
            .times()
            .iter()
            .rev()
            .take_while(|ts| **ts == last_ms);
        let mut place = Place {
            sensor_id: part.sensor_id.to_string(),
            ts_ms: last_ms,
            given: same.count(),
        };
        if let Some(held) = self.place.take()
            && place.given == decoded.times().len()
            && (&*held.sensor_id, held.ts_ms) == (&*part.sensor_id, last_ms)
        {
            place.given += held.given;
        }
        self.place = Some(place);
        Ok(decoded)
    }
}

/// The columns that a part needs.
fn needed(part: &ExportPart, needs: Needs) -> BTreeSet<Column> {
    let mut columns = BTreeSet::new();
    if needs == Needs::Nothing {
        return columns;
    }
    columns.extend(part.tags.keys().map(|tag| (Kind::Tag, Arc::from(&**tag))));
    for (name, entries) in &part.part.columns {
        for entry in entries {
            let kinds: &[Kind] = match (&entry.kind, needs) {
                (EntryKind::Text(_), _) => &[Kind::Text],
                (_, Needs::Texts) => &[Kind::Number],
                (EntryKind::Double(None), _) => &[Kind::Number],
                (EntryKind::Double(Some(_)) | EntryKind::Int, _) => &[Kind::Number, Kind::Int],
                (EntryKind::Bool, _) => &[Kind::Bool],
            };
            columns.extend(kinds.iter().map(|kind| (*kind, name.clone())));
        }
    }
    columns
}
