//! Removes what surrounds a text without being part of it. [`super::Decoder`] does so once for all
//! formats that are texts, so none of them does it again.
//!
//! Some editors begin a file with a byte order mark. C programs send a text with its terminating
//! NUL, or with the rest of a buffer of fixed size, which is NULs; a few put a NUL in front.

use super::split::BOM;

/// The text without byte order marks and a NUL at its start, and without NULs and white space at its
/// end. An empty file that is joined with another leaves a second mark. White space at the start
/// remains, so that lines keep their numbers. Takes constant time for a text without padding.
pub fn unpadded(payload: &[u8]) -> &[u8] {
    let mut text = payload.strip_prefix(b"\0").unwrap_or(payload);
    while let Some(rest) = text.strip_prefix(BOM) {
        text = rest;
    }
    let is_padding = |b: &u8| *b == 0 || b.is_ascii_whitespace();
    let end = text
        .iter()
        .rposition(|b| !is_padding(b))
        .map_or(0, |last| last + 1);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use crate::tests::NOW;
    use crate::{Context, Formats, Rejects};
    use config::Config;
    use model::{BatchBuilder, Reading};

    /// A payload of each format that is a text.
    const TEXTS: [(&str, &str); 9] = [
        ("json", r#"{"sensor_id":"S","temp":21.5}"#),
        (
            "json",
            r#"[{"sensor_id":"S","temp":1},{"sensor_id":"S","temp":2}]"#,
        ),
        (
            "ndjson",
            "{\"sensor_id\":\"S\",\"temp\":1}\n{\"sensor_id\":\"S\",\"temp\":2}\n",
        ),
        ("scalar", "21.5"),
        ("scalar", "\"open\""),
        ("line", "room,sensor_id=S temp=1\nroom,sensor_id=S temp=2"),
        ("senml", r#"[{"n":"S","v":1}]"#),
        (
            "otlp-json",
            include_str!("../../../fuzz/corpus/otlp-json/gauge"),
        ),
        (
            "tasmota",
            r#"{"Time":"2024-03-01T10:00:00Z","AM2301":{"Temperature":21.5}}"#,
        ),
    ];

    fn run(format: &str, payload: &[u8]) -> (Vec<Reading>, Rejects) {
        let decoding = Config::default().decoding();
        let decoder = Formats::new(&decoding).get(format).unwrap();
        let cx = Context {
            sensor_id: Some("S"),
            field: Some("temp"),
            ..Context::new(&decoding, NOW)
        };
        let mut out = BatchBuilder::new(cx.limits.fields_max);
        let mut rejects = Rejects::new();
        decoder.decode(payload, Some("tele/S/SENSOR"), &cx, &mut out, &mut rejects);
        (out.finish().to_readings(), rejects)
    }

    #[test]
    fn every_format_of_texts_is_read_without_its_padding() {
        for (format, text) in TEXTS {
            let (plain, rejects) = run(format, text.as_bytes());
            assert!(
                !plain.is_empty() && rejects.is_empty(),
                "{format}: {rejects:?}"
            );
            for (before, after) in [
                ("", "\0"),
                ("", "\0\0\0\0"),
                ("", "\n\0\0"),
                ("", "\0\0\r\n"),
                ("", " \0 \0\n\0"),
                ("\0", ""),
                ("\u{feff}", "\0\0"),
                ("\0\u{feff}", ""),
                ("\u{feff}\u{feff}", ""),
            ] {
                let padded = format!("{before}{text}{after}");
                let (readings, rejects) = run(format, padded.as_bytes());
                assert!(
                    rejects.is_empty(),
                    "{format}, {padded:?}: {:?}",
                    rejects.list()
                );
                assert_eq!(readings, plain, "{format}, {padded:?}");
            }
        }
    }
}
