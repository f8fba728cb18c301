//! A byte buffer for rows, in chunks of a few kilobytes.
//!
//! A page of a busy sensor grows to a hundred kilobytes, row by row, among thousands of others. A single buffer would
//! be copied whenever it grows (twice its size in total), into memory that is not in the CPU caches and often new to
//! the process, and a quarter of it would be unused. With chunks nothing is copied, and the allocator reuses the memory
//! of earlier pages. A sensor that rarely sends has a single chunk that grows.

use std::collections::VecDeque;

/// Maximum size of a chunk, unless a single row is larger.
const PIECE_BYTES: usize = 4096;

/// Consecutive rows; no row spans two chunks.
#[derive(Debug, Clone, Default)]
pub(super) struct ChunkedBuffer {
    /// Full chunks.
    #[expect(clippy::box_collection, reason = "most buckets have none, and there are millions of buckets")]
    full: Option<Box<VecDeque<Vec<u8>>>>,
    /// Memory of the full chunks. Cached because it is queried for every reading, and they are not in the CPU caches.
    full_bytes: usize,
    last: Vec<u8>,
}

impl ChunkedBuffer {
    /// The chunk to append a row of this size to.
    pub(super) fn room(&mut self, row_bytes: usize) -> &mut Vec<u8> {
        let (len, capacity) = (self.last.len(), self.last.capacity());
        if len + row_bytes <= capacity {
            return &mut self.last;
        }
        if len + row_bytes <= PIECE_BYTES || len == 0 {
            // Grows by a half instead of doubling, because these buffers are most of a shard's memory.
            let more = row_bytes.max((capacity / 2).min(PIECE_BYTES - len.min(PIECE_BYTES)));
            self.last.reserve_exact(more);
        } else {
            let next = Vec::with_capacity(row_bytes.max(PIECE_BYTES));
            let piece = std::mem::replace(&mut self.last, next);
            self.full_bytes += held(&piece);
            self.full.get_or_insert_default().push_back(piece);
        }
        &mut self.last
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

    /// Removes and returns the first `whole` chunks and the first `bytes` of the next one. The cost is that of the
    /// removed bytes plus one chunk.
    pub(super) fn take_front(&mut self, whole: usize, bytes: usize) -> ChunkedBuffer {
        let Some(full) = self.full.as_deref_mut() else {
            return ChunkedBuffer { last: cut(&mut self.last, bytes), ..ChunkedBuffer::default() };
        };
        let front: VecDeque<Vec<u8>> = full.drain(..whole.min(full.len())).collect();
        let front_bytes = front.iter().map(held).sum();
        self.full_bytes -= front_bytes;
        let last = match full.front_mut() {
            Some(piece) => {
                self.full_bytes -= held(piece);
                let last = cut(piece, bytes);
                self.full_bytes += held(piece);
                last
            }
            None => cut(&mut self.last, bytes),
        };
        if full.is_empty() {
            self.full = None;
        }
        ChunkedBuffer { full: (!front.is_empty()).then(|| Box::new(front)), full_bytes: front_bytes, last }
    }

    /// Memory use, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.last.capacity() + self.full_bytes
    }
}

/// Memory of a full chunk.
fn held(piece: &Vec<u8>) -> usize {
    piece.capacity() + size_of::<Vec<u8>>()
}

/// Removes and returns the first bytes of a chunk.
fn cut(piece: &mut Vec<u8>, bytes: usize) -> Vec<u8> {
    if bytes == piece.len() {
        return std::mem::take(piece);
    }
    let rest = piece.split_off(bytes);
    std::mem::replace(piece, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(rows: usize, row_bytes: usize) -> ChunkedBuffer {
        let mut chunks = ChunkedBuffer::default();
        for i in 0..rows {
            chunks.room(row_bytes).extend(std::iter::repeat_n(i as u8, row_bytes));
        }
        chunks
    }

    fn held_by(chunks: &ChunkedBuffer) -> usize {
        chunks.full.iter().flat_map(|full| full.iter()).map(held).sum::<usize>() + chunks.last.capacity()
    }

    #[test]
    fn rows_stay_in_one_piece_and_little_of_the_memory_is_empty() {
        for (rows, row_bytes) in [(0, 1), (1, 36), (3, 36), (1000, 83), (5, 9000), (10_000, 7)] {
            let chunks = filled(rows, row_bytes);
            let all: Vec<u8> = chunks.iter().flatten().copied().collect();
            assert!(all.chunks(row_bytes).enumerate().all(|(i, row)| row.iter().all(|b| *b == i as u8)));
            assert!(chunks.iter().all(|piece| piece.len() % row_bytes == 0 && piece.len() <= row_bytes.max(4096)));
            assert_eq!(all.len(), rows * row_bytes);
            assert_eq!(chunks.memory_bytes(), held_by(&chunks));
            let empty = chunks.memory_bytes() - all.len();
            assert!(empty <= all.len() / 2 || empty <= 4096 + all.len() / 40, "{empty} for {rows} x {row_bytes}");
        }
    }

    #[test]
    fn the_front_goes_by_pieces_and_the_rest_keeps_its_order_and_its_books() {
        let (rows, row_bytes) = (500, 83);
        let per_piece = 4096 / row_bytes;
        for taken in [0, 1, per_piece - 1, per_piece, per_piece + 1, 3 * per_piece, rows - 1, rows] {
            let mut chunks = filled(rows, row_bytes);
            let front = chunks.take_front(taken / per_piece, taken % per_piece * row_bytes);
            let joined: Vec<u8> = front.iter().chain(chunks.iter()).flatten().copied().collect();
            assert_eq!(front.iter().map(<[u8]>::len).sum::<usize>(), taken * row_bytes);
            assert!(joined.chunks(row_bytes).enumerate().all(|(i, row)| row.iter().all(|b| *b == i as u8)));
            for chunks in [&front, &chunks] {
                assert_eq!(chunks.memory_bytes(), held_by(chunks), "{taken} taken");
            }
        }
    }
}
