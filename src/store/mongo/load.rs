//! Buckets read back: the version of their pages and, where they are asked for, the identities of their readings.

use std::collections::{BTreeMap, HashMap};

use futures_util::TryStreamExt;
use mongodb::Collection;
use mongodb::action::Find;
use mongodb::bson::{Bson, DateTime, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use mongodb::options::{Hint, ReadConcern, SelectionCriteria};

use super::pack::SERIES;
use super::recount;
use super::series::{self, Look, Series};
use crate::model::{BucketStart, Form, ReadingKey, ValueRef};
use crate::store::{LoadRequest, LoadedBucket, LoadedPage};

/// Pages asked for in one `find`: without their readings, and with them in bytes, as far as the heads tell.
const HEADS_MAX: usize = 2000;
const READINGS_BYTES_MAX: u64 = 4 << 20;

/// What forms there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forms {
    /// That of new buckets.
    pub(super) new: Form,
    /// There is a time-series collection.
    pub(super) measured: bool,
}

/// A request (by its place) and a page of its bucket.
type PageKey = (usize, u32);

/// Loads the requested buckets: the heads of page 0 of each, behind a sealed page those of the next, and then the
/// readings of the pages in which one of the wanted time can be.
///
/// The two steps are not one moment. Between them only the last page can change, and what was not read of it is guarded
/// by the version that its head told: a write based on it is refused then.
///
/// A bucket whose document says so has its readings among the measurements instead; and so has one without a document, if
/// there are any (a process ended before it wrote the summary).
pub(super) async fn load(
    collection: &Collection<RawDocumentBuf>,
    series: &Series,
    requests: &[LoadRequest],
    forms: Forms,
) -> mongodb::error::Result<Vec<LoadedBucket>> {
    if requests.iter().any(|r| r.doubt) {
        series.fence.wait(&series.db, &series.options).await?;
    }
    let mut loaded = vec![LoadedBucket { form: forms.new, pages: vec![] }; requests.len()];
    let mut wanted: Vec<PageKey> = (0..requests.len()).map(|r| (r, 0)).collect();
    while !wanted.is_empty() {
        let mut next = vec![];
        for keys in wanted.chunks(HEADS_MAX) {
            let mut heads = find(collection, requests, keys, false).await?;
            for &(r, page) in keys {
                if let Some((head, of)) = heads.remove(&(r, page)) {
                    if head.sealed {
                        next.push((r, page + 1));
                    }
                    loaded[r].form = of;
                    loaded[r].pages.push(head);
                }
            }
        }
        wanted = next;
    }
    let mut some: Vec<PageKey> = vec![];
    let mut bytes = 0;
    let with_readings = requests.iter().enumerate().filter_map(|(r, request)| Some((r, request.readings_from?)));
    for (r, from_ms) in with_readings {
        if loaded[r].form == Form::Series {
            continue;
        }
        for page in 0..loaded[r].pages.len() {
            let head = &loaded[r].pages[page];
            if head.last_ts_ms < from_ms {
                continue;
            }
            bytes += head.bytes;
            some.push((r, page as u32));
            if bytes >= READINGS_BYTES_MAX {
                bytes = 0;
                fill(collection, requests, &std::mem::take(&mut some), &mut loaded).await?;
            }
        }
    }
    fill(collection, requests, &some, &mut loaded).await?;
    if forms.measured {
        measurements(series, requests, &mut loaded).await?;
    }
    Ok(loaded)
}

/// Looks at the measurements of the time-series buckets that are in doubt, or whose readings are wanted.
async fn measurements(
    series: &Series,
    requests: &[LoadRequest],
    loaded: &mut [LoadedBucket],
) -> mongodb::error::Result<()> {
    let mut by_start: BTreeMap<BucketStart, Vec<usize>> = BTreeMap::new();
    for (r, request) in requests.iter().enumerate() {
        let of_series = loaded[r].form == Form::Series && (request.doubt || request.readings_from.is_some());
        if of_series || (request.doubt && loaded[r].pages.is_empty()) {
            by_start.entry(request.bucket.start).or_default().push(r);
        }
    }
    for (start, places) in by_start {
        let look = |r: &usize| Look {
            sensor_id: &requests[*r].bucket.sensor_id,
            count_from_ms: if requests[*r].doubt { i64::MIN } else { i64::MAX },
            keys_from_ms: requests[*r].readings_from.unwrap_or(i64::MAX),
        };
        let looks: Vec<Look<'_>> = places.iter().map(look).collect();
        let found = series::measured(&series.readings, start, series.options.span, &looks).await?;
        for (r, measured) in places.into_iter().zip(found) {
            // Which page counts which measurement is of no meaning: all of them together count all.
            let counted: u64 = loaded[r].pages.iter().map(|page| u64::from(page.count)).sum();
            if requests[r].doubt && counted != u64::from(measured.count) {
                let pages = recount::recount(series, &requests[r].bucket, false).await?.pages;
                loaded[r] = LoadedBucket { form: Form::Series, pages };
            }
            if let Some(head) = loaded[r].pages.first_mut() {
                head.last_ts_ms = measured.last_ts_ms.unwrap_or(head.last_ts_ms);
                head.keys = measured.keys;
            }
        }
    }
    Ok(())
}

/// Puts pages with their readings into the place of their heads.
async fn fill(
    collection: &Collection<RawDocumentBuf>,
    requests: &[LoadRequest],
    keys: &[PageKey],
    loaded: &mut [LoadedBucket],
) -> mongodb::error::Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    for ((r, page), (found, _)) in find(collection, requests, keys, true).await? {
        loaded[r].pages[page as usize] = found;
    }
    Ok(())
}

async fn find(
    collection: &Collection<RawDocumentBuf>,
    requests: &[LoadRequest],
    keys: &[PageKey],
    readings: bool,
) -> mongodb::error::Result<HashMap<PageKey, (LoadedPage, Form)>> {
    let mut by_id: HashMap<(&str, i64, u32), usize> = HashMap::with_capacity(keys.len());
    let (mut ids, mut sensors, mut starts) = (vec![], vec![], vec![]);
    for &(r, page) in keys {
        let bucket = &requests[r].bucket;
        let start = DateTime::from_millis(bucket.start.0);
        by_id.insert((&bucket.sensor_id, bucket.start.0, page), r);
        ids.push(Bson::from(doc! { "sensor_id": &*bucket.sensor_id, "bucket_start": start, "page": page as i32 }));
        sensors.push(Bson::from(&*bucket.sensor_id));
        starts.push(Bson::from(start));
    }
    starts.sort_by_key(|s| s.as_datetime().map(|d| d.timestamp_millis()));
    starts.dedup();
    // `_id` decides; the other two are there for a sharded cluster, which targets by them.
    let filter = doc! { "_id": { "$in": ids }, "sensor_id": { "$in": sensors }, "bucket_start": { "$in": starts } };
    let mut projection = doc! {
        "count": 1, "has_overflow": 1, "last_ts": 1, "storage": 1,
        "bytes": { "$bsonSize": "$$ROOT" }, "summary_bytes": summary_bytes(),
    };
    if readings {
        projection.insert("readings", 1);
    }
    let find = collection.find(filter).projection(projection).hint(Hint::Name("_id_".into()));
    let mut cursor = selection(find).await?;
    let mut pages = HashMap::with_capacity(keys.len());
    while let Some(found) = cursor.try_next().await? {
        if let Some((sensor, start, page)) = page_id(&found)
            && let Some(r) = by_id.get(&(sensor, start, page))
        {
            let series = found.get_str("storage").is_ok_and(|s| s == SERIES);
            pages.insert((*r, page), (page_of(&found), if series { Form::Series } else { Form::Pages }));
        }
    }
    Ok(pages)
}

fn page_id(found: &RawDocument) -> Option<(&str, i64, u32)> {
    let id = found.get_document("_id").ok()?;
    let page = int(id.get("page").ok()??)?;
    let start = id.get_datetime("bucket_start").ok()?.timestamp_millis();
    Some((id.get_str("sensor_id").ok()?, start, u32::try_from(page).ok()?))
}

/// The bytes of a page's summary, for a projection; 0 where it has none.
pub(super) fn summary_bytes() -> Document {
    doc! { "$bsonSize": { "$cond": [{ "$eq": [{ "$type": "$summary" }, "object"] }, "$summary", {}] } }
}

/// A page, as far as the projection has it.
pub(super) fn page_of(found: &RawDocument) -> LoadedPage {
    let number = |name: &str| found.get(name).ok().flatten().and_then(int).unwrap_or(0);
    let keys = match found.get_array("readings") {
        Ok(readings) => readings.into_iter().filter_map(|r| key_of(r.ok()?.as_document()?)).collect(),
        Err(_) => vec![],
    };
    LoadedPage {
        count: number("count") as u32,
        sealed: found.get_bool("has_overflow").unwrap_or(false),
        last_ts_ms: found.get_datetime("last_ts").map(|d| d.timestamp_millis()).unwrap_or(i64::MIN),
        bytes: number("bytes").saturating_sub(number("summary_bytes")).max(0) as u64,
        summary_bytes: number("summary_bytes") as u64,
        keys,
    }
}

/// The identity of a stored reading or measurement.
pub(super) fn key_of(reading: &RawDocument) -> Option<ReadingKey> {
    Some(ReadingKey::new(reading.get_datetime("ts").ok()?.timestamp_millis(), values(reading)))
}

/// The values of a stored reading or measurement, by name.
pub(super) fn values(reading: &RawDocument) -> impl Iterator<Item = (&str, ValueRef<'_>)> {
    reading.into_iter().filter_map(|element| {
        let (name, value) = element.ok()?;
        Some((name.as_str(), value_of(value)?))
    })
}

/// A stored value; `None` for `ts`, `meta` and `_id`, and for what is not ours: hourbucket writes these four kinds only.
pub(super) fn value_of(value: RawBsonRef<'_>) -> Option<ValueRef<'_>> {
    match value {
        RawBsonRef::Double(v) => Some(ValueRef::Double(v)),
        RawBsonRef::Int64(v) => Some(ValueRef::Int(v)),
        RawBsonRef::Int32(v) => Some(ValueRef::Int(i64::from(v))),
        RawBsonRef::Boolean(v) => Some(ValueRef::Bool(v)),
        RawBsonRef::String(v) => Some(ValueRef::Str(v)),
        _ => None,
    }
}

/// As everything is read that a write depends on: what a majority has, from the primary.
pub(super) fn selection(find: Find<'_, RawDocumentBuf>) -> Find<'_, RawDocumentBuf> {
    find.read_concern(ReadConcern::majority())
        .selection_criteria(SelectionCriteria::ReadPreference(mongodb::options::ReadPreference::Primary))
}

/// An integer of either width, or a whole double.
pub(super) fn int(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(v) => Some(i64::from(v)),
        RawBsonRef::Int64(v) => Some(v),
        RawBsonRef::Double(v) => Some(v as i64),
        _ => None,
    }
}
