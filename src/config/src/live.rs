//! Settings that can be replaced while the service runs: one writer, many readers.

use std::sync::Arc;

use tokio::sync::watch;

/// The current value of a setting. Read it once per unit of work and keep that value for the whole
/// unit.
#[derive(Debug)]
pub struct Live<T>(watch::Receiver<Arc<T>>);

impl<T> Clone for Live<T> {
    fn clone(&self) -> Live<T> {
        Live(self.0.clone())
    }
}

/// Replaces the value of a [`Live`] setting.
#[derive(Debug)]
pub struct Setter<T>(watch::Sender<Arc<T>>);

impl<T> Clone for Setter<T> {
    fn clone(&self) -> Setter<T> {
        Setter(self.0.clone())
    }
}

impl<T> Live<T> {
    /// Creates a setting and its setter.
    pub fn new(value: T) -> (Setter<T>, Live<T>) {
        let (setter, live) = watch::channel(Arc::new(value));
        (Setter(setter), Live(live))
    }

    /// Creates a setting that never changes.
    pub fn fixed(value: T) -> Live<T> {
        Live::new(value).1
    }

    /// The current value.
    pub fn now(&self) -> Arc<T> {
        self.0.borrow().clone()
    }

    /// The new value if it changed since the last call on this handle. Costs an atomic load if it
    /// did not.
    pub fn changed(&mut self) -> Option<Arc<T>> {
        // An error means that the setter was dropped: the value can no longer change.
        self.0
            .has_changed()
            .unwrap_or(false)
            .then(|| self.0.borrow_and_update().clone())
    }

    /// The current value; [`Live::changed`] reports only later ones.
    pub fn latest(&mut self) -> Arc<T> {
        self.0.borrow_and_update().clone()
    }

    /// Waits until [`Live::changed`] has a new value; for ever if there is no setter any more.
    pub async fn wait_for_change(&self) {
        // A clone, because waiting marks the value as seen.
        if self.0.clone().changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl<T> Setter<T> {
    /// Replaces the value.
    pub fn set(&self, value: T) {
        self.0.send_replace(Arc::new(value));
    }

    /// Another handle for reading.
    pub fn live(&self) -> Live<T> {
        Live(self.0.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reader_gets_a_change_once() {
        let (setter, mut a) = Live::new(1);
        let mut b = a.clone();
        assert_eq!((*a.now(), a.changed().is_none()), (1, true));
        setter.set(2);
        assert_eq!(
            (a.changed().as_deref(), a.changed().is_none(), *a.now()),
            (Some(&2), true, 2)
        );
        assert_eq!(b.changed().as_deref(), Some(&2));
        // The last value remains after the setter is dropped.
        setter.set(3);
        drop(setter);
        assert_eq!((*a.now(), *Live::fixed(7).now()), (3, 7));
    }
}
