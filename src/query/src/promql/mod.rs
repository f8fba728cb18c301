//! PromQL over series of floats, as Prometheus 3 evaluates it. Pure: [`parse`] a query, find the
//! series that its [`requests`] select, [`evaluate`] it over their samples, which a [`Source`] gives
//! part by part. What stays in memory of a part is a point for each step.
//!
//! Windows and the lookback are open on the left and closed on the right: `(end - range, end]`.
//! There are no native histograms and no stale markers. If Prometheus' result depends on the order
//! of a hash map (the sum over the result of a range query's inner function), this one depends on
//! the order of the series, so the last digits may differ. docs/promql.md lists the differences.
//!
//! A function whose windows may be answered from summaries gets [`WindowStats`] instead of samples
//! if the caller has them: [`windows`] has the rules. [`sketches`] has those of the one function that
//! Prometheus does not have.

mod ast;
mod at_times;
mod durations;
mod error;
mod eval;
mod extension;
pub mod format;
mod functions;
mod guard;
mod labels;
mod matcher;
mod parse;
mod place;
mod raw_strings;
mod re2;
mod regex_texts;
mod series;
pub(crate) mod sketches;
mod unexpected;
pub mod windows;

pub use self::ast::Query;
pub(crate) use self::error::PromqlError;
pub(crate) use self::eval::steps;
pub use self::eval::{Evaluated, QueryTime, Stop, evaluate, requests};
pub use self::labels::Labels;
pub(crate) use self::labels::{METRIC_NAME, SENSOR_ID};
pub use self::matcher::Matcher;
pub use self::parse::{format as format_query, parse, parse_selector};
pub(crate) use self::series::joined;
pub use self::series::{
    AnsweredBy, Part, Sample, SelectedSeries, SelectorRequest, Series, SeriesData, Source, Value,
    WindowStats, Windows,
};
