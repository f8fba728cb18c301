//! Templates: the fast path for readings that have the same layout as an earlier one of the
//! payload.
//!
//! A program writes the lines of a gateway: they have the same keys in the same order, and only
//! ids, times and values differ. A *template* holds the literal parts of a reading and the slots
//! between them. The next reading is compared with it, part by part, and its values go directly
//! into the batch under the same field schema. No key is parsed, looked up or checked again, which
//! takes a quarter of the time.
//!
//! If anything differs (another key, an escape, other white space, a value in an unusual notation),
//! the template does not match, and the reading is decoded in full. So a template never rejects a
//! reading, and its readings are exactly the decoder's result: `decode_props`
//! compares the two.
//!
//! A gateway with two kinds of devices sends two kinds of lines, often alternating. So a few
//! templates are kept, and each remembers which one followed it. A payload whose readings keep
//! differing is soon decoded without comparing.

use config::Limits;

/// Templates kept for one payload.
const TEMPLATES_MAX: usize = 4;
/// Consecutive misses after which the readings of a payload are no longer compared.
const MISSES_MAX: u32 = 32;
/// Slots of a template; readings with more are decoded in full.
const SLOTS_MAX: usize = 64;
/// Tags of a template; readings with more are decoded in full.
pub(super) const TAGS_MAX: usize = 8;

/// The literal parts of a reading and the slots between them.
#[derive(Debug)]
pub(super) struct Parts<S> {
    /// All literal parts, concatenated.
    literals: Vec<u8>,
    /// The end of each part in `literals`, and the slot after it.
    slots: Vec<(u32, S)>,
}

impl<S> Default for Parts<S> {
    fn default() -> Parts<S> {
        Parts {
            literals: Vec::new(),
            slots: Vec::new(),
        }
    }
}

impl<S> Parts<S> {
    /// Adds a literal part and the slot after it; `None` if there are too many.
    pub(super) fn push(&mut self, literal: &[u8], slot: S) -> Option<()> {
        self.literals.extend_from_slice(literal);
        self.slots.push((self.literals.len() as u32, slot));
        (self.slots.len() <= SLOTS_MAX).then_some(())
    }

    /// The number of slots so far.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn slots_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.slots.iter_mut().map(|(_, slot)| slot)
    }

    /// Each literal part with the slot after it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &S)> {
        let mut from = 0;
        self.slots.iter().map(move |(to, slot)| {
            let literal = &self.literals[from..*to as usize];
            from = *to as usize;
            (literal, slot)
        })
    }
}

/// The longest text of a tag, independent of `limits.string_max_bytes`. It keeps the sum of all
/// tags within its limit.
const TAG_TEXT_BYTES_MAX: usize = 4096;

/// The stored tags of a reading: fills in the keys next to the texts in `tags`, which are in the
/// order of `keys`. `None` if a text may be too long.
pub(super) fn keyed<'l, 't>(
    tags: &'l mut [(&'t str, &'t str)],
    keys: &'t [Box<str>],
    limits: &Limits,
) -> Option<&'l [(&'t str, &'t str)]> {
    let tags = &mut tags[..keys.len()];
    for ((key, text), of_template) in tags.iter_mut().zip(keys) {
        *key = of_template;
        if text.len() > limits.string_max_bytes.min(TAG_TEXT_BYTES_MAX) {
            return None;
        }
    }
    Some(tags)
}

/// The end of `literal` in `bytes` if it is found at `at`. The parts have about ten bytes:
/// comparing them by words is faster than calling memcmp for each.
#[inline]
pub(super) fn literal_end(bytes: &[u8], at: usize, literal: &[u8]) -> Option<usize> {
    let end = at + literal.len();
    let there = bytes.get(at..end)?;
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    let same = match (literal.last_chunk::<8>(), there.last_chunk::<8>()) {
        (Some(a), Some(b)) => {
            let mut rest = literal;
            let mut rest_there = there;
            let mut same = word(a) == word(b);
            while let (Some((a, more)), Some((b, more_there))) = (
                rest.split_first_chunk::<8>(),
                rest_there.split_first_chunk::<8>(),
            ) {
                same &= word(a) == word(b);
                (rest, rest_there) = (more, more_there);
            }
            same
        }
        _ => (0..literal.len()).all(|i| literal[i] == there[i]),
    };
    same.then_some(end)
}

#[derive(Debug)]
pub(super) struct Templates<M> {
    /// Each template with the index of the one that followed it the last time.
    templates: Vec<(M, usize)>,
    /// The template of the previous reading.
    last: usize,
    /// The template to replace next.
    oldest: usize,
    misses: u32,
}

impl<M> Default for Templates<M> {
    fn default() -> Templates<M> {
        Templates {
            templates: Vec::new(),
            last: 0,
            oldest: 0,
            misses: 0,
        }
    }
}

impl<M> Templates<M> {
    /// Returns the result of `fill` for the first template that matches. Tries the likely one
    /// first.
    pub(super) fn find<T>(&mut self, mut fill: impl FnMut(&M) -> Option<T>) -> Option<T> {
        if self.misses >= MISSES_MAX {
            return None;
        }
        let guess = self.templates.get(self.last)?.1;
        let others = (0..self.templates.len()).filter(|i| *i != guess);
        for i in std::iter::once(guess).chain(others) {
            if let Some(found) = self
                .templates
                .get(i)
                .and_then(|(template, _)| fill(template))
            {
                self.came(i);
                self.misses = 0;
                return Some(found);
            }
        }
        self.misses += 1;
        None
    }

    /// Whether learning another template is worthwhile.
    pub(super) fn learns(&self) -> bool {
        self.misses < MISSES_MAX
    }

    /// Stops comparing readings of this payload.
    pub(super) fn give_up(&mut self) {
        self.misses = MISSES_MAX;
    }

    /// Keeps the template of a reading; `None` if the reading has none.
    pub(super) fn learn(&mut self, template: Option<M>) {
        let Some(template) = template else {
            self.misses += 1;
            return;
        };
        let at = if self.templates.len() < TEMPLATES_MAX {
            self.templates.len()
        } else {
            self.oldest = (self.oldest + 1) % TEMPLATES_MAX;
            self.oldest
        };
        match self.templates.get_mut(at) {
            Some(place) => *place = (template, at),
            None => self.templates.push((template, at)),
        }
        self.came(at);
    }

    fn came(&mut self, i: usize) {
        if let Some((_, next)) = self.templates.get_mut(self.last) {
            *next = i;
        }
        self.last = i;
    }
}

#[cfg(test)]
mod tests {
    use super::literal_end;

    #[test]
    fn a_literal_matches_only_if_all_its_bytes_match() {
        let text = b"readings,sensor_id=truck_000017_diag,fleet=South fuel_state=0.9";
        for from in 0..text.len() {
            for to in from..=text.len() {
                let literal = &text[from..to];
                assert_eq!(literal_end(text, from, literal), Some(to));
                for at in from..to {
                    let mut other = text.to_vec();
                    other[at] ^= 1;
                    assert_eq!(
                        literal_end(&other, from, literal),
                        None,
                        "{from}..{to} differs at {at}"
                    );
                }
            }
        }
        assert_eq!(literal_end(b"abc", 1, b"bcd"), None);
    }
}
