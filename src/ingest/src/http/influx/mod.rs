//! The endpoints that senders of InfluxDB's line protocol expect: the write routes of versions 1, 2
//! and 3, and the few others that their clients query first.
//!
//! Each line is accepted or rejected separately. 204 without a body means that all lines were
//! accepted and are durable. Every other answer depends on how the clients react to it
//! ([`dialect`]): a wrong code makes them drop a batch that could be sent again, or retry forever a
//! batch that can never be accepted. Databases, buckets and organisations do not exist here. The
//! parameters that name them are accepted and ignored, and so is Content-Type.

mod dialect;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use serde::Deserialize;

pub(super) use self::dialect::Dialect;
use super::admit::{Shared, health_check, shown_sender};
use super::body::{BodyLimits, receive};
use super::error::IngestError;
use super::pipeline::{self, DecodeOptions};
use super::routes::{HEALTH, PING, QUERY, WRITE_V1, WRITE_V2, WRITE_V3, with_slash};
use decode::{Format, RejectReason, Rejects, TsUnit};
use net::http::encoding::Encoding;
use net::http::peer::Peer;
use telemetry::metrics::{self, Source};

/// Size limit of the body of a query.
const QUERY_BYTES_MAX: u64 = 64 << 10;

pub(super) fn routes(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    let guard = |dialect| from_fn_with_state((shared.clone(), dialect), admit);
    let write = |dialect| {
        let handler = move |State(shared): State<Arc<Shared>>, request: Request| {
            write(shared, dialect, request)
        };
        post(handler).get(health_check).route_layer(guard(dialect))
    };
    let query = get(query).post(query).route_layer(guard(Dialect::V1));
    let health =
        get(async |State(shared): State<Arc<Shared>>| dialect::health(shared.admission.check()));
    with_slash(WRITE_V1, write(Dialect::V1))
        .merge(with_slash(WRITE_V2, write(Dialect::V2)))
        .merge(with_slash(WRITE_V3, write(Dialect::V3)))
        .merge(with_slash(QUERY, query))
        .merge(with_slash(PING, get(ping)))
        .merge(with_slash(HEALTH, health))
}

/// Middleware like [`super::admit::admit`], with the token locations and error bodies of these
/// clients.
async fn admit(
    State((shared, dialect)): State<(Arc<Shared>, Dialect)>,
    request: Request,
    next: Next,
) -> Response {
    let admitted = shared.admit(
        Peer::find(request.extensions()),
        |credentials| match dialect.credentials_in_query(request.uri()) {
            Some((user, password)) => credentials.check_pair(&user, &password),
            None => credentials.check_influx(request.headers()),
        },
    );
    match admitted {
        Ok(sender) => sender.run(request, next).await,
        Err(error) => dialect.refuse(&error),
    }
}

async fn write(shared: Arc<Shared>, dialect: Dialect, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    take(&shared, dialect, &parts, body)
        .await
        .unwrap_or_else(|error| dialect.refuse(&error))
}

async fn take(
    shared: &Shared,
    dialect: Dialect,
    parts: &Parts,
    body: Body,
) -> Result<Response, IngestError> {
    let (options, all_or_nothing) = decode_options(dialect, parts)?;
    let (received, _running) = pipeline::arrive(shared, parts, body).await?;
    let (decoded, held) = pipeline::decode(shared, received, options).await?;
    if dialect == Dialect::V2 && decoded.rejects.any(RejectReason::TooManyReadings) {
        // Telegraf sends the lines again in two halves. After a 400 it would drop those beyond the
        // limit; the clients of the other dialects drop the body on any of the two.
        let limit = shared.decoding.limits.batch_max_readings;
        return Err(IngestError::TooManyLines { limit });
    }
    pipeline::count(
        &decoded.batch,
        &decoded.rejects,
        || shown_sender(parts),
        decoded.received_at_ms,
    );
    if all_or_nothing && !decoded.rejects.is_empty() {
        metrics::readings_rejected_total(
            Source::Http,
            RejectReason::NotAllGood,
            decoded.batch.len() as u64,
        );
        return Ok(dialect.nothing_taken(&decoded.rejects, &decoded.quoted));
    }
    let accepted = decoded.batch.len();
    pipeline::deliver(shared, decoded.batch, held).await?;
    Ok(answer(dialect, accepted, &decoded.rejects, &decoded.quoted))
}

/// A body without lines, or with comments only, is not an error: some clients send one to test
/// whether they may write.
fn answer(dialect: Dialect, accepted: usize, rejects: &Rejects, quoted: &[String]) -> Response {
    if rejects.is_empty() {
        dialect::done()
    } else {
        dialect.partly_taken(accepted, rejects, quoted)
    }
}

/// The parameters that are not ignored.
#[derive(Debug, Deserialize)]
struct Params {
    precision: Option<String>,
    accept_partial: Option<bool>,
}

/// Reads headers and query. The flag is true if one bad line rejects the whole body.
fn decode_options(dialect: Dialect, parts: &Parts) -> Result<(DecodeOptions, bool), IngestError> {
    let known = dialect.precisions();
    let query = Query::<Params>::try_from_uri(&parts.uri);
    let Query(params) = query.map_err(|e| IngestError::Query {
        detail: e.body_text(),
        known,
    })?;
    let precision = params.precision.as_deref().unwrap_or_default();
    let ts_unit = dialect.ts_unit(precision).ok_or_else(|| {
        // Does not repeat the value: if parameters are mixed up, it could be a secret.
        IngestError::Query {
            detail: "unknown precision".to_owned(),
            known,
        }
    })?;
    let all_or_nothing = dialect == Dialect::V3 && params.accept_partial == Some(false);
    let options = DecodeOptions {
        ts_unit,
        quoting: dialect == Dialect::V3,
        ..DecodeOptions::new(Format::Line.into(), Encoding::from_headers(&parts.headers)?)
    };
    Ok((options, all_or_nothing))
}

impl Dialect {
    /// The form of the errors on this path; `None`: not one of these routes.
    pub(super) fn of_path(path: &str) -> Option<Dialect> {
        match path {
            WRITE_V1 | QUERY => Some(Dialect::V1),
            WRITE_V2 => Some(Dialect::V2),
            WRITE_V3 => Some(Dialect::V3),
            _ => None,
        }
    }

    /// The unit of a precision. `Some(None)`: by magnitude. `None`: unknown precision.
    fn ts_unit(self, precision: &str) -> Option<Option<TsUnit>> {
        let unit = match (self, precision) {
            (Dialect::V1 | Dialect::V2, "") => TsUnit::Ns,
            (Dialect::V3, "" | "auto") => return Some(None),
            (_, "ns") | (Dialect::V1 | Dialect::V3, "n") | (Dialect::V3, "nanosecond") => {
                TsUnit::Ns
            }
            (_, "us") | (Dialect::V1 | Dialect::V3, "u") | (Dialect::V3, "microsecond") => {
                TsUnit::Us
            }
            (_, "ms") | (Dialect::V3, "millisecond") => TsUnit::Ms,
            (_, "s") | (Dialect::V3, "second") => TsUnit::S,
            (Dialect::V1, "m") => TsUnit::Minute,
            (Dialect::V1, "h") => TsUnit::Hour,
            _ => return None,
        };
        Some(Some(unit))
    }

    fn precisions(self) -> &'static str {
        match self {
            Dialect::V1 => "precision is one of n, ns, u, us, ms, s, m, h",
            Dialect::V2 => "precision is one of ns, us, ms, s",
            Dialect::V3 => {
                "precision is one of auto, nanosecond, microsecond, millisecond, second; \
                 accept_partial is a boolean"
            }
        }
    }

    /// User name and password in the query, which version 1 supports.
    fn credentials_in_query(self, uri: &Uri) -> Option<(String, String)> {
        #[derive(Deserialize)]
        struct Credentials {
            u: Option<String>,
            p: Option<String>,
        }
        let Query(Credentials { u, p }) = Query::<Credentials>::try_from_uri(uri)
            .ok()
            .filter(|_| self == Dialect::V1)?;
        Some((
            u.unwrap_or_default(),
            p.filter(|password| !password.is_empty())?,
        ))
    }
}

/// `/ping`: like InfluxDB, answers with its version only if `verbose` asks for it. Devices such as
/// those with Tasmota send it so, and send no data without a 200.
async fn ping(uri: Uri) -> Response {
    #[derive(Deserialize)]
    struct Ping {
        verbose: Option<String>,
    }
    let ping = Query::<Ping>::try_from_uri(&uri).ok();
    match ping.and_then(|Query(ping)| ping.verbose).as_deref() {
        None | Some("" | "0" | "false") => dialect::done(),
        Some(_) => dialect::version(),
    }
}

/// `/query`: the statements that version 1 clients send before they write. Other queries belong to
/// MongoDB.
async fn query(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let limits = BodyLimits::new(&shared.cfg).at_most(QUERY_BYTES_MAX);
    let statement = match receive(&parts, body, &limits, &shared.bodies).await {
        Ok(received) => statement(&parts.uri).or_else(|| {
            // A form body has the syntax of a URL query.
            statement(
                &format!("/?{}", String::from_utf8_lossy(&received.bytes))
                    .parse()
                    .ok()?,
            )
        }),
        Err(error) => return Dialect::V1.refuse(&error),
    };
    let statement = statement
        .unwrap_or_default()
        .trim_start()
        .to_ascii_uppercase();
    if statement.starts_with("CREATE DATABASE") {
        dialect::v1_json(
            StatusCode::OK,
            &serde_json::json!({ "results": [{ "statement_id": 0 }] }),
        )
    } else if statement.starts_with("SHOW DATABASES") {
        let none = serde_json::json!({ "name": "databases", "columns": ["name"] });
        let result = serde_json::json!({ "results": [{ "statement_id": 0, "series": [none] }] });
        dialect::v1_json(StatusCode::OK, &result)
    } else {
        Dialect::V1.refuse(&IngestError::NoQueries)
    }
}

fn statement(uri: &Uri) -> Option<String> {
    #[derive(Deserialize)]
    struct Statement {
        q: Option<String>,
    }
    Query::<Statement>::try_from_uri(uri).ok()?.0.q
}
