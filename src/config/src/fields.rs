//! What a field is, `[[fields]]`.

use model::SensorPatterns;

use super::Config;
use super::check::impossible;
use super::declare::settings;
use super::kinds::{choice, flag, name_patterns, parse_patterns};
use super::reader::Report;

/// Each entry is compared with each field of a day.
const FIELDS_MAX: usize = 64;

/// Why a reload does not apply it.
pub(super) const COMPUTED: &str = "the tasks that compute days are started with it";

settings! {
    /// What a field is, for the rich hours (docs/columns.md): its value between two readings, which its
    /// time-weighted mean needs (integral and covered_ms), and whether its quantiles are asked for. The
    /// first entry that has the field counts. Days that are stored change only when they are computed
    /// again. Up to 64 entries.
    pub struct Field, restart(COMPUTED) {
        /// Patterns on the stored names of fields; * matches anything.
        names: Vec<String> = vec![], name_patterns("list of patterns on names of fields"),
            required, example("[\"setpoint*\"]");
        /// "straight": on the line from one value to the next. "step": the value, until the next
        /// one, as of a valve or a setpoint.
        is_step: bool = false, choice(&[("straight", false), ("step", true)]), named("between");
        /// Rich hours have a quantile sketch of the field: the read API and
        /// hourbucket_quantile_over_time then answer quantiles over months from hours, with a
        /// relative error below 0.8 %. It takes some 15 bytes for each distinct size of value and hour.
        is_sketched: bool = false, flag(), named("sketch");
    }
}

impl Field {
    /// The patterns; they were checked.
    pub fn patterns(&self) -> Option<SensorPatterns> {
        parse_patterns(&self.names).ok()
    }
}

/// Reports entries that cannot work.
pub(super) fn combinations(config: &Config, report: &mut Report) {
    impossible! { report;
        config.fields.len() > FIELDS_MAX => ["fields"],
            format!("more than {FIELDS_MAX} fields"), "join those with the same rules";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::loaded;

    #[test]
    fn entries_are_read_written_and_refused_with_their_keys() {
        let text = "[[fields]]\nnames = [\"set*\"]\nbetween = \"step\"\n[[fields]]\nnames = [\"*\"]\nsketch = true\n";
        let config = loaded(text).unwrap().config;
        let read: Vec<_> = config.fields.iter().map(|of| of.is_step).collect();
        assert_eq!(read, [true, false]);
        let read: Vec<_> = config.fields.iter().map(|of| of.is_sketched).collect();
        assert_eq!(read, [false, true]);
        assert!(config.fields[0].patterns().unwrap().matches("setpoint"));
        assert_eq!(loaded(&config.masked()).unwrap().config, config);
        for (text, problem) in [
            ("between = \"step\"", "fields[0].names: missing"),
            ("names = []", "fields[0].names ("),
            ("names = [\"t\"]\nbetween = \"line\"", "\"straight\""),
        ] {
            let error = loaded(&format!("[[fields]]\n{text}\n")).unwrap_err();
            assert!(
                error.contains(problem) && error.contains("1 problem:"),
                "{text}: {error}"
            );
        }
        let many = "[[fields]]\nnames = [\"t\"]\n".repeat(FIELDS_MAX + 1);
        assert!(loaded(&many).unwrap_err().contains("more than 64 fields"));
    }
}
