//! What a declaration of a metric becomes: its function, its entry in the catalog, and its series
//! at zero. The declarations are in [`metrics`](super::metrics).

use std::fmt::Write as _;

use metrics::{SharedString, describe_counter, describe_gauge, describe_histogram};

pub use super::metrics::METRICS;
use model::{Named, closed_set};

closed_set! {
    /// A metric type of Prometheus; the text is the word of the TYPE line.
    pub enum Kind {
        /// Never decreases; starts at 0 with the process.
        Counter => "counter",
        /// Can increase and decrease.
        Gauge => "gauge",
        /// Observations counted in buckets, with their sum.
        Histogram => "histogram",
    }
}

/// A metric that `/metrics` can show.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The full name, with its prefix.
    pub name: &'static str,
    /// The type in the TYPE line.
    pub kind: Kind,
    /// The label names, without `le` of histograms.
    pub labels: &'static [&'static str],
    /// The unit of the value.
    pub unit: &'static str,
    /// One sentence; the HELP line.
    pub help: &'static str,
}

/// Declares metrics, each as
///
/// ```text
/// /// The help text, which is also the documentation of the function.
/// kind name(label: Type, …) in "unit", zero (label in VALUES, …);
/// ```
///
/// `name` is that of the function, and with the prefix `hourbucket_` that of the metric. `kind` says
/// what the function does:
///
/// | kind | function |
/// |---|---|
/// | `counter` | adds `n` |
/// | `total` | sets a counter to a sum that is kept elsewhere |
/// | `gauge` | sets the value |
/// | `level` | adds `change`, which may be negative, to a gauge |
/// | `histogram` | observes `seconds` |
/// | `text_counter`, `text_gauge` | appends to a scrape, without a prefix and the recorder |
///
/// With `zero`, the series of these label values exist from the start; for a metric without labels,
/// `zero ()`. A rate over a counter that appears with its first event misses that event, and an
/// alert on an absent series never fires. Series with values of crates above start in the service
/// (`start_series`), those of a broker in [`mqtt_broker`](super::metrics::mqtt_broker).
macro_rules! declare {
    ($(
        $(#[doc = $help:literal])+
        $kind:ident $name:ident($($label:ident: $type:ty),*) in $unit:literal
        $(, zero ($($each:ident in $values:expr),*))?;
    )+) => {
        /// All metrics, ordered along the pipeline.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: declare!(@name $kind $name),
            kind: declare!(@kind $kind),
            labels: &[$(stringify!($label)),*],
            unit: $unit,
            help: concat!($($help),+).trim_ascii_start(),
        },)+];

        fn start_at_zero() {
            $($(declare!(@zero $kind $name [] $($each in $values),*);)?)+
        }

        $(declare!(@function $kind $name [$($label: $type),*] $(#[doc = $help])+);)+
    };

    (@name text_counter $name:ident) => { stringify!($name) };
    (@name text_gauge $name:ident) => { stringify!($name) };
    (@name $kind:ident $name:ident) => { concat!("hourbucket_", stringify!($name)) };

    (@kind counter) => { Kind::Counter };
    (@kind total) => { Kind::Counter };
    (@kind text_counter) => { Kind::Counter };
    (@kind histogram) => { Kind::Histogram };
    (@kind $gauge:ident) => { Kind::Gauge };

    // The counter, gauge or histogram of the recorder.
    (@series $macro:ident $name:ident $($label:ident)*) => {
        $macro!(concat!("hourbucket_", stringify!($name))
            $(, stringify!($label) => $label.text())*)
    };

    // One loop for each label, then the call.
    (@zero $kind:ident $name:ident [$($given:ident)*]
        $label:ident in $values:expr $(, $($rest:tt)+)?) => {
        for $label in $values {
            declare!(@zero $kind $name [$($given)* $label] $($($rest)+)?);
        }
    };
    (@zero histogram $name:ident [$($label:ident)*]) => {
        // A histogram is exported from its registration on.
        let _ = declare!(@series histogram $name $($label)*);
    };
    (@zero gauge $name:ident [$($label:ident)*]) => { $name($($label,)* 0.0) };
    (@zero $kind:ident $name:ident [$($label:ident)*]) => { $name($($label,)* 0) };

    (@function counter $name:ident [$($label:ident: $type:ty),*] $($doc:tt)+) => {
        $($doc)+
        pub fn $name($($label: $type,)* n: u64) {
            declare!(@series counter $name $($label)*).increment(n);
        }
    };
    (@function total $name:ident [] $($doc:tt)+) => {
        $($doc)+
        pub fn $name(sum: u64) {
            declare!(@series counter $name).absolute(sum);
        }
    };
    (@function gauge $name:ident [$($label:ident: $type:ty),*] $($doc:tt)+) => {
        $($doc)+
        pub fn $name($($label: $type,)* value: impl Number) {
            declare!(@series gauge $name $($label)*).set(value.into_f64());
        }
    };
    (@function level $name:ident [$($label:ident: $type:ty),*] $($doc:tt)+) => {
        $($doc)+
        pub fn $name($($label: $type,)* change: i64) {
            declare!(@series gauge $name $($label)*).increment(change as f64);
        }
    };
    (@function histogram $name:ident [$($label:ident: $type:ty),*] $($doc:tt)+) => {
        $($doc)+
        pub fn $name($($label: $type,)* seconds: f64) {
            declare!(@series histogram $name $($label)*).record(seconds);
        }
    };
    (@function $text:ident $name:ident [] $(#[doc = $help:literal])+) => {
        $(#[doc = $help])+
        pub(super) fn $name(scrape: &mut String, value: impl Number) {
            let name = stringify!($name);
            let help = concat!($($help),+).trim_ascii_start();
            let kind = declare!(@kind $text).as_str();
            let value = value.into_f64();
            let _ = writeln!(
                scrape,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"
            );
        }
    };
}
pub(super) use declare;

/// The value of a gauge.
pub trait Number {
    /// As Prometheus has it.
    fn into_f64(self) -> f64;
}

impl Number for f64 {
    fn into_f64(self) -> f64 {
        self
    }
}

impl Number for u64 {
    fn into_f64(self) -> f64 {
        self as f64
    }
}

impl Number for bool {
    fn into_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
}

/// The text of a label. For values of closed sets it is [`NamedText`]: one trait cannot have both,
/// because another crate might name a `&str`.
pub(super) trait Text {
    fn text(self) -> SharedString;
}

impl Text for &str {
    fn text(self) -> SharedString {
        self.to_owned().into()
    }
}

impl Text for u16 {
    fn text(self) -> SharedString {
        self.to_string().into()
    }
}

/// See [`Text`].
pub(super) trait NamedText {
    fn text(self) -> SharedString;
}

impl<N: Named> NamedText for N {
    fn text(self) -> SharedString {
        self.as_str().into()
    }
}

/// The HELP lines of a scrape.
pub(super) fn describe() {
    for metric in METRICS {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.help),
            Kind::Gauge => describe_gauge!(metric.name, metric.help),
            Kind::Histogram => describe_histogram!(metric.name, metric.help),
        }
    }
}

/// The table of docs/monitoring.md, in Markdown.
pub fn table() -> String {
    let mut text =
        String::from("| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n");
    for metric in METRICS {
        let labels = metric.labels.iter().map(|label| format!("`{label}`"));
        let labels = labels.collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            text,
            "| `{}` | {} | {labels} | {} | {} |",
            metric.name,
            metric.kind.as_str(),
            metric.unit,
            metric.help
        );
    }
    text
}
