//! A server that speaks MongoDB's protocol and says yes to a time-series collection, but makes a plain one, as emulations
//! do: a proxy before a real MongoDB that turns the option `timeseries` of a command into a comment.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

/// The element's type and name as they stand in a command.
const OPTION: &[u8] = b"\x03timeseries\0";
/// What it becomes: every command may have one, and the server does nothing with it.
const COMMENT: &[u8] = b"\x03comment\0";
/// Length of a message's head (OP_MSG), of which the first four bytes are the length of the whole.
const HEAD: usize = 16;
/// Behind the head: four bytes of flags and one for the kind of the first section; then the command.
const COMMAND: usize = HEAD + 5;

/// Starts it before the MongoDB on `port` and returns the URI of the emulation. It ends with the test binary.
pub fn start(port: u16) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let own = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", port)).expect("a running MongoDB");
            let (mut back, mut to) =
                (server.try_clone().expect("a second handle"), client.try_clone().expect("a second handle"));
            std::thread::spawn(move || {
                // Ends when either side has closed, which is all that there is to know.
                let _ = std::io::copy(&mut back, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let (mut client, mut server) = (client, server);
                while let Some(message) = message(&mut client) {
                    if server.write_all(&without_option(message)).is_err() {
                        break;
                    }
                }
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    // Not by the name of the replica set: the driver would go round the proxy to its member.
    format!("mongodb://127.0.0.1:{own}/?directConnection=true")
}

/// The next message, head included; `None` at the end of the connection.
fn message(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut message = vec![0; HEAD];
    from.read_exact(&mut message).ok()?;
    message.resize(length(&message, 0), 0);
    from.read_exact(&mut message[HEAD..]).ok()?;
    Some(message)
}

fn without_option(mut message: Vec<u8>) -> Vec<u8> {
    let Some(at) = message.windows(OPTION.len()).position(|bytes| bytes == OPTION) else { return message };
    message.splice(at..at + OPTION.len(), COMMENT.iter().copied());
    // The option stands in the command itself, so two lengths change: the message's and the command's.
    for at in [0, COMMAND] {
        let shorter = length(&message, at) + COMMENT.len() - OPTION.len();
        message[at..at + 4].copy_from_slice(&(shorter as i32).to_le_bytes());
    }
    message
}

fn length(message: &[u8], at: usize) -> usize {
    i32::from_le_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]) as usize
}
