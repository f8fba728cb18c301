//! Settings that may be replaced while the service runs: one place sets them, many look.

use std::sync::Arc;

use tokio::sync::watch;

/// A setting as it is now. Who works with it takes it once and keeps it for that piece of work.
#[derive(Debug)]
pub struct Live<T>(watch::Receiver<Arc<T>>);

impl<T> Clone for Live<T> {
    fn clone(&self) -> Live<T> {
        Live(self.0.clone())
    }
}

/// Where a [`Live`] setting is replaced.
#[derive(Debug)]
pub struct Setter<T>(watch::Sender<Arc<T>>);

impl<T> Clone for Setter<T> {
    fn clone(&self) -> Setter<T> {
        Setter(self.0.clone())
    }
}

impl<T> Live<T> {
    /// A setting, and where it is replaced.
    pub fn new(value: T) -> (Setter<T>, Live<T>) {
        let (setter, live) = watch::channel(Arc::new(value));
        (Setter(setter), Live(live))
    }

    /// One that stays as it is.
    pub fn fixed(value: T) -> Live<T> {
        Live::new(value).1
    }

    /// The setting now.
    pub fn now(&self) -> Arc<T> {
        self.0.borrow().clone()
    }

    /// The setting, where it was replaced since this was asked last. Costs an atomic load where it was not.
    pub fn changed(&mut self) -> Option<Arc<T>> {
        // An error means that it will never change again.
        self.0.has_changed().unwrap_or(false).then(|| self.0.borrow_and_update().clone())
    }
}

impl<T> Setter<T> {
    /// Replaces the setting.
    pub fn set(&self, value: T) {
        self.0.send_replace(Arc::new(value));
    }

    /// Another one that looks.
    pub fn live(&self) -> Live<T> {
        Live(self.0.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_to_each() {
        let (setter, mut a) = Live::new(1);
        let mut b = a.clone();
        assert_eq!((*a.now(), a.changed().is_none()), (1, true));
        setter.set(2);
        assert_eq!((a.changed().as_deref(), a.changed().is_none(), *a.now()), (Some(&2), true, 2));
        assert_eq!(b.changed().as_deref(), Some(&2));
        // The last value stays where nobody can set it any more.
        setter.set(3);
        drop(setter);
        assert_eq!((*a.now(), *Live::fixed(7).now()), (3, 7));
    }
}
