//! The functions of PromQL and how each is evaluated.

use super::ast::ValueType;
use super::ast::ValueType::{Matrix, Scalar, String, Vector};
use super::extension;
use super::series::AnsweredBy;

/// How a function is evaluated.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// A number of each sample.
    Map(fn(f64) -> f64),
    /// A part of the time that each sample, or without an argument the evaluation, denotes.
    Date(fn(i64) -> f64),
    /// Of the samples of a window.
    OverTime(OverTime),
    /// Of the buckets of histograms.
    Histogram,
    /// Everything else, by name.
    Special,
    /// Not supported.
    Unsupported,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OverTime {
    Avg,
    Sum,
    Count,
    Min,
    Max,
    Present,
    Absent,
    First,
    Last,
    Mad,
    Quantile,
    SketchQuantile,
    Stddev,
    Stdvar,
    Changes,
    Resets,
    Delta,
    Rate,
    Increase,
    Idelta,
    Irate,
    Deriv,
    PredictLinear,
    DoubleExponentialSmoothing,
    TsOfFirst,
    TsOfLast,
    TsOfMin,
    TsOfMax,
}

impl OverTime {
    /// What of the whole hours in a window suffices.
    pub(crate) fn answered_by(self) -> AnsweredBy {
        use OverTime::{Absent, Avg, Count, Max, Min, Present, SketchQuantile, Sum};
        match self {
            Avg | Sum | Count | Min | Max | Present | Absent => AnsweredBy::Stats,
            SketchQuantile => AnsweredBy::Sketches,
            _ => AnsweredBy::Samples,
        }
    }
}

/// A function's name and signature.
#[derive(Debug)]
pub(crate) struct Function {
    pub name: &'static str,
    pub args: &'static [ValueType],
    /// How many arguments at the end are optional; the last may be repeated without limit if
    /// negative.
    pub optional: i32,
    pub returns: ValueType,
    pub kind: Kind,
}

const fn f(
    name: &'static str,
    args: &'static [ValueType],
    optional: i32,
    returns: ValueType,
    kind: Kind,
) -> Function {
    Function {
        name,
        args,
        optional,
        returns,
        kind,
    }
}

const fn map(name: &'static str, map: fn(f64) -> f64) -> Function {
    f(name, &[Vector], 0, Vector, Kind::Map(map))
}

const fn date(name: &'static str, date: fn(i64) -> f64) -> Function {
    f(name, &[Vector], 1, Vector, Kind::Date(date))
}

const fn over(name: &'static str, over: OverTime) -> Function {
    f(name, &[Matrix], 0, Vector, Kind::OverTime(over))
}

const fn special(
    name: &'static str,
    args: &'static [ValueType],
    optional: i32,
    returns: ValueType,
) -> Function {
    f(name, args, optional, returns, Kind::Special)
}

const fn histogram(name: &'static str, args: &'static [ValueType], optional: i32) -> Function {
    f(name, args, optional, Vector, Kind::Histogram)
}

const fn unsupported(name: &'static str, args: &'static [ValueType], optional: i32) -> Function {
    f(name, args, optional, Vector, Kind::Unsupported)
}

fn sgn(v: f64) -> f64 {
    match v {
        v if v < 0.0 => -1.0,
        v if v > 0.0 => 1.0,
        v => v,
    }
}

fn radians(v: f64) -> f64 {
    v * std::f64::consts::PI / 180.0
}

fn degrees(v: f64) -> f64 {
    v * 180.0 / std::f64::consts::PI
}

use super::eval::dates;

static FUNCTIONS: &[Function] = &[
    map("abs", f64::abs),
    special("absent", &[Vector], 0, Vector),
    over("absent_over_time", OverTime::Absent),
    map("acos", f64::acos),
    map("acosh", f64::acosh),
    map("asin", f64::asin),
    map("asinh", f64::asinh),
    map("atan", f64::atan),
    map("atanh", f64::atanh),
    over("avg_over_time", OverTime::Avg),
    map("ceil", f64::ceil),
    over("changes", OverTime::Changes),
    special("clamp", &[Vector, Scalar, Scalar], 0, Vector),
    special("clamp_max", &[Vector, Scalar], 0, Vector),
    special("clamp_min", &[Vector, Scalar], 0, Vector),
    map("cos", f64::cos),
    map("cosh", f64::cosh),
    over("count_over_time", OverTime::Count),
    date("days_in_month", dates::days_in_month),
    date("day_of_month", dates::day_of_month),
    date("day_of_week", dates::day_of_week),
    date("day_of_year", dates::day_of_year),
    map("deg", degrees),
    over("delta", OverTime::Delta),
    over("deriv", OverTime::Deriv),
    f(
        "double_exponential_smoothing",
        &[Matrix, Scalar, Scalar],
        0,
        Vector,
        Kind::OverTime(OverTime::DoubleExponentialSmoothing),
    ),
    special("end", &[], 0, Scalar),
    map("exp", f64::exp),
    over("first_over_time", OverTime::First),
    map("floor", f64::floor),
    histogram("histogram_avg", &[Vector], 0),
    histogram("histogram_count", &[Vector], 0),
    histogram("histogram_fraction", &[Scalar, Scalar, Vector], 0),
    histogram("histogram_quantile", &[Scalar, Vector], 0),
    histogram("histogram_quantiles", &[Vector, String, Scalar], -1),
    histogram("histogram_stddev", &[Vector], 0),
    histogram("histogram_stdvar", &[Vector], 0),
    histogram("histogram_sum", &[Vector], 0),
    date("hour", dates::hour),
    f(
        extension::NAME,
        &[Scalar, Matrix],
        0,
        Vector,
        Kind::OverTime(OverTime::SketchQuantile),
    ),
    over("idelta", OverTime::Idelta),
    over("increase", OverTime::Increase),
    unsupported("info", &[Vector, Vector], 1),
    over("irate", OverTime::Irate),
    special("label_join", &[Vector, String, String, String], -1, Vector),
    special(
        "label_replace",
        &[Vector, String, String, String, String],
        0,
        Vector,
    ),
    over("last_over_time", OverTime::Last),
    map("ln", f64::ln),
    map("log10", f64::log10),
    map("log2", f64::log2),
    over("mad_over_time", OverTime::Mad),
    over("max_over_time", OverTime::Max),
    over("min_over_time", OverTime::Min),
    date("minute", dates::minute),
    date("month", dates::month),
    special("pi", &[], 0, Scalar),
    f(
        "predict_linear",
        &[Matrix, Scalar],
        0,
        Vector,
        Kind::OverTime(OverTime::PredictLinear),
    ),
    over("present_over_time", OverTime::Present),
    f(
        "quantile_over_time",
        &[Scalar, Matrix],
        0,
        Vector,
        Kind::OverTime(OverTime::Quantile),
    ),
    map("rad", radians),
    special("range", &[], 0, Scalar),
    over("rate", OverTime::Rate),
    over("resets", OverTime::Resets),
    special("round", &[Vector, Scalar], 1, Vector),
    special("scalar", &[Vector], 0, Scalar),
    map("sgn", sgn),
    map("sin", f64::sin),
    map("sinh", f64::sinh),
    special("sort", &[Vector], 0, Vector),
    special("sort_by_label", &[Vector, String], -1, Vector),
    special("sort_by_label_desc", &[Vector, String], -1, Vector),
    special("sort_desc", &[Vector], 0, Vector),
    map("sqrt", f64::sqrt),
    special("start", &[], 0, Scalar),
    over("stddev_over_time", OverTime::Stddev),
    over("stdvar_over_time", OverTime::Stdvar),
    special("step", &[], 0, Scalar),
    over("sum_over_time", OverTime::Sum),
    map("tan", f64::tan),
    map("tanh", f64::tanh),
    special("time", &[], 0, Scalar),
    special("timestamp", &[Vector], 0, Vector),
    over("ts_of_first_over_time", OverTime::TsOfFirst),
    over("ts_of_last_over_time", OverTime::TsOfLast),
    over("ts_of_max_over_time", OverTime::TsOfMax),
    over("ts_of_min_over_time", OverTime::TsOfMin),
    special("vector", &[Scalar], 0, Vector),
    date("year", dates::year),
];

/// The function of this name.
pub(super) fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name == name)
}
