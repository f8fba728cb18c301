//! Servers that are not available here, as proxies before a real MongoDB:
//! - [`start`]: a server that speaks MongoDB's protocol and accepts the creation of a time-series
//!   collection, but creates a plain one, as emulations do. The proxy turns the option `timeseries`
//!   of a command into a comment.
//! - [`deletes_measurements`]: MongoDB 7.0 and later, as far as `reconcile` and `convert` see it:
//!   single measurements can be deleted from a time-series collection. In fact `sensor_readings` is
//!   a plain collection, and the proxy changes its description.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use mongodb::bson::{Document, doc};

/// The type and name of the element in a command.
const OPTION: &[u8] = b"\x03timeseries\0";
/// Its replacement: every command may have a comment, which the server ignores.
const COMMENT: &[u8] = b"\x03comment\0";
/// Length of a message header (OP_MSG). The first four bytes are the length of the message.
const HEAD: usize = 16;
/// Start of the command, after the header: four bytes of flags, and one for the kind of the first
/// section.
const COMMAND: usize = HEAD + 5;

/// Starts the emulation before the MongoDB on `port` and returns its URI. It ends with the test
/// binary.
pub fn start(port: u16) -> String {
    relay(port, without_option, |message| message)
}

/// Starts a server whose time-series collection `sensor_readings` supports the deletion of single
/// measurements.
pub fn deletes_measurements(port: u16) -> String {
    relay(port, |message| message, as_time_series)
}

/// Changes a message of the protocol.
type Change = fn(Vec<u8>) -> Vec<u8>;

fn relay(port: u16, asked: Change, answered: Change) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let own = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", port)).expect("a running MongoDB");
            let back = server.try_clone().expect("a second handle");
            let to = client.try_clone().expect("a second handle");
            std::thread::spawn(move || pass(back, to, answered));
            std::thread::spawn(move || pass(client, server, asked));
        }
    });
    // Without the name of the replica set: the driver would connect directly to the member.
    format!("mongodb://127.0.0.1:{own}/?directConnection=true")
}

/// Copies until either side closes. Errors are not reported.
fn pass(mut from: TcpStream, mut to: TcpStream, change: Change) {
    while let Some(message) = message(&mut from) {
        if to.write_all(&change(message)).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// In an answer to `listCollections`, describes the plain collection `sensor_readings` as a
/// time-series one.
fn as_time_series(mut message: Vec<u8>) -> Vec<u8> {
    let body = |message: &[u8]| Document::from_reader(&message[COMMAND.min(message.len())..]).ok();
    let Some(mut reply) = body(&message) else {
        return message;
    };
    let listed = |reply: &mut Document| -> Option<()> {
        let cursor = reply.get_document_mut("cursor").ok()?;
        cursor
            .get_str("ns")
            .ok()
            .filter(|ns| ns.ends_with("$cmd.listCollections"))?;
        for entry in cursor.get_array_mut("firstBatch").ok()? {
            let entry = entry.as_document_mut()?;
            if entry
                .get_str("name")
                .is_ok_and(|name| name == "sensor_readings")
            {
                entry.insert("type", "timeseries");
                entry.insert(
                    "options",
                    doc! { "timeseries": { "timeField": "ts", "metaField": "meta" } },
                );
            }
        }
        Some(())
    };
    if listed(&mut reply).is_none() {
        return message;
    }
    message.truncate(COMMAND);
    message.extend(reply.to_vec().expect("a document"));
    let whole = message.len() as i32;
    message[..4].copy_from_slice(&whole.to_le_bytes());
    message
}

/// Reads the next message, header included; `None` at the end of the connection.
fn message(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut message = vec![0; HEAD];
    from.read_exact(&mut message).ok()?;
    message.resize(length(&message, 0), 0);
    from.read_exact(&mut message[HEAD..]).ok()?;
    Some(message)
}

fn without_option(mut message: Vec<u8>) -> Vec<u8> {
    let Some(at) = message
        .windows(OPTION.len())
        .position(|bytes| bytes == OPTION)
    else {
        return message;
    };
    message.splice(at..at + OPTION.len(), COMMENT.iter().copied());
    // The option is part of the command itself, so two lengths change: of the message and of the
    // command.
    for at in [0, COMMAND] {
        let shorter = length(&message, at) + COMMENT.len() - OPTION.len();
        message[at..at + 4].copy_from_slice(&(shorter as i32).to_le_bytes());
    }
    message
}

fn length(message: &[u8], at: usize) -> usize {
    i32::from_le_bytes([
        message[at],
        message[at + 1],
        message[at + 2],
        message[at + 3],
    ]) as usize
}
