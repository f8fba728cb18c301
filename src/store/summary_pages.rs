//! How a time-series bucket's summary, counted anew from its measurements, is laid over its pages. Pure; the stores carry
//! the steps out, each gated by the version (`count`) that the page was read with.
//!
//! **One page.** If all fields fit into page 0 and there is no other, one statement replaces its summary. Its count never
//! goes down while the page takes more: a statement that believes in an earlier count could meet it again (ABA). A page
//! whose count is lowered is sealed by the same statement.
//!
//! **Several pages.** Afterwards all of them are sealed, so no statement of an earlier view can match, and the next write
//! begins a new page. The fields stand in the pages in the order of their names, each in one page only. The counts of the
//! pages add up to the number of measurements; which page counts which is of no meaning any more. Every page that
//! counts something counts less than before, so its version changes, and a recomputation that was given up can do no harm to a
//! later one: its gates no longer match. What the others do not count is counted by a page that is added behind.
//!
//! First the last page is sealed, if it is not, and emptied (a page of 16 MB could not even be sealed otherwise). Then
//! - if the pages count too little ([`Several::Rising`]): all are rewritten, in their order, the fields that are left go to
//!   pages behind, and the last of these counts the rest;
//! - if they count enough or too much ([`Several::Falling`]): first a page is added with the rest, then all others are
//!   rewritten or added, at the very end the page that had the highest count.
//!
//! **Crash.** Until the last statement the counts add up to less (rising) or more (falling) than there are measurements, so
//! the next load in doubt counts anew. Doing it again ends in the same state but for the number of pages. In between a
//! reader may miss fields or see some twice; only in a bucket of several pages, for the moment that a recomputation takes.

use std::collections::BTreeMap;

use crate::model::FieldSummary;
use crate::model::summary::entry_bytes;

/// What counts for the plan of a stored page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageState {
    /// Its version.
    pub(crate) count: u32,
    /// Whether it takes no more.
    pub(crate) sealed: bool,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing: the pages count all measurements.
    AsItIs,
    /// Page 0 gets everything; it is inserted where there is none.
    One {
        /// By the same statement.
        seal: bool,
    },
    /// See above.
    Several(Several),
}

/// The counts of the pages afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Several {
    /// The page that counts the rest is written last.
    Rising {
        /// Of the pages there are.
        pages: Vec<u32>,
        /// Of those behind, at least one.
        rest: u32,
    },
    /// The page that counts the rest is written first.
    Falling {
        /// Of the pages there are.
        pages: Vec<u32>,
        /// Of the page that is added.
        rest: u32,
        /// The page that is written last.
        last: usize,
    },
}

/// What a page behind counts, if it is not the one that counts the rest: so many times it can be rewritten under a gate.
const SHARE: u32 = 16;

impl Several {
    fn of(pages: &[PageState], total: u32) -> Several {
        let counted: u64 = pages.iter().map(|page| u64::from(page.count)).sum();
        let mut rest = total;
        let less = |page: &PageState| {
            let count = page.count.saturating_sub(1).min(rest);
            rest -= count;
            count
        };
        let counts = pages.iter().map(less).collect();
        if counted < u64::from(total) {
            return Several::Rising { pages: counts, rest };
        }
        let last = (0..pages.len()).max_by_key(|n| pages[*n].count).unwrap_or(0);
        Several::Falling { pages: counts, rest, last }
    }

    /// What one more page counts.
    pub(crate) fn share(&mut self) -> u32 {
        let (from, least) = match self {
            Several::Rising { rest, .. } => (rest, 1),
            Several::Falling { pages, last, .. } => (&mut pages[*last], 0),
        };
        let share = SHARE.min(from.saturating_sub(least));
        *from -= share;
        share
    }
}

/// The plan for `total` measurements. `pages`: from page 0, without gaps; `fits`: all fields fit into one page; `force`:
/// also where the counts add up.
pub(crate) fn plan(pages: &[PageState], total: u32, fits: bool, force: bool) -> Plan {
    let counted: u64 = pages.iter().map(|page| u64::from(page.count)).sum();
    if counted == u64::from(total) && !pages.is_empty() && !force {
        return Plan::AsItIs;
    }
    match pages {
        [] if fits => Plan::One { seal: false },
        [page] if fits && !page.sealed => Plan::One { seal: total < page.count },
        [page] if fits && total <= page.count => Plan::One { seal: true },
        _ => Plan::Several(Several::of(pages, total)),
    }
}

/// Fields that go to one page.
pub(crate) type Chunk = Vec<(String, FieldSummary)>;

/// Fields in the order of their names, cut into what a page takes. At least one.
pub(crate) fn chunks(fields: BTreeMap<String, FieldSummary>, bytes_max: u64) -> Vec<Chunk> {
    let (mut chunks, mut chunk, mut bytes) = (vec![], vec![], 0);
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
    use crate::model::Number;

    fn open(count: u32) -> PageState {
        PageState { count, sealed: false }
    }

    fn sealed(count: u32) -> PageState {
        PageState { count, sealed: true }
    }

    #[test]
    fn one_page_stays_one_and_its_open_count_never_goes_down() {
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
            assert_eq!(&plan(&pages, total, true, false), planned, "{pages:?} {total}");
        }
        assert_eq!(plan(&[open(3)], 3, true, true), keep, "a repair: same count, other summary");
        let later = Several::Rising { pages: vec![2], rest: 3 };
        assert_eq!(plan(&[sealed(3)], 5, true, false), Plan::Several(later), "what came later has no room in it");
    }

    /// Runs the steps; returns what the counts add up to after each.
    fn sums(pages: &[PageState], total: u32, more: usize) -> Vec<i64> {
        let mut held: Vec<i64> = pages.iter().map(|p| i64::from(p.count)).collect();
        let mut sums: Vec<i64> = vec![];
        let Plan::Several(mut several) = plan(pages, total, false, true) else { panic!("one page") };
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
            let pages: Vec<_> = (0..rng.usize(0..6)).map(|_| sealed(rng.u32(0..most))).collect();
            let total = rng.u32(1..most * 6);
            let sums = sums(&pages, total, rng.usize(0..4));
            let (last, before) = sums.split_last().unwrap();
            assert_eq!(*last, i64::from(total), "{pages:?}");
            assert!(before.iter().all(|sum| *sum != i64::from(total)), "{pages:?} {total}: {sums:?}");
        }
    }

    #[test]
    fn every_version_changes() {
        let several = |total| match plan(&[sealed(3), sealed(9), open(1)], total, false, true) {
            Plan::Several(several) => several,
            other => panic!("{other:?}"),
        };
        assert_eq!(several(14), Several::Rising { pages: vec![2, 8, 0], rest: 4 });
        assert_eq!(several(13), Several::Falling { pages: vec![2, 8, 0], rest: 3, last: 1 });
        assert_eq!(several(5), Several::Falling { pages: vec![2, 3, 0], rest: 0, last: 1 });
    }

    #[test]
    fn fields_are_cut_by_what_a_page_takes() {
        let one = FieldSummary { min: Number::Int(1), max: Number::Int(1), sum: Number::Int(1), count: 1 };
        let fields: BTreeMap<String, FieldSummary> = (0..10).map(|i| (format!("f{i}"), one)).collect();
        let lengths = |bytes| chunks(fields.clone(), bytes).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(3 * entry_bytes("f0")), [3, 3, 3, 1]);
        assert_eq!(lengths(1), vec![1; 10], "one always goes");
        assert_eq!(chunks(BTreeMap::new(), 1), vec![vec![]]);
    }
}
