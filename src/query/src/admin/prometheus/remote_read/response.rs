//! Writes the answer of remote read: a `prometheus.ReadResponse` (prompb/remote.proto) in a block of
//! snappy. Pure.
//!
//! The lengths of the messages are computed first, so that the answer is compressed while it is
//! written, piece by piece, and a series is freed as soon as it is written. The samples are never in
//! memory a second time uncompressed.

use crate::promql::{Labels, Sample, Series};
use model::protobuf::{put_bytes, put_double, put_length, put_number, put_varint};

/// Bytes that are compressed together. Snappy's encoder divides its input into pieces of this size
/// too, so the answer is as small as one that is compressed as a whole.
const PIECE_BYTES: usize = 64 << 10;

/// The answer has more bytes than the length of a block of snappy can tell.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer has more than 4 GiB; query a shorter time or fewer series")]
pub(super) struct TooLarge;

/// The series of each query.
///
/// # Errors
/// The answer is too large.
pub(super) fn samples(results: Vec<Vec<Series>>) -> Result<Vec<u8>, TooLarge> {
    let result_bytes =
        |found: &Vec<Series>| found.iter().map(|s| field_bytes(series_bytes(s))).sum();
    let sizes: Vec<usize> = results.iter().map(result_bytes).collect();
    let total = sizes.iter().map(|bytes| field_bytes(*bytes)).sum();
    let mut block = Block::new(total)?;
    for (found, bytes) in results.into_iter().zip(sizes) {
        put_length(1, bytes, &mut block.piece);
        for series in found {
            put_length(1, series_bytes(&series), &mut block.piece);
            put_series(&series, &mut block)?;
        }
    }
    block.end()
}

fn put_series(Series { labels, samples }: &Series, block: &mut Block) -> Result<(), TooLarge> {
    put_labels(labels, &mut block.piece);
    let mut message = vec![];
    for Sample { ts_ms, value } in samples {
        message.clear();
        put_double(1, *value, &mut message);
        put_varint(2, *ts_ms as u64, &mut message);
        put_bytes(2, &message, &mut block.piece);
        block.compress_if_full()?;
    }
    Ok(())
}

fn put_labels(labels: &Labels, out: &mut Vec<u8>) {
    let mut label = vec![];
    for (name, value) in labels.iter() {
        label.clear();
        put_bytes(1, name.as_bytes(), &mut label);
        put_bytes(2, value.as_bytes(), &mut label);
        put_bytes(1, &label, out);
    }
}

/// Bytes of a series as `put_series` writes it.
fn series_bytes(Series { labels, samples }: &Series) -> usize {
    let mut head = vec![];
    put_labels(labels, &mut head);
    let sample = |sample: &Sample| field_bytes(9 + 1 + number_bytes(sample.ts_ms as u64));
    head.len() + samples.iter().map(sample).sum::<usize>()
}

/// Bytes of a field that holds a message: tag, length, message.
fn field_bytes(message: usize) -> usize {
    1 + number_bytes(message as u64) + message
}

/// Bytes of a varint: seven bits each.
fn number_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// A block of snappy (github.com/google/snappy/blob/main/format_description.txt) whose length is
/// known before its bytes: the length, then elements. Those of one piece do not refer to another,
/// so the pieces are compressed one by one.
struct Block {
    encoder: snap::raw::Encoder,
    /// Bytes that are not compressed yet.
    piece: Vec<u8>,
    compressed: Vec<u8>,
}

impl Block {
    fn new(bytes: usize) -> Result<Block, TooLarge> {
        let bytes = u32::try_from(bytes).map_err(|_| TooLarge)?;
        let mut compressed = vec![];
        put_number(bytes.into(), &mut compressed);
        Ok(Block {
            encoder: snap::raw::Encoder::new(),
            piece: Vec::with_capacity(PIECE_BYTES),
            compressed,
        })
    }

    fn compress_if_full(&mut self) -> Result<(), TooLarge> {
        while self.piece.len() >= PIECE_BYTES {
            self.compress(PIECE_BYTES)?;
        }
        Ok(())
    }

    /// Compresses the first bytes of the piece, at most [`PIECE_BYTES`], so it does not fail.
    fn compress(&mut self, bytes: usize) -> Result<(), TooLarge> {
        let block = self
            .encoder
            .compress_vec(&self.piece[..bytes])
            .map_err(|_| TooLarge)?;
        // The length of the piece is in front of its elements.
        let elements = &block[number_bytes(bytes as u64)..];
        self.compressed.extend_from_slice(elements);
        self.piece.drain(..bytes);
        Ok(())
    }

    fn end(mut self) -> Result<Vec<u8>, TooLarge> {
        self.compress_if_full()?;
        self.compress(self.piece.len())?;
        Ok(self.compressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::protobuf::Fields;

    fn series(name: &str, samples: impl Iterator<Item = (i64, f64)>) -> Series {
        let samples = samples.map(|(ts_ms, value)| Sample { ts_ms, value });
        Series {
            labels: Labels::from_pairs(&[("__name__", name)]),
            samples: samples.collect(),
        }
    }

    /// The messages inside fields with this number.
    fn inside(message: &[u8], number: u32) -> Vec<&[u8]> {
        let fields = Fields::new(message).map(Result::unwrap);
        let wanted = fields.filter(|(n, _)| *n == number);
        wanted.map(|(_, value)| value.bytes().unwrap()).collect()
    }

    #[test]
    fn an_answer_of_many_pieces_is_one_block() {
        let long = "n".repeat(3 * PIECE_BYTES);
        let given = vec![
            vec![
                series(
                    "a",
                    (0..20_000).map(|i| (i * 1_000_003 - 9_000_000_000, i as f64)),
                ),
                series(&long, [(i64::MIN, 0.0), (i64::MAX, f64::NAN)].into_iter()),
            ],
            vec![],
            vec![series("b", [(127, 1.0), (128, -0.0)].into_iter())],
        ];
        let block = samples(given.clone()).unwrap();
        let message = snap::raw::Decoder::new().decompress_vec(&block).unwrap();
        let results = inside(&message, 1);
        assert_eq!(results.len(), given.len());
        for (result, given) in results.into_iter().zip(&given) {
            let found = inside(result, 1);
            assert_eq!(found.len(), given.len());
            for (series, Series { labels, samples }) in found.into_iter().zip(given) {
                let label = inside(series, 1)[0];
                let name = labels.iter().next().unwrap().1.as_bytes();
                assert!(inside(label, 2) == [name]);
                let found: Vec<(i64, u64)> = inside(series, 2).into_iter().map(sample).collect();
                let bits = |s: &Sample| (s.ts_ms, s.value.to_bits());
                assert!(found == samples.iter().map(bits).collect::<Vec<_>>());
            }
        }
        assert_eq!(samples(vec![]), Ok(vec![0]));
    }

    fn sample(message: &[u8]) -> (i64, u64) {
        let fields: Vec<_> = Fields::new(message).map(Result::unwrap).collect();
        let [(1, value), (2, ts_ms)] = fields[..] else {
            panic!("{fields:?}")
        };
        (
            ts_ms.varint().unwrap() as i64,
            value.double().unwrap().to_bits(),
        )
    }

    #[test]
    fn an_answer_beyond_4_gib_is_refused() {
        assert_eq!(Block::new(1 << 32).err(), Some(TooLarge));
    }
}
