//! The answer to readings: how many were accepted and rejected, and why.

use std::borrow::Cow;

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use decode::{LeftOut, Reject, Rejects};
use model::ReadingBatch;
use net::http::json;

#[derive(Debug, Serialize)]
struct Answer<'a> {
    accepted: usize,
    rejected: usize,
    errors: Vec<Error<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    retimed: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<LeftOutParts<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    hints: &'a [Cow<'static, str>],
}

/// Parts of accepted readings that are not stored.
#[derive(Debug, Serialize)]
struct LeftOutParts<'a> {
    count: usize,
    names: &'a [String],
}

/// The accepted readings of a body.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Accepted {
    readings: usize,
    /// Readings that have the time of receipt in place of a time that could not be used.
    retimed: usize,
}

impl Accepted {
    pub(super) fn count(batch: &ReadingBatch) -> Accepted {
        Accepted {
            readings: batch.len(),
            retimed: batch.retimed(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Error<'a> {
    index: usize,
    reason: &'a str,
    detail: &'a str,
}

/// 200 if any reading was accepted, otherwise 400. `errors` lists the rejects that the decoder kept
/// ([`decode::KEPT_MAX`]), enough for each reading of a usual batch; `rejected` counts all.
///
/// A body without any reading (`[]`, an empty NDJSON) is 400 as well, with `rejected` 0 and the
/// error `no_readings`. 2xx means that readings are safe, and a sender that believes it sent some
/// must not get it.
pub(super) fn readings(accepted: Accepted, rejects: &Rejects) -> Response {
    let mut answer = answer(accepted, rejects);
    if accepted.readings == 0 && rejects.is_empty() {
        answer.errors.push(Error {
            index: 0,
            reason: "no_readings",
            detail: "the body contains no readings",
        });
    }
    let status = if accepted.readings > 0 {
        StatusCode::OK
    } else {
        StatusCode::BAD_REQUEST
    };
    json(status, &answer)
}

/// The answer to a hook. Always 2xx, because no hook sender retries. 202 if no reading was accepted
/// and the body is kept as a dead letter.
pub(super) fn hook(accepted: Accepted, rejects: &Rejects, kept: bool) -> Response {
    let status = if accepted.readings == 0 && kept {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    };
    json(status, &answer(accepted, rejects))
}

impl<'a> Error<'a> {
    fn describe(reject: &'a Reject) -> Error<'a> {
        Error {
            index: reject.index,
            reason: reject.reason.as_str(),
            detail: &reject.detail,
        }
    }
}

impl<'a> LeftOutParts<'a> {
    fn describe(left_out: &'a LeftOut) -> LeftOutParts<'a> {
        LeftOutParts {
            count: left_out.total(),
            names: left_out.names(),
        }
    }
}

fn answer(accepted: Accepted, rejects: &Rejects) -> Answer<'_> {
    Answer {
        accepted: accepted.readings,
        rejected: rejects.total(),
        errors: rejects.list().iter().map(Error::describe).collect(),
        retimed: accepted.retimed,
        left_out: Some(rejects.left_out())
            .filter(|left_out| left_out.total() > 0)
            .map(LeftOutParts::describe),
        hints: rejects.hints(),
    }
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// The details of the first rejects, at most `most`, as one line of text.
pub(super) fn first_details(rejects: &Rejects, most: usize) -> String {
    let first: Vec<&str> = rejects
        .list()
        .iter()
        .take(most)
        .map(|reject| reject.detail.as_str())
        .collect();
    let more = if rejects.total() > first.len() {
        "; and others"
    } else {
        ""
    };
    format!("{}{more}", first.join("; "))
}
