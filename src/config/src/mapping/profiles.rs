//! The mappings of `config/profiles/`, built in so that `format = "zigbee2mqtt"` works without
//! copying a file. Their text is parsed like any configuration, once per process, when a mapping is
//! first requested.

use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use super::super::reader::{Reader, Report};
use super::super::tree;
use super::{Mapping, read_formats};

/// Name and text of each, sorted by name.
macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        pub(super) const PROFILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../../config/profiles/", $name, ".toml")))),*];
    };
}

profiles![
    "actility",
    "aws-iot",
    "azure-iot",
    "chirpstack-v4",
    "home-assistant-statestream",
    "loriot",
    "ruuvi-gateway",
    "shelly-gen1",
    "shelly-gen2",
    "tasmota",
    "telegraf-json",
    "thingsboard-telemetry",
    "ttn-v3",
    "victron-venus",
    "zigbee2mqtt",
];

/// The built-in mappings, sorted by name.
pub fn shipped() -> &'static [Arc<Mapping>] {
    static ALL: LazyLock<Vec<Arc<Mapping>>> = LazyLock::new(|| {
        PROFILES
            .iter()
            .flat_map(|(name, text)| parse(name, text).0)
            .collect()
    });
    &ALL
}

/// Looks up a mapping by name: first in the configuration, then among the built-in ones.
pub fn find(formats: &[Arc<Mapping>], name: &str) -> Option<Arc<Mapping>> {
    formats
        .iter()
        .chain(shipped())
        .find(|mapping| mapping.name == name)
        .cloned()
}

/// Their names, sorted.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PROFILES.iter().map(|(name, _)| *name)
}

/// Parses the formats in a text. Also returns the problems found.
pub fn parse(name: &str, text: &str) -> (Vec<Arc<Mapping>>, Vec<String>) {
    let mut report = Report::default();
    let entries = match tree::parse(&Rc::from(name), text) {
        Ok(entries) => entries,
        Err(e) => return (Vec::new(), vec![format!("{name}:{}: {}", e.line, e.what)]),
    };
    let mut root = Reader::new(String::new(), entries, &mut report);
    let formats = read_formats(&mut root);
    root.end();
    report.finish();
    (
        formats,
        report.problems.iter().map(ToString::to_string).collect(),
    )
}
