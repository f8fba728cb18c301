//! The HTTP client of the tests. It does not use the proxy that the environment may name, since all
//! connections are on loopback; and a status such as 404 is an answer, not an error.

use std::time::Duration;

/// A client whose requests may take as long as a busy machine needs.
pub fn agent() -> ureq::Agent {
    agent_within(Duration::from_secs(90))
}

/// A client whose requests fail after `timeout`.
pub fn agent_within(timeout: Duration) -> ureq::Agent {
    let builder = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None);
    builder.timeout_global(Some(timeout)).build().new_agent()
}
