//! The rich summaries of a sensor's hours, and quantiles from their sketches.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::{RangeParams, Shared, check_buckets, check_known, known, ok, query, sensor_and_range};
use crate::admin::access::Reader;
use crate::admin::answer::ApiError;
use crate::read::rich_hours::HoursQuery;
use crate::read::{QueryResult, ReadService};
use columns::{FieldHour, Sketch};
use model::{BucketStart, rfc3339};

/// Quantiles of one request.
const QUANTILES_MAX: usize = 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HoursParams {
    from: Option<String>,
    to: Option<String>,
    field: Option<String>,
    quantiles: Option<String>,
}

/// What is asked of which hours; the reader may read them.
struct Asked {
    id: String,
    /// In ms since 1970, end exclusive.
    range: (i64, i64),
    field: Option<String>,
    quantiles: Option<String>,
}

impl Asked {
    fn new(
        reads: &ReadService,
        reader: &Reader,
        id: Result<Path<String>, PathRejection>,
        params: Result<Query<HoursParams>, QueryRejection>,
    ) -> Result<Asked, ApiError> {
        let HoursParams {
            from,
            to,
            field,
            quantiles,
        } = query(params)?;
        let range = Ok(Query(RangeParams { from, to }));
        let (id, from_ms, to_ms) = sensor_and_range(reads, reader, id, range)?;
        let range = (from_ms, to_ms);
        check_buckets(reads.span(), range)?;
        Ok(Asked {
            id,
            range,
            field,
            quantiles,
        })
    }
}

/// Quantiles that are asked for, each with its text.
fn quantiles_of(params: Option<&str>) -> Result<Vec<(String, f64)>, ApiError> {
    let texts = params.into_iter().flat_map(|list| list.split(','));
    let wrong = || {
        let most = format!("expected up to {QUANTILES_MAX} numbers from 0 to 1, such as 0.5,0.95");
        ApiError::parameter("quantiles", most)
    };
    let each = texts.map(|text| {
        let quantile: f64 = text.trim().parse().map_err(|_| wrong())?;
        let is_one = (0.0..=1.0).contains(&quantile);
        is_one
            .then(|| (text.trim().to_owned(), quantile))
            .ok_or_else(wrong)
    });
    let all: Vec<_> = each.collect::<Result<_, _>>()?;
    (all.len() <= QUANTILES_MAX)
        .then_some(all)
        .ok_or_else(wrong)
}

/// The quantiles of a sketch by their texts; null without values.
fn quantiles_json(sketch: Option<&Sketch>, asked: &[(String, f64)]) -> Json {
    let numbers: Vec<f64> = asked.iter().map(|(_, quantile)| *quantile).collect();
    let found = sketch.and_then(|sketch| sketch.quantiles(&numbers));
    let value = |at: usize| json!(found.as_ref().map(|found| found[at]));
    let each = asked.iter().enumerate();
    let each = each.map(|(at, (text, _))| (text.clone(), value(at)));
    Json::Object(each.collect())
}

pub(super) async fn quantiles(
    State(reads): Shared,
    Extension(reader): Extension<Reader>,
    id: Result<Path<String>, PathRejection>,
    params: Result<Query<HoursParams>, QueryRejection>,
) -> Result<Response, ApiError> {
    let reads = known(&reads)?;
    let Asked {
        id,
        range,
        field,
        quantiles,
    } = Asked::new(reads, &reader, id, params)?;
    let Some(field) = field else {
        return Err(ApiError::parameter(
            "field",
            "missing: the name of a field with numbers",
        ));
    };
    let quantiles = quantiles_of(Some(quantiles.as_deref().unwrap_or("0.5,0.95,0.99")))?;
    let QueryResult {
        answer: sketch,
        complete,
    } = reads.sketch(&id, &field, range).await?;
    let count: u64 = sketch.bins().map(|(_, count)| count).sum();
    check_known(reads, &reader, &id, count == 0).await?;
    Ok(ok(&json!({
        "sensor_id": id, "field": field, "from": rfc3339(range.0), "to": rfc3339(range.1), "count": count,
        "quantiles": quantiles_json(Some(&sketch), &quantiles), "complete": complete,
    })))
}

pub(super) async fn rich_hours(
    State(reads): Shared,
    Extension(reader): Extension<Reader>,
    id: Result<Path<String>, PathRejection>,
    params: Result<Query<HoursParams>, QueryRejection>,
) -> Result<Response, ApiError> {
    let reads = known(&reads)?;
    let Asked {
        id,
        range,
        field,
        quantiles,
    } = Asked::new(reads, &reader, id, params)?;
    let quantiles = quantiles_of(quantiles.as_deref())?;
    let hours = reads.rich_hours(HoursQuery {
        sensor_id: id.as_str().into(),
        field: field.as_deref(),
        range,
        needs_sketches: !quantiles.is_empty(),
    });
    let QueryResult {
        answer: hours,
        complete,
    } = hours.await?;
    check_known(reads, &reader, &id, hours.is_empty()).await?;
    let hour = |(start, fields): (&BucketStart, &BTreeMap<Arc<str>, FieldHour>)| {
        let fields = fields.iter();
        let fields = fields.map(|(name, hour)| (name.to_string(), rich_field(hour, &quantiles)));
        json!({
            "bucket_start": rfc3339(start.0), "bucket_end": rfc3339(reads.span().end(*start)),
            "fields": fields.collect::<serde_json::Map<_, _>>(),
        })
    };
    let hours: Vec<Json> = hours.iter().map(hour).collect();
    Ok(ok(&json!({
        "sensor_id": id, "from": rfc3339(range.0), "to": rfc3339(range.1), "hours": hours, "complete": complete,
    })))
}

/// The names of `sensor_day_hours`, and what is computed from them.
fn rich_field(hour: &FieldHour, asked: &[(String, f64)]) -> Json {
    let mut shown = serde_json::Map::new();
    if let Some(of) = &hour.numbers {
        let count = of.count as f64;
        let mean = of.integral / of.covered_ms as f64;
        for (name, value) in [
            ("count", json!(of.count)),
            ("min", json!(of.min)),
            ("max", json!(of.max)),
            ("sum", json!(of.sum)),
            ("avg", json!(of.mean())),
            ("stddev", json!((of.sum_sq / count).sqrt())),
            ("first", json!(of.first)),
            ("last", json!(of.last)),
            ("first_ts", rfc3339(of.first_ts_ms).into()),
            ("last_ts", rfc3339(of.last_ts_ms).into()),
            ("min_ts", rfc3339(of.min_ts_ms).into()),
            ("max_ts", rfc3339(of.max_ts_ms).into()),
            ("sum_sq", json!(of.sum_sq)),
            ("increase", json!(of.increase)),
            ("integral", json!(of.integral)),
            ("covered_ms", json!(of.covered_ms)),
            // Null if nothing is covered.
            ("time_weighted_avg", json!(mean)),
        ] {
            shown.insert(name.to_owned(), value);
        }
        if !asked.is_empty() {
            let found = quantiles_json(of.sketch.as_ref(), asked);
            shown.insert("quantiles".to_owned(), found);
        }
    }
    if let Some(of) = &hour.states {
        shown.insert("state_ms".to_owned(), json!(of.state_ms));
        shown.insert("state_first_ts".to_owned(), rfc3339(of.first_ts_ms).into());
        shown.insert("state_last_ts".to_owned(), rfc3339(of.last_ts_ms).into());
        shown.insert("state_last".to_owned(), json!(of.last));
    }
    Json::Object(shown)
}
