//! The HTTP client of the tests. It does not use the proxy that the environment may name, since all
//! connections are on loopback; and a status such as 404 is an answer, not an error.

use std::time::Duration;

/// The client fills its buffers with zeros again and again. In a test program, which is not
/// optimized, that took more time than everything else when they had the default of 128 KiB.
const BUFFER_BYTES: usize = 16 << 10;

/// A client whose requests may take as long as a busy machine needs.
pub fn agent() -> ureq::Agent {
    agent_within(Duration::from_secs(90))
}

/// A client whose requests fail after `timeout`.
pub fn agent_within(timeout: Duration) -> ureq::Agent {
    let builder = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .input_buffer_size(BUFFER_BYTES)
        .output_buffer_size(BUFFER_BYTES)
        .proxy(None);
    builder.timeout_global(Some(timeout)).build().new_agent()
}
