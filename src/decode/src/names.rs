//! Names of fields and tags, and checks that all decoders share. Names that MongoDB cannot store,
//! or that would collide with the documents' own keys, are renamed. Names, ids and texts that are
//! too long are rejected.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Context;
use super::RejectReason;
use super::rejects::Fault;
use super::time::Stamp;
use config::Limits;
use model::batch::BuildError;
use model::fields::BucketFieldsFull;
use model::{BatchBuilder, stored_name};

/// Most tags of a reading, independent of `limits.tags_max`: they are collected on the stack.
pub(super) const TAGS_MAX: usize = 64;
/// A record stores the lengths of a name and of all tags in 8 and 16 bit (see `model::batch`).
const NAME_MAX_BYTES: usize = 255;
const TAGS_MAX_BYTES: usize = 65_535;

/// Names that are stored differently, each once.
#[derive(Debug, Default)]
pub struct Renamed(Mutex<BTreeSet<String>>);

impl Renamed {
    /// Names that are kept; further ones are not noted.
    const NAMES_MAX: usize = 100;

    /// The names as they came. Empties the list.
    pub fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.lock())
    }

    fn note(&self, name: &str) {
        let mut names = self.lock();
        if names.len() < Renamed::NAMES_MAX && !names.contains(name) {
            names.insert(name.to_owned());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stored name of a field or tag; allocates only if it differs.
pub(super) fn name<'n>(raw: &'n str, cx: &Context<'_>) -> Result<Cow<'n, str>, Fault> {
    let name = stored_name(raw);
    let max = bytes_max(cx.limits);
    if name.len() > max {
        return Err(too_long(raw, name.len(), max));
    }
    if let (Cow::Owned(_), Some(renamed)) = (&name, cx.renamed) {
        renamed.note(raw);
    }
    Ok(name)
}

/// The longest name, in bytes.
pub(super) fn bytes_max(limits: &Limits) -> usize {
    limits.name_max_bytes.min(NAME_MAX_BYTES)
}

pub(super) fn too_long(name: &str, bytes: usize, max: usize) -> Fault {
    let detail = format!(
        "the name {} has {bytes} bytes; at most {max} are allowed",
        excerpt(name)
    );
    Fault::new(RejectReason::NameTooLong, detail)
}

/// The same for an owned or longer-lived name, which is returned unchanged unless it must be
/// renamed.
pub(super) fn stored<'n>(raw: Cow<'n, str>, cx: &Context<'_>) -> Result<Cow<'n, str>, Fault> {
    let renamed = match name(&raw, cx)? {
        Cow::Owned(name) => Some(name),
        Cow::Borrowed(_) => None,
    };
    Ok(renamed.map_or(raw, Cow::Owned))
}

/// Adds a tag of a reading in the native format, under its stored name.
pub(super) fn add_tag<'n>(
    tags: &mut Vec<(Cow<'n, str>, Cow<'n, str>)>,
    key: Cow<'n, str>,
    text: Cow<'n, str>,
    cx: &Context<'_>,
) -> Result<(), Fault> {
    check_text(&key, &text, cx.limits)?;
    let key = stored(key, cx)?;
    if tags.iter().any(|(k, _)| *k == key) {
        return Err(Fault::new(
            RejectReason::DuplicateKey,
            format!("duplicate tag {}", excerpt(&key)),
        ));
    }
    let max = cx.limits.tags_max.min(TAGS_MAX);
    if tags.len() >= max {
        return Err(too_many_tags(max));
    }
    tags.push((key, text));
    Ok(())
}

/// Checks the length of a text value or of a tag's value.
pub(super) fn check_text(name: &str, text: &str, limits: &Limits) -> Result<(), Fault> {
    if text.len() <= limits.string_max_bytes {
        return Ok(());
    }
    let max = limits.string_max_bytes;
    let detail = format!(
        "{} has {} bytes; at most {max} are allowed",
        excerpt(name),
        text.len()
    );
    Err(Fault::new(RejectReason::StringTooLong, detail))
}

pub(super) fn check_sensor_id(id: &str, limits: &Limits) -> Result<(), Fault> {
    if id.is_empty() {
        return Err(Fault::new(
            RejectReason::EmptySensorId,
            "sensor_id is empty",
        ));
    }
    if id.len() > limits.sensor_id_max_bytes {
        let max = limits.sensor_id_max_bytes;
        let detail = format!(
            "the sensor id {} has {} bytes; at most {max} are allowed",
            excerpt(id),
            id.len()
        );
        return Err(Fault::new(RejectReason::SensorIdTooLong, detail));
    }
    if id.bytes().any(|b| b == 0) {
        let detail = format!("the sensor id {} contains a NUL", excerpt(id));
        return Err(Fault::new(RejectReason::SensorIdHasNul, detail));
    }
    Ok(())
}

/// What became of a record without a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decoded {
    /// Its reading is committed.
    Committed,
    /// It has no value, so it is no reading; nothing is committed.
    NoValue,
}

/// Commits the current reading with its tags, sorted as the batch requires: the payload's `own`
/// tags (with unique stored names), and tags of the topic that the payload does not have.
pub(super) fn commit(
    out: &mut BatchBuilder,
    sensor_id: &str,
    (ts_ms, origin): Stamp,
    own: &[(Cow<'_, str>, Cow<'_, str>)],
    cx: &Context<'_>,
) -> Result<(), Fault> {
    let mut commit = |tags: &[(&str, &str)]| origin.commit(out, sensor_id, ts_ms, tags);
    // On the stack. Most readings have few tags, and clearing the largest array takes as long as
    // parsing a field.
    let committed = match own.len() + cx.tags.len() {
        0 => commit(&[]),
        1..=8 => commit(gather(own, cx, &mut [("", ""); 8])?),
        _ => commit(gather(own, cx, &mut [("", ""); TAGS_MAX])?),
    };
    committed.map_err(|error| match error {
        BuildError::BucketFieldsFull(BucketFieldsFull { used, new, max }) => {
            let id = excerpt(sensor_id);
            let new_names = if new == 1 { "name" } else { "names" };
            let detail = format!(
                "sensor {id} has {used} distinct field names in this reading's bucket, and this \
                 reading adds {new} {new_names}; at most limits.bucket_fields_max = {max} are \
                 allowed. Put ids and times that change into sensor_id, ts, tags or values, not \
                 into field names"
            );
            Fault::new(RejectReason::BucketFields, detail)
        }
        BuildError::NotAllowed => {
            let detail = format!("the sender may not write the sensor {}", excerpt(sensor_id));
            Fault::new(RejectReason::NotAllowed, detail)
        }
        BuildError::NoTime => {
            let detail = "an import stores only readings with a time of their own, so that it can \
                be repeated; this one has none, or one before limits.unset_before";
            Fault::new(RejectReason::MissingTimestamp, detail)
        }
        BuildError::TagsTooLong => Fault::new(
            RejectReason::TagsTooLong,
            "the tags are too long together with the one \
                that names the sender",
        ),
        BuildError::OutOfRange => Fault::new(RejectReason::OutOfRange, out.refuse_out_of_range()),
        BuildError::BatchFull { bytes_max } => batch_full(bytes_max),
        // Values are added one by one, so these errors were reported there.
        BuildError::DuplicateField | BuildError::TooManyFields | BuildError::TooManyNames => {
            Fault::new(RejectReason::TooManyFields, "too many values")
        }
    })
}

/// The fault of a reading for which the batch has no room.
pub(super) fn batch_full(bytes_max: usize) -> Fault {
    let detail = format!(
        "the decoded readings take more than {bytes_max} bytes, the most that the journal accepts \
         together; send them in several messages, or increase journal.max_bytes"
    );
    Fault::new(RejectReason::PayloadTooLarge, detail)
}

fn gather<'l, 't>(
    own: &'t [(Cow<'_, str>, Cow<'_, str>)],
    cx: &Context<'t>,
    list: &'l mut [(&'t str, &'t str)],
) -> Result<&'l [(&'t str, &'t str)], Fault> {
    let max = cx.limits.tags_max.min(list.len());
    let mut len = 0;
    let mut bytes = 0;
    let own = own.iter().map(|(key, value)| (&**key, &**value, true));
    for (key, value, is_own) in own.chain(cx.tags.iter().map(|(key, value)| (*key, *value, false)))
    {
        if !is_own {
            if list[..len].iter().any(|(k, _)| *k == key) {
                continue;
            }
            check_text(key, value, cx.limits)?;
        }
        if len >= max {
            return Err(too_many_tags(max));
        }
        list[len] = (key, value);
        len += 1;
        bytes += 3 + key.len() + value.len();
    }
    if bytes > TAGS_MAX_BYTES {
        let detail =
            format!("the tags have {bytes} bytes in total; at most {TAGS_MAX_BYTES} are allowed");
        return Err(Fault::new(RejectReason::TagsTooLong, detail));
    }
    list[..len].sort_unstable();
    Ok(&list[..len])
}

pub(super) fn too_many_tags(max: usize) -> Fault {
    Fault::new(RejectReason::TooManyTags, format!("more than {max} tags"))
}

/// A text for a detail: quoted, cut after 40 characters, with control characters as symbols
/// (U+2400). Nothing is escaped, because the output that shows it does that.
pub(super) fn excerpt(text: &str) -> String {
    let mut chars = text.chars();
    let symbol = |c: char| match c {
        '\0'..='\x1f' => char::from_u32(0x2400 + c as u32).unwrap_or(c),
        '\x7f' => '\u{2421}',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    let head: String = chars.by_ref().take(40).map(symbol).collect();
    if chars.next().is_some() {
        format!("`{head}…`")
    } else {
        format!("`{head}`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_store_cannot_hold_are_renamed() {
        let renamed = Renamed::default();
        let cx = Context {
            renamed: Some(&renamed),
            ..Context::usual()
        };
        for (raw, stored) in [
            ("temp", "temp"),
            ("a.b", "a_b"),
            ("a\0b", "a_b"),
            ("$where", "_where"),
            ("a$", "a$"),
            ("$", "_"),
            ("", "_"),
            (" ", " "),
            (".", "_"),
            ("ts", "_ts"),
            ("meta", "_meta"),
            ("_id", "__id"),
            ("$id", "__id"),
            (".id", "__id"),
            ("ü.ü", "ü_ü"),
            ("__proto__", "__proto__"),
        ] {
            assert_eq!(name(raw, &cx).unwrap(), stored, "{raw:?}");
            assert_eq!(renamed.take().contains(raw), raw != stored, "{raw:?}");
        }
        assert!(name(&"k".repeat(128), &cx).is_ok());
        assert_eq!(
            name(&"k".repeat(129), &cx).unwrap_err().reason,
            RejectReason::NameTooLong
        );
    }
}
