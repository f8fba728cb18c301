//! Commands that change the stored data: page writes, measurements, latest state, days,
//! columns, the high-water mark. Each file has a type that owns what it writes.

pub(super) mod columns;
pub(super) mod command_size;
pub(super) mod days;
pub(super) mod fence;
pub(super) mod high_water;
pub(super) mod latest;
pub(super) mod pages;
pub(super) mod recompute_summary;
pub(super) mod remove_readings;
mod replace;
pub(super) mod send_latest;
pub(super) mod time_series;

use std::sync::Arc;

use crate::mongo::connection::{Connection, in_part};
use crate::mongo::detected::Detected;
use crate::{PageWriteResult, StoreError};
use fence::Fence;
use model::{PageKind, PageWrite, StorageMode};
use pages::PageWriter;
use time_series::SeriesWriter;

/// Executes page writes in both storage modes.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    pages: PageWriter,
    series: SeriesWriter,
}

impl Writer {
    pub(super) fn new(
        connection: &Connection,
        detected: &Arc<Detected>,
        fence: &Arc<Fence>,
    ) -> Writer {
        let pages = PageWriter::new(connection.clone(), detected.clone());
        let series = SeriesWriter::new(connection.clone(), pages.clone(), fence.clone());
        Writer { pages, series }
    }

    /// See [`crate::Store::write`].
    pub(super) async fn write(
        &self,
        writes: &[PageWrite],
    ) -> Result<Vec<PageWriteResult>, StoreError> {
        // The flush stage sends one kind per command, and mixes storage modes only after a change of
        // mode.
        let kind = |w: &PageWrite| (w.storage_mode, w.kind == PageKind::Create);
        let mut answers = Vec::with_capacity(writes.len());
        for run in writes.chunk_by(|a, b| kind(a) == kind(b)) {
            let written = match run[0].storage_mode {
                StorageMode::TimeSeries => self.series.write(run).await,
                StorageMode::Bucket => {
                    let run: Vec<&PageWrite> = run.iter().collect();
                    self.pages.write_kind(&run, None).await
                }
            };
            // The groups before this one are stored.
            answers.extend(match answers.is_empty() {
                true => written?,
                false => written.map_err(in_part)?,
            });
        }
        Ok(answers)
    }
}
