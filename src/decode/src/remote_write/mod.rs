//! Prometheus remote write: samples become readings, those of one sensor and time together.
//!
//! - field: the label `__name__` (`node:load.1` becomes `node:load_1`: names contain no dots); its
//!   value a double.
//! - sensor: the values of the labels `remote_write.sensor_id_labels` that the series has, joined
//!   by `/`. With `remote_write.other_labels = "sensor_id"` the other labels are appended, so that
//!   every series is a field of a separate sensor.
//! - tags: every label but `__name__`.
//! - A value that is not finite is left out and counted: a stale marker, which only ends a series,
//!   and a NaN or infinity, which rules yield all the time and Prometheus expects to be accepted.
//!   Every native histogram is rejected. Metadata and exemplars are ignored.
//!
//! Samples of one sensor, time and set of tags become one reading, or several if there are more
//! than `limits.fields_max`. The fields are sorted by name. So a request that is sent again yields
//! the same readings, regardless of the order of its series, and nothing is stored twice. Samples
//! that come in other requests are other readings.
//!
//! A malformed payload is rejected as a whole, as the specification requires, and yields no
//! reading. Specifications: prometheus.io/docs/specs/prw/remote_write_spec and
//! remote_write_spec_2_0.

mod samples;
#[cfg(test)]
mod tests;

use self::samples::{Label, Samples};
use super::Context;
use super::RejectReason;
use super::rejects::Rejects;
use config::RemoteWrite;
use model::BatchBuilder;
use model::protobuf::{FieldValue, Fields, Malformed};

/// The message that a request holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// `prometheus.WriteRequest`, of remote write 1.0.
    V1,
    /// `io.prometheus.write.v2.Request`, of remote write 2.0.
    V2,
}

/// Symbols of one request; each takes 16 bytes of memory and may have only two in the request.
const SYMBOLS_MAX: usize = 1 << 19;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum InvalidRequest {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("a label refers to a symbol that does not exist")]
    NoSymbol,
    #[error("labels are an odd number of symbols")]
    OddLabels,
    #[error("more than {} symbols", SYMBOLS_MAX)]
    TooManySymbols,
    #[error("this is a message of remote write 1.0; the Content-Type says 2.0")]
    IsV1,
    #[error("this is a message of remote write 2.0; the Content-Type says 1.0")]
    IsV2,
}

/// Decodes a request. An empty one yields neither readings nor rejects.
pub(super) fn decode(
    message: Message,
    payload: &[u8],
    settings: &RemoteWrite,
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    let mut samples = Samples::new(settings, cx, rejects);
    let read = match message {
        Message::V1 => read_v1(payload, &mut samples),
        Message::V2 => read_v2(payload, &mut samples),
    };
    match read {
        Ok(()) => samples.commit(out),
        Err(error) => {
            rejects.push(
                0,
                RejectReason::InvalidProtobuf,
                format!("not a remote write request: {error}"),
            );
        }
    }
}

fn read_v1<'d>(payload: &'d [u8], samples: &mut Samples<'_, 'd>) -> Result<(), InvalidRequest> {
    for field in Fields::new(payload) {
        let series = match field? {
            (1, series) => series.bytes()?,
            (4 | 5, FieldValue::Bytes(_)) => return Err(InvalidRequest::IsV2),
            _ => continue,
        };
        samples.series();
        for field in Fields::new(series) {
            if let (1, label) = field? {
                let mut name = "";
                let mut value = "";
                for field in Fields::new(label.bytes()?) {
                    match field? {
                        (1, text) => name = text.text()?,
                        (2, text) => value = text.text()?,
                        _ => {}
                    }
                }
                samples.label(Label { name, value });
            }
        }
        read_samples(series, 4, samples)?;
    }
    Ok(())
}

fn read_v2<'d>(payload: &'d [u8], samples: &mut Samples<'_, 'd>) -> Result<(), InvalidRequest> {
    let mut symbols: Vec<&'d str> = vec![];
    for field in Fields::new(payload) {
        match field? {
            (4, _) if symbols.len() >= SYMBOLS_MAX => return Err(InvalidRequest::TooManySymbols),
            (4, symbol) => symbols.push(symbol.text()?),
            (1, FieldValue::Bytes(_)) => return Err(InvalidRequest::IsV1),
            _ => {}
        }
    }
    for field in Fields::new(payload) {
        let (5, series) = field? else { continue };
        let series = series.bytes()?;
        samples.series();
        // The name of a label whose value is the next reference.
        let mut name = None;
        for field in Fields::new(series) {
            let mut add = |reference: u64| {
                let symbol = usize::try_from(reference)
                    .ok()
                    .and_then(|i| symbols.get(i))
                    .copied();
                let symbol = symbol.ok_or(InvalidRequest::NoSymbol)?;
                match name.take() {
                    None => name = Some(symbol),
                    Some(name) => samples.label(Label {
                        name,
                        value: symbol,
                    }),
                }
                Ok::<(), InvalidRequest>(())
            };
            match field? {
                (1, FieldValue::Bytes(packed)) => {
                    model::protobuf::packed(packed).try_for_each(|n| add(n?))?
                }
                (1, one) => add(one.varint()?)?,
                _ => {}
            }
        }
        if name.is_some() {
            return Err(InvalidRequest::OddLabels);
        }
        read_samples(series, 3, samples)?;
    }
    Ok(())
}

/// Samples (field 2) and histograms of a series whose labels are known.
fn read_samples(
    series: &[u8],
    histograms: u32,
    samples: &mut Samples<'_, '_>,
) -> Result<(), Malformed> {
    let mut unsupported = 0;
    for field in Fields::new(series) {
        match field? {
            (2, sample) => {
                // Fields that are zero are not sent.
                let mut value = 0.0;
                let mut ts_ms = 0;
                for field in Fields::new(sample.bytes()?) {
                    match field? {
                        (1, double) => value = double.double()?,
                        (2, ms) => ts_ms = ms.varint()?.cast_signed(),
                        _ => {}
                    }
                }
                samples.sample(ts_ms, value);
            }
            (number, _) if number == histograms => unsupported += 1,
            _ => {}
        }
    }
    samples.histograms(unsupported);
    Ok(())
}
