//! What a header of CSV may say about its column, as `hourbucket export` writes it: an annotation
//! behind the name, as in InfluxDB's extended annotated CSV.

/// The column has a tag.
pub(in crate::cli) const TAG: &str = "|tag";
/// The column has texts, whatever they look like; a backslash in front of one is not part of it.
pub(in crate::cli) const STRING: &str = "|string";
/// The column has values as other columns, but its name could be mistaken.
pub(in crate::cli) const VALUE: &str = "|value";

/// The name without its annotation, and the annotation; empty if it has none.
pub(super) fn split(name: &str) -> (&str, &'static str) {
    for annotation in [TAG, STRING, VALUE] {
        if let Some(name) = name.strip_suffix(annotation) {
            return (name, annotation);
        }
    }
    (name, "")
}

/// Whether a field needs no annotation.
pub(in crate::cli) fn is_plain(name: &str) -> bool {
    !name.contains('|') && name == name.trim() && !matches!(name, "" | "sensor_id" | "ts")
}
