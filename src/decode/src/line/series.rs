//! The sensor's id of a series: measurement and tags as one text, with escapes, so that two series
//! never become one sensor.

use std::borrow::Cow;

/// Characters that are escaped with `\` in a sensor's id.
const ID_ESCAPED: [char; 3] = ['\\', ',', '='];

/// Writes a series as a sensor's id.
pub(crate) fn write_id(id: &mut String, measurement: &str, tags: &[(Cow<'_, str>, Cow<'_, str>)]) {
    id.clear();
    push_escaped(id, measurement);
    for (key, value) in tags {
        id.push(',');
        push_escaped(id, key);
        id.push('=');
        push_escaped(id, value);
    }
}

/// Appends a name to a sensor's id.
pub(super) fn push_escaped(id: &mut String, text: &str) {
    if !text.contains(ID_ESCAPED) {
        return id.push_str(text);
    }
    for c in text.chars() {
        if ID_ESCAPED.contains(&c) {
            id.push('\\');
        }
        id.push(c);
    }
}
