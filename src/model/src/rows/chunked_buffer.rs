//! A byte buffer for rows, in chunks of a few kilobytes.
//!
//! A page of a busy sensor grows to a hundred kilobytes, row by row, among thousands of others. A
//! single buffer would be copied whenever it grows (twice its size in total), into memory that is
//! not in the CPU caches and often new to the process, and a quarter of it would be unused. With
//! chunks nothing is copied, and the allocator reuses the memory of earlier pages. A sensor that
//! rarely sends has a single chunk that grows.

use std::collections::VecDeque;

/// Maximum size of a chunk, unless a single row is larger.
const PIECE_BYTES: usize = 4096;

/// Consecutive rows; no row spans two chunks.
#[derive(Debug, Clone, Default)]
pub(super) struct ChunkedBuffer {
    /// Full chunks.
    #[expect(
        clippy::box_collection,
        reason = "most buckets have none, and there are millions of buckets"
    )]
    full: Option<Box<VecDeque<Vec<u8>>>>,
    /// Memory of the full chunks. Cached because it is queried for every reading, and they are not
    /// in the CPU caches.
    full_bytes: usize,
    last: Vec<u8>,
}

impl ChunkedBuffer {
    /// The chunk to append a row of this size to.
    pub(super) fn room(&mut self, row_bytes: usize) -> &mut Vec<u8> {
        let len = self.last.len();
        let capacity = self.last.capacity();
        if len + row_bytes <= capacity {
            return &mut self.last;
        }
        if len + row_bytes <= PIECE_BYTES || len == 0 {
            // Grows by a half instead of doubling, because these buffers are most of a shard's
            // memory.
            let more = row_bytes.max((capacity / 2).min(PIECE_BYTES - len.min(PIECE_BYTES)));
            self.last.reserve_exact(more);
        } else {
            let next = Vec::with_capacity(row_bytes.max(PIECE_BYTES));
            let chunk = std::mem::replace(&mut self.last, next);
            self.full_bytes += held(&chunk);
            self.full.get_or_insert_default().push_back(chunk);
        }
        &mut self.last
    }

    /// The last byte, 0 if empty.
    pub(super) fn last_byte(&self) -> u8 {
        self.last.last().copied().unwrap_or(0)
    }

    /// All chunks, including the last one.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let full = self.full.iter().flat_map(|full| full.iter());
        full.chain([&self.last]).map(Vec::as_slice)
    }

    /// All chunks, mutable.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let full = self.full.iter_mut().flat_map(|full| full.iter_mut());
        full.chain([&mut self.last]).map(Vec::as_mut_slice)
    }

    /// Removes and returns the first `whole` chunks and the first `bytes` of the next one. The cost
    /// is that of the removed bytes plus one chunk.
    pub(super) fn take_front(&mut self, whole: usize, bytes: usize) -> ChunkedBuffer {
        let Some(full) = self.full.as_deref_mut() else {
            return ChunkedBuffer {
                last: cut(&mut self.last, bytes),
                ..ChunkedBuffer::default()
            };
        };
        let front: VecDeque<Vec<u8>> = full.drain(..whole.min(full.len())).collect();
        let front_bytes = front.iter().map(held).sum();
        self.full_bytes -= front_bytes;
        let last = match full.front_mut() {
            Some(chunk) => {
                self.full_bytes -= held(chunk);
                let last = cut(chunk, bytes);
                self.full_bytes += held(chunk);
                last
            }
            None => cut(&mut self.last, bytes),
        };
        if full.is_empty() {
            self.full = None;
        }
        ChunkedBuffer {
            full: (!front.is_empty()).then(|| Box::new(front)),
            full_bytes: front_bytes,
            last,
        }
    }

    /// Memory use, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.last.capacity() + self.full_bytes
    }
}

/// Memory of a full chunk.
fn held(chunk: &Vec<u8>) -> usize {
    chunk.capacity() + size_of::<Vec<u8>>()
}

/// Removes and returns the first bytes of a chunk.
fn cut(chunk: &mut Vec<u8>, bytes: usize) -> Vec<u8> {
    if bytes == chunk.len() {
        return std::mem::take(chunk);
    }
    let rest = chunk.split_off(bytes);
    std::mem::replace(chunk, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(rows: usize, row_bytes: usize) -> ChunkedBuffer {
        let mut chunks = ChunkedBuffer::default();
        for i in 0..rows {
            chunks
                .room(row_bytes)
                .extend(std::iter::repeat_n(i as u8, row_bytes));
        }
        chunks
    }

    fn held_by(chunks: &ChunkedBuffer) -> usize {
        chunks
            .full
            .iter()
            .flat_map(|full| full.iter())
            .map(held)
            .sum::<usize>()
            + chunks.last.capacity()
    }

    #[test]
    fn no_row_is_split_and_little_memory_is_unused() {
        for (rows, row_bytes) in [(0, 1), (1, 36), (3, 36), (1000, 83), (5, 9000), (10_000, 7)] {
            let chunks = filled(rows, row_bytes);
            let all: Vec<u8> = chunks.iter().flatten().copied().collect();
            assert!(
                all.chunks(row_bytes)
                    .enumerate()
                    .all(|(i, row)| row.iter().all(|b| *b == i as u8))
            );
            assert!(chunks.iter().all(|chunk| chunk.len() % row_bytes == 0 && chunk.len() <= row_bytes.max(4096)));
            assert_eq!(all.len(), rows * row_bytes);
            assert_eq!(chunks.memory_bytes(), held_by(&chunks));
            let empty = chunks.memory_bytes() - all.len();
            assert!(
                empty <= all.len() / 2 || empty <= 4096 + all.len() / 40,
                "{empty} for {rows} x {row_bytes}"
            );
        }
    }

    #[test]
    fn taking_from_the_front_keeps_order_and_counts_of_the_rest() {
        let rows = 500;
        let row_bytes = 83;
        let rows_per_chunk = 4096 / row_bytes;
        for taken in [
            0,
            1,
            rows_per_chunk - 1,
            rows_per_chunk,
            rows_per_chunk + 1,
            3 * rows_per_chunk,
            rows - 1,
            rows,
        ] {
            let mut chunks = filled(rows, row_bytes);
            let front =
                chunks.take_front(taken / rows_per_chunk, taken % rows_per_chunk * row_bytes);
            let joined: Vec<u8> = front
                .iter()
                .chain(chunks.iter())
                .flatten()
                .copied()
                .collect();
            assert_eq!(
                front.iter().map(<[u8]>::len).sum::<usize>(),
                taken * row_bytes
            );
            assert!(
                joined
                    .chunks(row_bytes)
                    .enumerate()
                    .all(|(i, row)| row.iter().all(|b| *b == i as u8))
            );
            for chunks in [&front, &chunks] {
                assert_eq!(chunks.memory_bytes(), held_by(chunks), "{taken} taken");
            }
        }
    }
}
