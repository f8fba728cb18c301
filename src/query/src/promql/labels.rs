//! The labels of a series: names and values, ordered by name, without empty values.

use std::fmt;
use std::sync::Arc;

/// The label that holds the name of the metric: the name of the field.
pub(crate) const METRIC_NAME: &str = "__name__";
/// The label with the sensor's id.
pub(crate) const SENSOR_ID: &str = "sensor_id";

/// Immutable and cheap to clone. The order of label sets is Prometheus': by names and values, pair
/// by pair.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Arc<[(Arc<str>, Arc<str>)]>);

impl Default for Labels {
    fn default() -> Labels {
        Labels(Arc::new([]))
    }
}

impl Labels {
    /// Sorts the pairs. Of two equal names the first counts; an empty value means that the label is
    /// absent.
    pub fn new(pairs: impl IntoIterator<Item = (Arc<str>, Arc<str>)>) -> Labels {
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        pairs.dedup_by(|later, first| later.0 == first.0);
        pairs.retain(|(_, value)| !value.is_empty());
        Labels(pairs.into())
    }

    /// As [`Labels::new`], of texts.
    pub fn from_pairs(pairs: &[(&str, &str)]) -> Labels {
        Labels::new(
            pairs
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into())),
        )
    }

    /// The value; empty if there is no such label.
    pub fn get(&self, name: &str) -> &str {
        self.0
            .binary_search_by(|(n, _)| (**n).cmp(name))
            .map_or("", |at| &self.0[at].1)
    }

    /// In the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    pub(crate) fn without_name(&self) -> Labels {
        if self.get(METRIC_NAME).is_empty() {
            return self.clone();
        }
        self.filtered(|name| name != METRIC_NAME)
    }

    /// Only the labels whose name fulfils the condition.
    pub(crate) fn filtered(&self, keep: impl Fn(&str) -> bool) -> Labels {
        Labels(
            self.0
                .iter()
                .filter(|(name, _)| keep(name))
                .cloned()
                .collect(),
        )
    }

    /// With the label set to a value; removed if that is empty.
    pub fn with(&self, name: &str, value: &str) -> Labels {
        let pair = (Arc::<str>::from(name), Arc::<str>::from(value));
        Labels::new(std::iter::once(pair).chain(self.0.iter().cloned()))
    }

    /// The labels by which vectors are matched: only those of `names` (`on`), or all but them and
    /// the metric's name.
    pub fn matching(&self, on: bool, names: &[String]) -> Labels {
        let is_named = |name: &str| names.iter().any(|n| n == name);
        match on {
            true => self.filtered(is_named),
            false => self.filtered(|name| name != METRIC_NAME && !is_named(name)),
        }
    }

    /// The hash by which `limit_ratio` samples: XXH64 of Prometheus' packed form (lengths below 255
    /// in one byte, otherwise 255 and three bytes).
    pub fn stable_hash(&self) -> u64 {
        let mut packed = Vec::new();
        for text in self.0.iter().flat_map(|(name, value)| [name, value]) {
            match text.len() {
                len @ 0..=254 => packed.push(len as u8),
                len => {
                    packed.push(255);
                    packed.extend_from_slice(&(len as u32).to_le_bytes()[..3]);
                }
            }
            packed.extend_from_slice(text.as_bytes());
        }
        xxhash_rust::xxh64::xxh64(&packed, 0)
    }
}

/// As Prometheus writes them: `{a="1", b="x"}`.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, (name, value)) in self.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            match is_legacy_name(name) {
                true => write!(f, "{comma}{name}={}", quoted(value))?,
                false => write!(f, "{comma}{}={}", quoted(name), quoted(value))?,
            }
        }
        f.write_str("}")
    }
}

/// A name that needs no quotes: ASCII alphabet, digits and underscores, no digit first.
pub(crate) fn is_legacy_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// The text in double quotes, with the escapes of PromQL.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_sorted_unique_and_not_empty() {
        let labels = Labels::from_pairs(&[("b", "2"), ("a", "1"), ("b", "3"), ("c", "")]);
        assert_eq!(labels.to_string(), r#"{a="1", b="2"}"#);
        assert_eq!((labels.get("b"), labels.get("c")), ("2", ""));
        assert_eq!(
            labels.with("a", "").with("x y", "q\"").to_string(),
            r#"{b="2", "x y"="q\""}"#
        );
        assert!(Labels::from_pairs(&[("A", "x")]) < Labels::from_pairs(&[("__name__", "x")]));
        let named = Labels::from_pairs(&[(METRIC_NAME, "m"), ("a", "1"), ("b", "2")]);
        assert_eq!(
            named.matching(true, &["a".into()]),
            Labels::from_pairs(&[("a", "1")])
        );
        assert_eq!(
            named.matching(false, &["a".into()]),
            Labels::from_pairs(&[("b", "2")])
        );
    }
}
