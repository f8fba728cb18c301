//! A minimal HTTP/1.1 client: requests are prepared bytes, responses have a length or come in
//! chunks. A client library would use more CPU time than some of the measured services.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::Failure;

/// Timeout of a response.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// Maximum size of a response head, in bytes.
const HEAD_MAX: usize = 16 << 10;

pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects to a port of this machine.
    pub(crate) fn open(port: u16) -> Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        Ok(Connection {
            stream,
            buffer: Vec::with_capacity(4096),
        })
    }

    /// Sends a request (head and body) and waits for the response. Returns its status and body.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> Result<(u16, &[u8])> {
        self.stream.write_all(request)?;
        self.buffer.clear();
        let (head_len, status, length) = loop {
            self.more()?;
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                let (status, length) = head(&self.buffer[..at])?;
                break (at + 4, status, length);
            }
            if self.buffer.len() > HEAD_MAX {
                return Err(bad("response head too long"));
            }
        };
        match length {
            Some(length) => {
                while self.buffer.len() < head_len + length {
                    self.more()?;
                }
                Ok((status, &self.buffer[head_len..head_len + length]))
            }
            None => loop {
                if let Some(body) = chunks(&self.buffer[head_len..]) {
                    self.buffer = body;
                    return Ok((status, &self.buffer));
                }
                self.more()?;
            },
        }
    }

    fn more(&mut self) -> Result<()> {
        let mut piece = [0; 16 << 10];
        match self.stream.read(&mut piece)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            n => {
                self.buffer.extend_from_slice(&piece[..n]);
                Ok(())
            }
        }
    }
}

/// Sends a body until it is taken.
pub(crate) fn post(
    connection: &mut Connection,
    path: &str,
    kind: &str,
    body: &[u8],
) -> std::result::Result<(), Failure> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n\
         Content-Encoding: {}\r\nContent-Length: {}\r\n\r\n",
        if kind == "text/plain" {
            "identity"
        } else {
            "snappy"
        },
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    loop {
        match connection.exchange(&request)? {
            (200 | 204, _) => return Ok(()),
            (429 | 503, _) => std::thread::sleep(Duration::from_millis(200)),
            (status, text) => {
                return Err(format!("{path}: {status} {}", String::from_utf8_lossy(text)).into());
            }
        }
    }
}

/// Sends a GET request over a new connection.
pub(crate) fn get(port: u16, path: &str) -> Result<(u16, String)> {
    let mut connection = Connection::open(port)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    let (status, body) = connection.exchange(request.as_bytes())?;
    Ok((status, String::from_utf8_lossy(body).into_owned()))
}

/// The same as HTTP/1.0: the response ends with the connection, so it may be of any length and
/// without one in its head.
pub(crate) fn get_whole(port: u16, path: &str) -> Result<(u16, String)> {
    let mut stream = Connection::open(port)?.stream;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n").as_bytes())?;
    let mut response = vec![];
    stream.read_to_end(&mut response)?;
    let end = response
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .ok_or_else(|| bad("response without a head"))?;
    let status = status(
        std::str::from_utf8(&response[..end]).map_err(|_| bad("response head is not UTF-8"))?,
    )?;
    Ok((
        status,
        String::from_utf8_lossy(&response[end + 4..]).into_owned(),
    ))
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what.to_owned())
}

/// The chunks of a whole body, joined; `None` if the last one, which is empty, is not there yet.
fn chunks(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = vec![];
    loop {
        let end = bytes.windows(2).position(|w| w == b"\r\n")?;
        let length = std::str::from_utf8(&bytes[..end]).ok()?;
        let length = usize::from_str_radix(length, 16).ok()?;
        let chunk = bytes.get(end + 2..end + 2 + length)?;
        bytes = bytes.get(end + 2 + length..)?.strip_prefix(b"\r\n")?;
        if length == 0 {
            return Some(body);
        }
        body.extend_from_slice(chunk);
    }
}

/// Status and length of the body; no length if it comes in chunks.
fn head(bytes: &[u8]) -> Result<(u16, Option<usize>)> {
    let text = std::str::from_utf8(bytes).map_err(|_| bad("response head is not UTF-8"))?;
    let status = status(text)?;
    let header = |wanted: &str| {
        let lines = text.split("\r\n").skip(1);
        let mut headers = lines.filter_map(|line| line.split_once(':'));
        headers.find_map(|(name, value)| name.eq_ignore_ascii_case(wanted).then(|| value.trim()))
    };
    let length = header("content-length").and_then(|value| value.parse().ok());
    match (status, length) {
        (_, Some(length)) => Ok((status, Some(length))),
        (204 | 304, None) => Ok((status, Some(0))),
        _ if header("transfer-encoding") == Some("chunked") => Ok((status, None)),
        _ => Err(bad("response without a content length")),
    }
}

/// Of the first line.
fn status(head: &str) -> Result<u16> {
    head.lines()
        .next()
        .and_then(|line| line.split(' ').nth(1)?.parse().ok())
        .ok_or_else(|| bad("response without a status"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_understood() {
        assert_eq!(
            head(b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 12\r\nx: y").unwrap(),
            (200, Some(12))
        );
        assert_eq!(head(b"HTTP/1.1 204 No Content").unwrap(), (204, Some(0)));
        let chunked = head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked");
        assert_eq!(chunked.unwrap(), (200, None));
        assert!(head(b"nonsense").is_err());
    }

    #[test]
    fn chunks_are_joined_when_all_are_there() {
        let all = b"3\r\nabc\r\na\r\n0123456789\r\n00\r\n\r\n";
        assert_eq!(chunks(all).unwrap(), b"abc0123456789");
        assert!((0..all.len()).all(|n| chunks(&all[..n]).is_none()));
    }
}
