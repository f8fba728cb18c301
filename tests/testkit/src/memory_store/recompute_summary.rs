//! Recomputes the summary of a time-series bucket over its pages, as
//! [`store::summary_pages`] plans it.

use super::{Page, Pages};
use model::summary::{PAGE_SUMMARY_BYTES_MAX, by_name, entry_bytes, summarise};
use model::{BucketStart, Reading, Rows, StorageMode};
use store::retention::Extent;
use store::summary_pages::{Chunk, PageState, Plan, Several, chunks, plan};
use store::{StoreError, StoreErrorKind};

impl Pages {
    /// The pages of a bucket from page 0, without gaps.
    pub(super) fn of_bucket(&self, sensor_id: &str, start: BucketStart) -> Vec<&Page> {
        let pages = self
            .pages
            .range((sensor_id.to_owned(), start, 0)..=(sensor_id.to_owned(), start, u32::MAX));
        (0..)
            .zip(pages)
            .map_while(|(n, (key, page))| (key.2 == n).then_some(page))
            .collect()
    }

    /// The pages of a bucket as a load finds them: the others are looked for if page 0 is sealed.
    pub(super) fn heads(&self, sensor_id: &str, start: BucketStart) -> Vec<&Page> {
        let mut pages = self.of_bucket(sensor_id, start);
        if pages.first().is_some_and(|page| !page.sealed) {
            pages.truncate(1);
        }
        pages
    }

    /// Recomputes the summary if it does not count all measurements. Returns whether measurements
    /// that it counts were removed; then nothing is changed.
    pub(super) fn recompute_summary(
        &mut self,
        sensor_id: &str,
        start: BucketStart,
    ) -> Result<bool, StoreError> {
        let heads = self.heads(sensor_id, start);
        let counted = counted(&heads);
        let stored = self.stored_extent(sensor_id, start);
        let has_lost = counted.has_lost(heads.len(), stored);
        let differs = counted.count != stored.count || has_lost;
        if differs && self.has_readings(sensor_id, start) {
            let detail = "a time-series bucket also has pages with readings".to_owned();
            return Err(StoreError::Unknown {
                kind: StoreErrorKind::Command,
                detail,
            });
        }
        self.recompute_in_part(sensor_id, start, usize::MAX);
        Ok(has_lost)
    }

    /// The stored measurements of a bucket.
    fn stored_extent(&self, sensor_id: &str, start: BucketStart) -> Extent {
        let readings = self.series.get(&(sensor_id.to_owned(), start));
        let one = |reading: &Reading| Extent {
            count: 1,
            first_ts_ms: reading.ts_ms,
        };
        Extent::sum(readings.into_iter().flatten().map(one))
    }

    /// Whether measurements that the documents of a bucket count were removed.
    pub(super) fn has_lost(&self, sensor_id: &str, start: BucketStart) -> bool {
        let pages = self.of_bucket(sensor_id, start);
        counted(&pages).has_lost(pages.len(), self.stored_extent(sensor_id, start))
    }

    /// Whether a page of a bucket is not in time-series mode.
    fn has_readings(&self, sensor_id: &str, start: BucketStart) -> bool {
        let mut pages = self
            .pages
            .range((sensor_id.to_owned(), start, 0)..=(sensor_id.to_owned(), start, u32::MAX));
        pages.any(|(_, page)| page.storage_mode == StorageMode::Bucket)
    }

    /// The same, but ended by a crash after this many statements; nothing is done in a bucket that
    /// has pages with readings, or has lost measurements.
    pub fn recompute_in_part(&mut self, sensor_id: &str, start: BucketStart, statements: usize) {
        for (n, mut page) in self.steps(sensor_id, start).into_iter().take(statements) {
            let id = (sensor_id.to_owned(), start, n);
            page.was_converted = self.pages.get(&id).is_some_and(|old| old.was_converted);
            self.pages.insert(id, page);
        }
    }

    fn steps(&self, sensor_id: &str, start: BucketStart) -> Vec<(u32, Page)> {
        let mut rows = Rows::default();
        self.series
            .get(&(sensor_id.to_owned(), start))
            .into_iter()
            .flatten()
            .for_each(|r| rows.push_reading(r));
        let is_removed = self
            .of_bucket(sensor_id, start)
            .iter()
            .any(|page| page.readings_removed);
        if rows.is_empty()
            || is_removed
            || self.has_lost(sensor_id, start)
            || self.has_readings(sensor_id, start)
        {
            return vec![];
        }
        let fields = by_name(rows.fields(), &summarise(&rows));
        let bytes_max = self.summary_bytes_max.unwrap_or(PAGE_SUMMARY_BYTES_MAX);
        let fits = fields.keys().map(|name| entry_bytes(name)).sum::<u64>() <= bytes_max;
        let pages = self.of_bucket(sensor_id, start);
        let states: Vec<_> = pages
            .iter()
            .map(|p| PageState {
                count: p.count,
                sealed: p.sealed,
            })
            .collect();
        let mut steps = match plan(&states, rows.len() as u32, fits, false) {
            Plan::AsItIs => vec![],
            Plan::One { seal } => {
                let sealed = seal || pages.first().is_some_and(|page| page.sealed);
                vec![(
                    0,
                    page(rows.len() as u32, sealed, fields.into_iter().collect()),
                )]
            }
            Plan::Several(several) => over_pages(&pages, several, chunks(fields, bytes_max)),
        };
        for (_, page) in &mut steps {
            page.first_ts_ms = Some(rows.first_ts_ms());
        }
        steps
    }
}

/// What these pages count.
fn counted(pages: &[&Page]) -> Extent {
    let of_page = |page: &&Page| Extent {
        count: u64::from(page.count),
        first_ts_ms: page.first_ts_ms.unwrap_or(i64::MAX),
    };
    Extent::sum(pages.iter().map(of_page))
}

fn page(count: u32, sealed: bool, chunk: Chunk) -> Page {
    Page {
        count,
        sealed,
        summary: chunk.into_iter().collect(),
        storage_mode: StorageMode::TimeSeries,
        ..Page::default()
    }
}

/// The steps that distribute chunks over several pages.
fn over_pages(pages: &[&Page], mut several: Several, chunks: Vec<Chunk>) -> Vec<(u32, Page)> {
    let mut steps = vec![];
    if let Some(last) = pages.last().filter(|page| !page.sealed) {
        steps.push((pages.len() as u32 - 1, page(last.count, true, vec![])));
    }
    let mut chunks = chunks.into_iter();
    let (counts, mut behind, last) = match &several {
        Several::Rising { pages, .. } => (pages.clone(), pages.len() as u32, None),
        Several::Falling { pages, rest, last } => {
            steps.push((
                pages.len() as u32,
                page(*rest, true, chunks.next().unwrap_or_default()),
            ));
            (pages.clone(), pages.len() as u32 + 1, Some(*last))
        }
    };
    let held = chunks.next_back().unwrap_or_default();
    for n in (0..counts.len()).filter(|n| Some(*n) != last) {
        steps.push((
            n as u32,
            page(counts[n], true, chunks.next().unwrap_or_default()),
        ));
    }
    for chunk in chunks {
        steps.push((behind, page(several.share(), true, chunk)));
        behind += 1;
    }
    match several {
        Several::Rising { rest, .. } => steps.push((behind, page(rest, true, held))),
        Several::Falling { pages, last, .. } => {
            steps.push((last as u32, page(pages[last], true, held)))
        }
    }
    steps
}
