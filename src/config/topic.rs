//! Topic filters (MQTT 5 §4.7, the same in 3.1.1) and topic templates, and whether the two can ever meet.
//!
//! A template names the levels of a topic: `sensors/{sensor_id}/{field}`. A level is a text that must be the same, a
//! `{name}` for a whole level (`sensor_id`, `field`, or any other name, which becomes a tag), a `+` for a level that
//! is not used, or at the end a `#` for everything that follows; one name may take several levels, `{sensor_id#}`. `decode::topic` takes topics apart by the same rules;
//! they stand here too because config knows no stage, and a mistake should be told with all the others.

/// MQTT counts the length of a topic in 16 bit.
const TOPIC_MAX_BYTES: usize = 65_535;

/// The longest name in braces, and how many there may be: fewer than a reading's tags, so that the payload's find room.
const NAME_MAX_BYTES: usize = 64;
const NAMES_MAX: usize = 16;
/// Keys of the stored documents, which no tag may have.
const RESERVED: [&str; 3] = ["ts", "meta", "_id"];

/// Why a text is no topic filter.
pub(super) fn check_filter(filter: &str) -> Result<(), String> {
    if let Some(shared) = filter.strip_prefix("$share") {
        // $share/{group}/{filter}, the group without wildcards (MQTT 5 §4.8.2).
        let group = shared.strip_prefix('/').and_then(|rest| rest.split_once('/'));
        match group {
            Some((group, rest)) if !group.is_empty() && !group.contains(['+', '#']) && !rest.is_empty() => {}
            _ if shared.is_empty() || shared.starts_with('/') => {
                return Err("a shared filter is $share/group/filter, the group without + and #".to_owned());
            }
            _ => {}
        }
    }
    let topic = unshared(filter);
    if topic.is_empty() {
        return Err("a filter has at least one character".to_owned());
    }
    if filter.len() > TOPIC_MAX_BYTES || filter.contains('\0') {
        return Err(format!("a filter has up to {TOPIC_MAX_BYTES} bytes and no NUL"));
    }
    let levels: Vec<&str> = topic.split('/').collect();
    for (i, level) in levels.iter().enumerate() {
        if level.contains('#') && (*level != "#" || i + 1 < levels.len()) {
            return Err("# stands alone in the last level".to_owned());
        }
        if level.contains('+') && *level != "+" {
            return Err("+ stands alone in its level".to_owned());
        }
    }
    Ok(())
}

/// Why a text is no topic that something can be published to.
pub(super) fn check_topic(topic: &str) -> Result<(), String> {
    if topic.is_empty() || topic.len() > TOPIC_MAX_BYTES || topic.contains(['+', '#', '\0']) {
        return Err(format!("a topic has 1 to {TOPIC_MAX_BYTES} bytes, without +, # and NUL"));
    }
    Ok(())
}

/// Why a text cannot be the name of a tag that the settings name.
pub(super) fn check_tag_name(name: &str) -> Result<(), String> {
    match name {
        _ if !is_name(name) => Err(format!("`{name}`: a name has 1 to {NAME_MAX_BYTES} letters, digits, _ and -")),
        _ if RESERVED.contains(&name) => Err(format!("`{name}`: the stored documents use this name themselves")),
        _ => Ok(()),
    }
}

/// A filter without `$share/group/`: what the topics themselves look like.
pub(super) fn unshared(filter: &str) -> &str {
    let shared = filter.strip_prefix("$share/").and_then(|rest| rest.split_once('/'));
    shared.map_or(filter, |(_, filter)| filter)
}

/// One level of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level<'a> {
    /// This text.
    Text(&'a str),
    /// Any level, under this name.
    Name(&'a str),
    /// One or more levels, under this name.
    Names(&'a str),
    /// Any level.
    One,
    /// Any number of levels.
    Rest,
}

/// Reads a template, or says why it is none.
pub(super) fn parse_template(template: &str) -> Result<Vec<Level<'_>>, String> {
    if template.is_empty() || template.len() > TOPIC_MAX_BYTES || template.contains('\0') {
        return Err(format!("a template has 1 to {TOPIC_MAX_BYTES} bytes and no NUL"));
    }
    let count = template.split('/').count();
    let mut levels = Vec::with_capacity(count);
    for (i, level) in template.split('/').enumerate() {
        let level = match level {
            "+" => Level::One,
            "#" if i + 1 == count => Level::Rest,
            _ => match level.strip_prefix('{').and_then(|level| level.strip_suffix('}')) {
                Some(name) if RESERVED.contains(&name) => {
                    return Err(format!("`{level}`: the stored documents use this name themselves"));
                }
                Some(name) if is_name(name) => Level::Name(name),
                Some(name) if name.strip_suffix('#').is_some_and(|name| is_name(name) && !RESERVED.contains(&name)) => {
                    Level::Names(name.trim_end_matches('#'))
                }
                Some(_) => {
                    return Err(format!("`{level}`: a name has 1 to {NAME_MAX_BYTES} letters, digits, _ and -"));
                }
                None if level.contains(['{', '}']) => {
                    return Err(format!("`{level}`: a name in braces takes a whole level"));
                }
                None if level.contains(['+', '#']) => {
                    return Err(format!("`{level}`: + stands alone in its level, # alone in the last"));
                }
                None => Level::Text(level),
            },
        };
        if let Level::Name(name) | Level::Names(name) = level
            && (levels.contains(&Level::Name(name)) || levels.contains(&Level::Names(name)))
        {
            return Err(format!("`{{{name}}}` stands in it twice"));
        }
        levels.push(level);
    }
    if levels.iter().filter(|level| matches!(level, Level::Names(_) | Level::Rest)).count() > 1 {
        return Err("only one level can stand for several: one name with # in its braces, or # at the end".to_owned());
    }
    let is_tag = |level: &&Level<'_>| matches!(level, Level::Name(name) | Level::Names(name) if !["sensor_id", "field"].contains(name));
    if levels.iter().filter(is_tag).count() > NAMES_MAX {
        return Err(format!("more than {NAMES_MAX} names"));
    }
    Ok(levels)
}

fn is_name(name: &str) -> bool {
    (1..=NAME_MAX_BYTES).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// Why all devices of a subscription become one sensor: the filter fixes the level of `{sensor_id}`, and a level on which
/// topics do differ is not used.
pub(super) fn merges_sensors(filter: &str, template: &str) -> Option<String> {
    let levels = parse_template(template).ok()?;
    let at = levels.iter().position(|level| *level == Level::Name("sensor_id"))?;
    let filter: Vec<&str> = unshared(filter).split('/').collect();
    let fixed = filter.get(at).filter(|level| !matches!(**level, "+" | "#"))?;
    if filter[..at].contains(&"#") {
        return None;
    }
    let lost = filter.iter().zip(&levels).position(|(f, level)| *f == "+" && *level == Level::One);
    let rest_lost = filter.last() == Some(&"#") && levels.last() == Some(&Level::Rest);
    (lost.is_some() || rest_lost).then(|| {
        format!("{{sensor_id}} is `{fixed}` for every topic of the filter, so all its devices become one sensor")
    })
}

/// Why no topic that the filter lets through fits the template; `None` where one can.
pub(super) fn never_meets(filter: &str, template: &[Level<'_>]) -> Option<String> {
    let filter: Vec<&str> = unshared(filter).split('/').collect();
    let (open_filter, filter) = match filter.split_last() {
        Some((&"#", rest)) => (true, rest),
        _ => (false, &filter[..]),
    };
    // Behind a name that takes several levels it is not known which level is which; only how many there are at least.
    if let Some(at) = template.iter().position(|level| matches!(level, Level::Names(_))) {
        let head = [&template[..at], &[Level::Rest]].concat();
        let too_few = (!open_filter && filter.len() < template.len()).then(|| {
            format!("topics have {} levels by the filter and at least {} by the template", filter.len(), template.len())
        });
        let filter = if open_filter { [filter, &["#"]].concat() } else { filter.to_vec() };
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
            return Some(format!("level {} is `{wanted}` in the filter and `{text}` in the template", i + 1));
        }
    }
    // A trailing # also stands for no level at all: `a/#` lets `a` through.
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
    fn refuses_what_is_no_filter() {
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
        assert_eq!(parse_template("a/{sensor_id#}/{field}").unwrap(), [Text("a"), Names("sensor_id"), Name("field")]);
        for template in ["{a#}/{b#}", "{a#}/#", "{a#}/{a}", "{ts#}", "{#}", "{a##}"] {
            assert!(parse_template(template).is_err(), "{template}");
        }
        for template in ["", "a/{b", "a/x{b}", "{}", "{a b}", "{a}/{a}", "#/a", "a#", "a+", "{ts}", "{_id}"] {
            assert!(parse_template(template).is_err(), "{template}");
        }
        let tags = |n: usize| (0..n).map(|i| format!("{{t-{i}}}/")).collect::<String>() + "{sensor_id}";
        assert!(parse_template(&tags(NAMES_MAX)).is_ok() && parse_template(&tags(NAMES_MAX + 1)).is_err());
    }

    #[test]
    fn sees_where_all_devices_become_one() {
        for (filter, template, merges) in [
            ("sensors/+/+", "sensors/{sensor_id}/{field}", false),
            ("home/+/temp", "{sensor_id}/+/{field}", true),
            ("$share/g/home/#", "{sensor_id}/#", true),
            ("home/+/temp", "{sensor_id}/{room}/{field}", false),
            ("home/temp", "{sensor_id}/{field}", false),
            ("#", "{sensor_id}/#", false),
            ("a/+", "+/#", false),
        ] {
            assert_eq!(merges_sensors(filter, template).is_some(), merges, "{filter} {template}");
        }
    }

    #[test]
    fn knows_what_never_meets() {
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
            assert_eq!(never_meets(filter, &levels).is_none(), meets, "{filter} {template}");
        }
    }
}
