//! The aliases of sensors, as the router applies them.
//!
//! They apply to what leaves the journal, so also to what is replayed from it. Readings wait in the
//! journal until the aliases are known: a reading that is routed before would be stored under its
//! former id, and after its history has moved nothing would find it there.

use std::sync::Arc;

use tokio::sync::watch;

use model::{Aliases, ReadingBatch, SensorId};

/// Sets the aliases.
#[derive(Debug)]
pub struct AliasSetter(watch::Sender<Option<Arc<Aliases>>>);

/// The current aliases. The default is without any.
#[derive(Debug, Clone, Default)]
pub struct AliasView(Option<watch::Receiver<Option<Arc<Aliases>>>>);

impl AliasSetter {
    /// Aliases that are not known yet.
    pub fn new() -> (AliasSetter, AliasView) {
        let (setter, view) = watch::channel(None);
        (AliasSetter(setter), AliasView(Some(view)))
    }

    /// Applies to each batch that is routed from now on.
    pub fn set(&self, aliases: Aliases) {
        self.0.send_replace(Some(Arc::new(aliases)));
    }
}

impl AliasView {
    /// The ids whose readings count for this sensor now, in order.
    pub fn former_ids(&self, sensor_id: &str) -> Vec<SensorId> {
        let Some(aliases) = self.now() else {
            return vec![];
        };
        aliases.former_ids(sensor_id).cloned().collect()
    }

    /// The sensor for which readings with this id count now, if not that of the id.
    pub fn renamed_to(&self, id: &str) -> Option<SensorId> {
        self.now()?.resolve(id, i64::MAX).cloned()
    }

    fn now(&self) -> Option<Arc<Aliases>> {
        self.0.as_ref()?.borrow().clone()
    }

    /// The batch with the ids for which its readings count. Waits until the aliases are known.
    pub(super) async fn apply(&self, batch: Arc<ReadingBatch>) -> Arc<ReadingBatch> {
        let Some(view) = &self.0 else {
            return batch;
        };
        if view.borrow().is_none() {
            // An error means that the service ends.
            let _ = view.clone().wait_for(Option::is_some).await;
        }
        let aliases = view.borrow().clone();
        match aliases {
            Some(aliases) => aliases.apply(batch),
            None => batch,
        }
    }
}
