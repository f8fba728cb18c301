//! Plans how the summary of a time-series bucket, recomputed from its measurements, is distributed
//! over its pages. Pure; the stores execute the steps, each guarded by the version (`count`) that
//! the page was read with.
//!
//! **One page.** If all fields fit into page 0 and there is no other page, one statement replaces
//! its summary. The count of an open page never decreases: a statement that expects an earlier
//! count could match it again (ABA). A statement that lowers the count also seals the page.
//!
//! **Several pages.** The recomputation leaves all pages sealed, so no statement based on an
//! earlier read can match, and the next write creates a new page. The fields are distributed over
//! the pages in the order of their names, each in one page only. The counts of the pages add up to
//! the number of measurements; how they are split between the pages has no meaning. Every page with
//! a nonzero count gets a lower one, so its version changes, and an abandoned recomputation cannot
//! harm a later one: its guards no longer match. An additional page at the end holds the rest of
//! the count.
//!
//! First the last page is sealed, if it is not yet, and emptied (a page of 16 MB could not be
//! sealed otherwise). Then:
//! - if the pages count too little ([`Several::Rising`]): rewrite all of them in order, put the
//!   remaining fields into additional pages, and give the rest of the count to the last of these;
//! - if they count enough or too much ([`Several::Falling`]): first add a page with the rest of the
//!   count, then rewrite or add all others, and at the very end rewrite the page that had the
//!   highest count.
//!
//! **Crash.** Until the last statement the counts add up to less (rising) or more (falling) than
//! the number of measurements, so the next load with `doubt` recomputes the summary. A repetition
//! ends in the same state except for the number of pages. In between, a reader may miss fields or
//! see some twice, but only in a bucket of several pages and only while the recomputation runs.

use std::collections::BTreeMap;

use model::FieldSummary;
use model::summary::entry_bytes;

/// The state of a stored page that the plan depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageState {
    /// Number of counted measurements; the version of the page.
    pub count: u32,
    /// Whether it is closed for appends.
    pub sealed: bool,
}

/// The steps to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Nothing to do: the pages count all measurements.
    AsItIs,
    /// Page 0 gets all fields; insert it if it does not exist.
    One {
        /// Seal the page in the same statement.
        seal: bool,
    },
    /// Distribute the fields over several pages; see the module documentation.
    Several(Several),
}

/// The new counts of the pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Several {
    /// The page with the rest of the count is written last.
    Rising {
        /// New counts of the existing pages.
        pages: Vec<u32>,
        /// Count to distribute over the additional pages, at least one.
        rest: u32,
    },
    /// The page with the rest of the count is written first.
    Falling {
        /// New counts of the existing pages.
        pages: Vec<u32>,
        /// Count of the added page.
        rest: u32,
        /// Index of the page to write last.
        last: usize,
    },
}

/// The count of an additional page other than the one with the rest: the number of times it can be
/// rewritten under a guard.
const SHARE: u32 = 16;

impl Several {
    fn distribute(pages: &[PageState], total: u32) -> Several {
        let counted: u64 = pages.iter().map(|page| u64::from(page.count)).sum();
        let mut rest = total;
        let less = |page: &PageState| {
            let count = page.count.saturating_sub(1).min(rest);
            rest -= count;
            count
        };
        let counts = pages.iter().map(less).collect();
        if counted < u64::from(total) {
            return Several::Rising {
                pages: counts,
                rest,
            };
        }
        let last = (0..pages.len())
            .max_by_key(|n| pages[*n].count)
            .unwrap_or(0);
        Several::Falling {
            pages: counts,
            rest,
            last,
        }
    }

    /// Takes the count of one additional page from the rest.
    pub fn share(&mut self) -> u32 {
        let (from, least) = match self {
            Several::Rising { rest, .. } => (rest, 1),
            Several::Falling { pages, last, .. } => (&mut pages[*last], 0),
        };
        let share = SHARE.min(from.saturating_sub(least));
        *from -= share;
        share
    }
}

/// The plan for `total` measurements. `pages`: from page 0, without gaps. `fits`: whether all
/// fields fit into one page. `force`: plan a rewrite even if the counts already add up.
pub fn plan(pages: &[PageState], total: u32, fits: bool, force: bool) -> Plan {
    let counted: u64 = pages.iter().map(|page| u64::from(page.count)).sum();
    if counted == u64::from(total) && !pages.is_empty() && !force {
        return Plan::AsItIs;
    }
    match pages {
        [] if fits => Plan::One { seal: false },
        [page] if fits && !page.sealed => Plan::One {
            seal: total < page.count,
        },
        [page] if fits && total <= page.count => Plan::One { seal: true },
        _ => Plan::Several(Several::distribute(pages, total)),
    }
}

/// The fields of one page, in the order of their names.
pub type Chunk = Vec<(String, FieldSummary)>;

/// Splits the fields, in the order of their names, into chunks of at most `bytes_max`. Returns at
/// least one chunk.
pub fn chunks(fields: BTreeMap<String, FieldSummary>, bytes_max: u64) -> Vec<Chunk> {
    let mut chunks = vec![];
    let mut chunk = vec![];
    let mut bytes = 0;
    for (name, field) in fields {
        let more = entry_bytes(&name);
        if bytes + more > bytes_max && !chunk.is_empty() {
            chunks.push(std::mem::take(&mut chunk));
            bytes = 0;
        }
        bytes += more;
        chunk.push((name, field));
    }
    chunks.push(chunk);
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Number;

    fn open(count: u32) -> PageState {
        PageState {
            count,
            sealed: false,
        }
    }

    fn sealed(count: u32) -> PageState {
        PageState {
            count,
            sealed: true,
        }
    }

    #[test]
    fn one_page_stays_one_and_its_count_never_decreases_while_open() {
        let keep = Plan::One { seal: false };
        let seal = Plan::One { seal: true };
        for (pages, total, planned) in [
            (vec![], 5, &keep),
            (vec![open(3)], 5, &keep),
            (vec![open(3)], 2, &seal),
            (vec![sealed(3)], 2, &seal),
            (vec![open(3)], 3, &Plan::AsItIs),
            (vec![sealed(3), open(4)], 7, &Plan::AsItIs),
        ] {
            assert_eq!(
                &plan(&pages, total, true, false),
                planned,
                "{pages:?} {total}"
            );
        }
        assert_eq!(
            plan(&[open(3)], 3, true, true),
            keep,
            "a repair: same count, other summary"
        );
        let later = Several::Rising {
            pages: vec![2],
            rest: 3,
        };
        assert_eq!(
            plan(&[sealed(3)], 5, true, false),
            Plan::Several(later),
            "a sealed page cannot grow"
        );
    }

    /// Executes the steps; returns the sum of the counts after each.
    fn sums(pages: &[PageState], total: u32, more: usize) -> Vec<i64> {
        let mut held: Vec<i64> = pages.iter().map(|p| i64::from(p.count)).collect();
        let mut sums: Vec<i64> = vec![];
        let Plan::Several(mut several) = plan(pages, total, false, true) else {
            panic!("one page")
        };
        let (counts, last) = match &several {
            Several::Rising { pages, .. } => (pages.clone(), None),
            Several::Falling { pages, rest, last } => {
                held.push(i64::from(*rest));
                (pages.clone(), Some(*last))
            }
        };
        sums.push(held.iter().sum());
        for n in (0..counts.len()).filter(|n| Some(*n) != last) {
            held[n] = i64::from(counts[n]);
            sums.push(held.iter().sum());
        }
        for _ in 0..more {
            held.push(i64::from(several.share()));
            sums.push(held.iter().sum());
        }
        match several {
            Several::Rising { rest, .. } => held.push(i64::from(rest)),
            Several::Falling { pages, last, .. } => held[last] = i64::from(pages[last]),
        }
        sums.push(held.iter().sum());
        sums
    }

    #[test]
    fn the_counts_add_up_at_the_very_end_only() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..10_000 {
            let most = if rng.bool() { 3 } else { 100 };
            let pages: Vec<_> = (0..rng.usize(0..6))
                .map(|_| sealed(rng.u32(0..most)))
                .collect();
            let total = rng.u32(1..most * 6);
            let sums = sums(&pages, total, rng.usize(0..4));
            let (last, before) = sums.split_last().unwrap();
            assert_eq!(*last, i64::from(total), "{pages:?}");
            assert!(
                before.iter().all(|sum| *sum != i64::from(total)),
                "{pages:?} {total}: {sums:?}"
            );
        }
    }

    #[test]
    fn every_version_changes() {
        let several = |total| match plan(&[sealed(3), sealed(9), open(1)], total, false, true) {
            Plan::Several(several) => several,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            several(14),
            Several::Rising {
                pages: vec![2, 8, 0],
                rest: 4
            }
        );
        assert_eq!(
            several(13),
            Several::Falling {
                pages: vec![2, 8, 0],
                rest: 3,
                last: 1
            }
        );
        assert_eq!(
            several(5),
            Several::Falling {
                pages: vec![2, 3, 0],
                rest: 0,
                last: 1
            }
        );
    }

    #[test]
    fn fields_are_split_by_the_size_of_a_page() {
        let one = FieldSummary {
            min: Number::Int(1),
            max: Number::Int(1),
            sum: Number::Int(1),
            count: 1,
        };
        let fields: BTreeMap<String, FieldSummary> =
            (0..10).map(|i| (format!("f{i}"), one)).collect();
        let lengths = |bytes| {
            chunks(fields.clone(), bytes)
                .iter()
                .map(Vec::len)
                .collect::<Vec<_>>()
        };
        assert_eq!(lengths(3 * entry_bytes("f0")), [3, 3, 3, 1]);
        assert_eq!(lengths(1), vec![1; 10], "a chunk holds at least one field");
        assert_eq!(chunks(BTreeMap::new(), 1), vec![vec![]]);
    }
}
