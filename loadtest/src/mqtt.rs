//! A minimal MQTT 3.1.1 client: a publisher of prepared packets, and a subscriber that only
//! acknowledges, which measures the maximum delivery rate of a broker.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PUBLISH_QOS1: u8 = 0x32;
const PUBACK: u8 = 0x40;
const SUBACK: u8 = 0x90;
/// Time limit of a connection attempt.
const CONNECTED_WITHIN: Duration = Duration::from_secs(60);
/// How often a subscriber without messages looks for the end.
const STOP_SEEN_WITHIN: Duration = Duration::from_millis(50);
/// Bytes per read from the socket.
const PIECE: usize = 64 << 10;

/// The bytes of a PUBLISH before its payload, and the offset of its packet id.
pub(crate) fn publish_head(topic: &str, payload_len: usize) -> (Vec<u8>, u32) {
    let mut head = vec![PUBLISH_QOS1];
    length(&mut head, 2 + topic.len() + 2 + payload_len);
    head.extend_from_slice(&(topic.len() as u16).to_be_bytes());
    head.extend_from_slice(topic.as_bytes());
    let id_at = head.len() as u32;
    head.extend_from_slice(&[0, 0]);
    (head, id_at)
}

/// MQTT-2.2.3: seven bits per byte, lowest first.
fn length(out: &mut Vec<u8>, mut rest: usize) {
    loop {
        let byte = (rest % 128) as u8;
        rest /= 128;
        out.push(if rest > 0 { byte | 128 } else { byte });
        if rest == 0 {
            break;
        }
    }
}

/// A connection and its receive buffer.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    begin: usize,
}

impl Connection {
    /// Connects with a clean session and without a keep-alive.
    pub(crate) fn open(port: u16, client_id: &str) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut connection = Connection {
            stream,
            buffer: vec![],
            begin: 0,
        };
        let mut packet = vec![0x10];
        length(&mut packet, 12 + client_id.len());
        packet.extend_from_slice(&[0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0]);
        packet.extend_from_slice(&(client_id.len() as u16).to_be_bytes());
        packet.extend_from_slice(client_id.as_bytes());
        connection.send(&packet)?;
        let mut accepted = false;
        while !accepted {
            if !connection.fill(CONNECTED_WITHIN)? {
                return Err(ErrorKind::TimedOut.into());
            }
            connection.packets(|_, body| accepted = body.get(1) == Some(&0));
        }
        Ok(connection)
    }

    /// Sends prepared packets.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives bytes; false if there are none within `patience`. Waits with ppoll: the receive
    /// timeout of a socket is rounded up to ticks of the kernel, by which messages of an open loop
    /// would be late.
    pub(crate) fn fill(&mut self, patience: Duration) -> Result<bool> {
        let timeout = Timespec::try_from(patience).map_err(Error::other)?;
        let mut readable = [PollFd::new(&self.stream, PollFlags::IN)];
        if rustix::io::retry_on_intr(|| poll(&mut readable, Some(&timeout)))? == 0 {
            return Ok(false);
        }
        self.buffer.drain(..self.begin);
        self.begin = 0;
        let len = self.buffer.len();
        self.buffer.resize(len + PIECE, 0);
        let read = self.stream.read(&mut self.buffer[len..]);
        self.buffer.truncate(len + *read.as_ref().unwrap_or(&0));
        match read? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(true),
        }
    }

    /// Calls `with` for each complete received packet, with its first byte and its body.
    pub(crate) fn packets(&mut self, mut with: impl FnMut(u8, &[u8])) {
        while let Some((kind, body_at, end)) = frame(&self.buffer[self.begin..]) {
            with(kind, &self.buffer[self.begin + body_at..self.begin + end]);
            self.begin += end;
        }
    }

    /// Number of PUBACKs received since the last call.
    pub(crate) fn acknowledged(&mut self) -> u64 {
        let mut n = 0;
        self.packets(|kind, _| n += u64::from(kind == PUBACK));
        n
    }
}

/// The first byte of a packet, and the start and end of its body; `None` if it is incomplete.
fn frame(bytes: &[u8]) -> Option<(u8, usize, usize)> {
    let mut len = 0usize;
    let mut at = 1;
    loop {
        let byte = *bytes.get(at)?;
        len |= usize::from(byte & 127) << (7 * (at - 1));
        at += 1;
        if byte & 128 == 0 {
            break;
        }
    }
    (bytes.len() >= at + len).then_some((bytes[0], at, at + len))
}

/// Subscribes with QoS 1 and acknowledges all messages until `stop`. Counts them in `received`.
/// Sets `ready` when the broker has accepted the subscription.
pub(crate) fn only_acknowledge(
    port: u16,
    filter: &str,
    received: &AtomicU64,
    ready: &AtomicBool,
    stop: &AtomicBool,
) -> Result<()> {
    let mut connection = Connection::open(port, "loadtest-only-acknowledges")?;
    let mut packet = vec![0x82];
    length(&mut packet, 2 + 2 + filter.len() + 1);
    packet.extend_from_slice(&[0, 1]);
    packet.extend_from_slice(&(filter.len() as u16).to_be_bytes());
    packet.extend_from_slice(filter.as_bytes());
    packet.push(1);
    connection.send(&packet)?;
    let mut answer = Vec::with_capacity(PIECE);
    let mut refused = false;
    while !stop.load(Ordering::Relaxed) {
        if !connection.fill(STOP_SEEN_WITHIN)? {
            continue;
        }
        answer.clear();
        let mut n = 0;
        connection.packets(|kind, body| match kind & 0xF0 {
            0x30 if body.len() >= 2 => {
                let id_at = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
                if let (0x02, Some(id)) = (kind & 0x06, body.get(id_at..id_at + 2)) {
                    answer.extend_from_slice(&[PUBACK, 2, id[0], id[1]]);
                }
                n += 1;
            }
            SUBACK => match body.get(2) {
                Some(0..=2) => ready.store(true, Ordering::Release),
                _ => refused = true,
            },
            _ => {}
        });
        if refused {
            return Err(Error::other("the broker rejected the subscription"));
        }
        connection.send(&answer)?;
        received.fetch_add(n, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_framed() {
        let (mut packet, id_at) = publish_head("sensors/a", 200);
        packet.extend_from_slice(&[7; 200]);
        let (kind, at, end) = frame(&packet).unwrap();
        assert_eq!((kind, at, end), (PUBLISH_QOS1, 3, packet.len()));
        assert_eq!(id_at as usize, at + 2 + 9);
        assert_eq!(frame(&packet[..packet.len() - 1]), None);
        assert_eq!(frame(&[0x40]), None);
        assert_eq!(frame(&[0x40, 2, 0, 1]), Some((0x40, 2, 4)));
    }
}
