//! Finds the MQTT bytes in what a WebSocket server sends (RFC 6455 §5.2): after the head of the HTTP
//! answer, the payloads of the data frames. Pure.

/// The end of the HTTP answer's head.
const HEAD_END: [u8; 4] = *b"\r\n\r\n";
/// Opcodes from here on are control frames (§5.5).
const CONTROL: u8 = 8;
/// Two bytes and a length of eight; a server masks nothing (§5.1).
const FRAME_HEAD_MAX: usize = 10;

#[derive(Debug)]
enum State {
    /// In the HTTP answer; so many bytes of its end have been read.
    Http(usize),
    /// In the head of a frame.
    Head {
        bytes: [u8; FRAME_HEAD_MAX],
        len: usize,
    },
    /// In the payload of a frame.
    Payload { left: u64, is_data: bool },
}

impl State {
    const BETWEEN: State = State::Head {
        bytes: [0; FRAME_HEAD_MAX],
        len: 0,
    };
}

/// The bytes of one connection, in order.
#[derive(Debug)]
pub(super) struct WebSocket(State);

impl WebSocket {
    /// Before the HTTP answer.
    pub(super) fn new() -> WebSocket {
        WebSocket(State::Http(0))
    }

    /// Passes on the MQTT bytes among these.
    pub(super) fn find_data(&mut self, mut bytes: &[u8], mut data: impl FnMut(&[u8])) {
        while let Some((&first, rest)) = bytes.split_first() {
            match &mut self.0 {
                State::Http(matched) => {
                    *matched = match first {
                        byte if byte == HEAD_END[*matched] => *matched + 1,
                        b'\r' => 1,
                        _ => 0,
                    };
                    if *matched == HEAD_END.len() {
                        self.0 = State::BETWEEN;
                    }
                    bytes = rest;
                }
                State::Head { bytes: head, len } => {
                    head[*len] = first;
                    *len += 1;
                    if let Some(left) = length(&head[..*len]) {
                        let is_data = head[0] & 0xf < CONTROL;
                        self.0 = State::Payload { left, is_data };
                        self.end_of_frame();
                    }
                    bytes = rest;
                }
                State::Payload { left, is_data } => {
                    let n =
                        usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                    let (payload, rest) = bytes.split_at(n);
                    *left -= n as u64;
                    if *is_data {
                        data(payload);
                    }
                    self.end_of_frame();
                    bytes = rest;
                }
            }
        }
    }

    fn end_of_frame(&mut self) {
        if let State::Payload { left: 0, .. } = self.0 {
            self.0 = State::BETWEEN;
        }
    }
}

/// The length of a frame's payload, once the head of the frame is complete.
fn length(head: &[u8]) -> Option<u64> {
    let (_, rest) = head.split_first()?;
    let (first, rest) = rest.split_first()?;
    match first & 0x7f {
        126 => Some(u16::from_be_bytes(rest.try_into().ok()?).into()),
        127 => Some(u64::from_be_bytes(rest.try_into().ok()?)),
        length => Some(length.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_found_between_frames_however_the_bytes_arrive() {
        let long = vec![7; 300];
        let longer = vec![8; 70_000];
        let sent = [
            &b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\r\n\r\n"[..],
            b"\x82\x03abc",
            // A ping, an empty frame, and a message in two parts with a pong between them.
            b"\x89\x04ping",
            b"\x82\x00",
            b"\x02\x01d\x8a\x01p\x80\x01e",
            b"\x82\x7e\x01\x2c",
            &long,
            b"\x82\x7f\x00\x00\x00\x00\x00\x01\x11\x70",
            &longer,
            b"\x82\x01f\x88\x02\x03\xe8",
        ]
        .concat();
        let expected = [&b"abcde"[..], &long, &longer, b"f"].concat();
        for step in [1, 2, 3, 7, 1000, sent.len()] {
            let mut socket = WebSocket::new();
            let mut got = vec![];
            for part in sent.chunks(step) {
                socket.find_data(part, |bytes| got.extend_from_slice(bytes));
            }
            assert!(got == expected, "in steps of {step}");
        }
    }
}
