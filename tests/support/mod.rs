//! Shared by the tests with real servers: the servers, the service as a process, and waiting for
//! conditions.
//!
//! Every server has its own directory and port, so tests can run in parallel and in several
//! processes. No server outlives its test binary, however that ends (see [`process`]).

// Each test program uses a part of this module. Items are `pub` only for the tests.
#![allow(dead_code, unreachable_pub)]

pub mod direct_rig;
pub mod emulation;
pub mod fleet;
pub mod guides;
pub mod http_client;
pub mod https;
pub mod in_process;
pub mod large;
pub mod mongod;
pub mod mosquitto;
pub mod mqtt_rig;
pub mod openssl;
pub mod process;
pub mod prometheus;
pub mod promql;
pub mod proxy;
pub mod raw_mqtt;
pub mod remote_read;
pub mod replica_set;
pub mod seed;
pub mod service;
pub mod steady;
pub mod stored;
pub mod usage;
pub mod watch;

use std::collections::BTreeSet;
use std::future::Future;
use std::net::TcpListener;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Below the range from which the kernel assigns ports for outgoing connections, so none of these
/// is assigned in between.
const PORTS: Range<u16> = 15_000..32_000;

/// Interval at which [`wait_until`] checks.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// A free port that this program has not got before: the service or server that had it may be down
/// only until its restart. Another process may take it before it is used; then the start is
/// repeated with another port.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = fastrand::u16(PORTS);
        let is_free = TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free && GIVEN.lock().expect("no panic").insert(port) {
            return port;
        }
    }
}

/// A number from the environment, for the long runs.
///
/// # Panics
/// The value is not a number.
pub fn setting<T: FromStr>(name: &str, default: T) -> T {
    std::env::var(name).map_or(default, |n| {
        n.parse().unwrap_or_else(|_| panic!("{name} is a number"))
    })
}

/// Waits until `condition` returns a value; blocks the thread.
///
/// # Panics
/// It returned none within `limit`; the message names `what`.
#[track_caller]
pub fn wait_until<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Runs a future to its end on its own thread and runtime, from synchronous or asynchronous code.
pub fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime")
                .block_on(future)
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
