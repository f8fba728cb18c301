//! Plausible ranges, `[[ranges]]`; `model::ranges` applies them.

use std::sync::Arc;

use model::ranges::{ChangeMax, RangeAction, RangeRule};
use toml::Value as Toml;

use super::Config;
use super::check::impossible;
use super::declare::settings;
use super::kinds::{Kind, Plain, choice, decimal, name_patterns, parse_patterns};
use super::mapping::Fraction;
use super::reader::{Bad, Report, wrong};
use super::tree::Node;
use super::units::parse_duration;

/// Characters of the label of a range, in a metric.
const LABEL_CHARS_MAX: usize = 64;
/// Each entry is compared with each name of a batch, and has separate series.
const RANGES_MAX: usize = 64;

settings! {
    /// Which values are plausible: a loose wire can send -127 °C. A number is compared with the first
    /// entry that has its sensor and field; texts and booleans never are. Readings of all formats
    /// are checked before they are acknowledged (an example is in docs/http.md).
    /// hourbucket_values_out_of_range_total counts what was found. Up to 64 entries.
    pub struct Range, reload() {
        /// Patterns on the ids of sensors and on the stored names of fields; * matches anything.
        sensors: Vec<String> = vec!["*".to_owned()],
            name_patterns("list of patterns on sensor ids");
        fields: Vec<String> = vec![], name_patterns("list of patterns on names of fields"),
            required, example("[\"temp*\"]");
        /// The least and the greatest value. Each entry has one of these, or max_change_per.
        min: Option<Fraction> = None, decimal().optional(), example("-40");
        max: Option<Fraction> = None, decimal().optional(), example("85");
        /// How far a value may be from the last one of its field: "10/1m" is 10 up to a minute
        /// later, and 20 after two minutes. The last one is that with the latest time that this
        /// process has accepted. Nothing is compared with a later one, nor after a start with the
        /// one before it.
        max_change_per: Option<ChangePer> = None,
            Kind::new("number/duration", change_per).optional(), example("\"10/1m\"");
        /// What happens to other values. "reject": the reading is rejected (out_of_range).
        /// "leave-out": the rest of the reading is stored. "keep-apart": temp is stored as
        /// temp_implausible, and is not in the summary of temp.
        action: RangeAction = RangeAction::Reject, choice(RangeAction::NAMES);
    }
}

/// `max_change_per`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangePer {
    change: ChangeMax,
    /// As it was written.
    text: Arc<str>,
}

impl Plain for ChangePer {
    fn write(&self) -> Toml {
        Toml::String(self.text.to_string())
    }
}

fn change_per(node: &Node) -> Result<ChangePer, Bad> {
    let read = |text: &str| {
        let (by, per) = text.split_once('/')?;
        let by = by.trim().parse::<f64>().ok();
        let by = by.filter(|by| by.is_finite() && *by >= 0.0)?;
        let per = parse_duration(per).filter(|per| !per.is_zero())?;
        let change = ChangeMax { by, per };
        let text = text.into();
        Some(ChangePer { change, text })
    };
    let advice = "write a number, / and a duration, such as \"10/1m\" or \"0.5/10s\"";
    let found = node.text().and_then(read);
    found.ok_or_else(|| wrong(node, advice))
}

impl Range {
    /// As it is applied; the patterns were checked.
    pub(super) fn rule(&self) -> Option<RangeRule> {
        let label: String = self
            .fields
            .join(",")
            .chars()
            .take(LABEL_CHARS_MAX)
            .collect();
        let change = self.max_change_per.as_ref();
        Some(RangeRule {
            sensors: parse_patterns(&self.sensors).ok()?,
            fields: parse_patterns(&self.fields).ok()?,
            label: label.into(),
            min: self.min.map(|min| min.0),
            max: self.max.map(|max| max.0),
            change: change.map(|change| (change.change, change.text.clone())),
            action: self.action,
        })
    }
}

/// Reports ranges that cannot work.
pub(super) fn combinations(config: &Config, report: &mut Report) {
    impossible! { report;
        config.ranges.len() > RANGES_MAX => ["ranges"],
            format!("more than {RANGES_MAX} ranges"), "join those with the same limits";
    }
    for (i, range) in config.ranges.iter().enumerate() {
        let key = |name: &str| format!("ranges[{i}].{name}");
        let min = range.min.map(|min| min.0);
        let max = range.max.map(|max| max.0);
        impossible! { report;
            min.is_some() && max.is_some() && min > max => [&key("min"), &key("max")],
                "the least value is greater than the greatest", "exchange min and max";
            min.is_none() && max.is_none() && range.max_change_per.is_none()
                => [&key("fields"), &key("min"), &key("max"), &key("max_change_per")],
                "without min, max and max_change_per every value is plausible",
                "set one of them, or remove this entry";
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reload;
    use super::*;
    use crate::load::loaded;

    #[test]
    fn ranges_are_read() {
        let text = "[[ranges]]\nsensors = [\"a*\"]\nfields = [\"t\", \"u*\"]\nmin = -40\nmax = 85.5\n\
            max_change_per = \"0.5/10s\"\naction = \"keep-apart\"\n[[ranges]]\nfields = [\"*\"]\nmax = 1e3\n";
        let config = loaded(text).unwrap().config;
        let ranges = config.decoding().ranges;
        let [first, second] = ranges.rules() else {
            panic!("{ranges:?}")
        };
        assert!(first.sensors.matches("a1") && !first.sensors.matches("b"));
        assert!(first.fields.matches("u2") && !first.fields.matches("t2"));
        assert_eq!(
            (&*first.label, first.min, first.max, first.action),
            ("t,u*", Some(-40.0), Some(85.5), RangeAction::KeepApart)
        );
        let per = std::time::Duration::from_secs(10);
        let (change, text) = first.change.clone().unwrap();
        assert_eq!((change, &*text), (ChangeMax { by: 0.5, per }, "0.5/10s"));
        assert!(second.sensors.is_all());
        assert_eq!(
            (second.min, second.max, second.action),
            (None, Some(1000.0), RangeAction::Reject)
        );
        assert_eq!(loaded(&config.masked()).unwrap().config, config);
    }

    #[test]
    fn ranges_that_cannot_work_are_refused_with_their_keys() {
        for (text, problem) in [
            ("fields = [\"t\"]\nmin = 2\nmax = 1", "ranges[0].min ("),
            ("fields = [\"t\"]", "ranges[0].fields ("),
            ("min = 1", "ranges[0].fields: missing"),
            ("fields = []\nmin = 1", "ranges[0].fields ("),
            ("fields = [\"t\"]\nmin = \"1\"", "ranges[0].min ("),
            ("fields = [\"t\"]\nmin = nan", "ranges[0].min ("),
            (
                "fields = [\"t\"]\nmax_change_per = \"10\"",
                "ranges[0].max_change_per (",
            ),
            (
                "fields = [\"t\"]\nmax_change_per = \"-1/1m\"",
                "ranges[0].max_change_per (",
            ),
            (
                "fields = [\"t\"]\nmax_change_per = \"1/0s\"",
                "ranges[0].max_change_per (",
            ),
            (
                "fields = [\"t\"]\nmin = 1\naction = \"drop\"",
                "\"leave-out\"",
            ),
        ] {
            let error = loaded(&format!("[[ranges]]\n{text}\n")).unwrap_err();
            assert!(
                error.contains(problem) && error.contains("1 problem:"),
                "{text}: {error}"
            );
        }
        let many = "[[ranges]]\nfields = [\"t\"]\nmin = 1\n".repeat(RANGES_MAX + 1);
        assert!(loaded(&many).unwrap_err().contains("more than 64 ranges"));
    }

    #[test]
    fn a_reload_adds_changes_and_removes_ranges() {
        let range = "[[ranges]]\nfields = [\"t\"]\nmin = 1\n";
        let wider = range.replace("= 1", "= 0");
        for (old, new, key) in [
            ("", range, "ranges[0]"),
            (range, &wider, "ranges[0].min"),
            (range, "", "ranges[0]"),
        ] {
            let old = loaded(old).unwrap().config;
            let new = loaded(new).unwrap().config;
            let found = reload::changes(&old, &new);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!((&*found[0].key, found[0].waits), (key, None));
            assert_eq!(reload::taken_over(&old, &new), new);
        }
    }
}
