//! Settings that a service manager (systemd) passes in the environment: sd_notify(3),
//! sd_watchdog_enabled(3).

use std::ffi::OsString;
use std::time::Duration;

/// Empty if no service manager requests notifications.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manager {
    /// `NOTIFY_SOCKET`: the socket for notifications; a path, or with a leading `@` a name in
    /// Linux's abstract namespace.
    pub notify_socket: Option<OsString>,
    /// `WATCHDOG_USEC`: the longest time between two watchdog notifications before the manager ends
    /// the process. Applies only to the process in `WATCHDOG_PID`.
    pub watchdog: Option<Duration>,
}

/// Reads the settings from the environment of this process.
pub fn manager() -> Manager {
    read_variables(|name| std::env::var_os(name), std::process::id())
}

fn read_variables(variable: impl Fn(&str) -> Option<OsString>, pid: u32) -> Manager {
    let number = |name| variable(name).and_then(|text| text.to_str()?.parse::<u64>().ok());
    // A child process may have inherited variables that are meant for its parent.
    let is_ours =
        variable("WATCHDOG_PID").is_none() || number("WATCHDOG_PID") == Some(u64::from(pid));
    Manager {
        notify_socket: variable("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()),
        watchdog: number("WATCHDOG_USEC")
            .filter(|usec| is_ours && *usec > 0)
            .map(Duration::from_micros),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Manager {
        read_variables(
            |name| {
                variables
                    .iter()
                    .find(|(n, _)| *n == name)
                    .map(|(_, value)| (*value).into())
            },
            42,
        )
    }

    #[test]
    fn the_watchdog_is_for_the_process_that_it_names() {
        let second = Some(Duration::from_secs(1));
        for (variables, watchdog) in [
            (&[("WATCHDOG_USEC", "1000000")][..], second),
            (
                &[("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "42")],
                second,
            ),
            (
                &[("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "43")],
                None,
            ),
            (&[("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", "x")], None),
            (&[("WATCHDOG_USEC", "0")], None),
            (&[("WATCHDOG_USEC", "soon")], None),
            (&[], None),
        ] {
            assert_eq!(with(variables).watchdog, watchdog, "{variables:?}");
        }
    }

    #[test]
    fn an_empty_socket_name_means_no_socket() {
        assert_eq!(with(&[("NOTIFY_SOCKET", "")]), Manager::default());
        assert_eq!(
            with(&[("NOTIFY_SOCKET", "@x")]).notify_socket,
            Some("@x".into())
        );
    }
}
