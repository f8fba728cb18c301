//! Labels of [`metrics`](super::metrics) with a fixed set of values.

/// The label `source`: where readings come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// An MQTT broker.
    Mqtt,
    /// A device connected to the listener.
    MqttDirect,
    /// An HTTP request.
    Http,
    /// The journal, replayed after a start.
    Replay,
    /// Rejected by the store after acceptance.
    Store,
}

impl Source {
    /// The value of the label `source`.
    pub fn label(self) -> &'static str {
        match self {
            Source::Mqtt => "mqtt",
            Source::MqttDirect => "mqtt_direct",
            Source::Http => "http",
            Source::Replay => "replay",
            Source::Store => "store",
        }
    }
}

/// Why admission is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionClosed {
    /// The journal is full, or the limits of the admission are reached.
    Full,
    /// The service is shutting down.
    Stopping,
    /// A part has failed permanently.
    Broken,
}

impl AdmissionClosed {
    pub(crate) const ALL: [AdmissionClosed; 3] = [
        AdmissionClosed::Full,
        AdmissionClosed::Stopping,
        AdmissionClosed::Broken,
    ];

    /// The value of the label `reason`.
    pub(super) fn label(self) -> &'static str {
        match self {
            AdmissionClosed::Full => "full",
            AdmissionClosed::Stopping => "stopping",
            AdmissionClosed::Broken => "broken",
        }
    }
}

/// The outcome of days that were due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DayResult {
    /// Their documents are written.
    Written,
    /// The store failed; they are computed again.
    Failed,
    /// The store refuses their documents.
    Refused,
    /// Some of their hours may have expired.
    Expired,
}

impl DayResult {
    pub(super) const ALL: [DayResult; 4] = [
        DayResult::Written,
        DayResult::Failed,
        DayResult::Refused,
        DayResult::Expired,
    ];

    /// The value of the label `result`.
    pub(super) fn label(self) -> &'static str {
        match self {
            DayResult::Written => "written",
            DayResult::Failed => "failed",
            DayResult::Refused => "refused",
            DayResult::Expired => "expired",
        }
    }
}

/// The result of a reload of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadResult {
    /// Every changed key was applied.
    Applied,
    /// Some keys need a restart; the others were applied.
    RestartNeeded,
    /// Nothing was changed.
    Invalid,
}

impl ReloadResult {
    pub(crate) const ALL: [ReloadResult; 3] = [
        ReloadResult::Applied,
        ReloadResult::RestartNeeded,
        ReloadResult::Invalid,
    ];

    /// The value of the label `result`, and of `result` in `/readyz`.
    pub fn label(self) -> &'static str {
        match self {
            ReloadResult::Applied => "applied",
            ReloadResult::RestartNeeded => "restart_needed",
            ReloadResult::Invalid => "invalid",
        }
    }
}
