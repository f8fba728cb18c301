//! Content-Encoding: its name, and decompression that stops at a limit. Pure.
//!
//! Some senders compress and do not say so, or name another encoding. A body that is not what its
//! label says is recognised by its first bytes ([`compression`]), which no payload of a format has.
//!
//! Decompression stops as soon as the output exceeds the limit, so a decompression bomb costs the
//! limit in memory and no more. A body that is truncated, or has trailing bytes, is refused as a
//! whole: a truncated body must not pass for a short one. Zeros after the last gzip member are
//! padding, as for gzip(1).

use std::borrow::Cow;
use std::io::{self, Read};

use axum::http::HeaderMap;
use axum::http::header::CONTENT_ENCODING;
use flate2::bufread::{DeflateDecoder, GzDecoder, ZlibDecoder};

use model::compression;

/// Largest zstd window, 8 MiB: RFC 9659 §3 limits senders to it. It limits how much memory a frame
/// can make the decoder allocate.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Not compressed.
    Identity,
    /// One or more members (RFC 1952).
    Gzip,
    /// One or more frames (RFC 8878).
    Zstd,
    /// The zlib format (RFC 1950), or a raw stream (RFC 1951), which some senders send instead.
    Deflate,
    /// Only for remote write and read: the block format.
    Snappy,
}

/// Why a body could not be decompressed.
#[derive(Debug)]
pub enum DecompressError {
    /// The decompressed body exceeds the limit.
    TooLarge,
    /// The body is truncated, has trailing bytes, or is compressed in another way.
    Corrupt(io::Error),
}

/// A body whose encoding is not read here.
#[derive(Debug, thiserror::Error)]
#[error("unsupported Content-Encoding {given:?}; expected one of gzip, zstd, deflate, identity")]
pub struct UnsupportedEncoding {
    given: String,
}

impl Encoding {
    /// The one encoding that the headers name. Chains of encodings are refused: no sender needs
    /// them, and each step would multiply the effect of a decompression bomb.
    pub fn from_headers(headers: &HeaderMap) -> Result<Encoding, UnsupportedEncoding> {
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        let Some(first) = values.next() else {
            return Ok(Encoding::Identity);
        };
        let name = first.to_str().unwrap_or("?").trim();
        let encoding = match name.to_ascii_lowercase().as_str() {
            "" | "identity" => Some(Encoding::Identity),
            // RFC 9110 §8.4.1.3: x-gzip is equivalent to gzip.
            "gzip" | "x-gzip" => Some(Encoding::Gzip),
            "zstd" => Some(Encoding::Zstd),
            "deflate" => Some(Encoding::Deflate),
            _ => None,
        };
        match (encoding, values.next()) {
            (Some(encoding), None) => Ok(encoding),
            (_, None) => Err(UnsupportedEncoding {
                given: name.to_owned(),
            }),
            (_, Some(next)) => Err(UnsupportedEncoding {
                given: format!("{name}, {}", next.to_str().unwrap_or("?")),
            }),
        }
    }

    /// The name in Content-Encoding.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Identity => "identity",
            Encoding::Gzip => "gzip",
            Encoding::Zstd => "zstd",
            Encoding::Deflate => "deflate",
            Encoding::Snappy => "snappy",
        }
    }

    /// The encoding that the first bytes of a body show.
    fn of_magic(body: &[u8]) -> Option<Encoding> {
        match compression(body)? {
            "gzip" => Some(Encoding::Gzip),
            "zstd" => Some(Encoding::Zstd),
            _ => Some(Encoding::Deflate),
        }
    }

    /// The encoding of a body with this label. Snappy and deflate have no first bytes of their own,
    /// so [`Encoding::inflate`] finds out whether their label is right.
    pub fn of_body(self, body: &[u8]) -> Encoding {
        match self {
            Encoding::Snappy | Encoding::Deflate => self,
            _ => Encoding::of_magic(body).unwrap_or(self),
        }
    }

    /// Decompresses `body` to at most `limit` bytes. `self` is its label.
    pub fn inflate(self, body: &[u8], limit: u64) -> Result<Cow<'_, [u8]>, DecompressError> {
        let encoding = self.of_body(body);
        let error = match encoding.inflate_exactly(body, limit) {
            Err(DecompressError::Corrupt(error)) => error,
            done => return done,
        };
        let error = match Encoding::of_magic(body) {
            Some(other) if other != encoding => match other.inflate_exactly(body, limit) {
                Err(DecompressError::Corrupt(_)) => error,
                done => return done,
            },
            None if encoding != Encoding::Snappy => io::Error::other(format!(
                "{error}; it begins like none of gzip, zstd and zlib; if it is not compressed, \
                 leave out Content-Encoding"
            )),
            _ => error,
        };
        Err(DecompressError::Corrupt(error))
    }

    fn inflate_exactly(self, body: &[u8], limit: u64) -> Result<Cow<'_, [u8]>, DecompressError> {
        let inflated = match self {
            Encoding::Identity if body.len() as u64 > limit => Err(DecompressError::TooLarge),
            Encoding::Identity => return Ok(Cow::Borrowed(body)),
            Encoding::Gzip => inflate_gzip(body, limit),
            Encoding::Zstd => {
                let mut decoder =
                    zstd::Decoder::with_buffer(body).map_err(DecompressError::Corrupt)?;
                decoder
                    .window_log_max(ZSTD_WINDOW_LOG_MAX)
                    .map_err(DecompressError::Corrupt)?;
                // Continues from frame to frame until the input ends, so no bytes can be left.
                read_all(decoder, limit).map(|(out, _)| out)
            }
            Encoding::Deflate => inflate_deflate(body, limit),
            Encoding::Snappy => inflate_snappy(body, limit),
        };
        inflated.map(Cow::Owned)
    }
}

/// One or more members, and zeros.
fn inflate_gzip(body: &[u8], limit: u64) -> Result<Vec<u8>, DecompressError> {
    let mut out = Vec::new();
    let mut rest = body;
    loop {
        let left = limit - out.len() as u64;
        let (member, decoder) = read_all(GzDecoder::new(rest), left)?;
        if out.is_empty() {
            out = member;
        } else {
            out.extend(member);
        }
        rest = decoder.into_inner();
        if rest.iter().all(|byte| *byte == 0) {
            return Ok(out);
        }
    }
}

/// `deflate` is the zlib format (RFC 9110 §8.4.1.2), but some senders omit its wrapper, and nearly
/// every server accepts both. A few raw streams start with bytes that look like a zlib header; they
/// fail as zlib and are read again as raw.
fn inflate_deflate(body: &[u8], limit: u64) -> Result<Vec<u8>, DecompressError> {
    let raw = || read_whole(DeflateDecoder::new(body), limit, DeflateDecoder::into_inner);
    // RFC 1950 §2.2: method 8, and both bytes as one number divisible by 31.
    let looks_like_zlib = matches!(body, [cmf, flags, ..]
        if cmf & 0x0f == 8 && u16::from_be_bytes([*cmf, *flags]).is_multiple_of(31));
    if !looks_like_zlib {
        return raw();
    }
    match read_whole(ZlibDecoder::new(body), limit, ZlibDecoder::into_inner) {
        Err(DecompressError::Corrupt(e)) => raw().map_err(|_| DecompressError::Corrupt(e)),
        done => done,
    }
}

/// A block begins with its length, which is compared with the limit before anything is allocated.
fn inflate_snappy(body: &[u8], limit: u64) -> Result<Vec<u8>, DecompressError> {
    let corrupt = |error: snap::Error| DecompressError::Corrupt(io::Error::other(error));
    if snap::raw::decompress_len(body).map_err(corrupt)? as u64 > limit {
        return Err(DecompressError::TooLarge);
    }
    snap::raw::Decoder::new()
        .decompress_vec(body)
        .map_err(corrupt)
}

fn read_all<R: Read>(reader: R, limit: u64) -> Result<(Vec<u8>, R), DecompressError> {
    let mut out = Vec::new();
    // One byte more than allowed distinguishes a body that is too large from one that fits exactly.
    let mut reader = reader.take(limit.saturating_add(1));
    reader
        .read_to_end(&mut out)
        .map_err(DecompressError::Corrupt)?;
    if out.len() as u64 > limit {
        return Err(DecompressError::TooLarge);
    }
    Ok((out, reader.into_inner()))
}

/// Nothing may follow the end of the compressed data, of which `rest` returns the bytes.
fn read_whole<'a, R: Read>(
    reader: R,
    limit: u64,
    rest: impl FnOnce(R) -> &'a [u8],
) -> Result<Vec<u8>, DecompressError> {
    let (out, reader) = read_all(reader, limit)?;
    match rest(reader) {
        [] => Ok(out),
        _ => Err(DecompressError::Corrupt(io::Error::other(
            "trailing bytes after the end of the compressed data",
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use axum::http::HeaderValue;
    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    const TEXT: &[u8] = b"{\"sensor_id\":\"S1\",\"temp\":22.5}";

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(vec![], Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(vec![], Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn raw(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(vec![], Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn samples() -> Vec<(Encoding, Vec<u8>)> {
        vec![
            (Encoding::Gzip, gzip(TEXT)),
            (Encoding::Zstd, zstd::encode_all(TEXT, 3).unwrap()),
            (Encoding::Deflate, zlib(TEXT)),
            (Encoding::Deflate, raw(TEXT)),
            (
                Encoding::Snappy,
                snap::raw::Encoder::new().compress_vec(TEXT).unwrap(),
            ),
        ]
    }

    #[test]
    fn each_encoding_gives_back_what_went_in_and_not_a_byte_beyond_the_limit() {
        for (encoding, packed) in samples() {
            let limit = TEXT.len() as u64;
            assert_eq!(
                encoding.inflate(&packed, limit).unwrap(),
                TEXT,
                "{encoding:?}"
            );
            assert!(
                matches!(
                    encoding.inflate(&packed, limit - 1),
                    Err(DecompressError::TooLarge)
                ),
                "{encoding:?}"
            );
        }
    }

    #[test]
    fn a_truncated_body_or_one_with_something_behind_it_is_corrupt() {
        for (encoding, packed) in samples() {
            for cut in 1..packed.len() {
                let inflated = encoding.inflate(&packed[..cut], 1000);
                assert!(
                    matches!(inflated, Err(DecompressError::Corrupt(_))),
                    "{encoding:?} cut at {cut}: {inflated:?}"
                );
            }
            let longer = [&packed[..], b"rest"].concat();
            let inflated = encoding.inflate(&longer, 1000);
            assert!(
                matches!(inflated, Err(DecompressError::Corrupt(_))),
                "{encoding:?}: {inflated:?}"
            );
        }
    }

    #[test]
    fn several_members_and_frames_are_one_body() {
        let members = [gzip(TEXT), gzip(TEXT)].concat();
        assert_eq!(
            Encoding::Gzip.inflate(&members, 1000).unwrap(),
            [TEXT, TEXT].concat()
        );
        let frames = [
            zstd::encode_all(TEXT, 3).unwrap(),
            zstd::encode_all(TEXT, 3).unwrap(),
        ]
        .concat();
        assert_eq!(
            Encoding::Zstd.inflate(&frames, 1000).unwrap(),
            [TEXT, TEXT].concat()
        );
    }

    /// As gzip(1) does. Devices send buffers of a fixed size.
    #[test]
    fn zeros_after_a_gzip_member_are_padding() {
        for zeros in [1, 7, 5000] {
            let padded = [gzip(TEXT), gzip(TEXT), vec![0; zeros]].concat();
            assert_eq!(
                Encoding::Gzip.inflate(&padded, 1000).unwrap(),
                [TEXT, TEXT].concat()
            );
            let inflated = Encoding::Gzip.inflate(&padded, 2 * TEXT.len() as u64 - 1);
            assert!(matches!(inflated, Err(DecompressError::TooLarge)));
            let followed = [&padded[..], b"x"].concat();
            let inflated = Encoding::Gzip.inflate(&followed, 1000);
            assert!(matches!(inflated, Err(DecompressError::Corrupt(_))));
        }
    }

    #[test]
    fn bombs_stop_at_the_limit_and_large_windows_are_refused() {
        let zeros = vec![0; 50 << 20];
        for (encoding, packed) in [
            (Encoding::Gzip, gzip(&zeros)),
            (Encoding::Deflate, zlib(&zeros)),
            (Encoding::Deflate, raw(&zeros)),
            (Encoding::Zstd, zstd::encode_all(&zeros[..], 3).unwrap()),
            (
                Encoding::Snappy,
                snap::raw::Encoder::new().compress_vec(&zeros).unwrap(),
            ),
        ] {
            assert!(
                matches!(
                    encoding.inflate(&packed, 1 << 20),
                    Err(DecompressError::TooLarge)
                ),
                "{encoding:?}"
            );
        }
        let mut encoder = zstd::Encoder::new(vec![], 3).unwrap();
        encoder.window_log(27).unwrap();
        encoder.write_all(&zeros[..1 << 20]).unwrap();
        let packed = encoder.finish().unwrap();
        assert!(matches!(
            Encoding::Zstd.inflate(&packed, 8 << 20),
            Err(DecompressError::Corrupt(_))
        ));
    }

    #[test]
    fn one_known_encoding_is_taken_and_no_chain() {
        let of = |values: &[&'static str]| {
            let pairs = values
                .iter()
                .map(|v| (CONTENT_ENCODING, HeaderValue::from_static(v)));
            Encoding::from_headers(&HeaderMap::from_iter(pairs)).ok()
        };
        assert_eq!(of(&[]), Some(Encoding::Identity));
        assert_eq!(of(&["identity"]), Some(Encoding::Identity));
        assert_eq!(of(&["GZIP"]), Some(Encoding::Gzip));
        assert_eq!(of(&["x-gzip"]), Some(Encoding::Gzip));
        assert_eq!(of(&["zstd"]), Some(Encoding::Zstd));
        assert_eq!(of(&["deflate"]), Some(Encoding::Deflate));
        assert_eq!(of(&["br"]), None);
        assert_eq!(of(&["gzip, gzip"]), None);
        assert_eq!(of(&["identity, gzip"]), None);
    }
}
