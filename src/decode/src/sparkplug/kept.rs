//! The births as bytes, so that they survive a restart of the service: magic number, for each node
//! its id, session number and births, for each of its devices the same, and a checksum. All numbers
//! are little-endian.
//!
//! The births of a node that was reborn while the service was away are old. So the first data
//! message of each restored node requests a rebirth, although its aliases resolve. Sequence numbers
//! are not kept: they change with each message.

use std::collections::HashMap;

use super::births::{Births, Source};
use super::{BYTES_MAX, NODES_MAX, Node, Sparkplug};

const MAGIC: &[u8; 8] = b"hbbirth1";
/// In place of a missing session number.
const NO_BD_SEQ: u64 = u64::MAX;

/// The bytes are not births: damaged, or of another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the kept births are damaged, or of another version")]
pub struct Damaged;

impl Sparkplug {
    /// All births as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let known = self.nodes.iter().filter(|(_, node)| node.bytes() > 0);
        for (id, node) in known {
            put_text(id, &mut out);
            out.extend_from_slice(&node.bd_seq.unwrap_or(NO_BD_SEQ).to_le_bytes());
            node.own.write(&mut out);
            out.extend_from_slice(&(node.devices.len() as u32).to_le_bytes());
            for (device, births) in &node.devices {
                put_text(device, &mut out);
                births.write(&mut out);
            }
        }
        out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// Births that were kept.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Sparkplug, Damaged> {
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or(Damaged)?;
        let sound = u32::from_le_bytes(*crc) == crc32c::crc32c(body);
        let mut rest = Source(body.strip_prefix(MAGIC).filter(|_| sound).ok_or(Damaged)?);
        let mut state = Sparkplug::default();
        while !rest.0.is_empty() {
            let (id, node) = read_node(&mut rest).ok_or(Damaged)?;
            state.bytes += node.bytes();
            state.devices += node.devices.len();
            if state.bytes > BYTES_MAX || state.nodes.len() + state.devices >= NODES_MAX {
                return Err(Damaged);
            }
            state.nodes.insert(id, node);
        }
        Ok(state)
    }
}

fn read_node(rest: &mut Source<'_>) -> Option<(Box<str>, Node)> {
    let id = rest.text()?;
    let bd_seq = Some(rest.u64()?).filter(|seq| *seq != NO_BD_SEQ);
    let own = Births::parse(rest)?;
    let mut devices = HashMap::new();
    for _ in 0..rest.u32()? {
        devices.insert(rest.text()?, Births::parse(rest)?);
    }
    Some((
        id,
        Node {
            own,
            devices,
            bd_seq,
            is_restored: true,
            ..Node::default()
        },
    ))
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
