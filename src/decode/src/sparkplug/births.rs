//! The definitions in births: for each node and device the names and types of its metrics, found by
//! alias and by name. They are sorted lists instead of maps, because they are built once per birth
//! and there may be very many of them.

/// Metrics kept for one birth.
pub(super) const METRICS_MAX: usize = 65_536;

/// In place of a missing number.
const NONE: u64 = u64::MAX;

/// Bytes that are read from the front.
pub(super) struct Source<'b>(pub(super) &'b [u8]);

impl Source<'_> {
    pub(super) fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*bytes))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    /// A text after its length.
    pub(super) fn text(&mut self) -> Option<Box<str>> {
        let n = self.u32()? as usize;
        let (text, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        std::str::from_utf8(text).ok().map(Box::from)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Definition {
    pub(super) name: Box<str>,
    pub(super) datatype: Option<u64>,
}

/// The result of looking up an alias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alias<'b> {
    Metric(&'b Definition),
    /// The birth assigned it to two names, so it is useless.
    Ambiguous,
}

#[derive(Debug, Default)]
pub(super) struct Births {
    /// Sorted by name.
    definitions: Box<[Definition]>,
    /// Aliases with their index in `definitions`, `None` for ambiguous ones; sorted.
    aliases: Box<[(u64, Option<u32>)]>,
}

impl Births {
    /// Builds the definitions with their aliases. For a duplicate name the last definition counts.
    pub(super) fn new(mut metrics: Vec<(Definition, Option<u64>)>) -> Births {
        metrics.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let mut aliases: Vec<(u64, Option<u32>)> = Vec::new();
        let mut definitions: Vec<Definition> = Vec::with_capacity(metrics.len());
        for (definition, alias) in metrics {
            match definitions
                .last_mut()
                .filter(|last| last.name == definition.name)
            {
                Some(last) => *last = definition,
                None => definitions.push(definition),
            }
            aliases.extend(alias.map(|alias| (alias, Some(definitions.len() as u32 - 1))));
        }
        aliases.sort_unstable();
        aliases.dedup();
        aliases.dedup_by(|again, first| {
            let same = again.0 == first.0;
            if same {
                first.1 = None;
            }
            same
        });
        Births {
            definitions: definitions.into(),
            aliases: aliases.into(),
        }
    }

    /// Looks up an alias, if the birth assigned it.
    pub(super) fn alias(&self, alias: u64) -> Option<Alias<'_>> {
        let found = self
            .aliases
            .binary_search_by_key(&alias, |(alias, _)| *alias)
            .ok()?;
        Some(self.aliases[found].1.map_or(Alias::Ambiguous, |i| {
            Alias::Metric(&self.definitions[i as usize])
        }))
    }

    /// The type of a metric, if the birth defined it.
    pub(super) fn datatype(&self, name: &str) -> Option<u64> {
        let found = self
            .definitions
            .binary_search_by(|d| (*d.name).cmp(name))
            .ok()?;
        self.definitions[found].datatype
    }

    /// Appends the births as bytes, for [`Births::parse`].
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.definitions.len() as u32).to_le_bytes());
        for Definition { name, datatype } in &self.definitions {
            out.extend_from_slice(&(name.len() as u32).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(&datatype.unwrap_or(NONE).to_le_bytes());
        }
        out.extend_from_slice(&(self.aliases.len() as u32).to_le_bytes());
        for (alias, index) in &self.aliases {
            out.extend_from_slice(&alias.to_le_bytes());
            out.extend_from_slice(&index.map_or(NONE, u64::from).to_le_bytes());
        }
    }

    /// Reads births; `None` if they are invalid.
    pub(super) fn parse(from: &mut Source<'_>) -> Option<Births> {
        let mut definitions = Vec::new();
        for _ in 0..from.u32()? {
            let name = from.text()?;
            definitions.push(Definition {
                name,
                datatype: Some(from.u64()?).filter(|datatype| *datatype != NONE),
            });
        }
        let mut aliases = Vec::new();
        for _ in 0..from.u32()? {
            let alias = from.u64()?;
            let index = from.u64()?;
            let index = if index == NONE {
                None
            } else {
                Some(u32::try_from(index).ok()?)
            };
            if index.is_some_and(|index| index as usize >= definitions.len()) {
                return None;
            }
            aliases.push((alias, index));
        }
        let sorted = definitions.is_sorted_by(|a, b| a.name < b.name)
            && aliases.is_sorted_by(|a, b| a.0 < b.0);
        sorted.then(|| Births {
            definitions: definitions.into(),
            aliases: aliases.into(),
        })
    }

    /// Approximate memory in bytes.
    pub(super) fn bytes(&self) -> usize {
        let names: usize = self
            .definitions
            .iter()
            .map(|d| d.name.len() + size_of::<Definition>())
            .sum();
        names + size_of_val(&*self.aliases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_found_by_alias_and_name() {
        let define = |name: &str, datatype, alias| {
            (
                Definition {
                    name: name.into(),
                    datatype,
                },
                alias,
            )
        };
        let births = Births::new(vec![
            define("b", Some(3), Some(7)),
            define("a", None, Some(9)),
            define("c", Some(9), None),
            define("d", Some(10), Some(5)),
            define("e", Some(10), Some(5)),
            define("f", Some(10), Some(5)),
            define("a", Some(4), Some(10)),
        ]);
        let name = |alias| match births.alias(alias) {
            Some(Alias::Metric(d)) => Some(&*d.name),
            Some(Alias::Ambiguous) => Some("?"),
            None => None,
        };
        assert_eq!(
            [7, 9, 10, 5, 1].map(name),
            [Some("b"), Some("a"), Some("a"), Some("?"), None]
        );
        assert_eq!(
            ["a", "b", "c", "x"].map(|n| births.datatype(n)),
            [Some(4), Some(3), Some(9), None]
        );
        assert!(births.bytes() > 0 && Births::default().bytes() == 0);
    }
}
