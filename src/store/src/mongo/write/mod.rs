//! Commands that change the stored data: page writes, measurements, latest state, days, the
//! high-water mark.

pub(super) mod command_size;
pub(super) mod days;
pub(super) mod fence;
pub(super) mod high_water;
pub(super) mod latest;
pub(super) mod pages;
pub(super) mod recompute_summary;
pub(super) mod remove_readings;
pub(super) mod send_latest;
pub(super) mod time_series;
pub(super) mod time_series_writer;
