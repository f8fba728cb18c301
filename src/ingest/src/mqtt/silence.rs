//! Ends a connection whose broker sends nothing.
//!
//! rumqttc sends a PINGREQ when it has sent nothing else for `keep_alive`, and by itself ends the
//! connection if `keep_alive` later it still waits for the PINGRESP. But the PINGRESP comes after
//! everything that the broker has already begun to send. Over a slow link one large message, or the
//! messages in flight, can take longer than that. On the next connection the broker sends them
//! again, from the start, so nothing would ever get through. Here any byte since the PINGREQ before
//! is an answer, also one of a packet that is not complete.
//!
//! So `v4` and `v5` give rumqttc the PINGRESP itself as soon as it has sent a PINGREQ, and
//! [`Silence`] decides in its place. A broker that sends nothing is found as soon as before: at the
//! second PINGREQ.

use tokio::net::TcpStream;

use super::socket::Handle;

/// Nothing has arrived between two PINGREQs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the broker has sent nothing, not even an answer to PINGREQ, for the time of mqtt.keep_alive"
)]
pub(super) struct Silent;

/// The bytes that had arrived at the last PINGREQ of a connection.
#[derive(Debug)]
pub(super) struct Silence {
    socket: Handle<TcpStream>,
    before: Option<u64>,
}

impl Silence {
    /// The silence of a connection with this socket.
    pub(super) fn of(socket: &Handle<TcpStream>) -> Silence {
        Silence {
            socket: socket.clone(),
            before: None,
        }
    }

    /// Call at each PINGREQ.
    ///
    /// # Errors
    /// Nothing has arrived since the one before.
    pub(super) fn pinged(&mut self) -> Result<(), Silent> {
        let received = self.socket.received_bytes();
        match self.before.replace(received) {
            Some(before) if before == received => Err(Silent),
            _ => Ok(()),
        }
    }
}
