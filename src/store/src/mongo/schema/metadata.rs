//! What this database was written with: one document that every startup reads before it changes
//! anything.
//!
//! ```text
//! hourbucket_meta: { _id: "schema", version: 1, span_ms: 3600000, created_by: "0.1.0" }
//! ```
//!
//! `version` is the schema version of all documents. A newer one is refused, since this process
//! could not correctly guard or count pages that follow unknown rules. `span_ms` is `bucket.span`.
//! Pages of two spans would overlap, so the same reading could be stored in both and every hour
//! would be counted twice. Therefore the first startup sets the span permanently, before the first
//! page is written. If two instances with different spans start at the same time, one is refused.

use std::time::Duration;

use mongodb::bson::{Document, doc};

use crate::mongo::document::int_of;
use crate::mongo::pack::SCHEMA_VERSION;
use crate::mongo::setup::{SchemaError, Setup};
use config::write_duration;
use model::Span;
use model::collections::{BUCKETS, META};

const STEP: &str = "reading the schema version and span of the database (hourbucket_meta)";

/// Refuses a database that was written with another span or by a newer version. Changes nothing.
///
/// # Errors
/// What does not match, and what to do.
pub(crate) async fn check(setup: &Setup<'_>, span: Span) -> Result<(), SchemaError> {
    let found = match recorded(setup).await? {
        Some(found) => found,
        None => match one_page(setup).await? {
            // The document was removed, or not restored.
            Some(page) => derive_from_page(&page, span),
            None => return Ok(()),
        },
    };
    fits(&found, span, setup.db.name())
}

/// Checks the same, and records the span if none is recorded yet; returns whether it did.
///
/// # Errors
/// What does not match, and what to do.
pub(crate) async fn record_span(setup: &Setup<'_>, span: Span) -> Result<bool, SchemaError> {
    check(setup, span).await?;
    let fields = doc! {
        "version": SCHEMA_VERSION, "span_ms": span.ms(), "created_by": env!("CARGO_PKG_VERSION"),
    };
    let (found, is_new) = setup
        .find_or_insert("schema", fields)
        .await
        .map_err(|f| f.at("recording the span of the buckets (hourbucket_meta)"))?;
    fits(&found, span, setup.db.name())?;
    Ok(is_new)
}

async fn recorded(setup: &Setup<'_>) -> Result<Option<Document>, SchemaError> {
    first(
        setup,
        doc! { "find": META, "filter": { "_id": "schema" }, "limit": 1 },
    )
    .await
}

async fn one_page(setup: &Setup<'_>) -> Result<Option<Document>, SchemaError> {
    let projection = doc! { "schema_version": 1, "bucket_start": 1, "bucket_end": 1 };
    first(
        setup,
        doc! { "find": BUCKETS, "projection": projection, "limit": 1 },
    )
    .await
}

/// The first document of a `find` with majority read concern.
async fn first(setup: &Setup<'_>, mut find: Document) -> Result<Option<Document>, SchemaError> {
    find.insert("readConcern", doc! { "level": "majority" });
    setup.first(find).await.map_err(|f| f.at(STEP))
}

/// Derives the metadata from a page; fields that the page lacks are assumed to match.
fn derive_from_page(page: &Document, span: Span) -> Document {
    let time = |name: &str| page.get_datetime(name).map(|d| d.timestamp_millis());
    let span_ms = match (time("bucket_start"), time("bucket_end")) {
        (Ok(start), Ok(end)) => end - start,
        _ => span.ms(),
    };
    doc! { "version": int_of(page, "schema_version").unwrap_or(1), "span_ms": span_ms }
}

fn fits(found: &Document, span: Span, database: &str) -> Result<(), SchemaError> {
    let version = int_of(found, "version").unwrap_or(0);
    if version > i64::from(SCHEMA_VERSION) {
        let detail = format!(
            "database {database} was written by a newer hourbucket (schema version {version}; this \
             one supports {SCHEMA_VERSION}): start that version, or use another store.database; \
             nothing was changed"
        );
        return Err(SchemaError::permanent(STEP, detail));
    }
    match int_of(found, "span_ms") {
        Some(ms) if ms == span.ms() => Ok(()),
        Some(ms) => {
            let theirs = in_words(ms);
            let ours = in_words(span.ms());
            let detail = format!(
                "database {database} was written with bucket.span = \"{theirs}\", and buckets of \
                 two spans cannot be mixed, but bucket.span is \"{ours}\": set bucket.span = \
                 \"{theirs}\", or use another store.database for buckets of \"{ours}\" (or drop \
                 this one if its data is not needed); nothing was changed"
            );
            Err(SchemaError::permanent(STEP, detail))
        }
        None => {
            let detail = format!(
                "the document in {database}.{META} has no span_ms: restore the field, which \
                 defines bucket.span"
            );
            Err(SchemaError::permanent(STEP, detail))
        }
    }
}

/// Formats a span as in the configuration.
fn in_words(ms: i64) -> String {
    write_duration(Duration::from_millis(ms.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::DateTime;

    use super::*;
    use crate::PrepareErrorEnd;

    #[test]
    fn another_span_and_a_newer_version_are_refused_with_what_to_do() {
        let hour = Span::HOUR;
        let ms = |n: i64| doc! { "version": 1, "span_ms": n };
        assert!(fits(&ms(3_600_000), hour, "db").is_ok());
        assert!(
            fits(
                &doc! { "version": 1i64, "span_ms": 3_600_000.0 },
                hour,
                "db"
            )
            .is_ok(),
            "any numeric type"
        );
        let error = fits(&ms(900_000), hour, "db").unwrap_err().to_string();
        for part in ["bucket.span = \"15m\"", "\"1h\"", "store.database", "db"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let error = fits(&doc! { "version": 2, "span_ms": 3_600_000 }, hour, "db").unwrap_err();
        assert!(
            error.to_string().contains("newer hourbucket")
                && error.end == PrepareErrorEnd::Operator,
            "{error}"
        );
        assert!(
            fits(&doc! { "version": 1 }, hour, "db")
                .unwrap_err()
                .to_string()
                .contains("span_ms")
        );
    }

    #[test]
    fn a_page_without_metadata_shows_its_span() {
        let date = DateTime::from_millis;
        let page =
            doc! { "schema_version": 1, "bucket_start": date(-900_000), "bucket_end": date(0) };
        assert_eq!(
            derive_from_page(&page, Span::HOUR),
            doc! { "version": 1i64, "span_ms": 900_000i64 }
        );
        assert_eq!(
            derive_from_page(&doc! {}, Span::HOUR),
            doc! { "version": 1i64, "span_ms": 3_600_000i64 }
        );
    }
}
