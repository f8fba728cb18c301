//! The command `tail`: shows readings as a running service accepts them, and rejects with their
//! reason.

use std::io::{BufRead, BufReader, IsTerminal};
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::client::{Client, ServiceArgs, body_text, error_detail, escaped};
use super::output::{fail, print_if_read};
use config::Config;
use store::maintain::report::printable;

/// A refusal is short.
const ERROR_BYTES_MAX: u64 = 64 << 10;

#[derive(Args)]
pub(super) struct Tail {
    /// Only sensors whose id matches; * matches any characters
    #[arg(long, value_name = "PATTERN")]
    sensor: Option<String>,
    /// Print JSON, one object per line, also on a terminal
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: ServiceArgs,
}

/// Runs until the service or the user ends it.
pub(super) fn run(options: &Tail, config: &Config) -> ExitCode {
    let admin = &config.admin;
    let client = match Client::new(
        &options.service,
        admin.listen,
        admin.tls.cert_file.is_some(),
        None,
    ) {
        Ok(client) => client,
        Err(error) => return fail(error),
    };
    let query = options
        .sensor
        .as_ref()
        .map(|pattern| format!("?sensor={}", escaped(pattern)))
        .unwrap_or_default();
    let mut response = match client.get(&format!("/v1/tail{query}")) {
        Ok(response) => response,
        Err(error) => {
            return fail(format!(
                "{}: {error}; is it running, with this admin.listen?",
                client.base()
            ));
        }
    };
    if response.status() != 200 {
        let text = error_detail(&body_text(&mut response, ERROR_BYTES_MAX));
        return fail(format!("{}: {}: {text}", client.base(), response.status()));
    }
    let as_text = !options.json && std::io::stdout().is_terminal();
    for line in BufReader::new(response.body_mut().as_reader()).lines() {
        let line = match line {
            Ok(line) => line,
            Err(error) => return fail(format!("{}: {error}", client.base())),
        };
        // An empty line says that the service is there.
        if line.is_empty() {
            continue;
        }
        let shown = if as_text { readable(&line) } else { line };
        match print_if_read(&shown) {
            Ok(true) => {}
            Ok(false) => return ExitCode::SUCCESS,
            Err(error) => return fail(error),
        }
    }
    fail(format!(
        "{}: the service has ended the stream: it is stopping, or the token is no longer valid",
        client.base()
    ))
}

/// A line for people: time, sensor, values, tags. Control characters are escaped, since senders
/// choose the texts.
fn readable(line: &str) -> String {
    let Ok(event) = serde_json::from_str::<Value>(line) else {
        return printable(line);
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), printable);
    let pairs = |value: &Value| -> String {
        let members = value.as_object().into_iter().flatten();
        members
            .map(|(name, value)| format!(" {}={}", printable(name), text(value)))
            .collect()
    };
    if let Some(dropped) = event["dropped"].as_u64() {
        return format!("({dropped} lines dropped: more arrives than is shown)");
    }
    if let Some(reject) = event.get("reject") {
        let count = reject["count"]
            .as_u64()
            .filter(|n| *n > 1)
            .map(|n| format!(" ({n} times)"))
            .unwrap_or_default();
        let [at, source, name, reason, detail] =
            ["at", "source", "name", "reason", "detail"].map(|k| text(&reject[k]));
        return format!("{at} REJECTED {source} {name}: {reason}{count}: {detail}");
    }
    let tags = pairs(&event["tags"]);
    let tags = if tags.is_empty() {
        tags
    } else {
        format!("  [{}]", tags.trim_start())
    };
    format!(
        "{} {}{}{tags}",
        text(&event["ts"]),
        text(&event["sensor_id"]),
        pairs(&event["values"])
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_for_people_are_short_and_harmless() {
        let reading = r#"{"sensor_id":"S\u001b1","ts":"2024-03-01T10:00:00.000Z","values":{"temp":22.5,"on":true},"tags":{"site":"north"},"source":"http"}"#;
        assert_eq!(
            readable(reading),
            "2024-03-01T10:00:00.000Z S\\u{1b}1 on=true temp=22.5  [site=north]"
        );
        let reject = r#"{"reject":{"at":"T","source":"mqtt","name":"a/b","reason":"too_old","count":2,"detail":"x"}}"#;
        assert_eq!(
            readable(reject),
            "T REJECTED mqtt a/b: too_old (2 times): x"
        );
        assert!(readable(r#"{"dropped":7}"#).contains("7 lines dropped"));
    }
}
