//! Reads `[formats.NAME]`: first its own keys, which apply to every rule, then the rules.

use std::sync::Arc;

use super::super::declare::Settings;
use super::super::formats::FORMATS;
use super::super::reader::{Bad, Reader, Report};
use super::super::tree::{Entries, Raw};
use super::place::Place;
use super::{FORMATS_MAX, Mapping, RULES_MAX, Rule, Values};

/// Reads every format.
pub(crate) fn read_formats(root: &mut Reader<'_>) -> Vec<Arc<Mapping>> {
    let found = root.named("formats");
    if found.len() > FORMATS_MAX {
        root.report.bad(
            "formats",
            Bad::new(
                format!("more than {FORMATS_MAX} formats"),
                "remove unused ones",
            ),
        );
        return Vec::new();
    }
    found
        .into_iter()
        .map(|(name, path, entries)| Arc::new(mapping(&name, path, entries, root.report)))
        .collect()
}

fn mapping(name: &str, path: String, entries: Entries, report: &mut Report) -> Mapping {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if name.is_empty() || name.len() > 64 || !name.bytes().all(good) {
        let advice = "use 1 to 64 letters, digits, _ and -";
        report.bad(
            &path,
            Bad::new(format!("`{name}` is not a valid name of a format"), advice),
        );
    } else if FORMATS.contains(&name) {
        report.bad(
            &path,
            Bad::new(
                format!("`{name}` is a built-in format"),
                "choose another name",
            ),
        );
    }
    let text = dump(&path, &entries);
    let mut s = Reader::new(path.clone(), entries, report);
    let mut defaults = Rule::default();
    defaults.visit(&mut s);
    let found = s.sections("rules");
    if found.len() > RULES_MAX {
        let key = s.path_of("rules");
        s.report.bad(
            &key,
            Bad::new(
                format!("more than {RULES_MAX} rules"),
                "split them into several formats",
            ),
        );
    }
    let mut rules = Vec::with_capacity(found.len().max(1));
    let mut takes_all: Option<usize> = None;
    let has_no_rules = found.is_empty();
    for (i, (path, entries)) in found.into_iter().take(RULES_MAX).enumerate() {
        let mut rule = defaults.clone();
        Reader::read(path.clone(), entries, s.report, &mut |reader| {
            rule.visit(reader)
        });
        check(&path, &rule, s.report);
        if let Some(first) = takes_all {
            let what = format!(
                "never reached: rule {first} matches every message, because it has no topic and no \
                 condition"
            );
            s.report
                .impossible(&[&path], what, "move it before that rule");
        }
        if rule.topics.is_empty() && rule.when.is_empty() {
            takes_all.get_or_insert(i);
        }
        rules.push(rule);
    }
    if has_no_rules {
        check(&path, &defaults, s.report);
        rules.push(defaults);
    }
    s.end();
    Mapping {
        name: name.to_owned(),
        rules,
        text,
    }
}

impl Values {
    /// The whole record: the place without steps.
    pub(super) fn whole_record() -> Values {
        Values::At(vec![Place {
            from_message: false,
            steps: Vec::new(),
        }])
    }
}

/// Reports impossible combinations within a rule.
fn check(path: &str, rule: &Rule, report: &mut Report) {
    let key = |name: &str| format!("{path}.{name}");
    let from_message = |place: &Place| place.from_message;
    if let Values::At(places) = &rule.values
        && places.iter().any(from_message)
        && !rule.each.is_empty()
    {
        report.impossible(
            &[&key("values")],
            "a place that begins with $ is the same for every record, but each record has its own \
             values",
            "write a place inside the record, which begins with /, or a table of names and places",
        );
    }
}

/// Formats a mapping as TOML, with rules as sections.
fn dump(path: &str, entries: &Entries) -> String {
    let mut text = format!("[{path}]\n");
    let (rules, keys): (Vec<_>, Vec<_>) = entries.iter().partition(|(key, _)| *key == "rules");
    for (key, node) in keys {
        text += &format!("{key} = {}\n", node.to_toml());
    }
    for (_, node) in rules {
        let Raw::List(items) = &node.value else {
            continue;
        };
        for item in items {
            let Raw::Table(entries) = &item.value else {
                continue;
            };
            text += &format!("\n[[{path}.rules]]\n");
            for (key, node) in entries {
                text += &format!("{key} = {}\n", node.to_toml());
            }
        }
    }
    text
}
