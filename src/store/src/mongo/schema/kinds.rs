//! What each of hourbucket's names must be: a collection or a view. Another program may have used a
//! name before. [`super::detect`] decides about the time-series collection.

use mongodb::bson::Document;

use crate::mongo::schema::Settings;
use crate::mongo::setup::{Listing, SchemaError, Setup};
use model::collections::{
    ALIASES, BUCKETS, CATALOG, COLUMNS, DAY_HOURS, DAY_SUMMARIES, DAYS, DEAD_LETTERS, LATEST, META,
    PENDING_DAYS, READINGS, RICH_HOURS, SUMMARIES,
};

/// What a name is or must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// It cannot keep pages: documents can neither grow in it nor expire.
    Capped,
    TimeSeries,
    View,
}

impl Kind {
    fn of_entry(entry: &Document) -> Kind {
        let is_capped = || entry.get_document("options")?.get_bool("capped");
        match entry.get_str("type") {
            Ok("view") => Kind::View,
            Ok("timeseries") => Kind::TimeSeries,
            _ if is_capped().unwrap_or(false) => Kind::Capped,
            _ => Kind::Plain,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Kind::Plain => "a plain collection",
            Kind::Capped => "a capped collection",
            Kind::TimeSeries => "a time-series collection",
            Kind::View => "a view",
        }
    }
}

impl Settings {
    /// Lists the collections and views that the settings need, in one command, and the time-series
    /// collection. Changes nothing.
    ///
    /// # Errors
    /// A name belongs to something else, or a collection has options or indexes with which writes
    /// would fail ([`super::foreign`]).
    pub(crate) async fn list_expected(&self, setup: &Setup<'_>) -> Result<Listing, SchemaError> {
        let found = setup.list(&self.expected_names()).await?;
        for (name, must_be) in self.expected() {
            let Some(is) = found
                .get(name)
                .map(Kind::of_entry)
                .filter(|is| *is != must_be)
            else {
                continue;
            };
            // MongoDB renames neither a view nor a time-series collection.
            let remedy = match is {
                Kind::Plain | Kind::Capped => "rename or drop it",
                Kind::TimeSeries | Kind::View => "drop it",
            };
            let other = match name {
                LATEST => ", use another store.database, or set latest.enabled = false",
                _ => ", or use another store.database",
            };
            let detail = format!(
                "{name} is {}, but hourbucket needs {} of that name: {remedy}{other}; nothing \
                 was changed",
                is.words(),
                must_be.words()
            );
            let step = format!("checking the collections of {}", setup.db.name());
            return Err(SchemaError::permanent(step, detail));
        }
        self.check_foreign(setup, &found).await?;
        Ok(found)
    }

    /// The names that the settings need, and that of the time-series collection.
    pub(crate) fn expected_names(&self) -> Vec<&'static str> {
        let names = self.expected().into_iter().map(|(name, _)| name);
        names.chain([READINGS]).collect()
    }

    fn expected(&self) -> Vec<(&'static str, Kind)> {
        let mut expected = vec![
            (BUCKETS, Kind::Plain),
            (DEAD_LETTERS, Kind::Plain),
            (META, Kind::Plain),
            (CATALOG, Kind::Plain),
            (ALIASES, Kind::Plain),
            (SUMMARIES, Kind::View),
        ];
        if self.optional_indexes.latest {
            expected.push((LATEST, Kind::Plain));
        }
        if let Some(rollup) = self.rollup {
            expected.push((PENDING_DAYS, Kind::Plain));
            if rollup.days.is_some() {
                expected.extend([(DAYS, Kind::Plain), (DAY_SUMMARIES, Kind::View)]);
            }
            if rollup.columns.is_some() {
                expected.extend([
                    (COLUMNS, Kind::Plain),
                    (DAY_HOURS, Kind::Plain),
                    (RICH_HOURS, Kind::View),
                ]);
            }
        }
        expected
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::mongo::{OptionalIndexes, RollupSchema};
    use model::Zone;
    use model::collections::OWN;

    #[test]
    fn every_name_is_one_of_our_own() {
        let settings = Settings {
            retention: None,
            retention_readings: None,
            retention_dead_letters: Duration::ZERO,
            optional_indexes: OptionalIndexes {
                latest: true,
                tags_index: false,
            },
            rollup: Some(RollupSchema {
                zone: Zone::UTC,
                days: Some(None),
                columns: Some(None),
            }),
        };
        let mut names = settings.expected_names();
        let mut own = OWN.to_vec();
        names.sort_unstable();
        own.sort_unstable();
        assert_eq!(names, own);
    }
}
