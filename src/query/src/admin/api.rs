//! The HTTP side of the read API: parses requests, queries [`crate::read`], and renders JSON,
//! NDJSON or CSV.

mod rich_hours;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::get;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::access::{self, Access, Reader};
use super::answer::ApiError;
use super::cursor;
use super::params::{bounded, format_of, time, window_of};
use super::render::readings_body;
use crate::read::hours::Hour;
use crate::read::merge::{Cursor, Window};
use crate::read::sensors::{Place, SensorListQuery, SensorOrder, SensorState, SortKey};
use crate::read::{QueryResult, ReadService};
use model::{
    BucketStart, DAY_MS, Day, DeadLetter, FieldKinds, FieldSummary, SensorId, Span, rfc3339,
    stored_name,
};
use net::http::json;
use store::reading::{DeadLetterQuery, StoredDeadLetter};
use telemetry::rejected;

/// The routes of the read API.
pub(crate) const ROUTES: [&str; 9] = [
    "/v1/sensors",
    "/v1/sensors/{id}",
    "/v1/sensors/{id}/hourly",
    "/v1/sensors/{id}/hours",
    "/v1/sensors/{id}/quantiles",
    "/v1/sensors/{id}/daily",
    "/v1/sensors/{id}/readings",
    "/v1/fleet",
    "/v1/dead-letters",
];

/// Buckets that one response may span: more than two years of hours.
const BUCKETS_MAX: i64 = 20_000;
/// Days that one response may span.
const DAYS_MAX: i64 = 20_000;
/// A list of dead letters ends when its payloads reach this many bytes.
const DEAD_LETTERS_BYTES_MAX: usize = 4 << 20;
/// Entries in the list of rejected senders.
const REJECTED_MAX: usize = 20;

/// State of the routes; `None` if the read API is off.
pub(super) type Shared = State<Option<Arc<ReadService>>>;

pub(super) fn routes(reads: Option<Arc<ReadService>>, access: Access) -> Router {
    let [
        sensors_at,
        sensor_at,
        hourly_at,
        hours_at,
        quantiles_at,
        daily_at,
        readings_at,
        fleet_at,
        dead_letters_at,
    ] = ROUTES;
    Router::new()
        .route(sensors_at, get(sensors))
        .route(sensor_at, get(one_sensor))
        .route(hourly_at, get(hourly))
        .route(hours_at, get(rich_hours::rich_hours))
        .route(quantiles_at, get(rich_hours::quantiles))
        .route(daily_at, get(daily))
        .route(readings_at, get(readings))
        .route(fleet_at, get(fleet))
        .route(dead_letters_at, get(dead_letters))
        .route_layer(from_fn_with_state(access, access::guard))
        .with_state(reads)
}

fn known(reads: &Option<Arc<ReadService>>) -> Result<&ReadService, ApiError> {
    reads.as_deref().ok_or(ApiError::Off)
}

fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    query
        .map(|Query(params)| params)
        .map_err(|e| ApiError::Query(e.body_text()))
}

fn ok(body: &Json) -> Response {
    json(StatusCode::OK, body)
}

/// The parameters of a list of sensors, of which `tag` may be given several times.
#[derive(Default)]
struct SensorsParams {
    prefix: Option<String>,
    search: Option<String>,
    tags: Vec<(String, String)>,
    sort: Option<String>,
    after: Option<String>,
    before: Option<String>,
    limit: Option<String>,
    silent: Option<String>,
}

impl SensorsParams {
    fn new(given: Vec<(String, String)>) -> Result<SensorsParams, ApiError> {
        let mut params = SensorsParams::default();
        for (name, value) in given {
            let place = match name.as_str() {
                "prefix" => &mut params.prefix,
                "search" => &mut params.search,
                "sort" => &mut params.sort,
                "after" => &mut params.after,
                "before" => &mut params.before,
                "limit" => &mut params.limit,
                "silent" => &mut params.silent,
                "tag" => {
                    let pair = value.split_once('=').filter(|(_, value)| !value.is_empty());
                    let (name, value) =
                        pair.ok_or_else(|| ApiError::parameter("tag", "expected NAME=VALUE"))?;
                    let name = stored_name(name).into_owned();
                    params.tags.push((name, value.to_owned()));
                    continue;
                }
                _ => {
                    return Err(ApiError::Query(format!(
                        "unknown parameter `{name}`, expected one of `prefix`, `search`, `tag`, \
                         `sort`, `after`, `before`, `limit`, `silent`"
                    )));
                }
            };
            if place.replace(value).is_some() {
                return Err(ApiError::Query(format!("duplicate parameter `{name}`")));
            }
        }
        Ok(params)
    }

    /// The order of the list, unless it is that of the ids and goes forward.
    fn order(&self) -> Result<Option<SensorOrder>, ApiError> {
        let sort = self.sort.as_deref().unwrap_or("id");
        let key = match sort.trim_start_matches('-') {
            "id" => SortKey::Id,
            "last_arrival" => SortKey::LastArrival,
            "first_ts" => SortKey::FirstTs,
            _ => {
                let expected =
                    "expected id, last_arrival or first_ts, with - before it for descending";
                return Err(ApiError::parameter("sort", expected));
            }
        };
        let is_descending = sort.starts_with('-');
        let is_before = self.before.is_some();
        if is_before && self.after.is_some() {
            return Err(ApiError::parameter("before", "not together with `after`"));
        }
        if key == SortKey::Id && !is_descending && !is_before {
            return Ok(None);
        }
        let name = if is_before { "before" } else { "after" };
        let place = |cursor: &String| -> Result<Place, ApiError> {
            if key == SortKey::Id {
                return Ok((0, cursor::parse(cursor.clone())?.into()));
            }
            let parts = cursor.split_once('_');
            let place = parts.and_then(|(at, id)| Some((at.parse().ok()?, id.into())));
            place.ok_or_else(|| {
                let expected = "expected the `next` or `previous` of a response in this order";
                ApiError::parameter(name, expected)
            })
        };
        let place = self.before.as_ref().or(self.after.as_ref()).map(place);
        Ok(Some(SensorOrder {
            key,
            is_descending,
            place: place.transpose()?,
            is_before,
        }))
    }
}

async fn sensors(
    State(reads): Shared,
    Extension(reader): Extension<Reader>,
    params: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, ApiError> {
    let params = SensorsParams::new(query(params)?)?;
    let limit = bounded("limit", params.limit.as_deref(), 100, 1..=1000)?;
    let is_silent = match params.silent.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(ApiError::parameter("silent", "expected true or false")),
    };
    let order = params.order()?;
    let after = params.after.filter(|_| order.is_none());
    let is_moved = after.is_some();
    let query = SensorListQuery {
        prefix: params.prefix.unwrap_or_default(),
        after: after.map(cursor::parse).transpose()?,
        limit,
        is_silent,
        tags: params.tags,
        search: params.search.unwrap_or_default().to_lowercase(),
        readable: reader.patterns(),
    };
    let reads = known(&reads)?;
    let (list, next, previous) = match &order {
        None => {
            let list = reads.sensors(&query).await?;
            let next = list
                .next
                .as_ref()
                .map(|id| cursor::after(id, reader.may_read(id)));
            let next = next.transpose()?;
            let first = list.sensors.first().filter(|_| is_moved);
            let previous = first
                .map(|state| cursor::after(&state.sensor_id, true))
                .transpose()?;
            (list, next, previous)
        }
        Some(order) => {
            let list = reads.sorted_sensors(&query, order).await?;
            let cursor = |state: &SensorState| match order.key {
                SortKey::LastArrival => {
                    Ok(format!("{}_{}", state.entry.arrived_ms, state.sensor_id))
                }
                SortKey::FirstTs => Ok(format!("{}_{}", state.entry.first_ts_ms, state.sensor_id)),
                SortKey::Id => cursor::after(&state.sensor_id, true),
            };
            let (is_more_before, is_more_after) = list.has_more;
            let last = list.sensors.last().filter(|_| is_more_after);
            let first = list.sensors.first().filter(|_| is_more_before);
            let next = last.map(cursor).transpose()?;
            let previous = first.map(cursor).transpose()?;
            (list, next, previous)
        }
    };
    let sensors: Vec<Json> = list.sensors.iter().map(sensor).collect();
    Ok(ok(
        &json!({ "sensors": sensors, "next": next, "previous": previous }),
    ))
}

async fn one_sensor(
    State(reads): Shared,
    Extension(reader): Extension<Reader>,
    id: Result<Path<String>, PathRejection>,
    params: Result<Query<NoParams>, QueryRejection>,
) -> Result<Response, ApiError> {
    let id = sensor_id(id)?;
    query(params)?;
    reader.check(&id)?;
    let reads = known(&reads)?;
    let state = reads.sensor(&id).await?;
    let state = state.ok_or_else(|| unknown(reads, &reader, &id))?;
    Ok(ok(&sensor(&state)))
}

fn sensor(state: &SensorState) -> Json {
    let last: BTreeMap<&str, Json> = state
        .last
        .iter()
        .map(|(name, (ts_ms, value))| {
            (
                name.as_str(),
                json!({ "value": value, "ts": rfc3339(*ts_ms) }),
            )
        })
        .collect();
    let entry = &state.entry;
    let kinds =
        |(name, kinds): (&String, &FieldKinds)| (name.clone(), kinds.names().collect::<Vec<_>>());
    json!({
        "sensor_id": &*state.sensor_id,
        "last_ts": state.last_ts_ms.map(rfc3339),
        "tags": state.tags,
        "last": last,
        "first_ts": rfc3339(entry.first_ts_ms),
        "last_arrival": rfc3339(entry.arrived_ms),
        "fields": entry.fields.iter().map(kinds).collect::<BTreeMap<_, _>>(),
        "silent": state.is_silent,
        "former_ids": state.former_ids.iter().map(|id| &**id).collect::<Vec<_>>(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParams {}

/// Refuses an answer without data if no readings of the sensor have ever arrived.
async fn check_known(
    reads: &ReadService,
    reader: &Reader,
    id: &str,
    is_empty: bool,
) -> Result<(), ApiError> {
    match is_empty && !reads.knows(id).await? {
        true => Err(unknown(reads, reader, id)),
        false => Ok(()),
    }
}

/// Of a sensor that has no readings, perhaps because they count for another one now.
fn unknown(reads: &ReadService, reader: &Reader, id: &str) -> ApiError {
    let readable = |now: &SensorId| reader.check(now).is_ok();
    match reads.renamed_to(id).filter(readable) {
        Some(sensor_id) => ApiError::FormerId {
            former: id.into(),
            sensor_id,
        },
        None => ApiError::UnknownSensor,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RangeParams {
    from: Option<String>,
    to: Option<String>,
}

/// The sensor of a request, which the reader may read, and the range of time (ms).
fn sensor_and_range(
    reads: &ReadService,
    reader: &Reader,
    id: Result<Path<String>, PathRejection>,
    params: Result<Query<RangeParams>, QueryRejection>,
) -> Result<(String, i64, i64), ApiError> {
    let id = sensor_id(id)?;
    let params = query(params)?;
    reader.check(&id)?;
    let (from_ms, to_ms) = window_of(params.from.as_deref(), params.to.as_deref(), reads.now_ms())?;
    Ok((id, from_ms, to_ms))
}

fn check_buckets(span: Span, (from_ms, to_ms): (i64, i64)) -> Result<(), ApiError> {
    if (to_ms - span.floor(from_ms).0) / span.ms() > BUCKETS_MAX {
        let most = BUCKETS_MAX * span.ms() / 3_600_000;
        return Err(ApiError::parameter(
            "from",
            format!("time range too long; request at most {most} hours"),
        ));
    }
    Ok(())
}

async fn hourly(
    State(reads): Shared,
    Extension(reader): Extension<Reader>,
    id: Result<Path<String>, PathRejection>,
    params: Result<Query<RangeParams>, QueryRejection>,
) -> Result<Response, ApiError> {
    let reads = known(&reads)?;
    let (id, from_ms, to_ms) = sensor_and_range(reads, &reader, id, params)?;
    let span = reads.span();
    check_buckets(span, (from_ms, to_ms))?;
    let QueryResult {
        answer: hours,
        complete,
    } = reads.hours(&id, from_ms, to_ms).await?;
    check_known(reads, &reader, &id, hours.is_empty()).await?;
    let buckets: Vec<Json> = hours
        .iter()
        .map(|(start, hour)| bucket(*start, span.end(*start), hour))
        .collect();
    Ok(ok(&json!({
        "sensor_id": id, "from": rfc3339(from_ms), "to": rfc3339(to_ms), "buckets": buckets, "complete": complete,
    })))
}

async fn daily(
    State(reads): Shared,
    Extension(reader): Extension<Reader>,
    id: Result<Path<String>, PathRejection>,
    params: Result<Query<RangeParams>, QueryRejection>,
) -> Result<Response, ApiError> {
    let reads = known(&reads)?;
    let (id, from_ms, to_ms) = sensor_and_range(reads, &reader, id, params)?;
    if (to_ms - from_ms) / DAY_MS >= DAYS_MAX {
        return Err(ApiError::parameter(
            "from",
            format!("time range too long; request at most {DAYS_MAX} days"),
        ));
    }
    let QueryResult {
        answer: days,
        complete,
    } = reads.days(&id, from_ms, to_ms).await?;
    check_known(reads, &reader, &id, days.is_empty()).await?;
    let days: Vec<Json> = days
        .iter()
        .map(|(day, hour)| day_json(*day, hour))
        .collect();
    Ok(ok(&json!({
        "sensor_id": id, "from": rfc3339(from_ms), "to": rfc3339(to_ms), "zone": reads.zone().name(), "days": days,
        "complete": complete,
    })))
}

fn day_json(day: Day, hour: &Hour) -> Json {
    let mut shown = summary(hour);
    shown["day"] = rfc3339(day.start_ms).into();
    shown["day_end"] = rfc3339(day.end_ms).into();
    shown
}

fn bucket(start: BucketStart, end_ms: i64, hour: &Hour) -> Json {
    let mut shown = summary(hour);
    shown["bucket_start"] = rfc3339(start.0).into();
    shown["bucket_end"] = rfc3339(end_ms).into();
    shown
}

/// Count, times and fields.
fn summary(hour: &Hour) -> Json {
    let field = |(name, s): (&String, &FieldSummary)| {
        // JSON has no infinity: an overflowed sum and its average are null.
        let avg = s.sum.as_f64() / f64::from(s.count.max(1));
        let of = json!({
            "min": s.min, "max": s.max, "sum": s.sum, "count": s.count,
            "avg": avg,
        });
        (name.clone(), of)
    };
    let mut shown = json!({
        "count": hour.count,
        "first_ts": hour.first_ts_ms.map(rfc3339),
        "last_ts": hour.last_ts_ms.map(rfc3339),
        "summary": hour.summary.iter().map(field).collect::<serde_json::Map<_, _>>(),
    });
    if hour.is_truncated {
        shown["summary_truncated"] = json!(true);
    }
    shown
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadingsParams {
    from: Option<String>,
    to: Option<String>,
    limit: Option<String>,
    after: Option<String>,
    format: Option<String>,
    csv: Option<String>,
}

async fn readings(
    State(reads): Shared,
    Extension(reader): Extension<Reader>,
    id: Result<Path<String>, PathRejection>,
    params: Result<Query<ReadingsParams>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let reads = known(&reads)?;
    let id = sensor_id(id)?;
    let params = query(params)?;
    reader.check(&id)?;
    let format = format_of(params.format.as_deref(), params.csv.as_deref(), &headers)?;
    let (from_ms, to_ms) = window_of(params.from.as_deref(), params.to.as_deref(), reads.now_ms())?;
    let limit = bounded("limit", params.limit.as_deref(), 1000, 1..=100_000)?;
    let after = params
        .after
        .as_deref()
        .map(str::parse::<Cursor>)
        .transpose();
    let after = after.map_err(|_| {
        ApiError::parameter("after", "expected the `next` of the previous response")
    })?;
    let found = reads
        .readings(
            &id,
            Window {
                from_ms,
                to_ms,
                after,
                limit,
            },
        )
        .await?;
    check_known(reads, &reader, &id, found.answer.rows.is_empty()).await?;
    let sending = reads.sending(0)?;
    Ok(readings_body(format, &id, (from_ms, to_ms), found, sending))
}

async fn fleet(
    State(reads): Shared,
    Extension(reader): Extension<Reader>,
    params: Result<Query<NoParams>, QueryRejection>,
) -> Result<Response, ApiError> {
    reader.check_all()?;
    query(params)?;
    let fleet = known(&reads)?.fleet().await?;
    let busiest = fleet.busiest.iter().map(|b| {
        let rate = (b.readings_per_minute * 100.0).round() / 100.0;
        json!({ "sensor_id": &*b.sensor_id, "readings_per_minute": rate, "last_ts": rfc3339(b.last_ts_ms) })
    });
    let newest = fleet
        .newest
        .iter()
        .map(|m| json!({ "sensor_id": &*m.sensor_id, "first_seen": rfc3339(m.at_ms) }));
    let silent = fleet.silent.iter().map(|s| {
        let seconds = (fleet.as_of_ms - s.arrived_ms).max(0) / 1000;
        json!({ "sensor_id": &*s.sensor_id, "last_ts": rfc3339(s.last_ts_ms), "silent_seconds": seconds })
    });
    let rejected = rejected::latest(REJECTED_MAX).into_iter().map(|r| {
        json!({
            "source": r.source, "name": r.name, "reason": r.reason, "count": r.count,
            "last_at": rfc3339(r.last_at_ms), "detail": r.detail,
        })
    });
    Ok(ok(&json!({
        "as_of": rfc3339(fleet.as_of_ms),
        "sensors": fleet.sensors,
        "known": fleet.known,
        "silent_total": fleet.silent_total,
        "silent_after_seconds": fleet.silent_after_ms / 1000,
        "heard": fleet.heard,
        "late_total": fleet.late_total,
        "half_away": fleet.is_half_away(),
        "busiest": busiest.collect::<Vec<_>>(),
        "newest": newest.collect::<Vec<_>>(),
        "silent": silent.collect::<Vec<_>>(),
        "rejected": rejected.collect::<Vec<_>>(),
    })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeadLettersParams {
    limit: Option<String>,
    before: Option<String>,
    reason: Option<String>,
}

async fn dead_letters(
    State(reads): Shared,
    Extension(reader): Extension<Reader>,
    params: Result<Query<DeadLettersParams>, QueryRejection>,
) -> Result<Response, ApiError> {
    reader.check_all()?;
    let reads = known(&reads)?;
    let params = query(params)?;
    let limit = bounded("limit", params.limit.as_deref(), 20, 1..=100)?;
    let before = params
        .before
        .as_deref()
        .map(dead_letter_cursor)
        .transpose()?;
    let query = DeadLetterQuery {
        reason: params.reason,
        before,
        limit: limit + 1,
        bytes_max: DEAD_LETTERS_BYTES_MAX,
    };
    let mut found = reads.dead_letters(&query).await?;
    let bytes: usize = found.iter().map(|l| l.dead_letter.payload.len()).sum();
    let mut more = found.len() > limit;
    found.truncate(limit);
    // The list ended early because of its size: there may be more.
    more |= bytes >= DEAD_LETTERS_BYTES_MAX;
    let next = found.last().filter(|_| more).map(|last| {
        let at_ms = last.dead_letter.received_at_ms;
        let same = found
            .iter()
            .filter(|l| l.dead_letter.received_at_ms == at_ms)
            .count() as u32;
        let before = before.filter(|(at, _)| *at == at_ms).map_or(0, |(_, n)| n);
        format!("{at_ms}_{}", before + same)
    });
    Ok(ok(
        &json!({ "letters": found.iter().map(dead_letter).collect::<Vec<_>>(), "next": next }),
    ))
}

fn dead_letter_cursor(text: &str) -> Result<(i64, u32), ApiError> {
    let parsed = text
        .split_once('_')
        .and_then(|(at, n)| Some((at.parse().ok()?, n.parse().ok()?)));
    match parsed {
        Some(cursor) => Ok(cursor),
        // A time is valid too: dead letters received before it.
        None => Ok((time("before", text)?, 0)),
    }
}

fn dead_letter(stored: &StoredDeadLetter) -> Json {
    use base64::Engine as _;
    let DeadLetter {
        received_at_ms,
        source,
        topic,
        payload,
        reason,
        detail,
    } = &stored.dead_letter;
    let mut shown = json!({
        "id": stored.id, "received_at": rfc3339(*received_at_ms), "source": source, "topic": topic,
        "reason": reason, "detail": detail, "payload_bytes": payload.len(),
    });
    match std::str::from_utf8(payload) {
        Ok(text) => shown["payload_text"] = text.into(),
        Err(_) => shown["payload_base64"] = base64::prelude::BASE64_STANDARD.encode(payload).into(),
    }
    shown
}

/// The upper limit of `limits.sensor_id_max_bytes`.
const SENSOR_ID_MAX_BYTES: usize = 1024;

fn sensor_id(path: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    let Path(id) = path.map_err(|e| ApiError::Path(e.body_text()))?;
    match id.len() {
        0..=SENSOR_ID_MAX_BYTES => Ok(id),
        _ => Err(ApiError::Path(format!(
            "a sensor id has at most {SENSOR_ID_MAX_BYTES} bytes"
        ))),
    }
}
