//! Compresses large answers while they are sent, if the client accepts zstd or gzip.
//!
//! The levels are the fastest ones: compressing takes about as long as writing the answer. It is
//! done in small pieces between which other requests are served.

use std::io::{self, Write};

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{StreamExt, stream};

use super::page::listed;
use super::params::weighted;

/// A body that is not larger is sent as it is.
const PLAIN_BYTES_MAX: u64 = 4 << 10;
/// Bytes that are compressed at a time.
const PIECE_BYTES: usize = 64 << 10;

enum Encoder {
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
    Gzip(GzEncoder<Vec<u8>>),
}

impl Encoder {
    /// The client's choice, with its name; zstd if it has none.
    fn accepted(headers: &HeaderMap) -> Option<(&'static str, Encoder)> {
        let weight = |coding: &str| {
            let all = listed(headers, &ACCEPT_ENCODING).map(weighted);
            let of_coding = all.filter(|(name, _)| name.eq_ignore_ascii_case(coding));
            of_coding.map(|(_, weight)| weight).fold(0.0, f32::max)
        };
        let zstd = weight("zstd");
        let gzip = weight("gzip");
        if zstd > 0.0 && zstd >= gzip {
            let encoder = zstd::stream::write::Encoder::new(vec![], 1).ok()?;
            return Some(("zstd", Encoder::Zstd(encoder)));
        }
        let encoder = Encoder::Gzip(GzEncoder::new(vec![], Compression::fast()));
        (gzip > 0.0).then_some(("gzip", encoder))
    }

    /// What is compressed so far.
    fn add(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        let written = match self {
            Encoder::Zstd(encoder) => {
                encoder.write_all(piece)?;
                encoder.get_mut()
            }
            Encoder::Gzip(encoder) => {
                encoder.write_all(piece)?;
                encoder.get_mut()
            }
        };
        Ok(std::mem::take(written))
    }

    fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Encoder::Zstd(encoder) => encoder.finish(),
            Encoder::Gzip(encoder) => encoder.finish(),
        }
    }
}

/// A body that is being compressed.
struct Compressed {
    body: BodyDataStream,
    /// Of the body's last chunk.
    rest: Bytes,
    encoder: Encoder,
}

/// Compresses the response if it is large.
pub(super) async fn compress(request: Request, next: Next) -> Response {
    let accepted = Encoder::accepted(request.headers());
    let response = next.run(request).await;
    let is_small = response
        .body()
        .size_hint()
        .upper()
        .is_some_and(|bytes| bytes <= PLAIN_BYTES_MAX);
    let Some((coding, encoder)) = accepted else {
        return response;
    };
    if is_small || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    head.headers.remove(CONTENT_LENGTH);
    for (name, value) in [(CONTENT_ENCODING, coding), (VARY, "accept-encoding")] {
        head.headers.append(name, HeaderValue::from_static(value));
    }
    let compressed = Compressed {
        body: body.into_data_stream(),
        rest: Bytes::new(),
        encoder,
    };
    let pieces = stream::unfold(Some(compressed), async |compressed| {
        compressed?.next().await
    });
    Response::from_parts(head, Body::from_stream(pieces))
}

impl Compressed {
    /// The next piece, and what follows it; `None` after the last one.
    async fn next(mut self) -> Option<(Result<Vec<u8>, axum::Error>, Option<Compressed>)> {
        loop {
            if self.rest.is_empty() {
                self.rest = match self.body.next().await {
                    Some(Ok(chunk)) => chunk,
                    Some(Err(error)) => return Some((Err(error), None)),
                    None => {
                        let last = self.encoder.finish().map_err(axum::Error::new);
                        return Some((last, None));
                    }
                };
            }
            let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
            match self.encoder.add(&piece) {
                Ok(written) if written.is_empty() => tokio::task::yield_now().await,
                Ok(written) => return Some((Ok(written), Some(self))),
                Err(error) => return Some((Err(axum::Error::new(error)), None)),
            }
        }
    }
}
