//! CONNECT and its answer: who connects, whether they may send, and with which parameters. Pure
//! except for the hash of a secret.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rumqttc_v4::mqttbytes as m4;
use rumqttc_v5::mqttbytes as m5;

use super::codec::{ProtocolError, Version};
use super::frames::Head;
use super::strict;
use config::ListenMqtt;
use model::Named;
use net::access::{CredentialFault, Credentials, Denied, Grant, JwtFault, Protocol};
use net::tls::ClientCertificate;

/// The largest CONNECT that is read: ids and secrets are short, and the device is not authenticated
/// yet.
pub(super) const CONNECT_BYTES_MAX: u32 = 16 * 1024;
/// The longest client id.
pub(super) const CLIENT_ID_MAX_BYTES: usize = 256;
/// The part after a `.` in a password is treated as a token's secret, unless it is shorter than
/// this.
const SECRET_MIN_BYTES: usize = 4;
/// Shown instead of a client id that contains a secret.
const HIDDEN_ID: &str = "(holds a secret)";

/// A parsed CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConnectRequest {
    pub(super) version: Version,
    client_id: String,
    /// Seconds; zero: none.
    keep_alive: u16,
    clean: bool,
    user: Option<String>,
    password: Option<Vec<u8>>,
    /// MQTT 5: it requests enhanced authentication, which is not offered.
    has_method: bool,
    /// MQTT 5: it requests a session that outlives the connection; sessions are not kept.
    wants_session: bool,
    /// MQTT 5: it accepts Reason Strings (Request Problem Information).
    wants_reason_string: bool,
    /// The largest packet that it accepts; only MQTT 5 has a limit.
    packet_bytes_max: usize,
}

impl ConnectRequest {
    /// The client id; empty if the device asks for one.
    pub(super) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// The client id for display: a device may have put its secret into it.
    pub(super) fn shown_id(&self) -> &str {
        let password = self
            .password
            .as_deref()
            .and_then(|bytes| std::str::from_utf8(bytes).ok());
        // Without a password the user name may be the whole token.
        let user = self.user.as_deref().filter(|_| password.is_none());
        let is_held = |secret: &str| !secret.is_empty() && self.client_id.contains(secret);
        // If it is `id.secret`, the second half is the secret as well.
        let is_secret = [password, user].into_iter().flatten().any(|whole| {
            let half = whole
                .split_once('.')
                .map(|(_, secret)| secret)
                .filter(|half| half.len() >= SECRET_MIN_BYTES);
            is_held(whole) || half.is_some_and(is_held)
        });
        if is_secret {
            HIDDEN_ID
        } else {
            &self.client_id
        }
    }
}

/// An admitted device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) version: Version,
    /// The id of its token, for display; empty if no tokens are configured.
    pub(super) token: String,
    /// Its client id, or the assigned one.
    pub(super) id: String,
    /// The connection is closed after a longer silence.
    pub(super) silence_max: Duration,
    /// `id` for display.
    pub(super) shown: String,
    /// Its address.
    pub(super) peer: SocketAddr,
    /// It accepts Reason Strings.
    pub(super) wants_reason_string: bool,
    /// The largest packet that it accepts.
    pub(super) packet_bytes_max: usize,
}

/// Why a device is refused. The answer, if there is one, is sent before the connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("the first packet is not a valid MQTT CONNECT")]
    NotMqtt,
    #[error("unsupported MQTT version; expected 3.1.1 or 5")]
    Version,
    #[error("the client id is empty or longer than 256 bytes")]
    ClientId,
    #[error("user name and password required")]
    NoCredentials,
    #[error(
        "the proxy names a device on another machine, and without tokens only those on this \
         machine may connect; set listen.mqtt.tokens_file or client_ca_file, or allow_anonymous = \
         true to accept any device"
    )]
    Far,
    #[error("wrong user name or password")]
    WrongCredentials,
    #[error(transparent)]
    Jwt(JwtFault),
    #[error("{}", CredentialFault::NoIdentity)]
    NoIdentity,
    #[error(
        "the client id is not that of the certificate; expected the identity in the certificate, \
         also followed by one of - _ . : / and more, or no client id"
    )]
    ForeignClientId,
    #[error("the token has expired; use a new one")]
    Expired,
    #[error(
        "the token is not valid yet (`nbf`); compare the clocks of its issuer and of the service"
    )]
    NotYetValid,
    #[error(
        "the token may not be used over MQTT, or may not write readings (`via` and `write` in the \
         tokens file, or the JWT's claim)"
    )]
    NotAllowed,
    #[error("too many connections with this token (`connections_max` of its quota)")]
    Quota,
    #[error(
        "a property of CONNECT or of its will occurs twice or has a forbidden value, or its response \
         topic has a wildcard"
    )]
    Properties,
    #[error("the answer to CONNECT is larger than its Maximum Packet Size")]
    PacketSize,
    #[error("MQTT 5 authentication methods are not supported; use user name and password")]
    Method,
}

impl ConnectError {
    /// Whether it may be an attempt to guess or to forge credentials.
    pub(super) fn is_guess(self) -> bool {
        match self {
            ConnectError::WrongCredentials => true,
            ConnectError::Jwt(fault) => fault.is_forged(),
            _ => false,
        }
    }
}

impl Named for ConnectError {
    fn as_str(&self) -> &'static str {
        match self {
            ConnectError::NotMqtt => "malformed",
            ConnectError::Version => "version",
            ConnectError::ClientId => "client_id",
            ConnectError::NoCredentials => "no_credentials",
            ConnectError::Far => "not_local",
            ConnectError::WrongCredentials => "wrong_credentials",
            ConnectError::Jwt(_) => "jwt",
            ConnectError::NoIdentity => "no_identity",
            ConnectError::ForeignClientId => "foreign_client_id",
            ConnectError::Expired => "expired",
            ConnectError::NotYetValid => "not_yet_valid",
            ConnectError::NotAllowed => "not_allowed",
            ConnectError::Quota => "quota",
            ConnectError::Properties => "protocol",
            ConnectError::PacketSize => "packet_size",
            ConnectError::Method => "auth_method",
        }
    }
}

/// The protocol level of a CONNECT, once its first bytes have arrived: fixed header, name, level
/// (MQTT 3.1.1 §3.1.2).
fn level(bytes: &[u8]) -> Result<Option<u8>, ConnectError> {
    if bytes.first().is_some_and(|first| *first != 0x10) {
        return Err(ConnectError::NotMqtt);
    }
    // The remaining length has up to four bytes, the last of which is below 128.
    let Some(end) = bytes.iter().skip(1).take(4).position(|byte| *byte < 0x80) else {
        return if bytes.len() > 4 {
            Err(ConnectError::NotMqtt)
        } else {
            Ok(None)
        };
    };
    let rest = &bytes[end + 2..];
    match rest {
        [0, 4, b'M', b'Q', b'T', b'T', level, ..] => Ok(Some(*level)),
        // MQTT 3.1.
        [0, 6, b'M', b'Q', b'I', b's', b'd', b'p', ..] => Err(ConnectError::Version),
        _ if b"\x00\x04MQTT".starts_with(rest) || b"\x00\x06MQIsdp".starts_with(rest) => Ok(None),
        _ => Err(ConnectError::NotMqtt),
    }
}

/// Parses CONNECT if it has arrived completely.
pub(super) fn read_connect(buf: &mut BytesMut) -> Result<Option<ConnectRequest>, ConnectError> {
    let head = Head::parse(buf).ok().flatten();
    let is_whole = head.is_some_and(|head| buf.len() >= head.bytes + head.rest);
    // If the codec needs more of a complete packet, lengths or flags in it are wrong.
    let more = || {
        if is_whole {
            Err(ConnectError::NotMqtt)
        } else {
            Ok(None)
        }
    };
    match level(buf)? {
        None => Ok(None),
        Some(4) => match m4::v4::Packet::read(buf, CONNECT_BYTES_MAX as usize) {
            Ok(m4::v4::Packet::Connect(connect)) => Ok(Some(hello_v4(connect))),
            Err(m4::Error::InsufficientBytes(_)) => more(),
            Ok(_) | Err(_) => Err(ConnectError::NotMqtt),
        },
        Some(5) => {
            check_v5(buf)?;
            match m5::v5::Packet::read(buf, Some(CONNECT_BYTES_MAX)) {
                Ok(m5::v5::Packet::Connect(connect, _will, auth)) => {
                    Ok(Some(hello_v5(connect, auth)))
                }
                Err(m5::Error::InsufficientBytes(_)) => more(),
                Ok(_) | Err(_) => Err(ConnectError::NotMqtt),
            }
        }
        Some(_) => Err(ConnectError::Version),
    }
}

/// Checks the properties of a CONNECT that has arrived completely.
fn check_v5(buf: &[u8]) -> Result<(), ConnectError> {
    let whole = Head::parse(buf)
        .ok()
        .flatten()
        .and_then(|head| buf[head.bytes..].get(..head.rest));
    whole
        .map_or(Ok(()), strict::check_connect)
        .map_err(|ProtocolError(reason)| match reason {
            m5::v5::DisconnectReasonCode::ProtocolError => ConnectError::Properties,
            _ => ConnectError::NotMqtt,
        })
}

fn hello_v4(connect: m4::v4::Connect) -> ConnectRequest {
    use m4::v4::ConnectAuth;
    let (user, password) = match connect.auth {
        ConnectAuth::None => (None, None),
        ConnectAuth::Username { username } => (Some(username), None),
        ConnectAuth::UsernamePassword { username, password } => {
            (Some(username), Some(password.to_vec()))
        }
    };
    ConnectRequest {
        version: Version::V4,
        client_id: connect.client_id,
        keep_alive: connect.keep_alive,
        clean: connect.clean_session,
        user,
        password,
        has_method: false,
        wants_session: false,
        wants_reason_string: false,
        packet_bytes_max: usize::MAX,
    }
}

fn hello_v5(connect: m5::v5::Connect, auth: m5::v5::ConnectAuth) -> ConnectRequest {
    use m5::v5::ConnectAuth;
    let (user, password) = match auth {
        ConnectAuth::None => (None, None),
        ConnectAuth::Username { username } => (Some(username), None),
        ConnectAuth::Password { password } => (None, Some(password.to_vec())),
        ConnectAuth::UsernamePassword { username, password } => {
            (Some(username), Some(password.to_vec()))
        }
    };
    let properties = connect.properties.as_ref();
    ConnectRequest {
        version: Version::V5,
        client_id: connect.client_id,
        keep_alive: connect.keep_alive,
        clean: connect.clean_start,
        user,
        password,
        has_method: properties.is_some_and(|p| p.authentication_method.is_some()),
        wants_session: properties
            .is_some_and(|p| p.session_expiry_interval.is_some_and(|seconds| seconds > 0)),
        wants_reason_string: properties.is_none_or(|p| p.request_problem_info != Some(0)),
        packet_bytes_max: properties
            .and_then(|p| p.max_packet_size)
            .map_or(usize::MAX, |bytes| bytes as usize),
    }
}

/// The grant of the device, if it allows to send over MQTT now: by its certificate if that is the
/// identity (user name and password have no meaning then), else by user name and password.
pub(super) fn authenticate(
    request: &ConnectRequest,
    certificate: Option<&ClientCertificate>,
    credentials: &Credentials,
    now_ms: i64,
) -> Result<Arc<Grant>, ConnectError> {
    let grant = match credentials.by_certificate() {
        None => grant(request, credentials)?,
        Some(kind) => {
            let name = certificate.and_then(|certificate| certificate.name(kind));
            let grant = credentials
                .of_certificate(name.as_deref())
                .map_err(|_| ConnectError::NoIdentity)?;
            if !belongs(&request.client_id, &grant.id) {
                return Err(ConnectError::ForeignClientId);
            }
            grant
        }
    };
    grant
        .check_sender(Protocol::Mqtt, now_ms)
        .map_err(|denied| match denied {
            Denied::Expired => ConnectError::Expired,
            Denied::NotYetValid => ConnectError::NotYetValid,
            Denied::Protocol | Denied::Write | Denied::Forward => ConnectError::NotAllowed,
        })?;
    grant.usage.note_used(now_ms);
    Ok(grant)
}

/// Whether a device with this identity may use the client id. So no device appears under the name
/// of another one. (It could not take over its session anyway: that needs the same identity.)
fn belongs(client_id: &str, identity: &str) -> bool {
    let rest = client_id.strip_prefix(identity);
    client_id.is_empty()
        || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_', '.', ':', '/']))
}

/// The grant of the credentials in user name and password. Accepted forms: id and secret;
/// `id.secret` or a JWT as password of any user; either as user name, for devices with a single
/// field.
fn grant(request: &ConnectRequest, credentials: &Credentials) -> Result<Arc<Grant>, ConnectError> {
    let text = |bytes: &Option<Vec<u8>>| {
        bytes
            .as_deref()
            .and_then(|bytes| String::from_utf8(bytes.to_vec()).ok())
    };
    let password = text(&request.password);
    let user = request.user.as_deref().filter(|user| !user.is_empty());
    if let (Some(user), Some(password)) = (user, &password)
        && let Some(grant) = credentials.of_secret(user, password)
    {
        return Ok(grant);
    }
    let whole = match (&password, user) {
        (Some(password), _) => password,
        (None, Some(user)) => user,
        (None, None) => return Err(ConnectError::NoCredentials),
    };
    credentials.of_text(whole).map_err(|fault| match fault {
        CredentialFault::Wrong | CredentialFault::NoIdentity => ConnectError::WrongCredentials,
        CredentialFault::Jwt(fault) => ConnectError::Jwt(fault),
    })
}

/// Checks the parameters that a device requests, other than its credentials.
pub(super) fn check(request: &ConnectRequest) -> Result<(), ConnectError> {
    if request.has_method {
        return Err(ConnectError::Method);
    }
    // MQTT-3.1.3-8: with 3.1.1 a device without a client id cannot request a session.
    let is_nameless =
        request.client_id.is_empty() && request.version == Version::V4 && !request.clean;
    if is_nameless || request.client_id.len() > CLIENT_ID_MAX_BYTES {
        return Err(ConnectError::ClientId);
    }
    Ok(())
}

/// Admits a device with the token of this id, and makes the answer. `name` creates a client id for
/// a device that sends none.
///
/// # Errors
/// The answer is larger than the device accepts.
pub(super) fn admit(
    request: &ConnectRequest,
    token: &str,
    settings: &ListenMqtt,
    peer: SocketAddr,
    name: impl FnOnce() -> String,
) -> Result<(Client, BytesMut), ConnectError> {
    let named = request.client_id.is_empty().then(name);
    let keep_alive_max = u16::try_from(settings.keep_alive_max.as_secs()).unwrap_or(u16::MAX);
    let keep_alive = if request.keep_alive == 0 {
        keep_alive_max
    } else {
        request.keep_alive.min(keep_alive_max)
    };
    let mut out = BytesMut::new();
    // As in `codec::write`: the codec cannot refuse this packet.
    match request.version {
        Version::V4 => {
            let _ = m4::v4::ConnAck::new(m4::v4::ConnectReturnCode::Success, false).write(&mut out);
        }
        Version::V5 => {
            let properties = m5::v5::ConnAckProperties {
                session_expiry_interval: request.wants_session.then_some(0),
                receive_max: Some(settings.window),
                max_packet_size: Some(settings.packet_max_bytes),
                assigned_client_identifier: named.clone(),
                server_keep_alive: (keep_alive != request.keep_alive).then_some(keep_alive),
                wildcard_subscription_available: Some(0),
                subscription_identifiers_available: Some(0),
                shared_subscription_available: Some(0),
                ..no_properties()
            };
            let _ =
                connack_v5(m5::v5::ConnectReturnCode::Success, Some(properties)).write(&mut out);
        }
    }
    // MQTT-3.1.2-24. Without one of its properties it would promise what is not offered.
    if out.len() > request.packet_bytes_max {
        return Err(ConnectError::PacketSize);
    }
    let shown = named
        .clone()
        .unwrap_or_else(|| request.shown_id().to_owned());
    let client = Client {
        version: request.version,
        token: token.to_owned(),
        id: named.unwrap_or_else(|| request.client_id.clone()),
        silence_max: Duration::from_secs(u64::from(keep_alive)).mul_f64(1.5),
        shown,
        peer,
        wants_reason_string: request.wants_reason_string,
        packet_bytes_max: request.packet_bytes_max,
    };
    Ok((client, out))
}

fn connack_v5(
    code: m5::v5::ConnectReturnCode,
    properties: Option<m5::v5::ConnAckProperties>,
) -> m5::v5::ConnAck {
    m5::v5::ConnAck {
        session_present: false,
        code,
        properties,
    }
}

fn no_properties() -> m5::v5::ConnAckProperties {
    m5::v5::ConnAckProperties {
        session_expiry_interval: None,
        receive_max: None,
        max_qos: None,
        retain_available: None,
        max_packet_size: None,
        assigned_client_identifier: None,
        topic_alias_max: None,
        reason_string: None,
        user_properties: vec![],
        wildcard_subscription_available: None,
        subscription_identifiers_available: None,
        shared_subscription_available: None,
        server_keep_alive: None,
        response_information: None,
        server_reference: None,
        authentication_method: None,
        authentication_data: None,
    }
}

/// The answer to a refused device; empty if it does not speak MQTT, or does not accept so large a
/// packet. `request` is `None` if it could not be parsed.
pub(super) fn refuse(request: Option<&ConnectRequest>, error: ConnectError) -> BytesMut {
    use m4::v4::ConnectReturnCode as C4;
    use m5::v5::ConnectReturnCode as C5;
    let mut out = BytesMut::new();
    let (v4, v5) = match error {
        ConnectError::NotMqtt => return out,
        ConnectError::Version => (C4::RefusedProtocolVersion, C5::UnsupportedProtocolVersion),
        ConnectError::ClientId | ConnectError::ForeignClientId => {
            (C4::BadClientId, C5::ClientIdentifierNotValid)
        }
        ConnectError::NoCredentials
        | ConnectError::Far
        | ConnectError::NoIdentity
        | ConnectError::Expired
        | ConnectError::NotYetValid
        | ConnectError::NotAllowed => (C4::NotAuthorized, C5::NotAuthorized),
        ConnectError::WrongCredentials | ConnectError::Jwt(_) => {
            (C4::BadUserNamePassword, C5::BadUserNamePassword)
        }
        ConnectError::Quota => (C4::ServiceUnavailable, C5::QuotaExceeded),
        // Only MQTT 5 has properties, so the version is known.
        ConnectError::Properties => (C4::NotAuthorized, C5::ProtocolError),
        ConnectError::PacketSize => (C4::ServiceUnavailable, C5::ImplementationSpecificError),
        ConnectError::Method => (C4::NotAuthorized, C5::BadAuthenticationMethod),
    };
    let version = if error == ConnectError::Properties {
        Some(Version::V5)
    } else {
        request.map(|request| request.version)
    };
    let _ = match version {
        Some(Version::V5) => connack_v5(v5, None).write(&mut out),
        Some(Version::V4) | None => m4::v4::ConnAck::new(v4, false)
            .write(&mut out)
            .map_err(|_| m5::Error::MalformedPacket),
    };
    if request.is_some_and(|request| out.len() > request.packet_bytes_max) {
        out.clear();
    }
    out
}
