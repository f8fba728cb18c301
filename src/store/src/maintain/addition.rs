//! How readings are added to a bucket of pages beside a running service. Pure.
//!
//! The changes are those of a second instance of the service: the open page gets readings under its
//! version, which grows, or other pages follow, each after the one before it is sealed. Each change is
//! one guarded statement; if one does not apply, the bucket is read again, and what is
//! [`missing`](super::removal::missing) by then is added.

use std::collections::BTreeMap;

use super::bucket::Recomputed;
use super::convert::NewPage;
use super::{PageSize, StoredBucket, StoredPage};
use model::rows::StatementLimits;
use model::summary::PAGE_SUMMARY_BYTES_MAX;
use model::{Rows, StorageMode};

/// One change.
#[derive(Debug)]
pub(crate) enum Addition<'b> {
    /// Closes a page for appends.
    Seal(&'b StoredPage),
    /// Gives a page these readings, its own first, and closes it if more follow.
    Fill {
        page: &'b StoredPage,
        rows: Rows,
        is_sealed: bool,
    },
    /// Creates a page.
    Create { number: u32, page: NewPage },
}

/// The changes that add `rest` to a bucket. `tags`: of pages that are created.
pub(crate) fn additions<'b>(
    bucket: &'b StoredBucket,
    mut rest: Rows,
    tags: &BTreeMap<String, String>,
    size: PageSize,
) -> Vec<Addition<'b>> {
    let room = StatementLimits {
        rows: size.readings_max as usize,
        bytes: size.bytes_max,
        summary_bytes: PAGE_SUMMARY_BYTES_MAX,
    };
    let mut changes = vec![];
    let last = bucket.pages.last();
    if let Some(open) = last.filter(|page| !page.sealed && !rest.is_empty()) {
        let mut all = open.rows.clone();
        all.append(&rest);
        let (rows, _) = all.take_room(room);
        if rows.len() > open.rows.len() && !open.readings_removed {
            changes.push(Addition::Fill {
                page: open,
                rows,
                is_sealed: !all.is_empty(),
            });
            rest = all;
        } else {
            changes.push(Addition::Seal(open));
        }
    }
    let mut number = last.map_or(0, |page| page.page + 1);
    while !rest.is_empty() {
        let (rows, _) = rest.take_room(room);
        let recomputed = Recomputed::from_rows([&rows]);
        let fields = recomputed.fields.into_iter();
        let page = NewPage {
            storage_mode: StorageMode::Bucket,
            count: rows.len() as u32,
            sealed: !rest.is_empty(),
            first_ts_ms: recomputed.first_ts_ms,
            last_ts_ms: recomputed.last_ts_ms,
            summary: fields.map(|(name, (field, _))| (name, field)).collect(),
            tags: tags.clone(),
            rows,
        };
        changes.push(Addition::Create { number, page });
        number += 1;
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maintain::removal::missing;
    use model::{BucketKey, BucketStart, RowFlags, ValueRef};

    const SIZE: PageSize = PageSize {
        readings_max: 5,
        bytes_max: 1 << 20,
    };

    fn push(rows: &mut Rows, n: i64) {
        rows.push_named(n, RowFlags::default(), &[("n", ValueRef::Int(n))]);
    }

    fn page(number: u32, rows: Rows, sealed: bool) -> StoredPage {
        StoredPage {
            page: number,
            storage_mode: StorageMode::Bucket,
            count: Some(rows.len() as i64),
            sealed,
            first_ts_ms: None,
            last_ts_ms: None,
            summary: BTreeMap::new(),
            tags: BTreeMap::new(),
            rows,
            unreadable: 0,
            readings_removed: false,
            was_converted: false,
        }
    }

    /// A change that the store makes if the page is as it was read.
    enum Change {
        Seal(usize),
        Fill(usize, Rows, bool),
        Create(StoredPage),
    }

    fn change(addition: Addition<'_>) -> (Option<i64>, Change) {
        match addition {
            Addition::Seal(page) => (page.count, Change::Seal(page.page as usize)),
            Addition::Fill {
                page,
                rows,
                is_sealed,
            } => (
                page.count,
                Change::Fill(page.page as usize, rows, is_sealed),
            ),
            Addition::Create { number, page: new } => {
                (None, Change::Create(page(number, new.rows, new.sealed)))
            }
        }
    }

    /// Whether the change was made.
    fn apply(pages: &mut Vec<StoredPage>, (count, change): (Option<i64>, Change)) -> bool {
        match change {
            Change::Create(page) => {
                let is_next = page.page as usize == pages.len();
                assert!(
                    !is_next || pages.last().is_none_or(|last| last.sealed),
                    "sealed first"
                );
                if is_next {
                    pages.push(page);
                }
                is_next
            }
            Change::Seal(at) | Change::Fill(at, ..)
                if pages[at].sealed || pages[at].count != count =>
            {
                false
            }
            Change::Seal(at) => {
                pages[at].sealed = true;
                true
            }
            Change::Fill(at, rows, is_sealed) => {
                assert!(
                    rows.len() as i64 > pages[at].count.unwrap(),
                    "the version grows"
                );
                let is_kept = rows
                    .iter()
                    .zip(pages[at].rows.iter())
                    .all(|(a, b)| a.key() == b.key());
                assert!(is_kept, "positions stay");
                pages[at] = page(at as u32, rows, is_sealed);
                true
            }
        }
    }

    /// Two commands add the same readings, interrupted anywhere, while a service appends others.
    #[test]
    fn every_reading_is_added_once_whatever_happens_in_between() {
        for seed in 0..2000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut pages: Vec<StoredPage> = vec![];
            let mut next = 0;
            let mut own = |pages: &mut Vec<StoredPage>, rng: &mut fastrand::Rng| {
                if pages.last().is_none_or(|page| page.sealed) {
                    pages.push(page(pages.len() as u32, Rows::default(), false));
                }
                let open = pages.last_mut().unwrap();
                for _ in 0..rng.usize(1..3) {
                    push(&mut open.rows, next);
                    next += 1;
                }
                open.count = Some(open.rows.len() as i64);
                open.sealed = open.rows.len() >= 5;
            };
            for _ in 0..rng.usize(0..4) {
                own(&mut pages, &mut rng);
            }
            let mut given = Rows::default();
            for _ in 0..rng.usize(1..15) {
                // Some of them are there, or come later; some are equal.
                push(&mut given, rng.i64(0..20));
            }
            let mut is_added = false;
            for attempt in 0.. {
                assert!(attempt < 200, "seed {seed}: no progress");
                let bucket = StoredBucket {
                    key: BucketKey {
                        sensor_id: "s".into(),
                        start: BucketStart(0),
                    },
                    end_ms: 3_600_000,
                    pages: pages.clone(),
                    measured: None,
                };
                let rest = missing(bucket.pages.iter().map(|page| &page.rows), &given);
                if rest.is_empty() {
                    is_added = true;
                    break;
                }
                let changes = additions(&bucket, rest, &BTreeMap::new(), SIZE);
                let changes: Vec<_> = changes.into_iter().map(change).collect();
                for change in changes {
                    let is_killed = rng.u8(0..10) == 0;
                    if rng.u8(0..10) == 0 && attempt < 50 {
                        own(&mut pages, &mut rng);
                    }
                    if is_killed || !apply(&mut pages, change) {
                        break;
                    }
                }
            }
            assert!(is_added);
            let all = || pages.iter().map(|page| &page.rows);
            assert!(missing(all(), &given).is_empty(), "seed {seed}");
            // Of what only the command has added there is no more than it was given.
            let count = |rows: &Rows, n| rows.iter().filter(|row| row.ts_ms == n).count();
            for n in 0..20 {
                let found: usize = all().map(|rows| count(rows, n)).sum();
                let by_service = usize::from(n < next);
                let most = count(&given, n) + by_service;
                assert!(found <= most, "seed {seed}: {n} is {found} times there");
            }
            assert!(pages.iter().all(|page| page.rows.len() <= 6), "seed {seed}");
        }
    }
}
