//! Answers and errors in the form of Prometheus' HTTP API.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};
use tokio::sync::OwnedSemaphorePermit;

use crate::promql::format::{api_number, push_time};
use crate::promql::{Evaluated, Labels, PromqlError, Sample, Series, Value};
use crate::read::series::SelectError;
use crate::read::{ReadError, ReadService};
use model::catalog::CATALOG_FIELDS_MAX;

/// The warning of an answer that has more items than the request's `limit`.
pub(super) const TRUNCATED: &str = "results truncated due to limit";
/// Bytes of a body that are sent at a time.
const PIECE_BYTES: usize = 64 << 10;

pub(super) type Answered = Result<Response, PrometheusError>;

/// An error with Prometheus' type and status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PrometheusError {
    #[error(transparent)]
    Query(#[from] PromqlError),
    /// All queries that may run at a time are running.
    #[error("query timed out in query queue")]
    Queued,
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("internal error; see the log of the service")]
    Internal,
    #[error("unknown path; /openapi.json lists the paths of this port")]
    NotFound,
    #[error("this path accepts only {0}")]
    NotAllowed(&'static str),
    #[error("the body is larger than {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
    #[error("the body did not arrive within {seconds} s")]
    BodyTimeout { seconds: u64 },
}

impl From<SelectError> for PrometheusError {
    fn from(error: SelectError) -> PrometheusError {
        match error {
            SelectError::Read(error) => error.into(),
            SelectError::Query(error) => error.into(),
        }
    }
}

impl PrometheusError {
    pub(super) fn bad_data(text: impl Into<String>) -> PrometheusError {
        PrometheusError::Query(PromqlError::BadData(text.into()))
    }

    /// `errorType` and the status.
    fn kind(&self) -> (&'static str, u16) {
        match self {
            PrometheusError::Query(PromqlError::BadData(_)) => ("bad_data", 400),
            PrometheusError::Query(PromqlError::Execution(_)) => ("execution", 422),
            PrometheusError::Query(PromqlError::Cancelled) => ("canceled", 499),
            PrometheusError::Query(PromqlError::TimedOut)
            | PrometheusError::Queued
            | PrometheusError::Read(ReadError::TimedOut) => ("timeout", 503),
            PrometheusError::Read(_) | PrometheusError::Query(PromqlError::Unread) => {
                ("unavailable", 503)
            }
            PrometheusError::Internal => ("internal", 500),
            PrometheusError::NotFound => ("not_found", 404),
            PrometheusError::NotAllowed(_) => ("bad_data", 405),
            PrometheusError::TooLarge { .. } => ("bad_data", 413),
            PrometheusError::BodyTimeout { .. } => ("timeout", 408),
        }
    }
}

impl PrometheusError {
    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.kind().1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for PrometheusError {
    fn into_response(self) -> Response {
        let ((kind, _), status) = (self.kind(), self.status());
        let body = json!({ "status": "error", "errorType": kind, "error": self.to_string() });
        body_of(status, body.to_string())
    }
}

/// The warning of an answer that may lack fields of a sensor.
pub(super) fn unrecorded_fields() -> String {
    format!(
        "a sensor has more than {CATALOG_FIELDS_MAX} fields; those beyond are not listed, and only \
         selected by their exact names"
    )
}

/// `{"status": "success", "data": …}`.
pub(super) fn success(data: &impl Serialize, warnings: &[String]) -> Response {
    body_of(StatusCode::OK, success_text(data, warnings))
}

/// The body of [`success`].
pub(super) fn success_text(data: &impl Serialize, warnings: &[String]) -> String {
    #[derive(Serialize)]
    struct Success<'a, T> {
        status: &'static str,
        data: &'a T,
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        warnings: &'a [String],
    }
    let success = Success {
        status: "success",
        data,
        warnings,
    };
    // Texts, lists and maps with texts as keys always have a form in JSON.
    serde_json::to_string(&success).unwrap_or_default()
}

/// A response with this body. A large one counts as answers that are being sent, until it is.
///
/// # Errors
/// It is too large, or too many answers are being sent.
pub(super) fn sent(body: String, reads: &ReadService) -> Answered {
    if body.len() <= PIECE_BYTES {
        return Ok(body_of(StatusCode::OK, body));
    }
    let bytes_max = reads.sending_bytes_max();
    if body.len() > bytes_max {
        return Err(PromqlError::execution(format!(
            "the answer needs more than {bytes_max} bytes (admin.answers_max); select fewer \
             series, or a larger step"
        ))
        .into());
    }
    let sending = reads.sending(body.len())?;
    let length = HeaderValue::from(body.len());
    let next = |(mut rest, sending): (Bytes, OwnedSemaphorePermit)| async move {
        let piece = rest.split_to(rest.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some((Ok::<_, Infallible>(piece), (rest, sending)))
    };
    let pieces = stream::unfold((Bytes::from(body), sending), next);
    let mut response = response_of(StatusCode::OK, Body::from_stream(pieces));
    response.headers_mut().insert(CONTENT_LENGTH, length);
    Ok(response)
}

/// The body with the result of a query at `at_ms`; at most `limit` series unless that is 0.
pub(super) fn result_text(evaluated: Evaluated, at_ms: i64, limit: usize) -> String {
    let Evaluated {
        mut value,
        mut warnings,
        infos,
    } = evaluated;
    if let Value::Vector(series) | Value::Matrix(series) = &mut value
        && limit > 0
        && series.len() > limit
    {
        series.truncate(limit);
        warnings.push(TRUNCATED.to_owned());
    }
    value_text(&value, at_ms, &warnings, &infos)
}

fn value_text(value: &Value, at_ms: i64, warnings: &[String], infos: &[String]) -> String {
    let kind = value.value_type().as_str();
    let mut out =
        format!("{{\"status\":\"success\",\"data\":{{\"resultType\":\"{kind}\",\"result\":");
    match value {
        Value::Scalar(number) => push_pair(&mut out, at_ms, *number),
        Value::String(text) => {
            out.push('[');
            push_time(&mut out, at_ms);
            out.push(',');
            out.push_str(&Json::from(text.as_str()).to_string());
            out.push(']');
        }
        Value::Vector(series) => push_all(&mut out, series, |out, series| {
            out.push_str("\"value\":");
            let sample = series.samples.first().copied().unwrap_or(Sample {
                ts_ms: 0,
                value: f64::NAN,
            });
            push_pair(out, sample.ts_ms, sample.value);
        }),
        Value::Matrix(series) => push_all(&mut out, series, |out, series| {
            out.push_str("\"values\":[");
            for (i, sample) in series.samples.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                push_pair(out, sample.ts_ms, sample.value);
            }
            out.push(']');
        }),
    }
    out.push('}');
    for (name, remarks) in [("warnings", warnings), ("infos", infos)] {
        if !remarks.is_empty() {
            out.push_str(&format!(",\"{name}\":{}", json!(remarks)));
        }
    }
    out.push('}');
    out
}

fn push_all(out: &mut String, all: &[Series], one: impl Fn(&mut String, &Series)) {
    out.push('[');
    for (i, series) in all.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str("{\"metric\":");
        out.push_str(&json!(LabelsJson(&series.labels)).to_string());
        out.push(',');
        one(out, series);
        out.push('}');
    }
    out.push(']');
}

fn push_pair(out: &mut String, ts_ms: i64, value: f64) {
    out.push('[');
    push_time(out, ts_ms);
    out.push_str(",\"");
    out.push_str(&api_number(value));
    out.push_str("\"]");
}

/// An object of labels.
pub(super) struct LabelsJson<'a>(pub(super) &'a Labels);

impl Serialize for LabelsJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter())
    }
}

fn body_of(status: StatusCode, body: String) -> Response {
    response_of(status, Body::from(body))
}

fn response_of(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_form_of_prometheus() {
        let labels = Labels::from_pairs(&[("__name__", "temp"), ("site", "a\"b")]);
        let samples = vec![
            Sample {
                ts_ms: 1500,
                value: 0.5,
            },
            Sample {
                ts_ms: 2000,
                value: f64::INFINITY,
            },
        ];
        let series = vec![Series { labels, samples }];
        let text = |value| value_text(&value, 1500, &[], &["x".to_owned()]);
        let with = |kind: &str, result: &str| {
            format!(
                r#"{{"status":"success","data":{{"resultType":"{kind}","result":{result}}},"infos":["x"]}}"#
            )
        };
        let metric = r#"{"metric":{"__name__":"temp","site":"a\"b"},"#;
        assert_eq!(
            text(Value::Vector(series.clone())),
            with("vector", &format!(r#"[{metric}"value":[1.500,"0.5"]}}]"#))
        );
        assert_eq!(
            text(Value::Matrix(series)),
            with(
                "matrix",
                &format!(r#"[{metric}"values":[[1.500,"0.5"],[2,"+Inf"]]}}]"#)
            )
        );
        assert_eq!(
            text(Value::Scalar(f64::NAN)),
            with("scalar", r#"[1.500,"NaN"]"#)
        );
        assert_eq!(
            text(Value::String("é".to_owned())),
            with("string", r#"[1.500,"é"]"#)
        );
    }
}
