//! What `format = "NAME"` names: a built-in format (or a mapping), looked up once and then called without a name.
//!
//! [`Formats`] holds all that there are; a subscription, a hook's route or the command `decode` takes its [`Decoder`]
//! out of it at the start, a request by its query.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::mapping::Mapper;
use super::{Context, Format, Rejects, TsUnit};
use crate::config::{Decoding, mapping, nearest};
use crate::model::BatchBuilder;

/// How payloads of one format are decoded. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Decoder(Kind);

#[derive(Debug, Clone)]
enum Kind {
    BuiltIn(Format),
    Mapped(Arc<Mapper>),
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
        topic: Option<&str>,
        cx: &Context<'_>,
        out: &mut BatchBuilder,
        rejects: &mut Rejects,
    ) {
        match &self.0 {
            Kind::BuiltIn(format) => super::decode(*format, payload, cx, out, rejects),
            Kind::Mapped(mapper) => mapper.decode(payload, topic, cx, out, rejects),
        }
    }

    /// The unit of numbers as time where nobody has said another; `None`: by magnitude.
    pub fn ts_unit_usual(&self) -> Option<TsUnit> {
        match &self.0 {
            Kind::BuiltIn(format) => format.ts_unit_usual(),
            Kind::Mapped(_) => None,
        }
    }

    /// The built-in format, where it is one.
    pub(super) fn built_in(&self) -> Option<Format> {
        match &self.0 {
            Kind::BuiltIn(format) => Some(*format),
            Kind::Mapped(_) => None,
        }
    }

    /// Whether it takes sensor and field from the topic by templates of its own.
    pub(super) fn has_topics(&self) -> bool {
        matches!(&self.0, Kind::Mapped(mapper) if mapper.has_topics())
    }
}

/// A format that nobody has made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no format `{name}`; {near}there are {choices}")]
pub struct UnknownFormat {
    name: String,
    near: String,
    choices: String,
}

/// All formats by name: the built-in ones, the shipped profiles, and those of the configuration, which count before a
/// profile of the same name.
#[derive(Debug, Clone)]
pub struct Formats(Arc<BTreeMap<String, Arc<Mapper>>>);

impl Formats {
    /// The formats of a configuration.
    pub fn new(decoding: &Decoding) -> Formats {
        // The configured ones come last and so replace the others.
        let all = mapping::shipped().iter().chain(&decoding.formats);
        Formats(Arc::new(all.map(|spec| (spec.name.clone(), Arc::new(Mapper::new(spec.clone())))).collect()))
    }

    /// The decoder of a name.
    ///
    /// # Errors
    /// There is none; the error lists those that there are.
    pub fn get(&self, name: &str) -> Result<Decoder, UnknownFormat> {
        if let Ok(format) = name.parse::<Format>() {
            return Ok(format.into());
        }
        if let Some(mapper) = self.0.get(name) {
            return Ok(Decoder(Kind::Mapped(mapper.clone())));
        }
        let near = nearest(name, self.names().into_iter());
        Err(UnknownFormat {
            name: name.chars().take(64).collect(),
            near: near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default(),
            choices: self.names().join(", "),
        })
    }

    /// Every name, built-in formats first.
    pub fn names(&self) -> Vec<&str> {
        Format::NAMES.iter().copied().chain(self.0.keys().map(String::as_str)).collect()
    }
}
