//! The registry interface: a collection of sensors that the operator maintains, one document per
//! sensor, read only.

use super::{BoxFuture, StoreError};

/// Which collection and fields to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryQuery {
    /// `enrich.collection`, in the same database.
    pub collection: String,
    /// `enrich.id_field`: the field that holds the sensor id, with dots for nested fields. Unique.
    pub id_field: String,
    /// `enrich.fields`, with dots for nested fields; empty selects all scalar fields at the top
    /// level.
    pub fields: Vec<String>,
}

/// The requested fields of one sensor's document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryRecord {
    /// The value of the id field as text.
    pub sensor_id: String,
    /// Scalar fields as text: path and value, in the document's order.
    pub fields: Vec<(String, String)>,
}

/// A change in the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryChange {
    /// The new content of a sensor's document.
    Set(RegistryRecord),
    /// The sensor's document was removed.
    Remove(String),
    /// The change does not identify the sensor that it removed: the whole registry must be read
    /// again.
    Unclear,
}

/// A stream of registry changes.
pub trait RegistryChanges: Send {
    /// Waits for the next change. Cancel safe.
    ///
    /// # Errors
    /// Changes may have been missed. The caller must call [`RegistryReader::watch`] and
    /// [`RegistryReader::read_all`] again.
    fn next(&mut self) -> BoxFuture<'_, Result<RegistryChange, StoreError>>;
}

/// Whether changes can be followed.
pub enum RegistryWatch {
    /// A stream of all changes from now on.
    Changes(Box<dyn RegistryChanges>),
    /// Not supported by this server or collection (standalone server, a view, missing privileges),
    /// with the reason.
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
    /// Reads the whole registry. Documents whose id cannot be a sensor id are skipped.
    ///
    /// # Errors
    /// The read failed midway; `each` was called for a part of the documents.
    fn read_all<'a>(
        &'a self,
        each: &'a mut (dyn FnMut(RegistryRecord) + Send),
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Starts following changes; the stream contains every change after this call returns.
    ///
    /// # Errors
    /// The store is not available.
    fn watch(&self) -> BoxFuture<'_, Result<RegistryWatch, StoreError>>;
}
