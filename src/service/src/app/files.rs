//! Open files: every connection is one. When the process reaches its limit, no port accepts a
//! connection, not even the admin port, and the journal cannot open a segment. So the limits on
//! connections stay within the limit on files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use config::Config;

/// Open files that the process needs in addition to the connections of its ports: journal, store,
/// brokers.
const FILES_BESIDE: u64 = 1024;
/// However few files there are.
const CONNECTIONS_MIN: u64 = 16;

/// The settings with limits on connections that fit the limit on files. Raises the soft limit on
/// files as far as needed and allowed.
pub(super) fn within_files(config: &Config) -> Config {
    let mut config = config.clone();
    let needed = FILES_BESIDE
        + config.admin.connections.max as u64
        + ingest(&mut config).map(|max| *max as u64).sum::<u64>();
    let Some(files) = raise_to(needed) else {
        return config;
    };
    lower(&mut config, files, needed);
    tracing::warn!(
        files,
        needed,
        http = config.http.connections.max,
        mqtt = config.listen.mqtt.connections.max,
        "the process may open fewer files (ulimit -n) than the limits on connections need; they \
         are lowered to fit"
    );
    config
}

/// The limits of the ports for readings.
fn ingest(config: &mut Config) -> impl Iterator<Item = &mut usize> {
    let http = &mut config.http;
    let mqtt = &mut config.listen.mqtt;
    [
        (http.enabled, &mut http.connections.max),
        (mqtt.enabled, &mut mqtt.connections.max),
    ]
    .into_iter()
    .filter_map(|(is_on, max)| is_on.then_some(max))
}

/// Lowers the limits in proportion, but not that of the admin port.
fn lower(config: &mut Config, files: u64, needed: u64) {
    let beside = FILES_BESIDE.min(files / 2) + config.admin.connections.max as u64;
    let room = files.saturating_sub(beside);
    let wanted = needed - FILES_BESIDE - config.admin.connections.max as u64;
    for max in ingest(config) {
        let share = *max as u64 * room / wanted.max(1);
        *max = usize::try_from(share.max(CONNECTIONS_MIN))
            .unwrap_or(usize::MAX)
            .min(*max);
    }
}

/// Raises the soft limit on open files; returns it if it is still below `needed`.
fn raise_to(needed: u64) -> Option<u64> {
    let now = getrlimit(Resource::Nofile);
    let soft = now.current.filter(|soft| *soft < needed)?;
    let wanted = now.maximum.map_or(needed, |hard| hard.min(needed));
    let is_raised = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(wanted),
            maximum: now.maximum,
        },
    )
    .is_ok();
    Some(if is_raised { wanted } else { soft }).filter(|files| *files < needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_are_shared_in_proportion() {
        let mut config = Config::default();
        config.listen.mqtt.enabled = true;
        (
            config.http.connections.max,
            config.listen.mqtt.connections.max,
        ) = (8192, 16_384);
        let needed = 1024 + 256 + 8192 + 16_384;
        lower(&mut config, 4096, needed);
        let max = |config: &Config| {
            (
                config.http.connections.max,
                config.listen.mqtt.connections.max,
            )
        };
        assert_eq!(max(&config), (938, 1877));
        lower(&mut config, 300, 1024 + 256 + 938 + 1877);
        assert_eq!(
            (max(&config), config.admin.connections.max),
            ((16, 16), 256)
        );
        config.listen.mqtt.enabled = false;
        config.http.connections.max = 100;
        lower(&mut config, 700, 1024 + 256 + 100);
        assert_eq!(max(&config), (94, 16));
    }
}
