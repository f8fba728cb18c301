//! Templates: what readings that were decoded looked like, for those of the same payload that look like them.
//!
//! What a gateway sends is written by a program: line after line has the same keys in the same order, and only ids,
//! times and values differ. A *template* holds the literal parts of a reading and, between them, the slots. The next reading
//! is compared with it, part by part, and its values go straight into the batch under the same shape: no key is parsed,
//! looked up or checked again, which takes a quarter of the time.
//!
//! Where anything differs (another key, an escape, white space elsewhere, a value that is not simply written) the reading
//! is not of this template, and is decoded as any other. So a template never decides that a reading is wrong, and what it takes
//! is exactly what the decoder would have made of it: `tests/pure/decode_props.rs` compares the two.
//!
//! A gateway with two kinds of devices sends two kinds of lines, often in turns: a few templates are kept, and each remembers
//! which one came after it. Payloads whose readings never look alike are soon left alone.

use crate::config::Limits;

/// Templates kept of one payload.
const TEMPLATES_MAX: usize = 4;
/// Misses in a row after which a payload's readings are not compared any more.
const MISSES_MAX: u32 = 32;
/// Slots of a template; readings with more are decoded as any other.
const SLOTS_MAX: usize = 64;
/// Tags of a template, likewise.
pub(super) const TAGS_MAX: usize = 8;

/// The literal parts of a reading and what stands between them.
#[derive(Debug)]
pub(super) struct Parts<S> {
    /// One behind the other.
    literals: Vec<u8>,
    /// Where each part ends in `literals`, and the slot behind it.
    slots: Vec<(u32, S)>,
}

impl<S> Default for Parts<S> {
    fn default() -> Parts<S> {
        Parts { literals: Vec::new(), slots: Vec::new() }
    }
}

impl<S> Parts<S> {
    /// Adds a literal part and the slot behind it; `None` where there are too many.
    pub(super) fn push(&mut self, literal: &[u8], slot: S) -> Option<()> {
        self.literals.extend_from_slice(literal);
        self.slots.push((self.literals.len() as u32, slot));
        (self.slots.len() <= SLOTS_MAX).then_some(())
    }

    /// How many slots there are so far.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The slots.
    pub(super) fn slots_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.slots.iter_mut().map(|(_, slot)| slot)
    }

    /// Each literal part with the slot behind it.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &S)> {
        let mut from = 0;
        self.slots.iter().map(move |(to, slot)| {
            let literal = &self.literals[from..*to as usize];
            from = *to as usize;
            (literal, slot)
        })
    }
}

/// The longest text of a tag, whatever `limits.string_max_bytes` says: so all of them together are never too long.
const TAG_TEXT_BYTES_MAX: usize = 4096;

/// The tags of a reading as they are stored: `tags` holds the texts, in the order of `keys`. `None` where one is not surely
/// short enough.
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

/// Where `literal`, which should stand at `at`, ends. The parts are some ten bytes long: comparing them by words takes less
/// than calling memcmp for each.
#[inline]
pub(super) fn behind(bytes: &[u8], at: usize, literal: &[u8]) -> Option<usize> {
    let end = at + literal.len();
    let there = bytes.get(at..end)?;
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    let same = match (literal.last_chunk::<8>(), there.last_chunk::<8>()) {
        (Some(a), Some(b)) => {
            let (mut rest, mut rest_there, mut same) = (literal, there, word(a) == word(b));
            while let (Some((a, more)), Some((b, more_there))) =
                (rest.split_first_chunk::<8>(), rest_there.split_first_chunk::<8>())
            {
                same &= word(a) == word(b);
                (rest, rest_there) = (more, more_there);
            }
            same
        }
        _ => (0..literal.len()).all(|i| literal[i] == there[i]),
    };
    same.then_some(end)
}

/// The templates of one payload.
#[derive(Debug)]
pub(super) struct Templates<M> {
    /// Each with the one that came after it the last time.
    templates: Vec<(M, usize)>,
    /// That of the reading before.
    last: usize,
    /// Which is given up for the next new one.
    oldest: usize,
    misses: u32,
}

impl<M> Default for Templates<M> {
    fn default() -> Templates<M> {
        Templates { templates: Vec::new(), last: 0, oldest: 0, misses: 0 }
    }
}

impl<M> Templates<M> {
    /// What `fill` makes of the first template that fits, the likely one first.
    pub(super) fn find<T>(&mut self, mut fill: impl FnMut(&M) -> Option<T>) -> Option<T> {
        if self.misses >= MISSES_MAX {
            return None;
        }
        let guess = self.templates.get(self.last)?.1;
        let others = (0..self.templates.len()).filter(|i| *i != guess);
        for i in std::iter::once(guess).chain(others) {
            if let Some(found) = self.templates.get(i).and_then(|(template, _)| fill(template)) {
                self.came(i);
                self.misses = 0;
                return Some(found);
            }
        }
        self.misses += 1;
        None
    }

    /// Whether another template may pay.
    pub(super) fn learns(&self) -> bool {
        self.misses < MISSES_MAX
    }

    /// No more of this payload is compared.
    pub(super) fn give_up(&mut self) {
        self.misses = MISSES_MAX;
    }

    /// Keeps what a reading looked like, where that could be said.
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
    use super::behind;

    #[test]
    fn a_literal_stands_where_each_of_its_bytes_does() {
        let text = b"readings,sensor_id=truck_000017_diag,fleet=South fuel_state=0.9";
        for from in 0..text.len() {
            for to in from..=text.len() {
                let literal = &text[from..to];
                assert_eq!(behind(text, from, literal), Some(to));
                for at in from..to {
                    let mut other = text.to_vec();
                    other[at] ^= 1;
                    assert_eq!(behind(&other, from, literal), None, "{from}..{to} differs at {at}");
                }
            }
        }
        assert_eq!(behind(b"abc", 1, b"bcd"), None);
    }
}
