//! Encodes page writes as raw BSON commands: `insert` for new pages, `update` guarded by the
//! version for existing ones (docs/design.md, section 2).
//!
//! **The gate of a page** ([`Gate`]). With a filter on more than `_id`, MongoDB plans a query for
//! each statement, which takes it as long as everything else. So the update itself must be refused
//! if the page does not have the expected count. A page whose next append expects 60 readings in
//! slot `b` has
//!
//! ```text
//! gate: { a: { "59": [9223372036854775807] }, b: { "60": [0] } }
//! ```
//!
//! The append of one reading adds the largest int64 to `gate.b.60.$[]` and sets `a: { "61": [0] }`.
//! `$[]` refuses a path that does not exist, so the page must exist, have a gate, and expect this
//! count. And the same addition again overflows, which `$inc` refuses. MongoDB refuses the whole
//! statement in these cases, and executes the others of the command.
//!
//! Whatever else changes a page must remove the field, or replace the document ([`GATE`]).

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::options::Acknowledgment;

use super::bson::Writer;
use model::collections::BUCKETS;
use model::{Gate, GateSlot, PageKind, PageWrite, Rows, Span, StorageMode, ValueRef};

/// The version of the document schema.
pub(super) const SCHEMA_VERSION: i32 = 1;
/// The value of `storage` in a bucket whose readings are measurements.
pub(super) const SERIES: &str = "timeseries";

/// Set in the documents that a conversion to measurements writes.
pub(super) const CONVERTED: &str = "converted";
/// The field of a page's gate.
pub(super) const GATE: &str = "gate";

/// Options that every command carries.
#[derive(Debug, Clone)]
pub(super) struct CommandOptions {
    /// `bucket.span`
    pub(super) span: Span,
    /// The `w` of the write concern: `majority` or a number of members.
    pub(super) write_concern: WriteConcern,
    /// Milliseconds after which the server stops waiting for the write concern.
    pub(super) wtimeout_ms: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteConcern {
    Majority,
    Members(i32),
}

impl WriteConcern {
    /// The value of `w` in a command.
    pub(super) fn w(self) -> Bson {
        match self {
            WriteConcern::Majority => Bson::from("majority"),
            WriteConcern::Members(n) => Bson::from(n),
        }
    }

    /// The same for the driver's own methods, with `j: true`.
    pub(super) fn driver(self) -> mongodb::options::WriteConcern {
        let w = match self {
            WriteConcern::Majority => Acknowledgment::Majority,
            WriteConcern::Members(n) => Acknowledgment::Nodes(n as u32),
        };
        mongodb::options::WriteConcern::builder()
            .w(w)
            .journal(true)
            .build()
    }
}

impl CommandOptions {
    /// The `writeConcern` of commands outside the hot path.
    pub(super) fn document(&self) -> Document {
        doc! { "w": self.write_concern.w(), "j": true, "wtimeout": self.wtimeout_ms }
    }

    /// The same, but majority whatever `store.write_concern` is.
    pub(super) fn majority_document(&self) -> Document {
        let write_concern = WriteConcern::Majority;
        CommandOptions {
            write_concern,
            ..self.clone()
        }
        .document()
    }

    /// Appends the `writeConcern`.
    pub(super) fn write_to(&self, w: &mut Writer) {
        let concern = w.document("writeConcern");
        match self.write_concern {
            WriteConcern::Majority => w.str("w", "majority"),
            WriteConcern::Members(n) => w.i32("w", n),
        }
        // A standalone server acknowledges before its journal is synced unless `j` is set; on a
        // replica set majority implies it.
        w.bool("j", true);
        w.i32("wtimeout", self.wtimeout_ms);
        w.close(concern);
    }
}

/// Encodes writes of one kind, all `Create` or all `Append`, as one command. In
/// [`StorageMode::TimeSeries`] it contains only the summaries, and `comment` identifies the
/// statement for the fence. `with_gates`: whether appends use gates; otherwise all of them compare.
///
/// # Errors
/// The encoder produced invalid BSON: a bug.
pub(super) fn command(
    writes: &[&PageWrite],
    options: &CommandOptions,
    comment: Option<&str>,
    with_gates: bool,
) -> mongodb::bson::error::Result<RawDocumentBuf> {
    let bytes: u64 = writes.iter().map(|w| w.wire_bytes()).sum();
    let (mut w, root) = Writer::new(bytes as usize + 256);
    let create = writes.first().is_some_and(|w| w.kind == PageKind::Create);
    w.str(if create { "insert" } else { "update" }, BUCKETS);
    w.bool("ordered", false);
    if let Some(comment) = comment {
        w.str("comment", comment);
    }
    options.write_to(&mut w);
    let list = w.array(if create { "documents" } else { "updates" });
    for (i, write) in writes.iter().enumerate() {
        let open = w.element(i);
        match write.kind {
            PageKind::Create => document(&mut w, write, options.span),
            PageKind::Append {
                gate: Gate::Passes(slot),
                ..
            } if with_gates => pass_gate(&mut w, write, slot),
            PageKind::Append { known_count, gate } => {
                let opened = gate.opened().filter(|_| with_gates);
                compare_and_update(&mut w, write, known_count, opened, options.span);
            }
        }
        w.close(open);
    }
    w.close(list);
    w.close(root);
    w.finish()
}

/// Encodes the command for these writes and returns its size in bytes; for the benchmark of the
/// encoding.
///
/// # Errors
/// The encoder produced invalid BSON: a bug.
pub fn packed_bytes(writes: &[PageWrite], span: Span) -> mongodb::bson::error::Result<usize> {
    let options = CommandOptions {
        span,
        write_concern: WriteConcern::Majority,
        wtimeout_ms: 0,
    };
    let writes: Vec<&PageWrite> = writes.iter().collect();
    Ok(command(&writes, &options, None, true)?.as_bytes().len())
}

fn id(w: &mut Writer, write: &PageWrite) {
    let id = w.document("_id");
    w.str("sensor_id", &write.sensor_id);
    w.date("bucket_start", write.start.0);
    w.i32("page", write.page as i32);
    w.close(id);
}

pub(super) fn tags(w: &mut Writer, write: &PageWrite) {
    let tags = w.document("tags");
    if let Some(all) = &write.tags {
        all.iter().for_each(|(key, value)| w.str(key, value));
    }
    w.close(tags);
}

fn document(w: &mut Writer, write: &PageWrite, span: Span) {
    id(w, write);
    w.i32("schema_version", SCHEMA_VERSION);
    w.str("sensor_id", &write.sensor_id);
    w.date("bucket_start", write.start.0);
    w.date("bucket_end", span.end(write.start));
    w.i32("page", write.page as i32);
    tags(w, write);
    w.i32("count", write.rows.len() as i32);
    w.date("first_ts", write.rows.first_ts_ms());
    w.date("last_ts", write.rows.last_ts_ms());
    let summary = w.document("summary");
    for (field, s) in &write.summary {
        let open = w.document(&write.rows.fields()[*field as usize]);
        w.num("min", s.min);
        w.num("max", s.max);
        w.num("sum", s.sum);
        w.i32("count", s.count as i32);
        w.close(open);
    }
    w.close(summary);
    match write.storage_mode {
        StorageMode::Bucket => readings(w, "readings", &write.rows),
        StorageMode::TimeSeries => w.str("storage", SERIES),
    }
    if write.seal {
        w.bool("has_overflow", true);
    }
}

fn readings(w: &mut Writer, name: &str, rows: &Rows) {
    let list = w.array(name);
    for (i, row) in rows.iter().enumerate() {
        let open = w.element(i);
        w.date("ts", row.ts_ms);
        for (field, value) in row.named() {
            w.value(field, value);
        }
        w.close(open);
    }
    w.close(list);
}

/// An update guarded by its filter. `upsert` is on so that a page without the expected version
/// returns E11000 for its own statement (otherwise a command of many statements reports only how
/// many matched). The guard is written as a range: an upsert would copy an equality into the
/// document that it creates (if the page was deleted in the meantime), and its count would be wrong.
/// `opened`: the slot of the page's new gate; otherwise it has none afterwards.
fn compare_and_update(
    w: &mut Writer,
    write: &PageWrite,
    known_count: u32,
    opened: Option<GateSlot>,
    span: Span,
) {
    let q = w.document("q");
    id(w, write);
    compare(w, write, known_count);
    w.close(q);
    let u = w.document("u");
    let rows = !write.rows.is_empty();
    if rows {
        append_readings(w, write, None);
    }
    if write.seal || opened.is_some() {
        let set = w.document("$set");
        if write.seal {
            w.bool("has_overflow", true);
        }
        if let Some(slot) = opened {
            let gate = w.document(GATE);
            open_slot(w, slot_name(slot), write.count_after());
            w.close(gate);
        }
        w.close(set);
    }
    if opened.is_none() {
        let unset = w.document("$unset");
        w.str(GATE, "");
        w.close(unset);
    }
    let insert = w.document("$setOnInsert");
    w.i32("schema_version", SCHEMA_VERSION);
    w.date("bucket_end", span.end(write.start));
    w.i32("page", write.page as i32);
    tags(w, write);
    if write.summary.is_empty() {
        // No operator creates it. Without it the validator would refuse the document, before the
        // server notices that the page exists with another version.
        let summary = w.document("summary");
        w.close(summary);
    }
    if !rows {
        w.i32("count", 0);
        w.date("first_ts", write.start.0);
        w.date("last_ts", write.start.0);
        if write.storage_mode == StorageMode::Bucket {
            let none = w.array("readings");
            w.close(none);
        }
    }
    w.close(insert);
    w.close(u);
    w.bool("upsert", true);
    // Without the hint the planner would weigh the sensor's index against `_id` for every
    // statement.
    w.str("hint", "_id_");
}

/// The comparisons of a filter, besides `_id`.
fn compare(w: &mut Writer, write: &PageWrite, known_count: u32) {
    w.str("sensor_id", &write.sensor_id);
    w.date("bucket_start", write.start.0);
    let expected = w.document("count");
    w.i32("$gte", known_count as i32);
    w.i32("$lte", known_count as i32);
    w.close(expected);
    let open = w.document("has_overflow");
    w.bool("$ne", true);
    w.close(open);
    // `hourbucket convert` may have changed the bucket's storage mode with the same count.
    match write.storage_mode {
        StorageMode::Bucket => {
            let open = w.document("storage");
            w.str("$ne", SERIES);
            w.close(open);
        }
        StorageMode::TimeSeries => w.str("storage", SERIES),
    }
    // Its readings may have been removed with the same count.
    let open = w.document("readings_removed");
    w.bool("$ne", true);
    w.close(open);
}

/// An update guarded by the page's gate. `upsert` makes the server report a page that does not
/// exist; nothing is inserted, because such a page has no gate.
fn pass_gate(w: &mut Writer, write: &PageWrite, slot: GateSlot) {
    let q = w.document("q");
    id(w, write);
    w.close(q);
    let u = w.document("u");
    append_readings(w, write, Some(slot));
    let set = w.document("$set");
    let next = format!("{GATE}.{}", slot_name(slot.other()));
    open_slot(w, &next, write.count_after());
    w.close(set);
    w.close(u);
    w.bool("upsert", true);
}

/// A slot that the append passes which expects this count.
fn open_slot(w: &mut Writer, name: &str, count: u32) {
    let slot = w.document(name);
    let unused = w.array(&count.to_string());
    w.value("0", ValueRef::Int(0));
    w.close(unused);
    w.close(slot);
}

fn slot_name(slot: GateSlot) -> &'static str {
    match slot {
        GateSlot::A => "a",
        GateSlot::B => "b",
    }
}

/// Adds the readings; `gate`: the slot of the page's gate to use up.
fn append_readings(w: &mut Writer, write: &PageWrite, gate: Option<GateSlot>) {
    let name = |i: &u32| &*write.rows.fields()[*i as usize];
    if write.storage_mode == StorageMode::Bucket {
        let push = w.document("$push");
        let field = w.document("readings");
        readings(w, "$each", &write.rows);
        w.close(field);
        w.close(push);
    }
    let inc = w.document("$inc");
    w.i32("count", write.rows.len() as i32);
    if let Some(slot) = gate {
        let path = format!("{GATE}.{}.{}.$[]", slot_name(slot), write.count_before());
        w.value(&path, ValueRef::Int(i64::MAX));
    }
    for (i, s) in &write.summary {
        w.num_at(["summary", name(i), "sum"], s.sum);
        w.i32_at(["summary", name(i), "count"], s.count as i32);
    }
    w.close(inc);
    let min = w.document("$min");
    w.date("first_ts", write.rows.first_ts_ms());
    for (i, s) in &write.summary {
        w.num_at(["summary", name(i), "min"], s.min);
    }
    w.close(min);
    let max = w.document("$max");
    w.date("last_ts", write.rows.last_ts_ms());
    for (i, s) in &write.summary {
        w.num_at(["summary", name(i), "max"], s.max);
    }
    w.close(max);
}
