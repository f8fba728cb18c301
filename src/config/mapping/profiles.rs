//! The profiles of `config/profiles/`, built in so that `format = "zigbee2mqtt"` works without copying anything. Their
//! text is read as any configuration is, once a process and only where somebody asks for a mapping.

use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use super::super::reader::{Report, Section};
use super::super::tree;
use super::{Mapping, read};

/// Name and text of each, in the order of the names.
macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        pub(super) const PROFILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../config/profiles/", $name, ".toml")))),*];
    };
}

profiles![
    "aws-iot",
    "azure-iot",
    "chirpstack-v4",
    "home-assistant-statestream",
    "ruuvi-gateway",
    "shelly-gen1",
    "shelly-gen2",
    "tasmota",
    "thingsboard-telemetry",
    "ttn-v3",
    "victron-venus",
    "zigbee2mqtt",
];

/// All of them.
pub(super) fn all() -> &'static [Arc<Mapping>] {
    static ALL: LazyLock<Vec<Arc<Mapping>>> =
        LazyLock::new(|| PROFILES.iter().flat_map(|(name, text)| parse(name, text).0).collect());
    &ALL
}

/// Their names.
pub(in super::super) fn names() -> impl Iterator<Item = &'static str> {
    PROFILES.iter().map(|(name, _)| *name)
}

/// The formats in a text, and what is wrong with it.
pub(crate) fn parse(name: &str, text: &str) -> (Vec<Arc<Mapping>>, Vec<String>) {
    let mut report = Report::default();
    let entries = match tree::parse(&Rc::from(name), text) {
        Ok(entries) => entries,
        Err(e) => return (Vec::new(), vec![format!("{name}:{}: {}", e.line, e.what)]),
    };
    let mut root = Section::new(String::new(), entries, &mut report);
    let formats = read(&mut root);
    root.end();
    report.finish();
    (formats, report.problems.iter().map(ToString::to_string).collect())
}
