//! Settings of a connection that are the same for MQTT 3.1.1 and 5.

/// Our own status, published explicitly or as last will.
pub(super) const ONLINE: &str = "online";
pub(super) const OFFLINE: &str = "offline";

/// Capacity of rumqttc's request queue. Each receipt is acknowledged once and packet ids have 16
/// bits, so with a few more for SUBSCRIBE and DISCONNECT it is never full. Memory is allocated only
/// as needed.
pub(super) const REQUESTS_MAX: usize = 65_535 + 16;

/// Requests that rumqttc writes, and packets that it reads, before it switches to the other
/// direction.
pub(super) const REQUEST_BATCH: usize = 1024;
/// The maximum that rumqttc allows.
pub(super) const READ_BATCH: usize = 128;

/// Timeout to open a connection, in seconds.
pub(super) const CONNECT_SECONDS: u64 = 10;
