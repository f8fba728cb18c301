//! What `format = "NAME"` names: a built-in format (or a mapping), looked up once and then called without a name.
//!
//! [`Formats`] holds all that there are; a subscription, a hook's route or the command `decode` takes its [`Decoder`]
//! out of it at the start, a request by its query.

use super::{Context, Format, Rejects, TsUnit};
use crate::config::Decoding;
use crate::model::BatchBuilder;

/// How payloads of one format are decoded. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Decoder(Kind);

#[derive(Debug, Clone)]
enum Kind {
    BuiltIn(Format),
}

impl From<Format> for Decoder {
    fn from(format: Format) -> Decoder {
        Decoder(Kind::BuiltIn(format))
    }
}

impl Decoder {
    /// Reads a payload as [`super::decode`] does. The `topic` is the whole topic of an MQTT message, `None` over HTTP:
    /// mappings have templates of their own, built-in formats know only what `cx` took out of it.
    pub fn decode(
        &self,
        payload: &[u8],
        _topic: Option<&str>,
        cx: &Context<'_>,
        out: &mut BatchBuilder,
        rejects: &mut Rejects,
    ) {
        match &self.0 {
            Kind::BuiltIn(format) => super::decode(*format, payload, cx, out, rejects),
        }
    }

    /// The unit of numbers as time where nobody has said another; `None`: by magnitude.
    pub fn ts_unit_usual(&self) -> Option<TsUnit> {
        match &self.0 {
            Kind::BuiltIn(format) => format.ts_unit_usual(),
        }
    }
}

/// A format that nobody has made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no format `{name}`; there are {choices}")]
pub struct UnknownFormat {
    name: String,
    choices: String,
}

/// All formats by name: the built-in ones, the shipped profiles, and those of the configuration.
#[derive(Debug, Clone, Default)]
pub struct Formats {}

impl Formats {
    /// The formats of a configuration.
    pub fn new(_decoding: &Decoding) -> Formats {
        Formats {}
    }

    /// The decoder of a name.
    ///
    /// # Errors
    /// There is none; the error lists those that there are.
    pub fn get(&self, name: &str) -> Result<Decoder, UnknownFormat> {
        if let Ok(format) = name.parse::<Format>() {
            return Ok(format.into());
        }
        let choices = self.names().join(", ");
        Err(UnknownFormat { name: name.chars().take(64).collect(), choices })
    }

    /// Every name, built-in formats first.
    pub fn names(&self) -> Vec<&str> {
        Format::NAMES.to_vec()
    }
}
