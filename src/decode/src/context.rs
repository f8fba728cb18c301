//! What the caller knows about a payload: its [`Format`], the [`TsUnit`] of its times, and the rest
//! of its [`Context`].

use std::str::FromStr;
use std::sync::LazyLock;

use super::names::Renamed;
use config::{Config, Decoding, Limits, Line, Native, ScalarFormat};

/// How a payload is encoded: the setting `format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The native format: an object, an array of objects, or concatenated objects.
    Json,
    /// The native format, one object per line; a bad line rejects only itself.
    Ndjson,
    /// One bare value; sensor and field come from the topic.
    Scalar,
    /// InfluxDB line protocol; a bad line rejects only itself.
    Line,
    /// The native format in CBOR (RFC 8949): an object, an array of objects, or concatenated
    /// objects (RFC 8742).
    Cbor,
    /// The native format in MessagePack: an object, an array of objects, or concatenated objects.
    MessagePack,
    /// SenML (RFC 8428) in JSON; a bad record rejects only itself, unless others depend on it.
    Senml,
    /// SenML in CBOR.
    SenmlCbor,
}

impl Format {
    /// The names as settings use them.
    pub const NAMES: &[&str] = &[
        "json",
        "ndjson",
        "scalar",
        "line",
        "cbor",
        "msgpack",
        "senml",
        "senml-cbor",
    ];

    /// The default unit of numeric times; `None`: by magnitude.
    pub fn ts_unit_usual(self) -> Option<TsUnit> {
        match self {
            // The default of the line protocol itself.
            Format::Line => Some(TsUnit::Ns),
            Format::Json | Format::Ndjson | Format::Scalar | Format::Cbor | Format::MessagePack => {
                None
            }
            // SenML defines times in seconds; no setting changes that.
            Format::Senml | Format::SenmlCbor => None,
        }
    }
}

const CHOICES: &str = "json, ndjson, scalar, line, cbor, msgpack, senml or senml-cbor";

/// An unknown name in a setting. The message lists the valid ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{name}`; expected one of {choices}")]
pub struct UnknownName {
    name: String,
    what: &'static str,
    choices: &'static str,
}

impl FromStr for Format {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Format, UnknownName> {
        match name {
            "json" => Ok(Format::Json),
            "ndjson" => Ok(Format::Ndjson),
            "scalar" => Ok(Format::Scalar),
            "line" => Ok(Format::Line),
            "cbor" => Ok(Format::Cbor),
            "msgpack" => Ok(Format::MessagePack),
            "senml" => Ok(Format::Senml),
            "senml-cbor" => Ok(Format::SenmlCbor),
            _ => Err(UnknownName {
                name: name.to_owned(),
                what: "format",
                choices: CHOICES,
            }),
        }
    }
}

/// Unit of a numeric time. Minutes and hours have no name here: only InfluxDB's v1 interface uses
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TsUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
    /// Minutes.
    Minute,
    /// Hours.
    Hour,
}

impl FromStr for TsUnit {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<TsUnit, UnknownName> {
        match name {
            "s" => Ok(TsUnit::S),
            "ms" => Ok(TsUnit::Ms),
            "us" => Ok(TsUnit::Us),
            "ns" => Ok(TsUnit::Ns),
            _ => Err(UnknownName {
                name: name.to_owned(),
                what: "unit of time",
                choices: "s, ms, us or ns",
            }),
        }
    }
}

/// Information about a payload in addition to its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The limits to apply.
    pub limits: &'a Limits,
    /// Settings of the line protocol.
    pub line: &'a Line,
    /// Settings of the native format.
    pub native: &'a Native,
    /// Settings of bare values.
    pub scalar: ScalarFormat,
    /// Time of receipt, in milliseconds since 1970.
    pub received_at_ms: i64,
    /// Unit of numeric times; `None`: by magnitude (see also [`Format::ts_unit_usual`]). A member
    /// `ts_unit` of the reading overrides it.
    pub ts_unit: Option<TsUnit>,
    /// The treatment of a time before `limits.unset_before`.
    pub unset_clock: UnsetClock,
    /// Whether the sender reads why a reading is rejected, as over HTTP. If not, a reading whose
    /// time is not in `ts` and has no zone gets the time of receipt.
    pub is_answered: bool,
    /// From the topic: the sensor id if the payload names none.
    pub sensor_id: Option<&'a str>,
    /// From the topic: the field of a scalar.
    pub field: Option<&'a str>,
    /// From the topic: tags in addition to those of the payload (which override them). Names must
    /// be unique and already in their stored form; [`TopicTemplate`](super::TopicTemplate)
    /// guarantees both.
    pub tags: &'a [(&'a str, &'a str)],
    /// Notes the names that are stored differently.
    pub renamed: Option<&'a Renamed>,
}

/// The treatment of a reading whose time is before `limits.unset_before`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsetClock {
    /// It gets the time of receipt: a device cannot do anything about it.
    Receipt,
    /// It is rejected, unless its format says that the devices have no clock.
    Reject,
}

impl<'a> Context<'a> {
    /// A payload of which only the bytes are known.
    pub fn new(decoding: &'a Decoding, received_at_ms: i64) -> Context<'a> {
        let Decoding {
            limits,
            line,
            native,
            scalar,
            ..
        } = decoding;
        Context {
            limits,
            line,
            native,
            scalar: *scalar,
            received_at_ms,
            ..Context::usual()
        }
    }

    /// The same over HTTP, where the sender reads why a reading is rejected.
    pub fn of_http(decoding: &'a Decoding, received_at_ms: i64) -> Context<'a> {
        let refuses = decoding.limits.unset_over_http_refused;
        let unset_clock = if refuses {
            UnsetClock::Reject
        } else {
            UnsetClock::Receipt
        };
        Context {
            unset_clock,
            is_answered: true,
            ..Context::new(decoding, received_at_ms)
        }
    }

    /// The default settings, received at 1970, with only the payload known. For tests and tools.
    pub fn usual() -> Context<'static> {
        static USUAL: LazyLock<Config> = LazyLock::new(Config::default);
        let Config {
            limits,
            line,
            native,
            scalar,
            ..
        } = &*USUAL;
        Context {
            limits,
            line,
            native,
            scalar: *scalar,
            received_at_ms: 0,
            ts_unit: None,
            unset_clock: UnsetClock::Receipt,
            is_answered: false,
            sensor_id: None,
            field: None,
            tags: &[],
            renamed: None,
        }
    }
}
