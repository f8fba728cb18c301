//! Topics of Sparkplug B: `spBv1.0/group/type/node`, followed by the device for messages of a
//! device (§4).

const NAMESPACE: &str = "spBv1.0";

/// A topic is not one of Sparkplug B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the topic is not {NAMESPACE}/group/type/node or {NAMESPACE}/group/type/node/device")]
pub(super) struct InvalidTopic;

/// The type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    NodeBirth,
    NodeDeath,
    DeviceBirth,
    DeviceDeath,
    /// From a node, or from a device.
    Data,
}

/// The type and the origin of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address<'t> {
    pub(super) kind: Kind,
    group: &'t str,
    node: &'t str,
    pub(super) device: Option<&'t str>,
}

impl<'t> Address<'t> {
    /// Parses a topic; `None` if it carries no measurements.
    pub(super) fn parse(topic: &'t str) -> Result<Option<Address<'t>>, InvalidTopic> {
        let mut levels = topic.split('/');
        if levels.next() != Some(NAMESPACE) {
            return Err(InvalidTopic);
        }
        let group = levels.next().ok_or(InvalidTopic)?;
        if group == "STATE" {
            return Ok(None);
        }
        let (kind, node) = levels.next().zip(levels.next()).ok_or(InvalidTopic)?;
        let device = levels.next();
        if group.is_empty() || node.is_empty() || device == Some("") || levels.next().is_some() {
            return Err(InvalidTopic);
        }
        let kind = match (kind, device) {
            ("NBIRTH", None) => Kind::NodeBirth,
            ("NDEATH", None) => Kind::NodeDeath,
            ("DBIRTH", Some(_)) => Kind::DeviceBirth,
            ("DDEATH", Some(_)) => Kind::DeviceDeath,
            // Some nodes use NDATA for their devices too.
            ("NDATA", _) | ("DDATA", Some(_)) => Kind::Data,
            ("NCMD" | "DCMD", _) => return Ok(None),
            _ => return Err(InvalidTopic),
        };
        Ok(Some(Address {
            kind,
            group,
            node,
            device,
        }))
    }

    /// `group/node`. Levels contain no `/`, so the result is unique.
    pub(super) fn node_id(&self) -> String {
        [self.group, "/", self.node].concat()
    }

    /// `group/node` or `group/node/device`.
    pub(super) fn sensor_id(&self) -> String {
        match self.device {
            Some(device) => [self.group, "/", self.node, "/", device].concat(),
            None => self.node_id(),
        }
    }

    /// The topic for commands to the node.
    pub(super) fn command_topic(&self) -> String {
        [NAMESPACE, "/", self.group, "/NCMD/", self.node].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_parsed() {
        let parse = |topic| {
            Address::parse(topic).map(|a| a.map(|a| (a.kind, a.sensor_id(), a.command_topic())))
        };
        let ok = |kind, id: &str| Ok(Some((kind, id.to_owned(), "spBv1.0/G/NCMD/N".to_owned())));
        assert_eq!(parse("spBv1.0/G/NBIRTH/N"), ok(Kind::NodeBirth, "G/N"));
        assert_eq!(parse("spBv1.0/G/DDATA/N/D 1"), ok(Kind::Data, "G/N/D 1"));
        assert_eq!(parse("spBv1.0/G/NDATA/N/D"), ok(Kind::Data, "G/N/D"));
        assert_eq!(
            parse("spBv1.0/G/DDEATH/N/D"),
            ok(Kind::DeviceDeath, "G/N/D")
        );
        for topic in [
            "spBv1.0/STATE/host",
            "spBv1.0/G/NCMD/N",
            "spBv1.0/G/DCMD/N/D",
        ] {
            assert_eq!(parse(topic), Ok(None), "{topic}");
        }
        for topic in [
            "",
            "spBv1.0",
            "spBv1.0/G",
            "spBv1.0/G/NDATA",
            "spBv1.0//NDATA/N",
            "spBv1.0/G/NDATA/",
            "spBv1.0/G/NBIRTH/N/D",
            "spBv1.0/G/DBIRTH/N",
            "spBv1.0/G/DDATA/N/",
            "spBv1.0/G/DDATA/N/D/E",
            "spBv1.0/G/XDATA/N",
            "spAv1.0/G/NDATA/N",
            "custom/device/status",
        ] {
            assert!(parse(topic).is_err(), "{topic}");
        }
    }
}
