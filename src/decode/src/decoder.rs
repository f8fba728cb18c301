//! Resolves `format = "NAME"` to a decoder: a built-in format or a mapping. The name is looked up
//! only once.
//!
//! [`Formats`] holds all formats. A subscription, a hook's route and the command `decode` look up
//! their [`Decoder`] at startup, an HTTP request by its query.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::mapping::{FirstRule, Mapper};
use super::padding::unpadded;
use super::{Context, Format, RejectReason, Rejects, TsUnit, forwarded, otlp, remote_write};
use super::{binary, json, line, scalar, senml};
use config::{Decoding, Otlp, RemoteWrite, mapping, nearest};
use model::{BatchBuilder, compression};

/// Decodes payloads of one format. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Decoder(Kind);

#[derive(Debug, Clone)]
enum Kind {
    BuiltIn(Format),
    Mapped(Arc<Mapper>),
    Otlp(otlp::Encoding, Arc<Otlp>),
    RemoteWrite(remote_write::Message, Arc<RemoteWrite>),
    Forwarded,
}

impl From<Format> for Decoder {
    fn from(format: Format) -> Decoder {
        Decoder(Kind::BuiltIn(format))
    }
}

impl Decoder {
    /// The decoder of what another instance forwards ([`forwarded`]).
    pub fn forwarded() -> Decoder {
        Decoder(Kind::Forwarded)
    }

    /// Whether it is [`Decoder::forwarded`].
    pub fn is_forwarded(&self) -> bool {
        matches!(self.0, Kind::Forwarded)
    }

    /// Decodes a payload. Appends its readings to `out` and its rejects to `rejects`.
    ///
    /// A well-formed payload without readings (`[]`) yields neither. `out` may already hold readings
    /// of other messages. Send it on before its space for names runs out, for example when
    /// [`BatchBuilder::names_len`] exceeds half of [`model::batch::NAMES_MAX`]. Otherwise a
    /// message with very many field names leaves no space for those of the next one.
    ///
    /// `topic` is the whole topic of an MQTT message, `None` over HTTP. Only mappings use it, for
    /// their own templates; built-in formats use the values that the caller captured into `cx`.
    pub fn decode(
        &self,
        payload: &[u8],
        topic: Option<&str>,
        cx: &Context<'_>,
        out: &mut BatchBuilder,
        rejects: &mut Rejects,
    ) {
        if let Some(name) = compression(payload) {
            let detail = format!(
                "the payload is compressed ({name}); send it uncompressed, or over HTTP with \
                 Content-Encoding"
            );
            return rejects.push(0, RejectReason::Compressed, detail);
        }
        let payload = self.unpadded(payload);
        match &self.0 {
            Kind::BuiltIn(format) => match format {
                Format::Json => json::decode(payload, cx, out, rejects),
                Format::Ndjson => json::decode_lines(payload, cx, out, rejects),
                Format::Scalar => scalar::decode(payload, cx, out, rejects),
                Format::Line => line::decode(payload, cx, out, rejects),
                Format::Cbor => binary::decode_cbor(payload, cx, out, rejects),
                Format::MessagePack => binary::decode_msgpack(payload, cx, out, rejects),
                Format::Senml => senml::decode_json(payload, cx, out, rejects),
                Format::SenmlCbor => senml::decode_cbor(payload, cx, out, rejects),
            },
            Kind::Mapped(mapper) => mapper.decode(payload, topic, cx, out, rejects),
            Kind::Otlp(encoding, otlp) => otlp::decode(*encoding, payload, otlp, cx, out, rejects),
            Kind::RemoteWrite(message, settings) => {
                remote_write::decode(*message, payload, settings, cx, out, rejects);
            }
            Kind::Forwarded => forwarded::decode(payload, cx, out, rejects),
        }
    }

    /// The payload without what surrounds a text; unchanged if the format is binary.
    fn unpadded<'p>(&self, payload: &'p [u8]) -> &'p [u8] {
        match &self.0 {
            Kind::BuiltIn(Format::Cbor | Format::MessagePack | Format::SenmlCbor)
            | Kind::Otlp(otlp::Encoding::Protobuf, _)
            | Kind::RemoteWrite(..)
            | Kind::Forwarded => payload,
            Kind::BuiltIn(
                Format::Json | Format::Ndjson | Format::Scalar | Format::Line | Format::Senml,
            )
            | Kind::Otlp(otlp::Encoding::Json, _)
            | Kind::Mapped(_) => unpadded(payload),
        }
    }

    /// The rule of a mapping for the first message of a payload.
    pub fn first_rule(&self, payload: &[u8], topic: Option<&str>) -> Option<FirstRule> {
        match &self.0 {
            Kind::Mapped(mapper) => mapper.first_rule(self.unpadded(payload), topic),
            Kind::BuiltIn(_) | Kind::Otlp(..) | Kind::RemoteWrite(..) | Kind::Forwarded => None,
        }
    }

    /// The built-in format, if it is one of those that decode each payload independently.
    pub fn built_in(&self) -> Option<Format> {
        match &self.0 {
            Kind::BuiltIn(format) => Some(*format),
            Kind::Mapped(_) | Kind::Otlp(..) | Kind::RemoteWrite(..) | Kind::Forwarded => None,
        }
    }

    /// Whether a flat JSON object can be a payload.
    pub fn reads_objects(&self) -> bool {
        match &self.0 {
            Kind::BuiltIn(format) => matches!(format, Format::Json | Format::Ndjson),
            Kind::Mapped(_) => true,
            Kind::Otlp(..) | Kind::RemoteWrite(..) | Kind::Forwarded => false,
        }
    }

    /// The default unit of numeric times; `None`: by magnitude.
    pub fn ts_unit_usual(&self) -> Option<TsUnit> {
        match &self.0 {
            Kind::BuiltIn(format) => format.ts_unit_usual(),
            Kind::Mapped(_) | Kind::Otlp(..) | Kind::RemoteWrite(..) | Kind::Forwarded => None,
        }
    }

    /// The templates that the command `decode` tries on a topic if no template is given.
    pub fn usual_templates(&self) -> &'static [&'static str] {
        match &self.0 {
            Kind::BuiltIn(Format::Scalar) => &["+/{sensor_id}/{field}", "{sensor_id}/{field}"],
            Kind::BuiltIn(Format::Json | Format::Ndjson | Format::Cbor | Format::MessagePack) => {
                &["+/{sensor_id}/#"]
            }
            Kind::BuiltIn(Format::Line | Format::Senml | Format::SenmlCbor)
            | Kind::Otlp(..)
            | Kind::RemoteWrite(..)
            | Kind::Forwarded => &[],
            Kind::Mapped(mapper) if mapper.has_topics() => &[],
            Kind::Mapped(_) => &["+/{sensor_id}/#"],
        }
    }
}

/// No format has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown format `{name}`; {near}expected one of {choices}")]
pub struct UnknownFormat {
    name: String,
    near: String,
    choices: String,
}

impl UnknownFormat {
    /// The known names, for an error that must not repeat the unknown one.
    pub fn advice(&self) -> String {
        format!("{}expected one of {}", self.near, self.choices)
    }
}

/// All formats by name: the built-in ones, the built-in mappings, and those of the configuration.
/// The configuration's replace built-in mappings of the same name.
#[derive(Debug, Clone)]
pub struct Formats {
    otlp: Arc<Otlp>,
    remote_write: Arc<RemoteWrite>,
    mapped: Arc<BTreeMap<String, Arc<Mapper>>>,
}

/// OpenTelemetry metrics; they depend on `[otlp]`.
const OTLP: [(&str, otlp::Encoding); 2] = [
    ("otlp", otlp::Encoding::Protobuf),
    ("otlp-json", otlp::Encoding::Json),
];

/// Messages of Prometheus remote write, decompressed; they depend on `[remote_write]`.
const REMOTE_WRITE: [(&str, remote_write::Message); 2] = [
    ("remote-write", remote_write::Message::V1),
    ("remote-write-2", remote_write::Message::V2),
];

impl Formats {
    /// The formats of a configuration.
    pub fn new(decoding: &Decoding) -> Formats {
        // The configured ones come last, so that they replace the others.
        let all = mapping::shipped().iter().chain(&decoding.formats);
        let mapped = all
            .map(|spec| (spec.name.clone(), Arc::new(Mapper::new(spec.clone()))))
            .collect();
        let remote_write = Arc::new(decoding.remote_write.clone());
        Formats {
            otlp: Arc::new(decoding.otlp.clone()),
            remote_write,
            mapped: Arc::new(mapped),
        }
    }

    /// The decoder of OpenTelemetry metrics.
    pub fn otlp(&self, encoding: otlp::Encoding) -> Decoder {
        Decoder(Kind::Otlp(encoding, self.otlp.clone()))
    }

    /// The decoder of Prometheus remote write.
    pub fn remote_write(&self, message: remote_write::Message) -> Decoder {
        Decoder(Kind::RemoteWrite(message, self.remote_write.clone()))
    }

    /// Looks up a decoder by name.
    ///
    /// # Errors
    /// No format has this name; the error lists the known ones.
    pub fn get(&self, name: &str) -> Result<Decoder, UnknownFormat> {
        if let Ok(format) = name.parse::<Format>() {
            return Ok(format.into());
        }
        if let Some((_, encoding)) = OTLP.iter().find(|(n, _)| *n == name) {
            return Ok(self.otlp(*encoding));
        }
        if let Some((_, message)) = REMOTE_WRITE.iter().find(|(n, _)| *n == name) {
            return Ok(self.remote_write(*message));
        }
        if let Some(mapper) = self.mapped.get(name) {
            return Ok(Decoder(Kind::Mapped(mapper.clone())));
        }
        let near = nearest(&name.to_lowercase(), self.names().into_iter());
        Err(UnknownFormat {
            name: name.chars().take(64).collect(),
            near: near
                .map(|near| format!("did you mean `{near}`? "))
                .unwrap_or_default(),
            choices: self.names().join(", "),
        })
    }

    /// Every name, built-in formats first.
    pub fn names(&self) -> Vec<&str> {
        let built_in = Format::NAMES
            .iter()
            .copied()
            .chain(OTLP.iter().map(|(name, _)| *name));
        let built_in = built_in.chain(REMOTE_WRITE.iter().map(|(name, _)| *name));
        built_in
            .chain(self.mapped.keys().map(String::as_str))
            .collect()
    }
}
