//! What the tests with real servers share: the servers, the service itself as a process, and waiting without luck.
//!
//! Every server has a directory and a port of its own, so tests run side by side and twice at once. None outlives its
//! test binary, however that ends (see [`process`]).

// Each test program uses a part of this; and what is public here is so for the tests alone.
#![allow(dead_code, unreachable_pub)]

pub mod direct_rig;
pub mod emulation;
pub mod fleet;
pub mod guides;
pub mod https;
pub mod large;
pub mod mongod;
pub mod mosquitto;
pub mod mqtt_rig;
pub mod process;
pub mod promql;
pub mod proxy;
pub mod raw_mqtt;
pub mod replica_set;
pub mod seed;
pub mod service;
pub mod steady;
pub mod stored;
pub mod watch;

use std::future::Future;
use std::net::TcpListener;
use std::ops::Range;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Below the range from which the kernel takes ports for outgoing connections: none of these takes it in between.
const PORTS: Range<u16> = 15_000..32_000;

/// How often [`wait_until`] looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A port on which nothing listens now. Another process may still take it first, so a start that finds it taken is
/// tried again with another one.
pub fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(PORTS);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A number of the environment, for the long runs.
///
/// # Panics
/// It is not a number.
pub fn setting<T: FromStr>(name: &str, default: T) -> T {
    std::env::var(name).map_or(default, |n| n.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Waits until `condition` gives a value; blocks the thread.
///
/// # Panics
/// It gave none within `limit`; `what` says in the message what was waited for.
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

/// Runs a future to its end from synchronous or asynchronous code alike: on a thread and a runtime of its own.
pub fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
