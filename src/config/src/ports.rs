//! The ports that others connect to: `[http]`, `[admin]`, `[promql]`, `[listen.mqtt]`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::declare::{Section, Sections, Shared, settings};
use super::kinds::{address, choice, count, duration, file, flag, size};
use super::mqtt::Subscription;
use super::proxies::{Proxies, proxies_over_mqtt};
use super::units::{GIB, HOUR, KIB, MIB, MINUTE, MS, SECOND};

const PORT: &str = "ports and their limits are set up at startup";

settings! {
    pub struct Http, restart(PORT) {
        enabled: bool = true, flag();
        listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)), address();
        /// Tokens of the senders that may write. Without it and [jwt] the service listens on
        /// loopback only.
        tokens_file: Option<PathBuf> = None, file().optional(), reload, example("\"tokens.toml\"");
        /// Allows other addresses than loopback without tokens, and any name in the header Host
        /// (else only an IP address or localhost). Anyone who reaches the port can then write,
        /// except web pages of other sites (Sec-Fetch-Site, Origin).
        allow_anonymous: bool = false, flag(), reload;
        /// Size of one request, before and after decompression; up to 512MiB.
        body_max_bytes: u64 = 8 * MIB, size(KIB..=512 * MIB), reload;
        /// Size of all requests that are being received or decoded, at least four times
        /// body_max_bytes; further ones get 429. One token, or without tokens one address, gets at
        /// most half of it, also while it is alone: others always have room. So set it to twice
        /// what one sender needs.
        bodies_max_bytes: u64 = 128 * MIB, size(MIB..=64 * GIB), reload;
        connections: Connections = Connections::up_to(8192), Shared;
        proxies: Proxies = Proxies::default(), Shared;
        times: HttpTimes = HttpTimes::default(), Shared;
        /// Time limit for receiving the body of a request.
        body_timeout: Duration = 30 * SECOND, duration(MS..=HOUR), reload;
        /// A body that is not complete after body_grace must have arrived at this many bytes per
        /// second on average, or the request gets 408. The default is far below what gateways on
        /// bad radio links (2G: about 1 KiB/s) send. 0: no limit.
        body_grace: Duration = 10 * SECOND, duration(MS..=HOUR), reload;
        body_rate_min: u64 = 256, size(0..=MIB), reload;
        /// Concurrent requests; further ones get 429. A request counts from when its body has
        /// arrived until its answer.
        concurrency_max: usize = 256, count(1..=65_536);
        /// How long a request waits for space in the queue before it gets 429, and for durability
        /// before it gets 503.
        queue_timeout: Duration = SECOND, duration(MS..=10 * MINUTE), reload;
        ack_timeout: Duration = MINUTE, duration(MS..=HOUR), reload;
        tls: Tls = Tls::default(), Section;
    }
}

settings! {
    /// Limits on the connections of a port.
    pub struct Connections, reload() {
        /// Connections, up to 1000000. When there are that many, the one that has been idle for
        /// longest is closed for a new one; if all have a request in progress, the new one is
        /// closed. The process needs as many open files (ulimit -n).
        max: usize = 8192, count(1..=1_000_000), named("connections_max");
        /// Connections of one address (IPv6: of one /64), so that one machine cannot take all of
        /// them; 0: a quarter of connections_max. This machine's addresses have no limit.
        per_address_max: usize = 0, count(0..=1_000_000), named("connections_per_address_max");
        /// An address with more failed authentications within a minute than this is paused for a
        /// while: requests with a wrong token get 429 and lose their connection, and only a few of
        /// its connections may be open that have not shown a valid token; a new one takes the place
        /// of one that has been idle for a second. Requests with a valid token are served as
        /// always, because many devices can share an address. 0: no limit.
        failed_auth_max: u32 = 30, count(0..=1_000_000);
        failed_auth_pause: Duration = 30 * SECOND, duration(MS..=HOUR);
    }
}

settings! {
    /// Time limits of the connections of an HTTP port.
    pub struct HttpTimes, reload() {
        /// Time limits of a connection. The head of a request must be complete this long after its
        /// first byte (the first head of a connection: after the connection was opened).
        header_timeout: Duration = 10 * SECOND, duration(MS..=10 * MINUTE);
        /// A connection without a request is kept this long. Longer than the interval of the
        /// senders, so that they need not connect again for each request.
        keep_alive: Duration = 75 * SECOND, duration(MS..=HOUR);
        /// A connection whose peer takes nothing of the response for this long is closed.
        write_timeout: Duration = 10 * SECOND, duration(MS..=10 * MINUTE);
    }
}

impl Copy for Connections {}
impl Copy for HttpTimes {}

settings! {
    /// HTTPS: certificate chain and key (PEM); absent: plain HTTP. The files are read again when
    /// they change and on SIGHUP; existing connections stay open. If the new files are unusable,
    /// the previous certificate stays in force, and the log, /readyz and hourbucket_tls_files_ok
    /// report it. The handshake must complete within http.header_timeout. The protocol is HTTP/1.1,
    /// as without TLS.
    pub struct Tls, reload() {
        cert_file: Option<PathBuf> = None, file().optional(), example("\"server.pem\"");
        key_file: Option<PathBuf> = None, file().optional(), example("\"server.key\"");
        /// CA of client certificates (PEM). They are checked in addition to tokens and do not
        /// replace them. However, if a certificate is required, the port may listen on other
        /// addresses than loopback without tokens.
        client_ca_file: Option<PathBuf> = None, file().optional(), example("\"ca.pem\"");
        /// Revocation lists of client certificates (PEM, one or several). With it, each CA between
        /// the certificate and client_ca_file needs a list; a file without the list of a CA in
        /// client_ca_file, or with one that another key has signed, is unusable. When the file
        /// changes, revoked certificates are refused and their open connections closed.
        client_crl_file: Option<PathBuf> = None, file().optional(), example("\"crl.pem\"");
        /// "required", or "optional": a client may connect without a certificate and is then
        /// checked by its token alone; a certificate that a client presents must be valid.
        /// "identity": required, and the certificate is who the sender is ([certificates]); tokens
        /// and JWTs have no meaning then.
        client_auth: ClientAuth = ClientAuth::Required, choice(ClientAuth::NAMES),
            example("\"optional\"");
        /// "1.2" or "1.3".
        min_version: TlsVersion = TlsVersion::V12, choice(TlsVersion::NAMES);
    }
}

settings! {
    pub struct Admin, restart(PORT) {
        /// /metrics, /livez, /readyz, without tokens: make it reachable for operators and
        /// Prometheus only.
        listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)), address();
        /// Limits on connections, as in [http]; one with a request whose body is still arriving
        /// makes room like an idle one.
        connections: Connections = Connections::up_to(256), Shared;
        /// Proxies in front of the port, as in [http].
        proxies: Proxies = Proxies::default(), Shared;
        /// Time limits of a connection, as in [http].
        times: HttpTimes = HttpTimes::default(), Shared;
        /// Concurrent queries of the read API, up to 1000; others wait for a second and then get
        /// 503. Each holds some MiB.
        queries_max: usize = 8, count(1..=1000);
        /// Responses with readings that are being sent, up to 10000; further ones get 503. Each
        /// holds up to 8 MiB until its reader has taken it; a larger one of a PromQL query counts
        /// as several.
        answers_max: usize = 64, count(1..=10_000);
        /// HTTPS for the admin port, same keys as [http.tls]. The handshake must complete within
        /// admin.header_timeout.
        tls: Tls = Tls::default(), Section;
    }
}

settings! {
    /// Queries below /prometheus on the admin port (docs/promql.md).
    pub struct Promql, restart("the admin port is opened with it at startup") {
        /// How old the newest sample may be that a selector without a range takes. Sensors that
        /// report once an hour need more.
        lookback: Duration = 5 * MINUTE, duration(MS..=8760 * HOUR);
        /// Time limit of a query, waiting for its turn included.
        timeout: Duration = 30 * SECOND, duration(MS..=HOUR);
        /// Expensive queries that run at the same time; more of them wait. Cheap queries have separate
        /// places.
        queries_max: usize = 4, count(1..=1000);
        /// Series that one query may select.
        series_max: usize = 200_000, count(1..=100_000_000);
        /// Samples that one query may hold in memory, 16 bytes each.
        samples_max: usize = 10_000_000, count(1000..=10_000_000_000);
        /// Queries that take longer are logged.
        slow: Duration = 10 * SECOND, duration(MS..=HOUR);
    }
}

settings! {
    /// `[listen]`
    pub struct Listen, restart(PORT) {
        mqtt: ListenMqtt = ListenMqtt::default(), Section;
    }
}

settings! {
    /// Devices connect to hourbucket directly, without a broker: the PUBACK that a device gets
    /// means that its reading is durable (ingest.ack). Devices can only publish, with QoS 0, 1 and
    /// 2.
    pub struct ListenMqtt, restart(PORT) {
        enabled: bool = false, flag();
        listen: SocketAddr = SocketAddr::from((Ipv4Addr::LOCALHOST, 1883)), address();
        /// Tokens of the devices that may connect, in a file like http.tokens_file (or the same
        /// file). A device sends the token's id as user name and its secret as password, or
        /// id.secret as password with any user name. Without this file (and without client_ca_file)
        /// the service listens on loopback only.
        tokens_file: Option<PathBuf> = None, file().optional(), reload, example("\"tokens.toml\"");
        /// Allows other addresses than loopback without tokens. Anyone who reaches the port can
        /// then write.
        allow_anonymous: bool = false, flag();
        /// TLS: certificate chain and key (PEM). Read again when the files change; existing
        /// connections stay open.
        cert_file: Option<PathBuf> = None, file().optional(), reload, example("\"server.pem\"");
        key_file: Option<PathBuf> = None, file().optional(), reload, example("\"server.key\"");
        /// Requires device certificates from this CA (PEM).
        client_ca_file: Option<PathBuf> = None, file().optional(), reload, example("\"ca.pem\"");
        /// Revocation lists of device certificates, as in [http.tls].
        client_crl_file: Option<PathBuf> = None, file().optional(), reload, example("\"crl.pem\"");
        /// "required": a certificate in addition to a token or JWT, if these are configured.
        /// "identity": the certificate is who the device is ([certificates]); user name and
        /// password have no meaning then, and its client id must be that identity, or begin with it
        /// and one of - _ . : /, or be empty.
        client_auth: ClientAuth = ClientAuth::Required, choice(&[
            ("required", ClientAuth::Required), ("identity", ClientAuth::Identity),
        ]), reload, example("\"identity\"");
        /// Connections, up to 1000000; further ones are closed. The process needs as many open
        /// files (ulimit -n). Connections of one address, and its failed authentications, as in
        /// [http]. While an address is paused, only a few of its connections may be open that have
        /// not shown valid credentials; a new one takes the place of one that has not done so
        /// within a second.
        connections: Connections = Connections::up_to(10_000), Shared;
        /// Proxies in front of the port, as in [http]. Each of their connections must begin with a
        /// header of the PROXY protocol, version 2.
        proxies: Proxies = Proxies::over_mqtt([].into()), proxies_over_mqtt(), reload,
            named("trusted_proxies"), example("[\"10.0.0.0/8\"]");
        /// Time limit for TLS and CONNECT together.
        connect_timeout: Duration = 10 * SECOND, duration(SECOND..=600 * SECOND);
        // MQTT's keep-alive is a 16-bit number of seconds.
        /// A device that is silent for one and a half times its keep-alive is disconnected. A
        /// longer keep-alive than this, or none, is replaced by this. Up to 65535s.
        keep_alive_max: Duration = HOUR, duration(SECOND..=65_535 * SECOND);
        /// The largest packet. A larger message is skipped: its first 16 KiB become a dead letter,
        /// and it is acknowledged. A larger packet of another kind ends the connection.
        packet_max_bytes: u32 = 256 * 1024, size(KIB..=256 * MIB - 1);
        /// A device that takes nothing of what is sent to it for this long is disconnected, up to
        /// 10m.
        write_timeout: Duration = 30 * SECOND, duration(SECOND..=600 * SECOND);
        /// A packet above 4 KiB must be complete after packet_grace, plus a second for each
        /// packet_rate_min bytes, or the device is disconnected (0x97): packets that are arriving
        /// share a budget, of which one token, or without tokens one address, gets at most half.
        /// Smaller packets have no limit.
        packet_grace: Duration = 30 * SECOND, duration(SECOND..=HOUR);
        packet_rate_min: u64 = 2 * KIB, size(1..=MIB);
        /// The longest topic; a message with a longer one becomes a dead letter.
        topic_max_bytes: usize = 1024, count(1..=65_535);
        /// Messages of one connection that may wait for their acknowledgement (MQTT 5: receive
        /// maximum). From a device that sends more the service stops reading until some are
        /// acknowledged.
        window: u16 = 100, count(1..=65_535);
        /// Topics that devices may send to; a message that matches none becomes a dead letter. Same
        /// keys as [[mqtt.subscriptions]].
        topics: Vec<Subscription> = vec![], Sections {
            new: Subscription::of_devices,
            without: &["qos", "retained"],
        };
    }
}

model::closed_set! {
    /// Whether clients must present a certificate if `client_ca_file` is set.
    pub enum ClientAuth {
        /// Connections without a certificate are refused.
        Required => "required",
        /// A client may connect without a certificate; one that is presented must be valid.
        Optional => "optional",
        /// As [`ClientAuth::Required`], and the certificate is the identity of the sender.
        Identity => "identity",
    }
}

model::closed_set! {
    /// The lowest TLS version to accept.
    pub enum TlsVersion {
        /// TLS 1.2.
        V12 => "1.2",
        /// TLS 1.3.
        V13 => "1.3",
    }
}

impl Tls {
    /// Whether the port speaks HTTPS.
    pub fn is_on(&self) -> bool {
        self.cert_file.is_some()
    }

    /// Whether every client needs a certificate.
    pub fn is_gate(&self) -> bool {
        self.is_on() && self.client_ca_file.is_some() && self.client_auth != ClientAuth::Optional
    }

    /// Whether the certificate is the identity of a sender.
    pub fn is_identity(&self) -> bool {
        self.is_gate() && self.client_auth == ClientAuth::Identity
    }
}

impl Connections {
    fn up_to(max: usize) -> Connections {
        Connections {
            max,
            ..Connections::default()
        }
    }

    /// The limit for one address.
    pub fn per_address(&self) -> usize {
        let quarter = self.max.div_ceil(4);
        if self.per_address_max == 0 {
            quarter
        } else {
            self.per_address_max
        }
    }
}

impl Http {
    /// Whether the port may listen on other addresses than loopback: writing needs a token or a
    /// certificate, or anonymous writing is explicitly allowed.
    pub fn is_guarded(&self) -> bool {
        self.tokens_file.is_some() || self.allow_anonymous || self.tls.is_gate()
    }
}

impl ListenMqtt {
    /// As [`Http::is_guarded`](crate::Http::is_guarded).
    pub fn is_guarded(&self) -> bool {
        self.tokens_file.is_some() || self.client_ca_file.is_some() || self.allow_anonymous
    }

    /// As [`Tls::is_identity`](crate::Tls::is_identity).
    pub fn is_identity(&self) -> bool {
        self.client_ca_file.is_some() && self.client_auth == ClientAuth::Identity
    }
}
