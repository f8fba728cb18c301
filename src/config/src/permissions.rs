//! Files that other users of the machine can read although they hold secrets or readings. Startup,
//! a reload and `check` warn about them. None refuses them: that would stop a service that works.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{AckMode, Config, Loaded};

/// Where Docker, Podman and Compose mount secrets. Only the processes of the container can read
/// them, and their owner and mode are those of the host.
const CONTAINER_SECRETS: &str = "/run/secrets";

impl Loaded {
    /// One sentence for each file with secrets that other users can read, with its key. A file that
    /// does not exist any more is not reported.
    pub fn exposed_secrets(&self) -> Vec<String> {
        let config = &self.config;
        let http = config.http.enabled.then_some(&config.http);
        let direct = Some(&config.listen.mqtt).filter(|mqtt| mqtt.enabled);
        let ports = [
            (
                "http.tokens_file",
                http.and_then(|http| http.tokens_file.as_deref()),
            ),
            (
                "http.tls.key_file",
                http.and_then(|http| http.tls.key_file.as_deref()),
            ),
            ("admin.tls.key_file", config.admin.tls.key_file.as_deref()),
            ("forward.token_file", config.forward.token_file.as_deref()),
            ("forward.key_file", config.forward.key_file.as_deref()),
            (
                "listen.mqtt.tokens_file",
                direct.and_then(|mqtt| mqtt.tokens_file.as_deref()),
            ),
            (
                "listen.mqtt.key_file",
                direct.and_then(|mqtt| mqtt.key_file.as_deref()),
            ),
        ];
        let ports = ports
            .into_iter()
            .filter_map(|(key, path)| Some((key.to_owned(), path?)));
        let brokers = config.mqtt.iter().enumerate().flat_map(|(i, mqtt)| {
            let files = [
                ("key_file", &mqtt.key_file),
                ("password_file", &mqtt.password_file),
            ];
            files
                .into_iter()
                .filter_map(move |(key, path)| Some((format!("mqtt[{i}].{key}"), path.as_deref()?)))
        });
        let values = self
            .value_files
            .iter()
            .map(|(key, path)| (key.clone(), path.as_path()));
        ports
            .chain(brokers)
            .chain(values)
            .filter_map(|(key, path)| exposed_secret(&key, path))
            .collect()
    }
}

/// The rule of PostgreSQL for its key file: only the owner may read it; if that is root, the group
/// may too, because the service can then read it only through the group.
fn exposed_secret(key: &str, path: &Path) -> Option<String> {
    if path.starts_with(CONTAINER_SECRETS) {
        return None;
    }
    let found = std::fs::metadata(path).ok()?;
    let mode = found.mode() & 0o777;
    let allowed = if found.uid() == 0 { 0o740 } else { 0o700 };
    (mode & !allowed != 0).then(|| {
        let path = path.display();
        format!(
            "{key}: other users of this machine can read {path} (mode {mode:04o}), which holds \
             secrets; run `chmod 600 {path}`, or `chmod 640 {path}` if it belongs to root and the \
             group of the service"
        )
    })
}

impl Config {
    /// One sentence if other users can read files of the journal. They are created for their owner
    /// only; a copy may have another mode. Access of a group counts as intended, for
    /// example for backups.
    pub fn exposed_journal(&self) -> Option<String> {
        const READ: u32 = 0o004;
        const ENTER: u32 = 0o001;
        let dir = Some(&self.journal.dir).filter(|_| self.ingest.ack == AckMode::Journal)?;
        let others = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.mode());
        if others(dir) & ENTER == 0 {
            return None;
        }
        let files = std::fs::read_dir(dir)
            .ok()?
            .flatten()
            .map(|entry| entry.path());
        let first = files.filter(|path| others(path) & READ != 0).min()?;
        let first = first.display();
        let dir = dir.display();
        Some(format!(
            "journal.dir: other users of this machine can read {first}, which holds readings; run \
             `chmod -R o= {dir}`"
        ))
    }
}
