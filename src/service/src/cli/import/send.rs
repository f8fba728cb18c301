//! Sends batches to the service, and repeats each until the service has answered.

use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::cli::client::{Client, body_text, error_detail};

const WAIT_MIN: Duration = Duration::from_secs(1);
/// The least first wait, whatever the service asks for, such as `Retry-After: 0`. It doubles up to
/// [`WAIT_MIN`].
const ASKED_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(60);
/// A batch of rejects has 1,000 of them at most.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The service's answer to readings.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    pub(super) accepted: u64,
    pub(super) rejected: u64,
    pub(super) errors: Vec<AnsweredReject>,
}

#[derive(Debug, Deserialize)]
pub(super) struct AnsweredReject {
    pub(super) index: usize,
    pub(super) reason: String,
    pub(super) detail: String,
}

/// The outcome of a body.
pub(super) enum Sent {
    Answered(Answer),
    /// 413, and why: larger than `http.body_max_bytes`, or than the journal can hold.
    TooLarge(String),
}

/// Why a batch was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("{base}: {status}: {text}")]
    Refused {
        base: String,
        status: u16,
        text: String,
    },
    #[error("{base}: {text}; gave up after {}", config::write_duration(*.after))]
    GaveUp {
        base: String,
        text: String,
        after: Duration,
    },
}

/// Posts `body` and repeats it while the service is busy, stopping or away, for at most `patience`.
/// `on_wait` is called before each wait.
pub(super) fn post(
    client: &Client,
    path: &str,
    body: &[u8],
    patience: Duration,
    on_wait: impl Fn(&str, Duration),
) -> Result<Sent, SendError> {
    let since = Instant::now();
    let mut wait = WAIT_MIN;
    let mut asked_min = ASKED_MIN;
    loop {
        let (text, asked) = match client.post(path, body) {
            Ok(mut response) => match response.status().as_u16() {
                413 => return Ok(Sent::TooLarge(reason(&mut response))),
                status @ (408 | 429 | 500..) => {
                    let asked = response
                        .headers()
                        .get("retry-after")
                        .and_then(|v| v.to_str().ok()?.parse().ok());
                    (
                        format!("{status}: {}", reason(&mut response)),
                        asked.map(Duration::from_secs),
                    )
                }
                status => return answer(client, status, &mut response).map(Sent::Answered),
            },
            Err(error) => (error.to_string(), None),
        };
        let pause = asked.unwrap_or(wait).clamp(asked_min, WAIT_MAX);
        if since.elapsed() + pause > patience {
            return Err(SendError::GaveUp {
                base: client.base(),
                text,
                after: since.elapsed(),
            });
        }
        on_wait(&text, pause);
        std::thread::sleep(pause);
        wait = (wait * 2).min(WAIT_MAX);
        asked_min = (asked_min * 2).min(WAIT_MIN);
    }
}

/// What the service says about a request that it does not accept.
fn reason(response: &mut ureq::http::Response<ureq::Body>) -> String {
    error_detail(&body_text(response, ANSWER_BYTES_MAX))
}

/// 200 and 400 have the same body, if it is about readings.
fn answer(
    client: &Client,
    status: u16,
    response: &mut ureq::http::Response<ureq::Body>,
) -> Result<Answer, SendError> {
    let text = body_text(response, ANSWER_BYTES_MAX);
    serde_json::from_str(&text).map_err(|_| {
        let base = client.base();
        let text = error_detail(&text);
        SendError::Refused { base, status, text }
    })
}
