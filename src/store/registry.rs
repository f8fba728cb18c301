//! The registry of sensors, in words: a collection that somebody else keeps, one document a sensor, read only.

use super::{BoxFuture, StoreError};

/// Which collection, and what of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryQuery {
    /// `enrich.collection`, in the same database.
    pub collection: String,
    /// `enrich.id_field`: the field that holds the sensor's id, dots for nested ones. Unique.
    pub id_field: String,
    /// `enrich.fields`, dots for nested ones; empty for all scalar fields at the top level.
    pub fields: Vec<String>,
}

/// What is wanted of a sensor's document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryRecord {
    /// The sensor.
    pub sensor_id: String,
    /// Scalar fields as text: path and value, in the document's order.
    pub fields: Vec<(String, String)>,
}

/// A change of the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryChange {
    /// A sensor's document is this now.
    Set(RegistryRecord),
    /// A sensor has none any more.
    Remove(String),
    /// The change does not say which sensor it took something from: only reading all again tells.
    Unclear,
}

/// Changes as they happen.
pub trait RegistryChanges: Send {
    /// Waits for the next one. Cancelling the future loses nothing.
    ///
    /// # Errors
    /// Changes may have been missed; what follows is a new reader's [`RegistryReader::watch`] and [`RegistryReader::read`].
    fn next(&mut self) -> BoxFuture<'_, Result<RegistryChange, StoreError>>;
}

/// Whether changes can be followed.
pub enum RegistryWatch {
    /// They can, from this moment on.
    Changes(Box<dyn RegistryChanges>),
    /// Not on this server or of this collection (standalone, a view, missing rights): why, in words.
    NotPossible(String),
}

impl std::fmt::Debug for RegistryWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RegistryWatch::Changes(_) => f.write_str("Changes"),
            RegistryWatch::NotPossible(why) => write!(f, "NotPossible({why})"),
        }
    }
}

/// Reads a registry.
pub trait RegistryReader: Send + Sync {
    /// Reads all of it. Documents without an id that can be a sensor's are passed over.
    ///
    /// # Errors
    /// It broke off; `each` has seen a part.
    fn read<'a>(&'a self, each: &'a mut (dyn FnMut(RegistryRecord) + Send)) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Begins to follow changes; everything that changes after the answer is seen.
    ///
    /// # Errors
    /// The store is not there.
    fn watch(&self) -> BoxFuture<'_, Result<RegistryWatch, StoreError>>;
}
