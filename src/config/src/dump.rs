//! Prints the configuration in the format of the file, for a log or a bug report. Secrets are
//! hidden.

use std::fmt::{Display, Write};
use std::path::PathBuf;
use std::time::Duration;

use super::units::{write_duration, write_size};
use super::{
    AckMode, ClientAuth, ClientIdentity, Config, Connections, HttpTimes, Jwt, ListenMqtt,
    LogFormat, Mqtt, MqttProtocol, Nested, PointAttributes, Proxies, Retained, StoreMode,
    Subscription, Tls, TlsVersion, uri,
};

/// Replaces a secret.
const HIDDEN: &str = "***";

/// Lines of `key = value` under their sections.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn section(&mut self, header: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        self.push(format_args!("{gap}{header}"));
    }

    fn push(&mut self, line: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    /// For numbers and booleans.
    fn plain(&mut self, key: &str, value: impl Display) {
        self.push(format_args!("{key} = {value}"));
    }

    fn text(&mut self, key: &str, value: impl Display) {
        let value = toml::Value::String(value.to_string());
        self.push(format_args!("{key} = {value}"));
    }

    fn size(&mut self, key: &str, bytes: u64) {
        self.text(key, write_size(bytes));
    }

    fn duration(&mut self, key: &str, duration: Duration) {
        self.text(key, write_duration(duration));
    }

    fn texts(&mut self, key: &str, values: impl IntoIterator<Item = impl Display>) {
        let values = values
            .into_iter()
            .map(|value| toml::Value::String(value.to_string()));
        self.plain(key, toml::Value::Array(values.collect()));
    }

    fn text_opt(&mut self, key: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.text(key, value);
        }
    }

    fn path_opt(&mut self, key: &str, path: Option<&PathBuf>) {
        self.text_opt(key, path.map(|path| path.display()));
    }
}

impl Config {
    /// The settings in the format of the file, without those that are not set. Secrets are `"***"`;
    /// the store's URI shows hosts and options, never user or password.
    pub fn masked(&self) -> String {
        let mut out = Lines::default();
        self.mask_intake(&mut out);
        self.mask_store(&mut out);
        self.mask_memory(&mut out);
        self.mask_patterns(&mut out);
        self.mask_limits(&mut out);
        self.mask_decoding(&mut out);
        self.mask_operation(&mut out);
        for format in &self.formats {
            out.push(format_args!("\n{}", format.text.trim_end()));
        }
        for mqtt in &self.mqtt {
            mask_mqtt(&mut out, mqtt);
        }
        mask_listen(&mut out, &self.listen.mqtt);
        out.0
    }

    fn mask_intake(&self, out: &mut Lines) {
        out.section("[ingest]");
        out.text(
            "ack",
            match self.ingest.ack {
                AckMode::Journal => "journal",
                AckMode::Stored => "stored",
            },
        );
        out.plain("queue_max", self.ingest.queue_max);
        out.size("queue_max_bytes", self.ingest.queue_max_bytes);
        out.text_opt("sender_tag", self.ingest.sender_tag.as_ref());

        let quota = &self.quota;
        out.section("[quota]");
        out.plain(
            "readings_per_second",
            quota.readings_per_second.unwrap_or_default(),
        );
        out.size(
            "bytes_per_second",
            quota.bytes_per_second.unwrap_or_default(),
        );
        out.duration("burst", quota.burst);
        out.plain("connections_max", quota.connections_max.unwrap_or_default());
        out.plain("requests_max", quota.requests_max.unwrap_or_default());
        out.plain("journal_share_percent", quota.journal_share_percent);

        mask_jwt(out, &self.jwt);

        out.section("[certificates]");
        let identity = self.certificates.identity;
        out.text_opt(
            "identity",
            ClientIdentity::CHOICES
                .iter()
                .find(|(_, one)| *one == identity)
                .map(|(name, _)| name),
        );
        out.texts("write_default", &self.certificates.write_default);
        out.texts("read_default", &self.certificates.read_default);

        out.section("[http]");
        out.plain("enabled", self.http.enabled);
        out.text("listen", self.http.listen);
        out.path_opt("tokens_file", self.http.tokens_file.as_ref());
        out.plain("allow_anonymous", self.http.allow_anonymous);
        out.size("body_max_bytes", self.http.body_max_bytes);
        out.size("bodies_max_bytes", self.http.bodies_max_bytes);
        mask_connections(out, &self.http.connections);
        mask_proxies(out, &self.http.proxies, true);
        mask_times(out, &self.http.times);
        out.duration("body_timeout", self.http.body_timeout);
        out.duration("body_grace", self.http.body_grace);
        out.size("body_rate_min", self.http.body_rate_min);
        out.plain("concurrency_max", self.http.concurrency_max);
        out.duration("queue_timeout", self.http.queue_timeout);
        out.duration("ack_timeout", self.http.ack_timeout);
        mask_tls(out, "[http.tls]", &self.http.tls);

        out.section("[admin]");
        out.text("listen", self.admin.listen);
        mask_connections(out, &self.admin.connections);
        mask_proxies(out, &self.admin.proxies, true);
        mask_times(out, &self.admin.times);
        out.plain("queries_max", self.admin.queries_max);
        out.plain("answers_max", self.admin.answers_max);
        mask_tls(out, "[admin.tls]", &self.admin.tls);
        let promql = &self.promql;
        out.section("[promql]");
        out.duration("lookback", promql.lookback);
        out.duration("timeout", promql.timeout);
        out.plain("queries_max", promql.queries_max);
        out.plain("series_max", promql.series_max);
        out.plain("samples_max", promql.samples_max);
        out.duration("slow", promql.slow);
    }

    fn mask_store(&self, out: &mut Lines) {
        out.section("[store]");
        out.text("uri", uri::masked_store(self.store.uri.reveal()));
        out.text("database", &self.store.database);
        out.text(
            "mode",
            match self.store.mode {
                StoreMode::Bucket => "bucket",
                StoreMode::Timeseries => "timeseries",
                StoreMode::Auto => "auto",
            },
        );
        out.text_opt("retention", self.store.retention.map(write_duration));
        out.text_opt(
            "retention_readings",
            self.store.retention_readings.map(write_duration),
        );
        out.text("write_concern", &self.store.write_concern);
        out.duration("timeout", self.store.timeout);
        out.duration("connect_timeout", self.store.connect_timeout);
        out.plain("pool_max", self.store.pool_max);
        out.plain("tags_index", self.store.tags_index);
    }

    fn mask_memory(&self, out: &mut Lines) {
        out.section("[bucket]");
        out.duration(
            "span",
            Duration::from_millis(self.bucket.span.ms().unsigned_abs()),
        );
        out.plain("max_readings", self.bucket.max_readings);
        out.size("max_bytes", self.bucket.max_bytes);

        out.section("[flush]");
        out.duration("max_age", self.flush.max_age);
        out.duration("max_age_busy", self.flush.max_age_busy);
        out.duration("linger", self.flush.linger);
        out.plain("commands_max", self.flush.commands_max);
        out.size("command_max_bytes", self.flush.command_max_bytes);
        out.plain("command_max_statements", self.flush.command_max_statements);
        out.duration("backoff_min", self.flush.backoff_min);
        out.duration("backoff_max", self.flush.backoff_max);
        out.duration("quarantine_after", self.flush.quarantine_after);

        out.section("[accumulate]");
        out.plain("shards", self.accumulate.shards);
        out.size("max_bytes", self.accumulate.max_bytes);
        out.plain("max_sensors", self.accumulate.max_sensors);

        out.section("[journal]");
        out.text("dir", self.journal.dir.display());
        out.size("max_bytes", self.journal.max_bytes);
        out.size("segment_bytes", self.journal.segment_bytes);
        out.duration("commit_delay", self.journal.commit_delay);
    }

    fn mask_patterns(&self, out: &mut Lines) {
        out.section("[latest]");
        out.plain("enabled", self.latest.enabled);
        out.duration("interval", self.latest.interval);
        out.plain("recent", self.latest.recent);
        out.size("max_bytes", self.latest.max_bytes);

        out.section("[rollup]");
        out.plain("days", self.rollup.days);
        out.text("zone", self.rollup.zone.name());
        out.text_opt("retention", self.rollup.retention.map(write_duration));
        out.duration("settle", self.rollup.settle);
        out.duration("late", self.rollup.late);
        out.size("max_bytes", self.rollup.max_bytes);

        out.section("[sensors]");
        out.duration("silent_after", self.sensors.silent_after);
        out.duration("retired_after", self.sensors.retired_after);

        out.section("[enrich]");
        out.text_opt("collection", self.enrich.collection.as_ref());
        out.text("id_field", &self.enrich.id_field);
        if !self.enrich.fields.is_empty() {
            out.texts("fields", &self.enrich.fields);
        }
        out.duration("interval", self.enrich.interval);
        out.plain("max_sensors", self.enrich.max_sensors);
    }

    fn mask_limits(&self, out: &mut Lines) {
        out.section("[limits]");
        out.duration("past", self.limits.past);
        out.duration("future", self.limits.future);
        out.duration("import_past", self.limits.import_past);
        let unset_before = chrono::DateTime::from_timestamp_millis(self.limits.unset_before_ms);
        out.text_opt("unset_before", unset_before.map(|at| at.format("%Y-%m-%d")));
        out.text(
            "unset_over_http",
            if self.limits.unset_over_http_refused {
                "reject"
            } else {
                "receive"
            },
        );
        out.text_opt("zone", self.limits.zone.map(|zone| zone.name()));
        out.plain("fields_max", self.limits.fields_max);
        out.plain("bucket_fields_max", self.limits.bucket_fields_max);
        out.plain("name_max_bytes", self.limits.name_max_bytes);
        out.plain("sensor_id_max_bytes", self.limits.sensor_id_max_bytes);
        out.plain("string_max_bytes", self.limits.string_max_bytes);
        out.plain("tags_max", self.limits.tags_max);
        out.plain("batch_max_readings", self.limits.batch_max_readings);
    }

    /// How readings of each format are decoded.
    fn mask_decoding(&self, out: &mut Lines) {
        out.section("[line]");
        out.text("sensor_id_tag", &self.line.sensor_id_tag);
        out.plain("field_prefix", self.line.field_prefix);

        out.section("[native]");
        let nested = match self.native.nested {
            Nested::Flatten => "flatten",
            Nested::Reject => "reject",
            Nested::LeaveOut => "leave-out",
        };
        out.text("nested", nested);
        let names = self
            .native
            .time
            .iter()
            .cloned()
            .map(toml::Value::String)
            .collect();
        out.plain("time", toml::Value::Array(names));

        out.section("[scalar]");
        out.text(
            "texts",
            if self.scalar.texts_allowed {
                "keep"
            } else {
                "reject"
            },
        );
        out.plain("decimal_comma", self.scalar.decimal_comma);

        out.section("[otlp]");
        out.texts("sensor_id_attributes", &self.otlp.sensor_id_attributes);
        out.text("sensor_id_default", &self.otlp.sensor_id_default);
        let place = if self.otlp.point_attributes == PointAttributes::Tags {
            "tags"
        } else {
            "sensor_id"
        };
        out.text("point_attributes", place);

        out.section("[remote_write]");
        let names = self
            .remote_write
            .sensor_id_labels
            .iter()
            .cloned()
            .map(toml::Value::String)
            .collect();
        out.plain("sensor_id_labels", toml::Value::Array(names));
        let place = if self.remote_write.other_labels == PointAttributes::Tags {
            "tags"
        } else {
            "sensor_id"
        };
        out.text("other_labels", place);
    }

    fn mask_operation(&self, out: &mut Lines) {
        out.section("[dead_letters]");
        out.duration("retention", self.dead_letters.retention);
        out.size("max_bytes", self.dead_letters.max_bytes);

        out.section("[shutdown]");
        out.duration("deadline", self.shutdown.deadline);

        out.section("[audit]");
        out.path_opt("file", self.audit.file.as_ref());
        out.plain("lines_per_second", self.audit.lines_per_second);

        out.section("[log]");
        out.text("level", &self.log.level);
        out.text(
            "format",
            match self.log.format {
                LogFormat::Text => "text",
                LogFormat::Json => "json",
            },
        );
    }
}

fn mask_connections(out: &mut Lines, connections: &Connections) {
    out.plain("connections_max", connections.max);
    out.plain("connections_per_address_max", connections.per_address_max);
    out.plain("failed_auth_max", connections.failed_auth_max);
    out.duration("failed_auth_pause", connections.failed_auth_pause);
}

/// `is_http`: the port has a key for the header.
fn mask_proxies(out: &mut Lines, proxies: &Proxies, is_http: bool) {
    if proxies.trusted.is_empty() {
        return;
    }
    let networks = proxies
        .trusted
        .iter()
        .map(|network| toml::Value::String(network.to_string()))
        .collect();
    out.plain("trusted_proxies", toml::Value::Array(networks));
    if is_http {
        out.text("proxy_header", proxies.header.as_str());
    }
}

fn mask_times(out: &mut Lines, times: &HttpTimes) {
    out.duration("header_timeout", times.header_timeout);
    out.duration("keep_alive", times.keep_alive);
    out.duration("write_timeout", times.write_timeout);
}

fn mask_jwt(out: &mut Lines, jwt: &Jwt) {
    out.section("[jwt]");
    out.path_opt("keys_file", jwt.keys_file.as_ref());
    out.texts(
        "algorithms",
        jwt.algorithms.iter().map(|algorithm| algorithm.as_str()),
    );
    out.text_opt("issuer", jwt.issuer.as_ref());
    if !jwt.audience.is_empty() {
        out.texts("audience", &jwt.audience);
    }
    out.duration("leeway", jwt.leeway);
    out.text("id_claim", &jwt.id_claim);
    out.text("write_claim", &jwt.write_claim);
    out.text("read_claim", &jwt.read_claim);
    out.texts("write_default", &jwt.write_default);
    out.texts("read_default", &jwt.read_default);
}

fn mask_tls(out: &mut Lines, header: &str, tls: &Tls) {
    out.section(header);
    out.path_opt("cert_file", tls.cert_file.as_ref());
    out.path_opt("key_file", tls.key_file.as_ref());
    out.path_opt("client_ca_file", tls.client_ca_file.as_ref());
    out.path_opt("client_crl_file", tls.client_crl_file.as_ref());
    mask_client_auth(out, tls.client_ca_file.is_some(), tls.client_auth);
    let version = match tls.min_version {
        TlsVersion::V12 => "1.2",
        TlsVersion::V13 => "1.3",
    };
    out.text("min_version", version);
}

/// Without a CA it has no meaning, and the reader refuses it.
fn mask_client_auth(out: &mut Lines, has_ca: bool, client_auth: ClientAuth) {
    let auth = match client_auth {
        ClientAuth::Required => "required",
        ClientAuth::Optional => "optional",
        ClientAuth::Identity => "identity",
    };
    out.text_opt("client_auth", has_ca.then_some(auth));
}

fn mask_mqtt(out: &mut Lines, mqtt: &Mqtt) {
    out.section("[[mqtt]]");
    out.text("url", &mqtt.url);
    out.text("client_id", &mqtt.client_id);
    out.plain(
        "protocol",
        match mqtt.protocol {
            MqttProtocol::V4 => 4,
            MqttProtocol::V5 => 5,
        },
    );
    out.plain("clean_start", mqtt.clean_start);
    if mqtt.protocol == MqttProtocol::V5 {
        out.duration("session_expiry", mqtt.session_expiry);
    }
    out.text_opt("username", mqtt.username.as_ref());
    // If there is a file, the password came from it.
    let direct = mqtt
        .password
        .as_ref()
        .filter(|_| mqtt.password_file.is_none());
    out.text_opt("password", direct.map(|_| HIDDEN));
    out.path_opt("password_file", mqtt.password_file.as_ref());
    out.path_opt("ca_file", mqtt.ca_file.as_ref());
    out.path_opt("cert_file", mqtt.cert_file.as_ref());
    out.path_opt("key_file", mqtt.key_file.as_ref());
    out.duration("keep_alive", mqtt.keep_alive);
    out.size("packet_max_bytes", u64::from(mqtt.packet_max_bytes));
    out.plain("window", mqtt.window);
    out.text_opt("status_topic", mqtt.status_topic.as_ref());
    for subscription in &mqtt.subscriptions {
        mask_subscription(out, subscription);
    }
}

fn mask_listen(out: &mut Lines, mqtt: &ListenMqtt) {
    out.section("[listen.mqtt]");
    out.plain("enabled", mqtt.enabled);
    out.text("listen", mqtt.listen);
    out.path_opt("tokens_file", mqtt.tokens_file.as_ref());
    out.plain("allow_anonymous", mqtt.allow_anonymous);
    out.path_opt("cert_file", mqtt.cert_file.as_ref());
    out.path_opt("key_file", mqtt.key_file.as_ref());
    out.path_opt("client_ca_file", mqtt.client_ca_file.as_ref());
    out.path_opt("client_crl_file", mqtt.client_crl_file.as_ref());
    mask_client_auth(out, mqtt.client_ca_file.is_some(), mqtt.client_auth);
    mask_connections(out, &mqtt.connections);
    mask_proxies(out, &mqtt.proxies, false);
    out.duration("connect_timeout", mqtt.connect_timeout);
    out.duration("keep_alive_max", mqtt.keep_alive_max);
    out.size("packet_max_bytes", u64::from(mqtt.packet_max_bytes));
    out.duration("write_timeout", mqtt.write_timeout);
    out.duration("packet_grace", mqtt.packet_grace);
    out.size("packet_rate_min", mqtt.packet_rate_min);
    out.plain("topic_max_bytes", mqtt.topic_max_bytes);
    out.plain("window", mqtt.window);
    for topic in &mqtt.topics {
        out.section("[[listen.mqtt.topics]]");
        mask_route(out, topic);
    }
}

fn mask_subscription(out: &mut Lines, subscription: &Subscription) {
    out.section("[[mqtt.subscriptions]]");
    out.plain("qos", subscription.qos);
    out.text(
        "retained",
        match subscription.retained {
            Retained::Once => "once",
            Retained::Always => "always",
            Retained::Never => "never",
        },
    );
    mask_route(out, subscription);
}

/// Keys that subscriptions and `[[listen.mqtt.topics]]` share.
fn mask_route(out: &mut Lines, route: &Subscription) {
    out.text("filter", &route.filter);
    out.text("topic", &route.topic);
    out.text("format", &route.format);
    out.text_opt("ts_unit", route.ts_unit.as_ref());
    out.text_opt("zone", route.zone.map(|zone| zone.name()));
    if !route.user_property_tags.is_empty() {
        out.plain(
            "user_property_tags",
            format_args!("{:?}", route.user_property_tags),
        );
    }
}
