//! Labels of [`metrics`](super::metrics) that no other crate declares. Each is a closed set, so the
//! series of a metric are limited.

use model::{Named, closed_set};

/// A route of an HTTP port: the pattern, not the path, so the number of series is bounded.
#[derive(Debug, Clone, Copy)]
pub struct Route(pub(super) &'static str);

impl Named for Route {
    fn as_str(&self) -> &'static str {
        self.0
    }
}

closed_set! {
    /// Where readings come from.
    pub enum Source {
        /// An MQTT broker.
        Mqtt => "mqtt",
        /// A device connected to the listener.
        MqttDirect => "mqtt_direct",
        /// An HTTP request.
        Http => "http",
        /// The journal, replayed after a start.
        Replay => "replay",
        /// Rejected by the store after acceptance.
        Store => model::OWN_SOURCE,
    }

    /// Why admission is closed.
    pub enum AdmissionClosed {
        /// The journal is full, or the limits of the admission are reached.
        Full => "full",
        /// The service is shutting down.
        Stopping => "stopping",
        /// A part has failed permanently.
        Broken => "broken",
    }

    /// A kind of request to the store.
    pub enum StoreCommand {
        /// Loads of buckets.
        Load => "load",
        /// New pages.
        Insert => "insert",
        /// More readings for pages.
        Update => "update",
        /// Measurements of a time-series collection.
        Measurement => "measurement",
        /// Counts of measurements, after which summaries are computed again.
        CountMeasurements => "recount",
        /// Updates of `sensor_latest`.
        Latest => "latest",
        /// Updates of `sensor_catalog`.
        Catalog => "catalog",
        /// Dead letters.
        DeadLetter => "dead_letter",
        /// Queries of readers.
        Read => "read",
    }

    /// The kinds of store errors besides those of a whole request.
    pub enum DocumentError {
        /// The server refuses one document.
        Refused => "refused",
    }

    /// Why a dead letter is not kept.
    pub enum DeadLetterDropped {
        /// The collection reached its limit.
        Limit => "limit",
        /// The store refuses it.
        Refused => "refused",
        /// Dead letters came faster than the store keeps them.
        Behind => "behind",
    }

    /// The result of an update of a document that the service keeps about a sensor.
    pub enum UpdateResult {
        /// It is written.
        Written => "written",
        /// It is too large, and written in part.
        Reduced => "reduced",
        /// The store refuses it; it is given up.
        Refused => "refused",
    }

    /// The result of a request to the centre.
    pub enum ForwardResult {
        /// Every reading is accepted or rejected.
        Ok => "ok",
        /// It is sent again in parts.
        TooLarge => "too_large",
        /// A status that passes.
        Busy => "busy",
        /// The token is not accepted, or may not forward.
        Unauthorized => "unauthorized",
        /// Another status or answer; an operator must do something.
        Refused => "refused",
        /// There was no answer.
        Failed => "failed",
    }

    /// The outcome of days that were due.
    pub enum DayResult {
        /// Their documents are written.
        Written => "written",
        /// The store failed; they are computed again.
        Failed => "failed",
        /// The store refuses their documents.
        Refused => "refused",
        /// Some of their hours may have expired.
        Expired => "expired",
        /// Their columns would be too large; they stay in their pages.
        TooLarge => "too_large",
    }

    /// The result of an attempt to load something as a whole.
    pub enum LoadResult {
        /// It is loaded.
        Ok => "ok",
        /// What was loaded before stays in use.
        Failed => "failed",
    }

    /// A port, named as its section of the configuration.
    pub enum PortName {
        /// HTTP ingest.
        Http => "http",
        /// Metrics, health and queries.
        Admin => "admin",
        /// The MQTT listener for devices.
        Mqtt => "listen.mqtt",
    }

    /// Why an HTTP port ends a connection.
    pub enum ConnectionClosed {
        /// For a new connection.
        Evicted => "evicted",
        /// The head of a request did not arrive in time.
        HeaderTimeout => "header_timeout",
        /// No request arrived for too long.
        KeepAlive => "keep_alive",
        /// The peer takes nothing of the response.
        WriteTimeout => "write_timeout",
        /// The client's certificate is not valid any more.
        Certificate => "certificate",
    }

    /// The outcome of a TLS handshake of an HTTP port.
    pub enum Handshake {
        /// It succeeded.
        Ok => "ok",
        /// It failed.
        Failed => "failed",
        /// The client speaks HTTP without TLS.
        PlainHttp => "plain_http",
        /// It took too long.
        Timeout => "timeout",
        /// The connection was closed for a new one.
        Evicted => "evicted",
    }

    /// The outcome of a connection attempt of a device, if CONNECT itself is not refused.
    pub enum ConnectOutcome {
        /// It is connected.
        Accepted => "accepted",
        /// `connections_max` is reached.
        TooMany => "too_many",
        /// `connections_per_address_max` is reached.
        AddressLimit => "address_limit",
        /// The address is paused because of failed authentications.
        Paused => "paused",
        /// No usable PROXY header, or one from an address that is not trusted.
        ProxyHeader => "proxy_header",
        /// The operating system gave no connection.
        Failed => "failed",
        /// Closed for a new connection.
        Evicted => "evicted",
        /// The TLS handshake failed.
        Tls => "tls",
        /// TLS or CONNECT took too long.
        Timeout => "timeout",
        /// The service is stopping.
        Stopping => "stopping",
        /// The device left before CONNECT was complete.
        Lost => "lost",
    }

    /// Why `audit.file` does not have a line.
    pub enum AuditDropped {
        /// `audit.lines_per_second`, or too many about one address.
        Limit => "limit",
        /// The disk is too slow.
        Queue => "queue",
        /// It could not be written.
        Write => "write",
    }

    /// The result of a reload of the configuration.
    pub enum ReloadResult {
        /// Every changed key was applied.
        Applied => "applied",
        /// Some keys need a restart; the others were applied.
        RestartNeeded => "restart_needed",
        /// Nothing was changed.
        Invalid => "invalid",
    }
}

impl Source {
    pub(super) const SENDERS: [Source; 3] = [Source::Mqtt, Source::MqttDirect, Source::Http];
}

impl PortName {
    /// Those for HTTP.
    pub const HTTP: [PortName; 2] = [PortName::Http, PortName::Admin];
}
