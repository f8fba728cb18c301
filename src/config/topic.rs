//! Topic filters (MQTT 5 §4.7, the same in 3.1.1) and topic templates, and whether the two can ever meet.
//!
//! A template names the levels of a topic: `sensors/{sensor_id}/{field}`. A level is a text that must be the same, a
//! `{name}` for a whole level (`sensor_id`, `field`, or any other name, which becomes a tag), a `+` for a level that
//! is not used, or at the end a `#` for everything that follows.

/// MQTT counts the length of a topic in 16 bit.
const TOPIC_MAX_BYTES: usize = 65_535;

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
                Some(name) if is_name(name) => Level::Name(name),
                Some(_) => return Err(format!("`{level}`: a name has letters, digits and _ only")),
                None if level.contains(['{', '}']) => {
                    return Err(format!("`{level}`: a name in braces takes a whole level"));
                }
                None if level.contains(['+', '#']) => {
                    return Err(format!("`{level}`: + stands alone in its level, # alone in the last"));
                }
                None => Level::Text(level),
            },
        };
        if matches!(level, Level::Name(name) if levels.contains(&Level::Name(name))) {
            return Err(format!("`{{{}}}` stands in it twice", name_of(level)));
        }
        levels.push(level);
    }
    Ok(levels)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn name_of(level: Level<'_>) -> &str {
    if let Level::Name(name) = level { name } else { "" }
}

/// Why no topic that the filter lets through fits the template; `None` where one can.
pub(super) fn never_meets(filter: &str, template: &[Level<'_>]) -> Option<String> {
    let filter: Vec<&str> = unshared(filter).split('/').collect();
    let (open_filter, filter) = match filter.split_last() {
        Some((&"#", rest)) => (true, rest),
        _ => (false, &filter[..]),
    };
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
        use Level::{Name, One, Rest, Text};
        assert_eq!(
            parse_template("sensors/{sensor_id}/+/{field}/#").unwrap(),
            [Text("sensors"), Name("sensor_id"), One, Name("field"), Rest]
        );
        for template in ["", "a/{b", "a/x{b}", "{}", "{a b}", "{a}/{a}", "#/a", "a#", "a+"] {
            assert!(parse_template(template).is_err(), "{template}");
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
        ] {
            let levels = parse_template(template).unwrap();
            assert_eq!(never_meets(filter, &levels).is_none(), meets, "{filter} {template}");
        }
    }
}
