//! Reports a reading in JSON to [`ReadingDecoder`], from parser events, without a tree.
//!
//! Numbers need care: serde_json returns an integer beyond 64 bits as a double, reports `1e999` as
//! a syntax error, and returns `-0` as a double. So there are two ways to parse a token. The fast
//! way uses the result of serde_json and fails if it may differ from the literal. The exact way
//! parses the literal itself; it is used only for an element for which the fast way failed.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::reading::{Open, Part, ReadingDecoder, Role, not_an_object};
use crate::token::Token;

/// Reads the reading at the start of `bytes` and returns the number of bytes read. Commits nothing.
/// The exact way does not check the depth of skipped members.
///
/// # Errors
/// The fault in the JSON; or, unless `exact`, that a number must be parsed the exact way. Other
/// faults are kept for [`ReadingDecoder::finish`].
pub(super) fn read_reading<'de>(
    bytes: &'de [u8],
    exact: bool,
    reading: &mut ReadingDecoder<'_, 'de>,
) -> serde_json::Result<usize> {
    reading.begin();
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    ObjectSeed {
        reading,
        part: Part::Reading,
        exact,
    }
    .deserialize(&mut parser)?;
    Ok(parser.into_iter::<IgnoredAny>().byte_offset())
}

/// Reads one of the objects.
struct ObjectSeed<'x, 'a, 'de> {
    reading: &'x mut ReadingDecoder<'a, 'de>,
    part: Part,
    exact: bool,
}

impl ObjectSeed<'_, '_, '_> {
    fn scalar<E: Error>(self, what: &str) -> Result<(), E> {
        self.reading.fail(not_an_object(self.part, what));
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a reading")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let ObjectSeed {
            reading,
            part,
            exact,
        } = self;
        let object = reading.open(part);
        while let Some(key) = map.next_key_seed(KeySeed)? {
            match reading.key(object, key) {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(Role::Object(part)) => map.next_value_seed(ObjectSeed {
                    reading,
                    part,
                    exact,
                })?,
                Some(role) => map.next_value_seed(ValueSeed {
                    reading,
                    role,
                    exact,
                })?,
            }
        }
        reading.close(object);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        self.reading.fail(not_an_object(self.part, "an array"));
        Skip.visit_seq(seq)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        // A null `values` or `tags` counts as absent.
        if self.part == Part::Reading {
            self.scalar("null")
        } else {
            Ok(())
        }
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.scalar("a boolean")
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.scalar("a number")
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.scalar("a number")
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.scalar("a number")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.scalar("a text")
    }
}

/// Reports a value, or the values inside of it.
struct ValueSeed<'x, 'a, 'de> {
    reading: &'x mut ReadingDecoder<'a, 'de>,
    role: Role,
    exact: bool,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let ValueSeed {
            reading,
            role,
            exact,
        } = self;
        if !exact {
            let token = deserializer.deserialize_any(ValueVisitor {
                reading,
                role,
                exact,
            })?;
            if let Some(token) = token {
                reading.take(role, token);
            }
            return Ok(());
        }
        let raw = <&'de RawValue>::deserialize(deserializer)?.get();
        let token = match raw.as_bytes().first() {
            Some(b'-' | b'0'..=b'9') => {
                Some(Token::number(raw).ok_or_else(|| D::Error::custom("invalid number"))?)
            }
            // The depth of a skipped value is not checked here; the caller of [`read`] does that. A
            // flattened one is read once more for each level around it, of which there are few.
            Some(b'{' | b'[') => match reading.nest(role) {
                Some(open) => {
                    let mut parser = serde_json::Deserializer::from_str(raw);
                    let nested = parser.deserialize_any(NestedVisitor {
                        reading,
                        open,
                        exact,
                    });
                    nested.map_err(D::Error::custom)?;
                    None
                }
                None if raw.starts_with('{') => Some(Token::NotScalar("an object")),
                None => Some(Token::NotScalar("an array")),
            },
            _ => serde_json::Deserializer::from_str(raw)
                .deserialize_any(ValueVisitor {
                    reading,
                    role,
                    exact,
                })
                .map_err(D::Error::custom)?,
        };
        if let Some(token) = token {
            reading.take(role, token);
        }
        Ok(())
    }
}

/// Reports the members or elements of a value that is flattened.
struct NestedVisitor<'x, 'a, 'de> {
    reading: &'x mut ReadingDecoder<'a, 'de>,
    open: Open,
    exact: bool,
}

impl<'de> Visitor<'de> for NestedVisitor<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let NestedVisitor {
            reading,
            open,
            exact,
        } = self;
        while let Some(key) = map.next_key_seed(KeySeed)? {
            match reading.key(open, key) {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(role) => map.next_value_seed(ValueSeed {
                    reading,
                    role,
                    exact,
                })?,
            }
        }
        reading.close(open);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let NestedVisitor {
            reading,
            open,
            exact,
        } = self;
        let mut index = 0;
        while seq
            .next_element_seed(ElementSeed {
                reading,
                open,
                index,
                exact,
            })?
            .is_some()
        {
            index += 1;
        }
        reading.close(open);
        Ok(())
    }
}

/// Reports an element of an array that is flattened.
struct ElementSeed<'x, 'a, 'de> {
    reading: &'x mut ReadingDecoder<'a, 'de>,
    open: Open,
    index: usize,
    exact: bool,
}

impl<'de> DeserializeSeed<'de> for ElementSeed<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let ElementSeed {
            reading,
            open,
            index,
            exact,
        } = self;
        match reading.element(open, index) {
            None => IgnoredAny::deserialize(deserializer).map(drop),
            Some(role) => ValueSeed {
                reading,
                role,
                exact,
            }
            .deserialize(deserializer),
        }
    }
}

/// The token of a value; `None` if it is flattened, and its values are already reported.
struct ValueVisitor<'x, 'a, 'de> {
    reading: &'x mut ReadingDecoder<'a, 'de>,
    role: Role,
    exact: bool,
}

impl<'de> Visitor<'de> for ValueVisitor<'_, '_, 'de> {
    type Value = Option<Token<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Token<'de>>, E> {
        Ok(Some(Token::Null))
    }

    fn visit_bool<E: Error>(self, v: bool) -> Result<Option<Token<'de>>, E> {
        Ok(Some(Token::Bool(v)))
    }

    fn visit_i64<E: Error>(self, v: i64) -> Result<Option<Token<'de>>, E> {
        Ok(Some(Token::Int(v)))
    }

    fn visit_u64<E: Error>(self, v: u64) -> Result<Option<Token<'de>>, E> {
        i64::try_from(v)
            .map(|v| Some(Token::Int(v)))
            .map_err(|_| E::custom("integer out of range"))
    }

    fn visit_f64<E: Error>(self, v: f64) -> Result<Option<Token<'de>>, E> {
        const TWO_POW_63: f64 = 9_223_372_036_854_775_808.0;
        // Beyond 2^63 the literal may have been an integer; minus zero may have been `-0`, which is
        // an integer.
        let doubtful = v.abs() >= TWO_POW_63 || (v == 0.0 && v.is_sign_negative());
        if doubtful {
            Err(E::custom("the literal decides"))
        } else {
            Ok(Some(Token::Double(v)))
        }
    }

    fn visit_borrowed_str<E: Error>(self, v: &'de str) -> Result<Option<Token<'de>>, E> {
        Ok(Some(Token::Str(Cow::Borrowed(v))))
    }

    fn visit_str<E: Error>(self, v: &str) -> Result<Option<Token<'de>>, E> {
        Ok(Some(Token::Str(Cow::Owned(v.to_owned()))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Option<Token<'de>>, A::Error> {
        let ValueVisitor {
            reading,
            role,
            exact,
        } = self;
        match reading.nest(role) {
            Some(open) => NestedVisitor {
                reading,
                open,
                exact,
            }
            .visit_seq(seq)
            .map(|()| None),
            None => Skip
                .visit_seq(seq)
                .map(|()| Some(Token::NotScalar("an array"))),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<Token<'de>>, A::Error> {
        let ValueVisitor {
            reading,
            role,
            exact,
        } = self;
        match reading.nest(role) {
            Some(open) => NestedVisitor {
                reading,
                open,
                exact,
            }
            .visit_map(map)
            .map(|()| None),
            None => Skip
                .visit_map(map)
                .map(|()| Some(Token::NotScalar("an object"))),
        }
    }
}

/// Skips a value with `deserialize_any`, unlike [`IgnoredAny`]. So serde_json's depth limit
/// applies, and invalid UTF-8 is detected.
struct Skip;

impl<'de> DeserializeSeed<'de> for Skip {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Skip {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Skip)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key::<IgnoredAny>()?.is_some() {
            map.next_value_seed(Skip)?;
        }
        Ok(())
    }
}

struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, v: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(v))
    }

    fn visit_str<E: Error>(self, v: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(v.to_owned()))
    }
}
