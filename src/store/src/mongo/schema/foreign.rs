//! Options and indexes with which MongoDB would refuse or remove documents of our collections: a
//! collation, a unique or TTL index, a validator that another program or an operator made. They are
//! found before anything is changed, because later they look like damage: pages that conflict
//! without a reason, readings that are gone.
//!
//! Other indexes are welcome. A collection whose options [`super::collections`] sets anyway is not
//! refused because of them.

use mongodb::bson::{Bson, Document, doc};

use crate::mongo::schema::Settings;
use crate::mongo::schema::detect::fits;
use crate::mongo::setup::{
    Listing, NAMESPACE_NOT_FOUND, SchemaError, Setup, UNAUTHORIZED, first_batch,
};
use model::collections::{
    ALIASES, BUCKETS, CATALOG, COLUMNS, DAY_HOURS, DAYS, DEAD_LETTERS, LATEST, META, PENDING_DAYS,
    READINGS,
};

/// What one of our collections may have.
#[derive(Debug, Clone, Copy)]
struct Allowed {
    /// A unique index with at least these keys refuses only what `_id` refuses.
    identity: &'static [&'static str],
    /// The names of our TTL indexes; `None`: any, since its documents are only copies.
    ttl: Option<&'static [&'static str]>,
    /// The field whose TTL index is set to the configured retention, whatever its name.
    retained: Option<&'static str>,
    /// Its validator is ours.
    validator: bool,
}

impl Settings {
    fn allowed(&self, name: &str) -> Allowed {
        let mut allowed = Allowed {
            identity: &["_id"],
            ttl: Some(&[]),
            retained: None,
            validator: false,
        };
        match name {
            BUCKETS => {
                allowed.identity = &["sensor_id", "bucket_start", "page"];
                allowed.ttl = Some(&["bucket_end_ttl"]);
                allowed.retained = self.retention.map(|_| "bucket_end");
                allowed.validator = true;
            }
            DAYS => {
                allowed.identity = &["sensor_id", "day"];
                allowed.ttl = Some(&["day_ttl"]);
                let kept = self.rollup.and_then(|rollup| rollup.days?);
                allowed.retained = kept.map(|_| "day");
                allowed.validator = true;
            }
            COLUMNS | DAY_HOURS => {
                allowed.identity = &["sensor_id", "day", "part"];
                allowed.ttl = Some(&["columns_ttl", "hours_ttl"]);
                let kept = self.rollup.and_then(|rollup| rollup.columns?);
                allowed.retained = kept.map(|_| "day");
                allowed.validator = true;
            }
            DEAD_LETTERS => allowed.ttl = Some(&["sender_letters_ttl"]),
            LATEST => allowed.ttl = None,
            ALIASES => allowed.validator = true,
            _ => {}
        }
        allowed
    }

    /// Refuses collections with options or indexes that do not fit. Changes nothing.
    ///
    /// # Errors
    /// All of them, each with what to do; or the server does not list the indexes.
    pub(super) async fn check_foreign(
        &self,
        setup: &Setup<'_>,
        found: &Listing,
    ) -> Result<(), SchemaError> {
        let mut faults = vec![];
        for name in self.expected_names() {
            let Some(entry) = found.get(name) else {
                continue;
            };
            // In bucket mode anything may have the name.
            if name == READINGS && fits(entry).is_err() {
                continue;
            }
            faults.extend(collation(name, entry));
            if entry.get_str("type").is_ok_and(|kind| kind == "view") {
                continue;
            }
            let allowed = self.allowed(name);
            faults.extend(validator(name, entry, allowed));
            for index in indexes(setup, name).await? {
                faults.extend(index_fault(name, &index, allowed));
            }
        }
        if faults.is_empty() {
            return Ok(());
        }
        let step = format!("checking the collections of {}", setup.db.name());
        let detail = format!("{}; nothing was changed", faults.join("; "));
        Err(SchemaError::permanent(step, detail))
    }
}

/// The indexes of a collection; none if the user may not list them.
async fn indexes(setup: &Setup<'_>, name: &str) -> Result<Vec<Document>, SchemaError> {
    match setup.ask(doc! { "listIndexes": name }).await {
        Ok(reply) => Ok(first_batch(&reply)),
        Err(failure) if matches!(failure.code, Some(NAMESPACE_NOT_FOUND | UNAUTHORIZED)) => {
            Ok(vec![])
        }
        Err(failure) => Err(failure.at(format!("listing the indexes of {name}"))),
    }
}

/// With another collation than the simple one, texts that differ are equal, or have another order:
/// two sensors would share their pages.
fn collation(name: &str, entry: &Document) -> Option<String> {
    let collation = entry
        .get_document("options")
        .ok()?
        .get_document("collation");
    let locale = collation.ok()?.get_str("locale").unwrap_or_default();
    (locale != "simple").then(|| {
        format!(
            "{name} was created with a collation (locale \"{locale}\"), with which ids of different \
             sensors can be equal; MongoDB cannot change it: rename or drop {name}, or use another \
             store.database"
        )
    })
}

fn validator(name: &str, entry: &Document, allowed: Allowed) -> Option<String> {
    let options = entry.get_document("options").ok()?;
    let validator = options.get_document("validator").ok()?;
    let is = |option: &str, value: &str| options.get_str(option).is_ok_and(|is| is == value);
    let is_lenient = is("validationAction", "warn") || is("validationLevel", "off");
    let fits = allowed.validator || validator.is_empty() || is_lenient;
    (!fits).then(|| {
        format!(
            "{name} has a validator, which can refuse documents: remove it with \
             db.runCommand({{ collMod: \"{name}\", validator: {{}} }})"
        )
    })
}

fn index_fault(name: &str, index: &Document, allowed: Allowed) -> Option<String> {
    let key = index.get_document("key").ok()?;
    let label = index.get_str("name").unwrap_or_default();
    let has = |option: &str| index.get_bool(option).unwrap_or(false);
    let remedy = format!("drop it with db.{name}.dropIndex(\"{label}\")");
    let refuses = has("unique") || has("prepareUnique");
    if refuses && !allowed.identity.iter().all(|field| key.contains_key(field)) {
        let fields: Vec<&str> = key.keys().map(String::as_str).collect();
        return Some(format!(
            "the index \"{label}\" of {name} is unique ({}), so MongoDB would refuse documents: \
             {remedy}",
            fields.join(", ")
        ));
    }
    let is_partial = index.contains_key("partialFilterExpression");
    let is_retained = !is_partial && key.len() == 1;
    let is_retained = is_retained && allowed.retained.is_some_and(|f| key.contains_key(f));
    let is_ours = allowed.ttl.is_none_or(|names| names.contains(&label)) || is_retained;
    if index.contains_key("expireAfterSeconds") && !is_ours {
        let after = index.get("expireAfterSeconds").unwrap_or(&Bson::Null);
        let field = key.keys().next().map_or("", String::as_str);
        let setting = match name {
            BUCKETS | READINGS => "; how long readings are kept is store.retention",
            DAYS => "; how long days are kept is rollup.retention",
            COLUMNS | DAY_HOURS => "; how long columns are kept is columns.retention",
            DEAD_LETTERS => "; how long dead letters are kept is dead_letters.retention",
            ALIASES | CATALOG | META | PENDING_DAYS => "; these documents must stay",
            _ => "",
        };
        return Some(format!(
            "the index \"{label}\" of {name} removes documents {after} s after {field}: {remedy}\
             {setting}"
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: Allowed = Allowed {
        identity: &["sensor_id", "bucket_start", "page"],
        ttl: Some(&["bucket_end_ttl"]),
        retained: None,
        validator: true,
    };

    #[test]
    fn indexes_that_refuse_or_remove_documents_are_named_with_the_remedy() {
        for (index, part) in [
            (
                doc! { "key": { "sensor_id": 1 }, "unique": true },
                "is unique (sensor_id)",
            ),
            (
                doc! { "key": { "sensor_id": 1, "bucket_start": 1 }, "unique": true },
                "is unique (sensor_id, bucket_start)",
            ),
            (
                doc! { "key": { "tags.site": 1 }, "prepareUnique": true },
                "is unique",
            ),
            (
                doc! { "key": { "first_ts": 1 }, "expireAfterSeconds": 3600 },
                "removes documents 3600 s after first_ts",
            ),
            // It would stay although `store.retention` is not set.
            (
                doc! { "key": { "bucket_end": 1 }, "expireAfterSeconds": 60.0 },
                "store.retention",
            ),
        ] {
            let mut named = doc! { "v": 2, "name": "mine" };
            named.extend(index);
            let text = index_fault(BUCKETS, &named, PAGES).unwrap_or_default();
            assert!(text.contains(part), "{named}: {text}");
            assert!(
                text.contains("db.sensor_buckets.dropIndex(\"mine\")"),
                "{text}"
            );
        }
        let retained = Allowed {
            retained: Some("bucket_end"),
            ..PAGES
        };
        for (name, index, allowed) in [
            ("_id_", doc! { "key": { "_id": 1 } }, PAGES),
            (
                "mine",
                doc! { "key": { "sensor_id": 1 }, "unique": false },
                PAGES,
            ),
            (
                "mine",
                doc! { "key": { "sensor_id": 1, "bucket_start": -1, "page": 1 }, "unique": true },
                PAGES,
            ),
            (
                "bucket_end_ttl",
                doc! { "key": { "bucket_end": 1 }, "expireAfterSeconds": 60 },
                PAGES,
            ),
            (
                "mine",
                doc! { "key": { "bucket_end": 1 }, "expireAfterSeconds": 60 },
                retained,
            ),
        ] {
            let mut index = index;
            index.insert("name", name);
            assert_eq!(index_fault(BUCKETS, &index, allowed), None, "{index}");
        }
        // Both would exist.
        let partial = doc! {
            "key": { "bucket_end": 1 }, "name": "mine", "expireAfterSeconds": 60,
            "partialFilterExpression": { "page": 0 },
        };
        assert!(index_fault(BUCKETS, &partial, retained).is_some());
    }

    #[test]
    fn a_collation_or_a_validator_of_others_is_refused() {
        let entry =
            |options: Document| doc! { "name": "x", "type": "collection", "options": options };
        let of = |locale: &str| entry(doc! { "collation": { "locale": locale, "strength": 2 } });
        assert!(collation(CATALOG, &of("en")).is_some_and(|text| text.contains("\"en\"")));
        assert_eq!(collation(CATALOG, &of("simple")), None);
        assert_eq!(collation(CATALOG, &entry(doc! {})), None);

        let plain = Allowed {
            validator: false,
            ..PAGES
        };
        let strict = doc! { "validator": { "x": 1 }, "validationAction": "error" };
        let text = validator(META, &entry(strict.clone()), plain).unwrap_or_default();
        assert!(
            text.contains("collMod: \"hourbucket_meta\", validator: {}"),
            "{text}"
        );
        assert_eq!(
            validator(BUCKETS, &entry(strict), PAGES),
            None,
            "it is replaced"
        );
        for options in [
            doc! { "validator": { "x": 1 }, "validationAction": "warn" },
            doc! { "validator": { "x": 1 }, "validationLevel": "off" },
            doc! { "validator": {} },
            doc! {},
        ] {
            assert_eq!(
                validator(META, &entry(options.clone()), plain),
                None,
                "{options}"
            );
        }
    }
}
