//! The layouts of stored readings: hourbucket's two modes, and common ones without hourbucket.

/// A layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// hourbucket in bucket mode.
    Bucket,
    /// hourbucket in time-series mode.
    TimeSeries,
    /// A native time-series collection, filled with an hour of a sensor at a time, which is its
    /// best case.
    Native,
    /// One document per reading, with an index by sensor and time and one by time.
    Documents,
}

pub(crate) const NATIVE: &str = "native";
pub(crate) const DOCUMENTS: &str = "documents";

impl Layout {
    pub(crate) const ALL: [Layout; 4] = [
        Layout::Bucket,
        Layout::TimeSeries,
        Layout::Native,
        Layout::Documents,
    ];

    /// In the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Layout::Bucket => "hourbucket, bucket mode",
            Layout::TimeSeries => "hourbucket, time-series mode",
            Layout::Native => "native collection",
            Layout::Documents => "one document per reading",
        }
    }

    /// `store.mode`; `None` if hourbucket does not write it.
    pub(crate) fn mode(self) -> Option<&'static str> {
        match self {
            Layout::Bucket => Some("bucket"),
            Layout::TimeSeries => Some("timeseries"),
            Layout::Native | Layout::Documents => None,
        }
    }

    /// The collection with one document per reading, and the names of sensor and site in it;
    /// `None`: readings are in pages.
    pub(crate) fn readings(self) -> Option<(&'static str, &'static str, &'static str)> {
        match self {
            Layout::Bucket => None,
            Layout::TimeSeries => Some(("sensor_readings", "meta.sensor_id", "meta.tags.site")),
            Layout::Native => Some((NATIVE, "meta.sensor_id", "meta.site")),
            Layout::Documents => Some((DOCUMENTS, "sensor_id", "site")),
        }
    }

    /// The collection whose documents a query of this one examines.
    pub(crate) fn stored_in(self, collection: &str) -> String {
        match collection {
            "sensor_summaries" => "sensor_buckets".to_owned(),
            "sensor_readings" | NATIVE => format!("system.buckets.{collection}"),
            other => other.to_owned(),
        }
    }
}
