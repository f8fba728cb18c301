//! What must hold for any bytes, whatever decoder reads them. Shared by the fuzzer and by
//! `tests/pure/fuzz_corpus.rs`.

use std::time::Duration;

use config::{Config, Decoding};
use decode::sparkplug::Sparkplug;
use decode::{Context, Decoder, Formats, Rejects};
use model::{BatchBuilder, ReadingBatch, Value};

/// 2024-03-01T11:00:00Z
const NOW_MS: i64 = 1_709_290_800_000;

/// Topics that mappings may look at; the length of the payload chooses one.
const TOPICS: [&str; 8] = [
    "sensors/S1/temp",
    "zigbee2mqtt/office",
    "tele/plug/SENSOR",
    "shellies/shellyht-1/sensor/temperature",
    "application/a/device/0102030405060708/event/up",
    "v3/app@tenant/devices/dev-1/up",
    "N/c0619ab1/system/0/Dc/Battery/Voltage",
    "spBv1.0/group/DDATA/node/device",
];

/// Sparkplug has a memory, so an input is a series of messages: a byte that chooses the topic, two
/// that are the length, and the payload.
const SPARKPLUG: &str = "sparkplug";
const SPARKPLUG_TOPICS: [&str; 7] = [
    "spBv1.0/g/NBIRTH/n",
    "spBv1.0/g/NDATA/n",
    "spBv1.0/g/DBIRTH/n/d",
    "spBv1.0/g/DDATA/n/d",
    "spBv1.0/g/NDEATH/n",
    "spBv1.0/g/DDEATH/n/d",
    "spBv1.0/g/NCMD/n",
];

/// Small limits, so that they are met; a window as wide as the years that can be written.
fn decoding() -> Decoding {
    let mut decoding = Config::default().decoding();
    let ever = Duration::from_secs(9000 * 365 * 86_400);
    let limits = &mut decoding.limits;
    (limits.past, limits.future) = (ever, ever);
    (
        limits.fields_max,
        limits.tags_max,
        limits.batch_max_readings,
    ) = (20, 8, 50);
    (
        limits.name_max_bytes,
        limits.sensor_id_max_bytes,
        limits.string_max_bytes,
    ) = (40, 60, 100);
    decoding
}

/// The decoders to be tried.
pub(crate) struct Bench {
    decoding: Decoding,
    /// Without a decoder: Sparkplug.
    decoders: Vec<(String, Option<Decoder>)>,
}

impl Bench {
    /// Those with these names; all where there is none.
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Bench {
        let decoding = decoding();
        let formats = Formats::new(&decoding);
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        if names.is_empty() {
            names = formats
                .names()
                .into_iter()
                .chain([SPARKPLUG])
                .map(|name| name.to_string())
                .collect();
        }
        let decoder = |name: String| {
            let found =
                (name != SPARKPLUG).then(|| formats.get(&name).unwrap_or_else(|e| panic!("{e}")));
            (name, found)
        };
        let decoders = names.into_iter().map(decoder).collect();
        Bench { decoding, decoders }
    }

    /// The names of all of them.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.decoders.iter().map(|(name, _)| name.as_str())
    }

    /// Gives the payload to each, and looks at what comes out.
    ///
    /// # Panics
    /// Something does not hold.
    pub(crate) fn check(&self, payload: &[u8]) {
        for (name, decoder) in &self.decoders {
            let (batch, rejects) = self.decoded(decoder.as_ref(), payload);
            self.good(name, payload, &batch, &rejects);
        }
    }

    fn decoded(&self, decoder: Option<&Decoder>, payload: &[u8]) -> (ReadingBatch, Rejects) {
        let Decoding { limits, line, .. } = &self.decoding;
        let cx = Context {
            limits,
            line,
            received_at_ms: NOW_MS,
            ts_unit: decoder.and_then(Decoder::ts_unit_usual),
            // Now with, now without what a topic gives.
            sensor_id: payload.len().is_multiple_of(3).then_some("S"),
            field: payload.len().is_multiple_of(2).then_some("field"),
            tags: &[("site", "north")],
            ..Context::usual()
        };
        let mut out = BatchBuilder::new(limits.fields_max);
        let mut rejects = Rejects::new();
        let Some(decoder) = decoder else {
            let mut sparkplug = Sparkplug::new();
            let mut rest = payload;
            while let [topic, low, high, more @ ..] = rest {
                let len = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
                let (message, after) = more.split_at(len);
                let topic = SPARKPLUG_TOPICS[usize::from(*topic) % SPARKPLUG_TOPICS.len()];
                sparkplug.decode(topic, message, &cx, &mut out, &mut rejects);
                rest = after;
            }
            return (out.finish(), rejects);
        };
        decoder.decode(
            payload,
            Some(TOPICS[payload.len() % TOPICS.len()]),
            &cx,
            &mut out,
            &mut rejects,
        );
        (out.finish(), rejects)
    }

    fn good(&self, name: &str, payload: &[u8], batch: &ReadingBatch, rejects: &Rejects) {
        let limits = &self.decoding.limits;
        let mut bytes = vec![];
        batch.encode(&mut bytes);
        assert!(
            ReadingBatch::decode(&bytes).is_some(),
            "{name}: the batch must be readable again"
        );
        assert!(
            batch.len() <= limits.batch_max_readings,
            "{name}: {} readings",
            batch.len()
        );
        // An element takes a byte at least.
        assert!(
            batch.len() + rejects.total() <= payload.len() + 1,
            "{name}: more came out than went in"
        );
        for reading in batch.to_readings() {
            let id = &reading.sensor_id;
            assert!(
                !id.is_empty() && id.len() <= limits.sensor_id_max_bytes && !id.contains('\0'),
                "{name}: {id:?}"
            );
            assert!(
                !reading.values.is_empty() && reading.values.len() <= limits.fields_max,
                "{name}: {reading:?}"
            );
            assert!(reading.tags.len() <= limits.tags_max, "{name}: {reading:?}");
            assert!(
                !reading.receipt_time || reading.ts_ms == NOW_MS,
                "{name}: {reading:?}"
            );
            for key in reading.values.keys().chain(reading.tags.keys()) {
                let stored = !key.is_empty() && !key.starts_with('$') && !key.contains(['.', '\0']);
                let reserved = matches!(key.as_str(), "ts" | "meta" | "_id");
                assert!(
                    stored && !reserved && key.len() <= limits.name_max_bytes,
                    "{name}: {key:?}"
                );
            }
            for value in reading.values.values() {
                match value {
                    Value::Double(v) => assert!(v.is_finite(), "{name}: {reading:?}"),
                    Value::Str(v) => {
                        assert!(v.len() <= limits.string_max_bytes, "{name}: {reading:?}")
                    }
                    Value::Int(_) | Value::Bool(_) => {}
                }
            }
        }
        for reject in rejects.list() {
            assert!(
                !reject.detail.is_empty() && reject.detail.len() < 1000,
                "{name}: {reject:?}"
            );
        }
        assert_eq!(
            rejects.by_reason().iter().map(|(_, n)| n).sum::<usize>(),
            rejects.total(),
            "{name}"
        );
    }
}
