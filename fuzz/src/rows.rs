//! The rows of a bucket against a plain list: whatever is pushed, taken, kept, appended and marked,
//! in whatever order and with whatever names. Shared by the fuzzer and by
//! `tests/pure/fuzz_corpus.rs`.

use model::{BatchBuilder, FieldSchemas, RowFlags, Rows, Value, ValueRef};

/// Operations in one input.
const STEPS_MAX: usize = 400;
/// Bytes of the key of an element, as `Rows` counts them at most.
const KEY_BYTES: u64 = model::rows::ARRAY_KEY_BYTES_MAX;

#[derive(Debug, Clone, PartialEq)]
struct Plain {
    ts_ms: i64,
    flags: RowFlags,
    values: Vec<(String, Value)>,
    stored_bytes: u64,
}

/// What an input says, byte by byte; zeros behind its end.
struct Input<'a>(std::slice::Iter<'a, u8>);

impl Input<'_> {
    fn next(&mut self) -> u8 {
        self.0.next().copied().unwrap_or_default()
    }
}

/// Carries out what `input` says, and compares after each step.
pub(crate) fn check(input: &[u8]) {
    let mut input = Input(input.iter());
    let mut rows = Rows::default();
    let mut plain = Vec::<Plain>::new();
    let mut taken = Rows::default();
    let mut plain_taken = Vec::<Plain>::new();
    let mut schemas = FieldSchemas::default();
    for step in 0..STEPS_MAX {
        if input.0.len() == 0 {
            break;
        }
        match input.next() % 16 {
            0..=8 => push(&mut input, step as i64, &mut schemas, &mut rows, &mut plain),
            9 | 10 => {
                let count = usize::from(input.next() % 32);
                let bytes = u64::from(input.next()) * 32;
                taken = rows.take_front(count, bytes);
                let n = fitting(&plain, count, bytes);
                plain_taken = plain.drain(..n).collect();
                same(&taken, &plain_taken);
            }
            11 => {
                let of = i64::from(input.next() % 5) + 1;
                let keep = i64::from(input.next() % 5);
                let before = plain.len();
                plain.retain(|row| row.ts_ms.rem_euclid(of) != keep);
                assert_eq!(
                    rows.retain(|row| row.ts_ms.rem_euclid(of) != keep),
                    before - plain.len()
                );
            }
            12 => {
                rows.append(&taken);
                plain.extend(plain_taken.iter().cloned());
            }
            13 => {
                // As a statement that comes back: what was taken stands in front again.
                let mut back = std::mem::take(&mut taken);
                back.mark(RowFlags::LOST);
                back.append(&rows);
                rows = back;
                plain_taken
                    .iter_mut()
                    .for_each(|row| row.flags = row.flags.with(RowFlags::LOST));
                plain = std::mem::take(&mut plain_taken)
                    .into_iter()
                    .chain(plain)
                    .collect();
            }
            14 => {
                rows.mark(RowFlags::REFUSED);
                plain
                    .iter_mut()
                    .for_each(|row| row.flags = row.flags.with(RowFlags::REFUSED));
            }
            // Equal names in another shape from here on.
            _ => schemas = FieldSchemas::default(),
        }
        same(&rows, &plain);
    }
}

/// Pushes a reading in one of the two ways.
fn push(
    input: &mut Input<'_>,
    step: i64,
    schemas: &mut FieldSchemas,
    rows: &mut Rows,
    plain: &mut Vec<Plain>,
) {
    let first = input.next();
    let count = input.next() % 5 + 1;
    let kind = input.next();
    let name = |i: u8| format!("n{}", u16::from(first) * 3 + u16::from(i));
    let value = |i: u8| match kind.wrapping_add(i) % 4 {
        0 => Value::Int(step),
        1 => Value::Double(f64::from(kind) / 8.0),
        2 => Value::Bool(kind > 99),
        _ => Value::Str("x".repeat(usize::from(kind))),
    };
    let values: Vec<(String, Value)> = (0..count).map(|i| (name(i), value(i))).collect();
    let ts_ms = i64::from(kind) - step;
    let flags = RowFlags::RECEIPT_TIME;
    let before = rows.stored_bytes();
    if kind.is_multiple_of(3) {
        let named: Vec<(&str, ValueRef<'_>)> = values
            .iter()
            .map(|(name, value)| (&**name, value.as_ref()))
            .collect();
        rows.push_named(ts_ms, flags, &named);
    } else {
        let mut builder = BatchBuilder::new(255);
        for (name, value) in &values {
            builder
                .value(name, value.as_ref())
                .expect("few names, none twice");
        }
        builder
            .commit("s", ts_ms, false, &[])
            .expect("nothing guards it");
        let batch = builder.finish();
        schemas.begin(&batch);
        for (_, reading) in batch.iter() {
            rows.push(
                ts_ms,
                flags,
                schemas.intern(&batch, reading.schema),
                reading.numbers,
                reading.payload,
            );
        }
        schemas.end();
    }
    plain.push(Plain {
        ts_ms,
        flags,
        values,
        stored_bytes: rows.stored_bytes() - before,
    });
}

/// How many of the rows are to be taken off.
fn fitting(plain: &[Plain], count: usize, bytes_max: u64) -> usize {
    let mut n = 0;
    let mut bytes = 0;
    for row in plain {
        bytes += row.stored_bytes + KEY_BYTES;
        if n >= count || n > 0 && bytes > bytes_max {
            break;
        }
        n += 1;
    }
    n
}

fn same(rows: &Rows, plain: &[Plain]) {
    assert_eq!(
        (rows.len(), rows.is_empty()),
        (plain.len(), plain.is_empty())
    );
    let fields = rows.fields();
    for (row, wanted) in rows.iter().zip(plain) {
        assert_eq!(
            (row.ts_ms, row.flags, row.stored_bytes()),
            (wanted.ts_ms, wanted.flags, wanted.stored_bytes)
        );
        let named: Vec<(String, Value)> = row
            .named()
            .map(|(name, value)| (name.to_owned(), value.to_value()))
            .collect();
        assert_eq!(named, wanted.values);
        assert!(
            row.named().eq(row
                .values()
                .map(|(field, value)| (&*fields[field as usize], value)))
        );
    }
    assert_eq!(rows.iter().count(), plain.len());
    assert_eq!(
        rows.stored_bytes(),
        plain.iter().map(|row| row.stored_bytes).sum::<u64>()
    );
    let mut once: Vec<&str> = fields.iter().map(|name| &**name).collect();
    once.sort_unstable();
    assert!(
        once.windows(2).all(|two| two[0] != two[1]),
        "each name once"
    );
    let times = || plain.iter().map(|row| row.ts_ms);
    if let (Some(first), Some(last)) = (times().min(), times().max()) {
        assert!(rows.first_ts_ms() <= first && rows.last_ts_ms() >= last);
    }
    // Held: at least the values, and no more than a piece and some bytes for each row and name
    // beyond.
    let values: usize = rows.stored_bytes() as usize;
    assert!(
        rows.memory_bytes() <= 3 * values + 200 * (fields.len() + rows.len()) + 16_384,
        "{}",
        rows.memory_bytes()
    );
}
