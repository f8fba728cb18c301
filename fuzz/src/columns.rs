//! Columns with damaged bytes: an error, or readings that come back when they are encoded again. An
//! input describes readings, and then bytes of their encoded form that are changed.

use columns::{DayEncoder, Part, same_readings};
use model::{RowFlags, Rows, Value, ValueRef};

/// What an input says, byte by byte; zeros behind its end.
struct Input<'a>(std::slice::Iter<'a, u8>);

impl Input<'_> {
    fn next(&mut self) -> u8 {
        self.0.next().copied().unwrap_or_default()
    }

    fn value(&mut self) -> Value {
        let kind = self.next();
        let n = i64::from(self.next()) << (kind / 8);
        match kind % 8 {
            0 => Value::Double(f64::from_bits(n as u64)),
            1..=3 => Value::Double(n as f64 / 100.0),
            4 | 5 => Value::Int(n),
            6 => Value::Bool(n % 2 == 0),
            _ => Value::Str(n.to_string()),
        }
    }
}

/// Encodes the readings that `input` describes, changes what it says, and decodes.
pub(crate) fn check(input: &[u8]) {
    let mut input = Input(input.iter());
    let mut rows = Rows::default();
    let mut ts_ms = 0;
    for _ in 0..=u16::from(input.next()) * 2 {
        ts_ms += i64::from(input.next());
        let values = [input.value(), input.value()];
        let mut named: Vec<(&str, ValueRef<'_>)> = vec![("a", values[0].as_ref())];
        if input.next().is_multiple_of(2) {
            named.push(("b", values[1].as_ref()));
        }
        rows.push_named(ts_ms, RowFlags::default(), &named);
    }
    let mut part = encoded(&rows);
    assert!(same_readings(&part.decode().expect("it was encoded").rows(), &rows));

    while input.0.len() > 0 {
        let which = usize::from(input.next());
        let mut places: Vec<&mut Vec<u8>> = vec![&mut part.ts];
        for entry in part.columns.values_mut().flatten() {
            places.push(&mut entry.data);
            places.extend(entry.present.as_mut());
        }
        let count = places.len();
        let bytes = &mut *places[which % count];
        let at = usize::from(u16::from_le_bytes([input.next(), input.next()]));
        match (input.next(), bytes.len()) {
            (_, 0) => {}
            (0, len) => bytes.truncate(at % len),
            (flip, len) => bytes[at % len] ^= flip,
        }
    }
    let _ = part.decode_range(10, 20, |name| name == "a");
    if let Ok(decoded) = part.decode() {
        assert_eq!(decoded.times().len(), rows.len());
        let rows = decoded.rows();
        let again = (!rows.is_empty()).then(|| encoded(&rows));
        let same = again.is_none_or(|part| same_readings(&part.decode().expect("as above").rows(), &rows));
        assert!(same);
    }
}

fn encoded(rows: &Rows) -> Part {
    let mut encoder = DayEncoder::default();
    assert!(encoder.add(rows).is_empty(), "few readings are one part");
    encoder.finish().expect("there are readings")
}
