//! Finds the faults of a stored bucket: compares every document with a recomputation from its
//! readings.
//!
//! Sums: `$inc` has added the doubles in another order than a recomputation does. So two sums are
//! equal if they differ by at most [`SUM_TOLERANCE`] of the sum of the absolute values (n additions
//! of doubles err by at most n · 2⁻⁵³ of it, and 10⁻⁹ is that for eight million). Integers are
//! compared exactly. Minimum and maximum are not calculated, so they must be equal in value.
//!
//! Equal readings in one bucket are *possible* duplicates: two readings without their own time may
//! be equal, and the store cannot distinguish them from a reading that was stored twice.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use serde_json::{Value, json};

use super::bucket::{Recomputed, StoredBucket, StoredPage, without_duplicates};
use super::time;
use model::{FieldSummary, Number, StorageMode};

/// Maximum difference between two sums of doubles, relative to the sum of the absolute values.
pub(crate) const SUM_TOLERANCE: f64 = 1e-9;

/// One difference between a document and its readings.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The page number; `None` if the finding concerns the whole bucket.
    pub page: Option<u32>,
    /// The kind of difference.
    pub kind: Kind,
}

/// A kind of difference. Times in milliseconds since 1970; `stored` is the value in the document,
/// `actual` the recomputed one.
#[derive(Debug, Clone, PartialEq)]
#[allow(
    missing_docs,
    reason = "`stored` and `actual` are explained above, `n` is a number of readings"
)]
pub enum Kind {
    /// `count` is not the number of readings.
    Count { stored: Option<i64>, actual: u64 },
    /// `first_ts` is not the earliest time.
    FirstTs { stored: Option<i64>, actual: i64 },
    /// `last_ts` is not the latest time.
    LastTs { stored: Option<i64>, actual: i64 },
    /// The summary of a field is not that of its values.
    Summary {
        field: String,
        stored: Option<FieldSummary>,
        actual: Option<FieldSummary>,
    },
    /// Readings that equal an earlier one of the bucket.
    Duplicates { n: u64 },
    /// Readings with a time outside the bucket.
    Outside { n: u64 },
    /// Elements of `readings` that are not readings.
    Unreadable { n: u64 },
    /// A page is missing before an existing one.
    MissingPage,
    /// A page with a successor is not sealed.
    NotSealed,
    /// A page with readings next to a document in time-series mode, or readings in that document.
    Stray { n: u64 },
    /// Measurements of a bucket that has no document.
    NoDocument { n: u64 },
    /// Measurements that a document counts were removed
    /// ([`StoredBucket::has_lost_measurements`]).
    MissingMeasurements { stored: i64, actual: u64 },
    /// Measurements of a bucket whose document is in bucket mode, left by a conversion; no reader
    /// returns them. A note, not a difference.
    Leftover { n: u64 },
}

impl Kind {
    /// Its name in the table and in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Count { .. } => "count",
            Kind::FirstTs { .. } => "first_ts",
            Kind::LastTs { .. } => "last_ts",
            Kind::Summary { .. } => "summary",
            Kind::Duplicates { .. } => "possible_duplicates",
            Kind::Outside { .. } => "outside_bucket",
            Kind::Unreadable { .. } => "unreadable",
            Kind::MissingPage => "missing_page",
            Kind::NotSealed => "not_sealed",
            Kind::Stray { .. } => "stray_page",
            Kind::NoDocument { .. } => "no_document",
            Kind::MissingMeasurements { .. } => "missing_measurements",
            Kind::Leftover { .. } => "leftover_measurements",
        }
    }

    /// The summary field that it concerns.
    pub fn field(&self) -> Option<&str> {
        match self {
            Kind::Summary { field, .. } => Some(field),
            _ => None,
        }
    }

    /// Whether it is only a note and does not count as a difference.
    pub(crate) fn is_note(&self) -> bool {
        matches!(self, Kind::Leftover { .. })
    }

    /// Why a repair is impossible; `None` if it is possible.
    pub(crate) fn beyond_repair(&self) -> Option<&'static str> {
        match self {
            Kind::Outside { .. } => {
                Some("readings are not moved to another bucket: find out how they got there")
            }
            Kind::Unreadable { .. } => Some("not written by hourbucket: inspect the document"),
            Kind::MissingMeasurements { .. } => Some(
                "its measurements were removed, by an earlier retention or by hand, and the \
                 summary is what is left of them; delete the document to remove it",
            ),
            Kind::Leftover { .. } => Some(
                "no reader returns them; `convert --into bucket` removes them if the server can",
            ),
            _ => None,
        }
    }

    /// The value in the document; for findings that count readings, their number.
    pub fn stored(&self) -> Value {
        match self {
            Kind::Count { stored, .. } => json!(stored),
            Kind::FirstTs { stored, .. } | Kind::LastTs { stored, .. } => json!(stored.map(time)),
            Kind::Summary { stored, .. } => field_json(stored.as_ref()),
            Kind::MissingMeasurements { stored, .. } => json!(stored),
            Kind::NotSealed => json!(false),
            _ => Value::Null,
        }
    }

    /// The recomputed value.
    pub fn actual(&self) -> Value {
        match self {
            Kind::Count { actual, .. } => json!(actual),
            Kind::FirstTs { actual, .. } | Kind::LastTs { actual, .. } => json!(time(*actual)),
            Kind::Summary { actual, .. } => field_json(actual.as_ref()),
            Kind::Duplicates { n }
            | Kind::Outside { n }
            | Kind::Unreadable { n }
            | Kind::Stray { n }
            | Kind::NoDocument { n }
            | Kind::Leftover { n } => json!(n),
            Kind::MissingMeasurements { actual, .. } => json!(actual),
            Kind::NotSealed => json!(true),
            Kind::MissingPage => Value::Null,
        }
    }
}

fn field_json(summary: Option<&FieldSummary>) -> Value {
    let num = |n: Number| match n {
        Number::Int(v) => json!(v),
        Number::Double(v) => json!(v),
    };
    summary.map_or(
        Value::Null,
        |s| json!({ "min": num(s.min), "max": num(s.max), "sum": num(s.sum), "count": s.count }),
    )
}

/// Returns everything that is wrong with a bucket, page by page. (The pages of a time-series bucket
/// are compared with the measurements together, and differences are reported for page 0.)
pub fn audit(bucket: &StoredBucket) -> Vec<Finding> {
    match (bucket.storage_mode(), &bucket.measured) {
        (StorageMode::TimeSeries, Some(_)) => time_series(bucket),
        _ => pages(bucket),
    }
}

fn pages(bucket: &StoredBucket) -> Vec<Finding> {
    let finding = |page: u32, kind| Finding {
        page: Some(page),
        kind,
    };
    let mut found: Vec<Finding> = bucket
        .gaps()
        .into_iter()
        .map(|n| finding(n, Kind::MissingPage))
        .collect();
    let last = bucket.pages.last().map_or(0, |p| p.page);
    let mut seen = HashSet::new();
    for page in &bucket.pages {
        // The summary is all that is left of removed readings.
        if !page.readings_removed {
            let recomputed = Recomputed::from_rows([&page.rows]);
            found.extend(differences(page, &recomputed, u64::from(page.unreadable)));
        }
        let n = (page.rows.len() - without_duplicates(&page.rows, &mut seen).len()) as u64;
        if n > 0 {
            found.push(finding(page.page, Kind::Duplicates { n }));
        }
        let outside = |ts: i64| ts < bucket.key.start.0 || ts >= bucket.end_ms;
        let n = page.rows.iter().filter(|r| outside(r.ts_ms)).count() as u64;
        if n > 0 {
            found.push(finding(page.page, Kind::Outside { n }));
        }
        if page.unreadable > 0 {
            found.push(finding(
                page.page,
                Kind::Unreadable {
                    n: u64::from(page.unreadable),
                },
            ));
        }
        if page.page < last && !page.sealed {
            found.push(finding(page.page, Kind::NotSealed));
        }
    }
    let n = bucket.measured.as_ref().map_or(0, |m| m.rows.len() as u64);
    if n > 0 {
        found.push(Finding {
            page: None,
            kind: Kind::Leftover { n },
        });
    }
    found.sort_by_key(|f| f.page);
    found
}

fn time_series(bucket: &StoredBucket) -> Vec<Finding> {
    let Some(measured) = &bucket.measured else {
        return vec![];
    };
    let of_bucket = |kind| Finding { page: None, kind };
    let n = measured.rows.len() as u64;
    let Some(head) = bucket.merged() else {
        return if n > 0 {
            vec![of_bucket(Kind::NoDocument { n })]
        } else {
            vec![]
        };
    };
    if let Some(stored) = head.count.filter(|_| bucket.has_lost_measurements()) {
        return vec![of_bucket(Kind::MissingMeasurements { stored, actual: n })];
    }
    let mut found = differences(
        &head,
        &Recomputed::from_rows([&measured.rows]),
        u64::from(measured.unreadable),
    );
    let mut series = bucket
        .pages
        .iter()
        .filter(|p| p.storage_mode == StorageMode::TimeSeries)
        .peekable();
    while let Some(page) = series.next() {
        if series.peek().is_some() && !page.sealed {
            found.push(Finding {
                page: Some(page.page),
                kind: Kind::NotSealed,
            });
        }
    }
    found.extend(bucket.gaps().into_iter().map(|n| Finding {
        page: Some(n),
        kind: Kind::MissingPage,
    }));
    for stray in bucket.strays() {
        found.push(Finding {
            page: Some(stray.page),
            kind: Kind::Stray {
                n: stray.rows.len() as u64,
            },
        });
    }
    let n = n - without_duplicates(&measured.rows, &mut HashSet::new()).len() as u64;
    if n > 0 {
        found.push(of_bucket(Kind::Duplicates { n }));
    }
    if measured.unreadable > 0 {
        found.push(of_bucket(Kind::Unreadable {
            n: u64::from(measured.unreadable),
        }));
    }
    found
}

/// Compares the document of a page with its recomputed readings.
fn differences(page: &StoredPage, recomputed: &Recomputed, unreadable: u64) -> Vec<Finding> {
    let mut found = vec![];
    let mut note = |kind| {
        found.push(Finding {
            page: Some(page.page),
            kind,
        })
    };
    let actual = recomputed.count + unreadable;
    if page.count != i64::try_from(actual).ok() {
        note(Kind::Count {
            stored: page.count,
            actual,
        });
    }
    // A page without readings (sealed before the first one fitted) has no times.
    if recomputed.count > 0 {
        if page.first_ts_ms != Some(recomputed.first_ts_ms) {
            note(Kind::FirstTs {
                stored: page.first_ts_ms,
                actual: recomputed.first_ts_ms,
            });
        }
        if page.last_ts_ms != Some(recomputed.last_ts_ms) {
            note(Kind::LastTs {
                stored: page.last_ts_ms,
                actual: recomputed.last_ts_ms,
            });
        }
    }
    let names: std::collections::BTreeSet<&String> = page
        .summary
        .keys()
        .chain(recomputed.fields.keys())
        .collect();
    for field in names {
        let stored = page.summary.get(field).copied().flatten();
        let actual = recomputed.fields.get(field);
        let equal = match (stored, actual) {
            (Some(s), Some((a, absolute))) => same(&s, a, *absolute),
            _ => false,
        };
        if !equal {
            note(Kind::Summary {
                field: field.clone(),
                stored,
                actual: actual.map(|(a, _)| *a),
            });
        }
    }
    found
}

fn same(stored: &FieldSummary, actual: &FieldSummary, absolute: f64) -> bool {
    stored.count == actual.count
        // By value: `$min` keeps whichever of 0.0 and -0.0, or of 1 and 1.0, came first.
        && stored.min == actual.min
        && stored.max == actual.max
        && match (stored.sum, actual.sum) {
            (Number::Int(a), Number::Int(b)) => a == b,
            (a, b) => {
                let a = a.as_f64();
                let b = b.as_f64();
                // If even the absolute values overflow, the order of the additions decides whether
                // a sum is finite, infinite or NaN (inf - inf), and no recomputation can prove
                // which is right.
                !absolute.is_finite() || a == b || (a - b).abs() <= SUM_TOLERANCE * absolute
            }
        }
}
