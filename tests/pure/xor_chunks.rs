//! The chunks of remote read, decoded as Prometheus decodes them.

use proptest::prelude::*;
use query::promql::Sample;
use query::promql::chunk::{CHUNK_SAMPLES_MAX, xor_chunk};

use crate::support::remote_read::decode_chunk;

fn decoded(samples: &[Sample]) -> Vec<(i64, u64)> {
    decode_chunk(&xor_chunk(samples))
        .into_iter()
        .map(|(ts_ms, value)| (ts_ms, value.to_bits()))
        .collect()
}

fn given(samples: &[Sample]) -> Vec<(i64, u64)> {
    samples
        .iter()
        .map(|sample| (sample.ts_ms, sample.value.to_bits()))
        .collect()
}

/// Distances on both sides of each size that a change can have.
fn distance() -> impl Strategy<Value = i64> {
    let near = |at: i64| (at - 2..at + 3).prop_map(|distance| distance.max(1));
    prop_oneof![
        4 => Just(60_000),
        2 => near(60_000),
        1 => near(60_000 + (1 << 13)),
        1 => near(60_000 - (1 << 13)),
        1 => near(60_000 + (1 << 16)),
        1 => near(60_000 + (1 << 19)),
        1 => 1i64..1 << 40,
    ]
}

fn value() -> impl Strategy<Value = f64> {
    prop_oneof![
        2 => Just(21.5),
        2 => (-400i32..400).prop_map(|v| f64::from(v) / 10.0),
        1 => any::<u64>().prop_map(f64::from_bits),
        1 => prop_oneof![Just(0.0), Just(-0.0), Just(f64::INFINITY), Just(f64::NAN), Just(f64::MIN_POSITIVE)],
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_chunk_decodes_to_what_was_encoded(
        first_ms in prop_oneof![Just(0i64), -300_000_000_000_000i64..300_000_000_000_000],
        rest in prop::collection::vec((distance(), value()), 1..=CHUNK_SAMPLES_MAX),
    ) {
        let mut ts_ms = first_ms;
        let samples: Vec<Sample> = rest
            .into_iter()
            .map(|(distance, value)| {
                ts_ms += distance;
                Sample { ts_ms, value }
            })
            .collect();
        prop_assert_eq!(decoded(&samples), given(&samples));
    }
}
