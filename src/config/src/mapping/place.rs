//! Places in a payload, sources made of them, and globs over names: parsed from text into types
//! that are always valid.

/// A longer text is a mistake.
const TEXT_MAX_BYTES: usize = 4096;
const GLOB_MAX_BYTES: usize = 255;
const GLOB_STARS_MAX: usize = 8;
const NAME_RULE: &str =
    "a name must have 1 to 64 letters, digits, _ and -, and be none of ts, meta, _id";

/// Why a text is not a place, a path to records, a source or a glob.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidPlace {
    #[error("longer than {TEXT_MAX_BYTES} bytes")]
    TooLong,
    #[error("`{0}`: use ~ only in ~0 (for ~) and ~1 (for /)")]
    Tilde(String),
    #[error("`{0}` does not begin with / or $/")]
    PlaceStart(String),
    #[error("`{0}`: braces have no meaning in a place (only in `each`)")]
    BracesInPlace(String),
    #[error("`{0}` does not begin with /")]
    EachStart(String),
    #[error("`{0}`: {NAME_RULE}")]
    Name(String),
    #[error("`{0}`: a name in braces must be a whole step")]
    PartOfStep(String),
    #[error("`{0}`: a }} without its {{")]
    NotOpened(String),
    #[error("`{0}`: a {{ without its }}")]
    NotClosed(String),
    #[error("unknown filter `|{0}`; expected |lower, |upper or |eui")]
    Filter(String),
    #[error("the whole record or message cannot be the id")]
    WholeAsId,
    #[error("a glob must have 1 to {GLOB_MAX_BYTES} bytes")]
    GlobBytes,
    #[error("`{0}` has more than {GLOB_STARS_MAX} *")]
    GlobStars(String),
}

/// A step of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The member with this key; in an array the element with this number.
    Key {
        /// The key as written in the JSON.
        key: Box<str>,
        /// The key as a number, if it is one.
        index: Option<usize>,
    },
    /// `*`: the first member or element.
    First,
}

/// A JSON Pointer (RFC 6901): `/rx/0/rssi` from the record, `$/gw_mac` from the message. An empty
/// text is the record, `$` the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Starts at the message instead of the record.
    pub from_message: bool,
    /// The path to follow.
    pub steps: Vec<Step>,
}

/// A step of `each`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EachStep {
    /// This member.
    One(Step),
    /// Every member or element. The name, if any, captures its key or number.
    All(Option<Box<str>>),
}

/// Path to the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Each(pub Vec<EachStep>);

/// Conversion of a text in a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// `lower`
    Lower,
    /// `upper`
    Upper,
    /// `eui`: eight bytes, as 16 hex digits (optionally with `-` or `:` between them) or as base64,
    /// converted to lower-case hex.
    Eui,
}

/// A part of a composed source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Literal text.
    Text(Box<str>),
    /// `{name}`
    Name(Box<str>, Option<Filter>),
    /// `{/place}`
    Place(Place, Option<Filter>),
}

/// Where a text comes from. A composed source is present only if all of its pieces are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The scalar at a place.
    Place(Place),
    /// The concatenation of these pieces.
    Joined(Vec<Piece>),
}

impl Step {
    fn parse(text: &str) -> Result<Step, InvalidPlace> {
        if text == "*" {
            return Ok(Step::First);
        }
        // RFC 6901 §3: `~` only in `~0` and `~1`; §4: `~1` is replaced before `~0`.
        if text
            .split('~')
            .skip(1)
            .any(|rest| !rest.starts_with(['0', '1']))
        {
            return Err(InvalidPlace::Tilde(text.to_owned()));
        }
        let key = text.replace("~1", "/").replace("~0", "~");
        let is_number =
            key.bytes().all(|b| b.is_ascii_digit()) && (key == "0" || !key.starts_with('0'));
        let index = if is_number { key.parse().ok() } else { None };
        Ok(Step::Key {
            key: key.into(),
            index,
        })
    }
}

impl Place {
    pub(super) fn parse(text: &str) -> Result<Place, InvalidPlace> {
        let (from_message, rest) = text
            .strip_prefix('$')
            .map_or((false, text), |rest| (true, rest));
        if text.len() > TEXT_MAX_BYTES {
            return Err(InvalidPlace::TooLong);
        }
        if rest.is_empty() {
            return Ok(Place {
                from_message,
                steps: Vec::new(),
            });
        }
        let steps = rest
            .strip_prefix('/')
            .ok_or_else(|| InvalidPlace::PlaceStart(text.to_owned()))?;
        if steps.contains(['{', '}']) {
            return Err(InvalidPlace::BracesInPlace(text.to_owned()));
        }
        Ok(Place {
            from_message,
            steps: steps
                .split('/')
                .map(Step::parse)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl Each {
    /// Parses the path to the records.
    pub(super) fn parse(text: &str) -> Result<Each, InvalidPlace> {
        if text.len() > TEXT_MAX_BYTES {
            return Err(InvalidPlace::TooLong);
        }
        if text.is_empty() {
            return Ok(Each(Vec::new()));
        }
        let rest = text
            .strip_prefix('/')
            .ok_or_else(|| InvalidPlace::EachStart(text.to_owned()))?;
        let mut steps = Vec::new();
        for part in rest.split('/') {
            let name = part
                .strip_prefix('{')
                .and_then(|part| part.strip_suffix('}'));
            steps.push(match name {
                Some(name) if is_name(name) => EachStep::All(Some(name.into())),
                Some(_) => return Err(InvalidPlace::Name(part.to_owned())),
                None if part == "*" => EachStep::All(None),
                None if part.contains(['{', '}']) => {
                    return Err(InvalidPlace::PartOfStep(part.to_owned()));
                }
                None => EachStep::One(Step::parse(part)?),
            });
        }
        Ok(Each(steps))
    }

    /// The names that it captures.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|step| match step {
            EachStep::All(Some(name)) => Some(&**name),
            _ => None,
        })
    }
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && !matches!(name, "ts" | "meta" | "_id")
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

impl Source {
    pub(super) fn parse(text: &str) -> Result<Source, InvalidPlace> {
        if text.starts_with('/') || text.is_empty() || text == "$" || text.starts_with("$/") {
            return Place::parse(text).map(Source::Place);
        }
        if text.len() > TEXT_MAX_BYTES {
            return Err(InvalidPlace::TooLong);
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let Some(open) = rest.find('{') else {
                if rest.contains('}') {
                    return Err(InvalidPlace::NotOpened(text.to_owned()));
                }
                pieces.push(Piece::Text(rest.into()));
                break;
            };
            let (before, after) = rest.split_at(open);
            let close = after
                .find('}')
                .ok_or_else(|| InvalidPlace::NotClosed(text.to_owned()))?;
            if before.contains('}') {
                return Err(InvalidPlace::NotOpened(text.to_owned()));
            }
            if !before.is_empty() {
                pieces.push(Piece::Text(before.into()));
            }
            pieces.push(Piece::parse(&after[1..close])?);
            rest = &after[close + 1..];
        }
        Ok(Source::Joined(pieces))
    }

    /// Whether the text is the same for every message.
    pub(crate) fn is_constant(&self) -> bool {
        matches!(self, Source::Joined(pieces) if pieces.iter().all(|piece| matches!(piece, Piece::Text(_))))
    }
}

impl Piece {
    fn parse(text: &str) -> Result<Piece, InvalidPlace> {
        let (what, filter) = match text.rsplit_once('|') {
            None => (text, None),
            Some((what, "lower")) => (what, Some(Filter::Lower)),
            Some((what, "upper")) => (what, Some(Filter::Upper)),
            Some((what, "eui")) => (what, Some(Filter::Eui)),
            Some((_, other)) => return Err(InvalidPlace::Filter(other.to_owned())),
        };
        if what.starts_with(['/', '$']) {
            return Ok(Piece::Place(Place::parse(what)?, filter));
        }
        if is_name(what) {
            Ok(Piece::Name(what.into(), filter))
        } else {
            Err(InvalidPlace::Name(format!("{{{text}}}")))
        }
    }
}

/// A pattern over names: `*` matches any text, `?` one character, everything else itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Box<str>);

impl Glob {
    pub(super) fn parse(text: &str) -> Result<Glob, InvalidPlace> {
        if text.is_empty() || text.len() > GLOB_MAX_BYTES {
            return Err(InvalidPlace::GlobBytes);
        }
        if text.bytes().filter(|b| *b == b'*').count() > GLOB_STARS_MAX {
            return Err(InvalidPlace::GlobStars(text.to_owned()));
        }
        Ok(Glob(text.into()))
    }

    /// Whether it has exactly one `*` and no `?`, so that [`Glob::star`] is unambiguous.
    pub(super) fn has_one_star(&self) -> bool {
        self.0.matches(['*', '?']).eq(["*"])
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        model::glob::matches(&self.0, name)
    }

    /// The text that the one `*` matches, in a name that matches.
    pub fn star<'n>(&self, name: &'n str) -> &'n str {
        let (head, tail) = self.0.split_once('*').unwrap_or((&self.0, ""));
        name.get(head.len()..name.len().saturating_sub(tail.len()))
            .unwrap_or("")
    }
}
