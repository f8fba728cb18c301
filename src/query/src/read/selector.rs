//! Which series of a sensor a selector matches, by the sensor's entry in the catalogue.

use std::sync::Arc;

use super::{ReadError, ReadService};
use crate::promql::{Labels, METRIC_NAME, Matcher, SENSOR_ID};
use model::{FieldKinds, SensorId};
use store::catalog::{CatalogEntry, CatalogQuery};

/// Which sensors a reader may read.
pub(crate) type MayRead<'a> = &'a (dyn Fn(&str) -> bool + Send + Sync);

/// The matchers of a selector.
pub(crate) struct SeriesSelector<'a> {
    matchers: &'a [Matcher],
    /// The only names of metrics that can match, if the selector lists them.
    names: Option<Vec<&'a str>>,
}

/// A sensor that a selector matches but for the names of metrics.
pub(crate) struct SelectedSensor<'a> {
    /// The sensor.
    pub entry: &'a CatalogEntry,
    /// Its recorded fields that match.
    pub fields: Vec<&'a str>,
    /// Whether fields that are not recorded could match, because the entry is truncated.
    pub(crate) may_lack_fields: bool,
}

impl<'a> SeriesSelector<'a> {
    /// The series that match all of these.
    pub(crate) fn new(matchers: &'a [Matcher]) -> SeriesSelector<'a> {
        let of_name = matchers.iter().filter(|m| m.name == METRIC_NAME);
        let names = of_name.filter_map(Matcher::alternatives).next();
        SeriesSelector { matchers, names }
    }

    /// Whether the selector lists the names of its metrics.
    pub(crate) fn lists_names(&self) -> bool {
        self.names.is_some()
    }

    /// Whether the sensor's id and tags match.
    pub(crate) fn has_sensor(&self, entry: &CatalogEntry) -> bool {
        let mut of_sensor = self.matchers.iter().filter(|m| m.name != METRIC_NAME);
        of_sensor.all(|m| m.matches(tag(entry, &m.name)))
    }

    /// The recorded fields that match, of a sensor that matches.
    pub(crate) fn fields<'e>(
        &self,
        entry: &'e CatalogEntry,
    ) -> impl Iterator<Item = (&'e str, FieldKinds)> {
        let recorded = entry
            .fields
            .iter()
            .map(|(name, kinds)| (name.as_str(), *kinds));
        recorded.filter(move |(name, kinds)| is_sampled(*kinds) && self.has_name(name))
    }

    /// Fields of a sensor that matches which are selected by name, but not recorded because its
    /// entry is truncated.
    pub(crate) fn unrecorded(&self, entry: &CatalogEntry) -> impl Iterator<Item = &'a str> {
        let names = self.names.as_deref().filter(|_| entry.is_truncated);
        let names = names.unwrap_or_default().iter().copied();
        names.filter(move |name| {
            !name.is_empty() && !entry.fields.contains_key(*name) && self.has_name(name)
        })
    }

    fn has_name(&self, name: &str) -> bool {
        let mut of_name = self.matchers.iter().filter(|m| m.name == METRIC_NAME);
        of_name.all(|m| m.matches(name))
    }

    /// The matchers that the catalogue can look up; the others are applied to its results.
    pub(crate) fn query(&self, overlaps_ms: Option<(i64, i64)>) -> CatalogQuery {
        let mut query = CatalogQuery {
            overlaps_ms,
            ..CatalogQuery::default()
        };
        for matcher in self.matchers {
            match (
                matcher.name.as_str(),
                matcher.is_equal() && !matcher.value.is_empty(),
            ) {
                (SENSOR_ID, _) => {
                    if let Some(ids) = matcher
                        .alternatives()
                        .filter(|ids| ids.iter().all(|id| !id.is_empty()))
                    {
                        query
                            .sensor_ids
                            .get_or_insert_with(|| ids.into_iter().map(SensorId::from).collect());
                    }
                }
                (METRIC_NAME, true) => {
                    query.field.get_or_insert_with(|| matcher.value.clone());
                }
                (_, true) => query
                    .tags
                    .push((matcher.name.clone(), matcher.value.clone())),
                _ => {}
            }
        }
        query
    }
}

impl SelectedSensor<'_> {
    /// The labels that all its series have, without the name of the metric. A tag without a value
    /// does not become one.
    pub(crate) fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = (SENSOR_ID, &*self.entry.sensor_id);
        let tags = self
            .entry
            .tags
            .iter()
            .map(|(name, value)| (&**name, &**value));
        let tags = tags.filter(|(name, value)| {
            !value.is_empty() && *name != SENSOR_ID && *name != METRIC_NAME
        });
        std::iter::once(own).chain(tags)
    }

    /// The labels of each of its series.
    pub(crate) fn series(&self) -> impl Iterator<Item = Labels> {
        let of_sensor = SensorLabels::new(self.entry);
        self.fields.iter().map(move |field| of_sensor.with(field))
    }
}

impl ReadService {
    /// Gives each sensor that matches and may have samples in the time range (ms since 1970, end
    /// exclusive) to `each`, ordered by the ids. Only some of them are in memory at a time.
    ///
    /// # Errors
    /// Those of `each`, which ends it, and [`ReadError`].
    pub(crate) async fn each_selected<E: From<ReadError>>(
        &self,
        matchers: &[Matcher],
        overlaps_ms: Option<(i64, i64)>,
        may_read: MayRead<'_>,
        mut each: impl FnMut(&SelectedSensor<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let selector = SeriesSelector::new(matchers);
        let query = selector.query(overlaps_ms);
        self.each_sensor(&query, |entry| {
            if !may_read(&entry.sensor_id) || !selector.has_sensor(&entry) {
                return Ok(());
            }
            let fields = selector.fields(&entry).map(|(name, _)| name);
            let is_whole = selector.lists_names() && selector.unrecorded(&entry).next().is_none();
            each(&SelectedSensor {
                fields: fields.collect(),
                may_lack_fields: entry.is_truncated && !is_whole,
                entry: &entry,
            })
        })
        .await
    }
}

/// The labels that all series of a sensor share.
pub(super) struct SensorLabels {
    name: Arc<str>,
    shared: Vec<(Arc<str>, Arc<str>)>,
}

impl SensorLabels {
    pub(super) fn new(entry: &CatalogEntry) -> SensorLabels {
        let own = std::iter::once((SENSOR_ID, &*entry.sensor_id));
        let tags = entry.tags.iter().map(|(name, value)| (&**name, &**value));
        let shared = own
            .chain(tags)
            .map(|(name, value)| (name.into(), value.into()));
        SensorLabels {
            name: METRIC_NAME.into(),
            shared: shared.collect(),
        }
    }

    /// The labels of the series of this field.
    pub(super) fn with(&self, field: &str) -> Labels {
        let own = std::iter::once((self.name.clone(), field.into()));
        Labels::new(own.chain(self.shared.iter().cloned()))
    }
}

/// The value of a label, which all series of the sensor share; empty if there is none.
fn tag<'e>(entry: &'e CatalogEntry, name: &str) -> &'e str {
    match name {
        SENSOR_ID => &entry.sensor_id,
        _ => entry.tags.get(name).map_or("", String::as_str),
    }
}

/// Text is not a sample.
fn is_sampled(kinds: FieldKinds) -> bool {
    kinds.contains(FieldKinds::NUMBER) || kinds.contains(FieldKinds::BOOL)
}
