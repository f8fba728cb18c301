//! Topics: capturing values with a template, and matching filters (MQTT 5.0 §4.7, §4.8.2).

/// A subscription's template, such as `sensors/{sensor_id}/{field}`. A level is a literal, `+`
/// (matches any level, captures nothing), or a name in braces: `sensor_id` and `field` have their
/// meaning, any other becomes a tag. A final `#` matches the remaining levels. Instead, one name
/// may take several levels, at least one: `{sensor_id#}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicTemplate {
    levels: Vec<Level>,
    /// Whether it ends with `#`.
    open: bool,
    /// The level that takes several.
    many: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Level {
    Literal(Box<str>),
    Any,
    SensorId,
    Field,
    Tag(Box<str>),
}

/// Why a template is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    /// An empty template.
    #[error("the topic template is empty")]
    Empty,
    /// `#` is not alone at the end.
    #[error("`#` can only be the last level of a topic template")]
    HashNotLast,
    /// A level that mixes a literal with `+`, `#` or braces.
    #[error(
        "the level `{0}` must be a literal, `+`, or one name in braces such as `{{sensor_id}}`"
    )]
    MixedLevel(String),
    /// A name that is not valid for a tag.
    #[error("`{{{0}}}` is not a valid name: use 1 to 64 letters, digits, `_` and `-`")]
    BadName(String),
    /// `ts`, `meta` and `_id` are keys of the documents.
    #[error("`{{{0}}}` is reserved: the stored documents use this name; choose another one")]
    ReservedName(String),
    /// The same name on two levels.
    #[error("`{{{0}}}` occurs on two levels")]
    DuplicateName(String),
    /// Two parts that match several levels.
    #[error(
        "only one part can match several levels: one name with # in its braces, or # at the end"
    )]
    SeveralTwice,
    /// More names than a template may have.
    #[error("a topic template can have at most {max} names", max = NAMES_MAX)]
    TooManyNames,
}

/// Most tags of a template. It is below the limit on a reading's tags, so that tags of the payload
/// fit as well.
const NAMES_MAX: usize = 16;
const NAME_MAX_BYTES: usize = 64;

/// The values that a template captured from a topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Captured<'a> {
    /// The level of `{sensor_id}`; may be empty, which the decoder rejects.
    pub sensor_id: Option<&'a str>,
    /// The level of `{field}`.
    pub field: Option<&'a str>,
    /// Name and level of the other names, each name once; ready for [`super::Context::tags`].
    pub tags: Vec<(&'a str, &'a str)>,
}

impl TopicTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// The mistake, for the author of the template.
    pub fn parse(text: &str) -> Result<TopicTemplate, TopicError> {
        if text.is_empty() {
            return Err(TopicError::Empty);
        }
        let (text, open) = match text.strip_suffix('#') {
            Some("") => {
                return Ok(TopicTemplate {
                    levels: Vec::new(),
                    open: true,
                    many: None,
                });
            }
            Some(head) => (head.strip_suffix('/').ok_or(TopicError::HashNotLast)?, true),
            None => (text, false),
        };
        let mut levels: Vec<Level> = Vec::new();
        let mut many = None;
        for part in text.split('/') {
            let single = part.strip_suffix("#}").map(|head| format!("{head}}}"));
            if single.is_some() && (open || many.replace(levels.len()).is_some()) {
                return Err(TopicError::SeveralTwice);
            }
            let part = single.as_deref().unwrap_or(part);
            let level = Level::parse(part)?;
            if !matches!(level, Level::Literal(_) | Level::Any) && levels.contains(&level) {
                return Err(TopicError::DuplicateName(
                    part.trim_matches(['{', '}']).to_owned(),
                ));
            }
            levels.push(level);
        }
        if levels.iter().filter(|l| matches!(l, Level::Tag(_))).count() > NAMES_MAX {
            return Err(TopicError::TooManyNames);
        }
        Ok(TopicTemplate { levels, open, many })
    }

    /// Matches a topic and captures its values; `None` if it does not match. Allocates only if
    /// there are tags.
    pub fn capture<'a>(&'a self, topic: &'a str) -> Option<Captured<'a>> {
        let mut captured = Captured::default();
        // The number of additional levels for the name that may take several.
        let extra = match self.many {
            Some(_) => (topic.split('/').count()).checked_sub(self.levels.len())?,
            None => 0,
        };
        let mut rest = Some(topic);
        for (i, level) in self.levels.iter().enumerate() {
            let part = next_levels(&mut rest, if self.many == Some(i) { extra } else { 0 })?;
            match level {
                Level::Literal(text) if **text == *part => {}
                Level::Literal(_) => return None,
                Level::Any => {}
                Level::SensorId => captured.sensor_id = Some(part),
                Level::Field => captured.field = Some(part),
                Level::Tag(name) => captured.tags.push((name, part)),
            }
        }
        (self.open || rest.is_none()).then_some(captured)
    }
}

/// Splits the next level, and `more` levels after it, off a topic.
fn next_levels<'a>(rest: &mut Option<&'a str>, more: usize) -> Option<&'a str> {
    let topic = rest.take()?;
    let mut slashes = topic.bytes().enumerate().filter(|(_, byte)| *byte == b'/');
    match slashes.nth(more) {
        Some((at, _)) => {
            *rest = Some(&topic[at + 1..]);
            Some(&topic[..at])
        }
        None => Some(topic),
    }
}

impl Level {
    fn parse(part: &str) -> Result<Level, TopicError> {
        if part == "+" {
            return Ok(Level::Any);
        }
        if let Some(name) = part.strip_prefix('{').and_then(|p| p.strip_suffix('}')) {
            let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
            return match name {
                "sensor_id" => Ok(Level::SensorId),
                "field" => Ok(Level::Field),
                "ts" | "meta" | "_id" => Err(TopicError::ReservedName(name.to_owned())),
                _ if name.is_empty() || name.len() > NAME_MAX_BYTES || !name.bytes().all(good) => {
                    Err(TopicError::BadName(name.to_owned()))
                }
                _ => Ok(Level::Tag(name.into())),
            };
        }
        if part == "#" {
            return Err(TopicError::HashNotLast);
        }
        if part.contains(['+', '#', '{', '}', '\0']) {
            return Err(TopicError::MixedLevel(part.to_owned()));
        }
        Ok(Level::Literal(part.into()))
    }
}

/// Whether a subscription's filter matches a topic. For `$share/group/filter` only the filter
/// counts (MQTT 5.0 §4.8.2).
pub fn filter_matches(filter: &str, topic: &str) -> bool {
    let filter = match filter.strip_prefix("$share/") {
        Some(shared) => match shared.split_once('/') {
            Some((_, filter)) => filter,
            None => return false,
        },
        None => filter,
    };
    // MQTT-4.7.2-1: a wildcard at the start does not match topics that begin with `$`.
    if topic.is_empty() || (topic.starts_with('$') && filter.starts_with(['+', '#'])) {
        return false;
    }
    // By bytes, because it is faster, and each message passes here.
    let is_slash = |byte: &u8| *byte == b'/';
    let mut levels = topic.as_bytes().split(is_slash);
    for part in filter.as_bytes().split(is_slash) {
        if part == b"#" {
            // Also if no level is left: `a/#` matches `a`.
            return true;
        }
        match levels.next() {
            Some(level) if part == b"+" || part == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_extracts_values_from_a_topic() {
        let template = TopicTemplate::parse("sensors/{sensor_id}/{field}").unwrap();
        let captured = template.capture("sensors/S1/temp").unwrap();
        assert_eq!(
            (captured.sensor_id, captured.field, captured.tags.len()),
            (Some("S1"), Some("temp"), 0)
        );
        for topic in [
            "sensors/S1",
            "sensors/S1/temp/x",
            "sensor/S1/temp",
            "",
            "/sensors/S1/temp",
        ] {
            assert_eq!(template.capture(topic), None, "{topic}");
        }
        assert_eq!(
            template.capture("sensors//temp").unwrap().sensor_id,
            Some("")
        );

        let template = TopicTemplate::parse("+/{site}/{sensor_id}/#").unwrap();
        let captured = template.capture("x/north/Kühlschrank Küche").unwrap();
        assert_eq!(
            (captured.sensor_id, captured.field),
            (Some("Kühlschrank Küche"), None)
        );
        assert_eq!(captured.tags, [("site", "north")]);
        assert!(template.capture("x/north/S1/a/b").is_some());
        assert!(template.capture("x/north").is_none());
        assert!(TopicTemplate::parse("#").unwrap().capture("a/b").is_some());
        assert!(
            TopicTemplate::parse("/{sensor_id}")
                .unwrap()
                .capture("/S1")
                .is_some()
        );
    }

    #[test]
    fn one_name_may_take_several_levels() {
        let sensor = |template: &str, topic: &str| {
            let template = TopicTemplate::parse(template).unwrap();
            let found = template.capture(topic)?;
            Some((
                found.sensor_id.unwrap_or("-").to_owned(),
                found.field.unwrap_or("-").to_owned(),
            ))
        };
        let some = |id: &str, field: &str| Some((id.to_owned(), field.to_owned()));
        assert_eq!(
            sensor("z/{sensor_id#}", "z/kitchen/motion"),
            some("kitchen/motion", "-")
        );
        assert_eq!(sensor("z/{sensor_id#}", "z/kitchen"), some("kitchen", "-"));
        assert_eq!(sensor("z/{sensor_id#}", "z"), None);
        assert_eq!(sensor("z/{sensor_id#}", "z/"), some("", "-"));
        assert_eq!(
            sensor("z/{sensor_id#}/{field}", "z/a/b/c"),
            some("a/b", "c")
        );
        assert_eq!(sensor("z/{sensor_id#}/{field}", "z/c"), None);
        assert_eq!(sensor("{sensor_id#}/x/+", "a//b/x/y"), some("a//b", "-"));
        assert_eq!(sensor("{sensor_id#}/x/+", "a/y/b"), None);
        assert_eq!(
            sensor("N/{sensor_id}/{field#}", "N/p/Ac/L1/Power"),
            some("p", "Ac/L1/Power")
        );
        for text in ["{a#}/{b#}", "{a#}/#"] {
            assert_eq!(
                TopicTemplate::parse(text),
                Err(TopicError::SeveralTwice),
                "{text}"
            );
        }
    }

    #[test]
    fn a_wrong_template_says_what_is_wrong() {
        use TopicError::*;
        for (text, error) in [
            ("", Empty),
            ("a/#/b", HashNotLast),
            ("a#", HashNotLast),
            ("a/b+", MixedLevel("b+".into())),
            ("a/x{sensor_id}", MixedLevel("x{sensor_id}".into())),
            ("a/{sensor_id", MixedLevel("{sensor_id".into())),
            ("a/{}", BadName(String::new())),
            ("a/{a.b}", BadName("a.b".into())),
            ("a/{$x}", BadName("$x".into())),
            ("a/{ts}", ReservedName("ts".into())),
            ("{sensor_id}/{sensor_id}", DuplicateName("sensor_id".into())),
            ("{site}/+/{site}", DuplicateName("site".into())),
        ] {
            let result = TopicTemplate::parse(text).unwrap_err();
            assert_eq!(result, error, "{text}");
            assert!(!result.to_string().is_empty());
        }
        let many: Vec<String> = (0..17).map(|i| format!("{{t{i}}}")).collect();
        assert_eq!(TopicTemplate::parse(&many.join("/")), Err(TooManyNames));
    }

    #[test]
    fn filters_match_as_in_the_mqtt_standard() {
        for (filter, topic, matches) in [
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", false),
            ("a/b/c", "a/b", false),
            ("a/+", "a/b", true),
            ("a/+", "a", false),
            ("a/+", "a/", true),
            ("a/+", "a/b/c", false),
            ("+/b", "a/b", true),
            ("+/+", "/finance", true),
            ("/+", "/finance", true),
            ("+", "/finance", false),
            ("#", "a/b/c", true),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("a/#", "ab", false),
            ("#", "$SYS/x", false),
            ("+/x", "$SYS/x", false),
            ("$SYS/#", "$SYS/x", true),
            ("$share/g/a/+", "a/b", true),
            ("$share/g/#", "$SYS/x", false),
            ("$share/g", "g", false),
            ("A", "a", false),
            ("#", "", false),
        ] {
            assert_eq!(filter_matches(filter, topic), matches, "{filter} {topic}");
        }
    }
}
