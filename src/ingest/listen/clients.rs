//! Who is connected: a second connection of the same client ends the first (MQTT-3.1.4-3).
//!
//! A client is a token and a client id together, so that no device can throw out another one's by taking its name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

type Key = (String, String);

/// One entry a connection, so bounded by their number.
#[derive(Debug, Clone, Default)]
pub(super) struct Clients(Arc<Mutex<HashMap<Key, CancellationToken>>>);

/// The place of a connection; given up when it is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    clients: Clients,
    key: Key,
    /// Cancelled when another connection has taken the place.
    pub(super) taken_over: CancellationToken,
}

impl Clients {
    /// Takes the place of a client, from another connection where there is one.
    pub(super) fn enter(&self, token: &str, id: &str) -> Registration {
        let (key, taken_over) = ((token.to_owned(), id.to_owned()), CancellationToken::new());
        let before = self.lock(|clients| clients.insert(key.clone(), taken_over.clone()));
        if let Some(before) = before {
            before.cancel();
        }
        Registration { clients: self.clone(), key, taken_over }
    }

    // Each entry is whole in itself, whatever a thread that panicked was at.
    fn lock<T>(&self, work: impl FnOnce(&mut HashMap<Key, CancellationToken>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Where it was taken over the entry is the other's.
        if !self.taken_over.is_cancelled() {
            self.clients.lock(|clients| clients.remove(&self.key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_of_the_same_name_and_token_ends_the_first() {
        let clients = Clients::default();
        let (first, other) = (clients.enter("t", "a"), clients.enter("u", "a"));
        let second = clients.enter("t", "a");
        assert!(first.taken_over.is_cancelled() && !second.taken_over.is_cancelled());
        assert!(!other.taken_over.is_cancelled(), "another token's device of the same name");
        drop(first);
        assert_eq!(clients.lock(|c| c.len()), 2, "the place is the second's");
        drop((second, other));
        assert_eq!(clients.lock(|c| c.len()), 0);
    }
}
