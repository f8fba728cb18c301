//! The parts of a run: MongoDB, mosquitto and the service, each as a process with its own
//! directory, on free ports. However this program ends, even by Ctrl-C or SIGKILL, the processes
//! end and the directories are removed (see [`process`]).

pub(crate) mod command;
pub(crate) mod mongod;
pub(crate) mod mosquitto;
#[path = "../../../tests/support/process.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the leash of the tests; not all of it is used here"
)]
pub(crate) mod process;
pub(crate) mod service;

use std::net::TcpListener;
use std::path::PathBuf;

/// Number of start attempts, in case another process takes the port first.
pub(crate) const STARTS_MAX: u32 = 5;

/// A port without a listener, below the range that the kernel uses for outgoing connections.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(15_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The program named by an environment variable, or else the first one found on the path or in
/// `/usr/sbin`.
pub(crate) fn program(variable: &str, name: &str) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(variable).filter(|v| !v.is_empty()) {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    dirs.map(|dir| dir.join(name)).find(|file| file.is_file())
}
