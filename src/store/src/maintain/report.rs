//! The report of `reconcile`, as a table for people and as one JSON document for programs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Finding, Selection, time};
use model::BucketKey;

/// The outcome of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairOutcome {
    /// No repair was requested.
    Found,
    /// The finding was repaired.
    Repaired,
    /// The finding remains, and why.
    NotRepaired(String),
}

impl RepairOutcome {
    fn name(&self) -> &'static str {
        match self {
            RepairOutcome::Found => "found",
            RepairOutcome::Repaired => "repaired",
            RepairOutcome::NotRepaired(_) => "not_repaired",
        }
    }
}

/// A finding in one bucket, and its outcome.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Sensor and start time.
    pub bucket: BucketKey,
    /// The difference.
    pub finding: Finding,
    /// Whether it was repaired.
    pub outcome: RepairOutcome,
}

/// The report of a whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct Reconciled {
    /// The buckets that were checked.
    pub selection: Selection,
    /// Number of buckets that were checked.
    pub buckets: u64,
    /// Number of documents of these buckets.
    pub documents: u64,
    /// Number of readings in these buckets.
    pub readings: u64,
    /// Number of findings by kind and outcome, including unlisted ones.
    pub(crate) totals: BTreeMap<(&'static str, &'static str), u64>,
    /// At most the first `listed_max` findings.
    pub entries: Vec<Entry>,
    /// Number of differences found, without notes.
    pub differences: u64,
    /// Number of repaired differences.
    pub repaired: u64,
    /// Notes for the operator.
    pub notes: Vec<String>,
    listed_max: usize,
}

impl Reconciled {
    /// An empty report that lists at most `listed_max` findings.
    pub fn new(selection: Selection, listed_max: usize) -> Reconciled {
        Reconciled {
            selection,
            buckets: 0,
            documents: 0,
            readings: 0,
            totals: BTreeMap::new(),
            entries: vec![],
            differences: 0,
            repaired: 0,
            notes: vec![],
            listed_max,
        }
    }

    /// Adds a finding, and lists it if there is room.
    pub fn add(&mut self, entry: Entry) {
        *self
            .totals
            .entry((entry.finding.kind.name(), entry.outcome.name()))
            .or_default() += 1;
        if !entry.finding.kind.is_note() {
            self.differences += 1;
            self.repaired += u64::from(entry.outcome == RepairOutcome::Repaired);
        }
        if self.entries.len() < self.listed_max {
            self.entries.push(entry);
        }
    }

    /// Whether there is no difference, or all are repaired.
    pub fn is_equal(&self) -> bool {
        self.differences == self.repaired
    }

    /// Number of findings that are not listed.
    fn unlisted(&self) -> u64 {
        self.totals.values().sum::<u64>() - self.entries.len() as u64
    }

    /// The table, followed by a summary line.
    pub fn table(&self) -> String {
        let mut rows: Vec<[String; 7]> = vec![];
        for Entry {
            bucket,
            finding,
            outcome,
        } in &self.entries
        {
            let kind = &finding.kind;
            let what = kind.field().map_or(kind.name().to_owned(), |field| {
                format!("{} {field}", kind.name())
            });
            let row = [
                bucket.sensor_id.to_string(),
                time(bucket.start.0),
                finding.page.map_or("-".to_owned(), |n| n.to_string()),
                what,
                plain(&kind.stored()),
                plain(&kind.actual()),
                match outcome {
                    RepairOutcome::NotRepaired(why) => format!("not repaired: {why}"),
                    other => other.name().to_owned(),
                },
            ];
            rows.push(row.map(|cell| printable(&cell)));
        }
        let mut lines = vec![];
        if !rows.is_empty() {
            rows.insert(
                0,
                [
                    "SENSOR", "BUCKET", "PAGE", "WHAT", "STORED", "ACTUAL", "OUTCOME",
                ]
                .map(str::to_owned),
            );
            let width = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
            let widths: Vec<usize> = (0..7).map(width).collect();
            for row in &rows {
                let cells = row
                    .iter()
                    .zip(&widths)
                    .map(|(cell, &width)| format!("{cell:<width$}"));
                lines.push(cells.collect::<Vec<_>>().join("  ").trim_end().to_owned());
            }
        }
        if self.unlisted() > 0 {
            lines.push(format!("… and {} more, see --list", self.unlisted()));
        }
        let notes = self.notes.iter();
        lines.extend(notes.map(|note| format!("note: {}", printable(note))));
        lines.push(self.summary_line());
        lines.join("\n")
    }

    fn summary_line(&self) -> String {
        let Selection { from_ms, to_ms, .. } = self.selection;
        let left = self.differences - self.repaired;
        let verdict = match (self.differences, left) {
            (0, _) => "all equal".to_owned(),
            (n, 0) => format!("{n} differences, all repaired"),
            (n, left) if left < n => format!("{n} differences, {left} left"),
            (n, _) => format!("{n} differences"),
        };
        format!(
            "{} to {}: {} buckets, {} documents, {} readings: {verdict}",
            time(from_ms),
            time(to_ms),
            self.buckets,
            self.documents,
            self.readings
        )
    }

    /// The report as one JSON document.
    pub fn json(&self) -> Value {
        let entry = |e: &Entry| {
            let kind = &e.finding.kind;
            let mut value = json!({
                "sensor_id": &*e.bucket.sensor_id,
                "bucket_start": time(e.bucket.start.0),
                "page": e.finding.page,
                "kind": kind.name(),
                "stored": kind.stored(),
                "actual": kind.actual(),
                "outcome": e.outcome.name(),
            });
            if let Some(field) = kind.field() {
                value["field"] = json!(field);
            }
            if let RepairOutcome::NotRepaired(why) = &e.outcome {
                value["detail"] = json!(why);
            }
            value
        };
        let totals: Vec<Value> = self
            .totals
            .iter()
            .map(|((kind, outcome), n)| json!({ "kind": kind, "outcome": outcome, "findings": n }))
            .collect();
        json!({
            "from": time(self.selection.from_ms),
            "to": time(self.selection.to_ms),
            "sensors": self.selection.sensors,
            "buckets": self.buckets,
            "documents": self.documents,
            "readings": self.readings,
            "equal": self.is_equal(),
            "differences": self.differences,
            "repaired": self.repaired,
            "totals": totals,
            "findings": self.entries.iter().map(entry).collect::<Vec<_>>(),
            "findings_not_listed": self.unlisted(),
            "notes": self.notes,
        })
    }
}

/// A text for a terminal. Control characters are escaped, since senders choose ids and names.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// A value in a cell of the table.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(map) => map
            .iter()
            .map(|(k, v)| format!("{k} {v}"))
            .collect::<Vec<_>>()
            .join(", "),
        other => other.to_string(),
    }
}
