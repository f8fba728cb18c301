//! Topic filters (MQTT 5 §4.7, the same in 3.1.1) and topic templates, and whether the two can
//! match the same topic.
//!
//! A template names the levels of a topic: `sensors/{sensor_id}/{field}`. A level is a text to
//! compare with, a `{name}` for a whole level (`sensor_id`, `field`, or any other name, which
//! becomes a tag), a `+` for a level to ignore, or at the end a `#` for all remaining levels. One
//! name may take several levels: `{sensor_id#}`.
//!
//! `decode::topic` parses topics by the same rules. They are repeated here because config must not
//! depend on a stage, and because these mistakes should be reported together with all others.

/// MQTT stores the length of a topic in 16 bit.
const TOPIC_MAX_BYTES: usize = 65_535;

/// Limits for names in braces. The number is below the limit on a reading's tags, so that tags of
/// the payload fit as well.
const NAME_MAX_BYTES: usize = 64;
const NAMES_MAX: usize = 16;
/// Keys of the stored documents, which cannot be names of tags.
const RESERVED: [&str; 3] = ["ts", "meta", "_id"];

/// Why a text is not a topic filter, a topic, a topic template or the name of a tag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidTopic {
    #[error("a shared filter has the form $share/group/filter, with no + or # in the group")]
    SharedFilter,
    #[error("a filter must not be empty")]
    EmptyFilter,
    #[error("a filter must have at most {TOPIC_MAX_BYTES} bytes and no NUL")]
    FilterBytes,
    #[error("# must be the whole last level")]
    FilterHash,
    #[error("+ must be a whole level")]
    FilterPlus,
    #[error("a topic must have 1 to {TOPIC_MAX_BYTES} bytes, without +, # and NUL")]
    Topic,
    #[error("a template must have 1 to {TOPIC_MAX_BYTES} bytes and no NUL")]
    TemplateBytes,
    #[error("`{0}`: a name must have 1 to {NAME_MAX_BYTES} letters, digits, _ and -")]
    Name(String),
    #[error("`{0}`: reserved: the stored documents use this name")]
    Reserved(String),
    #[error("`{0}`: a name in braces must be a whole level")]
    PartOfLevel(String),
    #[error("`{0}`: + must be a whole level, # the whole last level")]
    Wildcard(String),
    #[error("`{{{0}}}` occurs twice")]
    Repeated(String),
    #[error(
        "only one part can match several levels: one name with # in its braces, or # at the end"
    )]
    SeveralOpen,
    #[error("more than {NAMES_MAX} names")]
    TooManyNames,
}

/// Whether a text is a topic filter: of at least one character, with wildcards only where they may
/// be, and with a group if it is shared (MQTT 5 §4.7, §4.8.2).
pub fn is_topic_filter(text: &str) -> bool {
    check_filter(text).is_ok()
}

pub(super) fn check_filter(filter: &str) -> Result<(), InvalidTopic> {
    if let Some(shared) = filter.strip_prefix("$share") {
        // $share/{group}/{filter}, the group without wildcards (MQTT 5 §4.8.2).
        let group = shared
            .strip_prefix('/')
            .and_then(|rest| rest.split_once('/'));
        match group {
            Some((group, rest))
                if !group.is_empty() && !group.contains(['+', '#']) && !rest.is_empty() => {}
            _ if shared.is_empty() || shared.starts_with('/') => {
                return Err(InvalidTopic::SharedFilter);
            }
            _ => {}
        }
    }
    let topic = unshared(filter);
    if topic.is_empty() {
        return Err(InvalidTopic::EmptyFilter);
    }
    if filter.len() > TOPIC_MAX_BYTES || filter.contains('\0') {
        return Err(InvalidTopic::FilterBytes);
    }
    let levels: Vec<&str> = topic.split('/').collect();
    for (i, level) in levels.iter().enumerate() {
        if level.contains('#') && (*level != "#" || i + 1 < levels.len()) {
            return Err(InvalidTopic::FilterHash);
        }
        if level.contains('+') && *level != "+" {
            return Err(InvalidTopic::FilterPlus);
        }
    }
    Ok(())
}

/// Checks a topic that can be published to.
pub(super) fn check_topic(topic: &str) -> Result<(), InvalidTopic> {
    if topic.is_empty() || topic.len() > TOPIC_MAX_BYTES || topic.contains(['+', '#', '\0']) {
        return Err(InvalidTopic::Topic);
    }
    Ok(())
}

pub(super) fn check_tag_name(name: &str) -> Result<(), InvalidTopic> {
    match name {
        _ if !is_name(name) => Err(InvalidTopic::Name(name.to_owned())),
        _ if RESERVED.contains(&name) => Err(InvalidTopic::Reserved(name.to_owned())),
        _ => Ok(()),
    }
}

/// A filter without `$share/group/`, as it is compared with topics.
pub(super) fn unshared(filter: &str) -> &str {
    let shared = filter
        .strip_prefix("$share/")
        .and_then(|rest| rest.split_once('/'));
    shared.map_or(filter, |(_, filter)| filter)
}

/// Whether there is a topic that matches both filters.
pub(super) fn overlap(a: &str, b: &str) -> bool {
    let mut a = unshared(a).split('/');
    let mut b = unshared(b).split('/');
    // A filter that starts with a wildcard matches no topic that starts with $ (MQTT 5 §4.7.2).
    let mut is_first = true;
    loop {
        let is_hidden = |level: &str| is_first && level.starts_with('$');
        match (a.next(), b.next()) {
            (None, None) => return true,
            // Also matches no further level.
            (Some("#"), other) | (other, Some("#")) => return !other.is_some_and(is_hidden),
            (Some("+"), Some(level)) | (Some(level), Some("+")) if !is_hidden(level) => {}
            (Some(a), Some(b)) if a == b => {}
            _ => return false,
        }
        is_first = false;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level<'a> {
    /// Exactly this text.
    Text(&'a str),
    /// Any level, captured under this name.
    Name(&'a str),
    /// One or more levels, captured under this name.
    Names(&'a str),
    /// Any level.
    One,
    /// Any number of levels, including none.
    Rest,
}

pub(super) fn parse_template(template: &str) -> Result<Vec<Level<'_>>, InvalidTopic> {
    if template.is_empty() || template.len() > TOPIC_MAX_BYTES || template.contains('\0') {
        return Err(InvalidTopic::TemplateBytes);
    }
    let count = template.split('/').count();
    let mut levels = Vec::with_capacity(count);
    for (i, level) in template.split('/').enumerate() {
        let level = match level {
            "+" => Level::One,
            "#" if i + 1 == count => Level::Rest,
            _ => match level
                .strip_prefix('{')
                .and_then(|level| level.strip_suffix('}'))
            {
                Some(name) if RESERVED.contains(&name) => {
                    return Err(InvalidTopic::Reserved(level.to_owned()));
                }
                Some(name) if is_name(name) => Level::Name(name),
                Some(name)
                    if name
                        .strip_suffix('#')
                        .is_some_and(|name| is_name(name) && !RESERVED.contains(&name)) =>
                {
                    Level::Names(name.trim_end_matches('#'))
                }
                Some(_) => return Err(InvalidTopic::Name(level.to_owned())),
                None if level.contains(['{', '}']) => {
                    return Err(InvalidTopic::PartOfLevel(level.to_owned()));
                }
                None if level.contains(['+', '#']) => {
                    return Err(InvalidTopic::Wildcard(level.to_owned()));
                }
                None => Level::Text(level),
            },
        };
        if let Level::Name(name) | Level::Names(name) = level
            && (levels.contains(&Level::Name(name)) || levels.contains(&Level::Names(name)))
        {
            return Err(InvalidTopic::Repeated(name.to_owned()));
        }
        levels.push(level);
    }
    if levels
        .iter()
        .filter(|level| matches!(level, Level::Names(_) | Level::Rest))
        .count()
        > 1
    {
        return Err(InvalidTopic::SeveralOpen);
    }
    let is_tag = |level: &&Level<'_>| matches!(level, Level::Name(name) | Level::Names(name) if !["sensor_id", "field"].contains(name));
    if levels.iter().filter(is_tag).count() > NAMES_MAX {
        return Err(InvalidTopic::TooManyNames);
    }
    Ok(levels)
}

fn is_name(name: &str) -> bool {
    (1..=NAME_MAX_BYTES).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// Why all devices of a subscription become one sensor: the filter fixes the level of
/// `{sensor_id}`, and the template ignores a level in which topics differ.
pub(super) fn merges_sensors(filter: &str, template: &str) -> Option<String> {
    let levels = parse_template(template).ok()?;
    let at = levels
        .iter()
        .position(|level| *level == Level::Name("sensor_id"))?;
    let filter: Vec<&str> = unshared(filter).split('/').collect();
    let fixed = filter
        .get(at)
        .filter(|level| !matches!(**level, "+" | "#"))?;
    if filter[..at].contains(&"#") {
        return None;
    }
    let lost = filter
        .iter()
        .zip(&levels)
        .position(|(f, level)| *f == "+" && *level == Level::One);
    let rest_lost = filter.last() == Some(&"#") && levels.last() == Some(&Level::Rest);
    (lost.is_some() || rest_lost).then(|| {
        format!(
            "{{sensor_id}} is `{fixed}` for every topic of the filter, so all its devices \
            become one sensor"
        )
    })
}

/// Why no topic that matches the filter can match the template; `None` if one can.
pub(super) fn never_meets(filter: &str, template: &[Level<'_>]) -> Option<String> {
    let filter: Vec<&str> = unshared(filter).split('/').collect();
    let (open_filter, filter) = match filter.split_last() {
        Some((&"#", rest)) => (true, rest),
        _ => (false, &filter[..]),
    };
    // After a name that takes several levels, the position of a level is unknown; only the minimum
    // number of levels is known.
    if let Some(at) = template
        .iter()
        .position(|level| matches!(level, Level::Names(_)))
    {
        let head = [&template[..at], &[Level::Rest]].concat();
        let too_few = (!open_filter && filter.len() < template.len()).then(|| {
            format!(
                "topics have {} levels by the filter and at least {} by the template",
                filter.len(),
                template.len()
            )
        });
        let filter = if open_filter {
            [filter, &["#"]].concat()
        } else {
            filter.to_vec()
        };
        return never_meets(&filter.join("/"), &head).or(too_few);
    }
    let (open_template, template) = match template.split_last() {
        Some((Level::Rest, rest)) => (true, rest),
        _ => (false, template),
    };
    for (i, (wanted, level)) in filter.iter().zip(template).enumerate() {
        if let Level::Text(text) = level
            && *wanted != "+"
            && wanted != text
        {
            return Some(format!(
                "level {} is `{wanted}` in the filter and `{text}` in the template",
                i + 1
            ));
        }
    }
    // A trailing # also matches zero levels: `a/#` matches `a`.
    let too_short = template.len() < filter.len() && !open_template;
    let too_long = template.len() > filter.len() && !open_filter;
    (too_short || too_long).then(|| {
        let beyond = |open: bool| if open { " or more" } else { "" };
        format!(
            "topics have {}{} levels by the filter and {}{} by the template",
            filter.len(),
            beyond(open_filter),
            template.len(),
            beyond(open_template)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_filters() {
        for filter in [
            "sensors/+/+",
            "#",
            "+",
            "/",
            "a//b",
            "sensors/#",
            "$share/g/sensors/+",
            "$share/g//x",
            "$SYS/#",
            "$shared/x",
        ] {
            assert_eq!(check_filter(filter), Ok(()), "{filter}");
        }
    }

    #[test]
    fn refuses_invalid_filters() {
        for filter in [
            "",
            "a/#/b",
            "a#",
            "#/a",
            "a/b+",
            "+a",
            "$share",
            "$share/",
            "$share/g",
            "$share/g/",
            "$share//a",
            "$share/g+/a",
            "$share/#/a",
            "$share/g/a/#/b",
            "a\0",
        ] {
            assert!(check_filter(filter).is_err(), "{filter}");
        }
    }

    #[test]
    fn reads_templates() {
        use Level::{Name, Names, One, Rest, Text};
        assert_eq!(
            parse_template("sensors/{sensor_id}/+/{field}/#").unwrap(),
            [Text("sensors"), Name("sensor_id"), One, Name("field"), Rest]
        );
        assert_eq!(
            parse_template("a/{sensor_id#}/{field}").unwrap(),
            [Text("a"), Names("sensor_id"), Name("field")]
        );
        for template in ["{a#}/{b#}", "{a#}/#", "{a#}/{a}", "{ts#}", "{#}", "{a##}"] {
            assert!(parse_template(template).is_err(), "{template}");
        }
        for template in [
            "", "a/{b", "a/x{b}", "{}", "{a b}", "{a}/{a}", "#/a", "a#", "a+", "{ts}", "{_id}",
        ] {
            assert!(parse_template(template).is_err(), "{template}");
        }
        let tags =
            |n: usize| (0..n).map(|i| format!("{{t-{i}}}/")).collect::<String>() + "{sensor_id}";
        assert!(
            parse_template(&tags(NAMES_MAX)).is_ok()
                && parse_template(&tags(NAMES_MAX + 1)).is_err()
        );
    }

    #[test]
    fn finds_rules_that_give_all_devices_one_id() {
        for (filter, template, merges) in [
            ("sensors/+/+", "sensors/{sensor_id}/{field}", false),
            ("home/+/temp", "{sensor_id}/+/{field}", true),
            ("$share/g/home/#", "{sensor_id}/#", true),
            ("home/+/temp", "{sensor_id}/{room}/{field}", false),
            ("home/temp", "{sensor_id}/{field}", false),
            ("#", "{sensor_id}/#", false),
            ("a/+", "+/#", false),
        ] {
            assert_eq!(
                merges_sensors(filter, template).is_some(),
                merges,
                "{filter} {template}"
            );
        }
    }

    #[test]
    fn finds_filters_that_match_the_same_topic() {
        for (a, b, expected) in [
            ("a/+", "a/b", true),
            ("a/+", "+/b", true),
            ("a/+", "b/+", false),
            ("a/+", "a/+/c", false),
            ("a/#", "a", true),
            ("a/#", "a/b/c", true),
            ("a/b/#", "a/+", true),
            ("a/b/#", "a", false),
            ("a/b/#", "a/c/#", false),
            ("#", "+/x", true),
            ("$share/g/a/+", "$share/h/+/b", true),
            ("$share/g/a/+", "b/+", false),
            ("#", "$SYS/#", false),
            ("+/x", "$SYS/x", false),
            ("$SYS/#", "$SYS/x", true),
            ("a/+", "a/$x", true),
        ] {
            assert_eq!(overlap(a, b), expected, "{a} {b}");
            assert_eq!(overlap(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn finds_filters_and_templates_that_never_match() {
        for (filter, template, meets) in [
            ("sensors/+/+", "sensors/{sensor_id}/{field}", true),
            ("$share/g/sensors/+/+", "sensors/{sensor_id}/{field}", true),
            ("sensors/#", "sensors/{sensor_id}/{field}", true),
            ("sensors/#", "sensors", true),
            ("sensors/+/temp", "sensors/{sensor_id}/{field}", true),
            ("sensors/+", "sensors/{sensor_id}/#", true),
            ("#", "{sensor_id}", true),
            ("a/b/#", "a/#", true),
            ("sensors/+/+", "sensor/{sensor_id}/{field}", false),
            ("sensors/+", "sensors/{sensor_id}/{field}", false),
            ("sensors/+/+", "sensors/{sensor_id}", false),
            ("a/b/#", "a", false),
            ("a", "a/b/#", false),
            ("z/#", "z/{sensor_id#}", true),
            ("z/+/+", "z/{sensor_id#}", true),
            ("z/+/+", "z/{sensor_id#}/{field}", true),
            ("z/+", "z/{sensor_id#}/{field}", false),
            ("y/#", "z/{sensor_id#}", false),
        ] {
            let levels = parse_template(template).unwrap();
            assert_eq!(
                never_meets(filter, &levels).is_none(),
                meets,
                "{filter} {template}"
            );
        }
    }
}
