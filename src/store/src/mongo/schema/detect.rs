//! Detects whether the server has native time-series collections, by trying (docs/design.md,
//! section 3).
//!
//! A version number proves little: emulations report one of MongoDB's, a cluster may run at an
//! older feature level, and the user may lack privileges. So `sensor_readings` is created if it is
//! missing, and then `listCollections` shows the result. Only a collection whose `type` is
//! `timeseries`, with the expected time and meta field, is used.
//!
//! ```text
//!  existed before  create     exists after   outcome
//!  time-series     -          -              used, if its fields match; else an error
//!  plain or view   -          -              error: never changed, and never a reason to change the mode
//!  nothing         ok         time-series    used
//!  nothing         ok         plain          an emulation: removed again if empty; no time-series
//!  nothing         refused    time-series    another instance created it first: used
//!  nothing         unknown    nothing        no time-series
//!  nothing         no rights  nothing        error
//! ```
//!
//! "No time-series" means bucket mode with `store.mode = "auto"`, and an error with `"timeseries"`.
//! Any other failure is an error too: a mode chosen by accident would stay with the data.

use mongodb::bson::{Document, doc};

use crate::PrepareErrorEnd;
use crate::mongo::setup::{
    Failure, NAMESPACE_EXISTS, SchemaError, Setup, UNAUTHORIZED, UNKNOWN_OPTION,
};
use model::Span;
use model::collections::{BUCKETS, READINGS};

/// Its time field.
pub(crate) const TIME_FIELD: &str = "ts";
/// Its meta field: `{sensor_id, tags}`.
pub(crate) const META_FIELD: &str = "meta";

/// The outcome of the detection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Native {
    /// A matching time-series collection exists.
    Fits {
        /// Whether this run created it.
        made: bool,
    },
    /// The server does not support them, with the reason.
    Missing(String),
    /// The server reported success but created a plain collection.
    Emulated,
}

/// Why the outcome is undetermined, or the collection unusable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// An object of another type has the name: `collection` or `view`.
    OtherKind(String),
    /// A time-series collection with other fields.
    OtherFields { time: String, meta: Option<String> },
    /// The user must not create it.
    NoRights(String),
    /// Created, but not listed.
    NotListed,
    /// Another error, such as no primary.
    Failed(Failure),
}

/// The observations about the collection.
#[derive(Debug, Default)]
pub(crate) struct Observed<'a> {
    /// Its entry in `listCollections` before the creation.
    pub before: Option<&'a Document>,
    /// The response to `create`, if it was sent.
    pub created: Option<Result<(), Failure>>,
    /// Its entry in `listCollections` afterwards.
    pub after: Option<&'a Document>,
}

/// Classifies the observations; see the table above.
pub(crate) fn classify(seen: Observed<'_>) -> Result<Native, Obstacle> {
    if let Some(found) = seen.before {
        return fits(found).map(|()| Native::Fits { made: false });
    }
    match (seen.created, seen.after) {
        (Some(Ok(())), Some(found)) => match fits(found) {
            Ok(()) => Ok(Native::Fits { made: true }),
            Err(Obstacle::OtherKind(kind)) if kind != "view" => Ok(Native::Emulated),
            Err(obstacle) => Err(obstacle),
        },
        (_, Some(found)) => fits(found).map(|()| Native::Fits { made: false }),
        (Some(Ok(())), None) => Err(Obstacle::NotListed),
        (Some(Err(failure)), None) => match failure.code {
            Some(UNAUTHORIZED) => Err(Obstacle::NoRights(failure.detail)),
            Some(NAMESPACE_EXISTS) => Err(Obstacle::NotListed),
            Some(code) if UNKNOWN_OPTION.contains(&code) => Ok(Native::Missing(failure.detail)),
            _ => Err(Obstacle::Failed(failure)),
        },
        (None, None) => Ok(Native::Missing("creating it was not tried".into())),
    }
}

/// Whether the time-series collection exists.
///
/// # Errors
/// The collections cannot be listed.
pub(crate) async fn is_there(setup: &Setup<'_>) -> Result<bool, SchemaError> {
    let found = setup.list(&[READINGS]).await?;
    Ok(found.get(READINGS).is_some_and(|entry| fits(entry).is_ok()))
}

/// Whether an entry of `listCollections` is a time-series collection with the expected fields.
pub(crate) fn fits(found: &Document) -> Result<(), Obstacle> {
    let kind = found.get_str("type").unwrap_or("collection");
    if kind != "timeseries" {
        return Err(Obstacle::OtherKind(kind.to_owned()));
    }
    let options = found
        .get_document("options")
        .and_then(|o| o.get_document("timeseries"))
        .ok();
    let field = |name: &str| options.and_then(|o| o.get_str(name).ok());
    match (field("timeField"), field("metaField")) {
        (Some(TIME_FIELD), Some(META_FIELD)) => Ok(()),
        (time, meta) => Err(Obstacle::OtherFields {
            time: time.unwrap_or("none").to_owned(),
            meta: meta.map(ToOwned::to_owned),
        }),
    }
}

impl Obstacle {
    /// In words, with what to do.
    pub(crate) fn error(self, database: &str) -> SchemaError {
        let step = format!("looking for native time-series in {database}.{READINGS}");
        let instead = format!(
            "rename or drop {READINGS}, or use another store.database, or set store.mode = \
             \"bucket\", which does not need it; nothing was changed"
        );
        let end = match self {
            Obstacle::NoRights(_) | Obstacle::NotListed => PrepareErrorEnd::Rights,
            _ => PrepareErrorEnd::Operator,
        };
        let detail = match self {
            Obstacle::OtherKind(kind) => {
                let article = if kind == "collection" { "plain " } else { "" };
                format!(
                    "there is a {article}{kind} of that name, not a time-series collection: \
                     {instead}"
                )
            }
            Obstacle::OtherFields { time, meta } => {
                let meta = meta.map_or_else(|| "none".to_owned(), |m| format!("`{m}`"));
                format!(
                    "its time field is `{time}` and its meta field {meta}, not `{TIME_FIELD}` and \
                     `{META_FIELD}`: {instead}"
                )
            }
            Obstacle::NoRights(detail) => format!(
                "{detail}; the user of store.uri lacks the privilege createCollection there: grant \
                 the role readWrite on {database}, or run `hourbucket init` once as a user who has \
                 it, or set store.mode = \"bucket\""
            ),
            Obstacle::NotListed => format!(
                "it exists, but listCollections does not show it: grant the user of store.uri the \
                 privilege listCollections on {database} (role readWrite), or set store.mode = \
                 \"bucket\""
            ),
            Obstacle::Failed(failure) => {
                let advice = match failure.code {
                    Some(_) => "; if it lasts, set store.mode = \"bucket\" to work without them",
                    None => "",
                };
                let error = failure.at(step);
                return SchemaError {
                    detail: format!("{}{advice}", error.detail),
                    ..error
                };
            }
        };
        SchemaError::new(step, detail, end)
    }
}

/// The time range of the server's own buckets: `seconds` is an hour, `minutes` a day
/// (`bucketMaxSpanSeconds` of 3600 and 86400, read on 6.0.5). At least as long as hourbucket's
/// span, but no longer than needed: retention removes whole ones.
pub(crate) fn granularity(span: Span) -> &'static str {
    if span.ms() <= Span::HOUR.ms() {
        "seconds"
    } else {
        "minutes"
    }
}

/// The options of `create`; `expire_s` in seconds.
pub(crate) fn create_options(span: Span, expire_s: Option<i64>) -> Document {
    let mut options = doc! {
        "timeseries": { "timeField": TIME_FIELD, "metaField": META_FIELD, "granularity": granularity(span) },
    };
    if let Some(seconds) = expire_s {
        options.insert("expireAfterSeconds", seconds);
    }
    options
}

/// Detects native time-series collections, creating the collection if it is missing. Removes the
/// plain collection of an emulation.
///
/// # Errors
/// An obstacle, in words.
pub(crate) async fn detect(
    setup: &Setup<'_>,
    span: Span,
    expire_s: Option<i64>,
) -> Result<Native, SchemaError> {
    let before = setup.list(&[READINGS]).await?;
    let mut created = None;
    let mut after = before.clone();
    if before.get(READINGS).is_none() {
        created = Some(
            setup
                .create(READINGS, &create_options(span, expire_s))
                .await,
        );
        after = setup.list(&[READINGS]).await?;
    }
    let seen = Observed {
        before: before.get(READINGS),
        created,
        after: after.get(READINGS),
    };
    let native = classify(seen).map_err(|o| o.error(setup.db.name()))?;
    if native == Native::Emulated {
        remove_if_empty(setup).await?;
    }
    Ok(native)
}

/// Removes the plain collection that this run created. If it contains documents by now, it is kept
/// for an operator.
async fn remove_if_empty(setup: &Setup<'_>) -> Result<(), SchemaError> {
    let step = format!(
        "removing the plain collection {READINGS} that the server made instead of a time-series one"
    );
    let find = doc! { "find": READINGS, "limit": 1 };
    let reply = setup.ask(find).await.map_err(|f| f.at(&step))?;
    let empty = reply
        .get_document("cursor")
        .and_then(|c| c.get_array("firstBatch"))
        .is_ok_and(Vec::is_empty);
    if !empty {
        let detail = format!(
            "it contains documents already: inspect it, and drop it or set store.mode = \"bucket\" \
             ({BUCKETS} only)"
        );
        return Err(SchemaError::permanent(step, detail));
    }
    setup
        .change(doc! { "drop": READINGS })
        .await
        .map(drop)
        .map_err(|f| f.at(step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreErrorKind;

    fn entry(kind: &str, timeseries: Document) -> Document {
        doc! { "name": READINGS, "type": kind, "options": { "timeseries": timeseries }, "info": { "readOnly": false } }
    }

    fn native() -> Document {
        let fields = doc! { "timeField": "ts", "metaField": "meta", "granularity": "seconds", "bucketMaxSpanSeconds": 3600 };
        entry("timeseries", fields)
    }

    fn failure(code: i32) -> Failure {
        Failure {
            code: Some(code),
            detail: format!("error {code}"),
            kind: StoreErrorKind::Command,
            source: None,
        }
    }

    fn after_create(
        created: Result<(), Failure>,
        after: Option<&Document>,
    ) -> Result<Native, Obstacle> {
        classify(Observed {
            before: None,
            created: Some(created),
            after,
        })
    }

    #[test]
    fn an_existing_collection_is_used_only_if_it_fits() {
        let seen = |found: &Document| {
            classify(Observed {
                before: Some(found),
                ..Observed::default()
            })
        };
        assert_eq!(seen(&native()), Ok(Native::Fits { made: false }));
        for (kind, name) in [("collection", "plain collection"), ("view", "a view")] {
            let obstacle =
                seen(&doc! { "name": READINGS, "type": kind, "options": {} }).unwrap_err();
            assert_eq!(obstacle, Obstacle::OtherKind(kind.into()));
            let error = obstacle.error("db");
            assert!(
                error.to_string().contains(name) && error.to_string().contains("store.mode"),
                "{error}"
            );
            assert_eq!(error.end, PrepareErrorEnd::Operator);
        }
        // Very old servers do not report a type.
        assert_eq!(
            seen(&doc! { "name": READINGS }),
            Err(Obstacle::OtherKind("collection".into()))
        );
        for (fields, time, meta) in [
            (
                doc! { "timeField": "time", "metaField": "meta" },
                "time",
                Some("meta"),
            ),
            (
                doc! { "timeField": "ts", "metaField": "tags" },
                "ts",
                Some("tags"),
            ),
            (doc! { "timeField": "ts" }, "ts", None),
        ] {
            let other = Obstacle::OtherFields {
                time: time.into(),
                meta: meta.map(Into::into),
            };
            assert_eq!(seen(&entry("timeseries", fields)), Err(other));
        }
    }

    #[test]
    fn create_succeeded_only_if_the_collection_is_listed() {
        assert_eq!(
            after_create(Ok(()), Some(&native())),
            Ok(Native::Fits { made: true })
        );
        assert_eq!(after_create(Ok(()), None), Err(Obstacle::NotListed));
        let plain = doc! { "name": READINGS, "type": "collection", "options": {} };
        assert_eq!(after_create(Ok(()), Some(&plain)), Ok(Native::Emulated));
        // Another instance or program created it first.
        assert_eq!(
            after_create(Err(failure(48)), Some(&native())),
            Ok(Native::Fits { made: false })
        );
        assert_eq!(
            after_create(Err(failure(48)), Some(&plain)),
            Err(Obstacle::OtherKind("collection".into())),
            "not made by this run, so never removed"
        );
        assert_eq!(
            after_create(Err(failure(48)), None),
            Err(Obstacle::NotListed)
        );
    }

    #[test]
    fn only_an_unknown_option_means_that_there_is_no_time_series() {
        for code in UNKNOWN_OPTION {
            assert_eq!(
                after_create(Err(failure(code)), None),
                Ok(Native::Missing(format!("error {code}")))
            );
        }
        assert_eq!(
            after_create(Err(failure(13)), None),
            Err(Obstacle::NoRights("error 13".into()))
        );
        for failure in [
            failure(1),
            Failure {
                code: None,
                detail: "no server".into(),
                kind: StoreErrorKind::NoPrimary,
                source: None,
            },
        ] {
            let obstacle = after_create(Err(failure.clone()), None).unwrap_err();
            assert_eq!(obstacle, Obstacle::Failed(failure.clone()));
            assert_eq!(
                obstacle.error("db").end,
                PrepareErrorEnd::MayPass(failure.kind)
            );
        }
    }

    #[test]
    fn the_servers_buckets_are_at_least_one_span_long() {
        for (minutes, wanted) in [
            (1, "seconds"),
            (15, "seconds"),
            (60, "seconds"),
            (90, "minutes"),
            (1440, "minutes"),
        ] {
            assert_eq!(
                granularity(Span::from_ms(minutes * 60_000).expect("a divisor of a day")),
                wanted,
                "{minutes}m"
            );
        }
    }
}
