//! Recognises a compressed payload.

/// The compression of a payload, by its first bytes. No payload of a format begins like this.
pub fn compression(payload: &[u8]) -> Option<&'static str> {
    match payload {
        [0x1f, 0x8b, 0x08, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [0x78, 0x9c | 0xda, ..] => Some("zlib"),
        _ => None,
    }
}
