//! Lists label names, label values, metrics and series, from the catalogue. A listing counts as a
//! query: it runs in a thread like one, and has the same limits of time and concurrency.

use std::collections::BTreeMap;

use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use serde_json::{Value as Json, json};

use super::answer::{
    Answered, LabelsJson, PrometheusError, TRUNCATED, sent, success_text, unrecorded_fields,
};
use super::params::{Params, unescaped};
use super::run::{Runner, Shown, Work};
use crate::admin::access::Reader;
use crate::promql::{Labels, METRIC_NAME, Matcher, PromqlError, parse_selector};
use crate::read::selector::SelectedSensor;
use model::stored_name;

/// Times stay within the range of dates, so that the sums of the catalogue's precision do not
/// overflow.
const TIME_MAX_MS: i64 = 300_000_000_000_000;
/// Bytes that the items of one listing take in memory, with [`ITEM_BYTES`] for each.
const LISTED_BYTES_MAX: usize = 64 << 20;
/// Bytes of an item without its text.
const ITEM_BYTES: usize = 64;

/// What is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    Series,
    LabelNames,
    LabelValues(String),
    Metadata,
}

pub(super) async fn series(runner: Runner, params: Params, reader: Reader) -> Answered {
    if params.selectors().is_empty() {
        return Err(PrometheusError::bad_data("no match[] parameter provided"));
    }
    list(runner, params, reader, Asked::Series).await
}

pub(super) async fn label_names(runner: Runner, params: Params, reader: Reader) -> Answered {
    list(runner, params, reader, Asked::LabelNames).await
}

pub(super) async fn label_values(
    State(runner): State<Runner>,
    Extension(reader): Extension<Reader>,
    name: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Answered {
    let name = name.map_err(|error| PrometheusError::bad_data(error.body_text()))?;
    let params = Params::new(&uri, b"")?;
    if name.0.is_empty() {
        return Err(PrometheusError::bad_data("invalid label name: \"\""));
    }
    let name = stored_name(&unescaped(&name.0)).into_owned();
    list(runner, params, reader, Asked::LabelValues(name)).await
}

pub(super) async fn metadata(
    State(runner): State<Runner>,
    Extension(reader): Extension<Reader>,
    uri: Uri,
) -> Answered {
    let params = Params::new(&uri, b"")?;
    list(runner, params, reader, Asked::Metadata).await
}

async fn list(runner: Runner, params: Params, reader: Reader, asked: Asked) -> Answered {
    let limit = params.limit()?;
    let overlaps_ms = match asked {
        Asked::Metadata => None,
        _ => overlaps_ms(&params)?,
    };
    let shown = Shown::default();
    let _ = shown.set(format!("{asked:?} {}", params.selectors().join(" ")));
    let body = runner.in_thread(reader, shown, None, move |work| {
        work.enter()?;
        let mut listing = Listing::new(asked, limit, work.settings.series_max);
        listing.collect(work, &params, overlaps_ms)?;
        Ok(listing.into_text())
    });
    let body = body.await?;
    sent(body, &runner.reads)
}

/// The time range, ms since 1970, end exclusive; `None` for all times.
fn overlaps_ms(params: &Params) -> Result<Option<(i64, i64)>, PrometheusError> {
    let start = params.time("start")?;
    let end = params.time("end")?;
    Ok(match (start, end) {
        (None, None) => None,
        (start, end) => Some((
            start.unwrap_or(-TIME_MAX_MS),
            end.unwrap_or(TIME_MAX_MS) + 1,
        )),
    })
}

/// What was found so far.
struct Listing {
    asked: Asked,
    /// Names or values.
    texts: FirstItems<String>,
    series: FirstItems<Labels>,
    /// Series in the listing, if the request has no lower limit.
    series_max: usize,
    lacks_fields: bool,
}

impl Listing {
    /// `limit`: of items, 0 for none.
    fn new(asked: Asked, limit: usize, series_max: usize) -> Listing {
        let limit = if limit == 0 { usize::MAX } else { limit };
        Listing {
            asked,
            texts: FirstItems::new(limit),
            series: FirstItems::new(limit),
            series_max,
            lacks_fields: false,
        }
    }

    fn collect(
        &mut self,
        work: &Work,
        params: &Params,
        overlaps_ms: Option<(i64, i64)>,
    ) -> Result<(), PrometheusError> {
        if self.asked == Asked::Metadata {
            let name = params.get("metric");
            let matchers: Vec<Matcher> = name
                .map(|name| Matcher::equal(METRIC_NAME, name).stored())
                .into_iter()
                .collect();
            return self.add_matching(work, &matchers, overlaps_ms);
        }
        if overlaps_ms.is_some_and(|(start, end)| end <= start) {
            return Ok(());
        }
        let selectors = params.selectors();
        if selectors.is_empty() {
            return self.add_matching(work, &[], overlaps_ms);
        }
        // One after another, so that only one has its regular expressions in memory.
        for text in selectors {
            let matchers = parse_selector(text)?;
            let matchers: Vec<Matcher> = matchers.iter().map(Matcher::stored).collect();
            self.add_matching(work, &matchers, overlaps_ms)?;
        }
        Ok(())
    }

    fn add_matching(
        &mut self,
        work: &Work,
        matchers: &[Matcher],
        overlaps_ms: Option<(i64, i64)>,
    ) -> Result<(), PrometheusError> {
        let may_read = |sensor_id: &str| work.reader.may_read(sensor_id);
        let each = |sensor: &SelectedSensor<'_>| {
            work.stop.check()?;
            self.add(sensor)
        };
        work.until_stopped(
            work.reads
                .each_selected(matchers, overlaps_ms, &may_read, each),
        )
    }

    fn add(&mut self, sensor: &SelectedSensor<'_>) -> Result<(), PrometheusError> {
        let has_series = !sensor.fields.is_empty();
        let mut lists_fields = false;
        match &self.asked {
            Asked::Series => {
                lists_fields = true;
                for labels in sensor.series() {
                    let texts = labels.iter().map(|(name, value)| name.len() + value.len());
                    let bytes: usize = texts.sum();
                    self.series.add(labels, bytes)?;
                    if self.series.items.len() > self.series_max {
                        return Err(PromqlError::too_many_series(self.series_max).into());
                    }
                }
            }
            Asked::Metadata => {
                lists_fields = true;
                self.texts.add_all(&sensor.fields)?;
            }
            Asked::LabelValues(name) if name == METRIC_NAME => {
                lists_fields = true;
                self.texts.add_all(&sensor.fields)?;
            }
            Asked::LabelValues(of) => {
                let found = sensor.labels().find(|(name, _)| name == of);
                let value = found.filter(|_| has_series).map(|(_, value)| value);
                self.texts.add_all(value.as_slice())?;
            }
            Asked::LabelNames if has_series => {
                self.texts.add_all(&[METRIC_NAME])?;
                for (name, _) in sensor.labels() {
                    self.texts.add_all(&[name])?;
                }
            }
            Asked::LabelNames => {}
        }
        // One series is enough to list the labels that all of a sensor's share.
        self.lacks_fields |= sensor.may_lack_fields && (lists_fields || !has_series);
        Ok(())
    }

    /// The body of the answer.
    fn into_text(self) -> String {
        let mut warnings = vec![];
        if self.texts.is_cut || self.series.is_cut {
            warnings.push(TRUNCATED.to_owned());
        }
        if self.lacks_fields {
            warnings.push(unrecorded_fields());
        }
        let texts = self.texts.items.keys();
        match self.asked {
            Asked::Series => {
                let series: Vec<_> = self.series.items.keys().map(LabelsJson).collect();
                success_text(&series, &warnings)
            }
            Asked::Metadata => {
                let gauge: Json = json!([{ "type": "gauge", "help": "", "unit": "" }]);
                let metrics: BTreeMap<&String, &Json> = texts.map(|name| (name, &gauge)).collect();
                success_text(&metrics, &warnings)
            }
            Asked::LabelNames | Asked::LabelValues(_) => {
                success_text(&texts.collect::<Vec<_>>(), &warnings)
            }
        }
    }
}

/// Different items, the first ones in their order, with the bytes of each.
struct FirstItems<T> {
    items: BTreeMap<T, usize>,
    limit: usize,
    bytes: usize,
    /// There were more.
    is_cut: bool,
}

impl<T: Ord> FirstItems<T> {
    fn new(limit: usize) -> FirstItems<T> {
        FirstItems {
            items: BTreeMap::new(),
            limit,
            bytes: 0,
            is_cut: false,
        }
    }

    fn add(&mut self, item: T, bytes: usize) -> Result<(), PrometheusError> {
        let bytes = bytes + ITEM_BYTES;
        let replaced = self.items.insert(item, bytes).unwrap_or(0);
        self.bytes = self.bytes + bytes - replaced;
        if self.items.len() > self.limit {
            let last = self.items.pop_last();
            self.bytes -= last.map_or(0, |(_, bytes)| bytes);
            self.is_cut = true;
        }
        match self.bytes > LISTED_BYTES_MAX {
            true => Err(PromqlError::Execution(format!(
                "the answer needs more than {LISTED_BYTES_MAX} bytes; select fewer series \
                 (match[]), or set a limit"
            ))
            .into()),
            false => Ok(()),
        }
    }
}

impl FirstItems<String> {
    fn add_all(&mut self, texts: &[&str]) -> Result<(), PrometheusError> {
        let new = texts.iter().filter(|text| !text.is_empty());
        for text in new {
            if !self.items.contains_key(*text) {
                self.add((*text).to_owned(), text.len())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_items_are_kept_within_their_memory() {
        let mut first = FirstItems::new(2);
        first.add_all(&["c", "b", "", "c"]).unwrap();
        assert!(!first.is_cut);
        first.add_all(&["d", "a", "b"]).unwrap();
        assert!(first.is_cut);
        assert_eq!(first.items.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(first.bytes, 2 * (ITEM_BYTES + 1));
        let mut first = FirstItems::new(usize::MAX);
        let half = LISTED_BYTES_MAX / 2;
        first.add("a".to_owned(), half).unwrap();
        first.add("a".to_owned(), half).unwrap();
        let error = first.add("b".to_owned(), half).unwrap_err().to_string();
        assert!(error.contains("set a limit"), "{error}");
    }
}
