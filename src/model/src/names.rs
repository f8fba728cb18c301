//! The names of fields and tags as documents have them.

use std::borrow::Cow;

/// The stored name of a field or tag: `.`, NUL and a leading `$` become `_`, the empty name becomes
/// `_`, and `ts`, `meta` and `_id`, which the documents use, get a leading `_`.
pub fn stored_name(raw: &str) -> Cow<'_, str> {
    let reserved = |name: &str| matches!(name, "ts" | "meta" | "_id");
    let bad_char = raw.bytes().any(|b| b == b'.' || b == 0) || raw.starts_with('$');
    if !bad_char && !raw.is_empty() && !reserved(raw) {
        return Cow::Borrowed(raw);
    }
    let mut name: String = raw
        .chars()
        .map(|c| if c == '.' || c == '\0' { '_' } else { c })
        .collect();
    if name.is_empty() || name.starts_with('$') {
        name.replace_range(..name.len().min(1), "_");
    }
    // After replacing characters, because `$id` has become `_id`.
    if reserved(&name) {
        name.insert(0, '_');
    }
    Cow::Owned(name)
}
