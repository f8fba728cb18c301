//! Lists of patterns on sensor ids.

use super::reader::{Bad, wrong};
use super::tree::Node;
use model::SensorPatterns;

/// Patterns in which `{id}` stands for the identity of a sender.
pub(super) fn patterns(node: &Node) -> Result<Vec<String>, Bad> {
    let advice =
        "write a list of patterns on sensor ids, such as [\"{id}\", \"{id}-*\"]; [] allows none";
    let texts = node.texts().ok_or_else(|| wrong(node, advice))?;
    SensorPatterns::parse(texts.iter().map(String::as_str))
        .map_err(|problem| Bad::new(problem, advice))?;
    Ok(texts)
}
