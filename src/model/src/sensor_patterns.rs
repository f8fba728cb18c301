//! Patterns that select sensors by their ids. In a pattern `*` matches any characters, or none;
//! every other character matches itself.
//!
//! They are compared with the sensor id of each reading. Nearly all begin with a few literal
//! characters, so the first eight bytes of an id are compared as one number, which decides most
//! patterns without following a pointer.

use std::sync::Arc;

/// Maximum number of patterns in a list.
pub(crate) const PATTERNS_MAX: usize = 100;
/// Maximum length of a pattern in bytes: as long as the longest sensor id.
pub(crate) const PATTERN_MAX_BYTES: usize = 1024;
/// Maximum number of `*` in a pattern.
pub(crate) const STARS_MAX: usize = 8;
/// Bytes of an id that are compared as one number.
const HEAD_BYTES: usize = size_of::<u64>();

/// A list of patterns; a sensor is selected if one of them matches its id. Cheap to clone.
/// The default selects none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SensorPatterns(Arc<[Pattern]>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    /// The first bytes before any star, at most eight, and which bytes of an id are compared with
    /// them.
    head: u64,
    mask: u64,
    /// Length of the shortest id that matches.
    len_min: usize,
    /// Whether an id of that length with this head matches.
    is_decided: bool,
    /// The literal parts between the stars: one part more than there are stars.
    parts: Box<[Box<str>]>,
}

/// The rule that a list of patterns breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// An empty pattern matches no sensor.
    #[error("a pattern must not be empty; use [] to select no sensor")]
    Empty,
    /// More than [`PATTERNS_MAX`] patterns.
    #[error("more than {PATTERNS_MAX} patterns")]
    TooMany,
    /// Longer than [`PATTERN_MAX_BYTES`].
    #[error("a pattern has at most {PATTERN_MAX_BYTES} bytes")]
    TooLong,
    /// More than [`STARS_MAX`] stars: matching would take too long.
    #[error("a pattern has at most {STARS_MAX} `*`")]
    TooManyStars,
}

impl SensorPatterns {
    /// Parses a list; an empty one selects no sensor.
    ///
    /// # Errors
    /// The rule that the list breaks.
    pub fn parse<'a>(
        patterns: impl IntoIterator<Item = &'a str>,
    ) -> Result<SensorPatterns, InvalidPattern> {
        let parsed: Vec<Pattern> = patterns
            .into_iter()
            .map(Pattern::parse)
            .collect::<Result<_, _>>()?;
        if parsed.len() > PATTERNS_MAX {
            return Err(InvalidPattern::TooMany);
        }
        Ok(SensorPatterns(parsed.into()))
    }

    /// Whether a pattern matches this sensor id.
    pub fn matches(&self, sensor_id: &str) -> bool {
        let head = head(sensor_id.as_bytes());
        self.0
            .iter()
            .any(|pattern| pattern.matches(sensor_id, head))
    }

    /// Whether no sensor is selected.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Prefixes of the selected ids: every id that matches begins with one of them. Sorted, and
    /// none begins with another.
    pub fn prefixes(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.0.iter().map(|pattern| &*pattern.parts[0]).collect();
        all.sort_unstable();
        // Those that begin with another one come directly after it.
        all.dedup_by(|text, before| text.starts_with(*before));
        all
    }

    /// Whether every sensor is selected.
    pub fn is_all(&self) -> bool {
        self.0.iter().any(|Pattern { parts, .. }| {
            parts.len() > 1 && parts.iter().all(|part| part.is_empty())
        })
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Pattern, InvalidPattern> {
        let parts: Box<[Box<str>]> = text.split('*').map(Box::from).collect();
        match text.len() {
            0 => Err(InvalidPattern::Empty),
            _ if text.len() > PATTERN_MAX_BYTES => Err(InvalidPattern::TooLong),
            _ if parts.len() > STARS_MAX + 1 => Err(InvalidPattern::TooManyStars),
            _ => Ok(Pattern::new(parts)),
        }
    }

    fn new(parts: Box<[Box<str>]>) -> Pattern {
        let compared = parts[0].len().min(HEAD_BYTES);
        Pattern {
            head: head(&parts[0].as_bytes()[..compared]),
            mask: head(&[0xff; HEAD_BYTES][..compared]),
            len_min: parts.iter().map(|part| part.len()).sum(),
            is_decided: parts.len() > 1
                && parts[1..].iter().all(|part| part.is_empty())
                && parts[0].len() == compared,
            parts,
        }
    }

    fn matches(&self, text: &str, head: u64) -> bool {
        head & self.mask == self.head
            && text.len() >= self.len_min
            && (self.is_decided || self.matches_parts(text))
    }

    fn matches_parts(&self, text: &str) -> bool {
        let [first, middle @ .., last] = &*self.parts else {
            return *self.parts[0] == *text;
        };
        let Some(mut rest) = text.strip_prefix(&**first) else {
            return false;
        };
        // The leftmost place of each part leaves the most for the parts after it.
        for part in middle {
            let Some(at) = rest.find(&**part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(&**last)
    }
}

/// The first bytes of an id, the first one lowest; zeros after its end.
fn head(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(first) => u64::from_le_bytes(*first),
        None => bytes
            .iter()
            .rev()
            .fold(0, |head, byte| head << 8 | u64::from(*byte)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, id: &str) -> bool {
        SensorPatterns::parse([pattern]).unwrap().matches(id)
    }

    #[test]
    fn a_star_matches_any_characters() {
        for (pattern, id, matched) in [
            ("gw1-*", "gw1-7", true),
            ("gw1-*", "gw1-", true),
            ("gw1-*", "gw1", false),
            ("gw1-*", "xgw1-7", false),
            ("gw1", "gw1", true),
            ("gw1", "gw1-7", false),
            ("gateway-1*", "gateway-17", true),
            ("gateway-1*", "gateway-2", false),
            ("gateway-*", "gateway-", true),
            ("gateway-*", "gateway", false),
            ("gateway-", "gateway-2", false),
            ("a\0*", "a", false),
            ("*", "", true),
            ("*", "anything/at all", true),
            ("*-temp", "a-temp", true),
            ("*-temp", "a-temp2", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ä*", "ähnlich", true),
            ("a.c", "abc", false),
        ] {
            assert_eq!(matches(pattern, id), matched, "{pattern} {id}");
        }
        let several = SensorPatterns::parse(["a*", "b"]).unwrap();
        assert!(several.matches("ax") && several.matches("b") && !several.matches("bx"));
        assert!(!several.is_all() && SensorPatterns::parse(["b", "**"]).unwrap().is_all());
        assert!(SensorPatterns::parse([]).unwrap().is_none());
    }

    #[test]
    fn the_prefixes_cover_every_id_that_matches() {
        let of = |patterns: &[&'static str]| {
            let parsed = SensorPatterns::parse(patterns.iter().copied()).unwrap();
            parsed
                .prefixes()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&["b*", "a-*x", "b-1", "a-", "c"]), ["a-", "b", "c"]);
        assert_eq!(of(&["b*", "*x"]), [""]);
        assert!(of(&[]).is_empty());
    }

    #[test]
    fn what_would_be_slow_or_match_nothing_is_refused() {
        assert_eq!(SensorPatterns::parse([""]), Err(InvalidPattern::Empty));
        assert_eq!(
            SensorPatterns::parse(["a*b*c*d*e*f*g*h*i*j"]),
            Err(InvalidPattern::TooManyStars)
        );
        assert_eq!(
            SensorPatterns::parse([&*"x".repeat(1025)]),
            Err(InvalidPattern::TooLong)
        );
        assert_eq!(
            SensorPatterns::parse(["x"; 101]),
            Err(InvalidPattern::TooMany)
        );
    }

    /// By the definition: a star takes any number of characters.
    fn naive(pattern: &[char], id: &[char]) -> bool {
        match pattern.split_first() {
            None => id.is_empty(),
            Some(('*', rest)) => (0..=id.len()).any(|n| naive(rest, &id[n..])),
            Some((c, rest)) => id
                .split_first()
                .is_some_and(|(first, id)| first == c && naive(rest, id)),
        }
    }

    proptest! {
        #[test]
        fn it_equals_the_naive_definition(pattern in "a{0,12}[ab\0*]{1,7}", id in "a{0,14}[ab\0]{0,6}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&pattern, &id), naive(&chars(&pattern), &chars(&id)));
        }
    }
}
