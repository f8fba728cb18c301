//! What a sender or reader may do.

use std::fmt;
use std::sync::Arc;

use super::quota::{Quota, QuotaExceeded, Usage};
use config::ClientIdentity;
use model::batch::SenderTag;
use model::{BatchBuilder, Now, SensorPatterns};

/// A protocol that a grant may be limited to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Both HTTP ports: sending readings, and the read API.
    Http,
    /// The MQTT listener.
    Mqtt,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Protocol; 2] = [Protocol::Http, Protocol::Mqtt];

    /// The name in `via`.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Mqtt => "mqtt",
        }
    }
}

/// A set of protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocols {
    /// Whether [`Protocol::Http`] is in the set.
    pub http: bool,
    /// Whether [`Protocol::Mqtt`] is in the set.
    pub mqtt: bool,
}

impl Protocols {
    /// Every protocol.
    pub const ALL: Protocols = Protocols {
        http: true,
        mqtt: true,
    };

    /// Whether the set has this protocol.
    pub fn has(self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::Http => self.http,
            Protocol::Mqtt => self.mqtt,
        }
    }
}

/// What authenticated the holder of a grant. Compared again when the credentials change.
#[derive(Clone)]
pub enum Proof {
    /// Nothing: it is not from credentials.
    None,
    /// A token; the hash of its secret.
    Token([u8; 32]),
    /// This JWT. (As text, because new keys or other settings can mean another grant. Most have
    /// less than 1 KiB.)
    Jwt(Box<str>),
    /// A client certificate, by a name of this kind. (Its connection notices when it ends.)
    Certificate(ClientIdentity),
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Proof::None => "None",
            Proof::Token(_) => "Token",
            Proof::Jwt(_) => "Jwt",
            Proof::Certificate(_) => "Certificate",
        })
    }
}

/// What a sender or reader may do. `None` means no limit.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The id of its token, or the identity in its JWT or certificate. Not secret.
    pub id: Arc<str>,
    /// The sensors that it may write.
    pub write: Option<SensorPatterns>,
    /// The sensors that it may read.
    pub read: Option<SensorPatterns>,
    /// The protocols that it may use.
    pub via: Protocols,
    /// Whether it may forward what others have sent to it.
    pub forward: bool,
    /// From this time on it is not valid, in milliseconds since 1970.
    pub expires_ms: Option<i64>,
    /// Before this time it is not valid, in milliseconds since 1970.
    pub valid_from_ms: Option<i64>,
    /// How much it may send.
    pub quota: Quota,
    /// Its use of that limit.
    pub usage: Arc<Usage>,
    /// What authenticated its holder.
    pub proof: Proof,
}

/// Why a grant does not allow something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The time in `expires` or `exp` has passed.
    #[error("expired")]
    Expired,
    /// The time in `nbf` has not come yet.
    #[error("not valid yet")]
    NotYetValid,
    /// The protocol is not in `via`.
    #[error("not valid for this protocol")]
    Protocol,
    /// `write` is empty.
    #[error("may not write")]
    Write,
    /// `forward` is not set.
    #[error("may not forward")]
    Forward,
}

impl Grant {
    /// A grant that allows everything.
    pub fn unlimited(id: &str) -> Grant {
        let quota = Quota::unlimited();
        let usage = Arc::default();
        Grant {
            id: id.into(),
            write: None,
            read: None,
            via: Protocols::ALL,
            forward: true,
            expires_ms: None,
            valid_from_ms: None,
            quota,
            usage,
            proof: Proof::None,
        }
    }

    /// Checks whether it is valid now for this protocol.
    ///
    /// # Errors
    /// It has expired, is not valid yet, or it does not allow this protocol.
    pub fn check(&self, protocol: Protocol, now_ms: i64) -> Result<(), Denied> {
        if self
            .expires_ms
            .is_some_and(|expires_ms| now_ms >= expires_ms)
        {
            return Err(Denied::Expired);
        }
        if self.valid_from_ms.is_some_and(|from_ms| now_ms < from_ms) {
            return Err(Denied::NotYetValid);
        }
        if !self.via.has(protocol) {
            return Err(Denied::Protocol);
        }
        Ok(())
    }

    /// Like [`Grant::check`], for a sender of readings.
    ///
    /// # Errors
    /// Also if it may not write any sensor.
    pub fn check_sender(&self, protocol: Protocol, now_ms: i64) -> Result<(), Denied> {
        self.check(protocol, now_ms)?;
        match &self.write {
            Some(write) if write.is_none() => Err(Denied::Write),
            _ => Ok(()),
        }
    }

    /// Checks whether it may forward readings.
    ///
    /// # Errors
    /// It may not.
    pub fn check_forward(&self) -> Result<(), Denied> {
        match self.forward {
            true => Ok(()),
            false => Err(Denied::Forward),
        }
    }

    /// Applies the rules for single readings to those that `batch` decodes next. `sender_tag`: the
    /// name of the tag that records the sender. `is_forwarded`: a reading that has such a tag keeps
    /// it.
    pub fn apply(
        sender: Option<&Arc<Grant>>,
        sender_tag: Option<&Arc<str>>,
        is_forwarded: bool,
        batch: &mut BatchBuilder,
    ) {
        batch.allow_only(sender.and_then(|grant| grant.write.clone()));
        let tag = sender.zip(sender_tag).map(|(grant, name)| SenderTag {
            name: name.clone(),
            id: Some(grant.id.clone()),
            is_kept: is_forwarded,
        });
        batch.tag_sender(tag);
    }

    /// Like [`Grant::apply`], for readings whose sender is not known any more: they keep no tag that
    /// looks like that of a sender.
    pub fn apply_forgotten(sender_tag: Option<&Arc<str>>, batch: &mut BatchBuilder) {
        let tag = sender_tag.cloned().map(|name| SenderTag {
            name,
            id: None,
            is_kept: false,
        });
        batch.tag_sender(tag);
    }

    /// Checks whether its quota allows to send now.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn check_quota(&self, now: Now) -> Result<(), QuotaExceeded> {
        self.usage.check(&self.quota, now.mono_ms)
    }

    /// Whether it may read this sensor.
    pub fn may_read(&self, sensor_id: &str) -> bool {
        self.read
            .as_ref()
            .is_none_or(|read| read.matches(sensor_id))
    }

    /// Whether it may read every sensor.
    pub fn may_read_all(&self) -> bool {
        self.read.as_ref().is_none_or(SensorPatterns::is_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_ends_in_the_millisecond_of_its_expiry() {
        let grant = Grant {
            expires_ms: Some(1000),
            ..Grant::unlimited("gw1")
        };
        assert_eq!(grant.check(Protocol::Http, 999), Ok(()));
        assert_eq!(grant.check(Protocol::Http, 1000), Err(Denied::Expired));
        let later = Grant {
            valid_from_ms: Some(500),
            ..grant
        };
        assert_eq!(later.check(Protocol::Http, 499), Err(Denied::NotYetValid));
        assert_eq!(later.check(Protocol::Http, 500), Ok(()));
    }

    #[test]
    fn each_rule_denies_what_it_names() {
        let patterns =
            |list: &[&'static str]| Some(SensorPatterns::parse(list.iter().copied()).unwrap());
        let over_mqtt = Grant {
            via: Protocols {
                http: false,
                mqtt: true,
            },
            ..Grant::unlimited("d1")
        };
        assert_eq!(over_mqtt.check_sender(Protocol::Mqtt, 0), Ok(()));
        assert_eq!(
            over_mqtt.check_sender(Protocol::Http, 0),
            Err(Denied::Protocol)
        );
        let reader = Grant {
            write: patterns(&[]),
            read: patterns(&["a-*"]),
            ..Grant::unlimited("r")
        };
        assert_eq!(reader.check(Protocol::Http, 0), Ok(()));
        assert_eq!(reader.check_sender(Protocol::Http, 0), Err(Denied::Write));
        assert!(reader.may_read("a-1") && !reader.may_read("b-1") && !reader.may_read_all());
        assert!(
            Grant {
                read: patterns(&["*"]),
                ..Grant::unlimited("r")
            }
            .may_read_all()
        );
        assert!(Grant::unlimited("x").may_read("b-1"));
    }
}
