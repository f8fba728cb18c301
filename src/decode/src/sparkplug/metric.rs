//! A payload and its metrics as written (`sparkplug_b.proto` of the specification, version 3.0,
//! §6.4), and the conversion of a value once its type is known.

use crate::names::excerpt;
use crate::rejects::Fault;
use crate::{RejectReason, decimal};
use model::ValueRef;
use model::protobuf::{FieldValue, Fields, Malformed, put_bytes, put_varint};

/// The `uuid` of a compressed payload. Its metrics only name the algorithm. Not in the
/// specification.
const COMPRESSED: &[u8] = b"SPBV1.0_COMPRESSED";

#[derive(Debug, Default)]
pub(super) struct Payload<'a> {
    /// It holds another one in its body, compressed, as Eclipse Tahu's libraries can send it.
    pub(super) is_compressed: bool,
    /// Milliseconds since 1970.
    pub(super) timestamp: Option<u64>,
    pub(super) seq: Option<u64>,
    /// Unparsed, so that a malformed metric rejects only itself.
    pub(super) metrics: Vec<&'a [u8]>,
}

impl<'a> Payload<'a> {
    /// Parses a message.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Payload<'a>, Malformed> {
        let mut payload = Payload::default();
        for field in Fields::new(bytes) {
            match field? {
                (1, FieldValue::Varint(v)) => payload.timestamp = Some(v),
                (2, FieldValue::Bytes(metric)) => payload.metrics.push(metric),
                (3, FieldValue::Varint(v)) => payload.seq = Some(v),
                (4, FieldValue::Bytes(uuid)) => payload.is_compressed = uuid == COMPRESSED,
                _ => {}
            }
        }
        Ok(payload)
    }
}

/// A value as written; the metric's type determines the number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Raw<'a> {
    /// `int_value` and `long_value`.
    Int(u64),
    Long(u64),
    Double(f64),
    Bool(bool),
    Text(&'a [u8]),
    /// Bytes, a DataSet, a Template or an extension, with its name.
    Other(&'static str),
}

#[derive(Debug, Default)]
pub(super) struct Metric<'a> {
    name: Option<&'a [u8]>,
    pub(super) alias: Option<u64>,
    pub(super) timestamp: Option<u64>,
    pub(super) datatype: Option<u64>,
    pub(super) is_transient: bool,
    is_null: bool,
    quality: Option<u64>,
    value: Option<Raw<'a>>,
}

impl<'a> Metric<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Metric<'a>, Malformed> {
        let mut metric = Metric::default();
        for field in Fields::new(bytes) {
            match field? {
                (1, FieldValue::Bytes(name)) => metric.name = Some(name),
                (2, FieldValue::Varint(v)) => metric.alias = Some(v),
                (3, FieldValue::Varint(v)) => metric.timestamp = Some(v),
                (4, FieldValue::Varint(v)) => metric.datatype = Some(v),
                (6, FieldValue::Varint(v)) => metric.is_transient = v != 0,
                (7, FieldValue::Varint(v)) => metric.is_null = v != 0,
                (9, FieldValue::Bytes(set)) => metric.quality = quality(set)?,
                (10, FieldValue::Varint(v)) => metric.value = Some(Raw::Int(v)),
                (11, FieldValue::Varint(v)) => metric.value = Some(Raw::Long(v)),
                (12, FieldValue::Fixed32(bits)) => {
                    metric.value = Some(Raw::Double(decimal::shortest(f32::from_bits(bits))))
                }
                (13, FieldValue::Fixed64(bits)) => {
                    metric.value = Some(Raw::Double(f64::from_bits(bits)))
                }
                (14, FieldValue::Varint(v)) => metric.value = Some(Raw::Bool(v != 0)),
                (15, FieldValue::Bytes(text)) => metric.value = Some(Raw::Text(text)),
                (16, FieldValue::Bytes(_)) => metric.value = Some(Raw::Other("bytes or an array")),
                (17, FieldValue::Bytes(_)) => metric.value = Some(Raw::Other("a DataSet")),
                (18, FieldValue::Bytes(_)) => metric.value = Some(Raw::Other("a Template")),
                (19, FieldValue::Bytes(_)) => metric.value = Some(Raw::Other("an extension")),
                _ => {}
            }
        }
        Ok(metric)
    }

    /// The name, if there is one.
    pub(super) fn name(&self) -> Result<Option<&'a str>, Fault> {
        let utf8 = |bytes| std::str::from_utf8(bytes);
        let name = self
            .name
            .filter(|name| !name.is_empty())
            .map(utf8)
            .transpose();
        name.map_err(|_| Fault::new(RejectReason::InvalidUtf8, "the metric's name is not UTF-8"))
    }

    /// The value as written; `None` means no value, which is different from 0.
    pub(super) fn raw(&self) -> Option<Raw<'a>> {
        self.value.filter(|_| !self.is_null)
    }

    /// The whole number as written, if the value is one.
    pub(super) fn whole(&self) -> Option<u64> {
        match self.raw()? {
            Raw::Int(v) | Raw::Long(v) => Some(v),
            _ => None,
        }
    }

    /// The quality if it is not good (§6.4.9); then the number was not measured.
    pub(super) fn bad_quality(&self) -> Option<&'static str> {
        match self.quality? {
            0 => Some("bad"),
            500 => Some("stale"),
            _ => None,
        }
    }
}

/// The payload that requests births from a node (§6.4.22): the metric `Node Control/Rebirth`, a
/// boolean, true.
pub(super) fn rebirth(now_ms: i64) -> Vec<u8> {
    let now = u64::try_from(now_ms).unwrap_or_default();
    let mut metric = Vec::new();
    let mut payload = Vec::new();
    put_bytes(1, b"Node Control/Rebirth", &mut metric);
    put_varint(3, now, &mut metric);
    put_varint(4, BOOLEAN, &mut metric);
    put_varint(14, 1, &mut metric);
    put_varint(1, now, &mut payload);
    put_bytes(2, &metric, &mut payload);
    payload
}

/// The property `Quality` of a property set, if present.
fn quality(set: &[u8]) -> Result<Option<u64>, Malformed> {
    let mut keys = Fields::new(set);
    let mut values = Fields::new(set);
    // Keys and values are two lists in the same order.
    let mut at = 0;
    loop {
        match keys.next().transpose()? {
            Some((1, FieldValue::Bytes(b"Quality" | b"quality"))) => break,
            Some((1, _)) => at += 1,
            Some(_) => {}
            None => return Ok(None),
        }
    }
    loop {
        match values.next().transpose()? {
            Some((2, FieldValue::Bytes(value))) if at == 0 => {
                for field in Fields::new(value) {
                    if let (3 | 4, FieldValue::Varint(v)) = field? {
                        return Ok(Some(v));
                    }
                }
                return Ok(None);
            }
            Some((2, _)) => at -= 1,
            Some(_) => {}
            None => return Ok(None),
        }
    }
}

/// Why there is no value.
#[derive(Debug)]
pub(super) enum NoValue {
    /// The number is ambiguous; only a birth defines its type.
    UnknownType,
    Fault(Fault),
}

/// The types of whole numbers (§6.4.16): their bits, and whether they are signed.
fn integer(datatype: Option<u64>) -> Option<(u32, bool)> {
    Some(match datatype? {
        1 => (8, true),
        2 => (16, true),
        3 => (32, true),
        4 => (64, true),
        5 => (8, false),
        6 => (16, false),
        7 => (32, false),
        // A DateTime is a number of milliseconds.
        8 | 13 => (64, false),
        _ => return None,
    })
}

const BOOLEAN: u64 = 11;

/// Converts a value according to its type.
pub(super) fn value<'a>(
    name: &str,
    raw: Raw<'a>,
    datatype: Option<u64>,
) -> Result<ValueRef<'a>, NoValue> {
    let out_of_range = |v: u64| {
        let detail = format!(
            "{}: {v} exceeds the range of its type, or a signed 64-bit integer",
            excerpt(name)
        );
        NoValue::Fault(Fault::new(RejectReason::IntegerOutOfRange, detail))
    };
    match raw {
        Raw::Bool(v) => Ok(ValueRef::Bool(v)),
        Raw::Double(v) if v.is_finite() => Ok(ValueRef::Double(v)),
        Raw::Double(v) => {
            let detail = format!("{}: {v} is not a finite number", excerpt(name));
            Err(NoValue::Fault(Fault::new(RejectReason::NotFinite, detail)))
        }
        Raw::Text(bytes) => std::str::from_utf8(bytes).map(ValueRef::Str).map_err(|_| {
            NoValue::Fault(Fault::new(
                RejectReason::InvalidUtf8,
                format!("{} is not UTF-8", excerpt(name)),
            ))
        }),
        Raw::Other(what) => {
            let detail = format!("{} is {what}; this type is not supported", excerpt(name));
            Err(NoValue::Fault(Fault::new(
                RejectReason::UnsupportedType,
                detail,
            )))
        }
        Raw::Int(v) | Raw::Long(v) if datatype == Some(BOOLEAN) => Ok(ValueRef::Bool(v != 0)),
        Raw::Int(v) | Raw::Long(v) => {
            let width = if matches!(raw, Raw::Int(_)) { 32 } else { 64 };
            match integer(datatype) {
                Some((bits, true)) => signed(v, bits)
                    .map(ValueRef::Int)
                    .ok_or_else(|| out_of_range(v)),
                Some((bits, false)) if bits == 64 || v >> bits == 0 => i64::try_from(v)
                    .map(ValueRef::Int)
                    .map_err(|_| out_of_range(v)),
                Some(_) => Err(out_of_range(v)),
                // Below the sign bit all types agree.
                None if v >> (width - 1) == 0 => Ok(ValueRef::Int(v as i64)),
                None => Err(NoValue::UnknownType),
            }
        }
    }
}

/// Decodes a signed number. Negative numbers are two's complement in an unsigned field; some
/// senders use the width of the type, others the width of the field.
fn signed(v: u64, bits: u32) -> Option<i64> {
    [bits, 32, 64].into_iter().find_map(|field| {
        let shift = 64 - field;
        let fits = v << shift >> shift == v;
        let number = (v << shift).cast_signed() >> shift;
        let limit = 1i128 << (bits - 1);
        (fits && (-limit..limit).contains(&i128::from(number))).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(raw: Raw<'_>, datatype: u64) -> Option<i64> {
        match value("v", raw, Some(datatype)) {
            Ok(ValueRef::Int(v)) => Some(v),
            Err(NoValue::Fault(fault)) => {
                assert_eq!(fault.reason, RejectReason::IntegerOutOfRange);
                None
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_type_determines_the_sign() {
        for (raw, datatype, expected) in [
            (Raw::Int(251), 1, Some(-5)),
            (Raw::Int(0xffff_fffb), 1, Some(-5)),
            (Raw::Long(u64::MAX - 4), 1, Some(-5)),
            (Raw::Int(127), 1, Some(127)),
            (Raw::Int(300), 1, None),
            (Raw::Int(0xfffb), 2, Some(-5)),
            (Raw::Int(0xffff_fffb), 2, Some(-5)),
            (Raw::Int(0xffff_fffb), 3, Some(-5)),
            (Raw::Long(0xffff_fffb), 3, Some(-5)),
            (Raw::Long(u64::MAX - 4), 3, Some(-5)),
            (Raw::Long(1 << 40), 3, None),
            (Raw::Long(u64::MAX - 4), 4, Some(-5)),
            (Raw::Long(0xffff_fffb), 4, Some(0xffff_fffb)),
            (Raw::Int(255), 5, Some(255)),
            (Raw::Int(256), 5, None),
            (Raw::Int(65535), 6, Some(65535)),
            (Raw::Int(0xffff_fffb), 7, Some(0xffff_fffb)),
            (Raw::Long(1 << 32), 7, None),
            (Raw::Long(i64::MAX as u64), 8, Some(i64::MAX)),
            (Raw::Long(1 << 63), 8, None),
            (Raw::Long(1_709_290_800_000), 13, Some(1_709_290_800_000)),
            (Raw::Int(5), 10, Some(5)),
        ] {
            assert_eq!(int(raw, datatype), expected, "{raw:?} {datatype}");
        }
        assert!(matches!(
            value("v", Raw::Int(1), Some(BOOLEAN)),
            Ok(ValueRef::Bool(true))
        ));
        assert!(matches!(
            value("v", Raw::Int(0x7fff_ffff), None),
            Ok(ValueRef::Int(0x7fff_ffff))
        ));
        for raw in [Raw::Int(0xffff_fffb), Raw::Long(u64::MAX)] {
            assert!(matches!(value("v", raw, None), Err(NoValue::UnknownType)));
        }
    }

    #[test]
    fn floats_are_what_the_node_shows() {
        for (v, expected) in [
            (12.3f32, 12.3),
            (0.1, 0.1),
            (-0.0, -0.0),
            (1e30, 1e30),
            (f32::MAX, 3.4028235e38),
            (7.0, 7.0),
        ] {
            assert_eq!(
                decimal::shortest(v).to_bits(),
                f64::to_bits(expected),
                "{v}"
            );
        }
        assert!(
            decimal::shortest(f32::NAN).is_nan()
                && decimal::shortest(f32::NEG_INFINITY) == f64::NEG_INFINITY
        );
    }

    #[test]
    fn quality_is_found_among_the_properties() {
        let property = |v: u8| [&[0x12, 4, 0x08, 3, 0x18, v][..]].concat();
        let key = |k: &str| [&[0x0a, k.len() as u8][..], k.as_bytes()].concat();
        let set = [
            key("engUnit"),
            key("Quality"),
            vec![0x12, 2, 0x42, 0],
            property(0),
        ]
        .concat();
        assert_eq!(quality(&set), Ok(Some(0)));
        assert_eq!(quality(&[key("engUnit"), property(0)].concat()), Ok(None));
        assert_eq!(quality(&key("Quality")), Ok(None));
        assert!(quality(&[0x0a, 9]).is_err());
    }
}
