//! A scenario as a TOML file (`specs/`). Unknown keys are rejected. With `--short`, the table
//! `[short]` replaces keys of the same name, so that the scenario runs in seconds.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Failure;

/// The format of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// One JSON object per line; over MQTT one object per message.
    Ndjson,
    /// InfluxDB line protocol.
    Line,
}

/// The protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    Http,
    /// Through mosquitto.
    Mqtt,
    /// On `listen.mqtt`.
    DirectMqtt,
}

/// A part of a run with its own rate. Ends after `seconds` or after `readings`, whichever is first.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Phase {
    pub(crate) name: String,
    pub(crate) seconds: Option<f64>,
    pub(crate) readings: Option<u64>,
    /// Open loop: readings per second. Without `rate` and `share`, the next message is sent when
    /// one is acknowledged.
    pub(crate) rate: Option<f64>,
    /// Open loop: this share of the rate that the first phase reached and MongoDB sustained.
    pub(crate) share: Option<f64>,
    /// Starts only when all earlier readings are stored.
    #[serde(default)]
    pub(crate) quiet_first: bool,
    /// Stores this many readings of other sensors before the phase, and removes them during it
    /// (`hourbucket remove`). The phase ends with the removal.
    pub(crate) remove: Option<u64>,
    /// Kills MongoDB this many seconds after the start of the phase.
    pub(crate) outage_after: Option<f64>,
    /// Starts MongoDB again after this many seconds.
    #[serde(default)]
    pub(crate) outage_seconds: f64,
}

/// A scenario.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spec {
    pub(crate) name: String,
    /// The purpose, in one sentence.
    pub(crate) about: String,
    pub(crate) transport: Transport,
    #[serde(default = "ndjson")]
    pub(crate) format: Format,
    /// `bucket` or `timeseries`.
    #[serde(default = "bucket")]
    pub(crate) mode: String,
    /// The service that gets the readings stores none, but forwards them to another one.
    #[serde(default)]
    pub(crate) forward: bool,
    pub(crate) sensors: u32,
    /// Readings per message; over MQTT always 1.
    #[serde(default = "one")]
    pub(crate) batch: u32,
    pub(crate) connections: u32,
    /// MQTT: maximum number of unacknowledged messages per connection.
    #[serde(default = "window")]
    pub(crate) window: u16,
    /// Time between two readings of a sensor, in the data.
    pub(crate) step_ms: i64,
    /// The hour of the first reading, relative to the hour in which the run starts. 1 is an hour
    /// that has not started when the service starts, which is the normal case for a long-running
    /// service. Negative hours are late data.
    #[serde(default = "next_hour")]
    pub(crate) begin_hour: i64,
    /// Late data: this many readings of each sensor, in a different order for each.
    pub(crate) shuffled: Option<u64>,
    #[serde(default = "seed")]
    pub(crate) seed: u64,
    /// Before stopping the service, waits until it has stored everything, and so long afterwards.
    /// Then its memory is measured: the service returns freed memory every ten seconds. At least 2,
    /// because the gauges are updated once per second.
    pub(crate) settle_seconds: Option<u64>,
    pub(crate) phases: Vec<Phase>,
    /// Environment variables of the service, without the prefix `HOURBUCKET_`.
    #[serde(default)]
    pub(crate) service: BTreeMap<String, String>,
}

fn ndjson() -> Format {
    Format::Ndjson
}
fn bucket() -> String {
    "bucket".into()
}
fn one() -> u32 {
    1
}
fn window() -> u16 {
    200
}
fn next_hour() -> i64 {
    1
}
fn seed() -> u64 {
    123
}

impl Spec {
    pub(crate) fn read(path: &Path, short: bool) -> Result<Spec, Failure> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Spec::parse(&text, short).map_err(|e| format!("{}: {e}", path.display()).into())
    }

    pub(crate) fn parse(text: &str, short: bool) -> Result<Spec, Failure> {
        let mut table: toml::Table = text.parse().map_err(|e| format!("{e}"))?;
        let replace = table.remove("short");
        if let (true, Some(toml::Value::Table(replace))) = (short, replace) {
            table.extend(replace);
        }
        let spec: Spec = table.try_into().map_err(|e| format!("{e}"))?;
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), Failure> {
        let wrong = |what: &str| Err(Failure::from(what.to_owned()));
        if self.sensors == 0
            || self.connections == 0
            || self.batch == 0
            || self.step_ms <= 0
            || self.window == 0
        {
            return wrong("sensors, connections, batch, window and step_ms must be at least 1");
        }
        if self.connections > self.sensors {
            return wrong("connections must not exceed sensors");
        }
        if self.transport != Transport::Http && (self.batch != 1 || self.format != Format::Ndjson) {
            return wrong("MQTT requires batch = 1 and format = ndjson");
        }
        if !["bucket", "timeseries"].contains(&self.mode.as_str()) {
            return wrong("mode must be bucket or timeseries");
        }
        for (i, phase) in self.phases.iter().enumerate() {
            if phase.seconds.is_none() && phase.readings.is_none() && self.shuffled.is_none() {
                return wrong("a phase needs seconds or readings");
            }
            if phase.share.is_some() && (i == 0 || phase.rate.is_some()) {
                return wrong("share requires an earlier phase, and excludes rate");
            }
            if (phase.outage_after.is_some() || phase.remove.is_some()) && phase.seconds.is_none() {
                return wrong("a phase with an outage or a removal needs seconds");
            }
        }
        match self.phases.is_empty() {
            true => wrong("no phase; at least one is required"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_spec_can_be_read_in_both_lengths() {
        let mut read = 0;
        for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/specs"))
            .unwrap()
            .flatten()
        {
            for short in [false, true] {
                let spec = Spec::read(&entry.path(), short).unwrap();
                assert_eq!(
                    Some(spec.name.as_str()),
                    entry.path().file_stem().and_then(|stem| stem.to_str())
                );
                read += 1;
            }
        }
        assert!(read >= 36, "only {read}");
    }

    #[test]
    fn invalid_scenarios_are_errors() {
        let base =
            "name='x'\nabout=''\ntransport='http'\nsensors=10\nconnections=2\nstep_ms=1000\n";
        for (text, part) in [
            ("phases=[]", "no phase"),
            ("sensor=1\nphases=[]", "unknown field `sensor`"),
            ("[[phases]]\nname='a'", "needs seconds or readings"),
            ("[[phases]]\nname='a'\nseconds=1\nshare=0.5", "share"),
            (
                "mode='auto'\n[[phases]]\nname='a'\nseconds=1",
                "mode must be",
            ),
        ] {
            let error = Spec::parse(&format!("{base}{text}"), false)
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
