//! MQTT packets as bytes, so that a test can send what no library would, and see each answer.

#![allow(clippy::unwrap_used, reason = "only tests use it")]
#![allow(
    unreachable_pub,
    dead_code,
    reason = "included by several tests, none of which uses all of it"
)]

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A limit for every answer; reached only if something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// A packet: fixed header, remaining length, the rest.
pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut rest = body.len();
    loop {
        let low = (rest % 128) as u8;
        rest /= 128;
        bytes.push(if rest > 0 { low | 0x80 } else { low });
        if rest == 0 {
            break;
        }
    }
    bytes.extend_from_slice(body);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

/// CONNECT with a clean session; `protocol` is 4 or 5.
pub fn connect(
    protocol: u8,
    id: &str,
    keep_alive: u16,
    credentials: Option<(&str, &str)>,
) -> Vec<u8> {
    connect_with(protocol, id, keep_alive, credentials, &[])
}

/// The same; MQTT 5 with these properties (at most 127 bytes).
pub fn connect_with(
    protocol: u8,
    id: &str,
    keep_alive: u16,
    credentials: Option<(&str, &str)>,
    properties: &[u8],
) -> Vec<u8> {
    let flags = if credentials.is_some() { 0xc2 } else { 0x02 };
    let mut body = [
        text("MQTT"),
        vec![protocol, flags],
        keep_alive.to_be_bytes().to_vec(),
    ]
    .concat();
    if protocol == 5 {
        body.push(properties.len() as u8);
        body.extend(properties);
    }
    body.extend(text(id));
    if let Some((user, password)) = credentials {
        body.extend([text(user), text(password)].concat());
    }
    packet(0x10, &body)
}

/// PUBLISH.
pub fn publish(protocol: u8, topic: &str, payload: &str, qos: u8, id: u16) -> Vec<u8> {
    let mut body = text(topic);
    if qos > 0 {
        body.extend(id.to_be_bytes());
    }
    if protocol == 5 {
        body.push(0);
    }
    body.extend(payload.as_bytes());
    packet(0x30 | (qos << 1), &body)
}

/// PUBLISH of MQTT 5 with the bytes of its properties.
pub fn publish_with(topic: &str, properties: &[u8], payload: &[u8], qos: u8, id: u16) -> Vec<u8> {
    let mut body = text(topic);
    if qos > 0 {
        body.extend(id.to_be_bytes());
    }
    // This length is encoded like the remaining length of a packet.
    body.extend(&packet(0, properties)[1..]);
    body.extend(payload);
    packet(0x30 | (qos << 1), &body)
}

/// The reason code and the Reason String of a DISCONNECT of MQTT 5 with at most 127 bytes of
/// properties.
pub fn disconnect_reason(body: &[u8]) -> (u8, String) {
    let string = match body.get(1..) {
        Some([_, 0x1f, high, low, rest @ ..]) => {
            &rest[..usize::from(u16::from_be_bytes([*high, *low]))]
        }
        _ => &[],
    };
    (body[0], String::from_utf8(string.to_vec()).unwrap())
}

/// A connection.
pub struct Raw(pub TcpStream);

impl Raw {
    /// Opens a socket without sending anything.
    pub async fn open(port: u16) -> Raw {
        let socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Raw(socket)
    }

    /// Connects and is accepted.
    pub async fn connect(port: u16, protocol: u8, id: &str) -> Raw {
        let mut raw = Raw::open(port).await;
        raw.send(&connect(protocol, id, 60, None)).await;
        let (first, body) = raw.answer().await.expect("CONNACK");
        assert_eq!((first, &body[..2]), (0x20, &[0, 0][..]));
        raw
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// The next packet: its first byte and its body; `None` if the connection is closed.
    pub async fn answer(&mut self) -> Option<(u8, Vec<u8>)> {
        tokio::time::timeout(PATIENCE, self.read())
            .await
            .expect("no answer arrived")
    }

    async fn read(&mut self) -> Option<(u8, Vec<u8>)> {
        let first = self.0.read_u8().await.ok()?;
        let mut length = 0usize;
        let mut shift = 0;
        loop {
            let byte = self.0.read_u8().await.ok()?;
            length |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.ok()?;
        Some((first, body))
    }
}
