//! The command `decode`: reads a payload from standard input, decodes it by one format or by all,
//! and says what to do if that yields nothing.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use super::decode::{Decode, DecodeOutput, DecodeRequest, run};
use super::decode_all;
use super::output::{StandardOutput, fail, print_line};
use config::Config;
use decode::{Formats, sparkplug};
use model::{Clock, SystemClock, compression};

/// The exit code of a payload that holds no reading and is not wrong.
const NOTHING_TO_STORE: u8 = 3;

pub(super) fn decode_stdin(request: Request<'_>, config: &Config) -> ExitCode {
    if std::io::stdin().is_terminal() {
        eprintln!("hourbucket: reading the payload from the terminal; end it with Ctrl-D");
    }
    let mut payload = vec![];
    if let Err(error) = std::io::stdin().lock().read_to_end(&mut payload) {
        return fail(format!("standard input: {error}"));
    }
    let birth = match request.birth.map(std::fs::read).transpose() {
        Ok(birth) => birth,
        Err(error) => return fail(format!("--birth: {error}")),
    };
    let settings = Decode::of_any_age(config);
    let received_at_ms = SystemClock::new().now().wall_ms;
    let Request {
        format,
        topic,
        template,
        ts_unit,
        ..
    } = request;
    let format = format.or(any_format(&payload));
    let request = DecodeRequest {
        format: format.unwrap_or_default(),
        birth: birth.as_deref(),
        topic,
        template,
        ts_unit,
        quiet: false,
    };
    let mut out = StandardOutput;
    if format.is_none() {
        return match decode_all::run(request, &payload, &mut out, &settings, received_at_ms) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => fail(error),
        };
    }
    match run(request, &payload, &mut out, &settings, received_at_ms) {
        Ok(printed) => {
            if let Some(hint) =
                decode_all::hint(request, printed, &payload, &settings, received_at_ms)
            {
                eprintln!("hourbucket: {hint}");
            }
            if let Some(note) = settings.rejected_now(&printed) {
                eprintln!("hourbucket: {note}");
            }
            match printed {
                DecodeOutput { readings: 1.., .. } => ExitCode::SUCCESS,
                DecodeOutput { rejects: 0, .. } => {
                    eprintln!(
                        "hourbucket: nothing to store, and no error: {}",
                        nothing(request, &payload, &settings)
                    );
                    ExitCode::from(NOTHING_TO_STORE)
                }
                _ => ExitCode::FAILURE,
            }
        }
        Err(error) => fail(error),
    }
}

/// The format for a payload with the same result in all formats; `None`: they differ.
fn any_format(payload: &[u8]) -> Option<&'static str> {
    (payload.is_empty() || compression(payload).is_some()).then_some("json")
}

/// Why a payload without a fault has no reading.
fn nothing(request: DecodeRequest<'_>, payload: &[u8], settings: &Decode) -> String {
    if payload.is_empty() {
        return "it is empty: over MQTT a sign-off, or a retained message that is cleared; over HTTP \
            most formats reject it"
            .to_owned();
    }
    let decoder = settings.formats.get(request.format);
    match decoder
        .ok()
        .and_then(|decoder| decoder.first_rule(payload, request.topic))
    {
        Some(rule) if rule.skips => {
            let topics = match &rule.topics[..] {
                [] => String::new(),
                topics => format!(" (topic {})", topics.join(", ")),
            };
            format!(
                "rule {} of {}{topics} has skip = true",
                rule.number, request.format
            )
        }
        _ if request.format == sparkplug::NAME => "the message carries no measurements".to_owned(),
        _ => "it holds no readings, or all values are null, nan, unavailable or similar".to_owned(),
    }
}

/// The settings affect decoding, but an invalid default file must not prevent it. One given with
/// `--config` does.
pub(super) fn settings(path: Option<&std::path::Path>) -> Result<Config, config::ConfigErrors> {
    match config::load(path, config::environment()) {
        Ok(loaded) => Ok(loaded.config),
        Err(errors) if path.is_some() => Err(errors),
        Err(_) => {
            eprintln!(
                "hourbucket: invalid configuration (run `hourbucket check` for details); decoding \
                 with the defaults"
            );
            Ok(Config::default())
        }
    }
}

pub(super) fn list_formats(config: &Config) -> ExitCode {
    Formats::new(&config.decoding())
        .names()
        .into_iter()
        .for_each(print_line);
    // Not a format for messages in general, but `decode` accepts it.
    print_line(sparkplug::NAME);
    ExitCode::SUCCESS
}

/// The request of the command line.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Request<'a> {
    /// `None`: all formats are tried.
    pub(super) format: Option<&'a str>,
    pub(super) topic: Option<&'a str>,
    pub(super) template: Option<&'a str>,
    pub(super) ts_unit: Option<&'a str>,
    /// The file of a Sparkplug birth.
    pub(super) birth: Option<&'a std::path::Path>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_format_an_empty_or_compressed_payload_is_named_as_such() {
        for (payload, wanted) in [(&b""[..], ""), (b"\x1f\x8b\x08\0", "is compressed (gzip)")] {
            let request = DecodeRequest {
                format: any_format(payload).unwrap(),
                ..DecodeRequest::default()
            };
            let mut out = vec![];
            run(
                request,
                payload,
                &mut out,
                &Decode::from_config(&Config::default()),
                0,
            )
            .unwrap();
            let printed = String::from_utf8(out).unwrap();
            assert!(printed.contains(wanted), "{printed}");
        }
        assert_eq!(any_format(b"m v=1"), None);
    }

    #[test]
    fn what_is_rightly_skipped_is_told_apart_from_what_is_rejected() {
        let why = |format, topic, payload: &str| {
            let request = DecodeRequest {
                format,
                topic: Some(topic),
                ..DecodeRequest::default()
            };
            let printed = run(
                request,
                payload.as_bytes(),
                &mut vec![],
                &Decode::from_config(&Config::default()),
                0,
            )
            .unwrap();
            assert_eq!(printed, DecodeOutput::default(), "{format} {payload}");
            nothing(
                request,
                payload.as_bytes(),
                &Decode::from_config(&Config::default()),
            )
        };
        let skipped = why(
            "zigbee2mqtt",
            "zigbee2mqtt/bridge/state",
            r#"{"state":"online"}"#,
        );
        assert!(
            skipped.starts_with("rule 1 of zigbee2mqtt (topic zigbee2mqtt/bridge/#"),
            "{skipped}"
        );
        assert!(why("scalar", "a/S/temp", "unavailable").contains("unavailable"));
        assert!(why("json", "a/S", "").contains("empty"));
        let settings = Decode::from_config(&Config::default());
        for format in settings.formats.names() {
            let request = DecodeRequest {
                format,
                ..DecodeRequest::default()
            };
            let printed = run(request, b"", &mut vec![], &settings, 0).unwrap();
            assert_eq!(printed, DecodeOutput::default(), "{format}");
        }
    }
}
