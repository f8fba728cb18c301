//! One record as written: its known fields, and faults found before bases are resolved.

use crate::RejectReason;
use crate::binary::Item;
use crate::names::excerpt;
use crate::rejects::Fault;

/// The fields that are used (RFC 8428 §4.3). Links and all others are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Label {
    BaseVersion,
    BaseName,
    BaseTime,
    BaseUnit,
    BaseValue,
    BaseSum,
    Name,
    Unit,
    Value,
    StringValue,
    BoolValue,
    Sum,
    Time,
    UpdateTime,
    DataValue,
}

use Label::*;

/// Each label with its names in JSON and CBOR.
const LABELS: [(Label, &str, i128); 15] = [
    (BaseVersion, "bver", -1),
    (BaseName, "bn", -2),
    (BaseTime, "bt", -3),
    (BaseUnit, "bu", -4),
    (BaseValue, "bv", -5),
    (BaseSum, "bs", -6),
    (Name, "n", 0),
    (Unit, "u", 1),
    (Value, "v", 2),
    (StringValue, "vs", 3),
    (BoolValue, "vb", 4),
    (Sum, "s", 5),
    (Time, "t", 6),
    (UpdateTime, "ut", 7),
    (DataValue, "vd", 8),
];

impl Label {
    /// The base fields, which also apply to following records.
    pub(super) const BASES: [Label; 5] = [BaseName, BaseTime, BaseUnit, BaseValue, BaseSum];
    /// The values; a record has at most one.
    pub(super) const VALUES: [Label; 4] = [Value, StringValue, BoolValue, DataValue];

    /// The name in JSON, for messages.
    pub(super) fn name(self) -> &'static str {
        LABELS[self as usize].1
    }
}

/// A record's fields; reused for the next record.
#[derive(Debug, Default)]
pub(super) struct Record<'de> {
    fields: [Option<Item<'de>>; LABELS.len()],
    /// The first fault.
    fault: Option<Fault>,
    /// An unknown label that requires support.
    mandatory: Option<String>,
}

impl<'de> Record<'de> {
    /// Resets the record for the next one.
    pub(super) fn clear(&mut self) {
        *self = Record::default();
    }

    /// Sets the fault; only the first one is kept.
    pub(super) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Adds a field by its label.
    pub(super) fn put(&mut self, label: &str, item: Item<'de>) {
        match LABELS.iter().find(|(_, name, _)| *name == label) {
            Some((label, _, _)) => self.put_known(*label, item),
            None if label.ends_with('_') => {
                self.mandatory.get_or_insert_with(|| excerpt(label));
            }
            None => {}
        }
    }

    /// Adds a field by its number in CBOR (§6).
    pub(super) fn put_number(&mut self, number: i128, item: Item<'de>) {
        if let Some((label, _, _)) = LABELS.iter().find(|(_, _, n)| *n == number) {
            self.put_known(*label, item);
        }
    }

    fn put_known(&mut self, label: Label, item: Item<'de>) {
        let field = &mut self.fields[label as usize];
        if field.is_some() {
            // Neither value is reliable. Following records that depend on a base field must see
            // that.
            *field = Some(Item::Other("given twice"));
            self.fail(Fault::new(
                RejectReason::DuplicateKey,
                format!("duplicate `{}`", label.name()),
            ));
        } else if item != Item::Null {
            *field = Some(item);
        }
    }

    /// Removes and returns a field.
    pub(super) fn take(&mut self, label: Label) -> Option<Item<'de>> {
        self.fields[label as usize].take()
    }

    /// Whether the record has this field.
    pub(super) fn has(&self, label: Label) -> bool {
        self.fields[label as usize].is_some()
    }

    /// Removes and returns the fault, if any.
    pub(super) fn take_fault(&mut self) -> Option<Fault> {
        self.fault.take()
    }

    /// The unknown label that requires support.
    pub(super) fn mandatory(&self) -> Option<&str> {
        self.mandatory.as_deref()
    }

    /// The version of SenML in the record.
    pub(super) fn version(&self) -> Option<&Item<'de>> {
        self.fields[BaseVersion as usize].as_ref()
    }

    /// Whether it has only base fields. Such a record is valid, but not a measurement.
    pub(super) fn is_only_bases(&self) -> bool {
        let some_base = Label::BASES.iter().any(|base| self.has(*base)) || self.has(BaseVersion);
        some_base
            && LABELS
                .iter()
                .filter(|(_, _, n)| *n >= 0)
                .all(|(label, _, _)| !self.has(*label))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_is_at_the_index_of_its_number() {
        for (i, (label, name, _)) in LABELS.iter().enumerate() {
            assert_eq!((*label as usize, label.name()), (i, *name));
        }
    }
}
