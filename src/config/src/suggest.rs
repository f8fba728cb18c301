//! Suggests the key that was probably meant instead of an unknown one.

use strsim::osa_distance;

use super::describe::join;
use super::tree::Origin;

/// Advice for an unknown key, based on the known ones.
pub(super) fn for_key(key: &str, origin: &Origin, known: &[String]) -> String {
    let plain = pattern(key);
    let (section, name) = plain.rsplit_once('.').unwrap_or(("", &plain));
    // Any variable may end in _FILE.
    let stem = match origin {
        Origin::Env(_) => name.strip_suffix("_file").unwrap_or(name),
        Origin::File { .. } => name,
    };
    if let Some(stem) = name
        .strip_suffix("_file")
        .filter(|_| matches!(origin, Origin::File { .. }))
    {
        let target = join(section, stem);
        if known.contains(&target) {
            return format!(
                "`{target}` can be read from a file only through the environment: set {}_FILE",
                variable(&target)
            );
        }
    }
    let same_section = known
        .iter()
        .filter(|k| k.rsplit_once('.').map_or("", |(s, _)| s) == section);
    if let Some(near) = nearest(stem, same_section.map(|k| last(k))) {
        return format!("did you mean `{}`?", with_numbers(key, near, origin));
    }
    if let Some(elsewhere) = known.iter().find(|k| last(k) == stem) {
        return format!("did you mean `{elsewhere}`?");
    }
    let mut sections: Vec<&str> = known
        .iter()
        .filter_map(|k| k.rsplit_once('.'))
        .map(|(s, _)| s)
        .collect();
    sections.dedup();
    // Sections next to the key; a section elsewhere that is written alike is not meant.
    let beside = sections
        .iter()
        .copied()
        .filter(|s| s.rsplit_once('.').map_or("", |(parent, _)| parent) == section);
    if let Some(near) = nearest(&plain, beside) {
        return format!("did you mean the section `{near}`?");
    }
    if let Some(near) = nearest(section, sections.iter().copied()).filter(|near| *near != section) {
        return format!("there is no section `{section}`; did you mean `{near}`?");
    }
    "remove it; the shipped config/hourbucket.toml shows every key".to_owned()
}

/// A key without list indexes: `mqtt[0].url` becomes `mqtt.url`.
pub(super) fn pattern(key: &str) -> String {
    let mut inside = false;
    key.chars()
        .filter(|c| {
            inside |= *c == '[';
            let keep = !inside;
            inside &= *c != ']';
            keep
        })
        .collect()
}

/// The name of the variable that sets a key, of the first element of a list; `None` if only the file
/// can.
pub(super) fn variable_of(key: &str) -> Option<String> {
    // A variable cannot hold a table.
    if key.starts_with("formats.") {
        return None;
    }
    let key = key
        .replace("mqtt.subscriptions.", "mqtt.subscriptions.0.")
        .replace("mqtt.topics.", "mqtt.topics.0.");
    let key = match key.split_once('.') {
        Some((list @ ("mqtt" | "ranges" | "fields"), rest)) => format!("{list}.0.{rest}"),
        _ => key,
    };
    Some(variable(&key))
}

/// The variable that is probably meant by one with single underscores: `HOURBUCKET_STORE__URI` for
/// `HOURBUCKET_STORE_URI`, with its numbers, or 0 if they are missing.
pub(super) fn for_variable(name: &str, known: &[String]) -> Option<String> {
    if let Some(stem) = name.strip_suffix("_FILE")
        && let Some(right) = for_variable(stem, known)
    {
        return Some(right + "_FILE");
    }
    let is_number = |part: &&str| part.parse::<usize>().is_ok();
    let words = |name: &str| -> Vec<String> {
        let parts = name.split('_').filter(|part| !part.is_empty());
        parts
            .filter(|part| !is_number(part))
            .map(str::to_owned)
            .collect()
    };
    let given = words(name);
    let right = known
        .iter()
        .filter_map(|key| variable_of(key))
        .find(|right| words(right) == given)?;
    let mut numbers = name.split('_').filter(is_number);
    let steps: Vec<&str> = right
        .split("__")
        .map(|step| match is_number(&step) {
            true => numbers.next().unwrap_or(step),
            false => step,
        })
        .collect();
    Some(steps.join("__"))
}

/// The name of the variable that sets a key.
fn variable(key: &str) -> String {
    format!("HOURBUCKET_{}", key.to_uppercase().replace('.', "__"))
}

/// Replaces the last part of a key; for a key from the environment, returns the name of the
/// variable.
fn with_numbers(key: &str, name: &str, origin: &Origin) -> String {
    match origin {
        Origin::Env(variable) => {
            let (section, _) = variable.rsplit_once("__").unwrap_or_default();
            format!("{section}__{}", name.to_uppercase())
        }
        Origin::File { .. } => join(
            key.rsplit_once('.').map_or("", |(section, _)| section),
            name,
        ),
    }
}

fn last(key: &str) -> &str {
    key.rsplit_once('.').map_or(key, |(_, name)| name)
}

/// The nearest of `candidates` if it is close enough for a typo: at most a third of the characters
/// differ, or one. A swap of two neighbours counts as one.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A longer word is no typo, and would take long to compare.
    let word: String = word.chars().take(64).collect();
    candidates
        .map(|candidate| (osa_distance(&word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len().min(word.len()) / 3).max(1))
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_named_as_they_are_read() {
        for (path, name) in [
            ("store.uri", Some("HOURBUCKET_STORE__URI")),
            (
                "http.tls.cert_file",
                Some("HOURBUCKET_HTTP__TLS__CERT_FILE"),
            ),
            ("mqtt.url", Some("HOURBUCKET_MQTT__0__URL")),
            (
                "mqtt.subscriptions.qos",
                Some("HOURBUCKET_MQTT__0__SUBSCRIPTIONS__0__QOS"),
            ),
            (
                "listen.mqtt.window",
                Some("HOURBUCKET_LISTEN__MQTT__WINDOW"),
            ),
            (
                "listen.mqtt.topics.filter",
                Some("HOURBUCKET_LISTEN__MQTT__TOPICS__0__FILTER"),
            ),
            ("formats.a.id", None),
        ] {
            assert_eq!(variable_of(path).as_deref(), name);
        }
    }

    #[test]
    fn suggests_the_nearest_key() {
        let known: Vec<String> = [
            "http.listen",
            "http.tokens_file",
            "store.uri",
            "flush.max_age",
            "mqtt.url",
            "mqtt.client_id",
            "formats.a.id",
            "formats.a.rules.skip",
            "formats.json.id",
        ]
        .map(String::from)
        .into();
        let file = Origin::File {
            name: "f".into(),
            line: 1,
        };
        let env = |name: &str| Origin::Env(name.into());
        for (key, origin, advice) in [
            ("http.lisetn", file.clone(), "`http.listen`"),
            ("mqtt[1].clientid", file.clone(), "`mqtt[1].client_id`"),
            ("store.max_age", file.clone(), "`flush.max_age`"),
            ("uri", file.clone(), "`store.uri`"),
            ("htpp", file.clone(), "section `http`"),
            ("store.uri_file", file.clone(), "HOURBUCKET_STORE__URI_FILE"),
            (
                "store.urii",
                env("HOURBUCKET_STORE__URII"),
                "`HOURBUCKET_STORE__URI`",
            ),
            ("stor.uri", env("HOURBUCKET_STOR__URI"), "store.uri"),
            (
                "mqtt[0].ulr",
                env("HOURBUCKET_MQTT__0__ULR"),
                "`HOURBUCKET_MQTT__0__URL`",
            ),
            ("formats.a.rulse", file.clone(), "section `formats.a.rules`"),
            ("formats.a.foo", file.clone(), "remove it"),
            ("http.frobnicate", file, "remove it"),
        ] {
            let found = for_key(key, &origin, &known);
            assert!(found.contains(advice), "{key}: {found}");
        }
    }
}
