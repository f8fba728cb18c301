//! Properties of the decoder: nothing panics, every element becomes one reading or one reject,
//! valid readings are unchanged, and the way in which readings are concatenated does not matter.

mod json;
mod line_protocol;

use std::time::Duration;

use crate::{Context, Format, Rejects, decode};
use config::Limits;
use model::{BatchBuilder, Reading, Value};
use proptest::prelude::*;

const NOW: i64 = 1_709_290_800_000;

fn limits() -> Limits {
    // Back to the year 1900, and as far ahead.
    let years = Duration::from_secs(125 * 365 * 86_400);
    Limits {
        past: years,
        future: years,
        unset_before_ms: i64::MIN,
        ..Context::usual().limits.clone()
    }
}

fn run(format: Format, payload: &[u8]) -> (Vec<Reading>, Rejects) {
    run_with(format, payload, &[])
}

fn run_with(format: Format, payload: &[u8], tags: &[(&str, &str)]) -> (Vec<Reading>, Rejects) {
    let limits = limits();
    let cx = Context {
        limits: &limits,
        received_at_ms: NOW,
        ts_unit: format.ts_unit_usual(),
        sensor_id: None,
        field: Some("field"),
        tags,
        ..Context::usual()
    };
    let mut out = BatchBuilder::new(64);
    let mut rejects = Rejects::new();
    decode(format, payload, &cx, &mut out, &mut rejects);
    let batch = out.finish();
    let mut bytes = vec![];
    batch.encode(&mut bytes);
    assert!(
        model::ReadingBatch::decode(&bytes).is_some(),
        "the batch must be readable again"
    );
    (batch.to_readings(), rejects)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(payload in prop::collection::vec(any::<u8>(), 0..300)) {
        for format in [Format::Json, Format::Ndjson, Format::Scalar, Format::Line] {
            run(format, &payload);
        }
    }

    #[test]
    fn padding_around_a_text_changes_nothing(
        payload in "[^\0\u{feff}](.|\n|\0){0,40}",
        line in "m,sensor_id=[a-c] f=[0-9]{1,3}\n?",
        zeros in 1..5_usize,
        before in prop::sample::select(vec!["", "\0", "\u{feff}", "\0\u{feff}"]),
    ) {
        for format in [Format::Json, Format::Ndjson, Format::Scalar, Format::Line, Format::Senml] {
            for text in [&payload, &line] {
                let padded = format!("{before}{text}{}", "\0".repeat(zeros));
                let (readings, rejects) = run(format, padded.as_bytes());
                let (plain, of_plain) = run(format, text.as_bytes());
                prop_assert_eq!(readings, plain);
                prop_assert_eq!(rejects.list(), of_plain.list());
            }
        }
    }

    #[test]
    fn a_scalar_is_the_number_that_was_written(v in any::<f64>(), i in any::<i64>()) {
        let limits = limits();
        let cx = Context {
            limits: &limits, received_at_ms: NOW, ts_unit: None, sensor_id: Some("S"), field: Some("f"), tags: &[], ..Context::usual() };
        let one = |text: String| {
            let mut out = BatchBuilder::new(64);
            let mut rejects = Rejects::new();
            decode(Format::Scalar, text.as_bytes(), &cx, &mut out, &mut rejects);
            out.finish().to_readings().pop().map(|r| r.values["f"].clone())
        };
        prop_assert_eq!(one(i.to_string()), Some(Value::Int(i)));
        prop_assert_eq!(one(format!("{v:?}")), v.is_finite().then_some(Value::Double(v)));
    }
}
